# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bring a CloudFormation stack to a template, from the controller, and show what happens while it does."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.pcluster.postboot.plugins.plugin_utils import _cloudformation as cloudformation
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory_nodes import InventoryError
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory_session import (
    Credentials,
    client_maker,
    regions_of,
)

display = Display()
SPEC: dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "template": {"type": "path", "required": True},
    "parameters": {"type": "dict", "default": {}},
    "capabilities": {"type": "list", "elements": "str", "default": ["CAPABILITY_IAM"]},
    "tags": {"type": "dict", "default": {}},
    "protect": {"type": "list", "elements": "str", "default": []},
    "timeout": {"type": "int", "default": 3600},
    "poll": {"type": "float", "default": cloudformation.POLL},
    "region": {"type": "str", "default": ""},
    "profile": {"type": "str", "default": ""},
}


class ActionModule(ActionBase):
    """Deploy the stack."""

    _requires_connection = False
    _supports_check_mode = True
    _supports_diff = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run on the controller."""
        result: dict[str, Any] = super().run(tmp, task_vars or {})
        _validation, args = self.validate_argument_spec(argument_spec=SPEC)
        check = bool(self._task.check_mode)
        credentials = Credentials(profile=args["profile"])
        try:
            with open(args["template"], encoding="utf-8") as stream:
                template = stream.read()
            given = [args["region"]] if args["region"] else []
            region = regions_of(credentials, given, "observability_region is not set")[0]
            wanted = cloudformation.Wanted(
                name=args["name"],
                region=region,
                template=template,
                parameters={key: _text(value) for key, value in args["parameters"].items()},
                capabilities=args["capabilities"],
                tags={key: str(value) for key, value in args["tags"].items()},
                protect=args["protect"],
                timeout=args["timeout"],
            )
            client = client_maker(credentials, region)("cloudformation", region)
            outcome = cloudformation.Stack(client, wanted, display.display, args["poll"]).deploy(check)
        except (InventoryError, cloudformation.StackError, OSError) as error:
            return {**result, "failed": True, "msg": str(error)}
        lines = "".join(f"+ {line}\n" for line in outcome.changes)
        return {
            **result,
            "changed": bool(outcome.changes),
            "changes": outcome.changes,
            "status": outcome.status,
            "outputs": outcome.outputs,
            "region": region,
            "diff": [{"prepared": f"stack {args['name']}\n{lines}"}] if outcome.changes else [],
        }


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
