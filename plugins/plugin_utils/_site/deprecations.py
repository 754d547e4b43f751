# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What was renamed or removed, as meta/deprecations.yml says, and the one line that tells of it.

It imports nothing of this collection, so that scripts of the repository read it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).absolute().parents[3]
FILE = "meta/deprecations.yml"


class Deprecation(NamedTuple):
    name: str
    since: str
    removed_in: str
    to: str = ""  # the new name, and the old one works; empty where there is none
    because: str = ""
    value: str = ""  # of a variable's words, the one that has a new name
    file: str = ""  # of a program's argument, the program

    def line(self) -> str:
        """Return what whoever still uses the old name is told."""
        if self.value:
            return f"{self.name}: {self.value} is called {self.to} now; the old word works until {self.removed_in}"
        if self.to:
            return f"{self.name} is called {self.to} now; the old name works until {self.removed_in}"
        return f"{self.name} is gone since {self.since}, {self.because}"


@dataclass(frozen=True)
class Deprecations:
    variables: Sequence[Deprecation] = ()
    values: Sequence[Deprecation] = ()
    arguments: Sequence[Deprecation] = ()

    def every(self) -> list[Deprecation]:
        return [*self.variables, *self.values, *self.arguments]

    def gone(self, names: Iterable[str]) -> list[str]:
        """Return a line for each of these variables that does nothing any more."""
        given = set(names)
        return [one.line() for one in self.variables if one.name in given and not one.to]

    def renamed(self, names: Iterable[str]) -> list[str]:
        """Return a line for each of these variables that works by its old name."""
        given = set(names)
        return [one.line() for one in self.variables if one.name in given and one.to]

    def words(self, name: str) -> dict[str, str]:
        """Return the old words that a variable may still have, with the new ones."""
        return {one.value: one.to for one in self.values if one.name == name}

    def old_words(self, name: str, value: Any) -> list[str]:
        """Return a line for each old word in a variable's value, which is a list."""
        given = value if isinstance(value, list) else []
        return [one.line() for one in self.values if one.name == name and one.value in given]


def read(root: Path = ROOT) -> Deprecations:
    found = yaml.safe_load((root / FILE).read_text(encoding="utf-8")) or {}
    return Deprecations(**{kind: [Deprecation(**one) for one in entries] for kind, entries in found.items()})
