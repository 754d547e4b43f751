# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A configuration while it grows: what the user has, what variables ask for, and what follows from these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Union

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_file.document import unshared
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_file.rules import is_true
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.variables import shown


class Entry(NamedTuple):
    """A step of a path into a list of dictionaries: the one that has this value."""

    key: str
    value: str

    def __str__(self) -> str:
        return self.value


Step = Union[str, Entry]


class Draft:
    """Keeps what is there: a variable that says something else is a problem, and what is derived gives way."""

    def __init__(self, base: Mapping[str, Any] | None = None, name: str = "cluster_config_base") -> None:
        self.config: dict[str, Any] = unshared(base or {})
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.name = name
        self._asked: dict[tuple[str, ...], str] = {}  # by which variable

    def get(self, *path: Step) -> Any:
        there: Any = self.config
        for step in path:
            there = _child(there, step)
        return there

    def ask(self, variable: str, value: Any, *path: Step) -> None:
        """Put the value of a variable in its place. None, and what is empty, asks for nothing."""
        if value is None or value in ("", [], {}):
            return
        there, key = self.get(*path), tuple(str(step) for step in path)
        if there is None:
            self._put(value, path)
        elif not _same(there, value):
            other = self._asked.get(key)
            whose = f"{other} asks for" if other else f"{'/'.join(key)} of {self.name} is"
            self.problems.append(
                f"{variable} is {shown(value)}, and {whose} {shown(there)}; needed: the same, or only one of them"
            )
        self._asked.setdefault(key, variable)

    def derive(self, value: Any, *path: Step) -> None:
        """Put what nobody asked for, where nothing is."""
        if value is not None and self.get(*path) is None:
            self._put(value, path)

    def add(self, value: Any, *path: Step) -> None:
        """Add to a list what is not in it yet."""
        there = self.get(*path)
        if there is None:
            self._put([value], path)
        elif value not in there:
            there.append(value)

    def _put(self, value: Any, path: tuple[Step, ...]) -> None:
        there: Any = self.config
        for number, step in enumerate(path):
            last = number == len(path) - 1
            fits = isinstance(there, list if isinstance(step, Entry) else dict)
            if not fits:
                words = "/".join(str(each) for each in path[:number])
                raise Problem(f"{words} of {self.name} is {shown(there)}; needed: a section, as ParallelCluster has it")
            child = _child(there, step)
            if isinstance(step, Entry):
                if child is None:
                    child = {step.key: step.value}
                    there.append(child)
                if last:
                    child.update(value)
            elif last:
                there[step] = unshared(value)
            elif child is None:
                child = there[step] = [] if isinstance(path[number + 1], Entry) else {}
            there = child


def _same(there: Any, value: Any) -> bool:
    return is_true(there) == value if isinstance(value, bool) else str(there) == str(value)


def _child(there: Any, step: Step) -> Any:
    if isinstance(step, Entry):
        entries = there if isinstance(there, list) else []
        return next((each for each in entries if isinstance(each, Mapping) and each.get(step.key) == step.value), None)
    return there.get(step) if isinstance(there, Mapping) else None
