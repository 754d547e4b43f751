# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Types of resources that moto's CloudFormation leaves out, with a mere warning, and properties that it forgets.

Each type behaves as its page of the CloudFormation Template Reference says (Ref, GetAtt, what a replacement is), and is
made in moto's own backend where moto has one, so that the service's API tells the same.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any
from uuid import uuid4

import bucket_policies
import change_sets
import messages
from added import Added
from moto.acm import acm_backends
from moto.cloudformation import parsing
from moto.ec2 import ec2_backends
from moto.ec2.exceptions import InvalidSecurityGroupNotFoundError
from moto.ec2.models.route_tables import RouteTable
from moto.ec2.models.security_groups import SecurityGroup
from moto.ec2.models.subnets import Subnet, SubnetRouteTableAssociation
from moto.ec2.models.vpcs import VPC
from moto.fsx import fsx_backends
from moto.s3.models import FakeBucket, s3_backends
from moto.secretsmanager import secretsmanager_backends

FSX_KEYS = {
    "LUSTRE": "lustre_configuration",
    "OPENZFS": "open_zfs_configuration",
    "WINDOWS": "windows_configuration",
    "ONTAP": "ontap_configuration",
}
FSX_CONFIGURATION = {"LUSTRE": "LustreConfiguration", "OPENZFS": "OpenZFSConfiguration"}


class PrometheusWorkspace(Added):
    """Ref is the ARN (aws-resource-aps-workspace). The API of the workspace itself is ../amp."""

    kind, attributes = "AWS::APS::Workspace", dict.fromkeys(("Ref", "Arn", "WorkspaceId", "PrometheusEndpoint"), "")

    def make(self) -> dict[str, str]:
        arn = f"arn:aws:aps:{self.region}:{self.account}:workspace/ws-1"
        endpoint = f"https://aps-workspaces.{self.region}.amazonaws.com/workspaces/ws-1/"
        return {"Ref": arn, "Arn": arn, "WorkspaceId": "ws-1", "PrometheusEndpoint": endpoint}


class GrafanaWorkspace(Added):
    """Ref is the id, and Endpoint has no scheme (aws-resource-grafana-workspace)."""

    kind, attributes = "AWS::Grafana::Workspace", dict.fromkeys(("Ref", "Id", "Endpoint"), "")

    def make(self) -> dict[str, str]:
        return {"Ref": "g-1", "Id": "g-1", "Endpoint": f"g-1.grafana-workspace.{self.region}.amazonaws.com"}


class Certificate(Added):
    """Ref is the ARN (aws-resource-certificatemanager-certificate). AWS waits until the domain is validated."""

    kind, attributes = "AWS::CertificateManager::Certificate", {"Ref": ""}

    def make(self) -> dict[str, str]:
        names = self.properties.get("SubjectAlternativeNames", [])
        tags = self.properties.get("Tags", [])
        backend = acm_backends[self.account][self.region]
        return {"Ref": backend.request_certificate(self.properties["DomainName"], self.name, names, tags)}

    def delete(self, account_id: str, region_name: str) -> None:
        acm_backends[account_id][region_name].delete_certificate(self.told["Ref"])


class FileSystem(Added):
    """Ref is the id; the attributes are those of the type's schema (aws-resource-fsx-filesystem)."""

    kind = "AWS::FSx::FileSystem"
    attributes = dict.fromkeys(("Ref", "Id", "DNSName", "LustreMountName", "ResourceARN", "RootVolumeId"), "")

    def make(self) -> dict[str, str]:
        wanted = self.properties
        configuration = dict.fromkeys(FSX_KEYS.values())
        kind = wanted["FileSystemType"]
        configuration[FSX_KEYS[kind]] = wanted.get(FSX_CONFIGURATION[kind])
        backend = fsx_backends[self.account][self.region]
        self.part = backend.create_file_system(
            client_request_token="",
            file_system_type=kind,
            file_system_type_version=wanted.get("FileSystemTypeVersion"),
            storage_capacity=int(wanted["StorageCapacity"]),
            storage_type=wanted.get("StorageType", "SSD"),
            subnet_ids=wanted["SubnetIds"],
            security_group_ids=wanted.get("SecurityGroupIds", []),
            tags=None,
            kms_key_id=wanted.get("KmsKeyId"),
            **configuration,
        )
        # moto's ids have 8 digits, and AWS's 17, for which ParallelCluster's schema asks.
        short, ident = self.part.file_system_id, f"fs-{uuid4().hex[:17]}"
        for attribute in ("file_system_id", "dns_name", "resource_arn"):
            setattr(self.part, attribute, getattr(self.part, attribute).replace(short, ident))
        backend.file_systems[ident] = backend.file_systems.pop(short)
        backend.tagger.tag_resource(self.part.resource_arn, wanted.get("Tags") or [])
        found = {"Ref": ident, "Id": ident, "DNSName": self.part.dns_name, "ResourceARN": self.part.resource_arn}
        if kind == "LUSTRE":
            return {**found, "LustreMountName": ident[3:11]}
        return {**found, "RootVolumeId": f"fsvol-{uuid4().hex[:17]}"}

    def change(self) -> None:
        self.part.storage_capacity = int(self.properties["StorageCapacity"])
        kind = self.properties["FileSystemType"]
        setattr(self.part, FSX_KEYS[kind], self.properties.get(FSX_CONFIGURATION[kind]))

    def delete(self, account_id: str, region_name: str) -> None:
        fsx_backends[account_id][region_name].delete_file_system(self.told["Ref"], "", None, None, None)


class RepositoryAssociation(Added):
    """Ref is the id (aws-resource-fsx-datarepositoryassociation). moto has no call for it."""

    kind, attributes = "AWS::FSx::DataRepositoryAssociation", dict.fromkeys(("Ref", "AssociationId"), "")

    def make(self) -> dict[str, str]:
        ident = f"dra-{uuid4().hex[:17]}"
        return {"Ref": ident, "AssociationId": ident}


class PrefixList(Added):
    """Ref is the id (aws-resource-ec2-prefixlist); entries are changed in place, as a new version."""

    kind, attributes = "AWS::EC2::PrefixList", dict.fromkeys(("Ref", "Arn", "PrefixListId"), "")

    def make(self) -> dict[str, str]:
        self.part = ec2_backends[self.account][self.region].create_managed_prefix_list(
            self.properties["AddressFamily"],
            self._entries(),
            str(self.properties["MaxEntries"]),
            self.properties["PrefixListName"],
        )
        return {"Ref": self.part.id, "PrefixListId": self.part.id, "Arn": self.part.prefix_list_arn}

    def change(self) -> None:
        self.part.version += 1
        self.part.entries[self.part.version] = self._entries()

    def delete(self, account_id: str, region_name: str) -> None:
        ec2_backends[account_id][region_name].delete_managed_prefix_list(self.part.id)

    def _entries(self) -> list[dict[str, str]]:
        return [{"Cidr": one["Cidr"]} for one in self.properties.get("Entries", []) if one]


class Egress(Added):
    """With one such rule the group loses the rule that lets everything out (aws-resource-ec2-securitygroupegress)."""

    kind, attributes = "AWS::EC2::SecurityGroupEgress", dict.fromkeys(("Ref", "Id"), "")

    def make(self) -> dict[str, str]:
        backend, group = ec2_backends[self.account][self.region], self.properties["GroupId"]
        there = backend.get_security_group_from_id(group)
        if not getattr(there, "sandbox_egress", False):
            there.egress_rules.clear()
            there.sandbox_egress = True
        rules, _ = backend.authorize_security_group_egress(*self._rule())
        return {"Ref": rules[0].id, "Id": rules[0].id}

    def delete(self, account_id: str, region_name: str) -> None:
        # moto deletes a stack's resources in any order: rules go with their group.
        with suppress(InvalidSecurityGroupNotFoundError):
            ec2_backends[account_id][region_name].revoke_security_group_egress(*self._rule())

    def _rule(self) -> tuple[Any, ...]:
        wanted = self.properties
        ranges = [{"CidrIp": wanted["CidrIp"]}] if "CidrIp" in wanted else []
        group = wanted.get("DestinationSecurityGroupId")
        peers = [{"GroupId": group}] if group else []
        ports = (wanted.get("FromPort"), wanted.get("ToPort"))
        return (wanted["GroupId"], wanted["IpProtocol"], *ports, ranges, {}, peers)


class Secret(Added):
    """Ref is the secret's ARN (aws-resource-secretsmanager-secret). The generated value is the same each time."""

    kind, attributes = "AWS::SecretsManager::Secret", {"Ref": ""}

    def make(self) -> dict[str, str]:
        wanted, backend = self.properties, secretsmanager_backends[self.account][self.region]
        value = wanted.get("SecretString") or "x" * int(wanted["GenerateSecretString"].get("PasswordLength", 32))
        name = wanted.get("Name") or f"{self.name}-{uuid4().hex[:12]}"
        told = backend.create_secret(name, value, None, wanted.get("Description"), None, None, None, [], False)
        return {"Ref": json.loads(told)["ARN"]}

    def delete(self, account_id: str, region_name: str) -> None:
        secretsmanager_backends[account_id][region_name].delete_secret(self.told["Ref"], None, True)


class BucketPolicy(Added):
    """Ref is the bucket's name (aws-resource-s3-bucketpolicy). bucket_policies.py enforces the policy."""

    kind, attributes = "AWS::S3::BucketPolicy", {"Ref": ""}

    def make(self) -> dict[str, str]:
        self.change()
        return {"Ref": self.properties["Bucket"]}

    def change(self) -> None:
        policy = json.dumps(self.properties["PolicyDocument"]).encode()
        s3_backends[self.account]["aws"].put_bucket_policy(self.properties["Bucket"], policy)

    def delete(self, account_id: str, region_name: str) -> None:
        s3_backends[account_id]["aws"].delete_bucket_policy(self.properties["Bucket"])


ADDED = (
    *(PrometheusWorkspace, GrafanaWorkspace, Certificate, FileSystem, RepositoryAssociation, PrefixList, Egress),
    *(BucketPolicy, Secret),
    *messages.ADDED,
)


# What moto makes, without some properties


def _vpc(vpc: VPC, wanted: dict[str, Any], _backend: Any) -> None:
    for attribute, key in (("enable_dns_support", "EnableDnsSupport"), ("enable_dns_hostnames", "EnableDnsHostnames")):
        if key in wanted:
            setattr(vpc, attribute, str(wanted[key]).lower())


def _subnet(subnet: Subnet, wanted: dict[str, Any], _backend: Any) -> None:
    subnet.map_public_ip_on_launch = str(wanted.get("MapPublicIpOnLaunch", False)).lower()


def _bucket(bucket: FakeBucket, wanted: dict[str, Any], _backend: Any) -> None:
    backend = s3_backends[bucket.account_id]["aws"]
    if "VersioningConfiguration" in wanted:
        backend.put_bucket_versioning(bucket.name, wanted["VersioningConfiguration"]["Status"])
    if "PublicAccessBlockConfiguration" in wanted:
        backend.put_public_access_block(bucket.name, wanted["PublicAccessBlockConfiguration"])
    if "OwnershipControls" in wanted:
        backend.put_bucket_ownership_controls(bucket.name, wanted["OwnershipControls"]["Rules"][0]["ObjectOwnership"])
    if "LifecycleConfiguration" in wanted:
        rules = [
            {
                "ID": one["Id"],
                "Status": one["Status"],
                "Filter": {},
                "AbortIncompleteMultipartUpload": one["AbortIncompleteMultipartUpload"],
            }
            for one in wanted["LifecycleConfiguration"]["Rules"]
        ]
        backend.put_bucket_lifecycle(bucket.name, rules)


def _group(made: SecurityGroup, wanted: dict[str, Any], backend: Any) -> None:
    """Put the rules of SecurityGroupEgress, which moto forgets, in the place of the one that lets everything out."""
    if "SecurityGroupEgress" not in wanted:
        return
    made.egress_rules.clear()
    made.sandbox_egress = True  # type: ignore[attr-defined]
    for rule in wanted["SecurityGroupEgress"]:
        if not {"CidrIp", "IpProtocol"} <= set(rule):
            raise NotImplementedError(f"SecurityGroupEgress {rule}: write AWS::EC2::SecurityGroupEgress")
        ports = (rule.get("FromPort"), rule.get("ToPort"))
        backend.authorize_security_group_egress(made.id, rule["IpProtocol"], *ports, [{"CidrIp": rule["CidrIp"]}])


def _association(_made: SubnetRouteTableAssociation, wanted: dict[str, Any], backend: Any) -> None:
    backend.associate_route_table(wanted["RouteTableId"], subnet_id=wanted["SubnetId"])


SUPPLEMENTS = {
    VPC: _vpc,
    Subnet: _subnet,
    SubnetRouteTableAssociation: _association,
    FakeBucket: _bucket,
    SecurityGroup: _group,
}


def _supplemented(model: Any, finish: Any) -> Any:
    create = model.create_from_cloudformation_json.__func__

    def create_from_cloudformation_json(
        cls: Any, resource_name: str, cloudformation_json: Any, account_id: str, region_name: str, **kwargs: Any
    ) -> Any:
        made = create(cls, resource_name, cloudformation_json, account_id, region_name, **kwargs)
        finish(made, cloudformation_json.get("Properties", {}), ec2_backends[account_id][region_name])
        return made

    return classmethod(create_from_cloudformation_json)


def _remove_route_table(_cls: Any, name: str, _properties: Any, account: str, region: str) -> None:
    """Remove a route table with its stack: moto keeps it, and then refuses to remove the VPC."""
    ec2_backends[account][region].route_tables.pop(name, None)


def patches() -> list[tuple[Any, str, Any]]:
    """Return what is to be set where in moto: by the server for good, by a test for its time."""
    known = [*parsing.get_model_list(), *ADDED]
    by_type = {one.cloudformation_type(): one for one in known}
    name_types = {kind: one.cloudformation_name_type() for kind, one in by_type.items()}
    return [
        (parsing, "get_model_list", lambda: known),
        (parsing, "get_model_map", lambda: by_type),
        (parsing, "get_name_type_map", lambda: name_types),
        *((model, "create_from_cloudformation_json", _supplemented(model, end)) for model, end in SUPPLEMENTS.items()),
        (RouteTable, "delete_from_cloudformation_json", classmethod(_remove_route_table)),
        *change_sets.patches(),
        *bucket_policies.patches(),
        *messages.patches(),
    ]


def register() -> None:
    for target, name, value in patches():
        setattr(target, name, value)
