# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The sandbox's nodes and decoys as EC2 instances, tagged as ParallelCluster tags them."""

from __future__ import annotations

import time
from typing import Any

import boto3
from botocore.exceptions import EndpointConnectionError

AMI = "ami-12c6146b"  # one that moto knows by itself


class Account:
    """The instances in the sandbox's AWS API. `made` collects one line for each instance that was not there yet."""

    def __init__(self, endpoint: str, topology: dict[str, Any]) -> None:
        self.topology = topology
        self.made: list[str] = []
        self.ec2 = boto3.client(
            "ec2",
            region_name=topology["region"],
            endpoint_url=endpoint,
            aws_access_key_id="sandbox",
            aws_secret_access_key="sandbox",
        )
        self.wait()
        self.subnet = self.find_subnet()

    def wait(self, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while True:
            try:
                self.ec2.describe_regions()
                return
            except EndpointConnectionError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.5)

    def find_subnet(self) -> str:
        cidr = self.topology["network"]["subnet"]
        found = self.ec2.describe_subnets(Filters=[{"Name": "cidr-block", "Values": [cidr]}])["Subnets"]
        if found:
            return found[0]["SubnetId"]
        vpc = self.ec2.create_vpc(CidrBlock=cidr)["Vpc"]["VpcId"]
        return self.ec2.create_subnet(VpcId=vpc, CidrBlock=cidr, AvailabilityZone=self.topology["region"] + "a")[
            "Subnet"
        ]["SubnetId"]

    def find(self, name: str) -> str | None:
        filters = [{"Name": "tag:sandbox:name", "Values": [name]}]
        for reservation in self.ec2.describe_instances(Filters=filters)["Reservations"]:
            for instance in reservation["Instances"]:
                if instance["State"]["Name"] == "running" or name in (
                    decoy["name"] for decoy in self.topology["decoys"]
                ):
                    return instance["InstanceId"]
        return None

    def ensure(self, node: dict[str, Any], cluster: dict[str, Any] | None) -> str:
        """The id of the instance that stands for `node`, launched and brought into its state if it is not there."""
        found = self.find(node["name"])
        if found:
            return found
        tags = [{"Key": key, "Value": value} for key, value in self.tags(node, cluster).items()]
        launched = self.ec2.run_instances(
            ImageId=AMI,
            MinCount=1,
            MaxCount=1,
            InstanceType=node.get("instance_type", "c5.xlarge"),
            # The interface goes with its instance, or moto would keep the address from the next one.
            NetworkInterfaces=[
                {
                    "DeviceIndex": 0,
                    "SubnetId": self.subnet,
                    "PrivateIpAddresses": [{"Primary": True, "PrivateIpAddress": node["address"]}],
                    "DeleteOnTermination": True,
                }
            ],
            TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
        )["Instances"][0]["InstanceId"]
        if node.get("state") == "stopped":
            self.ec2.stop_instances(InstanceIds=[launched])
        elif node.get("state") == "terminated":
            self.ec2.terminate_instances(InstanceIds=[launched])
        self.made.append(f"registered {node['name']} as {launched}")
        return launched

    def terminate(self, node: dict[str, Any]) -> None:
        found = self.find(node["name"])
        if found:
            self.ec2.terminate_instances(InstanceIds=[found])

    def tags(self, node: dict[str, Any], cluster: dict[str, Any] | None) -> dict[str, str]:
        tags = {"sandbox:name": node["name"]}
        if "ssm" in node:
            tags["sandbox:ssm"] = node["ssm"]
        if "type" not in node:
            return tags
        image = cluster["os"] if cluster else "alinux2023"
        tags |= {
            "Name": node["type"],
            "parallelcluster:cluster-name": node["cluster"],
            "parallelcluster:node-type": node["type"],
            "parallelcluster:version": self.topology["parallelcluster"],
            "parallelcluster:attributes": f"{image}, slurm, {self.topology['parallelcluster']}, x86_64",
            "parallelcluster:networking": "EFA=true" if node.get("efa") else "EFA=NONE",
            "parallelcluster:filesystem": "efs=0, multiebs=0, raid=0, fsx=1",
        }
        if "queue" in node:
            tags |= {
                "parallelcluster:queue-name": node["queue"],
                "parallelcluster:compute-resource-name": node["compute_resource"],
            }
        if "pool" in node:
            tags["parallelcluster:login-nodes-pool"] = node["pool"]
        return tags
