# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The dashboards search for what the agents send, and nothing else; the action writes them to an API on loopback."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from botocore.exceptions import ClientError

from ansible_collections.pcluster.postboot.plugins.action import cloudwatch_dashboard as action
from ansible_collections.pcluster.postboot.plugins.module_utils._cloudwatch import config, keys
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cloudwatch import dashboards

DEFAULTS = yaml.safe_load(
    (Path(__file__).resolve().parents[4] / "roles/cloudwatch_agent/defaults/main.yml").read_text()
)
CLUSTER = dashboards.Cluster(
    name="alpha",
    region="us-east-2",
    namespace="ParallelCluster/alpha",
    metrics=["host", "gpu", "efa", "prometheus"],
    measurements=DEFAULTS["cloudwatch_agent_measurements"],
    head_instance="i-0123",
    log_group="/aws/parallelcluster/alpha-202611210900",
    file_systems=["fs-0a", "fs-0b"],
    scrapes=DEFAULTS["cloudwatch_agent_scrapes"],
)
HEAD = {"metrics": {"metrics_collected": {"mem": {}, "disk": {}}, "aggregation_dimensions": [["InstanceId", "path"]]}}
# The labels that the agent's plugins put on a series, where each device has its own.
LABELS = {
    "cpu": ["cpu"],
    "disk": ["path", "fstype"],
    "nvidia_gpu": ["index", "name", "arch"],
    "efa": ["device", "port", "eniId"],
}
Found = tuple[str, str, tuple[str, ...]]


def sent(per_device: bool) -> set[Found]:
    """Namespace, name and dimensions of every metric that a cluster's agents send as the role configures them."""
    found: set[Found] = set()
    for kind, others in (("head", HEAD), ("login", {}), ("compute", {})):
        dimensions = {"ClusterName": "alpha", "NodeType": kind, "NodeName": "n"}
        dimensions |= {"Queue": "gpu"} if kind == "compute" else {}
        wanted = config.Wanted(
            metrics=tuple(CLUSTER.metrics),
            measurements=CLUSTER.measurements,
            per_device=per_device,
            namespace=CLUSTER.namespace,
            dimensions=dimensions,
            gpus=8 if kind == "compute" else 0,
            efa=32 if kind == "compute" else 0,
            scrapes=tuple(config.Scrape(**one) for one in CLUSTER.scrapes),
        )
        fitted = config.fit(wanted, others, "1.300071.0", "h", "theirs")
        metrics = fitted.config["metrics"]
        for plugin, part in metrics["metrics_collected"].items():
            series = [*LABELS.get(plugin, []), *part.get("append_dimensions", {}), "InstanceId"]
            names = [keys.metric_name(plugin, name) for name in part["measurement"]]
            rollups = [one for one in metrics.get("aggregation_dimensions", []) if set(one) < set(series)]
            real = keys.REAL_NAMES.get(plugin, plugin)
            dropped = [one if plugin in one else f"{real}_{one}" for one in part.get("drop_original_metrics", [])]
            for name in names:
                kept = [] if name in dropped else [series]
                found |= {(fitted.namespace, name, tuple(sorted(one))) for one in kept + rollups}
        prometheus = fitted.config.get("logs", {}).get("metrics_collected", {}).get("prometheus")
        for rule in prometheus["emf_processor"]["metric_declaration"] if prometheus else []:
            for pattern in rule["metric_selectors"]:
                name = re.sub(r"^\^\(\?:|\)\$$", "", pattern)
                found |= {(CLUSTER.namespace, name, tuple(sorted(one))) for one in rule["dimensions"]}
    return found


def searched(body: dict[str, Any]) -> set[Found]:
    """What a dashboard looks for, by a search or by the name of a metric; not what AWS' own services send."""
    found = set()
    for widget in body["widgets"]:
        for metric in widget["properties"].get("metrics", []):
            if isinstance(metric[0], str) and metric[0] == CLUSTER.namespace:
                found.add((metric[0], metric[1], tuple(metric[2:-1:2])))
            expression = metric[-1].get("expression", "") if isinstance(metric[-1], dict) else ""
            for schema, name in re.findall(r"SEARCH\('\{([^}]*)\} MetricName=\"(\w+)\"", expression):
                namespace, *names = schema.split(",")
                found.add((namespace.strip('"'), name, tuple(names)))
    return found


@pytest.mark.parametrize("per_device", [False, True])
def test_every_search_is_for_what_an_agent_sends(per_device: bool) -> None:
    cluster = CLUSTER._replace(per_device=per_device)
    everything = set()
    for kind in dashboards.SUFFIXES:
        found = searched(dashboards.build(cluster, kind))
        assert found, kind
        assert found <= sent(per_device), kind
        everything |= found
    # Whatever costs money is shown somewhere.
    names = {keys.metric_name(plugin, one) for plugin, m in CLUSTER.measurements.items() for one in m}
    names |= set(DEFAULTS["cloudwatch_agent_scrapes"][0]["metrics"])
    assert {name for _namespace, name, _dimensions in everything} == names


@pytest.mark.parametrize("per_device", [False, True])
def test_what_is_told_of_all_nodes_is_no_search(per_device: bool) -> None:
    """A search finds 500 series, and those of nodes that are gone; tests/bench/cloudwatch.py counts what that means."""
    cluster = CLUSTER._replace(per_device=per_device)
    for kind in dashboards.SUFFIXES:
        body = dashboards.build(cluster, kind)
        assert "SUM(" not in json.dumps(body)
        for widget in body["widgets"]:
            text = json.dumps(widget["properties"])
            # Only the 50 highest of what was found are drawn.
            assert text.count("SEARCH(") == text.count("SORT(SEARCH("), widget["properties"]["title"]
        told = body["widgets"][0]["properties"]["markdown"]
        assert "the highest 50 of the 500 series that CloudWatch finds at most" in told
    traffic = next(one for one in dashboards.build(cluster, "efa")["widgets"] if one["type"] == "metric")
    assert traffic["properties"]["metrics"][:2] == [
        ["ParallelCluster/alpha", "efa_tx_bytes", {"stat": "Sum", "id": "m1", "label": "sent", "visible": False}],
        [{"expression": "m1/PERIOD(m1)", "id": "r1", "label": "sent"}],
    ]


@pytest.mark.parametrize("kind", list(dashboards.SUFFIXES))
def test_widgets_lie_side_by_side(kind: str) -> None:
    widgets = dashboards.build(CLUSTER, kind)["widgets"]
    taken: set[tuple[int, int]] = set()
    for widget in widgets:
        assert widget["x"] + widget["width"] <= dashboards.WIDTH
        cells = {
            (x, y)
            for x in range(widget["x"], widget["x"] + widget["width"])
            for y in range(widget["y"], widget["y"] + widget["height"])
        }
        assert not cells & taken
        taken |= cells
        assert widget["type"] == "text" or widget["properties"]["region"] == "us-east-2"
    for widget in widgets:
        ends = [metric[-1] for metric in widget["properties"].get("metrics", [])]
        ids = [end["id"] for end in ends if isinstance(end, dict) and "id" in end]
        assert len(set(ids)) == len(ids), "CloudWatch refuses two metrics of one id"


def test_what_is_not_measured_is_not_shown() -> None:
    body = json.dumps(dashboards.build(CLUSTER._replace(metrics=["host"], log_group="", file_systems=[]), "default"))
    assert "nvidia" not in body
    assert "efa_" not in body
    assert "SOURCE" not in body
    assert "cpu_usage_active" in body
    assert "nvidia_smi_power_draw" not in json.dumps(
        dashboards.build(CLUSTER._replace(measurements={"nvidia_gpu": ["utilization_gpu"]}), "advanced")
    )


@pytest.mark.parametrize("metrics", [[], ["host"], ["gpu", "efa"]])
@pytest.mark.parametrize("kind", list(dashboards.SUFFIXES))
def test_no_heading_stands_alone(kind: str, metrics: list[str]) -> None:
    title, *widgets = dashboards.build(CLUSTER._replace(metrics=metrics), kind)["widgets"]
    assert title["type"] == "text"
    headings = [one["type"] == "text" for one in widgets]
    assert not any(here and after for here, after in zip(headings, [*headings[1:], True]))
    assert ("efa" in metrics or bool(widgets)) if kind != "efa" else bool(widgets) is ("efa" in metrics)
    lacks = [name for name in dashboards.SHOWN[kind] if name not in metrics]
    told = title["properties"]["markdown"]
    assert ("cloudwatch_agent_metrics" in told) is bool(lacks)
    assert all(f"`{name}`" in told for name in lacks)


def test_names() -> None:
    assert [dashboards.name_of("alpha", kind) for kind in dashboards.SUFFIXES] == [
        "ParallelCluster-alpha",
        "ParallelCluster-alpha-Advanced",
        "ParallelCluster-alpha-EFA",
    ]


class Api:
    """moto's CloudWatch and Logs, and what was asked of them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.calls: list[str] = []

    def make(self, service: str, region: str) -> Any:
        client = boto3.client(
            service, region_name=region, endpoint_url=self.url, aws_access_key_id="x", aws_secret_access_key="x"
        )
        client.meta.events.register("before-call", lambda model, **_rest: self.calls.append(model.name))
        return client

    def apply(self, check: bool = False, **given: Any) -> dict[str, Any]:
        args = {name: option.get("default", "") for name, option in action.SPEC.items()}
        args |= {"cluster": "alpha", "region": "us-east-1", "measurements": CLUSTER.measurements, **given}
        return action.apply(self.make, args, check)


@pytest.fixture
def api(moto: str) -> Api:
    urllib.request.urlopen(urllib.request.Request(f"{moto}/moto-api/reset", method="POST")).close()
    return Api(moto)


def test_written_once_and_only_when_they_differ(api: Api) -> None:
    foretold = api.apply(check=True)
    assert foretold["changed"]
    assert "PutDashboard" not in api.calls
    first = api.apply()
    assert first["dashboards"] == [
        "ParallelCluster-alpha",
        "ParallelCluster-alpha-Advanced",
        "ParallelCluster-alpha-EFA",
    ]
    assert [one["before"] for one in first["diff"]] == ["", "", ""]
    assert first["diff"] == foretold["diff"]
    api.calls.clear()
    second = api.apply()
    assert (second["changed"], second["diff"]) == (False, [])
    assert "PutDashboard" not in api.calls
    client = api.make("cloudwatch", "us-east-1")
    client.put_dashboard(DashboardName="ParallelCluster-alpha-EFA", DashboardBody='{"widgets": []}')
    third = api.apply()
    assert third["dashboards"] == ["ParallelCluster-alpha-EFA"]
    assert json.loads(client.get_dashboard(DashboardName="ParallelCluster-alpha-EFA")["DashboardBody"])["widgets"]


@pytest.mark.parametrize(
    ("region", "host"),
    [
        ("us-east-2", "us-east-2.console.aws.amazon.com"),
        ("cn-north-1", "cn-north-1.console.amazonaws.cn"),
        ("us-gov-west-1", "console.amazonaws-us-gov.com"),
    ],
)
def test_where_they_are_told_to_be(api: Api, region: str, host: str) -> None:
    name = "ParallelCluster-alpha"
    url = f"https://{host}/cloudwatch/home?region={region}#dashboards/dashboard/{name}"
    assert api.apply(check=True, region=region)["urls"][name] == url


def test_removed_and_no_other(api: Api) -> None:
    api.apply()
    client = api.make("cloudwatch", "us-east-1")
    client.put_dashboard(DashboardName="alpha-us-east-1", DashboardBody='{"widgets": []}')
    assert len(api.apply(state="absent")["dashboards"]) == 3
    assert [one["DashboardName"] for one in client.list_dashboards()["DashboardEntries"]] == ["alpha-us-east-1"]
    assert not api.apply(state="absent")["changed"]


def test_the_newest_log_group_of_the_cluster_is_found(api: Api) -> None:
    logs = api.make("logs", "us-east-1")
    for name in ("alpha-202511210900", "alpha-202611210900", "alpha-2-202711210900", "beta-202811210900"):
        logs.create_log_group(logGroupName=f"/aws/parallelcluster/{name}")
    result = api.apply()
    assert result["log_group"] == "/aws/parallelcluster/alpha-202611210900"
    assert "SOURCE '/aws/parallelcluster/alpha-202611210900' |" in result["diff"][0]["after"]
    assert api.apply(log_group="/mine")["log_group"] == "/mine"


def test_who_may_not_is_told_what_is_missing() -> None:
    def refuse(operation: str) -> Any:
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, operation)

    class Client:
        def get_dashboard(self, **_given: Any) -> Any:
            refuse("GetDashboard")

        def get_paginator(self, _name: str) -> Any:
            refuse("DescribeLogGroups")

    args = {name: option.get("default", "") for name, option in action.SPEC.items()}
    args |= {"cluster": "alpha", "region": "us-east-1"}
    with pytest.raises(Problem) as error:
        action.apply(lambda *_given: Client(), args, False)
    assert "give the caller the permission cloudwatch:GetDashboard" in str(error.value)
