# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""CloudWatch dashboards of a cluster, made of what its nodes' agents send.

Nodes come and go, so a widget searches for its metrics: by their namespace, and by the exact set of their dimensions,
which follows from how the agent was configured. A search finds 500 series at most, those of nodes that were replaced
in the last two weeks among them: so what is told of all nodes is no search, but the series that all agents send into.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._cloudwatch import keys
from ansible_collections.pcluster.postboot.plugins.module_utils._cloudwatch.config import DEFAULT_NAMESPACE

WIDTH = 24
MOST = 50  # lines of a graph
FOUND = 500  # series that a search finds at most, https://docs.aws.amazon.com/cdk SearchExpressionProps
SUFFIXES = {"default": "", "advanced": "-Advanced", "efa": "-EFA"}
# Which of the agents' metrics a dashboard shows.
SHOWN = {"default": ("host", "gpu", "efa"), "advanced": ("host", "gpu"), "efa": ("efa",)}
_NODE = ("ClusterName", "InstanceId", "NodeName", "NodeType")
_OF_KIND = {"compute": (*_NODE, "Queue"), "login": _NODE, "head": _NODE}
# The dimensions that a plugin's own series have where they are not taken together.
_OWN = {"cpu": ("cpu",), "nvidia_gpu": ("arch", "index", "name"), "disk": ("fstype", "path")}
_EFA = ("device", "eniId", "port")
Widget = dict[str, Any]


class Cluster(NamedTuple):
    name: str
    region: str
    namespace: str
    metrics: Sequence[str] = ()
    measurements: Mapping[str, Sequence[Any]] = {}
    per_device: bool = False
    interval: int = 60
    head_instance: str = ""
    log_group: str = ""
    file_systems: Sequence[str] = ()
    scrapes: Sequence[Mapping[str, Any]] = ()


class Line(NamedTuple):
    plugin: str
    metric: str
    kind: str = "compute"
    stat: str = "Average"
    label: str = "${PROP('Dim.NodeName')}"
    whole: bool = False  # one line for all nodes together, from the series that has no dimensions
    rate: bool = False  # a count, shown for a second


def name_of(cluster: str, kind: str) -> str:
    """Return the name of a dashboard. ParallelCluster's own is <cluster>-<region>."""
    return f"ParallelCluster-{cluster}{SUFFIXES[kind]}"


class Builder:
    """Lays out the widgets of one dashboard, from left to right and down."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.widgets: list[Widget] = []
        self._x = self._y = self._height = 0
        self._heading = ""

    def measures(self, plugin: str, name: str) -> bool:
        group = {"nvidia_gpu": "gpu", "efa": "efa"}.get(plugin, "host")
        names = [one["name"] if isinstance(one, Mapping) else one for one in self.cluster.measurements.get(plugin, ())]
        return group in self.cluster.metrics and name in [keys.bare(plugin, str(one)) for one in names]

    def dimensions(self, plugin: str, kind: str) -> list[str]:
        # On a head node ParallelCluster aggregates by a path, and not we.
        together = not self.cluster.per_device and kind != "head"
        if plugin == "efa":
            return sorted(["InstanceId"] if together else ["InstanceId", *_EFA])
        own = () if together and plugin != "disk" else _OWN.get(plugin, ())
        return sorted([*_OF_KIND[kind], *own])

    def search(self, line: Line) -> str:
        dimensions = self.dimensions(line.plugin, line.kind)
        namespace = DEFAULT_NAMESPACE if line.kind == "head" else self.cluster.namespace
        words = [
            f'{{"{namespace}",{",".join(dimensions)}}}',
            f'MetricName="{keys.metric_name(line.plugin, line.metric)}"',
        ]
        if "ClusterName" in dimensions:
            words += [f'ClusterName="{self.cluster.name}"', f'NodeType="{line.kind}"']
        found = f"SEARCH('{' '.join(words)}', '{line.stat}', {self.cluster.interval})"
        return f"SORT({found}, AVG, DESC, {MOST})"

    def whole(self, line: Line, number: int) -> list[Any]:
        """Return one line for all nodes: every agent sends into the series without dimensions, once in an interval."""
        name = keys.metric_name(line.plugin, line.metric)
        shown: dict[str, Any] = {"stat": line.stat, "id": f"m{number}", "label": line.label}
        if not line.rate:
            return [[self.cluster.namespace, name, shown]]
        # Not the interval: where months are shown, CloudWatch takes a longer period, and a sum grows with it.
        rate = {"expression": f"m{number}/PERIOD(m{number})", "id": f"r{number}", "label": line.label}
        return [[self.cluster.namespace, name, {**shown, "visible": False}], [rate]]

    def place(self, kind: str, width: int, height: int, properties: dict[str, Any]) -> None:
        """Add a widget, in a new row where this one is full."""
        if self._heading:
            heading, self._heading = self._heading, ""
            self.text(f"## {heading}")
        if self._x + width > WIDTH:
            self.row()
        self.widgets.append(
            {"type": kind, "x": self._x, "y": self._y, "width": width, "height": height, "properties": properties}
        )
        self._x += width
        self._height = max(self._height, height)

    def row(self) -> None:
        self._y += self._height
        self._x = self._height = 0

    def text(self, markdown: str, height: int = 1) -> None:
        self.row()
        self.place("text", WIDTH, height, {"markdown": markdown})
        self.row()

    def title(self, kind: str, text: str, more: str = "") -> None:
        """Add the heading of the dashboard, how many nodes its graphs can show, and what it lacks."""
        lacks = ", ".join(f"`{name}`" for name in SHOWN[kind] if name not in self.cluster.metrics)
        limit = (
            f"Graphs with a line for each node show the highest {MOST} of the {FOUND} series that CloudWatch finds at "
            "most, nodes replaced in the last two weeks included; graphs of the whole cluster are of all nodes."
        )
        lines = [
            f"# {text}",
            more,
            limit if any(name in self.cluster.metrics for name in SHOWN[kind]) else "",
            f"Not measured (`cloudwatch_agent_metrics`): {lacks}." if lacks else "",
        ]
        lines = [line for line in lines if line]
        self.text("\n".join(lines), len(lines))

    def heading(self, text: str) -> None:
        """Name what follows. Where nothing follows, nothing is named."""
        self._heading = text

    def graph(self, title: str, *lines: Line, unit: str = "", most: float | None = None, width: int = 8) -> None:
        """Add a graph of what is measured of these; none where nothing is."""
        metrics: list[Any] = []
        for number, line in enumerate([one for one in lines if self.measures(one.plugin, one.metric)], 1):
            if line.whole:
                metrics += self.whole(line, number)
                continue
            shown: dict[str, Any] = {"expression": self.search(line), "id": f"e{number}", "label": line.label}
            if line.rate:
                metrics.append([{**shown, "visible": False}])
                shown = {"expression": f"e{number}/{self.cluster.interval}", "id": f"r{number}", "label": line.label}
            metrics.append([shown])
        self.metrics(title, metrics, unit, most, width)

    def metrics(
        self, title: str, metrics: Sequence[Any], unit: str = "", most: float | None = None, width: int = 8
    ) -> None:
        """Add a graph of metrics in CloudWatch's own form."""
        if not metrics:
            return
        left: dict[str, Any] = {"min": 0, "label": unit, "showUnits": False}
        if most is not None:
            left["max"] = most
        properties = {
            "title": title,
            "region": self.cluster.region,
            "view": "timeSeries",
            "stacked": False,
            "period": self.cluster.interval,
            "metrics": list(metrics),
            "yAxis": {"left": left},
        }
        self.place("metric", width, 6, properties)

    def logs(self, title: str, query: str, height: int = 6) -> None:
        """Add a table of what a query of CloudWatch Logs Insights finds in the cluster's logs."""
        if self.cluster.log_group:
            text = f"SOURCE '{self.cluster.log_group}' | {query}"
            properties = {"title": title, "region": self.cluster.region, "view": "table", "query": text}
            self.place("log", WIDTH, height, properties)

    def body(self) -> dict[str, Any]:
        return {"start": "-PT3H", "periodOverride": "inherit", "widgets": self.widgets}


def _default(b: Builder) -> None:
    c = b.cluster
    others = ", ".join(f"**{name_of(c.name, kind)}**" for kind in ("advanced", "efa"))
    b.title("default", c.name, f"More: {others}; ParallelCluster's own is **{c.name}-{c.region}**.")
    b.heading("Compute nodes")
    b.graph("CPU in use", Line("cpu", "usage_active"), unit="%", most=100)
    b.graph("Memory in use", Line("mem", "used_percent"), unit="%", most=100)
    disk = Line("disk", "used_percent", label="${PROP('Dim.NodeName')} ${PROP('Dim.path')}")
    b.graph("Disks in use", disk, unit="%", most=100)
    if "gpu" in c.metrics:
        b.heading("GPUs of the whole cluster")
        stats = (("Average", "average"), ("Minimum", "lowest"), ("Maximum", "highest"))
        every = [Line("nvidia_gpu", "utilization_gpu", stat=stat, label=label, whole=True) for stat, label in stats]
        b.graph("Utilization", *every, unit="%", most=100, width=WIDTH)
        b.heading("GPUs, by node")
        b.graph("Utilization", Line("nvidia_gpu", "utilization_gpu"), unit="%", most=100)
        b.graph("Memory in use", Line("nvidia_gpu", "memory_used"), unit="MiB")
        b.graph("Power of all GPUs of a node", Line("nvidia_gpu", "power_draw", stat="Sum"), unit="W")
    if "efa" in c.metrics:
        b.heading("Network of the whole cluster")
        b.graph("EFA", *_traffic(), unit="B/s", width=12)
        b.graph("EFA, retransmitted", Line("efa", "retrans_bytes", **_SUM, label="bytes"), unit="B/s", width=12)
    b.heading("Head and login nodes")
    b.graph("CPU in use", *(Line("cpu", "usage_active", kind) for kind in ("head", "login")), unit="%", most=100)
    _head(b)
    if c.file_systems:
        b.heading("FSx for Lustre")
        _lustre(b)
    if c.log_group:
        b.heading("Runs of this collection")
        b.logs(
            "The last run on each node",
            "filter @logStream like /pcluster-postboot-report/ | stats latest(outcome) as outcome, latest(finished) as "
            "finished, latest(seconds) as seconds by host | sort host",
        )


_SUM: dict[str, Any] = {"stat": "Sum", "whole": True, "rate": True}


def _traffic() -> list[Line]:
    return [Line("efa", name, **_SUM, label=label) for name, label in (("tx_bytes", "sent"), ("rx_bytes", "received"))]


def _head(b: Builder) -> None:
    """Memory and disk of the head node, which ParallelCluster measures itself."""
    instance = b.cluster.head_instance
    if instance:
        b.metrics("Memory in use, head", [["CWAgent", "mem_used_percent", "InstanceId", instance]], "%", 100)
        path = ["CWAgent", "disk_used_percent", "InstanceId", instance, "path", "/", {"label": "/"}]
        b.metrics("Disk in use, head", [path], "%", 100)


def _lustre(b: Builder) -> None:
    read: list[Any] = []
    write: list[Any] = []
    free: list[Any] = []
    for number, name in enumerate(b.cluster.file_systems, 1):
        for metrics, metric, letter in ((read, "DataReadBytes", "r"), (write, "DataWriteBytes", "w")):
            hidden = {"stat": "Sum", "id": f"{letter}{number}", "visible": False}
            metrics.append(["AWS/FSx", metric, "FileSystemId", name, hidden])
            rate = {"expression": f"{letter}{number}/PERIOD({letter}{number})", "label": name, "id": f"p{number}"}
            metrics.append([rate])
        # The sum over its storage targets.
        free.append(["AWS/FSx", "FreeDataStorageCapacity", "FileSystemId", name, {"stat": "Sum", "label": name}])
    b.metrics("Read", read, "B/s")
    b.metrics("Written", write, "B/s")
    b.metrics("Free", free, "B")


def _advanced(b: Builder) -> None:
    c = b.cluster
    b.title("advanced", f"{c.name}: what slows a job down")
    b.heading("Nodes")
    b.graph("CPU that waits for storage", Line("cpu", "usage_iowait"), unit="%", width=12)
    b.graph("Least memory", Line("mem", "used_percent", stat="Maximum"), unit="% in use", most=100, width=12)
    if "gpu" in c.metrics:
        b.heading("GPUs: a node whose lowest and highest GPU are far apart has one that does not take part")
        for name, title, unit, most in (
            ("utilization_gpu", "Utilization", "%", 100),
            ("memory_used", "Memory in use", "MiB", None),
            ("temperature_gpu", "Temperature", "°C", None),
            ("power_draw", "Power", "W", None),
        ):
            for stat in ("Minimum", "Maximum"):
                b.graph(
                    f"{title}: {'lowest' if stat == 'Minimum' else 'highest'} GPU of a node",
                    Line("nvidia_gpu", name, stat=stat),
                    unit=unit,
                    most=most,
                    width=12,
                )
    scraped = [one for one in c.scrapes if "prometheus" in c.metrics]
    if scraped:
        b.heading("What exporters show")
        for one in scraped:
            dimensions = sorted(
                [*(name for name in _OF_KIND["compute"] if name != "InstanceId"), *one.get("dimensions", [])]
            )
            for metric in (name for name in one["metrics"] if re.fullmatch(r"\w+", name)):
                words = f'{{"{c.namespace}",{",".join(dimensions)}}} MetricName="{metric}" ClusterName="{c.name}"'
                expression = f"SORT(SEARCH('{words}', 'Maximum', {c.interval}), MAX, DESC, {MOST})"
                b.metrics(metric, [[{"expression": expression, "id": "e1", "label": Line("", "").label}]], width=12)
    if c.head_instance:
        b.heading("Head node")
        for title, names, stat in (
            ("Network", ("NetworkIn", "NetworkOut"), "Sum"),
            (
                "Processor credits, and what EBS is short of",
                ("CPUCreditBalance", "EBSIOBalance%", "EBSByteBalance%"),
                "Minimum",
            ),
            ("Status checks that failed", ("StatusCheckFailed",), "Maximum"),
        ):
            metrics = [["AWS/EC2", name, "InstanceId", c.head_instance, {"stat": stat}] for name in names]
            b.metrics(title, metrics)
    if c.log_group:
        b.heading("Logs")
        b.logs(
            "Errors of Slurm and of ParallelCluster's daemons",
            "fields @timestamp, @logStream, @message | filter @logStream like /slurm|mgtd|supervisord/ "
            "and @message like /(?i)error|fatal|fail/ | sort @timestamp desc | limit 100",
            8,
        )
        b.logs(
            "What failed in runs of this collection",
            "filter @logStream like /pcluster-postboot-report/ and outcome != 'ok' | fields @timestamp, host, outcome, "
            "stopped.component, stopped.message | sort @timestamp desc | limit 50",
        )


def _efa(b: Builder) -> None:
    c = b.cluster
    b.title("efa", f"{c.name}: EFA")
    by_node: dict[str, Any] = {"stat": "Sum", "rate": True, "label": "${PROP('Dim.InstanceId')}"}
    b.heading("Whole cluster")
    b.graph("Traffic", *_traffic(), unit="B/s", width=12)
    b.graph("Retransmitted", Line("efa", "retrans_bytes", **_SUM, label="bytes"), unit="B/s", width=12)
    b.heading("Each node: what goes on while a job runs is alike on all of its nodes")
    for title, name, unit in (
        ("Sent", "tx_bytes", "B/s"),
        ("Received", "rx_bytes", "B/s"),
        ("RDMA, read", "rdma_read_bytes", "B/s"),
        ("RDMA, written", "rdma_write_bytes", "B/s"),
    ):
        b.graph(title, Line("efa", name, **by_node), unit=unit, width=12)
    b.heading("Each node: what should be zero, or near it")
    count: dict[str, Any] = {"stat": "Sum", "label": "${PROP('Dim.InstanceId')}"}
    for title, name in (
        ("Received packets that were dropped", "rx_dropped"),
        ("Retransmitted bytes", "retrans_bytes"),
        ("Retransmissions that timed out", "retrans_timeout_events"),
        ("Peers that did not answer", "unresponsive_remote_events"),
        ("Connections that were impaired", "impaired_remote_conn_events"),
    ):
        b.graph(title, Line("efa", name, **count))


_BUILDERS = {"default": _default, "advanced": _advanced, "efa": _efa}


def build(cluster: Cluster, kind: str) -> dict[str, Any]:
    builder = Builder(cluster)
    _BUILDERS[kind](builder)
    return builder.body()


def text_of(body: Mapping[str, Any]) -> str:
    return json.dumps(body, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
