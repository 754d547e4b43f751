# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Every alert, from its cause until it is over: with the targets and the series that real programs make.

The waits of the rules are short here (alerts.py), and nothing else of them is changed.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from testinfra.host import Host

from .alerts import Act, Receiver, alerts, fast, put
from .conftest import host, playbook, unmanaged
from .helpers import joined, ok, until, variables
from .test_node_health_decider import FORGET

GPU, CPU, SPARE = "gpu-st-p5-1", "cpu-st-c5-1", "burst-dy-c5-3"
SAID = "/run/sandbox-dcgm"
EFA = "/run/sandbox-hardware/class/infiniband"
HEALTH = "pcluster-node-health"
FOUND = "/var/lib/node_exporter/textfile_collector/node_health.prom"
SCONTROL = "/opt/slurm/bin/scontrol"


# GPUs


@contextmanager
def said(node: Host, **values: int) -> Iterator[None]:
    """What DCGM says of GPUs: `gpu2_ROW_REMAP_FAILURE=1`. Afterwards DCGM knows nothing of it, as after a reset."""
    files = {f"{SAID}/{name[3]}/DCGM_FI_DEV_{name[5:]}": value for name, value in values.items()}
    try:
        for path, value in files.items():
            node.check_output(f"mkdir -p {Path(path).parent} && echo {value} > {path}")
        yield
    finally:
        node.check_output(f"rm -f {' '.join(files)} && systemctl restart nvidia-dcgm")
        exported(node)


def exported(node: Host) -> str:
    """What the exporter says, once it answers: it ends with the host engine, and finds that out when it is asked."""
    node.run("curl -s http://localhost:9400/metrics")
    return str(until(lambda: node.run("curl -sf http://localhost:9400/metrics").stdout, 60, "the exporter answers"))


@contextmanager
def without_health(node: Host) -> Iterator[None]:
    """A node on which nobody has role node_health, whose findings stand for the alerts on GPUs."""
    if not node.file(FOUND).exists:
        yield
        return
    node.check_output(f"systemctl stop {HEALTH}.timer {HEALTH} && mv {FOUND} /root/")
    try:
        yield
    finally:
        node.check_output(f"mv /root/{Path(FOUND).name} {FOUND}; systemctl start {HEALTH}.timer")


@contextmanager
def gpu_faults() -> Iterator[None]:
    """GPU 7 is off the bus, and each of the others has a fault of its own; after XID 62 the driver cleans up (45).

    A GPU with a critical fault has no other: nobody is told of warnings about that GPU.
    """
    node = host(GPU)
    faults = {
        "gpu0_ECC_DBE_VOL_TOTAL": 2,
        "gpu1_ECC_SBE_VOL_TOTAL": 500,
        "gpu1_NVLINK_REPLAY_ERROR_COUNT_TOTAL": 5,
        "gpu2_ROW_REMAP_FAILURE": 1,
        "gpu3_XID_ERRORS": 62,
        "gpu4_XID_ERRORS": 185,
        "gpu5_CLOCKS_EVENT_REASONS": 32,  # the driver's thermal slowdown
        "gpu6_CLOCKS_EVENT_REASONS": 128,  # the power brake
    }
    with without_health(node):
        node.check_output("mv /dev/nvidia7 /dev/sandbox-nvidia7 && systemctl restart nvidia-dcgm")
        try:
            exported(node)
            with said(node, **faults):
                assert 'err_code="62"' in exported(node)
                put(node, f"{SAID}/3/DCGM_FI_DEV_XID_ERRORS", "45")
                yield
        finally:
            node.check_output("mv /dev/sandbox-nvidia7 /dev/nvidia7 && systemctl restart nvidia-dcgm")
            exported(node)


# EFA


@contextmanager
def efa_losses() -> Iterator[None]:
    """A device whose counters of losses grow, every two seconds."""
    node = host(GPU)
    device = node.check_output(f"ls -d {EFA}/* | head -n 1") + "/ports/1/hw_counters"
    grow = {"retrans_pkts": 1000000, "rx_drops": 10000, "unresponsive_remote_events": 2, "rdma_read_wr_err": 2}
    lines = "; ".join(f"read -r n < {device}/{name}; echo $((n + {by})) > {device}/{name}" for name, by in grow.items())
    node.check_output(f"systemd-run --unit sandbox-efa-losses bash -c 'while sleep 2; do {lines}; done'")
    try:
        yield
    finally:
        node.check_output("systemctl stop sandbox-efa-losses")


@contextmanager
def stopped_exporters() -> Iterator[None]:
    """Nobody reads EFA's counters any more, as of eleven minutes ago; and dcgm-exporter is stopped."""
    node = host(GPU)
    node.check_output("systemctl stop amazon-efa-metrics.timer nvidia-dcgm-exporter")
    node.check_output("touch --date '11 minutes ago' /run/amazon-efa-metrics/amazon_efa.prom")
    try:
        yield
    finally:
        node.check_output("systemctl start amazon-efa-metrics amazon-efa-metrics.timer nvidia-dcgm-exporter")


# Textfiles of other programs
TEXTFILES = "/var/lib/node_exporter/textfile_collector"
LOST = {
    "sandbox_line": "sandbox_jobs one\n",
    "sandbox_twice_a": '# HELP sandbox_twice Of one program.\n# TYPE sandbox_twice gauge\nsandbox_twice{by="a"} 1\n',
    "sandbox_twice_b": '# HELP sandbox_twice Of another.\n# TYPE sandbox_twice gauge\nsandbox_twice{by="b"} 2\n',
}


@contextmanager
def lost_textfiles() -> Iterator[None]:
    """A file with a line that is no metric, and two files that contradict each other."""
    node = host(CPU)
    try:
        for name, text in LOST.items():
            put(node, f"{TEXTFILES}/{name}.prom", text)
        yield
    finally:
        node.check_output(f"rm -f {' '.join(f'{TEXTFILES}/{name}.prom' for name in LOST)}")


# Nodes and file systems


@contextmanager
def frozen(name: str) -> Iterator[None]:
    """A node on which nothing runs any more."""
    with unmanaged():
        subprocess.run(["podman", "pause", f"postboot-{name}"], check=True, capture_output=True)
        try:
            yield
        finally:
            subprocess.run(["podman", "unpause", f"postboot-{name}"], check=True, capture_output=True)


@contextmanager
def file_system(name: str, at: str, size: int = 64, inodes: int = 1000) -> Iterator[Host]:
    """A file system of its own on a node, which node_exporter sees anew."""
    node, image = host(name), f"/root{at.replace('/', '-')}.img"
    local = Path(f"/tmp/sandbox{at.replace('/', '-')}.img")
    local.write_bytes(b"")
    try:
        line = ["mkfs.ext4", "-q", "-e", "remount-ro", "-m", "0", "-N", str(inodes), local, f"{size}M"]
        subprocess.run(line, check=True, capture_output=True)
        subprocess.run(["podman", "cp", local, f"postboot-{name}:{image}"], check=True, capture_output=True)
    finally:
        local.unlink()
    node.check_output(f"mkdir {at} && mount -o loop {image} {at} && systemctl restart node_exporter")
    try:
        yield node
    finally:
        node.check_output(f"umount {at} && rmdir {at} && rm {image} && systemctl restart node_exporter")


def fill(node: Host, at: str, percent: int) -> None:
    """Leave so much of a file system that it is full to a percentage, as df counts what users may have."""
    size, room = (int(word) for word in node.check_output(f"df -k --output=size,avail {at} | tail -n 1").split())
    node.check_output(f"fallocate -l {room - size * (100 - percent) // 100}K {at}/full")


@contextmanager
def filled(*places: tuple[str, int]) -> Iterator[None]:
    """File systems on a node, each full to a percentage."""
    with ExitStack() as stack:
        for at, percent in places:
            fill(stack.enter_context(file_system(CPU, at)), at, percent)
        yield


# Slurm


@contextmanager
def in_state(state: str, *more: str) -> Iterator[None]:
    """The node of a queue in a state that ParallelCluster does not mend; with a job that only this node may run."""
    head, job = host("head"), ""
    with unmanaged():
        head.check_output(f"{SCONTROL} update nodename={CPU} state={state} reason='a test of alerts'")
        try:
            if more:
                options = f"--parsable --partition cpu --nodelist {CPU} --output /dev/null --wrap true"
                job = head.check_output(f"runuser -u ubuntu -- /opt/slurm/bin/sbatch {options}")
            yield
        finally:
            if job:
                head.check_output(f"/opt/slurm/bin/scancel {job}")
            head.check_output(f"{SCONTROL} update nodename={CPU} state=resume")


@contextmanager
def stopped(name: str, *units: str) -> Iterator[None]:
    node = host(name)
    node.check_output(f"systemctl stop {' '.join(units)}")
    try:
        yield
    finally:
        node.check_output(f"systemctl start {' '.join(units)}")


# Prometheus


@contextmanager
def configured(change: str) -> Iterator[None]:
    """Prometheus whose configuration somebody has changed; it may refuse that."""
    head = host("head")
    head.check_output(f"cd /etc/prometheus && cp prometheus.yml /root/prometheus.now && {change}")
    head.run("systemctl reload prometheus")
    try:
        yield
    finally:
        head.check_output("cat /root/prometheus.now > /etc/prometheus/prometheus.yml && rm /root/prometheus.now")
        head.check_output("rm -f /etc/prometheus/rules/sandbox.yml && systemctl reload prometheus")


REFUSES, SILENT = "http://10.115.0.5:9090/workspaces/ws-1/api/v1/remote_write", "http://10.115.0.5:1/write"
WRITES = {"remote_write": [{"url": REFUSES}, {"url": SILENT, "queue_config": {"sample_age_limit": "5s"}}]}
# A rule for which several series stand on each side.
FAILS = {"groups": [{"name": "sandbox", "rules": [{"record": "a", "expr": "up * on (pc_cluster) up"}]}]}


# Health of nodes


@contextmanager
def faulty() -> Iterator[None]:
    with said(host(GPU), gpu2_ROW_REMAP_FAILURE=1):
        yield


@contextmanager
def no_inodes() -> Iterator[None]:
    """A file system with room, and with no inodes left."""
    with file_system(CPU, "/mnt/inodes", 8, 16) as node:
        node.check_output("cd /mnt/inodes && for n in $(seq 100); do touch $n 2> /dev/null || exit 0; done; exit 1")
        yield


@contextmanager
def broken_disk() -> Iterator[Host]:
    """A file system that the kernel has made read-only, after an error."""
    with file_system(CPU, "/mnt/broken") as node:
        device = node.check_output("basename $(findmnt --noheadings --output SOURCE /mnt/broken)")
        node.check_output(f"echo 1 > /sys/fs/ext4/{device}/trigger_fs_error")
        yield node


DRAINS = ("--tags", "node_health", "--limit", f"head,{GPU},{CPU}")


@contextmanager
def draining() -> Iterator[None]:
    """A decider that drains one node at most; before and afterwards it knows of no drain."""
    head = host("head")
    head.check_output(FORGET)
    ok(playbook(*DRAINS, *variables(node_health_action="drain", node_health_max_nodes=1)))
    with unmanaged():
        try:
            yield
        finally:  # before ParallelCluster looks again, which replaces a node that is drained
            head.check_output(FORGET)
            ok(playbook(*DRAINS))
            head.run(f"for node in {GPU} {CPU}; do {SCONTROL} update nodename=$node state=resume; done")


@contextmanager
def two_faulty() -> Iterator[None]:
    """Two faulty nodes, of which one may be drained."""
    with draining(), said(host(GPU), gpu2_ROW_REMAP_FAILURE=1):
        until(lambda: "DRAIN" in host("head").check_output(f"{SCONTROL} show node {GPU}"), 90, f"{GPU} is drained")
        with broken_disk():
            yield


@contextmanager
def kept_drained() -> Iterator[None]:
    """A node that the decider has drained, that somebody wants to stay so, and whose fault is gone."""
    head = host("head")
    with draining():
        with said(host(GPU), gpu2_ROW_REMAP_FAILURE=1):
            until(lambda: "DRAIN" in head.check_output(f"{SCONTROL} show node {GPU}"), 90, f"{GPU} is drained")
            head.check_output(f"{SCONTROL} update nodename={GPU} reason='mine for today'")
        yield


ON_GPU, ON_CPU = {"pc_node": GPU}, {"pc_node": CPU}
ACTS = {
    "a configuration that is refused": Act(
        lambda: configured("echo 'no: such key' >> prometheus.yml"), {"PrometheusConfigurationRefused": {}}, quick=True
    ),
    "GPUs with faults": Act(
        gpu_faults,
        {
            "GpuLost": ON_GPU,
            "GpuXidCritical": {**ON_GPU, "gpu": "3", "xid": "62"},
            "GpuXid": {**ON_GPU, "gpu": "4", "xid": "185"},
            "GpuEccUncorrectable": {**ON_GPU, "gpu": "0"},
            "GpuEccCorrectable": {**ON_GPU, "gpu": "1"},
            "GpuRowRemapFailed": {**ON_GPU, "gpu": "2"},
            "GpuThermalThrottle": {**ON_GPU, "gpu": "5"},
            "GpuPowerBrake": {**ON_GPU, "gpu": "6"},
            "NvlinkErrors": {**ON_GPU, "gpu": "1"},
        },
        fires=240,
        ends=240,
    ),
    "EFA that loses": Act(
        efa_losses,
        dict.fromkeys(("EfaRetransmits", "EfaUnresponsiveRemote", "EfaErrors", "EfaDrops"), ON_GPU),
        fires=240,
        ends=240,
    ),
    "exporters that stopped": Act(
        stopped_exporters, {"EfaMetricsStale": ON_GPU, "ExporterDown": {**ON_GPU, "job": "dcgm"}}
    ),
    "a node that died": Act(lambda: frozen(CPU), {"NodeDown": ON_CPU}, fires=180),
    "a login node that died": Act(
        lambda: frozen("login"), {"LoginNodeDown": {"pc_node_type": "login"}}, fires=450, ends=300, host="monitoring"
    ),
    "a node that nobody configured": Act(
        lambda: joined(SPARE), {"NodesNotConfigured": {"pc_queue": "burst"}}, ends=300
    ),
    "disks that fill": Act(
        # Debian's node_exporter leaves out what is below /mnt.
        lambda: filled(("/disk-alerts", 98), ("/fsx-alerts", 90)),
        {"DiskFilling": {**ON_CPU, "mountpoint": "/disk-alerts"}, "FsxNearlyFull": {"mountpoint": "/fsx-alerts"}},
    ),
    "a full FSx": Act(lambda: filled(("/fsx-alerts", 98)), {"FsxFull": {"mountpoint": "/fsx-alerts"}}),
    "a queue whose node is drained": Act(
        lambda: in_state("drain", "a job"),
        {"SlurmQueueStuck": {"partition": "cpu"}, "SlurmNodesDrained": {"partition": "cpu"}},
        fires=180,
    ),
    "a queue whose node is down": Act(lambda: in_state("down"), {"SlurmNodesDown": {"partition": "cpu"}}),
    "a Slurm that is stopped": Act(lambda: stopped("head", "slurmctld"), {"SlurmDoesNotAnswer": {}}, ends=240),
    "workspaces that refuse and are silent": Act(
        lambda: configured(f"echo '{json.dumps(WRITES)[1:-1]}' >> prometheus.yml"),
        {
            "RemoteWriteRefused": {"url": REFUSES},
            "RemoteWriteBehind": {"url": SILENT},
            "RemoteWriteTooLate": {"url": SILENT},
        },
        fires=240,
        ends=240,  # a reload waits for a minute for what cannot be sent any more
    ),
    "a rule that fails": Act(
        lambda: configured(f"echo '{json.dumps(FAILS)}' > rules/sandbox.yml"), {"RuleFails": {}}, ends=240
    ),
    "an exporter that brings too much": Act(
        lambda: configured("sed -i 's/sample_limit: 20000/sample_limit: 100/' prometheus.yml"),
        {"ScrapeRefused": {"job": "node", **ON_CPU}},
    ),
    "textfiles whose metrics are lost": Act(
        lost_textfiles, {"TextfileUnreadable": ON_CPU, "SeriesDropped": {"job": "node", **ON_CPU}}, ends=240
    ),
    "a faulty node": Act(faulty, {"NodeHealthFault": ON_GPU}, never=("GpuRowRemapFailed",)),
    "a finding that is watched": Act(
        no_inodes, {"NodeHealthWatch": {"finding": "filesystem_full"}}, never=("DiskFilling",)
    ),
    "checks that stopped": Act(
        lambda: stopped(GPU, f"{HEALTH}.timer"), {"NodeHealthSilent": {"pc_queue": "gpu"}}, fires=420
    ),
    "a decider that stopped": Act(
        lambda: stopped("head", f"{HEALTH}-decider.timer"), {"NodeHealthDeciderSilent": {}}, fires=420
    ),
    "more faulty nodes than may be drained": Act(
        two_faulty, {"NodeHealthFault": ON_GPU, "NodeHealthWithheld": {"why": "limit", "pc_queue": "cpu"}}, fires=240
    ),
    "a node that is kept drained": Act(kept_drained, {"NodeHealthDrained": ON_GPU}, fires=240),
}
NOT_HERE = {
    "PrometheusSilent": "a Prometheus that is silent tells nothing: a workspace evaluates this rule, and the sandbox's "
    "has no rules of its own; tests/rules/prometheus.yml has the series of an agent that stops and one that is deleted",
    "AwsEventsStale": "half an hour has to pass without an answer; tests/rules/aws.yml",
    "SlurmNodesStranded": "ten minutes have to pass; test_aws_events.py plays the cause, tests/rules/aws.yml the rule",
    "InsufficientCapacity": "test_aws_events.py plays the cause up to the metric, as the queue is then closed for ten "
    "minutes; tests/rules/aws.yml",
    "NotificationsFail": "of a receiver that is not reached, no message tells; tests/rules/prometheus.yml",
    **dict.fromkeys(
        (
            *("NeuronDeviceLost", "NeuronEccUncorrectable", "NeuronExecutionErrors", "NeuronExecutionTimeouts"),
            *("NeuronHardwareErrors", "NeuronMemoryFull", "NeuronStalled"),
        ),
        "the node with Neuron devices is there only while a job asks for it; tests/rules/neuron.yml",
    ),
}
# What other files play, in the sandbox, as well.
ELSEWHERE = {
    "CapacityBlockEnds": "test_aws_events.py::test_the_end_of_a_capacity_block_is_an_alert_until_the_block_is_over",
    "ProtectedMode": "test_aws_events.py::test_protected_mode_is_an_alert_until_the_fleet_is_started",
    "ScheduledEvent": "test_aws_events.py::test_a_scheduled_event_is_an_alert_until_it_is_over",
    "Watchdog": "test_alertmanager.py::test_the_alert_that_always_fires_arrives",
}


def test_every_alert_is_played_or_the_reason_is_named() -> None:
    played = {name for act in ACTS.values() for name in act.alerts}
    named = [*played, *NOT_HERE, *ELSEWHERE]
    assert len(named) == len(set(named))
    assert set(named) == set(alerts())
    for place in ELSEWHERE.values():
        file, _, test = place.partition("::")
        assert f"\ndef {test}(" in Path(__file__).with_name(file).read_text(), place


@pytest.fixture(scope="module", name="ready")
def fast_rules() -> Iterator[Any]:
    """A function that makes a host's Prometheus fast, once, and returns who is told of its alerts."""
    with ExitStack() as stack:
        receivers: dict[str, Receiver] = {}

        def ready(name: str) -> Receiver:
            if name not in receivers:
                stack.enter_context(fast(host(name)))
                receivers[name] = Receiver(host(name), "main" if name == "head" else name)
            return receivers[name]

        yield ready


@pytest.mark.parametrize(
    "act", [pytest.param(act, id=name, marks=[] if act.quick else [pytest.mark.long]) for name, act in ACTS.items()]
)
def test_from_the_cause_to_the_receiver_and_back(ready: Any, act: Act) -> None:
    receiver, waits = ready(act.host), alerts()

    def all_over() -> bool:
        return not any(receiver.states(name, labels) for name, labels in act.alerts.items())

    until(all_over, 120, "what another act's cause has left is over")
    begun, fired = time.monotonic(), set[str]()

    def all_fire() -> bool:
        fired.update(name for name, labels in act.alerts.items() if "firing" in receiver.states(name, labels))
        return fired == set(act.alerts)

    with act.cause():
        try:
            until(all_fire, act.fires, f"these fire: {act.alerts}")
        finally:
            print("have not fired:", set(act.alerts) - fired)
        for name, labels in act.alerts.items():
            # An alert that waits is pending first.
            assert receiver.waited(name, labels, time.monotonic() - begun) == ("for" in waits[name]), name
        assert [name for name in act.never if "firing" in receiver.states(name, {})] == []

    until(all_over, act.ends, f"these are over: {act.alerts}")
