# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What became of each component, read from registered results; and the table of it."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import report as r

OK, CHANGED = {"changed": False}, {"changed": True}


@pytest.fixture(autouse=True)
def some_roles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(r, "for_nodes", lambda: ["a", "a_b", "c", "d"])


def plan(started: float | None = None, run: bool = True, reason: str = "", essential: bool = False) -> dict[str, Any]:
    return {"run": run, "reason": reason, "essential": essential, "errors": [], "started": started}


def told(
    components: dict[str, Any], failures: dict[str, Any] | None = None, stopped: dict[str, Any] | None = None
) -> r.Told:
    node = {"cluster": "main", "node_name": "h", "node_type": "head"}
    return r.Told({"run_id": "1", "started": 100.0, "components": components}, failures or {}, stopped, node, "head")


def report(host: str = "head", outcome: str = "ok", **status: str) -> dict[str, Any]:
    entries = [
        {"name": n, "status": s, "changed": int(s == "changed"), "seconds": 1.6, "why": "w", "task": "T"}
        for n, s in status.items()
    ]
    changed = sum(bool(entry["changed"]) for entry in entries)
    return {"host": host, "outcome": outcome, "components": entries, "changed": changed, "stopped": None, "seconds": 2}


def test_only_a_components_own_results_count() -> None:
    variables = {
        "__a_one": CHANGED,
        "__a_b_two": CHANGED,
        "__a_internal": "text",
        "__a_table": {"x86_64": "1"},
        "__a_skipped": {"skipped": True, "changed": False},
        "a_changed": CHANGED,
    }
    assert sorted(r.results_of("a", variables)) == ["one", "skipped"]
    assert sorted(r.results_of("a_b", variables)) == ["two"]


@pytest.mark.parametrize(
    ("result", "changed"),
    [
        (OK, False),
        (CHANGED, True),
        ({"changed": True, "failed": True}, False),
        ({"changed": False, "results": [OK, CHANGED]}, True),
        ({"changed": False, "results": [OK, OK]}, False),
        ({"skipped": True}, False),
        ({"changed": False, "results": ["text"]}, False),
    ],
)
def test_what_counts_as_a_change(result: dict[str, Any], changed: bool) -> None:
    assert r.is_changed(result) is changed


TAR = "tar: This does not look like a tar archive\ntar: Exiting with failure status due to previous errors\n"
TRACEBACK = "Traceback (most recent call last):\n  File \"x.py\", line 1, in <module>\n    {}['x']\nKeyError: 'x'\n"


@pytest.mark.parametrize(
    ("result", "says"),
    [
        ({"msg": "two\nlines  here"}, "two lines here"),
        ({"msg": "All items", "results": [OK, {"failed": True, "msg": "this one"}]}, "this one"),
        (
            {"msg": "non-zero return code", "cmd": ["tar", "-xf", "x"], "rc": 2, "stderr": TAR},
            "tar -xf x ended with 2: tar: This does not look like a tar archive",
        ),
        ({"msg": "non-zero return code", "cmd": "a | b", "rc": 1, "stderr": ""}, "a | b ended with 1"),
        ({"msg": "MODULE FAILURE", "module_stderr": TRACEBACK}, "MODULE FAILURE: KeyError: 'x'"),
        ({"censored": "the output has been hidden"}, "the output has been hidden"),
        ({}, "no message"),
        (None, "no message"),
    ],
)
def test_why_a_task_failed(result: Any, says: str) -> None:
    assert r.message(result) == says


def test_the_report_of_a_node() -> None:
    plans = {
        "a": plan(100.0),
        "a_b": plan(104.0),
        "c": plan(106.0, run=False, reason="c_enabled is false"),
        "d": plan(106.5),
    }
    failures = {"d": {"task": "Break", "message": "bad"}}
    variables = {"__a_b_x": CHANGED, "__a_b_y": CHANGED, "__a_b_z": OK, "__a_x": OK, "__d_x": CHANGED}
    found = r.summarise(told(plans, failures), variables, 110.0)
    cells = {entry["name"]: (entry["status"], entry["changed"], entry["seconds"]) for entry in found["components"]}
    assert cells == {
        "a": ("unchanged", 0, 4.0),
        "a_b": ("changed", 2, 2.0),
        "c": ("skipped", 0, 0.0),
        "d": ("failed", 1, 3.5),
    }
    assert (found["outcome"], found["changed"], found["seconds"]) == ("failed", 3, 10.0)
    assert (found["cluster"], found["node"]) == ("main", "h")
    assert found["components"][3]["why"] == "bad"


def test_what_comes_after_a_failed_essential_is_skipped_for_that_reason() -> None:
    plans = {"a": plan(100.0, essential=True), "c": plan(), "d": plan(run=False, reason="d_enabled is false")}
    failures = {"a": {"task": "Break", "message": "bad"}}
    found = r.summarise(told(plans, failures, {"component": "a", "message": "bad"}), {}, 110.0)
    assert [(e["name"], e["status"], e["why"]) for e in found["components"]] == [
        ("a", "failed", "bad"),
        ("c", "skipped", "a failed"),
        ("d", "skipped", "d_enabled is false"),
    ]
    assert found["outcome"] == "stopped"


def test_components_that_were_not_selected_are_left_out() -> None:
    assert r.summarise(told({"a": plan(100.0), "c": plan()}), {}, 110.0)["components"][-1]["name"] == "a"


def test_a_node_of_which_nothing_is_known_has_a_report_all_the_same() -> None:
    nothing = r.Told.by({"inventory_hostname": "x", "__postboot_stop": {"stopped": {"component": "", "message": "m"}}})
    found = r.summarise(nothing, {}, 1.0)
    assert (found["host"], found["outcome"], found["components"]) == ("x", "stopped", [])


@pytest.mark.parametrize(
    ("stopped", "had"),
    [
        (None, ["a", "c"]),
        ({"component": "a", "message": "m"}, ["a"]),
        ({"component": "c", "message": "m"}, ["a", "c"]),
        ({"component": "", "message": "the lock is held"}, []),
    ],
)
def test_a_node_that_stopped_had_no_turn_afterwards(stopped: dict[str, Any] | None, had: list[str]) -> None:
    """The other nodes go on, and a turn is noted for all of them at once."""
    variables = {
        "__postboot_run": {"record": {"components": {"a": plan(), "c": plan(), "d": plan()}}},
        "__postboot_starts": {"starts": {"a": 100.0, "c": 105.0}},
        "__postboot_stop": {"stopped": stopped},
    }
    components = r.Told.by(variables).record["components"]
    assert [name for name, one in components.items() if one["started"]] == had


def test_a_component_with_wrong_variables_has_failed() -> None:
    wrong = {**plan(100.0), "errors": ["no hash", "no other"]}
    (entry,) = r.summarise(told({"a": wrong}), {}, 110.0)["components"]
    assert (entry["status"], entry["why"]) == ("failed", "no hash; no other")


def test_the_failure_of_an_essential_stops_and_any_other_does_not() -> None:
    failures: dict[str, Any] = {}
    record = {"components": {"a": plan(essential=True), "c": plan()}}
    assert r.note_failure(record, failures, "c", "T", {"msg": "bad"}) is False
    assert r.note_failure(record, failures, "a", "T", {"msg": "bad"}) is True
    assert r.note_failure({"components": {}}, failures, "unheard_of", "T", {"msg": "bad"}) is True
    assert set(failures) == {"a", "c", "unheard_of"}


def test_the_table_has_a_row_for_each_component_and_a_column_for_each_node() -> None:
    lost = r.unreachable("gone", "no route")
    assert r.table([report("head", a="changed", c="skipped"), report("c1", a="unchanged", d="failed"), lost], 80) == [
        "   head        c1            gone",
        "a  changed 2s  unchanged 2s  -",
        "c  skipped                   -",
        "d              failed 2s     -",
    ]


def test_in_check_mode_it_would_change() -> None:
    assert "would change" in r.table([report(a="changed")], 80, check=True)[1]
    assert (
        r.last_line([report(a="changed")], 3, check=True) == "pcluster.postboot: 1 node, 1 would change, 0 failed, 3 s"
    )


def test_nodes_that_are_alike_share_a_column_when_there_are_too_many() -> None:
    reports = [report("head", a="changed")]
    reports += [report(f"compute-{n}", a="unchanged") for n in range(30)]
    for number, one in enumerate(reports):
        one["components"][0]["seconds"] = number
    lines = r.table(reports, 80)
    assert lines == [
        "   head     [2] 30 nodes",
        "a  changed  unchanged",
        "[2] compute-[0-29]",
    ]


def test_nodes_stand_in_the_order_in_which_people_think_of_them() -> None:
    def node(host: str, cluster: str, kind: str) -> dict[str, Any]:
        return {"host": host, "cluster": cluster, "node_type": kind}

    reports = [
        node("gone", "", ""),
        node("c-10", "a", "compute"),
        node("c-2", "a", "compute"),
        node("b-head", "b", "head"),
        node("9", "a", "compute"),
        node("login", "a", "login"),
        node("head", "a", "head"),
    ]
    assert [one["host"] for one in r.in_order(reports)] == ["head", "login", "9", "c-2", "c-10", "b-head", "gone"]


def test_no_component_no_table() -> None:
    assert r.table([report()], 80) == []


def test_each_note_is_said_once_with_all_its_nodes() -> None:
    stopped = report("s", "stopped")
    stopped["stopped"] = {"component": "", "message": "x_prot is no variable\ny is wrong"}
    reports = [
        report("h1", a="failed", c="skipped", d="skipped"),
        report("h2", a="failed", c="skipped", d="skipped"),
        stopped,
        r.unreachable("gone", "no route"),
        {**report("bad"), "ended_badly": "disk full", "advisories": ["x 1 has y, which 2 mends"]},
    ]
    assert r.notes(reports) == [
        "skipped on h1, h2: c, d (w)",
        "failed on h1, h2: a: T: w",
        "stopped on s: x_prot is no variable",
        "stopped on s: y is wrong",
        "unreachable on gone: no route",
        "not ended cleanly on bad: disk full",
        "flaw on bad: x 1 has y, which 2 mends",
    ]


def test_what_a_node_ended_up_with_is_told_once() -> None:
    variables = {"__a_x": {**OK, "summary": "A 1.0"}, "__a_y": {**CHANGED, "summary": "A 1.0"}, "__a_z": OK}
    (entry,) = r.summarise(told({"a": {**plan(100.0), "version": "1.0.0"}}), variables, 101.0)["components"]
    assert (entry["summary"], entry["version"]) == ("A 1.0", "1.0.0")
    one, two, three = report("n1", a="ok", c="ok"), report("n2", a="ok"), report("n3", a="failed")
    one["components"][0]["summary"] = two["components"][0]["summary"] = three["components"][0]["summary"] = "A 1.0"
    one["components"][1]["summary"] = "C 2"
    assert r.summaries([one, two]) == ["a: A 1.0", "c: C 2 (on n1)"]
    assert r.summaries([two, three]) == ["a: A 1.0 (on n2)"]


def test_the_last_line_counts() -> None:
    stopped = report("s", "stopped", a="failed")
    stopped["stopped"] = {"component": "a", "message": "bad"}
    early = {**report("e", "stopped"), "stopped": {"component": "", "message": "wrong variable"}}
    reports = [report(a="changed", c="changed"), stopped, early, r.unreachable("g", "x")]
    assert r.last_line(reports, 83.4) == "pcluster.postboot: 4 nodes, 2 changed, 2 failed, 1 unreachable, 83 s"


@pytest.mark.parametrize(("phase", "status"), [("boot", "deferred"), ("later", "deferred"), ("all", "failed")])
def test_what_another_node_has_not_published_yet_fails_only_where_nobody_looks_again(phase: str, status: str) -> None:
    failures: dict[str, Any] = {}
    record = {"started": 100.0, "phase": phase, "components": {"a": plan(100.0, essential=True)}}
    result = {"failed": True, "msg": "no NCCL", "waits_for": "the head publishes NCCL"}
    assert r.note_failure(record, failures, "a", "T", result) is (status == "failed")
    found = r.summarise(r.Told(record, failures, None, {}, "h"), {}, 110.0)
    assert (found["components"][0]["status"], found["phase"]) == (status, phase)
    assert found["outcome"] == ("failed" if status == "failed" else "ok")
    why = "no NCCL" if status == "failed" else "the head publishes NCCL"
    assert found["components"][0]["why"] == why


@pytest.mark.parametrize(("phase", "status"), [("boot", "deferred"), ("later", "deferred"), ("all", "unchanged")])
def test_a_result_that_waits_is_a_success_where_nobody_looks_again(phase: str, status: str) -> None:
    record = {"started": 100.0, "phase": phase, "components": {"a": plan(100.0)}}
    found = r.summarise(r.Told(record, {}, None, {}, "h"), {"__a_x": {**OK, "waits_for": "Pyxis"}}, 110.0)
    assert found["components"][0]["status"] == status
    failed = r.Told(record, {"a": {"task": "T", "message": "bad", "waits": False}}, None, {}, "h")
    found = r.summarise(failed, {"__a_x": {**OK, "waits_for": "Pyxis"}}, 110.0)
    assert found["components"][0]["status"] == "failed"


def test_what_is_deferred_is_told_once_and_counted() -> None:
    reports = [report("head", a="deferred", c="changed"), report("c1", a="deferred")]
    assert r.notes(reports) == ["deferred on head, c1: a (w)"]
    assert r.last_line(reports, 3) == "pcluster.postboot: 2 nodes, 1 changed, 0 failed, 2 deferred, 3 s"
    assert r.table(reports, 80)[1].split() == ["a", "deferred", "deferred"]
