# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Build a bundle, after what every node would refuse in its variables was looked for."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.pcluster.postboot.plugins.action.check_variables import read_roles
from ansible_collections.pcluster.postboot.plugins.module_utils import _bundle
from ansible_collections.pcluster.postboot.plugins.plugin_utils import _bundle_variables

display = Display()


class ActionModule(ActionBase):
    """The module does all the rest."""

    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run on the controller, and then the module."""
        variables = task_vars or {}
        result: dict[str, Any] = super().run(tmp, variables)
        given = self._task.args
        try:
            found, _warnings = _bundle.read_variables(given.get("group_vars"), given.get("inventories") or [])
        except (_bundle.BundleError, OSError) as error:
            return {**result, "failed": True, "msg": str(error)}
        errors, warnings = _bundle_variables.check(found.folder, found.files, read_roles())
        if errors:
            return {**result, "failed": True, "msg": "\n".join(errors)}
        for line in warnings:
            display.warning(line)
        return {**result, **self._execute_module(task_vars=variables)}
