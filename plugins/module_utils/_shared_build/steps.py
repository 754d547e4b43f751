# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Runs the commands of a build: in a directory of this node's own disk, with a log, and never longer than the build."""

from __future__ import annotations

import collections
import contextlib
import os
import re
import select
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from typing import IO, cast

from ansible_collections.pcluster.postboot.plugins.module_utils._host import files, lock
from ansible_collections.pcluster.postboot.plugins.module_utils._host import run as host_run
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem

SCRATCH_DIR = "/var/tmp"  # on disk everywhere, where /tmp may be memory
LOG_DIR = "/var/log/pcluster-postboot"
TOLD, REMEMBERED = 40, 400  # lines
HEARTBEAT = 10.0
_SCRATCH = "postboot-build-"
_SCRATCH_NAME = re.compile(_SCRATCH + r"([0-9a-f]{8}-\d+-\d+)-\w+")  # whose it is
# Ends with the module, however that ends: then nothing holds its standard input open any more, and the command with all
# that it has started is killed. So no command of a killed builder goes on writing.
_GUARD = 'exec 3<&0; (read -r none <&3; kill -s KILL 0) > /dev/null 2>&1 & exec 3<&-; "$@" < /dev/null; exit "$?"'


class Log:
    """Where the output of a build goes: into a file, and the last lines of it into messages."""

    def __init__(self, name: str, folders: list[str]) -> None:
        self._places = [os.path.join(folder, f"{name}.log") for folder in folders]
        self._stream: IO[bytes] | None = None
        self._lines: collections.deque[str] = collections.deque(maxlen=REMEMBERED)
        self._rest = b""
        self.path = ""
        self._next()

    def _next(self) -> None:
        """Go on in the next place that can be written to; without one the last lines have to do."""
        self._close()
        self.path = ""
        while self._places and not self.path:
            path = self._places.pop(0)
            with contextlib.suppress(OSError):
                os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
                self._stream = open(path, "xb", buffering=0)  # noqa: SIM115  it stays open over many writes
                self.path = path

    def write(self, data: bytes) -> None:
        """Add to the log."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._lines.extend(line.decode(errors="replace").rstrip() for line in lines)
        while self._stream and data:
            try:
                data = data[self._stream.write(data) :]
            except OSError:
                self._next()
                data = "".join(f"{line}\n" for line in self._lines).encode() + self._rest

    def lines(self) -> list[str]:
        """Return the last lines that say something, since begin()."""
        return [line for line in (*self._lines, self._rest.decode(errors="replace")) if line.strip()]

    def begin(self, text: str) -> None:
        """Name the next command."""
        self.write(f"+ {text}\n".encode())
        self._lines.clear()

    def _close(self) -> None:
        if self._stream:
            with contextlib.suppress(OSError):
                self._stream.close()
            self._stream = None

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_raised: object) -> None:
        self._close()


def job_count(asked: int) -> int:
    """Return how many jobs a build may run: a compiler of CUDA takes up to 3 GiB."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 30
    return asked or max(1, min(len(os.sched_getaffinity(0)), memory // 3))


def missing(programs: tuple[str, ...], environment: dict[str, str]) -> list[str]:
    """Return the programs that a build needs and this node does not have."""
    path = environment.get("PATH") or os.environ.get("PATH", os.defpath)
    return [program for program in programs if not shutil.which(program, path=path)]


def versions(programs: tuple[str, ...], environment: dict[str, str]) -> dict[str, str]:
    """Return what each program says about its version."""
    found = {}
    for program in programs:
        try:
            said = host_run.run([program, "--version"], 10, environment=environment, only=True, merged=True)
        except host_run.NotRun:
            continue
        numbered = [line for line in said.lines if re.search(r"\d", line)]
        found[program] = numbered[0][:200] if numbered and not said.code else "unknown"
    return found


def tidy() -> None:
    """Remove the directories of killed builds."""
    for entry, match in files.own(SCRATCH_DIR, _SCRATCH_NAME.fullmatch):
        if not files.owner_alive(match[1]):
            files.discard(entry.path)


@contextlib.contextmanager
def scratch() -> Iterator[str]:
    """Make a directory for a build on this node's own disk."""
    with files.folder(f"{_SCRATCH}{files.owner()}-", SCRATCH_DIR) as folder:
        yield folder


def fill(text: object, places: dict[str, str]) -> str:
    """Put values in place of {source}, {scratch}, {stage} and {jobs}."""
    return re.sub(rf"{{({'|'.join(places)})}}", lambda match: places[match[1]], str(text))


def shown(argv: list[str]) -> str:
    """Write a command as a person would, shortened."""
    text = " ".join(shlex.quote(word) for word in argv)
    return text if len(text) <= 100 else f"{text[:99]}…"


def run(argv: list[str], folder: str, environment: dict[str, str], log: Log) -> int:
    """Run a command to its end; return its exit status, 128 and more for a signal."""
    log.begin(shown(argv))
    seen = 0.0
    try:
        # Not the ground floor's run(): a build has no time limit, shows that it is alive, and its log is followed.
        process = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "step", *argv],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except ValueError as error:  # a null byte
        raise Problem(f"'{shown(argv)}' can not be run: {error}") from error
    with process:
        output = cast("IO[bytes]", process.stdout)
        while True:
            if time.monotonic() - seen > HEARTBEAT:
                lock.heartbeat()
                seen = time.monotonic()
            if select.select([output], [], [], 1.0)[0]:
                data = os.read(output.fileno(), 1 << 16)
                log.write(data)
                if not data:
                    break
            elif process.poll() is not None:
                break  # something that it left running keeps its output open
        code = process.wait()
    return code if code >= 0 else 128 - code


def blame(lines: list[str]) -> str:
    """Return the line that tells best what went wrong."""
    telling = [line for line in lines if re.search(r"error|no such file|not found|no space|denied", line, re.I)]
    return (telling or lines[-1:] or ["it said nothing"])[0]
