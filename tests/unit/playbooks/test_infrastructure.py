# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The infrastructure: its template, and the playbook against the sandbox's AWS on loopback.

How long file systems take, what they cost, and whether a zone has room for them, only AWS can show.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from botocore.exceptions import ClientError

from ansible_collections.pcluster.postboot.plugins.plugin_utils._infrastructure import parameters
from ansible_collections.pcluster.postboot.plugins.plugin_utils._publish import rights
from ansible_collections.pcluster.postboot.tests.programs import load
from ansible_collections.pcluster.postboot.tests.unit.playbooks import stacks
from ansible_collections.pcluster.postboot.tests.unit.playbooks.stacks import Play, changed, stack

ROOT = Path(__file__).resolve().parents[3]
TEMPLATE = ROOT / "roles/infrastructure/files/infrastructure.template"
NAME, REGION, ACCOUNT = "pcluster", "us-east-2", "123456789012"
BUCKET = f"{NAME}-postboot-{ACCOUNT}-{REGION}"
ADMIN = f"arn:aws:iam::{ACCOUNT}:role/Admin"
NEW = {"infrastructure_primary_az": "us-east-2b"}
# All that the template can have.
WHOLE = {
    **NEW,
    "infrastructure_secondary_az": "us-east-2a",
    "infrastructure_endpoints": ["ec2", "logs", "cloudformation", "ssm"],
    "infrastructure_login_ssh_from": ["203.0.113.7/32", "198.51.100.0/24"],
    "infrastructure_lustre_size": 4800,
    "infrastructure_lustre_throughput": 1000,
    "infrastructure_lustre_efa": True,
    "infrastructure_lustre_repository": "s3://my-data/sets",
    "infrastructure_lustre_export": True,
    "infrastructure_home_size": 512,
    "infrastructure_publishers": [ADMIN, f"arn:aws:sts::{ACCOUNT}:user/moto"],
    "infrastructure_monitoring": "self_hosted",
    "infrastructure_tags": {"team": "ml"},
}

WITHOUT_HOME = {"infrastructure_home_size": 0}


@pytest.fixture(scope="module")
def play(deploy: Callable[..., list[str]]) -> Play:
    """play({variables}, …) runs the playbook once for each, and returns what each run has said."""
    common = {"infrastructure_region": REGION, "infrastructure_poll": 0.1, "observability_poll": 0.1}
    return lambda *runs, **how: deploy("infrastructure", common, runs, **how)


@pytest.fixture(scope="module")
def deployed(play: Play, client: Callable[..., Any]) -> list[str]:
    """What a run with everything says, one that leaves out its options, and one that would lose /home."""
    client("s3").create_bucket(Bucket="my-data", CreateBucketConfiguration={"LocationConstraint": REGION})
    return play(WHOLE, {}, WITHOUT_HOME, code=2)


def outputs(client: Callable[..., Any]) -> dict[str, str]:
    return {one["OutputKey"]: one["OutputValue"] for one in stack(client, NAME)["Outputs"]}


@pytest.fixture(scope="module")
def template() -> dict[str, Any]:
    return stacks.template("infrastructure")


# The template


def test_the_template_is_small_enough() -> None:
    assert TEMPLATE.stat().st_size < 51200, "the most that CreateChangeSet takes"


def test_what_holds_data_is_retained(template: dict[str, Any]) -> None:
    holders = {
        name: (one.get("DeletionPolicy"), one.get("UpdateReplacePolicy"))
        for name, one in template["Resources"].items()
        if one["Type"] in ("AWS::FSx::FileSystem", "AWS::S3::Bucket", "AWS::S3::BucketPolicy")
    }
    assert holders == dict.fromkeys(["Lustre", "Home", "Bundles", "BundlesPolicy"], ("Retain", "Retain"))


def test_every_option_of_the_template_is_a_variable_of_the_role(template: dict[str, Any]) -> None:
    specs = yaml.safe_load((ROOT / "roles/infrastructure/meta/argument_specs.yml").read_text())
    known = specs["argument_specs"]["main"]["options"]
    slots = set(parameters.given({"endpoints": [], "login_ssh_from": []}))
    names = set(template["Parameters"]) - slots
    others = ("region", "profile", "endpoints", "login_ssh_from", "release", "tags", "vars_file", "poll", "parts")
    assert slots < set(template["Parameters"])
    assert {parameters.variable(name) for name in names} == set(known) - {f"infrastructure_{name}" for name in others}
    assert set(known["infrastructure_endpoints"]["choices"]) == set(parameters.ENDPOINTS)
    for name in names - {"Nat", "LustreEfa", "LustreExport"}:
        allowed = template["Parameters"][name].get("AllowedValues")
        assert known[parameters.variable(name)].get("choices") == allowed, name


# A run


def test_a_check_of_a_new_stack_makes_nothing(play: Play, client: Callable[..., Any], folder: Path) -> None:
    (said,) = play(NEW, check=True)
    assert "Add Lustre (AWS::FSx::FileSystem)" in said
    assert changed(said)
    assert client("cloudformation").describe_stacks()["Stacks"] == []
    assert not (folder / f"infrastructure-{NAME}.yml").exists()


def test_the_stack_has_every_resource_of_the_template(
    deployed: list[str], client: Callable[..., Any], template: dict[str, Any]
) -> None:
    # What moto does not know is left out with a warning: such a type belongs into molecule/cluster/aws/resources.py.
    assert changed(deployed[0])
    pages = client("cloudformation").get_paginator("list_stack_resources").paginate(StackName=NAME)
    there = {
        one["LogicalResourceId"]: one["ResourceType"]
        for page in pages
        for one in page["StackResourceSummaries"]
        if one["LogicalResourceId"]  # moto has an empty line for those whose condition does not hold
    }
    services = {parameters.parameter(f"with-endpoint-{name}") for name in WHOLE["infrastructure_endpoints"]}
    wanted = {
        name: one["Type"]
        for name, one in template["Resources"].items()
        if not one.get("Condition", "").startswith("WithEndpoint") or one["Condition"] in {*services, "WithEndpoints"}
    }
    assert there == wanted


def test_the_second_run_changes_nothing_whatever_it_leaves_out(deployed: list[str], client: Callable[..., Any]) -> None:
    assert not changed(deployed[1])
    assert stack(client, NAME)["Tags"] == [{"Key": "team", "Value": "ml"}]
    assert {"ParameterKey": "LustreSize", "ParameterValue": "4800"} in stack(client, NAME)["Parameters"]


def test_the_variables_of_the_other_playbooks_are_written(
    deployed: list[str], client: Callable[..., Any], folder: Path
) -> None:
    path, found = folder / f"infrastructure-{NAME}.yml", outputs(client)
    assert "very-secret" not in deployed[0] + path.read_text()
    variables = yaml.safe_load(path.read_text())
    parts = variables.pop("infrastructure_parts")
    assert variables == {
        "cluster_config_region": REGION,
        "cluster_config_subnet_head": found["PrivateSubnet"],
        "cluster_config_subnet_login": found["PublicSubnet"],
        "cluster_config_subnet_compute": found["PrivateSubnet"],
        "cluster_config_security_groups": [found["ClusterSecurityGroup"]],
        "cluster_config_fsx_lustre": found["Lustre"],
        "cluster_config_fsx_openzfs": found["HomeVolume"],
        "publish_s3": f"s3://{BUCKET}/postboot",
        "publish_login_policy": found["ReadBundles"],
    }
    assert parts == {
        "login_allowed_ips": found["LoginSshFrom"],
        "vpc": found["Vpc"],
        "cidr": "10.0.0.0/16",
        "primary_az": "us-east-2b",
        "public_subnets": [found["PublicSubnet"], found["SecondaryPublicSubnet"]],
        "private_subnets": [found["PrivateSubnet"], found["SecondaryPrivateSubnet"]],
        "nodes_security_group": found["ClusterSecurityGroup"],
        "monitoring_security_group": found["MonitoringSecurityGroup"],
    }


# What there is then


def rules(client: Callable[..., Any], group: str) -> set[tuple[str, str, str]]:
    """A group's rules: the direction, the protocol and ports, the peer."""
    (found,) = client("ec2").describe_security_groups(GroupIds=[group])["SecurityGroups"]
    return {
        (direction, f"{one['IpProtocol']} {one.get('FromPort', '')}-{one.get('ToPort', '')}", peer)
        for direction, key in (("in", "IpPermissions"), ("out", "IpPermissionsEgress"))
        for one in found[key]
        for peer in [*(pair["GroupId"] for pair in one["UserIdGroupPairs"]), *(r["CidrIp"] for r in one["IpRanges"])]
    }


@pytest.mark.usefixtures("deployed")
def test_nodes_and_an_efa_file_system_let_each_other_through(client: Callable[..., Any]) -> None:
    nodes = outputs(client)["ClusterSecurityGroup"]
    named = [{"Name": "tag:Name", "Values": [f"{NAME}-lustre"]}]
    lustre = client("ec2").describe_security_groups(Filters=named)["SecurityGroups"][0]["GroupId"]
    (system,) = client("fsx").describe_file_systems(FileSystemIds=[outputs(client)["Lustre"]])["FileSystems"]
    assert system["LustreConfiguration"]["EfaEnabled"] is True
    assert system["Tags"] == [{"Key": "Name", "Value": f"{NAME}-lustre"}]
    assert system["LustreConfiguration"]["MetadataConfiguration"] == {"Mode": "USER_PROVISIONED", "Iops": 6000}
    every, ports = "-1 -", "tcp 1018-1023"
    assert rules(client, lustre) == {
        (way, what, who) for way in ("in", "out") for what in (every, ports) for who in (nodes, lustre)
    }
    assert rules(client, nodes) >= {
        *(("in", every, nodes), ("out", every, nodes), ("out", every, "0.0.0.0/0")),
        *(("in", every, lustre), ("out", every, lustre)),
    }


@pytest.mark.usefixtures("deployed")
def test_nodes_are_in_one_zone_and_have_a_way_out(client: Callable[..., Any]) -> None:
    found, ec2 = outputs(client), client("ec2")
    by_id = {one["SubnetId"]: one for one in ec2.describe_subnets()["Subnets"]}
    private, public = by_id[found["PrivateSubnet"]], by_id[found["PublicSubnet"]]
    assert (private["AvailabilityZone"], private["CidrBlock"]) == ("us-east-2b", "10.0.0.0/17")
    assert (public["AvailabilityZone"], public["MapPublicIpOnLaunch"]) == ("us-east-2b", True)
    assert not private["MapPublicIpOnLaunch"]
    assert by_id[found["SecondaryPublicSubnet"]]["AvailabilityZone"] == "us-east-2a"

    def way(subnet: str) -> dict[str, Any]:
        wanted = [{"Name": "association.subnet-id", "Values": [subnet]}]
        (table,) = ec2.describe_route_tables(Filters=wanted)["RouteTables"]
        (route,) = (one for one in table["Routes"] if one.get("DestinationCidrBlock") == "0.0.0.0/0")
        return dict(route)

    assert way(found["PrivateSubnet"])["NatGatewayId"].startswith("nat-")
    assert way(found["PublicSubnet"])["GatewayId"].startswith("igw-")
    entries = ec2.get_managed_prefix_list_entries(PrefixListId=found["LoginSshFrom"])["Entries"]
    assert [one["Cidr"] for one in entries] == ["203.0.113.7/32", "198.51.100.0/24"]
    endpoints = {
        one["ServiceName"].rsplit(".", 1)[1]: one["VpcEndpointType"]
        for one in ec2.describe_vpc_endpoints()["VpcEndpoints"]
    }
    assert endpoints == {
        **dict.fromkeys(["s3", "dynamodb"], "Gateway"),
        **dict.fromkeys(["cloudformation", "ec2", "logs", "ssm"], "Interface"),
    }


# The bucket


@pytest.mark.usefixtures("deployed")
def test_the_bucket_is_private_encrypted_and_keeps_versions(client: Callable[..., Any]) -> None:
    s3 = client("s3")
    assert s3.get_bucket_versioning(Bucket=BUCKET)["Status"] == "Enabled"
    assert set(s3.get_public_access_block(Bucket=BUCKET)["PublicAccessBlockConfiguration"].values()) == {True}
    assert "AES256" in json.dumps(s3.get_bucket_encryption(Bucket=BUCKET)["ServerSideEncryptionConfiguration"])
    assert "BucketOwnerEnforced" in json.dumps(s3.get_bucket_ownership_controls(Bucket=BUCKET)["OwnershipControls"])
    assert s3.get_bucket_lifecycle_configuration(Bucket=BUCKET)["Rules"][0]["AbortIncompleteMultipartUpload"]


def session(client: Callable[..., Any], role: str, allowed: Any) -> Any:
    """S3 as a role sees it whose own policy allows these actions everywhere."""
    iam = client("iam")
    trust = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": "*", "Action": "sts:AssumeRole"}]}
    iam.create_role(RoleName=role, AssumeRolePolicyDocument=json.dumps(trust))
    wide = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": allowed, "Resource": "*"}]}
    iam.put_role_policy(RoleName=role, PolicyName="wide", PolicyDocument=json.dumps(wide))
    arn = f"arn:aws:iam::{ACCOUNT}:role/{role}"
    keys = client("sts").assume_role(RoleArn=arn, RoleSessionName="i-0123")["Credentials"]
    return client(
        "s3",
        aws_access_key_id=keys["AccessKeyId"],
        aws_secret_access_key=keys["SecretAccessKey"],
        aws_session_token=keys["SessionToken"],
    )


@pytest.mark.usefixtures("deployed")
def test_a_node_cannot_write_below_the_prefix_and_a_publisher_can(client: Callable[..., Any]) -> None:
    key = "postboot/1.0-0/bootstrap.sh"
    publisher = session(client, "Admin", "s3:*")
    publisher.put_object(Bucket=BUCKET, Key=key, Body=b"#!/bin/sh")
    # As ParallelCluster makes the role of a node that has S3Access with EnableWriteAccess.
    node = session(client, "pcluster-RoleHeadNode", "s3:*")
    assert node.get_object(Bucket=BUCKET, Key=key)["Body"].read() == b"#!/bin/sh"
    node.put_object(Bucket=BUCKET, Key="elsewhere", Body=b"")
    calls: list[Callable[[], Any]] = [
        lambda: node.put_object(Bucket=BUCKET, Key=key, Body=b"evil"),
        lambda: node.create_multipart_upload(Bucket=BUCKET, Key=key),
        lambda: node.copy_object(Bucket=BUCKET, Key=key, CopySource=f"{BUCKET}/elsewhere"),
        lambda: node.delete_object(Bucket=BUCKET, Key=key),
        lambda: node.delete_bucket_policy(Bucket=BUCKET),
        lambda: node.put_bucket_policy(Bucket=BUCKET, Policy="{}"),
        lambda: node.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Suspended"}),
    ]
    for call in calls:
        with pytest.raises(ClientError, match="AccessDenied"):
            call()
    assert publisher.get_object(Bucket=BUCKET, Key=key)["Body"].read() == b"#!/bin/sh"


@pytest.mark.usefixtures("deployed")
def test_the_policy_forbids_what_the_one_of_publish_does_and_asks_for_tls(client: Callable[..., Any]) -> None:
    policy = json.loads(client("s3").get_bucket_policy(Bucket=BUCKET)["Policy"])
    ours, tls = (dict(one) for one in policy["Statement"])
    arn = f"arn:aws:s3:::{BUCKET}"
    (printed,) = rights.bucket_policy(arn, f"{arn}/postboot/*", WHOLE["infrastructure_publishers"])["Statement"]
    assert set(ours.pop("Action")) >= set(printed.pop("Action"))
    assert ours == printed
    judge = load("molecule/cluster/aws/bucket_policies.py").denied
    admin = {"aws:PrincipalArn": ADMIN}
    assert judge(policy, "s3:GetObject", f"{arn}/postboot/x", {**admin, "aws:SecureTransport": "false"})
    assert not judge(policy, "s3:PutObject", f"{arn}/postboot/x", {**admin, "aws:SecureTransport": "true"})
    assert tls["Resource"] == [arn, f"{arn}/*"]


# Changes


def test_what_holds_data_is_not_lost(deployed: list[str], play: Play, client: Callable[..., Any]) -> None:
    told = outputs(client)
    assert "the update would remove Home (AWS::FSx::FileSystem)" in deployed[2]
    (moved,) = play({"infrastructure_primary_az": "us-east-2c"}, code=2)
    assert "would replace PublicSubnet (AWS::EC2::Subnet)" in moved
    assert outputs(client) == told


@pytest.fixture(scope="module")
def changes(deployed: list[str], play: Play) -> list[str]:
    """What runs say that let go of /home, want managed monitoring, leave out their options, and make another stack."""
    assert deployed
    bare = {**NEW, "infrastructure_name": "bare", "infrastructure_nat": False, "infrastructure_lustre_size": 0}
    return play({**WITHOUT_HOME, "infrastructure_release": ["home"]}, {"infrastructure_monitoring": "amp"}, {}, bare)


def test_what_holds_data_is_let_go_by_name_and_stays_in_the_account(
    changes: list[str], client: Callable[..., Any]
) -> None:
    assert "Remove Home (AWS::FSx::FileSystem)" in changes[0]
    assert "HomeVolume" not in outputs(client)
    kinds = [one["FileSystemType"] for one in client("fsx").describe_file_systems()["FileSystems"]]
    assert sorted(kinds) == ["LUSTRE", "OPENZFS"]


def test_managed_monitoring_is_the_role_observability(
    changes: list[str], client: Callable[..., Any], folder: Path
) -> None:
    assert "pcluster-observability: Add Prometheus (AWS::APS::Workspace)" in changes[1]
    assert "MonitoringSecurityGroup" not in outputs(client)
    written = yaml.safe_load((folder / "observability-pcluster-observability.yml").read_text())
    assert written["prometheus_mode"] == "amp-only"
    assert not changed(changes[2])


def test_a_stack_without_nat_and_file_systems_has_the_endpoints_of_a_cluster(changes: list[str], folder: Path) -> None:
    made = [line.split("Add ")[1].split(" ")[0] for line in changes[3].splitlines() if line.startswith("bare: Add ")]
    wanted = {f"{parameters.parameter(name)}Endpoint" for name in ("s3", "dynamodb", *parameters.USUAL_ENDPOINTS)}
    assert {name for name in made if name.endswith("Endpoint")} == wanted
    assert not {"NatGateway", "PrivateRoute", "Lustre", "LustreLink", "Home", "SecondaryPublicSubnet"} & set(made)
    variables = yaml.safe_load((folder / "infrastructure-bare.yml").read_text())
    assert variables["cluster_config_fsx_lustre"] == variables["cluster_config_fsx_openzfs"] == ""
    assert len(variables["infrastructure_parts"]["public_subnets"]) == 1
    assert variables["cluster_config_managed_dns"] is False, "no VPC has an endpoint of Route 53"


# What is refused


REFUSED = [
    (
        {"infrastructure_primary_az": "us-west-2a"},
        "infrastructure_primary_az is us-west-2a; needed: a zone of the region",
    ),
    (
        {"infrastructure_lustre_repository": "s3://elsewhere/x"},
        "infrastructure_lustre_repository is in elsewhere, a bucket of eu-west-1; needed: one of us-east-2",
    ),
    (
        {"infrastructure_login_ssh_from": "203.0.113.7"},  # a string, as -e NAME=VALUE has it
        "infrastructure_login_ssh_from has 203.0.113.7; needed: IPv4 addresses with their size",
    ),
    ({"observability_retention": 1}, "observability_retention is no variable of role observability"),
]


@pytest.mark.parametrize(("given", "line"), REFUSED)
def test_what_cannot_be_is_refused_in_one_line_before_anything(
    play: Play, client: Callable[..., Any], given: dict[str, Any], line: str
) -> None:
    if "s3://elsewhere/x" in given.values():
        client("s3", region_name="eu-west-1").create_bucket(
            Bucket="elsewhere", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"}
        )
    (said,) = play({**NEW, "infrastructure_name": "other", **given}, code=2)
    (told,) = (json.loads(text.split("=> ", 1)[1])["msg"] for text in said.split("\n") if text.startswith("fatal: "))
    assert told.startswith(line), told
    assert "\n" not in told
    names = [one["StackName"] for one in client("cloudformation").describe_stacks()["Stacks"]]
    assert "other" not in names
