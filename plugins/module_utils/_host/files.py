# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The one way to put a file in place: whole, with its mode and owner; and who owns what is there.

A file is written under a temporary name beside its place and then renamed. The temporary name begins with a dot, which
whatever reads a directory of configuration passes over, and it tells whose it is, so that a later run can remove what a
killed one has left.

In a directory in which other users may make entries, such as /tmp, only those of this process' user count (`own`), and
a file there is opened without following a link or waiting for a pipe (`open_regular`).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import grp
import hashlib
import os
import pwd
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from typing import IO, TypeVar

from ansible_collections.pcluster.postboot.plugins.module_utils._host.process import machine_id, process_started

_Named = TypeVar("_Named")
STALE_AFTER = 3600.0  # seconds without a write, for temporary files whose maker cannot be asked
TEMPORARY = re.compile(r"\.(?P<final>.+)\.pcpb-(?P<kind>tmp|old)-(?P<owner>[0-9a-f]{8}-\d+-\d+)-[0-9a-f]{8}\Z")


def write(path: str, content: str | bytes, mode: int = 0o644, uid: int = -1, gid: int = -1, tidy: bool = True) -> None:
    """Put a file in place whole: readers see the old one or the new one. A link is replaced, and not followed.

    tidy: whether what killed runs have left in its directory goes, for which the whole directory is read
    """
    if tidy:
        sweep(os.path.dirname(path))
    with Staged(path) as staged:
        staged.file.write(content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape"))
        staged.settle(mode, uid, gid)
        os.replace(staged.path, path)


def read(path: str) -> str | None:
    """Return a file's text, which `write` puts back to the byte; None where there is no such file."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as stream:
            return stream.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def diff(what: str, before: str, after: str) -> dict[str, str]:
    """Return a change as Ansible's diff mode shows it."""
    return {"before_header": what, "after_header": what, "before": before, "after": after}


class Staged:
    """A file under a temporary name beside its final one; it goes unless it is committed."""

    def __init__(self, final: str) -> None:
        self.final = final
        self.path = temp_name(final)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self.file: IO[bytes] = os.fdopen(os.open(self.path, flags, 0o600), "w+b")

    def settle(self, mode: int, uid: int = -1, gid: int = -1) -> None:
        """Give the file its mode and owner and have it on the disk, still under its temporary name."""
        self.file.flush()
        fd = self.file.fileno()
        os.fchown(fd, uid, gid)
        os.fchmod(fd, mode)
        os.fsync(fd)
        self.file.close()

    def commit(self) -> os.stat_result:
        """Give the settled file its final name, also after a power cut; return its status."""
        os.replace(self.path, self.final)
        sync(os.path.dirname(self.final))
        return os.lstat(self.final)

    def discard(self) -> None:
        """Remove the file if it still has its temporary name."""
        with contextlib.suppress(OSError):
            self.file.close()  # on a full disk: what cannot be flushed is not wanted any more
        remove(self.path)

    def __enter__(self) -> Staged:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.discard()


# --- temporary names ------------------------------------------------------------------------------------------------


@functools.cache
def machine() -> str:
    """Return what tells this set of processes from any other that may share a file system with it."""
    return hashlib.sha256(machine_id().encode()).hexdigest()[:8]


def _started(pid: int) -> str:
    """Return when a process started, in digits; 0 when there is no such process."""
    return re.sub(r"\D", "", process_started(pid)) or "0"


def owner() -> str:
    """Return the tag of this process: machine, process and when it started."""
    pid = os.getpid()
    return f"{machine()}-{pid}-{_started(pid)}"


def owner_alive(tag: str) -> bool | None:
    """Tell whether the process with this tag lives; None when it is on another machine and cannot be asked."""
    if tag == owner():
        return True
    host, pid, start = tag.split("-")
    if host != machine():
        return None
    return start != "0" and _started(int(pid)) == start


def temp_name(final: str, kind: str = "tmp") -> str:
    """Return a new hidden name beside `final` from which any later run can tell whose it is."""
    directory, name = os.path.split(final)
    return os.path.join(directory, f".{name[:180]}.pcpb-{kind}-{owner()}-{secrets.token_hex(4)}")


def sweep(directory: str) -> None:
    """Remove what killed runs left in a directory; put a tree back that one had moved aside and not replaced."""
    for entry, match in own(directory, TEMPORARY.match):
        with contextlib.suppress(OSError):  # what cannot be removed is no reason to fail
            if not _abandoned(entry.path, match["owner"]):
                continue
            final = os.path.join(directory, match["final"])
            if match["kind"] == "old" and not os.path.lexists(final):
                os.rename(entry.path, final)
            else:
                discard(entry.path)


def own(directory: str, named: Callable[[str], _Named | None]) -> Iterator[tuple[os.DirEntry[str], _Named]]:
    """Yield the entries of a directory that are not another user's, each with what `named` returns for its name.

    Another user may make, rename and remove entries meanwhile. In a directory that only this process' user can write,
    every entry counts, because a file may have got its final owner before its final name.
    """
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        status = os.stat(directory)
        closed = status.st_uid == os.geteuid() and not status.st_mode & 0o022
        for entry in entries:
            found = named(entry.name)
            with contextlib.suppress(OSError):  # it has vanished
                if found and (closed or entry.stat(follow_symlinks=False).st_uid == os.geteuid()):
                    yield entry, found


def _abandoned(path: str, tag: str) -> bool:
    alive = owner_alive(tag)
    if alive is not None:
        return not alive
    try:
        return _now_of(os.path.dirname(path)) - os.lstat(path).st_mtime > STALE_AFTER
    except OSError:  # it is gone, or nothing can be written there, nor removed
        return False


def _now_of(directory: str) -> float:
    """Return the time by the clock of the file system, which stamps the files of all machines."""
    probe = temp_name(os.path.join(directory, "clock"))
    descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
        os.unlink(probe)


def remove(path: str) -> None:
    """Remove a file or a whole tree, whether it is there or not."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.EPERM) or not os.path.isdir(path) or os.path.islink(path):
            raise
        shutil.rmtree(path)


def discard(path: str) -> None:
    """Remove a file or a tree of no more use as far as that is possible: cleaning up is never worth a failure."""
    with contextlib.suppress(OSError, RecursionError):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)


@contextlib.contextmanager
def folder(prefix: str, place: str | None = None) -> Iterator[str]:
    """Make a folder that only this process' user can enter, where temporary files are, and remove it afterwards."""
    path = tempfile.mkdtemp(prefix=prefix, dir=place)
    try:
        yield path
    finally:
        discard(path)


def sync(path: str) -> None:
    """Make a file, or the renames in a directory, survive a power cut, where the file system can."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)


def open_regular(path: str, follow: bool = False) -> IO[bytes]:
    """Open a regular file, and nothing else: no pipe that would never answer, nor a link unless to `follow`."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return os.fdopen(fd, "rb")


def peek(path: str, most: int = 1 << 20) -> str:
    """Return a text file that another machine or user may have put there, or the first `most` bytes of it."""
    with open_regular(path) as stream:
        return stream.read(most).decode("utf-8", "replace")


def sha256_of(path: str) -> str:
    """Return a file's sha256."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


# --- paths and owners -----------------------------------------------------------------------------------------------


def below(path: str) -> str:
    """Return a relative path in its shortest form; nothing for one that is empty, absolute, or leads outside."""
    clean = os.path.normpath(path)
    return "" if not path or os.path.isabs(path) or clean.split(os.sep)[0] in (".", "..") else clean


def user_id(name: str) -> int | None:
    """Return the id of a user by name or number; None where this node has no such name."""
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return int(name) if name.isdigit() else None


def group_id(name: str) -> int | None:
    """Return the id of a group by name or number; None where this node has no such name."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return int(name) if name.isdigit() else None


def user_called(uid: int) -> str:
    """Return the name of a user, or the id where there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def like(mode: int, uid: int, gid: int) -> str:
    """Write mode and owner, such as 0644 root:root."""
    try:
        group = grp.getgrgid(gid).gr_name
    except KeyError:
        group = str(gid)
    return f"{mode:04o} {user_called(uid)}:{group}"
