#!/usr/bin/env python
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Up to how many p5.48xlarge nodes each panel of the dashboards is drawn, and what the rules read and add for that.

    python tests/bench/dashboards.py [--json FILE]

The dashboards and the rules are those of the collection. Every query is evaluated on the labels of a simulated cluster,
as promql.py tells, with everything chosen, as a dashboard opens.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent))
from figures import Figure, run
from promql import Evaluator, Labels, Node, Store, parsed, selectors

REPOSITORY = Path(__file__).resolve().parents[2]
DASHBOARDS = REPOSITORY / "roles/grafana/files/dashboards"
RULES = REPOSITORY / "roles/prometheus/files/rules"
# Prometheus 3.14.0, cmd/prometheus/main.go: query.max-samples.
LIMIT = 50_000_000
# prometheus_scrape_interval, which Grafana's data source is told as its least interval.
SCRAPE = 60
# A screen of 1920 pixels, which Grafana divides into 24 columns. A panel asks for as many points as it has pixels.
SCREEN = 1920
HOURS = (3, 24)
QUEUES = ("gpu-a", "gpu-b", "gpu-c", "gpu-d")
JOB = "4711"


# A p5.48xlarge: 192 CPUs, 8 GPUs, 32 EFA devices, each beside an interface, 8 NVMe disks (AWS' instance type page).
# Each metric's labels are those of node_exporter 1.12.1 (collector/*_common.go, *_linux.go), of role node_exporter's
# reader of EFA's counters, and of dcgm-exporter 4.8.2 (rendermetrics/render_metrics.go).
CPUS, DEVICES, NVME, GPUS = range(192), range(32), range(9), range(8)
MODES = ("idle", "iowait", "irq", "nice", "softirq", "steal", "system", "user")
MOUNTS = (
    ("/", "ext4", "/dev/root"),
    ("/boot/efi", "vfat", "/dev/nvme0n1p15"),
    ("/opt/dlami/nvme", "ext4", "/dev/mapper/vg.01-lv_ephemeral"),
    ("/fsx", "lustre", "10.0.0.1@tcp:/fsx"),
    ("/home", "nfs4", "10.0.0.2:/home"),
    ("/opt/slurm", "nfs4", "10.0.0.2:/opt/slurm"),
    ("/run", "tmpfs", "tmpfs"),
)
UNITS = (
    "docker",
    "containerd",
    "munge",
    "node_exporter",
    "nvidia-dcgm",
    "nvidia-dcgm-exporter",
    "slurmd",
    "supervisord",
)
STATES = ("active", "activating", "deactivating", "failed", "inactive")
# What role node_health finds on each node: the worst, and as much as one fault leaves.
FINDINGS = {"gpu_missing": "replace", "gpu_xid_79": "reboot", "nvlink_errors": "watch"}
# Metrics of node_exporter that have one series a node.
SINGLE = (
    *("node_boot_time_seconds", "node_load1", "node_memory_MemAvailable_bytes", "node_memory_MemFree_bytes"),
    *("node_memory_MemTotal_bytes", "node_netstat_Tcp_RetransSegs", "node_procs_blocked", "node_procs_running"),
    "node_uname_info",
)
# Those that SckyzO's slurm_exporter 1.8.4 has for each node, and for each partition.
OF_NODES = ("cpu_alloc", "cpu_total", "mem_alloc", "mem_total")
OF_PARTITIONS = (
    *("jobs_pending", "jobs_running", "jobs_hold", "cpus_total", "cpus_allocated", "gpus_allocated", "gpus_idle"),
)
ONCE = (
    *("slurm_jobs_running", "slurm_jobs_pending", "slurm_jobs_completing"),
    *(f"slurm_scheduler_jobs_{what}" for what in ("submitted", "started", "completed", "failed", "canceled")),
    *("slurm_scheduler_last_cycle", "slurm_scheduler_backfill_last_cycle", "slurm_scheduler_threads"),
    *("slurm_scheduler_queue_size",),
)


def p5(node: str, queue: str) -> Iterator[tuple[str, Labels]]:
    """The series of one node that dashboards and rules may ask for, by metric."""
    where = {"pc_cluster": "main", "pc_node": node, "pc_node_type": "compute", "pc_queue": queue, "instance": node}
    here = {**where, "job": "node"}
    yield "up", here
    yield "up", {**where, "job": "dcgm"}
    yield "node_textfile_mtime_seconds", {**here, "file": "/var/lib/node_exporter/textfile_collector/amazon_efa.prom"}
    for name in SINGLE:
        yield name, here
    for cpu in CPUS:
        for mode in MODES:
            yield "node_cpu_seconds_total", {**here, "cpu": str(cpu), "mode": mode}
    for device in ("lo", "docker0", *(f"enp{number}s0" for number in DEVICES)):
        for name in ("receive_bytes", "transmit_bytes", "receive_drop", "transmit_drop"):
            yield f"node_network_{name}_total", {**here, "device": device}
    for disk in NVME:
        for name in ("read_bytes", "written_bytes", "io_time_seconds"):
            yield f"node_disk_{name}_total", {**here, "device": f"nvme{disk}n1"}
    for mountpoint, kind, device in MOUNTS:
        labels = {**here, "mountpoint": mountpoint, "fstype": kind, "device": device}
        for name in ("avail_bytes", "size_bytes", "files", "files_free", "readonly", "device_error"):
            yield f"node_filesystem_{name}", labels
    yield "pcluster_node_health_check_timestamp_seconds", here
    for finding, kind in FINDINGS.items():
        yield "pcluster_node_health_finding", {**here, "finding": finding, "class": kind}
    for unit in UNITS:
        for state in STATES:
            yield "node_systemd_unit_state", {**here, "name": f"{unit}.service", "state": state, "type": "simple"}
    for name in efa_counters():
        for number in DEVICES:
            yield f"node_amazonefa_{name}", {**here, "device": f"rdmap{number}s0", "port": "1"}
    for name in gpu_counters():
        for number in GPUS:
            labels = {**where, "job": "dcgm", "gpu": str(number), "UUID": f"GPU-{node}-{number}", "hpc_job": JOB}
            yield name, {**labels, "modelName": "NVIDIA H100 80GB HBM3", "device": f"nvidia{number}"}


def efa_counters() -> list[str]:
    text = (REPOSITORY / "roles/node_exporter/files/amazon_efa_metrics.py").read_text()
    return re.findall(r'^    "(\w+)":', text, re.MULTILINE)


def gpu_counters() -> list[str]:
    defaults = yaml.safe_load((REPOSITORY / "roles/dcgm_exporter/defaults/main.yml").read_text())
    return [one["name"] for one in defaults["dcgm_exporter_counters"] if one["type"] != "label"]


def trn1(node: str, queue: str) -> Iterator[tuple[str, Labels]]:
    """The series of Neuron's exporter on a trn1.32xlarge: 16 devices, 32 cores, and a program that holds all of them.

    Names and labels are those of a scrape of a smaller node.
    """
    where = {"pc_cluster": "main", "pc_node": node, "pc_node_type": "compute", "pc_queue": queue, "instance": node}
    yield "up", {**where, "job": "neuron"}
    counts = {"neuron_device_index": range(16), "neuroncore": range(32)}
    seen = set()
    for name, labels in neuron_series():
        several = next((label for label in counts if label in labels), "")
        kind = (name, *(value for label, value in labels.items() if label != several))
        if kind not in seen:
            seen.add(kind)
            for number in counts.get(several, range(1)):
                more = {several: str(number)} if several else {}
                yield name, {**labels, **where, "instance_type": "trn1.32xlarge", **more, "job": "neuron"}


@cache
def neuron_series() -> list[tuple[str, Labels]]:
    text = (REPOSITORY / "tests/unit/fixtures/neuron/scrape-trn1.2xlarge.txt").read_text()
    lines = re.findall(r"^(\w+)\{(.*)\} \S+$", text, re.MULTILINE)
    return [(name, dict(re.findall(r'(\w+)="([^"]*)"', labels))) for name, labels in lines]


def slurm(nodes: Sequence[tuple[str, str]]) -> Iterator[tuple[str, Labels]]:
    """What slurm_exporter tells of a cluster."""
    here = {"pc_cluster": "main", "pc_node": "head", "pc_node_type": "head", "job": "slurm", "instance": "head"}
    yield "up", here
    for name in ONCE:
        yield name, here
    for queue in QUEUES:
        for name in OF_PARTITIONS:
            yield f"slurm_partition_{name}", {**here, "partition": queue}
        for reason in ("Resources", "Priority", "Dependency", "JobHeldUser"):
            yield "slurm_queue_pending", {**here, "partition": queue, "user": "alice", "reason": reason}
    for number in range(20):
        for what in ("jobs_running", "jobs_pending", "cpus_running", "gpus_running"):
            yield f"slurm_user_{what}", {**here, "user": f"user{number}"}
            yield f"slurm_account_{what}", {**here, "account": f"account{number}"}
    for node, queue in nodes:
        one = {**here, "node": node, "partition": queue}
        yield "slurm_node_status", {**one, "status": "drained"}  # the worst: all are in the tables
        yield (
            "slurm_node_drain_reason_info",
            {**here, "node": node, "reason": "fault", "since": "2026-01-01", "user": "root"},
        )
        for name in OF_NODES:
            yield f"slurm_node_{name}", one


def decider(nodes: Sequence[tuple[str, str]]) -> Iterator[tuple[str, Labels]]:
    """What node_health's decider tells on the head node: one half of the nodes is drained, the other half is not."""
    here = {"pc_cluster": "main", "pc_node": "head", "pc_node_type": "head", "job": "node", "instance": "head"}
    yield "up", here
    yield "pcluster_node_health_decider_timestamp_seconds", here
    for place, (node, _queue) in enumerate(nodes):
        yield "pcluster_node_health_silent", {**here, "node": node}
        for finding in FINDINGS:
            one = {**here, "node": node, "finding": finding}
            if place % 2:
                yield "pcluster_node_health_drained", one
            else:
                yield "pcluster_node_health_withheld", {**one, "why": "limit"}


def rules() -> list[dict[str, Any]]:
    groups = [group for path in sorted(RULES.glob("*.yml")) for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"]]


@cache
def of_queues(neuron: bool = True) -> tuple[Store, int]:
    """All series of a cluster with a p5 in each queue, and a trn1 besides, those that the rules record included.

    The second is how many series the rules read.
    """
    store, read = Store(), 0
    nodes = [(f"{queue}-st-p5-1", queue) for queue in QUEUES]
    series = [one for node in nodes for one in p5(*node)]
    if neuron:
        series += [one for queue in QUEUES for one in trn1(f"{queue}-st-trn1-1", queue)]
    for name, labels in (*series, *slurm(nodes), *decider(nodes)):
        store.add(name, [labels])
    for rule in rules():
        evaluator = Evaluator(store, points=1)
        found = evaluator.run(parsed(rule["expr"]))
        read += evaluator.read
        if "record" in rule:
            store.add(rule["record"], [{**one, **rule.get("labels", {})} for one in found])
    return store, read


def recorded() -> set[str]:
    return {rule["record"] for rule in rules() if "record" in rule}


@cache
def metric(name: str, nodes: int) -> list[Labels]:
    """The series of a metric in a cluster of so many nodes: those of each queue's node, as often as it takes."""
    found = []
    for labels in of_queues()[0].series.get(name, []):
        of_node = next((label for label in ("pc_node", "node") if "-st-" in labels.get(label, "")), "")
        for number in range(nodes // len(QUEUES) if of_node else 1):
            more = {of_node: f"{labels[of_node]}{number}"} if of_node else {}
            if number and "UUID" in labels:
                more["UUID"] = f"{labels['UUID']}-{number}"
            found.append({**labels, **more})
    return found


def cluster(nodes: int, query: Node) -> Store:
    """The series that a query may ask for."""
    names = {value for one in selectors(query) for label, sign, value in one[1] if (label, sign) == ("__name__", "=")}
    if any(label == "__name__" and sign == "=~" for one in selectors(query) for label, sign, _value in one[1]):
        names = {name for name in of_queues()[0].series if name.startswith("slurm_")}
    return Store({name: metric(name, nodes) for name in names})


def step(hours: int, width: int, most: int | None) -> int:
    """Seconds between two points: calculatePrometheusInterval and roundInterval of Grafana 12.

    (pkg/promlib/models/query.go, pkg/promlib/intervalv2/intervalv2.go)
    """
    raw = hours * 3600 / (most or SCREEN * width // 24)
    bounds = {45: 30, 90: 60, 210: 120, 450: 300, 750: 600, 1050: 900, 1500: 1200, 2700: 1800, 5400: 3600}
    return max(SCRAPE, next(rounded for bound, rounded in bounds.items() if raw <= bound))


def filled(expr: str, hours: int, every: int) -> str:
    """A query as it is sent while a dashboard is as it opens: of each choice everything, and one job."""
    values = {
        "__rate_interval": f"{max(every + SCRAPE, 4 * SCRAPE)}s",
        "__range": f"{hours * 3600}s",
        "cluster": "main",
        "job": JOB,
        "mountpoint": "(/fsx)",
    }
    return re.sub(r"\$(\w+)", lambda match: values.get(match[1], ".*"), expr)


def boards() -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(DASHBOARDS.glob("*.json"))}


@cache
def panels() -> list[tuple[str, dict[str, Any]]]:
    """Each panel that asks for something, after the name of its dashboard."""
    return [(name, panel) for name, made in boards().items() for panel in made["panels"] if panel["type"] != "row"]


def queries(panel: dict[str, Any], hours: int) -> Iterator[tuple[Node, int]]:
    """Each query of a panel, and at how many points it is asked."""
    for target in panel["targets"]:
        every = step(hours, panel["gridPos"]["w"], panel.get("maxDataPoints"))
        yield parsed(filled(target["expr"], hours, every)), 1 if target["instant"] else hours * 3600 // every + 1


def drawn(panel: dict[str, Any], nodes: int, hours: int) -> tuple[int, int]:
    """How many lines (of a table: rows) a panel has, and the most samples that one of its queries holds."""
    found: list[Labels] = []
    peak = 0
    for query, points in queries(panel, hours):
        evaluator = Evaluator(cluster(nodes, query), points, SCRAPE)
        found += evaluator.run(query)
        peak = max(peak, evaluator.peak)
    for change in panel.get("transformations", []):
        if change["id"] == "joinByField":
            return len({one.get(change["options"]["byField"]) for one in found}), peak
    return len(found), peak


def most_nodes(panel: dict[str, Any], hours: int) -> float:
    """Up to how many nodes each query of a panel holds fewer samples than Prometheus allows."""
    (_lines, few), (_more, many) = (drawn(panel, nodes, hours) for nodes in (60, 120))
    each = (many - few) / 60
    return (LIMIT - few) / each + 60 if each else float("inf")


def measure() -> list[Figure]:
    found = []
    for hours in HOURS:
        reach = sorted((most_nodes(panel, hours), name, panel["title"]) for name, panel in panels())
        for nodes, name, title in reach[:3]:
            figure = f"{hours} h: nodes until {name}, {title!r} holds {LIMIT // 10**6} M samples"
            found.append(Figure(figure, int(nodes), at_least=1024))
    by_lines = sorted(((drawn(panel, 1000, 3)[0], name, panel["title"]) for name, panel in panels()), reverse=True)
    for lines, name, title in by_lines[:3]:
        found.append(Figure(f"lines of {name}, {title!r} with 1,000 nodes", lines, at_most=50))
    sent: Counter[str] = Counter()
    for name, panel in panels():
        for query, points in queries(panel, 3):
            sent[name] += len(Evaluator(cluster(1000, query), 1).run(query)) * points
    for name, values in sent.most_common(1):
        found.append(Figure(f"values that a refresh of {name} takes with 1,000 nodes, 3 h", values))
    store, read = of_queues(neuron=False)
    names = recorded()
    series = {name: len(found) for name, found in store.series.items()}
    of_nodes = [
        name for name in names if any("-st-p5-1" in one.get("pc_node", "") for one in store.series.get(name, []))
    ]
    found += [
        Figure("series that the rules read, a p5 and round", read / len(QUEUES)),
        Figure("series that the rules add, a p5", sum(series[name] for name in of_nodes) / len(QUEUES), at_most=100),
    ]
    return found


if __name__ == "__main__":
    sys.exit(run("Dashboards", measure, about=__doc__))
