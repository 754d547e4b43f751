# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Make a tree of directories in one go, and never on the disk underneath a missing mount."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field


class TreeError(Exception):
    """The tree cannot be made."""


@dataclass(frozen=True)
class Wanted:
    """One directory: where it is below the top, and what it is like."""

    path: str
    mode: int
    uid: int
    gid: int

    def like(self) -> str:
        """Write mode and owner."""
        return _like(self.mode, self.uid, self.gid)


@dataclass
class Result:
    """What was done, or would be."""

    created: list[str] = field(default_factory=list)
    corrected: list[str] = field(default_factory=list)
    left: list[dict[str, str]] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        """Say whether anything differs."""
        return bool(self.created or self.corrected)


def wanted(path: str, mode: str, owner: str, group: str) -> Wanted:
    """Read one entry of the list."""
    clean = os.path.normpath(path)
    if not path or os.path.isabs(path) or clean.split(os.sep)[0] in ("..", "."):
        raise TreeError(f"path {path!r} is not below the tree's top; needed: a relative path without '..'")
    try:
        number = int(str(mode), 8)
    except ValueError as error:
        raise TreeError(f"mode {mode!r} of {path} is no octal number in quotes, such as '0755'") from error
    return Wanted(clean, number, _uid(owner, path), _gid(group, path))


def _uid(name: str, path: str) -> int:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError as error:
        if name.isdigit():
            return int(name)
        raise TreeError(f"owner {name!r} of {path} is no user of this node") from error


def _gid(name: str, path: str) -> int:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError as error:
        if name.isdigit():
            return int(name)
        raise TreeError(f"group {name!r} of {path} is no group of this node") from error


def _like(mode: int, uid: int, gid: int) -> str:
    def name(number: int, find: str) -> str:
        try:
            return pwd.getpwuid(number).pw_name if find == "user" else grp.getgrgid(number).gr_name
        except KeyError:
            return str(number)

    return f"{mode:04o} {name(uid, 'user')}:{name(gid, 'group')}"


def mount_points(text: str) -> list[str]:
    """Return the mount points that a /proc/self/mounts names, automounts that wait aside."""
    points = []
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 3 and fields[2] != "autofs":
            points.append(fields[1].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\"))
    return points


def require_mount(path: str, mounts: str = "/proc/self/mounts") -> None:
    """Fail unless the path is a mount point now."""
    with open(mounts, encoding="utf-8", errors="surrogateescape") as handle:
        if os.path.normpath(path) not in mount_points(handle.read()):
            raise TreeError(
                f"{path} is no mount point at this moment: nothing is written to the disk underneath; mount it first"
            )


def apply(top: str, directories: Sequence[Wanted], enforce: bool, check: bool) -> Result:
    """Make what is missing, parents first, and correct what is there if that is asked for."""
    result = Result()
    if not os.path.isdir(top):
        raise TreeError(f"{top} is no directory: it has to be there before its tree is")
    for one in sorted(directories, key=lambda entry: entry.path.split(os.sep)):
        path = os.path.join(top, one.path)
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            result.created.append(one.path)
            result.before.append(f"{one.path}: absent")
            result.after.append(f"{one.path}: {one.like()}")
            if not check:
                _make(path, one)
            continue
        except NotADirectoryError as error:
            raise TreeError(
                f"{os.path.dirname(path)} is no directory: move it away, or take {one.path} out of the list"
            ) from error
        if stat.S_ISLNK(status.st_mode):
            if not os.path.isdir(path):
                raise TreeError(f"{path} is a link that leads to no directory: repair or remove it")
            continue  # somebody has put it elsewhere, and what is there is theirs
        if not stat.S_ISDIR(status.st_mode):
            raise TreeError(f"{path} is no directory: move it away, or take {one.path} out of the list")
        found = (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)
        if found == (one.mode, one.uid, one.gid):
            continue
        if not enforce:
            result.left.append({"path": one.path, "found": _like(*found), "wanted": one.like()})
            continue
        result.corrected.append(one.path)
        result.before.append(f"{one.path}: {_like(*found)}")
        result.after.append(f"{one.path}: {one.like()}")
        if not check:
            os.chown(path, one.uid, one.gid, follow_symlinks=False)
            os.chmod(path, one.mode)
    return result


def _make(path: str, one: Wanted) -> None:
    try:
        os.mkdir(path, 0o700)  # nobody else enters before it is what it should be
    except FileNotFoundError as error:
        raise TreeError(f"the directory above {path} is not there: put it into the list") from error
    except FileExistsError:
        return  # somebody else has just made it, so it is theirs
    os.chown(path, one.uid, one.gid)
    os.chmod(path, one.mode)
