# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which nodes with findings are drained and undrained, run as the timer does, on states as nodes write them."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from ansible_collections.pcluster.postboot.roles.node_health.files.node_health_decider import run
from ansible_collections.pcluster.postboot.roles.node_health.files.node_health_decider.records import History
from ansible_collections.pcluster.postboot.roles.node_health.files.node_health_decider.slurm import (
    NoAnswer,
)
from ansible_collections.pcluster.postboot.tests.unit.roles.node_health_cluster import (
    FULL,
    MOUNT,
    XID,
    Cluster,
    made,
)


@pytest.fixture
def cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return made(tmp_path, capsys, monkeypatch)


def test_a_node_with_a_finding_is_drained_once(cluster: Cluster) -> None:
    cluster.tells("gpu-st-p5-1", FULL, XID)
    cluster.tells("gpu-st-p5-2", FULL)
    lines = cluster.runs()
    reason = "node_health: gpu_xid_79: GPU 3 NVRM: Xid (PCI:0000:97:00): 79, pid:<unknown>, GPU has fallen off the bus."
    assert lines == [f"gpu-st-p5-1: drained (replace): {reason}"]
    assert cluster.drained() == ["gpu-st-p5-1"]
    assert cluster.slurm["gpu-st-p5-1"]["reason"] == reason
    assert cluster.metric("drained") == ['{node="gpu-st-p5-1",host="ip-10-0-0-1",finding="gpu_xid_79"} 1']
    assert cluster.metric("drains_total") == ['{finding="gpu_xid_79"} 1']
    assert cluster.metric("withheld") == []
    assert cluster.metric("decider_timestamp_seconds") == [f" {cluster.now:.3f}"]
    cluster.asked()
    assert cluster.runs() == []
    assert not [one for one in cluster.asked() if "update" in one]


def test_slurm_is_not_asked_while_there_is_nothing_to_decide(cluster: Cluster) -> None:
    cluster.tells("gpu-st-p5-1", FULL)
    assert cluster.runs() == cluster.runs() == []
    cluster.tells("gpu-st-p5-1")
    assert cluster.runs() == []
    assert cluster.asked() == []


def test_what_is_withheld_is_looked_at_once_a_minute_and_when_something_changes(cluster: Cluster) -> None:
    cluster.with_settings(action="report")
    cluster.tells("gpu-st-p5-1", XID)
    for _ in range(4):
        cluster.runs()
    assert len(cluster.asked()) == 1
    cluster.runs()
    assert len(cluster.asked()) == 1
    cluster.tells("gpu-st-p5-1", XID, MOUNT)
    cluster.runs()
    assert len(cluster.asked()) == 1
    labels = 'node="gpu-st-p5-1",host="ip-10-0-0-1",finding="gpu_xid_79",why="report"'
    assert cluster.metric("withheld") == [f"{{{labels}}} 1"]


def test_report_tells_what_would_be_done_and_does_nothing(cluster: Cluster) -> None:
    cluster.with_settings(action="report")
    for number in range(1, 4):
        cluster.tells(f"gpu-st-p5-{number}", MOUNT)
    lines = cluster.runs()
    assert lines == [
        "gpu-st-p5-1, gpu-st-p5-2: not drained for mount_hangs (report): node_health_action is report; "
        "node_health: mount_hangs: /fsx no answer within 5 s",
        "gpu-st-p5-3: not drained for mount_hangs (limit): 2 nodes are drained, node_health_max_nodes is 2",
    ]
    assert cluster.runs() == []
    assert cluster.drained() == []
    assert not Path(cluster.settings.history).exists()
    cluster.tells("gpu-st-p5-1")
    assert cluster.runs()[-1].startswith("gpu-st-p5-1: mount_hangs is no longer withheld")


def test_the_job_ends_first_and_the_successor_is_healthy(cluster: Cluster) -> None:
    cluster.slurm["gpu-st-p5-1"]["state"] = "ALLOCATED+CLOUD"
    cluster.tells("gpu-st-p5-1", XID)
    cluster.runs()
    assert cluster.slurm["gpu-st-p5-1"]["state"] == "ALLOCATED+CLOUD+DRAIN"
    cluster.slurm["gpu-st-p5-1"].update(state="DOWN+CLOUD+DRAIN", reason="Static node maintenance: unhealthy node")
    assert cluster.runs(60) == []
    assert cluster.metric("drained")
    cluster.replaced("gpu-st-p5-1")
    cluster.tells("gpu-st-p5-1")
    assert cluster.runs(60) == ["gpu-st-p5-1: replaced (gpu_xid_79): its instance is gone"]
    assert cluster.metric("drained") == []
    assert cluster.metric("drains_total") == ['{finding="gpu_xid_79"} 1']


def test_a_dynamic_node_is_back_once_it_is_powered_down(cluster: Cluster) -> None:
    cluster.node("gpu-dy-p5-1")
    cluster.tells("gpu-dy-p5-1", XID)
    cluster.runs()
    cluster.slurm["gpu-dy-p5-1"].update(state="IDLE+CLOUD+POWERED_DOWN", address="gpu-dy-p5-1")
    assert cluster.runs(60) == ["gpu-dy-p5-1: replaced (gpu_xid_79): its instance is gone"]
    # The file of the former instance counts for nothing, when a job has the node launched again.
    cluster.node("gpu-dy-p5-1")
    assert cluster.runs(60) == []
    assert cluster.drained() == []


@pytest.mark.parametrize("told", [True, False])
def test_the_same_finding_on_a_successor_stops_the_action_for_that_finding(cluster: Cluster, told: bool) -> None:
    former = str(cluster.slurm["gpu-st-p5-1"]["instance"])
    cluster.tells("gpu-st-p5-1", XID)
    cluster.runs()
    successor = cluster.replaced("gpu-st-p5-1")
    if told:  # the successor may have been healthy for hours
        cluster.tells("gpu-st-p5-1")
        cluster.runs(3600)
    cluster.tells("gpu-st-p5-1", XID)
    cluster.tells("gpu-st-p5-2", XID)
    cluster.tells("gpu-st-p5-3", MOUNT)
    lines = cluster.runs(60)
    words = f"a successor had the same finding (gpu-st-p5-1: {former} and then {successor})"
    assert f"gpu-st-p5-1, gpu-st-p5-2: not drained for gpu_xid_79 (successor): {words}; " in "\n".join(lines)
    assert cluster.drained() == ["gpu-st-p5-3"]
    # Until somebody says so.
    code, said = cluster.commands("forget", "gpu_xid_79")
    assert (code, said) == (0, "gpu_xid_79: 1 drains are forgotten, and the finding is acted on again\n")
    cluster.with_settings(max_nodes=5)
    cluster.runs()
    assert cluster.drained() == ["gpu-st-p5-1", "gpu-st-p5-2", "gpu-st-p5-3"]


def test_a_successor_after_the_window_is_drained(cluster: Cluster) -> None:
    cluster.tells("gpu-st-p5-1", XID)
    cluster.runs()
    cluster.replaced("gpu-st-p5-1")
    cluster.runs(60)
    cluster.passes(25 * 3600)
    cluster.tells("gpu-st-p5-1", XID)
    cluster.runs()
    assert cluster.drained() == ["gpu-st-p5-1"]


def test_another_finding_on_a_successor_drains_it(cluster: Cluster) -> None:
    cluster.tells("gpu-st-p5-1", XID)
    cluster.runs()
    cluster.replaced("gpu-st-p5-1")
    cluster.tells("gpu-st-p5-1", MOUNT)
    cluster.runs(60)
    assert cluster.drained() == ["gpu-st-p5-1"]


def test_the_same_machine_that_came_back_is_told_and_stops_nothing(cluster: Cluster) -> None:
    gpus = [f"GPU-{number}" for number in range(8)]
    cluster.tells("gpu-st-p5-1", XID, gpus=gpus)
    cluster.runs()
    cluster.replaced("gpu-st-p5-1")
    cluster.runs(60)
    # As another node of the same capacity block.
    cluster.replaced("gpu-st-p5-2")
    cluster.tells("gpu-st-p5-2", XID, gpus=gpus)
    cluster.tells("gpu-st-p5-3", XID)
    # And under its own name: no other machine has the finding, so nothing is stopped.
    cluster.tells("gpu-st-p5-1", XID, gpus=gpus)
    lines = cluster.runs()
    assert any("gpu-st-p5-2: not drained for gpu_xid_79 (came_back): the same machine" in line for line in lines)
    assert cluster.drained() == ["gpu-st-p5-3"]
    hosts = ((1, "ip-10-0-0-9"), (2, "ip-10-0-0-10"))
    told = [
        f'{{node="gpu-st-p5-{number}",host="{host}",finding="gpu_xid_79",why="came_back"}} 1' for number, host in hosts
    ]
    assert sorted(cluster.metric("withheld")) == told


def test_twenty_nodes_at_once(cluster: Cluster) -> None:
    for number in range(1, 21):
        cluster.node(f"gpu-st-p5-{number}")
        cluster.tells(f"gpu-st-p5-{number}", XID)
    cluster.with_settings(max_nodes=4, max_share=10)
    lines = cluster.runs()
    assert len(cluster.drained()) == 2
    assert len(lines) == 3, lines  # two that are drained, and one line for the others
    assert "2 of the 20 nodes of queue gpu are drained, node_health_max_share is 10 %" in lines[0] + lines[-1]
    assert len(cluster.metric("withheld")) == 18
    # The share grows no slower than the nodes come back; the hour is the last limit.
    for _ in range(2):
        for name in cluster.drained():
            cluster.replaced(name)
            cluster.tells(name)
        cluster.runs(60)
    assert cluster.drained() == []
    assert 'why="limit"' in cluster.metric("withheld")[0]
    cluster.passes(3600)
    for number in range(1, 21):
        name = f"gpu-st-p5-{number}"
        one = json.loads((cluster.states / f"{name}.json").read_text())
        cluster.tells(name, *([XID] if one["findings"] else []))
    cluster.runs()
    assert len(cluster.drained()) == 2


def test_one_node_of_a_small_queue_may_go(cluster: Cluster) -> None:
    cluster.with_settings(max_share=1)
    cluster.tells("gpu-st-p5-1", MOUNT)
    cluster.tells("gpu-st-p5-2", XID)
    cluster.runs()
    assert cluster.drained() == ["gpu-st-p5-2"]  # the most serious first


def test_a_false_alarm_that_heals_is_undrained(cluster: Cluster) -> None:
    cluster.slurm["gpu-st-p5-1"]["state"] = "ALLOCATED+CLOUD"
    cluster.tells("gpu-st-p5-1", MOUNT)
    cluster.runs()
    assert cluster.drained()
    cluster.passes(15)
    cluster.tells("gpu-st-p5-1", ("check_hangs", "watch", "mounts", "no answer within 5 s"))
    cluster.runs()
    cluster.passes(15)
    cluster.tells("gpu-st-p5-1", skipped={"nvlink": "no NVLink", "mounts": "hangs"})
    cluster.runs()
    assert cluster.drained(), "a check that could not look is no check that found nothing"
    cluster.passes(15)
    cluster.tells("gpu-st-p5-1")
    assert cluster.runs() == ["gpu-st-p5-1: undrained: mount_hangs is gone"]
    assert cluster.slurm["gpu-st-p5-1"]["reason"] == "node_health: mount_hangs is gone"
    assert cluster.drained() == []
    assert cluster.metric("drained") == []
    # The same again on the same instance is no successor's.
    cluster.tells("gpu-st-p5-1", MOUNT)
    cluster.runs()
    assert cluster.drained() == ["gpu-st-p5-1"]


@pytest.mark.parametrize(
    "change",
    [
        {"reason": "a test of somebody"},
        {"state": "DOWN+CLOUD+DRAIN"},
        {"state": "IDLE+CLOUD+DRAIN+POWERING_DOWN", "reason": "Scheduler health check failed"},
        # Slurm would wait for a slurmd that does not come any more, and start no job there.
        {"state": "IDLE+CLOUD+DRAIN+POWERING_DOWN"},
        {"state": "IDLE+CLOUD+DRAIN+POWER_DOWN"},
    ],
)
def test_only_our_own_drain_is_undrained(cluster: Cluster, change: dict[str, str]) -> None:
    cluster.tells("gpu-st-p5-1", MOUNT)
    cluster.runs()
    cluster.slurm["gpu-st-p5-1"].update(change)
    cluster.passes(15)
    cluster.tells("gpu-st-p5-1")
    cluster.runs(60)
    assert cluster.drained() == ["gpu-st-p5-1"]


def test_a_drain_with_our_words_that_the_history_does_not_have_is_left(cluster: Cluster) -> None:
    reason = "node_health: mount_hangs: /fsx no answer within 5 s"
    cluster.slurm["gpu-st-p5-1"].update(state="IDLE+CLOUD+DRAIN", reason=reason)
    cluster.tells("gpu-st-p5-1", MOUNT)
    cluster.runs()
    cluster.tells("gpu-st-p5-1")
    cluster.runs(60)
    assert cluster.drained() == ["gpu-st-p5-1"]


def test_whoever_resumes_a_node_has_the_last_word(cluster: Cluster) -> None:
    cluster.tells("gpu-st-p5-1", XID)
    cluster.runs()
    cluster.slurm["gpu-st-p5-1"].update(state="IDLE+CLOUD")
    lines = cluster.runs(60)
    assert lines[0].startswith("gpu-st-p5-1: resumed (gpu_xid_79): somebody else")
    assert cluster.drained() == []
    labels = 'node="gpu-st-p5-1",host="ip-10-0-0-1",finding="gpu_xid_79",why="resumed"'
    assert cluster.metric("withheld") == [f"{{{labels}}} 1"]
    assert cluster.commands("forget", "gpu_xid_79")[0] == 0
    cluster.runs()
    assert cluster.drained() == ["gpu-st-p5-1"]


def test_a_node_is_drained_as_soon_as_it_can_take_jobs(cluster: Cluster) -> None:
    cluster.node("gpu-dy-p5-1", state="ALLOCATED+CLOUD+POWERING_UP")
    cluster.tells("gpu-dy-p5-1", XID)
    assert cluster.runs() == []
    cluster.slurm["gpu-dy-p5-1"]["state"] = "ALLOCATED+CLOUD"
    cluster.runs()
    assert cluster.drained() == ["gpu-dy-p5-1"]


def test_a_state_of_an_earlier_instance_drains_nobody(cluster: Cluster) -> None:
    cluster.tells("gpu-st-p5-1", XID)
    cluster.replaced("gpu-st-p5-1")
    assert cluster.runs() == []
    assert cluster.drained() == []


def booted(cluster: Cluster, name: str) -> None:
    """Have a node boot again, with the same instance, as Slurm tells of that."""
    cluster.slurm[name]["booted"] = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(cluster.now))


def test_a_state_of_an_earlier_boot_drains_nobody(cluster: Cluster) -> None:
    """A reboot cures most findings, and the file of the boot before lies there until the first look of the next."""
    cluster.tells("gpu-st-p5-1", MOUNT)
    cluster.passes(60)
    booted(cluster, "gpu-st-p5-1")
    assert cluster.runs() == []
    assert cluster.drained() == []
    cluster.tells("gpu-st-p5-1", MOUNT)
    cluster.runs()
    assert cluster.drained() == ["gpu-st-p5-1"]


def test_a_drained_node_that_is_rebooted_is_undrained_once_its_new_boot_is_well(cluster: Cluster) -> None:
    cluster.tells("gpu-st-p5-1", MOUNT)
    cluster.runs()
    cluster.passes(60)
    booted(cluster, "gpu-st-p5-1")
    assert cluster.runs() == []
    assert cluster.drained() == ["gpu-st-p5-1"]
    cluster.tells("gpu-st-p5-1")
    assert cluster.runs() == ["gpu-st-p5-1: undrained: mount_hangs is gone"]


def test_a_node_that_tells_nothing_since_it_booted_is_silent(cluster: Cluster) -> None:
    cluster.tells("gpu-st-p5-1")
    cluster.passes(60)
    booted(cluster, "gpu-st-p5-1")
    assert cluster.runs(1000) == ["gpu-st-p5-1: silent: the node has told no state for a while"]
    assert (cluster.states / "gpu-st-p5-1.json").exists()


@pytest.mark.parametrize("reused", [False, True])
def test_before_316_the_address_and_the_boot_tell_the_instance(cluster: Cluster, reused: bool) -> None:
    cluster.node("gpu-st-p5-1", instance="")
    cluster.tells("gpu-st-p5-1", XID, instance_id="i-1")
    cluster.runs()
    assert cluster.drained() == ["gpu-st-p5-1"]
    booted = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(cluster.now + 60))
    # Either alone has to do.
    same = {"address": cluster.slurm["gpu-st-p5-1"]["address"], "booted": booted} if reused else {}
    cluster.node("gpu-st-p5-1", instance="", **same)
    # The file of the former instance is still there.
    assert cluster.runs(120) == ["gpu-st-p5-1: replaced (gpu_xid_79): its instance is gone"]
    assert cluster.drained() == []
    cluster.tells("gpu-st-p5-1", instance_id="i-2")
    assert cluster.runs() == []
    cluster.tells("gpu-st-p5-1", MOUNT, instance_id="i-2")
    cluster.runs()
    assert cluster.drained() == ["gpu-st-p5-1"]


def test_before_316_whoever_resumes_a_node_has_the_last_word(cluster: Cluster) -> None:
    cluster.node("gpu-st-p5-1", instance="")
    cluster.tells("gpu-st-p5-1", XID, instance_id="i-1")
    cluster.runs()
    cluster.slurm["gpu-st-p5-1"]["state"] = "IDLE+CLOUD"
    assert cluster.runs(60)[0].startswith("gpu-st-p5-1: resumed")


def test_silent_nodes(cluster: Cluster) -> None:
    cluster.tells("gpu-st-p5-1")
    cluster.tells("gpu-st-p5-2", XID, instance_id="i-former")
    cluster.node("gpu-dy-p5-1", state="IDLE+CLOUD+POWERED_DOWN")
    cluster.tells("gpu-dy-p5-1")
    cluster.tells("gpu-st-p5-3", XID)
    cluster.slurm["gpu-st-p5-3"]["state"] = "DOWN+CLOUD+NOT_RESPONDING"
    assert cluster.runs(800) == []
    assert cluster.runs(200) == ["gpu-st-p5-1: silent: the node has told no state for a while"]
    assert cluster.metric("silent") == ['{node="gpu-st-p5-1",host="ip-10-0-0-1"} 1']
    # The files of instances that are gone are gone; a node that is down may come back with its file.
    assert sorted(path.name for path in cluster.states.iterdir()) == ["gpu-st-p5-1.json", "gpu-st-p5-3.json"]
    assert cluster.runs() == []
    cluster.slurm["gpu-st-p5-3"]["state"] = "IDLE+CLOUD"
    cluster.runs(60)
    assert cluster.drained() == [], "what a node has told long ago is not acted on"
    cluster.tells("gpu-st-p5-1")
    assert cluster.runs(60) == ["gpu-st-p5-1: no longer silent"]


def test_a_node_without_an_address_has_no_host_name(cluster: Cluster) -> None:
    cluster.with_settings(action="report")
    cluster.node("gpu-st-p5-1", address="gpu-st-p5-1")
    cluster.tells("gpu-st-p5-1", XID)
    cluster.runs()
    assert cluster.metric("withheld") == ['{node="gpu-st-p5-1",finding="gpu_xid_79",why="report"} 1']


def test_a_run_that_was_killed_is_finished_by_the_next(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(program: str, *words: str) -> str:
        if words[0] == "update" and not after:
            raise KeyboardInterrupt
        said = real(program, *words)
        if words[0] == "update":
            raise KeyboardInterrupt
        return said

    real, after = run.scontrol, False
    monkeypatch.setattr(run, "scontrol", killed)
    cluster.tells("gpu-st-p5-1", XID)
    with pytest.raises(KeyboardInterrupt):
        cluster.runs()
    assert not History(cluster.settings.history).open()[0]["done"]
    after = True  # Slurm is told, and then the run is killed
    with pytest.raises(KeyboardInterrupt):
        cluster.runs()
    assert cluster.drained() == ["gpu-st-p5-1"]
    monkeypatch.setattr(run, "scontrol", real)
    cluster.runs()
    assert [one["done"] for one in History(cluster.settings.history).open()] == [True]
    assert cluster.metric("drains_total") == ['{finding="gpu_xid_79"} 1']


def test_slurm_that_does_not_answer(cluster: Cluster) -> None:
    cluster.tells("gpu-st-p5-1", XID)
    cluster.scontrol.answers = False
    with pytest.raises(NoAnswer, match="Unable to contact slurm controller"):
        cluster.runs()
    cluster.scontrol.answers = True
    cluster.runs()
    assert cluster.drained() == ["gpu-st-p5-1"]


def test_a_drain_that_slurm_refuses_is_told_and_tried_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(asked: dict[str, str]) -> None:
        raise NoAnswer("slurm_update error: Access/permission denied")

    monkeypatch.setattr(cluster.scontrol, "_update", refuses)
    cluster.tells("gpu-st-p5-1", XID)
    assert cluster.runs() == ["gpu-st-p5-1: could not be drained: slurm_update error: Access/permission denied"]
    assert (cluster.metric("drained"), cluster.metric("drains_total")) == ([], [])
    monkeypatch.undo()
    monkeypatch.setattr(run, "scontrol", cluster.scontrol)
    cluster.runs()
    assert cluster.drained() == ["gpu-st-p5-1"]
    assert cluster.metric("drains_total") == ['{finding="gpu_xid_79"} 1']
