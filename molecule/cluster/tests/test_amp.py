# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Prometheus as an agent that writes to Amazon Managed Prometheus: credentials, outages, rules in the workspace."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
import yaml
from testinfra.host import Host

On = Callable[[str], Host]
Play = Callable[..., subprocess.CompletedProcess[str]]

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


def wait(seconds: float, done: Callable[[], Any]) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"not so after {seconds} s"
        time.sleep(0.5)


def process(host: Host) -> str:
    return host.check_output("systemctl show --property=MainPID --value prometheus")


def failure(result: subprocess.CompletedProcess[str]) -> str:
    return next((line for line in result.stdout.splitlines() if line.startswith("failed on el-head: prometheus: ")), "")


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
    yield "-e", json.dumps(values)
    fault("")
    host.check_output("bash /sandbox/node/sandbox/imds.sh reset")
    assert play(*ONLY).returncode == 0
    assert host.file("/etc/prometheus/rules/pcluster-node.yml").exists


def test_without_a_role_nothing_is_touched(on: On, play: Play, agent: tuple[str, str]) -> None:
    host = on("el-head")
    before = process(host), host.check_output("stat --format=%Z /etc/prometheus/prometheus.yml")
    line = failure(play(*ONLY, *agent))
    assert (
        "prometheus_amp_workspace needs AWS credentials, and user prometheus has none: none in its environment, "
        in line
    )
    assert (
        "none in /var/lib/prometheus/.aws/credentials, and the instance has no role; give the instance a role" in line
    )
    assert (process(host), host.check_output("stat --format=%Z /etc/prometheus/prometheus.yml")) == before
    # And with one that may not write.
    host.check_output("bash /sandbox/node/sandbox/imds.sh role HeadRole")
    fault("403")
    line = failure(play(*ONLY, *agent))
    fault("")
    assert f"AWS refuses the role HeadRole of the instance: {AMP}/workspaces/ws-" in line
    assert "/api/v1/remote_write says 403 Forbidden (the sandbox was told to answer 403)" in line
    # And with a workspace from which no answer comes.
    nowhere = json.dumps({"prometheus_amp_workspace": AMP.replace(":9090", ":9") + "/workspaces/ws-nowhere"})
    line = failure(play(*ONLY, *agent, "-e", nowhere))
    assert ":9/workspaces/ws-nowhere/api/v1/remote_write gives no answer ([Errno 111] Connection refused): " in line
    assert "neither a VPC endpoint com.amazonaws.us-east-1.aps-workspaces nor a way to the internet" in line
    assert (process(host), host.check_output("stat --format=%Z /etc/prometheus/prometheus.yml")) == before


def test_it_writes_with_the_role_of_a_locked_instance(
    on: On, play: Play, agent: tuple[str, str], workspace: str
) -> None:
    host = on("el-head")
    result = play(*ONLY, *agent)
    assert not failure(result), failure(result)
    assert f"prometheus: agent, writes to {workspace}" in result.stdout
    assert "0 changed" in play(*ONLY, *agent).stdout
    refused = amp("counts").get("refused", 0)
    begin = time.time()
    wait(60, lambda: len(samples(begin - 1, time.time())) > 2)
    assert amp("counts").get("refused", 0) == refused
    # A job is written when it has been scraped, each at its own moment of the interval.
    wait(60, lambda: jobs("el") >= {"node", "prometheus", "slurm"})
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


def test_no_credential_is_anywhere(on: On, agent: tuple[str, str]) -> None:
    host = on("el-head")
    places = "/etc/prometheus /etc/systemd/system /run/systemd /var/lib/prometheus-agent /var/lib/pcluster-postboot"
    for secret in SECRETS:
        assert host.run(f"grep -r {secret} {places}").rc == 1
        assert host.run(f"journalctl --quiet --no-pager | grep {secret}").rc == 1
        assert host.run(f"cat /proc/{process(host)}/cmdline /proc/{process(host)}/environ | grep -a {secret}").rc == 1
    assert not int(oct(host.file("/etc/prometheus/prometheus.yml").mode)[-1])
    exposure = host.check_output("systemd-analyze security --no-pager prometheus | tail -n 1")
    assert float(exposure.split(": ")[1].split()[0]) < 2, exposure


def outage(host: Host, seconds: float, *kinds: str) -> None:
    """Let the workspace be out of order in each of these ways in turn, and look for every sample afterwards."""
    before = process(host)
    begin = time.time()
    wait(30, lambda: samples(begin - 2 * INTERVAL, time.time()))
    for kind in kinds:
        fault(kind)
        time.sleep(seconds / len(kinds))
        assert not samples(time.time() - 2 * INTERVAL, time.time()), f"samples came through {kind}"
    ended = time.time()
    fault("")
    # A request that hangs is given up after 30 s, and another is sent after 10 s at most.
    wait(90, lambda: max(samples(begin, time.time()), default=0) > ended + INTERVAL)
    found = samples(begin, ended + INTERVAL)
    gaps = [later - earlier for earlier, later in zip(found, found[1:])]
    assert found[0] < begin + 2 * INTERVAL
    assert max(gaps) < 1.5 * INTERVAL, f"of {len(found)} samples some are missing: {gaps}"
    assert len(found) >= (ended - begin) / INTERVAL - 1
    assert process(host) == before


@pytest.mark.long
def test_an_outage_of_half_a_minute_loses_nothing(on: On, agent: tuple[str, str]) -> None:
    outage(on("el-head"), 30, "500", "429", "hang")


@pytest.mark.long
def test_an_outage_of_ten_minutes_loses_nothing(on: On, agent: tuple[str, str]) -> None:
    outage(on("el-head"), 600, "hang", "500", "429")


def test_what_is_refused_is_lost_and_counted(on: On, agent: tuple[str, str]) -> None:
    host = on("el-head")
    fault("403")
    failed = (
        "curl -sf http://localhost:9090/metrics | awk '/^prometheus_remote_storage_samples_failed_total/ { print $2 }'"
    )
    wait(20, lambda: float(host.check_output(failed)) > 0)
    fault("")
    assert "the sandbox was told to answer 403" in host.check_output(
        "journalctl --unit prometheus --grep non-recoverable --output cat -n 1"
    )


def test_none_stops_it(on: On, play: Play, agent: tuple[str, str]) -> None:
    host = on("el-head")
    none = ("-e", json.dumps({"prometheus_mode": "none"}))
    assert play(*ONLY, *none).returncode == 0
    for unit in ("prometheus.service", "prometheus-targets.timer"):
        assert host.run(f"systemctl is-active {unit}").stdout.strip() == "inactive"
        assert host.run(f"systemctl is-enabled {unit}").stdout.strip() == "disabled"
    assert "0 changed" in play(*ONLY, *none).stdout
