# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The sandbox's AWS: moto, and small fakes for the SSM calls that moto lacks.

DescribeInstanceInformation is answered for moto's own running instances. An instance's tag `sandbox:ssm` says what its
agent's PingStatus is (Online without the tag); pages, filters and limits are those of the real service. Run Command is
in commands.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from commands import InvalidRequest, Service
from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2 import ec2_backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
from werkzeug.wrappers import Request, Response

AGENT = "/sandbox/ssm-agent"


def running(region: str) -> Iterator[tuple[Any, dict[str, str]]]:
    """The instances that run in `region`, and their tags."""
    for reservation in ec2_backends[DEFAULT_ACCOUNT_ID][region].all_reservations():
        for instance in reservation.instances:
            if instance.state == "running":
                yield instance, {tag["key"]: tag["value"] for tag in instance.get_tags()}


def instance_information(region: str, request: dict[str, Any]) -> dict[str, Any]:
    """One page of DescribeInstanceInformation, from the instances that run in `region`."""
    size = request.get("MaxResults", 10)
    if not 5 <= size <= 50:
        raise InvalidRequest("ValidationException", f"MaxResults is {size}; it must be from 5 to 50")
    rows = []
    for instance, tags in running(region):
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
    """Answers the fakes' calls and those of the nodes' agents, and leaves the others to moto."""

    def __init__(self) -> None:
        self.moto = DomainDispatcherApplication(create_backend_app)
        self.commands = Service(lambda region: {found.id for found, _ in running(region)}, DEFAULT_ACCOUNT_ID)
        self.calls = {
            "DescribeInstanceInformation": instance_information,
            "SendCommand": self.commands.send_command,
            "ListCommandInvocations": self.commands.list_command_invocations,
            "GetCommandInvocation": self.commands.get_command_invocation,
        }

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        service, _, name = environ.get("HTTP_X_AMZ_TARGET", "").partition(".")
        if environ["PATH_INFO"] == AGENT:
            answer, status = self.agent(Request(environ)), 200
        elif service == "AmazonSSM" and name in self.calls:
            request = Request(environ)
            region = request.headers.get("Authorization", "x/x/us-east-1").split("/")[2]
            try:
                answer, status = self.calls[name](region, request.get_json(force=True)), 200
            except InvalidRequest as error:
                answer, status = {"__type": error.args[0], "message": error.args[1]}, 400
        else:
            return self.moto(environ, start_response)
        return Response(json.dumps(answer), status, content_type="application/x-amz-json-1.1")(environ, start_response)

    def agent(self, request: Request) -> dict[str, Any]:
        """What an agent is to do next, which may take a while; or its word on how something ended."""
        instance = request.args["instance"]
        if request.method == "POST":
            self.commands.reply(instance, request.get_json(force=True))
            return {}
        return self.commands.fetch(instance) or {}


if __name__ == "__main__":
    run_simple("0.0.0.0", 5000, Application(), threaded=True)
