# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the collection needs where a playbook is started: galaxy.yml, requirements.txt and bindep.txt say so."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

REPO = Path(__file__).resolve().parents[2]
CORE = {"ansible", "jinja2", "markupsafe", "packaging", "yaml"}  # ansible-core, and what it depends on itself
OPTIONAL = {"marshmallow", "pcluster"}  # of aws-parallelcluster, which only adds to our own rules if it is installed
OURS = "ansible_collections.pcluster.postboot"
FQCN = re.compile(r"([a-z_]+\.[a-z_]+)\.[a-z_]+")


def trees() -> Iterator[ast.AST]:
    """The code of plugins. The programs that roles install are a node's, whose Python has the standard library."""
    for path in sorted((REPO / "plugins").rglob("*.py")):
        yield ast.parse(path.read_text(encoding="utf-8"), str(path))


def imported() -> set[str]:
    names: set[str] = set()
    for node in (node for tree in trees() for node in ast.walk(tree)):
        if isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return {name for name in names if not name.startswith(OURS)}


def connections() -> set[str]:
    """The connection plugins that the inventory names."""
    pairs = (
        pair
        for tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
        for pair in zip(node.keys, node.values)
    )
    return {
        value.value
        for key, value in pairs
        if isinstance(key, ast.Constant) and key.value == "ansible_connection"
        if isinstance(value, ast.Constant) and isinstance(value.value, str)
    }


def keys(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, below in value.items():
            yield str(key)
            yield from keys(below)
    elif isinstance(value, list):
        for below in value:
            yield from keys(below)


def test_galaxy_yml_names_the_collections() -> None:
    files = [path for room in ("playbooks", "roles") for path in (REPO / room).rglob("*.yml")]
    tasks = [path for path in files if path.parent.name in ("playbooks", "tasks", "handlers")]
    modules = {name for path in tasks for name in keys(yaml.safe_load(path.read_text(encoding="utf-8")))}
    named = {match[1] for name in modules | connections() if (match := FQCN.fullmatch(name))}
    named |= {".".join(name.split(".")[1:3]) for name in imported() if name.startswith("ansible_collections.")}
    galaxy = yaml.safe_load((REPO / "galaxy.yml").read_text(encoding="utf-8"))
    assert set(galaxy["dependencies"]) == named - {"ansible.builtin", "pcluster.postboot"}


def test_requirements_txt_names_the_packages() -> None:
    lines = (REPO / "requirements.txt").read_text(encoding="utf-8").splitlines()
    packages = {re.split(r"[<>=!~;\[ ]", line)[0] for line in lines if line and not line.startswith("#")}
    used = {name.split(".")[0] for name in imported()}
    assert packages == used - CORE - OPTIONAL - set(sys.stdlib_module_names) - {"__future__"}


def test_bindep_txt_names_what_the_connections_start() -> None:
    text = (REPO / "bindep.txt").read_text(encoding="utf-8")
    assert ("openssh-client " in text) == ("ssh" in connections())
    assert ("session-manager-plugin" in text) == ("amazon.aws.aws_ssm" in connections())
