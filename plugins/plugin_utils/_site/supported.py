# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What this collection works with, as meta/supported.yml says.

It imports nothing of this collection, so that scripts of the repository read it too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).absolute().parents[3]
FILE = "meta/supported.yml"


class System(NamedTuple):
    """An operating system, by the name that ParallelCluster has for it."""

    name: str
    title: str
    image: bool  # whether ParallelCluster publishes images of it
    tested: str


class Supported(NamedTuple):
    parallelcluster: Mapping[str, Any]
    ansible_core: Mapping[str, Any]
    python: Mapping[str, Any]
    systems: Sequence[System]
    architectures: Sequence[Mapping[str, str]]

    def titles(self) -> str:
        """Return the operating systems in words: versions of one system stand together, the oldest first."""
        versions: dict[str, list[str]] = {}
        for system in self.systems:
            name, version = system.title.rsplit(" ", 1)
            versions.setdefault(name, []).insert(0, version)
        words = [f"{name} {' and '.join(found)}" for name, found in versions.items()]
        return f"{', '.join(words[:-1])} and {words[-1]}"


def read(root: Path = ROOT) -> Supported:
    found = yaml.safe_load((root / FILE).read_text(encoding="utf-8"))
    return Supported(**{**found, "systems": [System(**system) for system in found["systems"]]})
