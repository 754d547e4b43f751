# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is known against the software that nodes get or have: advisories.yml beside this file, and what follows of it.

It imports nothing of this collection, so that scripts of the repository read it too.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).absolute().parent / "advisories.yml"
DRIVER, SLURM = "nvidia_driver", "slurm"  # which are no components, and the AMI's
PAGE = "docs/advisories.md"

# What the collection does about an older version: the role replaces it, the role installs a version of its own in any
# case, the report tells of it, or nothing, because what is wrong is not used.
ANSWERS = ("replaced", "pinned", "told", "outside")


@dataclass(frozen=True)
class Advisory:
    ids: Sequence[str]
    component: str  # or DRIVER or SLURM
    published: str
    what: str  # an attacker can do with it
    affected: str  # in words
    fixed: Sequence[str]  # the first version of each branch that has the fix; empty: none is known
    answer: str
    here: str  # what the collection does about it, in words
    sources: Sequence[str]
    branch: int = 0  # how many leading numbers make a branch; 0: every older version is affected
    only: str = ""  # the branch in which a role replaces; other branches are told
    since: str = ""  # the first affected version, where older branches are not affected
    instances: str = ""  # what the affected instance types begin with; empty: all are

    def fix_for(self, version: str) -> str:
        """Return the version that mends this one, if this one is affected, of its own branch where there are some."""
        have = numbers(version)
        for fix in self.fixed:
            if have[: self.branch] == numbers(fix)[: self.branch]:
                return fix if have < numbers(fix) else ""
        return ""

    def unmended(self, version: str) -> bool:
        """Whether a version is affected, and no version mends it, or none of its branch."""
        have = numbers(version)
        if not self.fixed:
            return numbers(self.since) <= have
        branches = [numbers(fix)[: self.branch] for fix in self.fixed]
        newest = max(numbers(fix) for fix in self.fixed)
        return bool(self.branch) and have[: self.branch] not in branches and numbers(self.since) <= have < newest


def numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"[0-9]{1,18}", version)]


@functools.cache
def read(path: Path = FILE) -> tuple[str, tuple[Advisory, ...]]:
    """Return the day of the last look at all sources, and the advisories."""
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    return str(data["checked"]), tuple(
        Advisory(**{**each, "fixed": [str(one) for one in each["fixed"]]}) for each in data["advisories"]
    )


def floor(component: str, only: str = "") -> dict[str, str]:
    """Return the oldest version without a known flaw that a role may leave, and the flaws that this version mends.

    only: the branch that the role replaces, where another branch is left
    """
    fixes = {
        fix: advisory.ids
        for advisory in read()[1]
        if advisory.component == component and advisory.answer == "replaced"
        for fix in advisory.fixed
        if not only or numbers(fix)[: len(numbers(only))] == numbers(only)
    }
    if not fixes:
        return {"minimum": "", "flaw": ""}
    minimum = max(fixes, key=numbers)
    *others, last = fixes[minimum]
    return {"minimum": minimum, "flaw": " and ".join([*([", ".join(others)] if others else []), last])}


def told(node: Mapping[str, Any]) -> list[str]:
    """Return a line for each flaw of what a node has and the collection leaves, by the node's facts."""
    versions = {
        **(node.get("components") or {}),
        DRIVER: (node.get("gpus") or {}).get("driver"),
        SLURM: (node.get("slurm") or {}).get("version"),
    }
    lines = []
    for advisory in read()[1]:
        if not str(node.get("instance_type") or "").startswith(advisory.instances):
            continue
        version = str(versions.get(advisory.component) or "")
        fix = advisory.fix_for(version) if numbers(version) else ""
        replaces = advisory.answer == "replaced" and (
            not advisory.only or numbers(version)[: len(numbers(advisory.only))] == numbers(advisory.only)
        )
        unmended = bool(numbers(version)) and advisory.unmended(version)
        if (fix or unmended) and not replaces and advisory.answer in ("replaced", "told"):
            many = f" and {len(advisory.ids) - 1} more" if len(advisory.ids) > 1 else ""
            way = f"which {fix} mends" if fix else "and no version of its branch is known that mends them"
            way = way if advisory.fixed else "and no newer version is known that mends it"
            lines.append(f"{advisory.component} {version} has {advisory.ids[0]}{many}, {way}: see {PAGE}")
    return lines
