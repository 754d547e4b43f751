# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The sandbox's CloudFormation: types that moto lacks, and what a change set says and does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest

from ansible_collections.pcluster.postboot.tests.programs import load

REGION = "us-east-2"
TEMPLATE: dict[str, Any] = {
    "Parameters": {
        "Size": {"Type": "Number", "Default": 1200},
        "Compression": {"Type": "String", "Default": "NONE"},
        "Type": {"Type": "String", "Default": "LUSTRE"},
        "Certified": {"Type": "String", "Default": "true"},
    },
    "Conditions": {"WithCertificate": {"Fn::Equals": [{"Ref": "Certified"}, "true"]}},
    "Resources": {
        "Lustre": {
            "Type": "AWS::FSx::FileSystem",
            "DeletionPolicy": "Retain",
            "Properties": {
                "FileSystemType": {"Ref": "Type"},
                "StorageCapacity": {"Ref": "Size"},
                "SubnetIds": ["subnet-1"],
                "LustreConfiguration": {"DataCompressionType": {"Ref": "Compression"}},
            },
        },
        "Certificate": {
            "Type": "AWS::CertificateManager::Certificate",
            "Condition": "WithCertificate",
            "Properties": {"DomainName": "grafana.example.com"},
        },
    },
    "Outputs": {"Lustre": {"Value": {"Ref": "Lustre"}}},
}
Change = Callable[..., list[tuple[str, str, str]]]


@pytest.fixture(scope="module")
def client(moto: str) -> Iterator[Callable[[str], Any]]:
    with pytest.MonkeyPatch.context() as patch:
        for target, name, value in load("molecule/cluster/aws/resources.py").patches():
            patch.setattr(target, name, value)
        keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
        yield lambda service: boto3.client(service, endpoint_url=moto, region_name=REGION, **keys)


@pytest.fixture
def change(client: Callable[[str], Any], request: pytest.FixtureRequest) -> Change:
    """change(Size=…) makes and executes a change set of a stack of the test's own, and returns what it said."""
    stack, api = request.node.name.replace("_", "-"), client("cloudformation")
    made: list[str] = []

    def run(**values: Any) -> list[tuple[str, str, str]]:
        given = [{"ParameterKey": key, "ParameterValue": str(value)} for key, value in values.items()]
        name = f"set-{len(made)}"
        kind = "UPDATE" if made else "CREATE"
        made.append(name)
        ident = api.create_change_set(
            StackName=stack,
            ChangeSetName=name,
            ChangeSetType=kind,
            TemplateBody=json.dumps(TEMPLATE),
            Parameters=given,
        )["Id"]
        told = [one["ResourceChange"] for one in api.describe_change_set(ChangeSetName=ident)["Changes"]]
        api.execute_change_set(ChangeSetName=ident)
        return [(one["Action"], one["LogicalResourceId"], one.get("Replacement", "")) for one in told]

    return run


def systems(client: Callable[[str], Any]) -> dict[str, dict[str, Any]]:
    return {one["FileSystemId"]: one for one in client("fsx").describe_file_systems()["FileSystems"]}


def certificates(client: Callable[[str], Any]) -> list[str]:
    return [one["DomainName"] for one in client("acm").list_certificates()["CertificateSummaryList"]]


def test_a_value_in_a_parameter_changes_the_resource_in_place(change: Change, client: Callable[[str], Any]) -> None:
    before = set(systems(client))
    assert change() == [("Add", "Lustre", ""), ("Add", "Certificate", "")]
    (ident,) = set(systems(client)) - before
    assert change(Compression="LZ4", Size=2400) == [("Modify", "Lustre", "False")]
    assert set(systems(client)) - before == {ident}
    found = systems(client)[ident]
    assert (found["StorageCapacity"], found["LustreConfiguration"]["DataCompressionType"]) == (2400, "LZ4")


def test_a_property_that_only_a_new_resource_takes_replaces_it(change: Change, client: Callable[[str], Any]) -> None:
    change()
    before = set(systems(client))
    assert change(Type="OPENZFS") == [("Modify", "Lustre", "True")]
    (new,) = set(systems(client)) - before
    assert systems(client)[new]["FileSystemType"] == "OPENZFS"


def test_some_properties_replace_under_conditions_alone() -> None:
    found = load("molecule/cluster/aws/change_sets.py").replacing("AWS::EC2::Instance", REGION)
    assert "ImageId" in found["True"]
    assert {"InstanceType", "SecurityGroupIds"} <= found["Conditional"]


def test_a_condition_adds_and_removes(change: Change, client: Callable[[str], Any]) -> None:
    before = len(certificates(client))
    assert change(Certified="false") == [("Add", "Lustre", "")]
    assert len(certificates(client)) == before
    assert change(Certified="true") == [("Add", "Certificate", "")]
    assert certificates(client)[-1] == "grafana.example.com"
    assert change(Certified="false") == [("Remove", "Certificate", "")]
    assert len(certificates(client)) == before


def test_parameters_are_told_as_they_were_given(change: Change, client: Callable[[str], Any]) -> None:
    change(Size=4800)
    (stack,) = (
        one for one in client("cloudformation").describe_stacks()["Stacks"] if "parameters-are-told" in one["StackName"]
    )
    assert {"ParameterKey": "Size", "ParameterValue": "4800"} in stack["Parameters"]


def test_a_group_lets_out_what_it_names_and_a_secret_has_a_value(client: Callable[[str], Any]) -> None:
    group = {
        "Type": "AWS::EC2::SecurityGroup",
        "Properties": {
            "GroupDescription": "x",
            "SecurityGroupEgress": [{"IpProtocol": "-1", "CidrIp": "127.0.0.1/32"}],
        },
    }
    secret = {"Type": "AWS::SecretsManager::Secret", "Properties": {"GenerateSecretString": {"PasswordLength": 20}}}
    outputs = {name: {"Value": {"Fn::GetAtt": ["Group", "GroupId"]} if name == "Group" else {"Ref": name}}
               for name in ("Group", "Secret")}  # fmt: skip
    template = {"Resources": {"Group": group, "Secret": secret}, "Outputs": outputs}
    cloudformation = client("cloudformation")
    cloudformation.create_stack(StackName="egress", TemplateBody=json.dumps(template))
    (stack,) = cloudformation.describe_stacks(StackName="egress")["Stacks"]
    told = {one["OutputKey"]: one["OutputValue"] for one in stack["Outputs"]}
    (found,) = client("ec2").describe_security_groups(GroupIds=[told["Group"]])["SecurityGroups"]
    assert [one["IpRanges"][0]["CidrIp"] for one in found["IpPermissionsEgress"]] == ["127.0.0.1/32"]
    assert len(client("secretsmanager").get_secret_value(SecretId=told["Secret"])["SecretString"]) >= 20
    cloudformation.delete_stack(StackName="egress")
    assert client("secretsmanager").list_secrets()["SecretList"] == []
