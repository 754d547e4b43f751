# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What publish finds in a user's variables before it builds a bundle of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.pcluster.postboot.plugins.action import bundle, check_variables
from ansible_collections.pcluster.postboot.plugins.plugin_utils._publish import variables as publish_variables

ROLES = check_variables.read_roles()
WRONG = "node_exporter_versoin is no variable of role node_exporter: did you mean node_exporter_version?"


def check(**files: str) -> tuple[list[str], list[str]]:
    named = {name.replace("__", "/").replace("_dot_", "."): text.encode() for name, text in files.items()}
    return publish_variables.check("/g", named, ROLES)


@pytest.mark.parametrize("name", ["all", "all_dot_yml", "all_dot_json", "pcluster_dot_yaml", "pcluster_gpu__deep__x"])
def test_a_misspelt_variable_is_named_with_its_file(name: str) -> None:
    errors, _warnings = check(**{name: '"node_exporter_versoin": "1"\n"mine": "2"\n'})
    path = f"/g/{name.replace('__', '/').replace('_dot_', '.')}"
    assert errors == [f"{path}: {WRONG}"]


def test_what_belongs_to_something_else_is_left_alone() -> None:
    variables = "docker_daily_thing: 1\nnode_exporter_version: '1'\n"
    assert len(check(pcluster_dot_yml=variables)[0]) == 1
    assert check(pcluster_dot_yml=variables, all_dot_yml="common_foreign_variables: ['docker_daily_*']\n") == ([], [])


@pytest.mark.parametrize("text", ["a: [\n", "- a\n", "a: 1\n b: 2\n"])
def test_what_is_no_yaml_is_one_line_with_its_file(text: str) -> None:
    ((line,), _warnings) = check(all_dot_yml=text)
    assert line.startswith("/g/all.yml is no YAML with variables: ")
    assert "\n" not in line
    assert "byte string" not in line


@pytest.mark.parametrize("text", ["", "---\n", "# nothing\n", "a: !vault x\nb: !other {c: 1}\n", '{\n\t"a": 1}'])
def test_what_ansible_reads_is_read(text: str) -> None:
    assert check(all_dot_yml=text) == ([], [])


@pytest.mark.parametrize(
    ("value", "used"),
    [
        ("\"{{ lookup('file', 'key.pub') }}\"", "lookup('file')"),
        ("\"{{ lookup( 'ansible.builtin.file', x) }}\"", "lookup('file')"),
        ("[{b: \"{{ query('env', 'HOME') }}\"}]", "lookup('env')"),
        ('"{{ inventory_dir }}/x{{ playbook_dir }}"', "inventory_dir, playbook_dir"),
        ("|\n  {% if lookup('pipe', 'date') %}x{% endif %}", "lookup('pipe')"),
    ],
)
def test_what_is_on_the_workstation_alone_is_warned_of(value: str, used: str) -> None:
    assert check(all_dot_yml=f"b: 1\na: {value}\n", pcluster_dot_yml="")[1] == [
        f"/g/all.yml: a uses {used}, and is worked out on each node, which has no such file or environment: "
        "put the value itself"
    ]


@pytest.mark.parametrize(
    "value",
    [
        "\"{{ lookup('vars', 'x') }}\"",
        "lookup('file', 'x')",
        '"{{ my_inventory_dirs }}"',
        "!unsafe '{{ inventory_dir }}'",
    ],
)
def test_what_a_node_knows_is_not(value: str) -> None:
    assert check(all_dot_yml=f"a: {value}\n") == ([], [])


class Action(bundle.ActionModule):
    """The action, in front of a module that only says that it was asked."""

    def __init__(self, args: dict[str, Any]) -> None:
        self._task = type("Task", (), {"args": args, "async_val": 0, "check_mode": False, "diff": False})()

    def _execute_module(self, module_args: dict[str, Any], **_more: Any) -> dict[str, Any]:
        return {"changed": True, "id": "built", "args": module_args}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(bundle.ActionBase, "run", lambda *_args: {})
    return lambda **args: Action(args).run(None, {})


def test_nothing_is_built_of_what_nodes_refuse(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(bundle.terminal.display, "warning", told.append)
    folder = tmp_path / "group_vars"
    folder.mkdir()
    variables = folder / "pcluster.yml"
    variables.write_text("node_exporter_versoin: 1\n")
    failed = {"failed": True, "msg": f"{folder}/pcluster.yml: {WRONG}"}
    assert run(group_vars=str(folder)) == failed
    assert run(inventories=[str(tmp_path)]) == failed
    assert run(group_vars="", inventories=[str(tmp_path)])["id"] == run()["id"] == "built"
    assert run(group_vars="/nowhere")["msg"].startswith("publish_group_vars is /nowhere, which is no directory")
    variables.write_text("a: '{{ inventory_dir }}'\n")
    assert told == []
    assert run(group_vars=str(folder))["id"] == "built"
    assert [line.split(" uses ")[0] for line in told] == [f"{variables}: a"]


def test_own_groups_come_along_with_their_variables(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(bundle.terminal.display, "warning", told.append)
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars/trainers.yml").write_text("node_exporter_versoin: 1\n")
    config = tmp_path / "my.pcluster.yml"
    given = {"inventories": [str(config)]}
    assert run(**given)["args"] == {**given, "node_inventory": "", "node_groups": []}
    groups = "groups: {trainers: 'pcluster_gpu', public: 'pcluster_public_ip is defined'}\n"
    config.write_text(f"plugin: pcluster.postboot.pcluster\n{groups}")
    assert run(**given) == {"failed": True, "msg": f"{tmp_path}/group_vars/trainers.yml: {WRONG}"}
    (tmp_path / "group_vars/trainers.yml").write_text("node_exporter_version: '1'\n")
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text("HeadNode: {a: b}\nScheduling: {SlurmQueues: [{Name: q}]}\n")
    result = run(**given, config=str(cluster))["args"]
    assert result == {
        **given,
        "config": str(cluster),
        **{key: result[key] for key in ("node_inventory", "node_groups")},
    }
    assert yaml.safe_load(result["node_inventory"]) == {"groups": {"trainers": "pcluster_gpu"}}
    assert result["node_groups"] == ["trainers"]
    assert [line.split(": ")[1] for line in told] == [
        "left out of the node's inventory, because a node does not know what is in brackets"
    ]
    assert run(**given, config="/nowhere.yaml")["msg"].startswith("publish_config: ")
    config.with_name("other.pcluster.yml").write_text(config.read_text().replace("gpu", "efa"))
    assert "make different groups or variables" in run(inventories=[str(tmp_path)])["msg"]
