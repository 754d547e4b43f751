# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The roles of this collection: components, `common`, and the jobs, each of which has a playbook of its name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import components
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.variables import MONITORING, Role

ROLES = components.ROOT / "roles"


def for_nodes() -> list[str]:
    return sorted(path.name for path in ROLES.iterdir() if not _is_job(path.name))


def _is_job(role: str) -> bool:
    return (components.ROOT / "playbooks" / f"{role}.yml").is_file()


def read_roles(names: Iterable[str] | None = None) -> dict[str, Role]:
    """Read these roles, or all for nodes. One that cannot be read has no options: Ansible itself will say why."""
    roles = {}
    for name in for_nodes() if names is None else names:
        specs = _read(name, "meta/argument_specs.yml").get("argument_specs")
        if isinstance(specs, Mapping):
            options = (specs.get("main") or {}).get("options") or {}
            described = _described(name)
            variables = _read(name, "defaults/main.yml"), _read(name, "vars/main.yml")
            roles[name] = Role(
                name,
                options,
                *variables,
                job=_is_job(name),
                outside=MONITORING in described.nodes,
                platforms=described.platforms,
                addresses=[unit.address for unit in described.units if unit.option],
            )
    return roles


def typed(role: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return variables of a role as its specification has them: -e gives strings, for numbers and lists too."""
    specs = read_roles([role])[role].options
    given = {name: value for name, value in variables.items() if name in specs and value is not None}
    result = ArgumentSpecValidator({name: specs[name] for name in given}).validate(given)
    if result.error_messages:
        raise Problem("; ".join(" ".join(message.split()) for message in result.error_messages))
    return dict(result.validated_parameters)


def options(role: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return all variables of a role by their names without its own, typed; None is the specification's default."""
    defaults = {name: option.get("default") for name, option in read_roles([role])[role].options.items()}
    found = {**defaults, **typed(role, variables)}
    return {name[len(role) + 1 :]: value for name, value in found.items()}


def _described(role: str) -> components.Component:
    try:
        return components.component(ROLES / role)
    except (OSError, TypeError, ValueError, yaml.YAMLError):  # a role that is no component, or cannot be read
        return components.Component(role)


def _read(role: str, file: str) -> Mapping[str, Any]:
    try:
        found = components.load(ROLES / role / file)
    except (OSError, yaml.YAMLError):
        return {}
    return found if isinstance(found, Mapping) else {}


def load(loader: Any, role: str, file: str) -> dict[str, Any]:
    """Return the variables of a role's file by Ansible's own loader, which keeps templates for templates."""
    path = ROLES / role / file
    return dict(loader.load_from_file(str(path), trusted_as_template=True) or {}) if path.exists() else {}
