# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a benchmark of many nodes prints: figures, each with its reach and whether it was reached."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Figure:
    """One number that was measured or simulated, and the bounds it has to keep.

    Without a bound a figure is told and not judged.
    """

    name: str
    value: float
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None

    @property
    def reached(self) -> bool:
        return (self.at_most is None or self.value <= self.at_most) and (
            self.at_least is None or self.value >= self.at_least
        )

    @property
    def reach(self) -> str:
        bounds = [("≤", self.at_most), ("≥", self.at_least)]
        return " and ".join(f"{sign} {number(bound)}" for sign, bound in bounds if bound is not None)

    @property
    def verdict(self) -> str:
        if not self.reach:
            return ""
        return "reached" if self.reached else "MISSED"


def number(value: float) -> str:
    """Three digits that count, and all of a whole number: 0.123, 1.23, 12.3, 1,234."""
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2g}" if abs(value) < 0.1 else f"{value:.3g}"


def table(title: str, figures: list[Figure]) -> str:
    """The figures as lines: name, value and unit, reach, verdict."""
    rows = [(each.name, f"{number(each.value)} {each.unit}".strip(), each.reach, each.verdict) for each in figures]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        f"  {name:<{widths[0]}}  {value:>{widths[1]}}  {reach:<{widths[2]}}  {verdict}".rstrip()
        for name, value, reach, verdict in rows
    ]
    return "\n".join([title, *lines])


def run(title: str, measure: Callable[..., list[Figure]], *, about: str | None = None, **switches: str) -> int:
    """A benchmark's main(): measure, print the table, write `--json FILE`; 1 where a reach was missed.

    `measure` is told of each of the switches, which come with their help, whether it was given.
    """
    parser = argparse.ArgumentParser(description=about or title, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    for name, text in switches.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
    arguments = parser.parse_args()
    figures = measure(**{name: getattr(arguments, name) for name in switches})
    print(table(title, figures), flush=True)
    if arguments.json:
        told = [{**asdict(each), "reached": each.reached} for each in figures]
        arguments.json.write_text(json.dumps({"title": title, "figures": told}, indent=2) + "\n")
    missed = sum(not each.reached for each in figures)
    if missed:
        print(f"{missed} of {len(figures)} figures missed their reach", file=sys.stderr)
    return 1 if missed else 0
