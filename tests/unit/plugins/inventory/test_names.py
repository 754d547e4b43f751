# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What hosts and groups are called."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory import names


def named(nodes: list[Any], *hostnames: Any, taken: Any = ()) -> list[str]:
    return names.host_names(nodes, names.host_name_rules(hostnames or ["default"]), taken)


def test_default_names(make: Any) -> None:
    nodes = [
        make.node(1, "HeadNode"),
        make.node(2, "LoginNode"),
        make.node(0xABC),
        make.node(4, slurm_node="gpu-st-p5-1"),
        make.node(5, queue="", compute_resource=""),
        make.node(6, "LoginNode", pool=""),
    ]
    assert named(nodes) == [
        "alpha-head",
        "alpha-people-00000002",
        "alpha-gpu-p5-00000abc",
        "alpha-gpu-st-p5-1",
        "alpha-compute-00000005",
        "alpha-login-00000006",
    ]


def test_shared_names_get_the_instance_id(make: Any) -> None:
    nodes = [make.node(1, "HeadNode"), make.node(2, "HeadNode", region="eu-west-1"), make.node(3, "HeadNode", "beta")]
    assert named(nodes) == ["alpha-head-00000000000000001", "alpha-head-00000000000000002", "beta-head"]


def test_a_tag_cannot_take_the_name_of_another_node(make: Any) -> None:
    nodes = [
        make.node(1, tags={"Host": "x"}),
        make.node(2, tags={"Host": "x"}),
        make.node(3, tags={"Host": "x-00000000000000001"}),
    ]
    found = named(nodes, "tag:Host")
    assert len(set(found)) == 3
    assert found[1] == "x-00000000000000002"


@pytest.mark.parametrize("name", ["pcluster_head", "localhost", "LOCALHOST", "127.0.0.1", "all", "other"])
def test_taken_and_reserved_names(make: Any, name: str) -> None:
    node = make.node(1, tags={"Host": name})
    assert named([node], "tag:Host", taken={"pcluster_head", "other"}) == [f"{name}-00000000000000001"]


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("{{ lookup('pipe', 'id') }}", "lookup--pipe----id-----"),
        ("-oProxyCommand=id", "oProxyCommand-id"),
        ("a,b:&c[1:3]*", "a-b--c-1-3--"),
        ("a b\nc", "a-b-c"),
        ("..", "alpha-gpu-p5-00000001"),
        ("ä.example.com", "example.com"),
    ],
)
def test_names_are_only_names(make: Any, value: str, name: str) -> None:
    assert named([make.node(1, tags={"Host": value})], "tag:Host") == [name]


@pytest.mark.parametrize(
    ("hostnames", "name"),
    [
        (["tag:Team"], "nlp"),
        (["tag:Missing", "tag:Team"], "nlp"),
        (["tag:Missing,Team"], "nlp"),
        (["tag:Team=nlp"], "Team_nlp"),
        (["tag:Team=vision"], "alpha-gpu-p5-00000001"),
        (["instance-id"], "i-00000000000000001"),
        (["private-ip-address"], "10.0.0.1"),
        (["private-dns-name"], "ip-10-0-0-1.ec2.internal"),
        (["ip-address", "pcluster_zone"], "us-east-1a"),
        (["ip-address"], "alpha-gpu-p5-00000001"),
        (["pcluster_slurm_node", "default"], "alpha-gpu-p5-00000001"),
        ([{"name": "instance-id", "prefix": "tag:Team"}], "nlp_i-00000000000000001"),
        ([{"name": "instance-id", "prefix": "aws", "separator": "-"}], "aws-i-00000000000000001"),
        ([{"name": "instance-id", "prefix": "tag:Missing"}], "i-00000000000000001"),
        ([{"name": "tag:Missing", "prefix": "aws"}, "tag:Team"], "nlp"),
    ],
)
def test_hostnames(make: Any, hostnames: list[Any], name: str) -> None:
    assert named([make.node(1, tags={"Team": "nlp"})], *hostnames) == [name]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("private-ip", "'private-ip' is unknown; known are default, tag:"),
        ("pcluster_node", "'pcluster_node' is unknown"),
        ("pcluster_tags", "'pcluster_tags' is unknown"),
        ({"prefix": "aws"}, "neither a string nor a dictionary with a name"),
        ({"name": "instance-id", "suffix": "x"}, "suffix is unknown; known are name, prefix, separator"),
        (5, "5 is neither"),
    ],
)
def test_mistakes_in_hostnames(entry: Any, message: str) -> None:
    with pytest.raises(Problem, match=f"hostnames: .*{message}"):
        names.host_name_rules([entry])


def test_groups(make: Any) -> None:
    node = make.node(1, cluster="al-pha", queue="gpu-a", gpu=True, efa=True)
    assert names.group_names(node) == [
        "pcluster_compute",
        "pcluster_cluster_al_pha",
        "pcluster_queue_gpu_a",
        "pcluster_compute_resource_p5",
        "pcluster_gpu",
        "pcluster_efa",
    ]
    assert names.group_names(make.node(1, "LoginNode")) == [
        "pcluster_login",
        "pcluster_cluster_alpha",
        "pcluster_pool_people",
    ]


def test_groups_are_made_safe_as_ansible_does() -> None:
    from ansible.inventory.group import to_safe_group_name

    for text in ("pcluster_queue_a-b.c d", "pcluster_queue_{{ x }}", "pcluster_queue_ä"):
        assert names.safe_group_name(text) == to_safe_group_name(text, force=True, silent=True)
