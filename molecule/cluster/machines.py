# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The machines of the sandbox's EC2: an instance that runs is a container, and one that was terminated is gone.

`sandbox.py machines` looks at the AWS API and at podman every two seconds, and brings the second in line with the
first. Nothing is kept in its memory that they do not tell, so it may be ended and started at any time. An instance
without user data has no machine: it only stands in lists. A login pool's Auto Scaling group is here too, as moto's
knows no launch hooks.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sandbox import Sandbox

ALIVE = ("pending", "running")
LABEL = "sandbox.instance"
REBOOTED = 129  # a container whose systemd has asked for a reboot ends by SIGHUP


@dataclass
class Instance:
    """What EC2 knows of an instance."""

    id: str
    type: str
    address: str
    image: str
    zone: str
    launched: datetime
    alive: bool
    tags: dict[str, str]

    @classmethod
    def of(cls, found: dict[str, Any]) -> Instance:
        return cls(
            id=found["InstanceId"],
            type=found["InstanceType"],
            address=found.get("PrivateIpAddress", ""),
            image=found["ImageId"],
            zone=found["Placement"]["AvailabilityZone"],
            launched=found["LaunchTime"],
            alive=found["State"]["Name"] in ALIVE,
            tags={tag["Key"]: tag["Value"] for tag in found.get("Tags", [])},
        )

    @property
    def cluster(self) -> str:
        return self.tags.get("parallelcluster:cluster-name", "")

    @property
    def kind(self) -> str:
        return self.tags.get("parallelcluster:node-type", "") or self.tags.get("pcluster-postboot:node-type", "")

    @property
    def pool(self) -> str:
        """The login pool that it belongs to."""
        return self.tags.get("parallelcluster:login-nodes-pool", "")

    @property
    def hostname(self) -> str:
        return "ip-" + self.address.replace(".", "-")

    def metadata(self, region: str, key: str) -> dict[str, str]:
        """What the instance metadata service answers, by path."""
        identity = {
            "instanceId": self.id,
            "instanceType": self.type,
            "privateIp": self.address,
            "imageId": self.image,
            "availabilityZone": self.zone,
            "region": region,
            "accountId": "123456789012",
            "architecture": "x86_64",
            "pendingTime": self.launched.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        values = {
            "instance-id": self.id,
            "instance-type": self.type,
            "local-ipv4": self.address,
            "local-hostname": f"{self.hostname}.ec2.internal",
            "hostname": f"{self.hostname}.ec2.internal",
            "ami-id": self.image,
            "placement/availability-zone": self.zone,
            "placement/region": region,
            "public-keys/0/openssh-key": key,
        }
        paths = {f"/latest/meta-data/{name}": value for name, value in values.items()}
        return {**paths, "/latest/dynamic/instance-identity/document": json.dumps(identity, indent=2)}


class Machines:
    """Brings the containers in line with the instances."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.ec2, self.dynamodb = sandbox.aws.ec2, sandbox.aws.client("dynamodb")

    def follow(self) -> None:
        """Look, and look again, until this is asked to end; what was begun is brought to its end."""
        ending = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: ending.set())
        while not ending.wait(2):
            try:
                self.look()
            except (Exception, SystemExit) as error:  # podman's name for a machine may be taken for a moment, for one
                print(f"{type(error).__name__}: {error}", flush=True)

    def instances(self) -> dict[str, Instance]:
        asked = {
            "parallelcluster:cluster-name": list(self.sandbox.clusters),
            "pcluster-postboot:node-type": ["monitoring"],
        }
        found = []
        for tag, values in asked.items():
            filters = [{"Name": f"tag:{tag}", "Values": values}]
            pages = self.ec2.get_paginator("describe_instances").paginate(Filters=filters)
            found += [Instance.of(one) for page in pages for part in page["Reservations"] for one in part["Instances"]]
        return {one.id: one for one in found}

    def containers(self) -> dict[str, dict[str, Any]]:
        """Every machine's container, by the id of its instance."""
        listed = self.sandbox.podman("ps", "--all", "--filter", f"label={LABEL}", "--format", "json").stdout
        return {one["Labels"][LABEL]: one for one in json.loads(listed or "[]")}

    def look(self) -> None:
        instances, containers = self.instances(), self.containers()
        for key, container in containers.items():
            if key not in instances or not instances[key].alive:
                self.sandbox.podman("rm", "--force", "--volumes", "--time=0", container["Names"][0])
                disks = (f"{self.sandbox.prefix}{key}-{disk}" for disk in ("docker", "store"))
                self.sandbox.podman("volume", "rm", "--force", *disks, check=False)
                self.say(f"{container['Names'][0]} ({key}) is gone")
            elif container["State"] == "exited":
                self.ended(instances[key], container)
        for one in instances.values():
            if one.alive and one.id not in containers and self.has_machine(one):
                self.boot(one)
        self.name(instances, containers)
        for cluster in self.sandbox.clusters:
            self.pools(cluster, [one for one in instances.values() if one.cluster == cluster])

    def say(self, text: str) -> None:
        print(f"{datetime.now():%T} {text}", flush=True)

    def has_machine(self, one: Instance) -> bool:
        return bool(self.user_data(one))

    def user_data(self, one: Instance) -> str:
        found = self.ec2.describe_instance_attribute(InstanceId=one.id, Attribute="userData")["UserData"]
        return base64.b64decode(found.get("Value", "")).decode()

    def ended(self, one: Instance, container: dict[str, Any]) -> None:
        """A machine that has shut down or rebooted itself."""
        if container.get("ExitCode") == REBOOTED:
            self.sandbox.podman("start", container["Names"][0])
            self.say(f"{container['Names'][0]} reboots")
            return
        asked = "instanceInitiatedShutdownBehavior"
        found = self.ec2.describe_instance_attribute(InstanceId=one.id, Attribute=asked)[asked[0].upper() + asked[1:]]
        # An Auto Scaling group terminates a member that has stopped.
        if one.kind == "LoginNode" or found.get("Value") == "terminate":
            self.say(f"{container['Names'][0]} has shut down ({container.get('ExitCode')}), and is terminated")
            self.ec2.terminate_instances(InstanceIds=[one.id])

    def boot(self, one: Instance) -> None:
        name = self.sandbox.fixed_name(one) or one.id
        self.sandbox.boot_machine(one, name, self.user_data(one))
        if name != one.id:
            self.tag(one.id, name)
        self.say(f"{name} ({one.id}) boots at {one.address}")

    def tag(self, key: str, name: str) -> None:
        self.ec2.create_tags(Resources=[key], Tags=[{"Key": "sandbox:name", "Value": name}])

    def name(self, instances: dict[str, Instance], containers: dict[str, dict[str, Any]]) -> None:
        """Give a compute node's container the name under which ParallelCluster has noted its instance."""
        new = [
            one
            for one in instances.values()
            if one.alive and one.kind == "Compute" and one.id in containers and "sandbox:name" not in one.tags
        ]
        for cluster in {one.cluster for one in new}:
            table = f"parallelcluster-slurm-{cluster}"
            names = {
                item["InstanceId"]["S"]: item["Id"]["S"]
                for item in self.dynamodb.scan(TableName=table)["Items"]
                if "InstanceId" in item
            }
            for one in (one for one in new if one.cluster == cluster and one.id in names):
                prefix = self.sandbox.prefix
                done = self.sandbox.podman(
                    "rename", containers[one.id]["Names"][0], prefix + names[one.id], check=False
                )
                if not done.returncode:  # the one that had the name before may still be on its way out
                    self.tag(one.id, names[one.id])
                    self.say(f"{one.id} is {names[one.id]}")

    # Login pools

    def pools(self, cluster: str, instances: list[Instance]) -> None:
        """Keep as many login nodes as a pool wants, and end one whose launch hook was not completed in time."""
        deployed = self.sandbox.state / "stacks" / cluster / "login_pools.json"
        for pool in json.loads(deployed.read_text()) if deployed.exists() else []:
            members = [one for one in instances if one.alive and self.in_pool(one, pool)]
            for one in list(members):
                waits = (datetime.now(timezone.utc) - one.launched).total_seconds()
                if "sandbox:lifecycle" not in one.tags and waits > heartbeat(pool["auto_scaling_group"]):
                    self.say(f"{one.id} has not completed its launch within {waits:.0f} s, and is terminated")
                    self.ec2.terminate_instances(InstanceIds=[one.id])
                    members.remove(one)
            wanted = int(pool["auto_scaling_group"]["DesiredCapacity"])
            for one in members[wanted:]:
                self.say(f"{one.id} is more than the pool's {wanted}, and is terminated")
                self.ec2.terminate_instances(InstanceIds=[one.id])
            for _ in range(wanted - len(members)):
                template = {"LaunchTemplateName": pool["launch_template_name"], "Version": "$Latest"}
                launched = self.ec2.run_instances(MinCount=1, MaxCount=1, LaunchTemplate=template)["Instances"][0]
                tags = [{"Key": key, "Value": value} for key, value in pool["tags"].items()]
                self.ec2.create_tags(Resources=[launched["InstanceId"]], Tags=tags)

    def in_pool(self, one: Instance, pool: dict[str, Any]) -> bool:
        return one.kind == "LoginNode" and one.pool == pool["pool"]


def heartbeat(group: dict[str, Any]) -> float:
    """How many seconds a new member of an Auto Scaling group has to complete its launch."""
    hooks = group["LifecycleHookSpecificationList"]
    found = next(hook for hook in hooks if hook["LifecycleTransition"] == "autoscaling:EC2_INSTANCE_LAUNCHING")
    return float(found["HeartbeatTimeout"])


def start(line: list[str], log: Path, pid: Path) -> None:
    """Start the follower in the background, and note which process it is."""
    with log.open("a") as stream:
        process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True)
    pid.write_text(f"{process.pid}\n")


def runs(pid: Path) -> bool:
    """Whether the noted process is a follower that runs."""
    try:
        number = int(pid.read_text())
        return b"machines" in Path(f"/proc/{number}/cmdline").read_bytes()
    except (OSError, ValueError):
        return False


def stop(pid: Path, seconds: float = 30) -> None:
    """End the follower, and wait until it boots nothing more."""
    if not runs(pid):
        return
    os.kill(int(pid.read_text()), signal.SIGTERM)
    end = time.monotonic() + seconds
    while runs(pid) and time.monotonic() < end:
        time.sleep(0.1)
