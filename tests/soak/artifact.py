# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Faults for the artifact module by the hundred: kill -9 at every step, broken servers, herds on one cache, full disks.

    .venv/bin/python tests/soak/artifact.py --rounds 500

After each fault no final name may hold wrong bytes, the next run must succeed, the one after it must change nothing and
ask no server, and nothing temporary may be left. Each round is a fork of this process, so that a kill is a real one.
Standard library only: any Python from 3.9 on runs it.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import hashlib
import io
import itertools
import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import types
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests"))

from children import Child  # noqa: E402
from programs import load_collection  # noqa: E402

# --- a server that misbehaves on request ---------------------------------------------------------------------------


class Handler(BaseHTTPRequestHandler):
    """Serves the server's files in the way that its script says for each path, request by request."""

    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_ignored: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        with self.server.lock:
            self.server.busy += 1
            self.server.busiest = max(self.server.busiest, self.server.busy)
        try:
            self._serve()
        finally:
            with self.server.lock:
                self.server.busy -= 1

    def _serve(self) -> None:
        server, path = self.server, self.path.partition("?")[0]
        if path.startswith("http://"):  # we are somebody's proxy
            path = "/" + path.split("/", 3)[3]
        with server.lock:
            server.seen.append((path, dict(self.headers)))
            server.hits[path] += 1
            script = server.script.get(path, ["ok"])
            act = script[min(server.hits[path], len(script)) - 1]
        body = server.files.get(path)
        self.close_connection = True
        name, _colon, argument = act.partition(":")
        if name == "redirect":
            self._answer(302, b"elsewhere", {"Location": argument})
        elif name.isdigit():
            self._answer(int(name), b"no", {"Retry-After": argument} if argument else {})
        elif body is None:
            self._answer(404, b"not here")
        else:
            getattr(self, f"_act_{name}")(body)

    def do_POST(self) -> None:
        """Take a new script, from a driver in another process, and forget the hits."""
        data = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            hits = dict(self.server.hits)
            self.server.hits.clear()
            self.server.seen.clear()
            self.server.script = data
        self._answer(200, json.dumps(hits).encode())

    def _answer(self, code: int, body: bytes, headers: dict[str, str] | None = None, length: int | None = None) -> None:
        self.send_response(code)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def _act_ok(self, body: bytes) -> None:
        self._answer(200, body)

    def _act_slow(self, body: bytes) -> None:
        time.sleep(0.3)
        self._answer(200, body)

    def _act_wrong(self, body: bytes) -> None:
        self._answer(200, body[:-1] + bytes([body[-1] ^ 1]))

    def _act_truncate(self, body: bytes) -> None:
        self._answer(200, body[: len(body) // 2], length=len(body))

    def _act_short(self, body: bytes) -> None:
        self._answer(200, body[: len(body) // 2])

    def _act_stall(self, body: bytes) -> None:
        self._answer(200, body[: len(body) // 2], length=len(body))
        self.server.released.wait(20)

    def _act_mute(self, _body: bytes) -> None:
        self.server.released.wait(20)

    def _act_reset(self, body: bytes) -> None:
        self._answer(200, body[: len(body) // 2], length=len(body))
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def _act_chunked(self, body: bytes, cut: bool = False) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()
        half = len(body) // 2
        for part in [body[:half]] if cut else [body[:half], body[half:], b""]:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
        if cut:
            self.wfile.write(b"ff\r\nxx")

    def _act_cut(self, body: bytes) -> None:
        self._act_chunked(body, cut=True)


class Server(ThreadingHTTPServer):
    """A threaded server on loopback which counts what it is asked."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = files
        self.script: dict[str, list[str]] = {}
        self.hits: Counter[str] = Counter()
        self.seen: list[tuple[str, dict[str, str]]] = []
        self.lock = threading.Lock()
        self.released = threading.Event()
        self.scheme = "http"
        self.busy = self.busiest = 0

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients go away here, and are killed."""

    def url(self, path: str = "") -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}{path}"

    def start(self) -> None:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        """Let everyone go who is kept waiting, and end."""
        self.released.set()
        self.shutdown()
        self.server_close()


# --- archives ------------------------------------------------------------------------------------------------------


def tar_bytes(members: dict[str, bytes | str], compression: str = "gz", mode: int = 0o755) -> bytes:
    """Return a tar of files; a value of type str is the target of a symbolic link."""
    buffer = io.BytesIO()
    how: Any = f"w:{compression}"
    with tarfile.open(fileobj=buffer, mode=how) as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.mode, info.mtime = mode, 1_700_000_000
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def version_files(version: int) -> dict[str, bytes]:
    rng = random.Random(version)
    return {
        f"pkg-{version}/bin/tool": rng.randbytes(70_000),
        f"pkg-{version}/bin/helper": rng.randbytes(3_000),
        f"pkg-{version}/share/data-{version}": rng.randbytes(10_000),
        f"pkg-{version}/README": b"the same in each version",
    }


PACKED = {version: tar_bytes({**version_files(version)}) for version in (1, 2)}
SERVED = {f"/{place}/pkg-{version}.tar.gz": PACKED[version] for version in PACKED for place in ("up", "m/127.0.0.1/up")}


# --- one node ------------------------------------------------------------------------------------------------------


class Node:
    """A node's directories, what it asks for, and what must be true on it."""

    def __init__(
        self, root: Path, kind: str, server: str, cache: Path | None = None, mirrors: tuple[str, ...] = ()
    ) -> None:
        self.root, self.kind, self.server, self.cache, self.mirrors = root, kind, server, cache, mirrors
        self.dest = root / "opt" / "pkg"
        self.state = root / "state"

    def artifact(self, version: int) -> dict[str, Any]:
        common = {
            "name": "pkg",
            "version": str(version),
            "url": f"{self.server}/up/pkg-{version}.tar.gz",
            "sha256": sha256(PACKED[version]),
        }
        if self.kind == "plain":
            return {**common, "dest": f"{self.dest}/file", "mode": "0640"}
        if self.kind == "members":
            members = [
                {"src": "*/bin/tool", "mode": "0750"},
                {"src": "*/bin/helper"},
                {"src": "*/README", "dest": "doc/"},
            ]
            return {**common, "dest": str(self.dest), "members": members}
        return {**common, "dest": f"{self.dest}/tree", "unpack": True, "strip_components": 1}

    def expected(self, version: int) -> dict[str, bytes]:
        """Return the bytes of every final name for a version."""
        files = version_files(version)
        if self.kind == "plain":
            return {f"{self.dest}/file": PACKED[version]}
        if self.kind == "members":
            names = {"tool": "tool", "helper": "helper", "README": "doc/README"}
            return {f"{self.dest}/{names[Path(n).name]}": c for n, c in files.items() if Path(n).name in names}
        return {f"{self.dest}/tree/{name.partition('/')[2]}": content for name, content in files.items()}

    def settings(self, **more: Any) -> Any:
        from ansible_collections.pcluster.postboot.plugins.module_utils._artifact.model import Settings

        given = {"timeout": 0.5, "retries": 2, "backoff": 0.01, "lease_ttl": 1.5, "cache_wait": 30, **more}
        return Settings(str(self.state), mirrors=self.mirrors, cache=str(self.cache or ""), **given)

    def run(self, version: int, **more: Any) -> dict[str, Any]:
        """Run the module's work here and return its one result, with its error."""
        from ansible_collections.pcluster.postboot.plugins.module_utils._artifact import cache as artifact_cache
        from ansible_collections.pcluster.postboot.plugins.module_utils._artifact import ensure, model

        artifact_cache.FIRST_SLEEP, artifact_cache.LONGEST_SLEEP = 0.02, 2.0  # a soak has no time
        artifacts = model.parse_all([self.artifact(version)])
        outcome = ensure.ensure_all(artifacts, self.settings(**more))[0]
        return {**outcome.result(), "error": outcome.error, "warnings": outcome.warnings}

    def places(self) -> list[Path]:
        """Return every directory in which this node may have left something."""
        return [place for place in (self.root, self.cache) if place]

    def wrong(self, versions: tuple[int, ...]) -> list[str]:
        """Return which final names hold what they hold in none of the versions."""
        found = []
        allowed: dict[str, set[str]] = {}
        for version in versions:
            for path, content in self.expected(version).items():
                allowed.setdefault(path, set()).add(sha256(content))
        for path, hashes in allowed.items():
            if os.path.exists(path) and sha256(Path(path).read_bytes()) not in hashes:
                found.append(f"{path} holds other bytes")
        if self.kind == "tree" and (self.dest / "tree").exists():
            have = {str(path) for path in (self.dest / "tree").rglob("*") if path.is_file()}
            have -= {f"{self.dest}/tree/.pcluster-postboot.json"}
            if have not in [set(self.expected(version)) for version in versions]:
                found.append(f"{self.dest}/tree is neither of its versions but {sorted(have)}")
        for receipt in self.state.glob("*.json"):
            try:
                json.loads(receipt.read_bytes())
            except ValueError as error:
                found.append(f"{receipt} holds other bytes than a receipt: {error}")
        if self.cache and (self.cache / "sha256").exists():
            for entry in (self.cache / "sha256").rglob("*"):
                if len(entry.name) == 64 and sha256(entry.read_bytes()) != entry.name:
                    found.append(f"cache entry {entry} holds other bytes")
        return found

    def leftovers(self) -> list[str]:
        """Return what no run may leave behind."""
        paths = [path for place in self.places() for path in place.rglob("*")]
        return [str(path) for path in paths if ".pcpb-" in path.name or ".lease." in path.name]

    def missing(self, version: int) -> list[str]:
        """Return which files of a version are not there as they must be."""
        found = self.wrong((version,))
        return found + [f"{path} is missing" for path in self.expected(version) if not os.path.exists(path)]


# --- kill -9 at every step -----------------------------------------------------------------------------------------

STEPS = {
    *("open", "close", "write", "flush", "truncate", "fsync", "utime"),
    *("rename", "replace", "link", "symlink", "unlink", "remove", "mkdir", "rmdir"),
    *("chmod", "fchmod", "chown", "fchown", "lchown"),
}
ACTS = (
    *("ok", "ok", "ok", "chunked", "wrong", "truncate", "short", "stall", "mute", "reset", "cut"),
    *("403", "404", "429:0", "500", "503", "503:0", "redirect:/up/nowhere"),
)


class Killer:
    """Ends this process before its n-th operation on files, as kill -9 would; counts them for n = 0."""

    def __init__(self, at: int) -> None:
        self.at, self.count = at, 0
        self._lock = threading.Lock()

    def __call__(self, frame: types.FrameType, event: str, arg: Any) -> None:
        if event != "c_call" or getattr(arg, "__name__", "") not in STEPS:
            return
        if not any(part in frame.f_code.co_filename for part in ("/_artifact/", "/shutil.py", "/os.py")):
            return
        if "/os.py" in frame.f_code.co_filename and frame.f_code.co_name not in ("makedirs", "fdopen"):
            return
        with self._lock:
            self.count += 1
            if self.count == self.at:
                os.kill(os.getpid(), signal.SIGKILL)

    def __enter__(self) -> Killer:
        threading.setprofile(self)
        sys.setprofile(self)
        return self

    def __exit__(self, *_raised: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)


def killed_run(node: Node, version: int, at: int, **more: Any) -> dict[str, Any] | None:
    """Run in a child that dies at a step; return None if it did, else its result and how many steps there were."""

    def work() -> dict[str, Any]:
        with Killer(at) as killer:
            result = node.run(version, **more)
        return {**result, "steps": killer.count}

    answer: dict[str, Any] | None = Child(work).join()
    return answer


class Violation(AssertionError):
    """An invariant that did not hold."""


def demand(problems: list[str], when: str) -> None:
    if problems:
        raise Violation(f"{when}: {'; '.join(problems)}")


def converge(node: Node, version: int, hits: Callable[[], int]) -> None:
    """Run until done: success, right bytes, no leftovers; then nothing to do and nothing asked."""
    result = node.run(version)
    demand([result["error"]] if result["error"] else [], "the rerun failed")
    demand(node.missing(version), "after the rerun")
    demand(node.leftovers(), "left after the rerun")
    hits()
    again = node.run(version)
    demand(
        [f"{key}={again[key]!r}" for key, good in (("changed", False), ("source", "installed")) if again[key] != good],
        "the run after the rerun was not idle",
    )
    demand([f"{hits()} requests"] if hits() else [], "the idle run asked the server")


# --- rounds --------------------------------------------------------------------------------------------------------


class Soak:
    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.rng = root, random.Random(seed)
        self.numbers = itertools.count()
        server = Server(SERVED)
        self.base = server.url()
        self.server_pid = os.fork()
        if not self.server_pid:
            server.serve_forever()
            os._exit(0)
        server.socket.close()

    def close(self) -> None:
        os.kill(self.server_pid, signal.SIGTERM)
        os.waitpid(self.server_pid, 0)

    def script(self, script: dict[str, list[str]] | None = None) -> int:
        """Set the server's script; return how many requests came since the last call."""
        request = urllib.request.Request(f"{self.base}/", data=json.dumps(script or {}).encode())
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer:
            return sum(json.loads(answer.read()).values())

    def node(self, kind: str, cache: bool, mirrors: tuple[str, ...] = ()) -> Node:
        root = self.root / f"round-{next(self.numbers)}"
        root.mkdir()
        return Node(root / "node", kind, self.base, root / "cache" if cache else None, mirrors)

    def prepare(self, kind: str, start: str) -> tuple[Node, tuple[int, ...]]:
        """Return a node in the state in which a scenario starts, and the versions it may hold from then on."""
        node = self.node(kind, cache=start != "no cache")
        if start in ("upgrade", "altered", "no exchange"):
            node.run(1)
        if start == "altered":  # a file of the old version is gone, which is neither version
            os.unlink(next(iter(node.expected(1))))
        if start in ("poisoned", "hit") and node.cache:
            entry = node.cache / "sha256" / sha256(PACKED[2])[:2] / sha256(PACKED[2])
            entry.parent.mkdir(parents=True)
            entry.write_bytes(PACKED[2] if start == "hit" else b"poison")
        return node, (1, 2)

    def kill_cases(self) -> list[tuple[str, str, int]]:
        """Return every scenario with every step at which it can be killed: steps at random, scenarios in turn."""
        steps = [[(*scenario, step) for step in range(1, last + 1)] for scenario, last in self._scenarios()]
        for some in steps:
            self.rng.shuffle(some)
        return [case for turn in itertools.zip_longest(*steps) for case in turn if case]

    def _scenarios(self) -> Iterator[tuple[tuple[str, str], int]]:
        for kind in ("plain", "members", "tree"):
            for start in ("fresh", "no cache", "hit", "poisoned", "upgrade", "altered", "no exchange"):
                if start == "no exchange" and kind != "tree":
                    continue
                node, _versions = self.prepare(kind, start)
                with self.without_exchange(start):
                    answer = killed_run(node, 2, 0)
                if not answer or answer["error"]:
                    raise Violation(f"{kind}, {start}: the run without a fault failed: {answer}")
                shutil.rmtree(node.root.parent)
                yield (kind, start), answer["steps"]

    def without_exchange(self, start: str) -> Any:
        """Be a file system that cannot exchange names, as NFS and Lustre."""
        from unittest import mock

        from ansible_collections.pcluster.postboot.plugins.module_utils._artifact import files as artifact_files

        able = artifact_files.exchange if start != "no exchange" else lambda one, other: False
        return mock.patch.object(artifact_files, "exchange", able)

    def kill_round(self, kind: str, start: str, step: int) -> None:
        """Kill a run at a step, sometimes the next one too; then converge."""
        self.script()
        node, versions = self.prepare(kind, start)
        with self.without_exchange(start):
            killed_run(node, 2, step)
            given = {"altered": "neither of its versions", "poisoned": "cache entry"}.get(start, "nothing")
            demand([line for line in node.wrong(versions) if given not in line], "after the kill")
            if start == "upgrade":
                kept = [str(node.dest / "tree")] if kind == "tree" else list(node.expected(1))
                demand([f"{path} is gone" for path in kept if not os.path.exists(path)], "after the kill")
            if self.rng.random() < 0.3:
                killed_run(node, 2, self.rng.randrange(1, 60))
            converge(node, 2, self.script)
        shutil.rmtree(node.root.parent)

    def herd_round(self) -> None:
        """Let eight nodes want the same at once, and kill one of them anywhere."""
        kind = self.rng.choice(("plain", "members", "tree"))
        slow = self.rng.choice((["ok"], ["slow"], ["503", "slow"]))
        self.script({"/up/pkg-2.tar.gz": slow})
        first = self.node(kind, cache=True)
        nodes = [first] + [Node(first.root.parent / f"n{i}", kind, self.base, first.cache) for i in range(7)]
        victim = self.rng.randrange(8) if self.rng.random() < 0.7 else None
        step = self.rng.randrange(1, 70)
        steps = [step if number == victim else 0 for number in range(8)]
        children = [Child(functools.partial(killed_in, node, at)) for node, at in zip(nodes, steps)]
        answers = [child.join() for child in children]
        failed = [answer["error"] for answer in answers if answer and answer["error"]]
        demand(failed, "in a herd")
        killed = answers.count(None)
        asked = self.script()
        allowed = (2 if slow[0] == "503" else 1) + killed
        demand([f"{asked} requests, {killed} killed"] if asked > allowed else [], "a herd downloads once")
        for node in nodes:
            converge(node, 2, self.script)
        shutil.rmtree(first.root.parent)

    def outage_round(self) -> None:
        """Let upstream fail for some nodes of a herd, and kill one of them anywhere; the rest downloads once."""
        down = self.rng.randrange(16)  # each node asks three times
        self.script({"/up/pkg-2.tar.gz": ["503"] * down + ["slow"]})
        first = self.node("plain", cache=True)
        nodes = [first] + [Node(first.root.parent / f"n{i}", "plain", self.base, first.cache) for i in range(7)]
        steps = [0] * 8
        steps[self.rng.randrange(8)] = self.rng.choice((0, self.rng.randrange(1, 70)))
        children = [Child(functools.partial(killed_in, node, at)) for node, at in zip(nodes, steps)]
        answers = [child.join() for child in children]
        errors = [answer["error"] for answer in answers if answer and answer["error"]]
        killed = answers.count(None)
        demand([error for error in errors if "HTTP 503 (3 tries)" not in error], "in an outage")
        demand([f"{len(errors)} failed, {down} x 503"] if len(errors) > down // 3 else [], "an outage that ends")
        asked = self.script()
        demand([f"{asked} requests, {killed} killed"] if asked > down + 1 + killed else [], "after an outage")
        for node in nodes:
            converge(node, 2, self.script)
        demand([str(path) for path in first.root.parent.rglob("*.failed")], "left after an outage")
        shutil.rmtree(first.root.parent)

    def server_round(self) -> None:
        """Let mirrors and upstream do anything; a run succeeds with right bytes or names all of them in one line."""
        kind = self.rng.choice(("plain", "members", "tree"))
        node = self.node(kind, cache=self.rng.random() < 0.5, mirrors=(f"{self.base}/m", f"{self.base}/none"))
        script = {
            path: self.rng.choices(ACTS, k=self.rng.randrange(1, 4)) for path in SERVED if path.endswith("-2.tar.gz")
        }
        self.script(script)
        result = node.run(2, timeout=0.15, retries=1)
        if result["error"]:
            named = [
                name
                for name in (f"{self.base}/m/", f"{self.base}/none/", f"{self.base}/up/")
                if name not in result["error"]
            ]
            demand([f"{name} is not in: {result['error']}" for name in named], "a failure names every source")
            demand([result["error"]] if "\n" in result["error"] else [], "a failure is one line")
            demand(node.wrong(()), "after a failure")
            demand([path for path in node.expected(2) if os.path.exists(path)], "installed by a failure")
        else:
            demand(node.missing(2), f"after {script}")
        demand(node.leftovers(), f"left after {script}")
        self.script()
        converge(node, 2, self.script)
        shutil.rmtree(node.root.parent)


def killed_in(node: Node, at: int) -> dict[str, Any]:
    with Killer(at):
        return node.run(2, timeout=5)


# --- full disks ----------------------------------------------------------------------------------------------------


def full_disks(root: Path) -> list[str]:
    """Fill the cache's file system, then the root's; only in a mount namespace of one's own, as root."""
    said = []
    server = Server(SERVED)
    server.start()
    mount = root / "small"
    mount.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "small", str(mount)], check=True)
    node = Node(root / "a", "members", server.url(), mount / "cache")
    result = node.run(2)
    said.append(f"cache full: error={result['error']!r} warnings={result['warnings']}")
    demand(node.missing(2) + node.leftovers(), "with a full cache")
    demand([] if "No space left" in str(result["warnings"]) else [str(result)], "a full cache is worth a warning")
    for kind in ("plain", "members", "tree"):
        node = Node(mount / kind, kind, server.url())
        result = node.run(2)
        said.append(f"{kind}, disk full: {result['error']}")
        demand(
            [] if "No space left" in result["error"] and "\n" not in result["error"] else [str(result)], "a full disk"
        )
        demand(node.leftovers() + node.wrong(()), "on a full disk")
        shutil.rmtree(mount / kind)
    subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True)
    node = Node(root / "b", "tree", server.url(), mount / "cache")
    result = node.run(2)
    said.append(f"cache read-only: error={result['error']!r} warnings={result['warnings']}")
    demand(node.missing(2) + node.leftovers(), "with a read-only cache")
    demand([] if "Read-only" in str(result["warnings"]) else [str(result)], "a read-only cache is worth a warning")
    server.stop()
    return said


def in_own_mounts(root: Path) -> list[str] | None:
    """Try full disks where this user may mount; None where not."""
    if os.geteuid() != 0 or ctypes.CDLL(None).unshare(0x00020000) != 0:
        return None
    if subprocess.run(["mount", "--make-rprivate", "/"], check=False).returncode != 0:
        return None
    return full_disks(root)


# --- main ----------------------------------------------------------------------------------------------------------


def main() -> int:
    """Run the rounds; return 1 when an invariant did not hold."""
    parser = argparse.ArgumentParser(description="Faults for the artifact module.")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--keep", action="store_true", help="leave the directories of failed rounds")
    parser.add_argument("--only", choices=("kill", "herd", "outage", "server"), help="rounds of this kind alone")
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    parser.add_argument("--dir", default=memory, help="where to work; memory by default, as a kill needs no disk")
    options = parser.parse_args()
    load_collection()
    started = time.monotonic()
    root = Path(tempfile.mkdtemp(prefix="artifact-soak-", dir=options.dir))
    soak = Soak(root, options.seed)
    done: Counter[str] = Counter()
    failed = 0
    print(f"seed {options.seed}, {options.rounds} rounds in {root}", flush=True)
    try:
        steps = [] if options.only in ("herd", "outage", "server") or not options.rounds else soak.kill_cases()
        kills = itertools.cycle(steps)
        for number in range(1, options.rounds + 1):
            what = options.only or ("kill" if number % 8 else soak.rng.choice(("herd", "outage", "server", "server")))
            case: tuple[Any, ...] = next(kills) if what == "kill" else ()
            try:
                getattr(soak, f"{what}_round")(*case)
            except Violation as error:
                failed += 1
                print(f"VIOLATION in round {number}, {what} {case}: {error}", flush=True)
            done[what] += 1
            if number % 50 == 0:
                print(f"{number} rounds, {failed} violations, {time.monotonic() - started:.0f} s", flush=True)
        said = Child(lambda: in_own_mounts(root / "mounts")).join()
        print("\n".join(said) if said else "full disks: not tried (needs root)", flush=True)
    finally:
        soak.close()
        if not (failed and options.keep):
            shutil.rmtree(root, ignore_errors=True)
    covered = f"{min(done['kill'], len(steps))} of {len(steps)} kill points"
    print(
        f"{options.rounds} rounds ({', '.join(f'{count} {what}' for what, count in done.items())}), {covered}, "
        f"{failed} violations, {time.monotonic() - started:.0f} s, Python {sys.version.split()[0]}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
