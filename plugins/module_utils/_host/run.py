# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The one way to run a program: in the C locale, within a time, and with one line for whatever goes wrong."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.reason import reason

# Variables of the calling user that change what programs print, or which daemon or repository they ask: the sections on
# the environment of sinfo(1), squeue(1), scontrol(1), sacct(1), systemctl(1), git(1), docker(1), tar and grep.
FOREIGN = re.compile(
    r"(?:SINFO|SQUEUE|SCONTROL|SACCT|SACCTMGR)_\w+|SLURM_(?:CLUSTERS|TIME_FORMAT|BITSTR_LEN|DEBUG_FLAGS)"
    r"|SYSTEMD_(?:COLORS|PAGER|LESS|URLIFY|LOG_\w+)|GIT_(?:DIR|WORK_TREE|INDEX_FILE|PREFIX|TRACE\w*)"
    r"|DOCKER_(?:HOST|CONTEXT)|(?:TAR|GREP)_OPTIONS|POSIXLY_CORRECT|COLUMNS"
)
LONGEST = 160  # characters of a command in a message
GOING = 3.0  # seconds that a killed program has to be gone


class NotRun(Problem):
    """A program that is not there, cannot be started, or did not end within its time."""


@dataclass(frozen=True)
class Said:
    """How a program ended, and what it wrote."""

    command: str
    code: int
    out: str
    err: str
    dropped: int = 0  # bytes that it wrote and that were not kept

    @property
    def lines(self) -> list[str]:
        """What it said of an error: the lines of its standard error, or where there is none, of its output."""
        return [line.strip() for line in (self.err if self.err.strip() else self.out).splitlines() if line.strip()]

    @property
    def first(self) -> str:
        return self.lines[0] if self.lines else f"it ended with {self.code} and said nothing"

    @property
    def reason(self) -> str:
        """The line that states why it failed."""
        return reason("\n".join(self.lines)) or f"it ended with {self.code} and said nothing"

    def output(self) -> str:
        """Return what it printed. Raises Problem where it did not end with 0."""
        if self.code:
            raise Problem(f"'{self.command}' ended with {self.code}: {self.first if self.lines else 'it said nothing'}")
        return self.out


def shown(argv: Sequence[str]) -> str:
    """Return a command as messages name it: its first words, so that a message stays one line."""
    text = " ".join(" ".join(argv).split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST].rpartition(' ')[0]} …"


def _descendants(pid: int) -> list[int]:
    """Return what a process has started, as far as /proc tells."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else []:
        try:
            with open(f"/proc/{int(name)}/stat", encoding="utf-8", errors="replace") as stream:
                parents[int(name)] = int(stream.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):  # no process, or one that has just ended
            continue
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def _kill(pid: int) -> None:
    """Kill a process with what it has started: a grandchild would hold the pipes, and this process with them.

    Its group is not all of that: apt-get gives dpkg a session, and so a group, of its own.
    """
    descendants = _descendants(pid)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    for one in descendants:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(one, signal.SIGKILL)


def _let_go(process: subprocess.Popen[str]) -> None:
    """Wait for a killed process, and not for ever: one that waits for a dead file system or GPU cannot be killed."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GOING)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream:
            with contextlib.suppress(OSError):  # what it has not read
                stream.close()


class _Kept:
    """The last bytes of a stream."""

    def __init__(self, most: int) -> None:
        self.most, self.whole = most, 0
        self.data = bytearray()

    def add(self, data: bytes) -> None:
        self.whole += len(data)
        self.data += data
        if len(self.data) > 2 * self.most:  # not with each piece, which would copy all of them again and again
            del self.data[: -self.most]

    def text(self) -> str:
        text = bytes(self.data[-self.most :]).decode("utf-8", "replace")
        return text.replace("\r\n", "\n").replace("\r", "\n")  # as Popen does with texts


def _end_of_output(process: subprocess.Popen[str], text: str | None, seconds: float, most: int) -> tuple[str, str, int]:
    """Read a program's output to its end and keep the last bytes. Raises TimeoutExpired."""
    until = time.monotonic() + seconds
    kept = {stream: _Kept(most) for stream in (process.stdout, process.stderr) if stream}
    given = (text or "").encode()
    with selectors.DefaultSelector() as selector:
        for stream in kept:
            selector.register(stream, selectors.EVENT_READ)
        if process.stdin:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE)
        while selector.get_map():
            left = until - time.monotonic()
            ready = selector.select(max(0.0, left))
            if not ready and left <= 0:
                raise subprocess.TimeoutExpired(process.args, seconds)
            for key, _events in ready:
                if key.fileobj is process.stdin:
                    try:
                        given = given[os.write(key.fd, given) :]
                    except BrokenPipeError:  # it ends without having read all
                        given = b""
                    more = bool(given)
                else:
                    data = os.read(key.fd, 1 << 16)
                    kept[key.fileobj].add(data)  # type: ignore[index]
                    more = bool(data)
                if not more:
                    selector.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
    process.wait(max(0.0, until - time.monotonic()))
    texts = [kept[stream].text() if stream else "" for stream in (process.stdout, process.stderr)]
    return texts[0], texts[1], sum(max(0, one.whole - most) for one in kept.values())


def run(
    argv: Sequence[str],
    seconds: float,
    *,
    text: str | None = None,
    environment: Mapping[str, str] | None = None,
    only: bool = False,
    cwd: str | None = None,
    user: int | None = None,
    merged: bool = False,
    hint: str = "",
    most: int = 0,
) -> Said:
    """Run a program to its end, whatever its exit code is.

    argv:        the program and its arguments
    seconds:     after that long the program is killed, and with it whatever it has started
    text:        what it reads from its standard input; without it there is nothing to read
    environment: variables beside those of this process, which are without FOREIGN
    only:        whether it gets those alone, and PATH
    cwd:         the directory that it starts in
    user:        the id of the user and the group that it runs as
    merged:      whether what it writes to its standard error is part of its output, in the order of writing
    hint:        what to do where it does not end, such as "see what it waits for"
    most:        how many bytes of its output, and of its errors, are kept, the last ones; 0 is all of them

    Raises NotRun where the program is not there, cannot be started, or does not end in time.
    """
    command = shown(argv)
    own = {name: value for name, value in os.environ.items() if not FOREIGN.fullmatch(name)}
    inherited = {"PATH": os.environ.get("PATH", os.defpath)} if only else own
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merged else subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            cwd=cwd,
            env={**inherited, "LC_ALL": "C", **(environment or {})},
            start_new_session=True,
            **({} if user is None else {"user": user, "group": user, "extra_groups": []}),  # type: ignore[call-overload]
        )
    except OSError as error:
        if isinstance(error, FileNotFoundError) and error.filename == argv[0]:
            raise NotRun(f"the program {argv[0]} is not there") from error
        raise NotRun(f"{argv[0]} cannot be run: {error.strerror}: {error.filename}") from error
    try:
        if most:
            out, err, dropped = _end_of_output(process, text, seconds, most)
        else:
            (out, err), dropped = process.communicate(text, timeout=seconds), 0
    except subprocess.TimeoutExpired as error:
        raise NotRun(f"'{command}' did not end within {seconds:g} s{hint and f'; {hint}'}") from error
    finally:
        if process.returncode is None:
            _kill(process.pid)
            _let_go(process)
    return Said(command, process.returncode, out, err or "", dropped)
