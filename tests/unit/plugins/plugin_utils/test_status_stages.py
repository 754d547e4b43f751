# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which node is where in its boot, by what EC2, the head node and the nodes themselves say."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.plugin_utils._status import stages
from ansible_collections.pcluster.postboot.plugins.plugin_utils._status.stages import Seen, Status

NOW = 1_795_400_000.0
REPLACED = (
    "Static node maintenance: unhealthy node is being replaced"  # clustermgtd.py, `_handle_unhealthy_static_nodes`
)
LONG_AGO = 86400


def instance(identity: str, kind: str = "compute", ago: float = 100, state: str = "running", **more: Any) -> Any:
    launched = datetime.datetime.fromtimestamp(NOW - ago, datetime.timezone.utc).isoformat()
    queue = {"queue": "cpu"} if kind == "compute" else {}
    return {"instance_id": identity, "node_type": kind, "state": state, "launch_time": launched, **queue, **more}


HEAD = instance("i-head", "head", LONG_AGO)


def told(*nodes: dict[str, Any], records: list[dict[str, str]] | None = None, **more: Any) -> dict[str, Any]:
    """What boot_info says of a head node that is up."""
    known: dict[str, Any] = {"booted": True, "boot_error": "", "timeouts": {}, "fleet": "RUNNING", "inactive": []}
    known.update(failures={}, failures_most=0, heartbeat=10.0, off=0, problems=[])
    return {**known, "nodes": list(nodes), "records": records or [], **more}


def slurm(name: str, state: str, reason: str = "", **more: str) -> dict[str, Any]:
    one: dict[str, Any] = {"name": name, "state": sorted(state.split("+")), **more}
    return {**one, "reason": reason, "reason_since": NOW - 60} if reason else one


def record(
    stage: str, node: str = "cpu-st-c5-1", identity: str = "i-1", ago: float = 20, **more: str
) -> dict[str, str]:
    return {"node": node, "instance": identity, "stage": stage, "since": str(int(NOW - ago)), **more}


def look(head: dict[str, Any] | None, *instances: Any, silent: str = "no route", **more: Any) -> Seen:
    return stages.judge("main", [HEAD, *instances], head, silent, more.pop("now", NOW), more.pop("memory", {}))


def one(head: dict[str, Any] | None, *instances: Any, name: str = "cpu-st-c5-1", **more: Any) -> Status:
    (found,) = [node for node in look(head, *instances, **more).nodes if node.name == name]
    return found


def test_a_static_node_goes_from_its_launch_to_slurm() -> None:
    """With the states that Slurm has in between."""
    name, down = "cpu-st-c5-1", "DOWN+CLOUD+NOT_RESPONDING"
    fresh = slurm(name, "IDLE+CLOUD+POWERED_DOWN")
    assert one(told(fresh)).step == "requested"
    here = slurm(name, down, REPLACED, address="10.0.0.5")
    assert one(told(here), instance("i-1", state="pending", private_ip="10.0.0.5")).step == "instance pending"
    mine = instance("i-1", private_ip="10.0.0.5")
    found = one(told(here), mine)
    assert (found.step, found.since, found.deadline, found.late) == ("booting", NOW - 100, NOW + 2000, False)
    assert one(told(here, records=[record("bundle")]), mine).step == "our run: the bundle"
    ours = record("site", component="docker", number="3", of="9")
    found = one(told(here, records=[ours]), mine)
    assert (found.step, found.since) == ("our run: docker, 3 of 9", NOW - 20)
    assert one(told(here, records=[record("later")]), mine).step == "joining"
    up = slurm(name, "IDLE+CLOUD", address="10.0.0.5")
    found = one(told(up, records=[record("later")]), mine)
    assert (found.step, found.queue, found.deadline) == ("up", "cpu", 0.0)


def test_a_dynamic_node_is_wanted_once_a_job_asks_for_it() -> None:
    name = "burst-dy-c5-1"
    assert one(told(slurm(name, "IDLE+CLOUD+POWERING_DOWN")), name=name).stage == stages.OFF
    assert one(told(slurm(name, "MIXED+CLOUD+POWERED_DOWN")), name=name).stage == stages.REQUESTED
    by_id = slurm(name, "MIXED+CLOUD+NOT_RESPONDING+POWERING_UP", instance="i-9")
    assert one(told(by_id), instance("i-9"), name=name).stage == stages.BOOTING
    ending = slurm(name, "IDLE+CLOUD+POWER_DOWN", instance="i-9")
    assert one(told(ending), instance("i-9"), name=name).stage == stages.OFF


def test_a_queue_with_dashes_in_its_name_is_read_whole() -> None:
    for name, queue, dynamic in (("a-st-b-dy-c5-1", "a-st-b", True), ("my-cpu-st-c5-x-12", "my-cpu", False)):
        found = one(told(slurm(name, "IDLE+CLOUD+POWERED_DOWN")), name=name)
        assert (found.queue, found.stage == stages.OFF) == (queue, dynamic)


def test_a_run_that_failed_names_component_reason_and_log() -> None:
    why = "docker failed: the mirror cannot be reached"
    here = slurm("cpu-st-c5-1", "DOWN+CLOUD+NOT_RESPONDING", REPLACED, instance="i-1")
    failed = record("failed", component="docker", why=why)
    found = one(told(here, records=[failed]), instance("i-1"))
    assert (found.stage, found.component, found.why, found.bad) == (stages.FAILED, "docker", why, True)
    assert "/var/log/pcluster-postboot/pull.log" in found.todo
    # The successor boots, and why the node before failed stays to be seen for an hour.
    next_one = slurm("cpu-st-c5-1", "DOWN+CLOUD+NOT_RESPONDING", REPLACED, instance="i-2")
    found = one(told(next_one, records=[failed]), instance("i-2"))
    assert (found.stage, found.bad) == (stages.BOOTING, False)
    assert found.why == f"its last boot, as i-1, failed: {why}"
    assert one(told(next_one, records=[record("failed", ago=4000, why=why)]), instance("i-2")).why == ""


def test_late_is_what_takes_longer_than_parallelcluster_waits() -> None:
    here = slurm("cpu-st-c5-1", "DOWN+CLOUD+NOT_RESPONDING", REPLACED, instance="i-1")
    assert not one(told(here), instance("i-1", ago=2000)).late
    found = one(told(here), instance("i-1", ago=2200))
    assert (found.stage, found.late, found.bad) == (stages.BOOTING, True, True)
    assert "terminates and replaces it" in found.todo
    slow = record("site", component="docker", ago=20)  # which it has begun beyond its time
    found = one(told(here, records=[slow]), instance("i-1", ago=2200))
    assert (found.step, found.late) == ("our run: docker", True)
    assert one(told(here, timeouts={"compute": 90}), instance("i-1", ago=100)).late
    assert not one(told(here, timeouts={"compute": 90}), instance("i-1", ago=80)).late


def test_a_node_without_an_instance_is_late_after_ten_minutes() -> None:
    memory: stages.Memory = {}
    head = told(slurm("cpu-st-c5-1", "DOWN+CLOUD", REPLACED))
    first = one(head, memory=memory)
    assert (first.stage, first.late, first.since) == (stages.REQUESTED, False, NOW)
    found = one(head, memory=memory, now=NOW + 700)
    assert (found.late, found.since) == (True, NOW)
    assert "clustermgtd" in found.todo


@pytest.mark.parametrize(
    ("reason", "todo"),
    [
        ("(Code:InsufficientInstanceCapacity)Failure when resuming nodes", "EC2 has no capacity"),
        ("(Code:UnauthorizedOperation)Failure when resuming nodes", "slurm_resume.log"),
        ("ResumeTimeout reached", "ComputeNodeBootstrapTimeout"),
    ],
)
def test_what_slurm_gave_up_has_failed(reason: str, todo: str) -> None:
    found = one(told(slurm("burst-dy-c5-1", "DOWN+CLOUD+POWERED_DOWN", reason)), name="burst-dy-c5-1")
    assert (found.stage, found.why) == (stages.FAILED, reason)
    assert todo in found.todo


def test_a_powered_down_node_that_no_job_starts_has_failed() -> None:
    lost = {**slurm("burst-dy-c5-1", "IDLE+CLOUD+POWERED_DOWN+NOT_RESPONDING"), "stranded": True}
    found = one(told(lost), name="burst-dy-c5-1")
    assert (found.stage, found.bad) == (stages.FAILED, True)
    assert found.why == "powered down, and no job starts it: Slurm waits for its slurmd"
    assert found.todo == "scontrol update nodename=NODE state=power_down_force on the head node"
    assert one(told(lost, fleet="STOPPED"), name="burst-dy-c5-1").stage == stages.OFF
    assert one(told(lost, inactive=["burst"]), name="burst-dy-c5-1").stage == stages.OFF


def test_a_node_that_was_up_and_is_down_has_not_begun_to_boot() -> None:
    down = slurm("cpu-st-c5-1", "DOWN+CLOUD+NOT_RESPONDING", "Not responding", instance="i-1")
    head = told(down, records=[record("done", ago=LONG_AGO - 300)])
    found = one(head, instance("i-1", ago=LONG_AGO))
    assert (found.stage, found.why) == (stages.FAILED, "Not responding")
    by_hand = slurm("cpu-st-c5-1", "DOWN+CLOUD", "a test of status", instance="i-1")
    for records in ([], [record("done", ago=700)]):
        found = one(told(by_hand, records=records), instance("i-1", ago=900))
        assert (found.stage, found.why) == (stages.FAILED, "a test of status")
    drained = slurm("cpu-st-c5-1", "IDLE+CLOUD+DRAIN", "a GPU is lost", instance="i-1")
    found = one(told(drained), instance("i-1", ago=LONG_AGO))
    assert (found.stage, found.why, found.bad) == (stages.UP, "drained: a GPU is lost", False)
    quiet = slurm("cpu-st-c5-1", "IDLE+CLOUD+NOT_RESPONDING", instance="i-1")
    assert one(told(quiet), instance("i-1", ago=LONG_AGO)).stage == stages.UP


def test_the_head_node_from_its_launch_until_it_answers_and_is_done() -> None:
    def head(answer: dict[str, Any] | None, ago: float = 100, state: str = "running") -> Status:
        own = instance("i-head", "head", ago, state)
        return stages.judge("main", [own], answer, "Connection refused", NOW, {}).nodes[0]

    assert head(None, state="pending").stage == stages.PENDING
    found = head(None)
    assert (found.stage, found.why) == (stages.BOOTING, "it does not answer yet: Connection refused")
    early = told(booted=False, problems=["Slurm's controller does not answer: no scontrol"])
    assert head(early).stage == stages.BOOTING
    ours = record("site", "ip-10-0-0-1", "i-head", component="fsx", number="2", of="5")
    assert head(told(booted=False, records=[ours])).step == "our run: fsx, 2 of 5"
    waits = told(slurm("cpu-st-c5-1", "DOWN+CLOUD", REPLACED), booted=False)
    assert head({**waits, "records": [record("later", "ip-10-0-0-1", "i-head")]}).stage == stages.JOINING
    assert head(waits).stage == stages.JOINING
    assert head(told()).stage == stages.UP
    failed = record("failed", "ip-10-0-0-1", "i-head", component="fsx", why="fsx failed: it is not mounted")
    error = "Failed to execute OnNodeConfigured script 1 bootstrap.sh, return code: 1."
    found = head(told(booted=True, boot_error=error, records=[failed]))
    assert (found.stage, found.why) == (stages.FAILED, "fsx failed: it is not mounted")
    assert head(told(boot_error=error)).why == error
    assert head(None, state="stopped").why == "the instance is stopped"
    # Which was up for a day, and cannot be reached now.
    found = head(None, ago=LONG_AGO)
    assert (found.stage, found.bad) == (stages.FAILED, True)
    # What fleet did later is not the boot.
    assert head(told(records=[record("failed", "x", "i-head")]), ago=LONG_AGO).stage == stages.UP


def test_a_login_node_is_up_once_its_run_has_ended_or_its_hook_has_not_ended_it() -> None:
    def login(ago: float, *records: dict[str, str]) -> Status:
        own = instance("i-5", "login", ago, private_dns="ip-10-0-0-5.ec2.internal", pool="people")
        return one(told(records=list(records)), own, name="ip-10-0-0-5")

    assert login(100).stage == stages.BOOTING
    name = {"node": "ip-10-0-0-5", "identity": "i-5"}
    assert login(100, record("site", **name, component="enroot", number="1", of="4")).step == "our run: enroot, 1 of 4"
    assert login(100, record("later", **name)).stage == stages.UP
    assert login(100, record("failed", **name, why="x")).stage == stages.FAILED
    assert login(601).stage == stages.UP
    assert login(601, record("site", **name, component="enroot")).late
    assert login(LONG_AGO, record("failed", **name, why="a fleet's run of today")).stage == stages.UP


def test_without_the_head_node_ec2_is_all_that_is_known() -> None:
    found = look(None, instance("i-1"), instance("i-2", state="pending"), instance("i-3", ago=LONG_AGO))
    assert {node.name: node.stage for node in found.nodes} == {
        "head": stages.FAILED,
        "i-1": stages.RUNNING,
        "i-2": stages.PENDING,
        "i-3": stages.RUNNING,
    }
    # An instance whose node Slurm does not know yet, though the head node answers.
    found = look(told(), instance("i-1"))
    assert [(node.name, node.stage) for node in found.nodes] == [("head", stages.UP), ("i-1", stages.BOOTING)]


def test_what_concerns_more_than_one_node_stands_above() -> None:
    down = slurm("cpu-st-c5-1", "IDLE+CLOUD+POWERED_DOWN", "inactive partition")
    dynamic = slurm("cpu-dy-c5-1", "DOWN+CLOUD", "inactive partition")
    failed = record("failed", why="docker failed: no")
    found = look(told(down, dynamic, fleet="PROTECTED", inactive=["cpu"], records=[failed], failures={"gpu": 3}))
    assert found.alarms[0].startswith("protected mode: ")
    assert (
        "queue cpu is out of use; once corrected, pcluster update-compute-fleet --cluster-name main" in found.alarms[0]
    )
    stage = {node.name: (node.stage, node.why) for node in found.nodes}
    assert stage["cpu-st-c5-1"] == (stages.FAILED, "its last boot, as i-1, failed: docker failed: no")
    assert stage["cpu-dy-c5-1"][0] == stages.OFF
    found = look(told(failures={"gpu": 3}, failures_most=10))
    assert found.alarms == ["queue gpu: 3 of 10 boots in a row have failed; at 10 it goes into protected mode"]
    assert "clustermgtd has given no sign of life" in look(told(heartbeat=900.0)).alarms[0]
    stopped = look(told(slurm("cpu-st-c5-1", "IDLE+CLOUD+POWERED_DOWN"), fleet="STOPPED"))
    assert (stopped.nodes[1].stage, stopped.alarms[0].split(":")[0]) == (stages.OFF, "the compute fleet is STOPPED")


def test_nodes_are_in_the_order_of_people() -> None:
    nodes = [slurm(f"cpu-st-c5-{number}", "IDLE+CLOUD", instance=f"i-{number}") for number in (10, 9)]
    found = look(told(*nodes), instance("i-9"), instance("i-10"), instance("i-5", "login", LONG_AGO))
    assert [node.name for node in found.nodes] == ["head", "i-5", "cpu-st-c5-9", "cpu-st-c5-10"]


def test_a_dynamic_node_that_failed_while_somebody_looks_has_failed_though_it_is_off() -> None:
    name, why = "burst-dy-c5-1", "enroot failed: no"
    head = told(off=4, records=[record("failed", name, "i-7", why=why)])

    def found(begun: float, *nodes: Any) -> Status:
        seen = stages.judge("main", [HEAD], {**head, "nodes": list(nodes)}, "", NOW, {}, begun)
        return next(node for node in seen.nodes if node.name == name)

    for nodes in ((), (slurm(name, "IDLE+CLOUD+POWERING_DOWN"),)):
        assert (found(NOW - 60, *nodes).stage, found(NOW - 60, *nodes).bad) == (stages.FAILED, True)
        assert found(NOW - 60, *nodes).why == f"its last boot, as i-7, failed: {why}"
        # Of a boot that failed before, the table tells, and that is no failure of this run.
        assert (found(NOW - 10, *nodes).stage, found(0.0, *nodes).stage) == (stages.OFF, stages.OFF)
        assert found(0.0, *nodes).why
