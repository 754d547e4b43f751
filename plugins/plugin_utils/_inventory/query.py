# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which nodes are asked for: what EC2 filters itself, and what is left to filter here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.errors import some
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory.nodes import (
    MONITORING,
    NODE_TYPES,
    PARALLELCLUSTER,
    TAG_CLUSTER,
    TAG_OF_TYPE,
    TAG_OURS,
    TAG_QUEUE,
    TAG_TYPE,
    Node,
)


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Tell whether a name is one of those, or matches one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _server_patterns(patterns: Iterable[str]) -> list[str]:
    """Return patterns for EC2, which knows * and ? but no brackets; the rest is filtered here."""
    return [re.sub(r"\[[^]]{0,99}\]", "?", pattern) for pattern in patterns]


@dataclass(frozen=True)
class Query:
    regions: tuple[str, ...]
    clusters: tuple[str, ...] = ("*",)
    node_types: tuple[str, ...] = NODE_TYPES
    queues: tuple[str, ...] = ()
    states: tuple[str, ...] = ("running",)
    filters: Mapping[str, Any] = field(default_factory=dict)
    heads: bool = False  # head nodes are needed even where they are not listed
    ssm_online: bool = False
    slurm_names: bool = False
    skip_denied: bool = False
    platforms: tuple[str, ...] = (PARALLELCLUSTER,)
    hyperpod_node_types: Mapping[str, str] = field(default_factory=dict)  # by instance group

    @property
    def named(self) -> list[str]:
        """Clusters that are asked for by their very name."""
        return [cluster for cluster in self.clusters if not re.search(r"[*?\[]", cluster)]

    @property
    def told(self) -> str:
        if "*" in self.clusters:
            return "all clusters"
        return f"cluster{'s' if len(self.clusters) > 1 else ''} {some(self.clusters)}"

    @property
    def wanted(self) -> str:
        parts = [" or ".join(self.states), f"a {' or '.join(self.node_types)} node"]
        if self.queues:
            parts.append(f"of queue {' or '.join(self.queues)} (compute nodes)")
        if self.filters:
            parts.append("let through by filters")
        return ", ".join(parts)

    @property
    def of_clusters(self) -> list[str]:
        """The types of nodes of clusters that are asked for."""
        wanted = [kind for kind in NODE_TYPES if kind in self.node_types]
        return [kind for kind in NODE_TYPES if kind in wanted or (self.heads and wanted and kind == "head")]

    def questions(self) -> list[list[dict[str, Any]]]:
        """Return the filters of each call: one for the nodes of clusters, one for monitoring instances."""
        asked = [self._of_clusters()] if self.of_clusters and PARALLELCLUSTER in self.platforms else []
        asked += [[{"Name": f"tag:{TAG_OURS}", "Values": [MONITORING]}]] if MONITORING in self.node_types else []
        more = [{"Name": "instance-state-name", "Values": list(self.states)}]
        for name, values in self.filters.items():
            several = values if isinstance(values, (list, tuple)) else [values]
            more.append({"Name": str(name), "Values": [str(value) for value in several]})
        return [filters + more for filters in asked]

    def _of_clusters(self) -> list[dict[str, Any]]:
        types = self.of_clusters
        filters = [{"Name": f"tag:{TAG_CLUSTER}", "Values": _server_patterns(self.clusters)}]
        if len(types) < len(NODE_TYPES):
            filters.append({"Name": f"tag:{TAG_TYPE}", "Values": [TAG_OF_TYPE[kind] for kind in types]})
        if self.queues and types == ["compute"]:
            filters.append({"Name": f"tag:{TAG_QUEUE}", "Values": _server_patterns(self.queues)})
        return filters

    def lists(self, node: Node) -> bool:
        if node["node_type"] not in self.node_types:
            return False
        return node["node_type"] != "compute" or not self.queues or matches(node["queue"], self.queues)
