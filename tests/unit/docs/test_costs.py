# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""docs/runbooks/costs.md: the example follows from the page's prices, and from the benchmarks' counts of metrics."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.plugin_utils._infrastructure.parameters import USUAL_ENDPOINTS
from ansible_collections.pcluster.postboot.tests.programs import load

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/runbooks/costs.md").read_text()
NODES, STORAGE, HOURS, THROUGH_NAT, IN_S3, ROOT_VOLUME = (4, 64, 256), (4_800, 19_200, 76_800), 730, 100, 10_000, 45


def table(name: str) -> list[list[str]]:
    """The rows of a table between two marks, without its head."""
    text = PAGE.partition(f"<!-- begin {name}")[2].partition(f"<!-- end {name}")[0]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")][1:]


PRICES = {what: float(usd) for what, usd, _unit, _source in table("prices")}


def price(begin: str) -> float:
    """The price of what begins so, which has to be one."""
    (found,) = [usd for what, usd in PRICES.items() if what.startswith(begin)]
    return found


@pytest.fixture(scope="module")
def series() -> int:
    """The series of a p5.48xlarge, as docs/observability.md has them from `make bench`."""
    found = re.search(r"a p5\.48xlarge: 192 vCPUs.*?\| ([\d,]+) \|", (ROOT / "docs/observability.md").read_text())
    assert found
    return int(found[1].replace(",", ""))


def test_each_price_has_its_source() -> None:
    for what, _usd, unit, source in table("prices"):
        assert unit, what
        assert re.search(r"20\d\d|from memory|the same", source), what


def test_the_example_follows(series: int) -> None:
    metrics: Any = load("tests/bench/metrics.py")
    cloudwatch: Any = load("tests/bench/cloudwatch.py")
    samples = series * 60 * 24 * metrics.DAYS_A_MONTH  # a month of one node, once a minute
    nat = HOURS * PRICES["NAT gateway"] + THROUGH_NAT * PRICES["NAT gateway, traffic"]
    expected = {
        "the nodes": [n * HOURS * price("p5.48xlarge") for n in NODES],
        "head node": [HOURS * price("head node")] * 3,
        "FSx for Lustre": [size * price("FSx for Lustre") for size in STORAGE],
        "root volumes": [n * ROOT_VOLUME * price("root volume") for n in NODES],
        "NAT gateway": [nat] * 3,
        "or, without a NAT gateway": [len(USUAL_ENDPOINTS) * HOURS * price("interface endpoint")] * 3,
        "S3": [IN_S3 * price("S3")] * 3,
        "metrics in Amazon Managed Prometheus": [metrics.amp_price(n * samples) for n in NODES],
        "or in CloudWatch": [cloudwatch.month(n) for n in NODES],
    }
    counted = [usd for begin, usd in expected.items() if not begin.startswith("or")]
    expected["**together**"] = [sum(map(round, usd)) for usd in zip(*counted, strict=True)]
    rows = table("example")
    assert len(rows) == len(expected)
    for (what, *cells), (begin, usd) in zip(rows, expected.items(), strict=True):
        assert what.startswith(begin)
        assert cells == [f"{one:,.0f}" for one in usd], what
    assert f"{series:,} series a node" in PAGE
    assert f"One USD more or less an hour is {64 * HOURS:,} USD a month for 64 nodes." in PAGE
    assert len(USUAL_ENDPOINTS) == 9
    assert "nine interface endpoints" in PAGE
    assert ": " + ", ".join(f"{size:,}" for size in STORAGE) + " GB" in PAGE


def test_a_day_of_a_node_and_its_metrics(series: int) -> None:
    """A p5 that idles for a day costs as much as five years of its metrics."""
    metrics: Any = load("tests/bench/metrics.py")
    year = 12 * metrics.amp_price(series * 60 * 24 * metrics.DAYS_A_MONTH)
    assert 4.5 < 24 * price("p5.48xlarge") / year < 5.5
