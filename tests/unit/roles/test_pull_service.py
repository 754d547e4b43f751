# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The service that finishes a boot: when the nodes of a cluster run it again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

WorkOut = Callable[..., Callable[[str], Any]]


def restarts(work_out: WorkOut, nodes: list[str] | list[None], **more: Any) -> list[int]:
    """Return after how many seconds the service of each node runs again."""
    found = []
    for node in nodes:
        unit = work_out("pull", {"node_name": node}, **more)("pcluster-postboot.service.j2")
        found += re.findall(r"^RestartSec=(\d+)$", unit, re.MULTILINE)
    assert len(found) == len(nodes)
    return [int(seconds) for seconds in found]


def test_nodes_that_booted_together_do_not_run_again_together(work_out: WorkOut) -> None:
    found = restarts(work_out, [f"gpu-st-p5-{number}" for number in range(200)])
    assert 210 <= min(found) < 220
    assert 380 < max(found) <= 390
    assert max(Counter(found).values()) < 8


@pytest.mark.parametrize("nodes", [["gpu-st-p5-1"] * 5, [None] * 5])
def test_a_node_keeps_its_pace(work_out: WorkOut, nodes: list[str] | list[None]) -> None:
    assert len(set(restarts(work_out, nodes))) == 1


@pytest.mark.parametrize(("interval", "within"), [(3, (2, 3)), ("10", (7, 13)), (0, (0, 0))])
def test_another_interval_has_its_own_paces(work_out: WorkOut, interval: Any, within: tuple[int, int]) -> None:
    found = restarts(work_out, [f"gpu-st-p5-{number}" for number in range(50)], pull_retry_interval=interval)
    assert (min(found), max(found)) == within
