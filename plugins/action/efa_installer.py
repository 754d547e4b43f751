# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Have AWS's EFA software installed, and show how far its installer is."""

from __future__ import annotations

from ansible_collections.pcluster.postboot.plugins.module_utils._efa import installer
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import progress


class ActionModule(progress.LongAction):
    """The installer takes minutes."""

    def what(self) -> str:
        return f"The installer of EFA {self._task.args.get('version')}"

    def logs(self) -> list[str]:
        return [installer.LOG]
