# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How the benchmark of metrics counts, without an exporter."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.tests.programs import load


@pytest.fixture
def metrics() -> Any:
    return load("tests/bench/metrics.py")


def test_a_name_is_asked_for_by_itself_or_by_a_pattern(metrics: Any) -> None:
    names = {"node_load1", "node_load15", "DCGM_A_ERRORS", "DCGM_B_ERRORS", "DCGM_B_ERRORS_2"}
    expressions = ['max by (pc_node) (node_load1{mode="node_load15x"})', 'sum({__name__=~"DCGM_.+_ERRORS"})']
    assert metrics.asked_for(names, expressions) == {"node_load1", "DCGM_A_ERRORS", "DCGM_B_ERRORS"}


def test_the_rules_and_dashboards_are_found(metrics: Any) -> None:
    found = metrics.asked_for(
        {"up", "node_cpu_seconds_total", "DCGM_EXP_XID_ERRORS_COUNT", "no_such"}, metrics.expressions()
    )
    assert found == {"up", "node_cpu_seconds_total", "DCGM_EXP_XID_ERRORS_COUNT"}


def test_what_a_job_drops_is_gone_and_what_it_does_else_is_not_guessed(metrics: Any) -> None:
    drop = {"source_labels": ["__name__"], "regex": "a|b.+", "action": "drop"}
    assert metrics.kept(Counter({"a": 1, "b": 2, "bc": 3, "ab": 4}), [drop]) == Counter({"b": 2, "ab": 4})
    with pytest.raises(SystemExit, match="needed: one that drops by the name alone"):
        metrics.kept(Counter(), [{**drop, "source_labels": ["job", "__name__"]}])


@pytest.mark.parametrize(
    ("samples", "dollars"), [(0, 0), (1e9, 90), (2e9, 180), (3e9, 215), (252e9, 8930), (253e9, 8946)]
)
def test_the_price_has_tiers(metrics: Any, samples: float, dollars: float) -> None:
    assert metrics.amp_price(samples) == pytest.approx(dollars)


def test_the_estimate_of_a_node_with_neuron_devices_is_what_its_exporter_brings(metrics: Any) -> None:
    load = metrics._prometheus_load
    trn1 = load.Kind(128, 0, 8, load.neuron.TYPES["trn1.32xlarge"])
    scraped = [name for name, _labels in metrics.dashboards.trn1("n", "q") if name != "up"]
    without = trn1._replace(neuron=load.NO_NEURON)
    assert trn1.series - without.series == len(scraped) + len(metrics.OF_A_TARGET)


def test_the_tree_has_what_a_p5_has(metrics: Any, tmp_path: Path) -> None:
    metrics.p5_tree.write(tmp_path)
    assert (tmp_path / "proc/stat").read_text().count("\ncpu") == 192
    devices = sorted((tmp_path / "sys/class/infiniband").iterdir())
    assert len(devices) == 32
    assert (devices[0] / "device/driver").resolve().name == "efa"
    assert len(list(devices[0].glob("hw_counters/*"))) + len(list(devices[0].glob("ports/1/hw_counters/*"))) == 36
