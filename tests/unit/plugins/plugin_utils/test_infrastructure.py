# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What becomes of the options of role infrastructure, and which of them are refused."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws import cloudformation
from ansible_collections.pcluster.postboot.plugins.plugin_utils._infrastructure import network, parameters, storage

TEMPLATE = (Path(__file__).resolve().parents[4] / "roles/infrastructure/files/infrastructure.template").read_text()
DEFAULTS = cloudformation.defaults_of(TEMPLATE)
ZONES = {"us-east-2a": "use2-az1", "us-east-2b": "use2-az2"}
ME = ["arn:aws:iam::123456789012:role/Admin"]


def settle(there: dict[str, str] | None = None, **options: Any) -> dict[str, str]:
    told = parameters.given({"name": "pcluster", "primary_az": "us-east-2a", **options})
    return parameters.settled(told, DEFAULTS, there or {}, ME)


def refused(there: dict[str, str] | None = None, **options: Any) -> list[str]:
    told = parameters.given({"name": "pcluster", "primary_az": "us-east-2a", **options})
    settled = parameters.settled(told, DEFAULTS, there or {}, ME)
    return [
        *network.refusals(settled, told | (there or {}), ZONES, parameters.logins(settled)),
        *storage.refusals(settled, told, there or {}),
    ]


def test_the_defaults_are_refused_by_nothing() -> None:
    assert refused() == []
    assert refused(home_size=64, secondary_az="us-east-2b", monitoring="self_hosted") == []


def test_a_new_stack_has_all_and_another_run_keeps_what_it_does_not_name() -> None:
    first = settle(cidr="10.8.0.0/18", lustre_size=4800, publishers=None)
    assert first["PrivateCidr"] == "10.8.0.0/19"
    assert first["Publishers"] == ME[0]
    again = parameters.settled(parameters.given({"cidr": None, "home_size": 64}), DEFAULTS, first, ["arn:of:another"])
    assert again == {**first, "HomeSize": "64"}


@pytest.mark.parametrize("size", range(16, 24))
def test_subnets_share_the_vpc_without_an_overlap(size: int) -> None:
    whole = ipaddress.IPv4Network(f"10.0.0.0/{size}")
    subnets = [ipaddress.IPv4Network(text) for text in network.split(str(whole)).values()]
    assert len(subnets) == 4
    assert refused(cidr=str(whole), secondary_az="us-east-2b", monitoring="self_hosted") == []
    assert all(one.subnet_of(whole) for one in subnets)


def test_without_nat_a_new_stack_has_the_endpoints_of_a_cluster() -> None:
    assert set(parameters.endpoints(settle(nat=False))) == set(parameters.USUAL_ENDPOINTS)
    assert parameters.endpoints(settle(nat=False, endpoints=["ec2"])) == ["ec2"]
    assert parameters.endpoints(settle()) == []
    assert set(parameters.NEEDED_ENDPOINTS) <= set(parameters.USUAL_ENDPOINTS) <= set(parameters.ENDPOINTS)


def test_efa_brings_the_metadata_iops_that_it_needs() -> None:
    efa = {"lustre_efa": True, "lustre_throughput": 250, "lustre_size": 19200}
    assert settle(**efa)["LustreMetadataIops"] == "6000"
    assert refused(**efa) == []


def test_a_name_of_a_variable_and_of_a_parameter_are_each_others() -> None:
    for name in DEFAULTS:
        assert parameters.parameter(parameters.variable(name).removeprefix("infrastructure_")) == name


def test_only_what_is_released_may_go() -> None:
    assert {"Lustre", "Home", "Bundles", "Vpc", "PrivateSubnet"} <= set(parameters.protected([]))
    assert "Home" not in parameters.protected(["home"])
    assert "Lustre" in parameters.protected(["home"])


def test_more_ranges_than_the_template_has_slots_are_refused() -> None:
    with pytest.raises(Problem, match=r"infrastructure_login_ssh_from has 6 entries; needed: 5 at most"):
        settle(login_ssh_from=[f"203.0.113.{number}/32" for number in range(6)])


SECOND = {"secondary_az": "us-east-2b"}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"name": "My_Cluster"}, "infrastructure_name is My_Cluster; needed: a small letter"),
    ({"primary_az": "us-west-2a"}, "infrastructure_primary_az is us-west-2a; needed: a zone of the region by its name"),
    ({"primary_az": "use2-az1"}, "one of us-east-2a (use2-az1), us-east-2b (use2-az2)"),
    ({"secondary_az": "us-east-2a"}, "infrastructure_secondary_az is us-east-2a, as infrastructure_primary_az is"),
    ({"monitoring": "self_hosted"}, "infrastructure_monitoring is self_hosted, whose load balancer needs two zones"),
    ({"cidr": "10.0.0.1/16"}, "infrastructure_cidr has 10.0.0.1/16; needed: IPv4 addresses such as 10.0.0.0/16"),
    ({"cidr": "10.0.0.0"}, "infrastructure_cidr has 10.0.0.0; needed: IPv4 addresses with their size"),
    ({"cidr": "10.0.0.0/8"}, "infrastructure_cidr is 10.0.0.0/8; needed: a size from /16 to /28, as AWS takes it"),
    ({"cidr": "10.0.0.0/24"}, "infrastructure_cidr is 10.0.0.0/24, which is too small for four subnets"),
    ({"cidr": "172.16.0.0/15"}, "needed: a size from /16 to /28"),
    ({"cidr": "172.17.0.0/16"}, "overlaps 172.17.0.0/16, where Docker on every node has its bridge"),
    (
        {"private_cidr": "10.1.0.0/20"},
        "infrastructure_private_cidr is 10.1.0.0/20; needed: a part of infrastructure_cidr",
    ),
    (
        {"public_cidr": "10.0.0.0/24"},
        "infrastructure_private_cidr is 10.0.0.0/17 and overlaps infrastructure_public_cidr",
    ),
    ({"public_cidr": "10.0.224.0/29"}, "infrastructure_public_cidr is 10.0.224.0/29, which is too small; needed: /28"),
    (
        {**SECOND, "monitoring": "self_hosted", "public_cidr": "10.0.224.0/28"},
        "infrastructure_public_cidr is 10.0.224.0/28, which is too small; needed: /27 or larger",
    ),
    ({**SECOND, "secondary_private_cidr": "10.0.240.0/24"}, "overlaps infrastructure_secondary_public_cidr"),
    ({"login_ssh_from": ["0.0.0.0/0"]}, "infrastructure_login_ssh_from has 0.0.0.0/0, which is everybody"),
    ({"login_ssh_from": ["203.0.113.7"]}, "infrastructure_login_ssh_from has 203.0.113.7; needed: IPv4 addresses with"),
    ({"login_ssh_from": ["2001:db8::/32"]}, "infrastructure_login_ssh_from has 2001:db8::/32; needed: IPv4"),
    ({"lustre_size": 1800}, "infrastructure_lustre_size is 1800; needed: 1200, 2400, or a multiple of 2400 (GiB, PERS"),
    ({"lustre_size": -2400}, "infrastructure_lustre_size is -2400; needed: 1200"),
    ({"lustre_deployment": "SCRATCH_1", "lustre_size": 4800}, "or a multiple of 3600 (GiB, SCRATCH_1)"),
    ({"lustre_throughput": 200}, "infrastructure_lustre_throughput is 200; needed: one of 125, 250, 500, 1000"),
    ({"lustre_deployment": "PERSISTENT_1"}, "infrastructure_lustre_throughput is 125; needed: one of 50, 100, 200"),
    ({"lustre_deployment": "SCRATCH_2", "lustre_throughput": 200}, "SCRATCH_2 has its own, so leave the variable out"),
    ({"lustre_metadata_iops": 2000}, "infrastructure_lustre_metadata_iops is 2000; needed: 1500, 3000, 6000, 12000"),
    (
        {"lustre_deployment": "SCRATCH_2", "lustre_metadata_iops": 1500},
        "infrastructure_lustre_metadata_iops is 1500; nee",
    ),
    (
        {"lustre_efa": True},
        "infrastructure_lustre_size is 1200; needed: a multiple of 38400, because of infrastructure_l",
    ),
    (
        {"lustre_efa": True, "lustre_size": 38400, "lustre_metadata_iops": 1500},
        "infrastructure_lustre_metadata_iops is 1500; needed: 6000 or more, because of infrastructure_lustre_efa",
    ),
    ({"lustre_efa": True, "lustre_deployment": "SCRATCH_2"}, "infrastructure_lustre_efa is true, and infrastructure_l"),
    ({"lustre_repository": "my-data"}, "infrastructure_lustre_repository is my-data; needed: a place in S3"),
    ({"lustre_repository": "s3://my-data", "lustre_size": 0}, "there is no file system to link"),
    (
        {"lustre_repository": "s3://my-data", "lustre_deployment": "SCRATCH_1"},
        "infrastructure_lustre_deployment is SCRATCH_1, which takes no infrastructure_lustre_repository",
    ),
    (
        {"lustre_repository": "s3://my-data", "lustre_repository_path": "s3"},
        "infrastructure_lustre_repository_path is s3;",
    ),
    (
        {"lustre_repository": "s3://bundles/x", "bucket": "bundles"},
        "is in bundles, the bucket of bundles; needed: another",
    ),
    ({"lustre_export": True}, "infrastructure_lustre_export is true; needed: infrastructure_lustre_repository"),
    ({"home_size": 32}, "infrastructure_home_size is 32; needed: 64 to 524288 (GiB), or 0 for none"),
    ({"home_size": 64, "home_throughput": 64}, "infrastructure_home_throughput is 64; needed: one of 160, 320"),
    (
        {"home_size": 64, "home_deployment": "SINGLE_AZ_1"},
        "infrastructure_home_throughput is 160; needed: one of 64, 128, 256, 512, 1024, 2048, 3072, 4096",
    ),
    ({"bucket": "My_Bucket"}, "infrastructure_bucket is My_Bucket; needed: a name that S3 takes"),
    ({"prefix": "/postboot"}, "infrastructure_prefix is /postboot; needed: a prefix such as postboot"),
    ({"publishers": ["alice"]}, "infrastructure_publishers has alice; needed: ARNs of users and roles"),
]


@pytest.mark.parametrize(("options", "line"), BAD)
def test_what_aws_would_refuse_is_one_line_that_names_the_variable(options: dict[str, Any], line: str) -> None:
    (told,) = refused(**options)
    assert line in told
    assert told.startswith("infrastructure_")
    assert "\n" not in told


def test_no_zone_is_a_line_with_the_zones() -> None:
    (told,) = refused(primary_az=None)
    assert told.startswith(
        "infrastructure_primary_az is not set; needed: the zone of your nodes and file systems, one of"
    )


def test_file_systems_only_grow() -> None:
    there = settle(lustre_size=4800, home_size=100)
    assert refused(there, lustre_size=7200, home_size=110) == []
    shrunk = refused(there, lustre_size=2400, home_size=105)
    assert [line.split(";")[0] for line in shrunk] == [
        "infrastructure_lustre_size is 2400, and the file system has 4800",
        "infrastructure_home_size is 105, and the file system has 100",
    ]
    assert refused(there, lustre_size=0) == [], "the change set refuses that, unless it is released"
