# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What node health keeps in files on the head node: the settings, the history, and the states that nodes leave."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

KEPT, KEPT_DAYS = 2000, 90
# A state is a few kilobytes, and a text in it is one line.
LARGEST, LONGEST = 1 << 20, 500
# Seconds by which the clock of the file server may be ahead of this machine's.
SKEW = 5.0
BOOT_ID = "/proc/sys/kernel/random/boot_id"
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


class Clock(NamedTuple):
    """This moment: by the clock that people set, and by the seconds of this boot, which nobody can set."""

    now: float
    up: float
    boot: str

    @classmethod
    def read(cls) -> Clock:
        with open(BOOT_ID, encoding="ascii") as stream:
            return cls(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME), stream.read().strip())

    def stamp(self) -> Record:
        """Return what the history notes of this moment."""
        return {"time": self.now, "up": self.up, "boot": self.boot}

    def since(self, record: Record) -> float:
        """Return how many seconds ago something was noted in the history."""
        if record.get("boot") == self.boot:
            return float(self.up - record["up"])
        passed = float(self.now - record["time"])
        # What an earlier boot has noted is older than this one. Earlier versions have noted no boot.
        return max(passed, self.up) if record.get("boot") else abs(passed)


def read(path: str) -> Record:
    """Return the JSON object of a file; an empty one where there is no file."""
    try:
        with open(path, encoding="utf-8") as stream:
            found = json.load(stream)
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} has {type(found).__name__}, and has to have an object")
    return found


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
    found = read(path)
    wrong = sorted(set(found) ^ set(Settings._fields))
    if wrong:
        raise ValueError(f"{wrong[0]} is {'unknown' if wrong[0] in found else 'missing'}")
    settings = Settings(**found)
    if settings.action not in ACTIONS:
        raise ValueError(f"node_health_action is {settings.action!r}, and has to be {' or '.join(ACTIONS)}")
    for name, least, most in LIMITS:
        value = getattr(settings, name)
        if not is_number(value) or not least <= value <= most:
            shown = f"{value:g}" if is_number(value) else repr(value)
            raise ValueError(f"node_health_{name} is {shown}, and has to be from {least:g} to {most:g}")
    for name in Settings._fields[-6:]:
        value = getattr(settings, name)
        if not (is_number(value) if name == "silent_after" else isinstance(value, str)):
            raise ValueError(f"{name} is {value!r}, and has to be {'a number' if name == 'silent_after' else 'text'}")
    return settings


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e15


# What the history has of each kind, and by which it is told from a file that somebody else has written.
DRAIN = {"node": str, "instance": str, "address": str, "finding": str, "class": str, "reason": str, "end": str,
         "time": float, "ended": float, "done": bool, "gpus": list, "skipped": list}  # fmt: skip
STOP = {"time": float, "node": str, "instances": list}
HOLD = {"time": float, "reason": str, "by": str}


def has_shape(value: Any, kind: type) -> bool:
    if kind is list:
        return isinstance(value, list) and all(isinstance(one, str) for one in value)
    return is_number(value) if kind is float else isinstance(value, kind)


def lacks(record: Any, shape: dict[str, type]) -> str:
    """Return the first key of a record that is missing, or of another type; empty where there is none."""
    if not isinstance(record, dict):
        return "everything"
    keys = {**shape, **({"up": float, "boot": str} if {"up", "boot"} & set(record) else {})}
    return next((key for key, kind in keys.items() if not has_shape(record.get(key), kind)), "")


class History:
    """What outlives nodes: who was drained and what came of that, which findings are stopped, and who is held."""

    def __init__(self, path: str) -> None:
        self.path = path
        found = read(path)
        if found.get("schema") != 1 and os.path.exists(path):
            raise ValueError(f"{path} has schema {found.get('schema')!r} and not 1: another version has written it")
        self.drains: list[Record] = found.get("drains", [])
        self.stops: dict[str, Record] = found.get("stops", {})
        self.holds: dict[str, Record] = found.get("holds", {})
        self.totals: dict[str, int] = found.get("totals", {})
        wrong = self._wrong()
        if wrong:
            raise ValueError(f"{path} is damaged: {wrong}; correct it, or move it away to begin without a history")
        self.written = self._text()

    def _wrong(self) -> str:
        """Say what in the file no version of this program has written."""
        if not isinstance(self.drains, list):
            return "drains is no list"
        for name in ("stops", "holds", "totals"):
            if not isinstance(getattr(self, name), dict):
                return f"{name} is no object"
        for number, record in enumerate(self.drains):
            if key := lacks(record, DRAIN):
                return f"{key} of drain {number} is missing or of another type"
        for name, shape in (("stops", STOP), ("holds", HOLD)):
            for key, record in getattr(self, name).items():
                if lack := lacks(record, shape):
                    return f"{lack} of {name}/{key} is missing or of another type"
        wrong = [name for name, count in self.totals.items() if not is_number(count)]
        return f"totals/{wrong[0]} is no number" if wrong else ""

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


def line(value: Any) -> str:
    """Return a text of a state as one line that any terminal and any file takes."""
    if not isinstance(value, str):
        raise ValueError(f"{str(value)[:40]!r} is no text")
    return "".join(one if one.isprintable() else " " for one in value[:LONGEST])


def finding_of(found: Record) -> Record:
    since = found["since"]
    if not is_number(since):
        raise ValueError(f"since is {str(since)[:40]!r}")
    texts = {key: line(found[key]) for key in ("finding", "class", "subject", "evidence")}
    if not re.fullmatch(r"\w{1,80}", texts["finding"], re.ASCII):
        raise ValueError(f"{texts['finding']!r} is the name of no finding")
    return {**texts, "since": float(since)}


def parse(text: str, name: str) -> Record:
    """Return what counts of a node's state; a ValueError where that is no state of this node."""
    try:
        found = json.loads(text)
        if found["schema"] != 1 or found["node"] != name:
            schema, node = (str(found[key])[:80] for key in ("schema", "node"))
            raise ValueError(f"schema {schema} of node {node!r}, not 1 of {name}")
        if not isinstance(found["gpus"], list) or not isinstance(found["findings"], list):
            raise ValueError("gpus or findings is no list")
        return {
            "instance_id": line(found["instance_id"]),
            "gpus": [line(one) for one in found["gpus"]],
            "findings": [finding_of(one) for one in found["findings"]],
            "skipped": sorted(line(one) for one in found["skipped"]),
        }
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no state of a node: {error!r}") from error


def content(path: str) -> str:
    """Return the text of a file that a node has written: root there may have put a link or a pipe in its place."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, encoding="utf-8") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("no regular file")
        return stream.read(LARGEST)


def told_at(clock: Clock, stamped: float, last: float) -> float:
    """Return when of this boot a file was written that was not so at the last scan.

    The file server has stamped it, with a clock that may have been set since. Without a last scan a file from the
    future is of no time that is known.
    """
    passed = clock.now - stamped
    when = clock.up - passed if passed >= -SKEW else last
    return min(max(when, last), clock.up)


def scan(
    folder: str, former: dict[str, Record], clock: Clock, last: float
) -> tuple[dict[str, Record], bool, list[str]]:
    """Return the nodes' states, whether one of them says something new, and what is wrong with files.

    former: what the last run has returned: a file that is as it was then is not read again
    last: when of this boot that was
    """
    states: dict[str, Record] = {}
    changed, lines = False, []
    os.makedirs(folder, mode=0o755, exist_ok=True)
    with os.scandir(folder) as entries:
        for entry in entries:
            name, suffix = os.path.splitext(entry.name)
            if suffix != ".json" or name.startswith("."):
                continue
            shown = line(name)
            old = former.get(shown, {})
            try:
                status = entry.stat(follow_symlinks=False)
                stamp = [status.st_mtime_ns, status.st_size, status.st_ino]
                if old.get("stamp") == stamp:
                    states[shown] = {**old, "told": min(status.st_mtime, clock.now - (clock.up - old["heard"]))}
                    continue
                if shown != name:
                    raise ValueError("no node has such a name")
                found = parse(content(entry.path), name)
            except FileNotFoundError:  # while the folder was read
                continue
            except (OSError, ValueError) as error:
                why = line(str(error))
                found = {"findings": [], "wrong": why}
                path = os.path.join(folder, f"{shown}.json")
                lines += [f"{path} is no state of a node: {why}"] if old.get("wrong") != why else []
            heard = told_at(clock, status.st_mtime, last)
            # By either clock alone a step would make a state younger than the boot that followed.
            told = min(status.st_mtime, clock.now - (clock.up - heard))
            states[shown] = {**found, "stamp": stamp, "heard": heard, "told": told}
            same = dict.fromkeys(("stamp", "heard", "told"), 0)
            changed = changed or {**old, **same} != {**found, **same}
    return states, changed or states.keys() != former.keys(), lines
