# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The lock of a node: who gets it, who keeps it, and when it is taken from the dead."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._host import lock as host_lock
from ansible_collections.pcluster.postboot.tests.waiting import PATIENCE

ME = host_lock.Holder(run_id="me", user="alice", controller="ws", pid=1, pid_started="1", machine="ws boot pid")
OTHER = replace(ME, run_id="other", user="bob")


@pytest.fixture
def lock(tmp_path: Path) -> host_lock.Lock:
    return host_lock.Lock(str(tmp_path / "run"))


@pytest.fixture
def dead() -> host_lock.Holder:
    """A process of this machine that has ended."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    holder = host_lock.Holder.of_process(child.pid, "push")
    assert holder.alive() is True
    child.communicate()
    return holder


def age(lock: host_lock.Lock, seconds: float) -> None:
    """Have the last sign of life be as old as that, on both clocks."""
    then = time.time() - seconds
    for path in filter(os.path.exists, (lock.path, lock.seen)):
        found = host_lock.parsed(Path(path).read_bytes())
        sign = found.get("seen") or (found if "at" in found else {})
        if sign:
            sign["at"] -= seconds
            Path(path).write_text(json.dumps(found))
    os.utime(lock.path, (then, then))


def test_a_free_lock_is_taken_and_names_its_holder(lock: host_lock.Lock) -> None:
    outcome = lock.take(ME, lease=10)
    assert (outcome.taken, outcome.how) == (True, "free")
    assert json.loads(Path(lock.path).read_text())["user"] == "alice"
    assert Path(lock.path).stat().st_mode & 0o777 == 0o644
    assert lock.mine("me")


def test_the_same_run_takes_it_again_and_is_seen(lock: host_lock.Lock) -> None:
    lock.take(ME, lease=10)
    age(lock, 100)
    assert lock.take(replace(ME, user="changed"), lease=10).how == "again"
    assert lock.look(10, OTHER).age < 5
    assert json.loads(Path(lock.path).read_text())["user"] == "alice"


def test_another_run_does_not_get_it_and_learns_whose_it_is(lock: host_lock.Lock) -> None:
    lock.take(ME, lease=10)
    outcome = lock.take(OTHER, lease=10)
    assert not outcome.taken
    assert outcome.holder is not None
    assert outcome.sentence().startswith("held by push from alice@ws (pid 1) since 1970-")
    assert lock.mine("me")


def test_a_lease_that_ran_out_is_taken(lock: host_lock.Lock) -> None:
    lock.take(ME, lease=10)
    age(lock, 11)
    assert not lock.take(OTHER, lease=12).taken
    assert lock.take(OTHER, lease=10).how == "expired"
    assert lock.mine("other")


def test_a_sign_of_life_renews_the_lease(lock: host_lock.Lock, monkeypatch: pytest.MonkeyPatch) -> None:
    lock.take(ME, lease=10)
    age(lock, 11)
    monkeypatch.setattr(host_lock, "RUN_DIR", lock.directory)
    host_lock.heartbeat()
    assert not lock.take(OTHER, lease=10).taken


def test_a_run_that_has_told_that_it_will_be_silent_is_not_dead(
    lock: host_lock.Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock.take(ME, lease=10)
    monkeypatch.setattr(host_lock, "RUN_DIR", lock.directory)
    host_lock.heartbeat(silence=3600)
    outcome = lock.take(OTHER, lease=0)
    assert not outcome.taken
    assert (outcome.silence, round(outcome.age)) == (3600, 0)
    until = host_lock.utc(time.time() + 3600)[:10]
    assert f"last seen 0 s ago, and may be silent until {until}" in outcome.sentence()
    # What comes next counts from then on.
    host_lock.heartbeat()
    assert lock.look(10, OTHER).sentence().endswith("last seen 0 s ago")
    age(lock, 11)
    assert lock.take(OTHER, lease=10).how == "expired"


def test_a_sign_of_life_without_a_lock_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_lock, "RUN_DIR", str(tmp_path / "absent"))
    host_lock.heartbeat()
    assert not (tmp_path / "absent").exists()


def test_a_dead_process_of_this_machine_holds_nothing(lock: host_lock.Lock, dead: host_lock.Holder) -> None:
    lock.take(dead, lease=1000)
    assert lock.take(OTHER, lease=1000).how == "dead"


def test_a_process_that_nobody_has_waited_for_is_dead_too() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    holder = host_lock.Holder.of_process(child.pid, "push")
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert holder.alive() is False
    child.wait()


def test_a_process_number_that_was_used_again_is_another_process(lock: host_lock.Lock) -> None:
    mine = host_lock.Holder.of_process(os.getpid(), "push")
    lock.take(replace(mine, run_id="before", pid_started="7"), lease=1000)
    assert lock.take(mine, lease=1000).how == "dead"


def test_a_living_process_of_this_machine_keeps_it_beyond_its_lease(lock: host_lock.Lock) -> None:
    lock.take(replace(host_lock.Holder.of_process(os.getpid(), "pull"), run_id="a"), lease=10)
    age(lock, 1000)
    assert not lock.take(OTHER, lease=10).taken


def test_process_numbers_of_another_machine_say_nothing(lock: host_lock.Lock, dead: host_lock.Holder) -> None:
    elsewhere = replace(dead, machine="elsewhere")
    assert elsewhere.alive() is None
    lock.take(elsewhere, lease=1000)
    assert not lock.take(OTHER, lease=1000).taken


@pytest.mark.parametrize(("alive", "old", "taken"), [(False, 1, True), (True, 1, False), (True, 5000, False)])
def test_what_the_controller_knows_of_the_holder_counts(
    lock: host_lock.Lock, alive: bool, old: float, taken: bool
) -> None:
    lock.take(ME, lease=10)
    age(lock, old)
    assert lock.take(OTHER, 1000, judged="me", judged_alive=alive).taken is taken


def test_a_judgement_of_a_run_that_is_gone_does_not_hit_its_successor(lock: host_lock.Lock) -> None:
    lock.take(replace(ME, run_id="successor"), lease=10)
    assert not lock.take(OTHER, 10, judged="me", judged_alive=False).taken


def test_an_unreadable_lock_is_kept_for_its_lease(lock: host_lock.Lock) -> None:
    os.makedirs(lock.directory)
    Path(lock.path).write_text("{")
    outcome = lock.take(OTHER, lease=10)
    assert not outcome.taken
    assert outcome.holder is not None
    assert "unreadable" in outcome.sentence()
    age(lock, 11)
    assert lock.take(OTHER, lease=10).taken


@pytest.mark.parametrize("text", ['{"run_id": "x", "pid": "no"}', "[]", '{"run_id": "x", "later": {"a": 1}}'])
def test_a_lock_of_another_version_is_read_as_far_as_it_goes(lock: host_lock.Lock, text: str) -> None:
    os.makedirs(lock.directory)
    Path(lock.path).write_text(text)
    assert not lock.take(OTHER, lease=10).taken


def test_only_the_holder_releases(lock: host_lock.Lock) -> None:
    assert not lock.release("me")
    assert not os.path.exists(lock.directory)
    lock.take(ME, lease=10)
    assert not lock.release("other")
    assert lock.release("me")
    assert lock.take(OTHER, lease=10).how == "free"


def test_waiting_ends_when_the_lock_is_free(lock: host_lock.Lock, dead: host_lock.Holder) -> None:
    lock.take(ME, lease=1000)
    started = time.monotonic()
    assert not lock.wait(OTHER, 1000, seconds=0.2, pause=0.05).taken
    assert 0.2 <= time.monotonic() - started < PATIENCE
    age(lock, 99)
    assert lock.wait(OTHER, 99.1, seconds=PATIENCE, pause=0.05).how == "expired"


COLLECTIONS = host_lock.__file__.partition("/ansible_collections/")[0]
TAKER = """
import sys
sys.path.insert(0, sys.argv[1])
from ansible_collections.pcluster.postboot.plugins.module_utils._host.lock import Holder, Lock
lock = Lock(sys.argv[2])
me = Holder(run_id=sys.argv[3], machine="elsewhere", pid=1)
print("ready", flush=True)
input()
print(lock.take(me, 10).taken, flush=True)
"""


@pytest.mark.parametrize("before", ["free", "expired", "dead"])
def test_of_many_takers_at_once_one_wins(lock: host_lock.Lock, dead: host_lock.Holder, before: str) -> None:
    if before != "free":
        lock.take(dead if before == "dead" else ME, lease=10)
        age(lock, 11 if before == "expired" else 0)
    takers = [
        subprocess.Popen(
            [sys.executable, "-I", "-c", TAKER, COLLECTIONS, lock.directory, f"taker{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(6)
    ]
    for taker in takers:
        assert taker.stdout is not None
        assert taker.stdout.readline() == "ready\n"
    for taker in takers:
        assert taker.stdin is not None
        taker.stdin.write("\n")
        taker.stdin.flush()
    answers = [taker.communicate()[0].strip() for taker in takers]
    assert sorted(answers) == ["False"] * 5 + ["True"]
    assert lock.mine(f"taker{answers.index('True')}")
    assert sorted(os.listdir(lock.directory)) == ["lock", "lock.guard"]


def test_the_run_id_is_the_same_for_every_worker_of_a_process() -> None:
    one = host_lock.Holder.of_process(os.getpid(), "push")
    assert one.run_id == host_lock.Holder.of_process(os.getpid(), "pull").run_id
    assert one.run_id != host_lock.Holder.of_process(os.getppid(), "push").run_id
    assert " " not in one.run_id
