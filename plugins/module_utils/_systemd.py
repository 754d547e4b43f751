# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Brings one systemd unit into a state.

What is due is derived from the node itself, never from what an earlier run remembered, so a run that was killed between
writing a file and restarting its service is finished by the next one.
"""

from __future__ import annotations

import grp
import http.client
import os
import pwd
import re
import shutil
import stat
import tempfile
import time
import urllib.parse
import urllib.request
from typing import NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import NotRun, Said, run

RUNNING = "/run/systemd/system"
SYSUSERS = "/etc/sysusers.d"
TMPFILES = "/etc/tmpfiles.d"
LATE_TMPFILES = "/etc/pcluster-postboot/tmpfiles.d"
SUFFIXES = (".service", ".socket", ".timer", ".path", ".mount", ".automount", ".target", ".slice")
# How long a service must stay up before it counts as started: without an address to ask, and with one. The latter keeps
# another process that already holds the port from answering for one that is about to fail on it, and is not waited for
# where the service's own process is seen to hold the port.
SETTLE_SECONDS = (2.0, 1.0)
_TELLING_TYPES = ("oneshot", "notify", "notify-reload")
# How much of `wait_log` is read in a second at least, and how long it is waited for at most.
LOG_BYTES_A_SECOND = 5_000_000
MOST_LOG_SECONDS = 900.0
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
_EXIT_STATUS = {
    "200": "WorkingDirectory is missing",
    "203": "the program of ExecStart is missing or not executable",
    "209": "standard output could not be set up",
    "216": "Group does not exist",
    "217": "User does not exist",
    "226": "a path that the sandboxing names is missing",
    "238": "StateDirectory could not be made",
}


class UnitError(Problem):
    """What is wrong on one line, with the unit's last journal lines where they help."""

    def __init__(self, message: str, journal: list[str] | None = None) -> None:
        super().__init__(message, journal=journal or [])
        self.journal = journal or []


class Request(NamedTuple):
    """What is asked for; the module's documentation tells what each part means."""

    name: str
    unit: str | None = None
    dropins: dict[str, str | None] | None = None
    companions: dict[str, str | None] | None = None
    sysusers: str | None = None
    tmpfiles: str | None = None
    tmpfiles_late: str | None = None
    state: str = "started"
    enabled: bool | None = None
    restart_on: tuple[str, ...] = ()
    reload_on: tuple[str, ...] = ()
    busy: tuple[str, ...] = ()
    verify: bool = True
    wait_url: str | None = None
    wait_seconds: float = 15
    wait_log: str | None = None
    wait_alive_url: str | None = None
    directory: str = "/etc/systemd/system"
    check: bool = False


class Outcome(NamedTuple):
    """What was done, or in check mode would be."""

    actions: list[str]
    diff: list[dict[str, str]]
    status: dict[str, str]
    warnings: list[str]
    pending: str = ""
    starting: str = ""


def running() -> bool:
    """Tell whether systemd is this system's init, which in an image build it is not."""
    return os.path.isdir(RUNNING)


def _program(*argv: str, timeout: float = 60) -> Said:
    try:
        return run(argv, timeout, environment={"SYSTEMD_PAGER": "", "SYSTEMD_COLORS": "0"})
    except NotRun as error:
        raise UnitError(str(error)) from error


def _systemctl(*argv: str, timeout: float = 60) -> str:
    said = _program("systemctl", *argv, timeout=timeout)
    if said.code:
        raise UnitError(f"'{said.command}' failed: {said.first}")
    return said.out


def status_of(name: str) -> dict[str, str]:
    """Return the unit's properties; without a running systemd, only what its files tell."""
    if not running():
        # is-enabled says "disabled" with exit status 1, and "not-found" or nothing with 1 or 4.
        words = _program("systemctl", "is-enabled", name).out.split()
        return {"UnitFileState": words[-1] if words and words[-1] != "not-found" else ""}
    text = _systemctl("show", name, "--property=" + ",".join(_PROPERTIES))
    return dict(line.partition("=")[::2] for line in text.splitlines() if "=" in line)


def journal_of(name: str, lines: int = 20) -> list[str]:
    """Return the unit's last lines in the journal."""
    try:
        done = _program("journalctl", "--unit", name, "--lines", str(lines), "--no-pager", "--output", "short-iso")
    except UnitError:
        return []
    return [line for line in done.out.splitlines() if not line.startswith("-- ")]


def changed_at(path: str) -> float:
    """Return when a file, or what it links to, last changed; a folder stands for what is directly in it; 0 if absent.

    The time is ctime: unpacking and renaming keep or set mtime at will.
    """
    times = [0.0]
    for read in (os.lstat, os.stat):
        try:
            times.append(read(path).st_ctime)
        except OSError:
            continue
    if os.path.isdir(path):
        times += [entry.stat(follow_symlinks=False).st_ctime for entry in os.scandir(path)]
    return max(times)


def _wall(status: dict[str, str], *properties: str) -> float:
    """Return the latest of some monotonic timestamps of systemd as seconds since the epoch; 0 if there is none."""
    latest = 0
    for name in properties:
        value = status.get(name, "")
        latest = max(latest, int(value) if value.isdigit() else 0)
    if not latest:
        return 0.0
    return time.time() - time.clock_gettime(time.CLOCK_MONOTONIC) + latest / 1e6


def _is_oneshot(status: dict[str, str]) -> bool:
    return status.get("Type") == "oneshot" and status.get("RemainAfterExit") != "yes"


def _is_up(status: dict[str, str]) -> bool:
    return status.get("ActiveState") in ("active", "reloading", "activating", "refreshing")


def _started_at(status: dict[str, str]) -> float:
    return _wall(status, "ExecMainStartTimestampMonotonic") or _wall(status, "ActiveEnterTimestampMonotonic")


def _with_newline(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"


def _wanted_files(request: Request) -> dict[str, str | None]:
    """Return the content of every file by its path; None for one that must not be there."""
    path = os.path.join(request.directory, request.name)
    files: dict[str, str | None] = {}
    if request.unit is not None:
        files[path] = _with_newline(request.unit)
    for name, content in (request.dropins or {}).items():
        files[os.path.join(f"{path}.d", name)] = None if content is None else _with_newline(content)
    return files


def _companion_files(request: Request) -> dict[str, str | None]:
    """Return the content of the units and drop-ins beside this one. They change nothing about its process."""
    return {
        os.path.join(request.directory, name): None if content is None else _with_newline(content)
        for name, content in (request.companions or {}).items()
    }


def _missing_accounts(sysusers: str) -> list[str]:
    """Return the users and groups that a sysusers.d file names and that are not there."""
    missing = []
    for line in sysusers.splitlines():
        kind, _space, rest = line.strip().partition(" ")
        name = rest.split()[0] if rest.split() else ""
        try:
            if kind.startswith("u"):
                pwd.getpwnam(name)
            elif kind == "g":
                grp.getgrnam(name)
        except KeyError:
            missing.append(name)
    return missing


def _wrong_directories(tmpfiles: str) -> list[str]:
    """Return the directories that a tmpfiles.d file wants and that are not so."""
    return [line.split()[1] for line in tmpfiles.splitlines() if line.startswith("d ") and not _as_wanted(line)]


def _as_wanted(line: str) -> bool:
    path, mode, user, group = (line.split()[1:5] + ["-"] * 4)[:4]
    try:
        found = os.lstat(path)
        return (
            stat.S_ISDIR(found.st_mode)
            and (mode == "-" or stat.S_IMODE(found.st_mode) == int(mode, 8))
            and (user == "-" or pwd.getpwnam(user).pw_uid == found.st_uid)
            and (group == "-" or grp.getgrnam(group).gr_gid == found.st_gid)
        )
    except (OSError, KeyError):
        return False


def _provide(request: Request, actions: list[str], diff: list[dict[str, str]]) -> None:
    """Make the users and directories that the unit needs, as systemd's own tools would at boot."""
    stem = request.name.rpartition(".")[0]
    create = ["systemd-tmpfiles", "--create"]
    for content, folder, lacking, program, action in (
        (request.sysusers, SYSUSERS, _missing_accounts, ["systemd-sysusers"], "made-users"),
        (request.tmpfiles, TMPFILES, _wrong_directories, create, "made-directories"),
        (request.tmpfiles_late, LATE_TMPFILES, _wrong_directories, create, "made-directories"),
    ):
        if content is None:
            continue
        path, content = os.path.join(folder, f"{stem}.conf"), _with_newline(content)
        if _differs(path, content):
            _add(actions, "wrote")
            diff.append(_file_diff(path, content))
            if not request.check:
                _write(path, content)
        if not lacking(content):
            continue
        _add(actions, action)
        if not request.check:
            done = _program(*program, path)
            left = lacking(content)
            if left:
                said = done.last
                raise UnitError(f"'{' '.join(program)} {path}' did not provide {', '.join(left)}: {said}")


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as stream:
            return stream.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _differs(path: str, content: str | None) -> bool:
    if content is None:
        return os.path.lexists(path)
    if os.path.islink(path) or _read(path) != content:
        return True
    return os.stat(path).st_mode & 0o7777 != 0o644


def _write(path: str, content: str | None) -> None:
    """Put a file in place in one step. Its temporary name begins with a dot, which systemd passes over."""
    if content is None:
        os.unlink(path)
        return
    folder, name = os.path.split(path)
    os.makedirs(folder, mode=0o755, exist_ok=True)
    temporary = os.path.join(folder, f".{name}.postboot")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as stream:
            stream.write(content)
            stream.flush()
            os.fchmod(stream.fileno(), 0o644)
            os.fsync(stream.fileno())
        os.rename(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise


def validate(request: Request) -> None:
    """Refuse what cannot be meant."""
    name = request.name
    if not re.fullmatch(r"[\w:.@\\-]+", name, re.ASCII) or not name.endswith(SUFFIXES):
        raise UnitError(f"name: {name!r} is no unit's name; expected one that ends in {', '.join(SUFFIXES)}")
    if "@." in name and request.state != "present":
        raise UnitError(f"state: {name} is a template, it cannot be {request.state}; name an instance, or use present")
    if request.unit is not None and not request.unit.strip():
        raise UnitError(f"unit: the content for {name} is empty; leave it out where a package brings the unit")
    for companion in request.companions or {}:
        unit, beside, dropin = companion.partition(".d/")
        if not re.fullmatch(r"[\w:.@\\-]+", unit, re.ASCII) or not unit.endswith(SUFFIXES):
            raise UnitError(
                f"companions: {companion!r} is no unit's name; expected one that ends in {', '.join(SUFFIXES)}, or a "
                "drop-in such as demo.service.d/10-demo.conf"
            )
        if beside:
            _refuse_unread("companions", dropin)
    for dropin in request.dropins or {}:
        _refuse_unread("dropins", dropin)


def _refuse_unread(option: str, dropin: str) -> None:
    if not re.fullmatch(r"[\w:@-][\w:.@-]*\.conf", dropin, re.ASCII):
        raise UnitError(f"{option}: {dropin!r} would not be read by systemd; expected a name such as 10-path.conf")


def _refuse_masked(request: Request, status: dict[str, str]) -> None:
    link = os.path.join(request.directory, request.name)
    masked = status.get("LoadState") == "masked" or status.get("UnitFileState", "").startswith("masked")
    if not masked and os.path.islink(link):
        masked = os.readlink(link) == os.devnull
    if masked and (request.state != "stopped" or request.unit is not None or request.enabled):
        raise UnitError(
            f"{request.name} is masked on this node, so it can neither be enabled nor started: "
            f"'systemctl unmask {request.name}' undoes that, or disable the role's component"
        )


def _verify(request: Request, status: dict[str, str], files: dict[str, str | None]) -> None:
    """Let systemd-analyze read the files under their final names in a folder of their own; raise what it says."""
    if not shutil.which("systemd-analyze"):
        return
    unit = request.unit if request.unit is not None else _read(status.get("FragmentPath") or "")
    if unit is None:
        return
    with tempfile.TemporaryDirectory(prefix="postboot-unit-") as folder:
        for path, content in {**files, os.path.join(request.directory, request.name): unit}.items():
            if content is not None:
                _write(os.path.join(folder, os.path.relpath(path, request.directory)), content)
        beside = [name for name, content in (request.companions or {}).items() if content is not None]
        own = [request.name, *(name for name in beside if "/" not in name)]
        done = _program("systemd-analyze", "--man=no", "verify", *(os.path.join(folder, name) for name in own))
    output = [line for line in (done.out + done.err).splitlines() if line.strip()]
    output = [line.replace(f"{folder}/", "") for line in output]
    name = f"(?:{'|'.join(map(re.escape, own))})"
    # What a package's own unit is told of is not this step's affair; only our drop-ins are.
    mark = rf"(^|[\s/]){name}(:|\.d/)" if request.unit is not None else rf"(^|[\s/]){name}\.d/"
    marks = [mark, *(rf"(^|[\s/]){re.escape(name)}:" for name in beside)]
    complaints = [line for line in output if re.search("|".join(marks), line)]
    if request.check:
        # On a fresh host the program and the units it needs come with tasks that check mode only foretells.
        complaints = [line for line in complaints if not re.search(r"not executable|not found|No such file", line)]
    elif done.code and not output:
        complaints = [f"{request.name}: systemd-analyze verify ended with {done.code}"]
    if complaints:
        more = f" (and {len(complaints) - 1} more)" if len(complaints) > 1 else ""
        raise UnitError(f"unit: systemd would not take it as it is: {complaints[0]}{more}")


def _file_diff(path: str, content: str | None) -> dict[str, str]:
    return {
        "before_header": path,
        "after_header": path,
        "before": _read(path) or "",
        "after": content or "",
    }


def _enable_due(request: Request, status: dict[str, str], known: bool) -> str | None:
    """Return enable, disable or None."""
    wanted = request.enabled
    state = status.get("UnitFileState", "")
    if wanted is None and request.state != "started":
        return None
    if wanted is False:
        return "disable" if state in ("enabled", "enabled-runtime", "linked", "linked-runtime") else None
    if state in ("enabled", "alias", "indirect", "generated", "transient"):
        return None
    content = request.unit if request.unit is not None else _read(status.get("FragmentPath") or "")
    installable = content is None or re.search(r"^\s*\[Install\]\s*$", content, re.MULTILINE)
    if not installable or (state == "static" and request.unit is None):
        if wanted is None:
            return None
        raise UnitError(f"enabled: {request.name} has no [Install] section, it cannot be enabled; set enabled: false")
    return "enable" if known or request.check else None


def _newest(request: Request, status: dict[str, str]) -> float:
    """Return when the newest of the files that a process was started from changed."""
    # The folder of drop-ins changes when one is removed.
    folder = os.path.join(request.directory, f"{request.name}.d")
    paths = [status.get("FragmentPath", ""), *status.get("DropInPaths", "").split(), *_wanted_files(request), folder]
    # What generators write below /run is written anew with every daemon-reload.
    times = [changed_at(path) for path in paths if path and not path.startswith("/run/")]
    return max([0.0, *times, *(changed_at(path) for path in request.restart_on)])


def _change_due(request: Request, status: dict[str, str], redefined: bool) -> str | None:
    """Return what must happen to the running unit: start, restart, reload, stop or None."""
    if request.state == "present":
        return None
    if request.state == "stopped":
        return "stop" if _is_up(status) else None
    if request.state == "current" and not _is_up(status):
        return None
    started = _started_at(status)
    outdated = redefined or _newest(request, status) > started
    if _is_oneshot(status):
        failed = status.get("Result") not in (None, "", "success") or not started
        return "start" if (outdated or failed) and status.get("ActiveState") != "activating" else None
    if not _is_up(status):
        return "start"
    if outdated:
        return "restart"
    read = _wall(status, "StateChangeTimestampMonotonic", "ExecMainStartTimestampMonotonic")
    if any(changed_at(path) > read for path in request.reload_on):
        return "reload" if status.get("CanReload") == "yes" else "restart"
    return None


def apply(request: Request) -> Outcome:
    """Bring the unit into the state that is asked for."""
    validate(request)
    live = running()
    status = status_of(request.name)
    _refuse_masked(request, status)
    files = {**_wanted_files(request), **_companion_files(request)}
    due = {path: content for path, content in files.items() if _differs(path, content)}
    known = request.unit is not None or status.get("LoadState", "") not in ("not-found", "")
    if not live:
        known = request.unit is not None or bool(status.get("UnitFileState"))
    if not known and not request.check and (request.state == "started" or request.enabled):
        raise UnitError(
            f"{request.name} is not there: no 'unit' was given, and no package brought it; install the package first"
        )
    if request.verify and due:
        _verify(request, status, files)
    actions: list[str] = []
    warnings: list[str] = []
    diff = [_file_diff(path, content) for path, content in due.items()]
    before = _summary(status)
    redefined = status.get("NeedDaemonReload") == "yes"

    _provide(request, actions, diff)
    for path, content in due.items():
        _add(actions, "removed" if content is None else "wrote")
        if not request.check:
            _write(path, content)
    enable = _enable_due(request, status, known)
    if enable:
        _add(actions, f"{enable}d")
        if not request.check:
            # The one daemon-reload that is needed follows below; each costs running GPU containers something.
            _systemctl(*(("--no-reload",) if live else ()), enable, request.name)
    if live and (due or enable or redefined):
        _add(actions, "reloaded-daemon")
        if not request.check:
            _systemctl("daemon-reload")
    if not live:
        if request.state != "present":
            warnings.append(f"no systemd runs here (an image build): {request.name} was not {request.state}")
        return Outcome(actions, diff, status, [] if request.state in ("present", "current") else warnings)

    if not request.check:
        status = status_of(request.name)
        if status.get("LoadState") in ("bad-setting", "error"):
            raise UnitError(f"{request.name} cannot be loaded: {status.get('LoadError') or status['LoadState']}")
    change = _change_due(request, status, redefined or (request.check and bool(due)))
    pending = _in_use(request) if change == "restart" and request.busy else ""
    if pending:
        warnings.append(pending)
        change = None
    if change:
        _add(actions, {"start": "started", "stop": "stopped"}.get(change, f"{change}ed"))
        if not request.check:
            _carry_out(change, request, status)
    starting = ""
    if request.state in ("started", "current") and not request.check and _waits(request, status, change):
        status, starting = _wait(request, bool(change))
        warnings += [starting] if starting else []
    elif not request.check:
        status = status_of(request.name)
    after = _foretold(before, request, enable, change) if request.check else _summary(status)
    if before != after:
        diff.append({"before_header": request.name, "after_header": request.name, "before": before, "after": after})
    return Outcome(actions, diff, status, warnings, pending, starting)


def _in_use(request: Request) -> str:
    """Return why the unit may not be restarted now, or nothing. Where the program cannot tell, it may not."""
    held = f"{request.name} was not restarted"
    try:
        done = _program(*request.busy, timeout=20)
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


def _add(actions: list[str], word: str) -> None:
    if word not in actions:
        actions.append(word)


def _summary(status: dict[str, str]) -> str:
    active = "active" if _is_up(status) else "inactive"
    return f"active: {active}\nenabled: {status.get('UnitFileState') or 'no'}\n"


def _foretold(before: str, request: Request, enable: str | None, change: str | None) -> str:
    lines = dict(line.split(": ") for line in before.splitlines())
    if enable:
        lines["enabled"] = f"{enable}d"
    if change:
        lines["active"] = "inactive" if change == "stop" else "active"
    return "".join(f"{key}: {value}\n" for key, value in lines.items())


def _waits(request: Request, status: dict[str, str], change: str | None) -> bool:
    return bool(request.wait_url or (change and not _is_oneshot(status)))


def _carry_out(change: str, request: Request, status: dict[str, str]) -> None:
    name = request.name
    if change == "stop":
        _systemctl("stop", name)
        return
    if status.get("ActiveState") == "failed" or status.get("Result") == "start-limit-hit":
        _program("systemctl", "reset-failed", name)
    try:
        if _is_oneshot(status):
            # Its result must be had from the job itself, because systemd may forget the unit as soon as it has ended.
            _systemctl(change, name, timeout=request.wait_seconds)
        else:
            # Without blocking: how long it may take is decided by wait_seconds, not by the unit.
            _systemctl("--no-block", change, name)
    except UnitError as error:
        raise UnitError(str(error), journal_of(name)) from error


def _answers(url: str) -> str | None:
    """Return None if the address answers 2xx, else what it did instead."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=3) as response:
            while response.read(65536):  # to the end: a server that is cut off logs an error
                pass
            return None if 200 <= response.status < 300 else f"it answered {response.status}"
    except (OSError, http.client.HTTPException, ValueError) as error:
        return str(error) or type(error).__name__


def _port(url: str) -> int:
    return urllib.parse.urlsplit(url).port or 80


def _listening(process: str, port: int) -> set[str]:
    """Return the sockets that listen on a port in a process' network, as its open files name them."""
    found = set()
    for table in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{process}/net/{table}", encoding="ascii") as lines:
                fields = [line.split() for line in lines]
        except FileNotFoundError:  # a kernel without IPv6
            continue
        # local address, state (0A listens) and inode
        found |= {f"socket:[{f[9]}]" for f in fields if f[1].endswith(f":{port:04X}") and f[3] == "0A"}
    return found


def _has_open(process: str, files: set[str]) -> bool:
    folder = f"/proc/{process}/fd"
    try:
        numbers = os.listdir(folder)
    except OSError:
        return False
    for number in numbers:
        try:
            if os.readlink(f"{folder}/{number}") in files:
                return True
        except OSError:  # it was closed in the meantime
            continue
    return False


def _listens(process: str, url: str) -> bool:
    """Tell whether a process itself holds the port of an address, so that no other can be the one that answers."""
    try:
        return _has_open(process, _listening(process, _port(url)))
    except (OSError, ValueError):
        return False


def _unit_of(process: str) -> str:
    """Return the unit whose control group a process is in; nothing where that is no unit's."""
    try:
        with open(f"/proc/{process}/cgroup", encoding="utf-8") as lines:
            path = lines.read().rstrip().rpartition(":")[2]
    except OSError:
        return ""
    units = [part for part in path.split("/") if part.endswith((".service", ".scope"))]
    return units[0] if units else ""


def _stranger(name: str, url: str | None) -> str:
    """Return which process of no or another unit holds the port of an address, for a message; nothing if none does."""
    try:
        port = _port(url or "")
        listening = _listening("self", port) if url else set()
        holders = [each for each in os.listdir("/proc") if each.isdigit() and listening and _has_open(each, listening)]
        if not holders or any(_unit_of(each) == name for each in holders):
            return ""
        holder = min(holders, key=int)  # a server is older than the processes that share its socket
        with open(f"/proc/{holder}/comm", encoding="utf-8", errors="replace") as stream:
            program = stream.read().strip()
    except (OSError, ValueError):
        return ""
    unit = _unit_of(holder)
    whose = f" of {unit}" if unit.endswith(".service") else ""
    return (
        f"port {port} is held by {program} (pid {holder}{whose}), not by {name}: "
        "stop it, or give the component another address"
    )


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


def _wait(request: Request, changed: bool) -> tuple[dict[str, str], str]:
    """Return the unit's status once it is up and stays so, or that it still starts; raise what is wrong."""
    name = request.name
    log = _size(request.wait_log)
    request = request._replace(
        wait_seconds=request.wait_seconds + round(min(log / LOG_BYTES_A_SECOND, MOST_LOG_SECONDS))
    )
    deadline = time.monotonic() + request.wait_seconds
    # One that tells systemd itself that it is up, or that it has done all it had to do, need not be watched.
    settles = changed and name.endswith(".service") and status_of(name).get("Type") not in _TELLING_TYPES
    settle = SETTLE_SECONDS[bool(request.wait_url)] if settles else 0.0
    settle = min(settle, request.wait_seconds / 2)
    since: tuple[float, str] | None = None
    answer: str | None = None
    while True:
        status = status_of(name)
        settled = status.get("Job", "0") in ("0", "")
        state = status.get("ActiveState", "")
        if settled and state in ("inactive", "failed") and status.get("SubState") != "auto-restart":
            raise _failure(request, status, None)
        if settled and status.get("ReloadResult") not in ("success", "", None):
            raise UnitError(
                f"{name} could not reload: result {status['ReloadResult']}; {_look_at(request, status)}",
                journal_of(name),
            )
        if state == "active" and settled:
            identity = f"{status.get('MainPID')} {status.get('NRestarts')}"
            if since is None or since[1] != identity:
                since = (time.monotonic(), identity)
            stayed = time.monotonic() - since[0] >= settle
            if request.wait_url:
                answer = _answers(request.wait_url)
                sure = stayed or _listens(status.get("MainPID", "0"), request.wait_url)
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
    status = status_of(name)
    return status.get("ActiveState") == "active" and f"{status.get('MainPID')} {status.get('NRestarts')}" == identity


def _look_at(request: Request, status: dict[str, str]) -> str:
    """Return where to look: the unit's journal, and its file."""
    file = status.get("FragmentPath")
    return f"see 'journalctl -u {request.name}'{f' and {file}' if file else ''}"


def _failure(request: Request, status: dict[str, str], answer: str | None) -> UnitError:
    name = request.name
    stranger = _stranger(name, request.wait_url)
    hint = f"{stranger}; {_look_at(request, status)}" if stranger else _look_at(request, status)
    if status.get("ConditionResult") == "no" and status.get("ConditionTimestampMonotonic", "0") != "0":
        return UnitError(f"{name} was not started: a Condition…= of the unit is not met ('systemctl status {name}')")
    if answer is not None:
        return UnitError(
            f"{name} is active, but {request.wait_url} gave no 2xx answer within {request.wait_seconds:g} s: {answer}; "
            f"{hint}",
            journal_of(name),
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
        journal_of(name),
    )
