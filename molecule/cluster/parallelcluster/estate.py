# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""An AWS account that has what one configuration of ParallelCluster names, in the shape that the configuration needs.

moto holds the resources; what moto does not know (reservations of capacity, network interfaces of file systems) is
answered here. A validator that compares two parts of the configuration with each other still says what does not fit.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

from account import PREFIXES, digits

Answer = dict[str, Any]
AWS_POLICY = re.compile(r"arn:aws[\w-]*:iam::aws:policy/")
POLICY = {"Version": "2012-10-17", "Statement": {"Effect": "Deny", "Action": "sts:GetCallerIdentity", "Resource": "*"}}


def walk(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each scalar of a configuration with the keys that lead to it; the entries of a list have the list's path."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from walk(each, (*path, key))
    elif isinstance(value, list):
        for each in value:
            yield from walk(each, path)
    else:
        yield path, value


def named(config: Mapping[str, Any], *keys: str) -> list[str]:
    """What these keys name anywhere in the configuration, each name once."""
    return list(dict.fromkeys(str(value) for path, value in walk(config) if path[-1] in keys and value))


@functools.cache
def aws_policies() -> dict[str, Any]:
    """AWS' own policies, as moto knows them. moto would read them anew for each account."""
    from moto.iam.aws_managed_policies import aws_managed_policies_data

    found: dict[str, Any] = json.loads(aws_managed_policies_data)
    return found


class Estate:
    """The account of one configuration."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config, self.region = config, config["Region"]
        self.id, self.partition = "123456789012", "aws"
        self.zone = self.region + "a"
        self.vpc = "vpc-" + digits(self.region, "vpc")
        self.image = "ami-" + digits("official", config["Image"]["Os"])
        self.log_group = "/aws/parallelcluster/example"
        self.queues = (config.get("Scheduling") or {}).get("SlurmQueues") or []

    def stack_id(self, stack: str) -> str:
        return f"arn:{self.partition}:cloudformation:{self.region}:{self.id}:stack/{stack}/{digits(stack, count=32)}"

    def reference(self, stack: str, name: str, kind: str, properties: Mapping[str, Any]) -> str | None:
        return f"{PREFIXES[kind]}-{digits(stack, name)}"

    def furnish(self, image_name: str, architecture: str) -> None:
        """Put everything that the configuration names into moto, in a process that has moto."""
        import boto3

        self.network()
        self.images(image_name, architecture)
        ec2, s3 = boto3.client("ec2"), boto3.client("s3")
        # Ubuntu takes no RSA key.
        for key in named(self.config, "KeyName"):
            ec2.create_key_pair(KeyName=key, KeyType="ed25519")
        for group in self.placement_groups():
            ec2.create_placement_group(GroupName=group, Strategy="cluster")
        where: Any = {"CreateBucketConfiguration": {"LocationConstraint": self.region}}
        objects = list(self.objects())
        for bucket in dict.fromkeys(bucket for bucket, _ in objects):
            s3.create_bucket(Bucket=bucket, **({} if self.region == "us-east-1" else where))
        for bucket, key in objects:
            if key:
                s3.put_object(Bucket=bucket, Key=key, Body=b"")
        self.policies()
        self.secrets()

    def network(self) -> None:
        """One VPC; a subnet that a queue uses is private, every other one public."""
        import boto3
        from moto.backends import get_backend

        backend, client = get_backend("ec2")[self.id][self.region], boto3.client("ec2")
        with mock.patch("moto.ec2.models.vpcs.random_vpc_id", return_value=self.vpc):
            backend.create_vpc("10.0.0.0/16")
        backend.modify_vpc_attribute(self.vpc, "enable_dns_hostnames", "true")
        gateway = client.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
        client.attach_internet_gateway(InternetGatewayId=gateway, VpcId=self.vpc)
        private = {each for queue in self.queues for each in queue["Networking"]["SubnetIds"]}
        for number, name in enumerate(named(self.config, "SubnetId", "SubnetIds")):
            with mock.patch("moto.ec2.models.subnets.random_subnet_id", return_value=name):
                subnet = backend.create_subnet(self.vpc, f"10.0.{16 * number}.0/20", availability_zone=self.zone)
            subnet.map_public_ip_on_launch = name not in private  # moto takes the first of a zone for its default
            if name not in private:
                table = client.create_route_table(VpcId=self.vpc)["RouteTable"]["RouteTableId"]
                client.associate_route_table(RouteTableId=table, SubnetId=name)
                client.create_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway)
        everything = {"IpProtocol": "-1", "UserIdGroupPairs": [], "IpRanges": [{"CidrIp": "10.0.0.0/16"}]}
        for name in named(self.config, "SecurityGroups", "AdditionalSecurityGroups"):
            with mock.patch("moto.ec2.models.security_groups.random_security_group_id", return_value=name):
                client.create_security_group(GroupName=name, Description=name, VpcId=self.vpc)
            client.authorize_security_group_ingress(GroupId=name, IpPermissions=[everything])

    def images(self, official: str, architecture: str) -> None:
        """The official image, and those of the user, which `pcluster build-image` has made."""
        from moto.backends import get_backend
        from moto.ec2.models.amis import Ami

        ec2 = get_backend("ec2")[self.id][self.region]
        names = {self.image: official} | {each: f"own {each}" for each in named(self.config, "CustomAmi")}
        for image, name in names.items():
            own = image != self.image
            ec2.amis[image] = Ami(
                ec2,
                image,
                name=name,
                owner_id=self.id if own else "amazon",
                owner_alias=None if own else "amazon",
                public=not own,
                architecture=architecture,
                virtualization_type="hvm",
                root_device_type="ebs",
            )
            if own:
                tags = {"parallelcluster:os": self.config["Image"]["Os"], "parallelcluster:build_status": "available"}
                ec2.create_tags([image], {**tags, "parallelcluster:version": official.split("-")[2]})

    def objects(self) -> Iterator[tuple[str, str]]:
        """Bucket and key of each object that the configuration names; the key is empty where it names a bucket."""
        for path, value in walk(self.config):
            if path[-1] == "BucketName":
                yield value.partition("/")[0], ""
            elif isinstance(value, str) and value.startswith("s3://"):
                bucket, _, key = value[5:].partition("/")
                yield bucket, key if path[-1] == "Script" else ""

    def placement_groups(self) -> list[str]:
        return list(dict.fromkeys(each for path, each in walk(self.config) if path[-2:] == ("PlacementGroup", "Name")))

    def policies(self) -> None:
        """The user's own policies, and those of AWS that there are: a misspelt one is refused."""
        import boto3
        from moto.backends import get_backend
        from moto.iam.models import AWSManagedPolicy

        backend = get_backend("iam")[self.id][self.partition]
        for arn in named(self.config, "Policy"):
            name = arn.rpartition("/")[2]
            if not AWS_POLICY.match(arn):
                boto3.client("iam").create_policy(PolicyName=name, PolicyDocument=json.dumps(POLICY))
            elif name in aws_policies():
                policy = AWSManagedPolicy.from_data(name, self.id, self.partition, aws_policies()[name])
                backend.managed_policies[policy.arn] = policy

    def secrets(self) -> None:
        import boto3
        from moto.backends import get_backend

        backend = get_backend("secretsmanager")[self.id][self.region]
        for arn in named(self.config, "PasswordSecretArn", "MungeKeySecretArn"):
            name = arn.rpartition(":")[2]
            boto3.client("secretsmanager").create_secret(Name=name, SecretString="x")
            backend.secrets[name].arn = arn

    # What moto does not answer

    def answers(self) -> dict[str, Callable[[Answer], Answer]]:
        return {
            "DescribeCapacityReservations": self.reservations,
            "DescribeCapacityBlockStatus": lambda given: {"CapacityBlockStatuses": []},
            "DescribeFileSystems": self.file_systems,
            "DescribeVolumes": self.volumes,
            "GetGroupConfiguration": lambda given: {
                "GroupConfiguration": {"Configuration": [{"Type": "AWS::EC2::CapacityReservationPool"}]}
            },
            "ListGroupResources": self.grouped,
        }

    def answering(self) -> Any:
        """botocore with these answers; every other call goes to moto."""
        import botocore.client

        original, answers = botocore.client.BaseClient._make_api_call, self.answers()

        def call(client: Any, operation: str, given: Answer) -> Answer:
            service = client.meta.service_model.service_name
            if operation in answers and (operation, service) != ("DescribeVolumes", "ec2"):
                return answers[operation](given)
            answer: Answer = original(client, operation, given)
            return answer

        return mock.patch.object(botocore.client.BaseClient, "_make_api_call", call)

    def targets(self, key: str) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
        """Each reservation or group that a queue or compute resource names, with the queue and the compute resource."""
        for queue in self.queues:
            for resource in queue["ComputeResources"]:
                for each in (resource, queue):
                    found = (each.get("CapacityReservationTarget") or {}).get(key)
                    if found:
                        yield found, queue, resource
                        break

    def reservations(self, given: Answer) -> Answer:
        """A reservation is active, without a placement group, and as large as what the configuration takes of it."""
        found: dict[str, Answer] = {}
        targets = [*self.targets("CapacityReservationId"), *self.members()]
        for name, queue, resource in targets:
            block = queue.get("CapacityType") == "CAPACITY_BLOCK"
            systems = {"rhel": "Red Hat Enterprise Linux"}
            one = found.setdefault(
                name,
                {
                    "CapacityReservationId": name,
                    "CapacityReservationArn": self.reservation_arn(name),
                    "InstanceType": resource["InstanceType"],
                    "InstancePlatform": systems.get(self.config["Image"]["Os"][:4], "Linux/UNIX"),
                    "AvailabilityZone": self.zone,
                    "State": "active",
                    "ReservationType": "capacity-block" if block else "default",
                    "TotalInstanceCount": 0,
                    "AvailableInstanceCount": 0,
                },
            )
            one["TotalInstanceCount"] += resource["MaxCount"]
            one["AvailableInstanceCount"] += resource["MaxCount"]
        return {"CapacityReservations": [found[each] for each in given["CapacityReservationIds"]]}

    def members(self) -> list[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
        """The one reservation of each resource group."""
        groups = self.targets("CapacityReservationResourceGroupArn")
        return [("cr-" + digits(arn, resource["InstanceType"]), queue, resource) for arn, queue, resource in groups]

    def grouped(self, given: Answer) -> Answer:
        found = [
            "cr-" + digits(arn, resource["InstanceType"])
            for arn, _, resource in self.targets("CapacityReservationResourceGroupArn")
            if arn == given["Group"]
        ]
        kind = "AWS::EC2::CapacityReservation"
        arns = map(self.reservation_arn, found)
        return {"Resources": [{"Identifier": {"ResourceArn": each, "ResourceType": kind}} for each in arns]}

    def reservation_arn(self, name: str) -> str:
        return f"arn:{self.partition}:ec2:{self.region}:{self.id}:capacity-reservation/{name}"

    def file_systems(self, given: Answer) -> Answer:
        return {"FileSystems": [self.file_system(each) for each in given["FileSystemIds"]]}

    def file_system(self, name: str) -> Answer:
        """A file system in the VPC, behind a security group that lets the VPC in."""
        lustre = name in [
            value for path, value in walk(self.config) if path[-2:] == ("FsxLustreSettings", "FileSystemId")
        ]
        return {
            "FileSystemId": name,
            "FileSystemType": "LUSTRE" if lustre else "OPENZFS",
            "VpcId": self.vpc,
            "DNSName": f"{name}.fsx.{self.region}.amazonaws.com",
            "SubnetIds": named(self.config, "SubnetIds")[:1],
            "NetworkInterfaceIds": [self.interface(name)],
            **({"LustreConfiguration": {"MountName": "fsxmount"}} if lustre else {}),
        }

    def interface(self, of: str) -> str:
        import boto3

        client = boto3.client("ec2")
        subnet = named(self.config, "SubnetIds")[0]
        group = client.create_security_group(GroupName=f"of {of}", Description=of, VpcId=self.vpc)["GroupId"]
        inside = [{"IpProtocol": "-1", "IpRanges": [{"CidrIp": "10.0.0.0/16"}]}]
        client.authorize_security_group_ingress(GroupId=group, IpPermissions=inside)
        made = client.create_network_interface(SubnetId=subnet, Groups=[group])
        found: str = made["NetworkInterface"]["NetworkInterfaceId"]
        return found

    def volumes(self, given: Answer) -> Answer:
        """Each volume of FSx for OpenZFS, on a file system of its own."""
        return {
            "Volumes": [
                {
                    "VolumeId": each,
                    "VolumeType": "OPENZFS",
                    "FileSystemId": "fs-" + digits(each),
                    "OpenZFSConfiguration": {"VolumePath": "/fsx/home"},
                }
                for each in given["VolumeIds"]
            ]
        }
