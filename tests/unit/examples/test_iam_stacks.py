# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""examples/iam: who deploys a stack has the rights that its resources need, by AWS' own descriptions, and no others.

CloudFormation calls AWS with the rights of whoever asks. The schema of a resource names the permissions of each of its
handlers, and cfn-lint has the schemas.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.tests import installed
from ansible_collections.pcluster.postboot.tests.unit.playbooks.stacks import template

from .test_iam import BOTO3, DOCUMENTS, actions, kinds, listed, methods, needed, operations, resources, statements

ROOT = Path(__file__).resolve().parents[3]
REGION = "us-east-2"
LARGEST = 6144  # characters of a managed policy, blanks apart
STACKS = {
    "infrastructure": ["infrastructure", "infrastructure-storage"],
    "monitoring": ["monitoring", "monitoring-balancer"],
    "observability": ["observability", "observability-alerts"],
}
# Permissions of handlers, for what the templates do not have.
LEFT_OUT = {
    "acm-pca:.*": "a certificate of a private authority",
    "aps:.*LoggingConfiguration": "logs of a workspace, which are only read",
    "cognito-idp:.*": "a listener that asks people to log in",
    "ec2:AcceptAddressTransfer": "an address of another account",
    "ec2:(Associate|Disassociate)Address": "an address of an instance",
    "ec2:.*(PrivateNatGatewayAddress|sociateNatGatewayAddress)": "further addresses of a NAT gateway",
    "ec2:.*sociateSubnetCidrBlock": "IPv6",
    "ec2:(At|De)tachVpnGateway": "a VPN gateway",
    "ec2:(Associate|Disassociate|Replace)IamInstanceProfile.*": "another profile of an instance that runs",
    "ec2:CopyVolumes": "a volume that is copied",
    "ec2:CreateVpcEncryptionControl": "encryption that a VPC enforces",
    "ec2:DescribeIpamPools": "addresses of IPAM",
    "ec2:Modify(PrivateDnsNameOptions|InstanceCreditSpecification|InstancePlacement)": "settings of an instance",
    "ec2:ModifyInstance(MaintenanceOptions|MetadataOptions)": "settings of an instance",
    "ec2:ModifyVpcTenancy": "dedicated hardware",
    "ec2:(Unm|M)onitorInstances": "detailed monitoring",
    "ec2:UpdateSecurityGroupRuleDescriptions.*": "descriptions of rules",
    "elasticloadbalancing:(ModifyCapacityReservation|ModifyIpPools|SetIpAddressType)": "IPv6, pools and capacity",
    "iam:(At|De)tach(Group|User)Policy": "people, to whom no policy is attached",
    "iam:.*RolePermissionsBoundary": "a boundary",
    "kms:.*": "a key of your own",
    "logs:.*": "logs of a workspace",
    "s3:.*MetadataTable.*|s3:UpdateBucketMetadata.*|s3tables:.*": "tables of metadata",
    "s3:(Put|Delete)Bucket(Abac|Acl|Analytics|Logging|Metrics).*": "more of a bucket",
    "s3:(Put|Delete)Bucket(CORS|Cors|Notification|Replication|Website)": "more of a bucket",
    "s3:PutBucketObjectLockConfiguration|s3:PutObject.*|s3:DeleteObject": "objects",
    "s3:Put(Accelerate|Analytics|IntelligentTiering|Inventory|Metrics|Replication)Configuration": "more of a bucket",
    "s3:DeleteBucket(Encryption|Lifecycle)": "a bucket without encryption",
    "secretsmanager:(GetSecretValue|ReplicateSecretToRegions|RemoveRegionsFromReplication)": "the secret's own text",
    "sns:(PutDataProtectionPolicy|SetSubscriptionAttributes)": "filters of messages",
    "ssm:.*Association.*": "SSM associations",
    "vpc-lattice:.*|vpce:.*": "VPC Lattice, and other regions",
}
# Rights of one stack's resources that another stack's have not.
LEFT_OUT_OF = {
    "infrastructure": {
        "iam:DetachRolePolicy": "roles to which ReadBundles is attached; AttachRolePolicy is for links to S3",
        "iam:PassRole": "replication of a bucket",
    },
    "monitoring": {},
    "observability": {
        "ec2:.*": "a workspace in a VPC",
        "iam:(At|De)tachRolePolicy": "the inline policy is the only one of the role",
        "iam:UpdateRole": "the time that a session lasts",
    },
}
# What no handler names.
BESIDE = {
    "infrastructure": {
        "cloudformation:DeleteStack": "the way to take the stack away, by hand",
        "ec2:GetSecurityGroupsForVpc": "FSx, by AmazonFSxFullAccess",
        "fsx:(Create|Update)FileSystem|fsx:DescribeFileSystems": "AWS::FSx::FileSystem has no handlers",
        "fsx:ListTagsForResource": "AWS::FSx::FileSystem has no handlers",
    },
    "monitoring": {
        "cloudformation:DeleteStack": "the way to take the stack away, by hand",
        "ec2:Describe(AccountAttributes|InternetGateways)": "load balancers, by ElasticLoadBalancingFullAccess",
        "ec2:Describe(AvailabilityZones|Images)": "the types of the template's parameters",
        "iam:CreateServiceLinkedRole": "the first load balancer",
    },
    "observability": {},
}
WITHOUT_HANDLERS = {"AWS::FSx::FileSystem"}
# What EC2 also asks about, where a call names such a thing, and the templates have none.
KINDS_LEFT_OUT = {
    "(Create|Delete)Tags .*": "tags of what the templates do not make",
    ".* (ipam-pool|ipv4pool-ec2|ipv6pool-ec2)": "pools of addresses",
    ".* vpn-gateway": "a VPN gateway",
    "CreateVolume snapshot": "an empty volume",
    "ModifyInstanceAttribute volume": "a volume's own attributes",
    "RunInstances (capacity-reservation|group|placement-group|spot-instances-request)": "where an instance runs",
    "RunInstances (elastic-gpu|elastic-inference|secondary-interface|secondary-subnet)": "more hardware",
    "RunInstances (key-pair|snapshot)": "keys, and images that are the account's own",
    "(Run|Start)Instances (group|license-configuration)": "licences",
}


def handlers(kind: str) -> dict[str, dict[str, Any]]:
    """The handlers of a resource, which cfn-lint's own reader of schemas leaves out."""
    data = installed.package("cfnlint") / "data/schemas"
    name = json.loads((data / f"providers/{REGION}.json").read_text(encoding="utf-8"))[kind]
    found: dict[str, dict[str, Any]] = json.loads((data / f"resources/{name}.json").read_text(encoding="utf-8")).get(
        "handlers", {}
    )
    return found


def wanted(stack: str) -> set[str]:
    """The permissions of all handlers, but of those that delete what stays."""
    found = set()
    for resource in template(stack)["Resources"].values():
        known = handlers(resource["Type"])
        assert bool(known) == (resource["Type"] not in WITHOUT_HANDLERS), resource["Type"]
        for name, handler in known.items():
            if name != "list" and not (name == "delete" and resource.get("DeletionPolicy") == "Retain"):
                found |= {_lowered(each) for each in handler["permissions"]}
    return found


def _lowered(action: str) -> str:
    """Some schemas write a service in capitals."""
    service, colon, name = action.partition(":")
    return service.lower() + colon + name


def fits(action: str, patterns: dict[str, str]) -> bool:
    return any(re.fullmatch(pattern, action) for pattern in patterns)


def called(documents: list[str]) -> set[str]:
    """The actions of the code that these documents are for."""
    names = {name for file, each in BOTO3 if set(each) <= set(documents) for name in methods(ROOT / file)}
    return {action for name in names for each in operations()[name] for action in needed(each)}


@pytest.mark.parametrize("stack", STACKS)
def test_who_deploys_a_stack_has_what_its_resources_need(stack: str) -> None:
    missing = wanted(stack) - actions(*STACKS[stack])
    assert {each for each in missing if not fits(each, {**LEFT_OUT, **LEFT_OUT_OF[stack]})} == set()


@pytest.mark.parametrize("stack", STACKS)
def test_who_deploys_a_stack_has_nothing_else(stack: str) -> None:
    more = actions(*STACKS[stack]) - wanted(stack) - called(STACKS[stack])
    assert {each for each in more if not fits(each, BESIDE[stack])} == set()
    assert all(any(re.fullmatch(each, action) for action in more) for each in BESIDE[stack])


def test_each_exception_is_needed() -> None:
    missing = {stack: wanted(stack) - actions(*STACKS[stack]) for stack in STACKS}
    for pattern in LEFT_OUT:
        assert any(re.fullmatch(pattern, each) for found in missing.values() for each in found), pattern
    for stack, patterns in LEFT_OUT_OF.items():
        for pattern in patterns:
            assert any(re.fullmatch(pattern, each) for each in missing[stack]), (stack, pattern)


def test_an_action_of_ec2_is_allowed_on_every_kind_of_thing_that_its_call_names() -> None:
    """AWS' data do not tell which kinds EC2 always asks about, so each is allowed or has its reason."""
    lacking = set()
    for documents in STACKS.values():
        every = [each for name in documents for each in statements(name)]
        for action in (each for each in actions(*documents) if each.startswith("ec2:") and resources(each)):
            named = [one for each in every if action in listed(each["Action"]) for one in listed(each["Resource"])]
            for kind, patterns in kinds(action).items():
                if not any(re.fullmatch(pattern, one) for pattern in patterns for one in named):
                    lacking.add(f"{action.partition(':')[2]} {kind}")
    assert {each for each in lacking if not fits(each, KINDS_LEFT_OUT)} == set()
    assert all(any(re.fullmatch(each, one) for one in lacking) for each in KINDS_LEFT_OUT)


def test_nothing_that_holds_data_can_be_deleted() -> None:
    for stack in ("infrastructure", "monitoring"):
        allowed = actions(*STACKS[stack])
        assert not allowed & {"fsx:DeleteFileSystem", "s3:DeleteBucket", "s3:DeleteObject", "ec2:DeleteVolume"}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda each: each.stem)
def test_a_document_fits_into_a_managed_policy(document: Path) -> None:
    assert len(re.sub(r"\s", "", document.read_text())) <= LARGEST


@pytest.mark.parametrize(
    ("stack", "resource", "document"),
    [
        ("infrastructure", "ReadBundles", "node-bundle"),
        ("monitoring", "InstanceRole", "monitoring-instance"),
        ("observability", "HeadNodePolicy", "head-remote-write"),
        ("observability", "AlertsPolicy", "head-alerts"),
        ("observability", "GrafanaRole", "grafana-data-source"),
    ],
)
def test_a_stack_grants_what_the_document_says(stack: str, resource: str, document: str) -> None:
    properties = template(stack)["Resources"][resource]["Properties"]
    policies = (
        [properties["PolicyDocument"]]
        if "PolicyDocument" in properties
        else [each["PolicyDocument"] for each in properties["Policies"]]
    )
    granted = {action for policy in policies for each in policy["Statement"] for action in listed(each["Action"])}
    assert granted == actions(document)
