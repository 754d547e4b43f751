# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The rules on Neuron devices ask for what neuron-monitor's exporter prints, and are tested with nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.pcluster.postboot.plugins.module_utils._node.neuron import TYPES
from ansible_collections.pcluster.postboot.tests.programs import load

SCRAPE = "tests/unit/fixtures/neuron/scrape-trn1.2xlarge.txt"
# What Prometheus adds to each series.
OURS = {"pc_cluster", "pc_queue", "pc_node", "job"}
LABEL = re.compile(r'(\w+)="([^"]*)"')


@pytest.fixture(scope="module")
def bench() -> Any:
    """The benchmark of the dashboards, which parses queries."""
    return load("tests/bench/dashboards.py")


@pytest.fixture
def scrape(repo: Path) -> dict[str, list[dict[str, str]]]:
    """The labels of each series of a scrape, by metric."""
    found: dict[str, list[dict[str, str]]] = {}
    for name, labels in re.findall(r"^(\w+)\{(.*)\} \S+$", (repo / SCRAPE).read_text(), re.MULTILINE):
        found.setdefault(name, []).append(dict(LABEL.findall(labels)))
    assert len(found) == 23
    return found


def rules(repo: Path) -> list[dict[str, Any]]:
    groups = yaml.safe_load((repo / "roles/prometheus/files/rules/neuron.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_rules_ask_for_what_the_exporter_prints(
    repo: Path, bench: Any, scrape: dict[str, list[dict[str, str]]]
) -> None:
    recorded = {rule["record"] for rule in rules(repo) if "record" in rule}
    asked = set()
    for rule in rules(repo):
        for _kind, matchers, *_more in bench.selectors(bench.parsed(rule["expr"])):
            name = next(value for label, _sign, value in matchers if label == "__name__")
            if name in recorded or name == "up":
                continue
            asked.add(name)
            for label, sign, value in matchers:
                if label not in ("__name__", "instance_type"):
                    values = {series[label] for series in scrape[name]}
                    kept = {one for one in values if bool(re.fullmatch(value, one)) == (sign in ("=", "=~"))}
                    assert kept, f"{rule}: {label}{sign}{value}, of {values}"
    assert asked <= set(scrape)
    assert len(asked) == 7


def test_rules_are_tested_with_what_the_exporter_prints(repo: Path, scrape: dict[str, list[dict[str, str]]]) -> None:
    cases = yaml.safe_load((repo / "tests/rules/neuron.yml").read_text())["tests"]
    told = [one["series"] for case in cases for one in case["input_series"]]
    assert len(told) > 30
    for series in told:
        name, labels = series.split("{")[0], dict(LABEL.findall(series))
        if name == "up":
            continue
        there = scrape[name]
        assert set(labels) - OURS <= set(there[0]), series
        for label in set(labels) & {"event_type", "error_type", "status_type", "percentile", "memory_location"}:
            assert labels[label] in {one[label] for one in there}, series


def test_the_memory_of_each_type_of_instance_is_known_once(repo: Path) -> None:
    (expr,) = (rule["expr"] for rule in rules(repo) if rule.get("record") == "pc_node:neuron_memory_utilization:ratio")
    sizes = {pattern: int(size) for size, pattern in re.findall(r'(\d+) \* group .*?instance_type=~"(.*?)"', expr)}
    assert sorted(sizes.values()) == [8, 32, 96]
    for kind in TYPES:
        assert len([pattern for pattern in sizes if re.fullmatch(pattern, kind)]) == 1, kind
    # neuron_device_memory_size of the scrape
    (size,) = (size for pattern, size in sizes.items() if re.fullmatch(pattern, "trn1.2xlarge"))
    assert f'neuron_device_memory_size="{size * 2**30}"' in (repo / SCRAPE).read_text()
