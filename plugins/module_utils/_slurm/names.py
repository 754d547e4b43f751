# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Writes the names of many nodes as Slurm does."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ansible_collections.pcluster.postboot.plugins.module_utils._host import document


def natural(name: str) -> list[Any]:
    """Return by what names are sorted, so that node 10 comes after node 9."""
    # Text and numbers take turns, so that only like is compared with like.
    parts = re.split(r"([0-9]+)", name)
    return [_order(part) if index % 2 else part for index, part in enumerate(parts)]


def _order(number: str) -> tuple[int, str, int]:
    """Return by what numbers are sorted, of any length: int() takes no more than 4300 digits."""
    significant = number.lstrip("0")
    return len(significant), significant, len(number)


def ranges(names: Iterable[str]) -> str:
    """Return names as a hostlist of Slurm's, such as gpu-st-p5-[1-3,7],login-1: sorted, each name once."""
    of: dict[tuple[str, bool], list[list[str]]] = {}
    for name in sorted(set(names), key=natural):
        prefix = name.rstrip("0123456789")
        number = name[len(prefix) :]
        runs = of.setdefault((prefix, bool(number)), [])
        if runs and number and _next(runs[-1][-1]) == number:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ",".join(_hostlist(prefix, runs) for (prefix, _numbered), runs in of.items())


def shown(names: Iterable[str], width: int = 60) -> str:
    """Return names for people: as ranges, and where those are longer than `width` only the first, and how many more."""
    ordered = sorted(set(names), key=natural)
    count = len(ordered)
    if len(ranges(ordered)) <= width:
        return ranges(ordered)
    least = 1
    while least < count:
        middle = (least + count + 1) // 2
        if len(ranges(ordered[:middle])) <= width:
            least = middle
        else:
            count = middle - 1
    more = len(ordered) - least
    return ranges(ordered[:least]) + (f" and {more} more" if more else "")


def _next(number: str) -> str:
    """Return the number that follows, as wide as this one: a range of Slurm's is as wide as its first number."""
    counted = document.whole(number)
    return "" if counted is None else str(counted + 1).zfill(len(number))


def _hostlist(prefix: str, runs: list[list[str]]) -> str:
    if len(runs) == 1 and len(runs[0]) == 1:
        return prefix + runs[0][0]
    return f"{prefix}[{','.join('-'.join(run) for run in runs)}]"
