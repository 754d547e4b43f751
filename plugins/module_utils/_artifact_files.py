# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How anything reaches its final name: a temporary name beside it, fsync, rename; and who may sweep up what is left."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import hashlib
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable
from typing import IO

from ansible_collections.pcluster.postboot.plugins.module_utils._artifact_model import ArtifactError, algorithm

CHUNK = 1 << 20
STALE_AFTER = 3600.0  # seconds without a write, for temporary files whose maker cannot be asked

_TEMP = re.compile(r"\.(?P<final>.+)\.pcpb-(?P<kind>tmp|old)-(?P<owner>[0-9a-f]{8}-\d+-\d+)-[0-9a-f]{8}\Z")
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100


@functools.cache
def machine() -> str:
    """Return what tells this set of processes from any other that may share a file system with it."""
    parts = [os.uname().nodename]
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            parts.append(file.read().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    except OSError:
        pass  # not Linux: the host's name has to do
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]


def _started(pid: int) -> int:
    """Return when a process started, in the kernel's ticks; 0 when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])


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
    return start != "0" and _started(int(pid)) == int(start)


def temp_name(final: str, kind: str = "tmp") -> str:
    """Return a new hidden name beside `final` from which any later run can tell whose it is."""
    directory, name = os.path.split(final)
    return os.path.join(directory, f".{name[:180]}.pcpb-{kind}-{owner()}-{secrets.token_hex(4)}")


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


def sweep(directory: str) -> None:
    """Remove what killed runs left in a directory; put a tree back that one had moved aside and not replaced."""
    names = []
    with contextlib.suppress(OSError):
        names = os.listdir(directory)
    for name in names:
        match = _TEMP.match(name)
        path = os.path.join(directory, name)
        if not match or not _abandoned(path, match["owner"]):
            continue
        final = os.path.join(directory, match["final"])
        with contextlib.suppress(OSError):  # what cannot be removed is no reason to fail
            if match["kind"] == "old" and not os.path.lexists(final):
                os.rename(path, final)
            else:
                remove(path)


def _abandoned(path: str, tag: str) -> bool:
    alive = owner_alive(tag)
    if alive is not None:
        return not alive
    try:
        return time.time() - os.lstat(path).st_mtime > STALE_AFTER
    except FileNotFoundError:
        return False


def sync_directory(path: str) -> None:
    """Make renames in a directory survive a power cut, where its file system can."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)


def sync_file_system(path: str) -> None:
    """Flush the file system that holds a new tree: one call instead of an fsync for each of its files."""
    fd = os.open(path, os.O_RDONLY)
    try:
        if _libc("syncfs", fd) != 0:
            os.sync()
    finally:
        os.close(fd)


def exchange(one: str, other: str) -> bool:
    """Swap two names in one atomic step; False where the file system cannot (NFS, Lustre)."""
    arguments = (_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    return _libc("renameat2", *arguments) == 0


def _libc(function: str, *arguments: int | bytes) -> int:
    try:
        return int(getattr(ctypes.CDLL(None, use_errno=True), function)(*arguments))
    except (AttributeError, OSError):
        return -1


def scratch(directory: str) -> IO[bytes]:
    """Return a file without a name: whatever kills this process removes it."""
    os.makedirs(directory, exist_ok=True)
    try:
        fd = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
        path = temp_name(os.path.join(directory, "scratch"))
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.unlink(path)
    return os.fdopen(fd, "w+b")


class Staged:
    """A file under a temporary name beside its final one; it goes unless it is committed."""

    def __init__(self, final: str) -> None:
        os.makedirs(os.path.dirname(final), exist_ok=True)
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
        """Give the settled file its final name; return its status."""
        os.replace(self.path, self.final)
        sync_directory(os.path.dirname(self.final))
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


class Sink:
    """A file that gathers a download; when it cannot be written, nobody takes that for a fault of the source."""

    def __init__(self, file: IO[bytes], place: str) -> None:
        self.file = file
        self._place = place

    def restart(self) -> None:
        """Forget what was gathered."""
        self.file.seek(0)
        self.file.truncate()

    def write(self, chunk: bytes) -> None:
        """Gather some more."""
        try:
            self.file.write(chunk)
        except OSError as error:
            raise ArtifactError(advise(error, self._place)) from error

    def finish(self) -> None:
        """Have every byte in the file, and the file at its beginning."""
        try:
            self.file.seek(0)
        except OSError as error:
            raise ArtifactError(advise(error, self._place)) from error


def copy(source: IO[bytes], write: Callable[[bytes], object], kind: str = "sha256") -> tuple[int, str]:
    """Read a file to its end; hand every chunk to `write`; return the size and hash of what went by."""
    digest, size = hashlib.new(kind), 0
    while True:
        chunk = source.read(CHUNK)
        if not chunk:
            return size, digest.hexdigest()
        digest.update(chunk)
        size += len(chunk)
        write(chunk)


def has_digest(path: str, digest: str) -> bool:
    """Tell whether a regular file has this sha256 or sha512."""
    with open_regular(path) as file:
        return copy(file, len, algorithm(digest))[1] == digest


def open_regular(path: str, follow: bool = False) -> IO[bytes]:
    """Open a regular file, and nothing else: no pipe that would never answer, nor a link unless to `follow`."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return os.fdopen(fd, "rb")


def explain(error: OSError, path: str) -> str:
    """Return an operating system's error as one line; `path` is what was worked on when it names none itself."""
    named = error.filename if error.filename2 is None else error.filename2
    if isinstance(named, (str, bytes)):
        directory, name = os.path.split(os.fsdecode(named))
        temporary = _TEMP.match(name)
        path = os.path.join(directory, temporary["final"] if temporary else name)
    return f"{path}: {error.strerror or error}"


def advise(error: OSError, path: str) -> str:
    """Return the same with what to do about it, where that is evident."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return explain(error, path) + (": free some space, then run again" if full else "")
