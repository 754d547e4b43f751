# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A node as a testinfra host, whose commands start in milliseconds.

`podman exec` takes 0.2 to 0.3 s before a command begins, and a run of the tests has thousands of commands. So a command
enters the namespaces of the node's init by itself, and before that the cgroups that count it as the node's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from testinfra.backend.base import CommandResult
from testinfra.backend.podman import PodmanBackend
from testinfra.host import Host

NAMESPACES = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")
# Of the first version of cgroups; of the second there is one. To enter them all would take three times as long.
CONTROLLERS = ("name=systemd", "memory", "pids")
JOIN = 'set -e; while [ "$1" != -- ]; do echo 0 > "$1"; shift; done; shift; exec "$@"'


@dataclass(frozen=True)
class Init:
    """The first process of a container that runs."""

    pid: int
    began: str  # tells another process that has the same number later
    environment: dict[bytes, bytes]  # what podman has given the container, and gives every command in it
    cgroups: tuple[str, ...]  # the files that take who enters them

    @classmethod
    def of(cls, container: str) -> Init | None:
        """The first process of a container; nothing where the container does not run."""
        line = ["podman", "inspect", "--format", "{{.State.Pid}}", container]
        done = subprocess.run(line, text=True, capture_output=True, check=False)
        pid = int(done.stdout) if done.returncode == 0 else 0
        try:
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if pid else []
            cgroups = Path(f"/proc/{pid}/cgroup").read_text() if pid else ""
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            words, cgroups = [], ""
        pairs = (word.partition(b"=") for word in words)
        found = {name: value for name, equals, value in pairs if equals}
        return cls(pid, cls.began_at(pid), found, tuple(doors(cgroups))) if found else None

    @staticmethod
    def began_at(pid: int) -> str:
        """When a process began, in ticks of the kernel's clock; empty where there is none."""
        try:
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return ""
        return words[19] if words[0] != "Z" else ""

    @property
    def lives(self) -> bool:
        return self.began_at(self.pid) == self.began != ""


class Node(PodmanBackend):
    """A container whose init is looked up once. A container that does not run is left to podman and its message."""

    init: Init | None = None

    def entry(self) -> tuple[list[str], dict[bytes, bytes]]:
        """How a command line begins that runs in the container, and the environment in which it is started here."""
        if self.init is None or not self.init.lives:
            self.init = Init.of(self.name)
        if self.init is None:
            return ["podman", "exec", self.name], dict(os.environb)
        join = ["/bin/sh", "-c", JOIN, "sh", *self.init.cgroups, "--"]
        return [*join, nsenter(), f"--target={self.init.pid}", *NAMESPACES], self.init.environment

    def run(self, command: str, *args: str, **kwargs: Any) -> CommandResult:
        line = self.encode(self.get_command(command, *args))
        begin, environment = self.entry()
        done = subprocess.run(
            [*begin, "/bin/sh", "-c", line],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            start_new_session=True,
            umask=0o022,
            check=False,
        )
        # A command that a signal has ended, as a shell tells of it.
        status = done.returncode if done.returncode >= 0 else 128 - done.returncode
        return self.result(status, line, done.stdout, done.stderr)


@cache
def mounts() -> dict[str, str]:
    """Where the cgroups of each controller are mounted; those of the second version by an empty name."""
    found = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        there, _dash, what = line.partition(" - ")
        kind, _source, options = what.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            names = options.split(",") if kind == "cgroup" else [""]
            found.update(dict.fromkeys(names, there.split()[4]))
    return found


def doors(cgroups: str) -> Iterator[str]:
    """By which files a process enters the cgroups that /proc/<id>/cgroup names."""
    for line in cgroups.splitlines():
        _number, name, path = line.split(":", 2)
        if name in ("", *CONTROLLERS) and name in mounts():
            yield f"{mounts()[name]}{path}/cgroup.procs"


@cache
def nsenter() -> str:
    """The program's whole path, because the command's PATH is the container's."""
    found = shutil.which("nsenter")
    assert found, "nsenter is missing; needed: util-linux"
    return found


@cache
def host(name: str) -> Host:
    """One node of the sandbox."""
    backend = Node(f"postboot-{name}")
    found = Host(backend)
    backend.set_host(found)
    return found
