# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A node of AWS ParallelCluster: what its cookbook and its node package write down."""

from __future__ import annotations

import re
import shlex
from typing import Any

from ansible_collections.pcluster.postboot.plugins.module_utils._node import storage
from ansible_collections.pcluster.postboot.plugins.module_utils._node.identity import (
    Identity,
    first,
    inner,
    node_type,
    os_user,
    text,
    truth,
)
from ansible_collections.pcluster.postboot.plugins.module_utils._node.tree import Tree

PLATFORM = "parallelcluster"
CFNCONFIG = "/etc/parallelcluster/cfnconfig"
DNA = "/etc/chef/dna.json"
NODE_SPEC = "/etc/parallelcluster/slurm_plugin/slurm_node_spec.json"
NODENAME = "/etc/parallelcluster/slurm_plugin/slurm_nodename"
BOOTSTRAPPED = "/opt/parallelcluster/.bootstrapped"


def parse_cfnconfig(content: str) -> dict[str, str | list[str]]:
    """Return the assignments of a shell-style file. Values may be bare or quoted, arrays become lists; nothing is run.

    A line that is no assignment is passed over, and of a value whose quotes do not match what is between them is taken.
    """
    values: dict[str, str | list[str]] = {}
    for line in content.splitlines():
        match = re.match(r"\s*(?:export\s+)?([A-Za-z_]\w*)=(.*)$", line, re.ASCII)
        if not match:
            continue
        key, raw = match[1], match[2].strip()
        array = re.match(r"\((.*)\)\s*(?:#.*)?$", raw)
        values[key] = _shell_words(array[1]) if array else " ".join(_shell_words(raw))
    return values


def _shell_words(raw: str) -> list[str]:
    lexer = shlex.shlex(raw, posix=True, punctuation_chars=False)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        found = []
        for word in lexer:
            # In a shell a comment starts at a word's beginning only, so a#b stays whole.
            if word.startswith("#"):
                break
            found.append(word)
        return found
    except ValueError:
        return [raw.strip("'\"")]


def inside(tree: Tree) -> bool:
    """Tell whether this is a node of this platform."""
    return tree.exists(CFNCONFIG) or tree.exists(DNA)


def identity(tree: Tree, os_name: str | None) -> Identity:
    """Return who the node is. Where ParallelCluster's files say nothing of use, `reason` says so."""
    written = tree.read(CFNCONFIG)
    config: dict[str, Any] = parse_cfnconfig(written) if written else {}
    configured = written is not None or tree.exists(CFNCONFIG)
    if written is not None and not config:
        tree.problem(f"{CFNCONFIG} holds no assignment (name=value)")
    dna = tree.mapping(DNA, required=configured) or {}
    cluster = dna.get("cluster", {})
    if not isinstance(cluster, dict) or (dna and not cluster):
        tree.problem(f"{DNA} has no object 'cluster'")
        cluster = {}
    spec = tree.mapping(NODE_SPEC) or {}
    compute = inner(spec, "compute")

    kind, reason = None, None
    spelling = first(config.get("cfn_node_type"), cluster.get("node_type"))
    if spelling:
        try:
            kind = node_type(spelling)
        except ValueError as error:
            reason = f"{CFNCONFIG}: {error}"
            tree.problem(reason)
    elif configured:
        tree.problem(f"{CFNCONFIG} has no cfn_node_type")
        reason = f"{CFNCONFIG} is there but names no cfn_node_type, and neither does {DNA}"
    else:
        reason = f"{CFNCONFIG} is not there: this is no ParallelCluster node"
    if spelling and not configured:
        tree.problem(f"{CFNCONFIG} is missing; {DNA} is used instead")
    head_ip = first(config.get("cfn_head_node_private_ip"), cluster.get("head_node_private_ip"))
    facts = {
        "node_type": kind,
        "reason": reason,
        "cluster": first(config.get("stack_name"), cluster.get("cluster_name"), cluster.get("stack_name")),
        "region": first(config.get("cfn_region"), cluster.get("region"), spec.get("region")),
        "scheduler": first(config.get("cfn_scheduler"), cluster.get("scheduler")),
        "cluster_user": first(
            config.get("cfn_cluster_user"), cluster.get("cluster_user"), os_user(os_name) if configured else None
        ),
        "head_node_ip": head_ip,
        "imds_secured": truth(cluster.get("head_node_imds_secured")),
        "instance_id": first(spec.get("instance_id"), compute.get("instance-id")),
        "instance_type": first(compute.get("instance-type")),
    }
    if kind == "compute":
        facts.update(
            queue=first(
                config.get("cfn_scheduler_queue_name"), cluster.get("scheduler_queue_name"), compute.get("queue-name")
            ),
            compute_resource=first(compute.get("compute-resource"), cluster.get("scheduler_compute_resource_name")),
            node_name=first(tree.line(NODENAME), compute.get("name")),
        )
    return Identity(
        PLATFORM,
        facts,
        storage.wanted_mounts(cluster, kind, head_ip),
        [text(config.get("cfn_ephemeral_dir")), text(cluster.get("ephemeral_dir"))],
    )


def version(tree: Tree) -> str | None:
    """Return the version of ParallelCluster."""
    marker = tree.line(BOOTSTRAPPED)
    match = re.search(r"(?<!\d)(\d+\.\d+\.\d+.*)", (marker or "").rpartition(" ")[2])
    if marker and not match:
        tree.problem(f"{BOOTSTRAPPED} says {marker[:60]!r}: expected aws-parallelcluster-cookbook-<version>")
    return match[1] if match else None
