# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Check the variables of the selected components on the controller. Nothing is sent to the node."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible.template import trust_as_template

from ansible_collections.pcluster.postboot.plugins.module_utils._host import lock
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import terminal, turns
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import variables as site_variables
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.roles import read_roles

# Read when this file is imported, which happens before Ansible forks: once a run, and not once for each host.
_ROLES_READ = read_roles()


class ActionModule(ActionBase):
    """Say what is wrong with the variables, and what will become of each component."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        variables = task_vars or {}
        result = super().run(tmp, variables)
        _validation, args = self.validate_argument_spec(
            argument_spec={
                "components": {"type": "list", "elements": "str"},
                "require_cluster": {"type": "bool", "default": True},
                "roles": {"type": "list", "elements": "str"},
            },
            mutually_exclusive=[("components", "roles")],
        )
        if args["roles"]:
            checker = self._checker(read_roles(args["roles"]), variables)
            checker.check_values()
            for line in checker.warnings:
                terminal.warn(line)
            why = "\n".join(checker.errors)
            return {**result, "changed": False, **({"failed": True, "msg": why} if why else {})}
        facts = variables.get("ansible_facts") or {}
        node = facts.get("pcluster") or {}
        record: dict[str, Any] = {
            "run_id": lock.Holder.of_process(os.getppid(), "push").run_id,
            "started": time.time(),
            "components": {},
        }
        result.update(changed=False, record=record)
        why = site_variables.why_stopped(node, args["require_cluster"])
        if why:
            return {**result, "failed": True, "msg": why}
        roles = _ROLES_READ
        components = args["components"]
        if components is None:
            components = _of_play(variables, roles)
        run_tags = list(variables.get("ansible_run_tags") or [])
        skip_tags = list(variables.get("ansible_skip_tags") or [])
        chosen = [name for name in components if site_variables.selected(name, run_tags, skip_tags)]
        if run_tags and not chosen and not {"always", "untagged"} & set(run_tags):
            tags = ", ".join(run_tags)
            msg = f"--tags is {tags}, which no component of this run has; needed: one of {', '.join(components)}"
            return {**result, "failed": True, "msg": msg}
        checker = self._checker(roles, variables)
        plans = checker.run(chosen, node, lambda value: bool(boolean(value, strict=False)))
        wrong = [f"{name} fails: {line}" for name, plan in plans.items() if plan.run for line in plan.errors]
        for line in [*checker.warnings, *wrong]:
            terminal.warn(line)
        if checker.errors:
            return {**result, "failed": True, "msg": "\n".join(checker.errors)}
        record["phase"] = checker.phase
        record["components"] = {name: plan.as_dict() for name, plan in plans.items()}
        record["silences"] = turns.silences(variables, {name: plan.run for name, plan in plans.items()})
        return {**result, "msg": f"{sum(plan.run for plan in plans.values())} of {len(plans)} components will run"}

    def _checker(self, roles: dict[str, site_variables.Role], variables: dict[str, Any]) -> site_variables.Checker:
        everything: dict[str, Any] = {}
        for role in roles.values():
            # Because a variable may refer to others of its role, all of them are trusted as templates.
            everything.update(_trusted(role.defaults))
            everything.update(_trusted(role.internals))
        everything.update(variables)

        def raw_of(name: str) -> Any:
            return everything[name]

        def value_of(name: str) -> Any:
            value = everything[name]
            if not site_variables.dynamic(value):
                return value
            before = self._templar.available_variables
            self._templar.available_variables = everything
            try:
                # What a user has marked as !unsafe is no template, such as one of Alertmanager's.
                return self._templar.template(value)
            except AnsibleError as error:
                raise ValueError(" ".join(str(error).split())) from error
            finally:
                self._templar.available_variables = before

        return site_variables.Checker(roles, variables, value_of, raw_of)


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
