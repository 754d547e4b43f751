# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The AWS account that a cluster of the sandbox is made in: what AWS, and not ParallelCluster, decides.

Every id is worked out from the name of what it belongs to, so that it is the same wherever it is asked for. Needs the
standard library alone; `furnish` is for a process that has moto.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any
from unittest import mock

MADE = "202611210900"  # when the clusters were created, as ParallelCluster writes it into names
PREFIXES = {
    "AWS::EC2::LaunchTemplate": "lt",
    "AWS::EC2::NetworkInterface": "eni",
    "AWS::EC2::SecurityGroup": "sg",
}
NAMES = {  # the property that Ref gives, where the template sets it
    "AWS::AutoScaling::AutoScalingGroup": "AutoScalingGroupName",
    "AWS::DynamoDB::Table": "TableName",
    "AWS::EC2::PlacementGroup": "GroupName",
    "AWS::IAM::InstanceProfile": "InstanceProfileName",
    "AWS::IAM::Role": "RoleName",
    "AWS::Logs::LogGroup": "LogGroupName",
}


def digits(*of: str, count: int = 17) -> str:
    return hashlib.sha256("/".join(of).encode()).hexdigest()[:count]


class Account:
    """What AWS decides for one cluster of topology.yml."""

    def __init__(self, topology: Mapping[str, Any], cluster: str) -> None:
        self.id, self.partition, self.suffix = "123456789012", "aws", "amazonaws.com"
        self.region: str = topology["region"]
        self.zone = self.region + "a"
        self.cidr: str = topology["network"]["subnet"]
        network: str = topology["network"]["name"]
        self.vpc, self.subnet = "vpc-" + digits(network, "vpc"), "subnet-" + digits(network, "subnet")
        found = topology["clusters"][cluster]
        self.cluster = cluster
        self.head: str = next(node["address"] for node in found["nodes"].values() if node["type"] == "HeadNode")
        self.image = "ami-" + digits(found["os"], str(found.get("parallelcluster", topology["parallelcluster"])))
        self.file_system = "fs-0" + digits(cluster, count=16)
        self.mount_name = "fsxmount"
        self.log_group = f"/aws/parallelcluster/{cluster}-{MADE}"
        self.hosted_zone = "Z0" + digits(cluster, "Route53HostedZone", count=18).upper()

    def pseudo(self, stack: str) -> dict[str, str]:
        """The pseudo parameters of a stack."""
        return {
            "AWS::AccountId": self.id,
            "AWS::Partition": self.partition,
            "AWS::Region": self.region,
            "AWS::StackId": self.stack_id(stack),
            "AWS::StackName": stack,
            "AWS::URLSuffix": self.suffix,
        }

    def stack_id(self, stack: str) -> str:
        found = digits(stack, "stack", count=32)
        unique = "-".join((found[:8], found[8:12], found[12:16], found[16:20], found[20:]))
        return f"arn:{self.partition}:cloudformation:{self.region}:{self.id}:stack/{stack}/{unique}"

    def nested(self, stack: str, name: str) -> str:
        """The name of a nested stack."""
        return f"{stack}-{name}-{digits(stack, name, count=12).upper()}"

    def reference(self, stack: str, name: str, kind: str, properties: Mapping[str, Any]) -> str | None:
        if kind in PREFIXES:
            return f"{PREFIXES[kind]}-{digits(stack, name)}"
        if kind in NAMES:
            return properties.get(NAMES[kind]) or self.nested(stack, name)
        if kind == "AWS::CloudFormation::Stack":
            return self.stack_id(self.nested(stack, name))
        if kind == "AWS::CloudFormation::WaitConditionHandle":
            return f"https://cloudformation-waitcondition-{self.region}.s3.{self.region}.{self.suffix}/{stack}"
        if kind == "AWS::Route53::HostedZone":
            return self.hosted_zone
        return None

    def attribute(self, stack: str, name: str, kind: str, attribute: str) -> str | None:
        found = {
            ("AWS::EC2::LaunchTemplate", "LatestVersionNumber"): "1",
            ("AWS::EC2::NetworkInterface", "PrimaryPrivateIpAddress"): self.head,
        }
        return found.get((kind, attribute))

    def furnish(self, image_name: str) -> None:
        """Put the network, the official image, the file system and the cluster's DNS zone into moto, with their ids."""
        from moto.backends import get_backend
        from moto.ec2.models.amis import Ami

        ec2, fsx = get_backend("ec2")[self.id][self.region], get_backend("fsx")[self.id][self.region]
        if self.vpc not in ec2.vpcs:  # another cluster's, too
            with (
                mock.patch("moto.ec2.models.vpcs.random_vpc_id", return_value=self.vpc),
                mock.patch("moto.ec2.models.subnets.random_subnet_id", return_value=self.subnet),
            ):
                ec2.create_vpc(self.cidr)
                ec2.modify_vpc_attribute(self.vpc, "enable_dns_hostnames", "true")
                subnet = ec2.create_subnet(self.vpc, self.cidr, availability_zone=self.zone)
            subnet.map_public_ip_on_launch = False  # moto takes the first of a zone for its default
        ec2.amis[self.image] = Ami(
            ec2,
            self.image,
            name=image_name,
            owner_id="amazon",
            owner_alias="amazon",
            public=True,
            architecture="x86_64",
            virtualization_type="hvm",
            root_device_type="ebs",
        )
        found = fsx.create_file_system(
            client_request_token="",
            file_system_type="LUSTRE",
            file_system_type_version="2.15",
            storage_capacity=1200,
            storage_type="SSD",
            subnet_ids=[self.subnet],
            security_group_ids=[],
            tags=[],
            kms_key_id=None,
            windows_configuration=None,
            lustre_configuration={"DeploymentType": "PERSISTENT_2", "MountName": self.mount_name},
            ontap_configuration=None,
            open_zfs_configuration=None,
        )
        del fsx.file_systems[found.file_system_id]
        found.file_system_id = self.file_system
        found.dns_name = f"{self.file_system}.fsx.{self.region}.{self.suffix}"
        fsx.file_systems[self.file_system] = found
        dns = get_backend("route53")[self.id][self.partition]
        with mock.patch("moto.route53.models.create_route53_zone_id", return_value=self.hosted_zone):
            dns.create_hosted_zone(f"{self.cluster}.pcluster.", True, vpcid=self.vpc, vpcregion=self.region)
