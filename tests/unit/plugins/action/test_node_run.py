# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the controller adds to the module: patience, and what it knows of its own processes."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure

from ansible_collections.pcluster.postboot.plugins.action import node_run
from ansible_collections.pcluster.postboot.plugins.module_utils._host import lock


class Action(node_run.ActionModule):
    """The action, in front of a node that gives the answers of the test."""

    def __init__(self, answers: list[Any], check: bool = False, **args: Any) -> None:
        self._task = SimpleNamespace(args=args, check_mode=check, async_val=0)
        self._connection = SimpleNamespace(transport="ssh")
        self.answers = answers
        self.calls: list[dict[str, Any]] = []

    def _execute_module(self, module_name: str, module_args: dict[str, Any], task_vars: Any) -> dict[str, Any]:
        assert module_name == "pcluster.postboot.node_run"
        self.calls.append(module_args)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)

    def result(self, **variables: Any) -> dict[str, Any]:
        args = dict(self._task.args)
        act = self._end if args.get("state") == "end" else self._begin
        return act(args, {"inventory_hostname": "head", **variables})


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(node_run.time, "sleep", slept.append)
    return slept


TAKEN = {"taken": True, "held": False}
BUSY = {"taken": True, "held": False, "busy": True, "msg": "dpkg is busy"}


def dead() -> lock.Holder:
    """A run whose process has ended."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    holder = lock.Holder.of_process(child.pid, "push")
    child.wait()
    return holder


def held_by(holder: lock.Holder) -> dict[str, Any]:
    return {"taken": False, "held": True, "failed": True, "msg": "held by", "holder": asdict(holder)}


def test_a_free_node_is_asked_once() -> None:
    action = Action([TAKEN], state="begin", lock_timeout=600)
    assert action.result() == TAKEN
    assert action.calls[0]["wait"] == 0


@pytest.mark.parametrize("lock_timeout", [0, 600])
def test_the_node_learns_that_the_holder_is_dead(lock_timeout: int) -> None:
    holder = dead()
    action = Action([held_by(holder), TAKEN], state="begin", lock_timeout=lock_timeout)
    assert action.result() == TAKEN
    assert "judged_run" not in action.calls[0]
    assert (action.calls[1]["judged_run"], action.calls[1]["judged_alive"]) == (holder.run_id, False)
    assert action.calls[1]["wait"] == 0


def test_the_node_learns_that_the_holder_lives() -> None:
    holder = lock.Holder.of_process(os.getpid(), "push")
    action = Action([held_by(holder), TAKEN], state="begin", lock_timeout=600)
    action.result()
    assert (action.calls[1]["judged_run"], action.calls[1]["judged_alive"]) == (holder.run_id, True)
    assert action.calls[1]["wait"] == 20


def test_nothing_is_said_of_the_processes_of_others() -> None:
    holder = replace(lock.Holder.of_process(os.getpid(), "push"), machine="elsewhere")
    action = Action([held_by(holder), TAKEN], state="begin", lock_timeout=600)
    action.result()
    assert "judged_run" not in action.calls[1]


def test_the_wait_ends() -> None:
    held = held_by(replace(lock.Holder.of_process(1, "push"), machine="elsewhere"))
    action = Action([held], state="begin", lock_timeout=0)
    assert action.result()["failed"]
    assert action.calls[0]["wait"] == 0


def test_a_node_that_does_not_believe_it_is_not_asked_for_ever() -> None:
    held = held_by(dead())
    action = Action([held, held, {**held, "taken": True}], state="begin", lock_timeout=600)
    action.result()
    assert [call["wait"] for call in action.calls] == [0, 0, 20]
    assert Action([held, held], state="begin", lock_timeout=0).result() == held


def test_a_time_that_is_none_is_named() -> None:
    with pytest.raises(AnsibleActionFail, match="lock_timeout is 'long'; needed: a number of seconds"):
        Action([], state="begin", lock_timeout="long").result()


def test_a_busy_package_manager_is_waited_for(no_pauses: list[float]) -> None:
    action = Action([BUSY, BUSY, TAKEN], state="begin", lock_timeout=600)
    assert action.result() == TAKEN
    assert no_pauses == [5.0, 5.0]
    action = Action([BUSY], state="begin", lock_timeout=0)
    assert action.result() == {**BUSY, "failed": True}


def test_another_failure_is_no_reason_to_wait() -> None:
    failed = {"taken": True, "held": False, "failed": True, "msg": "packages cannot be held"}
    assert Action([failed], state="begin", lock_timeout=600).result() == failed


BEGUN = {"__postboot_begin": TAKEN}


def test_the_report_goes_to_the_node() -> None:
    action = Action([{"changed": False, "msg": "given back"}], state="end", report_dir="/fsx/reports")
    answer = action.result(**BEGUN)
    assert action.calls[0]["report"]["host"] == answer["report"]["host"] == "head"
    assert action.calls[0]["report_dir"] == "/fsx/reports"
    assert "ended_badly" not in answer["report"]


@pytest.mark.parametrize("begun", [{}, {"__postboot_begin": {"taken": False}}, {"__postboot_begin": {"msg": "x"}}])
def test_a_node_that_was_not_begun_is_let_be(begun: dict[str, Any]) -> None:
    action = Action([], state="end")
    assert action.result(**begun)["report"]["outcome"] == "ok"
    assert action.calls == []


def test_check_mode_ends_nothing() -> None:
    action = Action([], state="end", check=True)
    assert action.result(**BEGUN)["report"]["check_mode"] is True


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ([{"failed": True, "msg": "disk full"}], "disk full"),
        ([AnsibleConnectionFailure("no route")], "the connection was lost at the end: no route"),
        ([BUSY], "dpkg is busy"),
    ],
)
def test_a_bad_end_does_not_cost_the_table(answers: list[Any], says: str) -> None:
    answer = Action(answers, state="end", lock_timeout=0).result(**BEGUN)
    assert not answer.get("failed")
    assert answer["report"]["ended_badly"] == says


def test_a_busy_package_manager_is_waited_for_at_the_end_too(no_pauses: list[float]) -> None:
    action = Action([BUSY, {"changed": False}], state="end", lock_timeout=600)
    assert "ended_badly" not in action.result(**BEGUN)["report"]
    assert no_pauses == [5.0]
