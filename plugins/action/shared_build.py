# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Publish a release on shared storage, and show how far its build is."""

from __future__ import annotations

import os

from ansible_collections.pcluster.postboot.plugins.module_utils._shared_build import build, steps
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import progress


class ActionModule(progress.LongAction):
    """A compiler takes minutes or hours."""

    def what(self) -> str:
        return f"{self._task.args.get('name')} {self._task.args.get('release')}"

    def logs(self) -> list[str]:
        """Return where the log of a build may be, also of another node's."""
        shared = os.path.join(str(self._task.args.get("root")), build.LOGS)
        name = f"{self._task.args.get('release')}.log"
        return [os.path.join(folder, name) for folder in (shared, steps.LOG_DIR)]
