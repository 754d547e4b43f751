# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the decider reads and keeps, how its programs are started, and what administrators do with them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
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


def test_a_hold_whose_reservation_is_gone_holds_nobody(cluster: Cluster) -> None:
    cluster.commands("hold", "gpu-st-p5-1", "a look at its NVLinks")
    del cluster.slurm["gpu-st-p5-1"]["reserved"]
    cluster.now += 300
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
    one = {"node": "a", "finding": "f", "end": "", "time": NOW - 100 * 86400}
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
