# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A bundle on nodes that take sessions alone: what is begun when, and what becomes of sessions that go wrong.

The program of a session runs here, on a node that is a folder, below programs that stand for systemd. What Session
Manager and its plugin do is in tests/unit/sandbox/test_sessions.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws import (
    remote_script,
    session_command,
    session_manager,
)
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.remote_script import Node, Script
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.session_manager import Said
from ansible_collections.pcluster.postboot.plugins.plugin_utils._fleet import carriers
from ansible_collections.pcluster.postboot.plugins.plugin_utils._fleet import rollout as fleet_rollout
from ansible_collections.pcluster.postboot.tests.unit.plugins.aws import error
from ansible_collections.pcluster.postboot.tests.waiting import until

REQUEST = fleet_rollout.Request("s3://bucket/postboot/0.2.0-abcabcabcabc", "abc" * 21 + "a", concurrency="100%")
ENDED = (
    "echo pcluster-postboot-fleet 1 0 0.1.0-x 0.2.0-abc -; echo done\n"  # what fleet.sh prints, as far as it matters
)
WAITS = 'while [ -e "$PCLUSTER_POSTBOOT_ROOT/waits" ]; do sleep 0.05; done; echo >> "$PCLUSTER_POSTBOOT_ROOT/times"\n'
CUT = "\nStarting session with SessionId: s\npcluster-postboot-command 1 ended 0 H4sIAAAA"
EOF = "\nStarting session with SessionId: s\nCannot perform start session: EOF\n"
PROGRAMS = {
    "sudo": '[ "$1" = -n ] && shift; exec "$@"',
    "systemd-run": """\
for word; do case $word in --unit=*) unit=${word#*=} ;; esac; done
while [ "$1" != sh ]; do shift; done
if systemctl is-active --quiet "$unit.service"; then echo "Unit $unit.service was already loaded." >&2; exit 1; fi
exec 9>&-
setsid "$@" > /dev/null 2>&1 &
echo $! > "$PCLUSTER_POSTBOOT_ROOT/$unit.service" """,
    "systemctl": """\
exec 2> /dev/null
if [ -e "$PCLUSTER_POSTBOOT_ROOT/lingers" ]; then exit 0; fi
read -r process < "$PCLUSTER_POSTBOOT_ROOT/$3" && read -r _ _ state _ < "/proc/$process/stat" && [ "$state" != Z ]""",
}


class Aws:
    """Session Manager and HyperPod: nodes are folders, and sessions run in them, but for what a test has go wrong."""

    def __init__(self, folder: Path) -> None:
        self.now, self.folder = 1000.0, folder
        self.programs = folder / "bin"
        self.programs.mkdir()
        for name, text in PROGRAMS.items():
            (self.programs / name).write_text(f"#!/bin/sh\n{text}\n")
            (self.programs / name).chmod(0o755)
        self.alive: dict[str, str] = {}  # targets, and their instances
        self.away: set[str] = set()
        self.goes_wrong: dict[
            str, list[Exception | str]
        ] = {}  # by target: an error, or what comes in place of an answer
        self.sagemaker: list[Exception] = []
        self.commands: list[tuple[str, str]] = []
        self.plugin: Problem | None = None

    def node(self, name: str, kind: str = "compute") -> Node:
        instance = f"i-{len(self.alive) + 1:017x}"
        target = f"sagemaker-cluster:ab12cd34ef56_{kind}-{instance}"
        self.alive[target] = instance
        self.root(target).mkdir()
        return Node(name, instance, "us-east-1", "hp", kind, kind, target)

    def root(self, target: str) -> Path:
        return self.folder / target.rpartition("-")[2]

    def make_client(self, service: str, region: str) -> Any:
        if service == "sagemaker":
            return SimpleNamespace(get_paginator=lambda _call: SimpleNamespace(paginate=self._listed))
        return SimpleNamespace(get_connection_status=self._status)

    def _listed(self, **_request: Any) -> Iterator[Any]:
        if self.sagemaker:
            raise self.sagemaker.pop(0)
        running = {"InstanceStatus": {"Status": "Running"}}
        yield {"ClusterNodeSummaries": [{"InstanceId": one, **running} for one in self.alive.values()]}

    def _status(self, Target: str) -> dict[str, str]:
        return {"Status": "notconnected" if Target in self.away else "connected"}

    # What Sessions does

    def need_plugin(self) -> None:
        if self.plugin:
            raise self.plugin

    def run(self, _client: Any, target: str, command: str) -> Said:
        if target in self.away or target not in self.alive:
            raise error("TargetNotConnected")
        wrong = self.goes_wrong.get(target)
        text = wrong.pop(0) if wrong else None
        if isinstance(text, Exception):
            raise text
        self.commands.append((target, command))
        return Said(f"session-{len(self.commands)}", self.shell(target, command) if text is None else text)

    def shell(self, target: str, command: str) -> str:
        """Run what a session would run."""
        environment = {**os.environ, "PCLUSTER_POSTBOOT_ROOT": str(self.root(target))}
        environment["PATH"] = f"{self.programs}:{environment['PATH']}"
        (self.root(target) / "bin").unlink(missing_ok=True)
        (self.root(target) / "bin").symlink_to(self.programs)
        done = subprocess.run(
            ["sh", "-c", command], env=environment, text=True, capture_output=True, timeout=60, check=False
        )
        return (
            f"\nStarting session with SessionId: s\n{done.stdout}{done.stderr}\n\nExiting session with sessionId: s.\n"
        )


@pytest.fixture
def aws(tmp_path: Path) -> Iterator[Aws]:
    yield Aws(tmp_path)
    for waits in tmp_path.glob("*/waits"):  # of nodes that are gone, whose scripts nobody asks for any more
        waits.unlink()


Begin = Callable[..., fleet_rollout.Rollout]


@pytest.fixture
def begin(aws: Aws) -> Begin:
    """A function that begins a rollout over nodes, and makes its first move."""

    def make(nodes: list[Node], text: str = ENDED, **request: Any) -> fleet_rollout.Rollout:
        asked = REQUEST._replace(**request)
        script = Script(text, "a test", asked.timeout, fleet_rollout.enough)
        command = session_command.SessionCommand(aws.make_client, script, lambda: aws.now, aws)  # type: ignore[arg-type]
        rollout = fleet_rollout.Rollout(nodes, asked, command, lambda: aws.now)
        rollout.begin()
        rollout.move()
        return rollout

    return make


def go_on(rollout: fleet_rollout.Rollout, aws: Aws, seconds: float = 6.0) -> None:
    aws.now += seconds
    rollout.move()


def finish(rollout: fleet_rollout.Rollout, aws: Aws) -> dict[str, str]:
    """Go on until all is over, as fast as the nodes are; return what became of each node."""

    def done() -> bool:
        go_on(rollout, aws)
        return rollout.done

    until(done)
    return {node.name: outcome.state for node, outcome in rollout.outcomes.items()}


def only(rollout: fleet_rollout.Rollout) -> tuple[str, str]:
    (outcome,) = rollout.outcomes.values()
    return outcome.state, outcome.why


def wait_for(rollout: fleet_rollout.Rollout, aws: Aws, seconds: float) -> None:
    end = aws.now + seconds
    while aws.now < end:
        go_on(rollout, aws, 30)


def times(aws: Aws, node: Node) -> int:
    """How often the script has run on a node."""
    file = aws.root(node.target) / "times"
    return len(file.read_text().splitlines()) if file.exists() else 0


# When all goes well


def test_every_node_has_it_and_the_head_node_first(aws: Aws, begin: Begin) -> None:
    nodes = [aws.node("n1"), aws.node("head", "head"), aws.node("n2")]
    rollout = begin(nodes)
    assert [target for target, _command in aws.commands] == [nodes[1].target]
    assert finish(rollout, aws) == {"head": "changed", "n1": "changed", "n2": "changed"}
    told = rollout.told()["n1"]
    assert told["command_id"].startswith("session-")
    assert told["report"]["components"][0]["summary"] == "0.2.0-abc"


def test_a_session_is_given_letters_alone(aws: Aws, begin: Begin) -> None:
    begin([aws.node("n1")], text='echo "it\'s {{ odd }}" $HOME \\\n')
    (_target, command) = aws.commands[0]
    assert len(command) < 4000
    assert set(command) - set("|-' ") <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/=")


def test_a_script_that_is_longer_than_a_parameter_may_be(aws: Aws, begin: Begin) -> None:
    with pytest.raises(Problem, match=r"^the script is too long for a session: \d+ characters; needed: 65535"):
        begin([aws.node("n1")], text=os.urandom(60000).hex())
    assert aws.commands == []


def test_ten_nodes_at_a_time_begin(aws: Aws, begin: Begin) -> None:
    nodes = [aws.node(f"n{number}") for number in range(1, 31)]
    (aws.root(nodes[0].target) / "waits").touch()
    rollout = begin(nodes, text=WAITS + ENDED)
    finished = 0
    for _turn in range(100):
        before = len(aws.commands)
        go_on(rollout, aws)
        assert len(aws.commands) - before <= 2 * session_manager.AT_ONCE, "as many looks, and as many begin"
        finished = len(rollout.outcomes)
        if finished == 29:
            break
    (aws.root(nodes[0].target) / "waits").unlink()
    assert set(finish(rollout, aws).values()) == {"changed"}


def test_the_last_words_of_a_script_that_fails(aws: Aws, begin: Begin) -> None:
    rollout = begin([aws.node("n1")], text="echo pcluster-postboot-fleet 1 3 - - -; echo no disk; exit 3\n")
    finish(rollout, aws)
    assert only(rollout) == ("failed", "no disk")


def test_what_takes_too_long_is_ended_on_the_node(aws: Aws, begin: Begin) -> None:
    node = aws.node("n1")
    rollout = begin([node], text=f"{ENDED}sleep 600; echo >> $PCLUSTER_POSTBOOT_ROOT/times\n", timeout=1)
    until(lambda: list(aws.root(node.target).glob("run/pcluster-postboot/commands/*/code")))
    go_on(rollout, aws)
    assert only(rollout) == ("failed", "not done within 1 s (fleet_timeout)")
    assert times(aws, node) == 0


def test_a_long_output_keeps_its_beginning(aws: Aws, begin: Begin) -> None:
    rollout = begin([aws.node("n1")], text=f"{ENDED}yes | head -c 1000000\n")
    assert finish(rollout, aws) == {"n1": "changed"}


# When it goes wrong


@pytest.mark.parametrize("wrong", [EOF, "", CUT], ids=["end of input", "nothing", "cut"])
def test_a_session_that_dies_before_its_answer_is_repeated_and_the_script_runs_once(
    aws: Aws, begin: Begin, wrong: str
) -> None:
    node = aws.node("n1")
    aws.goes_wrong[node.target] = [wrong, error("ThrottlingException")]
    rollout = begin([node], text=WAITS + ENDED)
    assert finish(rollout, aws) == {"n1": "changed"}
    assert times(aws, node) == 1


def test_a_session_that_dies_after_it_has_begun_the_script(
    aws: Aws, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, shell = aws.node("n1"), aws.shell
    monkeypatch.setattr(aws, "shell", lambda target, command: shell(target, command) and EOF)
    rollout = begin([node], text=WAITS + ENDED)
    until(lambda: times(aws, node))
    monkeypatch.setattr(aws, "shell", shell)
    assert finish(rollout, aws) == {"n1": "changed"}
    assert times(aws, node) == 1


def test_a_second_run_goes_on_with_what_an_interrupted_one_has_begun(aws: Aws, begin: Begin) -> None:
    node = aws.node("n1")
    (aws.root(node.target) / "waits").touch()
    begin([node], text=WAITS + ENDED)
    rollout = begin([node], text=WAITS + ENDED)
    (aws.root(node.target) / "waits").unlink()
    assert finish(rollout, aws) == {"n1": "changed"}
    assert times(aws, node) == 1
    assert finish(begin([node], text=WAITS + ENDED), aws) == {"n1": "changed"}
    assert times(aws, node) == 2, "what has ended is not taken for another run's"


def test_a_unit_that_has_done_its_work_and_not_ended_yet_is_no_run_of_today(aws: Aws, begin: Begin) -> None:
    node = aws.node("n1")
    assert finish(begin([node], text=WAITS + ENDED), aws) == {"n1": "changed"}
    (aws.root(node.target) / "lingers").touch()
    rollout = begin([node], text=WAITS + ENDED)
    go_on(rollout, aws)
    (aws.root(node.target) / "lingers").unlink()
    assert finish(rollout, aws) == {"n1": "changed"}
    assert times(aws, node) == 2


def test_sessions_that_never_answer(aws: Aws, begin: Begin) -> None:
    node = aws.node("n1")
    aws.goes_wrong[node.target] = ["\nStarting session with SessionId: s\nsudo: a password is required\n"] * 20
    rollout = begin([node])
    wait_for(rollout, aws, 300)
    assert only(rollout) == ("failed", "its sessions end without an answer: sudo: a password is required")


def test_a_node_that_is_not_connected_is_named_and_stops_nobody(aws: Aws, begin: Begin) -> None:
    nodes = [aws.node("n1"), aws.node("n2"), aws.node("n3")]
    aws.away.add(nodes[0].target)
    aws.goes_wrong[nodes[1].target] = [error("TargetNotConnected")]  # it went after it was asked
    rollout = begin(nodes)
    assert finish(rollout, aws) == {"n1": "unreachable", "n2": "unreachable", "n3": "changed"}
    for outcome in list(rollout.outcomes.values())[:2]:
        assert outcome.why.startswith("Session Manager does not reach it; the usual reasons are")


def test_an_agent_that_is_away_for_a_while(aws: Aws, begin: Begin) -> None:
    node = aws.node("n1")
    (aws.root(node.target) / "waits").touch()
    rollout = begin([node], text=WAITS + ENDED)
    aws.away.add(node.target)
    (aws.root(node.target) / "waits").unlink()
    wait_for(rollout, aws, 600)
    assert not rollout.done, "it has begun, and may be at work"
    aws.away.clear()
    assert finish(rollout, aws) == {"n1": "changed"}


def test_a_node_that_falls_silent(aws: Aws, begin: Begin) -> None:
    node, late = aws.node("n1"), REQUEST.timeout + remote_script.LATE
    rollout = begin([node], text="sleep 1\n")
    aws.away.add(node.target)
    wait_for(rollout, aws, late)
    assert not rollout.done
    wait_for(rollout, aws, 60)
    assert only(rollout) == ("unreachable", f"it has begun, and no session has told its end for {late} s")


def test_a_node_of_which_nobody_knows_whether_it_has_begun(aws: Aws, begin: Begin) -> None:
    node = aws.node("n1")
    aws.goes_wrong[node.target] = [EOF]
    rollout = begin([node])
    aws.away.add(node.target)
    wait_for(rollout, aws, remote_script.DELIVERY + 60)
    why = "no session has told within 600 s that it has begun: Cannot perform start session: EOF; it may be at work"
    assert only(rollout) == ("unreachable", why)


def test_a_node_that_is_replaced_meanwhile(aws: Aws, begin: Begin) -> None:
    nodes = [aws.node("n1"), aws.node("n2")]
    for node in nodes:
        (aws.root(node.target) / "waits").touch()
    rollout = begin(nodes, text=WAITS + ENDED)
    del aws.alive[nodes[0].target]
    aws.sagemaker = [error("ThrottlingException", operation="ListClusterNodes")]
    wait_for(rollout, aws, 3 * remote_script.GONE_EVERY)
    assert only(rollout) == ("unreachable", "it was replaced or deleted before the end")
    (aws.root(nodes[1].target) / "waits").unlink()
    assert finish(rollout, aws)["n2"] == "changed"


def test_a_cluster_that_is_deleted_meanwhile(aws: Aws, begin: Begin) -> None:
    node = aws.node("n1")
    rollout = begin([node], text="sleep 1\n")
    aws.away.add(node.target)
    aws.sagemaker = [error("ResourceNotFound", operation="ListClusterNodes")]
    wait_for(rollout, aws, 2 * remote_script.GONE_EVERY)
    assert only(rollout) == ("unreachable", "it was replaced or deleted before the end")


def test_who_may_not_list_nodes_goes_on_without(aws: Aws, begin: Begin) -> None:
    node = aws.node("n1")
    rollout = begin([node], text="sleep 1\n")
    aws.away.add(node.target)
    aws.sagemaker = [error("AccessDeniedException", operation="ListClusterNodes")]
    wait_for(rollout, aws, 4 * remote_script.GONE_EVERY)
    (note,) = rollout.notes
    assert "sagemaker:ListClusterNodes is not allowed" in note
    assert not rollout.done


@pytest.mark.parametrize("state", ["killed", "booted"])
def test_a_script_that_somebody_else_ends(aws: Aws, begin: Begin, state: str) -> None:
    node = aws.node("n1")
    root = aws.root(node.target)
    (root / "waits").touch()
    rollout = begin([node], text=WAITS)
    (unit,) = root.glob("*.service")
    process = int(unit.read_text())
    until(lambda: os.getpgid(process) == process)  # setsid is begun in the background
    os.killpg(process, signal.SIGKILL)
    if state == "booted":  # /run is empty then
        subprocess.run(["rm", "-r", str(root / "run")], check=True)
    finish(rollout, aws)
    why = {
        "killed": "it was ended on the node from outside, before it was done",
        "booted": "the node has booted before it was known to be done",
    }
    assert only(rollout) == ("failed", why[state])


def test_what_is_throttled_is_begun_later(aws: Aws, begin: Begin) -> None:
    node = aws.node("n1")
    aws.goes_wrong[node.target] = [error("ThrottlingException")] * 3
    rollout = begin([node])
    assert rollout._command.running == []
    assert finish(rollout, aws) == {"n1": "changed"}


def test_patience_ends(aws: Aws, begin: Begin) -> None:
    node = aws.node("n1")
    aws.goes_wrong[node.target] = [error("ThrottlingException")] * 1000
    rollout = begin([node])
    wait_for(rollout, aws, remote_script.PATIENCE + 60)
    why = "us-east-1, n1: ssm:StartSession failed with ThrottlingException: said AWS"
    assert only(rollout) == ("failed", why)


def test_a_permission_that_is_missing_is_one_line(aws: Aws, begin: Begin) -> None:
    nodes = [aws.node("n1"), aws.node("n2")]
    aws.goes_wrong[nodes[0].target] = [error("AccessDeniedException")]
    rollout = begin(nodes)
    why = {node.name: outcome.why for node, outcome in rollout.outcomes.items()}
    line = (
        "us-east-1, n1: ssm:StartSession is not allowed; give the caller the permission ssm:StartSession on "
        "AWS-StartNonInteractiveCommand and on the nodes (said AWS)"
    )
    assert why == {"n1": line, "n2": f"it goes on there, but {line}"}


def test_without_the_plugin_nothing_is_begun(aws: Aws, begin: Begin) -> None:
    aws.plugin = Problem("no plugin")
    with pytest.raises(Problem, match="no plugin"):
        begin([aws.node("n1")])


# The plugin


@pytest.mark.parametrize(
    ("program", "found"),
    [
        (None, "found no such program"),
        ("echo 1.2.497.0", "found 1.2.497.0"),
        ("echo broken >&2; exit 1", "found broken"),
        ("exit 3", "found the exit status 3"),
    ],
)
def test_the_plugin_that_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None, found: str
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}")
    if program:
        (tmp_path / session_manager.PROGRAM).write_text(f"#!/bin/sh\n{program}\n")
        (tmp_path / session_manager.PROGRAM).chmod(0o755)
    line = rf"^nodes of HyperPod are reached by the session-manager-plugin; {found}; needed: 1\.2\.536\.0 or newer"
    with pytest.raises(Problem, match=line):
        session_manager.Sessions().need_plugin()


# Both ways at once


class Other:
    """A carrier that keeps what it is sent until a test ends it."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.since: dict[Node, float] = {}
        self.ids: dict[Node, str] = {}
        self.batch: dict[str, int] = {}
        self.sending = False
        self.ended: remote_script.Answers = {}

    @property
    def running(self) -> list[Node]:
        return list(self.since)

    def silent(self, nodes: Any) -> remote_script.Answers:
        assert list(nodes)
        return {}

    def send(self, nodes: Any) -> tuple[remote_script.Answers, list[Node]]:
        self.since.update(dict.fromkeys(nodes, 0.0))
        self.ids.update(dict.fromkeys(nodes, "a command"))
        return {}, []

    def poll(self) -> remote_script.Answers:
        ended, self.ended = self.ended, {}
        for node in ended:
            del self.since[node]
        return ended

    def forget(self, why: str) -> remote_script.Answers:
        found = {node: remote_script.Answer("unreachable", why) for node in self.since}
        self.since = {}
        return found


def test_instances_and_targets_in_one_run(aws: Aws) -> None:
    script = Script(ENDED, "a test", 3600, fleet_rollout.enough)
    instances = Other()
    targets = session_command.SessionCommand(aws.make_client, script, lambda: aws.now, aws)  # type: ignore[arg-type]
    instance, target = Node("pc1", "i-1", "us-east-1", "main", "compute"), aws.node("hp1")
    both = carriers.Carriers(instances, targets)
    rollout = fleet_rollout.Rollout([instance, target], REQUEST, both, lambda: aws.now)
    rollout.begin()
    rollout.move()
    assert sorted(node.name for node in both.running) == ["hp1", "pc1"]
    assert both.ids == {instance: "a command", target: "session-1"}
    instances.notes.append("a note")
    assert rollout.notes == ["a note"]
    instances.ended = {instance: remote_script.Answer("success", "", "pcluster-postboot-fleet 1 0 a a -\n")}
    assert finish(rollout, aws) == {"pc1": "ok", "hp1": "changed"}


def test_what_one_carrier_knows_is_not_lost_with_the_other(aws: Aws) -> None:
    script = Script(ENDED, "a test", 3600, fleet_rollout.enough)
    instances = Other()
    targets = session_command.SessionCommand(aws.make_client, script, lambda: aws.now, aws)  # type: ignore[arg-type]
    instance, target = Node("pc1", "i-1", "us-east-1", "main", "compute"), aws.node("hp1")
    rollout = fleet_rollout.Rollout([instance, target], REQUEST, carriers.Carriers(instances, targets), lambda: aws.now)
    rollout.begin()
    rollout.move()
    aws.goes_wrong[target.target] = [error("AccessDeniedException")] * 2
    instances.ended = {instance: remote_script.Answer("success", "", "pcluster-postboot-fleet 1 0 a a -\n")}
    go_on(rollout, aws)
    assert only(rollout)[0] == "ok"
    go_on(rollout, aws)
    assert [outcome.state for outcome in rollout.outcomes.values()] == ["ok", "unreachable"]
