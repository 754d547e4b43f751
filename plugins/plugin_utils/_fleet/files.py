# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a rollout leaves on the controller: a report of all nodes, and the names of those that `--limit @file` takes."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Sequence
from typing import Any

from ansible_collections.pcluster.postboot.plugins.module_utils._host import files
from ansible_collections.pcluster.postboot.plugins.module_utils._slurm.names import natural


class Files:
    """The report, and beside it the names of the nodes that do not run the bundle."""

    def __init__(self, report: str, nodes: Sequence[str]) -> None:
        self.report = os.path.abspath(os.path.expanduser(report))
        self.limit = self.report.removesuffix(".json") + ".limit"
        visited = set(nodes)
        # What another run has left, of nodes that this one does not visit.
        self._others = [name for name in self._read() if name not in visited]
        self._written = ""

    def note(self, left: Iterable[str]) -> None:
        """Say which nodes of this run are left. Without any, and none of another run's, there is no such file."""
        text = "".join(f"{name}\n" for name in sorted({*self._others, *left}, key=natural))
        if text and text != self._written:
            files.write(self.limit, text)
        elif not text and os.path.exists(self.limit):
            os.remove(self.limit)
        self._written = text

    def write(self, found: dict[str, Any]) -> None:
        # Reports tell paths and versions of nodes, to nobody who has no business with them.
        files.write(self.report, json.dumps(found, indent=1) + "\n", 0o600)

    def _read(self) -> list[str]:
        try:
            with open(self.limit, encoding="utf-8") as stream:
                return stream.read().split()
        except FileNotFoundError:
            return []


def screen(process: int) -> int | None:
    """Open what a process prints to: Ansible reads nothing more from a task once it was interrupted."""
    path = f"/proc/{process}/fd/1"
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOCTTY)
    except OSError:
        pass  # another operating system; the report says it, too
    return None
