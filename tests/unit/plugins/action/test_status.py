# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which hosts tell of their clusters, and what is shown and kept of them in the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.action import status
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem


def play(**hosts: tuple[str, str]) -> dict[str, Any]:
    """The variables of a play with hosts of these types and clusters."""
    found = {
        name: {
            "pcluster_instance_id": f"i-{name}",
            "pcluster_region": "us-east-1",
            "pcluster_cluster": cluster,
            "pcluster_node_type": kind,
        }
        for name, (kind, cluster) in hosts.items()
    }
    return {"ansible_play_hosts_all": list(found), "hostvars": found}


def test_the_head_node_of_each_cluster_tells() -> None:
    given = play(a1=("compute", "a"), a=("head", "a"), b=("head", "b"), b1=("login", "b"), eyes=("monitoring", "eyes"))
    assert status._chosen(given)["hosts"] == ["a", "b"]


def test_a_cluster_without_its_head_node_is_refused() -> None:
    with pytest.raises(Problem, match=r"^cluster b: found no head node among the hosts; needed: the head node"):
        status._chosen(play(a=("head", "a"), b1=("compute", "b")))
    with pytest.raises(Problem, match=r"^found no head node of a cluster; needed: one that the inventory plugin"):
        status._chosen(play(eyes=("monitoring", "eyes")))


def test_hyperpod_is_named() -> None:
    given = play(a=("head", "a"), b=("compute", "b"))
    given["hostvars"]["b"]["pcluster_platform"] = "hyperpod"
    with pytest.raises(
        Problem, match=r"^b: found a node of SageMaker HyperPod, whose boots `aws sagemaker list-cluster"
    ):
        status._chosen(given)


def watched(cluster: str, complaint: str = "") -> dict[str, Any]:
    result = {"seen": {"cluster": cluster, "nodes": []}, "lines": [f"cluster {cluster}"], "complaint": complaint}
    return {"__status_watched": result}


def test_one_cluster_that_is_not_well_fails_the_run_after_all_are_shown(tmp_path: Path) -> None:
    hosts = {"a": watched("a"), "b": watched("b", "failed: b1 (docker failed)"), "c": {}}
    given = {"ansible_play_hosts_all": list(hosts), "hostvars": hosts}
    file = tmp_path / "status.json"
    result = status._shown({"json": str(file)}, given)
    # Of a thousand nodes Ansible would print all that the result has beside the message.
    assert result == {"failed": True, "msg": "b: failed: b1 (docker failed)"}
    assert [one["cluster"] for one in json.loads(file.read_text())["clusters"]] == ["a", "b"]
    assert file.stat().st_mode & 0o777 == 0o600
    del hosts["b"], hosts["c"]
    given["ansible_play_hosts_all"] = ["a"]
    result = status._shown({"json": ""}, given)
    assert "failed" not in result
    assert [line for line in result["lines"] if line] == ["cluster a"]


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(Problem, match=r"^status_json: .*/none/x.json cannot be written: "):
        status._shown({"json": str(tmp_path / "none/x.json")}, {"hostvars": {}})
