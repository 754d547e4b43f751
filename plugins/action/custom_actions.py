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
                "id": {"type": "str", "required": True},
                "sha256": {"type": "str", "required": True},
                "account": {"type": "str", "default": ""},
                "partition": {"type": "str", "default": "aws"},
                "config": {"type": "path"},
                "policies": {"type": "list", "elements": "str", "default": []},
                "login_policy": {"type": "str", "default": ""},
                "mode": {"type": "str", "choices": ["auto", "gpu", "cpu", "none"]},
                "budget": {"type": "int"},
                "python": {"type": "str"},
                "defer": {"type": "bool"},
                "hold": {"type": "bool"},
            }
        )
        release = actions.Release(args["base"], args["id"], args["sha256"], args["account"], args["partition"])
        wanted = actions.Wanted(_options(args), args["policies"], args["login_policy"])
        try:
            config = actions.read(args["config"]) if args["config"] else None
            text = actions.render(release, wanted, config)
        except actions.ConfigError as error:
            return {**result, "failed": True, "msg": str(error)}
        if not str(C.DEFAULT_STDOUT_CALLBACK).endswith("json"):
            display.display(f"\n{text}")
        return {**result, "changed": False, "text": text}


def _options(args: dict[str, Any]) -> dict[str, str]:
    """Return the options of bootstrap.sh that were asked for, as the strings that ParallelCluster takes."""
    given = {name: args[name] for name in ("mode", "budget", "python", "defer", "hold") if args[name] is not None}
    words = {True: "yes", False: "no"}
    return {f"--{name}": words[value] if isinstance(value, bool) else str(value) for name, value in given.items()}
