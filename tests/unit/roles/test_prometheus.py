# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What prometheus and slurm_exporter work out from their variables, with Ansible's own templating."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

from ansible_collections.pcluster.postboot.plugins.action import check_variables

Variables = Callable[..., Callable[[str], Any]]
ID = "ws-01234567-89ab-cdef-0123-456789abcdef"
URL = f"https://aps-workspaces.us-west-2.amazonaws.com/workspaces/{ID}"
WRITE = f"{URL}/api/v1/remote_write"


@pytest.fixture
def variables(repo: Path) -> Variables:
    """variables(region=…, **more) returns a function that works out a variable of the two roles on a head node."""

    def make(region: str = "us-west-2", node_type: str = "head", **more: Any) -> Callable[[str], Any]:
        everything: dict[str, Any] = {}
        for role in ("prometheus", "slurm_exporter"):
            for part in ("defaults", "vars"):
                everything.update(yaml.safe_load((repo / "roles" / role / part / "main.yml").read_text()) or {})
        everything.update(more)
        node = {"node_type": node_type, "region": region, "image_build": False, "go_architecture": "arm64"}
        everything["ansible_facts"] = {"pcluster": {**node, "cluster": "main", "slurm": {"prefix": "/opt/slurm"}}}
        trusted = {name: check_variables._trusted(value) for name, value in everything.items()}
        templar = Templar(loader=DataLoader(), variables=trusted)
        return lambda name: templar.template(check_variables._trusted("{{ " + name + " }}"))

    return make


@pytest.mark.parametrize(
    "workspace",
    [
        ID,
        URL,
        f"{URL}/",
        f"{URL}//",
        f"{URL}/api/v1",
        f"{URL}/api/v1/",
        WRITE,
        f"{WRITE}/",
        f"{URL}/api/v1/query",
        f" {WRITE}\n",
        f"arn:aws:aps:us-west-2:123456789012:workspace/{ID}",
    ],
)
def test_a_workspace_in_any_form_is_the_same(variables: Variables, workspace: str) -> None:
    value = variables(prometheus_amp_workspace=workspace)
    assert (value("__prometheus_amp_id"), value("__prometheus_amp_region")) == (ID, "us-west-2")
    assert value("__prometheus_amp_url") == WRITE


@pytest.mark.parametrize(
    ("workspace", "given", "region", "host"),
    [
        (ID, "", "eu-central-1", "aps-workspaces.eu-central-1.amazonaws.com"),
        (ID, "us-east-1", "us-east-1", "aps-workspaces.us-east-1.amazonaws.com"),
        (ID, "cn-north-1", "cn-north-1", "aps-workspaces.cn-north-1.amazonaws.com.cn"),
        (URL, "", "us-west-2", "aps-workspaces.us-west-2.amazonaws.com"),
        (
            f"arn:aws-us-gov:aps:us-gov-west-1:1:workspace/{ID}",
            "",
            "us-gov-west-1",
            "aps-workspaces.us-gov-west-1.amazonaws.com",
        ),
        (
            f"https://vpce-1-2.aps-workspaces.us-east-2.vpce.amazonaws.com/workspaces/{ID}",
            "",
            "us-east-2",
            "vpce-1-2.aps-workspaces.us-east-2.vpce.amazonaws.com",
        ),
        (f"https://metrics.example.org/workspaces/{ID}", "", "eu-central-1", "metrics.example.org"),
    ],
)
def test_the_region_is_the_workspaces_or_else_the_clusters(
    variables: Variables, workspace: str, given: str, region: str, host: str
) -> None:
    value = variables("eu-central-1", prometheus_amp_workspace=workspace, prometheus_amp_region=given)
    assert value("__prometheus_amp_region") == region
    assert value("__prometheus_amp_url") == f"https://{host}/workspaces/{ID}/api/v1/remote_write"


@pytest.mark.parametrize("workspace", ["", "prod", "https://example.org/metrics"])
def test_what_is_no_workspace_has_no_id(variables: Variables, workspace: str) -> None:
    assert variables(prometheus_amp_workspace=workspace)("__prometheus_amp_id") == ""


@pytest.mark.parametrize(
    ("mode", "agent"), [("none", False), ("self-hosting", False), ("amp-only", True), ("amp+amg", True)]
)
def test_an_agent_writes_to_the_workspace_and_keeps_nothing(variables: Variables, mode: str, agent: bool) -> None:
    own = {"url": "https://example.org/write"}
    value = variables(prometheus_mode=mode, prometheus_amp_workspace=ID, prometheus_remote_write=[own])
    flags = value("__prometheus_arguments")
    assert ("--agent" in flags) is agent
    assert any(flag.startswith("--storage.tsdb.retention") for flag in flags) is not agent
    writes = value("__prometheus_remote_write")
    assert writes[-1] == own
    assert len(writes) == 1 + agent
    assert value("__prometheus_credentials_for") == (["prometheus_amp_workspace"] if agent else [])
    if agent:
        assert writes[0]["url"] == WRITE
        assert writes[0]["sigv4"] == {"region": "us-west-2"}
        assert writes[0]["queue_config"]["retry_on_http_429"] is True


def test_a_role_is_assumed(variables: Variables) -> None:
    arn = "arn:aws:iam::123456789012:role/writer"
    value = variables(prometheus_mode="amp-only", prometheus_amp_workspace=ID, prometheus_amp_role_arn=arn)
    assert value("__prometheus_amp_write")["sigv4"] == {"region": "us-west-2", "role_arn": arn}


def test_who_else_needs_credentials(variables: Variables) -> None:
    value = variables(prometheus_discovery="ec2", prometheus_remote_write=[{"url": "https://x", "sigv4": {}}])
    assert value("__prometheus_credentials_for") == ["prometheus_remote_write", "prometheus_discovery"]


@pytest.mark.parametrize(("mode", "needed"), [("none", False), ("self-hosting", True), ("amp-only", True)])
def test_nothing_is_downloaded_that_does_not_run(variables: Variables, mode: str, needed: bool) -> None:
    assert variables(prometheus_mode=mode)("__prometheus_downloads") is needed


def test_jobs_are_those_of_exporters_that_there_are(variables: Variables) -> None:
    jobs = variables(node_exporter_listen_address=":9200", dcgm_exporter_listen_address="0.0.0.0:9500")(
        "prometheus_jobs"
    )
    assert jobs == [{"name": "node", "port": 9200}, {"name": "dcgm", "port": 9500, "gpu_only": True}]
    assert [job["name"] for job in variables(dcgm_exporter_enabled=False)("prometheus_jobs")] == ["node"]


def test_slurms_exporter(variables: Variables) -> None:
    metrics = {"accounting": False}
    flags = variables(__slurm_exporter_metrics=metrics, slurm_exporter_collectors_disabled=["info"])(
        "__slurm_exporter_arguments"
    )
    assert flags[0] == "--web.listen-address=127.0.0.1:9341"
    assert flags[1] == "--slurm.bin-path=/opt/slurm/bin"
    assert flags[-2:] == ["--no-collector.info", "--no-collector.fairshare"]
    value = variables(__slurm_exporter_metrics={"accounting": True}, slurm_exporter_flags=["--log.level=warn"])
    assert "--no-collector.fairshare" not in value("__slurm_exporter_arguments")
    assert value("__slurm_exporter_arguments")[-1] == "--log.level=warn"
    assert value("__slurm_exporter_url").endswith("/v1.8.4/slurm_exporter-1.8.4-linux-arm64.tar.gz")
    assert value("__slurm_exporter_local_address") == "127.0.0.1:9341"
    assert variables(slurm_exporter_listen_address=":1")("__slurm_exporter_local_address") == "127.0.0.1:1"
