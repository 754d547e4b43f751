# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A node of SageMaker HyperPod with Slurm: what HyperPod's agents write down, and the file that `publish` adds.

docs/hyperpod.md has the source of each fact.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.pcluster.postboot.plugins.module_utils._host import document
from ansible_collections.pcluster.postboot.plugins.module_utils._node.identity import (
    Identity,
    first,
    inner,
    node_type,
    os_user,
)
from ansible_collections.pcluster.postboot.plugins.module_utils._node.tree import Tree

PLATFORM = "hyperpod"
RESOURCES = "/opt/ml/config/resource_config.json"
# HyperPod's own copy, and the one that our hook keeps of the file beside the lifecycle scripts.
PARAMETERS = ("/opt/ml/config/provisioning_parameters.json", "/etc/pcluster-postboot/provisioning_parameters.json")
# What `publish` knows of the instance groups: the API tells the types of nodes, and no file of HyperPod's does.
GROUPS = "/etc/pcluster-postboot/hyperpod.json"
ROUTES = "/proc/net/fib_trie"
# By its configuration HyperPod's own collector scrapes the exporters that the cluster's owner has switched on.
COLLECTOR = "/etc/otel/config.yaml"
SOCKETS = ("/proc/net/tcp", "/proc/net/tcp6")
# The ports on which dashboards for HyperPod expect exporters, each with our own unit and what that alone has in it:
# units of others have such names, too. What is on 9109 elsewhere is part of our node_exporter.
EXPORTERS = {
    9100: ("node_exporter", "/usr/local/bin/node_exporter"),
    9109: ("", ""),
    9341: ("slurm_exporter", "/usr/local/bin/slurm_exporter"),
    9400: ("nvidia-dcgm-exporter", "/etc/dcgm-exporter/pcluster-postboot.csv"),
}
# Where the AMI's prolog and the one of lifecycle scripts note the jobs of each GPU.
GPU_JOBS = {
    "/opt/slurm/etc/prolog.d/700_dcgm_job_map_register.sh": "/run/slurm/dcgm-job-mapping",
    "/opt/slurm/etc/scripts/prolog.sh": "/run/slurm/dcgm_job_mapping",
}
_UNITS = "/etc/systemd/system"
_RESOURCES = {
    "ClusterType": str,
    "ClusterConfig": {"ClusterName": str, "ClusterArn": str},
    "SlurmConfig": {"PrimaryControllerIp": str},
    "InstanceGroups": [
        {"Name": str, "InstanceType": str, "Instances": [{"InstanceId": str, "CustomerIpAddress": str}]}
    ],
}
_LUSTRE, _OPENZFS = "/fsx", "/home"  # where the API's MountPath is left out
_LISTENS = re.compile(r"^ *\d+: [0-9A-F]+:([0-9A-F]{4}) [0-9A-F]+:[0-9A-F]{4} 0A ", re.MULTILINE)


def inside(tree: Tree) -> bool:
    """Tell whether this is a node of this platform."""
    return tree.exists(RESOURCES)


def identity(tree: Tree, os_name: str | None) -> Identity:
    """Return who the node is, by its address in the list of the cluster's instances."""
    config = document.fitted(tree.mapping(RESOURCES, required=True), _RESOURCES)
    cluster, slurm = inner(config, "ClusterConfig"), inner(config, "SlurmConfig")
    arn = (first(cluster.get("ClusterArn")) or "").split(":")
    facts: dict[str, Any] = {
        "cluster": first(cluster.get("ClusterName"), arn[-1].rpartition("/")[2]),
        "region": first(arn[3]) if len(arn) > 3 else None,
        "scheduler": "slurm",
        "cluster_user": os_user(os_name),
        "exporter_ports": exporter_ports(tree),
        "gpu_jobs_dir": _gpu_jobs_dir(tree),
    }
    group, instance = _found(tree, config)
    name = first(group.get("Name"))
    facts["instance_group"] = name
    facts["instance_id"] = first(instance.get("InstanceId"))
    facts["instance_type"] = _instance_type(group)
    address = first(instance.get("CustomerIpAddress"))
    facts["node_name"] = _node_name(address)
    published = inner(inner(tree.mapping(GROUPS), "groups"), name or "")
    parameters = document.fitted(next(filter(None, map(tree.mapping, PARAMETERS)), {}), {document.ANY: str})
    facts["node_type"], facts["reason"] = _node_type(tree, config, name, published, parameters)
    if facts["node_type"] == "compute":
        facts["queue"] = name
    controller = first(slurm.get("PrimaryControllerIp"), *_controllers(config, parameters))
    if address != controller:
        facts["head_node_ip"] = controller
    if address and address == controller:  # the copies of other nodes may be old
        facts["instance_types"] = _instance_types(config)
    return Identity(
        PLATFORM,
        facts,
        _mounts(published, parameters),
        ["/opt/dlami/nvme", "/opt/sagemaker"],
        # A list that does not have the primary controller says nothing of the others.
        backup=address != controller and controller in _addresses(group),
    )


def mounts_of(group: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the file systems of an instance group, as SageMaker's API describes them."""
    mounts = []
    for storage in group.get("InstanceStorageConfigs") or ():
        if lustre := storage.get("FsxLustreConfig"):
            source = f"{lustre['DnsName']}@tcp:/{lustre['MountName']}"
            mounts.append({"path": lustre.get("MountPath") or _LUSTRE, "type": "lustre", "source": source})
        if openzfs := storage.get("FsxOpenZfsConfig"):
            path, source = openzfs.get("MountPath") or _OPENZFS, f"{openzfs['DnsName']}:/fsx"
            mounts.append({"path": path, "type": "nfs", "source": source})
    return mounts


def exporter_ports(tree: Tree) -> list[int]:
    """Return the ports of exporters that are not ours: those that HyperPod's collector scrapes, and those in use."""
    scraped = set(map(int, re.findall(r"\blocalhost:(\d+)", tree.read(COLLECTOR) or "")))
    sockets = "".join(tree.read(path) or "" for path in SOCKETS)
    listening = {int(port, 16) for port in _LISTENS.findall(sockets)}
    return [
        port
        for port, (unit, mark) in EXPORTERS.items()
        if port in scraped | listening and not (unit and mark in (tree.read(f"{_UNITS}/{unit}.service") or ""))
    ]


def _gpu_jobs_dir(tree: Tree) -> str | None:
    """Return where a prolog that is not ours notes which job has which GPU."""
    return next((folder for prolog, folder in GPU_JOBS.items() if tree.exists(prolog)), None)


def _found(tree: Tree, config: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return this node's instance group and instance; both are empty where the list has none of its addresses."""
    mine = set(re.findall(r"^ *\|-- ([\d.]+)(?:\n +/\d+ .*)*?\n +/32 host LOCAL", tree.read(ROUTES) or "", re.M))
    for group in config.get("InstanceGroups", []):
        for instance in group.get("Instances", []):
            if instance.get("CustomerIpAddress") in mine:
                return group, instance
    return {}, {}


def _node_type(
    tree: Tree, config: dict[str, Any], group: str | None, published: dict[str, Any], parameters: dict[str, Any]
) -> tuple[str | None, str | None]:
    """Return the node's type, or why it is not known. What a group is called says nothing."""
    orchestrator = first(config.get("ClusterType")) or "Slurm"
    if orchestrator != "Slurm":
        return None, f"{RESOURCES} says ClusterType {orchestrator}; needed: a HyperPod cluster with Slurm"
    if group is None:
        why = f"{RESOURCES} has no instance with an address of this node (CustomerIpAddress)"
        tree.problem(why)
        return None, why
    told = first(published.get("node_type"))
    if told:
        try:
            return node_type(told), None
        except ValueError as error:
            why = f"{GROUPS}, instance group {group}: {error}"
            tree.problem(why)
            return None, why
    if parameters.get("controller_group"):
        kinds = {parameters.get("login_group"): "login", parameters["controller_group"]: "head"}
        return kinds.get(group, "compute"), None
    return None, (
        f"nothing tells the type of instance group {group}: {GROUPS} does not have it, and there is no "
        f"{PARAMETERS[0]}; needed: the hook that publish writes with publish_hyperpod"
    )


def _instance_type(group: dict[str, Any]) -> str | None:
    return re.sub(r"^ml\.", "", first(group.get("InstanceType")) or "") or None


def _node_name(address: str | None) -> str | None:
    """Return what Slurm calls the node of an address."""
    return "ip-" + address.replace(".", "-") if address else None


def _instance_types(config: dict[str, Any]) -> dict[str, str]:
    """Return the instance type of each node, by its name in Slurm, whose features of nodes do not tell types here."""
    found = {
        _node_name(first(instance.get("CustomerIpAddress"))): _instance_type(group)
        for group in config.get("InstanceGroups", [])
        for instance in group.get("Instances", [])
    }
    return {name: kind for name, kind in found.items() if name and kind}


def _controllers(config: dict[str, Any], parameters: dict[str, Any]) -> list[Any]:
    """Return the addresses of the controllers that the parameters name."""
    name = parameters.get("controller_group")
    groups = [one for one in config.get("InstanceGroups", []) if one.get("Name") == name]
    return [address for group in groups for address in _addresses(group)]


def _addresses(group: dict[str, Any]) -> list[Any]:
    return [one["CustomerIpAddress"] for one in group.get("Instances", []) if one.get("CustomerIpAddress")]


def _mounts(published: dict[str, Any], parameters: dict[str, Any]) -> list[dict[str, str | None]]:
    """Return the file systems of the instance group, as the API or the parameters name them."""
    if published:
        return [
            {key: first(one.get(key)) for key in ("path", "type", "source")}
            for one in document.fitted(published.get("mounts"), [dict.fromkeys(("path", "type", "source"), str)])
        ]
    lustre, name = first(parameters.get("fsx_dns_name")), first(parameters.get("fsx_mountname"))
    openzfs = first(parameters.get("fsx_openzfs_dns_name"))
    found: list[dict[str, str | None]] = []
    if lustre and name:
        found.append({"path": "/fsx", "type": "lustre", "source": f"{lustre}@tcp:/{name}"})
    if openzfs:
        found.append({"path": "/home", "type": "nfs", "source": f"{openzfs}:/fsx"})
    return found
