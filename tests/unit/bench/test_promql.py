# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The benchmark of dashboards: what a query draws and holds, beside what a Prometheus told of the same series."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.pcluster.postboot.tests.programs import load

MAIN = 'pc_cluster="main"'
BUSY = f'rate(node_cpu_seconds_total{{{MAIN}, mode="idle"}}[4m])'
DEVICES = "sum by (pc_node, device) (rate(node_amazonefa_%s_bytes[4m]))"
GPUS = 'DCGM_FI_DEV_GPU_UTIL{hpc_job="4711"}'


@pytest.fixture(scope="module")
def bench() -> Any:
    return load("tests/bench/dashboards.py")


@pytest.fixture(scope="module")
def store(bench: Any) -> Any:
    """The series of sixteen nodes."""
    made = bench.Store()
    for number in range(16):
        for name, labels in bench.p5(f"gpu-st-p5-{number}", "gpu"):
            made.add(name, [labels])
    return made


# Prometheus 3.5.3 with these series, a sample a minute: query_range over ten points with `stats=all`, whose answer has
# peakSamples. The values of the two metrics that are compared were above zero.
@pytest.mark.parametrize(
    ("expr", "lines", "peak"),
    [
        (f'sum by (mode) (rate(node_cpu_seconds_total{{{MAIN}, mode!~"idle|guest.*"}}[4m]))', 7, 215044),
        (f"100 * (1 - avg by (pc_node) ({BUSY}))", 16, 30744),
        ('sum by (pc_node) (node_load1) / count by (pc_node) (node_cpu_seconds_total{mode="idle"})', 16, 30880),
        (f"topk(10, {DEVICES % 'rx'} + {DEVICES % 'tx'})", 10, 16394),
        ("100 * (node_load1 and topk(10, avg_over_time(node_load1[5m] @ end())))", 10, 396),
        (f"avg by (pc_node) ({GPUS}) and bottomk(10, avg by (pc_node) (avg_over_time({GPUS}[5m] @ end())))", 10, 1280),
        ("quantile(0.5, node_load1)", 1, 170),
        ("count(node_load1) or vector(0)", 1, 160),
        ("count by (pc_node) (node_load1 > 0 or node_procs_running > 0)", 16, 512),
    ],
)
def test_a_query_holds_what_prometheus_says(bench: Any, store: Any, expr: str, lines: int, peak: int) -> None:
    evaluator = bench.Evaluator(store, points=10)
    assert len(evaluator.run(bench.parsed(expr))) == lines
    assert evaluator.peak == peak


@pytest.mark.parametrize(
    ("expr", "found"),
    [
        ('up{job="node"} unless on (pc_node) up{job="dcgm"}', []),
        ('up{job="node"} == 0 and on (pc_node) up{job="node"}', [{"pc_node": "a", "job": "node"}]),
        (
            'label_replace(up{job="dcgm"}, "where", "$1!", "pc_node", "(.+)")',
            [{"pc_node": "a", "job": "dcgm", "where": "a!"}],
        ),
        ("count without (job) (up offset 2h)", [{"pc_node": "a"}]),
        ("max_over_time(sum by (job) (-up)[1h:5m])", [{"job": "node"}, {"job": "dcgm"}]),
        ('up{job="node"} / on (pc_node) group_left () (2 * up{job="dcgm"})', [{"pc_node": "a", "job": "node"}]),
    ],
)
def test_labels_are_those_that_prometheus_leaves(bench: Any, expr: str, found: list[dict[str, str]]) -> None:
    store = bench.Store()
    store.add("up", [{"pc_node": "a", "job": "node"}, {"pc_node": "a", "job": "dcgm"}])
    result = bench.Evaluator(store, points=1).run(bench.parsed(expr))
    assert [{label: value for label, value in one.items() if label != "__name__"} for one in result] == found


def test_what_is_not_understood_is_not_passed_over(bench: Any) -> None:
    with pytest.raises(AssertionError, match="more than an expression"):
        bench.parsed("up up")
    with pytest.raises(AssertionError, match="not understood"):
        bench.parsed("up ~ 1")


@pytest.mark.parametrize(
    ("hours", "width", "most", "seconds"),
    [
        (3, 8, None, 60),
        (24, 8, None, 120),
        (24, 24, None, 60),
        (24, 3, None, 300),
        (3, 24, 120, 60),
        (24, 24, 120, 600),
    ],
)
def test_points_are_as_far_apart_as_in_grafana(
    bench: Any, hours: int, width: int, most: int | None, seconds: int
) -> None:
    assert bench.step(hours, width, most) == seconds
