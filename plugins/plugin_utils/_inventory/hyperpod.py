# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Nodes of SageMaker HyperPod clusters with Slurm, as SageMaker tells of them.

Such a node is no EC2 instance of the account, so that EC2 does not know it. The shapes are those of botocore 1.44.5.
The cluster's id is the end of its ARN, and Session Manager reaches a node by sagemaker-cluster:<id>_<group>-<instance>
(awslabs/awsome-distributed-ai, 1.architectures/5.sagemaker-hyperpod/easy-ssh.sh, 95b939c).
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable

from ansible_collections.pcluster.postboot.plugins.module_utils._efa.devices import DEVICES
from ansible_collections.pcluster.postboot.plugins.module_utils._node.hyperpod import mounts_of
from ansible_collections.pcluster.postboot.plugins.module_utils._node.neuron import has_neuron
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.errors import code_of, one_line, some
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.session import ClientMaker
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory.connection import ClusterKey
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory.nodes import (
    HYPERPOD,
    Node,
    has_nvidia,
    launch_time,
)
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory.query import Query, matches

PAGE_SIZE = 100
# SlurmConfig.NodeType, in the inventory's words.
NODE_TYPES = {"Controller": "head", "Login": "login", "Compute": "compute"}
# ClusterInstanceStatus, in EC2's words. A node of another status (Failure, NotFound) is listed nowhere.
STATES = {
    "Running": "running",
    "Pending": "pending",
    "SystemUpdating": "pending",
    "DeepHealthCheckInProgress": "pending",
    "ShuttingDown": "stopping",
}
# "ip-", the private IPv4 address, and the domain of the VPC: the pattern of ClusterPrivateDnsHostname.
_HOSTNAME = re.compile(r"(ip-(\d{1,3})-(\d{1,3})-(\d{1,3})-(\d{1,3}))\.", re.ASCII)
_SILENT = (
    "the usual reasons are that the execution role of their instance group lacks ssmmessages:* (the policy "
    "AmazonSageMakerClusterInstanceRolePolicy has it), or that they have no way to the SSM endpoints"
)

Gather = Callable[[Mapping[Any, Future[Any]], str, Callable[[Any], tuple[str, str]]], dict[Any, Any]]


def list_clusters(client: Any) -> list[dict[str, Any]]:
    pages = client.get_paginator("list_clusters").paginate(PaginationConfig={"PageSize": PAGE_SIZE})
    return [cluster for page in pages for cluster in page.get("ClusterSummaries", ())]


def describe_cluster(client: Any, cluster: str) -> dict[str, Any]:
    found: dict[str, Any] = client.describe_cluster(ClusterName=cluster)
    return found


def list_nodes(client: Any, cluster: str) -> list[dict[str, Any]]:
    pages = client.get_paginator("list_cluster_nodes").paginate(
        ClusterName=cluster, PaginationConfig={"PageSize": PAGE_SIZE}
    )
    return [node for page in pages for node in page.get("ClusterNodeSummaries", ())]


def connected(client: Any, target: str) -> bool:
    """Tell whether Session Manager reaches a node."""
    return bool(client.get_connection_status(Target=target)["Status"] == "connected")


class Reader:
    """Turns what SageMaker says of one cluster into nodes, and keeps what it does not say."""

    def __init__(self, region: str, description: Mapping[str, Any], told: Mapping[str, str], slurm_names: bool) -> None:
        self.region, self.told, self.slurm_names = region, told, slurm_names
        self.cluster_id = str(description["ClusterArn"]).rpartition("/")[2]
        self.cluster = str(description.get("ClusterName") or self.cluster_id)
        self.groups = {group["InstanceGroupName"]: group for group in description["InstanceGroups"]}
        self._without_type: dict[str, int] = {}

    def node(self, summary: Mapping[str, Any]) -> Node | None:
        """Return a node; None where nobody says what it is."""
        name, instance_id = summary["InstanceGroupName"], summary["InstanceId"]
        group = self.groups.get(name, {})
        asked = group.get("SlurmConfig", {}).get("NodeType", "")
        kind = NODE_TYPES.get(asked) or self.told.get(name)
        if not kind:
            self._without_type[name] = self._without_type.get(name, 0) + 1
            return None
        status = summary["InstanceStatus"]["Status"]
        instance_type = summary["InstanceType"].removeprefix("ml.")
        interface = group.get("NetworkInterface", {}).get("InterfaceType", "")
        node: Node = {
            "platform": HYPERPOD,
            "cluster": self.cluster,
            "node_type": kind,
            "instance_id": instance_id,
            "instance_type": instance_type,
            "state": STATES.get(status, status.lower()),
            "region": self.region,
            "scheduler": "slurm",
            "efa": bool(interface) or instance_type in DEVICES,
            "gpu": has_nvidia(instance_type),
            "neuron": has_neuron(instance_type),
            "ssm_target": f"sagemaker-cluster:{self.cluster_id}_{name}-{instance_id}",
            "launch_time": launch_time(summary["LaunchTime"].astimezone(datetime.timezone.utc)),
            "tags": {},
        }
        if mounts := mounts_of(group):
            node["mounts"] = mounts
        if kind != "head":
            node["queue" if kind == "compute" else "pool"] = name
        host = summary.get("PrivateDnsHostname", "")
        if read := _HOSTNAME.match(host):
            node.update(private_dns=host, private_ip=".".join(read.groups()[1:]))
            if kind == "compute" and self.slurm_names:
                node["slurm_node"] = read[1]
        return node

    def problems(self) -> list[str]:
        if not self._without_type:
            return []
        count = sum(self._without_type.values())
        first = next(iter(self._without_type))
        return [
            one_line(
                f"{self.region}, cluster {self.cluster}: {count} node(s) left out, because the API tells no "
                f"SlurmConfig.NodeType of instance group(s) {some(self._without_type, 3)}; set hyperpod_node_types, "
                f"such as {{{first}: compute}}"
            )
        ]


class HyperPod:
    """Asks SageMaker for the nodes of clusters. A cluster with EKS has no Slurm, and is left out."""

    def __init__(self, query: Query, make_client: ClientMaker, pool: ThreadPoolExecutor, gather: Gather) -> None:
        self.query, self._client, self._pool, self._gather = query, make_client, pool, gather
        self.existing: set[str] = set()  # clusters that there are, whether asked for or not
        self.regions: list[str] = []  # that have answered
        self.warnings: list[str] = []
        clients = {region: make_client("sagemaker", region) for region in query.regions}
        self._lists = {region: pool.submit(list_clusters, client) for region, client in clients.items()}

    def nodes(self) -> list[Node]:
        """Return the nodes of clusters that are asked for, in a state that is."""
        lists = self._gather(self._lists, "sagemaker:ListClusters", lambda region: (region, self.query.told))
        self.regions = list(lists)
        keys = [(region, cluster["ClusterName"]) for region, found in lists.items() for cluster in found]
        self.existing = {name for _region, name in keys}
        wanted = [key for key in keys if matches(key[1], self.query.clusters)]
        described = self._ask(wanted, describe_cluster, "sagemaker:DescribeCluster")
        eks = [key for key in described if "Eks" in (described[key].get("Orchestrator") or {})]
        if eks:
            self.warnings.append(
                f"{some(dict.fromkeys(region for region, _name in eks))}: {len(eks)} HyperPod cluster(s) left out, "
                f"because they have EKS instead of Slurm: {some(name for _region, name in eks)}"
            )
        listed = self._ask([key for key in described if key not in eks], list_nodes, "sagemaker:ListClusterNodes")
        nodes: list[Node] = []
        for key, summaries in listed.items():
            reader = Reader(key[0], described[key], self.query.hyperpod_node_types, self.query.slurm_names)
            found = [reader.node(summary) for summary in summaries if summary.get("InstanceId")]
            nodes += [node for node in found if node and node["state"] in self.query.states]
            self.warnings += reader.problems()
        return nodes

    def _ask(self, keys: Sequence[ClusterKey], call: Callable[..., Any], permission: str) -> dict[ClusterKey, Any]:
        """Return what SageMaker says of clusters; a cluster that was deleted meanwhile is passed over."""
        calls = {key: self._pool.submit(call, self._client("sagemaker", key[0]), key[1]) for key in keys}
        there = {key: one for key, one in calls.items() if code_of(one.exception()) != "ResourceNotFound"}
        return self._gather(there, permission, lambda key: (key[0], f"HyperPod cluster {key[1]}"))

    def online(self, nodes: Sequence[Node]) -> list[Node]:
        """Return the nodes that Session Manager reaches, each asked by itself: no list of SSM's has them."""
        calls = {
            number: self._pool.submit(connected, self._client("ssm", node["region"]), node["ssm_target"])
            for number, node in enumerate(nodes)
        }

        def about(number: int) -> tuple[str, str]:
            return nodes[number]["region"], f"HyperPod cluster {nodes[number]['cluster']}"

        answers = self._gather(calls, "ssm:GetConnectionStatus", about)
        silent: dict[ClusterKey, list[str]] = {}
        for number, node in enumerate(nodes):
            if not answers.get(number):
                silent.setdefault((node["region"], node["cluster"]), []).append(node["instance_id"])
        for (region, cluster), instances in sorted(silent.items()):
            of = sum((node["region"], node["cluster"]) == (region, cluster) for node in nodes)
            self.warnings.append(
                f"{region}, cluster {cluster}: {len(instances)} of {of} node(s) left out, Session Manager does not "
                f"reach them: {some(instances)}; {_SILENT}"
            )
        return [node for number, node in enumerate(nodes) if answers.get(number)]
