# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The lock of a node while clocks are set, nodes boot again, and controllers are lost."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._host import lock as host_lock
from ansible_collections.pcluster.postboot.plugins.module_utils._host import process

HOUR = 3600.0
ME = host_lock.Holder(run_id="me", user="alice", controller="ws", pid=1, pid_started="1", machine="ws boot pid")
OTHER = replace(ME, run_id="other", user="bob")


class Clocks:
    """The clocks of a node: one that anybody sets, and one since the boot."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall, self.up, self.boot = 1_795_000_000.0, 300.0, "first"
        monkeypatch.setattr(host_lock.time, "time", lambda: self.wall)
        monkeypatch.setattr(process, "boot_time", lambda: self.up)
        monkeypatch.setattr(process, "boot_id", lambda: self.boot)

    def passes(self, seconds: float) -> None:
        self.wall += seconds
        self.up += seconds

    def steps(self, seconds: float) -> None:
        """As chronyd steps a clock that is far off, at its start."""
        self.wall += seconds

    def boots(self) -> None:
        self.boot, self.up = "second", 20.0


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> host_lock.Lock:
    monkeypatch.setattr(host_lock, "RUN_DIR", str(tmp_path / "run"))
    return host_lock.Lock()


@pytest.mark.parametrize("step", [HOUR, 30 * 365 * 24 * HOUR, -6 * HOUR])
def test_a_step_of_the_clock_takes_no_lock_from_a_living_run(lock: host_lock.Lock, clocks: Clocks, step: float) -> None:
    lock.take(ME, HOUR)
    clocks.passes(60)
    host_lock.heartbeat()
    clocks.passes(60)
    clocks.steps(step)
    outcome = lock.take(OTHER, HOUR)
    assert (outcome.taken, outcome.age) == (False, 60)
    assert outcome.sentence().endswith(", last seen 60 s ago")


@pytest.mark.parametrize("step", [HOUR, -6 * HOUR])
def test_a_step_of_the_clock_keeps_nobody_out(lock: host_lock.Lock, clocks: Clocks, step: float) -> None:
    lock.take(ME, HOUR)
    host_lock.heartbeat()
    clocks.steps(step)
    clocks.passes(HOUR - 1)
    assert not lock.look(HOUR, OTHER).taken
    clocks.passes(2)
    assert lock.take(OTHER, HOUR).how == "expired"


def test_the_signs_of_an_earlier_holder_are_none_of_the_next(lock: host_lock.Lock, clocks: Clocks) -> None:
    lock.take(ME, HOUR)
    host_lock.heartbeat(silence=20 * HOUR)
    sign = Path(lock.seen).read_text()
    lock.release("me")
    assert os.listdir(lock.directory) == ["lock.guard"]
    clocks.passes(60)
    lock.take(OTHER, HOUR)
    Path(lock.seen).write_text(sign)  # of a release that was killed half way
    clocks.passes(30)
    assert (lock.look(HOUR, ME).age, lock.look(HOUR, ME).silence) == (30, 0)


def test_the_lock_of_an_earlier_boot_holds_nobody(lock: host_lock.Lock, clocks: Clocks) -> None:
    """Where /run outlives a boot, as in some containers."""
    lock.take(ME, HOUR)
    host_lock.heartbeat(silence=HOUR)
    clocks.passes(30)
    clocks.boots()
    assert lock.look(HOUR, OTHER, judged="me", judged_alive=True).how == "dead"
    assert lock.take(OTHER, HOUR).how == "dead"
    assert not lock.take(ME, HOUR).taken, "signs of an earlier boot are none"


def test_a_controller_that_has_booted_again_holds_nothing(
    lock: host_lock.Lock, clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "host_id", lambda: "5e1f")
    here = process.machine_id().split(" ")
    gone = replace(ME, machine=f"{here[0]} 00000000-0000-4000-8000-000000000000 {here[2]}", host="5e1f")
    assert gone.alive() is False
    lock.take(gone, HOUR)
    assert lock.take(OTHER, HOUR).how == "dead"
    for unlike in (
        {"host": "other"},
        {"host": ""},  # of an earlier version
        {"machine": gone.machine.replace(here[0], "another")},  # a copy of this machine
        {"machine": f"{here[0]} {here[1]} pid:[1]"},  # another container of this boot
    ):
        assert replace(gone, **unlike).alive() is None, unlike
    monkeypatch.setattr(process, "host_id", lambda: "")
    assert replace(gone, host="").alive() is None


# --- other versions ---------------------------------------------------------------------------------------------------

# As version 0.1.0 wrote it, from a controller that is not this machine.
OLD = {key: value for key, value in asdict(ME).items() if key != "host"}


def of_old(lock: host_lock.Lock, clocks: Clocks, silence: float = 0, **more: object) -> None:
    os.makedirs(lock.directory, exist_ok=True)
    Path(lock.path).write_text(json.dumps({**OLD, **more}))
    os.utime(lock.path, (clocks.wall + silence, clocks.wall + silence))


@pytest.mark.parametrize(
    ("turns", "silence", "after"), [(1, 0, HOUR), (3, 0, 3 * HOUR), (1, 1800, HOUR + 1800), (40, 0, 40 * HOUR)]
)
def test_a_lock_of_an_earlier_version_is_judged_as_that_version_does(
    lock: host_lock.Lock, clocks: Clocks, turns: int, silence: float, after: float
) -> None:
    of_old(lock, clocks, silence, turns=turns)
    clocks.passes(after - 1)
    assert not lock.take(OTHER, HOUR).taken
    clocks.passes(2)
    assert lock.take(OTHER, HOUR).how == "expired"


def test_an_earlier_version_sees_by_the_time_of_the_file_what_it_understands(
    lock: host_lock.Lock, clocks: Clocks
) -> None:
    lock.take(replace(ME, turns=4), HOUR)
    assert json.loads(Path(lock.path).read_text())["turns"] == 4
    clocks.passes(60)
    host_lock.heartbeat()
    assert os.stat(lock.path).st_mtime == clocks.wall
    host_lock.heartbeat(silence=HOUR)
    assert os.stat(lock.path).st_mtime == clocks.wall + HOUR


# --- damage -----------------------------------------------------------------------------------------------------------

DAMAGED = [
    b"",
    b"\xff\xfe\x00",
    b"[" * 100_000,
    b'{"run_id": ' + b"[" * 100_000,
    b"9" * 5000,
    b"null",
    b"[]",
    b'"run_id"',
    b'{"run_id": null, "started": 1}',
    b'{"run_id": {"a": 1}}',
    b'{"seen": {"boot": "first", "at": 1e999, "silence": 0}}',
]


@pytest.mark.parametrize("content", DAMAGED, ids=range(len(DAMAGED)))
@pytest.mark.parametrize("step", [0, HOUR, -6 * HOUR])
def test_a_damaged_lock_is_kept_for_its_lease_and_no_longer(
    lock: host_lock.Lock, clocks: Clocks, content: bytes, step: float
) -> None:
    os.makedirs(lock.directory)
    Path(lock.path).write_bytes(content)
    os.utime(lock.path, (clocks.wall, clocks.wall))
    outcome = lock.take(OTHER, HOUR)
    assert not outcome.taken
    assert outcome.sentence() == f"held by an unreadable lock ({lock.path}), last seen 0 s ago"
    clocks.steps(step)
    clocks.passes(HOUR + 1)
    assert lock.take(OTHER, HOUR).how == "expired"


@pytest.mark.parametrize(
    "more",
    [
        {"started": float("inf")},
        {"started": float("nan")},
        {"started": 10**400},
        {"started": True, "user": 7, "pid": "1", "turns": [], "machine": None, "host": {}},
        {"pid": 10**20, "turns": float("inf")},
    ],
)
@pytest.mark.parametrize("at", [float("inf"), float("nan"), 10**400, 1e10, "1", None, [], True])
def test_what_cannot_be_in_a_lock_is_as_if_it_were_not_there(
    lock: host_lock.Lock, clocks: Clocks, more: dict[str, object], at: object
) -> None:
    of_old(lock, clocks, **more, seen={"boot": "first", "at": at, "silence": 0})
    Path(lock.seen).write_text(json.dumps({"boot": "first", "at": at, "silence": at}))
    outcome = lock.take(OTHER, HOUR)
    assert not outcome.taken
    assert outcome.sentence().startswith("held by push from ")
    assert "\n" not in outcome.sentence()
    clocks.passes(HOUR + 1)
    assert lock.take(OTHER, HOUR).taken


@pytest.mark.parametrize("content", [*DAMAGED, b'{"boot": 1, "at": 1, "silence": 0}'], ids=range(len(DAMAGED) + 1))
def test_a_damaged_sign_is_none(lock: host_lock.Lock, clocks: Clocks, content: bytes) -> None:
    lock.take(ME, HOUR)
    Path(lock.seen).write_bytes(content)
    clocks.passes(HOUR - 1)
    assert not lock.take(OTHER, HOUR).taken
    host_lock.heartbeat()
    clocks.passes(2)
    assert lock.look(HOUR, OTHER).age == 2


def test_a_sign_is_whole_at_every_moment(lock: host_lock.Lock, clocks: Clocks) -> None:
    """Whoever reads while it is written, and whoever comes after it was killed, finds the old one or the new one."""
    lock.take(ME, HOUR)
    host_lock.heartbeat()
    before = os.stat(lock.seen).st_ino
    host_lock.heartbeat()
    assert os.stat(lock.seen).st_ino != before
    assert sorted(os.listdir(lock.directory)) == ["lock", "lock.guard", "lock.seen"]
