# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Finds what no node knows by itself: nodes that differ from the others, and runs that were killed on this machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose.evidence import CAUSE, FAULT, NOTE, finding
from ansible_collections.pcluster.postboot.plugins.module_utils._host import document, lock
from ansible_collections.pcluster.postboot.plugins.module_utils._host.report import SHAPE
from ansible_collections.pcluster.postboot.plugins.module_utils._slurm.names import shown
from ansible_collections.pcluster.postboot.plugins.plugin_utils._diagnose.model import ANSWERED, SILENT, Node

LISTED = "gathered.json"
LOCK, REPORT = "run/pcluster-postboot/lock", "var/lib/pcluster-postboot/report.json"


def compare(nodes: Sequence[Node]) -> None:
    """Add to each node what its difference from the others tells."""
    for cluster in {node.cluster for node in nodes if node.state == ANSWERED}:
        mine = [node for node in nodes if node.state == ANSWERED and node.cluster == cluster]
        _bundles(mine)
        _versions(mine)
    for node in nodes:
        if node.state == ANSWERED:
            _killed_here(node)


def silent(node: Node, why: str, what: str = "the node does not answer") -> None:
    """Say that a node did not answer, which is a finding and no failure."""
    node.state = SILENT
    todo = "its state in EC2 and Slurm, its SSM agent or sshd; what AWS has of it is in the archive"
    node.findings.append(finding("silent", FAULT, what, why, "", todo, "node-does-not-come-up"))


def _bundles(nodes: Sequence[Node]) -> None:
    counts = Counter(node.who["bundle"] for node in nodes if node.who.get("bundle"))
    if len(counts) < 2:
        return
    head = next((node.who["bundle"] for node in nodes if node.who.get("node_type") == "head"), "")
    # Where as many nodes have one bundle as another, the head node says which one is meant.
    usual = max(counts, key=lambda bundle: (counts[bundle], bundle == head))
    for node in nodes:
        bundle = node.who.get("bundle")
        if bundle and bundle != usual:
            others = shown(one.slurm for one in nodes if one.who.get("bundle") == usual)
            what = f"another bundle than on {counts[usual]} other node{'s' if counts[usual] > 1 else ''}: {bundle}"
            todo = f"pcluster.postboot.fleet with {usual}, and CustomActions of the queue with the same bundle"
            said = f"{bundle} on {node.slurm}; {usual} on {others}"
            node.findings.append(finding("old-bundle", CAUSE, what, said, LISTED, todo, "README"))


def _versions(nodes: Sequence[Node]) -> None:
    """Find components that nodes of one type have in another version than most of them."""
    told: dict[tuple[str, str], dict[str, list[Node]]] = {}
    for node in nodes:
        report = document.fitted(_mapping(node.texts.get(REPORT, "")), SHAPE)
        for component, has in report.get("versions", {}).items():
            version = has.get("version", "")
            if version:
                key = (component, str(node.who.get("node_type")))
                told.setdefault(key, {}).setdefault(version, []).append(node)
    for (component, _type), versions in told.items():
        usual = max(versions, key=lambda version: len(versions[version]))
        for version, having in versions.items():
            for node in having if version != usual else ():
                what = f"{component} {version}, and {usual} on {len(versions[usual])} like it"
                todo = "run site, or the same bundle, on all of them"
                said = f"{component} {version} on {node.slurm}; {usual} on {shown(n.slurm for n in versions[usual])}"
                node.findings.append(finding(f"version-{component}", NOTE, what, said, REPORT, todo, "README"))


def _killed_here(node: Node) -> None:
    """Judge the holder of a node's lock where that was a run on this very machine."""
    told = _mapping(node.texts.get(LOCK, ""))
    holder = lock.Holder.from_dict(told)
    if holder.run_id and holder.alive() is False and not any(one.kind == "killed-run" for one in node.findings):
        said = f"held by {holder.mode} from {holder.user}@{holder.controller} (pid {holder.pid}), which is gone"
        what = "a run was killed, and left its lock"
        todo = "run site again: the next run from this machine takes the lock over"
        node.findings.append(finding("killed-run", CAUSE, what, said, LOCK, todo, "node-does-not-come-up"))


def _mapping(text: str) -> dict[str, Any]:
    try:
        found = document.parse(text) if text else {}
    except ValueError:
        found = {}
    return found if isinstance(found, dict) else {}


def worth_reading(names: Iterable[str]) -> list[str]:
    """Return the parts of a node's archive that are read here, too."""
    wanted = (LOCK, REPORT, LISTED, "etc/chef/dna.json")
    logs = ("clustermgtd", "slurm_resume.log")
    return [name for name in names if name in wanted or name.rpartition("/")[2] in logs or name.startswith("gone/")]
