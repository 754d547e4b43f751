# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is in an archive, whatever its format, and whether all of it may be unpacked."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import importlib
import os
import posixpath
import shutil
import stat
import subprocess
import tarfile
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import IO, Any

from ansible_collections.pcluster.postboot.plugins.module_utils._artifact.files import CHUNK, scratch
from ansible_collections.pcluster.postboot.plugins.module_utils._artifact.model import Member
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem

try:
    from lzma import LZMAError
except ImportError:  # a Python without xz: tarfile says so itself
    LZMAError = EOFError  # type: ignore[assignment,misc]

FILE, DIRECTORY, SYMLINK, HARDLINK = "file", "directory", "symlink", "hardlink"
SAFE_BITS = 0o755  # neither set-user-id nor writable for others, whatever the archive says
LATEST = 1 << 33  # a time that every file system can hold
LONGEST_NAME, DEEPEST = 4096, 200  # bytes of a name, which Linux has as its limit (PATH_MAX), and folders above it
LARGEST = 1 << 44  # bytes of a file
LARGEST_HEADER = 1 << 20  # bytes of what comes before a member of a tar and has its name, or its extended attributes

_HEADERS = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)
_DAMAGE = (
    *(tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, LZMAError, NotImplementedError),
    *(ValueError, OverflowError, RecursionError),  # of numbers that no archive has, and of headers of headers
)


@dataclasses.dataclass(frozen=True)
class Entry:
    """One thing in an archive, by its relative name."""

    name: str
    kind: str
    mode: int
    mtime: float
    target: str = ""  # of a link
    raw: Any = None  # what the archive's own reader calls it


class _Member(tarfile.TarInfo):
    """A member of a tar, which refuses what Python's own would read whole, or seek to."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        # By Python's source this is the method to override, to treat a kind of header differently.
        header = self.type in _HEADERS
        _require_size(self, LARGEST_HEADER if header else LARGEST)
        member: tarfile.TarInfo = super()._proc_member(tar)  # type: ignore[misc]
        _require_size(member, LARGEST)
        return member


def _require_size(info: tarfile.TarInfo, most: int) -> None:
    if not 0 <= info.size <= most:
        raise Problem(f"cannot be read as an archive ({_short(info.name)} has a size below 0 or above {most})")


@dataclasses.dataclass(frozen=True)
class Pick:
    """An entry that was asked for, and where it goes."""

    member: Member
    entry: Entry
    dest: str


class Archive:
    """The entries of an archive, all of them harmless, and the bytes of each."""

    def __init__(self, reader: tarfile.TarFile | zipfile.ZipFile, strip: int) -> None:
        self._reader = reader
        listed = _tar_entries(reader) if isinstance(reader, tarfile.TarFile) else _zip_entries(reader)
        stripped = (_strip(_harmless(entry), strip) for entry in listed)
        self.entries = {entry.name: entry for entry in stripped if entry is not None}
        for entry in self.entries.values():
            self._refuse_detours(entry)

    def _refuse_detours(self, entry: Entry) -> None:
        """Refuse an entry whose path leads through a link or a file, and a link that leads outside."""
        for parent in _parents(entry.name):
            if parent in self.entries and self.entries[parent].kind != DIRECTORY:
                raise _refusal(entry.name, f"lies below {parent!r}, which is no directory")
        if entry.kind == HARDLINK and self.entries.get(entry.target, entry).kind != FILE:
            raise _refusal(entry.name, f"is a link to {entry.target!r}, which is no file of the archive")
        if entry.kind == SYMLINK:
            climbs = [piece == ".." for piece in entry.target.split("/") if piece not in ("", ".")]
            # ".." after a name might climb from where a link led to; sorted means that every ".." comes first
            if entry.target.startswith("/") or climbs != sorted(climbs, reverse=True):
                raise _refusal(entry.name, f"is a link to {entry.target!r}, which may lead outside")
            if _beside(entry).startswith("../") or _beside(entry) == "..":
                raise _refusal(entry.name, f"is a link to {entry.target!r}, which leads outside")

    def content(self, entry: Entry) -> Entry:
        """Follow links to the file at their end."""
        found, seen = entry, {entry.name}
        while found.kind != FILE:
            target = _beside(found) if found.kind == SYMLINK else found.target
            if target not in self.entries or target in seen:
                raise Problem(f"archive member {entry.name!r} leads to no file of the archive")
            seen.add(target)
            found = self.entries[target]
        return found

    def open(self, entry: Entry) -> IO[bytes]:
        """Return the bytes of an entry; of a link, those of the file to which it leads."""
        raw = self.content(entry).raw
        opened = self._reader.extractfile(raw) if isinstance(self._reader, tarfile.TarFile) else self._reader.open(raw)
        if opened is None:
            raise Problem(f"archive member {entry.name!r} has no bytes")
        return opened

    def select(self, members: tuple[Member, ...]) -> list[Pick]:
        """Return which entry goes where, for every member asked for, in the archive's own order."""
        picks = []
        for member in members:
            found = [entry for entry in self._files() if _matches(entry, member.src)]
            if not found:
                raise Problem(f"no file in the archive matches {member.src!r}; it holds {self._some_names()}")
            several = member.dest.endswith("/")
            if len(found) > 1 and not several:
                names = ", ".join(entry.name for entry in found[:5])
                raise Problem(f"{len(found)} files match {member.src!r} ({names}): end dest with / for several")
            for entry in found:
                self.content(entry)
                picks.append(Pick(member, entry, member.dest + (posixpath.basename(entry.name) if several else "")))
        place, times = Counter(pick.dest for pick in picks).most_common(1)[0]
        if times > 1:
            raise Problem(f"{times} members would become {place}: give each a dest of its own")
        order = {name: index for index, name in enumerate(self.entries)}
        return sorted(picks, key=lambda pick: order[self.content(pick.entry).name])

    def _files(self) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.kind != DIRECTORY]

    def _some_names(self) -> str:
        names = [entry.name for entry in self._files()]
        return (", ".join(names[:8]) or "no files") + (f" and {len(names) - 8} more" if len(names) > 8 else "")


@contextlib.contextmanager
def open_archive(file: IO[bytes], scratch_dir: str, strip: int) -> Iterator[Archive]:
    """Open a tar (plain, gz, bz2, xz, zst) or zip by what it is, not by its name."""
    file.seek(0)
    magic = file.read(4)
    file.seek(0)
    with contextlib.ExitStack() as stack:
        try:
            if magic == b"\x28\xb5\x2f\xfd":
                plain = stack.enter_context(scratch(scratch_dir))
                _unzstd(file, plain)
                file = plain
            if magic[:2] == b"PK":
                yield Archive(stack.enter_context(zipfile.ZipFile(file)), strip)
            else:
                yield Archive(stack.enter_context(tarfile.open(fileobj=file, mode="r:*", tarinfo=_Member)), strip)
        except _DAMAGE as error:
            raise Problem(f"cannot be read as an archive ({' '.join(str(error).split())})") from error


def _unzstd(packed: IO[bytes], plain: IO[bytes]) -> None:
    """Unpack zstd with what the node has: Python from 3.14 on, or its own program."""
    try:
        zstd = importlib.import_module("compression.zstd")
    except ImportError:
        program = shutil.which("zstd")
        if program is None:
            raise Problem("is packed with zstd, which needs the program `zstd`: install it first") from None
        os.lseek(packed.fileno(), 0, os.SEEK_SET)  # where the program begins, whatever Python has buffered
        # Not the ground floor's run(): both ends are files, which may be larger than the memory.
        done = subprocess.run([program, "-dc"], stdin=packed, stdout=plain, stderr=subprocess.PIPE, check=False)
        if done.returncode != 0:
            complaint = " ".join(done.stderr.decode(errors="replace").split())
            raise Problem(f"cannot be unpacked with zstd ({complaint})") from None
    else:
        with zstd.open(packed) as stream:
            shutil.copyfileobj(stream, plain, CHUNK)
    plain.seek(0)


def _tar_entries(reader: tarfile.TarFile) -> Iterator[Entry]:
    for info in reader:
        if info.isreg():
            kind = FILE
        elif info.isdir():
            kind = DIRECTORY
        elif info.issym():
            kind = SYMLINK
        elif info.islnk():
            kind = HARDLINK
        else:
            raise _refusal(info.name, "is a device or a pipe")
        mtime = info.mtime if 0 <= info.mtime <= LATEST else LATEST * (info.mtime > 0)  # NaN is 0
        yield Entry(info.name, kind, info.mode & SAFE_BITS, mtime, info.linkname, info)


def _zip_entries(reader: zipfile.ZipFile) -> Iterator[Entry]:
    for info in reader.infolist():
        mode = info.external_attr >> 16
        kind = DIRECTORY if info.is_dir() else FILE
        target = ""
        if info.flag_bits & 1:
            raise _refusal(info.filename, "is encrypted")
        if stat.S_ISLNK(mode):
            with reader.open(info) as stream:
                kind, target = SYMLINK, stream.read(LONGEST_NAME + 1).decode(errors="surrogateescape")
        elif stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise _refusal(info.filename, "is a device or a pipe")
        mtime = time.mktime((*info.date_time, 0, 0, -1))
        yield Entry(info.filename, kind, mode & SAFE_BITS or 0o644, mtime, target, info)


def _harmless(entry: Entry) -> Entry:
    """Refuse names that lead outside, or are none; write the others without what means nothing in them."""
    if len(entry.target) > LONGEST_NAME:
        raise _refusal(entry.name, f"is a link to a name of more than {LONGEST_NAME} bytes")
    target = _inside(entry.target) if entry.kind == HARDLINK else entry.target
    return dataclasses.replace(entry, name=_inside(entry.name), target=target)


def _inside(name: str) -> str:
    if len(name) > LONGEST_NAME:
        raise _refusal(name, f"is a name of more than {LONGEST_NAME} bytes")
    pieces = [piece for piece in name.split("/") if piece not in ("", ".")]
    if len(pieces) > DEEPEST:
        raise _refusal(name, f"lies below more than {DEEPEST} folders")
    if name.startswith("/") or ".." in pieces or "\0" in name:
        raise _refusal(name, "leads outside")
    return "/".join(pieces)


def _strip(entry: Entry, count: int) -> Entry | None:
    """Return the entry without its first path components; None when nothing is left of its name."""
    name = entry.name.split("/")[count:]
    if not any(name):
        return None
    target = "/".join(entry.target.split("/")[count:]) if entry.kind == HARDLINK else entry.target
    return dataclasses.replace(entry, name="/".join(name), target=target)


def _parents(name: str) -> Iterator[str]:
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name


def _beside(entry: Entry) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(entry.name), entry.target))


def _matches(entry: Entry, pattern: str) -> bool:
    return entry.name == pattern or _match_pieces(entry.name.split("/"), pattern.split("/"))


def _match_pieces(name: list[str], pattern: list[str]) -> bool:
    """Match piece by piece: * stays within one directory, ** crosses any number of them."""
    if not pattern:
        return not name
    if pattern[0] == "**":
        return any(_match_pieces(name[start:], pattern[1:]) for start in range(len(name) + 1))
    return bool(name) and fnmatch.fnmatchcase(name[0], pattern[0]) and _match_pieces(name[1:], pattern[1:])


def _refusal(name: str, why: str) -> Problem:
    return Problem(f"archive refused, nothing unpacked: {_short(name)} {why}")


def _short(name: str) -> str:
    return repr(name if len(name) <= 200 else f"{name[:199]}…")
