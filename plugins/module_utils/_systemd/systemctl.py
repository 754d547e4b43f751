# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What systemd says of units, and how it is told what to do."""

from __future__ import annotations

import os
import time

from ansible_collections.pcluster.postboot.plugins.module_utils._host import document
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import NotRun, Said, run

RUNNING = "/run/systemd/system"
# How long a stop may take: systemd waits for TimeoutStopSec, 90 s by default, and then kills the unit's processes.
STOP_SECONDS = 180.0
_PROPERTIES = (
    "LoadState",
    "LoadError",
    "ActiveState",
    "SubState",
    "UnitFileState",
    "NeedDaemonReload",
    "FragmentPath",
    "DropInPaths",
    "Type",
    "RemainAfterExit",
    "Result",
    "ExecMainStatus",
    "ExecMainStartTimestampMonotonic",
    "ActiveEnterTimestampMonotonic",
    "StateChangeTimestampMonotonic",
    "ConditionResult",
    "ConditionTimestampMonotonic",
    "CanReload",
    "StateDirectory",
    "ReloadResult",
    "MainPID",
    "NRestarts",
    "Job",
)


class UnitError(Problem):
    """What is wrong on one line, with the unit's last journal lines where they help."""

    def __init__(self, message: str, journal: list[str] | None = None) -> None:
        super().__init__(message, journal=journal or [])
        self.journal = journal or []


def running() -> bool:
    """Tell whether systemd is this system's init, which in an image build it is not."""
    return os.path.isdir(RUNNING)


def program(*argv: str, timeout: float = 60) -> Said:
    try:
        return run(argv, timeout, environment={"SYSTEMD_PAGER": "", "SYSTEMD_COLORS": "0"})
    except NotRun as error:
        raise UnitError(str(error)) from error


def tell(*argv: str, timeout: float = 60) -> str:
    said = program("systemctl", *argv, timeout=timeout)
    if said.code:
        raise UnitError(f"'{said.command}' failed: {said.first}")
    return said.out


def status_of(name: str) -> dict[str, str]:
    """Return the unit's properties; without a running systemd, only what its files tell."""
    if not running():
        # is-enabled says "disabled" with exit status 1, and "not-found" or nothing with 1 or 4.
        words = program("systemctl", "is-enabled", name).out.split()
        return {"UnitFileState": words[-1] if words and words[-1] != "not-found" else ""}
    text = tell("show", name, "--property=" + ",".join(_PROPERTIES))
    return dict(line.partition("=")[::2] for line in text.splitlines() if "=" in line)


def journal_of(name: str, lines: int = 20) -> list[str]:
    """Return the unit's last lines in the journal."""
    try:
        done = program("journalctl", "--unit", name, "--lines", str(lines), "--no-pager", "--output", "short-iso")
    except UnitError:
        return []
    return [line for line in done.out.splitlines() if not line.startswith("-- ")]


def is_oneshot(status: dict[str, str]) -> bool:
    return status.get("Type") == "oneshot" and status.get("RemainAfterExit") != "yes"


def is_up(status: dict[str, str]) -> bool:
    return status.get("ActiveState") in ("active", "reloading", "activating", "refreshing")


def wall(status: dict[str, str], *properties: str) -> float:
    """Return the latest of some monotonic timestamps of systemd as seconds since the epoch; 0 if there is none."""
    latest = 0
    for name in properties:
        latest = max(latest, document.whole(status.get(name, "")) or 0)
    if not latest:
        return 0.0
    return time.time() - time.clock_gettime(time.CLOCK_MONOTONIC) + latest / 1e6


def started_at(status: dict[str, str]) -> float:
    return wall(status, "ExecMainStartTimestampMonotonic") or wall(status, "ActiveEnterTimestampMonotonic")
