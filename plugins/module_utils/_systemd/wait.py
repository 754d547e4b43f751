# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Waits until a unit is up and stays so, and says why where it does not."""

from __future__ import annotations

import os
import time

from ansible_collections.pcluster.postboot.plugins.module_utils._host import http
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._systemd import ports, systemctl
from ansible_collections.pcluster.postboot.plugins.module_utils._systemd.request import Request
from ansible_collections.pcluster.postboot.plugins.module_utils._systemd.systemctl import UnitError

# Seconds that a service must stay up before it counts as started: (without, with) `wait_url`. With a URL, because
# another process may hold the port and answer for a service that is about to fail; the seconds are skipped once the
# service's own process is seen to hold the port.
SETTLE_SECONDS = (2.0, 1.0)
# Services of these types tell systemd when they are up, or done.
_TELLING_TYPES = ("oneshot", "notify", "notify-reload")
# A service reads at least so much of `wait_log` in a second, and may take at most so many seconds for it.
LOG_BYTES_A_SECOND = 5_000_000
MOST_LOG_SECONDS = 900.0
_EXIT_STATUS = {
    "200": "WorkingDirectory is missing",
    "203": "the program of ExecStart is missing or not executable",
    "209": "standard output could not be set up",
    "216": "Group does not exist",
    "217": "User does not exist",
    "226": "a path that the sandboxing names is missing",
    "238": "StateDirectory could not be made",
}


def _answers(url: str) -> str | None:
    """Return None if the address answers 2xx, else what it did instead."""
    try:
        http.ask(url, 3, proxies=False).good_text()  # to the end: a server that is cut off logs an error
    except Problem as error:
        return str(error)
    return None


def _size(folder: str | None) -> int:
    """Return how many bytes are in a folder. What vanishes meanwhile, as a log's segments do, counts for nothing."""
    size = 0
    for top, _folders, files in os.walk(folder or ""):
        for name in files:
            try:
                size += os.lstat(os.path.join(top, name)).st_size
            except OSError:
                continue
    return size


def until_up(request: Request, changed: bool) -> tuple[dict[str, str], str]:
    """Return the unit's status once it is up and stays so, or that it still starts; raise what is wrong."""
    name = request.name
    log = _size(request.wait_log)
    request = request._replace(
        wait_seconds=request.wait_seconds + round(min(log / LOG_BYTES_A_SECOND, MOST_LOG_SECONDS))
    )
    deadline = time.monotonic() + request.wait_seconds
    settles = changed and name.endswith(".service") and systemctl.status_of(name).get("Type") not in _TELLING_TYPES
    settle = SETTLE_SECONDS[bool(request.wait_url)] if settles else 0.0
    settle = min(settle, request.wait_seconds / 2)
    since: tuple[float, str] | None = None
    answer: str | None = None
    while True:
        status = systemctl.status_of(name)
        settled = status.get("Job", "0") in ("0", "")
        state = status.get("ActiveState", "")
        if settled and state in ("inactive", "failed") and status.get("SubState") != "auto-restart":
            raise _failure(request, status, None)
        if settled and status.get("ReloadResult") not in ("success", "", None):
            raise UnitError(
                f"{name} could not reload: result {status['ReloadResult']}; {_look_at(request, status)}",
                systemctl.journal_of(name),
            )
        if state == "active" and settled:
            identity = f"{status.get('MainPID')} {status.get('NRestarts')}"
            if since is None or since[1] != identity:
                since = (time.monotonic(), identity)
            stayed = time.monotonic() - since[0] >= settle
            if request.wait_url:
                answer = _answers(request.wait_url)
                sure = stayed or ports.listens(status.get("MainPID", "0"), request.wait_url)
                stayed = answer is None and sure and _same_process(name, identity)
            if stayed:
                return status, ""
        else:
            since = None
        if time.monotonic() >= deadline:
            starting = _still_starts(request, status, answer, log) if since else ""
            if starting:
                return status, starting
            raise _failure(request, status, answer)
        time.sleep(0.1 if changed else 0.5)


def _same_process(name: str, identity: str) -> bool:
    """Tell whether the unit is still up with the same process, so that it was not another one that answered."""
    status = systemctl.status_of(name)
    return status.get("ActiveState") == "active" and f"{status.get('MainPID')} {status.get('NRestarts')}" == identity


def _still_starts(request: Request, status: dict[str, str], answer: str | None, log: int) -> str:
    """Return that a unit is up and not ready yet, as its address for that says; nothing where it does not."""
    identity = f"{status.get('MainPID')} {status.get('NRestarts')}"
    alive = request.wait_alive_url
    if answer is None or not alive or _answers(alive) is not None or not _same_process(request.name, identity):
        return ""
    reads = f"has {log / 1e6:.0f} MB of {request.wait_log} to read and " if log else ""
    ended = int(status.get("NRestarts") or 0)
    again = f" after it ended {ended} times" if ended else ""
    return (
        f"{request.name} is up and still starts{again}: it {reads}answers at {alive}, and not yet at "
        f"{request.wait_url} after {request.wait_seconds:g} s ({answer}); it goes on by itself, "
        f"{_look_at(request, status)}"
    )


def _look_at(request: Request, status: dict[str, str]) -> str:
    """Return where to look: the unit's journal, and its file."""
    file = status.get("FragmentPath")
    return f"see 'journalctl -u {request.name}'{f' and {file}' if file else ''}"


def _failure(request: Request, status: dict[str, str], answer: str | None) -> UnitError:
    name = request.name
    stranger = ports.stranger(name, request.wait_url)
    hint = f"{stranger}; {_look_at(request, status)}" if stranger else _look_at(request, status)
    if status.get("ConditionResult") == "no" and status.get("ConditionTimestampMonotonic", "0") != "0":
        return UnitError(f"{name} was not started: a Condition…= of the unit is not met ('systemctl status {name}')")
    if answer is not None:
        return UnitError(
            f"{name} is active, but {request.wait_url} gave no 2xx answer within {request.wait_seconds:g} s: {answer}; "
            f"{hint}",
            systemctl.journal_of(name),
        )
    code = status.get("ExecMainStatus", "0")
    parts = [f"it is {status.get('ActiveState')}/{status.get('SubState')}"]
    if status.get("Result") not in (None, "", "success"):
        parts.append(f"result {status['Result']}")
    if code not in ("", "0"):
        meaning = _EXIT_STATUS.get(code)
        parts.append(f"exit status {code}" + (f" ({meaning})" if meaning else ""))
    if status.get("NRestarts", "0") not in ("", "0"):
        parts.append(f"{status['NRestarts']} restart(s)")
    goal = f"to answer at {request.wait_url}" if request.wait_url else "and stay so"
    return UnitError(
        f"{name} did not come up {goal} within {request.wait_seconds:g} s: {', '.join(parts)}; {hint}",
        systemctl.journal_of(name),
    )
