# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Have the head node verify its cluster, and show what is being done."""

from __future__ import annotations

from ansible_collections.pcluster.postboot.plugins.module_utils._host import lock
from ansible_collections.pcluster.postboot.plugins.module_utils._verify.stages import doing
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import progress


class ActionModule(progress.LongAction):
    """Jobs take minutes."""

    def what(self) -> str:
        return "verify"

    def logs(self) -> list[str]:
        return [doing(str(self._task.args.get("output") or f"{lock.STATE_DIR}/verify.json"))]
