# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the controller knows of a run: its nodes, those that are gone, and findings with the nodes that they are of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose.evidence import LEVELS, Finding

ANSWERED, SILENT, GONE = "answered", "does not answer", "gone"


@dataclass
class Node:
    """A node and its part of the archive."""

    name: str  # in the inventory; in Slurm, or the instance's id, where the node is gone
    state: str = ANSWERED
    who: dict[str, Any] = field(default_factory=dict)  # as _diagnose/node.py tells
    texts: dict[str, str] = field(default_factory=dict)  # of a node that was not asked itself
    file: str = ""  # what was fetched of it, on the controller
    files: list[dict[str, Any]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    redacted: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def cluster(self) -> str:
        return str(self.who.get("cluster") or "")

    @property
    def slurm(self) -> str:
        """The name by which people know it: that of the inventory is a head or login node's own."""
        return str(self.who.get("node") or self.name) if self.who.get("node_type") == "compute" else self.name


@dataclass
class Group:
    """A finding of one or several nodes."""

    finding: Finding
    nodes: list[Node]

    @property
    def file(self) -> str:
        """Where its line of evidence stands in the archive; nowhere where no file has it."""
        path = self.finding.file
        return f"nodes/{self.nodes[0].name}/{path}" if path and self.nodes else path


def groups(nodes: Iterable[Node]) -> list[Group]:
    """Return what stands out: the gravest first, and of those what most nodes have."""
    found: dict[tuple[str, str], Group] = {}
    for node in nodes:
        for one in node.findings:
            group = found.setdefault((one.kind, one.what), Group(one, []))
            group.nodes.append(node)
    return sorted(found.values(), key=lambda group: (LEVELS.index(group.finding.level), -len(group.nodes)))
