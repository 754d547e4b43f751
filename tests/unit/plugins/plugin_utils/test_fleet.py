# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A bundle on many nodes, on the sandbox's own Run Command and a clock of the test's: who has it when."""

from __future__ import annotations

import base64
import gzip
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from ansible_collections.pcluster.postboot.plugins.action import fleet
from ansible_collections.pcluster.postboot.plugins.plugin_utils import _fleet, _ssm_command
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory_nodes import InventoryError
from ansible_collections.pcluster.postboot.plugins.plugin_utils._ssm_command import Node

REPOSITORY = Path(__file__).resolve().parents[4]
BUNDLE = "s3://bucket/postboot/0.2.0-abcabcabcabc"
REQUEST = _fleet.Request(BUNDLE, "abc" * 21 + "a")
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


def commands() -> Any:
    path = REPOSITORY / "molecule/cluster/aws/commands.py"
    spec = importlib.util.spec_from_file_location("sandbox_commands", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def error(code: str, message: str = "said AWS", operation: str = "SendCommand") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}}, operation)


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
        self.offline: set[str] = set()
        self.unregistered: set[str] = set()
        self.fails: dict[str, list[Exception]] = {}  # what the next calls of an operation raise
        self.batches: list[list[str]] = []
        self.parameters: dict[str, Any] = {}
        module = commands()
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
        self.alive[instance] = region
        return Node(name, instance, region, cluster, kind)

    def nodes(self, count: int, **more: Any) -> list[Node]:
        return [self.node(f"n{number}", **more) for number in range(1, count + 1)]

    def run(self, node: Node, text: str | None = None, code: int = 0, late: bool = False) -> bool:
        """Let a node run what there is for it, and say whether there was something."""
        command = self.service.fetch(node.instance_id, 0)
        if command:
            said = {"id": command["id"], "code": code, "stdout": output(code) if text is None else text}
            self.service.reply(node.instance_id, {**said, "stderr": "", "late": late})
        return bool(command)

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
            online = [{"InstanceId": one} for one in here if one not in self.aws.offline]
            yield {"InstanceInformationList": online}
        else:
            assert operation == "describe_instances"
            wanted = next(found["Values"] for found in request["Filters"] if found["Name"] == "instance-id")
            yield {"Reservations": [{"Instances": [{"InstanceId": one} for one in here if one in wanted]}]}


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Aws:
    return Aws(monkeypatch)


Begin = Callable[..., _fleet.Rollout]


@pytest.fixture
def begin(aws: Aws) -> Begin:
    """A function that makes a rollout over nodes, and begins it."""

    def make(nodes: list[Node], **request: Any) -> _fleet.Rollout:
        script = _ssm_command.Script("true\n", "a test", 3600)
        command = _ssm_command.RunCommand(aws.make_client, script, lambda: aws.now)
        rollout = _fleet.Rollout(nodes, REQUEST._replace(**request), command, lambda: aws.now)
        rollout.begin()
        return rollout

    return make


def states(rollout: _fleet.Rollout) -> dict[str, str]:
    return {node.name: outcome.state for node, outcome in rollout.outcomes.items()}


def why(rollout: _fleet.Rollout, name: str) -> str:
    return next(outcome.why for node, outcome in rollout.outcomes.items() if node.name == name)


def finish(rollout: _fleet.Rollout, aws: Aws, **run: Any) -> None:
    """Let every node run what it has got, until all is over."""
    for _turn in range(200):
        rollout.move()
        if rollout.done:
            return
        for node in rollout.nodes:
            if node.instance_id in aws.alive:
                aws.run(node, **run)
        aws.now += 10
    raise AssertionError(rollout.state())


# Who has it when


def test_head_nodes_come_first_and_alone(aws: Aws, begin: Begin) -> None:
    nodes = [*aws.nodes(3), aws.node("head", kind="head"), aws.node("other-head", kind="head", cluster="other")]
    rollout = begin(nodes, concurrency="100%")
    rollout.move()
    assert aws.batches == [[nodes[3].instance_id, nodes[4].instance_id]]
    aws.run(nodes[3])
    rollout.move()
    assert len(aws.batches) == 1, "the other head node is still at it"
    aws.run(nodes[4])
    rollout.move()
    assert aws.batches[1:] == [[node.instance_id for node in nodes[:3]]]
    finish(rollout, aws)
    assert set(states(rollout).values()) == {"changed"}


@pytest.mark.parametrize(
    ("concurrency", "most"), [("1", 1), ("4", 4), ("10%", 12), ("1%", 1), ("100%", 120), ("500", 120)]
)
def test_no_more_than_asked_for_at_the_same_time(aws: Aws, begin: Begin, concurrency: str, most: int) -> None:
    rollout, seen = begin(aws.nodes(120), concurrency=concurrency), set()
    for turn in range(1000):
        rollout.move()
        running = rollout._command.running
        seen.add(len(running))
        if rollout.done:
            break
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
    assert len(aws.batches) <= 45


def test_regions_have_commands_of_their_own(aws: Aws, begin: Begin) -> None:
    nodes = [aws.node("east"), aws.node("west", region="us-west-2"), aws.node("east-2")]
    rollout = begin(nodes, concurrency="100%")
    finish(rollout, aws)
    assert sorted(map(len, aws.batches)) == [1, 2]
    assert set(states(rollout).values()) == {"changed"}


def test_what_ssm_is_given(aws: Aws, begin: Begin) -> None:
    rollout = begin(aws.nodes(2), concurrency="2")
    rollout.move()
    assert aws.parameters["DocumentName"] == "AWS-RunShellScript"
    assert aws.parameters["Parameters"] == {"commands": ["true"], "executionTimeout": ["3600"]}
    assert (aws.parameters["MaxConcurrency"], aws.parameters["MaxErrors"]) == ("2", "100%")


# When it goes wrong


def test_after_too_many_failures_nobody_else_has_it(aws: Aws, begin: Begin) -> None:
    nodes = aws.nodes(6)
    rollout = begin(nodes, concurrency="2", max_errors="1")
    rollout.move()
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
    assert states(rollout) == {
        "n1": "failed",
        "n2": "changed",
        "n3": "failed",
        "n4": "changed",
        "n5": "not sent",
        "n6": "not sent",
    }
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
    rollout.move()
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
    rollout.move()
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
    rollout.move()
    assert rollout.done
    assert states(rollout) == {"n1": "failed", "n2": "not sent", "n3": "not sent"}
    assert "ssm:SendCommand is not allowed" in why(rollout, "n1")
    assert "\n" not in why(rollout, "n1")


def test_who_may_not_look_is_told_that_it_goes_on(aws: Aws, begin: Begin) -> None:
    aws.fails["list_command_invocations"] = [error("AccessDeniedException")]
    rollout = begin(aws.nodes(2), concurrency="1")
    rollout.move()
    rollout.move()
    assert rollout.done
    assert states(rollout) == {"n1": "unreachable", "n2": "not sent"}
    assert why(rollout, "n1").startswith(
        "it goes on there, but us-east-1, n1: ssm:ListCommandInvocations is not allowed"
    )


def test_who_may_not_ask_for_agents_is_told_before_anything_is_sent(aws: Aws, begin: Begin) -> None:
    aws.fails["describe_instance_information"] = [error("AccessDeniedException")]
    with pytest.raises(InventoryError, match="ssm:DescribeInstanceInformation is not allowed"):
        begin(aws.nodes(2))
    assert not aws.batches


@pytest.mark.parametrize(
    "passing",
    [error("ThrottlingException"), error("InternalServerError"), EndpointConnectionError(endpoint_url="https://ssm")],
)
@pytest.mark.parametrize("operation", ["send_command", "list_command_invocations"])
def test_what_goes_wrong_in_passing_is_tried_again(aws: Aws, begin: Begin, operation: str, passing: Exception) -> None:
    aws.fails[operation] = [passing] * (_ssm_command.PATIENCE - 1)
    rollout = begin(aws.nodes(3))
    finish(rollout, aws)
    assert set(states(rollout).values()) == {"changed"}
    aws.fails[operation] = [passing] * _ssm_command.PATIENCE
    rollout = begin(aws.nodes(3))
    for _turn in range(20):
        rollout.move()
    assert rollout.done, "patience has an end"


def test_patience_begins_anew_with_each_answer(aws: Aws, begin: Begin) -> None:
    rollout = begin(aws.nodes(1))
    rollout.move()
    for _time in range(3):
        aws.fails["list_command_invocations"] = [error("ThrottlingException")] * (_ssm_command.PATIENCE - 1)
        for _turn in range(_ssm_command.PATIENCE):
            rollout.move()
    assert not rollout.outcomes
    finish(rollout, aws)
    assert states(rollout) == {"n1": "changed"}


def test_one_that_could_not_be_sent_yet_has_not_begun(aws: Aws, begin: Begin) -> None:
    first, second = aws.node("east"), aws.node("west", region="us-west-2")
    rollout = begin([first, second], concurrency="100%")
    send = aws.service.send_command
    aws.service.send_command = lambda region, request: (
        send(region, request) if region == "us-east-1" else aws.throttle()
    )
    rollout.move()
    aws.run(first, code=1)
    rollout.move()
    assert states(rollout) == {"east": "failed", "west": "not sent"}


def test_an_end_that_ssm_never_tells(aws: Aws, begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = aws.nodes(1)
    rollout = begin(nodes)
    rollout.move()
    aws.take(nodes[0])
    monkeypatch.setattr(type(next(iter(aws.service.commands.values()))), "settle", lambda self: None)
    aws.now += _ssm_command.DELIVERY + 3600 + _ssm_command.LATE - 1
    rollout.move()
    assert not rollout.done
    aws.now += 2
    rollout.move()
    assert why(rollout, "n1") == "SSM has not said how it ended"


def test_an_agent_that_never_begins(aws: Aws, begin: Begin) -> None:
    rollout = begin(aws.nodes(2), concurrency="1")
    rollout.move()
    aws.now += _ssm_command.DELIVERY + 1
    rollout.move()
    assert states(rollout) == {"n1": "unreachable"}, "and the next one has its turn: nothing was tried there"
    assert why(rollout, "n1") == "its SSM agent did not begin within 600 s"
    assert [node.name for node in rollout._command.running] == ["n2"]


def test_one_that_takes_too_long(aws: Aws, begin: Begin) -> None:
    nodes = aws.nodes(2)
    rollout = begin(nodes, concurrency="2")
    rollout.move()
    aws.run(nodes[0], "", code=137, late=True)
    aws.take(nodes[1])
    aws.now += 3610  # its agent has not said so
    rollout.move()
    assert states(rollout) == {"n1": "failed", "n2": "failed"}
    assert {why(rollout, name) for name in ("n1", "n2")} == {"not done within 3600 s (fleet_timeout)"}


def test_a_node_that_is_terminated_meanwhile(aws: Aws, begin: Begin) -> None:
    nodes = aws.nodes(2)
    rollout = begin(nodes, concurrency="2")
    rollout.move()
    aws.take(nodes[0])
    del aws.alive[nodes[0].instance_id]
    aws.now += _ssm_command.GONE_EVERY - 1
    rollout.move()
    assert not rollout.outcomes
    aws.now += 2
    rollout.move()
    assert states(rollout) == {"n1": "unreachable"}
    assert why(rollout, "n1") == "it was terminated or stopped before the end"


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


def judged(text: str, state: str = "success", reason: str = "") -> _fleet.Outcome:
    node = Node("main-gpu-1", "i-1", "us-east-1", "main", "compute")
    return _fleet.judge(node, _ssm_command.Answer(state, reason, text), 12.0)


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
    rollout.move()
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
    rollout.move()
    aws.run(nodes[0], output(1, after="-", said="no room"), code=1)
    rollout.move()
    lines = rollout.table(200, 5.0)
    assert "stopped on n1: no room" in lines
    assert "not sent to n2, n3: stopped after 1 failure (fleet_max_errors is 0)" in lines
    assert any(line.startswith("unreachable on n4: its SSM agent") for line in lines)
    assert lines[-1] == "pcluster.postboot: 4 nodes, 0 changed, 1 failed, 1 unreachable, 5 s; not sent to 2"


def test_how_far_it_is(aws: Aws, begin: Begin) -> None:
    nodes = aws.nodes(5)
    rollout = begin(nodes, concurrency="2", max_errors="5")
    rollout.move()
    assert rollout.state() == "0 of 5 nodes done, 2 running"
    aws.run(nodes[0], code=1)
    rollout.move()
    assert rollout.state() == "1 of 5 nodes done, 1 failed, 2 running"


# What is asked for


def test_what_would_be_sent(aws: Aws) -> None:
    nodes = [aws.node("head", kind="head"), *aws.nodes(20)]
    silent = {nodes[-1]: _ssm_command.Answer("unreachable", "it is silent")}
    assert _fleet.foretell(nodes, silent, REQUEST) == [
        "would send 0.2.0-abcabcabcabc to 1 head node, 1 at a time: head",
        "would send 0.2.0-abcabcabcabc to 19 other nodes, 1 at a time: n1, n2, n3, n4, n5, n6 and 13 more",
        "unreachable: n20: it is silent",
    ]


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
    with pytest.raises(_fleet.FleetError, match=named):
        REQUEST._replace(**changes).check()


# The action


class Action(fleet.ActionModule):
    """The action, in a play with hosts of the test's."""

    def __init__(self, hosts: dict[str, dict[str, str]], check: bool = False, **args: Any) -> None:
        self._task = SimpleNamespace(args=args, check_mode=check, async_val=0, action="fleet")
        self._connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir=None))
        self.variables = {"hostvars": hosts, "ansible_play_hosts_all": list(hosts)}

    def validate_argument_spec(self, argument_spec: Any = None, **_more: Any) -> Any:
        defaults = {name: option.get("default") for name, option in argument_spec.items()}
        return None, {**defaults, **self._task.args}

    def go(self) -> dict[str, Any]:
        return self.run(task_vars=self.variables)


def variables(node: Node) -> dict[str, str]:
    names = ("pcluster_instance_id", "pcluster_region", "pcluster_cluster", "pcluster_node_type")
    return dict(zip(names, node[1:]))


@pytest.fixture
def told(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the action prints, while nodes run what they have got as time passes."""
    lines: list[str] = []

    def sleep(seconds: float) -> None:
        aws.now += seconds
        if aws.seconds and aws.now % aws.seconds < seconds:
            for instance in list(aws.alive):
                aws.run(Node("", instance, "", "", ""))

    clock = SimpleNamespace(monotonic=lambda: aws.now, sleep=sleep)
    monkeypatch.setattr(fleet, "time", clock)
    monkeypatch.setattr(_ssm_command.RunCommand.__init__, "__defaults__", (clock.monotonic,))
    monkeypatch.setattr(fleet._inventory_session, "client_maker", lambda credentials, region: aws.make_client)
    monkeypatch.setattr(fleet.display, "display", lambda text: lines.extend(text.splitlines()))
    monkeypatch.setattr(fleet, "_width", lambda: 200)
    return lines


ARGS = {"bundle": BUNDLE, "sha256": REQUEST.sha256}


def test_the_action_shows_how_far_it_is_and_the_table(aws: Aws, told: list[str]) -> None:
    nodes = [aws.node("head", kind="head"), *aws.nodes(4)]
    aws.seconds = 100.0
    aws.offline.add(nodes[2].instance_id)
    result = Action({node.name: variables(node) for node in nodes}, concurrency="2", **ARGS).go()
    assert not result.get("failed")
    assert result["changed"]
    assert list(result["bad"]) == ["n2"]
    assert {name: found["state"] for name, found in result["nodes"].items()} == {
        **dict.fromkeys(("head", "n1", "n3", "n4"), "changed"),
        "n2": "unreachable",
    }
    assert told[0].startswith("n2 unreachable: its SSM agent does not answer")
    progress = [line for line in told if line.startswith("fleet, ")]
    assert progress[0] == "fleet, 0 min 15 s: 1 of 5 nodes done, 1 unreachable, 1 running"
    assert 5 < len(progress) < 20
    assert told[-1] == result["msg"]
    assert aws.parameters["Comment"] == "pcluster.postboot.fleet: 0.2.0-abcabcabcabc"
    assert f"sha256={REQUEST.sha256}" in aws.parameters["Parameters"]["commands"]


def test_the_action_names_failed_nodes_but_none_that_had_to_wait(aws: Aws, told: list[str]) -> None:
    nodes = [aws.node("head", kind="head"), *aws.nodes(2)]
    aws.fails["send_command"] = [error("AccessDeniedException")]
    result = Action({node.name: variables(node) for node in nodes}, **ARGS).go()
    assert not result["changed"]
    assert list(result["bad"]) == ["head"]
    assert result["nodes"]["n1"]["state"] == "not sent"


def test_check_mode_sends_nothing(aws: Aws, told: list[str]) -> None:
    nodes = [aws.node("head", kind="head"), *aws.nodes(2)]
    result = Action({node.name: variables(node) for node in nodes}, check=True, **ARGS).go()
    assert result["changed"]
    assert told[0] == "would send 0.2.0-abcabcabcabc to 1 head node, 1 at a time: head"
    assert not aws.batches


def test_hosts_of_another_inventory_are_refused(aws: Aws, told: list[str]) -> None:
    result = Action({"n1": variables(aws.node("n1")), "web": {}}, **ARGS).go()
    assert result["failed"]
    assert result["msg"].startswith("web: no pcluster_instance_id; needed: nodes that the inventory plugin")
    assert not aws.batches


@pytest.mark.parametrize("given", ["--mode 'a b' --hold yes", ["--mode", "a b", "--hold", True]])
def test_arguments_as_a_shell_has_them_or_as_a_list(aws: Aws, told: list[str], given: Any) -> None:
    aws.seconds = 5.0
    Action({"n1": variables(aws.node("n1"))}, args=given, **ARGS).go()
    assert "set -- --defer no --mode 'a b' --hold yes" in aws.parameters["Parameters"]["commands"]


def test_arguments_that_no_shell_understands(aws: Aws, told: list[str]) -> None:
    result = Action({"n1": variables(aws.node("n1"))}, args="--mode 'a", **ARGS).go()
    assert result["failed"]
    assert result["msg"].startswith("fleet_args: found")
