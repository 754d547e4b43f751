# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The beginning and the end of a run, on the node."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._host import lock, process
from ansible_collections.pcluster.postboot.plugins.module_utils._node import storage
from ansible_collections.pcluster.postboot.plugins.module_utils._packages import holds as packages_holds
from ansible_collections.pcluster.postboot.plugins.modules import node_facts, node_run
from ansible_collections.pcluster.postboot.tests import strangers

ALICE = {"run_id": "alice's", "mode": "push", "controller": "ws", "user": "alice", "pid": 123, "machine": "ws b p"}
BOB = {**ALICE, "run_id": "bob's", "user": "bob"}
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(lock, "RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(lock, "STATE_DIR", str(tmp_path / "state"))
    return tmp_path


def begin(run_module: Run, who: dict[str, Any], **more: Any) -> dict[str, Any]:
    check = more.pop("check", False)
    return run_module(node_run, {"state": "begin", "run": who, **more}, check=check)


def end(run_module: Run, who: dict[str, Any], **more: Any) -> dict[str, Any]:
    return run_module(node_run, {"state": "end", "run": who, **more})


def test_a_run_begins_and_ends(run_module: Run, node: Path) -> None:
    begun = begin(run_module, ALICE)
    assert (begun["taken"], begun["how"], begun["changed"], begun["held"]) == (True, "free", False, False)
    ended = end(run_module, ALICE, report={"cluster": "main", "node": "head", "components": []})
    assert not ended["changed"]
    assert json.loads((node / "state/report.json").read_text())["node"] == "head"
    assert not (node / "run/lock").exists()


def component(name: str, status: str, version: str = "", **more: str) -> dict[str, str]:
    return {"name": name, "status": status, "version": version, **more}


def test_the_report_knows_the_versions_of_earlier_runs(run_module: Run, node: Path) -> None:
    """A run with --tags has some components alone."""

    def run(finished: str, *components: dict[str, str], **more: Any) -> dict[str, tuple[str, str]]:
        begin(run_module, ALICE)
        end(run_module, ALICE, report={"finished": finished, "components": list(components), **more})
        versions = json.loads((node / "state/report.json").read_text())["versions"]
        return {name: (one["version"], one["finished"]) for name, one in versions.items()}

    first = run("one", component("nccl", "changed", "2.30", summary="NCCL"), component("efa", "unchanged", "1.50.0"))
    assert first == {"nccl": ("2.30", "one"), "efa": ("1.50.0", "one")}
    assert run("two", component("nccl", "unchanged", "2.32")) == {"nccl": ("2.32", "two"), "efa": ("1.50.0", "one")}
    # What failed, or was not come to, is what it was.
    for status in ("failed", "deferred"):
        assert run("three", component("nccl", status, "2.33"))["nccl"] == ("2.32", "two")
    assert run("four", component("efa", "skipped"), stopped={"component": "nccl"})["efa"] == ("1.50.0", "one")
    # What this node is not to have any more does not count.
    assert "efa" not in run("five", component("efa", "skipped"), stopped=None)
    (node / "state/report.json").write_text("[]")
    assert run("six", component("nccl", "changed", "2.34")) == {"nccl": ("2.34", "six")}


def test_who_looks_or_waits_keeps_no_dead_run_alive(
    run_module: Run, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "wait_for_setup", lambda _run: None)
    begin(run_module, ALICE)
    now = process.boot_time() + 100
    monkeypatch.setattr(process, "boot_time", lambda: now)
    run_module(node_facts)
    assert begin(run_module, BOB, lock_lease=200)["failed"]
    assert begin(run_module, BOB, lock_lease=90)["how"] == "expired"


def test_the_second_names_the_first_in_one_line(run_module: Run, node: Path) -> None:
    begin(run_module, ALICE)
    second = begin(run_module, BOB, lock_timeout=3)
    assert second["failed"]
    assert second["held"]
    assert not second["taken"]
    assert second["msg"].startswith("held by push from alice@ws (pid 123) since ")
    assert "waited 3 s (common_lock_timeout)" in second["msg"]
    assert "\n" not in second["msg"]
    end(run_module, BOB, report={"node": "b"})
    assert not (node / "state/report.json").exists()
    assert (node / "run/lock").exists()


def test_what_the_controller_knows_takes_it_from_the_dead(run_module: Run, node: Path) -> None:
    begin(run_module, ALICE)
    answer = begin(run_module, BOB, judged_run="alice's", judged_alive=False)
    assert answer["how"] == "dead"
    assert answer["msg"].startswith("taken over from a run that is dead: it was held by push from alice@ws (pid 123)")


def test_check_mode_takes_nothing_and_says_who_is_there(run_module: Run, node: Path) -> None:
    answer = begin(run_module, ALICE, check=True)
    assert not answer["taken"]
    assert list(node.iterdir()) == []
    begin(run_module, ALICE)
    before = (node / "run/lock").read_text()
    answer = begin(run_module, BOB, check=True)
    assert not answer["failed"]
    assert (node / "run/lock").read_text() == before


@pytest.fixture
def holds(monkeypatch: pytest.MonkeyPatch, node: Path) -> dict[str, Any]:
    """A package manager that does what the test says."""
    state: dict[str, Any] = {"error": None, "held": []}

    class Manager:
        def begin(self, patterns: list[str]) -> list[str]:
            if state["error"]:
                raise state["error"]
            state["held"] = patterns
            return patterns

        def end(self) -> list[str]:
            if state["error"]:
                raise state["error"]
            held, state["held"] = state["held"], []
            return held

    monkeypatch.setattr(packages_holds, "Holds", lambda _manager: Manager())
    return state


def test_packages_are_held_for_the_run(run_module: Run, holds: dict[str, Any]) -> None:
    assert begin(run_module, ALICE, package_manager="apt", hold_packages=["linux*"])["packages"] == ["linux*"]
    assert end(run_module, ALICE, package_manager="apt")["packages"] == ["linux*"]
    assert holds["held"] == []


def test_a_busy_package_manager_is_no_failure_yet(run_module: Run, node: Path, holds: dict[str, Any]) -> None:
    holds["error"] = packages_holds.BusyError("dpkg is busy")
    answer = begin(run_module, ALICE, package_manager="apt")
    assert (answer["taken"], answer["busy"], answer["failed"]) == (True, True, False)
    assert end(run_module, ALICE, package_manager="apt")["busy"]
    assert (node / "run/lock").exists()
    holds["error"] = None
    assert begin(run_module, ALICE, package_manager="dnf")["how"] == "again"
    assert "busy" not in end(run_module, ALICE, package_manager="dnf")
    assert not (node / "run/lock").exists()


def test_a_broken_package_manager_is_a_failure_that_names_the_variable(run_module: Run, holds: dict[str, Any]) -> None:
    holds["error"] = packages_holds.HoldError("no dpkg")
    answer = begin(run_module, ALICE, package_manager="apt")
    assert answer["failed"]
    assert answer["taken"]
    assert answer["msg"] == "packages cannot be held: no dpkg (common_hold_packages)"
    assert end(run_module, ALICE, package_manager="apt")["msg"] == "node_run state=end: no dpkg"


def test_the_report_is_shared_where_there_is_a_place_for_it(run_module: Run, node: Path) -> None:
    report = {"cluster": "main", "node": "q1-dy-a-1", "components": []}
    (node / "shared").mkdir()
    begin(run_module, ALICE)
    end(run_module, ALICE, report=report, report_dir=str(node / "shared"))
    assert json.loads((node / "shared/main/q1-dy-a-1.json").read_text()) == {**report, "versions": {}}
    begin(run_module, ALICE)
    ended = end(run_module, ALICE, report=report, report_dir=str(node / "absent"))
    assert not ended["failed"]
    assert not (node / "absent").exists()


@strangers.TWO_USERS
def test_a_report_follows_no_link_of_a_user(run_module: Run, node: Path, warnings: list[str]) -> None:
    (node / "victim").mkdir()
    (node / "shared").mkdir()
    (node / "shared/main").symlink_to(node / "victim")
    os.chown(node / "shared/main", strangers.USER, strangers.USER, follow_symlinks=False)
    begin(run_module, ALICE)
    told = {"report": {"cluster": "main", "node": "x"}, "report_dir": str(node / "shared")}
    assert not end(run_module, ALICE, **told)["failed"]
    assert list((node / "victim").iterdir()) == []
    assert f"{node}/shared/main is a link of user nobody, and is not followed" in warnings[-1]
    os.chown(node / "shared/main", 0, 0, follow_symlinks=False)
    begin(run_module, ALICE)
    end(run_module, ALICE, **told)
    assert (node / "victim/x.json").exists()


def test_a_node_cannot_name_its_report_out_of_the_directory(run_module: Run, node: Path) -> None:
    (node / "shared").mkdir()
    begin(run_module, ALICE)
    end(run_module, ALICE, report={"cluster": "../..", "node": "/etc/x"}, report_dir=str(node / "shared"))
    written = [path.relative_to(node) for path in node.rglob("*.json")]
    assert sorted(map(str, written)) == ["shared/.._../_etc_x.json", "state/report.json"]
