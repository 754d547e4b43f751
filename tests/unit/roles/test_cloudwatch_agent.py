# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What cloudwatch_agent works out from the facts of a node, with Ansible's own templating; its defaults are known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.pcluster.postboot.plugins.module_utils._cloudwatch import config
from ansible_collections.pcluster.postboot.tests.relabelling import relabel

Variables = Callable[..., Callable[[str], Any]]


@pytest.fixture
def variables(work_out: Variables) -> Variables:
    """variables(id="ubuntu", **facts) returns a function that works out a variable."""

    def make(os: str = "ubuntu", agent: str | None = None, **facts: Any) -> Any:
        known = {
            "cluster": "alpha",
            "os": {"id": os, "family": "debian" if os == "ubuntu" else "redhat"},
            "components": {"cloudwatch_agent": agent},
        }
        return work_out("common cloudwatch_agent", {**known, **facts})

    return make


@pytest.mark.parametrize(
    ("os", "agent", "needed"),
    [
        ("ubuntu", "1.300071.0", []),
        ("ubuntu", None, ["cloudwatch_agent_deb"]),
        ("rocky", None, ["cloudwatch_agent_rpm"]),
        # Its own repository has one.
        ("amzn", None, []),
    ],
)
def test_only_a_node_without_an_agent_needs_a_hash(
    variables: Variables, os: str, agent: str | None, needed: list[str]
) -> None:
    assert variables(os, agent)("__cloudwatch_agent_downloads") == needed


def test_where_the_packages_are(variables: Variables) -> None:
    base = "https://amazoncloudwatch-agent.s3.amazonaws.com"
    version = variables()("cloudwatch_agent_version")
    assert variables()("__cloudwatch_agent_deb_url") == f"{base}/ubuntu/amd64/{version}/amazon-cloudwatch-agent.deb"
    assert variables()("__cloudwatch_agent_rpm_url") == f"{base}/redhat/amd64/{version}/amazon-cloudwatch-agent.rpm"


def test_dimensions(variables: Variables) -> None:
    head = {"ClusterName": "alpha", "NodeType": "head", "NodeName": "ip-10-0-0-5"}
    assert variables()("__cloudwatch_agent_dimensions") == head
    node = variables(node_type="compute", node_name="gpu-st-p5-1", queue="gpu")
    assert node("__cloudwatch_agent_dimensions")["Queue"] == "gpu"
    assert node("cloudwatch_agent_namespace") == "ParallelCluster/alpha"


def test_disks_and_file_systems(variables: Variables) -> None:
    wanted = [
        {"path": "/fsx", "type": "lustre", "source": "fs-0123456789abcdef0.fsx.us-east-2.amazonaws.com@tcp:/abcdefgh"},
        {"path": "/home", "type": "nfs", "source": "10.0.0.1:/home"},
    ]
    node = variables(scratch="/scratch", mounts={"wanted": wanted, "found": []})
    assert node("cloudwatch_agent_disks") == ["/", "/scratch"]
    assert node("__cloudwatch_agent_file_systems") == ["fs-0123456789abcdef0"]
    assert variables()("cloudwatch_agent_disks") == ["/"]


def test_no_metric_is_bought_by_default(variables: Variables) -> None:
    node = variables(node_type="compute", queue="gpu")
    wanted = config.Wanted(
        metrics=tuple(node("cloudwatch_agent_metrics")),
        measurements=node("cloudwatch_agent_measurements"),
        namespace=node("cloudwatch_agent_namespace"),
        dimensions=node("__cloudwatch_agent_dimensions"),
        gpus=8,
        efa=32,
        logs=tuple(node("cloudwatch_agent_logs")),
        log_group="/aws/parallelcluster/alpha",
        scrapes=tuple(config.Scrape(**one) for one in node("cloudwatch_agent_scrapes")),
    )
    fitted = config.fit(wanted, {}, "1.300071.0", "h", "theirs")
    assert (list(fitted.config), list(fitted.config["logs"])) == (["logs"], ["logs_collected"])
    assert (fitted.scrape, fitted.left_out) == (None, [])
    chosen = config.fit(wanted._replace(metrics=("host", "gpu", "efa", "prometheus")), {}, "1.300071.0", "h", "theirs")
    assert set(chosen.config["metrics"]["metrics_collected"]) == set(node("cloudwatch_agent_measurements"))


def test_the_agent_knows_every_default(variables: Variables) -> None:
    value = variables()
    config.check(
        config.Wanted(
            measurements=value("cloudwatch_agent_measurements"),
            interval=value("cloudwatch_agent_interval"),
            scrapes=tuple(config.Scrape(**one) for one in value("cloudwatch_agent_scrapes")),
            config=value("cloudwatch_agent_config"),
        )
    )


def test_xids_are_those_that_the_alerts_count(variables: Variables, repo: Path) -> None:
    """The gauge of the last XID never goes back, so that no alarm on it would end."""
    classes = yaml.safe_load((repo / "roles/prometheus/files/xids.yml").read_text())
    (dcgm,) = variables()("cloudwatch_agent_scrapes")
    assert "DCGM_FI_DEV_XID_ERRORS" not in dcgm["metrics"]

    def kept(name: str, xid: str) -> bool:
        return bool(relabel({"__name__": name, "xid": xid}, dcgm["metric_relabel_configs"]))

    for kind, groups in classes.items():
        for xid in (str(xid) for group in groups for xid in group["xids"]):
            assert kept("DCGM_EXP_XID_ERRORS_COUNT", xid) is (kind == "critical"), xid
    assert kept("DCGM_EXP_XID_ERRORS_COUNT", "")
    assert kept("DCGM_EXP_XID_ERRORS_COUNT", "185")  # in neither class: GpuXid counts it
    assert kept("DCGM_FI_PROF_SM_ACTIVE", "13")
