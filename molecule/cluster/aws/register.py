# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The sandbox's AWS account, as the machine that runs the sandbox uses it."""

from __future__ import annotations

import json
import time
import urllib.request
from typing import Any

import boto3
from botocore.exceptions import ClientError, EndpointConnectionError
from machines import Instance

AMI = "ami-12c6146b"  # one that moto knows by itself


class Account:
    """The sandbox's AWS API. `made` collects one line for each decoy that was not there yet."""

    def __init__(self, endpoint: str, topology: dict[str, Any]) -> None:
        self.topology, self.endpoint = topology, endpoint
        self.made: list[str] = []
        self.ec2, self.s3 = self.client("ec2"), self.client("s3")
        self.wait()

    def client(self, service: str) -> Any:
        return boto3.client(
            service,
            region_name=self.topology["region"],
            endpoint_url=self.endpoint,
            aws_access_key_id="sandbox",
            aws_secret_access_key="sandbox",
        )

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

    def named(self) -> dict[str, Instance]:
        """The instances that run and are a node, by the node's name."""
        return {one.tags["sandbox:name"]: one for one in self.found({"Name": "tag-key", "Values": ["sandbox:name"]})}

    def alive(self, cluster: str) -> list[Instance]:
        """The instances of a cluster that run."""
        return self.found({"Name": "tag:parallelcluster:cluster-name", "Values": [cluster]})

    def found(self, wanted: dict[str, Any]) -> list[Instance]:
        running = {"Name": "instance-state-name", "Values": ["pending", "running"]}
        pages = self.ec2.get_paginator("describe_instances").paginate(Filters=[wanted, running])
        return [Instance.of(one) for page in pages for part in page["Reservations"] for one in part["Instances"]]

    # What a stack is made of

    def upload(self, bucket: str, key: str, body: bytes) -> None:
        try:
            self.s3.put_object(Bucket=bucket, Key=key, Body=body)
        except self.s3.exceptions.NoSuchBucket:
            self.s3.create_bucket(Bucket=bucket)
            self.s3.put_object(Bucket=bucket, Key=key, Body=body)

    def template(self, name: str, data: dict[str, Any]) -> None:
        """Make a launch template, or a new version of it where it has changed."""
        try:
            found = self.ec2.describe_launch_template_versions(LaunchTemplateName=name, Versions=["$Latest"])
        except ClientError:
            self.ec2.create_launch_template(LaunchTemplateName=name, LaunchTemplateData=data)
            return
        if found["LaunchTemplateVersions"][0]["LaunchTemplateData"].get("UserData") != data["UserData"]:
            self.ec2.create_launch_template_version(LaunchTemplateName=name, LaunchTemplateData=data)

    def table(self, definition: dict[str, Any]) -> None:
        dynamodb = self.client("dynamodb")
        if definition["TableName"] not in dynamodb.list_tables()["TableNames"]:
            dynamodb.create_table(**definition)

    def drop_tables(self, cluster: str) -> None:
        dynamodb = self.client("dynamodb")
        for name in (f"parallelcluster-{cluster}", f"parallelcluster-slurm-{cluster}"):
            if name in dynamodb.list_tables()["TableNames"]:
                dynamodb.delete_table(TableName=name)

    def zone(self, key: str, domain: str, vpc: str) -> None:
        """Make a private zone; the AWS API takes the caller's reference for its id."""
        route53 = self.client("route53")
        if not any(zone["Id"].endswith(key) for zone in route53.list_hosted_zones()["HostedZones"]):
            route53.create_hosted_zone(
                Name=domain,
                CallerReference=key,
                VPC={"VPCId": vpc, "VPCRegion": self.topology["region"]},
                HostedZoneConfig={"PrivateZone": True},
            )

    def launch_head(self, told: dict[str, Any], name: str, address: str) -> None:
        """Launch the head node at the address that its network interface has."""
        head = told["head"]
        tags = {**head["tags"], "sandbox:name": name}
        self.ec2.run_instances(
            MinCount=1,
            MaxCount=1,
            LaunchTemplate={"LaunchTemplateName": f"{told['cluster']}-HeadNode", "Version": "$Latest"},
            NetworkInterfaces=[self.interface(told["account"]["subnet"], address)],
            TagSpecifications=[{"ResourceType": "instance", "Tags": pairs(tags)}],
        )

    def launch_monitoring(self, user_data: str) -> None:
        """Launch the monitoring instance, as its own stack would, where it is not there."""
        machine = self.topology["monitoring"]
        if machine["name"] in self.named():
            return
        tags = {
            "Name": machine["name"],
            "sandbox:name": machine["name"],
            "pcluster-postboot:node-type": "monitoring",
            "pcluster-postboot:name": machine["name"],
            "pcluster-postboot:os": machine["os"],
        }
        self.ec2.run_instances(
            ImageId=AMI,
            MinCount=1,
            MaxCount=1,
            InstanceType=machine["instance_type"],
            UserData=user_data,
            NetworkInterfaces=[self.interface(self.subnet()["SubnetId"], machine["address"])],
            TagSpecifications=[{"ResourceType": "instance", "Tags": pairs(tags)}],
        )
        self.made.append(f"launched {machine['name']}")

    def subnet(self) -> dict[str, Any]:
        """The subnet of all machines."""
        filters = [{"Name": "cidr-block", "Values": [self.topology["network"]["subnet"]]}]
        found: dict[str, Any] = self.ec2.describe_subnets(Filters=filters)["Subnets"][0]
        return found

    def interface(self, subnet: str, address: str) -> dict[str, Any]:
        # The interface goes with its instance; otherwise moto would keep the address from the next instance.
        private = [{"Primary": True, "PrivateIpAddress": address}]
        return {"DeviceIndex": 0, "SubnetId": subnet, "PrivateIpAddresses": private, "DeleteOnTermination": True}

    def stack_status(self, name: str, status: str, **more: Any) -> None:
        """Begin an operation on a stack, and note where the custom action of an update asks for it."""
        self.upload("sandbox-stacks", name, status.encode())
        self.put(f"stack/{name}", {"status": status, **more})

    def stack(self, told: dict[str, Any], condition: str) -> None:
        """Begin a cluster's stack, with what ParallelCluster's CLI reads of it."""
        dna = told["head"]["dna"]["cluster"]
        parameters = {
            "ArtifactS3RootDirectory": told["artifacts"]["directory"],
            "ClusterCWLogGroup": told["log_group"],
            "ClusterUser": dna["cluster_user"],
            "ConfigVersion": dna["cluster_config_version"],
            "ResourcesS3Bucket": told["artifacts"]["bucket"],
            "Scheduler": dna["scheduler"],
        }
        own = {key: told["stack"][key] for key in ("id", "tags")}
        more = {"region": self.topology["region"], "condition": condition, "parameters": parameters, **own}
        self.stack_status(told["cluster"], "CREATE_IN_PROGRESS", **more)

    def forget_stack(self, name: str) -> None:
        """Let a stack go that is deleted."""
        self.put(f"stack/{name}", {}, method="DELETE")

    # Wait conditions

    def signal(self, cluster: str) -> dict[str, str]:
        """What the cluster's wait condition was told last."""
        with urllib.request.urlopen(f"{self.endpoint}/sandbox/signal/{cluster}", timeout=10) as answer:
            found: dict[str, str] = json.loads(answer.read())
        return found

    def tell(self, cluster: str, what: dict[str, str]) -> None:
        self.put(f"signal/{cluster}", what)

    def put(self, path: str, what: dict[str, Any], method: str = "PUT") -> None:
        """Tell the sandbox's own part of the AWS API."""
        body = json.dumps(what).encode()
        with urllib.request.urlopen(
            urllib.request.Request(f"{self.endpoint}/sandbox/{path}", body, method=method), timeout=10
        ):
            pass

    # Decoys

    def ensure(self, decoy: dict[str, Any]) -> None:
        """Launch the instance that stands for a decoy and bring it into its state, if it is not there."""
        filters = [{"Name": "tag:sandbox:name", "Values": [decoy["name"]]}]
        if self.ec2.describe_instances(Filters=filters)["Reservations"]:
            return
        launched = self.ec2.run_instances(
            ImageId=AMI,
            MinCount=1,
            MaxCount=1,
            InstanceType="c5.xlarge",
            NetworkInterfaces=[self.interface(self.subnet()["SubnetId"], decoy["address"])],
            TagSpecifications=[{"ResourceType": "instance", "Tags": pairs(self.tags(decoy))}],
        )["Instances"][0]["InstanceId"]
        if decoy["state"] == "stopped":
            self.ec2.stop_instances(InstanceIds=[launched])
        elif decoy["state"] == "terminated":
            self.ec2.terminate_instances(InstanceIds=[launched])
        self.made.append(f"registered {decoy['name']} as {launched}")

    def tags(self, decoy: dict[str, Any]) -> dict[str, str]:
        tags = {"sandbox:name": decoy["name"]}
        if "ssm" in decoy:
            tags["sandbox:ssm"] = decoy["ssm"]
        if "type" not in decoy:
            return tags
        return tags | {
            "Name": decoy["type"],
            "parallelcluster:cluster-name": decoy["cluster"],
            "parallelcluster:node-type": decoy["type"],
            "parallelcluster:version": self.topology["parallelcluster"],
            "parallelcluster:attributes": f"alinux2023, slurm, {self.topology['parallelcluster']}, x86_64",
            "parallelcluster:networking": "EFA=NONE",
            "parallelcluster:filesystem": "efs=0, multiebs=0, raid=0, fsx=1",
            "parallelcluster:queue-name": decoy["queue"],
            "parallelcluster:compute-resource-name": decoy["compute_resource"],
        }


def pairs(tags: dict[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]
