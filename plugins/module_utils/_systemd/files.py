# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The files, users and directories of a unit, and what systemd-analyze says of them."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import re
import shutil
import stat

from ansible_collections.pcluster.postboot.plugins.module_utils._host import files as host_files
from ansible_collections.pcluster.postboot.plugins.module_utils._systemd import systemctl
from ansible_collections.pcluster.postboot.plugins.module_utils._systemd.request import Request
from ansible_collections.pcluster.postboot.plugins.module_utils._systemd.systemctl import UnitError

SYSUSERS = "/etc/sysusers.d"
TMPFILES = "/etc/tmpfiles.d"
LATE_TMPFILES = "/etc/pcluster-postboot/tmpfiles.d"


def _with_newline(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"


def wanted_files(request: Request) -> dict[str, str | None]:
    """Return the content of every file by its path; None for one that must not be there."""
    path = os.path.join(request.directory, request.name)
    files: dict[str, str | None] = {}
    if request.unit is not None:
        files[path] = _with_newline(request.unit)
    for name, content in (request.dropins or {}).items():
        files[os.path.join(f"{path}.d", name)] = None if content is None else _with_newline(content)
    return files


def companion_files(request: Request) -> dict[str, str | None]:
    """Return the content of the units and drop-ins beside this one. They change nothing about its process."""
    return {
        os.path.join(request.directory, name): None if content is None else _with_newline(content)
        for name, content in (request.companions or {}).items()
    }


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
        for entry in os.scandir(path):
            with contextlib.suppress(OSError):  # it has vanished
                times.append(entry.stat(follow_symlinks=False).st_ctime)
    return max(times)


def read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as stream:
            return stream.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def differs(path: str, content: str | None) -> bool:
    if content is None:
        return os.path.lexists(path)
    if os.path.islink(path) or read(path) != content:
        return True
    return os.stat(path).st_mode & 0o7777 != 0o644


def write(path: str, content: str | None) -> None:
    """Put a file in place in one step. Its temporary name begins with a dot, which systemd passes over."""
    if content is None:
        os.unlink(path)
        return
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    host_files.write(path, content)


def file_diff(path: str, content: str | None) -> dict[str, str]:
    return {
        "before_header": path,
        "after_header": path,
        "before": read(path) or "",
        "after": content or "",
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


def provide(request: Request, actions: list[str], diff: list[dict[str, str]]) -> None:
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
        if differs(path, content):
            actions.append("wrote")
            diff.append(file_diff(path, content))
            if not request.check:
                write(path, content)
        if not lacking(content):
            continue
        actions.append(action)
        if not request.check:
            done = systemctl.program(*program, path)
            left = lacking(content)
            if left:
                raise UnitError(f"'{' '.join(program)} {path}' did not provide {', '.join(left)}: {done.reason}")


def verify(request: Request, status: dict[str, str], files: dict[str, str | None]) -> None:
    """Let systemd-analyze read the files under their final names in a folder of their own; raise what it says."""
    if not shutil.which("systemd-analyze"):
        return
    unit = request.unit if request.unit is not None else read(status.get("FragmentPath") or "")
    if unit is None:
        return
    with host_files.folder("postboot-unit-") as folder:
        for path, content in {**files, os.path.join(request.directory, request.name): unit}.items():
            if content is not None:
                write(os.path.join(folder, os.path.relpath(path, request.directory)), content)
        beside = [name for name, content in (request.companions or {}).items() if content is not None]
        own = [request.name, *(name for name in beside if "/" not in name)]
        done = systemctl.program("systemd-analyze", "--man=no", "verify", *(os.path.join(folder, name) for name in own))
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
