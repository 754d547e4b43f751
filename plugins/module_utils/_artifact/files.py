# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What artifacts need of a file system beside the ground floor: scratch files, hashes, and two names exchanged."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
from collections.abc import Callable
from typing import IO

from ansible_collections.pcluster.postboot.plugins.module_utils._artifact.model import algorithm
from ansible_collections.pcluster.postboot.plugins.module_utils._host import files as host_files
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem

CHUNK = 1 << 20

_RENAME_EXCHANGE = 2
_AT_FDCWD = -100


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
        path = host_files.temp_name(os.path.join(directory, "scratch"))
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.unlink(path)
    return os.fdopen(fd, "w+b")


class Staged(host_files.Staged):
    """A staged file whose parent directories are made."""

    def __init__(self, final: str) -> None:
        os.makedirs(os.path.dirname(final), exist_ok=True)
        super().__init__(final)


class Sink:
    """A file for a download; an error of writing is a Problem, so that the source is not blamed."""

    def __init__(self, file: IO[bytes], place: str) -> None:
        self.file = file
        self._place = place

    def restart(self) -> None:
        """Empty the file."""
        self.file.seek(0)
        self.file.truncate()

    def write(self, chunk: bytes) -> None:
        """Add a chunk."""
        try:
            self.file.write(chunk)
        except OSError as error:
            raise Problem(advise(error, self._place)) from error

    def finish(self) -> None:
        """Flush the file and go to its beginning."""
        try:
            self.file.seek(0)
        except OSError as error:
            raise Problem(advise(error, self._place)) from error


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
    with host_files.open_regular(path) as file:
        return copy(file, len, algorithm(digest))[1] == digest


def explain(error: OSError, path: str) -> str:
    """Return an operating system's error as one line; `path` is what was worked on when it names none itself."""
    named = error.filename if error.filename2 is None else error.filename2
    if isinstance(named, (str, bytes)):
        directory, name = os.path.split(os.fsdecode(named))
        temporary = host_files.TEMPORARY.match(name)
        path = os.path.join(directory, temporary["final"] if temporary else name)
    return f"{path}: {error.strerror or error}"


def advise(error: OSError, path: str) -> str:
    """Return the error on one line, with the cure if it is evident."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return explain(error, path) + (": free some space, then run again" if full else "")
