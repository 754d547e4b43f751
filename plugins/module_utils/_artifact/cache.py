# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A cache on shared storage, by hash: one download for a whole cluster, and not one byte of it trusted.

Who wants an artifact that the cache lacks creates a lease beside its entry; one gets it, the others wait. A lease is
a numbered file that only its first creator holds, so nobody ever takes a lease away: a new one with the next number
follows when all before it are dead. A lease is dead when its process is (same machine), or when nobody has touched it
for a while by the watcher's own clock (any machine). Leases save downloads; correctness never rests on them, since
every reader verifies what it reads and every entry appears by rename. So clocks, locks and caches of the file system
may all be off.

Whoever waits looks at the lease, at ever longer intervals and at none of its neighbours' moments, and at nothing else
while its holder lives. A holder that found no source that works, though one may soon, says so in a file; then the
others stay in line, one after the other asks, and at the end of their patience they fail instead of asking all at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import os
import random
import secrets
import threading
import time
from collections.abc import Callable
from typing import IO

from ansible_collections.pcluster.postboot.plugins.module_utils._artifact import files
from ansible_collections.pcluster.postboot.plugins.module_utils._artifact.model import NoSourceError, algorithm
from ansible_collections.pcluster.postboot.plugins.module_utils._host import files as host_files

MAX_HOLDERS = 3
FIRST_SLEEP, LONGEST_SLEEP = 1.0, 15.0
JITTER = 0.3  # how much longer or shorter a sleep may be than its turn says
FAILURE_COUNTS = 60.0  # seconds for which it counts that a holder found no source


class Lease:
    """The right to download one entry for all; kept alive by a thread until it is released."""

    def __init__(self, path: str, ttl: float) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        self.path = path
        try:
            os.write(fd, f"{host_files.owner()} {secrets.token_hex(8)}\n".encode())
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(fd)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, args=(ttl / 5,), daemon=True)
        self._thread.start()

    def _beat(self, pause: float) -> None:
        while not self._done.wait(pause):
            with contextlib.suppress(OSError):
                os.utime(self.path)

    def release(self) -> None:
        """Let the others go on: to the entry if there is one now, else to a lease of their own."""
        self._done.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            os.unlink(self.path)


@dataclasses.dataclass
class _Sighting:
    pulse: tuple[int, int]
    since: float


class Watch:
    """What one waiter has seen of the leases of an entry."""

    def __init__(self, stem: str, ttl: float) -> None:
        self._stem = stem
        self._ttl = ttl
        self._sightings: dict[str, _Sighting] = {}
        self._dead_at: float | None = None
        self.holders: set[str] = set()

    def next_free(self) -> str | None:
        """Return the lease to try for; None while a lease before it is alive."""
        busy = False
        self._dead_at = None
        for number in itertools.count():
            path = f"{self._stem}.{number}"
            try:
                alive, sure = self._alive(path)
            except FileNotFoundError:
                return None if busy else path
            if sure and alive:
                return None  # whoever comes after this holder waits as well
            busy = busy or alive
        raise AssertionError("unreachable")

    def sleep(self, seconds: float) -> None:
        """Wait about as long, so that not all do it alike, or until a silent holder counts as dead."""
        seconds *= random.uniform(1 - JITTER, 1 + JITTER)
        if self._dead_at is not None:
            seconds = min(seconds, max(self._dead_at - time.monotonic(), 0) + 0.01)
        time.sleep(seconds)

    def _alive(self, path: str) -> tuple[bool, bool]:
        """Tell whether a lease's holder is alive, and whether that is certain."""
        with host_files.open_regular(path) as file:  # opening, unlike stat, asks an NFS server anew
            status = os.fstat(file.fileno())
            tag = file.read(200).decode(errors="replace").split()
            alive, sure = None, True
            if len(tag) == 2:
                with contextlib.suppress(ValueError):
                    alive = host_files.owner_alive(tag[0])
            if alive is False:
                # A holder that has just released its lease and ended looks dead; the name may be another's by now.
                with host_files.open_regular(path) as now:
                    if not os.path.samestat(os.fstat(now.fileno()), status):
                        return self._alive(path)
        if alive is None:
            alive, sure = self._beating(path, (status.st_ino, status.st_mtime_ns))
        if alive:
            self.holders.add(tag[-1] if tag else str(status.st_ino))
        return alive, sure

    def _beating(self, path: str, pulse: tuple[int, int]) -> tuple[bool, bool]:
        now = time.monotonic()
        seen = self._sightings.get(path)
        if seen is None or seen.pulse != pulse:
            self._sightings[path] = _Sighting(pulse, now)
            return True, seen is not None
        silent = now - seen.since
        if silent < self._ttl and self._dead_at is None:
            self._dead_at = seen.since + self._ttl
        return silent < self._ttl, silent < self._ttl / 2


class Cache:
    """The content-addressed cache of a cluster, as one artifact uses it."""

    def __init__(self, root: str, wait: float, ttl: float, warn: Callable[[str], None]) -> None:
        self._root = root
        self._wait = wait
        self._ttl = ttl
        self._warn = warn
        self._usable = True

    def _entry(self, sha256: str) -> str:
        return os.path.join(self._root, algorithm(sha256), sha256[:2], sha256)

    def _stem(self, sha256: str) -> str:
        return os.path.join(os.path.dirname(self._entry(sha256)), f".{sha256}.lease")

    def _failure(self, sha256: str) -> str:
        return os.path.join(os.path.dirname(self._entry(sha256)), f".{sha256}.failed")

    def find_or_claim(self, sha256: str, sink: files.Sink, version: str = "") -> tuple[int | None, Lease | None]:
        """Fill `sink` from the cache and return the size; or a lease to download it for all; or neither: go alone.

        Raise NoSourceError where others could not download it for as long as was waited.
        """
        try:
            return self._find_or_claim(sha256, sink, version)
        except OSError as error:
            self._give_up(error, sha256)
            return None, None

    def _find_or_claim(self, sha256: str, sink: files.Sink, version: str) -> tuple[int | None, Lease | None]:
        deadline = time.monotonic() + self._wait
        watch, pause = Watch(self._stem(sha256), self._ttl), FIRST_SLEEP
        met, reason = 1, ""
        size = self._read(sha256, sink, version)
        path = watch.next_free() if size is None else None
        while size is None:
            lease = self._claim(path) if path else None
            if lease is not None:
                with contextlib.ExitStack() as stack:
                    stack.callback(lease.release)
                    size = self._read(sha256, sink, version)  # it may have come between the last look and the lease
                    if size is None:
                        stack.pop_all()
                        return None, lease
                break
            left = deadline - time.monotonic()
            if len(watch.holders) > met or left <= 0:
                met, reason = max(met, len(watch.holders)), self._told_failure(sha256) or reason
            if len(watch.holders) > MAX_HOLDERS and not reason:
                return None, None  # each of them gave up: no use in standing in line for the same failure
            if left <= 0 and reason and self._wait:
                raise NoSourceError(
                    f"no node could download it within {self._wait:g} s ({reason}); "
                    "needed is a source that answers: run again then",
                    may_pass=True,
                )
            if left <= 0:
                over = f"another node downloads for over {self._wait:g} s"
                self._warn(f"cache {self._root}: {over}; went on without the cache")
                return None, None
            watch.sleep(min(pause, left))
            pause = min(pause * 2, LONGEST_SLEEP)
            path = watch.next_free()
            size = self._read(sha256, sink, version) if path else None
        self._tidy(sha256)
        return size, None

    def _claim(self, path: str) -> Lease | None:
        with contextlib.suppress(FileExistsError):
            try:
                return Lease(path, self._ttl)
            except FileNotFoundError:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                return Lease(path, self._ttl)
        return None

    def tell_failure(self, sha256: str, reason: str) -> None:
        """Note that no source has delivered yet, so that the other nodes wait instead of asking all at once."""
        with contextlib.suppress(OSError), files.Staged(self._failure(sha256)) as staged:
            staged.file.write(f"{os.uname().nodename}: {reason}\n".encode())
            staged.settle(0o644)
            staged.commit()

    def _told_failure(self, sha256: str) -> str:
        """Return who found no source and why, as long as that counts; empty, too, where a clock is off."""
        with contextlib.suppress(OSError), host_files.open_regular(self._failure(sha256)) as file:
            if abs(time.time() - os.fstat(file.fileno()).st_mtime) < FAILURE_COUNTS:
                return " ".join(file.read(4000).decode(errors="replace").split())
        return ""

    def look(self, sha256: str, sink: files.Sink, version: str = "") -> int | None:
        """Fill `sink` from the cache if the entry is there by now, and return its size; wait for nobody."""
        if not self._usable:
            return None
        try:
            return self._read(sha256, sink, version)
        except OSError as error:
            self._give_up(error, sha256)
            return None

    def _read(self, sha256: str, sink: files.Sink, version: str) -> int | None:
        """Copy the entry into `sink` and return its size, if it is there, for this version, and its bytes are right."""
        path = self._entry(sha256)
        try:
            with host_files.open_regular(path) as file:
                known = self.versions(sha256) if version else []
                if known and version not in known:
                    return None
                status = os.fstat(file.fileno())
                sink.restart()
                size, digest = files.copy(file, sink.write, algorithm(sha256))
        except FileNotFoundError:
            return None
        sink.finish()
        if digest == sha256:
            return size
        found = f"{algorithm(sha256)} {digest}"
        self._warn(f"cache {self._root}: entry {sha256} holds other bytes ({found}) and was not used")
        if os.path.samestat(os.lstat(path), status):
            os.unlink(path)
        return None

    def versions(self, sha256: str) -> list[str]:
        """Return the versions as which a source delivered an entry; empty where that is not known."""
        try:
            with host_files.open_regular(f"{self._entry(sha256)}.version") as file:
                return file.read(4000).decode(errors="replace").splitlines()
        except OSError:
            return []

    def publish(self, sha256: str, version: str, source: IO[bytes]) -> None:
        """Put verified bytes into the cache, for all; a full or read-only cache is worth a warning and no more."""
        if not self._usable:
            return
        entry = self._entry(sha256)
        try:
            known = self.versions(sha256)
            if version and version not in known:
                self._write(f"{entry}.version", io.BytesIO("\n".join([version, *known]).encode()))
            if not os.path.exists(entry):
                self._write(entry, source)
        except OSError as error:
            self._give_up(error, sha256)
        else:
            self._tidy(sha256)
        finally:
            source.seek(0)

    def _write(self, path: str, content: IO[bytes]) -> None:
        with files.Staged(path) as staged:
            files.copy(content, staged.file.write)
            staged.settle(0o644)
            staged.commit()

    def _tidy(self, sha256: str) -> None:
        """Remove what an entry has no more use for: leases, why there was none, and temporary files of the dead."""
        directory, stem = os.path.split(self._stem(sha256))
        failure = os.path.basename(self._failure(sha256))
        with contextlib.suppress(OSError):
            host_files.sweep(directory)
            for name in os.listdir(directory):
                if name == failure or name.startswith(stem + "."):
                    os.unlink(os.path.join(directory, name))

    def _give_up(self, error: OSError, sha256: str) -> None:
        self._usable = False
        self._warn(
            f"cache {self._root} cannot be used ({files.explain(error, self._entry(sha256))}); "
            "went on without the cache"
        )
