# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which platform a node is of, and who the node is there: the one place that knows of more than one platform.

Another platform, such as AWS PCS, is one more module in READERS.
"""

from __future__ import annotations

from typing import Protocol

from ansible_collections.pcluster.postboot.plugins.module_utils._node import hyperpod, parallelcluster
from ansible_collections.pcluster.postboot.plugins.module_utils._node.identity import Identity
from ansible_collections.pcluster.postboot.plugins.module_utils._node.tree import Tree


class Reader(Protocol):
    """What the module of a platform has."""

    PLATFORM: str

    def inside(self, tree: Tree) -> bool:
        """Tell whether this is a node of this platform."""

    def identity(self, tree: Tree, os_name: str | None) -> Identity:
        """Return who the node is; a node whose type is not known has a `reason`."""


READERS: tuple[Reader, ...] = (parallelcluster, hyperpod)
PLATFORMS = tuple(reader.PLATFORM for reader in READERS)


def identify(tree: Tree, os_name: str | None = None) -> Identity:
    """Return who the node is. A machine of no platform is told so in ParallelCluster's words."""
    reader = next((one for one in READERS if one.inside(tree)), parallelcluster)
    return reader.identity(tree, os_name)
