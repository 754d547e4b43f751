# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Secrets of a service in files of a folder of its own, which nobody but root and the service's group can read."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._aws import secret as aws_secret
from ansible_collections.pcluster.postboot.plugins.module_utils._host import files
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_LOCAL = "file://"
_FOLDER_MODE, _MODE = 0o750, 0o640


class Request(NamedTuple):
    """The module's options."""

    directory: str
    group: str
    secrets: Mapping[str, Any]
    source: str
    region: str = ""
    named: tuple[str, ...] = ()
    named_by: str = ""
    check: bool = False


class Outcome(NamedTuple):
    """What was done, or in check mode would be."""

    written: list[str]
    removed: list[str]
    changed: bool
    msg: str


def apply(request: Request) -> Outcome:
    """Put every secret into its file, and remove files of secrets that are not asked for any more."""
    group = files.group_id(request.group)
    if group is None and not request.check:
        raise Problem(f"group {request.group!r} is not on this node; make it first")
    _check_names(request)
    _check_named(request, group)
    wanted = {name: _value(request, name) + "\n" for name in sorted(request.secrets)}
    there = {name: os.path.join(request.directory, name) for name in _listed(request.directory)}
    removed = sorted(name for name in there if name not in wanted)
    written = [name for name, text in wanted.items() if not _is(os.path.join(request.directory, name), text, group)]
    left = not wanted and os.path.isdir(request.directory)
    changed = bool(written or removed) or left or (bool(wanted) and not _closed(request.directory, group))
    if changed and not request.check:
        os.makedirs(os.path.dirname(request.directory), mode=0o755, exist_ok=True)
        if not os.path.isdir(request.directory):
            os.mkdir(request.directory, 0o700)
        os.chown(request.directory, -1, group or 0)
        os.chmod(request.directory, _FOLDER_MODE)
        files.sweep(request.directory)
        for name in written:
            files.write(os.path.join(request.directory, name), wanted[name], _MODE, os.geteuid(), group or 0)
        for name in removed:
            os.unlink(there[name])
        if left:
            os.rmdir(request.directory)
    counts = [(len(written), "written"), (len(removed), "removed")]
    told = ", ".join(f"{n} {what}" for n, what in counts if n)
    return Outcome(written, removed, changed, told or "every secret is as it should be")


def _check_names(request: Request) -> None:
    for name, origin in request.secrets.items():
        if not _NAME.fullmatch(str(name)):
            raise Problem(f"{request.source}: found the name {name!r}; needed: letters, digits, and . _ -")
        if not isinstance(origin, str) or not origin.strip():
            raise Problem(
                f"{request.source}: {name} is {origin!r}; needed: the name or ARN of a secret in AWS Secrets Manager, "
                "or file:///path of a file on this node"
            )


def _value(request: Request, name: str) -> str:
    """Return one secret, from where its variable says."""
    source, origin = f"{request.source}[{name!r}]", request.secrets[name]
    if not origin.startswith(_LOCAL):
        return aws_secret.from_aws(origin, name, request.region, source)
    path = origin[len(_LOCAL) :]
    if not os.path.isabs(path):
        raise Problem(f"{source}: found {origin}; needed: an absolute path, as in file:///root/{name}")
    _refuse_open(path, source)
    return aws_secret.from_file(path, source)


def _refuse_open(path: str, source: str) -> None:
    """Refuse a file that others than its owner and its group can read or write."""
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except OSError as error:
        raise Problem(f"{source} {path} cannot be read: {error.strerror}") from error
    if mode & 0o007:
        raise Problem(
            f"{source}: {path} has mode {mode:04o}; needed: 0640 or less, as everybody on the node may read it"
        )


def _check_named(request: Request, group: int | None) -> None:
    """Check that the service will find and read every file that its configuration names, and that nobody else will."""
    for path in request.named:
        found = f"{request.named_by}: found the file {path}"
        folder, name = os.path.split(os.path.normpath(path))
        if not os.path.isabs(path):
            raise Problem(f"{found}; needed: an absolute path, such as {os.path.join(request.directory, path)}")
        if folder == os.path.normpath(request.directory):
            if name not in request.secrets:
                raise Problem(
                    f"{found}; needed: a name of {request.source} ({', '.join(request.secrets) or 'none yet'})"
                )
            continue
        _refuse_open(path, request.named_by)
        status = os.stat(path)
        readable = status.st_gid == group and status.st_mode & stat.S_IRGRP
        owned = files.user_id(request.group) == status.st_uid and status.st_mode & stat.S_IRUSR
        if group is not None and not (readable or owned):
            like = files.like(stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)
            raise Problem(
                f"{found} with {like}; needed: 0640 root:{request.group}, or the service cannot read the file"
            )


def _listed(directory: str) -> list[str]:
    """Return the files of a folder, without what killed runs have left."""
    if not os.path.isdir(directory):
        return []
    with os.scandir(directory) as found:
        names = [one.name for one in found if not one.is_dir(follow_symlinks=False)]
    return [name for name in names if not files.TEMPORARY.match(name)]


def _is(path: str, text: str, group: int | None) -> bool:
    """Say whether a file holds this, and nobody but root and the group can read it."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return False
    like = stat.S_ISREG(status.st_mode) and stat.S_IMODE(status.st_mode) == _MODE
    return like and (status.st_uid, status.st_gid) == (os.geteuid(), group) and files.read(path) == text


def _closed(directory: str, group: int | None) -> bool:
    status = os.stat(directory)
    return (stat.S_IMODE(status.st_mode), status.st_gid) == (_FOLDER_MODE, group)
