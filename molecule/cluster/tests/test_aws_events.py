# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What AWS knows of a cluster, from the API of EC2 to metrics of the head node and alerts of Prometheus."""

from __future__ import annotations

import json
import os
import re
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from testinfra.host import Host

from .conftest import TOPOLOGY, instance, unmanaged
from .helpers import On, as_user, until
from .scenes import protected_mode
from .test_prometheus import ask

UNIT, NODE, BLOCK = "pcluster-aws-events", "cpu-st-c5-1", "cr-0123456789abcdef0"
FLEET = "/tmp/fleet-config.json"
SCHEDULED = "pcluster_scheduled_event_timestamp_seconds"
CAPACITY = 'pcluster_insufficient_capacity{compute_resource="c5",queue="burst"}'
STRANDED = 'pcluster_nodes_stranded{compute_resource="c5",queue="burst"}'


def plant(place: str, told: Any) -> None:
    """Tell the sandbox's EC2 what it is to know."""
    url = f"{os.environ['AWS_ENDPOINT_URL']}/sandbox/{place}"
    urllib.request.urlopen(urllib.request.Request(url, json.dumps(told).encode(), method="PUT"), timeout=20).close()


def told(head: Host) -> dict[str, float]:
    """What the head node's exporter tells, once the program has asked."""
    head.check_output(f"systemctl start {UNIT}.service")
    text = head.check_output("curl -sf http://localhost:9100/metrics")
    return {name: float(value) for name, value in re.findall(r"^(pcluster_\w+\{.*\}) (\S+)$", text, re.MULTILINE)}


def firing(head: Host, alert: str) -> list[dict[str, str]]:
    found = ask(head, "query", f'ALERTS{{alertname="{alert}", alertstate="firing"}}')["result"]
    return [one["metric"] for one in found]


@contextmanager
def scheduled(what: str) -> Iterator[str]:
    """Something that AWS has scheduled for a node, for which clustermgtd would replace it within 20 seconds."""
    ec2, one = boto3.client("ec2", region_name=TOPOLOGY["region"]), instance(NODE)
    with unmanaged():
        ec2.create_tags(Resources=[one], Tags=[{"Key": "sandbox:event", "Value": what}])
        try:
            yield one
        finally:
            ec2.delete_tags(Resources=[one], Tags=[{"Key": "sandbox:event"}])


def test_what_aws_has_scheduled_for_a_node_is_told(on: On) -> None:
    head = on("head")
    begin = head.check_output("date '+%F %T'")
    with scheduled("system-reboot 2027-12-01T04:00:00Z") as one:
        found = told(head)
    assert {name: value for name, value in found.items() if SCHEDULED in name} == {
        f'{SCHEDULED}{{code="system-reboot",instance_id="{one}",node="{NODE}"}}': 1827633600
    }
    queues = {"gpu", "cpu", "burst"}
    assert {f'pcluster_protected_mode{{queue="{queue}"}}' for queue in queues} <= set(found)
    assert {f'pcluster_jobs_waiting{{partition="{queue}"}}' for queue in queues} <= set(found)
    assert found[CAPACITY] == 0
    answered = [value for name, value in found.items() if name.startswith("pcluster_aws_events_timestamp_seconds")]
    assert len(answered) == 8
    assert time.time() - min(answered) < 60
    assert not [name for name in told(head) if SCHEDULED in name]
    assert head.check_output(f"journalctl --quiet --unit={UNIT} --since='{begin}' --output=cat") == ""


def test_the_program_runs_again_and_again_on_head_nodes_alone(on: On) -> None:
    assert on("head").service(f"{UNIT}.timer").is_running
    assert on("head").service(f"{UNIT}.timer").is_enabled
    assert not on(NODE).file(f"/etc/systemd/system/{UNIT}.timer").exists


def by_hand(head: Host, ends: float) -> None:
    """Run the program for a cluster that uses a block, as ParallelCluster writes it down for clustermgtd.

    The cluster itself has none: clustermgtd would keep jobs away from the nodes.
    """
    kind = {"CapacityType": "capacity-block", "CapacityReservationId": BLOCK, "Api": "run-instances"}
    fleet = json.dumps({"gpu": {"p5": {**kind, "Instances": [{"InstanceType": "p5.48xlarge"}]}}})
    reservation = {
        "CapacityReservationId": BLOCK,
        "ReservationType": "capacity-block",
        "State": "active",
        "InstanceType": "p5.48xlarge",
        "EndDate": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ends)),
        "EndDateType": "limited",
    }
    plant("capacity-reservations", {BLOCK: reservation})
    line = head.check_output(f"systemctl show --property=ExecStart --value {UNIT}.service")
    words = re.search(r"argv\[\]=(.*?) ;", line)
    assert words
    head.check_output("echo %s > " + FLEET, fleet)
    head.check_output(f"{words[1]} --fleet-config={FLEET}")


@pytest.mark.long
def test_the_end_of_a_capacity_block_is_an_alert_until_the_block_is_over(on: On) -> None:
    head = on("head")

    def within() -> set[str]:
        return {one["within"] for one in firing(head, "CapacityBlockEnds") if one["reservation"] == BLOCK}

    head.check_output(f"systemctl stop {UNIT}.timer")
    try:
        by_hand(head, time.time() + 30 * 3600)
        until(lambda: ask(head, "query", "pcluster_capacity_block_end_timestamp_seconds")["result"], 70)
        assert within() == set()
        by_hand(head, time.time() + 3 * 3600)
        until(lambda: within() == {"24h", "4h"}, 90)
        by_hand(head, time.time() + 50 * 60)
        until(lambda: within() == {"24h", "4h", "1h"}, 90)
    finally:
        plant("capacity-reservations", {BLOCK: None})
        head.check_output(f"rm -f {FLEET}; systemctl start {UNIT}.service {UNIT}.timer")
    until(lambda: not within(), 90)


@pytest.mark.long
def test_a_scheduled_event_is_an_alert_until_it_is_over(on: On) -> None:
    head = on("head")
    with scheduled("instance-retirement 2027-12-01T04:00:00Z"):
        told(head)
        (alert,) = until(lambda: firing(head, "ScheduledEvent"), 90)
        assert (alert["pc_node"], alert["code"]) == (NODE, "instance-retirement")
        assert alert["instance_id"] == instance(NODE)
    with scheduled("instance-retirement 2027-12-01T04:00:00Z [Completed]"):
        told(head)
        until(lambda: not firing(head, "ScheduledEvent"), 90)
    told(head)


def test_a_node_that_was_undrained_while_it_was_off_gets_no_job_and_is_reported_until_it_is_free(on: On) -> None:
    """As in aws-parallelcluster#7577. No test resumes or undrains such a node but this one."""
    head, slurm, node = on("head"), "/opt/slurm/bin", "burst-dy-c5-3"
    state = f"{slurm}/scontrol --oneliner show node {node}"
    until(lambda: " State=IDLE+CLOUD+POWERED_DOWN " in head.check_output(state), 120, f"{node} is powered down")
    assert told(head)[STRANDED] == 0
    job = ""
    with unmanaged():
        try:
            for change in ("drain reason='a test of aws_events'", "undrain"):
                head.check_output(f"{slurm}/scontrol update nodename={node} state={change}")
            assert " State=IDLE+CLOUD+POWERED_DOWN+NOT_RESPONDING " in head.check_output(state)
            assert told(head)[STRANDED] == 1
            shown = as_user(on("login"), "alice", "/fsx/scripts/monitor-compute-node-setup.sh").stdout
            assert re.search(rf"^  {node} +idle~ +no job starts it: ", shown, re.MULTILINE), shown
            head.check_output(f"{slurm}/scontrol reconfigure")
            options = f"--parsable --partition=burst --nodelist={node} --output=/dev/null --wrap=true"
            job = as_user(head, "ubuntu", f"{slurm}/sbatch {options}").stdout.strip()
            why = f"{slurm}/squeue --noheader --job={job} --format='%T %r'"
            until(lambda: head.check_output(why).startswith("PENDING ReqNodeNotAvail"), 30, "the job waits")
        finally:
            head.run(f"{slurm}/scancel {job}")
            head.check_output(f"{slurm}/scontrol update nodename={node} state=power_down_force")
    until(lambda: " State=IDLE+CLOUD+POWERED_DOWN " in head.check_output(state), 120, f"{node} is free")
    assert told(head)[STRANDED] == 0


@pytest.mark.long
def test_capacity_that_ec2_does_not_have_is_told_as_parallelcluster_notes_it(on: On) -> None:
    """ParallelCluster's resume program asks EC2 for a node. clustermgtd would keep the queue away for ten minutes."""
    head, slurm = on("head"), "/opt/slurm/bin"
    with unmanaged():
        plant("no-capacity", ["c5.xlarge"])
        try:
            job = head.check_output(f"cd /tmp && {slurm}/sbatch --parsable --partition=burst --wrap=true")
            nodes = f"{slurm}/scontrol -o show nodes | grep '^NodeName=burst-'"
            until(lambda: "Reason=(Code:InsufficientInstanceCapacity)" in head.check_output(nodes), 90)
            assert told(head)[CAPACITY] == 1
        finally:
            plant("no-capacity", [])
            head.run(f"{slurm}/scancel {job}")
            down = f"{nodes} | grep -o '^NodeName=[^ ]*' | cut -d= -f2 | paste -sd,"
            head.check_output(f"{slurm}/scontrol update nodename=$({down}) state=power_down reason=test")
    until(lambda: told(head)[CAPACITY] == 0, 120)


@pytest.mark.long
def test_protected_mode_is_an_alert_until_the_fleet_is_started(
    on: On, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """clustermgtd closes the queue `burst` because a node fails to boot; starting the fleet opens that queue."""
    head, metric = on("head"), 'pcluster_protected_mode{queue="burst"}'
    assert told(head)[metric] == 0
    with protected_mode.scene(SimpleNamespace(fixture=request.getfixturevalue, folder=tmp_path)):
        assert told(head)[metric] == 1
        (alert,) = until(lambda: firing(head, "ProtectedMode"), 90)
        assert (alert["queue"], alert["pc_cluster"]) == ("burst", "main")
    until(lambda: told(head)[metric] == 0, 120)
    until(lambda: not firing(head, "ProtectedMode"), 90)
