# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which node of a cluster is where in its boot, by what EC2 says, what the head node says, and what nodes tell.

A boot goes through these stages; FAILED and OFF may come at any moment.

stage      what it means
---------  --------------------------------------------------------------------------------------------------------
REQUESTED  Slurm or ParallelCluster wants the node, and EC2 has no instance for it yet
PENDING    EC2 starts the instance
BOOTING    Linux and ParallelCluster's own setup run; nothing of ours has begun
OURS       bootstrap.sh runs: the bundle comes, and then one component after the other
JOINING    our run has ended well; ParallelCluster's last step runs, and Slurm has not taken the node yet
RUNNING    the instance runs, and nobody tells more, because the head node does not answer
UP         the boot is over, and it is well
FAILED     the boot has failed, or no instance can be had
OFF        the node is not wanted now: powered down, stopped, or in a queue or fleet that is out of use
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ansible_collections.pcluster.postboot.plugins.module_utils._slurm.names import natural, shown
from ansible_collections.pcluster.postboot.plugins.module_utils._slurm.nodes import freed

REQUESTED, PENDING, BOOTING, OURS, JOINING = "requested", "instance pending", "booting", "our run", "joining"
RUNNING, UP, FAILED, OFF = "running", "up", "failed", "off"
ORDER = (REQUESTED, PENDING, BOOTING, OURS, JOINING, RUNNING, UP, FAILED, OFF)
MOVING = (REQUESTED, PENDING, BOOTING, OURS, JOINING)
# Seconds that ParallelCluster 3.13 to 3.16 waits by default, from the launch on (docs/pull.md, "Time"). Of a login node
# the launch hook of its Auto Scaling group waits.
TIMEOUTS = {"head": 2100, "compute": 2100, "login": 600}
UNLAUNCHED = 600  # seconds after which a node should have an instance
SILENCE = 600  # seconds without a sign of life of clustermgtd, which gives one in each of its loops of a minute
FRESH = 3600  # seconds for which the failed boot of the instance before is told
REPLACES = "Static node maintenance"  # how clustermgtd's reason begins while a static node boots
_KINDS = ("head", "login", "compute")
_DYNAMIC = re.compile(r"-dy-.{1,64}-\d+$")
_QUEUE = re.compile(r"^(.{1,64})-(?:st|dy)-.{1,64}-\d+$")


@dataclass
class Status:
    """One node: where it is, since when, and what is wrong with it."""

    name: str
    kind: str
    stage: str
    queue: str = ""
    instance: str = ""
    since: float = 0.0  # when the stage began, where that is known
    launched: float = 0.0
    deadline: float = 0.0  # when ParallelCluster gives the boot up
    late: bool = False
    component: str = ""  # of our run
    of: str = ""  # "3 of 9"
    why: str = ""
    todo: str = ""

    @property
    def bad(self) -> bool:
        return self.late or self.stage == FAILED

    @property
    def step(self) -> str:
        """The stage, and how far our run is."""
        if self.stage == OURS and self.component:
            return f"{OURS}: {self.component}{f', {self.of}' if self.of else ''}"
        return self.stage


@dataclass
class Seen:
    """One look at a cluster."""

    cluster: str
    now: float
    nodes: list[Status] = field(default_factory=list)
    off: int = 0  # dynamic nodes that Slurm starts when a job asks for one
    alarms: list[str] = field(default_factory=list)  # what stands above the nodes

    @property
    def moving(self) -> list[Status]:
        return [node for node in self.nodes if node.stage in MOVING]

    @property
    def bad(self) -> list[Status]:
        return [node for node in self.nodes if node.bad]

    @property
    def wanted(self) -> list[Status]:
        return [node for node in self.nodes if node.stage != OFF]


Instance = Mapping[str, Any]  # as plugin_utils/_inventory/nodes.py reads one
Memory = dict[str, tuple[str, float]]  # the step of each node, and since when it was seen


def judge(
    cluster: str,
    instances: Sequence[Instance],
    head: Mapping[str, Any] | None,
    silent: str,
    now: float,
    memory: Memory,
    begun: float = 0.0,
) -> Seen:
    """Return where each node is.

    head:   what boot_info has found on the head node; None where it does not answer, and then `silent` says why
    memory: what earlier looks have seen, which this one adds to
    begun:  since when somebody looks; without, there is one look
    """
    told = head or {}
    records = {record["node"]: record for record in told.get("records", ()) if record.get("node")}
    timeouts = {**TIMEOUTS, **told.get("timeouts", {})}
    judging = _Judge(instances, told, records, timeouts, now, silent if head is None else "", begun)
    seen = Seen(cluster, now, off=int(told.get("off", 0)), alarms=list(_alarms(cluster, told, head is not None)))
    seen.nodes = [*judging.machines(), *judging.compute()]
    seen.nodes.sort(key=lambda node: (_KINDS.index(node.kind), natural(node.name)))
    for node in seen.nodes:
        _remember(node, memory, now)
        waits = node.stage == REQUESTED and now - node.since > UNLAUNCHED
        node.late = node.stage in MOVING and (0 < node.deadline < now or waits)
        if node.late and not node.todo:
            node.todo = _LATE[REQUESTED if waits else node.kind]
    return seen


_LATE = {
    REQUESTED: "EC2 has launched nothing for it: see /var/log/parallelcluster/clustermgtd and slurm_resume.log on the "
    "head node",
    "head": "the creation of the cluster fails at HeadNodeBootstrapTimeout; see /var/log/cfn-init.log there",
    "login": "its Auto Scaling group replaces it; see /var/log/cloud-init-output.log there",
    "compute": "ParallelCluster terminates and replaces it; a longer ComputeNodeBootstrapTimeout helps where its run "
    "only takes longer",
}
_LOGS = "/var/log/pcluster-postboot/pull.log there, or in the cluster's CloudWatch logs where it is gone"


def _remember(node: Status, memory: Memory, now: float) -> None:
    """Note since when a node is where it is, where nothing else tells."""
    step, since = memory.get(node.name, ("", now))
    if step != node.step:
        since = now
    memory[node.name] = (node.step, since)
    node.since = node.since or since


def _alarms(cluster: str, told: Mapping[str, Any], answers: bool) -> Iterator[str]:
    """Yield what concerns more than one node."""
    inactive, most = list(told.get("inactive", ())), int(told.get("failures_most") or 0)
    again = f"pcluster update-compute-fleet --cluster-name {cluster} --status START_REQUESTED"
    if told.get("fleet") == "PROTECTED":
        where = f"queue {', '.join(inactive)}" if inactive else "a queue"
        yield f"protected mode: too many boots in a row have failed, and {where} is out of use; once corrected, {again}"
    elif told.get("fleet") not in (None, "", "RUNNING"):
        yield f"the compute fleet is {told['fleet']}: ParallelCluster starts no compute node"
    elif inactive:
        yield f"queue {', '.join(inactive)} is out of use (INACTIVE in Slurm)"
    for queue, count in sorted(told.get("failures", {}).items()):
        if count and queue not in inactive:
            yield f"queue {queue}: {count} of {most} boots in a row have failed; at {most} it goes into protected mode"
    if answers and float(told.get("heartbeat", 0)) > SILENCE:
        yield f"clustermgtd has given no sign of life for {SILENCE // 60} min: no node is started or replaced"
    if told.get("booted"):
        yield from told.get("problems", ())


def epoch(text: str) -> float:
    """Return the seconds of a launch time."""
    try:
        return datetime.fromisoformat(text).timestamp() if text else 0.0
    except ValueError:
        return 0.0


@dataclass
class _Judge:
    instances: Sequence[Instance]
    told: Mapping[str, Any]
    records: Mapping[str, Mapping[str, str]]
    timeouts: Mapping[str, int]
    now: float
    silent: str  # why the head node does not answer
    begun: float

    def _status(self, name: str, kind: str, instance: Instance | None, stage: str = REQUESTED) -> Status:
        status = Status(name, kind, stage)
        if instance:
            status.instance, status.launched = instance["instance_id"], epoch(str(instance.get("launch_time", "")))
            status.queue = str(instance.get("queue", ""))
            if status.launched:
                status.deadline = status.launched + self.timeouts[kind]
            if instance["state"] == "pending":
                status.stage, status.since = PENDING, status.launched
            elif instance["state"] != "running":
                status.stage = OFF
            elif stage == REQUESTED:
                status.stage, status.since = BOOTING, status.launched
        return status

    def _own(self, status: Status, record: Mapping[str, str]) -> bool:
        """Read what the node itself tells of this very boot; say whether it tells anything."""
        since = float(record.get("since") or 0)
        if not record or record.get("instance") != status.instance:
            return False
        # What began after the time of the boot is a run by hand, or of a fleet. Of a compute node, Slurm tells that.
        if status.kind != "compute" and 0 < status.deadline < since:
            return False
        status.since = since
        stage = record.get("stage", "")
        if stage == "failed":
            status.stage, status.component, status.why = FAILED, record.get("component", ""), record.get("why", "")
            status.todo = f"see {_LOGS}"
        elif stage in ("bundle", "site"):
            status.stage, status.component = OURS, record.get("component", "the bundle" if stage == "bundle" else "")
            status.of = f"{record['number']} of {record['of']}" if record.get("number") and record.get("of") else ""
        else:
            status.stage = JOINING
        return True

    # Head and login nodes

    def machines(self) -> Iterator[Status]:
        for instance in self.instances:
            if instance["node_type"] == "head":
                yield self._head(instance)
            elif instance["node_type"] == "login":
                yield self._login(instance)

    def _record_of(self, instance: Instance) -> Mapping[str, str]:
        return next((one for one in self.records.values() if one.get("instance") == instance["instance_id"]), {})

    def _head(self, instance: Instance) -> Status:
        status = self._status("head", "head", instance)
        if status.stage != BOOTING:
            if status.stage == OFF:
                status.stage, status.why = FAILED, f"the instance is {instance['state']}"
                status.todo = "start the instance"
            return status
        if self.silent:
            young = self.now <= status.deadline
            status.stage = BOOTING if young else FAILED  # the boot may have ended long ago
            status.why = f"it does not answer{' yet' if young else ''}: {self.silent}"
            status.todo = "" if young else "check the inventory's connection to it"
            return status
        own = self._own(status, self._record_of(instance))
        if self.told.get("boot_error"):
            status.why = status.why if status.stage == FAILED else str(self.told["boot_error"])
            status.stage = FAILED
            status.todo = "see /var/log/cfn-init.log there, which has the reason"
        elif self.told.get("booted") and status.stage != FAILED:
            status.stage = UP
        elif not own and self.told.get("nodes"):
            status.stage = JOINING  # Slurm's controller runs, and ParallelCluster waits for static nodes
        return status

    def _login(self, instance: Instance) -> Status:
        name = str(instance.get("private_dns", "")).partition(".")[0] or instance["instance_id"]
        record = self._record_of(instance)
        status = self._status(record.get("node") or name, "login", instance)
        status.queue = str(instance.get("pool", ""))
        if status.stage == BOOTING and self._own(status, record) and status.stage == JOINING:
            status.stage = UP
        # The hook of the Auto Scaling group ends an instance whose boot has not ended by then.
        if status.stage == BOOTING and self.now > status.deadline > 0:
            status.stage, status.since = UP, 0.0
        return status

    # Compute nodes

    def compute(self) -> Iterator[Status]:
        by_id = {one["instance_id"]: one for one in self.instances if one["node_type"] == "compute"}
        by_address = {one.get("private_ip", ""): one for one in by_id.values()}
        known = set()
        for node in self.told.get("nodes", ()):
            instance = by_id.get(node.get("instance", "")) or by_address.get(node.get("address", "-"))
            if instance:
                known.add(instance["instance_id"])
            yield self._slurm(node, instance)
        for identity, instance in by_id.items():
            if identity not in known:
                yield self._unknown(instance)
        listed = {str(node["name"]) for node in self.told.get("nodes", ())}
        for name in self.records:
            if name not in listed and _DYNAMIC.search(name):
                yield from self._powered_down(name)

    def _powered_down(self, name: str) -> Iterator[Status]:
        """Yield a dynamic node whose boot has failed, and which is off since then."""
        status = self._before(Status(name, "compute", OFF))
        if status.why:
            failed = float(self.records[name].get("since") or 0)
            status.stage = FAILED if 0 < self.begun <= failed else OFF
            status.since = failed
            yield status

    def _unknown(self, instance: Instance) -> Status:
        """Return an instance of which Slurm does not say which node it is."""
        record = self._record_of(instance)
        status = self._status(record.get("node") or instance["instance_id"], "compute", instance)
        if status.stage == BOOTING and not self._own(status, record) and self.silent:
            status.stage, status.deadline = RUNNING, 0.0
        return status

    def _slurm(self, node: Mapping[str, Any], instance: Instance | None) -> Status:
        flags, name = set(node["state"]), str(node["name"])
        status = self._status(name, "compute", instance)
        queue = _QUEUE.match(name)
        status.queue = queue[1] if queue else status.queue
        reason = str(node.get("reason", ""))
        going = bool(flags & {"POWERING_DOWN", "POWER_DOWN"}) and "POWERED_DOWN" not in flags
        if status.stage == PENDING:
            return self._before(status)
        young = self.now <= status.deadline
        in_boot = bool(flags & {"DOWN", "POWERING_UP", "POWERED_DOWN", "UNKNOWN"})
        in_boot = in_boot or ("NOT_RESPONDING" in flags and young)
        if instance and not in_boot and not going:
            status.stage, status.since, status.deadline = UP, 0.0, 0.0
            status.why = f"drained: {reason}" if "DRAIN" in flags and reason else ""
            return status
        if node.get("stranded") and not instance and not self._out_of_use(status):
            status.stage, status.why = FAILED, "powered down, and no job starts it: Slurm waits for its slurmd"
            status.todo = f"{freed('NODE')} on the head node"
            return status
        if self._unwanted(status, flags, going):
            status.stage, status.since, status.deadline, status.why = OFF, 0.0, 0.0, ""
            if self.told.get("fleet") == "PROTECTED" and not _DYNAMIC.search(name):
                # A node whose boots have failed; the alarm says what to do.
                status.stage, status.why = FAILED, f"queue {status.queue} is out of use"
                return self._before(status)
            return next(self._powered_down(name), status) if _DYNAMIC.search(name) else status
        if going:
            return Status(name, "compute", REQUESTED, status.queue, why=f"its instance is being ended: {reason}")
        own = bool(instance) and self._own(status, self.records.get(name, {}))
        given_up = ("DOWN" in flags and "POWERING_UP" not in flags) or not young
        if instance and given_up and reason and not reason.startswith(REPLACES) and status.stage != FAILED:
            status.stage, status.why, status.since = FAILED, reason, float(node.get("reason_since") or 0)
            status.todo = "ParallelCluster replaces a static node, and powers a dynamic one down"
            return status
        if own:
            return status
        if not instance and (reason.startswith("(Code:") or "ResumeTimeout reached" in reason):
            status.stage, status.why, status.since = FAILED, reason, float(node.get("reason_since") or 0)
            status.todo = _no_instance(reason)
            return status
        if not instance:
            status.why = reason
        return self._before(status)

    def _out_of_use(self, status: Status) -> bool:
        """Say whether the fleet is stopped, or the node's queue is inactive."""
        stopped = self.told.get("fleet") not in (None, "", "RUNNING", "PROTECTED")
        return stopped or status.queue in self.told.get("inactive", ())

    def _unwanted(self, status: Status, flags: set[str], going: bool) -> bool:
        """Say whether nobody waits for the node: a static one is wanted unless its queue or the fleet is out of use."""
        if self._out_of_use(status):
            return True
        if not _DYNAMIC.search(status.name):
            return False
        return going or ("POWERED_DOWN" in flags and not flags & {"DOWN", "MIXED", "ALLOCATED", "POWERING_UP"})

    def _before(self, status: Status) -> Status:
        """Add why the boot of the instance before has failed, which ParallelCluster has replaced by this one."""
        record = self.records.get(status.name, {})
        ago = self.now - float(record.get("since") or 0)
        if record.get("stage") == "failed" and record.get("instance") != status.instance and ago < FRESH:
            status.why = f"its last boot, as {record.get('instance')}, failed: {record.get('why')}"
            status.todo = f"see {_LOGS}"
        return status


def _no_instance(reason: str) -> str:
    if re.search("Insufficient|Unfulfillable|MaxSpot|SpotMaxPrice", reason):
        return "EC2 has no capacity: another zone or instance type, a reservation, or later"
    if "ResumeTimeout" in reason:
        return "its boot took longer than ComputeNodeBootstrapTimeout; ParallelCluster tries again when a job asks"
    return "see /var/log/parallelcluster/slurm_resume.log and clustermgtd on the head node"


def called(nodes: Sequence[Status], width: int = 100) -> str:
    """Return names of nodes, as Slurm writes many."""
    return shown((node.name for node in nodes), width)
