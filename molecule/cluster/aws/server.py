# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The sandbox's AWS: moto, and small fakes for the calls that moto lacks.

DescribeInstanceInformation is answered for moto's own running instances. An instance's tag `sandbox:ssm` says what its
agent's PingStatus is (Online without the tag); pages, filters and limits are those of the real service. Run Command is
in commands.py, launch templates are in launches.py, and the names of a cluster's private zone in names.py.

CompleteLifecycleAction, which a login node calls when it is up, leaves its result in the instance's tag
`sandbox:lifecycle`. What cfn-signal sends to a wait condition's URL, /sandbox/signal/<cluster>, can be read there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import launches
import names
from commands import InvalidRequest, Service
from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2 import ec2_backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
from werkzeug.wrappers import Request, Response

AGENT, SIGNAL = "/sandbox/ssm-agent", "/sandbox/signal/"
COMPLETED = """<CompleteLifecycleActionResponse xmlns="http://autoscaling.amazonaws.com/doc/2011-01-01/">
  <CompleteLifecycleActionResult/><ResponseMetadata><RequestId>sandbox</RequestId></ResponseMetadata>
</CompleteLifecycleActionResponse>"""


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
        self.signals: dict[str, bytes] = {}
        self.calls = {
            "DescribeInstanceInformation": instance_information,
            "SendCommand": self.commands.send_command,
            "ListCommandInvocations": self.commands.list_command_invocations,
            "ListCommands": self.commands.list_commands,
            "CancelCommand": self.commands.cancel_command,
            "GetCommandInvocation": self.commands.get_command_invocation,
        }

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        service, _, name = environ.get("HTTP_X_AMZ_TARGET", "").partition(".")
        if environ["PATH_INFO"].startswith(SIGNAL):
            return self.signal(Request(environ))(environ, start_response)
        if "/autoscaling/" in environ.get("HTTP_AUTHORIZATION", "") and self.completes(environ):
            return Response(COMPLETED, content_type="text/xml")(environ, start_response)
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

    def signal(self, request: Request) -> Response:
        """Keep what a wait condition is told last, or tell it."""
        cluster = request.path.removeprefix(SIGNAL)
        if request.method == "PUT":
            self.signals[cluster] = request.get_data()
        return Response(self.signals.get(cluster, b"{}"), content_type="application/json")

    def completes(self, environ: dict[str, Any]) -> bool:
        """Note the result of a CompleteLifecycleAction; return whether the call is one."""
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        form = Request({**environ, "wsgi.input": BytesIO(body)}).form
        environ["wsgi.input"] = BytesIO(body)
        if form.get("Action") != "CompleteLifecycleAction":
            return False
        region = environ["HTTP_AUTHORIZATION"].split("/")[2]
        instance = ec2_backends[DEFAULT_ACCOUNT_ID][region].get_instance(form["InstanceId"])
        instance.add_tag("sandbox:lifecycle", form["LifecycleActionResult"])
        return True

    def agent(self, request: Request) -> dict[str, Any]:
        """What an agent is to do next, which may take a while; or its word on how something ended."""
        instance = request.args["instance"]
        if request.method == "POST":
            self.commands.reply(instance, request.get_json(force=True))
            return {}
        return self.commands.fetch(instance) or {}


if __name__ == "__main__":
    launches.furnish()
    launches.follow_launch_templates()
    launches.name_zones_by_reference()
    names.serve()
    run_simple("0.0.0.0", 5000, Application(), threaded=True)
