# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which variables connect to which node, and where they are put."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory import connection

HEAD = {"public_ip": "192.0.2.7"}


SSH = {"ansible_connection": "ssh", "ansible_python_interpreter": "/usr/bin/python3"}


def planned(nodes: list[Any], kind: str, **options: Any) -> tuple[connection.Plan, set[Any]]:
    heads = {(node["region"], node["cluster"]): node for node in nodes if node["node_type"] == "head"}
    return connection.plan(nodes, connection.Connection(kind, **options), heads)


def test_ssm(make: Any) -> None:
    nodes = [make.node(1, "HeadNode"), make.node(2), make.node(3, cluster="beta", os="alinux2023")]
    found, _without = planned(nodes, "ssm", bucket="files", timeout=1800)
    assert found.groups == {
        "pcluster": {
            "ansible_connection": "amazon.aws.aws_ssm",
            "ansible_python_interpreter": "/usr/bin/python3",
            "ansible_aws_ssm_bucket_name": "files",
            "ansible_aws_ssm_region": "us-east-1",
            "ansible_aws_ssm_timeout": 1800,
            "ansible_aws_ssm_s3_addressing_style": "virtual",
        }
    }
    assert found.hosts["i-00000000000000002"] == {"ansible_aws_ssm_instance_id": "i-00000000000000002"}


def test_ssm_regions_and_profile(make: Any) -> None:
    nodes = [make.node(1), make.node(2, cluster="beta", region="eu-west-1")]
    found, _without = planned(nodes, "ssm", bucket="files", profile="work")
    assert found.groups["pcluster_cluster_alpha"] == {"ansible_aws_ssm_region": "us-east-1"}
    assert found.groups["pcluster_cluster_beta"] == {"ansible_aws_ssm_region": "eu-west-1"}
    assert found.groups["pcluster"]["ansible_aws_ssm_profile"] == "work"
    assert "ansible_aws_ssm_region" not in found.groups["pcluster"]


def test_one_cluster_name_in_two_regions(make: Any) -> None:
    nodes = [make.node(1), make.node(2), make.node(3, region="eu-west-1")]
    found, _without = planned(nodes, "ssm", bucket="files")
    assert found.groups["pcluster_cluster_alpha"] == {"ansible_aws_ssm_region": "us-east-1"}
    assert found.hosts["i-00000000000000003"]["ansible_aws_ssm_region"] == "eu-west-1"
    assert "ansible_aws_ssm_region" not in found.hosts["i-00000000000000001"]


def test_ssm_needs_a_bucket() -> None:
    with pytest.raises(Problem, match="connection: ssm needs bucket"):
        connection.Connection("ssm").check()
    connection.Connection("ssm", bucket="files").check()
    connection.Connection("ssh").check()


@pytest.mark.parametrize(
    ("address", "head", "compute"),
    [("auto", "192.0.2.7", "10.0.0.2"), ("private", "10.0.0.1", "10.0.0.2"), ("public", "192.0.2.7", None)],
)
def test_ssh(make: Any, address: str, head: str, compute: str | None) -> None:
    found, _without = planned([make.node(1, "HeadNode", **HEAD), make.node(2)], "ssh", address=address)
    assert found.groups == {"pcluster": {**SSH, "ansible_user": "ubuntu"}}
    assert found.hosts["i-00000000000000001"] == {"ansible_host": head}
    assert found.hosts["i-00000000000000002"] == ({"ansible_host": compute} if compute else {})


@pytest.mark.parametrize(
    ("os_name", "user"),
    [("ubuntu2404", "ubuntu"), ("alinux2023", "ec2-user"), ("rhel9", "ec2-user"), ("rocky9", "rocky")],
)
def test_users(make: Any, os_name: str, user: str) -> None:
    found, _without = planned([make.node(1, os=os_name)], "ssh")
    assert found.groups["pcluster"]["ansible_user"] == user


def test_an_unknown_system_has_no_user(make: Any) -> None:
    found, _without = planned([make.node(1, os="plan9")], "ssh")
    assert found.groups["pcluster"] == SSH


def test_users_of_clusters(make: Any) -> None:
    nodes = [make.node(1), make.node(2, cluster="beta", os="rocky9"), make.node(3, cluster="gamma", os="")]
    found, _without = planned(nodes, "ssh")
    assert found.groups["pcluster_cluster_alpha"] == {"ansible_user": "ubuntu"}
    assert found.groups["pcluster_cluster_beta"] == {"ansible_user": "rocky"}
    assert "pcluster_cluster_gamma" not in found.groups


def proxy_command(arguments: str) -> list[str]:
    """Split as Ansible splits ssh arguments, then as the shell splits the command."""
    option, value = shlex.split(arguments)
    assert option == "-o"
    name, _equals, command = value.partition("=")
    assert name == "ProxyCommand"
    return shlex.split(command)


def test_ssh_over_ssm(make: Any) -> None:
    found, _without = planned([make.node(1, "HeadNode", **HEAD), make.node(2)], "ssh_over_ssm")
    assert found.hosts["i-00000000000000002"] == {"ansible_host": "i-00000000000000002"}
    assert proxy_command(found.groups["pcluster"]["ansible_ssh_common_args"]) == [
        *("aws", "ssm", "start-session", "--target", "%h", "--document-name", "AWS-StartSSHSession"),
        *("--parameters", "portNumber=%p", "--region", "us-east-1"),
    ]


def test_ssh_over_ssm_quotes(make: Any) -> None:
    found, _without = planned([make.node(1)], "ssh_over_ssm", profile='it\'s "50%"; id')
    command = proxy_command(found.groups["pcluster"]["ansible_ssh_common_args"])
    assert command[-2:] == ["--profile", 'it\'s "50%%"; id']


def test_ssh_via_head(make: Any) -> None:
    nodes = [make.node(1, "HeadNode", **HEAD), make.node(2), make.node(3), make.node(4, "LoginNode")]
    found, without = planned(nodes, "ssh_via_head")
    assert found.groups["pcluster_cluster_alpha"] == {"ansible_ssh_common_args": "-o ProxyJump=ubuntu@192.0.2.7"}
    assert found.hosts["i-00000000000000001"] == {"ansible_host": "192.0.2.7", "ansible_ssh_common_args": ""}
    assert found.hosts["i-00000000000000002"] == {"ansible_host": "10.0.0.2"}
    assert not without


def test_ssh_via_private_head_of_each_cluster(make: Any) -> None:
    nodes = [
        *(make.node(1, "HeadNode", **HEAD), make.node(2)),
        *(make.node(3, "HeadNode", "beta", os="rhel9"), make.node(4, "LoginNode", "beta", os="rhel9")),
    ]
    found, _without = planned(nodes, "ssh_via_head", address="private")
    beta = {**found.groups["pcluster_cluster_beta"], **found.hosts["i-00000000000000004"]}
    assert beta == {
        "ansible_user": "ec2-user",
        "ansible_ssh_common_args": "-o ProxyJump=ec2-user@10.0.0.3",
        "ansible_host": "10.0.0.4",
    }


def test_behind_the_head_addresses_are_private(make: Any) -> None:
    found, _without = planned([make.node(1, "HeadNode", **HEAD), make.node(2, public_ip="192.0.2.9")], "ssh_via_head")
    assert found.hosts["i-00000000000000002"]["ansible_host"] == "10.0.0.2"


def test_ssh_via_a_head_that_is_not_there(make: Any) -> None:
    found, without = planned([make.node(2)], "ssh_via_head")
    assert without == {("us-east-1", "alpha")}
    assert found.groups["pcluster"]["ansible_ssh_common_args"] == ""


def test_none(make: Any) -> None:
    found, _without = planned([make.node(1)], "none")
    assert found.groups == {}
    assert found.hosts == {"i-00000000000000001": {}}


def test_clusters_that_share_a_group_do_not_overwrite_each_other(make: Any) -> None:
    """Only forged tags can do that: names of clusters have no underscores."""
    nodes = [make.node(1, cluster="a-b"), make.node(2, cluster="a-b"), make.node(3, cluster="a_b", os="rocky9")]
    found, _without = planned(nodes, "ssh")
    assert found.groups["pcluster_cluster_a_b"] == {"ansible_user": "ubuntu"}
    assert found.hosts["i-00000000000000003"]["ansible_user"] == "rocky"
