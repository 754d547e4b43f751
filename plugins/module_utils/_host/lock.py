# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One run at a time on a node: the lock, who holds it, and whether that holder is still alive.

The lock is a JSON file. Every look and every change happens under flock(2) on a file beside it, which the kernel
releases when its owner dies, so two takers can never both win. The JSON outlives the short processes of a run: it
names the process that drives the run, and the file's age tells when the run was last seen.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

from ansible_collections.pcluster.postboot.plugins.module_utils._host import files
from ansible_collections.pcluster.postboot.plugins.module_utils._host.process import machine_id, process_started

# A prefix for every path below, for tests that have no node to write to.
_ROOT = os.environ.get("PCLUSTER_POSTBOOT_ROOT", "")
RUN_DIR = _ROOT + "/run/pcluster-postboot"
STATE_DIR = _ROOT + "/var/lib/pcluster-postboot"


def lock_path() -> str:
    """Return where the lock of this node is."""
    return os.path.join(RUN_DIR, "lock")


def heartbeat(silence: float = 0) -> None:
    """Say that the run that holds this node is alive, and that it may say nothing for some seconds from now on.

    Never fails: without a lock there is nothing to say.
    """
    until = time.time() + silence
    with contextlib.suppress(OSError):
        os.utime(lock_path(), (until, until))


def user_name() -> str:
    """Return who runs this process, as a person would write it."""
    sudo = os.environ.get("SUDO_USER")
    if sudo:
        return sudo
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def utc(seconds: float) -> str:
    """Write a time as people and machines read it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


@dataclass(frozen=True)
class Holder:
    """Who drives a run."""

    run_id: str
    mode: str = "push"
    controller: str = ""
    user: str = ""
    pid: int = 0
    pid_started: str = ""
    machine: str = ""
    started: float = 0.0
    turns: int = 1  # in which its nodes take each task: one that is done is silent while the others have theirs

    @classmethod
    def from_dict(cls, data: Any) -> Holder:
        """Read a holder; what is unknown or of the wrong type is left out, for the lock may be of another version."""
        if not isinstance(data, dict):
            return cls(run_id="")
        kept = {}
        for field in fields(cls):
            kind = {"int": int, "float": float}.get(str(field.type), str)
            with contextlib.suppress(KeyError, TypeError, ValueError):
                kept[field.name] = kind(data[field.name])
        return cls(**{"run_id": "", **kept})

    @classmethod
    def of_process(cls, pid: int, mode: str, turns: int = 1) -> Holder:
        """Describe the run that the given process of this machine drives."""
        started = process_started(pid)
        machine = machine_id()
        host = machine.split(" ", 1)[0]
        return cls(
            run_id=f"{host}:{pid}:{started}".replace(" ", "-"),
            mode=mode,
            controller=host,
            user=user_name(),
            pid=pid,
            pid_started=started,
            machine=machine,
            started=time.time(),
            turns=turns,
        )

    def alive(self) -> bool | None:
        """Say whether the driving process lives; None when it is not on this machine, so nothing can be said."""
        if not self.pid or self.machine != machine_id():
            return None
        return process_started(self.pid) == self.pid_started != ""

    def sentence(self, age: float) -> str:
        """Name the holder in words."""
        if not self.run_id:
            return f"held by an unreadable lock ({lock_path()}), last seen {age:.0f} s ago"
        seen = f"last seen {age:.0f} s ago" if age >= 0 else f"silent until {utc(time.time() - age)}, as announced"
        if self.turns > 1:
            seen += f", and takes each task of its nodes in {self.turns} turns"
        return (
            f"held by {self.mode} from {self.user}@{self.controller} (pid {self.pid}) since {utc(self.started)}, {seen}"
        )


@dataclass(frozen=True)
class Outcome:
    """What became of an attempt to take the lock."""

    taken: bool
    holder: Holder | None = None  # who holds it, or held it before us
    age: float = 0.0  # below 0 where the holder has told that it will be silent
    how: str = ""  # free, again, dead or expired


class Lock:
    """The lock of one node."""

    def __init__(self, directory: str = "") -> None:
        self.directory = directory or RUN_DIR
        self.path = os.path.join(self.directory, "lock")

    def look(self, lease: float, me: Holder, judged: str = "", judged_alive: bool = False) -> Outcome:
        """Say what an attempt would meet, and change nothing."""
        current = self._read()
        if current is None:
            return Outcome(True, how="free")
        holder, age = current
        if holder.run_id == me.run_id:
            return Outcome(True, holder, age, "again")
        alive = holder.alive()
        if alive is None and judged and holder.run_id == judged:
            alive = judged_alive
        if alive is False:
            return Outcome(True, holder, age, "dead")
        if alive is None and age > lease * max(1, holder.turns):
            return Outcome(True, holder, age, "expired")
        return Outcome(False, holder, age)

    def take(self, me: Holder, lease: float, judged: str = "", judged_alive: bool = False) -> Outcome:
        """Try once to take the lock. The controller may add what it knows of one holder, judged by its run id."""
        with self._guard():
            outcome = self.look(lease, me, judged, judged_alive)
            if outcome.taken and outcome.how != "again":
                files.write(self.path, json.dumps(asdict(me), sort_keys=True) + "\n")
            elif outcome.taken:
                os.utime(self.path)
            return outcome

    def wait(
        self, me: Holder, lease: float, seconds: float, judged: str = "", judged_alive: bool = False, pause: float = 0.5
    ) -> Outcome:
        """Try to take the lock until it is ours or the time is over."""
        until = time.monotonic() + seconds
        while True:
            outcome = self.take(me, lease, judged, judged_alive)
            left = until - time.monotonic()
            if outcome.taken or left <= 0:
                return outcome
            time.sleep(min(pause, left))

    def mine(self, run_id: str) -> bool:
        """Say whether this run holds the lock."""
        current = self._read()
        return current is not None and current[0].run_id == run_id

    def release(self, run_id: str) -> bool:
        """Give the lock back if this run holds it."""
        if not os.path.isdir(self.directory):
            return False
        with self._guard():
            if not self.mine(run_id):
                return False
            os.unlink(self.path)
            return True

    def _read(self) -> tuple[Holder, float] | None:
        try:
            with open(self.path, encoding="utf-8") as handle:
                age = time.time() - os.fstat(handle.fileno()).st_mtime
                text = handle.read()
        except FileNotFoundError:
            return None
        try:
            return Holder.from_dict(json.loads(text)), age
        except ValueError:
            return Holder(run_id=""), age

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        os.makedirs(self.directory, mode=0o755, exist_ok=True)
        handle = os.open(self.path + ".guard", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)
