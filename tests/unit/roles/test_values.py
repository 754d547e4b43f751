# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What roles make of values that are given as text, and of values that another program would misread."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import parsers
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.roles import ROLES, read_roles

Variables = Callable[..., Callable[[str], Any]]
Complaints = Callable[..., list[str]]
COMPONENTS = read_roles()
JOBS = read_roles(path.name for path in ROLES.iterdir() if path.name not in COMPONENTS)
OPTIONS = {name: option for role in {**COMPONENTS, **JOBS}.values() for name, option in role.options.items()}


def _of_components(*kinds: str) -> list[Any]:
    return [
        pytest.param(role, name, id=name)
        for role in COMPONENTS.values()
        for name, option in role.options.items()
        if option["type"] in kinds
    ]


# What -e and an inventory in INI form give: text


@pytest.mark.parametrize(("role", "name"), _of_components("list", "dict"))
def test_no_role_goes_through_the_letters_of_a_text(role: Any, name: str) -> None:
    for text in ("arp,zfs", "arp", "", "[arp, zfs]", '{"a": 1}', "a=b"):
        (line,) = role.value_errors(name, text)
        assert line.startswith(f"{name} is ")
        assert f'-e \'{{"{name}": ' in line
        # A list of dictionaries would need the items' own keys.
        written = yaml.safe_load(line.rpartition("-e ")[2].strip("'"))[name]
        assert isinstance(written, {"list": list, "dict": dict}[OPTIONS[name]["type"]])


def test_a_list_as_text_is_one_line_that_says_how_to_write_it(complaints: Complaints) -> None:
    assert complaints("node_exporter", {}, node_exporter_collectors_disabled="arp,zfs") == [
        'node_exporter_collectors_disabled is "arp,zfs"; needed: a list of str values, such as '
        '-e \'{"node_exporter_collectors_disabled": ["arp", "zfs"]}\''
    ]
    assert complaints("prometheus", {}, prometheus_jobs=[{"name": "x", "port": 1, "node_types": "head"}]) == [
        'prometheus_jobs[x].node_types is "head"; needed: a list of one of head, login, compute, such as ["head"]'
    ]
    # What YAML gives is right.
    assert complaints("node_exporter", {}, node_exporter_collectors_disabled=["arp", "zfs"]) == []


@pytest.mark.parametrize(("role", "name"), _of_components("list", "dict", "bool", "int", "float"))
def test_a_variable_whose_lines_are_commented_out_is_no_empty_one(role: Any, name: str) -> None:
    lines = role.value_errors(name, None)
    assert lines == [] if role.defaults.get(name) is None else f"{name} is null; needed: " in lines[0]


@pytest.mark.parametrize(
    ("role", "name", "value", "needed"),
    [
        ("node_exporter", "node_exporter_efa_interval", True, "a whole number"),
        ("node_exporter", "node_exporter_efa_interval", 3.5, "a whole number"),
        ("node_exporter", "node_exporter_efa_interval", "1e3", "a whole number"),
        ("node_exporter", "node_exporter_efa_interval", "", "a whole number"),
        ("node_exporter", "node_exporter_efa_interval", "null", "a whole number"),
        ("node_health", "node_health_clock_skew", float("nan"), "a number"),
        ("node_health", "node_health_clock_skew", "inf", "a number"),
        ("node_health", "node_health_clock_skew", False, "a number"),
        ("docker", "docker_enabled", "null", "true or false"),
        ("docker", "docker_enabled", "", "true or false"),
        ("docker", "docker_version", ["29"], "a string"),
        ("docker", "docker_version", False, "a string"),
        ("docker", "docker_users", [True], "a list of str values"),
        ("docker", "docker_users", ["ada", None], "a list of str values"),
        ("dcgm", "dcgm_minimum_version", 4.1, "a string in quotes"),  # 4.10 without quotes
        ("publish", "publish_pythons", [3.1, 3.11], "a list of str values"),  # [3.10, 3.11] without quotes
        ("publish", "publish_architectures", "[x86_64]", "a list of one of x86_64, aarch64"),
        ("diagnose", "diagnose_nodes", "a, b", "a list of str values"),  # Ansible keeps the blank
        ("diagnose", "diagnose_nodes", "", "a list of str values"),
    ],
)
def test_a_value_of_another_type_is_refused(role: str, name: str, value: Any, needed: str) -> None:
    (line,) = {**COMPONENTS, **JOBS}[role].value_errors(name, value)
    assert f"; needed: {needed}" in line


@pytest.mark.parametrize(
    ("role", "name", "value"),
    [
        ("node_exporter", "node_exporter_efa_interval", "30"),
        ("node_exporter", "node_exporter_efa", "False"),
        ("node_health", "node_health_clock_skew", "0.25"),
        ("docker", "docker_version", 29),
        ("docker", "docker_version", None),
        ("publish", "publish_pythons", [3.11, "3.12"]),
        ("publish", "publish_architectures", "x86_64,aarch64"),
        ("diagnose", "diagnose_nodes", "gpu-st-p5-1,gpu-st-p5-2"),
        ("verify", "verify_nccl_environment", '{"NCCL_DEBUG": "INFO"}'),
        ("infrastructure", "infrastructure_tags", "team=ml,stage=test"),
        ("cluster_config", "cluster_config_head_node", {"elastic_ip": True}),
    ],
)
def test_a_certain_conversion_is_right(role: str, name: str, value: Any) -> None:
    assert {**COMPONENTS, **JOBS}[role].value_errors(name, value) == []


_PASSED_ON = re.compile(r"\s*(\}\}|\|\s*(default\([^()]*\)\s*\|\s*)?(bool|int|float)\b)")


def test_every_boolean_is_converted_where_a_role_reads_it(repo: Path) -> None:
    """The text "false" is true for Jinja: `-e docker_replace=false` replaced Docker. A module's option converts it."""
    names = {name for name, option in OPTIONS.items() if option["type"] == "bool"}
    read = re.compile(r"\{[{%](?:[^}%]|\}(?!\}))*?[}%]\}|^\s*(?:when|until|failed_when|changed_when):.*$", re.M)
    found = []
    for path in sorted(path for path in repo.glob("roles/*/*/**/*") if path.suffix in (".yml", ".j2")):
        text = "" if "files" in path.parts or "meta" in path.parts else path.read_text()
        for expression in read.finditer(text):
            # A name in quotes is of a message.
            bare = re.sub(r"'[^']*'", lambda quoted: " " * len(quoted[0]), expression[0])
            for word in re.finditer(r"\b\w+\b", bare):
                alone = re.fullmatch(r"\{\{-?\s*\w+(\s*\|\s*default\([^()]*\))?\s*-?\}\}", bare)
                checked = re.match(r"\s+is (not )?none", bare[word.end() :])
                if word[0] in names and not alone and not checked and not _PASSED_ON.match(bare, word.end()):
                    found.append(f"{path.relative_to(repo)}: {expression[0]}")
    assert found == []


@pytest.mark.parametrize("text", ["false", "False", "no"])
def test_false_as_text_replaces_nothing(work_out: Variables, repo: Path, text: str) -> None:
    (replaces,) = re.findall(r'replaces: "(.*)"', (repo / "roles/docker/tasks/install.yml").read_text())
    assert work_out("common docker", {}, docker_replace=text)(replaces) == []
    assert "docker.io" in work_out("common docker", {}, docker_replace="true")(replaces)


# What other programs read


@pytest.mark.parametrize(
    ("role", "given", "line"),
    [
        (
            "nccl",
            {"nccl_environment": {"NCCL_BUFFSIZE": "8M"}},
            'nccl_environment.NCCL_BUFFSIZE is "8M"; needed: a whole number without a leading zero, point or suffix, '
            "because this is read as 8",
        ),
        (
            "nccl",
            {"nccl_environment": {"NCCL_IB_TIMEOUT": "010"}},
            'nccl_environment.NCCL_IB_TIMEOUT is "010"; needed: a whole number without a leading zero, point or '
            "suffix, because this is read as 8",
        ),
        (
            "nccl",
            {"nccl_environment": {"NCCL_SOCKET_IFNAME": "^docker, lo"}},
            'nccl_environment.NCCL_SOCKET_IFNAME is "^docker, lo"; needed: names with commas between them and no '
            "blanks",
        ),
        (
            "nccl",
            {"nccl_environment": {"NCCL_DEBUG": True}},
            "nccl_environment.NCCL_DEBUG is true; needed: text in quotes",
        ),
        (
            "nccl",
            {"nccl_environment": {"NCCL_DEBUG": "INF"}},
            'nccl_environment.NCCL_DEBUG is "INF"; needed: VERSION, WARN, INFO, ABORT or TRACE',
        ),
        (
            "nccl",
            {"nccl_environment": {"NCCL_SOCKET_IFNAME": ["eth0"]}},
            'nccl_environment.NCCL_SOCKET_IFNAME is ["eth0"]; needed: text in quotes',
        ),
        ("nccl", {"nccl_environment": {"MINE": True}}, "nccl_environment.MINE is true; needed: text in quotes"),
        (
            "enroot",
            {"enroot_settings": {"ENROOT_MOUNT_HOME": 0}},
            "enroot_settings.ENROOT_MOUNT_HOME is 0; needed: true or false",
        ),
        (
            "prometheus",
            {"prometheus_memory_max": "4GB"},
            'prometheus_memory_max is "4GB"; needed: a share such as 50%, bytes such as 4G (no B behind the G), or '
            "infinity",
        ),
        (
            "prometheus",
            {"prometheus_retention_size": "10G"},
            'prometheus_retention_size is "10G"; needed: a size with its unit, such as 512MB or 10GB',
        ),
        (
            "prometheus",
            {"prometheus_retention_time": 15},
            "prometheus_retention_time is 15; needed: a duration, such as 60s, 5m or 15d",
        ),
        (
            "prometheus",
            {"prometheus_alertmanagers": ["http://alerts:9093"]},
            'prometheus_alertmanagers is "http://alerts:9093"; needed: a host and a port, such as localhost:9093',
        ),
        (
            "slurm_exporter",
            {"slurm_exporter_command_timeout": "1d"},
            'slurm_exporter_command_timeout is "1d"; needed: a duration, such as 500ms, 5s or 1m30s',
        ),
        (
            "node_exporter",
            {"node_exporter_listen_address": "9100"},
            'node_exporter_listen_address is "9100"; needed: an address and a port, such as 127.0.0.1:9100 or :9100',
        ),
        (
            "container_images",
            {"container_images_http_registries": ["http://registry:5000"]},
            'container_images_http_registries is "http://registry:5000"; needed: the host of a registry, with a port '
            "if it has one, and no http://",
        ),
        (
            "nccl_tests",
            {"nccl_tests_min_bytes": "8B"},
            'nccl_tests_min_bytes is "8B"; needed: bytes, or a size such as 128M or 16G',
        ),
        (
            "fsx",
            {"fsx_directories": [{"path": "x", "mode": 0o777}]},
            "fsx_directories[0].mode is 511; needed: an octal number in quotes, such as '0755'",
        ),
    ],
)
def test_a_value_that_its_reader_would_misread_is_refused(
    complaints: Complaints, role: str, given: dict[str, Any], line: str
) -> None:
    assert complaints(role, {}, **{f"{role}_enabled": True, **given}) == [line]


@pytest.mark.parametrize("role", [*COMPONENTS.values(), *JOBS.values()], ids=lambda role: role.name)
def test_declared_parsers_are_known_and_accept_the_defaults(role: Any, repo: Path) -> None:
    declared = role.internals.get(f"__{role.name}_parsers", {})
    assert set(declared) <= set(role.options)
    for name in role.options:
        parser, default = parsers.parser_of(name, declared), role.defaults.get(name)
        if parser and default not in (None, "") and "{{" not in str(default):
            assert parsers.problems(parser, name, default) == []


def test_what_jobs_set_is_what_their_programs_read(work_out: Variables) -> None:
    given = {"NCCL_P2P_DISABLE": True, "NCCL_NVLS_ENABLE": "false", "NCCL_BUFFSIZE": 8388608, "NCCL_NET": None}
    text = {"NCCL_P2P_DISABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_BUFFSIZE": "8388608"}
    nccl = work_out("common nccl", {"components": {"cuda": "13.0"}}, nccl_environment=given)
    assert nccl("__nccl_environment") == {"NCCL_SOCKET_IFNAME": "^docker,lo,veth", "NCCL_DEBUG": "WARN", **text}
    assert "then export NCCL_P2P_DISABLE=1; fi" in nccl("setup-nccl-env.sh.j2")
    value = work_out("common verify", {}, verify_nccl_environment=given)
    assert value("verify_nccl_environment | pcluster.postboot.environment") == text
    images = work_out("common container_images", {}, container_images_environment={"http_proxy": "x", "LIMIT": 3})
    assert images("container_images_environment | pcluster.postboot.environment") == {"http_proxy": "x", "LIMIT": "3"}


# Dictionaries whose defaults users need


@pytest.mark.parametrize(
    ("role", "public", "internal", "key", "added"),
    [
        ("nccl", "nccl_environment", "__nccl_environment", "NCCL_SOCKET_IFNAME", ("NCCL_IB_TIMEOUT", "22")),
        ("enroot", "enroot_settings", "__enroot_settings", "ENROOT_MOUNT_HOME", ("ENROOT_ALLOW_HTTP", True)),
        ("enroot", "enroot_sysctls", "__enroot_sysctls", "user.max_mnt_namespaces", ("vm.max_map_count", 9)),
        ("prometheus", "prometheus_external_labels", "__prometheus_external_labels", "cluster", ("stage", "test")),
    ],
)
def test_a_dictionary_adds_to_its_defaults(
    work_out: Variables, role: str, public: str, internal: str, key: str, added: tuple[str, Any]
) -> None:
    facts = {"region": "us-east-1", "components": {"cuda": "13.0"}}
    usual = work_out(f"common {role}", facts)(internal)
    name, value = added
    assert work_out(f"common {role}", facts, **{public: {name: value}})(internal) == {**usual, name: value}
    # A complete dictionary is the result, and null removes a name.
    assert work_out(f"common {role}", facts, **{public: usual})(internal) == usual
    without = {other: text for other, text in usual.items() if other != key}
    assert work_out(f"common {role}", facts, **{public: {key: None}})(internal) == without


def test_a_queue_and_docker_add_to_their_defaults(work_out: Variables, repo: Path) -> None:
    given = {"capacity": 9, "max_shards": None}
    value = work_out("common prometheus", {"region": "us-east-1"}, prometheus_amp_queue=given)
    written = value("__prometheus_amp_write")["queue_config"]
    assert (written["capacity"], written["sample_age_limit"], "max_shards" in written) == (9, "1h", False)
    task = yaml.safe_load((repo / "roles/docker/tasks/install.yml").read_text())[0]["pcluster.postboot.docker_config"]
    for own in ({"debug": True}, {"live-restore": None}, {"live-restore": False}):
        settings = work_out("common docker", {}, docker_daemon_config=own)(task["settings"])
        assert settings == {"live-restore": True, **own}
