# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which hosts of a play a fleet is."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.action import fleet
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem


def play(**types: str) -> dict[str, Any]:
    """The variables of a play with hosts of these types."""
    hosts = {
        name: {
            "pcluster_instance_id": f"i-{name}",
            "pcluster_region": "us-east-1",
            "pcluster_cluster": "main",
            "pcluster_node_type": kind,
        }
        for name, kind in types.items()
    }
    return {"ansible_play_hosts_all": list(hosts), "hostvars": hosts}


def test_a_monitoring_instance_is_no_node_of_the_fleet() -> None:
    found = fleet._nodes(play(head="head", eyes="monitoring", node="compute"))
    assert [one.name for one in found] == ["head", "node"]
    with pytest.raises(Problem, match="found no node of a cluster; needed: one"):
        fleet._nodes(play(eyes="monitoring"))


def test_a_node_of_hyperpod_is_known_by_its_target() -> None:
    given = play(head="head", node="compute")
    given["hostvars"]["node"]["pcluster_platform"] = "hyperpod"
    with pytest.raises(
        Problem, match=r"^node: no pcluster_instance_id, or no pcluster_ssm_target on HyperPod; needed: nodes"
    ):
        fleet._nodes(given)
    target = "sagemaker-cluster:ab12cd34ef56_gpu-i-node"
    given["hostvars"]["node"]["pcluster_ssm_target"] = target
    assert [one.target for one in fleet._nodes(given)] == ["", target]


def test_a_host_that_ec2_does_not_know_is_named() -> None:
    given = play(head="head")
    given["hostvars"]["head"].pop("pcluster_instance_id")
    with pytest.raises(Problem, match=r"^head: no pcluster_instance_id, .*; needed: nodes that the inventory plugin"):
        fleet._nodes(given)
