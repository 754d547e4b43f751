# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What starts programs, now and then instead of at each look; what came of it is told at every look until then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

from . import children, units
from .look import Hangs, Look

AGAIN = 60.0  # seconds until what has found something looks again
LONGEST = 30.0  # seconds that a program has to end, where the patience is shorter


def program(look: Look, check: str, line: list[str]) -> units.Said | None:
    """Run a program that may hang; nothing, with the reason noted, where it says nothing."""
    why = children.held(look, line[0])
    if not why:
        try:
            return units.run(line, max(look.patience, LONGEST))
        except Hangs as error:
            why = str(error)
            if error.process:
                children.hold(look, line[0], error.process)
        except OSError as error:
            look.skip(check, f"{line[0]}: {error.strerror or error}")
            return None
    look.skip(check, why)
    look.find("check_hangs", why, line[0].rpartition("/")[2])
    return None


def run(look: Look, checks: Sequence[Callable[[Look], None]]) -> None:
    """Run checks where it is time to, and tell what they found the last time where it is not."""
    memory: dict[str, Any] = look.remembered("slow")
    every = float(look.settings["slow_interval"])
    wait = min(AGAIN, every) if memory.get("found") else every
    if not memory or look.now - memory["at"] >= wait or look.now < memory["at"]:
        apart = Look(look.settings, look.memory, look.root, lambda: look.now)
        apart.save = look.save
        for check in checks:
            check(apart)
        found = list(apart.findings.values())
        memory = look.memory["slow"] = {"at": look.now, "found": found, "skipped": apart.skipped}
    for check_name, why in memory["skipped"].items():
        look.skip(check_name, why)
    for one in memory["found"]:
        look.find(one["finding"], one["evidence"], one["subject"], kind=one["class"], since=one["since"])
