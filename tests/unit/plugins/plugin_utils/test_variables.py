# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is wrong with the variables of a run: one line each, with the name, what was found and what was needed."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.plugin_utils import _variables as v

NODE = {
    "is_parallelcluster": True,
    "node_type": "compute",
    "architecture": "x86_64",
    "gpus": {"count": 8},
    "efa": {"count": 0},
    "os": {"id": "ubuntu", "name": "ubuntu2404", "version": "24.04", "family": "debian"},
}
HASH = "0123456789abcdef" * 4


def role(name: str, **options: Any) -> v.Role:
    base: dict[str, Any] = {f"{name}_enabled": {"type": "bool"}, f"{name}_essential": {"type": "bool"}}
    return v.Role(name, {**base, **{f"{name}_{key}": value for key, value in options.items()}})


ROLES = {
    "common": v.Role("common", {"common_all_essential": {"type": "bool"}, "common_mirrors": {"type": "list"}}),
    "nccl": role("nccl", version={"type": "str"}, port={"type": "int"}),
    "nccl_tests": role("nccl_tests", version={"type": "str"}, sha256={"type": "dict"}),
}


def check(components: list[str], **values: Any) -> tuple[list[str], dict[str, v.Plan]]:
    checker = v.Checker(ROLES, values, values.__getitem__, values.__getitem__)
    return checker.errors, checker.run(components, NODE, lambda value: str(value).lower() in ("true", "yes"))


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ({"type": "int"}, "abc", 'x is "abc"; needed: a whole number'),
        ({"type": "bool"}, "maybe", 'x is "maybe"; needed: true or false'),
        ({"type": "str", "choices": ["a", "b"]}, "c", 'x is "c"; needed: one of a, b'),
        ({"type": "list", "elements": "str", "choices": ["a"]}, ["c"], 'x is ["c"]; needed: a list of one of a'),
        ({"type": "dict"}, "a", 'x is "a"; needed: a dictionary'),
        (
            {"type": "str", "no_log": True, "choices": ["a"]},
            "secret",
            "x is a value that is not shown; needed: one of a",
        ),
        (
            {"type": "list", "elements": "int", "no_log": True},
            ["secret"],
            "x is a value that is not shown; needed: a list",
        ),
        ({"type": "int"}, "9" * 200 + "x", 'x is "' + "9" * 76 + "...; needed: a whole number"),
    ],
)
def test_a_wrong_value(option: dict[str, Any], value: Any, says: str) -> None:
    lines = v.value_errors("x", value, option)
    assert len(lines) == 1
    assert lines[0].startswith(says)
    assert "secret" not in lines[0]


def test_a_wrong_value_within_a_list_says_where() -> None:
    option = {"type": "list", "elements": "dict", "options": {"path": {"type": "str", "required": True}}}
    (line,) = v.value_errors("x", [{"paht": "a"}], option)
    assert "\n" not in line
    assert "path" in line


@pytest.mark.parametrize(
    ("option", "value"), [({"type": "int"}, "8"), ({"type": "bool"}, "yes"), ({"type": "str"}, None)]
)
def test_what_ansible_would_convert_is_right(option: dict[str, Any], value: Any) -> None:
    assert v.value_errors("x", value, option) == []


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nccl_verison", "nccl_verison is no variable of role nccl: did you mean nccl_version?"),
        (
            "nccl_tests_verison",
            "nccl_tests_verison is no variable of role nccl_tests: did you mean nccl_tests_version?",
        ),
        ("nccl_test_version", "nccl_test_version is no variable of role nccl: did you mean nccl_tests_version?"),
        ("common_miror", "common_miror is no variable of role common: did you mean common_mirrors?"),
        ("nccl_zzz", "nccl_zzz is no variable of role nccl: see the role's README, or add the name to"),
        ("nlcc_tests_version", "nlcc_tests_version is nobody's variable: did you mean nccl_tests_version?"),
        ("ncccl_version", "ncccl_version is nobody's variable: did you mean nccl_version?"),
    ],
)
def test_a_misspelt_name(name: str, says: str) -> None:
    (line,) = v.misspelt([name, "nccl_version", "ncclx", "nccl", "__nccl_x"], ROLES)
    assert line.startswith(says)


def test_names_of_something_else_are_let_be() -> None:
    assert v.misspelt(["common_packages", "nccl_zzz", "nccl_yyy_a"], ROLES, ["nccl_zzz", "nccl_yyy*"]) == []
    assert v.misspelt(["ncccl_version", "my_nccl_version", "rccl_version_x", "ubuntu_version"], ROLES, ["nccc*"]) == []


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (
            {"x86_64": "", "aarch64": HASH},
            "a_sha256['x86_64'] is not set; needed: the 64 hexadecimal digits of the sha256",
        ),
        ({"aarch64": HASH}, "a_sha256['x86_64'] is not set; "),
        ({"x86_64": HASH[:-1]}, f"a_sha256['x86_64'] is \"{HASH[:-1]}\"; needed"),
        ({"x86_64": HASH + HASH[1:]}, "a_sha256['x86_64'] is "),
        ({"x86_64": 12}, "a_sha256['x86_64'] is 12; needed"),
        ("", "a_sha256 is not set; needed"),
        (None, "a_sha256 is not set; needed"),
    ],
)
def test_a_checksum_that_is_none(value: Any, says: str) -> None:
    (line,) = v.pin_errors("a_sha256", value, "x86_64", "1.0")
    assert line.startswith(says)
    assert "version 1.0 for x86_64" in line


# The publisher of some releases tells their sha512 alone.
@pytest.mark.parametrize("value", [{"x86_64": HASH, "aarch64": ""}, HASH, {"noarch": HASH + HASH}])
def test_a_checksum_that_is_one(value: Any) -> None:
    assert v.pin_errors("a_sha256", value, "x86_64") == []


def test_an_empty_checksum_stops_the_node_only_for_an_essential() -> None:
    values = {"nccl_tests_enabled": True, "nccl_tests_essential": False, "nccl_tests_sha256": {"x86_64": ""}}
    errors, plans = check(["nccl_tests"], **values)
    assert errors == []
    assert plans["nccl_tests"].run
    assert plans["nccl_tests"].errors[0].startswith("nccl_tests_sha256['x86_64'] is not set")
    errors, plans = check(["nccl_tests"], **values, common_all_essential=True)
    assert errors[0].startswith("nccl_tests_sha256['x86_64'] is not set")
    assert plans["nccl_tests"].essential
    assert check(["nccl_tests"], **{**values, "nccl_tests_enabled": False})[0] == []


def test_the_plan_tells_which_version_is_asked_for() -> None:
    plans = check(["nccl_tests"], nccl_tests_enabled=True, nccl_tests_version=2.19, __nccl_tests_downloads=False)[1]
    assert plans["nccl_tests"].as_dict()["version"] == "2.19"
    # Where there is no such variable, or it says nothing, any will do.
    for version in ("", None):
        values = {"nccl_tests_enabled": True, "nccl_tests_version": version, "__nccl_tests_downloads": False}
        assert check(["nccl_tests"], **values)[1]["nccl_tests"].version == ""


def test_a_component_that_downloads_nothing_needs_no_checksum() -> None:
    values = {"nccl_tests_enabled": True, "nccl_tests_sha256": {}, "__nccl_tests_downloads": False}
    errors, plans = check(["nccl_tests"], **values)
    assert errors == plans["nccl_tests"].errors == []


def test_a_component_names_the_files_that_this_node_needs() -> None:
    values = {"nccl_tests_enabled": True, "nccl_tests_sha256": {}, "nccl_tests_essential": False}
    assert check(["nccl_tests"], **values, __nccl_tests_downloads=["nccl_tests"])[1]["nccl_tests"].errors
    assert not check(["nccl_tests"], **values, __nccl_tests_downloads=["nccl_tests_other"])[1]["nccl_tests"].errors


def test_a_checksum_of_sources_is_one_for_all_architectures() -> None:
    assert v.pin_errors("a_sha256", {"noarch": HASH}, "aarch64") == []
    assert v.pin_errors("a_sha256", {"noarch": ""}, "aarch64")[0].startswith("a_sha256['noarch'] is not set")


def test_variables_of_a_component_that_does_not_run_are_not_looked_at() -> None:
    errors, plans = check(["nccl"], nccl_enabled=False, nccl_port="abc")
    assert errors == []
    assert (plans["nccl"].run, plans["nccl"].reason) == (False, "nccl_enabled is false")
    assert check(["nccl"], nccl_enabled=True, nccl_port="abc")[0] == ['nccl_port is "abc"; needed: a whole number']


def test_defaults_that_nobody_has_touched_are_not_worked_out() -> None:
    asked: list[str] = []
    values = {"nccl_enabled": True, "nccl_essential": False, "nccl_port": "{{ 1 + 1 }}", "nccl_version": "{{ mine }}"}

    def value_of(name: str) -> Any:
        asked.append(name)
        return values[name]

    nccl = v.Role("nccl", ROLES["nccl"].options, {"nccl_port": "{{ 1 + 1 }}", "nccl_version": "{{ ours }}"})
    v.Checker({**ROLES, "nccl": nccl}, values, value_of, values.__getitem__).run(["nccl"], NODE, bool)
    assert "nccl_version" in asked
    assert "nccl_port" not in asked


def test_the_reason_tells_a_switch_from_a_node_of_another_kind() -> None:
    assert v.unwanted_because("{{ gpus > 0 }}", "nccl", NODE) == "not for this node (compute, 8 GPU, no EFA)"
    assert v.unwanted_because("no", "nccl", NODE) == "nccl_enabled is no"


def test_a_value_that_cannot_be_worked_out_is_named() -> None:
    def value_of(name: str) -> Any:
        raise ValueError("'site' is undefined")

    checker = v.Checker(ROLES, [], value_of, value_of)
    checker.run(["nccl"], NODE, bool)
    assert "nccl_enabled cannot be worked out: 'site' is undefined" in checker.errors


def test_a_component_that_is_no_role() -> None:
    assert check(["nope"])[0] == ["components: there is no role nope"]


@pytest.mark.parametrize(
    ("run", "skip", "chosen"),
    [
        ([], [], True),
        (["all"], [], True),
        (["a"], [], True),
        (["b"], [], False),
        (["tagged"], [], True),
        (["untagged"], [], False),
        (["all"], ["a"], False),
        (["a"], ["a"], False),
        (["all"], ["b"], True),
    ],
)
def test_tags(run: list[str], skip: list[str], chosen: bool) -> None:
    assert v.selected("a", run, skip) is chosen


@pytest.mark.parametrize(
    ("node", "says"),
    [
        (NODE, ""),
        (
            {**NODE, "is_parallelcluster": False, "reason": "no cfnconfig"},
            "not a ParallelCluster node, nothing was done: no",
        ),
        ({}, "the node is unknown: pcluster.postboot.node_facts must run first"),
        (
            {**NODE, "os": {"id": "rhel", "name": "rhel8", "version": "8.10", "family": "redhat"}},
            "rhel8 is not supported",
        ),
        (
            {**NODE, "os": {"id": "rocky", "name": "rocky8", "version": "8", "family": "redhat"}},
            "rocky8 is not supported",
        ),
        ({**NODE, "os": {"id": "rocky", "name": "rocky9", "version": "9.4", "family": "redhat"}}, ""),
        ({**NODE, "os": {"id": "amzn", "name": "alinux2023", "version": "2023", "family": "redhat"}}, ""),
        (
            {**NODE, "os": {"id": "sles", "name": "sles15", "version": "15", "family": None}},
            "the operating system is sles15",
        ),
    ],
)
def test_nodes_on_which_nothing_can_be_done(node: dict[str, Any], says: str) -> None:
    answer = v.why_stopped(node, True)
    assert answer.startswith(says) if says else answer == ""
    assert "\n" not in answer


def test_an_image_is_built_outside_of_a_cluster() -> None:
    assert v.why_stopped({**NODE, "is_parallelcluster": False}, require_cluster=False) == ""


PHASED = {
    "common_all_essential": {"type": "bool"},
    "common_phase": {"type": "str", "choices": ["all", "boot", "later"]},
}


def phased(monkeypatch: pytest.MonkeyPatch, **values: Any) -> tuple[list[str], dict[str, v.Plan]]:
    monkeypatch.setitem(ROLES, "common", v.Role("common", {**PHASED, "common_deferred": {"type": "list"}}))
    given = {"nccl_enabled": True, "nccl_essential": True, "nccl_tests_enabled": True, "nccl_tests_essential": False}
    pins = {"nccl_tests_sha256": {"x86_64": HASH}}
    return check(["nccl", "nccl_tests"], **{**given, **pins, "common_deferred": ["reported"], **values})


@pytest.mark.parametrize(
    ("values", "deferred"),
    [
        ({}, []),
        ({"common_phase": "later"}, []),
        ({"common_phase": "boot"}, ["nccl_tests"]),
        ({"common_phase": "boot", "common_all_essential": True}, []),
        ({"common_phase": "boot", "common_deferred": ["nccl"]}, ["nccl"]),
        ({"common_phase": "boot", "common_deferred": ["nccl", "reported"]}, ["nccl", "nccl_tests"]),
        ({"common_phase": "boot", "common_deferred": []}, []),
        ({"common_phase": "boot", "nccl_tests_enabled": False}, []),
    ],
)
def test_what_the_boot_leaves_for_later(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], deferred: list[str]
) -> None:
    errors, plans = phased(monkeypatch, **values)
    assert errors == []
    assert [name for name, plan in plans.items() if plan.deferred] == deferred
    assert not any(plan.run for plan in plans.values() if plan.deferred)
    assert {plan.reason for plan in plans.values() if plan.deferred} <= {"it comes after the boot (common_deferred)"}


@pytest.mark.parametrize("deferred", [["pull"], ["reported"]])
def test_what_does_the_deferred_is_not_deferred(monkeypatch: pytest.MonkeyPatch, deferred: list[str]) -> None:
    monkeypatch.setitem(ROLES, "common", v.Role("common", {**PHASED, "common_deferred": {"type": "list"}}))
    monkeypatch.setitem(ROLES, "pull", role("pull", retries={"type": "int"}))
    given = {"pull_enabled": True, "pull_essential": False, "common_phase": "boot", "common_deferred": deferred}
    errors, plans = check(["pull"], **given)
    assert (errors, plans["pull"].run, plans["pull"].deferred) == ([], True, False)


def test_what_is_deferred_has_to_be_a_component(monkeypatch: pytest.MonkeyPatch) -> None:
    errors, _plans = phased(monkeypatch, common_deferred=["nccl", "ncll", "reported", "common"])
    assert errors == [
        f"common_deferred: {name} is no component; needed: reported, or one of nccl, nccl_tests"
        for name in ("ncll", "common")
    ]


def test_the_variables_of_what_is_deferred_are_checked_at_the_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    errors, _plans = phased(monkeypatch, common_phase="boot", common_deferred=["nccl"], nccl_port="abc")
    assert errors == ['nccl_port is "abc"; needed: a whole number']


@pytest.mark.parametrize(
    ("mode", "node", "refused"),
    [
        ("gpu", {"gpus": {"count": 0}}, True),
        ("gpu", {}, False),
        ("gpu", {"gpus": {"count": 0}, "node_type": "head"}, False),
        ("gpu", {"gpus": {"count": 0}, "image_build": True}, False),
        ("auto", {"gpus": {"count": 0}}, False),
        ("cpu", {"gpus": {"count": 0}}, False),
    ],
)
def test_mode_gpu_wants_a_gpu(mode: str, node: dict[str, Any], refused: bool) -> None:
    assert bool(v.mode_errors(mode, {**NODE, **node})) is refused
