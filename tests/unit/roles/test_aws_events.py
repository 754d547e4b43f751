# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The program that writes what AWS knows: EC2 is moto's, with what the sandbox adds; the rest is as its writer writes.

scontrol's lines are Slurm's of a cluster of the sandbox; reasons and events are those of aws-parallelcluster-node
3.16.1 (resume.py, clustermgtd.py, cluster_event_publisher.py).
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._slurm.nodes import stranded
from ansible_collections.pcluster.postboot.tests.programs import load
from ansible_collections.pcluster.postboot.tests.unit.plugins.aws import launch

program = load("roles/node_exporter/files/aws_events.py")
REGION, BLOCK = "us-east-2", "cr-0123456789abcdef0"
# The AWS CLI, as far as the program calls it: its words, and what boto3 answers, in JSON.
CLI = """#!{python}
import datetime, json, os, sys, boto3
words = sys.argv[2:]
open("{log}", "a").write(words[0] + "\\n")
options = {{}}
for word in words[1:]:
    if word.startswith("--"):
        name = word
        options[name] = []
    else:
        options[name].append(word)
filters = [dict(each.split("=", 1) for each in one.split(",", 1)) for one in options.pop("--filters", [])]
asked = {{}}
if filters:
    asked["Filters"] = [{{"Name": one["Name"], "Values": one["Values"].split(",")}} for one in filters]
if "--capacity-reservation-ids" in options:
    asked["CapacityReservationIds"] = options.pop("--capacity-reservation-ids")
client = boto3.client("ec2", region_name=options["--region"][0])
try:
    answer = getattr(client, words[0].replace("-", "_"))(**asked)
except client.exceptions.ClientError as error:
    sys.exit(f"\\n{{error}}")
print(json.dumps(answer, default=lambda one: one.isoformat()))
"""
NOTHING = """#!/bin/sh
echo "$2" >> {log}
echo '{{"InstanceStatuses": []}}'
"""
NODES = """\
NodeName=gpu-st-p5-1 CoresPerSocket=1 Gres=gpu:h100:8 NodeAddr=10.0.0.4 NodeHostName=gpu-st-p5-1 State=IDLE+CLOUD
NodeName=gpu-st-p5-2 CoresPerSocket=1 Gres=gpu:h100:8 NodeAddr=gpu-st-p5-2 NodeHostName=gpu-st-p5-2 \
State=DOWN+CLOUD+NOT_RESPONDING \
Reason=Static node maintenance: unhealthy node is being replaced [root@2026-11-23T04:56:44]
NodeName=burst-dy-c5-1 NodeAddr=burst-dy-c5-1 NodeHostName=burst-dy-c5-1 State=IDLE+CLOUD+POWERED_DOWN
NodeName=burst-dy-c5-2 NodeAddr=burst-dy-c5-2 NodeHostName=burst-dy-c5-2 State=IDLE+CLOUD+POWERED_DOWN
"""
PARTITIONS = """\
PartitionName=burst AllowGroups=ALL AllowAccounts=ALL State=UP TotalCPUs=16
PartitionName=gpu AllowGroups=ALL AllowAccounts=ALL State=UP TotalCPUs=192
"""
# What squeue 24.11 prints by the program's words of jobs that wait: the last reason is one of slurmctld's free texts.
JOBS = """\
gpu|Resources
gpu|Priority
gpu|Priority
gpu|Dependency
gpu|DependencyNeverSatisfied
gpu|BeginTime
gpu|JobHeldUser
gpu|JobHeldAdmin
gpu|JobArrayTaskLimit
gpu|Reservation
burst,gpu|Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions
"""
SQUEUE = "--noheader --all --states=PENDING --format=%P|%r"
FAILED = "(Code:InsufficientInstanceCapacity)Failure when resuming nodes [root@2026-11-23T04:56:44]"
DISABLED = (
    "(Code:InsufficientInstanceCapacity)Temporarily disabling node due to insufficient capacity [root@2026-11-23T04:57]"
)


class Head:
    """A head node, and the account around it."""

    def __init__(self, top: Path, ec2: Any, reservations: dict[str, Any]) -> None:
        self.top, self.ec2, self.reservations = top, ec2, reservations
        self.output, self.log = top / "aws_events.prom", top / "asked"
        self.log.touch()
        (top / "bin").mkdir()
        self.install("aws", NOTHING.format(log=self.log))
        self.install("scontrol", f'#!/bin/sh\ntest "$*" = "-a -o show $4" && cat {top}/$4\n')
        self.install("squeue", f'#!/bin/sh\ntest "$*" = "{SQUEUE}" && cat {top}/jobs\n')
        (top / "jobs").touch()
        self.status("RUNNING")
        self.slurm(NODES)
        (top / "partitions").write_text(PARTITIONS)
        self.queues()

    def ask_ec2(self) -> None:
        self.install("aws", CLI.format(python=sys.executable, log=self.log))

    def install(self, name: str, text: str) -> None:
        path = self.top / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def status(self, status: str) -> None:
        self.install("status", f"#!/bin/sh\necho '{json.dumps({'lastStatusUpdatedTime': 'x', 'status': status})}'\n")

    def slurm(self, nodes: str) -> None:
        (self.top / "nodes").write_text(nodes)

    def queues(self, kind: str = "on-demand", **more: str) -> None:
        entry = {"CapacityType": kind, **more, "Api": "run-instances", "Instances": [{"InstanceType": "p5.48xlarge"}]}
        (self.top / "fleet.json").write_text(json.dumps({"gpu": {"p5": entry}}))

    def block(self, state: str = "active", ends: str = "2026-11-27T11:30:00Z", kind: str = "capacity-block") -> None:
        self.ask_ec2()
        self.reservations[BLOCK] = {
            "CapacityReservationId": BLOCK,
            "ReservationType": kind,
            "State": state,
            "InstanceType": "p5.48xlarge",
            "EndDate": ends,
            "EndDateType": "limited",
        }

    def instance(self, cluster: str, event: str) -> dict[str, Any]:
        self.ask_ec2()
        return launch(self.ec2, {"parallelcluster:cluster-name": cluster, "sandbox:event": event})

    def launch_failed(self, *nodes: str, ago: float = 30, kind: str = "ice-failures") -> None:
        when = time.strftime("%Y-%m-%dT%H:%M:%S.123+00:00", time.gmtime(time.time() - ago))
        detail = {
            "failure-type": kind,
            "count": len(nodes),
            "error-details": {
                "InsufficientInstanceCapacity": {"count": len(nodes), "nodes": [{"name": node} for node in nodes]}
            },
        }
        event = {
            "datetime": when,
            "version": 0,
            "component": "clustermgtd",
            "level": "WARNING",
            "event-type": "node-launch-failure-count",
            "detail": detail,
        }
        with (self.top / "events").open("a") as stream:
            stream.write(json.dumps(event) + "\n")

    def run(self, *more: str) -> dict[str, float]:
        words = [f"--output={self.output}", "--cluster=main", f"--region={REGION}", f"--slurm={self.top}"]
        words += [f"--aws={self.top}/bin/aws", f"--fleet-config={self.top}/fleet.json", f"--events={self.top}/events"]
        assert program.main([*words, f"--fleet-status={self.top}/bin/status", *more]) == 0
        lines = self.output.read_text().splitlines()
        return {each.rpartition(" ")[0]: float(each.rpartition(" ")[2]) for each in lines if each[0] != "#"}

    def known(self, metric: str) -> dict[str, float]:
        return {name.removeprefix(metric): value for name, value in self.run().items() if name.startswith(metric)}


@pytest.fixture
def head(moto: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Head]:
    schedules = load("molecule/cluster/aws/schedules.py")
    for target, name, value in schedules.patches():
        monkeypatch.setattr(target, name, value, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    ec2 = boto3.client("ec2", endpoint_url=moto, region_name=REGION)
    yield Head(tmp_path, ec2, schedules.RESERVATIONS)
    for group in ec2.describe_instances()["Reservations"]:
        ec2.terminate_instances(InstanceIds=[one["InstanceId"] for one in group["Instances"]])


BLOCKS = "pcluster_capacity_block_end_timestamp_seconds"
SCHEDULED = "pcluster_scheduled_event_timestamp_seconds"
PROTECTED = "pcluster_protected_mode"
CAPACITY = "pcluster_insufficient_capacity"
WAITING = "pcluster_jobs_waiting"
STRANDED = "pcluster_nodes_stranded"
GPU, BURST = '{queue="gpu",compute_resource="p5"}', '{queue="burst",compute_resource="c5"}'


def test_a_cluster_without_anything_to_tell_has_its_queues_alone(head: Head) -> None:
    found = head.run()
    stamp = "pcluster_aws_events_timestamp_seconds"
    assert {name.split("{")[0] for name in found} == {PROTECTED, CAPACITY, STRANDED, WAITING, stamp}
    assert {value for name, value in found.items() if "timestamp" not in name} == {0}
    assert len([name for name in found if "timestamp" in name]) == 8
    assert head.log.read_text() == "describe-instance-status\n", "no further question costs anything"
    assert head.output.stat().st_mode & 0o777 == 0o644


def test_the_end_of_a_block_is_told(head: Head) -> None:
    head.block()
    head.queues("capacity-block", CapacityReservationId=BLOCK)
    assert head.known(BLOCKS) == {f'{{reservation="{BLOCK}"}}': 1795779000}
    assert time.gmtime(1795779000)[:5] == (2026, 11, 27, 11, 30)


@pytest.mark.parametrize("state", ["expired", "payment-failed"])
def test_a_block_that_is_over_has_no_end(head: Head, state: str) -> None:
    head.block(state)
    head.queues("capacity-block", CapacityReservationId=BLOCK)
    assert head.known(BLOCKS) == {}


def test_a_block_that_ec2_no_longer_knows_hides_no_other_one(head: Head, capsys: pytest.CaptureFixture[str]) -> None:
    """EC2 forgets a reservation some time after its end, and then refuses the whole question."""
    head.block()
    entry = {"CapacityType": "capacity-block", "Api": "run-instances"}
    ids = {"old": "cr-0aaaaaaaaaaaaaaaa", "new": BLOCK, "older": "cr-0bbbbbbbbbbbbbbbb"}
    fleet = {queue: {"p5": {**entry, "CapacityReservationId": one}} for queue, one in ids.items()}
    (head.top / "fleet.json").write_text(json.dumps(fleet))
    found = head.run()
    assert found[f'{BLOCKS}{{reservation="{BLOCK}"}}'] == 1795779000
    assert 'pcluster_aws_events_timestamp_seconds{source="capacity_blocks"}' in found
    del head.reservations[BLOCK]
    assert head.known(BLOCKS) == {}
    assert "capacity_blocks" not in capsys.readouterr().out


def test_a_reservation_that_only_costs_money_is_not_asked_for(head: Head) -> None:
    head.queues("on-demand", CapacityReservationId=BLOCK)
    assert head.known(BLOCKS) == {}
    assert "capacity" not in head.log.read_text()


def test_events_of_the_clusters_instances_are_told_by_their_nodes(head: Head) -> None:
    mine = head.instance("main", "system-reboot 2026-12-01T04:00:00Z")
    login = head.instance("main", "instance-retirement 2026-12-02T04:00:00Z")
    head.instance("other", "system-reboot 2026-12-01T04:00:00Z")
    head.instance("main", "system-reboot 2026-11-01T04:00:00Z [Completed]")
    head.slurm(NODES.replace("10.0.0.4", mine["PrivateIpAddress"]))
    host = login["PrivateDnsName"].split(".")[0]
    assert head.known(SCHEDULED) == {
        f'{{node="gpu-st-p5-1",instance_id="{mine["InstanceId"]}",code="system-reboot"}}': 1796097600,
        f'{{node="{host}",instance_id="{login["InstanceId"]}",code="instance-retirement"}}': 1796184000,
    }


def test_a_queue_is_in_protected_mode_where_the_fleet_is_and_the_queue_inactive(head: Head) -> None:
    (head.top / "partitions").write_text(PARTITIONS.replace("State=UP TotalCPUs=16", "State=INACTIVE TotalCPUs=16"))
    head.status("PROTECTED")
    assert head.known(PROTECTED) == {'{queue="burst"}': 1, '{queue="gpu"}': 0}
    head.status("STOPPED")
    assert set(head.known(PROTECTED).values()) == {0}, "somebody has stopped the fleet"


@pytest.mark.parametrize("reason", [FAILED, FAILED.replace(" [", " - Insufficient capacity. ["), DISABLED])
def test_dynamic_nodes_without_capacity_are_counted_by_their_reason(head: Head, reason: str) -> None:
    down = NODES.replace("burst-dy-c5-2 State=IDLE+CLOUD", "burst-dy-c5-2 State=DOWN+CLOUD")
    head.slurm(down.replace("State=DOWN+CLOUD+POWERED_DOWN", f"State=DOWN+CLOUD+POWERED_DOWN Reason={reason}"))
    assert head.known(CAPACITY) == {BURST: 1, GPU: 0}


@pytest.mark.parametrize(
    "reason",
    [
        "(Code:VcpuLimitExceeded)Failure when resuming nodes",  # a quota, which no waiting mends
        "Enabling node since insufficient capacity timeout expired",
        "hardware, said somebody (Code:InsufficientInstanceCapacity)",
    ],
)
def test_other_reasons_are_not_counted(head: Head, reason: str) -> None:
    head.slurm(
        NODES.replace("burst-dy-c5-2 State=IDLE+CLOUD+POWERED_DOWN", f"burst-dy-c5-2 State=DOWN Reason={reason}")
    )
    assert head.known(CAPACITY) == {BURST: 0, GPU: 0}


def test_static_nodes_without_capacity_are_counted_by_clustermgtds_events(head: Head) -> None:
    head.launch_failed("gpu-st-p5-1", "gpu-st-p5-2")
    assert head.known(CAPACITY) == {BURST: 0, GPU: 1}, "gpu-st-p5-1 is up by now"


def test_events_that_are_old_or_of_another_failure_do_not_count(head: Head) -> None:
    head.launch_failed("gpu-st-p5-2", ago=program.RECENT + 30)
    head.launch_failed("gpu-st-p5-2", kind="vcpu-limit-failures")
    with (head.top / "events").open("a") as stream:
        stream.write('{"datetime": "2026-11-2 "ice-failures"\n')
    assert head.known(CAPACITY) == {BURST: 0, GPU: 0}


@pytest.mark.parametrize(
    ("state", "lost"),
    [
        ("IDLE+CLOUD+POWERED_DOWN", 0),
        ("IDLE+CLOUD+POWERED_DOWN+NOT_RESPONDING", 1),
        ("IDLE+CLOUD+RESERVED+POWERED_DOWN+NOT_RESPONDING", 1),
        ("IDLE+CLOUD+POWER_DOWN+POWERED_DOWN+NOT_RESPONDING", 0),  # the cure is at work
        ("IDLE+CLOUD+POWERING_DOWN+NOT_RESPONDING", 0),
        ("IDLE+CLOUD+DRAIN+POWERED_DOWN+NOT_RESPONDING", 0),  # sinfo has a reason
        ("MIXED+CLOUD+POWERED_DOWN+NOT_RESPONDING", 0),
        ("DOWN+CLOUD+POWERED_DOWN+NOT_RESPONDING", 0),
    ],
)
def test_powered_down_nodes_that_no_job_starts_are_counted(head: Head, state: str, lost: int) -> None:
    shown = NODES.replace("burst-dy-c5-2 State=IDLE+CLOUD+POWERED_DOWN", f"burst-dy-c5-2 State={state}")
    head.slurm(shown)
    assert head.known(STRANDED) == {BURST: lost, GPU: 0}
    assert len(stranded(shown)) == lost, "two programs have one rule"
    # A node that boots, whose slurmd registers next.
    booting = shown.replace("NodeAddr=burst-dy-c5-2", "NodeAddr=10.0.0.9")
    head.slurm(booting)
    assert (head.known(STRANDED), stranded(booting)) == ({BURST: 0, GPU: 0}, [])


# Lines of Slurm 24.11.5, shortened, with the values of AccountingStorageTRES=gres/gpu added by hand.
GPU_NODES = """\
NodeName=gpu-st-p5-1 CPUTot=96 Gres=gpu:h100:8 NodeAddr=10.0.0.4 State=MIXED+CLOUD Partitions=gpu,all \
CfgTRES=cpu=96,mem=1992294M,billing=96,gres/gpu=8,gres/gpu:h100=8 \
AllocTRES=cpu=12,mem=1G,gres/gpu=3,gres/gpu:h100=3 CurrentWatts=0
NodeName=gpu-dy-p5-1 CPUTot=96 Gres=gpu:h100:8 NodeAddr=gpu-dy-p5-1 State=IDLE+CLOUD+POWERED_DOWN Partitions=gpu \
CfgTRES=cpu=96,mem=1992294M,billing=96,gres/gpu=8 AllocTRES= CurrentWatts=0 \
Comment=Partitions=x CfgTRES=gres/gpu=99
NodeName=cpu-st-c5-1 CPUTot=4 Gres=(null) NodeAddr=10.0.0.5 State=IDLE+CLOUD Partitions=cpu,all \
CfgTRES=cpu=4,mem=7782M,billing=4 AllocTRES= CurrentWatts=0
"""


def test_gpus_are_counted_by_partition(head: Head) -> None:
    head.slurm(GPU_NODES)
    found = head.run()
    assert {name: value for name, value in found.items() if name.startswith("pcluster_gpus")} == {
        'pcluster_gpus{partition="gpu"}': 16,
        'pcluster_gpus{partition="all"}': 8,
        'pcluster_gpus_allocated{partition="gpu"}': 3,
        'pcluster_gpus_allocated{partition="all"}': 3,
    }


def test_gpus_that_slurm_does_not_count_are_not_known(head: Head) -> None:
    head.slurm(GPU_NODES.replace(",gres/gpu=8", "").replace(",gres/gpu=3", "").replace("gres/gpu=99", "x"))
    assert not [name for name in head.run() if name.startswith("pcluster_gpus")]


def test_jobs_that_wait_for_nodes_are_counted_and_those_that_wait_for_something_else_are_not(head: Head) -> None:
    (head.top / "jobs").write_text(JOBS)
    assert head.known(WAITING) == {'{partition="gpu"}': 4, '{partition="burst"}': 1}


def test_the_rules_leave_out_the_same_reasons_of_the_exporters(repo: Path) -> None:
    rules = (repo / "roles/prometheus/files/rules/slurm.yml").read_text()
    assert f'slurm_queue_pending{{reason!~"{program.NO_NODES.pattern}"}}' in rules


# A source that does not answer


def test_what_was_known_stays_while_ec2_does_not_answer(head: Head, capsys: pytest.CaptureFixture[str]) -> None:
    head.block()
    head.queues("capacity-block", CapacityReservationId=BLOCK)
    was = head.run()
    busy = "An error occurred (RequestLimitExceeded) when calling the X operation: Request limit exceeded."
    head.install("aws", f"#!/bin/sh\necho '{busy}' >&2\nexit 254\n")
    found = head.run()
    line = [each for each in capsys.readouterr().out.splitlines() if "capacity_blocks" in each]
    assert len(line) == 1
    assert "capacity_blocks is not known now: " in line[0]
    assert "Request limit exceeded" in line[0]
    assert {name: value for name, value in found.items() if BLOCKS in name} == {
        f'{BLOCKS}{{reservation="{BLOCK}"}}': 1795779000
    }
    stamp = 'pcluster_aws_events_timestamp_seconds{source="capacity_blocks"}'
    assert found[stamp] == was[stamp]


def test_slurm_that_does_not_answer_keeps_nobody_from_the_events(
    head: Head, capsys: pytest.CaptureFixture[str]
) -> None:
    before = head.run()
    shutil.copy("/bin/false", head.top / "bin/scontrol")
    assert {name for name in head.run() if "timestamp" not in name} == {n for n in before if "timestamp" not in n}
    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in said] == [
        "protected_mode is not known now",
        "insufficient_capacity is not known now",
        "stranded_nodes is not known now",
        "waiting_jobs is not known now",
        "gpus is not known now",
        "allocated_gpus is not known now",
    ]
    assert f"{head.top}/bin/scontrol ended with 1: it said nothing" in said[0]


def test_a_missing_permission_is_said_once_and_nothing_else_suffers(
    head: Head, capsys: pytest.CaptureFixture[str]
) -> None:
    # As the AWS CLI prints what EC2 answers.
    denied = (
        "An error occurred (UnauthorizedOperation) when calling the DescribeInstanceStatus operation: You are not "
        "authorized to perform this operation. User: arn:aws:sts::123456789012:assumed-role/Head/i-0123456789abcdef0 "
        "is not authorized to perform: ec2:DescribeInstanceStatus because no identity-based policy allows the "
        "ec2:DescribeInstanceStatus action"
    )
    head.install("aws", f"#!/bin/sh\necho '{denied}' >&2\nexit 254\n")
    found = head.run()
    assert found['pcluster_aws_events_denied{source="scheduled_events"}'] == 1
    assert not [name for name in found if "scheduled_events" in name and "timestamp" in name]
    assert f"{CAPACITY}{GPU}" in found
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("scheduled_events is left out until the head node's role has the permission that is missing")
    assert "not authorized to perform: ec2:DescribeInstanceStatus" in line
    head.run()
    assert capsys.readouterr().out == "", "it is said once"


def test_a_program_that_hangs_is_waited_for_so_long(head: Head, capsys: pytest.CaptureFixture[str]) -> None:
    head.install("status", "#!/bin/sh\nexec sleep 60\n")
    head.run("--timeout=2")
    assert (
        f"protected_mode is not known now: {head.top}/bin/status gave no answer within 2 s" in capsys.readouterr().out
    )


def test_a_folder_that_is_not_there_is_one_line(head: Head, capsys: pytest.CaptureFixture[str]) -> None:
    head.output = head.top / "absent/aws_events.prom"
    with pytest.raises(AssertionError):
        head.run()
    assert capsys.readouterr().err.startswith("no metrics of what AWS knows: [Errno 2]")
