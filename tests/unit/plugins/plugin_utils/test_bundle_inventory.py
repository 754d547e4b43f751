# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What of the user's own groups comes along in a bundle, and what is said of the rest."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._publish import inventory as publish_inventory

Own = publish_inventory.Own
PLUGIN = "pcluster.postboot.pcluster"
GROUPS = {"heads": "pcluster_node_type == 'head'"}


def write(path: Path, **config: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump({"plugin": PLUGIN, **config}))
    return str(path)


def of(tmp_path: Path, **config: Any) -> Own:
    cluster = config.pop("cluster", None)
    return publish_inventory.read([write(tmp_path / "my.pcluster.yml", **config)], None, cluster)


def matched(own: Own, name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in own.groups)


def test_only_what_makes_groups_and_variables_comes_along(tmp_path: Path) -> None:
    keyed = [{"key": "pcluster_tags.Team", "prefix": "team", "parent_group": "teams"}]
    own = of(
        tmp_path,
        regions=["us-east-1"],
        connection="ssm",
        bucket="files",
        strict=True,
        compose={"speed": "1", "ansible_host": "pcluster_private_ip", "ansible_user": "'me'"},
        groups={**GROUPS, "fast-ones": "speed == 1"},
        keyed_groups=keyed,
        tags=["Team"],
    )
    assert own.warnings == []
    assert yaml.safe_load(own.text) == {
        "compose": {"speed": "1"},
        "groups": {**GROUPS, "fast-ones": "speed == 1"},
        "keyed_groups": keyed,
        "tags": ["Team"],
    }
    assert [name for name in ("heads", "fast_ones", "team_x", "teams") if not matched(own, name)] == []
    assert [name for name in ("teamx", "head", "webservers", "_x") if matched(own, name)] == []


@pytest.mark.parametrize("config", [{}, {"compose": {}}, {"source": "node", "groups": GROUPS}, {"plugin": "aws_ec2"}])
def test_without_groups_of_ones_own_the_inventory_stays_as_it_is(tmp_path: Path, config: dict[str, Any]) -> None:
    assert of(tmp_path, **{"groups": {}, **config}) == Own()
    assert publish_inventory.read(["host,", "/nowhere", str(tmp_path / "none.yml")], None) == Own()


@pytest.mark.parametrize(
    ("expression", "unknown"),
    [
        ("pcluster_private_ip ~ ':9100'", "pcluster_private_ip"),
        ("(pcluster_public_dns | default(pcluster_launch_time))[:3]", "pcluster_launch_time, pcluster_public_dns"),
        ("pcluster_slurm_node", "pcluster_slurm_node"),  # without slurm_names no push knows it
        ("inventory_hostname is search('x')", "inventory_hostname"),
        ("lookup('env', 'HOME')", "lookup"),
        ("pcluster_tags['parallelcluster:attributes']", "parallelcluster:attributes"),
        ("pcluster_tags.get('aws:cloudformation:stack-name', '')", "aws:cloudformation:stack-name"),
    ],
)
def test_what_a_node_does_not_know_is_left_out_and_said_once(tmp_path: Path, expression: str, unknown: str) -> None:
    own = of(
        tmp_path,
        compose={"mine": expression, "good": "pcluster_queue"},
        groups={"one": f"{expression} == 'x'", "two": "mine == 'x'", "three": "good == 'x'"},
        keyed_groups=[{"key": expression, "prefix": "four"}, {"key": "good", "parent_group": "of_{{ mine }}"}],
    )
    assert yaml.safe_load(own.text) == {"compose": {"good": "pcluster_queue"}, "groups": {"three": "good == 'x'"}}
    assert own.groups == ["three"]
    (line,) = own.warnings
    assert line == (
        f"{tmp_path}/my.pcluster.yml: left out of the node's inventory, because a node does not know what is in "
        f"brackets: compose mine ({unknown}), groups one ({unknown}), groups two (mine), "
        f"keyed_groups four ({unknown}), keyed_groups good (mine)"
    )


@pytest.mark.parametrize(
    "expression",
    [
        "true",
        "pcluster_zone == 'us-east-1a' and pcluster_state == 'running'",
        "pcluster_tags['parallelcluster:queue-name'] | default('none')",
        "pcluster_tags.items() | list | length > range(3) | length",
        "'pcluster_gpu' in group_names",
        "pcluster_version is version('3.16', '>=')",
        "no jinja {",
    ],
)
def test_what_a_node_knows_comes_along(tmp_path: Path, expression: str) -> None:
    own = of(tmp_path, groups={"one": expression})
    assert own.warnings == []
    assert yaml.safe_load(own.text) == {"groups": {"one": expression}}


def test_names_of_slurm_are_known_where_the_push_asks_for_them(tmp_path: Path) -> None:
    own = of(tmp_path, slurm_names=True, keyed_groups=[{"key": "pcluster_slurm_node", "prefix": "slurm"}])
    assert own.warnings == []
    assert matched(own, "slurm_gpu_st_p5_1")
    assert "slurm_names" not in own.text


def test_tags_that_the_cluster_does_not_have_are_told(tmp_path: Path) -> None:
    resources = [{"Name": "a", "Tags": [{"Key": "Size", "Value": "1"}]}, {"Name": "b"}]
    queue = {"Name": "q", "Tags": [{"Key": "Use", "Value": "x"}], "ComputeResources": resources}
    cluster = {"Tags": [{"Key": "Team", "Value": "x"}], "Scheduling": {"SlurmQueues": [queue, {"Name": "r"}]}}
    names = ("Team", "Use", "Size", "Name", "Owner")
    config = {
        "keyed_groups": [
            *({"key": f"pcluster_tags.{name}", "prefix": name} for name in names),
            {"key": "pcluster_tags['Cost center']", "prefix": "cost"},
            {"key": "pcluster_tags.get('Age', 'none')", "prefix": "age"},
        ]
    }
    assert of(tmp_path, **config).warnings == []
    own = of(tmp_path, cluster=cluster, **config)
    assert own.warnings == [
        f"{tmp_path}/my.pcluster.yml: Age, Cost center, Owner: no Tags of publish_config, and a node does not know "
        "tags that its instance has from elsewhere"
    ]
    assert yaml.safe_load(own.text) == config


@pytest.mark.parametrize(
    ("config", "entry", "names", "others"),
    [
        ({}, {"prefix": "a-b"}, ["a_b_x", "a_b_"], ["a_b", "a_bx"]),
        ({}, {"prefix": "p", "separator": ""}, ["px", "p"], ["q"]),
        ({}, {}, ["_x"], ["x"]),
        ({"leading_separator": False}, {}, ["x", "_x"], []),
        ({"leading_separator": False}, {"prefix": "p"}, ["p_x"], ["px"]),
        ({}, {"prefix": "p", "parent_group": "of-{{ pcluster_os }}-x"}, ["of_ubuntu_x"], ["of_ubuntu"]),
    ],
)
def test_names_of_keyed_groups(
    tmp_path: Path, config: dict[str, Any], entry: dict[str, Any], names: list[str], others: list[str]
) -> None:
    own = of(tmp_path, keyed_groups=[{"key": "pcluster_queue", **entry}], **config)
    assert [name for name in names if not matched(own, name)] == []
    assert [name for name in others if matched(own, name)] == []
    assert yaml.safe_load(own.text).get("leading_separator") == config.get("leading_separator")


def test_configurations_among_the_sources_and_beside_the_variables(tmp_path: Path) -> None:
    inventory = tmp_path / "inventory"
    path = write(inventory / "a.pcluster.yml", groups=GROUPS)
    write(inventory / "b.pcluster.yaml", clusters=["other"])  # without groups
    write(inventory / "group_vars/c.pcluster.yml", groups={"no": "true"})
    write(inventory / ".hidden/d.pcluster.yml", groups={"no": "true"})
    write(inventory / "other.yml", groups={"no": "true"})
    (inventory / "hosts").write_text("[webservers]\n")
    found = publish_inventory.read([path], None)
    assert yaml.safe_load(found.text) == {"groups": GROUPS}
    sources = (str(inventory), f"{inventory}/", path)
    assert all(publish_inventory.read([source], "") == found for source in sources)
    assert publish_inventory.read([*sources, "host,"], None) == found
    assert publish_inventory.read([], str(inventory / "group_vars")) == found
    assert publish_inventory.read([str(inventory / "hosts")], None) == Own()
    # In a folder of the folder, and the same once more.
    again = write(inventory / "more/e.pcluster.yml", groups=GROUPS, clusters=["other"])
    assert publish_inventory.read([str(inventory)], None) == found
    write(Path(again), groups={"heads": "false"})
    with pytest.raises(Problem) as failed:
        publish_inventory.read([str(inventory)], None)
    assert str(failed.value).startswith(f"{path} and {again} make different groups or variables (compose, groups, ")


def test_only_the_groups_are_read_of_a_file_with_secrets(tmp_path: Path) -> None:
    path = tmp_path / "my.pcluster.yml"
    secret = "secret_key: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  3362\n"
    path.write_text(f"plugin: {PLUGIN}\n{secret}groups: {{a: 'true'}}\n")
    own = publish_inventory.read([str(path)], None)
    assert yaml.safe_load(own.text) == {"groups": {"a": "true"}}
    path.write_text(f"plugin: {PLUGIN}\ngroups:\n  a: !vault |\n    $ANSIBLE_VAULT;1.1;AES256\n")
    with pytest.raises(Problem, match=f"{path} cannot be read: .*!vault.*; needed: plain YAML for compose, groups"):
        publish_inventory.read([str(path)], None)
    path.write_text(f"plugin: {PLUGIN}\ngroups: [a]\n")
    with pytest.raises(Problem, match=f"{path}: groups is no dict; needed: one, as for every inventory plugin"):
        publish_inventory.read([str(path)], None)
    path.write_text(f"plugin: {PLUGIN}\nkeyed_groups: [pcluster_queue]\n")
    with pytest.raises(Problem, match=f'{path}: keyed_groups has "pcluster_queue"; needed: - key: <an expression>'):
        publish_inventory.read([str(path)], None)
    path.write_text("$ANSIBLE_VAULT;1.1;AES256\n3362\n")
    with pytest.raises(Problem, match=f"{path} is encrypted as a whole; needed: its secrets alone"):
        publish_inventory.read([str(path)], None)
