# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is wrong with the variables of a run: one line each, with the name, what was found and what was needed."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._publish import variables as publish_variables
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import variables as v
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.deprecations import Deprecation, Deprecations
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.roles import options, read_roles, typed

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


_DISKS: dict[str, Any] = {
    "type": "list",
    "elements": "dict",
    "options": {
        "path": {"type": "str", "required": True},
        "size": {"type": "int"},
        "key": {"type": "str", "no_log": True, "choices": ["a"]},
        "owners": {"type": "list", "elements": "dict", "options": {"name": {"type": "str", "required": True}}},
    },
}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([{"paht": "a"}], ["x[0].paht is no key: did you mean path?"]),
        ([{"path": "a"}, {"size": 1}], ["x[1].path is not set; needed: a string"]),
        ([{"path": "a", "zzz": 1}], ["x[0].zzz is no key: needed: one of path, size, key, owners"]),
        ([{"path": "a", "size": "big", "name": "b"}], [
            "x[b].name is no key: needed: one of path, size, key, owners",
            'x[b].size is "big"; needed: a whole number',
        ]),
        ([{"path": "a", "key": "secret"}], ["x[0].key is a value that is not shown; needed: one of a"]),
        ([{"path": "a", "owners": [{}]}], ["x[0].owners[0].name is not set; needed: a string"]),
        ([{"path": "a", "size": "8", "owners": [{"name": "b"}]}], []),
    ],
)  # fmt: skip
def test_a_wrong_value_within_a_list_says_where(value: Any, says: list[str]) -> None:
    assert v.value_errors("x", value, _DISKS) == says


def test_a_wrong_value_within_a_dictionary_says_where() -> None:
    option = {"type": "dict", "options": {"size": {"type": "int"}}}
    assert v.value_errors("x", {"szie": 1}, option) == ["x.szie is no key: did you mean size?"]


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
        (
            "nlcc_tests_version",
            "nlcc_tests_version is no variable of this collection: did you mean nccl_tests_version?",
        ),
        ("ncccl_version", "ncccl_version is no variable of this collection: did you mean nccl_version?"),
        ("ncll_version", "ncll_version is no variable of this collection: did you mean nccl_version?"),
        ("nccltests_version", "nccltests_version is no variable of this collection: did you mean nccl_tests_version?"),
        ("nccl_tezts_version", "nccl_tezts_version is no variable of role nccl: did you mean nccl_tests_version?"),
    ],
)
def test_a_misspelt_name(name: str, says: str) -> None:
    (line,) = v.misspelt([name, "nccl_version", "ncclx", "nccl", "__nccl_x"], ROLES)
    assert line.startswith(says)


def test_a_long_name_of_a_role_makes_nothing_alike() -> None:
    roles = {"cluster_config": v.Role("cluster_config", {"cluster_config_os": {}, "cluster_config_queues": {}})}
    (other, slip) = v.misspelt(["cluster_config_xyzzy", "cluster_config_quues"], roles)[::-1]
    assert other.startswith("cluster_config_xyzzy is no variable of role cluster_config: see the role's README")
    assert slip == "cluster_config_quues is no variable of role cluster_config: did you mean cluster_config_queues?"


def test_names_of_something_else_are_let_be() -> None:
    assert v.misspelt(["common_packages", "nccl_zzz", "nccl_yyy_a"], ROLES, ["nccl_zzz", "nccl_yyy*"]) == []
    assert v.misspelt(["ncccl_version", "my_nccl_version", "rccl_version_x", "ubuntu_version"], ROLES, ["nccc*"]) == []


@pytest.mark.parametrize(
    ("role_name", "slips", "others"),
    [
        ("nccl", "ncll nlcc ncl ncccl nccll", "rccl oneccl nvcc"),
        ("fsx", "fxs sfx fssx", "fs efs nfs fsy"),
        ("efa", "eaf efaa", "efs efi eva ef"),
        ("pull", "pul plul pulll", "pulp poll push full pool"),
        ("docker", "dokcer doker dockerr dicker", "podman doc docking"),
        ("slurm_exporter", "slrum_exporter slurmexporter slurm_exportr", "lustre_exporter swarm_exporter slurm"),
        ("node_exporter", "nod_exporter mode_exporter noed_exporter", "process_exporter snmp_exporter"),
    ],
)
def test_a_slip_in_a_roles_name_is_told_from_another_word(role_name: str, slips: str, others: str) -> None:
    known = {role_name: role(role_name, version={"type": "str"})}
    for slip in slips.split():
        assert v.misspelt([f"{slip}_version"], known) == [
            f"{slip}_version is no variable of this collection: did you mean {role_name}_version?"
        ]
    assert v.misspelt([f"{word}_version" for word in others.split()], known) == []


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


@pytest.mark.parametrize(
    ("hash_", "fingerprints", "wrong"),
    [("", ["A" * 40], 0), ("", [], 1), (HASH, [], 0), (HASH[:-1], ["A" * 40], 1)],
)
def test_a_publisher_who_signs_needs_no_checksum(hash_: str, fingerprints: list[str], wrong: int) -> None:
    values = {"nccl_tests_enabled": True, "nccl_tests_sha256": {"x86_64": hash_}, "nccl_tests_essential": False}
    signed = {"url": "https://example.org/a.sig", "key_url": "https://example.org/a", "fingerprints": fingerprints}
    plans = check(["nccl_tests"], **values, __nccl_tests_signature=signed)[1]
    assert len(plans["nccl_tests"].errors) == wrong


def test_a_checksum_of_sources_is_one_for_all_architectures() -> None:
    assert v.pin_errors("a_sha256", {"noarch": HASH}, "aarch64") == []
    assert v.pin_errors("a_sha256", {"noarch": ""}, "aarch64")[0].startswith("a_sha256['noarch'] is not set")


def test_variables_of_a_component_that_does_not_run_are_not_looked_at() -> None:
    errors, plans = check(["nccl"], nccl_enabled=False, nccl_port="abc")
    assert errors == []
    assert (plans["nccl"].run, plans["nccl"].reason) == (False, "nccl_enabled is false")
    assert check(["nccl"], nccl_enabled=True, nccl_port="abc")[0] == ['nccl_port is "abc"; needed: a whole number']


OUTSIDE = {**NODE, "is_parallelcluster": False, "node_type": "monitoring"}


@pytest.mark.parametrize(
    ("value", "default", "refused"), [(True, True, False), (True, "{{ a }}", True), (False, "{{ a }}", False)]
)
def test_what_a_cluster_alone_can_have_is_not_for_the_monitoring_instance(
    value: Any, default: Any, refused: bool
) -> None:
    nccl = v.Role("nccl", ROLES["nccl"].options, {"nccl_enabled": default})
    eyes = v.Role("eyes", {"eyes_enabled": {"type": "bool"}}, outside=True)
    values = {"nccl_enabled": value, "eyes_enabled": True}
    checker = v.Checker({**ROLES, "nccl": nccl, "eyes": eyes}, values, values.__getitem__, values.__getitem__)
    plans = checker.run(["nccl", "eyes"], OUTSIDE, bool)
    assert (plans["nccl"].run, plans["nccl"].reason) == (False, "not for the monitoring instance")
    assert plans["eyes"].run
    line = "nccl_enabled is true, and this is the monitoring instance, which can have eyes alone; needed: nccl_enabled:"
    assert [one[: len(line)] for one in checker.errors] == ([line] if refused else [])


def test_the_monitoring_instance_has_what_its_components_say() -> None:
    found = {name for name, one in read_roles().items() if one.outside}
    assert found == {"alertmanager", "cloudwatch_agent", "grafana", "node_exporter", "prometheus"}


def test_the_monitoring_instance_is_no_node_of_a_cluster() -> None:
    assert v.why_stopped(OUTSIDE, require_cluster=True) == ""
    both = {**OUTSIDE, "is_parallelcluster": True, "cluster": "main"}
    assert v.why_stopped(both, True) == "common_node_overrides makes a node of cluster main the monitoring instance"
    nothing = {**OUTSIDE, "node_type": None, "reason": "no file"}
    assert v.why_stopped(nothing, True) == "not a ParallelCluster node, nothing was done: no file"


HYPERPOD = {**NODE, "is_parallelcluster": False, "platform": "hyperpod", "exporter_ports": [9100, 9341]}


def _on_hyperpod(name: str, **values: Any) -> tuple[list[str], v.Plan]:
    one = read_roles()[name]
    found = {**one.defaults, f"{name}_enabled": True, f"{name}_essential": False, **values}
    checker = v.Checker({name: one}, found, found.__getitem__, found.__getitem__)
    return checker.errors, checker.run([name], HYPERPOD, bool)[name]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("pyxis", "not on HyperPod: the AMI or the lifecycle scripts bring Pyxis on each node"),
        ("node_exporter", "an exporter of HyperPod itself serves port 9100"),
        ("slurm_exporter", "an exporter of HyperPod itself serves port 9341"),
    ],
)
def test_what_hyperpod_has_of_its_own_is_left_to_it(name: str, reason: str) -> None:
    errors, plan = _on_hyperpod(name)
    assert (errors, plan.run) == ([], False)
    assert plan.reason.startswith(reason)


def test_an_exporter_elsewhere_runs_beside_those_of_hyperpod() -> None:
    assert _on_hyperpod("slurm_exporter", slurm_exporter_listen_address="127.0.0.1:9342")[1].run


def test_an_address_without_a_port_is_for_the_check_of_its_values() -> None:
    assert _on_hyperpod("node_exporter", node_exporter_listen_address="localhost")[1].run


def test_hyperpod_alone_replaces_nodes_there() -> None:
    assert _on_hyperpod("node_health")[0] == []
    (line,) = _on_hyperpod("node_health", node_health_action="drain")[0]
    assert line.startswith("node_health_action is drain, and this is a node of HyperPod: HyperPod's health monitoring")


def test_a_node_of_hyperpod_is_one_of_a_cluster() -> None:
    assert v.why_stopped(HYPERPOD, require_cluster=True) == ""


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
    return check(["nccl", "nccl_tests"], **{**given, **pins, "common_deferred": ["non_essential"], **values})


@pytest.mark.parametrize(
    ("values", "deferred"),
    [
        ({}, []),
        ({"common_phase": "later"}, []),
        ({"common_phase": "boot"}, ["nccl_tests"]),
        ({"common_phase": "boot", "common_all_essential": True}, []),
        ({"common_phase": "boot", "common_deferred": ["nccl"]}, ["nccl"]),
        ({"common_phase": "boot", "common_deferred": ["nccl", "non_essential"]}, ["nccl", "nccl_tests"]),
        ({"common_phase": "boot", "common_deferred": ["reported"]}, ["nccl_tests"]),
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


@pytest.mark.parametrize("deferred", [["pull"], ["non_essential"]])
def test_what_does_the_deferred_is_not_deferred(monkeypatch: pytest.MonkeyPatch, deferred: list[str]) -> None:
    monkeypatch.setitem(ROLES, "common", v.Role("common", {**PHASED, "common_deferred": {"type": "list"}}))
    monkeypatch.setitem(ROLES, "pull", role("pull", retries={"type": "int"}))
    given = {"pull_enabled": True, "pull_essential": False, "common_phase": "boot", "common_deferred": deferred}
    errors, plans = check(["pull"], **given)
    assert (errors, plans["pull"].run, plans["pull"].deferred) == ([], True, False)


def test_what_is_deferred_has_to_be_a_component(monkeypatch: pytest.MonkeyPatch) -> None:
    errors, _plans = phased(monkeypatch, common_deferred=["nccl", "ncll", "non_essential", "reported", "common"])
    assert errors == [
        f"common_deferred: {name} is no component; needed: non_essential, or one of nccl, nccl_tests"
        for name in ("ncll", "common")
    ]


def test_the_old_name_of_the_class_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ROLES, "common", v.Role("common", PHASED))
    values = {"common_deferred": ["nccl", "reported"]}
    checker = v.Checker(ROLES, values, values.__getitem__, values.__getitem__)
    checker.run([], NODE, bool)
    line = "common_deferred: reported is called non_essential now; the old word works until 0.4.0"
    assert (checker.errors, checker.warnings) == ([], [line])


@pytest.fixture
def deprecated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table in which one variable of nccl has a new name, and two are gone, one of them another role's."""
    gone = [
        Deprecation(name, "0.2.0", "0.4.0", because="because nothing reads it; take it out")
        for name in ("nccl_versions", "elsewhere_hold")
    ]
    renamed = Deprecation("nccl_listen", "0.2.0", "0.4.0", to="nccl_port")
    monkeypatch.setattr(v, "DEPRECATED", Deprecations(variables=[*gone, renamed]))


@pytest.mark.usefixtures("deprecated")
def test_a_variable_that_is_gone_is_refused_and_a_renamed_one_is_told() -> None:
    values = {"nccl_listen": 1, "nccl_versions": 2, "elsewhere_hold": 3}
    checker = v.Checker(ROLES, values, values.__getitem__, values.__getitem__)
    checker.check_values()
    # Not as misspelt, though nccl_version is near.
    assert checker.errors == ["nccl_versions is gone since 0.2.0, because nothing reads it; take it out"]
    assert checker.warnings == ["nccl_listen is called nccl_port now; the old name works until 0.4.0"]


@pytest.mark.usefixtures("deprecated")
def test_what_is_gone_is_told_with_the_file_before_a_bundle_is_built() -> None:
    errors, warnings = publish_variables.check("vars", {"all.yml": b"{nccl_listen: 1, nccl_versions: 2}"}, ROLES)
    assert errors == ["vars/all.yml: nccl_versions is gone since 0.2.0, because nothing reads it; take it out"]
    assert warnings == ["vars/all.yml: nccl_listen is called nccl_port now; the old name works until 0.4.0"]


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


def test_strings_become_what_a_specification_has() -> None:
    given = {
        "monitoring_allowed_cidrs": "10.0.0.0/8,192.0.2.0/24",
        "monitoring_data_size": "50",
        "monitoring_vpc": None,
    }
    assert typed("monitoring", {**given, "monitoring_vpc": None}) == {
        "monitoring_allowed_cidrs": ["10.0.0.0/8", "192.0.2.0/24"],
        "monitoring_data_size": 50,
    }
    assert typed("infrastructure", {"infrastructure_nat": "no", "other": 1}) == {"infrastructure_nat": False}
    with pytest.raises(Problem, match="perhaps"):
        typed("infrastructure", {"infrastructure_nat": "perhaps"})
    found = options("status", {"status_timeout": "60", "status_interval": None})
    assert (found["timeout"], found["interval"], found["wait"]) == (60, 15, True)
