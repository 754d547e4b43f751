# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The head node, and the pools of login nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config import cluster as shared
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config.cluster import Cluster
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config.draft import Entry

_HEAD = {False: "m5.2xlarge", True: "m7g.2xlarge"}  # by whether compute nodes are arm64
_LOGIN = {False: "m5.large", True: "m7g.large"}
_MOST_POOLS = 10


def head_node(cluster: Cluster) -> None:
    given, draft = cluster.given, cluster.draft
    item: Mapping[str, Any] = given.get("head_node") or {}
    where = f"{shared.PREFIX}head_node"
    draft.ask(f"{where}.instance_type", item.get("instance_type"), "HeadNode", "InstanceType")
    draft.derive(_HEAD[any(cluster.arm.values())], "HeadNode", "InstanceType")
    instance = cluster.instance(f"{where}.instance_type", str(draft.get("HeadNode", "InstanceType")))
    subnet = given.get("subnet_head")
    cluster.check_id(f"{shared.PREFIX}subnet_head", subnet, "subnet")
    draft.ask(f"{shared.PREFIX}subnet_head", subnet, "HeadNode", "Networking", "SubnetId")
    if not draft.get("HeadNode", "Networking", "SubnetId"):
        cluster.refuse(f"{shared.PREFIX}subnet_head is not set; needed: the head node's subnet")
    address = item.get("elastic_ip")
    elastic = {"true": True, "false": None}.get(str(address).lower(), address)
    draft.ask(f"{where}.elastic_ip", elastic, "HeadNode", "Networking", "ElasticIp")
    cluster.security(where, item, "HeadNode")
    draft.ask(f"{where}.ssh_key", item.get("ssh_key"), "HeadNode", "Ssh", "KeyName")
    open_to_all = cluster.ssh_access(where, item, "HeadNode")
    if open_to_all and draft.get("HeadNode", "Networking", "ElasticIp"):
        draft.notes.append(f"{where}: port 22 of its public address is open to everybody; allowed_ips closes it")
    cluster.root_volume(where, item, "head", instance.disks, "HeadNode")
    draft.ask(f"{where}.shared_storage_type", item.get("shared_storage_type"), "HeadNode", "SharedStorageType")
    cluster.check_id(f"{shared.PREFIX}head_node_policies", given.get("head_node_policies") or [], "policy")
    policies = [*(given.get("policies") or []), *(given.get("head_node_policies") or [])]
    cluster.iam(where, item, policies, "HeadNode")
    secured = (given.get("imds") or {}).get("secured")
    draft.ask(f"{shared.PREFIX}imds.secured", secured, "HeadNode", "Imds", "Secured")
    cluster.check_id(f"{where}.custom_ami", item.get("custom_ami"), "image")
    draft.ask(f"{where}.custom_ami", item.get("custom_ami"), "HeadNode", "Image", "CustomAmi")


def login_pools(cluster: Cluster) -> None:
    pools = cluster.given.get("login_pools") or []
    for name in shared.duplicates(pool["name"] for pool in pools):
        cluster.refuse(f"{shared.PREFIX}login_pools has two pools {name}; needed: a name of its own for each")
    for pool in pools:
        _login_pool(cluster, pool)
    count = len(cluster.draft.get("LoginNodes", "Pools") or [])
    if count > _MOST_POOLS:
        cluster.refuse(f"{shared.PREFIX}login_pools: {count} pools; needed: {_MOST_POOLS} at most")


def _login_pool(cluster: Cluster, pool: Mapping[str, Any]) -> None:
    given, draft = cluster.given, cluster.draft
    where = f"{shared.PREFIX}login_pools[{pool['name']}]"
    path = ("LoginNodes", "Pools", Entry("Name", pool["name"]))
    cluster.check_name(f"{where}.name", pool["name"])
    draft.ask(f"{where}.instance_type", pool.get("instance_type"), *path, "InstanceType")
    draft.derive(_LOGIN[any(cluster.arm.values())], *path, "InstanceType")
    cluster.instance(f"{where}.instance_type", str(draft.get(*path, "InstanceType")))
    count = pool.get("count")
    if count is not None and count < 0:
        cluster.refuse(f"{where}.count is {count}; needed: 0 or more")
    draft.ask(f"{where}.count", count, *path, "Count")
    draft.derive(1, *path, "Count")
    cluster.check_id(f"{where}.subnet", pool.get("subnet"), "subnet")
    draft.ask(f"{where}.subnet", [pool["subnet"]] if pool.get("subnet") else None, *path, "Networking", "SubnetIds")
    default = given.get("subnet_login") or given.get("subnet_head")
    draft.derive([default] if default else None, *path, "Networking", "SubnetIds")
    if not draft.get(*path, "Networking", "SubnetIds"):
        cluster.refuse(
            f"{where}.subnet is not set, and neither are cluster_config_subnet_login and _head; needed: a subnet"
        )
    cluster.security(where, pool, *path)
    if cluster.ssh_access(where, pool, *path):
        draft.notes.append(f"{where}: port 22 is open to everybody who reaches the subnet; allowed_ips closes it")
    grace = pool.get("grace_minutes")
    if grace is not None and not 3 <= grace <= 120:
        cluster.refuse(f"{where}.grace_minutes is {grace}; needed: 3 to 120")
    draft.ask(f"{where}.grace_minutes", grace, *path, "GracetimePeriod")
    cluster.check_id(f"{where}.custom_ami", pool.get("custom_ami"), "image")
    draft.ask(f"{where}.custom_ami", pool.get("custom_ami"), *path, "Image", "CustomAmi")
    cluster.iam(where, pool, given.get("policies") or [], *path)
