# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Waiting for a node that still boots."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail

from ansible_collections.pcluster.postboot.plugins.action import node_facts

BOOTS, FACTS = {"changed": False, "boots": True}, {"changed": False, "ansible_facts": {"pcluster": {}}}


class Action(node_facts.ActionModule):
    """The action, in front of a node that gives the answers of the test; the last one again and again."""

    def __init__(self, answers: list[Any], transport: str = "ssh", check: bool = False, **args: Any) -> None:
        self._task = SimpleNamespace(args=args, check_mode=check, async_val=0)
        self._connection = SimpleNamespace(transport=transport)
        self.answers = answers
        self.calls: list[dict[str, Any]] = []

    def _execute_module(self, module_name: str, module_args: dict[str, Any], task_vars: Any) -> dict[str, Any]:
        assert module_name == "pcluster.postboot.node_facts"
        self.calls.append(dict(module_args))
        return dict(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])

    def result(self) -> dict[str, Any]:
        return self._read(dict(self._task.args), {"inventory_hostname": "gpu-1"})


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time passes while the action sleeps, and only then."""
    now = [1000.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(node_facts.time, "sleep", sleep)
    monkeypatch.setattr(node_facts.time, "monotonic", lambda: now[0])
    return now


def test_a_node_that_has_booted_is_asked_once(capsys: pytest.CaptureFixture[str]) -> None:
    action = Action([FACTS], boot_timeout=1800, overrides={"cluster": "one"})
    assert action.result() == FACTS
    assert action.calls == [{"boot_timeout": 1800, "overrides": {"cluster": "one"}}]
    assert capsys.readouterr().out == ""


def test_a_node_that_boots_is_waited_for_and_said_once(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    action = Action([BOOTS, BOOTS, BOOTS, FACTS], boot_timeout="1800")
    assert action.result() == FACTS
    assert (len(action.calls), clock[0]) == (4, 1030.0)
    assert " ".join(capsys.readouterr().out.split()) == (
        "gpu-1 still boots: this run waits until cloud-init has written /run/cloud-init/result.json, for 1800 s at "
        "most (common_boot_timeout)"
    )


@pytest.mark.parametrize(("check", "seconds"), [(False, 25), (True, 10)])
def test_a_boot_that_does_not_end_is_one_line(clock: list[float], check: bool, seconds: int) -> None:
    """Check mode waits for a moment alone."""
    done = Action([BOOTS], check=check, boot_timeout=25).result()
    assert done["failed"]
    assert clock[0] == 1000 + seconds
    assert done["msg"].startswith(
        f"gpu-1 still boots after {seconds} s: cloud-init has not written /run/cloud-init/result.json; needed: "
    )
    assert "common_boot_timeout: 0" in done["msg"]
    assert "\n" not in done["msg"]


def test_a_run_on_the_node_itself_waits_for_nothing() -> None:
    """A custom action is a part of the boot, and would wait for itself."""
    action = Action([FACTS], transport="local", boot_timeout=1800)
    assert action.result() == FACTS
    assert action.calls == [{"boot_timeout": 0}]


def test_seconds_that_are_none_are_one_line() -> None:
    with pytest.raises(AnsibleActionFail, match="boot_timeout is 'soon'; needed: a number of seconds"):
        Action([FACTS], boot_timeout="soon").result()
