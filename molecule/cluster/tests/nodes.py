# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A node as a testinfra host, whose commands start in milliseconds.

`podman exec` takes 0.2 to 0.3 s before a command begins, and a run of the tests has thousands of commands. So a command
enters the namespaces of the node's init by itself.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from testinfra.backend.base import CommandResult
from testinfra.backend.podman import PodmanBackend
from testinfra.host import Host

NAMESPACES = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")


@dataclass(frozen=True)
class Init:
    """The first process of a container that runs."""

    pid: int
    began: str  # tells another process that has the same number later
    environment: dict[bytes, bytes]  # what podman has given the container, and gives every command in it

    @classmethod
    def of(cls, container: str) -> Init | None:
        """The first process of a container; nothing where the container does not run."""
        line = ["podman", "inspect", "--format", "{{.State.Pid}}", container]
        done = subprocess.run(line, text=True, capture_output=True, check=False)
        pid = int(done.stdout) if done.returncode == 0 else 0
        try:
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if pid else []
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            words = []
        pairs = (word.partition(b"=") for word in words)
        found = {name: value for name, equals, value in pairs if equals}
        return cls(pid, cls.began_at(pid), found) if found else None

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
        return [nsenter(), f"--target={self.init.pid}", *NAMESPACES], self.init.environment

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
