# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the decider reads and keeps, how its programs are started, and what administrators do with them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.roles.node_health.files.node_health_decider import command, records, run
from ansible_collections.pcluster.postboot.roles.node_health.files.node_health_decider.decision import reason_of
from ansible_collections.pcluster.postboot.roles.node_health.files.node_health_decider.records import History
from ansible_collections.pcluster.postboot.roles.node_health.files.node_health_decider.slurm import (
    NoAnswer,
    parse_nodes,
    scontrol,
    when,
)
from ansible_collections.pcluster.postboot.tests.programs import REPO
from ansible_collections.pcluster.postboot.tests.strangers import within
from ansible_collections.pcluster.postboot.tests.unit.roles.node_health_cluster import (
    FULL,
    MOUNT,
    NOW,
    XID,
    Cluster,
    made,
)


@pytest.fixture
def cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return made(tmp_path, capsys, monkeypatch)


def test_only_files_that_have_changed_are_read(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(text: str, name: str) -> dict[str, Any]:
        names.append(name)
        return real(text, name)

    names: list[str] = []
    real = records.parse
    monkeypatch.setattr(records, "parse", parse)
    cluster.tells("gpu-st-p5-1")
    cluster.tells("gpu-st-p5-2")
    cluster.runs()
    cluster.tells("gpu-st-p5-2")
    cluster.runs()
    cluster.runs()
    assert sorted(names) == ["gpu-st-p5-1", "gpu-st-p5-2", "gpu-st-p5-2"]


def test_a_held_node_is_not_drained(cluster: Cluster) -> None:
    code, said = cluster.commands("hold", "gpu-st-p5-1", "a look at its NVLinks")
    assert code == 0, said
    asked = cluster.asked()[-1]
    assert asked == (
        "create reservation reservationname=node_health_gpu-st-p5-1 nodes=gpu-st-p5-1 users=root starttime=now "
        "duration=infinite flags=ignore_jobs"
    )
    cluster.tells("gpu-st-p5-1", XID)
    assert cluster.runs() == ["gpu-st-p5-1: not drained for gpu_xid_79 (held): a look at its NVLinks"]
    assert cluster.drained() == []
    labels = 'node="gpu-st-p5-1",host="ip-10-0-0-1",finding="gpu_xid_79",why="held"'
    assert cluster.metric("withheld") == [f"{{{labels}}} 1"]
    assert "gpu-st-p5-1: held for 0 min by " in cluster.commands("status")[1]
    for _ in range(3):
        assert cluster.runs(60) == []
    assert cluster.commands("hold", "gpu-st-p5-1", "twice")[0] == 1
    assert cluster.commands("release", "gpu-st-p5-1") == (0, "gpu-st-p5-1 is released\n")
    assert "reserved" not in cluster.slurm["gpu-st-p5-1"]
    cluster.runs()
    assert cluster.drained() == ["gpu-st-p5-1"]


def test_a_hold_ends_the_drain_by_which_the_node_would_be_replaced(cluster: Cluster) -> None:
    cluster.tells("gpu-st-p5-1", XID)
    cluster.runs()
    assert cluster.commands("hold", "gpu-st-p5-1", "a look at its NVLinks")[0] == 0
    assert cluster.drained() == []
    cluster.runs()
    assert cluster.drained() == []
    cluster.commands("release", "gpu-st-p5-1")
    cluster.runs()
    assert cluster.drained() == ["gpu-st-p5-1"]
    cluster.slurm["gpu-st-p5-1"]["reason"] = "somebody's"
    code, said = cluster.commands("hold", "gpu-st-p5-1", "a look")
    assert (code, "gpu-st-p5-1 is drained (somebody's), and so is replaced" in said) == (1, True)
    assert "reserved" not in cluster.slurm["gpu-st-p5-1"]


@pytest.mark.parametrize("flag", ["POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN"])
def test_a_drained_node_that_is_off_is_not_held_and_not_undrained(cluster: Cluster, flag: str) -> None:
    cluster.tells("gpu-st-p5-1", XID)
    cluster.runs()
    cluster.slurm["gpu-st-p5-1"]["state"] += f"+{flag}"
    cluster.asked()
    code, said = cluster.commands("hold", "gpu-st-p5-1", "a look at its NVLinks")
    assert code == 1
    assert "'scontrol update nodename=gpu-st-p5-1 state=power_down_force' gives it back to jobs" in said
    assert cluster.asked() == ["--oneliner show nodes"]
    cluster.slurm["gpu-st-p5-1"]["reason"] = "somebody's"
    assert "resume" not in cluster.commands("hold", "gpu-st-p5-1", "a look")[1]


def test_a_hold_whose_reservation_is_gone_holds_nobody(cluster: Cluster) -> None:
    cluster.commands("hold", "gpu-st-p5-1", "a look at its NVLinks")
    del cluster.slurm["gpu-st-p5-1"]["reserved"]
    cluster.passes(300)
    cluster.tells("gpu-st-p5-1", XID)
    cluster.runs()
    assert cluster.drained() == ["gpu-st-p5-1"]
    assert cluster.commands("release", "gpu-st-p5-1")[0] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("hold", "gpu-st-p5-[1-8]", "all"), "'gpu-st-p5-[1-8]' is no node of this cluster"),
        (("release", "gpu-st-p5-1"), "gpu-st-p5-1 is not held; held are: none"),
        (("forget", "gpu_xid_79"), "the history has no 'gpu_xid_79' to forget; it has: nothing"),
    ],
)
def test_what_cannot_be_done_is_said(cluster: Cluster, words: tuple[str, ...], said: str) -> None:
    code, output = cluster.commands(*words)
    assert code == 1
    assert output.startswith(f"pcluster-node-health: {said}")
    assert output.count("\n") == 1


def test_changes_are_for_root(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command.os, "geteuid", lambda: 1000)
    assert cluster.commands("forget", "gpu_xid_79") == (1, "pcluster-node-health: 'forget' is for root: use sudo\n")
    assert cluster.commands("status")[0] == 0


def test_status(cluster: Cluster) -> None:
    cluster.tells("gpu-st-p5-1", XID, FULL)
    cluster.with_settings(max_nodes=1)
    cluster.tells("gpu-st-p5-2", MOUNT)
    cluster.runs()
    code, said = cluster.commands("status")
    assert code == 0
    assert "action: drain; at most 1 nodes at a time, 50 % of a queue's (or one of them), 4 an hour" in said
    assert re.search(r"^gpu-st-p5-1: gpu_xid_79 \(replace\) GPU 3 for 0 min: .*: drained 0 min ago$", said, re.M)
    assert re.search(r"^gpu-st-p5-2: mount_hangs .*: not drained \(limit\): 1 nodes are drained", said, re.M)


def test_scontrol_that_fails_is_one_line(tmp_path: Path) -> None:
    program = tmp_path / "scontrol"
    program.write_text("#!/bin/sh\necho well\n[ $1 = show ] || { echo 'slurm_update error:\n  no' >&2; exit 1; }\n")
    program.chmod(0o755)
    assert scontrol(str(program), "show") == "well\n"
    with pytest.raises(NoAnswer, match=r"'\S+scontrol update' ended with 1: slurm_update error: no$"):
        scontrol(str(program), "update")
    with pytest.raises(NoAnswer, match="No such file or directory"):
        scontrol(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "Expecting property name"),
        ("[]", "no state of a node"),
        ('{"schema": 2, "node": "gpu-st-p5-1"}', "schema 2 of node 'gpu-st-p5-1', not 1 of gpu-st-p5-1"),
        ('{"schema": 1, "node": "gpu-st-p5-2"}', "schema 1 of node 'gpu-st-p5-2', not 1 of gpu-st-p5-1"),
    ],
)
def test_a_file_that_is_no_state_is_told_once(cluster: Cluster, text: str, said: str) -> None:
    (cluster.states / "gpu-st-p5-1.json").write_text(text)
    cluster.tells("gpu-st-p5-2", XID)
    lines = cluster.runs()
    assert "gpu-st-p5-1.json is no state of a node: " in lines[0]
    assert said in lines[0]
    assert cluster.drained() == ["gpu-st-p5-2"]
    assert cluster.runs(60) == []


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_what_is_no_file_is_told_once_and_never_waited_for(cluster: Cluster, kind: str) -> None:
    path = cluster.states / "gpu-st-p5-1.json"
    {"pipe": os.mkfifo, "link": lambda path: path.symlink_to("/etc/passwd"), "folder": os.mkdir}[kind](path)
    cluster.tells("gpu-st-p5-2", XID)
    assert "gpu-st-p5-1.json is no state of a node: " in within(20, cluster.runs)[0]
    assert cluster.drained() == ["gpu-st-p5-2"]
    assert cluster.runs(60) == []


def test_a_reason_is_one_line_that_scontrol_and_its_readers_take() -> None:
    evidence = 'State=DOWN "quoted" it\'s\nof two lines \u2014 ' + "x" * 300
    reason = reason_of({"finding": "gpu_missing", "subject": "", "evidence": evidence})
    assert reason.startswith("node_health: gpu_missing: State:DOWN quoted its of two lines xxx")
    assert len(reason) == 200


def test_nodes_as_slurm_prints_them() -> None:
    """Lines of scontrol 24.11.5 and 22.05.8, shortened."""
    text = (
        "NodeName=gpu-st-p5-1 Arch=x86_64 NodeAddr=10.115.0.129 NodeHostName=gpu-st-p5-1 Version=24.11.5 "
        "State=DOWN+CLOUD+DRAIN ThreadsPerCore=1 Partitions=gpu,static  BootTime=2026-11-22T08:30:58 "
        "SlurmdStartTime=2026-11-23T05:02:09 AveWatts=0  Reason=why InstanceId=no [root@2026-11-23T05:02:47] "
        "InstanceId=i-0583365be55b9e926 \n"
        "NodeName=el-cpu-st-c5-1 NodeAddr=10.115.0.131 State=IDLE+CLOUD ThreadsPerCore=1 BootTime=None\n"
    )
    found = parse_nodes(text)
    gpu, cpu = found["gpu-st-p5-1"], found["el-cpu-st-c5-1"]
    assert (gpu.instance, gpu.reason, gpu.queue) == ("i-0583365be55b9e926", "why InstanceId=no", "gpu")
    assert (gpu.states, gpu.up) == ({"DOWN", "CLOUD", "DRAIN"}, False)
    assert (cpu.instance, cpu.reason, cpu.booted, cpu.up, cpu.queue) == ("", "", 0.0, True, "el-cpu")


def test_history_keeps_the_open_and_the_recent(tmp_path: Path) -> None:
    history = History(str(tmp_path / "history.json"))
    words = dict.fromkeys(("instance", "address", "class", "reason"), "")
    one = {"node": "a", "finding": "f", "end": "", "time": NOW - 100 * 86400, "ended": 0.0, "done": True, **words}
    one.update(gpus=[], skipped=[])
    history.drains = [one, {**one, "end": "replaced"}, {**one, "end": "replaced", "time": NOW - 86400}]
    history.save(NOW)
    assert [(found["end"], found["time"]) for found in History(history.path).drains] == [
        ("", NOW - 100 * 86400),
        ("replaced", NOW - 86400),
    ]


def test_a_history_of_another_version_is_left_alone(cluster: Cluster) -> None:
    Path(cluster.settings.history).write_text('{"schema": 2}')
    with pytest.raises(ValueError, match="has schema 2 and not 1"):
        cluster.runs()


@pytest.mark.parametrize("words", [("--check",), ()])
def test_the_program_as_systemd_starts_it(cluster: Cluster, tmp_path: Path, words: tuple[str, ...]) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(cluster.settings._asdict()))
    line = [sys.executable, "-I", "-S", str(REPO / "roles/node_health/files/node-health-decider"), *words, str(config)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert Path(cluster.settings.metrics).exists() == (not words)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"action": "reboot"}, "node_health_action is 'reboot', and has to be report or drain"),
        ({"max_nodes": 0}, "node_health_max_nodes is 0, and has to be from 1 to 10000"),
        ({"max_share": 101.0}, "node_health_max_share is 101, and has to be from 0 to 100"),
        ({"max_per_hour": 0}, "node_health_max_per_hour is 0, and has to be from 1 to 10000"),
        ({"successor_window": -1.0}, "node_health_successor_window is -1, and has to be from 0 to 2160"),
    ],
)
def test_what_is_wrong_with_the_settings_is_one_line(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], wrong: dict[str, Any], said: str
) -> None:
    config = cluster.top / "config.json"
    config.write_text(json.dumps({**cluster.settings._asdict(), **wrong}))
    assert run.main(["--check", str(config)]) == 2
    assert capsys.readouterr().err == f"{config}: {said}\n"


def test_the_command_as_it_is_started() -> None:
    path = REPO / "roles/node_health/files/pcluster-node-health"
    done = subprocess.run([sys.executable, "-I", str(path), "--help"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "status" in done.stdout


# --- a command that is killed -----------------------------------------------------------------------------------------


class Killed(BaseException):
    """SIGKILL comes before a step."""


def killed_before(step: int, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, *words: str) -> bool:
    """Run a command of which Slurm or the disk sees only so many steps; return whether it was killed."""
    steps = 0

    def counting(real: Callable[..., Any]) -> Callable[..., Any]:
        def step_of(*given: str) -> Any:
            nonlocal steps
            if "show" not in given:
                steps += 1
                if steps > step:
                    raise Killed
            return real(*given)

        return step_of

    with monkeypatch.context() as patch:
        patch.setattr(command, "scontrol", counting(cluster.scontrol))
        patch.setattr(records, "put", counting(records.put))
        try:
            assert cluster.commands(*words)[0] == 0
        except Killed:
            return True
    return False


def slurm_of(cluster: Cluster) -> tuple[bool, bool]:
    node = cluster.slurm["gpu-st-p5-1"]
    return "reserved" in node, "DRAIN" in node["state"]


HOLD, RELEASE = ("hold", "gpu-st-p5-1", "a look"), ("release", "gpu-st-p5-1")


@pytest.mark.parametrize("then", [HOLD, RELEASE])
@pytest.mark.parametrize("drained", [False, True])
def test_a_hold_that_was_killed_is_understood(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, then: tuple[str, ...], drained: bool
) -> None:
    step = 0
    while True:
        if drained:
            cluster.tells("gpu-st-p5-1", XID)
            cluster.runs()
            assert slurm_of(cluster) == (False, True)
        killed = killed_before(step, cluster, monkeypatch, *HOLD)
        left = (*slurm_of(cluster), "gpu-st-p5-1" in History(cluster.settings.history).holds)
        said = cluster.commands("status")[1]
        assert ("hold the node again, or release it" in said) == (left[0] != left[2])
        cluster.runs()  # the timer's
        code, said = cluster.commands(*then)
        if then == HOLD and left == (True, False, True):
            assert "is held already: a look" in said
        elif then == RELEASE and not left[0] and not left[2]:
            assert "is not held; held are: none" in said
        else:
            assert code == 0, (step, said)
        if then == HOLD:
            assert slurm_of(cluster) == (True, False), step
            assert cluster.commands(*RELEASE)[0] == 0
        assert not slurm_of(cluster)[0]
        assert History(cluster.settings.history).holds == {}
        if not killed:
            return
        Path(cluster.settings.history).unlink(missing_ok=True)
        cluster.node("gpu-st-p5-1")
        step += 1


def test_a_release_that_was_killed_is_understood(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(3):
        cluster.commands(*HOLD)
        killed = killed_before(step, cluster, monkeypatch, *RELEASE)
        assert killed == (step < 2)
        if killed:
            assert cluster.commands(*RELEASE) == (0, "gpu-st-p5-1 is released\n")
        assert not slurm_of(cluster)[0]
        assert cluster.commands(*HOLD)[0] == 0
        assert cluster.commands(*RELEASE)[0] == 0


def test_what_an_earlier_versions_killed_hold_has_left_is_adopted(cluster: Cluster) -> None:
    cluster.slurm["gpu-st-p5-1"]["reserved"] = "node_health_gpu-st-p5-1"
    cluster.slurm["gpu-st-p5-2"]["reserved"] = "maintenance"
    said = cluster.commands("status")[1]
    assert "gpu-st-p5-1: node_health_gpu-st-p5-1 keeps jobs away, and no hold is noted" in said
    assert "gpu-st-p5-2" not in said
    assert cluster.commands("release", "gpu-st-p5-2")[1].endswith("is not held; held are: gpu-st-p5-1\n")
    assert cluster.commands(*HOLD)[0] == 0
    assert cluster.commands(*RELEASE)[0] == 0
    assert slurm_of(cluster) == (False, False)


def test_a_hold_that_slurm_refuses_is_none(cluster: Cluster) -> None:
    cluster.slurm["gpu-st-p5-1"]["reserved"] = "maintenance"
    code, said = cluster.commands(*HOLD)
    assert (code, "overlaps with another reservation" in said) == (1, True)
    assert History(cluster.settings.history).holds == {}
    cluster.scontrol.answers = False
    assert "reservations are not known: Unable to contact slurm controller" in cluster.commands("status")[1]


# --- files of another shape -------------------------------------------------------------------------------------------

DRAIN = {
    "node": "gpu-st-p5-1", "instance": "i-1", "address": "10.0.0.1", "finding": "f", "class": "reset",
    "reason": "r", "time": NOW, "ended": 0.0, "end": "", "done": True, "gpus": [], "skipped": [],
}


def without(key: str, **more: Any) -> dict[str, Any]:
    return {name: value for name, value in {**DRAIN, **more}.items() if name != key}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "has list, and has to have an object"),
        ("null", "has NoneType, and has to have an object"),
        ("{", "is no JSON: Expecting property name"),
        ("[" * 100_000, "is no JSON: "),
        ('{"schema": ' + "9" * 5000 + "}", "is no JSON: "),
        ('{"schema": 1, "drains": null}', "is damaged: drains is no list"),
        ('{"schema": 1, "drains": [1]}', "is damaged: everything of drain 0 is missing or of another type"),
        (
            json.dumps({"schema": 1, "drains": [DRAIN, without("end")]}),
            "is damaged: end of drain 1 is missing or of another type",
        ),
        (json.dumps({"schema": 1, "drains": [without("", time="1")]}), "is damaged: time of drain 0 is missing"),
        (json.dumps({"schema": 1, "drains": [without("", time=10**400)]}), "is damaged: time of drain 0 is missing"),
        (json.dumps({"schema": 1, "drains": [without("", boot="b")]}), "is damaged: up of drain 0 is missing"),
        ("{}", "has schema None and not 1: another version has written it"),
        ('{"schema": 1, "holds": []}', "is damaged: holds is no object"),
        ('{"schema": 1, "holds": {"a": {"time": 1}}}', "is damaged: reason of holds/a is missing"),
        (
            '{"schema": 1, "stops": {"f": {"time": 1, "node": "a", "instances": [1]}}}',
            "is damaged: instances of stops/f is missing",
        ),
        ('{"schema": 1, "totals": {"f": "1"}}', "is damaged: totals/f is no number"),
    ],
)
def test_a_history_of_another_shape_is_one_line_that_names_it(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    path, config = Path(cluster.settings.history), cluster.top / "config.json"
    path.write_text(text)
    config.write_text(json.dumps(cluster.settings._asdict()))
    assert run.main([str(config)]) == 1
    found = capsys.readouterr().out
    assert found.startswith(f"<3>nothing is decided: {path} {said}")
    assert found.count("\n") == 1
    for words in (("status",), HOLD):
        code, output = cluster.commands(*words)
        assert code == 1
        assert output.startswith(f"pcluster-node-health: {path} {said}")
    assert path.read_text() == text


STATE = {
    "schema": 1, "node": "gpu-st-p5-1", "instance_id": "i-1", "gpus": [], "skipped": {},
    "findings": [{"finding": "gpu_xid_79", "class": "replace", "subject": "GPU 3", "evidence": "Xid", "since": NOW}],
}


def state(**more: Any) -> str:
    return json.dumps({**STATE, **more})


def finding(**more: Any) -> str:
    return state(findings=[{**STATE["findings"][0], **more}])


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"schema": 1, "node": "gpu-st-p5-1", "findings": ' + "[" * 100_000,
        "null",
        '{"schema": ' + "9" * 5000 + "}",
        " " * (1 << 21) + state(),
        "\x00",
        state(gpus=None),
        state(gpus="GPU-1"),
        state(gpus=[{}]),
        state(skipped=[[]]),
        state(skipped=None),
        state(findings={"a": 1}),
        state(findings=[None]),
        state(instance_id=None),
        finding(since=10**400),
        finding(since=float("nan")),
        finding(since=None),
        finding(evidence=[]),
        finding(finding='x"} 1\npcluster_node_health_drained{node="a'),
        finding(finding="\ud800"),
        finding(finding=""),
    ],
)
def test_one_nodes_file_stops_nothing_for_the_others(cluster: Cluster, text: str) -> None:
    path = cluster.states / "gpu-st-p5-1.json"
    path.write_text(text)
    os.utime(path, (cluster.now, cluster.now))
    cluster.tells("gpu-st-p5-2", XID)
    lines = cluster.runs()
    assert lines[0].startswith(f"{cluster.states}/gpu-st-p5-1.json is no state of a node: ")
    assert cluster.drained() == ["gpu-st-p5-2"]
    assert len(lines) == 2
    assert all(len(line) < 1000 for line in lines)
    assert cluster.runs(30) == []


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link(path: Path) -> None:
    elsewhere = path.parents[1] / "elsewhere.json"
    elsewhere.write_text(state())
    path.symlink_to(elsewhere)


@pytest.mark.parametrize("make", [fifo, link, Path.mkdir])
def test_what_is_no_file_is_not_waited_for_or_followed(cluster: Cluster, make: Callable[[Path], None]) -> None:
    make(cluster.states / "gpu-st-p5-1.json")
    cluster.tells("gpu-st-p5-2", XID)
    assert "gpu-st-p5-1.json is no state of a node: " in cluster.runs()[0]
    assert cluster.drained() == ["gpu-st-p5-2"]


@pytest.mark.parametrize("name", [b"a\nb\x1b[31m.json", b"\xff\xfe.json", "\u202egpu.json".encode()])
def test_a_name_that_is_none_of_a_node_reaches_no_terminal(cluster: Cluster, name: bytes) -> None:
    Path(os.fsdecode(os.fsencode(cluster.states) + b"/" + name)).write_text(state())
    cluster.tells("gpu-st-p5-2", XID)
    lines = cluster.runs()
    assert "no node has such a name" in lines[0]
    assert all(line.isprintable() for line in lines)
    assert cluster.drained() == ["gpu-st-p5-2"]


def test_what_a_node_says_is_one_short_line(cluster: Cluster) -> None:
    evidence = "two\nlines\x1b]0;title\x07 \u202e \ud800" + "x" * 100_000
    (cluster.states / "gpu-st-p5-1.json").write_text(
        finding(evidence=evidence).replace('"i-1"', json.dumps(cluster.slurm["gpu-st-p5-1"]["instance"]))
    )
    os.utime(cluster.states / "gpu-st-p5-1.json", (cluster.now, cluster.now))
    cluster.with_settings(action="report")
    lines = cluster.runs() + cluster.commands("status")[1].splitlines()
    assert any("two lines ]0;title" in one for one in lines)
    assert all(one.isprintable() and len(one) < 1000 for one in lines)


@pytest.mark.parametrize("text", ["[]", "[" * 100_000, '{"states": []}', '{"unknown": 1}', "null", '{"up": "x"}'])
def test_a_cache_of_another_shape_is_none(cluster: Cluster, text: str) -> None:
    Path(cluster.settings.cache).write_text(text)
    cluster.tells("gpu-st-p5-2", XID)
    cluster.runs()
    assert cluster.drained() == ["gpu-st-p5-2"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"max_nodes": "2"}, "node_health_max_nodes is '2', and has to be from 1 to 10000"),
        ({"max_share": None}, "node_health_max_share is None, and has to be from 0 to 100"),
        ({"states": 1}, "states is 1, and has to be text"),
        ({"silent_after": "15 min"}, "silent_after is '15 min', and has to be a number"),
        ({"unheard": 1}, "unheard is unknown"),
    ],
)
def test_settings_of_another_type_are_one_line(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], wrong: dict[str, Any], said: str
) -> None:
    config = cluster.top / "config.json"
    config.write_text(json.dumps({**cluster.settings._asdict(), **wrong}))
    assert run.main([str(config)]) == 2
    assert capsys.readouterr().err == f"{config}: {said}\n"
    assert command.main(["--config", str(config), "status"]) == 1
    assert capsys.readouterr().err == f"pcluster-node-health: {config}: {said}\n"


@pytest.mark.parametrize("text", ["2147485548-01-01T00:00:00", "9" * 5000 + "-01-01T00:00:00", "1-1-1T1:1:" + "9" * 30])
def test_a_time_that_is_none(text: str) -> None:
    assert when(text) == 0.0 or when(text) < 1e15
