# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A cluster's nodes as the inventory sees them: what EC2 or the node itself says, in one vocabulary."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from typing import Any

import yaml

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._node import facts as node_facts
from ansible_collections.pcluster.postboot.plugins.module_utils._node import hyperpod, parallelcluster
from ansible_collections.pcluster.postboot.plugins.module_utils._node.identity import MONITORING, inner
from ansible_collections.pcluster.postboot.plugins.module_utils._node.neuron import has_neuron
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.errors import one_line, some

# A node: plain values only, so that a cache can keep it. Its keys are the host variables without "pcluster_"; what does
# not apply to a node (the queue of a head node) is left out. "tags" has all tags of the instance. HyperPod's nodes
# alone have "platform" and "ssm_target", by which Session Manager knows the node in place of its instance id.
Node = dict[str, Any]

VARIABLES = (
    *("cluster", "node_type", "queue", "compute_resource", "pool", "slurm_node", "instance_id", "instance_type"),
    *("state", "region", "zone", "private_ip", "private_dns", "public_ip", "public_dns", "os", "architecture"),
    *("scheduler", "version", "efa", "gpu", "neuron", "launch_time", "platform", "ssm_target", "mounts"),
)
# What a node's own facts call the same.
_SAME = (
    *("cluster", "node_type", "queue", "compute_resource", "instance_id", "instance_type", "region", "architecture"),
    *("scheduler", "version"),
)
# What AWS knows of a node, and the node's own files do not tell.
EC2_ONLY = ("private_ip", "private_dns", "public_ip", "public_dns", "launch_time", "ssm_target")
NODE_TYPES = ("head", "login", "compute")
PARALLELCLUSTER, HYPERPOD = parallelcluster.PLATFORM, hyperpod.PLATFORM
TAG_OF_TYPE = {"head": "HeadNode", "login": "LoginNode", "compute": "Compute"}

# The tags of the monitoring instance, which its stack sets. TAG_NAME takes the place of the cluster's name.
TAG_OURS = "pcluster-postboot:node-type"
TAG_NAME = "pcluster-postboot:name"
TAG_OS = "pcluster-postboot:os"

TAG = "parallelcluster:"
TAG_CLUSTER = f"{TAG}cluster-name"
TAG_TYPE = f"{TAG}node-type"
TAG_QUEUE = f"{TAG}queue-name"
TAG_RESOURCE = f"{TAG}compute-resource-name"
TAG_POOLS = (f"{TAG}login-nodes-pool-name", f"{TAG}login-nodes-pool")
TAG_ATTRIBUTES = f"{TAG}attributes"
TAG_NETWORKING = f"{TAG}networking"
TAG_VERSION = f"{TAG}version"
# The tags set by ParallelCluster whose values a node can read on itself, in the order of the values in _own_tags.
OWN_TAGS = ("Name", TAG_CLUSTER, TAG_TYPE, TAG_VERSION, TAG_QUEUE, TAG_RESOURCE, *TAG_POOLS)

CLUSTER_CONFIG = "/opt/parallelcluster/shared/cluster-config.yaml"
CLUSTER_CONFIG_OF_LOGIN = "/opt/parallelcluster/shared_login_nodes/cluster-config.yaml"
CLOUD_INIT = "/run/cloud-init/instance-data.json"
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# Instance families with NVIDIA GPUs, by name: p5.48xlarge, g6e.xlarge, gr6.4xlarge, p6-b200.48xlarge. g4ad has AMD's.
_NVIDIA = re.compile(r"(p|g|gr)\d(?!ad\.)", re.ASCII)
_ARCHITECTURES = {"arm64": "aarch64"}


def has_nvidia(instance_type: str) -> bool:
    """Tell from its name whether an instance type has NVIDIA GPUs."""
    return bool(_NVIDIA.match(instance_type))


def parse_attributes(value: str) -> dict[str, str]:
    """Return what the tag "os, scheduler, version, architecture" says; an empty dictionary if it is malformed."""
    parts = [part.strip() for part in value.split(",")]
    if len(parts) != 4 or not all(parts) or not parts[2][0].isdigit():
        return {}
    os_name, scheduler, version, architecture = parts
    found = {"os": os_name, "scheduler": scheduler, "version": version}
    if architecture != "NONE":
        found["architecture"] = _ARCHITECTURES.get(architecture, architecture)
    return found


def launch_time(value: Any) -> str:
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    return re.sub(r"(\.0+)?Z$", "+00:00", str(value))


class Reader:
    """Turns the instances of one region into nodes, and keeps what was wrong with their tags."""

    def __init__(self, region: str) -> None:
        self.region = region
        self._unknown_types: dict[str, list[str]] = {}
        self._malformed: dict[str, list[str]] = {}
        self._attributes: dict[str, dict[str, str]] = {}

    def node(self, instance: dict[str, Any]) -> Node | None:
        """Return a node from an instance in the shape of boto3's answer; None when it is no node of any kind."""
        tags = {tag["Key"]: tag["Value"] for tag in instance.get("Tags", ())}
        instance_id = instance["InstanceId"]
        cluster = tags.get(TAG_CLUSTER, "")
        if cluster:
            try:
                kind = node_facts.node_type(tags.get(TAG_TYPE, ""))
            except ValueError:
                self._unknown_types.setdefault(cluster, []).append(f"{instance_id} ({tags.get(TAG_TYPE, '')!r})")
                return None
        elif tags.get(TAG_OURS) == MONITORING:
            kind, cluster = MONITORING, tags.get(TAG_NAME) or MONITORING
        else:
            return None
        instance_type = instance.get("InstanceType", "")
        architecture = instance.get("Architecture", "")
        node: Node = {
            "cluster": cluster,
            "node_type": kind,
            "instance_id": instance_id,
            "instance_type": instance_type,
            "state": instance.get("State", {}).get("Name", ""),
            "region": self.region,
            "zone": instance.get("Placement", {}).get("AvailabilityZone", ""),
            "architecture": _ARCHITECTURES.get(architecture, architecture),
            "efa": tags.get(TAG_NETWORKING, "").replace(" ", "").lower() == "efa=true",
            "gpu": has_nvidia(instance_type),
            "neuron": has_neuron(instance_type),
            "tags": tags,
        }
        if kind == "compute":
            node["queue"] = tags.get(TAG_QUEUE, "")
            node["compute_resource"] = tags.get(TAG_RESOURCE, "")
        elif kind == "login":
            node["pool"] = next((tags[key] for key in TAG_POOLS if tags.get(key)), "")
        for key, field in (
            ("private_ip", "PrivateIpAddress"),
            ("private_dns", "PrivateDnsName"),
            ("public_ip", "PublicIpAddress"),
            ("public_dns", "PublicDnsName"),
        ):
            if instance.get(field):
                node[key] = instance[field]
        if instance.get("LaunchTime"):
            node["launch_time"] = launch_time(instance["LaunchTime"])
        if kind == MONITORING:
            node.update({"os": tags[TAG_OS]} if tags.get(TAG_OS) else {})
            return node
        attributes = tags.get(TAG_ATTRIBUTES, "")
        if attributes not in self._attributes:
            self._attributes[attributes] = parse_attributes(attributes)
        if self._attributes[attributes]:
            node.update(self._attributes[attributes])
        else:
            self._malformed.setdefault(cluster, []).append(f"{instance_id} ({attributes!r})")
        return node

    def problems(self) -> list[str]:
        """Return one line for each kind of mistake and cluster."""
        lines = []
        for cluster, instances in sorted(self._unknown_types.items()):
            lines.append(
                f"{self.region}, cluster {cluster}: {len(instances)} instance(s) left out, their tag {TAG_TYPE} is "
                f"none of {', '.join(TAG_OF_TYPE.values())}: {some(instances, 3)}"
            )
        for cluster, instances in sorted(self._malformed.items()):
            lines.append(
                f"{self.region}, cluster {cluster}: {len(instances)} instance(s) without pcluster_os and "
                f"pcluster_version, their tag {TAG_ATTRIBUTES} is not 'os, scheduler, version, architecture': "
                f"{some(instances, 3)}"
            )
        return [one_line(line) for line in lines]


def local_node(root: str, warn: Callable[[str], None] | None = None) -> Node:
    """Return the node that this runs on, from its own files; raise a Problem where it is a node of no known cluster.

    With `warn`, a node of ParallelCluster also has the tags of its instance; `warn` gets what stops reading them.
    """
    tree = node_facts.Tree(root)
    facts = node_facts.read_node(root, run=lambda argv: None, tree=tree)
    if not facts["platform"]:
        raise Problem(
            f"source: node was asked for under {root}, but {facts['reason']}; "
            "use 'source: ec2' away from a cluster's nodes"
        )
    if not facts["cluster"]:
        said = {
            parallelcluster.PLATFORM: f"{parallelcluster.CFNCONFIG} under {root} names no cluster (stack_name), and "
            f"neither does {parallelcluster.DNA}",
            hyperpod.PLATFORM: f"{hyperpod.RESOURCES} under {root} names no cluster (ClusterName)",
        }
        raise Problem(said[facts["platform"]])
    compute = inner(tree.mapping(parallelcluster.NODE_SPEC), "compute")
    found = {
        "os": facts["os"]["name"],
        "state": "running",
        "zone": compute.get("availability-zone") or inner(tree.mapping(CLOUD_INIT), "v1").get("availability_zone"),
        "pool": inner(tree.mapping(parallelcluster.DNA), "cluster").get("pool_name")
        if facts["node_type"] == "login"
        else None,
        "slurm_node": facts["node_name"] if facts["node_type"] == "compute" else None,
    }
    found.update((key, facts[key]) for key in _SAME)
    node = {key: value for key, value in found.items() if value}
    node["efa"] = facts["efa"]["count"] > 0 or facts["efa"]["pci_count"] > 0
    node["gpu"] = facts["gpus"]["count"] > 0
    node["neuron"] = facts["neuron"]["devices"] > 0
    if facts["platform"] == hyperpod.PLATFORM:
        node["platform"] = hyperpod.PLATFORM
        if facts["node_type"] == "login":
            node["pool"] = facts["instance_group"]
    elif warn:
        node["tags"] = {**_own_tags(node), **_tags_of_cluster(tree, node, warn)}
    return node


def _own_tags(node: Node) -> dict[str, str]:
    kind = TAG_OF_TYPE[node["node_type"]]
    values = (kind, node["cluster"], kind, *map(node.get, ("version", "queue", "compute_resource", "pool", "pool")))
    return {name: value for name, value in zip(OWN_TAGS, values) if value}


def _tags_of_cluster(tree: node_facts.Tree, node: Node, warn: Callable[[str], None]) -> dict[str, str]:
    """Return the Tags of the cluster's configuration; a queue's override the cluster's, a compute resource's both."""
    path = CLUSTER_CONFIG_OF_LOGIN if node["node_type"] == "login" else CLUSTER_CONFIG
    text = tree.read(path, required=True)
    why = next((line for line in tree.problems if line.startswith(path)), f"{path} cannot be read")
    config: Any = None
    if text is not None:
        why = f"{path} is no cluster's configuration"
        try:
            config = yaml.load(text, Loader=_Loader)
        except yaml.YAMLError:
            why = f"{path} is no YAML"
    if not isinstance(config, dict):
        warn(f"{why}, so pcluster_tags lacks the Tags of the cluster's configuration")
        return {}
    queue = _named(inner(config, "Scheduling").get("SlurmQueues"), node.get("queue"))
    sections = (config, queue, _named(queue.get("ComputeResources"), node.get("compute_resource")))
    return {tag["Key"]: str(tag["Value"]) for section in sections for tag in section.get("Tags") or ()}


def _named(entries: Any, name: str | None) -> dict[str, Any]:
    return next((entry for entry in entries or () if entry.get("Name") == name), {})
