# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The one way to be an action that sends nothing to the node, as module_utils/_host/module.py is for modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.plugins.action import ActionBase

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.text import visible, visible_lines


class OnController(ActionBase):
    """Checks the arguments, does the work, and makes a failed result of a Problem or an OSError."""

    _requires_connection = False
    _supports_check_mode = True
    _supports_diff = True
    SPEC: Mapping[str, Any] = {}
    RULES: Mapping[str, Any] = {}  # such as required_if

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        variables = task_vars or {}
        result: dict[str, Any] = {**super().run(tmp, variables), "changed": False}
        _validation, args = self.validate_argument_spec(argument_spec=dict(self.SPEC), **self.RULES)
        try:
            result.update(self.work(args, variables))
        except (Problem, OSError) as error:
            return {**result, "failed": True, "msg": visible(str(error))}
        if result.get("failed"):  # Ansible prints it
            result["msg"] = visible_lines(str(result.get("msg") or ""))
        return result

    def work(self, args: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError
