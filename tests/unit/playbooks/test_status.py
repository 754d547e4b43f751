# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The playbook from end to end: moto's EC2, a head node that is this machine, and one that nobody can connect to."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

from ansible_collections.pcluster.postboot.tests.unit.plugins.aws import KEYS, launch

REGION = "ap-northeast-2"


@pytest.fixture
def clusters(moto: str) -> dict[str, str]:
    """Two clusters with a head node each, and the instances' ids."""
    ec2 = boto3.client("ec2", region_name=REGION, endpoint_url=moto, **KEYS)
    found = {}
    for cluster in ("near", "far"):
        tags = {"cluster-name": cluster, "node-type": "HeadNode", "attributes": "ubuntu2404, slurm, 3.16.1, x86_64"}
        one = launch(ec2, {f"parallelcluster:{key}": value for key, value in tags.items()})
        found[cluster] = one["InstanceId"]
    return found


@pytest.fixture
def status(ansible: Callable[..., Any], moto: str, clusters: dict[str, str], tmp_path: Path) -> Callable[..., Any]:
    """status(limit, **variables) runs the playbook on both head nodes, or on some hosts."""
    own = {"ansible_become": False, "ansible_python_interpreter": sys.executable, "pcluster_region": REGION}
    kinds = {"near": "head", "far": "head", "stranger": "compute"}
    hosts: dict[str, Any] = {}
    for name, kind in kinds.items():
        identity = {"pcluster_instance_id": clusters.get(name, "i-1"), "pcluster_cluster": name}
        hosts[name] = {**own, **identity, "pcluster_node_type": kind, "ansible_connection": "local"}
    hosts["far"].update(ansible_connection="ssh", ansible_host="127.0.0.1", ansible_port=1)
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(yaml.safe_dump({"all": {"hosts": hosts}}))

    def run(limit: str, **variables: Any) -> Any:
        return ansible(
            *("playbook", "-i", str(inventory), "pcluster.postboot.status", "--limit", limit),
            *("-e", json.dumps({"status_wait": False, **variables})),
            cwd=tmp_path,
            AWS_ENDPOINT_URL=moto,
            AWS_ACCESS_KEY_ID="testing",
            AWS_SECRET_ACCESS_KEY="testing",
            PCLUSTER_POSTBOOT_ROOT=str(tmp_path / "root"),
        )

    return run


def test_a_head_node_that_answers_and_one_that_does_not_yet(status: Callable[..., Any], tmp_path: Path) -> None:
    done = status("near,far", status_json="seen.json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "seen.json").read_text())["clusters"]
    assert [(one["cluster"], one["region"]) for one in found] == [("far", REGION), ("near", REGION)]
    far, near = (one["nodes"] for one in found)
    assert [(one["name"], one["stage"], one["why"]) for one in near] == [("head", "booting", "")]
    assert (far[0]["stage"], far[0]["why"].startswith("it does not answer yet: ")) == ("booting", True)
    assert "Connection refused" in far[0]["why"]
    assert "cluster near\nnode  stage    since" in done.stdout
    assert "near: 0 of 1 nodes up, 1 booting" in done.stdout
    (tmp_path / "root/run/cloud-init").mkdir(parents=True)
    (tmp_path / "root/run/cloud-init/result.json").write_text("{}")
    done = status("near")
    assert "near: 1 of 1 nodes up" in done.stdout, done.stdout
    assert "changed=0" in done.stdout


def test_a_time_that_is_over_fails_the_run_and_names_the_node(status: Callable[..., Any]) -> None:
    done = status("near", status_wait=True, status_timeout=2, status_interval=1)
    assert done.returncode == 2
    # A busy machine looks later than it should.
    over = re.search(r"near: the time is over after (\d+ min \d+ s) \(status_timeout\)", done.stdout)
    assert over, done.stdout
    assert over[1] >= "0 min 02 s"
    assert f'"msg": "near: not up after {over[1]}: head' in done.stdout, done.stdout


@pytest.mark.parametrize(
    ("limit", "variables", "told"),
    [
        ("stranger", {}, "cluster stranger: found no head node among the hosts; needed: the head node"),
        ("near", {"status_interval": 0}, "status_interval: found 0; needed: a number of seconds, 1 or more"),
        ("near", {"status_json": "/none/x.json"}, "status_json: /none/x.json cannot be written: "),
    ],
)
def test_what_cannot_be_done_is_one_line(
    status: Callable[..., Any], limit: str, variables: dict[str, Any], told: str
) -> None:
    done = status(limit, **variables)
    assert done.returncode == 2
    assert told in done.stdout, done.stdout
