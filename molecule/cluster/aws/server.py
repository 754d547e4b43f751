# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The sandbox's AWS: moto, and small fakes for the calls that moto lacks.

DescribeInstanceInformation is answered for moto's own running instances. An instance's tag `sandbox:ssm` says what its
agent's PingStatus is (Online without the tag); pages, filters and limits are in agents.py. Run Command is in
commands.py, Session Manager in sessions.py (/sandbox/sessions takes what a test wants of it), launch templates are in
launches.py (/sandbox/no-capacity takes types of instances that EC2 is out of), the names of a cluster's private zone in
names.py, what EC2 has scheduled in schedules.py (/sandbox/capacity-reservations takes reservations), what
CloudFormation needs for the stacks of our playbooks in resources.py, and SageMaker HyperPod in hyperpod.py
(/sandbox/hyperpod takes clusters).

CompleteLifecycleAction, which a login node calls when it is up, leaves its result in the instance's tag
`sandbox:lifecycle`. What cfn-signal sends to a wait condition's URL, /sandbox/signal/<cluster>, can be read there, and
ends what the cluster's stack (cluster_stacks.py) was told to begin, at /sandbox/stack/<cluster>.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import agents
import exports
import hyperpod
import launches
import names
import resources
import schedules
import sessions
from cluster_stacks import Clusters
from commands import InvalidRequest, Service
from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2 import ec2_backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
from werkzeug.wrappers import Request, Response

AGENT, SESSIONS, HYPERPOD = "/sandbox/ssm-agent", "/sandbox/sessions", "/sandbox/hyperpod"
SIGNAL, STACK = "/sandbox/signal/", "/sandbox/stack/"
RESERVATIONS, NO_CAPACITY = "/sandbox/capacity-reservations", "/sandbox/no-capacity"
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
    known = []
    for instance, tags in running(region):
        row = {
            "InstanceId": instance.id,
            "PingStatus": tags.get("sandbox:ssm", "Online"),
            "PlatformType": "Linux",
            "ResourceType": "EC2Instance",
            "IPAddress": instance.private_ip,
            "AgentVersion": "3.3.2299.0",
        }
        known.append((row, tags))
    return agents.page(known, request)


class Application:
    """Answers the fakes' calls and those of the nodes' agents, and leaves the others to moto."""

    def __init__(self) -> None:
        self.moto = DomainDispatcherApplication(create_backend_app)
        self.commands = Service(lambda region: {found.id for found, _ in running(region)}, DEFAULT_ACCOUNT_ID)
        self.hyperpod = hyperpod.Service()
        self.sessions = sessions.Service(self.targets)
        self.signals: dict[str, bytes] = {}
        self.clusters = Clusters()
        self.calls = {
            "DescribeInstanceInformation": instance_information,
            "SendCommand": self.commands.send_command,
            "ListCommandInvocations": self.commands.list_command_invocations,
            "ListCommands": self.commands.list_commands,
            "CancelCommand": self.commands.cancel_command,
            "GetCommandInvocation": self.commands.get_command_invocation,
            "StartSession": self.sessions.start_session,
            "TerminateSession": self.sessions.terminate_session,
            "DescribeSessions": self.sessions.describe_sessions,
            "GetConnectionStatus": self.sessions.get_connection_status,
        }

    def targets(self, region: str) -> dict[str, str]:
        """What Session Manager may know, and the instance whose agent that is."""
        return {instance: instance for instance in self.commands.running(region)} | dict(self.hyperpod.targets(region))

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        service, _, name = environ.get("HTTP_X_AMZ_TARGET", "").partition(".")
        if environ["PATH_INFO"].startswith(SIGNAL):
            return self.signal(Request(environ))(environ, start_response)
        if environ["PATH_INFO"].startswith(STACK):
            return self.stack(Request(environ))(environ, start_response)
        if "/autoscaling/" in environ.get("HTTP_AUTHORIZATION", "") and self.completes(environ):
            return Response(COMPLETED, content_type="text/xml")(environ, start_response)
        if environ.get("HTTP_UPGRADE") == "sandbox-session":
            asked, token = Request(environ), environ.get("HTTP_X_TOKEN", "")
            self.sessions.serve(asked.path, asked.args.get("role", ""), token, environ["werkzeug.socket"])
        if environ["PATH_INFO"] == SESSIONS:
            answer, status = self.sessions.arrange(json.loads(Request(environ).get_data() or b"{}")), 200
        elif environ["PATH_INFO"] == HYPERPOD:
            answer, status = self.hyperpod.arrange(json.loads(Request(environ).get_data() or b"{}")), 200
        elif environ["PATH_INFO"] == RESERVATIONS:
            answer, status = schedules.plant(json.loads(Request(environ).get_data() or b"{}")), 200
        elif environ["PATH_INFO"] == NO_CAPACITY:
            launches.NO_CAPACITY.clear()
            launches.NO_CAPACITY.update(json.loads(Request(environ).get_data() or b"[]"))
            answer, status = {}, 200
        elif environ["PATH_INFO"] == AGENT:
            answer, status = self.agent(Request(environ)), 200
        elif (service == "AmazonSSM" and name in self.calls) or (
            service == "SageMaker" and name in self.hyperpod.calls
        ):
            request = Request(environ)
            region = request.headers.get("Authorization", "x/x/us-east-1").split("/")[2]
            try:
                asked = request.get_json(force=True)
                if service == "SageMaker":
                    answer, status = self.hyperpod.answer(name, region, asked), 200
                else:
                    answer, status = self.calls[name](region, asked), 200
                if "StreamUrl" in answer:
                    answer["StreamUrl"] = request.host_url + answer["StreamUrl"]
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
            self.clusters.signal(cluster, json.loads(request.get_data()))
        return Response(self.signals.get(cluster, b"{}"), content_type="application/json")

    def stack(self, request: Request) -> Response:
        """Begin an operation on a cluster's stack, or forget the stack."""
        cluster = request.path.removeprefix(STACK)
        if request.method == "DELETE":
            self.clusters.delete(cluster)
        else:
            self.clusters.begin(cluster, request.get_json(force=True))
        return Response("{}", content_type="application/json")

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
    resources.register()
    schedules.register()
    exports.register()
    names.serve()
    run_simple("0.0.0.0", 5000, Application(), threaded=True)
