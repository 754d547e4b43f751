# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Build a bundle, after what every node would refuse in its variables was looked for."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.common.validation import check_type_path
from ansible.plugins.action import ActionBase

from ansible_collections.pcluster.postboot.plugins.module_utils._bundle import archive
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._publish import custom_actions, inventory
from ansible_collections.pcluster.postboot.plugins.plugin_utils._publish import variables as publish_variables
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import terminal
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.roles import read_roles


class ActionModule(ActionBase):
    """The module does all the rest."""

    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        variables = task_vars or {}
        result: dict[str, Any] = super().run(tmp, variables)
        given = self._task.args
        folder, sources, config = given.get("group_vars"), given.get("inventories") or [], given.get("config")
        try:
            cluster = custom_actions.read(check_type_path(config)) if config else None
            own = inventory.read(sources, folder, cluster)
            found, _warnings = archive.read_variables(folder, sources, own.groups)
        except (Problem, OSError) as error:
            return {**result, "failed": True, "msg": str(error)}
        errors, warnings = publish_variables.check(found.folder, found.files, read_roles())
        if errors:
            return {**result, "failed": True, "msg": "\n".join(errors)}
        for line in (*own.warnings, *warnings):
            terminal.warn(line)
        args = {**given, "node_inventory": own.text, "node_groups": list(own.groups)}
        return {**result, **self._execute_module(module_args=args, task_vars=variables)}
