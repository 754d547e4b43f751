# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One look at a node: what checks read, what they have found, and what is remembered from one look to the next.

Memory lasts as long as the boot: findings begin anew with the next one.
"""

from __future__ import annotations

import os
import time
from typing import Any, Callable

LONGEST = 300  # characters of a finding's evidence
# While a node boots, drivers and services come one after another: so many seconds long, a finding has to last so long.
BOOTING, SETTLING = 300.0, 60.0


class Hangs(Exception):
    """Something did not end within its time; with the process that cannot be ended either, if there is one."""

    def __init__(self, why: str, process: int = 0) -> None:
        super().__init__(why)
        self.process = process


class Look:
    """What one look needs and finds."""

    def __init__(
        self, settings: dict[str, Any], memory: dict[str, Any], root: str = "", now: Callable[[], float] = time.time
    ) -> None:
        self.settings, self.memory, self.root = settings, memory, root
        self.now = now()  # by a clock that nobody sets
        self.ahead = 0.0  # seconds by which the clock that people set is ahead of that
        self.patience = float(settings.get("patience", 5))
        self.skipped: dict[str, str] = {}
        self.findings: dict[tuple[str, str], dict[str, Any]] = {}
        self.kernel_log = ""  # why there is none
        self.save: Callable[[], None] = lambda: None  # writes the memory
        uptime = self.text("/proc/uptime").split(" ")[0]
        self._settling = SETTLING if uptime and float(uptime) < BOOTING else 0.0
        self._seen: dict[str, float] = memory.get("seen", {})
        self._seen_now: dict[str, float] = {}

    def path(self, path: str) -> str:
        return self.root + path

    def text(self, path: str) -> str:
        """Return the text of a file; nothing where the file is gone, or cannot be read."""
        try:
            with open(self.root + path, encoding="utf-8", errors="replace", newline="") as stream:
                return stream.read()
        except OSError:
            return ""

    def exists(self, path: str) -> bool:
        return os.path.exists(self.root + path)

    def names(self, path: str) -> list[str]:
        """Return what is in a folder; nothing where the folder is gone."""
        try:
            return sorted(os.listdir(self.root + path))
        except OSError:
            return []

    def link(self, path: str) -> str:
        """Return the name of what a link leads to."""
        try:
            return os.path.basename(os.readlink(self.root + path))
        except OSError:
            return ""

    def remembered(self, key: str) -> Any:
        """Return what earlier looks have kept under a key: a dictionary."""
        return self.memory.setdefault(key, {})

    def find(
        self, finding: str, evidence: str, subject: str = "", hold: float = 0, kind: str = "", since: float = 0
    ) -> None:
        """Note a finding. One that may pass by itself counts once it has been there for `hold` seconds."""
        key = f"{finding} {subject}"
        begun = self._seen_now[key] = since or self._seen.get(key) or self.now
        hold = hold if since else max(hold, self._settling)
        if self.now - begun < hold or (finding, subject) in self.findings or finding in self.settings["ignored"]:
            return
        self.findings[finding, subject] = {
            "finding": finding,
            "class": kind or self.settings["classes"].get(finding) or "watch",
            "subject": subject,
            "evidence": " ".join(evidence.split())[:LONGEST],
            "since": round(begun, 3),
        }

    def skip(self, check: str, why: str) -> None:
        """Note that a check could not look."""
        self.skipped.setdefault(check, " ".join(why.split())[:LONGEST])

    def result(self) -> list[dict[str, Any]]:
        """Return the findings, and remember since when each of them has been there, by the clock of `now`."""
        self.memory["seen"] = self._seen_now
        return [self.findings[key] for key in sorted(self.findings)]
