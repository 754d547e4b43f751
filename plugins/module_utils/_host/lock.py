# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One run at a time on a node: the lock, who holds it, and whether that holder is still alive.

The lock is a JSON file. Every attempt to take it and every change happens under flock(2) on a file beside it, which the
kernel releases when its owner dies, so two takers can never both win. The JSON outlives the short processes of a run:
it names the process that drives the run, and `seen` is the run's first sign of life. Each further sign replaces the
file `lock.seen`.

A sign of life has the boot of the node and the time of its boot clock, because the wall clock may be set meanwhile, and
for how long the next sign may be missing. Earlier versions of this collection know no `seen`: they set the lock's
modification time to the wall clock plus the announced silence, and multiply the lease by `turns`. So the time is set
for them too, and a lock of theirs is judged as they do.
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

from ansible_collections.pcluster.postboot.plugins.module_utils._host import files, process
from ansible_collections.pcluster.postboot.plugins.module_utils._host.process import machine_id, process_started

# A prefix for every path below, for tests that have no node to write to.
_ROOT = os.environ.get("PCLUSTER_POSTBOOT_ROOT", "")
RUN_DIR = _ROOT + "/run/pcluster-postboot"
STATE_DIR = _ROOT + "/var/lib/pcluster-postboot"
# By this variable the controller has each sign of life announce for how many seconds the node may be silent after it.
SILENCE = "PCLUSTER_POSTBOOT_SILENCE"
_LARGEST = 1 << 16  # bytes of a lock
_LATEST = 1e11  # seconds; a greater number is no time


def lock_path() -> str:
    """Return where the lock of this node is."""
    return os.path.join(RUN_DIR, "lock")


def heartbeat(silence: float = 0) -> None:
    """Show that the run that holds this node is alive, and that it may be silent for some seconds from now on.

    Never fails: without a lock there is nothing to show.
    """
    with contextlib.suppress(OSError):
        Lock().show(silence)


def parsed(content: str | bytes) -> dict[str, Any]:
    """Return the JSON object of a lock; an empty one for anything else."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _number(value: Any) -> float:
    """Return a time in seconds, or a process id."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < _LATEST:
        raise ValueError("no such number")
    return value


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
class Sign:
    """A sign of life of a run."""

    boot: str
    at: float  # by the clock of that boot
    silence: float = 0.0  # for which the next sign may be missing

    @classmethod
    def now(cls, silence: float = 0) -> Sign:
        """Return a sign of this moment, which announces at least the silence that the controller expects."""
        expected = 0.0
        with contextlib.suppress(ValueError):
            expected = _number(float(os.environ.get(SILENCE) or 0))
        return cls(process.boot_id(), process.boot_time(), max(silence, expected))

    @classmethod
    def from_dict(cls, data: Any) -> Sign | None:
        """Read a sign; None where there is none, or none that can be."""
        try:
            sign = cls(data["boot"], _number(data["at"]), _number(data["silence"]))
        except (KeyError, TypeError, ValueError):
            return None
        possible = sign.silence >= 0 and (sign.of_earlier_boot() or sign.age() >= 0)
        return sign if isinstance(sign.boot, str) and possible else None

    def of_earlier_boot(self) -> bool:
        return self.boot != process.boot_id()

    def age(self) -> float:
        return process.boot_time() - self.at


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
    turns: int = 1  # in which its nodes take each task; earlier versions multiply the lease by it
    host: str = ""  # of the process, in all boots

    @classmethod
    def from_dict(cls, data: Any) -> Holder:
        """Read a holder; what is unknown or of the wrong type is left out, for the lock may be of another version."""
        kept: dict[str, Any] = {"run_id": ""}
        for field in fields(cls):
            kind = {"int": int, "float": float}.get(str(field.type))
            with contextlib.suppress(KeyError, TypeError, ValueError):
                value = data[field.name]
                if kind or isinstance(value, str):
                    kept[field.name] = kind(_number(value)) if kind else value
        return cls(**kept)

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
            host=process.host_id(),
        )

    def alive(self) -> bool | None:
        """Say whether the driving process lives; None where it is not on this machine, so that nothing is known."""
        if not self.pid:
            return None
        if self.machine == machine_id():
            return process_started(self.pid) == self.pid_started != ""
        (name, boot), (here, now) = ((*machine.split(" "), "")[:2] for machine in (self.machine, machine_id()))
        # Of an earlier boot of this host no process is left.
        return False if self.host == process.host_id() != "" and name == here and boot != now else None

    def sentence(self, age: float, silence: float = 0) -> str:
        """Name the holder in words, by how long ago it was seen, and how long it said that it may be silent."""
        seen = f"last seen {age:.0f} s ago"
        if not self.run_id:
            return f"held by an unreadable lock ({lock_path()}), {seen}"
        if silence > age:
            seen += f", and may be silent until {utc(time.time() + silence - age)}, as it has announced"
        return (
            f"held by {self.mode} from {self.user}@{self.controller} (pid {self.pid}) since {utc(self.started)}, {seen}"
        )


@dataclass(frozen=True)
class Outcome:
    """What became of an attempt to take the lock."""

    taken: bool
    holder: Holder | None = None  # who holds it, or held it before us
    age: float = 0.0  # since the holder's last sign of life
    silence: float = 0.0  # which that sign has announced
    how: str = ""  # free, again, dead or expired

    def sentence(self) -> str:
        """Name the holder in words."""
        return self.holder.sentence(self.age, self.silence) if self.holder else ""


class Lock:
    """The lock of one node."""

    def __init__(self, directory: str = "") -> None:
        self.directory = directory or RUN_DIR
        self.path = os.path.join(self.directory, "lock")
        self.seen = self.path + ".seen"

    def look(self, lease: float, me: Holder, judged: str = "", judged_alive: bool = False) -> Outcome:
        """Say what an attempt would meet, and change nothing."""
        found = self._read()
        if found is None:
            return Outcome(True, how="free")
        holder, sign, since = found
        age, silence = (sign.age(), sign.silence) if sign else (max(0.0, since), max(0.0, -since))
        if holder.run_id == me.run_id:
            return Outcome(True, holder, age, silence, "again")
        alive = holder.alive()
        if alive is None and judged and holder.run_id == judged:
            alive = judged_alive
        if sign and sign.of_earlier_boot():
            alive, age, silence = False, 0.0, 0.0
        if alive is False:
            return Outcome(True, holder, age, silence, "dead")
        if alive is None and age > silence + lease * (1 if sign else max(1, holder.turns)):
            return Outcome(True, holder, age, silence, "expired")
        return Outcome(False, holder, age, silence)

    def take(self, me: Holder, lease: float, judged: str = "", judged_alive: bool = False) -> Outcome:
        """Try once to take the lock. The controller may add what it knows of one holder, judged by its run id."""
        with self._guard():
            outcome = self.look(lease, me, judged, judged_alive)
            if outcome.taken and outcome.how != "again":
                files.write(self.path, json.dumps({**asdict(me), "seen": asdict(Sign.now())}, sort_keys=True) + "\n")
            elif outcome.taken:
                self.show()
            return outcome

    def show(self, silence: float = 0) -> None:
        """Show a sign of life of the holder."""
        sign = Sign.now(silence)
        until = time.time() + sign.silence
        os.utime(self.path, (until, until))  # for earlier versions; without a lock an error
        files.write(self.seen, json.dumps(asdict(sign)) + "\n")

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
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.seen)
            return True

    def _read(self) -> tuple[Holder, Sign | None, float] | None:
        """Return the holder, its last sign of life, and the lock's age by the wall clock, for a lock without a sign."""
        try:
            with open(self.path, "rb") as handle:
                since = time.time() - os.fstat(handle.fileno()).st_mtime
                data = parsed(handle.read(_LARGEST))
        except FileNotFoundError:
            return None
        holder, sign = Holder.from_dict(data), Sign.from_dict(data.get("seen"))
        if not holder.run_id:  # nobody has announced anything, so a time to come is one of a clock that was set back
            return holder, sign, abs(since)
        with contextlib.suppress(OSError), open(self.seen, "rb") as handle:
            later = Sign.from_dict(parsed(handle.read(_LARGEST)))
            # One of an earlier holder, or of an earlier boot, is older than the lock.
            if sign and later and later.boot == sign.boot and later.at >= sign.at:
                sign = later
        return holder, sign, since

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        os.makedirs(self.directory, mode=0o755, exist_ok=True)
        handle = os.open(self.path + ".guard", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)
