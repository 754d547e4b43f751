# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The playbook cluster_config: variables in, a file out, or lines that say what is wrong and no file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.pcluster.postboot.tests.unit.playbooks.stacks import Play, changed, run
from ansible_collections.pcluster.postboot.tests.unit.plugins import cluster_config_sample as sample

VARIABLES: dict[str, Any] = {
    "cluster_config_name": "ml",
    "cluster_config_region": "us-east-1",
    "cluster_config_subnet_head": sample.HEAD,
    "cluster_config_fsx_lustre": sample.FSX,
    "observability_head_node_policy": sample.POLICY,
    "cluster_config_queues": [{"name": "gpu", "instance_type": "p5.48xlarge", "count": "2", "efa": True}],
}
BASE = "Region: eu-west-1  # mine\nImage: {Os: alinux2023}\n"


@pytest.fixture
def play(ansible: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """play({variables}, …) runs the playbook once for each, in one start of Ansible; returns what each has said."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)

    return lambda *runs, **how: run(ansible, tmp_path, "cluster_config", VARIABLES, runs, **how)


def test_a_check_shows_the_file_and_writes_nothing(play: Play, tmp_path: Path) -> None:
    (said,) = play({}, check=True)
    assert changed(said)
    assert "+  InstanceType: m5.2xlarge" in said
    assert f"{tmp_path}/ml.yaml: would be written" in said
    assert not (tmp_path / "ml.yaml").exists()


def test_the_file_is_written_once_and_again_where_a_variable_differs(play: Play, tmp_path: Path) -> None:
    path = tmp_path / "ml.yaml"
    first, second, third = play({}, {}, {"cluster_config_tags": {"team": 7}})
    assert [changed(said) for said in (first, second, third)] == [True, False, True]
    assert path.stat().st_mode & 0o777 == 0o644
    assert path.read_text().startswith("# Written by pcluster.postboot.cluster_config, for ParallelCluster 3.16.1.\n")
    found = yaml.safe_load(path.read_text())
    assert found["Tags"] == [{"Key": "team", "Value": "7"}]
    assert found["HeadNode"]["Iam"] == {"AdditionalIamPolicies": [{"Policy": sample.POLICY}]}
    (resource,) = found["Scheduling"]["SlurmQueues"][0]["ComputeResources"]
    assert resource["MinCount"] == resource["MaxCount"] == 2
    assert found["SharedStorage"][0]["FsxLustreSettings"] == {"FileSystemId": sample.FSX}
    commands = [line.strip(' ",') for line in first.splitlines() if "pcluster " in line]
    where = f"--cluster-name ml --region us-east-1 --cluster-configuration {path}"
    assert commands == [
        f"pcluster create-cluster {where} --dryrun true",
        f"pcluster create-cluster {where} --rollback-on-failure false",
        "pcluster describe-cluster --cluster-name ml --region us-east-1 --query '[clusterStatus, failures]'",
        f"pcluster update-cluster {where} --dryrun true",
        f"pcluster update-cluster {where}",
    ]
    assert "(45 of the image + 40 container_images + 11 prometheus)" in first


def test_an_update_needs_the_file_of_the_cluster(play: Play, tmp_path: Path) -> None:
    update = {"cluster_config_update": True}
    (said,) = play(update, code=2)
    assert f"cluster_config_update is true, and {tmp_path}/ml.yaml is not there; needed: the file of the" in said
    newer = {**sample.BUNDLE, "url": "s3://my-bucket/postboot/0.2.0-5b1d0c9e77aa"}
    runs = play({"cluster_config_bundle": sample.BUNDLE}, *[{**update, "cluster_config_bundle": newer}] * 2)
    assert [changed(each) for each in runs] == [True, True, False]
    actions = yaml.safe_load((tmp_path / "ml.yaml").read_text())["HeadNode"]["CustomActions"]
    assert actions["OnNodeConfigured"]["Script"] == f"{sample.BUNDLE['url']}/bootstrap.sh"
    assert actions["OnNodeUpdated"]["Script"] == f"{newer['url']}/bootstrap.sh"
    with (tmp_path / "ml.yaml").open("a") as file:
        file.write("Monitoring: true\n")
    (said,) = play(update, code=2)
    assert f"cluster_config_file: {tmp_path}/ml.yaml: Monitoring is true; needed: a section" in said


def test_what_is_wrong_is_said_together_and_nothing_is_written(play: Play, tmp_path: Path) -> None:
    (said,) = play(
        {"cluster_config_name": "1", "cluster_config_queues": [{"name": "A", "instance_type": "c5.xlarge", "max": 0}]},
        code=2,
    )
    for line in (
        "cluster_config_name is 1; needed: ",
        "cluster_config_queues[A].name is A; needed: ",
        "cluster_config_queues[A].max is 0; needed: 1 or more",
    ):
        assert line in said
    assert "Traceback" not in said
    assert not (tmp_path / "ml.yaml").exists()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"quues": []}, "quues is no variable of role cluster_config: did you mean cluster_config_queues?"),
        (
            {"queues": [{"name": "a", "instnace_type": "x"}]},
            "queues[a].instnace_type is no key: did you mean instance_t",
        ),
        ({"bundle": {"url": "s3://a/b/c", "sha": "x"}}, "bundle.sha is no key: did you mean sha256?"),
        (
            {"queues": [{"name": "a", "capacity": "odcr"}]},
            'queues[a].capacity is "odcr"; needed: one of on_demand, spot, capacity_block',
        ),
        ({"region": ""}, "region is not set, and neither is AWS_REGION"),
        ({"file": "/nowhere/ml.yaml"}, "file is /nowhere/ml.yaml; needed: a file in a directory that is there"),
        ({"base": "/nowhere.yaml"}, "base: /nowhere.yaml does not exist; needed: a configuration of ParallelCluster"),
    ],
)
def test_a_variable_that_cannot_be_is_one_line(play: Play, tmp_path: Path, more: dict[str, Any], says: str) -> None:
    (said,) = play({f"cluster_config_{name}": value for name, value in more.items()}, code=2)
    assert f"cluster_config_{says}" in said
    assert not (tmp_path / "ml.yaml").exists()


def test_the_users_configuration_is_kept_and_never_written(play: Play, tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(BASE)
    base = {"cluster_config_base": "base.yaml", "cluster_config_region": ""}
    play(base)
    found = yaml.safe_load((tmp_path / "ml.yaml").read_text())
    assert (found["Region"], found["Image"]) == ("eu-west-1", {"Os": "alinux2023"})
    said = play({**base, "cluster_config_file": "base.yaml"}, code=2)[0]
    assert "base.yaml, which is cluster_config_base too and would lose its comments" in said
    said = play({"cluster_config_file": "base.yaml"}, code=2)[0]
    assert (
        "base.yaml, which somebody else has written; needed: another file, or that one as cluster_config_base" in said
    )
    assert (tmp_path / "base.yaml").read_text() == BASE


def test_ec2_is_asked_for_what_the_table_does_not_know(
    play: Play, tmp_path: Path, moto: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("ENDPOINT_URL", moto), ("ACCESS_KEY_ID", "x"), ("SECRET_ACCESS_KEY", "very-secret")):
        monkeypatch.setenv(f"AWS_{name}", value)
    queues = [{"name": "big", "instance_type": "u7i-12tb.224xlarge"}]
    play({"cluster_config_queues": queues, "cluster_config_ask_ec2": True})
    text = (tmp_path / "ml.yaml").read_text()
    (resource,) = yaml.safe_load(text)["Scheduling"]["SlurmQueues"][0]["ComputeResources"]
    assert resource["Efa"] == {"Enabled": True}
    queues = [{"name": "big", "instance_type": "q9.large"}]
    (said,) = play({"cluster_config_queues": queues, "cluster_config_ask_ec2": True}, code=2)
    assert "cluster_config_queues[big].instance_type is q9.large, which the region does not have" in said
    assert "very-secret" not in said + text + json.dumps(said)
