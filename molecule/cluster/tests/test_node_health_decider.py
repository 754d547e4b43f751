# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the head node does about nodes with findings, under the real slurmctld and the real clustermgtd.

clustermgtd is 3.16 on `main`, which tells Slurm the ids of instances, and 3.13 on `el`, which does not.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import glob
from pathlib import Path
from typing import NamedTuple

import pytest
from testinfra.host import Host

from .bundles import update
from .conftest import host, instance, unmanaged
from .helpers import On, Play, as_user, ok, until, variables

XID = "gpu_xid_79"
DECIDER = "pcluster-node-health-decider"
KMSG = "/run/sandbox-kmsg"
ONLY = ("--tags", "node_health", "-e", f"node_health_kernel_log={KMSG}")
COMMAND = "/usr/local/sbin/pcluster-node-health"


class Cluster(NamedTuple):
    """One of the two clusters, with the static node that gets a fault."""

    head: str
    node: str
    partition: str
    user: str
    # What is said of the same fault on the successor. All GPUs of the sandbox have the same UUIDs, as if EC2 had given
    # the same machine again; nodes without GPUs have none.
    again: str

    def slurm(self, command: str) -> str:
        return str(host(self.head).check_output(f"/opt/slurm/bin/{command}")).strip()

    def submit(self, script: str) -> str:
        options = f"--parsable --partition {self.partition} --nodelist {self.node} --exclusive --output /dev/null"
        done = as_user(host(self.head), self.user, f'/opt/slurm/bin/sbatch {options} --wrap "{script}"')
        assert done.rc == 0, done.stdout + done.stderr
        return str(done.stdout).strip()

    def job(self, job: str) -> str:
        found = re.search(r"JobState=(\w+)", self.slurm(f"scontrol show job {job}"))
        assert found
        return found[1]

    def shown(self, node: str = "") -> str:
        return self.slurm(f"scontrol --oneliner show node {node or self.node}")

    def state(self, node: str = "") -> str:
        return self.slurm(f"sinfo --noheader --nodes {node or self.node} --partition static --format %T")

    def metrics(self, name: str) -> list[str]:
        """The decider's metrics of a name, as node_exporter gives them to Prometheus."""
        text = host(self.head).check_output("curl -sf http://localhost:9100/metrics")
        return re.findall(rf"^pcluster_node_health_{name}(.*)$", text, re.M)

    def journal(self) -> str:
        return str(host(self.head).check_output(f"journalctl --no-pager --output cat -u {DECIDER}"))


MAIN = Cluster("head", "gpu-st-p5-1", "gpu", "ubuntu", "came_back")
EL = Cluster("el-head", "el-cpu-st-c5-1", "el-cpu", "ec2-user", "successor")
BOTH = pytest.mark.parametrize("cluster", [MAIN, EL], ids=lambda one: one.head)


def fault(node: Host) -> float:
    """Have the driver tell of XID 79; return when."""
    text = "NVRM: Xid (PCI:0000:1c:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    sequence = time.monotonic_ns() // 1000
    node.check_output(f"printf '4,{sequence},{sequence},-;%%s\\n SUBSYSTEM=pci\\n' %s >> {KMSG}", text)
    return time.monotonic()


def healed(node: Host) -> None:
    """What an administrator does once a GPU is well again."""
    program = f"/usr/bin/python3 -I -S /usr/local/libexec/pcluster-postboot/node-health --kmsg={KMSG}"
    node.check_output(f": > {KMSG}; {program} --forget")


# What the decider keeps of drains goes, before a run of role node_health starts it again.
FORGET = (
    f"systemctl stop {DECIDER}.timer && "
    "rm -rf /var/lib/pcluster-postboot/node-health /run/pcluster-postboot/node-health/decider.json"
)


@contextmanager
def draining(play: Play, cluster: Cluster, *more_nodes: str, **more: object) -> Iterator[None]:
    """A cluster whose nodes with findings are drained; afterwards with the sandbox's settings, and without a past."""
    nodes = ",".join((cluster.head, cluster.node, *more_nodes))
    ok(play("--limit", nodes, *ONLY, *variables(node_health_action="drain", **more), timeout=900))
    try:
        yield
    finally:
        host(cluster.head).check_output(FORGET)
        ok(play("--limit", cluster.head, *ONLY))


@BOTH
def test_the_decider_tells_that_it_runs(cluster: Cluster) -> None:
    head = host(cluster.head)
    assert head.service(f"{DECIDER}.timer").is_running

    def recent() -> bool:
        told = cluster.metrics("decider_timestamp_seconds")
        return bool(told) and time.time() - float(told[0]) < 20

    until(recent, 30, "the decider has decided within 20 s")
    assert head.check_output(f"{COMMAND} status").startswith("action: report; at most 4 nodes at a time")
    refused = as_user(head, cluster.user, f"{COMMAND} hold {cluster.node} why")
    assert (refused.rc, refused.stderr) == (1, "pcluster-node-health: 'hold' is for root: use sudo\n")


def test_the_epilog_asks_for_a_fresh_look(on: On) -> None:
    node, state = on("cpu-st-c5-1"), "/run/pcluster-postboot/node-health/state.json"
    node.check_output(f"systemctl stop pcluster-node-health.timer && touch -d '1 minute ago' {state}")
    try:
        before = int(node.check_output(f"stat --format %Y {state}"))
        on("head").check_output("/opt/slurm/bin/srun --partition cpu true")
        until(lambda: int(node.check_output(f"stat --format %Y {state}")) > before, 15, "a fresh look")
    finally:
        node.check_output("systemctl start pcluster-node-health.timer")


def test_a_held_node_gets_no_job_until_it_is_released(on: On) -> None:
    head, node, options = on("head"), "cpu-st-c5-1", "--parsable --partition cpu --output /dev/null --wrap true"
    said = head.check_output(f"{COMMAND} hold {node} 'a test'")
    assert said.startswith(f"{node} is held")
    try:
        states = r" State=\S*\+RESERVED\S*"
        found = until(lambda: re.search(states, MAIN.shown(node)), 60, "slurmctld has marked the node")
        assert "MAINTENANCE" not in found[0]
        job = as_user(head, "ubuntu", f"/opt/slurm/bin/sbatch {options}").stdout.strip()
        time.sleep(3)
        assert MAIN.job(job) == "PENDING"
    finally:
        head.check_output(f"{COMMAND} release {node}")
    until(lambda: MAIN.job(job) == "COMPLETED", 60, "the job runs")
    assert "node_health_" not in MAIN.slurm("scontrol show reservations")


@pytest.mark.long
@BOTH
def test_a_faulty_node_is_drained_and_replaced_and_the_same_fault_again_is_told(cluster: Cluster, play: Play) -> None:
    former, node = instance(cluster.node), host(cluster.node)
    try:
        with draining(play, cluster):
            # A job runs there when the fault comes, and another one waits for the node.
            first = cluster.submit("sleep 60")
            until(lambda: cluster.job(first) == "RUNNING", 60, "the job runs")
            second = cluster.submit("sleep 1")
            begun = fault(node)
            until(lambda: " node_health: " in cluster.shown().replace("Reason=", " "), 60, "the node is drained")
            assert time.monotonic() - begun < 60
            assert f"Reason=node_health: {XID}: " in cluster.shown()
            assert cluster.state() == "draining"
            # The job ends well, and only then the instance goes.
            assert (cluster.job(first), instance(cluster.node)) == ("RUNNING", former)
            until(lambda: cluster.job(first) == "COMPLETED", 90, "the job ends")
            (drained,) = cluster.metrics("drained")
            assert re.fullmatch(rf'{{finding="{XID}",host="ip-[-0-9]+",node="{cluster.node}"}} 1', drained)

            def replaced() -> bool:
                return instance(cluster.node) not in ("", former) and cluster.state() not in ("down", "down*")

            until(replaced, 420, f"{cluster.node} is replaced")
            until(lambda: cluster.job(second) == "COMPLETED", 120, "the second job has run")
            started = re.search(r"StartTime=(\S+)", cluster.slurm(f"scontrol show job {second}"))
            ended = re.search(r"EndTime=(\S+)", cluster.slurm(f"scontrol show job {first}"))
            assert started
            assert ended
            assert started[1] > ended[1]
            until(lambda: not cluster.metrics("drained"), 120, "the successor counts")
            assert cluster.metrics("drains_total") == [f'{{finding="{XID}"}} 1']
            assert f"{cluster.node}: replaced ({XID})" in cluster.journal()

            # The successor is healthy, and then has the same fault.
            second_instance = instance(cluster.node)
            ok(play("--limit", cluster.node, timeout=600))  # whole: dcgm-exporter tells the GPUs' UUIDs
            assert cluster.metrics("withheld") == []
            fault(node)
            withheld = rf'{{finding="{XID}",host="ip-[-0-9]+",node="{cluster.node}",why="{cluster.again}"}} 1'

            def told() -> bool:
                lines = cluster.metrics("withheld")
                return len(lines) == 1 and bool(re.fullmatch(withheld, lines[0]))

            until(told, 60, "the same fault is told")
            assert f"{cluster.node}: not drained for {XID} ({cluster.again}): " in cluster.journal()
            time.sleep(20)
            assert (instance(cluster.node), cluster.state()) == (second_instance, "idle")
            status = host(cluster.head).check_output(f"{COMMAND} status")
            assert f"not drained ({cluster.again})" in status
            assert (f"{XID}: stopped" in status) == (cluster.again == "successor")
            healed(node)
            until(lambda: not cluster.metrics("withheld"), 60, "the fault is gone")
            forgotten = host(cluster.head).check_output(f"{COMMAND} forget {XID}")
            assert forgotten.startswith(f"{XID}: 1 drains are forgotten")
    finally:
        ok(play("--limit", cluster.node, timeout=600))


@pytest.mark.long
def test_above_the_limit_it_is_told_and_what_heals_is_undrained(play: Play) -> None:
    nodes = (MAIN.node, "cpu-st-c5-1")
    former = [instance(name) for name in nodes]
    # clustermgtd would replace the drained node before its fault heals.
    with unmanaged(), draining(play, MAIN, nodes[1], node_health_max_nodes=1):
        try:
            for name in nodes:
                fault(host(name))
            until(lambda: 'why="limit"' in "".join(MAIN.metrics("withheld")), 60, "the limit is reached")
            states = sorted(MAIN.state(name) for name in nodes)
            assert states == ["drained", "idle"]
            assert "1 nodes are drained, node_health_max_nodes is 1" in MAIN.journal()
        finally:
            for name in nodes:
                healed(host(name))
        until(lambda: [MAIN.state(name) for name in nodes] == ["idle", "idle"], 60, "both nodes take jobs")
        until(lambda: not MAIN.metrics("drained") and not MAIN.metrics("withheld"), 30, "nothing is left")
        assert f": undrained: {XID} is gone" in MAIN.journal()
    assert [instance(name) for name in nodes] == former


def room_for(nodes: int) -> None:
    """Refuse nodes for which this machine has no room: of too many, systemd ends at once in any that boots.

    All containers' processes of root share one number of inotify instances; systemd and logind of a node take six.
    """
    limit = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
    taken = 0
    for file in glob("/proc/[0-9]*/fd/*"):  # Path.glob fails where a process ends meanwhile
        with suppress(OSError):
            taken += os.readlink(file) == "anon_inode:inotify" and os.stat(os.path.dirname(file)).st_uid == 0
    assert taken + 6 * nodes <= limit, (
        f"{nodes} nodes take {6 * nodes} inotify instances, and root has {taken} of {limit} here: "
        f"sysctl fs.inotify.max_user_instances={taken + 6 * nodes + 64}"
    )


@contextmanager
def twenty_nodes(folder: Path) -> Iterator[list[str]]:
    """The queue `burst` with 20 nodes, all of which have a job."""
    room_for(20)
    larger = {"Name": "burst", "ComputeResources": [{"Name": "c5", "MaxCount": 20}]}
    done = update("main", folder, {"Scheduling": {"SlurmQueues": [larger]}})
    assert done.returncode == 0, done.stdout + done.stderr
    jobs: list[str] = []
    try:
        for _job in range(4):  # one after the other, as twenty nodes that boot at once take the machine too long
            options = "--parsable --partition burst --nodes 5 --exclusive --output /dev/null"
            submitted = as_user(host(MAIN.head), MAIN.user, f"/opt/slurm/bin/sbatch {options} --wrap 'sleep 3000'")
            jobs.append(submitted.stdout.strip())
            until(lambda: MAIN.job(jobs[-1]) == "RUNNING", 300, "the job of five nodes runs")
        yield [f"burst-dy-c5-{number}" for number in range(1, 21)]
    finally:
        MAIN.slurm(f"scancel {' '.join(jobs)}")
        MAIN.slurm("scontrol update nodename=burst-dy-c5-[1-20] state=power_down_force reason=test")
        # ParallelCluster takes nodes away from a queue under this strategy alone.
        done = update("main", folder, {"Scheduling": {"SlurmSettings": {"QueueUpdateStrategy": "TERMINATE"}}})
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_of_twenty_nodes_that_fail_at_once_a_tenth_is_drained_and_who_decides_is_told(
    play: Play, tmp_path: Path
) -> None:
    with twenty_nodes(tmp_path) as nodes, draining(play, MAIN, *nodes):
        begun = time.monotonic()
        for name in nodes:
            fault(host(name))
        until(lambda: len(MAIN.metrics("withheld")) == 18, 120, "each of the others is told")
        print(f"twenty nodes: {time.monotonic() - begun:.0f} s from the first fault until the last node is told")
        drained = re.findall(r'node="(burst-dy-c5-\d+)"', "".join(MAIN.metrics("drained")))
        assert len(drained) == 2
        assert all("+DRAIN" in MAIN.shown(name) for name in drained)
        assert not [name for name in nodes if name not in drained and "+DRAIN" in MAIN.shown(name)]
        assert all('why="limit"' in told for told in MAIN.metrics("withheld"))
        assert "2 of the 20 nodes of queue burst are drained, node_health_max_share is 10 %" in MAIN.journal()
        for name in nodes:
            healed(host(name))
        until(lambda: not MAIN.metrics("drained") and not MAIN.metrics("withheld"), 120, "all take jobs again")
        assert not [name for name in nodes if "+DRAIN" in MAIN.shown(name)]
