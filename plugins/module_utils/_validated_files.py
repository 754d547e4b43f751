# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Puts a set of files in place together, once the program that will read them has accepted all of them."""

from __future__ import annotations

import difflib
import fnmatch
import grp
import os
import pwd
import re
import shutil
import stat
import tempfile
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import NotRun, Said, run

TIMEOUT = 60
_SUFFIX = ".postboot"


class FilesError(Problem):
    """Why nothing was put in place, on one line."""


class Wanted(NamedTuple):
    """One file: where it is below the folder, and what it is like."""

    path: str
    content: str
    mode: str = "0644"
    owner: str = "root"
    group: str = "root"
    source: str = ""
    force: bool = True


class Request(NamedTuple):
    """What is asked for; the module's documentation tells what each part means."""

    path: str
    files: tuple[Wanted, ...]
    purge: tuple[str, ...] = ()
    validate: tuple[str, ...] = ()
    check: bool = False


class Outcome(NamedTuple):
    """What was done, or in check mode would be."""

    written: list[str]
    removed: list[str]
    validated: bool
    diff: list[dict[str, str]]


class _Attributes(NamedTuple):
    mode: int
    uid: int | None  # None: there is no such user yet
    gid: int | None


def _inside(path: str, what: str) -> str:
    clean = os.path.normpath(path)
    if not path or os.path.isabs(path) or clean.split(os.sep)[0] in (".", ".."):
        raise FilesError(f"{what}: {path!r} is not below the folder; needed: a relative path without '..'")
    return clean


def _with_newline(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


def normalised(request: Request) -> Request:
    """Refuse what cannot be meant, and return the request with clean paths."""
    if not os.path.isabs(request.path):
        raise FilesError(f"path: {request.path!r} is relative; needed: an absolute path")
    files = tuple(
        wanted._replace(path=_inside(wanted.path, "files"), content=_with_newline(wanted.content))
        for wanted in request.files
    )
    seen: set[str] = set()
    for wanted in files:
        if wanted.path in seen:
            raise FilesError(f"files: {wanted.path} is listed twice")
        seen.add(wanted.path)
        if not re.fullmatch(r"[0-7]{3,4}", wanted.mode):
            raise FilesError(f"mode {wanted.mode!r} of {wanted.path} is no octal number in quotes, such as '0644'")
    return request._replace(
        path=os.path.normpath(request.path),
        files=files,
        purge=tuple(_inside(pattern, "purge") for pattern in request.purge),
    )


def _number(name: str, database: str) -> int | None:
    try:
        return pwd.getpwnam(name).pw_uid if database == "user" else grp.getgrnam(name).gr_gid
    except KeyError:
        return int(name) if name.isdigit() else None


def _attributes(wanted: Wanted, check: bool) -> _Attributes:
    uid, gid = _number(wanted.owner, "user"), _number(wanted.group, "group")
    for number, name, what in ((uid, wanted.owner, "user"), (gid, wanted.group, "group")):
        # On a fresh host the user comes with a task that check mode only foretells.
        if number is None and not check:
            raise FilesError(f"{what} {name!r} of {wanted.path} is not on this node; make it first")
    return _Attributes(int(wanted.mode, 8), uid, gid)


def _found(path: str) -> tuple[str, _Attributes] | None:
    """Return what is there and what it is like; None for nothing, and for a link, which is replaced."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISDIR(status.st_mode):
        raise FilesError(f"{path} is a folder; needed: a file, or nothing; move it away")
    if not stat.S_ISREG(status.st_mode):
        return None
    with open(path, encoding="utf-8", errors="surrogateescape", newline="") as stream:
        return stream.read(), _Attributes(stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)


def _strangers(request: Request) -> list[str]:
    """Return the files that match a pattern of `purge` and are not wanted."""
    wanted = {file.path for file in request.files}
    found = set()
    for pattern in request.purge:
        folder, name = os.path.split(pattern)
        where = os.path.join(request.path, folder)
        if not os.path.isdir(where):
            continue
        with os.scandir(where) as entries:
            for entry in entries:
                if fnmatch.fnmatchcase(entry.name, name) and not entry.is_dir(follow_symlinks=False):
                    found.add(os.path.join(folder, entry.name))
    return sorted(found - wanted)


def _lay_out(request: Request, removed: Sequence[str], folder: str) -> None:
    """Write the candidates under their own names, with links beside them to what else is in their folders."""
    candidates = {wanted.path for wanted in request.files}
    folders = {""}
    for path in candidates:
        parts = path.split(os.sep)[:-1]
        folders |= {os.path.join(*parts[: n + 1]) for n in range(len(parts))}
    for path in sorted(folders - {""}):
        os.mkdir(os.path.join(folder, path), 0o700)
    for wanted in request.files:
        path = os.path.join(folder, wanted.path)
        with open(path, "w", encoding="utf-8", errors="surrogateescape", newline="") as stream:
            stream.write(wanted.content)
    for path in folders:
        there = os.path.join(request.path, path)
        for name in os.listdir(there) if os.path.isdir(there) else ():
            own = os.path.join(path, name)
            if own not in candidates | folders and own not in removed and not name.endswith(_SUFFIX):
                os.symlink(os.path.join(there, name), os.path.join(folder, own))


def _complaint(done: Said, request: Request, folder: str) -> str:
    """Say what the program did not like, with the files where the user knows them and what they were made from."""
    text = done.err if done.err.strip() else done.out
    lines = [line.strip() for line in text.splitlines() if line.strip() and not re.match(r"\s*WARN", line)]
    said = " ".join(lines) or f"{request.validate[0]} ended with {done.code} and said nothing"
    said = re.sub(r"^FAILED:\s*", "", said)
    blamed = [wanted.source for wanted in request.files if wanted.source and f"{folder}/{wanted.path}" in said]
    said = said.replace(f"{folder}/", os.path.join(request.path, "")).replace(folder, request.path)
    said = said if len(said) <= 600 else said[:597] + "..."
    advice = f"; correct {', '.join(dict.fromkeys(blamed))}" if blamed else ""
    return f"{os.path.basename(request.validate[0])}: {said}{advice}; nothing in {request.path} was changed"


def _validate(request: Request, removed: Sequence[str]) -> bool:
    """Let the program read the candidates; return whether it could be asked."""
    if not request.validate:
        return False
    if not shutil.which(request.validate[0]):
        if request.check:  # a task before this one would have brought it
            return False
        raise FilesError(f"validate: the program {request.validate[0]} is not there; install it first")
    # Only for us: a candidate may hold what its mode will keep from others.
    with tempfile.TemporaryDirectory(prefix="postboot-files-") as folder:
        folder = os.path.realpath(folder)
        _lay_out(request, removed, folder)
        argv = [word.replace("%s", folder) for word in request.validate]
        try:
            said = run(argv, TIMEOUT, cwd=folder)
        except NotRun as error:
            raise FilesError(f"validate: {error}") from error
        if said.code:
            raise FilesError(_complaint(said, request, folder))
    return True


def _make_folders(request: Request) -> None:
    """Make the folders that are missing, those above the first one included. The umask has no say."""
    for wanted in request.files:
        folder = os.path.dirname(os.path.join(request.path, wanted.path))
        missing = []
        while not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for path in reversed(missing):
            os.mkdir(path)
            os.chmod(path, 0o755)


def _temporary(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}{_SUFFIX}")


def _prepare(path: str, wanted: Wanted, attributes: _Attributes) -> None:
    """Write a file beside its place."""
    temporary = _temporary(path)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8", errors="surrogateescape", newline="") as stream:
        os.fchmod(descriptor, 0o600)  # a killed run may have left it open to others
        stream.write(wanted.content)
        stream.flush()
        os.fchown(descriptor, -1 if attributes.uid is None else attributes.uid, attributes.gid or 0)
        os.fchmod(descriptor, attributes.mode)
        os.fsync(descriptor)


def _install(request: Request, due: Mapping[str, tuple[Wanted, _Attributes]], removed: Sequence[str]) -> None:
    """Write every file beside its place, and only then move them all there."""
    _make_folders(request)
    paths = {os.path.join(request.path, path): content for path, content in due.items()}
    try:
        for path, (wanted, attributes) in paths.items():
            _prepare(path, wanted, attributes)
    except OSError:
        for path in paths:
            if os.path.lexists(_temporary(path)):
                os.unlink(_temporary(path))
        raise
    for path in paths:
        os.rename(_temporary(path), path)
    for path in removed:
        os.unlink(os.path.join(request.path, path))
    for folder in {os.path.dirname(path) for path in [*paths, *(os.path.join(request.path, p) for p in removed)]}:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _like(attributes: _Attributes, owner: str = "", group: str = "") -> str:
    def name(number: int | None, database: str) -> str:
        try:
            return pwd.getpwuid(number or 0).pw_name if database == "user" else grp.getgrgid(number or 0).gr_name
        except KeyError:
            return str(number)

    return f"{attributes.mode:04o} {owner or name(attributes.uid, 'user')}:{group or name(attributes.gid, 'group')}"


def _difference(path: str, before: tuple[str, str], after: tuple[str, str]) -> dict[str, str]:
    """Return a diff of (content, attributes) in Ansible's form for one that is ready to be shown."""
    heads = [f"{path} ({like})" for _content, like in (before, after)]
    lines = list(
        difflib.unified_diff(before[0].splitlines(), after[0].splitlines(), heads[0], heads[1], lineterm="", n=2)
    )
    return {"prepared": "\n".join(lines or [f"--- {heads[0]}", f"+++ {heads[1]}"]) + "\n"}


def apply(request: Request) -> Outcome:
    """Put the files in place, all of them or none."""
    request = normalised(request)
    removed = _strangers(request)
    mine = [one for one in request.files if one.force or not os.path.lexists(os.path.join(request.path, one.path))]
    request = request._replace(files=tuple(mine))
    due: dict[str, tuple[Wanted, _Attributes]] = {}
    diff = []
    for wanted in request.files:
        attributes = _attributes(wanted, request.check)
        path = os.path.join(request.path, wanted.path)
        found = _found(path)
        if found == (wanted.content, attributes):
            continue
        due[wanted.path] = (wanted, attributes)
        before = (found[0], _like(found[1])) if found else ("", "absent")
        diff.append(_difference(path, before, (wanted.content, _like(attributes, wanted.owner, wanted.group))))
    for name in removed:
        path = os.path.join(request.path, name)
        found = _found(path)
        before = (found[0], _like(found[1])) if found else ("", "a link")
        diff.append(_difference(path, before, ("", "absent")))
    # Also when nothing changes: the program may be another one than the one that accepted these files.
    validated = _validate(request, removed)
    if (due or removed) and not request.check:
        _install(request, due, removed)
    return Outcome(sorted(due), removed, validated, diff)
