# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Print what a cluster's configuration needs so that its nodes run a bundle. Nothing is changed."""

from __future__ import annotations

from typing import Any

from ansible import constants as C
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.pcluster.postboot.plugins.plugin_utils import _custom_actions as actions

display = Display()


class ActionModule(ActionBase):
    """Show it as text that can be copied, which a task's result is not."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run on the controller."""
        result: dict[str, Any] = super().run(tmp, task_vars or {})
        _validation, args = self.validate_argument_spec(
            argument_spec={
                "base": {"type": "str", "required": True},
                "id": {"type": "str", "default": ""},
                "sha256": {"type": "str", "default": ""},
                "account": {"type": "str", "default": ""},
                "partition": {"type": "str", "default": "aws"},
                "caller": {"type": "str", "default": ""},
                "config": {"type": "path"},
                "policies": {"type": "list", "elements": "str", "default": []},
                "login_policy": {"type": "str", "default": ""},
                "trusted_writers": {"type": "list", "elements": "str", "default": []},
                # Judged by `options`, which names the variable of the playbook.
                **{name: {"type": "raw"} for name in ("mode", "budget", "python", "defer")},
            }
        )
        release = actions.Release(
            args["base"], args["id"], args["sha256"], args["account"], args["partition"], args["caller"]
        )
        try:
            options = actions.options(args)
            wanted = actions.Wanted(options, args["policies"], args["login_policy"], args["trusted_writers"])
            config = actions.read(args["config"]) if args["config"] else None
            refusals = actions.refusals(release, wanted, config)
            if refusals:
                return {**result, "failed": True, "msg": "\n".join(refusals)}
            text = actions.render(release, wanted, config) if release.name else ""
        except actions.ConfigError as error:
            return {**result, "failed": True, "msg": str(error)}
        if text and not str(C.DEFAULT_STDOUT_CALLBACK).endswith("json"):
            display.display(f"\n{text}")
        return {**result, "changed": False, "text": text}
