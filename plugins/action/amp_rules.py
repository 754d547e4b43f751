# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Put rules into a workspace of Amazon Managed Prometheus, from the controller. Nothing is sent to the node."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from ansible_collections.pcluster.postboot.plugins.plugin_utils import _amp, _inventory_session
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory_nodes import InventoryError


class ActionModule(ActionBase):
    """One namespace of rules."""

    _requires_connection = False
    _supports_check_mode = True
    _supports_diff = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run on the controller."""
        result: dict[str, Any] = super().run(tmp, task_vars or {})
        file = {"path": {"type": "str", "required": True}, "content": {"type": "str", "required": True}}
        _validation, args = self.validate_argument_spec(
            argument_spec={
                "workspace": {"type": "str", "required": True},
                "region": {"type": "str", "required": True},
                "namespace": {"type": "str", "required": True},
                "files": {
                    "type": "list",
                    "elements": "dict",
                    "required": True,
                    "options": {**file, "source": {"type": "str", "default": ""}},
                },
            }
        )
        workspace, region = args["workspace"], args["region"]
        if _inventory_session.boto3 is None:
            # As on a node that configures itself: somebody else puts them there, and every report says so.
            left = f"the rules of {args['workspace']} are left alone, because boto3 is not there; run site where it is"
            return {**result, "changed": False, "summary": left}
        try:
            rules = _amp.merged(args["files"])
            client = _inventory_session.client_maker(_inventory_session.Credentials(), region)("amp", region)
            outcome = _amp.put(client, workspace, args["namespace"], rules, bool(self._task.check_mode))
        except (_amp.AmpError, InventoryError) as error:
            return {**result, "failed": True, "msg": str(error)}
        except _inventory_session.AwsErrors as error:
            permission = "aps:DescribeRuleGroupsNamespace, CreateRuleGroupsNamespace and PutRuleGroupsNamespace"
            told = _inventory_session.explain(error, region, permission, f"workspace {workspace}")
            return {**result, "failed": True, "msg": str(told)}
        where = f"{workspace}: {args['namespace']}"
        diff = {"before_header": where, "after_header": where, "before": outcome.before, "after": outcome.after}
        return {**result, "changed": outcome.changed, "groups": outcome.groups, "diff": diff}
