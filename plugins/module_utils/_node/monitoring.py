# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The monitoring instance: a machine outside of the clusters, whose identity is a file that its user data writes."""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.pcluster.postboot.plugins.module_utils._node.identity import MONITORING
from ansible_collections.pcluster.postboot.plugins.module_utils._node.tree import Tree

IDENTITY = "/etc/pcluster-postboot/node.json"
NAME = MONITORING  # what stands where a node has the name of its cluster
_KEYS = {
    "node_type": MONITORING,
    "name": r"[A-Za-z][A-Za-z0-9-]{0,59}",
    "region": r"[a-z0-9-]+",
    "vpc": r"vpc-[0-9a-f]+",
}


def identity(tree: Tree, in_cluster: bool) -> dict[str, Any]:
    """Return the facts that the file has; nothing where there is no such file, or where it says something else."""
    found = tree.mapping(IDENTITY)
    if found is None:
        return {}
    if in_cluster:
        tree.problem(f"{IDENTITY} is passed over, because this is a node of a cluster")
        return {}
    wrong = [key for key, pattern in _KEYS.items() if key in found and not re.fullmatch(pattern, str(found[key]))]
    wrong += [key for key in found if key not in _KEYS]
    wrong += [] if "node_type" in found else ["node_type"]
    if wrong:
        keys = ", ".join(sorted(wrong))
        tree.problem(f"{IDENTITY}: found {keys}; needed: node_type: {MONITORING}, and its name, region and vpc alone")
        return {}
    return {
        "node_type": MONITORING,
        "cluster": found.get("name", NAME),
        "region": found.get("region"),
        "vpc": found.get("vpc"),
        "reason": f"{IDENTITY} makes it the monitoring instance, which is in no cluster",
    }


def overridden(facts: dict[str, Any]) -> dict[str, Any]:
    """Return what follows where a variable says of a machine without that file that it is the monitoring instance."""
    if facts["node_type"] != MONITORING or facts["platform"] is not None:
        return {}
    reason = "common_node_overrides makes it the monitoring instance, which is in no cluster"
    return {"cluster": facts["cluster"] or NAME, "reason": reason}
