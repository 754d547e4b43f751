# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Reads what a supporter asks for, within limits of size and time. Nothing of the node is changed."""

from __future__ import annotations

import glob
import os
import shutil
import stat
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import BinaryIO, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose import sources
from ansible_collections.pcluster.postboot.plugins.module_utils._host import files
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import NotRun, run
from ansible_collections.pcluster.postboot.plugins.module_utils._node.storage import lies_on

SLURM = "/opt/slurm"
# Programs of ParallelCluster and Slurm, which a login shell alone would find.
PATH = "/opt/slurm/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PYENV = "/opt/parallelcluster/pyenv/versions/*/envs/*/bin"


# How much of the end of a file is read, in its limit: long lines that are cut leave room for what is before them.
_LOOKS = (1, 4, 16)


class Limits(NamedTuple):
    file: int  # bytes of a file, of which the last are kept
    node: int  # bytes of all of them
    seconds: float  # after which no further program is run

    @property
    def line(self) -> int:
        """Bytes of a line of a file that is cut. Logs of one line, as a console's, have 64 KiB."""
        return self.file // 8


class Part(NamedTuple):
    """A file of the archive, for its list."""

    name: str
    source: str  # where it comes from
    kept: int  # bytes
    whole: int
    note: str = ""


class Collector:
    def __init__(self, limits: Limits, dead: Sequence[str] = (), root: str = "", check: bool = False) -> None:
        self.limits, self.dead, self.root, self.check = limits, dead, root, check
        self.texts: dict[str, str] = {}
        self.parts: list[Part] = []
        self.left: list[str] = []  # what was left out, and why
        self._hung: set[str] = set()  # programs that did not end
        self._until = time.monotonic() + limits.seconds
        self._room = limits.node

    def files(self, wanted: Iterable[sources.Files], node_type: str) -> None:
        for each in wanted:
            if sources.on(each, node_type):
                joined = [self._file(path, each.joined) for pattern in each.patterns for path in self._found(pattern)]
                if each.joined and any(joined):
                    self.add(f"commands/{each.joined}.txt", each.patterns[0], "".join(joined))

    def _found(self, pattern: str) -> list[str]:
        if any(lies_on(pattern, path) for path in self.dead):
            self.left.append(f"{pattern}: its file system does not answer")
            return []
        return sorted(path[len(self.root) :] for path in glob.glob(self.root + pattern))

    def _file(self, path: str, joined: str) -> str:
        """Take a file in, or return its text where it becomes a part of another one."""
        name = path.lstrip("/")
        if name in self.texts:
            return ""
        try:
            data, whole, note = self._tail(self.root + path)
        except OSError as error:
            if not isinstance(error, (IsADirectoryError, FileNotFoundError)):
                self.left.append(f"{path}: {error.strerror or error}")
            return ""
        if joined:
            return f"{path}: {data.decode('utf-8', 'replace').strip()}\n"
        if note:
            self.left.append(f"{path}: {note}")
        self.add(name, path, data.decode("utf-8", "replace").replace("\0", ""), whole, note)
        return ""

    def _tail(self, path: str) -> tuple[bytes, int, str]:
        """Return the end of a regular file, from the beginning of a line, how long the file is, and what is missing."""
        # Without blocking, because a FIFO in a file's place would wait for its writer for ever. Only links of root are
        # followed, because a user's may lead to what is for root alone.
        link = os.lstat(path)
        follow = stat.S_ISLNK(link.st_mode) and link.st_uid in (0, os.geteuid())
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
        with os.fdopen(descriptor, "rb") as stream:
            status = os.fstat(descriptor)
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError
            if not stat.S_ISREG(status.st_mode):
                raise OSError(0, "it is no regular file")
            if status.st_size <= self.limits.file:
                data = stream.read(self.limits.file)
                return data, max(status.st_size, len(data)), ""  # files of /proc have the size 0
            for times in _LOOKS:
                begin = max(0, status.st_size - times * self.limits.file)
                data, shortened = _last_lines(stream, begin, status.st_size, self.limits)
                if len(data) > self.limits.file // 2 or not begin:
                    break
            note = f"{shortened} lines of more than {self.limits.line / 1e6:g} MB were cut" if shortened else ""
            if begin and len(data) <= self.limits.file // 2:
                note = f"a line of some {(status.st_size - begin) / 1e6:.1f} MB or more was left out with all before it"
            return data, status.st_size, note

    def outputs(self, wanted: Iterable[sources.Output], node_type: str) -> None:
        for each in wanted:
            if sources.on(each, node_type):
                self.output(each)

    def output(self, each: sources.Output, cwd: str | None = None) -> None:
        """Take in what a program prints, its errors included."""
        line = " ".join(each.argv)
        program = self._program(each.argv[0])
        if not program:
            return
        if each.shared and any(lies_on(SLURM, path) for path in self.dead):
            self.left.append(f"{line}: {SLURM} does not answer")
            return
        if program in self._hung or time.monotonic() > self._until:
            why = "an earlier call did not end" if program in self._hung else "the time was up"
            self.left.append(f"{line}: {why}")
            return
        if self.check:
            self.parts.append(Part(f"commands/{each.name}.txt", line, 0, 0))
            return
        try:
            said = run(
                [program, *each.argv[1:]],
                each.seconds,
                text=each.text or None,
                environment={"PATH": PATH},
                cwd=cwd,
                most=self.limits.file,
            )
            text = said.out + (f"\n{said.err}" if said.err.strip() and not said.out.lstrip().startswith("{") else "")
            note = f"ended with {said.code}" if said.code else ""
            whole = len(said.out) + len(said.err) + said.dropped
        except NotRun as problem:
            self._hung.add(program)
            text = note = str(problem)
            whole = 0
        if whole <= self.limits.file:
            whole = 0
        else:
            # The rest of a line may be the rest of a secret, whose name is gone.
            text = text[-self.limits.file :].partition("\n")[2]
            self.left.append(f"{line}: of {whole / 1e6:.1f} MB the last were kept")
        self.add(f"commands/{each.name}.txt", line, text, whole, note)

    def _program(self, name: str) -> str:
        """Return where a program is: on the path, or with ParallelCluster's own Python, as supervisorctl."""
        found = shutil.which(name, path=os.environ.get("PATH", "") + ":" + PATH)
        return found or next(iter(sorted(glob.glob(f"{self.root}{PYENV}/{name}"))), "")

    def pcluster_diag(self, each: sources.Output) -> None:
        """Run ParallelCluster's own checks, whose report would stay in the working directory."""
        with files.folder("pcluster-postboot-") as folder:
            self.output(each, cwd=folder)

    def leave(self, name: str, why: str) -> None:
        """Give up a text that was taken in."""
        del self.texts[name]
        self.left += [f"{part.source}: {why}" for part in self.parts if part.name == name]
        self.parts = [part for part in self.parts if part.name != name]

    def add(self, name: str, source: str, text: str, whole: int = 0, note: str = "") -> None:
        """Take in a text, unless the node has no room left in the archive."""
        size = len(text.encode("utf-8", "replace"))
        if self.check:
            self.parts.append(Part(name, source, 0, whole or size))
            return
        if size > self._room:
            self.left.append(f"{source}: {size / 1e6:.1f} MB, beyond the limit of the node")
            return
        self._room -= size
        self.texts[name] = text
        self.parts.append(Part(name, source, size, whole or size, note))


def _last_lines(stream: BinaryIO, begin: int, end: int, limits: Limits) -> tuple[bytes, int]:
    """Return the last lines of a part of a file, as many as its limit has room for, and how many of them were cut."""
    lines: deque[tuple[bytes, bool]] = deque()
    size, known = 0, not begin  # whether a line's beginning is known
    stream.seek(begin)
    while stream.tell() < end:
        line, more = stream.readline(limits.line), 0
        if not line:
            break
        piece = line
        while not piece.endswith(b"\n") and stream.tell() < end:
            piece = stream.readline(limits.line)
            more += len(piece)
            if not piece:
                break
        if known:
            lines.append((line + b" [%d bytes more]\n" % more if more else line, bool(more)))
            size += len(lines[-1][0])
        known = True
        while size > limits.file:
            size -= len(lines.popleft()[0])
    return b"".join(line for line, _cut in lines), sum(cut for _line, cut in lines)
