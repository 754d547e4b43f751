# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The commands with which site ends: with the names of this cluster, and only where all went well."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.next_steps import steps

SSH = {"ansible_connection": "ssh", "ansible_host": "10.0.16.5", "ansible_user": "ubuntu"}
SSM = {"ansible_connection": "amazon.aws.aws_ssm", "ansible_host": "i-01"}
INSTANCE = {"pcluster_instance_id": "i-01", "pcluster_region": "us-east-2"}
GRAFANA = "at http://127.0.0.1:3000, the password of admin in /var/lib/x"


def report(host: str = "head", grafana: str = GRAFANA, **more: Any) -> dict[str, Any]:
    """A node's report, as `summarise` of report.py makes it."""
    entry = {"name": "grafana", "status": "unchanged", "summary": grafana}
    whole = {"host": host, "node_type": "head", "cluster": "research", "outcome": "ok", "components": [entry]}
    return {**whole, **more}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def commands(*reports: dict[str, Any], known: dict[str, Any] | None = None, sources: tuple[str, ...] = ()) -> list[str]:
    lines = steps(reports, {"head": known or {}}, sources)
    assert lines[:2] == ["", "What comes next:"]
    return [line.split(":  ")[-1].strip() for line in lines[2:]]


def test_a_cluster_that_is_reached_by_ssh() -> None:
    assert commands(report(), known=SSH, sources=(os.path.abspath("inventory/my.pcluster.yml"), "/etc/more")) == [
        "ansible-playbook -i inventory/my.pcluster.yml -i /etc/more pcluster.postboot.verify --limit head",
        "ssh -N -L 3000:127.0.0.1:3000 ubuntu@10.0.16.5",
        "ansible-playbook -i inventory/my.pcluster.yml -i /etc/more pcluster.postboot.publish "
        "-e publish_s3=s3://my-bucket/postboot -e publish_config=research.yaml",
    ]


@pytest.mark.parametrize(
    "how",
    [
        SSM,
        {**SSH, "ansible_ssh_common_args": "-o ProxyCommand='aws ssm start-session --target %h'"},
        {**SSH, "ansible_host": "{{ somewhere }}"},
    ],
)
def test_a_cluster_that_is_reached_by_ssm(how: dict[str, Any]) -> None:
    assert commands(report(), known={**how, **INSTANCE})[1] == (
        "aws ssm start-session --region us-east-2 --target i-01 --document-name AWS-StartPortForwardingSession "
        "--parameters portNumber=3000,localPortNumber=3000"
    )


def test_session_manager_knows_a_node_of_hyperpod_by_its_target() -> None:
    known = {**SSM, **INSTANCE, "pcluster_ssm_target": "sagemaker-cluster:ab12cd34ef56_controllers-i-01"}
    assert " --target sagemaker-cluster:ab12cd34ef56_controllers-i-01 " in commands(report(), known=known)[1]


def test_a_cluster_of_hyperpod_is_published_for_by_its_json_and_has_no_status() -> None:
    known = {**SSM, "pcluster_platform": "hyperpod"}
    assert commands(report(grafana=""), known=known) == [
        "ansible-playbook pcluster.postboot.verify --limit head",
        "ansible-playbook pcluster.postboot.publish -e publish_s3=s3://sagemaker-my-bucket/postboot "
        "-e publish_hyperpod=research.json",
    ]
    told = commands(report(), known={**known, "publish_s3": "s3://sagemaker-bundles/x"})
    assert " -e publish_s3=s3://sagemaker-bundles/x -e publish_hyperpod=" in told[-1]


@pytest.mark.parametrize(
    ("grafana", "what"),
    [
        ("at http://127.0.0.1:3001, …", "ssh -N -L 3001:127.0.0.1:3001 ubuntu@10.0.16.5"),
        ("at https://grafana.example.org/, the password", "https://grafana.example.org/"),
        ("", "ansible-playbook pcluster.postboot.status --limit head"),
    ],
)
def test_where_the_dashboards_are(grafana: str, what: str) -> None:
    assert commands(report(grafana=grafana), known=SSH)[1] == what


def test_a_key_that_is_known_is_named() -> None:
    known = {**SSH, "ansible_ssh_private_key_file": "/keys/my key.pem"}
    assert commands(report(), known=known)[1].startswith("ssh -i '/keys/my key.pem' -N -L ")


def test_several_clusters_and_a_bucket_that_is_known() -> None:
    two = [report(), report("head2", cluster="other")]
    found = commands(*two, known={**SSH, "publish_s3": "s3://bundles/x"})
    assert found[0].endswith("--limit head,head2")
    assert " -e publish_s3=s3://bundles/x " in found[2]
    assert commands(*(report(f"head{number}") for number in range(4)))[0].endswith("--limit pcluster_head")


def test_a_name_that_a_shell_would_obey_is_quoted() -> None:
    assert commands(report(cluster="a; reboot"))[2].endswith("-e publish_config='a; reboot'.yaml")


@pytest.mark.parametrize(
    "more",
    [
        {"outcome": "failed"},
        {"outcome": "unreachable", "node_type": ""},
        {"outcome": "stopped"},
        {"ended_badly": "the lock was lost"},
    ],
)
def test_nothing_comes_next_where_a_node_is_not_well(more: dict[str, Any]) -> None:
    assert steps([report(), report("node", **{"node_type": "compute", **more})], {}, ()) == []


def test_nothing_comes_next_for_nodes_without_their_head() -> None:
    assert steps([report(node_type="compute")], {}, ()) == []
