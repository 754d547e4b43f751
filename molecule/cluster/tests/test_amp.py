# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Prometheus as an agent that writes to Amazon Managed Prometheus: credentials, outages, rules in the workspace."""

from __future__ import annotations

import json
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
import yaml
from testinfra.host import Host

from .helpers import On, Play, Run, exposure, failure, ok, process, until, variables

ONLY = ("--limit", "el-head", "--tags", "prometheus")
AMP = "http://10.115.0.5:9090"
INTERVAL = 2
SECRETS = ("sandbox-role-secret", "sandbox-role-token")


def amp(path: str, body: str | None = None, **query: Any) -> Any:
    """What the sandbox's Amazon Managed Prometheus says behind its door."""
    url = f"{AMP}/sandbox/{path}" + (f"?{urllib.parse.urlencode(query)}" if query else "")
    request = urllib.request.Request(
        url, None if body is None else body.encode(), method="GET" if body is None else "PUT"
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)


def fault(kind: str) -> None:
    amp("fault", kind)


def samples(begin: float, end: float) -> list[float]:
    """When the agent scraped itself, as the workspace knows it."""
    query = f'up{{job="prometheus", cluster="el"}}[{int(end - begin)}s]'
    found = amp("api/v1/query", query=query, time=end)["data"]["result"]
    return [float(when) for when, _value in found[0]["values"]] if found else []


def jobs(cluster: str) -> set[str]:
    """Which jobs of a cluster the workspace has heard of lately."""
    found = amp("api/v1/query", query=f'count by (job) (up{{cluster="{cluster}", region="us-east-1"}})')
    return {one["metric"]["job"] for one in found["data"]["result"]}


@pytest.fixture(scope="module")
def workspace() -> str:
    """A workspace, for its rules; the samples of any go to the same place."""
    return str(boto3.client("amp", region_name="us-east-1").create_workspace(alias="sandbox")["workspaceId"])


@pytest.fixture(scope="module")
def agent(on: On, play: Play, workspace: str) -> Iterator[tuple[str, str]]:
    """The variables of an agent, on a head node that has no role."""
    host = on("el-head")
    host.check_output("bash /sandbox/node/sandbox/imds.sh role")
    values = {
        "prometheus_mode": "amp-only",
        "prometheus_amp_workspace": f"{AMP}/workspaces/{workspace}/",
        "prometheus_amp_region": "us-east-1",
        "prometheus_scrape_interval": f"{INTERVAL}s",
    }
    yield variables(**values)
    fault("")
    host.check_output("bash /sandbox/node/sandbox/imds.sh reset")
    ok(play(*ONLY))
    assert host.file("/etc/prometheus/rules/pcluster-node.yml").exists


@pytest.fixture(scope="module")
def writing(on: On, play: Play, agent: tuple[str, str]) -> Run:
    """The run that has made the head node an agent, with a role; its first samples have arrived."""
    on("el-head").check_output("bash /sandbox/node/sandbox/imds.sh role HeadRole")
    begin = time.time()
    result = play(*ONLY, *agent)
    assert not failure(result, "el-head", "prometheus")
    until(lambda: samples(begin, time.time()))
    return result


def test_without_a_role_nothing_is_touched(on: On, play: Play, agent: tuple[str, str]) -> None:
    host = on("el-head")
    before = process(host, "prometheus"), host.check_output("stat --format=%Z /etc/prometheus/prometheus.yml")
    line = failure(play(*ONLY, *agent), "el-head", "prometheus")
    assert (
        "prometheus_amp_workspace needs AWS credentials, and user prometheus has none: none in its environment, "
        in line
    )
    assert (
        "none in /var/lib/prometheus/.aws/credentials, and the instance has no role; give the instance a role" in line
    )
    assert (process(host, "prometheus"), host.check_output("stat --format=%Z /etc/prometheus/prometheus.yml")) == before


def test_it_writes_with_the_role_of_a_locked_instance(
    on: On, play: Play, agent: tuple[str, str], writing: Run, workspace: str
) -> None:
    host = on("el-head")
    assert f"prometheus: agent, writes to {workspace}" in writing.stdout
    assert "0 changed" in play(*ONLY, *agent).stdout
    refused = amp("counts").get("refused", 0)
    begin = time.time()
    until(lambda: len(samples(begin - 1, time.time())) > 2)
    assert amp("counts").get("refused", 0) == refused
    # A job is written when it has been scraped, each at its own moment of the interval.
    until(lambda: jobs("el") >= {"node", "prometheus", "slurm"})
    # Its user was let in, and is also after a boot; others still are not.
    uid = host.user("prometheus").uid
    for rules in (
        host.check_output("iptables --list-rules"),
        host.file("/etc/parallelcluster/sysconfig/iptables.rules").content_string,
    ):
        assert f"--uid-owner {uid} -j ACCEPT" in rules
        assert rules.index(f"--uid-owner {uid} ") < rules.index("-j REJECT")
    assert host.run("runuser -u nobody -- curl -s -m 2 -X PUT http://169.254.169.254/latest/api/token").rc != 0
    # The rules are in the workspace, and none is evaluated here.
    client = boto3.client("amp", region_name="us-east-1")
    kept = client.describe_rule_groups_namespace(workspaceId=workspace, name="pcluster-postboot")["ruleGroupsNamespace"]
    assert {group["name"] for group in yaml.safe_load(kept["data"])["groups"]} >= {
        "pcluster-gpu-alerts",
        "pcluster-slurm",
    }
    assert not host.check_output("ls /etc/prometheus/rules")


@pytest.mark.usefixtures("writing")
def test_no_credential_is_anywhere(on: On) -> None:
    host = on("el-head")
    places = "/etc/prometheus /etc/systemd/system /run/systemd /var/lib/prometheus-agent /var/lib/pcluster-postboot"
    proc = f"/proc/{process(host, 'prometheus')}"
    for secret in SECRETS:
        assert host.run(f"grep -r {secret} {places}").rc == 1
        assert host.run(f"journalctl --quiet --no-pager | grep {secret}").rc == 1
        assert host.run(f"cat {proc}/cmdline {proc}/environ | grep -a {secret}").rc == 1
    assert not int(oct(host.file("/etc/prometheus/prometheus.yml").mode)[-1])
    assert exposure(host, "prometheus") < 2


def outage(host: Host, seconds: float, *kinds: str) -> None:
    """Let the workspace be out of order in each of these ways in turn, and look for every sample afterwards."""
    before = process(host, "prometheus")
    begin = time.time()
    until(lambda: samples(begin - 2 * INTERVAL, time.time()), 30)
    for kind in kinds:
        fault(kind)
        time.sleep(seconds / len(kinds))
        assert not samples(time.time() - 2 * INTERVAL, time.time()), f"samples came through {kind}"
    ended = time.time()
    fault("")
    # A request that hangs is given up after 30 s, and another is sent after 10 s at most.
    until(lambda: max(samples(begin, time.time()), default=0) > ended + INTERVAL, 90)
    found = samples(begin, ended + INTERVAL)
    gaps = [later - earlier for earlier, later in zip(found, found[1:])]
    assert found[0] < begin + 2 * INTERVAL
    assert max(gaps) < 1.5 * INTERVAL, f"of {len(found)} samples some are missing: {gaps}"
    assert len(found) >= (ended - begin) / INTERVAL - 1
    assert process(host, "prometheus") == before


@pytest.mark.long
@pytest.mark.usefixtures("writing")
def test_an_outage_of_half_a_minute_loses_nothing(on: On) -> None:
    outage(on("el-head"), 30, "500", "429", "hang")


@pytest.mark.long
@pytest.mark.usefixtures("writing")
def test_an_outage_of_ten_minutes_loses_nothing(on: On) -> None:
    outage(on("el-head"), 600, "hang", "500", "429")


@pytest.mark.usefixtures("writing")
def test_what_is_refused_is_lost_and_counted(on: On) -> None:
    host = on("el-head")
    fault("403")
    failed = (
        "curl -sf http://localhost:9090/metrics | awk '/^prometheus_remote_storage_samples_failed_total/ { print $2 }'"
    )
    until(lambda: float(host.check_output(failed)) > 0, 20)
    fault("")
    assert "the sandbox was told to answer 403" in host.check_output(
        "journalctl --unit prometheus --grep non-recoverable --output cat -n 1"
    )


@pytest.mark.long
@pytest.mark.usefixtures("writing")
def test_none_stops_it(on: On, play: Play) -> None:
    host = on("el-head")
    none = variables(prometheus_mode="none")
    ok(play(*ONLY, *none))
    for unit in ("prometheus.service", "prometheus-targets.timer"):
        assert host.run(f"systemctl is-active {unit}").stdout.strip() == "inactive"
        assert host.run(f"systemctl is-enabled {unit}").stdout.strip() == "disabled"
    assert "0 changed" in play(*ONLY, *none).stdout
