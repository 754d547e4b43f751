# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How Ansible reaches the nodes: variables of a host where they must be, of groups where they can be."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._node.identity import os_user
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory.names import cluster_group
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory.nodes import HYPERPOD, MONITORING, Node

Variables = dict[str, Any]
ClusterKey = tuple[str, str]  # region, name: clusters of two regions may share a name

# The operating system's own, which has its package manager's bindings; a newer one beside it does not.
PYTHON = "/usr/bin/python3"

# Whom no head node has to be jumped through for.
_DIRECT = ("head", MONITORING)
KINDS = ("ssm", "ssh", "ssh_over_ssm", "ssh_via_head", "none")


@dataclass(frozen=True)
class Connection:
    kind: str = "ssh"
    address: str = "auto"
    bucket: str = ""
    timeout: int = 3600
    profile: str = ""

    def check(self) -> None:
        if self.kind == "ssm" and not self.bucket:
            raise Problem(
                "connection: ssm needs bucket, the S3 bucket through which amazon.aws.aws_ssm moves files; none is set"
            )


@dataclass
class Plan:
    """Variables of groups, and of hosts by instance id."""

    groups: dict[str, Variables] = field(default_factory=dict)
    hosts: dict[str, Variables] = field(default_factory=dict)


def address_of(node: Node, choice: str) -> str:
    private, public = node.get("private_ip", ""), node.get("public_ip", "")
    if choice == "public":
        return str(public)
    return str(public or private) if choice == "auto" else str(private)


def ssm_target(node: Node) -> str:
    """Return what Session Manager knows a node by."""
    return str(node.get("ssm_target") or node["instance_id"])


def _user(node: Node) -> str | None:
    """Return the SSH user of a node. SageMaker tells no operating system, and HyperPod's images are Ubuntu."""
    return os_user("ubuntu" if node.get("platform") == HYPERPOD else node.get("os"))


def _option(name: str, value: str) -> str:
    return "-o " + shlex.quote(f"{name}={value}")


def over_ssm(region: str, profile: str) -> str:
    """Return the ssh option that goes through the SSM agent; %h is what it knows the node by."""
    command = (
        "aws ssm start-session --target %h --document-name AWS-StartSSHSession --parameters portNumber=%p --region "
    )
    command += shlex.quote(region.replace("%", "%%"))
    if profile:
        command += " --profile " + shlex.quote(profile.replace("%", "%%"))
    return _option("ProxyCommand", command)


class Connector:
    def __init__(self, connection: Connection, heads: Mapping[ClusterKey, Node]) -> None:
        self.connection = connection
        self.heads = heads
        self.without_head: set[ClusterKey] = set()

    def own(self, node: Node) -> Variables:
        """Return what is different on every host."""
        kind = self.connection.kind
        if kind == "ssm":
            return {"ansible_aws_ssm_instance_id": ssm_target(node)}
        if kind == "ssh_over_ssm":
            return {"ansible_host": ssm_target(node)}
        if kind == "none":
            return {}
        behind = kind == "ssh_via_head" and node["node_type"] not in _DIRECT
        address = address_of(node, "private" if behind else self.connection.address)
        return {"ansible_host": address} if address else {}

    def shared(self, node: Node) -> Variables:
        """Return what hosts of the same cluster mostly have in common; None is no value."""
        connection = self.connection
        if connection.kind == "none":
            return {}
        if connection.kind == "ssm":
            return {
                "ansible_connection": "amazon.aws.aws_ssm",
                "ansible_python_interpreter": PYTHON,
                "ansible_aws_ssm_bucket_name": connection.bucket,
                "ansible_aws_ssm_region": node["region"],
                "ansible_aws_ssm_timeout": connection.timeout,
                "ansible_aws_ssm_s3_addressing_style": "virtual",
                "ansible_aws_ssm_profile": connection.profile or None,
            }
        variables: Variables = {
            "ansible_connection": "ssh",
            "ansible_python_interpreter": PYTHON,
            "ansible_user": _user(node),
        }
        if connection.kind == "ssh_over_ssm":
            variables["ansible_ssh_common_args"] = over_ssm(node["region"], connection.profile)
        elif connection.kind == "ssh_via_head":
            variables["ansible_ssh_common_args"] = "" if node["node_type"] in _DIRECT else self._jump(node)
        return variables

    def _jump(self, node: Node) -> str:
        where = (node["region"], node["cluster"])
        head = self.heads.get(where)
        address = address_of(head, self.connection.address) if head else ""
        if not head or not address:
            self.without_head.add(where)
            return ""
        user = _user(head)
        return _option("ProxyJump", f"{user}@{address}" if user else address)


def plan(
    nodes: Sequence[Node], connection: Connection, heads: Mapping[ClusterKey, Node]
) -> tuple[Plan, set[ClusterKey]]:
    """Put each variable where the fewest copies of it are needed.

    Also returns the clusters whose head node cannot be jumped through.
    """
    connector = Connector(connection, heads)
    found = Plan()
    alike: dict[tuple[str, ...], Variables] = {}
    shared = []
    for node in nodes:
        found.hosts[node["instance_id"]] = connector.own(node)
        key = (node["region"], node["cluster"], node["node_type"], node.get("os", ""), node.get("platform", ""))
        if key not in alike:
            alike[key] = connector.shared(node)
        shared.append(alike[key])
    members: dict[str, list[int]] = {}
    for number, node in enumerate(nodes):
        members.setdefault(cluster_group(node["cluster"]), []).append(number)
    for name in sorted({name for variables in alike.values() for name in variables}):
        values = {variables.get(name) for variables in alike.values()}
        if len(values) == 1:
            value = values.pop()
            if value is not None:
                found.groups.setdefault("pcluster", {})[name] = value
            continue
        for group, numbers in members.items():
            count = Counter(shared[number].get(name) for number in numbers)
            del count[None]
            if not count:
                continue
            usual, _number = max(sorted(count.items(), key=str), key=lambda entry: entry[1])
            found.groups.setdefault(group, {})[name] = usual
            for number in numbers:
                value = shared[number].get(name)
                if value is not None and value != usual:
                    found.hosts[nodes[number]["instance_id"]][name] = value
    return found, connector.without_head
