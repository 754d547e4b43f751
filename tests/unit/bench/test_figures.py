# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What benchmarks print, and when they say that a reach was missed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.tests.programs import load

REPO = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def figures() -> Any:
    return load("tests/bench/figures.py")


@pytest.mark.parametrize(
    ("bounds", "verdict"),
    [
        ({}, ""),
        ({"at_most": 9}, "MISSED"),
        ({"at_most": 10}, "reached"),
        ({"at_least": 10}, "reached"),
        ({"at_least": 11}, "MISSED"),
        ({"at_least": 1, "at_most": 2}, "MISSED"),
    ],
)
def test_a_figure_is_judged_by_its_bounds(figures: Any, bounds: dict[str, float], verdict: str) -> None:
    assert figures.Figure("jobs", 10, **bounds).verdict == verdict


@pytest.mark.parametrize(
    ("value", "text"), [(0.0123, "0.012"), (1.234, "1.23"), (12.34, "12.3"), (1234.5, "1,234"), (7.0, "7"), (0, "0")]
)
def test_a_number_has_the_digits_that_count(figures: Any, value: float, text: str) -> None:
    assert figures.number(value) == text


def test_a_benchmark_is_told_of_its_switches(figures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, bool]] = []
    for line in ([], ["--quick"]):
        monkeypatch.setattr(sys, "argv", ["bench", *line])
        figures.run("Many nodes", lambda **given: told.append(given) or [figures.Figure("lines", 3)], quick="few")
    assert told == [{"quick": False}, {"quick": True}]


def test_a_missed_reach_ends_with_1_and_is_written_down(
    figures: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bench.json"
    monkeypatch.setattr(sys, "argv", ["bench", "--json", str(file)])
    good, bad = figures.Figure("lines", 3, at_most=5), figures.Figure("minutes", 70, "min", at_most=60)
    assert figures.run("Many nodes", lambda: [good]) == 0
    assert figures.run("Many nodes", lambda: [good, bad]) == 1
    said = capsys.readouterr()
    assert said.out.splitlines()[-3:] == [
        "Many nodes",
        "  lines         3  ≤ 5   reached",
        "  minutes  70 min  ≤ 60  MISSED",
    ]
    assert said.err == "1 of 2 figures missed their reach\n"
    assert [(each["value"], each["reached"]) for each in json.loads(file.read_text())["figures"]] == [
        (3, True),
        (70, False),
    ]
