# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write the component of EC2 Image Builder that bakes a bundle, and print what an image's configuration needs."""

from __future__ import annotations

import os
from typing import Any

from ansible_collections.pcluster.postboot.plugins.module_utils._host import files
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._publish import custom_actions, image
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import terminal
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.on_controller import OnController


class ActionModule(OnController):
    SPEC = {
        "dest": {"type": "path", "required": True},
        "script": {"type": "path", "required": True},
        "base": {"type": "str", "required": True},
        "id": {"type": "str", "default": ""},
        "sha256": {"type": "str", "default": ""},
        "account": {"type": "str", "default": ""},
        "partition": {"type": "str", "default": "aws"},
        "region": {"type": "str", "default": ""},
        "policy": {"type": "str", "default": ""},
    }

    def work(self, args: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        dest = args["dest"]
        folder = os.path.dirname(dest)
        if os.path.isdir(dest) or not os.path.isdir(folder):
            found = "a directory" if os.path.isdir(dest) else f"in {folder}, which is no directory"
            raise Problem(f"publish_image_component is {dest}, {found}; needed: a file in a directory that is there")
        if not args["id"]:
            return {"text": ""}
        release = custom_actions.Release(args["base"], args["id"], args["sha256"], args["account"], args["partition"])
        component = image.Component(release, args["region"])
        with open(args["script"], encoding="utf-8") as stream:
            document = image.document(component, stream.read())
        there = files.read(dest)
        if there != document and not self._task.check_mode:
            files.write(dest, document)
        text = image.render(component, dest, args["policy"])
        terminal.say("", text)
        return {"changed": there != document, "text": text, "diff": files.diff(dest, there or "", document)}
