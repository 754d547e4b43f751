# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Puts a set of files in place together, once the program that will read them has accepted all of them."""

from __future__ import annotations

import contextlib
import difflib
import fnmatch
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._host import files
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import NotRun, Said, run

TIMEOUT = 60


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
    """The module's options."""

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
    clean = files.below(path)
    if not clean:
        raise Problem(f"{what}: {path!r} is not below the folder; needed: a relative path without '..'")
    return clean


def _with_newline(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


def normalised(request: Request) -> Request:
    """Refuse what cannot be meant, and return the request with clean paths."""
    if not os.path.isabs(request.path):
        raise Problem(f"path: {request.path!r} is relative; needed: an absolute path")
    files = tuple(
        wanted._replace(path=_inside(wanted.path, "files"), content=_with_newline(wanted.content))
        for wanted in request.files
    )
    seen: set[str] = set()
    for wanted in files:
        if wanted.path in seen:
            raise Problem(f"files: {wanted.path} is listed twice")
        seen.add(wanted.path)
        if not re.fullmatch(r"[0-7]{3,4}", wanted.mode):
            raise Problem(f"mode {wanted.mode!r} of {wanted.path} is no octal number in quotes, such as '0644'")
    return request._replace(
        path=os.path.normpath(request.path),
        files=files,
        purge=tuple(_inside(pattern, "purge") for pattern in request.purge),
    )


def _attributes(wanted: Wanted, check: bool) -> _Attributes:
    uid, gid = files.user_id(wanted.owner), files.group_id(wanted.group)
    for number, name, what in ((uid, wanted.owner, "user"), (gid, wanted.group, "group")):
        # On a fresh host the user comes with a task that check mode only foretells.
        if number is None and not check:
            raise Problem(f"{what} {name!r} of {wanted.path} is not on this node; make it first")
    return _Attributes(int(wanted.mode, 8), uid, gid)


def _found(path: str) -> tuple[str, _Attributes] | None:
    """Return what is there and what it is like; None for nothing, and for a link, which is replaced."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISDIR(status.st_mode):
        raise Problem(f"{path} is a folder; needed: a file, or nothing; move it away")
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
                if files.TEMPORARY.match(entry.name) or entry.is_dir(follow_symlinks=False):
                    continue
                if fnmatch.fnmatchcase(entry.name, name):
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
            if own not in candidates | folders and own not in removed and not files.TEMPORARY.match(name):
                os.symlink(os.path.join(there, name), os.path.join(folder, own))


def _complaint(done: Said, request: Request, folder: str) -> str:
    """Say what the program did not like, with the files where the user knows them and what they were made from."""
    text = done.err if done.err.strip() else done.out
    # amtool says on its standard output what is wrong, after what is right, and on the other one how many files are.
    if "FAILED" in done.out and "FAILED" not in done.err:
        text = re.sub(r"\A(.*\n)*?(?=.*FAILED)", "", done.out)
    lines = [line.strip() for line in text.splitlines() if line.strip() and not re.match(r"\s*WARN", line)]
    said = " ".join(lines) or f"{request.validate[0]} ended with {done.code} and said nothing"
    said = re.sub(r"^FAILED:\s*", "", said)
    sources = [wanted for wanted in request.files if wanted.source]
    blamed = [wanted.source for wanted in sources if f"{folder}/{wanted.path}" in said]
    blamed = blamed or [
        one.source for one in sources if re.search(rf"\b{re.escape(os.path.basename(one.path))}\b", said)
    ]
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
        raise Problem(f"validate: the program {request.validate[0]} is not there; install it first")
    # Only for us: a candidate may hold what its mode will keep from others.
    with files.folder("postboot-files-") as folder:
        folder = os.path.realpath(folder)
        _lay_out(request, removed, folder)
        argv = [word.replace("%s", folder) for word in request.validate]
        try:
            said = run(argv, TIMEOUT, cwd=folder)
        except NotRun as error:
            raise Problem(f"validate: {error}") from error
        if said.code:
            raise Problem(_complaint(said, request, folder))
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


def _install(request: Request, due: Mapping[str, tuple[Wanted, _Attributes]], removed: Sequence[str]) -> None:
    """Write every file beside its place, and only then move them all there."""
    _make_folders(request)
    folders = {os.path.dirname(os.path.join(request.path, path)) for path in [*due, *removed]}
    for folder in folders:
        files.sweep(folder)
    with contextlib.ExitStack() as stack:
        ready = [stack.enter_context(_prepared(os.path.join(request.path, path), *due[path])) for path in due]
        for staged in ready:
            os.rename(staged.path, staged.final)
    for path in removed:
        os.unlink(os.path.join(request.path, path))
    for folder in folders:
        files.sync(folder)


@contextlib.contextmanager
def _prepared(path: str, wanted: Wanted, attributes: _Attributes) -> Iterator[files.Staged]:
    """Write a file beside its place."""
    with files.Staged(path) as staged:
        staged.file.write(wanted.content.encode("utf-8", "surrogateescape"))
        staged.settle(attributes.mode, -1 if attributes.uid is None else attributes.uid, attributes.gid or 0)
        yield staged


def _like(attributes: _Attributes, owner: str = "", group: str = "") -> str:
    mode, _space, names = files.like(attributes.mode, attributes.uid or 0, attributes.gid or 0).partition(" ")
    user, _colon, its_group = names.partition(":")
    return f"{mode} {owner or user}:{group or its_group}"


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
