# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the benchmark of fleet takes for the time that nobody can beat."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    for name in ("figures", "inventory"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    spec = importlib.util.spec_from_file_location("bench_fleet", BENCH / "fleet.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
