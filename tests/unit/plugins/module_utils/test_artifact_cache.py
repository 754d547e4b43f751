# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The cache between nodes: leases of the living, the dead, and of other machines."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._artifact import cache as caches
from ansible_collections.pcluster.postboot.plugins.module_utils._artifact import files
from ansible_collections.pcluster.postboot.plugins.module_utils._artifact.model import NoSourceError
from ansible_collections.pcluster.postboot.plugins.module_utils._host import files as host_files
from ansible_collections.pcluster.postboot.tests.waiting import PATIENCE, until

DATA = b"artifact" * 1000
HASH = hashlib.sha256(DATA).hexdigest()
ELSEWHERE = "00000000-1-1 0123456789abcdef\n"


class Cluster:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.warnings: list[str] = []
        self.entry = root / "sha256" / HASH[:2] / HASH

    def cache(self, wait: float = PATIENCE, ttl: float = 0.5) -> caches.Cache:
        return caches.Cache(str(self.root), wait, ttl, self.warnings.append)

    def find(self, **how: Any) -> tuple[int | None, caches.Lease | None]:
        return self.cache(**how).find_or_claim(HASH, files.Sink(io.BytesIO(), "memory"))

    def lease(self, number: int, content: str = ELSEWHERE) -> Path:
        self.entry.parent.mkdir(parents=True, exist_ok=True)
        path = self.entry.parent / f".{HASH}.lease.{number}"
        path.write_text(content)
        return path

    def leases(self) -> list[str]:
        return sorted(path.name.rpartition(".")[2] for path in self.entry.parent.glob(".*.lease.*"))


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path / "cache")


def dead_tag() -> str:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    started = host_files._started(child.pid)
    child.kill()
    child.wait()
    return f"{host_files.machine()}-{child.pid}-{started}"


def test_the_first_gets_the_lease_and_the_others_wait_for_its_result(cluster: Cluster) -> None:
    size, lease = cluster.find(ttl=3)
    assert size is None
    assert lease is not None
    with ThreadPoolExecutor(5) as pool:
        answers = [pool.submit(cluster.find, ttl=3, wait=PATIENCE) for _each in range(5)]
        time.sleep(4)  # longer than a lease lives that nobody touches
        assert not any(answer.done() for answer in answers)
        cluster.cache().publish(HASH, "1.0", io.BytesIO(DATA))
        lease.release()
    assert [answer.result() for answer in answers] == [(len(DATA), None)] * 5
    assert cluster.leases() == []
    assert cluster.warnings == []


def test_a_lease_whose_process_is_dead_is_succeeded_at_once(cluster: Cluster) -> None:
    for number in range(3):
        cluster.lease(number, f"{dead_tag()} nonce{number}\n")
    started = time.monotonic()
    _size, lease = cluster.find(ttl=600)
    assert time.monotonic() - started < PATIENCE
    assert lease is not None
    assert lease.path.endswith(".3")
    cluster.cache().publish(HASH, "1.0", io.BytesIO(DATA))
    lease.release()
    assert cluster.leases() == []


def test_a_lease_that_changes_hands_while_its_holder_is_looked_up_is_not_taken_for_a_dead_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its holder has released the lease and ended, and somebody else has got it: who looked would get a second."""
    cluster.entry.parent.mkdir(parents=True)
    path = cluster.entry.parent / f".{HASH}.lease.0"
    path.write_text(f"{dead_tag()} 01234567\n")
    successors = []
    alive = caches.host_files.owner_alive

    def passed_on(tag: str) -> bool | None:
        if not successors:
            path.unlink()
            successors.append(caches.Lease(str(path), 60))
        return alive(tag)

    monkeypatch.setattr(caches.host_files, "owner_alive", passed_on)
    assert caches.Watch(str(path.with_suffix("")), 60).next_free() is None
    successors[0].release()


def test_a_process_that_took_a_dead_ones_number_is_not_taken_for_it(cluster: Cluster) -> None:
    cluster.lease(0, f"{host_files.machine()}-{os.getppid()}-1 nonce\n")  # lives, but began at another time
    assert cluster.find(ttl=60)[1] is not None


@pytest.mark.parametrize(
    "contents", [(ELSEWHERE, ""), ("nonsense", "no-tag nonce\n"), ("a-b-c nonce\n", "\x00\xff \xfe")]
)
def test_leases_of_other_machines_die_when_nobody_touches_them(cluster: Cluster, contents: tuple[str, str]) -> None:
    for number, content in enumerate(contents):
        cluster.lease(number, content)
    started = time.monotonic()
    _size, lease = cluster.find(ttl=0.4)
    assert time.monotonic() - started >= 0.4
    assert lease is not None
    assert lease.path.endswith(".2")
    lease.release()
    assert cluster.leases() == ["0", "1"]


def test_a_lease_of_another_machine_that_is_touched_lives(cluster: Cluster) -> None:
    path = cluster.lease(0)
    started = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(cluster.find, ttl=3, wait=4)
        while not found.done():
            os.utime(path)
            time.sleep(0.1)
    assert found.result() == (None, None)
    assert time.monotonic() - started >= 4
    assert len(cluster.warnings) == 1
    assert "another node downloads for over 4 s" in cluster.warnings[0]


def test_a_holder_keeps_its_lease_alive(cluster: Cluster) -> None:
    _size, lease = cluster.find(ttl=0.3)
    assert lease is not None
    first = os.stat(lease.path).st_mtime_ns
    until(lambda: os.stat(lease.path).st_mtime_ns > first)
    lease.release()
    lease.release()


def test_a_stopped_holder_is_succeeded_and_does_no_harm_when_it_wakes(cluster: Cluster) -> None:
    first = cluster.lease(0)
    _size, lease = cluster.find(ttl=0.3)
    assert lease is not None
    os.utime(first)  # it woke up
    cluster.cache().publish(HASH, "1.0", io.BytesIO(DATA))  # and was faster
    assert cluster.find()[0] == len(DATA)
    cluster.cache().publish(HASH, "1.0", io.BytesIO(DATA))
    lease.release()
    assert cluster.entry.read_bytes() == DATA
    assert cluster.leases() == []


def test_nobody_stands_in_line_for_the_same_failure_for_long(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "FIRST_SLEEP", 0.1)
    monkeypatch.setattr(caches, "LONGEST_SLEEP", 0.2)  # as long as a download takes here
    leases: list[bool] = []
    all_there = threading.Barrier(20, timeout=PATIENCE)

    def node(_number: int) -> None:
        all_there.wait()
        _size, lease = cluster.find(wait=PATIENCE)
        leases.append(bool(lease))
        time.sleep(0.2)  # a download that fails
        if lease:
            lease.release()

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(node, range(20)))
    assert leases.count(True) < 10  # four in turn, after whom the others try at once; all 20 would stand in line
    assert cluster.leases() == []


def told(cluster: Cluster, age: float = 0) -> Path:
    """Have a node say that no source delivered, so many seconds ago."""
    cluster.entry.parent.mkdir(parents=True, exist_ok=True)
    cluster.cache().tell_failure(HASH, "no source delivered it: upstream: HTTP 503 (4 tries)")
    path = cluster.entry.parent / f".{HASH}.failed"
    os.utime(path, (time.time() - age, time.time() - age))
    return path


def test_who_has_waited_in_vain_fails_and_does_not_ask_as_well(cluster: Cluster) -> None:
    told(cluster)
    cluster.lease(0)
    refused = r"^no node could download it within 0.3 s \(\S+: no source .* 503 \(4 tries\)\); needed"
    with pytest.raises(NoSourceError, match=refused):
        cluster.find(wait=0.3, ttl=60)
    assert cluster.warnings == []


def test_who_is_not_to_wait_goes_on_alone_whatever_was_told(cluster: Cluster) -> None:
    told(cluster)
    cluster.lease(0)
    assert cluster.find(wait=0, ttl=60) == (None, None)


def test_what_was_told_long_ago_says_nothing(cluster: Cluster) -> None:
    told(cluster, age=2 * caches.FAILURE_COUNTS)
    cluster.lease(0)
    assert cluster.find(wait=0.3, ttl=60) == (None, None)
    assert "another node downloads for over 0.3 s; went on without the cache" in cluster.warnings[0]


def test_nobody_leaves_the_line_because_of_many_failures_that_may_pass(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caches, "FIRST_SLEEP", 0.05)
    monkeypatch.setattr(caches, "LONGEST_SLEEP", 0.05)
    left: list[str] = []

    def node(_number: int) -> None:
        size, lease = cluster.find(wait=60)
        if size is not None:
            left.append("cache")
            return
        time.sleep(0.05)  # a download, which fails
        if lease and len(left) < 2 * caches.MAX_HOLDERS:
            told(cluster)
        elif lease:
            cluster.cache().publish(HASH, "1.0", io.BytesIO(DATA))
        left.append("asked" if lease else "alone")
        if lease:
            lease.release()

    with ThreadPoolExecutor(20) as pool:
        pool.map(node, range(20))
    asked = 2 * caches.MAX_HOLDERS + 1
    assert left == ["asked"] * asked + ["cache"] * (20 - asked)
    assert [path.name for path in cluster.entry.parent.iterdir() if path.name.startswith(".")] == []


class Clock:
    """The time of a node that only waits: it passes while the node sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.sleeps: list[float] = []
        self.meanwhile: Any = lambda: None

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.sleeps.append(seconds)
        self.meanwhile()


def waits(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, clock: Clock, dies_after: float) -> list[str]:
    """Wait as one node for another that beats until it dies; return which files were opened, by the ends of names."""
    lease, opened, real = cluster.lease(0), [], os.open
    begun = clock.now

    def beat() -> None:
        at = min(clock.now - begun, dies_after) // 4 * 4  # every 4 s
        os.utime(lease, (1_700_000_000 + at, 1_700_000_000 + at))

    def opens(path: Any, *rest: Any, **more: Any) -> int:
        if str(cluster.root) in str(path):
            opened.append(os.path.basename(path).replace(HASH, ""))
        return real(path, *rest, **more)

    beat()
    clock.meanwhile = beat
    with monkeypatch.context() as patches:
        patches.setattr(caches, "time", clock)
        patches.setattr(os, "open", opens)
        _size, found = cluster.find(wait=600, ttl=20)
    if found:
        found.release()
    return opened


def test_who_waits_asks_the_file_system_seldom_and_at_moments_of_its_own(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = [Clock(), Clock()]
    for clock in clocks:
        opened = waits(cluster, monkeypatch, clock, dies_after=1e9)
        assert len(opened) < 0.1 * 600  # the entry, the lease, and now and then a look at the lease again
        assert opened.count("..lease.1") == 1  # nobody's, while the first lives
        assert max(clock.sleeps) <= 15 * 1.3
        late = [slept for slept in clock.sleeps[5:] if slept > 10]
        assert max(late) - min(late) > 2
    assert clocks[0].sleeps != clocks[1].sleeps


@pytest.mark.parametrize("after", [0, 3, 18, 33, 61, 204.9])
def test_a_dead_holder_on_another_machine_is_succeeded_within_40_s(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, after: float
) -> None:
    clock = Clock()
    opened = waits(cluster, monkeypatch, clock, dies_after=after)
    assert opened[-2:] == ["..lease.1", ""]
    assert after // 4 * 4 + 20 <= clock.now - 1000 <= after + 40


def test_a_lease_cannot_be_faked_into_a_hang_or_a_write_elsewhere(cluster: Cluster, tmp_path: Path) -> None:
    cluster.entry.parent.mkdir(parents=True)
    lease = cluster.entry.parent / f".{HASH}.lease.0"
    for fake in (lambda: os.mkfifo(lease), lambda: lease.symlink_to(tmp_path / "victim"), lease.mkdir):
        fake()
        assert cluster.find() == (None, None)
        host_files.remove(str(lease))
    assert not (tmp_path / "victim").exists()
    assert len(cluster.warnings) == 3


def test_a_full_disk_leaves_no_empty_lease(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_fd: int, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(caches.os, "write", full)
    assert cluster.find() == (None, None)
    assert cluster.leases() == []
    assert "No space left on device" in cluster.warnings[0]


def test_a_disk_that_fails_under_the_reader_releases_the_lease(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([None, OSError(116, "Stale file handle")])

    def read(*_given: object) -> None:
        answer = next(answers)
        if answer:
            raise answer

    monkeypatch.setattr(caches.Cache, "_read", read)
    assert cluster.find() == (None, None)
    assert cluster.leases() == []
    assert "Stale file handle" in cluster.warnings[0]


def test_publishing_sweeps_what_a_killed_publisher_left(cluster: Cluster) -> None:
    cluster.entry.parent.mkdir(parents=True)
    left = cluster.entry.parent / f".{HASH}.pcpb-tmp-{dead_tag()}-01234567"
    left.write_text("half")
    cluster.cache().publish(HASH, "1.0", io.BytesIO(DATA))
    assert sorted(path.name for path in cluster.entry.parent.iterdir()) == [HASH, f"{HASH}.version"]


@pytest.mark.parametrize("reaped", [True, False])
def test_a_killed_holder_in_another_process_is_succeeded(cluster: Cluster, reaped: bool) -> None:
    pid = os.fork()
    if not pid:
        cluster.find()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | (0 if reaped else os.WNOWAIT))
    assert cluster.leases() == ["0"]
    _size, lease = cluster.find(ttl=60)
    if not reaped:
        os.waitpid(pid, 0)
    assert lease is not None
    lease.release()
