# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The CloudWatch agent: what arrives of ours, and that ParallelCluster's part goes on whatever becomes of ours."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from functools import cache
from typing import Any

import boto3
import pytest
from testinfra.host import Host

from .conftest import instance
from .helpers import On, Play, Run, failure, ok, until, variables

HOME = "/opt/aws/amazon-cloudwatch-agent"
FOLDER = f"{HOME}/etc/amazon-cloudwatch-agent.d"
OURS, THEIRS = f"{FOLDER}/file_pcluster-postboot.json", f"{FOLDER}/file_amazon-cloudwatch-agent.json"
UNIT = "amazon-cloudwatch-agent"
# Where ParallelCluster's own configuration lies while a test has taken the agent away.
KEPT = f"/var/tmp/{UNIT}.json"
NODE = "cpu-st-c5-1"
ONLY = ("--limit", NODE, "--tags", "cloudwatch_agent")
Found = tuple[str, str, tuple[tuple[str, str], ...]]


@cache
def client(service: str) -> Any:
    return boto3.client(service, region_name="us-east-1")


def metrics(**only: Any) -> set[Found]:
    """Namespace, name and dimensions of every metric that CloudWatch has, or of some."""
    pages = client("cloudwatch").get_paginator("list_metrics").paginate(**only)
    return {
        (one["Namespace"], one["MetricName"], tuple(sorted((d["Name"], d["Value"]) for d in one["Dimensions"])))
        for page in pages
        for one in page["Metrics"]
    }


def of(name: str) -> dict[str, set[str]]:
    """The names of the metrics of one node, by their namespaces."""
    found: dict[str, set[str]] = {}
    for namespace, metric, _dimensions in metrics(Dimensions=[{"Name": "InstanceId", "Value": instance(name)}]):
        found.setdefault(namespace, set()).add(metric)
    return found


def shipped(name: str, stream: str) -> list[str]:
    """What has arrived in a log stream of a node."""
    group = f"/aws/parallelcluster/{'el' if name.startswith('el-') else 'main'}-202611210900"
    pages = client("logs").get_paginator("describe_log_streams").paginate(logGroupName=group)
    names = [one for page in pages for one in page["logStreams"]]
    full = [one["logStreamName"] for one in names if one["logStreamName"].endswith(f"{instance(name)}.{stream}")]
    if not full:
        return []
    events = client("logs").get_log_events(logGroupName=group, logStreamName=full[0], startFromHead=True)["events"]
    return [event["message"] for event in events]


def ships(host: Host, name: str) -> None:
    """A line in a log of ParallelCluster's arrives."""
    line = f"still here at {time.time()}"
    host.check_output(f"echo '{line}' >> /var/log/supervisord.log")
    until(lambda: line in shipped(name, "supervisord"), 15)


def files(host: Host) -> str:
    return host.check_output(f"stat --format='%n %Z %s' {FOLDER}/* {HOME}/etc/*.json; systemctl show -p MainPID {UNIT}")


def complaint(result: Run) -> str:
    """The line about a failure, after which the node has stayed."""
    return failure(ok(result), NODE, "cloudwatch_agent")


@pytest.fixture
def as_before(on: On, play: Play) -> Iterator[None]:
    """The sandbox's own variables put everything back."""
    yield
    ok(play(*ONLY))
    assert on(NODE).file(OURS).exists


@pytest.mark.parametrize(
    ("name", "namespace", "some"),
    [
        ("gpu-st-p5-1", "ParallelCluster/main", {"nvidia_smi_utilization_gpu", "efa_tx_bytes", "mem_used_percent"}),
        ("el-cpu-st-c5-1", "ParallelCluster/el", {"cpu_usage_active", "disk_used_percent"}),
        ("login", "ParallelCluster/main", {"cpu_usage_active"}),
        ("head", "CWAgent", {"cpu_usage_active", "mem_used_percent"}),
    ],
)
def test_every_nodes_metrics_arrive(on: On, name: str, namespace: str, some: set[str]) -> None:
    until(lambda: some <= of(name).get(namespace, set()), 15)
    assert list(of(name)) == [namespace]
    assert json.loads(on(name).check_output(f"{HOME}/bin/amazon-cloudwatch-agent-ctl -a status"))["status"] == "running"


def test_devices_of_a_node_count_as_one() -> None:
    some = metrics(Namespace="ParallelCluster/main", MetricName="nvidia_smi_utilization_gpu")
    gpus = [dimensions for _namespace, _metric, dimensions in some]
    assert {"index", "name"}.isdisjoint(name for one in gpus for name, _value in one)
    ours = [dict(one) for one in gpus if dict(one).get("InstanceId") == instance("gpu-st-p5-1") and len(one) > 1]
    assert {(one["ClusterName"], one["NodeType"], one["NodeName"], one["Queue"]) for one in ours} == {
        ("main", "compute", "gpu-st-p5-1", "gpu")
    }


def test_each_metric_is_there_once_for_all_nodes() -> None:
    """Every agent sends into the series without dimensions, of which the dashboards make sums."""
    names = ("efa_tx_bytes", "nvidia_smi_utilization_gpu", "cpu_usage_active")
    until(
        lambda: {("ParallelCluster/main", name, ()) for name in names} <= metrics(Namespace="ParallelCluster/main"), 15
    )


def test_a_heads_alarms_find_what_they_look_for() -> None:
    head = (("InstanceId", instance("head")),)
    found = metrics(Namespace="CWAgent")
    assert ("CWAgent", "mem_used_percent", head) in found
    assert ("CWAgent", "disk_used_percent", (*head, ("path", "/"))) in found


def test_logs_of_both_are_shipped(on: On) -> None:
    ships(on(NODE), NODE)
    report = json.loads(shipped(NODE, "pcluster-postboot-report")[-1])
    assert report["host"] == NODE


@pytest.mark.long
@pytest.mark.usefixtures("as_before")
def test_by_default_logs_are_shipped_and_no_metrics(on: On, play: Play) -> None:
    host = on(NODE)
    ok(play(*ONLY, *variables(cloudwatch_agent_metrics=[])))
    assert list(json.loads(host.file(OURS).content_string)) == ["logs"]
    ships(host, NODE)
    assert "0 changed" in play(*ONLY, *variables(cloudwatch_agent_metrics=[])).stdout


@pytest.mark.long
@pytest.mark.usefixtures("as_before")
def test_removal_removes_exactly_ours(on: On, play: Play) -> None:
    host = on(NODE)
    before = host.file(THEIRS).content_string
    ok(play(*ONLY, *variables(cloudwatch_agent_state="absent")))
    assert host.check_output(f"ls {FOLDER}") == "file_amazon-cloudwatch-agent.json"
    assert host.file(THEIRS).content_string == before
    merged = json.loads(host.check_output(f"cat {HOME}/etc/amazon-cloudwatch-agent.toml"))
    assert merged == json.loads(before)
    ships(host, NODE)
    assert "0 changed" in play(*ONLY, *variables(cloudwatch_agent_state="absent")).stdout


@pytest.mark.long
def test_an_agent_that_does_not_stay_up_gets_its_configuration_back(on: On, play: Play) -> None:
    host = on(NODE)
    before = host.file(OURS).content_string
    # The unit fails where our file says 7 seconds, as the agent would on what it cannot do.
    dropin = f"/run/systemd/system/{UNIT}.service.d/fails.conf"
    fails = f"[Service]\nRestartSec=1\nExecStartPre=/bin/sh -c '! grep -q interval.*7, {OURS}'\n"
    host.check_output(f"mkdir -p {dropin.rpartition('/')[0]}")
    host.check_output("printf %s > %s", fails, dropin)
    host.check_output("systemctl daemon-reload")
    try:
        line = complaint(play(*ONLY, *variables(cloudwatch_agent_interval=7)))
    finally:
        host.check_output(f"rm {dropin}; systemctl daemon-reload")
    assert f"{UNIT}.service did not come up" in line
    assert "its configuration was put back as it was, and with that it runs" in line
    assert f"{HOME}/logs/amazon-cloudwatch-agent.log" in line
    assert host.file(OURS).content_string == before
    ships(host, NODE)


def take_agent_away(host: Host, removal: str = "dpkg --purge amazon-cloudwatch-agent") -> None:
    record = "/var/lib/pcluster-postboot/packages/amazon-cloudwatch-agent.json"
    host.check_output(f"[ -e {KEPT} ] || cp -a {HOME}/etc/{UNIT}.json {KEPT}")
    host.run(f"systemctl stop {UNIT}; {removal}")
    host.check_output(f"rm -rf {HOME} {record} /etc/systemd/system/{UNIT}.service && systemctl daemon-reload")


def give_agent_back(host: Host) -> None:
    """Install the agent as the node's first boot has done it, and configure it as ParallelCluster has."""
    for path in ("opt/aws", "etc/systemd/system"):
        host.check_output(f"cp -a --no-preserve=ownership /sandbox/node/{path}/. /{path}/")
    host.check_output(f"mv {KEPT} {HOME}/etc/{UNIT}.json")
    append = f"{HOME}/bin/amazon-cloudwatch-agent-ctl -a append-config -m ec2 -s -c file:{HOME}/etc/{UNIT}.json"
    host.check_output(f"systemctl daemon-reload && {append}")


@pytest.mark.long
def test_what_an_exporter_shows_arrives(on: On, play: Play) -> None:
    name = "gpu-st-p5-1"
    only = ("--limit", name, "--tags", "cloudwatch_agent")
    wanted = {"host", "gpu", "efa", "prometheus"}
    try:
        ok(play(*only, *variables(cloudwatch_agent_metrics=sorted(wanted))))
        until(lambda: bool(metrics(Namespace="ParallelCluster/main", MetricName="DCGM_FI_PROF_SM_ACTIVE")), 30)
        found = metrics(Namespace="ParallelCluster/main", MetricName="DCGM_FI_PROF_SM_ACTIVE")
        assert {dict(one)["gpu"] for _namespace, _metric, one in found} == {str(number) for number in range(8)}
        assert {dict(one)["NodeName"] for _namespace, _metric, one in found} == {name}
        # The agent reads it with Prometheus' own parser.
        told = on(name).check_output(f"cat {HOME}/etc/pcluster-postboot-prometheus.yaml")
        assert on("head").run("echo %s | promtool check config --syntax-only /dev/stdin", told).rc == 0
        groups = client("logs").describe_log_groups(logGroupNamePrefix="/pcluster-postboot/main/")["logGroups"]
        assert [one["logGroupName"] for one in groups] == ["/pcluster-postboot/main/prometheus"]
    finally:
        ok(play(*only))


@pytest.mark.long
def test_amazon_linux_installs_its_own(on: On, play: Play) -> None:
    name = "el-cpu-st-c5-1"
    host, only = on(name), ("--limit", name, "--tags", "cloudwatch_agent")
    take_agent_away(host, "rpm -e amazon-cloudwatch-agent")
    try:
        result = play(*only, *variables(cloudwatch_agent_log_group="/mine"))
        assert re.search("[1-9] changed, 0 failed", result.stdout), result.stdout[-3000:]
        assert host.check_output("rpm -q --qf '%{VERSION}' amazon-cloudwatch-agent").startswith("1.")
        assert host.service(UNIT).is_running
        assert "0 changed" in play(*only, *variables(cloudwatch_agent_log_group="/mine")).stdout
    finally:
        take_agent_away(host, "rpm -e amazon-cloudwatch-agent")
        give_agent_back(host)
        ok(play(*only))


@pytest.mark.long
def test_a_node_without_an_agent_gets_the_pinned_one(on: On, play: Play) -> None:
    host = on(NODE)
    take_agent_away(host)
    try:
        result = play(*ONLY, *variables(cloudwatch_agent_log_group="/mine"))
        assert re.search("[1-9] changed, 0 failed", result.stdout), result.stdout[-3000:]
        assert host.package("amazon-cloudwatch-agent").version == "1.300072.0b1766-1"
        assert host.service(UNIT).is_running
        assert host.service(UNIT).is_enabled
        assert "0 changed" in play(*ONLY, *variables(cloudwatch_agent_log_group="/mine")).stdout
    finally:
        take_agent_away(host)
        give_agent_back(host)
        ok(play(*ONLY))


def test_dashboards_show_what_has_arrived(play: Play) -> None:
    name = "ParallelCluster-main"
    ok(play("--limit", "head", name="cloudwatch"))
    assert "changed=0" in play("--limit", "head", name="cloudwatch").stdout
    bodies = {
        name + suffix: client("cloudwatch").get_dashboard(DashboardName=name + suffix)["DashboardBody"]
        for suffix in ("", "-Advanced", "-EFA")
    }
    known = {(namespace, metric, tuple(key for key, _value in one)) for namespace, metric, one in metrics()}
    for title, body in bodies.items():
        assert "SUM(" not in body, title
        searches = re.findall(r"SEARCH\('\{([^}]*)\} MetricName=\"(\w+)\"", body.replace('\\"', '"'))
        assert searches, title
        for schema, metric in searches:
            namespace, *dimensions = schema.replace('"', "").split(",")
            assert (namespace, metric, tuple(sorted(dimensions))) in known, f"{title}: {schema} {metric}"
    assert "/aws/parallelcluster/main-202611210900" in bodies[name]
    listed = client("cloudwatch").list_dashboards()["DashboardEntries"]
    assert not any(one["DashboardName"].startswith("main-") for one in listed)
