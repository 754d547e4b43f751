# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Make a tree of directories in one go, and never on the disk underneath a missing mount.

A directory of the tree may belong to an ordinary user, who may put a link in its place at any moment. So each directory
is opened from the one above it, never by its whole path, and what is open gets its owner and mode.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import stat
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from ansible_collections.pcluster.postboot.plugins.module_utils._host import files
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import run
from ansible_collections.pcluster.postboot.plugins.module_utils._node import storage

MOST_LINKS = 40
MOUNTINFO = "/proc/self/mountinfo"
# The layout of new files in a directory of Lustre: small files stay on one storage target, large ones lie on all, so
# that a file which many nodes read at once is not served by one of them.
SPREAD = ("lfs", "setstripe", "-E", "1M", "-c", "1", "-S", "1M", "-E", "-1", "-c", "-1", "-S", "1M", ".")
LFS_TIMEOUT = 60
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class LinkError(Problem):
    """A link is not followed."""

    def __init__(self, path: str, user: str) -> None:
        super().__init__(
            f"{path} is a link of user {user}, and is not followed; remove it, or run: chown -h root {path}"
        )
        self.found = f"a link of user {user}"


@dataclass(frozen=True)
class Wanted:
    """One directory: where it is below the top, and what it is like."""

    path: str
    mode: int
    uid: int
    gid: int
    spread: bool = False

    def like(self) -> str:
        """Write mode and owner."""
        return files.like(self.mode, self.uid, self.gid)


@dataclass
class Result:
    """What was done, or would be."""

    created: list[str] = field(default_factory=list)
    corrected: list[str] = field(default_factory=list)
    left: list[dict[str, str]] = field(default_factory=list)
    links: list[str] = field(default_factory=list)  # of other users, each in a sentence
    open: list[str] = field(default_factory=list)  # directories in which other users may replace things
    narrow: list[str] = field(default_factory=list)  # directories that did not get their layout, each in a sentence
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        """Say whether anything differs."""
        return bool(self.created or self.corrected)


def wanted(path: str, mode: str, owner: str, group: str, spread: bool = False) -> Wanted:
    """Read one entry of the list."""
    clean = files.below(path)
    if not clean:
        raise Problem(f"path {path!r} is not below the tree's top; needed: a relative path without '..'")
    try:
        number = int(str(mode), 8)
    except ValueError as error:
        raise Problem(f"mode {mode!r} of {path} is no octal number in quotes, such as '0755'") from error
    uid, gid = files.user_id(owner), files.group_id(group)
    if uid is None:
        raise Problem(f"owner {owner!r} of {path} is no user of this node")
    if gid is None:
        raise Problem(f"group {group!r} of {path} is no group of this node")
    return Wanted(clean, number, uid, gid, spread)


def require_mount(path: str, mounts: str = "") -> None:
    """Fail unless the path is a mount point now, and not an automount that waits."""
    if os.path.normpath(path) not in {mount["path"] for mount in storage.mounts(mounts) if mount["type"] != "autofs"}:
        raise Problem(
            f"{path} is no mount point at this moment: nothing is written to the disk underneath; mount it first"
        )


def is_lustre(directory: int) -> bool:
    """Say whether an open directory is on Lustre."""
    device = os.fstat(directory).st_dev
    with open(MOUNTINFO, encoding="utf-8", errors="surrogateescape", newline="\n") as handle:
        for line in handle:
            before, _dash, after = line.partition(" - ")
            if before.split(" ")[2] == f"{os.major(device)}:{os.minor(device)}":
                return after.split(" ")[0] == "lustre"
    return False


def spread(directory: int) -> str:
    """Stripe a directory's large files over all storage targets; return why that failed."""
    try:
        # In the directory itself, as its path may lead elsewhere by now.
        run(SPREAD, LFS_TIMEOUT, cwd=f"/proc/self/fd/{directory}", merged=True).output()
    except Problem as error:
        return str(error)
    return ""


def trusted(users: Sequence[str]) -> set[int]:
    """Return who may lead this process elsewhere: root, itself, and these users."""
    uids = {0, os.geteuid()}
    for user in users:
        with contextlib.suppress(KeyError):
            uids.add(pwd.getpwnam(user).pw_uid)
    return uids


@contextlib.contextmanager
def opened(path: str, trust: Collection[int], start: int | None = None) -> Iterator[int]:
    """Open a directory, from another or from the root, and follow no link on the way but those of trusted users."""
    at = os.open("/", _DIRECTORY) if start is None else os.dup(start)
    rest, links = path.split("/"), 0
    try:
        while rest:
            name = rest.pop(0) or "."
            try:
                below = os.open(name, _DIRECTORY, dir_fd=at)
            except OSError as error:
                target = _target(name, at, trust) if error.errno in (errno.ELOOP, errno.ENOTDIR) else ""
                links += 1
                if not target or links > MOST_LINKS:
                    raise
                rest = [*target.split("/"), *rest]
                below = os.open("/" if target.startswith("/") else ".", _DIRECTORY, dir_fd=at)
            os.close(at)
            at = below
        yield at
    finally:
        os.close(at)


def _target(name: str, at: int, trust: Collection[int]) -> str:
    """Return where a link of a trusted user leads; nothing for what is no link."""
    link = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    try:
        status = os.fstat(link)
        if not stat.S_ISLNK(status.st_mode):
            return ""
        if status.st_uid not in trust:
            raise LinkError(os.readlink(f"/proc/self/fd/{link}"), files.user_called(status.st_uid))
        return os.readlink("", dir_fd=link)
    finally:
        os.close(link)


def apply(top: str, directories: Sequence[Wanted], enforce: bool, check: bool, users: Sequence[str] = ()) -> Result:
    """Make what is missing, parents first, and correct what is there if that is asked for."""
    tree = _Tree(top, enforce, check, trusted(users))
    with contextlib.ExitStack() as stack:
        try:
            start = stack.enter_context(opened(os.path.abspath(top), tree.trust))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise Problem(f"{top} is no directory: it has to be there before its tree is") from error
        tree.judge(top, os.fstat(start))
        for one in sorted(directories, key=lambda entry: entry.path.split(os.sep)):
            tree.go(one, start)
    return tree.result


class _Tree:
    """Goes from one directory to the next."""

    def __init__(self, top: str, enforce: bool, check: bool, trust: set[int]) -> None:
        self.top, self.enforce, self.check, self.trust = top, enforce, check, trust
        self.result = Result()

    def go(self, one: Wanted, start: int) -> None:
        """Make or correct one directory."""
        above, name = os.path.split(one.path)
        path = os.path.join(self.top, one.path)
        try:
            with opened(above, self.trust, start) as parent:
                self._see_to(one, path, name, parent)
        except LinkError as error:
            self.result.left.append({"path": one.path, "found": error.found, "wanted": one.like()})
            if str(error) not in self.result.links:
                self.result.links.append(str(error))
        except FileNotFoundError as error:
            if not self.check or above not in self.result.created:
                raise Problem(f"the directory above {path} is not there: put it into the list") from error
            self._note(self.result.created, one, "absent")
        except NotADirectoryError as error:
            raise Problem(
                f"{os.path.dirname(path)} is no directory: move it away, or take {one.path} out of the list"
            ) from error

    def _see_to(self, one: Wanted, path: str, name: str, parent: int) -> None:
        try:
            with self._there(one, path, name, parent) as there:
                self._correct(one, path, there)
        except FileNotFoundError:
            self._note(self.result.created, one, "absent")
            if not self.check:
                self._make(one, path, name, parent)

    @contextlib.contextmanager
    def _there(self, one: Wanted, path: str, name: str, parent: int) -> Iterator[int | None]:
        """Open what is there; None for a link, since what it leads to is not ours to change."""
        try:
            there = os.open(name, _DIRECTORY, dir_fd=parent)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            if not _target(name, parent, self.trust):
                raise Problem(f"{path} is no directory: move it away, or take {one.path} out of the list") from error
            try:
                with opened(name, self.trust, parent):
                    pass
            except OSError as lost:
                raise Problem(
                    f"{path} is a link that leads to no directory ({lost.strerror}): repair or remove it"
                ) from lost
            yield None
            return
        try:
            yield there
        finally:
            os.close(there)

    def _correct(self, one: Wanted, path: str, there: int | None) -> None:
        if there is None:
            return
        status = os.fstat(there)
        found = (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)
        if found == (one.mode, one.uid, one.gid):
            return
        if not self.enforce:
            self.result.left.append({"path": one.path, "found": files.like(*found), "wanted": one.like()})
            self.judge(path, status, one.uid)
            return
        self._note(self.result.corrected, one, files.like(*found))
        if not self.check:
            os.fchown(there, one.uid, one.gid)
            os.fchmod(there, one.mode)

    def _make(self, one: Wanted, path: str, name: str, parent: int) -> None:
        try:
            os.mkdir(name, 0o700, dir_fd=parent)  # nobody else enters before it is what it should be
        except FileExistsError:
            return  # somebody else has just made it, so it is theirs
        try:
            made = os.open(name, _DIRECTORY, dir_fd=parent)
        except OSError as error:
            raise Problem(f"{path} was taken away while it was made ({error.strerror}): see who can") from error
        try:
            if os.fstat(made).st_uid != os.geteuid():
                raise Problem(
                    f"{path} is not root's, who has just made it: somebody has put another in its place, "
                    "or the file system takes root for another user (root_squash)"
                )
            if one.spread and is_lustre(made):
                self._spread(path, made)
            os.fchown(made, one.uid, one.gid)
            os.fchmod(made, one.mode)
        finally:
            os.close(made)

    def _spread(self, path: str, made: int) -> None:
        why = spread(made)
        if why:
            self.result.narrow.append(
                f"{path} was made, and its large files may lie on one storage target of Lustre each ({why}); needed: "
                f"{' '.join(SPREAD[:-1])} {path}"
            )

    def judge(self, path: str, status: os.stat_result, owner: int = 0) -> None:
        """Remember a directory in which users can replace what others have made."""
        loose = status.st_mode & 0o002 and not status.st_mode & stat.S_ISVTX
        if status.st_uid not in {*self.trust, owner} or loose:
            found = files.like(stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)
            self.result.open.append(f"{path} ({found})")

    def _note(self, where: list[str], one: Wanted, before: str) -> None:
        where.append(one.path)
        self.result.before.append(f"{one.path}: {before}")
        self.result.after.append(f"{one.path}: {one.like()}")
