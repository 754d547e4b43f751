# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a head node tells of nodes that boot: its programs are small fakes that print what Slurm's have printed."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._boot import head, record
from ansible_collections.pcluster.postboot.plugins.modules import boot_info
from ansible_collections.pcluster.postboot.tests.strangers import within
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab
from ansible_collections.pcluster.postboot.tests.waiting import PATIENCE

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures/slurm"
# clustermgtd.py of aws-parallelcluster-node 3.16.1, `_handle_protected_mode_process`, with the logger's own beginning.
COUNTS = (
    "{time},697 - [slurm_plugin.clustermgtd:_handle_protected_mode_process] - INFO - Partitions bootstrap failure "
    "count: {counts}, cluster will be set into protected mode if protected failure count reaches threshold 10\n"
)


def stamp(seconds: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    return time.strftime(form, time.localtime(seconds))


def test_nodes_are_told_and_dynamic_ones_that_are_off_are_counted() -> None:
    off, nodes = head.states((FIXTURES / "nodes-24.11.5.txt").read_text())
    assert off == 4
    assert nodes == [
        {
            "name": "burst-dy-c5-1",
            "state": ["CLOUD", "MIXED"],
            "address": "10.115.0.132",
            "instance": "i-90dad73338abdd12e",
        },
        # A test had drained and resumed this node while it was powered down.
        {
            "name": "burst-dy-c5-4",
            "state": ["CLOUD", "IDLE", "NOT_RESPONDING", "POWERED_DOWN"],
            "reason": "a test of dashboards",
            "reason_since": nodes[1]["reason_since"],
            "stranded": True,
        },
        {
            "name": "cpu-st-c5-1",
            "state": ["CLOUD", "IDLE"],
            "address": "10.115.0.130",
            "instance": nodes[2]["instance"],
        },
        {"name": "gpu-st-p5-1", "state": ["CLOUD", "IDLE"], "address": "10.115.0.41", "instance": nodes[3]["instance"]},
    ]
    # Slurm before 23.02 knows no instances.
    off, nodes = head.states((FIXTURES / "nodes-22.05.8.txt").read_text())
    assert (off, nodes) == (0, [{"name": "el-cpu-st-c5-1", "state": ["CLOUD", "IDLE"], "address": "10.115.0.131"}])


def test_a_dynamic_node_that_slurm_gave_up_is_not_merely_off() -> None:
    shown = (FIXTURES / "nodes-24.11.5.txt").read_text()
    shown = shown.replace("State=IDLE+CLOUD+POWERED_DOWN ", "State=DOWN+CLOUD+POWERED_DOWN ", 1)
    shown = shown.replace("State=IDLE+CLOUD+POWERED_DOWN ", "State=IDLE+CLOUD+DRAIN+POWERED_DOWN ", 1)
    off, nodes = head.states(shown)
    assert (off, [node["name"] for node in nodes][1:3]) == (2, ["burst-dy-c5-2", "burst-dy-c5-3"])


def test_a_reason_is_told_where_it_is_of_the_state() -> None:
    line = (FIXTURES / "nodes-22.05.8.txt").read_text().rstrip("\n ")
    why = "(Code:InsufficientInstanceCapacity)Failure when resuming nodes - State=UP Reason=none NodeAddr=6.6.6.6"
    since = 1795398559
    down = line.replace("State=IDLE+CLOUD", "State=DOWN+CLOUD+POWERED_DOWN")
    down += f" Reason={why} [root@{stamp(since, '%Y-%m-%dT%H:%M:%S')}]\n"
    ((node,)) = head.states(down)[1]
    assert (node["reason"], node["reason_since"]) == (why, since)
    assert node["address"] == "10.115.0.131"
    # The reason of an earlier state stays with Slurm.
    (node,) = head.states(down.replace("State=DOWN+CLOUD+POWERED_DOWN", "State=IDLE+CLOUD"))[1]
    assert "reason" not in node


def test_failures_are_those_of_clustermgtds_last_word() -> None:
    now = time.time()
    log = COUNTS.format(time=stamp(now - 90), counts="{'cpu': {'c5': 2}}")
    log += COUNTS.format(time=stamp(now - 30), counts="{'cpu': {'c5': 3, 'c6': 1}, 'gpu': {'p5': 1}}")
    assert head.counts(log + "more\n", now) == ({"cpu": 4, "gpu": 1}, 10)
    assert head.counts(log, now + 400) == ({}, 0)  # a node has come up since, and no more is told
    assert head.counts(COUNTS.format(time=stamp(now), counts="{cut"), now) == ({}, 0)
    assert head.counts("", now) == ({}, 0)
    # What stands elsewhere in a line is no message of clustermgtd's.
    forged = log.replace("INFO - ", "INFO - Resume of {'extra': '").replace("}, cluster", "}', cluster")
    assert head.counts(forged, now) == ({}, 0)


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ("DevSettings:\n  Timeouts:\n    ComputeNodeBootstrapTimeout: 900\n", {"compute": 900}),
        ("{HeadNodeBootstrapTimeout: 3600, 'ComputeNodeBootstrapTimeout': 1800}", {"head": 3600, "compute": 1800}),
        ("# HeadNodeBootstrapTimeout: 3600\n", {}),
        ("", {}),
    ],
)
def test_times_are_those_of_the_clusters_configuration(config: str, found: dict[str, int]) -> None:
    assert head.timeouts(config) == found


class Head:
    """A head node that is a folder."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.slurm = root, root / "opt/slurm"
        monkeypatch.setattr(head, "_ROOT", str(root))
        self.request = head.Request(prefix=str(self.slurm), timeout=PATIENCE)

    def write(self, path: str, text: str) -> Path:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)
        return self.root / path

    def runs(self, partitions: str = "UP") -> None:
        """Everything is there."""
        nodes = (FIXTURES / "nodes-24.11.5.txt").read_text()
        self.write("nodes", nodes)
        self.write("partitions", f"PartitionName=cpu AllowGroups=ALL PreemptMode=OFF State={partitions} TotalCPUs=4\n")
        lab.program(self.slurm / "bin/scontrol", f'#!/bin/sh\ncat "{self.root}/$3"\n')
        status = json.dumps({"lastStatusUpdatedTime": "2026-11-23 01:28:25 UTC", "status": "RUNNING"})
        lab.program(self.root / "usr/local/bin/get-compute-fleet-status.sh", f"#!/bin/sh\necho '{status}'\n")
        self.write("opt/slurm/etc/pcluster/.slurm_plugin/clustermgtd_heartbeat", "")
        self.write("run/cloud-init/result.json", "{}")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Head:
    return Head(tmp_path, monkeypatch)


def test_a_head_node_that_is_up_tells_all_of_it(machine: Head) -> None:
    machine.runs("INACTIVE")
    machine.write(head.LOG[1:], COUNTS.format(time=stamp(time.time()), counts="{'cpu': {'c5': 2}}"))
    machine.write("opt/parallelcluster/shared/cluster-config.yaml", "ComputeNodeBootstrapTimeout: 700\n")
    directory = str(machine.slurm / "pcluster-postboot/boots")
    record.write({"node": "cpu-st-c5-1", "instance": "i-1", "stage": "site"}, directory)
    (Path(directory) / ".cpu-st-c5-2").write_text("node cut")
    os.mkfifo(Path(directory) / "cpu-st-c5-3")
    (Path(directory) / "cpu-st-c5-4").symlink_to("/etc/passwd")
    found = within(20, lambda: head.look(machine.request))
    assert (found.booted, found.boot_error, found.fleet, found.inactive) == (True, "", "RUNNING", ["cpu"])
    assert (found.failures, found.failures_most, found.timeouts) == ({"cpu": 2}, 10, {"compute": 700})
    assert 0 <= found.heartbeat < 60
    assert [node["name"] for node in found.nodes] == ["burst-dy-c5-1", "burst-dy-c5-4", "cpu-st-c5-1", "gpu-st-p5-1"]
    assert found.records == [{"node": "cpu-st-c5-1", "instance": "i-1", "stage": "site"}]
    assert found.problems == []


def test_a_head_node_that_boots_tells_what_it_can(machine: Head) -> None:
    found = head.look(machine.request)
    assert (found.booted, found.nodes, found.records, found.heartbeat) == (False, [], [], -1)
    assert len(found.problems) == 1
    assert "Slurm's controller does not answer: the program" in found.problems[0]
    machine.write(head.ERROR[1:], json.dumps({"message": "Failed to execute OnNodeConfigured script 1 bootstrap.sh"}))
    assert head.look(machine.request).boot_error == "Failed to execute OnNodeConfigured script 1 bootstrap.sh"


def test_the_module_changes_nothing(machine: Head, monkeypatch: pytest.MonkeyPatch, run_module: lab.Run) -> None:
    machine.runs()
    before = sorted(str(path) for path in machine.root.rglob("*"))
    result: dict[str, Any] = run_module(boot_info, {"prefix": str(machine.slurm)})
    assert (result["changed"], result["off"], len(result["nodes"])) == (False, 4, 4)
    assert sorted(str(path) for path in machine.root.rglob("*")) == before
    assert os.path.isdir(machine.root)
