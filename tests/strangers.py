# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Another user of the machine, and the directories in which that user may make entries beside root's."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

USER = 65534
TWO_USERS = pytest.mark.skipif(os.geteuid() != 0, reason="only root can have another user do something")
DEEP = 1500  # levels of a tree, more than Python's recursion limit


def _child(do: Callable[[], Any], user: int) -> int:
    """Start a process of a user, and return its id."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(OSError):
            os.setgid(user)
            os.setuid(user)
            do()
        os._exit(0)
    return child


def as_user(do: Callable[[], Any], user: int = USER) -> None:
    """Do something in a process of an ordinary user. An action that the user may not do is left out."""
    os.waitpid(_child(do, user), 0)


@contextlib.contextmanager
def churn(do: Callable[[], Any]) -> Iterator[None]:
    """Repeat something as an ordinary user for as long as the context lasts."""

    def repeat() -> None:
        while True:
            with contextlib.suppress(OSError):
                do()

    child = _child(repeat, USER)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@contextlib.contextmanager
def process(*argv: str, name: bytes = b"", user: int = USER) -> Iterator[int]:
    """Yield the id of a user's process that sleeps, with any command line, or with a name of any bytes."""
    reader, writer = os.pipe()

    def sleep() -> None:
        if name:
            ctypes.CDLL(None).prctl(15, name, 0, 0, 0)  # PR_SET_NAME
        os.set_inheritable(writer, False)
        if argv:
            os.execv("/bin/sleep", [argv[0], "60"])
        os.close(writer)
        time.sleep(60)

    child = _child(sleep, user)
    os.close(writer)
    try:
        os.read(reader, 1)  # ends once the process is what it is to be
        yield child
    finally:
        os.close(reader)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@contextlib.contextmanager
def crowd() -> Iterator[Path]:
    """Yield a directory like /tmp, which every user can reach and write to."""
    top = Path(tempfile.mkdtemp(prefix="postboot-crowd-", dir="/tmp"))
    top.chmod(0o1777)
    try:
        yield top
    finally:
        subprocess.run(["rm", "-rf", str(top)], check=True)  # shutil.rmtree() fails on deep trees


def deep_tree(path: Path, user: int = USER) -> None:
    """Have a user make a tree that is deeper than Python recurses."""

    def make() -> None:
        os.mkdir(path)
        os.chdir(path)
        for _level in range(DEEP):
            os.mkdir("d")
            os.chdir("d")

    as_user(make, user)


def depth(path: Path) -> int:
    """Return how many levels of a deep tree are left."""
    command = ["find", str(path), "-mindepth", "1", "-type", "d", "-printf", "x"]
    return len(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def within(seconds: float, do: Callable[[], Any]) -> Any:
    """Do something in this process, and fail where it blocks, such as on a pipe."""

    def late(_number: int, _frame: object) -> None:
        pytest.fail(f"it did not end within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return do()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# Paths that a user may give a directory, and fusermount mount on. A reader that splits the kernel's list of mounts with
# Python's splitlines() and split() takes them for separate lines and fields.
FORGED = ("a\rb", "c\r\rd", "x\N{LINE SEPARATOR}none\N{EM SPACE}/var\N{EM SPACE}lustre\N{EM SPACE}rw,localflock")


def mount_list(options: str = "rw,relatime") -> str:
    """Return lines of /proc/self/mounts for the forged paths, as Linux writes them (fs/proc_namespace.c: show_vfsmnt).

    Of a path the kernel escapes blanks, tabs, newlines, backslashes and # alone.
    """
    return "".join(f"bindfs /tmp/{name} fuse.bindfs {options} 0 0\n" for name in FORGED)


@contextlib.contextmanager
def mounted(path: Path) -> Iterator[str]:
    """Mount file systems on the forged paths below a directory, for this thread alone, and yield its list of mounts.

    Root does so here in place of fusermount, because not every machine has FUSE.
    """
    for name in FORGED:
        (path / name).mkdir(parents=True)
    commands = [f'mount -t tmpfs none "{path}/{name}"' for name in FORGED]
    script = "\n".join([*commands, "echo ready", "read -r _end"])
    inside = subprocess.Popen(
        ["unshare", "--mount", "sh", "-ec", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with inside:
        try:
            assert inside.stdout
            assert inside.stdout.readline() == "ready\n"
            yield f"/proc/{inside.pid}/mounts"
        finally:
            inside.kill()


def until(seconds: float) -> Iterator[None]:
    """Repeat a loop for some time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
