# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Brings one systemd unit into a state.

What is due is derived from the node itself, never from what an earlier run remembered, so a run that was killed between
writing a file and restarting its service is finished by the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._systemd import files, plan, ports, systemctl, wait
from ansible_collections.pcluster.postboot.plugins.module_utils._systemd.request import Request, validate
from ansible_collections.pcluster.postboot.plugins.module_utils._systemd.systemctl import UnitError


class Outcome(NamedTuple):
    """What was done, or in check mode would be."""

    actions: list[str]
    diff: list[dict[str, str]]
    status: dict[str, str]
    warnings: list[str]
    pending: str = ""
    starting: str = ""


class _Found(NamedTuple):
    """What a unit is like before anything of it is touched."""

    live: bool
    status: dict[str, str]
    due: dict[str, str | None]
    known: bool
    yields: bool


def apply_all(requests: Sequence[Request]) -> list[Outcome]:
    """Bring units into their states one after another, once nothing is wrong with what is asked for of any of them."""
    brought = {name for request in requests for name in request.companions or {}}
    for request in requests:
        _named(request, lambda one: _look(one, brought))
    return [_named(request, lambda one: apply(one._replace(verify=False))) for request in requests]


def _named(request: Request, step: Callable[[Request], Any]) -> Any:
    """Do a step of one unit among several. What is wrong names the unit."""
    try:
        return step(request)
    except UnitError as error:
        if request.name in str(error):
            raise
        raise UnitError(f"{request.name}: {error}", error.journal) from error


def _look(request: Request, brought: Collection[str] = ()) -> _Found:
    """Return what is there and what is due, and raise what is wrong. `brought` are units that come with others."""
    validate(request)
    live = systemctl.running()
    status = systemctl.status_of(request.name)
    plan.refuse_masked(request, status)
    yields = live and request.yield_to and not systemctl.is_up(status) and ports.answers(request.yield_to)
    wanted = {**files.wanted_files(request), **files.companion_files(request)}
    due = {path: content for path, content in wanted.items() if files.differs(path, content)}
    there = status.get("LoadState", "") not in ("not-found", "") if live else bool(status.get("UnitFileState"))
    known = request.unit is not None or there or request.name in brought
    if yields:
        return _Found(live, status, {}, known, True)
    if not known and not request.check and (request.state == "started" or request.enabled):
        raise UnitError(
            f"{request.name} is not there: no 'unit' was given, and no package brought it; install the package first"
        )
    if request.verify and due:
        files.verify(request, status, wanted)
    return _Found(live, status, due, known, False)


def apply(request: Request) -> Outcome:
    """Bring the unit into the state that is asked for."""
    live, status, due, known, yields = _look(request)
    if yields:
        return Outcome([], [], status, [])
    actions: list[str] = []
    warnings: list[str] = []
    diff = [files.file_diff(path, content) for path, content in due.items()]
    before = _summary(status)
    redefined = status.get("NeedDaemonReload") == "yes"

    files.provide(request, actions, diff)
    for path, content in due.items():
        actions.append("removed" if content is None else "wrote")
        if not request.check:
            files.write(path, content)
    enable = plan.enable_due(request, status, known)
    if enable:
        actions.append(f"{enable}d")
        if not request.check:
            # The one daemon-reload that is needed follows below; each costs running GPU containers something.
            systemctl.tell(*(("--no-reload",) if live else ()), enable, request.name)
    if live and (due or enable or redefined):
        actions.append("reloaded-daemon")
        if not request.check:
            systemctl.tell("daemon-reload")
    if not live:
        if request.state != "present":
            warnings.append(f"no systemd runs here (an image build): {request.name} was not {request.state}")
        warnings = [] if request.state in ("present", "current") else warnings
        return Outcome(list(dict.fromkeys(actions)), diff, status, warnings)

    if not request.check:
        status = systemctl.status_of(request.name)
        if status.get("LoadState") in ("bad-setting", "error"):
            raise UnitError(f"{request.name} cannot be loaded: {status.get('LoadError') or status['LoadState']}")
    change = plan.change_due(request, status, redefined or (request.check and bool(due)))
    pending = _in_use(request) if change == "restart" and request.busy else ""
    if pending:
        warnings.append(pending)
        change = None
    if change:
        actions.append({"start": "started", "stop": "stopped"}.get(change, f"{change}ed"))
        if not request.check:
            _carry_out(change, request, status)
    starting = ""
    if request.state in ("started", "current") and not request.check and _waits(request, status, change):
        status, starting = wait.until_up(request, bool(change))
        warnings += [starting] if starting else []
    elif not request.check:
        status = systemctl.status_of(request.name)
    after = _foretold(before, request, enable, change) if request.check else _summary(status)
    if before != after:
        diff.append({"before_header": request.name, "after_header": request.name, "before": before, "after": after})
    return Outcome(list(dict.fromkeys(actions)), diff, status, warnings, pending, starting)


def _in_use(request: Request) -> str:
    """Return why the unit may not be restarted now, or nothing. Where the program cannot tell, it may not."""
    held = f"{request.name} was not restarted"
    try:
        done = systemctl.program(*request.busy, timeout=20)
    except UnitError as error:
        return f"{held}: {error}; the next run does it"
    if done.code:
        said = (done.err.strip() or f"it ended with {done.code}").splitlines()[0]
        return f"{held}: '{request.busy[0]}' could not tell whether it is in use ({said}); the next run does it"
    users = done.out.split()
    if not users:
        return ""
    more = f" and {len(users) - 5} more" if len(users) > 5 else ""
    return f"{held}: it is in use ({', '.join(users[:5])}{more}); a run while it idles does it"


def _summary(status: dict[str, str]) -> str:
    active = "active" if systemctl.is_up(status) else "inactive"
    return f"active: {active}\nenabled: {status.get('UnitFileState') or 'no'}\n"


def _foretold(before: str, request: Request, enable: str | None, change: str | None) -> str:
    lines = dict(line.split(": ") for line in before.splitlines())
    if enable:
        lines["enabled"] = f"{enable}d"
    if change:
        lines["active"] = "inactive" if change == "stop" else "active"
    return "".join(f"{key}: {value}\n" for key, value in lines.items())


def _waits(request: Request, status: dict[str, str], change: str | None) -> bool:
    return bool(request.wait_url or (change and not systemctl.is_oneshot(status)))


def _carry_out(change: str, request: Request, status: dict[str, str]) -> None:
    name = request.name
    if change == "stop":
        systemctl.tell("stop", name, timeout=systemctl.STOP_SECONDS)
        return
    if status.get("ActiveState") == "failed" or status.get("Result") == "start-limit-hit":
        systemctl.program("systemctl", "reset-failed", name)
    try:
        if systemctl.is_oneshot(status):
            # Its result must be had from the job itself, because systemd may forget the unit as soon as it has ended.
            systemctl.tell(change, name, timeout=request.wait_seconds)
        else:
            # Without blocking: how long it may take is decided by wait_seconds, not by the unit.
            systemctl.tell("--no-block", change, name)
    except UnitError as error:
        raise UnitError(str(error), systemctl.journal_of(name)) from error
