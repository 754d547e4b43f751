# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the benchmark of fleet takes for the time that nobody can beat."""

from __future__ import annotations

from types import ModuleType

import pytest

from ansible_collections.pcluster.postboot.tests.programs import load


@pytest.fixture
def bench() -> ModuleType:
    return load("tests/bench/fleet.py")


@pytest.mark.parametrize(
    ("nodes", "steps"),
    [
        (24, 1 + 5),  # 20 others of 4 clusters, of each of which one is at it
        (100, 1 + 1 + 12),  # 5 first, and then 8 at a time
        (1000, 1 + 5 + 9),  # 5, 10, 20, 40, 80, and then 96 at a time
    ],
)
def test_head_nodes_come_first_and_then_ever_more(bench: ModuleType, nodes: int, steps: int) -> None:
    assert bench.steps(nodes) == steps
