# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The monitoring instance's stack: its template, and the playbook against a stack API on loopback.

The API is moto's with what the sandbox adds (molecule/cluster/aws/resources.py). Whether the load balancer answers, and
whether the volume comes back, only AWS can show.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.pcluster.postboot.plugins.plugin_utils._monitoring import account, parameters
from ansible_collections.pcluster.postboot.tests.unit.playbooks import stacks
from ansible_collections.pcluster.postboot.tests.unit.playbooks.stacks import Play, changed

ROOT = Path(__file__).resolve().parents[3]
TEMPLATE = ROOT / "roles/monitoring/files/monitoring.template"
NAME, REGION = "pcluster-monitoring", "us-east-2"


@pytest.fixture(scope="module")
def network(client: Callable[..., Any]) -> dict[str, Any]:
    """A VPC with a private subnet and two public ones, and a certificate; the image is given, as moto has none."""
    ec2 = client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    private, *public = [
        ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.0.{number}.0/24", AvailabilityZone=f"{REGION}{zone}")["Subnet"]
        for number, zone in enumerate("aab")
    ]
    nodes = ec2.create_security_group(GroupName="nodes", Description="Nodes", VpcId=vpc)["GroupId"]
    acm = client("acm")
    certificate = acm.request_certificate(DomainName="monitoring.example.org")["CertificateArn"]
    return {
        "infrastructure_parts": {
            "vpc": vpc,
            "private_subnets": [private["SubnetId"]],
            "public_subnets": [one["SubnetId"] for one in public],
        },
        "monitoring_nodes_security_group": nodes,
        "monitoring_allowed_cidrs": ["198.51.100.0/24"],
        "monitoring_domain": "monitoring.example.org",
        "monitoring_certificate": certificate,
        "monitoring_image": "ami-12c6146b",
    }


@pytest.fixture(scope="module")
def play(deploy: Callable[..., list[str]]) -> Play:
    """play({variables}, …) runs the playbook once for each, and returns what each run has said."""
    common = {"monitoring_region": REGION, "monitoring_poll": 0.1}
    return lambda *runs, **how: deploy("monitoring", common, runs, **how)


@pytest.fixture(scope="module")
def checked(play: Play, network: dict[str, Any], client: Callable[..., Any]) -> tuple[str, list[Any]]:
    """What a check of a new stack says, and the stacks after it."""
    (said,) = play(network, check=True)
    return said, client("cloudformation").describe_stacks()["Stacks"]


@pytest.fixture(scope="module")
def deployed(checked: Any, play: Play, network: dict[str, Any]) -> list[str]:
    """What a first run says, a second one that leaves out its options, and one that is open to everybody."""
    return play(network, {}, {"monitoring_allowed_cidrs": ["0.0.0.0/0"]}, code=2)


@pytest.fixture(scope="module")
def other(deployed: list[str], play: Play, network: dict[str, Any]) -> dict[str, str]:
    """What checks of other instances say: of another type without the flag and with it, and with another image."""
    kind, image = {"monitoring_instance_type": "m7i.xlarge"}, {"monitoring_image": "ami-03cf127a"}
    flag = {"monitoring_replace_instance": True}
    (refused,) = play({**network, **kind}, check=True, code=2)
    said = play({**network, **kind, **flag}, {**network, **image, **flag}, check=True, code=2)
    return {"type": refused, "type, flag": said[0], "image, flag": said[1]}


@pytest.fixture(scope="module")
def template() -> dict[str, Any]:
    return stacks.template("monitoring")


def test_the_template_and_the_refusals_have_the_same_limits(template: dict[str, Any]) -> None:
    size, domain = (template["Parameters"][name] for name in ("DataSize", "Domain"))
    assert (size["MinValue"], size["MaxValue"]) == parameters.DATA_SIZES
    assert domain["AllowedPattern"] == parameters._DOMAIN.pattern


def test_nobody_is_let_in_but_by_name(template: dict[str, Any]) -> None:
    assert "0.0.0.0" not in TEMPLATE.read_text()
    patterns = [template["Parameters"][f"AllowedCidr{number}"]["AllowedPattern"] for number in range(1, 6)]
    assert not any(re.fullmatch(pattern, "0.0.0.0/0") for pattern in patterns)
    assert all(re.fullmatch(pattern, "198.51.100.0/24") for pattern in patterns)
    groups = {name: one for name, one in template["Resources"].items() if one["Type"] == "AWS::EC2::SecurityGroup"}
    rules = {name: one["Properties"]["SecurityGroupIngress"] for name, one in groups.items()}
    assert [one["SourcePrefixListId"] for one in rules["BalancerSecurityGroup"]] == [{"Ref": "People"}] * 2
    (own,) = rules["InstanceSecurityGroup"]
    assert (own["FromPort"], own["SourceSecurityGroupId"]) == (3000, {"Ref": "BalancerSecurityGroup"})


def test_nodes_let_the_instance_in_at_their_exporters(template: dict[str, Any]) -> None:
    found = [one for one in template["Resources"].values() if one["Type"] == "AWS::EC2::SecurityGroupIngress"]
    assert sorted(one["Properties"]["FromPort"] for one in found) == [8000, 9100, 9341, 9400]
    assert all(one["Properties"]["FromPort"] == one["Properties"]["ToPort"] for one in found)


def test_the_instance_may_only_look(template: dict[str, Any]) -> None:
    policies = template["Resources"]["InstanceRole"]["Properties"]["Policies"]
    actions = {one["PolicyName"]: one["PolicyDocument"]["Statement"][0]["Action"] for one in policies}
    assert actions == {
        "find-nodes": ["ec2:DescribeAvailabilityZones", "ec2:DescribeInstances"],
        "read-password": "secretsmanager:GetSecretValue",
    }
    data = template["Resources"]["LaunchTemplate"]["Properties"]["LaunchTemplateData"]
    assert data["MetadataOptions"]["HttpTokens"] == "required"


def test_samples_outlive_the_stack_and_everything_is_encrypted(template: dict[str, Any]) -> None:
    volume = template["Resources"]["Data"]
    assert (volume["DeletionPolicy"], volume["UpdateReplacePolicy"]) == ("Retain", "Retain")
    assert volume["Properties"]["Encrypted"] is True
    data = template["Resources"]["LaunchTemplate"]["Properties"]["LaunchTemplateData"]
    assert data["BlockDeviceMappings"][0]["Ebs"]["Encrypted"] is True
    https, http = (template["Resources"][name]["Properties"] for name in ("Https", "Http"))
    assert https["Protocol"] == "HTTPS"
    assert http["DefaultActions"][0]["Type"] == "redirect"


@pytest.fixture
def user_data(template: dict[str, Any]) -> str:
    """The user data, as CloudFormation fills it."""
    text, own = template["Resources"]["LaunchTemplate"]["Properties"]["LaunchTemplateData"]["UserData"]["Fn::Base64"][
        "Fn::Sub"
    ]
    assert list(own) == ["Volume"]
    values = {"Name": "eyes", "AWS::Region": REGION, "Vpc": "vpc-0123456789abcdef0", "Volume": "vol-0abc"}
    for name, value in values.items():
        text = text.replace(f"${{{name}}}", value)
    return str(text).replace("${!", "${")


@pytest.mark.parametrize("formatted", [False, True])
def test_user_data_says_what_the_machine_is_and_mounts_the_volume(
    user_data: str, tmp_path: Path, formatted: bool
) -> None:
    bin_, etc = tmp_path / "bin", tmp_path / "etc"
    bin_.mkdir()
    etc.mkdir()
    log = tmp_path / "log"
    for program in ("blkid", "mkfs.xfs", "systemctl", "mount"):
        code = int(program == "blkid" and not formatted)
        (bin_ / program).write_text(f'#!/bin/sh\necho "{program} $*" >> {log}\nexit {code}\n')
        (bin_ / program).chmod(0o755)
    (bin_ / "sleep").symlink_to("/bin/true")
    text = user_data.replace("/etc/", f"{etc}/").replace(" /var/lib", f" {tmp_path}/var/lib")
    done = subprocess.run(["bash", "-c", text], env={"PATH": f"{bin_}:/usr/bin:/bin"}, check=False)
    assert done.returncode == 0
    node = json.loads((etc / "pcluster-postboot/node.json").read_text())
    assert node == {"node_type": "monitoring", "name": "eyes", "region": REGION, "vpc": "vpc-0123456789abcdef0"}
    disk = "/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_vol0abc"
    assert (f"mkfs.xfs -q {disk}" in log.read_text()) is not formatted
    (line,) = (etc / "fstab").read_text().splitlines()
    assert line.split()[0] == disk
    assert "x-systemd.required-by=prometheus.service" in line


def test_a_check_of_a_new_stack_asks_for_nothing(checked: tuple[str, list[Any]]) -> None:
    said, stacks = checked
    assert "Add Instance (AWS::EC2::Instance)" in said
    assert stacks == []


def test_it_is_deployed_and_every_resource_is_there(
    deployed: list[str], client: Callable[..., Any], folder: Path, template: dict[str, Any]
) -> None:
    assert f"{NAME}: CREATE_COMPLETE {NAME}" in deployed[0]
    found = client("cloudformation").list_stack_resources(StackName=NAME)["StackResourceSummaries"]
    there = {one["LogicalResourceId"] for one in found}
    # Without a zone there is no record, and with a certificate none is made: moto lists these without a name.
    wanted = {name for name, one in template["Resources"].items() if one.get("Condition") != "WithZone"}
    assert there - {""} == wanted - {"OwnCertificate"}
    (secret,) = client("secretsmanager").list_secrets()["SecretList"]
    variables = yaml.safe_load((folder / f"monitoring-{NAME}.yml").read_text())
    assert variables == {
        "grafana_listen_address": ":3000",
        "grafana_root_url": "https://monitoring.example.org/",
        "grafana_admin_password_secret": secret["ARN"],
        "prometheus_retention_size": "80GB",
        "prometheus_retention_time": "90d",
    }
    assert "very-secret" not in "".join(deployed)
    assert "4. A record (CNAME) of monitoring.example.org that leads to" in deployed[0]


def test_the_second_run_changes_nothing_whatever_it_leaves_out(deployed: list[str]) -> None:
    assert not changed(deployed[1])


def test_another_type_needs_the_flag(other: dict[str, str]) -> None:
    assert "Modify or replace Instance (AWS::EC2::Instance)" in other["type, flag"]
    assert changed(other["type, flag"])
    assert (
        f"stack {NAME} was left as it is: the update would modify or replace Instance (AWS::EC2::Instance); another "
        "instance needs another stack: delete this one, whose volume stays, and run this with monitoring_data_volume "
        "(README of role monitoring); what only stops the instance, such as another type, needs "
        "monitoring_replace_instance=true"
    ) in " ".join(other["type"].split())


def test_another_instance_is_refused_whatever_the_flag(other: dict[str, str]) -> None:
    """CloudFormation would make the new one first, to which the volume of the old one cannot be attached."""
    said = " ".join(other["image, flag"].split())
    assert f"stack {NAME} was left as it is: the update would replace Instance (AWS::EC2::Instance); another" in said
    assert "and run this with monitoring_data_volume (README of role monitoring)" in said


def test_everybody_is_refused_in_one_line(deployed: list[str]) -> None:
    assert "monitoring_allowed_cidrs has 0.0.0.0/0, which is everybody; needed: the ranges of your own" in deployed[2]


def test_a_new_stack_has_canonicals_newest_image(client: Callable[..., Any]) -> None:
    asked = []

    class Ssm:
        def get_parameter(self, Name: str) -> dict[str, Any]:
            asked.append(Name)
            return {"Parameter": {"Value": "ami-1"}}

    def make(service: str, region: str) -> Any:
        return Ssm() if service == "ssm" else client(service, region_name=region)

    found = account.Account(make, REGION)
    assert [found.image("t3.medium"), found.image("t4g.medium")] == ["ami-1", "ami-1"]
    assert [name.split("/")[9] for name in asked] == ["amd64", "arm64"]
