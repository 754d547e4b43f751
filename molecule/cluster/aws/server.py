# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The sandbox's AWS: moto, and a small fake for the SSM calls that moto lacks.

The fake answers DescribeInstanceInformation for moto's own running instances. An instance's tag `sandbox:ssm` says what
its agent's PingStatus is (Online without the tag); pages, filters and limits are those of the real service.
"""

from __future__ import annotations

import json
from typing import Any

from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2 import ec2_backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
from werkzeug.wrappers import Request, Response

TARGET = "AmazonSSM.DescribeInstanceInformation"


class InvalidRequest(ValueError):
    """What the real service refuses; the first argument is the error's code."""


def instance_information(region: str, request: dict[str, Any]) -> dict[str, Any]:
    """One page of DescribeInstanceInformation, from the instances that run in `region`."""
    size = request.get("MaxResults", 10)
    if not 5 <= size <= 50:
        raise InvalidRequest("ValidationException", f"MaxResults is {size}; it must be from 5 to 50")
    rows = []
    for reservation in ec2_backends[DEFAULT_ACCOUNT_ID][region].all_reservations():
        for instance in reservation.instances:
            tags = {tag["key"]: tag["value"] for tag in instance.get_tags()}
            if instance.state != "running":
                continue
            row = {
                "InstanceId": instance.id,
                "PingStatus": tags.get("sandbox:ssm", "Online"),
                "PlatformType": "Linux",
                "ResourceType": "EC2Instance",
                "IPAddress": instance.private_ip,
                "AgentVersion": "3.3.2299.0",
            }
            if all(matches(row, tags, wanted) for wanted in request.get("Filters", [])):
                rows.append(row)
    start = int(request.get("NextToken") or 0)
    page: dict[str, Any] = {"InstanceInformationList": rows[start : start + size]}
    if start + size < len(rows):
        page["NextToken"] = str(start + size)
    return page


def matches(row: dict[str, Any], tags: dict[str, str], wanted: dict[str, Any]) -> bool:
    key, values = wanted["Key"], wanted["Values"]
    if key == "InstanceIds":
        return row["InstanceId"] in values
    if key == "PingStatus":
        return row["PingStatus"] in values
    if key.startswith("tag:"):
        return tags.get(key[4:]) in values
    raise InvalidRequest("InvalidFilterKey", f"{key} is not a filter of this call")


class Application:
    """Answers the fake's calls and leaves the others to moto."""

    def __init__(self) -> None:
        self.moto = DomainDispatcherApplication(create_backend_app)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        if environ.get("HTTP_X_AMZ_TARGET") != TARGET:
            return self.moto(environ, start_response)
        request = Request(environ)
        region = request.headers.get("Authorization", "x/x/us-east-1").split("/")[2]
        try:
            answer, status = instance_information(region, request.get_json(force=True)), 200
        except InvalidRequest as error:
            answer, status = {"__type": error.args[0], "message": error.args[1]}, 400
        return Response(json.dumps(answer), status, content_type="application/x-amz-json-1.1")(environ, start_response)


if __name__ == "__main__":
    run_simple("0.0.0.0", 5000, Application(), threaded=True)
