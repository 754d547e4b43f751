# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Fail because another node has not published what this one needs. Nothing is sent to the node."""

from __future__ import annotations

from typing import Any

from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.on_controller import OnController


class ActionModule(OnController):
    """Return a failed result, by which the report knows whether the component is deferred."""

    SPEC = {"message": {"type": "str", "required": True}, "waits": {"type": "bool", "default": True}}

    def work(self, args: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        return {"failed": True, "msg": args["message"], "waits_for": args["message"] if args["waits"] else ""}
