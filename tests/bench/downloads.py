#!/usr/bin/env python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What many nodes that want the same cost upstream and the shared file system: downloads, and a build of NCCL.

    python tests/bench/downloads.py [--json FILE]

200 processes with the real modules and their real times, each of which is another machine to the others, want one
artifact from a server on loopback at once. Calls are counted where Python makes them: each that names a path below the
shared directory, or asks for a lock there. Those are what the file system's metadata servers are asked; fstat(2) of
what was just opened, reads and writes are not among them. It sleeps for most of its minute and a half.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import fcntl
import hashlib
import importlib
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests"))

import conftest  # noqa: E402,F401  # makes this checkout importable as a collection
from children import Child  # noqa: E402
from figures import Figure, run  # noqa: E402

NODES = 200
FEW = 20
# As long as the EFA installer's 630 MB take at 20 MB/s. What is sent is small; the time is what counts.
DOWNLOAD = 30.0
SHORT_DOWNLOAD = 5.0
OUTAGE = 10.0
# Longer than four nodes that give up one after the other, each after 1 + 2 + 4 s (module artifact: retries 3).
LONG_OUTAGE = 35.0
KILLED_AFTER = 12.5  # when those who wait look seldom already
DATA = bytes(range(256)) * 400
PATH = "/aws-efa-installer.tar.gz"
COUNTED = (
    *("open", "stat", "lstat", "access", "readlink", "listdir", "scandir", "utime", "chmod"),
    *("mkdir", "rmdir", "unlink", "remove", "rename", "replace", "link", "symlink"),
)


# --- what is counted -----------------------------------------------------------------------------------------------


class Calls:
    """Notes when this process calls for what names of the file system below a directory."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self.made: list[tuple[float, str, str]] = []

    def __enter__(self) -> Calls:
        self._kept = [(os, name, getattr(os, name)) for name in COUNTED]
        self._kept += [(builtins, "open", builtins.open), (fcntl, "flock", fcntl.flock)]
        for place, name, real in self._kept:
            setattr(place, name, self._counting(name, real))
        return self

    def __exit__(self, *_raised: object) -> None:
        for place, name, real in self._kept:
            setattr(place, name, real)

    def _counting(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(first: Any, *rest: Any, **more: Any) -> Any:
            named = self._root if name == "flock" else first
            # a name that is given to a file counts as the call that gives it
            named = rest[0] if name in ("rename", "replace", "link", "symlink") else named
            if isinstance(named, (str, os.PathLike)) and os.fspath(named).startswith(self._root):
                self.made.append((time.monotonic(), name, os.path.basename(os.fspath(named))))
            return real(first, *rest, **more)

        return call


# --- upstream ------------------------------------------------------------------------------------------------------


class Upstream(ThreadingHTTPServer):
    """Sends one file slowly, answers 503 for a time after the first request, and counts."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 1024

    def __init__(self, seconds: float, outage: float = 0) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seconds, self.outage = seconds, outage
        self.lock = threading.Lock()
        self.asked: list[float] = []
        self.sent = 0

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that is killed is meant to be."""

    @contextlib.contextmanager
    def serving(self) -> Iterator[Upstream]:
        """Serve meanwhile, from a thread."""
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield self
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    server: Upstream

    def log_message(self, *_ignored: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        server = self.server
        with server.lock:
            server.asked.append(time.monotonic())
            down = server.asked[-1] - server.asked[0] < server.outage
            server.sent += not down
        self.send_response(503 if down else 200)
        self.send_header("Content-Length", "0" if down else str(len(DATA)))
        self.end_headers()
        pieces = 20
        for piece in range(0 if down else pieces):
            time.sleep(server.seconds / pieces)
            self.wfile.write(DATA[piece * len(DATA) // pieces : (piece + 1) * len(DATA) // pieces])


# --- nodes ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Herd:
    """What became of nodes that wanted the same at the same time."""

    begun: float
    nodes: list[dict[str, Any]]
    killed: float
    asked: list[float]
    sent: int

    @property
    def published(self) -> float:
        """Return when the entry was in the cache."""
        name = hashlib.sha256(DATA).hexdigest()
        return min(at for node in self.nodes for at, call, what in node["calls"] if (call, what) == ("replace", name))

    def rates(self) -> list[float]:
        """Return how many calls a second each node made that only waited, for as long as it did."""
        until = self.published
        waited = [node for node in self.nodes if node["source"] == "cache"]
        return [sum(at < until for at, *_what in node["calls"]) / (until - self.begun) for node in waited]

    def latest(self) -> float:
        """Return how long after the entry was there the last node had it."""
        return max(node["ended"] for node in self.nodes) - self.published

    def failed(self) -> list[str]:
        return [node["error"] for node in self.nodes if node["error"]]


def one_node(number: int, place: Path, url: str, start: int) -> dict[str, Any]:
    """Be one node, which begins when the others do."""
    from ansible_collections.pcluster.postboot.plugins.module_utils._artifact import ensure, model
    from ansible_collections.pcluster.postboot.plugins.module_utils._host import files

    files.machine = lambda: f"{number:08x}"  # no node can ask for another's processes
    home = place / f"node-{number}"
    wanted = {"name": "efa", "url": url, "sha256": hashlib.sha256(DATA).hexdigest(), "dest": str(home / "efa.tar.gz")}
    settings = model.Settings(str(home / "state"), cache=str(place / "cache"))
    artifacts = model.parse_all([wanted])
    os.read(start, 1)
    with Calls(place / "cache") as calls:
        outcome = ensure.ensure_all(artifacts, settings)[0]
    return {"calls": calls.made, "ended": time.monotonic(), "source": outcome.source, "error": outcome.error}


def herd(nodes: int, seconds: float, outage: float = 0, kill_after: float = 0) -> dict[str, Any]:
    """Let nodes want one artifact at once; kill the one that downloads after a time, where one is given."""
    with tempfile.TemporaryDirectory(prefix="bench-downloads-") as folder:
        place = Path(folder)
        server = Upstream(seconds, outage)
        url = f"http://127.0.0.1:{server.server_address[1]}{PATH}"
        start, go = os.pipe()
        children = [Child(lambda number=number: one_node(number, place, url, start)) for number in range(nodes)]
        killed = 0.0
        with server.serving():
            begun = time.monotonic()
            os.write(go, bytes(nodes))
            if kill_after:
                time.sleep(kill_after)
                (lease,) = place.rglob(".*.lease.*")
                killed = time.monotonic()
                os.kill(int(lease.read_text().split("-")[1]), signal.SIGKILL)
            answers = [child.join() for child in children]
        os.close(start)
        os.close(go)
        gone = [answer for answer in answers if answer is not None]
        return dataclasses.asdict(Herd(begun, gone, killed, server.asked, server.sent))


# --- a node that waits for NCCL ------------------------------------------------------------------------------------


def nccl(node: str, method: str) -> tuple[dict[str, Any], float]:
    """Return with what roles/nccl has a compute node look for NCCL, and how many seconds it waits between two looks."""
    from ansible_collections.pcluster.postboot.tests.templating import work_out

    facts = {"node_type": "compute", "node_name": node, "gpus": {"count": 8}, "components": {"cuda": "13.0"}}
    value = work_out("common nccl", facts, nccl_method=method, inventory_hostname="localhost")
    tasks = yaml.safe_load((REPOSITORY / "roles/nccl/tasks/configure.yml").read_text())
    looks = [task for task in tasks[0]["block"] if "until" in task]
    (look,) = looks
    given = look["pcluster.postboot.shared_build"].items()
    return {name: value(one) if "{{" in str(one) else one for name, one in given}, float(value(look["delay"]))


def calls_of_a_look(arguments: dict[str, Any], building: bool, older: bool) -> int:
    """Return how many calls one look is, beside a builder or not, with an older release there or none."""
    from ansible_collections.pcluster.postboot.plugins.module_utils._shared_build import build
    from ansible_collections.pcluster.postboot.plugins.module_utils._shared_build import root as roots

    with tempfile.TemporaryDirectory(prefix="bench-downloads-") as folder:
        root = Path(folder) / "nccl"
        root.mkdir()
        (Path(folder) / "source").mkdir()
        given = {**arguments, "root": str(root), "steps": tuple(map(tuple, arguments["steps"]))}
        if older:
            made = {"release": "2.0-old", "steps": (("touch", "{stage}/file"),), "source": folder + "/source"}
            build.apply(build.Request(**{**given, **made, "builder": True}))
        else:
            (root / roots.LOCK).touch()

        def look() -> int:
            with Calls(root) as calls:
                outcome = build.apply(build.Request(**given))
            if outcome.published or bool(outcome.building) is not building:
                raise SystemExit(f"this was not to be found: {outcome}")
            return len(calls.made)

        if not building:
            return look()
        held, _waited = roots.take(str(root), str(given["release"]), 0)
        with held:
            return Child(look).join()  # a lock is a process's own


def waiting_for_nccl() -> list[float]:
    """Return how many calls a minute nodes make at most, each with the pause that is its own."""
    found = []
    for method in ("package", "source"):
        arguments, _pause = nccl("gpu-st-p5-1", method)
        most = max(calls_of_a_look(arguments, building, older) for building in (False, True) for older in (False, True))
        found += [60 / nccl(f"gpu-st-p5-{number}", method)[1] * most for number in range(1, NODES + 1, 4)]
    return found


# --- figures -------------------------------------------------------------------------------------------------------


def most_in_a_second(moments: list[float]) -> int:
    """Return how many requests came within a second at most."""
    return max(sum(0 <= other - at < 1 for other in moments) for at in moments)


def after_an_outage(seconds: float, nodes: Herd) -> list[Figure]:
    """Return what an outage of upstream of so many seconds led to."""
    return [
        Figure(f"{NODES} nodes, upstream answers 503 for {seconds:g} s: whole downloads", nodes.sent, "", at_most=8),
        Figure("  requests, those in vain included", len(nodes.asked)),
        Figure("  most requests within a second", most_in_a_second(nodes.asked), "", at_most=8),
        Figure("  nodes that failed", len(nodes.failed())),
        Figure("  metadata calls a second and waiting node", statistics.mean(nodes.rates()), "/s"),
    ]


def measure() -> list[Figure]:
    """Run the herds beside each other, since they mostly sleep, and count NCCL's calls meanwhile."""
    importlib.import_module(
        "ansible_collections.pcluster.postboot.plugins.module_utils._artifact.ensure"
    )  # before the forks
    children = [
        Child(lambda: herd(NODES, DOWNLOAD)),
        Child(lambda: herd(NODES, SHORT_DOWNLOAD, outage=OUTAGE)),
        Child(lambda: herd(NODES, SHORT_DOWNLOAD, outage=LONG_OUTAGE)),
        Child(lambda: herd(FEW, 2 * KILLED_AFTER, kill_after=KILLED_AFTER)),
    ]
    looks = waiting_for_nccl()
    well, outage, longer, dead = (Herd(**child.join()) for child in children)
    for name, one in (("no fault", well), ("a killed node", dead)):
        if one.failed():
            raise SystemExit(f"{name}: {len(one.failed())} nodes failed, such as: {one.failed()[0]}")
    taken = next(at for at in dead.asked if at > dead.killed) - dead.killed
    return [
        Figure(f"{NODES} nodes want one artifact: requests of upstream", len(well.asked), "", at_most=1),
        Figure("  metadata calls a second and waiting node", statistics.mean(well.rates()), "/s", at_most=0.3),
        Figure("  the last node has it after it was published", well.latest(), "s", at_most=25),
        *after_an_outage(OUTAGE, outage),
        *after_an_outage(LONG_OUTAGE, longer),
        Figure(f"{FEW} nodes, the one that downloads is killed: another does after", taken, "s", at_most=45),
        Figure("a node that waits for NCCL: metadata calls a minute, the mean", statistics.mean(looks), "", at_most=20),
        Figure("  of the node that looks most often", max(looks), "", at_most=20),
    ]


if __name__ == "__main__":
    sys.exit(run("Downloads, and waiting for what others make", measure, about=__doc__))
