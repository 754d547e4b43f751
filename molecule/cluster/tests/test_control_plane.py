# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""ParallelCluster's own daemons, and nodes that configure themselves under them: replaced, killed, failing, updated.

clustermgtd is 3.16 on `main` and 3.13 on `el`. Each test leaves its cluster with all static nodes up.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import pytest
import yaml

from .bundles import STATE, Bundle, queue_of, republish, update
from .conftest import host, instance, instances
from .helpers import Play, ok, until

SLURM = "/opt/slurm/bin"
PULL_LOG = "/var/log/pcluster-postboot/pull.log"
REPORT = "/var/lib/pcluster-postboot/report.json"


class Cluster(NamedTuple):
    """One of the two clusters, with the static node that tests replace."""

    name: str
    head: str
    queue: str
    node: str
    user: str

    def slurm(self, command: str) -> str:
        return host(self.head).check_output(f"{SLURM}/{command}")

    def state(self) -> str:
        """The node's state in Slurm, such as idle, down or drained."""
        return self.slurm(f"sinfo --noheader --nodes={self.node} --partition={self.queue} --format=%T").strip()

    def log(self, pattern: str) -> list[str]:
        """The lines of clustermgtd's log that match."""
        done = host(self.head).run(f"grep -E '{pattern}' /var/log/parallelcluster/clustermgtd")
        return done.stdout.splitlines()


MAIN = Cluster("main", "head", "cpu", "cpu-st-c5-1", "ubuntu")
EL = Cluster("el", "el-head", "el-cpu", "el-cpu-st-c5-1", "ec2-user")


def on_both(test: Callable[..., None]) -> Callable[..., None]:
    """Have both clusters go through a test at the same time, because most of it is waiting."""

    @functools.wraps(test)
    def both(**fixtures: Any) -> None:
        instances()  # boto3 loads what all threads need
        with ThreadPoolExecutor() as pool:
            ends = [pool.submit(test, cluster=cluster, **fixtures) for cluster in (MAIN, EL)]
        for end in ends:
            end.result()

    asked = inspect.signature(test)
    fixtures = [one for name, one in asked.parameters.items() if name != "cluster"]
    both.__signature__ = asked.replace(parameters=fixtures)  # type: ignore[attr-defined]
    return both


def wait_until_replaced(cluster: Cluster, former: str, seconds: float = 420) -> str:
    """Wait until a node's instance is another one, and the node idle; return the instance's id."""

    def up() -> str:
        now = instance(cluster.node)
        return now if now not in ("", former) and cluster.state() == "idle" else ""

    return str(until(up, seconds, f"{cluster.node} is replaced"))


def report(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(host(name).file(REPORT).content_string)
    return found


def report_after_boot(name: str) -> dict[str, Any]:
    """The report of a node, once the service that finishes its boot has ended."""
    unit = "systemctl show -p ActiveState --value pcluster-postboot"
    until(lambda: host(name).run(unit).stdout.strip() == "inactive", 240, f"{name}: its service")
    return report(name)


@pytest.mark.parametrize(("name", "version"), [("head", "3.16.1"), ("el-head", "3.13.2")])
def test_clustermgtd_is_parallelclusters(name: str, version: str) -> None:
    """ParallelCluster's package is installed, and its clustermgtd runs once and has looked within the last minute."""
    head = host(name)
    found = head.check_output(
        "ls -d /opt/parallelcluster/pyenv/versions/*/envs/node_virtualenv/lib/python3*/site-packages/*"
    )
    assert f"aws_parallelcluster_node-{version}.dist-info" in found
    beat = head.check_output("stat --format=%Y /opt/slurm/etc/pcluster/.slurm_plugin/clustermgtd_heartbeat")
    assert time.time() - int(beat) < 60
    assert head.check_output("pgrep --full --euid pcluster-admin bin/clustermgtd").count("\n") == 0


def test_instances_come_from_the_launch_templates() -> None:
    templates = {
        template["LaunchTemplateId"]: template["LaunchTemplateName"]
        for template in boto3.client("ec2", region_name="us-east-1").describe_launch_templates()["LaunchTemplates"]
    }
    for name, template in (
        ("gpu-st-p5-1", "main-gpu-p5"),
        ("cpu-st-c5-1", "main-cpu-c5"),
        ("el-cpu-st-c5-1", "el-el-cpu-c5"),
    ):
        tags = {tag["Key"]: tag["Value"] for tag in instances()[name]["Tags"]}
        assert templates[tags["aws:ec2launchtemplate:id"]] == template


@pytest.mark.long
def test_each_node_of_a_job_keeps_an_instance_of_its_own() -> None:
    """ParallelCluster 3.16 tells Slurm the instances of a job's nodes in one list, and finds them by it again."""
    options = "--parsable --partition=burst --nodes=3 --exclusive --output=/dev/null"
    job = MAIN.slurm(f"sbatch {options} --wrap 'sleep 900'").strip()
    try:
        shown = f"squeue --noheader --job={job} --format="
        until(lambda: MAIN.slurm(f"{shown}%T").strip() == "RUNNING", 300, "the job runs")
        nodes = MAIN.slurm(f"scontrol show hostnames {MAIN.slurm(f'{shown}%N').strip()}").split()
        noted = re.findall(r"InstanceId=(\S+)", MAIN.slurm(f"scontrol show node {','.join(nodes)}"))
        assert len(set(noted)) == 3
        assert noted == [instance(name) for name in nodes]
        time.sleep(45)  # clustermgtd looks several times
        assert noted == [instance(name) for name in nodes]
        assert MAIN.slurm(f"{shown}%T").strip() == "RUNNING"
    finally:
        MAIN.slurm(f"scancel {job}")
        MAIN.slurm("scontrol update nodename=burst-dy-c5-[1-4] state=power_down_force")


# With bundles. Each cluster is updated so that its static node boots with one.


class BundledClusters:
    """Clusters whose static node boots with a bundle."""

    def __init__(self, publish: Callable[[str], dict[str, Any]], s3: Any, folder: Path) -> None:
        self.publish, self.s3, self.folder = publish, s3, folder
        self.publishing = threading.Lock()  # one bucket and one folder for both clusters
        self.bundles: dict[str, Bundle] = {}
        self.queues: dict[str, dict[str, Any]] = {}
        self.left_by_a_killed_run = {one.name for one in (MAIN, EL) if updated(one)}

    def ready(self, cluster: Cluster) -> Bundle:
        """Have the cluster's queue boot with the bundle: the update drains its node, which is replaced."""
        if cluster.name not in self.bundles:
            if cluster.name in self.left_by_a_killed_run:
                assert update(cluster.name, self.folder, {}).returncode == 0
            with self.publishing:
                queue = self.queues[cluster.name] = queue_of(self.publish(cluster.name), cluster.queue)
            action = queue["CustomActions"]["OnNodeConfigured"]
            self.bundles[cluster.name] = Bundle.of(action)
            former = instance(cluster.node)
            self.boot_with(cluster, action)
            wait_until_replaced(cluster, former)
        return self.bundles[cluster.name]

    def another(self, cluster: Cluster, version: str, extra: dict[str, Any]) -> Bundle:
        """Publish what another version would be, with further variables."""
        good = self.ready(cluster)
        with self.publishing:
            return republish(self.s3, good, version, extra)

    def configuration_with(self, cluster: Cluster, *actions: dict[str, Any]) -> dict[str, Any]:
        """The part of the configuration by which the queue's nodes boot with these actions."""
        queue = {**self.queues[cluster.name], "CustomActions": {"OnNodeConfigured": {"Sequence": list(actions)}}}
        return {"Scheduling": {"SlurmQueues": [queue]}}

    def boot_with(self, cluster: Cluster, *actions: dict[str, Any]) -> None:
        """Update the cluster so that its queue's nodes boot with these actions."""
        done = update(cluster.name, self.folder, self.configuration_with(cluster, *actions))
        assert done.stdout.endswith(f"{cluster.name}: UPDATE_COMPLETE\n"), done.stdout + done.stderr

    def reset(self, play: Play) -> None:
        """Have nodes boot without a bundle again; what other tests find on them comes from a push then."""

        def boot_plain(cluster: Cluster) -> None:
            former = instance(cluster.node)
            assert update(cluster.name, self.folder, {}).returncode == 0
            wait_until_replaced(cluster, former)
            ok(play("--limit", cluster.node))

        with ThreadPoolExecutor() as pool:
            list(pool.map(boot_plain, (one for one in (MAIN, EL) if one.name in self.bundles)))


def updated(cluster: Cluster) -> dict[str, Any]:
    """The parts that the last update has brought to the cluster's configuration; empty where there was none."""
    path = STATE / f"clusters/{cluster.name}-overrides.yaml"
    return (yaml.safe_load(path.read_text()) or {}) if path.exists() else {}


@pytest.fixture(scope="module")
def pulled(
    publish: Callable[[str], dict[str, Any]], s3: Any, play: Play, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BundledClusters]:
    found = BundledClusters(publish, s3, tmp_path_factory.mktemp("update"))
    yield found
    found.reset(play)


@pytest.mark.long
@on_both
def test_a_static_node_comes_up_by_pull_and_stays(cluster: Cluster, pulled: BundledClusters) -> None:
    bundle = pulled.ready(cluster)
    now = instance(cluster.node)
    found = report_after_boot(cluster.node)
    assert (found["outcome"], found["phase"]) == ("ok", "later"), found
    assert host(cluster.node).file("/opt/pcluster-postboot/current").linked_to.endswith(bundle.name)
    assert cluster.slurm(f"srun --partition={cluster.queue} hostname").strip() == cluster.node
    time.sleep(45)  # clustermgtd looks several times
    assert (instance(cluster.node), cluster.state()) == (now, "idle")


@pytest.mark.long
@on_both
def test_a_drained_node_ends_its_job_and_is_replaced(cluster: Cluster, pulled: BundledClusters) -> None:
    """An administrator drains the node: the job ends first, and the successor is configured."""
    pulled.ready(cluster)
    former = instance(cluster.node)
    job = cluster.slurm(f"sbatch --parsable --output=/dev/null --partition={cluster.queue} --wrap 'sleep 25'").strip()
    until(lambda: cluster.slurm(f"squeue --noheader --job={job} --format=%T").strip() == "RUNNING", 60, "the job runs")
    cluster.slurm(f"scontrol update nodename={cluster.node} state=drain reason='a test of clustermgtd'")
    time.sleep(15)
    assert instance(cluster.node) == former
    wait_until_replaced(cluster, former)
    assert "JobState=COMPLETED" in cluster.slurm(f"scontrol show job {job}")
    assert report_after_boot(cluster.node)["outcome"] == "ok"
    # Prometheus follows: the node's name stands for the new address.
    address = instances()[cluster.node]["PrivateIpAddress"]
    url = "http://localhost:9090/api/v1/targets?state=active"

    def scraped() -> bool:
        found = json.loads(host(cluster.head).check_output(f"curl -sf '{url}'"))["data"]["activeTargets"]
        urls = {one["scrapeUrl"] for one in found if one["labels"].get("pc_node") == cluster.node}
        return f"http://{address}:9100/metrics" in urls

    until(scraped, 180, "Prometheus knows the new address")


@pytest.mark.long
@on_both
def test_a_node_that_is_killed_in_its_boot_is_replaced(cluster: Cluster, pulled: BundledClusters) -> None:
    pulled.ready(cluster)
    former = instance(cluster.node)
    cluster.slurm(f"scontrol update nodename={cluster.node} state=drain reason='a test of clustermgtd'")
    second = until(lambda: (now := instance(cluster.node)) not in ("", former) and now, 240, "a successor boots")
    begun = f"grep -qs 'site begins' {PULL_LOG}"
    until(lambda: host(cluster.node).run(begun).rc == 0, 240, "it configures itself")
    subprocess.run(["podman", "kill", f"postboot-{cluster.node}"], check=True, capture_output=True)
    third = wait_until_replaced(cluster, str(second))
    assert third != former
    assert report_after_boot(cluster.node)["outcome"] == "ok"


@pytest.mark.long
@on_both
def test_a_failing_exporter_costs_no_node(cluster: Cluster, pulled: BundledClusters) -> None:
    wrong = {"node_exporter_sha256": {"x86_64": "0" * 64}}
    broken = pulled.another(cluster, "97.0.0", wrong)
    former = instance(cluster.node)
    pulled.boot_with(cluster, broken.action())
    now = wait_until_replaced(cluster, former)
    until(lambda: report(cluster.node)["phase"] == "later", 240, "the service has tried")
    found = {entry["name"]: entry["status"] for entry in report(cluster.node)["components"]}
    assert found["node_exporter"] == "failed", found
    assert (instance(cluster.node), cluster.state()) == (now, "idle")


@pytest.mark.long
@on_both
def test_ten_boots_in_which_an_essential_component_fails_are_protected_mode(
    cluster: Cluster, pulled: BundledClusters
) -> None:
    """Each boot fails and each node is replaced; after ten the queue is taken out of use, as documented."""
    good = pulled.ready(cluster)
    broken = pulled.another(cluster, "96.0.0", {"enroot_version": "0.0.1"})
    # (x1) ['cpu-st-c5-1']
    head, failures = host(cluster.head), f"Found the following bootstrap failure nodes: .x1. ..{cluster.node}"
    before = len(cluster.log(failures))
    pulled.boot_with(cluster, broken.action())
    status = "get-compute-fleet-status.sh | jq -r .status"
    until(lambda: head.check_output(status).strip() == "PROTECTED", 1500, "protected mode")
    assert len(cluster.log(failures)) - before == 10
    assert "inact" in cluster.slurm(f"sinfo --noheader --partition={cluster.queue} --format=%a")
    # The fleet is started again: what becomes of the START_REQUESTED of pcluster update-compute-fleet.
    table = boto3.resource("dynamodb", region_name="us-east-1").Table(f"parallelcluster-{cluster.name}")
    pulled.boot_with(cluster, good.action())
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    table.put_item(Item={"Id": "COMPUTE_FLEET", "Data": {"status": "RUNNING", "lastStatusUpdatedTime": now}})
    cluster.slurm(f"scontrol update partitionname={cluster.queue} state=up")
    wait_until_replaced(cluster, "")


@pytest.mark.long
@on_both
def test_a_boot_beyond_its_time_is_ended_and_a_longer_time_helps(
    cluster: Cluster, pulled: BundledClusters, tmp_path: Path
) -> None:
    """ComputeNodeBootstrapTimeout ends a boot that takes longer; with more of it the same boot comes up."""
    good = pulled.ready(cluster)
    with pulled.publishing:
        pulled.s3.put_object(Key="bundles/slow.sh", Body=b'#!/bin/bash\nsleep "$1"\n')
    slow = {"Script": f"s3://{pulled.s3.name}/bundles/slow.sh", "Args": ["100"]}

    def boots_within(timeout: int) -> None:
        timeouts = {"DevSettings": {"Timeouts": {"ComputeNodeBootstrapTimeout": timeout}}}
        done = update(cluster.name, tmp_path, {**pulled.configuration_with(cluster, slow, good.action()), **timeouts})
        assert done.stdout.endswith("UPDATE_COMPLETE\n"), done.stdout + done.stderr

    failures = "Found the following bootstrap failure nodes"
    before = len(cluster.log(failures))
    boots_within(60)
    until(lambda: len(cluster.log(failures)) > before, 400, "a boot is ended")
    former = instance(cluster.node)
    boots_within(900)
    wait_until_replaced(cluster, former, 600)
    assert report_after_boot(cluster.node)["outcome"] == "ok"


# Updates


@pytest.mark.long
def test_an_update_whose_on_node_updated_fails_is_rolled_back(pulled: BundledClusters, tmp_path: Path) -> None:
    """The line that says why is in the head node's cfn-init.log, and the cluster has its former configuration."""
    broken = pulled.another(MAIN, "95.0.0", {"enroot_version": "0.0.1"})
    # Nothing else changes, so that no node is replaced.
    head = {"HeadNode": {"CustomActions": {"OnNodeUpdated": broken.action()}}}
    done = update("main", tmp_path, {**updated(MAIN), **head})
    assert done.returncode == 1, done.stdout + done.stderr
    assert "main: UPDATE_ROLLBACK_COMPLETE" in done.stdout
    log = host("head").check_output("cat /var/log/cfn-init.log")
    assert re.search(r"^pcluster-postboot: enroot failed: .*enroot", log, re.M), log[-3000:]
    config = yaml.safe_load(host("head").check_output("cat /opt/parallelcluster/shared/cluster-config.yaml"))
    assert not (config["HeadNode"].get("CustomActions") or {}).get("OnNodeUpdated")
    assert MAIN.state() == "idle"
