# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Print what a cluster's configuration needs so that its nodes run a bundle. Nothing is changed."""

from __future__ import annotations

from typing import Any

from ansible_collections.pcluster.postboot.plugins.plugin_utils._publish import custom_actions as actions
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import terminal
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.on_controller import OnController


class ActionModule(OnController):
    """Show it as text that can be copied, which a task's result is not."""

    SPEC = {
        "base": {"type": "str", "required": True},
        "id": {"type": "str", "default": ""},
        "sha256": {"type": "str", "default": ""},
        "account": {"type": "str", "default": ""},
        "partition": {"type": "str", "default": "aws"},
        "caller": {"type": "str", "default": ""},
        "bucket_policy": {"type": "str"},
        "config": {"type": "path"},
        "policies": {"type": "list", "elements": "str", "default": []},
        "login_policy": {"type": "str", "default": ""},
        "trusted_writers": {"type": "list", "elements": "str", "default": []},
        # Judged by `options`, which names the variable of the playbook.
        **{name: {"type": "raw"} for name in ("mode", "budget", "python", "defer")},
    }

    def work(self, args: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        names = ("base", "id", "sha256", "account", "partition", "caller", "bucket_policy")
        release = actions.Release(*(args[name] for name in names))
        options = actions.options(args)
        wanted = actions.Wanted(options, args["policies"], args["login_policy"], args["trusted_writers"])
        config = actions.read(args["config"]) if args["config"] else None
        refusals = actions.refusals(release, wanted, config)
        if refusals:
            return {"failed": True, "msg": "\n".join(refusals)}
        text = actions.render(release, wanted, config) if release.name else ""
        if text:
            terminal.say("", text)
        return {"text": text}
