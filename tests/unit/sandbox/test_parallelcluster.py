# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What makes cluster.json of ParallelCluster's templates: the resolver, the account, and the files that result."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

HERE = Path(__file__).resolve().parents[3] / "molecule/cluster"
TOPOLOGY = yaml.safe_load((HERE / "topology.yml").read_text())


@pytest.fixture(scope="module", autouse=True)
def _path() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE / "parallelcluster"))
        yield
    for name in ("account", "resolver", "synthesize"):
        sys.modules.pop(name, None)


@pytest.fixture
def account() -> Any:
    from account import Account

    return Account(TOPOLOGY, "main")


@pytest.fixture
def stack(account: Any) -> Any:
    """A stack with one nested in it, which has the head node's address as a parameter, as in ParallelCluster."""
    from resolver import Stack

    inner = {
        "Parameters": {"Address": {"Type": "String"}, "Lost": {"Type": "String"}},
        "Resources": {"Template": {"Type": "AWS::EC2::LaunchTemplate"}},
        "Outputs": {"Id": {"Value": {"Ref": "Template"}}, "Head": {"Value": {"Ref": "Address"}}},
    }
    template = {
        "Parameters": {"Domain": {"Type": "String", "Default": "main.pcluster."}},
        "Mappings": {"Sizes": {"us-east-1": {"head": "large"}}},
        "Conditions": {
            "Here": {"Fn::Equals": [{"Ref": "AWS::Region"}, "us-east-1"]},
            "Elsewhere": {"Fn::Not": [{"Condition": "Here"}]},
        },
        "Resources": {
            "Interface": {"Type": "AWS::EC2::NetworkInterface"},
            "Table": {"Type": "AWS::DynamoDB::Table", "Properties": {"TableName": {"Fn::Sub": "t-${AWS::StackName}"}}},
            "Queues": {"Type": "AWS::CloudFormation::Stack"},
            "Alarm": {"Type": "AWS::CloudWatch::Alarm"},
        },
    }
    found = Stack("main", template, {}, account.pseudo("main"), account)
    name = account.nested("main", "Queues")
    found.nested["Queues"] = Stack(name, inner, {"Address": account.head}, account.pseudo(name), account)
    return found


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("as it is", "as it is"),
        ({"Ref": "Domain"}, "main.pcluster."),
        ({"Ref": "Table"}, "t-main"),
        ({"Fn::GetAtt": ["Interface", "PrimaryPrivateIpAddress"]}, "10.115.0.10"),
        ({"Fn::GetAtt": ["Queues", "Outputs.Head"]}, "10.115.0.10"),
        ({"Fn::Join": ["-", ["a", {"Ref": "AWS::Region"}, 3, True]]}, "a-us-east-1-3-true"),
        ({"Fn::Select": [1, {"Fn::Split": ["||", "key||version"]}]}, "version"),
        ({"Fn::Sub": "${AWS::Region} ${Interface.PrimaryPrivateIpAddress}"}, "us-east-1 10.115.0.10"),
        ({"Fn::Sub": ["${Timeout} ${!delays[$i]} $HOME", {"Timeout": 2100}]}, "2100 ${delays[$i]} $HOME"),
        ({"Fn::Sub": ["${Dna}", {"Dna": '{"text": "${Ref}"}'}]}, '{"text": "${Ref}"}'),
        ({"Fn::Base64": {"Fn::Sub": "${Domain}"}}, base64.b64encode(b"main.pcluster.").decode()),
        ({"Fn::FindInMap": ["Sizes", {"Ref": "AWS::Region"}, "head"]}, "large"),
        ({"Fn::If": ["Here", "yes", {"Ref": "Unknown"}]}, "yes"),
        ({"a": {"Fn::If": ["Elsewhere", 1, {"Ref": "AWS::NoValue"}]}, "b": 2}, {"b": 2}),
        ([{"Ref": "AWS::NoValue"}, 1], [1]),
    ],
)
def test_resolves(stack: Any, value: Any, expected: Any) -> None:
    assert stack.resolve(value, ("main",)) == expected


def test_an_output_of_a_nested_stack_is_the_id_that_the_nested_stack_has(stack: Any) -> None:
    nested = stack.nested["Queues"]
    found = stack.resolve({"Fn::GetAtt": ["Queues", "Outputs.Id"]}, ("main",))
    assert found == nested.resolve({"Ref": "Template"}, ("Queues",))
    assert re.fullmatch(r"lt-[0-9a-f]{17}", found)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"Fn::Cidr": ["10.0.0.0/8", 2, 8]}, "Fn::Cidr is a function that resolver.py does not know; it knows Ref, "),
        ({"Fn::Sub": "${Nobody}"}, "Nobody is no parameter, no resource, and no pseudo parameter that is known"),
        ({"Ref": "AWS::NotificationARNs"}, "AWS::NotificationARNs is no parameter, no resource"),
        ({"Ref": "Alarm"}, "account.py does not say what Ref gives for Alarm, an AWS::CloudWatch::Alarm"),
        ({"Fn::GetAtt": ["Table", "Arn"]}, "account.py does not say what Arn of Table, an AWS::DynamoDB::Table, is"),
        ({"Fn::GetAtt": "Nobody.Arn"}, "there is no resource Nobody"),
        ({"Fn::GetAtt": ["Queues", "Outputs.Name"]}, "has no output Name"),
        ({"Fn::If": ["Nowhere", 1, 2]}, "there is no condition Nowhere"),
        ({"Fn::FindInMap": ["Sizes", "us-west-2", "head"]}, "there is no Sizes/us-west-2/head in the mappings"),
        ({"Fn::Select": [2, ["a", "b"]]}, "part 2 was asked for, of 2"),
        ({"Fn::Join": ["", [["a"]]]}, "a text was needed, found list"),
    ],
)
def test_what_is_unknown_is_one_line_that_says_where(stack: Any, value: Any, said: str) -> None:
    from resolver import Unresolved

    with pytest.raises(Unresolved) as error:
        stack.resolve({"Properties": [value]}, ("main", "Resources", "X"))
    assert said in str(error.value)
    assert str(error.value).startswith("main/Resources/X/Properties/0")
    assert "\n" not in str(error.value)


def test_a_parameter_without_a_value_is_an_error(stack: Any) -> None:
    from resolver import Unresolved

    with pytest.raises(Unresolved, match="the parameter Lost has no value and no default"):
        stack.nested["Queues"].resolve({"Ref": "Lost"}, ("Queues",))


def test_moto_knows_the_account_by_the_ids_that_the_templates_have(monkeypatch: pytest.MonkeyPatch) -> None:
    import boto3
    from account import Account
    from moto import mock_aws

    for name, value in (("DEFAULT_REGION", TOPOLOGY["region"]), ("ACCESS_KEY_ID", "x"), ("SECRET_ACCESS_KEY", "x")):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)  # that of a sandbox that runs
    with mock_aws():
        for cluster in TOPOLOGY["clusters"]:
            account = Account(TOPOLOGY, cluster)
            account.furnish(f"image of {cluster}")
            (subnet,) = boto3.client("ec2").describe_subnets(SubnetIds=[account.subnet])["Subnets"]
            assert (subnet["VpcId"], subnet["CidrBlock"]) == (account.vpc, TOPOLOGY["network"]["subnet"])
            assert not subnet["MapPublicIpOnLaunch"]
            (image,) = boto3.client("ec2").describe_images(ImageIds=[account.image])["Images"]
            assert image["Name"] == f"image of {cluster}"
            systems = boto3.client("fsx").describe_file_systems(FileSystemIds=[account.file_system])["FileSystems"]
            assert systems[0]["DNSName"] == f"{account.file_system}.fsx.us-east-1.amazonaws.com"
            zone = boto3.client("route53").get_hosted_zone(Id=account.hosted_zone)["HostedZone"]
            assert zone["Name"] == f"{cluster}.pcluster."


def test_a_queue_of_the_topology_is_a_queue_of_the_configuration() -> None:
    import synthesize

    topology = yaml.safe_load((HERE / "topology.yml").read_text())
    new = {"name": "new", "compute_resource": "m5", "instance_type": "m5.large", "min": 0, "max": 2}
    topology["clusters"]["el"]["queues"].append(new)
    found = synthesize.configuration(topology, "el", {})
    assert found["Scheduling"]["SlurmQueues"][-1]["ComputeResources"] == [
        {"Name": "m5", "InstanceType": "m5.large", "MinCount": 0, "MaxCount": 2}
    ]
    assert "LoginNodes" not in found


def test_overrides_are_merged_by_name() -> None:
    import synthesize

    actions = {"OnNodeConfigured": {"Script": "s3://bucket/bootstrap.sh", "Args": ["--bundle", "x"]}}
    overrides = {
        "DevSettings": {"Timeouts": {"ComputeNodeBootstrapTimeout": 3600}},
        "Scheduling": {"SlurmQueues": [{"Name": "cpu", "CustomActions": actions}]},
    }
    plain, found = (synthesize.configuration(TOPOLOGY, "main", given) for given in ({}, overrides))
    assert found["DevSettings"] == overrides["DevSettings"]
    queues = {queue["Name"]: queue for queue in found["Scheduling"]["SlurmQueues"]}
    assert list(queues) == [queue["Name"] for queue in plain["Scheduling"]["SlurmQueues"]]
    assert queues["cpu"].pop("CustomActions") == actions
    assert list(queues.values()) == plain["Scheduling"]["SlurmQueues"]


def test_a_folder_is_brought_up_to_date_file_by_file(tmp_path: Path) -> None:
    import synthesize

    source, out = tmp_path / "source", tmp_path / "out"
    (source / "artifacts").mkdir(parents=True)
    (source / "cluster.json").write_text("{}")
    (source / "artifacts/config.yaml").write_text("a: 1")
    assert synthesize.bring(source, out)
    assert not synthesize.bring(source, out)
    kept = (out / "cluster.json").stat().st_ino
    (source / "artifacts/config.yaml").write_text("a: 2")
    (out / "artifacts/change-set.json").write_text("of an update before")
    assert synthesize.bring(source, out)
    assert (out / "artifacts/config.yaml").read_text() == "a: 2"
    assert not (out / "artifacts/change-set.json").exists()
    assert (out / "cluster.json").stat().st_ino == kept


def test_a_missing_environment_is_named_with_the_command_that_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import synthesize

    monkeypatch.setattr(synthesize, "CACHE", tmp_path)
    with pytest.raises(SystemExit) as error:
        synthesize.synthesize(TOPOLOGY, "el", tmp_path / "out", {})
    assert str(error.value) == (
        f"ParallelCluster 3.13.2 is not in {tmp_path}/parallelcluster-3.13.2; needed: scripts/setup.sh --sandbox"
    )
