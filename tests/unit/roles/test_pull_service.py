# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The service that finishes a boot: when the nodes of a cluster run it again."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

from ansible_collections.pcluster.postboot.plugins.action import check_variables


def restarts(repo: Path, nodes: list[str] | list[None], **more: Any) -> list[int]:
    """Return after how many seconds the service of each node runs again."""
    variables = yaml.safe_load((repo / "roles/pull/defaults/main.yml").read_text())
    text = check_variables._trusted((repo / "roles/pull/templates/pcluster-postboot.service.j2").read_text())
    found = []
    for node in nodes:
        variables.update(more, ansible_managed="x", ansible_facts={"pcluster": {"node_name": node}})
        trusted = {name: check_variables._trusted(value) for name, value in variables.items()}
        unit = str(Templar(loader=DataLoader(), variables=trusted).template(text))
        found += re.findall(r"^RestartSec=(\d+)$", unit, re.MULTILINE)
    assert len(found) == len(nodes)
    return [int(seconds) for seconds in found]


def test_nodes_that_booted_together_do_not_run_again_together(repo: Path) -> None:
    found = restarts(repo, [f"gpu-st-p5-{number}" for number in range(200)])
    assert 210 <= min(found) < 220
    assert 380 < max(found) <= 390
    assert max(Counter(found).values()) < 8


@pytest.mark.parametrize("nodes", [["gpu-st-p5-1"] * 5, [None] * 5])
def test_a_node_keeps_its_pace(repo: Path, nodes: list[str] | list[None]) -> None:
    assert len(set(restarts(repo, nodes))) == 1


@pytest.mark.parametrize(("interval", "within"), [(3, (2, 3)), ("10", (7, 13)), (0, (0, 0))])
def test_another_interval_has_its_own_paces(repo: Path, interval: Any, within: tuple[int, int]) -> None:
    found = restarts(repo, [f"gpu-st-p5-{number}" for number in range(50)], pull_retry_interval=interval)
    assert (min(found), max(found)) == within
