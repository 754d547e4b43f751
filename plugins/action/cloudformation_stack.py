# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bring a CloudFormation stack to a template, from the controller, and show what happens while it does."""

from __future__ import annotations

from typing import Any

from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws import cloudformation
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.session import (
    Credentials,
    client_maker,
    regions_of,
)
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import terminal
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.on_controller import OnController

SPEC: dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "template": {"type": "path", "required": True},
    "parameters": {"type": "dict", "default": {}},
    "capabilities": {"type": "list", "elements": "str", "default": ["CAPABILITY_IAM"]},
    "tags": {"type": "dict", "default": {}},
    "protect": {"type": "list", "elements": "str", "default": []},
    "in_place": {"type": "list", "elements": "str", "default": []},
    "advice": {"type": "dict", "default": {}},
    "timeout": {"type": "int", "default": 3600},
    "poll": {"type": "float", "default": cloudformation.POLL},
    "region": {"type": "str", "default": ""},
    "profile": {"type": "str", "default": ""},
}


class ActionModule(OnController):
    SPEC = SPEC

    def work(self, args: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        credentials = Credentials(profile=args["profile"])
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
            in_place=args["in_place"],
            advice=args["advice"],
            timeout=args["timeout"],
        )
        client = client_maker(credentials, region)("cloudformation", region)
        stack = cloudformation.Stack(client, wanted, terminal.say, args["poll"])
        outcome = stack.deploy(bool(self._task.check_mode))
        lines = "".join(f"+ {line}\n" for line in outcome.changes)
        return {
            "changed": bool(outcome.changes),
            "changes": outcome.changes,
            "status": outcome.status,
            "outputs": outcome.outputs,
            "region": region,
            "diff": [{"prepared": f"stack {args['name']}\n{lines}"}] if outcome.changes else [],
        }


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
