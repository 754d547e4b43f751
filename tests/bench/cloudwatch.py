#!/usr/bin/env python
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What CloudWatch's dashboards show of many nodes that are replaced each day, and what the metrics cost.

    python tests/bench/cloudwatch.py [--json FILE]

Agents that are configured as the role does it send for two weeks into a CloudWatch that has AWS' limits; the dashboards
that the collection writes are then evaluated there. Nothing is asked of AWS.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "tests"), str(REPOSITORY / "tests/bench")]

import conftest  # noqa: E402,F401  # makes this checkout importable as a collection
import yaml  # noqa: E402
from figures import Figure, run  # noqa: E402

from ansible_collections.pcluster.postboot.plugins.module_utils._cloudwatch import config, keys  # noqa: E402
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cloudwatch import dashboards  # noqa: E402

# A search returns up to 500 time series (aws-cdk-lib 2.275.0, SearchExpressionProps), of metrics that have reported
# data within two weeks (Amazon CloudWatch User Guide, "Use search expressions in graphs").
MOST_FOUND = 500
REMEMBERED = 14
# Metrics a month in us-east-1, a tier after another: how many, and USD for each; then USD for 1,000 PutMetricData, of
# which an agent makes one a minute. https://aws.amazon.com/cloudwatch/pricing/, as known in November 2026.
TIERS = ((10_000, 0.30), (240_000, 0.10), (750_000, 0.05), (float("inf"), 0.02))
REQUESTS = 0.01 / 1000 * 43_800

NAMESPACE = "ParallelCluster/alpha"
GPUS, EFA_DEVICES = 8, 32  # of a p5.48xlarge
# What the agent's plugins put on a series; its EFA receiver knows the device, its port and its interface.
OWN = {
    "cpu": [{"cpu": "cpu-total"}],
    "disk": [{"path": "/", "fstype": "ext4"}, {"path": "/opt/dlami/nvme", "fstype": "xfs"}],
    "nvidia_gpu": [{"index": str(n), "name": "NVIDIA H100 80GB HBM3", "arch": "Hopper"} for n in range(GPUS)],
    "efa": [{"device": f"rdmap{n}s0", "port": "1", "eniId": f"eni-{n}"} for n in range(EFA_DEVICES)],
}
Dimensions = tuple[tuple[str, str], ...]


class Series(NamedTuple):
    """A metric: a name in a namespace, with its dimensions."""

    namespace: str
    name: str
    dimensions: Dimensions


@dataclass
class CloudWatch:
    """What was sent in the last minute, and which series have sent something in two weeks."""

    seen: dict[Series, int] = field(default_factory=dict)  # the day of the last value
    values: dict[Series, list[float]] = field(default_factory=lambda: defaultdict(list))
    met: int = 0  # the most series that one sum was made of

    def put(self, day: int, series: Series, values: Iterable[float]) -> None:
        if self.seen.get(series, day) != day or series not in self.seen:
            self.values[series].clear()
        self.seen[series] = day
        self.values[series].extend(values)

    def now(self, series: Series, stat: str, today: int) -> float | None:
        values = self.values.get(series, []) if self.seen.get(series) == today else []
        if not values:
            return None
        if stat == "Average":
            return sum(values) / len(values)
        return {"Sum": sum, "Minimum": min, "Maximum": max}[stat](values)

    def search(self, text: str, stat: str, today: int) -> list[float]:
        """Evaluate SEARCH('{namespace,dimension,…} MetricName="…" dimension="value"', stat, period)."""
        schema, words = re.fullmatch(r"\{([^}]*)\} ?(.*)", text).groups()  # type: ignore[union-attr]
        namespace, *names = schema.replace('"', "").split(",")
        asked = dict(re.findall(r'(\w+)="([^"]*)"', words))
        found = [
            one
            for one, day in self.seen.items()
            if today - day < REMEMBERED
            and one.namespace == namespace
            and one.name == asked["MetricName"]
            and sorted(key for key, _value in one.dimensions) == sorted(names)
            and all(dict(one.dimensions)[key] == value for key, value in asked.items() if key != "MetricName")
        ]
        self.met = max(self.met, len(found))
        # Which 500 nobody says: here any.
        found.sort(key=lambda one: hashlib.sha256(repr(one).encode()).digest())
        return [value for one in found[:MOST_FOUND] if (value := self.now(one, stat, today)) is not None]

    def lines(self, metrics: list[Any], period: int, today: int) -> dict[str, float]:
        """Return what a graph shows now, by the label of each line that is one of all nodes."""
        ids: dict[str, float] = {}
        shown = {}
        for *words, last in metrics:
            value = self._metric(words, last, period, today, ids)
            ids[last["id"]] = value
            if last.get("visible", True):
                shown[last["label"]] = value
        return shown

    def _metric(self, words: list[str], last: dict[str, Any], period: int, today: int, ids: dict[str, float]) -> float:
        if words:
            namespace, name, *pairs = words
            self.met = max(self.met, 1)
            dimensions = tuple(sorted(zip(pairs[::2], pairs[1::2])))
            return self.now(Series(namespace, name, dimensions), last["stat"], today) or 0
        expression = last["expression"]
        if found := re.fullmatch(r"SUM\(SEARCH\('(.*)', '(\w+)', \d+\)\)", expression):
            return sum(self.search(*found.groups(), today))
        if found := re.fullmatch(r"(\w+)/(?:(\d+)|PERIOD\(\1\))", expression):
            return ids[found[1]] / float(found[2] or period)
        raise ValueError(f"the bench does not know the expression {expression}")


def defaults() -> dict[str, Any]:
    path = REPOSITORY / "roles/cloudwatch_agent/defaults/main.yml"
    return dict(yaml.safe_load(path.read_text())["cloudwatch_agent_measurements"])


def sends(instance: str, node: str, per_device: bool) -> Iterator[tuple[Series, list[float]]]:
    """Return what a p5's agent sends in a minute: each device has moved 60 bytes, which are 1 B/s.

    A value goes to its own series unless that is dropped, and to each of aggregation_dimensions whose dimensions it
    has: plugins/outputs/cloudwatch/cloudwatch.go (ProcessRollup, IsDropping), aws/amazon-cloudwatch-agent at ab55b8da.
    EFA's counters are sent as what they have grown by (translator/translate/otel/pipeline/host/translators.go).
    """
    wanted = config.Wanted(
        metrics=("host", "gpu", "efa"),
        measurements=defaults(),
        per_device=per_device,
        namespace=NAMESPACE,
        dimensions={"ClusterName": "alpha", "NodeType": "compute", "NodeName": node, "Queue": "gpu"},
        gpus=GPUS,
        efa=EFA_DEVICES,
    )
    metrics = config.fit(wanted, {}, "1.300072.0", "host", "theirs").config["metrics"]
    values: dict[Series, list[float]] = defaultdict(list)
    for plugin, part in metrics["metrics_collected"].items():
        dropped = {keys.metric_name(plugin, name) for name in part.get("drop_original_metrics", [])}
        for measurement in part["measurement"]:
            name = keys.metric_name(plugin, measurement)
            for own in OWN.get(plugin, [{}]):
                all_of_it = {**own, **part.get("append_dimensions", {}), "InstanceId": instance}
                sets = [] if name in dropped else [list(all_of_it)]
                for one in metrics.get("aggregation_dimensions", []):
                    if len(one) < len(all_of_it) and all(key in all_of_it for key in one):
                        sets.append(one)
                for one in sets:
                    values[Series(NAMESPACE, name, tuple(sorted((key, all_of_it[key]) for key in one)))].append(60.0)
    yield from values.items()


def fortnight(nodes: int, per_device: bool = False) -> CloudWatch:
    """Return what CloudWatch knows after two weeks in which each node was replaced each day."""
    cloudwatch = CloudWatch()
    template = list(sends("INSTANCE", "NODE", per_device))
    for day in range(REMEMBERED):
        for node in range(nodes):
            own = {"INSTANCE": f"i-{day:02}{node:06}", "NODE": f"gpu-st-p5-{node + 1}"}
            for series, values in template:
                dimensions = tuple((key, own.get(value, value)) for key, value in series.dimensions)
                cloudwatch.put(day, series._replace(dimensions=dimensions), values)
    return cloudwatch


def cluster(per_device: bool = False) -> dashboards.Cluster:
    return dashboards.Cluster(
        name="alpha",
        region="us-east-1",
        namespace=NAMESPACE,
        metrics=["host", "gpu", "efa"],
        measurements=defaults(),
        per_device=per_device,
    )


def traffic(cloudwatch: CloudWatch, per_device: bool = False) -> dict[str, float]:
    """Return what the dashboard of EFA says of the whole cluster now, in B/s."""
    widgets = dashboards.build(cluster(per_device), "efa")["widgets"]
    # Those before the heading of what each node does.
    end = next(n for n, one in enumerate(widgets) if one["properties"].get("markdown", "").startswith("## Each node"))
    graphs = [one["properties"] for one in widgets[:end] if one["type"] == "metric"]
    shown: dict[str, float] = {}
    for graph in graphs:
        shown |= cloudwatch.lines(graph["metrics"], graph["period"], REMEMBERED - 1)
    return shown


def month(nodes: int, per_device: bool = False) -> float:
    """Return what that many p5 cost in a month, in USD. A metric is billed for the hours in which it was sent."""
    names = {series for series, _values in sends("INSTANCE", "NODE", per_device)}
    whole = sum(not one.dimensions for one in names)
    left = nodes * (len(names) - whole) + whole
    cost = nodes * REQUESTS
    for many, price in TIERS:
        cost += min(left, many) * price
        left -= min(left, many)
    return cost


def measure() -> list[Figure]:
    found = []
    for nodes, per_device in ((64, False), (1024, False), (64, True)):
        cloudwatch = fortnight(nodes, per_device)
        share = traffic(cloudwatch, per_device)["sent"] / (nodes * EFA_DEVICES)
        of = f"{nodes:,} p5, one relaunch a day{', a metric for each device' if per_device else ''}"
        found += [
            Figure(f"{of}: series that a sum meets in 14 days", cloudwatch.met, at_most=1),
            Figure(f"{of}: share of EFA's traffic that it shows", share, at_least=1, at_most=1),
        ]
    found += [Figure(f"{nodes:,} p5: host, gpu and efa", month(nodes), "USD a month") for nodes in (64, 256, 1024)]
    return found


if __name__ == "__main__":
    raise SystemExit(run("CloudWatch: what its dashboards know of many nodes, and what its metrics cost", measure))
