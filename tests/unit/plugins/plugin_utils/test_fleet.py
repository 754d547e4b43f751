# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A bundle on many nodes, on the sandbox's own Run Command and a clock of the test's: who has it when."""

from __future__ import annotations

import base64
import gzip
import json
import os
import signal
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from ansible_collections.pcluster.postboot.plugins.action import fleet
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws import remote_script, run_command
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.remote_script import Node
from ansible_collections.pcluster.postboot.plugins.plugin_utils._fleet import rollout as fleet_rollout
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory.nodes import TAG_CLUSTER
from ansible_collections.pcluster.postboot.tests.programs import load
from ansible_collections.pcluster.postboot.tests.unit.plugins.aws import error

REPOSITORY = Path(__file__).resolve().parents[4]
BUNDLE = "s3://bucket/postboot/0.2.0-abcabcabcabc"
REQUEST = fleet_rollout.Request(BUNDLE, "abc" * 21 + "a")
REPORT = {
    "outcome": "ok",
    "stopped": None,
    "changed": 2,
    "seconds": 7.0,
    "host": "localhost",
    "components": [
        {"name": "fsx", "status": "unchanged", "changed": 0, "seconds": 1.0, "why": ""},
        {"name": "docker", "status": "changed", "changed": 2, "seconds": 6.0, "why": "", "summary": "Docker 29"},
    ],
}


def output(code: int = 0, before: str = "-", after: str = "0.2.0-abc", report: Any = None, said: str = "done") -> str:
    """What fleet.sh prints."""
    word = "-" if report is None else base64.b64encode(gzip.compress(json.dumps(report).encode())).decode()
    lines = (
        f"pcluster-postboot-fleet 1 {code} {before} {after} {word}",
        "pcluster-postboot: began",
        f"pcluster-postboot: {said}",
    )
    return "\n".join(lines) + "\n"


class Aws:
    """A client of SSM and EC2 in every region: the sandbox's Run Command, and nodes that the test lets run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.seconds = 0.0  # between two moments at which nodes run what they have got, for the action
        self.alive: dict[str, str] = {}  # region by instance
        self.clusters: dict[str, str] = {}  # by instance
        self.offline: set[str] = set()
        self.unregistered: set[str] = set()
        self.fails: dict[str, list[Exception]] = {}  # what the next calls of an operation raise
        self.done: dict[str, float] = {}  # when an instance ended
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.batches: list[list[str]] = []
        self.parameters: dict[str, Any] = {}
        self.agents = load("molecule/cluster/aws/agents.py")
        module = load("molecule/cluster/aws/commands.py")
        monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: self.now, monotonic=lambda: self.now))
        self.refusal = module.InvalidRequest
        self.service = module.Service(
            lambda region: {one for one, where in self.alive.items() if where == region} - self.unregistered, "1234"
        )
        self.anonymous = False  # whether InvalidInstanceId names nobody

    def make_client(self, service: str, region: str) -> Any:
        assert service in ("ssm", "ec2")
        return Client(self, region)

    def node(self, name: str, kind: str = "compute", cluster: str = "main", region: str = "us-east-1") -> Node:
        instance = f"i-{len(self.alive) + 1:017x}"
        self.alive[instance], self.clusters[instance] = region, cluster
        return Node(name, instance, region, cluster, kind)

    def nodes(self, count: int, **more: Any) -> list[Node]:
        return [self.node(f"n{number}", **more) for number in range(1, count + 1)]

    def run(self, node: Node, text: str | None = None, code: int = 0, late: bool = False) -> bool:
        """Let a node run what there is for it, and say whether there was something."""
        command = self.service.fetch(node.instance_id, 0)
        if command:
            self.end(node, command, text, code, late)
        return bool(command)

    def end(self, node: Node, command: Any, text: str | None = None, code: int = 0, late: bool = False) -> None:
        """Let a node end what it has begun."""
        said = {"id": command["id"], "code": code, "stdout": output(code) if text is None else text}
        self.service.reply(node.instance_id, {**said, "stderr": "", "late": late})
        self.done[node.instance_id] = self.now

    def information(self, instance: str) -> dict[str, str]:
        """What SSM says of an agent. One that was lost stays in its list."""
        return {"InstanceId": instance, "PingStatus": "ConnectionLost" if instance in self.offline else "Online"}

    def throttle(self) -> None:
        raise error("ThrottlingException")

    def take(self, node: Node) -> bool:
        """Let a node begin, and never end."""
        return bool(self.service.fetch(node.instance_id, 0))


class Client:
    def __init__(self, aws: Aws, region: str) -> None:
        self.aws, self.region = aws, region

    def _call(self, operation: str, **request: Any) -> Any:
        waiting = self.aws.fails.get(operation)
        if waiting:
            raise waiting.pop(0)
        self.aws.calls.append((operation, request))
        try:
            return getattr(self.aws.service, operation)(self.region, request)
        except self.aws.refusal as refused:
            message = "" if self.aws.anonymous else refused.args[1]
            raise error(refused.args[0], message) from refused

    def send_command(self, **request: Any) -> Any:
        answer = self._call("send_command", **request)
        self.aws.batches.append(request["InstanceIds"])
        self.aws.parameters = request
        return answer

    def get_command_invocation(self, **request: Any) -> Any:
        return self._call("get_command_invocation", **request)

    def list_commands(self, **request: Any) -> Any:
        return self._call("list_commands", **request)

    def cancel_command(self, **request: Any) -> Any:
        return self._call("cancel_command", **request)

    def get_paginator(self, operation: str) -> Any:
        return SimpleNamespace(paginate=lambda **request: self._pages(operation, **request))

    def _pages(self, operation: str, PaginationConfig: dict[str, int], **request: Any) -> Iterator[Any]:
        if operation == "list_command_invocations":
            token: dict[str, str] = {}
            while True:
                page = self._call(operation, MaxResults=PaginationConfig["PageSize"], **request, **token)
                yield page
                if "NextToken" not in page:
                    return
                token = {"NextToken": page["NextToken"]}
        waiting = self.aws.fails.get(operation)
        if waiting:
            raise waiting.pop(0)
        here = [one for one, region in self.aws.alive.items() if region == self.region]
        if operation == "describe_instance_information":
            known = [(self.aws.information(one), {TAG_CLUSTER: self.aws.clusters[one]}) for one in here]
            try:
                yield {"InstanceInformationList": self.aws.agents.chosen(known, request["Filters"])}
            except self.aws.agents.InvalidRequest as refused:
                raise error(*refused.args) from refused
        else:
            assert operation == "describe_instances"
            wanted = next(found["Values"] for found in request["Filters"] if found["Name"] == "instance-id")
            yield {"Reservations": [{"Instances": [{"InstanceId": one} for one in here if one in wanted]}]}


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Aws:
    return Aws(monkeypatch)


Begin = Callable[..., fleet_rollout.Rollout]


@pytest.fixture
def begin(aws: Aws) -> Begin:
    """A function that begins a rollout over nodes, and makes its first move."""

    def make(nodes: list[Node], **request: Any) -> fleet_rollout.Rollout:
        asked = REQUEST._replace(**request)
        script = remote_script.Script("true\n", "a test", asked.timeout, fleet_rollout.enough)
        command = run_command.RunCommand(aws.make_client, script, lambda: aws.now)
        rollout = fleet_rollout.Rollout(nodes, asked, command, lambda: aws.now)
        rollout.begin()
        rollout.move()
        return rollout

    return make


def states(rollout: fleet_rollout.Rollout) -> dict[str, str]:
    return {node.name: outcome.state for node, outcome in rollout.outcomes.items()}


def why(rollout: fleet_rollout.Rollout, name: str) -> str:
    return next(outcome.why for node, outcome in rollout.outcomes.items() if node.name == name)


def only(rollout: fleet_rollout.Rollout) -> tuple[str, str]:
    """The only outcome that is known: the state and why."""
    (outcome,) = rollout.outcomes.values()
    return outcome.state, outcome.why


def finish(rollout: fleet_rollout.Rollout, aws: Aws, but: Container[str] = (), **run: Any) -> None:
    """Let every node run what it has got, seen to have begun before it ends, until all is over."""
    for _turn in range(1000):
        rollout.move()
        if rollout.done:
            return
        got = [node for node in rollout.nodes if node.instance_id in aws.alive and node.instance_id not in but]
        begun = [(node, command) for node in got if (command := aws.service.fetch(node.instance_id, 0))]
        rollout.move()
        for node, command in begun:
            aws.end(node, command, **run)
        aws.now += 10
    raise AssertionError(rollout.state())


# Who has it when


def test_a_head_node_comes_before_its_own_cluster(aws: Aws, begin: Begin) -> None:
    nodes = [*aws.nodes(3), aws.node("head", kind="head"), aws.node("other-head", kind="head", cluster="other")]
    nodes.append(aws.node("o1", cluster="other"))
    rollout = begin(nodes, concurrency="100%")
    assert aws.batches == [[nodes[3].instance_id, nodes[4].instance_id]]
    aws.run(nodes[3])
    rollout.move()
    assert aws.batches[1:] == [[node.instance_id for node in nodes[:3]]], "the other head node is still at it"
    finish(rollout, aws)
    assert set(states(rollout).values()) == {"changed"}


def test_a_lost_head_node_holds_its_own_cluster_only(aws: Aws, begin: Begin) -> None:
    heads = [aws.node(f"head-{name}", kind="head", cluster=name) for name in "abcde"]
    nodes = [*heads, *(aws.node(f"{name}{number}", cluster=name) for name in "abcde" for number in range(8))]
    lost = {heads[0].instance_id}
    rollout = begin(nodes)
    began = aws.now
    finish(rollout, aws, but=lost)
    assert aws.now - began < remote_script.DELIVERY + 100
    assert states(rollout) == {
        **{node.name: "changed" for node in nodes if node.cluster != "a"},
        **{node.name: "not sent" for node in nodes if node.cluster == "a"},
        "head-a": "unreachable",
    }
    assert max(aws.done[node.instance_id] for node in nodes if node.cluster != "a") - began < 300


def test_five_have_it_before_the_first_result_and_then_always_twice_as_many(aws: Aws, begin: Begin) -> None:
    nodes = [
        aws.node(f"n{number}")._replace(group=group)
        for number, group in enumerate([*["gpu p5"] * 96, "gpu p4", "cpu c5", "cpu c6", "login m5"])
    ]
    rollout, waves = begin(nodes, concurrency="50%"), []
    while not rollout.done:
        rollout.move()
        running = rollout._command.running
        waves.append(running)
        for node in running:
            aws.run(node)
        aws.now += 10
    assert [len(wave) for wave in waves] == [5, 10, 20, 40, 25, 0]
    assert sorted({node.group for node in waves[0]}) == ["cpu c5", "cpu c6", "gpu p4", "gpu p5", "login m5"]


def test_a_bundle_that_breaks_nodes_breaks_five(aws: Aws, begin: Begin) -> None:
    rollout = begin(aws.nodes(500))
    finish(rollout, aws, code=1)
    assert rollout.failed == 5
    assert rollout.table(200, 1.0)[-3:-1] == [
        "495 not sent: n[6-500]: stopped after 5 failures (fleet_max_errors is 0)",
        "5 failed: n[1-5]: done",
    ]


@pytest.mark.parametrize(
    ("concurrency", "most"), [("1", 1), ("4", 4), ("10%", 12), ("1%", 1), ("100%", 62), ("500", 62)]
)
def test_no_more_than_asked_for_at_the_same_time(aws: Aws, begin: Begin, concurrency: str, most: int) -> None:
    rollout, seen = begin(aws.nodes(120), concurrency=concurrency), set()
    for turn in range(1000):
        rollout.move()
        running = rollout._command.running
        seen.add(len(running))
        if rollout.done:
            break
        assert len(running) <= fleet_rollout.FIRST + len(rollout.outcomes)
        aws.run(running[turn % len(running)])  # they end one by one
    assert rollout.done
    assert max(seen) == most
    assert all(len(batch) <= 50 for batch in aws.batches)


def test_few_commands_for_many_nodes(aws: Aws, begin: Begin) -> None:
    rollout = begin(aws.nodes(400), concurrency="10%")
    for turn in range(2000):
        rollout.move()
        if rollout.done:
            break
        running = rollout._command.running
        aws.run(running[turn % len(running)])
    assert rollout.done
    assert len(aws.batches) <= 30 + 400 / (40 // fleet_rollout.PARTS)


def test_regions_have_commands_of_their_own(aws: Aws, begin: Begin) -> None:
    nodes = [aws.node("east"), aws.node("west", region="us-west-2"), aws.node("east-2")]
    rollout = begin(nodes, concurrency="100%")
    finish(rollout, aws)
    assert sorted(map(len, aws.batches)) == [1, 2]
    assert set(states(rollout).values()) == {"changed"}


def test_what_ssm_is_given(aws: Aws, begin: Begin) -> None:
    begin(aws.nodes(2), concurrency="2")
    assert aws.parameters["DocumentName"] == "AWS-RunShellScript"
    assert aws.parameters["Parameters"] == {"commands": ["true"], "executionTimeout": ["3600"]}
    assert (aws.parameters["MaxConcurrency"], aws.parameters["MaxErrors"]) == ("2", "100%")


# When it goes wrong


def test_after_too_many_failures_nobody_else_has_it(aws: Aws, begin: Begin) -> None:
    nodes = aws.nodes(6)
    rollout = begin(nodes, concurrency="2", max_errors="1")
    for number, code in ((0, 1), (1, 0)):
        aws.run(nodes[number], code=code)
    rollout.move()
    assert len(rollout._command.running) == 2, "one failure is allowed"
    aws.run(nodes[2], output(1, said="fsx failed: not mounted; see log"), code=1)
    rollout.move()
    assert not rollout.done, "the one that has begun is waited for"
    aws.run(nodes[3])
    rollout.move()
    assert rollout.done
    expected = ["failed", "changed", "failed", "changed", "not sent", "not sent"]
    assert states(rollout) == {node.name: state for node, state in zip(nodes, expected)}
    assert why(rollout, "n3") == "fsx failed: not mounted; see log"
    assert why(rollout, "n5") == "stopped after 2 failures (fleet_max_errors is 1)"


@pytest.mark.parametrize(("max_errors", "failures"), [("0", 1), ("3", 4), ("10%", 3), ("100%", 20)])
def test_how_many_may_fail(aws: Aws, begin: Begin, max_errors: str, failures: int) -> None:
    rollout = begin(aws.nodes(20), concurrency="1", max_errors=max_errors)
    finish(rollout, aws, code=1)
    assert rollout.failed == failures


def test_a_failed_head_node_keeps_its_cluster_back_and_no_other(aws: Aws, begin: Begin) -> None:
    bad, good = aws.node("head", kind="head"), aws.node("good-head", kind="head", cluster="good")
    nodes = [bad, good, aws.node("n1"), aws.node("g1", cluster="good")]
    rollout = begin(nodes, concurrency="100%", max_errors="1")
    aws.run(bad, code=1)
    aws.run(good)
    rollout.move()
    aws.run(nodes[3])
    rollout.move()
    assert rollout.done
    assert states(rollout) == {"head": "failed", "good-head": "changed", "n1": "not sent", "g1": "changed"}
    assert why(rollout, "n1") == "its head node head, which comes first, does not run the bundle"


def test_a_silent_head_node_keeps_its_cluster_back(aws: Aws, begin: Begin) -> None:
    head, node = aws.node("head", kind="head"), aws.node("n1")
    aws.offline.add(head.instance_id)
    rollout = begin([head, node])
    assert rollout.done
    assert states(rollout) == {"head": "unreachable", "n1": "not sent"}
    assert not aws.batches


def test_silent_nodes_are_named_and_stop_nobody(aws: Aws, begin: Begin) -> None:
    nodes = aws.nodes(3)
    aws.offline.add(nodes[1].instance_id)
    rollout = begin(nodes)
    finish(rollout, aws)
    assert states(rollout) == {"n1": "changed", "n2": "unreachable", "n3": "changed"}
    assert "AmazonSSMManagedInstanceCore" in why(rollout, "n2")


@pytest.mark.parametrize("anonymous", [False, True])
def test_one_that_ssm_refuses_does_not_keep_it_from_the_others(aws: Aws, begin: Begin, anonymous: bool) -> None:
    nodes = aws.nodes(9)
    aws.anonymous = anonymous
    aws.unregistered = {nodes[4].instance_id}
    rollout = begin(nodes, concurrency="100%")
    finish(rollout, aws)
    expected = {node.name: "changed" for node in nodes}
    assert states(rollout) == {**expected, "n5": "unreachable"}
    assert sorted(one for batch in aws.batches for one in batch) == sorted(
        node.instance_id for node in nodes if node.name != "n5"
    )


def test_a_permission_that_is_missing_is_one_line(aws: Aws, begin: Begin) -> None:
    aws.fails["send_command"] = [error("AccessDeniedException", "User x is not authorized")]
    rollout = begin(aws.nodes(3), concurrency="1")
    assert rollout.done
    assert states(rollout) == {"n1": "failed", "n2": "not sent", "n3": "not sent"}
    assert "ssm:SendCommand is not allowed" in why(rollout, "n1")
    assert "\n" not in why(rollout, "n1")


def test_who_may_not_look_is_told_that_it_goes_on(aws: Aws, begin: Begin) -> None:
    aws.fails["list_command_invocations"] = [error("AccessDeniedException")]
    rollout = begin(aws.nodes(2), concurrency="1")
    rollout.move()
    assert rollout.done
    assert states(rollout) == {"n1": "unreachable", "n2": "not sent"}
    assert why(rollout, "n1").startswith(
        "it goes on there, but us-east-1, n1: ssm:ListCommandInvocations is not allowed"
    )


def test_who_may_not_ask_for_agents_is_told_before_anything_is_sent(aws: Aws, begin: Begin) -> None:
    aws.fails["describe_instance_information"] = [error("AccessDeniedException")]
    with pytest.raises(Problem, match="ssm:DescribeInstanceInformation is not allowed"):
        begin(aws.nodes(2))
    assert not aws.batches


@pytest.mark.parametrize(
    "passing",
    [error("ThrottlingException"), error("InternalServerError"), EndpointConnectionError(endpoint_url="https://ssm")],
)
@pytest.mark.parametrize("operation", ["send_command", "list_command_invocations"])
def test_what_goes_wrong_in_passing_is_tried_again(aws: Aws, begin: Begin, operation: str, passing: Exception) -> None:
    aws.fails[operation] = [passing] * 100
    rollout = begin(aws.nodes(3))
    for _turn in range(101):
        rollout.move()
        aws.now += 10
    assert not rollout.outcomes
    assert not aws.fails[operation]
    finish(rollout, aws)
    assert set(states(rollout).values()) == {"changed"}
    aws.fails[operation] = [passing] * 1000
    rollout = begin(aws.nodes(3))
    for _turn in range(400):
        rollout.move()
        aws.now += 10
    assert rollout.done, "patience has an end"


def test_patience_begins_anew_with_each_answer(aws: Aws, begin: Begin) -> None:
    node = aws.node("n1")
    rollout = begin([node], timeout=28800)
    aws.take(node)
    for _time in range(3):
        aws.fails["list_command_invocations"] = [error("ThrottlingException")] * 100
        while aws.fails["list_command_invocations"]:
            rollout.move()
            aws.now += remote_script.PATIENCE / 101
        aws.now += 60
        rollout.move()
        aws.now += 60
    assert not rollout.outcomes


def test_one_that_could_not_be_sent_yet_has_not_begun(aws: Aws, begin: Begin) -> None:
    first, second = aws.node("east"), aws.node("west", region="us-west-2")
    send = aws.service.send_command
    aws.service.send_command = lambda region, request: (
        send(region, request) if region == "us-east-1" else aws.throttle()
    )
    rollout = begin([first, second], concurrency="100%")
    aws.run(first, code=1)
    rollout.move()
    assert states(rollout) == {"east": "failed", "west": "not sent"}


def listed(aws: Aws, node: Node) -> dict[str, Any]:
    """What SSM says of a node."""
    rows = aws.service.list_command_invocations(node.region, {"InstanceId": node.instance_id})["CommandInvocations"]
    found: dict[str, Any] = rows[-1]
    return found


def calls(aws: Aws, operation: str) -> list[dict[str, Any]]:
    return [request for name, request in aws.calls if name == operation]


def wait(rollout: fleet_rollout.Rollout, aws: Aws, seconds: float) -> None:
    """Look every ten seconds, for some time."""
    for _look in range(int(seconds / 10)):
        aws.now += 10
        rollout.move()


def test_an_end_that_ssm_never_tells(aws: Aws, begin: Begin) -> None:
    node = aws.node("n1")
    rollout = begin([node], timeout=1200)
    aws.take(node)
    wait(rollout, aws, 1200 + remote_script.LATE)
    assert not rollout.done
    wait(rollout, aws, 2 * remote_script.SLOWEST)
    assert only(rollout) == ("unreachable", "it has begun, and SSM has had no word from it for 1500 s")
    assert listed(aws, node)["Status"] == "InProgress", "what has begun is left alone"


def test_an_agent_that_never_begins(aws: Aws, begin: Begin) -> None:
    """SSM itself gives it up after the sum of both times; so long it could still begin."""
    nodes = aws.nodes(3)
    rollout = begin(nodes, concurrency="2")
    aws.take(nodes[0])
    wait(rollout, aws, remote_script.DELIVERY)
    assert not rollout.outcomes
    wait(rollout, aws, 2 * remote_script.SLOWEST)
    assert states(rollout) == {"n2": "unreachable"}, "and the next one has its turn: nothing was tried there"
    assert why(rollout, "n2") == (
        "it has not begun within 600 s, as far as SSM knows: its agent takes no command; the command to it is cancelled"
    )
    assert [request["InstanceIds"] for request in calls(aws, "cancel_command")] == [[nodes[1].instance_id]]
    assert not aws.run(nodes[1]), "it cannot begin any more"
    assert [node.name for node in rollout._command.running] == ["n1", "n3"]


def test_one_that_may_have_begun_is_not_cancelled(aws: Aws, begin: Begin) -> None:
    """Where SSM lists a plugin only once it has ended, In Progress may be either."""
    aws.service.begun = False
    nodes = aws.nodes(2)
    rollout = begin(nodes, concurrency="2")
    aws.take(nodes[0])
    wait(rollout, aws, remote_script.DELIVERY + 1800)
    assert not rollout.outcomes
    assert not calls(aws, "cancel_command")
    aws.offline.add(nodes[1].instance_id)
    wait(rollout, aws, 2 * remote_script.SLOWEST)
    assert states(rollout) == {"n2": "unreachable"}, "its agent does not answer any more"
    wait(rollout, aws, 1800 + remote_script.LATE)
    assert states(rollout) == {"n1": "unreachable", "n2": "unreachable"}


def test_a_node_to_which_nothing_was_sent_yet_has_not_begun(aws: Aws, begin: Begin) -> None:
    aws.service.begun = False
    (node,) = aws.nodes(1)
    rollout = begin([node])
    next(iter(aws.service.commands.values())).concurrency = 0  # SSM keeps it Pending
    wait(rollout, aws, remote_script.DELIVERY + 2 * remote_script.SLOWEST)
    assert states(rollout) == {"n1": "unreachable"}
    assert listed(aws, node)["Status"] == "Cancelled"


def test_who_may_not_cancel_is_told_that_it_may_still_begin(aws: Aws, begin: Begin) -> None:
    aws.fails["cancel_command"] = [error("AccessDeniedException")]
    nodes = aws.nodes(2)
    rollout = begin(nodes, concurrency="2")
    aws.take(nodes[0])
    wait(rollout, aws, remote_script.DELIVERY + 2 * remote_script.SLOWEST)
    assert "and it may still begin (us-east-1, n2: ssm:CancelCommand is not allowed" in why(rollout, "n2")


def test_what_somebody_else_cancels_has_failed(aws: Aws, begin: Begin) -> None:
    (node,) = aws.nodes(1)
    rollout = begin([node])
    aws.service.cancel_command(node.region, {"CommandId": next(iter(aws.service.commands))})
    wait(rollout, aws, 10)
    assert only(rollout) == ("failed", "somebody has cancelled the command")


def test_one_that_takes_too_long(aws: Aws, begin: Begin) -> None:
    (node,) = aws.nodes(1)
    rollout = begin([node])
    aws.run(node, "", code=137, late=True)
    rollout.move()
    assert only(rollout) == ("failed", "not done within 3600 s (fleet_timeout)")


def test_a_command_that_ssm_cancels_itself_is_sent_again(aws: Aws, begin: Begin) -> None:
    aws.service.most = 3
    rollout = begin(aws.nodes(9), concurrency="100%")
    finish(rollout, aws)
    assert set(states(rollout).values()) == {"changed"}
    assert [len(batch) for batch in aws.batches[:2]] == [5, 2], "half as many the next time"
    assert len(rollout.notes) == 1
    assert "SSM has cancelled a command before any node had it (Rate Exceeded" in rollout.notes[0]


def test_a_command_that_ssm_always_cancels(aws: Aws, begin: Begin) -> None:
    aws.service.most = 0
    rollout = begin(aws.nodes(1))
    wait(rollout, aws, 2 * remote_script.PATIENCE)
    assert states(rollout) == {"n1": "unreachable"}
    assert why(rollout, "n1").startswith("SSM has cancelled each command to it (Rate Exceeded")


def test_pages_are_not_fetched_whole_for_one_straggler(aws: Aws, begin: Begin) -> None:
    nodes = aws.nodes(5)
    rollout = begin(nodes, concurrency="5")
    for node in nodes[:4]:
        aws.run(node)
    aws.take(nodes[4])
    wait(rollout, aws, 10)
    aws.calls.clear()
    wait(rollout, aws, 600)
    asked = calls(aws, "list_command_invocations")
    assert {request.get("InstanceId") for request in asked} == {nodes[4].instance_id}
    assert 10 <= len(asked) <= 35, "and less often after a while"
    aws.now += 60
    aws.service.reply(
        nodes[4].instance_id, {"id": asked[0]["CommandId"], "code": 0, "stdout": output(), "stderr": "", "late": 0}
    )
    wait(rollout, aws, 60)
    assert rollout.done


def test_a_new_command_is_looked_at_when_something_of_it_may_have_ended(aws: Aws, begin: Begin) -> None:
    nodes = aws.nodes(2)
    rollout = begin(nodes, concurrency="1")
    wait(rollout, aws, 80)
    aws.run(nodes[0])
    wait(rollout, aws, 20)
    assert [node.name for node in rollout._command.running] == ["n2"]
    aws.calls.clear()
    wait(rollout, aws, 20)
    assert not calls(aws, "list_command_invocations")
    wait(rollout, aws, 40)
    assert calls(aws, "list_command_invocations")


@pytest.mark.parametrize(("code", "asked"), [(0, 0), (1, 1)])
def test_an_output_is_asked_for_again_where_the_beginning_is_not_enough(
    aws: Aws, begin: Begin, code: int, asked: int
) -> None:
    """The report comes first; what a failed node said last is its reason."""
    text = output(code, report=REPORT) + "more\n" * 800 + "the end\n"
    rollout = begin(aws.nodes(1))
    finish(rollout, aws, text=text, code=code)
    assert len(calls(aws, "get_command_invocation")) == asked
    (outcome,) = rollout.outcomes.values()
    assert outcome.report["components"][2]["summary"] == "Docker 29"
    assert outcome.why == ("the end" if code else "")


def test_a_node_that_is_terminated_meanwhile(aws: Aws, begin: Begin) -> None:
    nodes = aws.nodes(2)
    rollout = begin(nodes, concurrency="2")
    aws.take(nodes[0])
    del aws.alive[nodes[0].instance_id]
    aws.now += remote_script.GONE_EVERY - 1
    rollout.move()
    assert not rollout.outcomes
    aws.now += 2
    rollout.move()
    assert states(rollout) == {"n1": "unreachable"}
    assert why(rollout, "n1") == "it was terminated or stopped before the end"


def test_ec2_is_asked_again_where_it_was_busy(aws: Aws, begin: Begin) -> None:
    aws.fails["describe_instances"] = [error("RequestLimitExceeded", operation="DescribeInstances")]
    (node,) = aws.nodes(1)
    rollout = begin([node])
    aws.take(node)
    wait(rollout, aws, remote_script.GONE_EVERY)
    assert not aws.fails["describe_instances"]
    del aws.alive[node.instance_id]
    wait(rollout, aws, remote_script.GONE_EVERY)
    assert states(rollout) == {"n1": "unreachable"}


def test_who_may_not_ask_ec2_goes_on_without(aws: Aws, begin: Begin) -> None:
    aws.fails["describe_instances"] = [error("UnauthorizedOperation", operation="DescribeInstances")] * 5
    rollout = begin(aws.nodes(2), concurrency="1")
    for _look in range(4):
        rollout.move()
        aws.now += 100
    finish(rollout, aws)
    assert set(states(rollout).values()) == {"changed"}
    assert len(rollout.notes) == 1
    assert "ec2:DescribeInstances is not allowed" in rollout.notes[0]


# What nodes say


def judged(text: str, state: str = "success", reason: str = "") -> fleet_rollout.Outcome:
    node = Node("main-gpu-1", "i-1", "us-east-1", "main", "compute")
    return fleet_rollout.judge(node, remote_script.Answer(state, reason, text), 12.0)


def test_the_report_of_a_node_becomes_a_column(aws: Aws, begin: Begin) -> None:
    rollout = begin(aws.nodes(3), concurrency="3")
    finish(rollout, aws, text=output(before="0.1.0-old", after="0.2.0-new", report=REPORT))
    lines = rollout.table(200, 30.0)
    assert lines[0].split() == ["n1", "n2", "n3"]
    assert lines[1].split() == ["bundle", *["changed"] * 3]
    assert lines[3].split() == ["docker", *["changed", "6s"] * 3]
    assert "bundle: 0.2.0-new" in lines
    assert "docker: Docker 29" in lines
    assert lines[-1] == "pcluster.postboot: 3 nodes, 9 changed, 0 failed, 30 s"


def test_a_long_report_comes_whole(aws: Aws, begin: Begin) -> None:
    # SSM's list has 2,500 characters of each node's output.
    import random

    noise = "".join(random.Random(7).choices("abcdefghij", k=9000))
    report = {**REPORT, "components": [{**REPORT["components"][0], "why": noise}]}  # type: ignore[index]
    text = output(report=report)
    assert 2500 < len(text) < 24000
    rollout = begin(aws.nodes(1))
    finish(rollout, aws, text=text)
    (outcome,) = rollout.outcomes.values()
    assert outcome.report["components"][1]["why"] == noise


def test_a_report_that_was_cut_off_is_left_out() -> None:
    text = output(report=REPORT)
    found = judged(text[:200])
    assert found.state == "changed"
    assert [entry["name"] for entry in found.report["components"]] == ["bundle"]


def test_nothing_changed() -> None:
    report = {**REPORT, "changed": 0}
    assert judged(output(before="0.2.0-abc", report=report)).state == "ok"
    assert judged(output(before="0.1.0-old", report=report)).state == "changed"
    assert judged(output(before="0.2.0-abc", report=REPORT)).state == "changed"


def test_a_failed_node_says_why() -> None:
    found = judged(output(1, said="the bundle cannot be unpacked: no room"), "failed")
    assert (found.state, found.why) == ("failed", "the bundle cannot be unpacked: no room")
    assert found.report["stopped"] == {"component": "", "message": "the bundle cannot be unpacked: no room"}
    cut = judged(output(1, report={**REPORT, "outcome": "unfinished"}, said="the budget is used up"), "failed")
    assert cut.report["ended_badly"] == "the budget is used up"
    assert judged("", "failed").why == "it says nothing; look at /var/log/pcluster-postboot/pull.log on the node"
    assert judged("mktemp: failed\n", "failed").why == "mktemp: failed"
    late = judged(output(report=REPORT), "failed", "not done within 3600 s")
    assert late.why == "not done within 3600 s"


@pytest.mark.parametrize(
    "bad",
    [
        [],
        {},
        {**REPORT, "components": {}},
        {**REPORT, "components": [1]},
        {**REPORT, "components": [{"name": "fsx"}]},
        {**REPORT, "changed": "2"},
        {**REPORT, "stopped": "fsx"},
        {**REPORT, "outcome": "stopped"},
        {**REPORT, "components": [{**REPORT["components"][0], "status": "failed"}]},  # type: ignore[index]
    ],
)
def test_a_report_that_is_none_does_no_harm(aws: Aws, begin: Begin, bad: Any) -> None:
    rollout = begin(aws.nodes(1))
    finish(rollout, aws, text=output(report=bad))
    assert rollout.table(200, 1.0)[-1] == "pcluster.postboot: 1 node, 1 changed, 0 failed, 1 s"


def test_what_a_node_says_cannot_steer_a_terminal(aws: Aws, begin: Begin) -> None:
    """Whoever is root on a node writes its report, what bootstrap.sh has said, and the name of the bundle."""
    clear, title, colour, backwards = "\x1b[2J\x1b[H", "\x1b]0;mine\x07", "\x9b31m", "\u202e"
    forged = f"docker{clear}\npcluster.postboot: 9 nodes, 0 failed"
    entry = {"name": forged, "status": "failed", "changed": 0, "seconds": 1.0, "summary": clear}
    entry.update(task=f"t{colour}", why=f"w{title}\x00\x7f\ud800")
    skipped = {**REPORT["components"][0], "status": "skipped", "why": backwards, "summary": clear}  # type: ignore[index]
    stopped = {"component": "", "message": f"first{clear}\nsecond\rthird"}
    hostile = {**REPORT, "outcome": "stopped", "stopped": stopped, "components": [entry, skipped]}
    rollout = begin(aws.nodes(1))
    text = output(1, after=f"0.2.0{clear}", report={**hostile, "ended_badly": title}, said=f"no room{clear}\rthere is")
    aws.run(rollout.nodes[0], text, code=1)
    rollout.move()
    (outcome,) = rollout.outcomes.values()
    lines = [*rollout.table(200, 1.0), outcome.why]
    assert [line for line in lines if not line.isprintable()] == []
    assert {"stopped on n1: second", "not ended cleanly on n1: \\x1b]0;mine\\x07"} <= set(lines)
    assert "stopped on n1: first\\x1b[2J\\x1b[H" in lines
    assert "bundle: 0.2.0\\x1b[2J\\x1b[H" in lines
    assert outcome.why == "there is"
    assert not [line for line in lines if line.startswith("pcluster.postboot: 9")]
    "\n".join(lines).encode()


def test_the_table_names_those_that_have_not_got_it(aws: Aws, begin: Begin) -> None:
    nodes = aws.nodes(4)
    aws.offline.add(nodes[3].instance_id)
    rollout = begin(nodes, concurrency="1")
    aws.run(nodes[0], output(1, after="-", said="no room"), code=1)
    rollout.move()
    lines = rollout.table(200, 5.0)
    assert "stopped on n1: no room" in lines
    assert "not sent to n[2-3]: stopped after 1 failure (fleet_max_errors is 0)" in lines
    assert any(line.startswith("unreachable on n4: its SSM agent") for line in lines)
    assert lines[-1] == "pcluster.postboot: 4 nodes, 0 changed, 1 failed, 1 unreachable, 5 s; not sent to 2"


def test_how_far_it_is(aws: Aws, begin: Begin) -> None:
    nodes = aws.nodes(5)
    rollout = begin(nodes, concurrency="2")
    assert rollout.state() == "0 of 5 nodes done, 2 running"
    aws.run(nodes[0], code=1)
    wait(rollout, aws, 310)
    assert rollout.state() == "1 of 5 nodes done, 1 failed, 3 not sent, 1 running for more than 5 min: n2"


def test_stragglers_are_named_while_they_are_waited_for(aws: Aws, begin: Begin) -> None:
    nodes = aws.nodes(40)
    rollout = begin(nodes, concurrency="20")
    late = {node.instance_id for node in nodes[5:9]}
    for _turn in range(100):
        rollout.move()
        for node in rollout._command.running:
            if node.instance_id not in late:
                aws.run(node)
        aws.now += 5
    assert rollout.state() == "36 of 40 nodes done, 4 running for more than 8 min: n6, n7, n8 and 1 more"


def test_many_nodes_are_told_in_few_lines_and_what_went_wrong_last(aws: Aws, begin: Begin) -> None:
    nodes = aws.nodes(100)
    aws.offline.add(nodes[99].instance_id)
    rollout = begin(nodes, max_errors="100%")
    bad = {node.instance_id: number for number, node in enumerate(nodes[10:20])}
    news: list[str] = []
    for _turn in range(200):
        rollout.move()
        news += rollout.news()
        for node in rollout._command.running:
            number = bad.get(node.instance_id)
            said = f"{number} MB are free in /" if number != 9 else "no network"
            aws.run(node, None if number is None else output(1, said=said), code=int(number is not None))
        aws.now += 5
    assert rollout.done
    assert [line.split(":")[0] for line in news] == ["1 unreachable", "4 failed", "1 failed"], "each reason once"
    assert rollout.table(200, 60.0) == [
        "99 changed: bundle",
        f"1 unreachable: n100: {run_command._SILENT}",
        "1 failed: n20: no network",
        "9 failed: n[11-19]: 0 MB are free in /",
        "pcluster.postboot: 100 nodes, 99 changed, 10 failed, 1 unreachable, 60 s",
    ]
    assert rollout.left == [f"n{number}" for number in (*range(11, 21), 100)]


# What is asked for


def test_what_would_be_sent(aws: Aws) -> None:
    nodes = [aws.node("head", kind="head"), *aws.nodes(20)]
    silent = {nodes[-1]: remote_script.Answer("unreachable", "it is silent")}
    assert fleet_rollout.foretell(nodes, silent, REQUEST) == [
        "would send 0.2.0-abcabcabcabc to 1 head node, 1 at a time: head",
        "would send 0.2.0-abcabcabcabc to 19 other nodes, 1 at a time: n[1-19]",
        "unreachable: n20: it is silent",
    ]
    most = fleet_rollout.foretell(nodes, {}, REQUEST._replace(concurrency="50%"))
    assert most[1] == "would send 0.2.0-abcabcabcabc to 20 other nodes, 5 first and then at most 10 at a time: n[1-20]"


@pytest.mark.parametrize("bundle", [BUNDLE, BUNDLE + "/", BUNDLE + "/pcluster-postboot.tar.gz"])
def test_the_bundle_is_a_folder_or_the_archive(bundle: str) -> None:
    request = REQUEST._replace(bundle=bundle)
    request.check()
    assert request.url == BUNDLE + "/pcluster-postboot.tar.gz"
    assert request.name == "0.2.0-abcabcabcabc"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"bundle": ""}, "fleet_bundle: it is not set"),
        ({"bundle": "https://bucket/x"}, "fleet_bundle: found"),
        ({"bundle": "s3://bucket"}, "fleet_bundle: found"),
        ({"bundle": "s3://bucket/a'b"}, "fleet_bundle: found"),
        ({"sha256": ""}, "fleet_sha256: it is not set"),
        ({"sha256": "ABC"}, "fleet_sha256: found"),
        ({"sha256": "0" * 64}, "needed: that of 0.2.0-abcabcabcabc, or another fleet_bundle"),
        ({"concurrency": "0"}, "fleet_concurrency"),
        ({"concurrency": "101%"}, "fleet_concurrency"),
        ({"max_errors": "-1"}, "fleet_max_errors"),
        ({"max_errors": "some"}, "fleet_max_errors"),
        ({"timeout": 10}, "fleet_timeout"),
        ({"timeout": 28801}, "fleet_timeout"),
        ({"arguments": ("--mode", "{{ mode }}")}, "fleet_args"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(Problem, match=named):
        REQUEST._replace(**changes).check()


# The action


class Action(fleet.ActionModule):
    """The action, in a play with hosts of the test's."""

    def __init__(self, nodes: list[Node], check: bool = False, others: tuple[str, ...] = (), **args: Any) -> None:
        names = [f"pcluster_{name}" for name in ("instance_id", "region", "cluster", "node_type")]
        hosts = {node.name: dict(zip(names, node[1:])) for node in nodes} | {name: {} for name in others}
        given = {"variables": {f"fleet_{name}": value for name, value in args.items()}}
        self._task = SimpleNamespace(args=given, check_mode=check, async_val=0, action="fleet")
        self._connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir=None))
        self.variables = {"hostvars": hosts, "ansible_play_hosts_all": list(hosts)}

    def validate_argument_spec(self, argument_spec: Any = None, **_more: Any) -> Any:
        defaults = {name: option.get("default") for name, option in argument_spec.items()}
        return None, {**defaults, **self._task.args}

    def go(self) -> dict[str, Any]:
        return self.run(task_vars=self.variables)


@pytest.fixture
def told(aws: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the action prints, while nodes run what they have got as time passes."""
    lines: list[str] = []

    def sleep(seconds: float) -> None:
        aws.now += seconds
        if aws.seconds and aws.now % aws.seconds < seconds:
            for instance in list(aws.alive):
                aws.run(Node("", instance, "", "", ""))

    clock = SimpleNamespace(monotonic=lambda: aws.now, sleep=sleep)
    monkeypatch.setattr(fleet, "time", clock)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fleet.session, "client_maker", lambda credentials, region: aws.make_client)
    monkeypatch.setattr(fleet.terminal.display, "display", lambda text: lines.extend(text.splitlines()))
    monkeypatch.setattr(fleet.terminal, "width", lambda: 200)
    monkeypatch.setattr(fleet.fleet_files, "screen", lambda process: None)
    return lines


ARGS = {"bundle": BUNDLE, "sha256": REQUEST.sha256}


def test_the_action_shows_how_far_it_is_and_the_table(aws: Aws, told: list[str], tmp_path: Path) -> None:
    nodes = [aws.node("head", kind="head"), *aws.nodes(4)]
    aws.seconds = 100.0
    aws.offline.add(nodes[2].instance_id)
    result = Action(nodes, concurrency="2", **ARGS).go()
    limit, report = tmp_path / "fleet-0.2.0-abcabcabcabc.limit", tmp_path / "fleet-0.2.0-abcabcabcabc.json"
    assert result["failed"], "one task fails, and once"
    assert result["changed"]
    assert result["msg"] == (
        "1 of 5 nodes do not run 0.2.0-abcabcabcabc, for the reasons above; "
        f"--limit @{limit} takes these alone, and {report} has all that is known"
    )
    assert limit.read_text() == "n2\n"
    found = json.loads(report.read_text())["nodes"]
    assert {name: one["state"] for name, one in found.items()} == {
        **dict.fromkeys(("head", "n1", "n3", "n4"), "changed"),
        "n2": "unreachable",
    }
    assert found["n1"]["command_id"] in aws.service.commands
    assert found["n1"]["report"]["components"][0]["summary"] == "0.2.0-abc"
    assert told[0] == f"what becomes of each node: {report}; nodes that do not run the bundle: {limit}"
    assert told[1].startswith("1 unreachable: n2: its SSM agent does not answer")
    progress = [line for line in told if line.startswith("fleet, ")]
    assert progress[0] == "fleet, 0 min 16 s: 1 of 5 nodes done, 1 unreachable, 1 running"
    assert 5 < len(progress) < 12
    assert told[-1].startswith("pcluster.postboot: 5 nodes, 4 changed, 0 failed, 1 unreachable")
    assert aws.parameters["Comment"] == "pcluster.postboot.fleet: 0.2.0-abcabcabcabc"
    assert f"sha256={REQUEST.sha256}" in aws.parameters["Parameters"]["commands"]


def test_a_second_run_goes_on_with_the_rest(aws: Aws, told: list[str], tmp_path: Path) -> None:
    """What --limit leaves out keeps its place in the file; the last run takes the file away."""
    nodes = aws.nodes(4)
    limit = tmp_path / "of" / "it.limit"
    limit.parent.mkdir()
    aws.seconds = 50.0
    aws.offline |= {nodes[1].instance_id, nodes[2].instance_id}
    args = {**ARGS, "report": str(tmp_path / "of" / "it.json")}
    Action(nodes, **args).go()
    assert limit.read_text() == "n2\nn3\n"
    aws.offline = {nodes[2].instance_id}
    sent = len(aws.batches)
    Action(nodes[1:2], **args).go()
    assert aws.batches[sent:] == [[nodes[1].instance_id]]
    assert limit.read_text() == "n3\n"
    aws.offline = set()
    result = Action(nodes[2:3], **args).go()
    assert not result.get("failed")
    assert not limit.exists()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"report": "/nowhere/it.json"}, "fleet_report: /nowhere/it.limit cannot be written: "),
        ({"args": "--mode 'a"}, "fleet_args: found"),
        ({"others": ("web",)}, "web: no pcluster_instance_id, or no pcluster_ssm_target on HyperPod; needed: nodes"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_sent(
    aws: Aws, told: list[str], given: dict[str, Any], why: str
) -> None:
    result = Action(aws.nodes(1), **ARGS, **given).go()
    assert result["failed"]
    assert result["msg"].startswith(why)
    assert not aws.batches


class Ended(BaseException):
    """The process would have ended."""


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The signals by which the action ends itself; 0 where it is left alone."""
    found: list[int] = []

    def end(number: int) -> None:
        found.append(number)
        raise Ended

    monkeypatch.setattr(fleet.os, "kill", lambda process, number: end(number))
    monkeypatch.setattr(fleet.os, "_exit", lambda code: end(0))
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_says_who_has_it(
    aws: Aws, told: list[str], ends: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    nodes = [aws.node("head", kind="head"), *aws.nodes(30)]
    screen = tmp_path / "screen"
    screen.touch()
    monkeypatch.setattr(fleet.fleet_files, "screen", lambda process: os.open(screen, os.O_WRONLY))

    def sleep(seconds: float) -> None:
        aws.now += seconds
        if len(aws.batches) < 2:
            aws.run(nodes[0])
        elif aws.now > 1100:
            signal.raise_signal(number)
            signal.raise_signal(signal.SIGTERM)  # as Ansible does next

    monkeypatch.setattr(fleet.time, "sleep", sleep)
    before = signal.getsignal(number)
    with pytest.raises(Ended):
        Action(nodes, concurrency="50%", **ARGS).go()
    assert ends == [number], "as Ansible would have ended it"
    assert signal.getsignal(number) is before
    assert len(aws.batches) == 2
    lines = screen.read_text().splitlines()
    name = signal.Signals(number).name
    assert lines[1:5] == [
        f"fleet was interrupted after 1 min 42 s ({name}); nothing more is sent",
        "run it (1): head",
        "have it and finish by themselves (5): n[1-5]",
        "were not sent it (25): n[6-30]",
    ]
    assert lines[5].endswith(
        f"has the id of each node's command; go on with --limit @{tmp_path}/fleet-0.2.0-abcabcabcabc.limit"
    )
    found = json.loads((tmp_path / "fleet-0.2.0-abcabcabcabc.json").read_text())
    assert found["summary"] == lines[1]
    assert found["nodes"]["n1"]["state"] == "running"
    assert found["nodes"]["n1"]["command_id"] == list(aws.service.commands)[1]
    assert found["nodes"]["n6"]["state"] == "not sent"
    assert (tmp_path / "fleet-0.2.0-abcabcabcabc.limit").read_text().split() == [f"n{one}" for one in range(1, 31)]


def test_a_signal_waits_until_it_is_known_whether_a_command_was_sent(
    aws: Aws, told: list[str], ends: list[int], tmp_path: Path
) -> None:
    nodes = aws.nodes(3)
    send = aws.service.send_command

    def interrupted(region: str, request: dict[str, Any]) -> Any:
        signal.raise_signal(signal.SIGINT)
        return send(region, request)

    aws.service.send_command = interrupted
    with pytest.raises(Ended):
        Action(nodes, **ARGS).go()
    found = json.loads((tmp_path / "fleet-0.2.0-abcabcabcabc.json").read_text())["nodes"]
    assert found["n1"]["command_id"] == next(iter(aws.service.commands))


def test_without_ansible_playbook_nothing_more_is_sent(
    aws: Aws, told: list[str], ends: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A closed terminal or SIGKILL ends ansible-playbook, and not the process that runs the action."""
    parent = [os.getppid()]
    monkeypatch.setattr(fleet.os, "getppid", lambda: parent[0])

    def sleep(seconds: float) -> None:
        aws.now += seconds
        for instance in list(aws.alive):
            aws.run(Node("", instance, "", "", ""))
        if aws.now > 1030:
            parent[0] = 1

    def write(files: Any, found: Any) -> None:
        signal.raise_signal(signal.SIGTERM)  # is not to keep the files from being written
        write_it(files, found)

    write_it = fleet.fleet_files.Files.write
    monkeypatch.setattr(fleet.fleet_files.Files, "write", write)
    monkeypatch.setattr(fleet.time, "sleep", sleep)
    with pytest.raises(Ended):
        Action(aws.nodes(100), concurrency="1", **ARGS).go()
    assert ends == [0]
    assert len(aws.batches) < 20
    found = json.loads((tmp_path / "fleet-0.2.0-abcabcabcabc.json").read_text())
    assert "ansible-playbook is gone" in found["summary"]
    limit = (tmp_path / "fleet-0.2.0-abcabcabcabc.limit").read_text().split()
    assert sorted(limit) == sorted(name for name, one in found["nodes"].items() if one["state"] != "changed")
    assert len(limit) > 80


def test_the_action_tells_why_nothing_was_sent(aws: Aws, told: list[str]) -> None:
    nodes = [aws.node("head", kind="head"), *aws.nodes(2)]
    aws.fails["send_command"] = [error("AccessDeniedException")]
    result = Action(nodes, **ARGS).go()
    assert not result["changed"]
    assert result["failed"]
    assert told[1].startswith("1 failed: head: us-east-1, head: ssm:SendCommand is not allowed")
    assert [line for line in told if line.startswith("not sent to n[1-2]: us-east-1, head: ssm:SendCommand")]


def test_check_mode_sends_nothing(aws: Aws, told: list[str]) -> None:
    nodes = [aws.node("head", kind="head"), *aws.nodes(2)]
    result = Action(nodes, check=True, **ARGS).go()
    assert result["changed"]
    assert told[0] == "would send 0.2.0-abcabcabcabc to 1 head node, 1 at a time: head"
    assert not aws.batches


@pytest.mark.parametrize("given", ["--mode 'a b' --hold yes", ["--mode", "a b", "--hold", True]])
def test_arguments_as_a_shell_has_them_or_as_a_list(aws: Aws, told: list[str], given: Any) -> None:
    aws.seconds = 5.0
    Action(aws.nodes(1), args=given, **ARGS).go()
    assert "set -- --defer no --mode 'a b' --hold yes" in aws.parameters["Parameters"]["commands"]
