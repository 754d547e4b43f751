# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One script on many nodes, by Run Command of AWS Systems Manager: sent, and asked for until it has ended."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory_aws import (
    describe_instances,
    online_instances,
)
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory_nodes import some
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory_session import (
    AwsErrors,
    ClientMaker,
    explain,
)

DOCUMENT = "AWS-RunShellScript"
BATCH = 50  # instance ids of one command, and invocations of one page
DELIVERY = 600  # seconds in which an agent has to begin; Run Command's own default
LATE = 300  # seconds after everything should have ended
GONE_EVERY = 60.0  # seconds between two looks at whether the nodes still exist
PATIENCE = 10  # calls in a row that may go wrong in passing
_ID = re.compile(r"\bi-[0-9a-f]+")
_CUT = "---Output truncated---"
_PASSING = ("Throttl", "TooManyRequests", "RequestLimitExceeded", "InternalServer", "ServiceUnavailable", "Timeout")
_PASSING_HERE = ("Timeout", "ConnectionClosed", "EndpointConnection", "ProxyConnection", "HTTPClient", "Incomplete")
_OVER = ("Success", "Failed", "TimedOut", "Cancelled")
_SILENT = (
    "its SSM agent does not answer; the usual reasons are that its role lacks the policy AmazonSSMManagedInstanceCore, "
    "which ParallelCluster does not add by itself, and that it has no way to the SSM endpoints"
)


class Node(NamedTuple):
    """A node of the inventory."""

    name: str
    instance_id: str
    region: str
    cluster: str
    kind: str  # head, login or compute


class Answer(NamedTuple):
    """How it ended on one node."""

    state: str  # success, failed, unreachable
    why: str = ""  # of what is no success; empty where the output tells
    output: str = ""


Answers = dict[Node, Answer]


class Sent(NamedTuple):
    """A command that has not ended on these nodes."""

    command_id: str
    region: str
    since: float
    nodes: dict[str, Node]


class Script(NamedTuple):
    """What is run, what people see of it in the console, and how many seconds it may take."""

    text: str
    comment: str
    seconds: int


class RunCommand:
    """Sends a script to nodes, and knows where it has ended. A failed call is a CallError of one line."""

    def __init__(self, make_client: ClientMaker, script: Script, clock: Callable[[], float] = time.monotonic) -> None:
        self._make_client, self._script, self._clock = make_client, script, clock
        self._clients: dict[tuple[str, str], Any] = {}
        self._sent: list[Sent] = []
        self._looked, self._looks = clock(), True
        self._wrong: dict[str, int] = {}  # calls in a row that went wrong in passing, by region
        self.notes: list[str] = []

    @property
    def running(self) -> list[Node]:
        """Where it has not ended."""
        return [node for sent in self._sent for node in sent.nodes.values()]

    def silent(self, nodes: Iterable[Node]) -> Answers:
        """Return the nodes that cannot be reached."""
        places: dict[tuple[str, str], list[Node]] = {}
        for node in nodes:
            places.setdefault((node.region, node.cluster), []).append(node)
        found: Answers = {}
        for (region, cluster), members in places.items():
            try:
                online = online_instances(self._client("ssm", region), cluster)
            except AwsErrors as error:
                raise explain(error, region, "ssm:DescribeInstanceInformation", f"cluster {cluster}") from error
            found.update({node: Answer("unreachable", _SILENT) for node in members if node.instance_id not in online})
        return found

    def send(self, nodes: Sequence[Node]) -> tuple[Answers, list[Node]]:
        """Send it to at most 50 nodes of one region. Return those that do not get it, and those that may later."""
        region, ids = nodes[0].region, {node.instance_id: node for node in nodes}
        try:
            answer = self._client("ssm", region).send_command(
                InstanceIds=list(ids),
                DocumentName=DOCUMENT,
                Comment=self._script.comment[:100],
                Parameters={
                    "commands": self._script.text.splitlines(),
                    "executionTimeout": [str(self._script.seconds)],
                },
                TimeoutSeconds=DELIVERY,
                # How many at a time, and how many failures, is decided here: one command is but a part of all.
                MaxConcurrency=str(len(ids)),
                MaxErrors="100%",
            )
        except AwsErrors as error:
            if _code(error) == "InvalidInstanceId":
                return self._without(nodes, str(error))
            if self._passes(error, region):
                return {}, list(nodes)
            raise explain(error, region, f"ssm:SendCommand on {DOCUMENT} and on the instances", _some(nodes)) from error
        self._wrong[region] = 0
        self._sent.append(Sent(answer["Command"]["CommandId"], region, self._clock(), ids))
        return {}, []

    def _without(self, nodes: Sequence[Node], message: str) -> tuple[Answers, list[Node]]:
        """Leave out the nodes that SSM does not take: one of them keeps the command from all."""
        named = set(_ID.findall(message))
        bad = [node for node in nodes if node.instance_id in named]
        parts = [[node for node in nodes if node not in bad]]
        if not bad and len(nodes) > 1:
            half = len(nodes) // 2
            parts = [list(nodes[:half]), list(nodes[half:])]
        elif not bad:
            bad, parts = list(nodes), []
        refused = {node: Answer("unreachable", f"SSM refuses it (InvalidInstanceId): {_SILENT}") for node in bad}
        later: list[Node] = []
        for part in filter(None, parts):
            more, wait = self.send(part)
            refused.update(more)
            later += wait
        return refused, later

    def poll(self) -> Answers:
        """Return where it has ended since the last call."""
        found: Answers = {}
        for sent in self._sent:
            try:
                found.update(self._ask(sent))
                self._wrong[sent.region] = 0
            except AwsErrors as error:
                if not self._passes(error, sent.region):
                    needed = "ssm:ListCommandInvocations and ssm:GetCommandInvocation"
                    raise explain(error, sent.region, needed, _some(sent.nodes.values())) from error
        self._drop(found)
        gone = self._gone()
        self._drop(gone)
        return {**found, **gone}

    def forget(self, why: str) -> Answers:
        """Return what is known of the nodes where it goes on unobserved."""
        found = {node: Answer("unreachable", f"it goes on there, but {why}") for node in self.running}
        self._sent = []
        return found

    def _drop(self, ended: Mapping[Node, Answer]) -> None:
        for sent in self._sent:
            for node in [node for node in sent.nodes.values() if node in ended]:
                del sent.nodes[node.instance_id]
        self._sent = [sent for sent in self._sent if sent.nodes]

    def _ask(self, sent: Sent) -> Answers:
        client = self._client("ssm", sent.region)
        pages = client.get_paginator("list_command_invocations").paginate(
            CommandId=sent.command_id, Details=True, PaginationConfig={"PageSize": BATCH}
        )
        found: Answers = {}
        for one in (one for page in pages for one in page.get("CommandInvocations", ())):
            node = sent.nodes.get(one["InstanceId"])
            if node and one["Status"] in _OVER:
                found[node] = self._read(client, sent, one)
        if self._clock() - sent.since > DELIVERY + self._script.seconds + LATE:
            late = {node: Answer("unreachable", "SSM has not said how it ended") for node in sent.nodes.values()}
            found = {**late, **found}
        return found

    def _read(self, client: Any, sent: Sent, one: Mapping[str, Any]) -> Answer:
        details = str(one.get("StatusDetails", "")).replace(" ", "")
        output = "".join(str(plugin.get("Output", "")) for plugin in one.get("CommandPlugins") or ())
        if _CUT in output:
            whole = client.get_command_invocation(CommandId=sent.command_id, InstanceId=one["InstanceId"])
            output = str(whole.get("StandardOutputContent", ""))
        if one["Status"] == "Success":
            return Answer("success", "", output)
        why = {
            "DeliveryTimedOut": f"its SSM agent did not begin within {DELIVERY} s",
            "Undeliverable": "SSM cannot deliver to it (Undeliverable): it is gone, or its agent does not answer",
            "ExecutionTimedOut": f"not done within {self._script.seconds} s (fleet_timeout)",
            "Cancelled": "somebody has cancelled the command",
            "Terminated": "SSM has ended the command (Terminated)",
        }.get(details, "" if details == "Failed" else f"SSM says {details}")
        state = "unreachable" if details in ("DeliveryTimedOut", "Undeliverable") else "failed"
        return Answer(state, why, output)

    def _gone(self) -> Answers:
        """Return the nodes that have been terminated or stopped. SSM would wait for them as long as for any other."""
        if not self._looks or self._clock() - self._looked < GONE_EVERY:
            return {}
        self._looked = self._clock()
        found: Answers = {}
        for region in dict.fromkeys(node.region for node in self.running):
            nodes = [node for node in self.running if node.region == region]
            ids = [node.instance_id for node in nodes]
            states = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
            try:
                alive = {
                    one["InstanceId"]
                    for start in range(0, len(ids), 200)  # values of a filter
                    for one in describe_instances(
                        self._client("ec2", region),
                        [{"Name": "instance-id", "Values": ids[start : start + 200]}, *states],
                    )
                }
            except AwsErrors as error:
                self._looks = False
                why = explain(error, region, "ec2:DescribeInstances", _some(nodes))
                self.notes.append(f"nodes that are terminated meanwhile are waited for, because {why}")
                return found
            gone = Answer("unreachable", "it was terminated or stopped before the end")
            found.update({node: gone for node in nodes if node.instance_id not in alive})
        return found

    def _passes(self, error: Exception, region: str) -> bool:
        """Say whether a call may go well next time. boto3 has tried several times already."""
        code, kind = _code(error), type(error).__name__
        if not (any(word in code for word in _PASSING) or (not code and any(word in kind for word in _PASSING_HERE))):
            return False
        self._wrong[region] = self._wrong.get(region, 0) + 1
        return self._wrong[region] < PATIENCE

    def _client(self, service: str, region: str) -> Any:
        if (service, region) not in self._clients:
            self._clients[service, region] = self._make_client(service, region)
        return self._clients[service, region]


def _code(error: Exception) -> str:
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def _some(nodes: Iterable[Node]) -> str:
    return some((node.name for node in nodes), 3)
