# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The parameters of the monitoring instance's stack, and what is wrong with them: one line each."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.plugin_utils._monitoring import parameters as p

OPTIONS: dict[str, Any] = {
    "vpc": "vpc-1",
    "subnet": "subnet-1",
    "balancer_subnets": ["subnet-2", "subnet-3"],
    "allowed_cidrs": ["198.51.100.0/24", "203.0.113.7/32"],
    "domain": "monitoring.example.org",
    "hosted_zone": "Z1",
    "security_group": "sg-1",
    "data_size": None,
    "scheme": "",
}


def test_options_are_the_stacks_parameters_and_what_is_not_set_stays_away() -> None:
    found = p.settled("eyes", OPTIONS, {})
    assert [found[name] for name in p.BALANCER] == ["subnet-2", "subnet-3"]
    assert [found[name] for name in p.CIDRS] == ["198.51.100.0/24", "203.0.113.7/32", "", "", ""]
    assert found["Name"] == "eyes"
    assert "DataSize" not in found
    assert "Scheme" not in found
    assert list(p.refusals(found, OPTIONS)) == []


def test_what_the_stack_has_stays_unless_something_else_is_set() -> None:
    there = {**p.settled("eyes", OPTIONS, {}), "Image": "ami-1", "DataSize": "500"}
    assert p.settled("eyes", {}, there) == there
    found = p.settled("eyes", {"certificate": "arn:1", "allowed_cidrs": ["192.0.2.0/24"], "data_size": 600}, there)
    assert (found["HostedZone"], found["Certificate"]) == ("", "arn:1")
    assert [found[name] for name in p.CIDRS] == ["192.0.2.0/24", "", "", "", ""]
    assert (found["DataSize"], found["Image"]) == ("600", "ami-1")


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"vpc": ""}, "monitoring_vpc is not set; needed: the VPC of the clusters"),
        ({"domain": ""}, "monitoring_domain is not set; needed: the name by which people reach Grafana"),
        ({"allowed_cidrs": []}, "monitoring_allowed_cidrs is not set; needed: the addresses of the people"),
        ({"allowed_cidrs": ["0.0.0.0/0"]}, "monitoring_allowed_cidrs has 0.0.0.0/0, which is everybody; needed"),
        ({"allowed_cidrs": ["10.0.0.1/8"]}, "monitoring_allowed_cidrs has 10.0.0.1/8, which is no range (10.0.0.1/8"),
        ({"allowed_cidrs": ["192.0.2.1"] * 6}, "monitoring_allowed_cidrs has 6 ranges; needed: 5 at most"),
        ({"balancer_subnets": ["subnet-2"]}, "monitoring_balancer_subnets has 1; needed: 2, in two zones"),
        ({"domain": "https://eyes.example.org/"}, "monitoring_domain is https://eyes.example.org/; needed: a name in"),
        ({"instance_type": "t3.medum"}, "monitoring_instance_type is t3.medum, which is no instance type; needed: one"),
        ({"data_size": 9}, "monitoring_data_size is 9; needed: 10 to 16384 GiB"),
        ({"data_size": 16385}, "monitoring_data_size is 16385; needed: 10 to 16384 GiB"),
        ({"hosted_zone": ""}, "neither monitoring_hosted_zone nor monitoring_certificate is set; needed: the Route"),
        ({"security_group": ""}, "neither monitoring_security_group nor monitoring_nodes_security_group is set"),
    ],
)
def test_what_is_missing_or_open_to_everybody_is_one_line(more: dict[str, Any], line: str) -> None:
    options = {**OPTIONS, **more}
    (found,) = p.refusals(p.settled("eyes", options, {}), options)
    assert found.startswith(line)
    assert "\n" not in found


def test_subnets_have_to_be_where_the_load_balancer_needs_them() -> None:
    parameters = p.settled("eyes", OPTIONS, {})
    good = {f"subnet-{number}": p.Subnet("vpc-1", f"us-east-2{zone}") for number, zone in enumerate("aab", 1)}
    assert p.subnets_of(parameters) == list(good)
    assert list(p.misplaced(parameters, good)) == []
    one_zone = {**good, "subnet-3": p.Subnet("vpc-1", "us-east-2a")}
    assert list(p.misplaced(parameters, one_zone)) == [
        "monitoring_balancer_subnets are in us-east-2a; needed: two zones, as load balancers have them"
    ]
    elsewhere = {**good, "subnet-1": p.Subnet("vpc-2", "us-east-2a")}
    assert list(p.misplaced(parameters, elsewhere)) == [
        "subnet subnet-1 is in vpc-2; needed: one in monitoring_vpc, vpc-1"
    ]
