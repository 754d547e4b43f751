# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What node health keeps in files on the head node: the settings, the history, and the states that nodes leave."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
from collections.abc import Iterator
from typing import Any, NamedTuple

KEPT, KEPT_DAYS = 2000, 90
ACTIONS = ("report", "drain")
LIMITS = (("max_nodes", 1, 10000), ("max_share", 0, 100), ("max_per_hour", 1, 10000), ("successor_window", 0, 24 * 90))

Record = dict[str, Any]


class Settings(NamedTuple):
    """The configuration file."""

    action: str
    max_nodes: int
    max_share: float
    max_per_hour: int
    successor_window: float
    silent_after: float
    states: str
    history: str
    cache: str
    metrics: str
    scontrol: str


def read(path: str, default: Any) -> Any:
    try:
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)
    except FileNotFoundError:
        return default


def put(path: str, text: str) -> None:
    """Put a file in place whole: readers find the old one or the new one, also after a power cut."""
    folder, name = os.path.split(path)
    os.makedirs(folder, mode=0o755, exist_ok=True)
    temporary = os.path.join(folder, f".{name}.new")
    with open(temporary, "w", encoding="utf-8") as stream:
        stream.write(text)
        os.fchmod(stream.fileno(), 0o644)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)


def settings_of(path: str) -> Settings:
    settings = Settings(**read(path, {}))
    if settings.action not in ACTIONS:
        raise ValueError(f"node_health_action is {settings.action!r}, and has to be {' or '.join(ACTIONS)}")
    for name, least, most in LIMITS:
        value = getattr(settings, name)
        if not least <= value <= most:
            raise ValueError(f"node_health_{name} is {value:g}, and has to be from {least:g} to {most:g}")
    return settings


class History:
    """What outlives nodes: who was drained and what came of that, which findings are stopped, and who is held."""

    def __init__(self, path: str) -> None:
        self.path = path
        found = read(path, {"schema": 1})
        if found.get("schema") != 1:
            raise ValueError(f"{path} has schema {found.get('schema')!r} and not 1: another version has written it")
        self.drains: list[Record] = found.get("drains", [])
        self.stops: dict[str, Record] = found.get("stops", {})
        self.holds: dict[str, Record] = found.get("holds", {})
        self.totals: dict[str, int] = found.get("totals", {})
        self.written = self._text()

    def open(self) -> list[Record]:
        """Return the drains whose nodes are not back."""
        return [one for one in self.drains if not one["end"]]

    def confirm(self, record: Record) -> None:
        """Note that Slurm has drained a node."""
        if not record["done"]:
            record["done"] = True
            self.totals[record["finding"]] = self.totals.get(record["finding"], 0) + 1

    def _text(self) -> str:
        parts = {"drains": self.drains, "stops": self.stops, "holds": self.holds, "totals": self.totals}
        return json.dumps({"schema": 1, **parts}, indent=1) + "\n"

    def save(self, now: float) -> None:
        ended = [one for one in self.drains if one["end"] and now - one["time"] < KEPT_DAYS * 86400]
        self.drains = sorted(ended[-KEPT:] + self.open(), key=lambda one: float(one["time"]))
        text = self._text()
        if text != self.written:
            put(self.path, text)
            self.written = text

    def stamp(self) -> int:
        return os.stat(self.path).st_mtime_ns if os.path.exists(self.path) else 0


@contextlib.contextmanager
def alone(history: str) -> Iterator[None]:
    """Wait until no other run of this program, and no command of an administrator, has the history."""
    os.makedirs(os.path.dirname(history), mode=0o755, exist_ok=True)
    with open(os.path.join(os.path.dirname(history), ".lock"), "w", encoding="ascii") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def peek(path: str, flags: int) -> int:
    """Open a file, and nothing else that may be in its place, such as a pipe that never ends."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no file", path)
    return descriptor


def parse(text: str, name: str) -> Record:
    """Return what counts of a node's state; a ValueError where that is no state of this node."""
    found = json.loads(text)
    try:
        if found["schema"] != 1 or found["node"] != name:
            raise ValueError(f"schema {found['schema']!r} of node {found['node']!r}, not 1 of {name}")
        keys = {"finding": str, "class": str, "subject": str, "evidence": str, "since": float}
        return {
            "instance_id": str(found["instance_id"]),
            "gpus": [str(one) for one in found["gpus"]],
            "findings": [{key: kind(one[key]) for key, kind in keys.items()} for one in found["findings"]],
            "skipped": sorted(found["skipped"]),
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no state of a node: {error!r}") from error


def scan(folder: str, former: dict[str, Record]) -> tuple[dict[str, Record], bool, list[str]]:
    """Return the nodes' states, whether one of them says something new, and what is wrong with files.

    former: what the last run has returned: a file that is as it was then is not read again
    """
    states: dict[str, Record] = {}
    changed, lines = False, []
    os.makedirs(folder, mode=0o755, exist_ok=True)
    with os.scandir(folder) as entries:
        for entry in entries:
            name, suffix = os.path.splitext(entry.name)
            if suffix != ".json" or name.startswith("."):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
                stamp = [status.st_mtime_ns, status.st_size, status.st_ino]
                old = former.get(name, {})
                if old.get("stamp") == stamp:
                    states[name] = old
                    continue
                with open(entry.path, encoding="utf-8", opener=peek) as stream:
                    found = parse(stream.read(1 << 20), name)
            except FileNotFoundError:  # while the folder was read
                continue
            except (OSError, ValueError) as error:
                found, wrong = {"findings": [], "wrong": str(error)}, f"{entry.path} is no state of a node: {error}"
                lines += [wrong] if old.get("wrong") != str(error) else []
            states[name] = {**found, "stamp": stamp, "told": status.st_mtime}
            changed = changed or {**old, "stamp": 0, "told": 0} != {**found, "stamp": 0, "told": 0}
    return states, changed or states.keys() != former.keys(), lines
