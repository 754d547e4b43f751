# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the decider does while the head node's clock is set, by which the states of nodes are stamped, too."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ansible_collections.pcluster.postboot.roles.node_health.files.node_health_decider.records import History
from ansible_collections.pcluster.postboot.tests.unit.roles.node_health_cluster import MOUNT, XID, Cluster, made

HOUR = 3600.0
NODE = "gpu-st-p5-1"


@pytest.fixture
def cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster whose Slurm knows no instance ids, as before ParallelCluster 3.16."""
    found = made(tmp_path, capsys, monkeypatch)
    for number in range(1, 9):
        found.node(f"gpu-st-p5-{number}", instance="")
    return found


def successor(cluster: Cluster) -> None:
    """Another instance boots under the same name, as slurmctld tells by the head node's clock."""
    cluster.node(NODE, instance="", booted=time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(cluster.now)))


@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize("step", [-HOUR, -600, -60, HOUR, 30 * 24 * HOUR])
@pytest.mark.parametrize("stepped_first", [True, False])
def test_a_step_of_the_clock_drains_no_successor_for_its_predecessor(
    cluster: Cluster, seen: bool, step: float, stepped_first: bool
) -> None:
    cluster.slurm[NODE]["state"] = "DOWN+CLOUD"
    cluster.tells(NODE, XID, instance_id="i-1")
    if seen:
        cluster.runs()
    cluster.passes(30)
    if stepped_first:
        cluster.steps(step)
    successor(cluster)
    if not stepped_first:
        cluster.passes(5)
        cluster.steps(step)
    for later in (15, *[60] * 80):
        cluster.runs(later)
        assert cluster.drained() == []
    # What the successor itself tells counts, once its boot is no time to come any more.
    cluster.tells(NODE, XID, instance_id="i-2")
    cluster.runs()
    assert cluster.drained() == [NODE]


@pytest.mark.parametrize("step", [-HOUR, HOUR])
def test_a_step_of_the_clock_neither_hides_silence_nor_makes_it(cluster: Cluster, step: float) -> None:
    cluster.tells(NODE)
    assert cluster.runs() == []
    cluster.steps(step)
    assert cluster.runs(600) == []
    assert cluster.runs(300) == [f"{NODE}: silent: the node has told no state for a while"]
    cluster.tells(NODE)
    assert cluster.runs(60) == [f"{NODE}: no longer silent"]


def test_a_state_from_the_future_is_of_no_known_time(cluster: Cluster) -> None:
    """The head node has booted meanwhile, and remembers nothing."""
    cluster.tells(NODE, XID, instance_id="i-1")
    path = cluster.states / f"{NODE}.json"
    os.utime(path, (cluster.now + HOUR, cluster.now + HOUR))
    assert cluster.runs() == [f"{NODE}: silent: the node has told no state for a while"]
    assert cluster.drained() == []
    # A file server whose clock is ahead all the while: what changes is new.
    cluster.tells(NODE, MOUNT, instance_id="i-1")
    os.utime(path, (cluster.now + HOUR, cluster.now + HOUR))
    cluster.runs()
    assert cluster.drained() == [NODE]


def test_some_seconds_of_skew_are_nothing(cluster: Cluster) -> None:
    cluster.tells(NODE, XID, instance_id="i-1")
    os.utime(cluster.states / f"{NODE}.json", (cluster.now + 3, cluster.now + 3))
    cluster.runs(0)
    assert cluster.drained() == [NODE]


@pytest.mark.parametrize("step", [-2 * HOUR, 2 * HOUR])
def test_a_step_of_the_clock_opens_no_new_hour(cluster: Cluster, step: float) -> None:
    cluster.with_settings(max_nodes=8, max_share=100, max_per_hour=2)
    for number in range(1, 4):
        cluster.tells(f"gpu-st-p5-{number}", XID, instance_id=f"i-{number}")
    cluster.runs()
    assert len(cluster.drained()) == 2
    cluster.steps(step)
    cluster.passes(1800)
    cluster.tells("gpu-st-p5-3", MOUNT, instance_id="i-3")
    cluster.runs(60)
    assert len(cluster.drained()) == 2
    cluster.passes(1800)
    cluster.tells("gpu-st-p5-3", MOUNT, instance_id="i-3", time=0)
    cluster.runs(60)
    assert len(cluster.drained()) == 3


@pytest.mark.parametrize("noted", [True, False])
def test_drains_in_the_future_do_not_fill_the_hour_for_ever(cluster: Cluster, noted: bool) -> None:
    """The clock was years ahead, and the head node has booted since."""
    cluster.with_settings(max_nodes=8, max_share=100, max_per_hour=1)
    cluster.steps(5 * 365 * 24 * HOUR)
    cluster.tells("gpu-st-p5-2", XID, instance_id="i-2")
    cluster.runs()
    assert cluster.drained() == ["gpu-st-p5-2"]
    cluster.steps(-5 * 365 * 24 * HOUR)
    cluster.up, cluster.boot = 60.0, "second"
    history = History(cluster.settings.history)
    if not noted:  # by an earlier version
        for record in history.drains:
            del record["boot"], record["up"]
        history.save(cluster.now)
    cluster.tells(NODE, XID, instance_id="i-1")
    cluster.runs()
    assert (NODE in cluster.drained()) != noted, "a boot of a minute ago says that the drain is older than a minute"
    cluster.passes(HOUR)
    cluster.tells(NODE, XID, instance_id="i-1")
    cluster.runs()
    assert NODE in cluster.drained()


def test_a_hold_of_just_now_is_not_held_for_ever_by_a_step(cluster: Cluster) -> None:
    assert cluster.commands("hold", NODE, "a look at its NVLinks")[0] == 0
    del cluster.slurm[NODE]["reserved"]  # somebody has deleted the reservation
    cluster.steps(-6 * HOUR)
    cluster.passes(300)
    cluster.tells(NODE, XID, instance_id="i-1")
    cluster.runs()
    assert cluster.drained() == [NODE]
