# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Publish a release on shared storage, and show how far its build is."""

from __future__ import annotations

import os

from ansible_collections.pcluster.postboot.plugins.module_utils import _shared_build, _shared_build_steps
from ansible_collections.pcluster.postboot.plugins.plugin_utils import _progress


class ActionModule(_progress.LongAction):
    """A compiler takes minutes or hours."""

    def what(self) -> str:
        """Name what takes long."""
        return f"{self._task.args.get('name')} {self._task.args.get('release')}"

    def logs(self) -> list[str]:
        """Return where the log of a build may be, also of another node's."""
        shared = os.path.join(str(self._task.args.get("root")), _shared_build.LOGS)
        name = f"{self._task.args.get('release')}.log"
        return [os.path.join(folder, name) for folder in (shared, _shared_build_steps.LOG_DIR)]
