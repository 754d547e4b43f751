# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Check the variables of the selected components on the controller. Nothing is sent to the node."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import yaml
from ansible.errors import AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible.template import trust_as_template

from ansible_collections.pcluster.postboot.plugins.module_utils import _run
from ansible_collections.pcluster.postboot.plugins.plugin_utils import _variables

_YamlLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_ROLES = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "roles")


def read_roles() -> dict[str, _variables.Role]:
    """Read the roles of this collection. One that cannot be read has no options, and Ansible itself will say why."""
    roles = {}
    for name in sorted(os.listdir(_ROLES)):
        specs = _read(name, "meta/argument_specs.yml").get("argument_specs")
        if isinstance(specs, Mapping):
            options = (specs.get("main") or {}).get("options") or {}
            roles[name] = _variables.Role(name, options, _read(name, "defaults/main.yml"), _read(name, "vars/main.yml"))
    return roles


def _read(role: str, file: str) -> Mapping[str, Any]:
    # The plain loader: Ansible's own is several times slower.
    try:
        with open(os.path.join(_ROLES, role, file), encoding="utf-8") as handle:
            found = yaml.load(handle, Loader=_YamlLoader)
    except (OSError, yaml.YAMLError):
        return {}
    return found if isinstance(found, Mapping) else {}


# Read when this file is imported, which happens before Ansible forks: once a run, and not once for each host.
_ROLES_READ = read_roles()


class ActionModule(ActionBase):
    """Say what is wrong with the variables, and what will become of each component."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run on the controller."""
        variables = task_vars or {}
        result = super().run(tmp, variables)
        _validation, args = self.validate_argument_spec(
            argument_spec={
                "components": {"type": "list", "elements": "str"},
                "require_cluster": {"type": "bool", "default": True},
            }
        )
        facts = variables.get("ansible_facts") or {}
        node = facts.get("pcluster") or {}
        record: dict[str, Any] = {
            "run_id": _run.Holder.of_process(os.getppid(), "push").run_id,
            "started": time.time(),
            "components": {},
        }
        result.update(changed=False, record=record)
        why = _variables.why_stopped(node, args["require_cluster"])
        if why:
            return {**result, "failed": True, "msg": why}
        roles = _ROLES_READ
        components = args["components"]
        if components is None:
            components = _of_play(variables, roles)
        run_tags = list(variables.get("ansible_run_tags") or [])
        skip_tags = list(variables.get("ansible_skip_tags") or [])
        chosen = [name for name in components if _variables.selected(name, run_tags, skip_tags)]
        if run_tags and not chosen and not {"always", "untagged"} & set(run_tags):
            tags = ", ".join(run_tags)
            msg = f"--tags is {tags}, and no component that is left has such a tag; there are {', '.join(components)}"
            return {**result, "failed": True, "msg": msg}
        checker = self._checker(roles, variables)
        plans = checker.run(chosen, node, lambda value: bool(boolean(value, strict=False)))
        if checker.errors:
            return {**result, "failed": True, "msg": "\n".join(checker.errors)}
        record["phase"] = checker.phase
        record["components"] = {name: plan.as_dict() for name, plan in plans.items()}
        return {**result, "msg": f"{sum(plan.run for plan in plans.values())} of {len(plans)} components will run"}

    def _checker(self, roles: dict[str, _variables.Role], variables: dict[str, Any]) -> _variables.Checker:
        everything: dict[str, Any] = {}
        for role in roles.values():
            # Also those that are worked out on the way to another one have to be taken for templates.
            everything.update(_trusted(role.defaults))
            everything.update(_trusted(role.internals))
        everything.update(variables)

        def raw_of(name: str) -> Any:
            return everything[name]

        def value_of(name: str) -> Any:
            value = everything[name]
            if not _variables.dynamic(value):
                return value
            before = self._templar.available_variables
            self._templar.available_variables = everything
            try:
                return self._templar.template(_trusted(value))
            except AnsibleError as error:
                raise ValueError(" ".join(str(error).split())) from error
            finally:
                self._templar.available_variables = before

        return _variables.Checker(roles, variables, value_of, raw_of)


def _trusted(value: Any) -> Any:
    """Return a value of a role's own files as what Ansible takes for a template."""
    if isinstance(value, str):
        return trust_as_template(value)
    if isinstance(value, Mapping):
        return {key: _trusted(inner) for key, inner in value.items()}
    return [_trusted(inner) for inner in value] if isinstance(value, list) else value


def _of_play(variables: Mapping[str, Any], roles: Mapping[str, Any]) -> list[str]:
    """Return the components whose roles the play itself names."""
    prefix = "pcluster.postboot."
    names = [str(name) for name in variables.get("ansible_play_role_names") or []]
    ours = [name[len(prefix) :] for name in names if name.startswith(prefix)]
    return [name for name in dict.fromkeys(ours) if name in roles and name != "common"]
