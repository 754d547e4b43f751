# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether a node still boots: ParallelCluster mounts file systems and runs custom actions as a part of cloud-init.

fleet.sh asks the same in its own words, because it runs before any Python of this collection is on the node.
"""

from __future__ import annotations

import os

ROOT = os.environ.get("PCLUSTER_POSTBOOT_ROOT", "")
FOLDER = "/run/cloud-init"
RESULT = f"{FOLDER}/result.json"  # which cloud-init writes when the user data has ended, well or not


def booting() -> bool:
    """Say whether cloud-init has yet to end on this machine."""
    ended = (ROOT + RESULT, f"{ROOT}{FOLDER}/disabled")
    return os.path.isdir(ROOT + FOLDER) and not any(os.path.exists(path) for path in ended)
