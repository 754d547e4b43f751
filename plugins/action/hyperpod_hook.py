# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write the hook by which nodes of HyperPod run a bundle, and print what the cluster needs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ansible_collections.pcluster.postboot.plugins.module_utils._host import files
from ansible_collections.pcluster.postboot.plugins.plugin_utils._publish import custom_actions, hyperpod
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import terminal
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.on_controller import OnController


class ActionModule(OnController):
    SPEC = {
        "dest": {"type": "path", "required": True},
        "script": {"type": "path", "required": True},
        "bootstrap": {"type": "path", "required": True},
        "config": {"type": "path", "required": True},
        "base": {"type": "str", "required": True},
        "id": {"type": "str", "default": ""},
        "sha256": {"type": "str", "default": ""},
        "partition": {"type": "str", "default": "aws"},
        "caller": {"type": "str", "default": ""},
        "bucket_policy": {"type": "str"},
        "print": {"type": "bool", "default": False},
        # Judged by `options`, which names the variable of the playbook.
        **{name: {"type": "raw"} for name in ("mode", "budget", "python", "defer")},
    }

    def work(self, args: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        hyperpod.refuse_place(args["base"])
        options, groups = custom_actions.options(args), hyperpod.read(args["config"])
        hyperpod.described(groups)
        if not args["id"]:
            return {}
        release = custom_actions.Release(
            args["base"],
            args["id"],
            args["sha256"],
            partition=args["partition"],
            caller=args["caller"],
            bucket_policy=args["bucket_policy"],
        )
        script, bootstrap = (Path(args[name]).read_bytes() for name in ("script", "bootstrap"))
        made = hyperpod.hook(release, options, groups, script, bootstrap)
        folder = os.path.join(args["dest"], made.name)
        changed = False
        for name, text in made.files.items():
            path = os.path.join(folder, name)
            there = Path(path).read_bytes() if os.path.exists(path) else None
            if there != text:
                changed = True
                if not self._task.check_mode:
                    os.makedirs(folder, exist_ok=True)
                    files.write(path, text)
        told = hyperpod.render(release, made, groups)
        if args["print"]:
            terminal.say("", told)
        return {"changed": changed, "name": made.name, "directory": folder, "files": made.hashes, "text": told}
