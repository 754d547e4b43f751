# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The benchmark's CloudWatch has AWS' limits, and what the dashboards tell of all nodes does not depend on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.tests.programs import load

REPO = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def bench() -> Any:
    return load("tests/bench/cloudwatch.py")


def stored(bench: Any, days: dict[int, int]) -> Any:
    """A CloudWatch in which so many instances have each sent 60 on a day."""
    cloudwatch = bench.CloudWatch()
    for day, instances in days.items():
        for number in range(instances):
            series = bench.Series("Mine", "efa_tx_bytes", (("InstanceId", f"i-{day}-{number}"),))
            cloudwatch.put(day, series, [60.0])
    return cloudwatch


SEARCH = '{"Mine",InstanceId} MetricName="efa_tx_bytes"'


def test_a_search_finds_500_series_and_those_of_two_weeks(bench: Any) -> None:
    assert sum(stored(bench, {13: 400}).search(SEARCH, "Sum", 13)) == 400 * 60
    assert len(stored(bench, {13: 600}).search(SEARCH, "Sum", 13)) == 500
    replaced = stored(bench, {12: 400, 13: 400})
    assert len(replaced.search(SEARCH, "Sum", 13)) < 400
    assert replaced.met == 800
    # What was sent last two weeks ago is forgotten.
    assert len(stored(bench, {0: 400, 14: 400}).search(SEARCH, "Sum", 14)) == 400


@pytest.mark.parametrize(("nodes", "per_device"), [(600, False), (40, True)])
def test_the_dashboards_tell_of_all_nodes(bench: Any, nodes: int, per_device: bool) -> None:
    """Nodes that are replaced daily, each of whose 32 devices sends 1 B/s."""
    cloudwatch = bench.fortnight(nodes, per_device)
    shown = bench.traffic(cloudwatch, per_device)
    assert shown == {"sent": nodes * 32, "received": nodes * 32, "bytes": nodes * 32}
    assert cloudwatch.met == 1


def test_a_metric_costs_less_from_10_000_on(bench: Any) -> None:
    requests = 0.01 / 1000 * 43_800
    # 25 metrics a node and 15 of all nodes.
    assert bench.month(1) == pytest.approx(40 * 0.30 + requests)
    assert bench.month(1000) == pytest.approx(10_000 * 0.30 + 15_015 * 0.10 + 1000 * requests)
