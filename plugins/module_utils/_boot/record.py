# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How far a node is in its own run, for whoever watches the cluster boot: one small file a node, which others can read.

The file is /opt/slurm/pcluster-postboot/boots/<node>, because the head node exports /opt/slurm to each of its nodes
before their custom actions. A line of the file is a key, a space and a value. A node that replaces another one has its
name, so a cluster has as many files as names.

key        what it tells
---------  -----------------------------------------------------------------------------------------------------
node       the node's name in Slurm, else its host name
instance   its EC2 instance
stage      bundle: bootstrap.sh fetches it; site: the boot's run; later: the boot is over, and the service runs;
           waits: the service runs again later; done; failed
component  the component that runs, or failed
number     which one of the components that run it is, and `of` how many there are
since      when this stage or component began, in seconds since the epoch
deadline   when the budget of the boot ends, in seconds since the epoch
why        why the run failed, on one line

roles/pull/files/bootstrap.sh writes stage bundle, and failed; pull.py writes the others. Nobody waits for a file system
that does not answer: a boot must not fail, or take longer, because nobody can watch it.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any, Callable

from ansible_collections.pcluster.postboot.plugins.module_utils._host import document
from ansible_collections.pcluster.postboot.plugins.module_utils._node import parallelcluster

_ROOT = os.environ.get("PCLUSTER_POSTBOOT_ROOT", "")
DIRECTORY = "/opt/slurm/pcluster-postboot/boots"
KEYS = ("node", "instance", "stage", "component", "number", "of", "since", "deadline", "why")
_TIMES = ("since", "deadline")
FIRST, EVERY = 2.0, 15.0  # seconds between two writes of a node, doubled each time: of 1,000 nodes, 67 a second
PATIENCE = 5.0  # seconds that the end of a run waits for its last write
KEPT = 7 * 86400  # seconds after which the file of a node that is gone is removed
_LONGEST = 500  # characters of a value

Record = dict[str, str]


def text(record: Mapping[str, Any]) -> str:
    """Return the file of a record."""
    values = {key: " ".join(str(record.get(key) or "").split())[:_LONGEST] for key in KEYS}
    return "".join(f"{key} {value}\n" for key, value in values.items() if value)


def parse(content: str) -> Record:
    """Return the record of a file; lines with other keys are a newer version's, and a time is one that can be read."""
    pairs = (line.partition(" ")[::2] for line in content.splitlines())
    found = {key: value for key, value in pairs if key in KEYS and value}
    return {key: value for key, value in found.items() if key not in _TIMES or document.whole(value) is not None}


def who() -> Record:
    """Return this node's name and instance."""

    def line(path: str) -> str:
        with contextlib.suppress(OSError), open(_ROOT + path, encoding="utf-8") as stream:
            return stream.readline().strip()
        return ""

    name = line(parallelcluster.NODENAME) or socket.gethostname().split(".")[0]
    return {"node": name, "instance": line("/var/lib/cloud/data/instance-id")}


def write(record: Mapping[str, Any], directory: str = _ROOT + DIRECTORY) -> None:
    """Put the record of a node in place; without a shared Slurm there is nobody to read it."""
    if not os.path.isdir(os.path.dirname(os.path.dirname(directory))):
        return
    os.makedirs(directory, mode=0o755, exist_ok=True)
    name = re.sub(r"[^A-Za-z0-9._-]", "_", str(record["node"]))
    # Not files.write(): nothing is lost with a power cut, and a sync of the head node's disk would cost most of all.
    temporary = os.path.join(directory, f".{name}")
    with open(temporary, "w", encoding="utf-8") as stream:
        stream.write(text(record))
        os.fchmod(stream.fileno(), 0o644)
    os.replace(temporary, os.path.join(directory, name))


def tidy(now: float, directory: str = _ROOT + DIRECTORY) -> None:
    """Remove what nodes have left that have not booted for a week. The head node does so at its own runs."""
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if now - entry.stat(follow_symlinks=False).st_mtime > KEPT:
                    os.unlink(entry.path)


def position(progress: Mapping[str, Any]) -> Record:
    """Return where a run is, by progress.json."""
    running = [name for name, plan in (progress.get("plans") or {}).items() if plan.get("run")]
    component = str(progress.get("component") or "")
    if component not in running:
        return {}
    number, of = str(running.index(component) + 1), str(len(running))
    since = str(int(float(progress.get("since") or 0)))
    return {"component": component, "number": number, "of": of, "since": since}


class Teller(threading.Thread):
    """Writes the record of this node while its run goes on, from a thread that nobody has to wait for."""

    def __init__(
        self,
        stage: str,
        deadline: float,
        read: Callable[[], Mapping[str, Any]],
        put: Callable[[Mapping[str, Any]], None] = write,
        every: float = EVERY,
        head: bool = False,
    ) -> None:
        super().__init__(daemon=True)
        self._read, self._put, self._every, self._head = read, put, every, head
        self._base: Record = {**who(), "stage": stage, "since": str(int(time.time()))}
        if deadline:
            self._base["deadline"] = str(int(deadline))
        self._last: Record | None = None
        self._over = threading.Event()

    def run(self) -> None:
        before: Record = {}
        pause = min(FIRST, self._every)
        while True:
            over = self._over.is_set()  # read first, so that what is told at the end is written
            record = self._last if over and self._last else {**self._base, **position(self._read())}
            if record != before:
                with contextlib.suppress(OSError):
                    self._put(record)
            if over:
                return
            if not before and self._head:
                tidy(time.time())
            before = record
            self._over.wait(pause)
            pause = min(2 * pause, self._every)

    def end(self, stage: str, component: str = "", why: str = "") -> None:
        """Write how the run ended, and go on where that cannot be written."""
        last = {"stage": stage, "since": str(int(time.time())), "component": component, "why": why}
        base = {key: value for key, value in self._base.items() if key != "deadline" or stage == "failed"}
        self._last = {**base, **{key: value for key, value in last.items() if value}}
        self._over.set()
        self.join(PATIENCE)
