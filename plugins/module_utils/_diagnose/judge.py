# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Asks every finder. None knows of another, and one that fails takes none with it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence

from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose import (
    boot,
    cluster,
    hardware,
    services,
    storage,
)
from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose.evidence import (
    LEVELS,
    NOTE,
    Evidence,
    Finding,
    finding,
)
from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose.limit import Budget

Finder = Callable[[Evidence], Iterable[Finding]]
FINDERS: Sequence[Finder] = (
    *boot.FINDERS,
    *cluster.FINDERS,
    *hardware.FINDERS,
    *storage.FINDERS,
    *services.FINDERS,
)


def judge(evidence: Evidence, finders: Sequence[Finder] = FINDERS, budget: Budget | None = None) -> list[Finding]:
    """Return what was found, the gravest first, and each kind once."""
    found: dict[str, Finding] = {}
    for finder in finders:
        try:
            with budget.step() if budget else contextlib.nullcontext():
                for one in finder(evidence):
                    before = found.get(one.kind)
                    if before is None or LEVELS.index(one.level) < LEVELS.index(before.level):
                        found[one.kind] = one
        except Exception as error:
            words = f"{finder.__name__}: {type(error).__name__}: {error}"
            todo = "report it as a fault of diagnose, with this archive"
            found[f"finder-{finder.__name__}"] = finding(
                f"finder-{finder.__name__}", NOTE, "a text could not be judged", words, "", todo, "logs"
            )
    return sorted(found.values(), key=lambda one: LEVELS.index(one.level))
