#!/usr/bin/env python3
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The flavour `hyperpod` of the sandbox: a look-alike cluster of SageMaker HyperPod, with Slurm.

It shares the network, the images and the services with the other flavour, except AWS's API, and runs beside it or
alone. hyperpod/README.md says what its nodes have, and from where that is known.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import ami
import yaml
from ami import put, write
from machines import Instance
from sandbox import HERE, PREFIX, Sandbox, main

if TYPE_CHECKING:
    from collections.abc import Sequence

FILES = HERE / "hyperpod"
LABEL = "sandbox.hyperpod"  # the other flavour removes a container that has its own label and no instance in EC2
ACCOUNT = "123456789012"
AGENTS = {
    "sagemaker-host-agent": ("SageMakerHostAgent", "host_agent.py"),
    "sagemaker-cluster-agent": ("SageMakerClusterAgent", "cluster_agent.py"),
    "sagemaker-health-monitoring-agent": ("SageMakerHealthMonitoringAgent", "health_monitoring_agent.sh"),
}
FAILED = "Lifecycle scripts did not run successfully."


class HyperPod(Sandbox):
    """The state of one cluster: what hyperpod/topology.yml asks for, and what runs."""

    steps: ClassVar[dict[str, tuple[str, ...]]] = {
        **dict.fromkeys(("prepare", "services", "deploy", "boot", "status", "delete", "destroy"), ()),
        "create": ("overrides",),
        "replace": ("name",),
        "variables": ("folder",),
    }

    def wanted(self) -> dict[str, Any]:
        found, own = super().wanted(), yaml.safe_load((FILES / "topology.yml").read_text())
        return {**found, **own, "services": {**found["services"], **own["services"]}}

    @property
    def own(self) -> Path:
        """What this flavour keeps for itself; images, mirror, keys and podman's configuration are those of both."""
        return self.state / "hyperpod"

    @property
    def cluster(self) -> dict[str, Any]:
        """What topology.yml says of the cluster, and how it was created; nothing is created before `deploy`."""
        created = self.own / "cluster.json"
        return {**self.topology["cluster"], **(json.loads(created.read_text()) if created.exists() else {})}

    # Steps

    def stacks(self) -> list[deploy.Stack]:
        return []

    def services(self) -> None:
        """Start those of the services that do not run, and an AWS API of this flavour's own."""
        self.serve()

    def deploy(self) -> None:
        """Create the cluster as CreateCluster would, if there is none: its instances boot in the next step."""
        self.deploy_with({})

    def deploy_with(self, overrides: dict[str, Any]) -> None:
        if (self.own / "cluster.json").exists():
            return
        nodes = {**self.topology["cluster"], **overrides}["nodes"]
        instances = {name: f"i-{secrets.token_hex(9)[:17]}" for name in nodes}
        write(self.own / "cluster.json", json.dumps({"created": time.time(), "instances": instances, **overrides}))
        for name in ("mirror", "ssh"):  # where the variables of the inventory look
            if not (self.own / name).is_symlink():
                (self.own / name).symlink_to(self.state / name)
        inventory = self.own / "inventory"
        inventory.mkdir(exist_ok=True)
        for source in (*(FILES / "inventory").iterdir(), HERE / "inventory/group_vars"):
            if not (inventory / source.name).is_symlink():
                (inventory / source.name).symlink_to(source)
        self.tell(list(instances))
        print(f"created the cluster {self.cluster['name']}")

    def boot(self) -> None:
        """Start the nodes that do not run, and wait until all are provisioned; ends with 1 where a script failed."""
        running, stopped = self.running(), self.machines_that_stopped()
        missing = [name for name in self.cluster["nodes"] if PREFIX + name not in running]
        self.tell(missing)
        for name in missing:
            if PREFIX + name in stopped:
                self.podman("start", PREFIX + name)
            else:
                self.start(name)
        with ThreadPoolExecutor() as pool:
            codes = dict(zip(missing, pool.map(self.provisioned, missing)))
        self.tell()
        for name, code in codes.items():
            state = "is provisioned" if code == 0 else f"has failed: its script ended with {code}"
            print(f"{name} {state}, at {self.cluster['nodes'][name]['address']}")
        if any(codes.values()):
            sys.exit(f"{self.cluster['name']}: {FAILED}")

    def create(self, overrides: str) -> None:
        """Create the cluster anew with the LifeCycleConfig of its InstanceGroups that a file has, as publish prints it.

        `configuration: file` in it has the nodes' types told by provisioning_parameters.json; `groups` and `nodes` take
        the place of those of topology.yml.
        """
        self.delete()
        self.deploy_with(yaml.safe_load(Path(overrides).read_text()))
        self.boot()

    def replace(self, name: str) -> None:
        """Replace a node's instance, as HyperPod does: another instance, with the same address and name."""
        if name not in self.cluster["nodes"]:
            sys.exit(f"NODE is {name!r}; the cluster's nodes are {', '.join(self.cluster['nodes'])}")
        self.remove([name])
        created = json.loads((self.own / "cluster.json").read_text())
        created["instances"][name] = f"i-{secrets.token_hex(9)[:17]}"
        write(self.own / "cluster.json", json.dumps(created))
        self.boot()

    def delete(self) -> None:
        """Delete the cluster; what is in FSx stays, and so does the AWS API."""
        self.remove(list(self.cluster["nodes"]))
        shutil.rmtree(self.own, ignore_errors=True)
        if self.container("aws") in self.running():
            self.tell_clusters([])

    def destroy(self) -> None:
        """Remove this flavour, and leave the services that both share."""
        mine = [*(PREFIX + name for name in self.cluster["nodes"]), self.container("aws")]
        running = self.running()
        self.delete()
        self.podman("rm", "--force", "--ignore", "--volumes", "--time=0", self.container("aws"))
        if gone := [name.removeprefix(PREFIX) for name in mine if name in running]:
            print(f"removed {', '.join(gone)}; the services of both flavours stay until the other one is removed")
        self.podman("volume", "rm", "--force", PREFIX + "hp-fsx")

    def status(self) -> None:
        """Say what runs and where to look."""
        for name, node in self.cluster["nodes"].items():
            print(f"  {name:<16} {node['address']:<14} {self.cluster['name']:<6} {self.node_type(name)}")
        print(f"  {'aws':<16} {self.endpoint}")

    # Nodes

    def group(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster["groups"][self.cluster["nodes"][name]["group"]]
        return found

    def node_type(self, name: str) -> str:
        return str(self.group(name)["node_type"])

    def instance(self, name: str) -> Instance:
        """A node's instance, as the metadata service on it tells of it."""
        return Instance(
            id=self.cluster["instances"][name],
            type=self.group(name)["instance_type"].removeprefix("ml."),
            address=self.cluster["nodes"][name]["address"],
            image="ami-0123456789abcdef0",
            zone=f"{self.topology['region']}a",
            launched=datetime.fromtimestamp(self.cluster["created"], timezone.utc),
            alive=True,
            tags={},
        )

    def machines_that_stopped(self) -> set[str]:
        listed = self.podman("ps", "--all", "--filter", f"label={LABEL}", "--format", "{{.Names}}").stdout
        return set(listed.split()) - self.running()

    def remove(self, names: list[str]) -> None:
        self.podman("rm", "--force", "--ignore", "--volumes", "--time=0", *(PREFIX + name for name in names))
        disks = [f"{PREFIX}{name}-{disk}" for name in names for disk in ("docker", "ebs", "nvme")]
        self.podman("volume", "rm", "--force", *disks)

    def start(self, name: str) -> None:
        one = self.instance(name)
        tree = self.lay(name, one)
        disks = {"docker": "/var/lib/docker", "ebs": "/opt/sagemaker"}
        if self.hardware(one).get("instance_store"):
            disks["nvme"] = "/opt/dlami/nvme"
        volumes = [f"{tree}:/sandbox/node:ro", f"{PREFIX}hp-fsx:/fsx"]
        volumes += [f"{PREFIX}{name}-{disk}:{at}" for disk, at in disks.items()]
        image = self.image[self.cluster["image"]]
        self.start_machine(one, name, f"{LABEL}={one.id}", image, volumes, ["--dns-search=ec2.internal"])

    def provisioned(self, name: str) -> int:
        """Wait until a node is up and provisioned, let the sandbox's key in, and return its script's exit status."""
        self.wait_for_systemd(name)
        told = ["exec", PREFIX + name, "cat", "/var/lib/sandbox-provisioned"]
        self.deadline(f"{name}: its provisioning", lambda: self.podman(*told, check=False).stdout.strip(), 1500)
        # As a user does by easy-ssh.sh, on one node: all have the same home directory.
        keys, key = f"/fsx/{self.cluster['user']}/.ssh/authorized_keys", self.public_key.strip()
        known = f"test ! -e {keys} || grep -q '{key}' {keys} || echo '{key}' >> {keys}"
        self.podman("exec", PREFIX + name, "sh", "-c", known)
        return int(self.podman(*told).stdout)

    # What an AMI of HyperPod has, and what its provisioning leaves

    def hardware(self, one: Instance) -> dict[str, Any]:
        found: dict[str, Any] = self.topology["instance_types"].get(one.type, {})
        return found

    def lay(self, name: str, one: Instance) -> Path:
        """Write the tree of a machine, and return where it is."""
        tree, hardware = self.own / "machines" / one.id, self.hardware(one)
        write(tree / "etc/machine-id", hashlib.sha256(one.id.encode()).hexdigest()[:32] + "\n")
        ami.metadata(tree, self, one, "#!/bin/sh\n")  # the host agent provisions the node
        ami.agents(tree, one)
        ami.alertmanager(tree, self)
        if hardware.get("gpus"):
            ami.driver(tree)
        for unit, (program, source) in AGENTS.items():
            put(tree / "usr/bin" / program, FILES / source, 0o755)
            text = self.render("sagemaker-agent.service.j2", {"program": program})
            write(tree / f"etc/systemd/system/{unit}.service", text)
        put(tree / "usr/libexec/sandbox-ami-software", FILES / "ami_software.sh", 0o755)
        put(tree / "usr/libexec/sandbox-spank-auto-resume.c", FILES / "spank_auto_resume.c")
        for daemon in ("slurmctld", "slurmd"):
            put(tree / f"etc/systemd/system/{daemon}.service", FILES / f"{daemon}.service")
        for folder, script in (("prolog.d", "register"), ("epilog.d", "cleanup")):
            source = FILES / f"700_dcgm_job_map_{script}.sh"
            put(tree / "opt/slurm/etc" / folder / source.name, source, 0o755)
        for file, content in self.files(name).items():
            write(tree / file, json.dumps(content, indent=2) + "\n")
        write(tree / "sandbox/boot.sh", self.render("boot.sh.j2", {"node": hardware, "kind": "hyperpod"}))
        return tree

    def files(self, name: str) -> dict[str, Any]:
        """What the control plane leaves on a node, by its path."""
        config, life = "opt/ml/config/", self.life_cycle(self.cluster["nodes"][name]["group"])
        partitions = {key: group.get("partitions", []) for key, group in self.cluster["groups"].items()}
        found = {
            config + "resource_config.json": self.resources,
            config + "life_cycle_config.json": life,
            config + "host_agent.json": {"ResourceConfigS3Uri": f"s3://{self.cluster['id']}/resource_config.json"},
            "etc/sandbox/hyperpod.json": {
                "node_type": self.node_type(name),
                "partitions": partitions,
                "software": [self.pins[part]["version"] for part in ("enroot", "pyxis")],
            },
        }
        if self.cluster["configuration"] == "file":
            found[config + "provisioning_parameters.json"] = self.parameters
        return found

    @cached_property
    def pins(self) -> dict[str, Any]:
        """The versions of what the mirror has."""
        found: dict[str, Any] = json.loads((self.state / "mirror/pins.json").read_text())
        return found

    @cached_property
    def arn(self) -> str:
        return f"arn:aws:sagemaker:{self.topology['region']}:{ACCOUNT}:cluster/{self.topology['cluster']['id']}"

    def life_cycle(self, group: str) -> dict[str, str]:
        """The LifeCycleConfig of an instance group; empty where it was created without."""
        given = {one["InstanceGroupName"]: one for one in self.cluster.get("InstanceGroups", [])}
        found: dict[str, str] = given.get(group, {}).get("LifeCycleConfig", {})
        return found

    def members(self, group: str) -> dict[str, dict[str, Any]]:
        return {name: node for name, node in self.cluster["nodes"].items() if node["group"] == group}

    @property
    def resources(self) -> dict[str, Any]:
        """resource_config.json: the cluster as its nodes know it."""
        groups = []
        for key, group in self.cluster["groups"].items():
            nodes = [
                {
                    "InstanceName": f"{key}-{number}",
                    "AgentIpAddress": f"172.16.0.{node['address'].rpartition('.')[2]}",
                    "CustomerIpAddress": node["address"],
                    "InstanceId": self.cluster["instances"][name],
                }
                for number, (name, node) in enumerate(self.members(key).items(), 1)
            ]
            groups.append({"Name": key, "InstanceType": group["instance_type"], "Instances": nodes})
        controllers = [name for name in self.cluster["nodes"] if self.node_type(name) == "Controller"]
        return {
            "ClusterConfig": {"ClusterName": self.cluster["name"], "ClusterArn": self.arn},
            "ClusterType": "Slurm",
            "SlurmConfig": {
                "PrimaryControllerIp": self.cluster["nodes"][controllers[0]]["address"],
                "SecondaryControllerIps": [],
            },
            "InstanceGroups": groups,
        }

    @property
    def parameters(self) -> dict[str, Any]:
        """provisioning_parameters.json, as the owner of a cluster without an API for node types writes it."""
        of = {group["node_type"]: key for key, group in self.cluster["groups"].items()}
        workers = [
            {"instance_group_name": key, "partition_name": group["partitions"][0]}
            for key, group in self.cluster["groups"].items()
            if group["node_type"] == "Compute"
        ]
        return {
            "version": "1.0.0",
            "workload_manager": "slurm",
            "controller_group": of["Controller"],
            "login_group": of["Login"],
            "worker_groups": workers,
            "fsx_dns_name": self.cluster["fsx"]["DnsName"],
            "fsx_mountname": self.cluster["fsx"]["MountName"],
        }

    # What SageMaker says

    def tell(self, pending: Sequence[str] = ()) -> None:
        """Tell SageMaker's API of the cluster, with the nodes that come up now; the others are as they ended."""
        groups, nodes = [], []
        for key, group in self.cluster["groups"].items():
            told: dict[str, Any] = {
                "InstanceGroupName": key,
                "InstanceType": group["instance_type"],
                "CurrentCount": len(self.members(key)),
                "TargetCount": len(self.members(key)),
                "ExecutionRole": f"arn:aws:iam::{ACCOUNT}:role/hyperpod",
                "Status": "InService",
                "InstanceStorageConfigs": [
                    {"EbsVolumeConfig": {"VolumeSizeInGB": 500}},
                    {"FsxLustreConfig": {**self.cluster["fsx"], "MountPath": "/fsx"}},
                ],
            }
            if life := self.life_cycle(key):
                told["LifeCycleConfig"] = life
            if self.cluster["configuration"] == "api":
                told["SlurmConfig"] = {"NodeType": group["node_type"]}
                if "partitions" in group:
                    told["SlurmConfig"]["PartitionNames"] = group["partitions"]
            groups.append(told)
            for name in self.members(key):
                nodes.append(self.summary(name, group, "Pending" if name in pending else self.state_of(name)))
        states = {node["InstanceStatus"]["Status"] for node in nodes}
        cluster = "Failed" if "Failure" in states else "Creating" if "Pending" in states else "InService"
        whole = {
            "ClusterArn": self.arn,
            "ClusterName": self.cluster["name"],
            "ClusterStatus": cluster,
            "CreationTime": self.cluster["created"],
            "InstanceGroups": groups,
            "Orchestrator": {"Slurm": {"SlurmConfigStrategy": "Managed"}},
            "NodeRecovery": "Automatic",
            "NodeProvisioningMode": "Continuous",
        }
        self.tell_clusters([{**whole, "Region": self.topology["region"], "Nodes": nodes}])

    def state_of(self, name: str) -> str:
        told = self.podman("exec", PREFIX + name, "cat", "/var/lib/sandbox-provisioned", check=False).stdout.strip()
        return {"": "Pending", "0": "Running"}.get(told, "Failure")

    def summary(self, name: str, group: dict[str, Any], status: str) -> dict[str, Any]:
        one = self.instance(name)
        return {
            "InstanceGroupName": self.cluster["nodes"][name]["group"],
            "InstanceId": one.id,
            "InstanceType": group["instance_type"],
            "LaunchTime": self.cluster["created"],
            "InstanceStatus": {"Status": status, **({"Message": FAILED} if status == "Failure" else {})},
            "PrivateDnsHostname": f"{one.hostname}.ec2.internal",
        }

    def tell_clusters(self, clusters: list[dict[str, Any]]) -> None:
        body = json.dumps({"clusters": clusters}).encode()
        request = urllib.request.Request(f"{self.endpoint}/sandbox/hyperpod", body, method="PUT")
        with urllib.request.urlopen(request, timeout=10):
            pass


if __name__ == "__main__":
    sys.exit(main(HyperPod))
