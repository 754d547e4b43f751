# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What hosts and groups are called. Values from tags may be anything; names never are."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, Callable

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory.nodes import MONITORING, VARIABLES, Node

# EC2's names of what a node has, as hostnames of amazon.aws.aws_ec2 take them.
_ATTRIBUTES = {
    "architecture": "architecture",
    "availability-zone": "zone",
    "dns-name": "public_dns",
    "instance-id": "instance_id",
    "instance-state-name": "state",
    "instance-type": "instance_type",
    "ip-address": "public_ip",
    "launch-time": "launch_time",
    "private-dns-name": "private_dns",
    "private-ip-address": "private_ip",
}
# A host of such a name would be more than a host.
_RESERVED = frozenset(("localhost", "127.0.0.1", "all", "ungrouped"))

Rule = Callable[[Node], str]


def safe_host_name(text: str) -> str:
    """Return a text as a host name: no pattern characters, no templates, no options, nothing that is not ASCII."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", text).lstrip("-.")


def safe_group_name(text: str) -> str:
    """Return a text as a group name, as Ansible makes them of what keyed_groups yields."""
    return re.sub(r"\W", "_", text)


def cluster_group(cluster: str) -> str:
    return safe_group_name(f"pcluster_cluster_{cluster}")


def short_id(node: Node) -> str:
    return str(node["instance_id"])[-8:]


def default_name(node: Node) -> str:
    """Return <cluster>-head, <cluster>-<pool>-<id>, <cluster>-<Slurm node> or <cluster>-<queue>-<resource>-<id>.

    A monitoring instance has its own name.
    """
    cluster = str(node["cluster"])
    if node["node_type"] == MONITORING:
        return cluster
    if node["node_type"] == "head":
        return f"{cluster}-head"
    if node["node_type"] == "login":
        return f"{cluster}-{node.get('pool') or 'login'}-{short_id(node)}"
    if node.get("slurm_node"):
        return f"{cluster}-{node['slurm_node']}"
    parts = (cluster, node.get("queue") or "compute", node.get("compute_resource"), short_id(node))
    return "-".join(part for part in parts if part)


def _tag_rule(text: str) -> Rule:
    """Read tag:Name (the tag's value) or tag:Name=Value (Name_Value where the tag has that value).

    Of several, with commas between them, the first that is there counts.
    """
    wanted = [part.partition("=") for part in text.split(",")]

    def name(node: Node) -> str:
        tags = node.get("tags", {})
        for key, equals, value in wanted:
            if not equals and tags.get(key):
                return str(tags[key])
            if equals and tags.get(key) == value:
                return f"{key}_{value}"
        return ""

    return name


def _rule(text: str, literal: bool = False) -> Rule:
    if text == "default":
        return default_name
    if text.startswith("tag:"):
        return _tag_rule(text[4:])
    key = text[9:] if text.startswith("pcluster_") else _ATTRIBUTES.get(text, "")
    if key in VARIABLES:
        return lambda node: str(node.get(key, ""))
    if literal:
        return lambda node: text
    raise Problem(
        f"hostnames: {text!r} is unknown; known are default, tag:<Name>, pcluster_<variable> and "
        f"{', '.join(sorted(_ATTRIBUTES))}"
    )


def host_name_rules(hostnames: Sequence[Any]) -> list[Rule]:
    """Return the option hostnames as functions, in the order in which they are tried."""
    rules = []
    for entry in hostnames:
        if isinstance(entry, str):
            rules.append(_rule(entry))
        elif isinstance(entry, dict) and isinstance(entry.get("name"), str):
            unknown = set(entry) - {"name", "prefix", "separator"}
            if unknown:
                names = ", ".join(sorted(map(str, unknown)))
                raise Problem(f"hostnames: {names} is unknown; known are name, prefix, separator")
            rules.append(_joined(entry))
        else:
            raise Problem(f"hostnames: {entry!r} is neither a string nor a dictionary with a name")
    return rules


def _joined(entry: dict[str, Any]) -> Rule:
    rule = _rule(entry["name"])
    if not entry.get("prefix"):
        return rule
    prefix = _rule(str(entry["prefix"]), literal=True)
    separator = str(entry.get("separator", "_"))

    def name(node: Node) -> str:
        first, last = prefix(node), rule(node)
        return f"{first}{separator}{last}" if first and last else last

    return name


def host_names(nodes: Sequence[Node], rules: Sequence[Rule], taken: Collection[str] = ()) -> list[str]:
    """Return a name for each node. Names that nodes share, or that are taken, are made unique with the instance id."""
    names = []
    for node in nodes:
        found = next((name for name in (safe_host_name(rule(node)) for rule in rules) if name), "")
        names.append(found or safe_host_name(default_name(node)) or str(node["instance_id"]))
    shared = {name for name in names if name in taken or name.lower() in _RESERVED}
    while True:
        count = Counter(names)
        shared.update(name for name in count if count[name] > 1)
        if not shared:
            return names
        # Again, because a tag may spell the very name that another node gets here.
        names = [f"{name}-{node['instance_id'][2:]}" if name in shared else name for node, name in zip(nodes, names)]
        shared = set()


def group_names(node: Node) -> list[str]:
    """Return the groups of a node, other than pcluster."""
    names = [f"pcluster_{node['node_type']}", cluster_group(node["cluster"])]
    for key in ("queue", "compute_resource", "pool"):
        if node.get(key):
            names.append(safe_group_name(f"pcluster_{key}_{node[key]}"))
    if node.get("platform"):
        names.append(f"pcluster_platform_{node['platform']}")
    if node["gpu"]:
        names.append("pcluster_gpu")
    if node["neuron"]:
        names.append("pcluster_neuron")
    if node["efa"]:
        names.append("pcluster_efa")
    return names
