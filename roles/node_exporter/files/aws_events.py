# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write what AWS and ParallelCluster know of a cluster's future into a file that node_exporter picks up.

The head node asks eight sources, each for itself: EC2 for the capacity blocks that the cluster uses and for the events
that are scheduled for its instances, ParallelCluster for the state of the fleet, Slurm with clustermgtd for nodes that
EC2 has no capacity for, and Slurm for the jobs that wait for nodes, for the nodes that no job starts again, and for the
GPUs of each partition, all and those of jobs. What a source that does not answer has said before stays. A permission
that is missing is told once, and that source is left out.
"""

from __future__ import annotations

import argparse
import calendar
import contextlib
import glob
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

AWS = (
    *("/usr/local/bin/aws", "/usr/bin/aws", "/snap/bin/aws"),
    *("/opt/parallelcluster/pyenv/versions/*/envs/*/bin/aws", "/opt/parallelcluster/pyenv/versions/*/bin/aws"),
)
FLEET_CONFIG = "/etc/parallelcluster/slurm_plugin/fleet-config.json"
FLEET_STATUS = "/usr/local/bin/get-compute-fleet-status.sh"
EVENTS = "/var/log/parallelcluster/clustermgtd.events"
TAIL = 512 * 1024  # bytes of clustermgtd's events, of which a large cluster has some hundred lines a loop
RECENT = 300  # seconds; clustermgtd tries to launch static nodes in each loop, once a minute
VALUES = 200  # the most that a filter of EC2 takes
CODES = ("instance-reboot", "system-reboot", "system-maintenance", "instance-retirement", "instance-stop")
# Whose end nobody has to wait for.
OVER = {"expired", "cancelled", "payment-failed", "failed", "unavailable"}
# The codes that ParallelCluster takes for a lack of capacity (SlurmNode.EC2_ICE_ERROR_CODES, and those grouped with
# them in cluster_event_publisher.py).
NO_CAPACITY = {
    *("InsufficientCapacity", "InsufficientHostCapacity", "InsufficientInstanceCapacity"),
    *("InsufficientReservedInstanceCapacity", "LimitedInstanceCapacity", "MaxSpotInstanceCountExceeded"),
    *("SpotMaxPriceTooLow", "UnfulfillableCapacity", "Unsupported"),
}
# Reasons of jobs that wait for something else than nodes, as squeue prints them.
NO_NODES = re.compile(r"JobHeld.*|Dependency.*|BeginTime|JobArrayTaskLimit|Reservation")
# A node that is powered down, and whose slurmd Slurm waits for; and what such a node has besides in passing.
STRANDED = {"IDLE", "POWERED_DOWN", "NOT_RESPONDING"}
ON_THE_WAY = {"DRAIN", "FAIL", "POWER_DOWN", "POWERING_DOWN", "POWER_UP", "POWERING_UP"}
# One such id among those that are asked for, and EC2 tells of none of them.
UNKNOWN = "(InvalidCapacityReservationId.NotFound)"
REFUSED = re.compile(r"\((?:UnauthorizedOperation|AccessDenied|AccessDeniedException)\)")
NODE = re.compile(r"([a-z0-9-]{1,64})-(?:st|dy)-([a-z0-9-]{1,64})-\d+")
FIELD = re.compile(r"(?:^|\s)(NodeName|NodeAddr|State|Partitions|CfgTRES|AllocTRES|Reason)=(\S*)")
GPUS = re.compile(r"(?:^|,)gres/gpu=(\d+)(?:,|$)")
SAMPLE = re.compile(r"^(?P<metric>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")
ANSWERED, DENIED = "pcluster_aws_events_timestamp_seconds", "pcluster_aws_events_denied"
HELP = {
    "pcluster_capacity_block_end_timestamp_seconds": "When a capacity block of the cluster ends",
    "pcluster_scheduled_event_timestamp_seconds": "When AWS begins what it has scheduled for an instance",
    "pcluster_protected_mode": "Whether ParallelCluster has set the queue INACTIVE because its nodes fail to boot",
    "pcluster_insufficient_capacity": "Nodes of a compute resource that EC2 has no capacity for",
    "pcluster_nodes_stranded": "Nodes of a compute resource that are powered down, and that Slurm never starts again",
    "pcluster_jobs_waiting": "Jobs of a partition that wait for nodes, and not for another job or a time",
    "pcluster_gpus": "GPUs of the nodes of a partition",
    "pcluster_gpus_allocated": "GPUs of the nodes of a partition that jobs have",
    ANSWERED: "When a source has last answered",
    DENIED: "A source that the head node has no permission for",
}
# The metrics of each source, which stay while it does not answer.
METRICS = {
    "capacity_blocks": "pcluster_capacity_block_end_timestamp_seconds",
    "scheduled_events": "pcluster_scheduled_event_timestamp_seconds",
    "protected_mode": "pcluster_protected_mode",
    "insufficient_capacity": "pcluster_insufficient_capacity",
    "stranded_nodes": "pcluster_nodes_stranded",
    "waiting_jobs": "pcluster_jobs_waiting",
    "gpus": "pcluster_gpus",
    "allocated_gpus": "pcluster_gpus_allocated",
}
Samples = dict[str, float]  # by labels, as they stand between the braces


class Unanswered(Exception):
    """Why a source says nothing, on one line."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split())[:600])


class Denied(Unanswered):
    """The head node may not ask."""


# A copy of visible() of module_utils/_host/text.py, which is not there where this runs; a unit test compares both.
def visible(line: str) -> str:
    """Return one line with each character that a terminal or browser obeys written out, as in \\x1b[2J or \\u202e.

    These are control characters (C0, DEL and C1, so line breaks too), separators of lines and paragraphs, overrides of
    the writing direction and other characters of no width.
    """
    if line.isprintable():
        return line
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in line)


def say(line: str, level: int = 4) -> None:
    """Print one line: a warning, unless it is less (5). The journal is told so; a person is spared it."""
    print(visible(f"<{level}>" * ("JOURNAL_STREAM" in os.environ) + line), flush=True)


def labels(**pairs: str) -> str:
    quoted = (value.replace("\\", r"\\").replace('"', r"\"").replace("\n", " ") for value in pairs.values())
    return ",".join(f'{name}="{value}"' for name, value in zip(pairs, quoted))


def run(words: list[str], seconds: float) -> str:
    """Return what a program prints, which may take so many seconds."""
    environment = {**os.environ, "LC_ALL": "C", "AWS_PAGER": "", "AWS_MAX_ATTEMPTS": "2"}
    environment.setdefault("PATH", "/usr/local/bin:/usr/bin:/bin")
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=seconds,
            check=False,
            env=environment,
        )
    except subprocess.TimeoutExpired as error:
        raise Unanswered(f"{words[0]} gave no answer within {seconds:g} s") from error
    except OSError as error:
        raise Unanswered(f"{words[0]} cannot be run: {error.strerror}") from error
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip() or "it said nothing"
        raise (Denied if REFUSED.search(said) else Unanswered)(f"{words[0]} ended with {done.returncode}: {said}")
    return done.stdout


def moment(text: str) -> float:
    """Return the seconds of a time as EC2 writes it, which is UTC."""
    return float(calendar.timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")))


class Cluster:
    """The sources, each of which is asked once in a run."""

    def __init__(self, options: argparse.Namespace, now: float) -> None:
        self.options, self.now = options, now
        self._slurm: dict[str, str] = {}

    def ec2(self, *words: str) -> Any:
        place = [self.options.aws] if self.options.aws else [path for each in AWS for path in sorted(glob.glob(each))]
        program = next((path for path in place if os.access(path, os.X_OK)), None)
        if program is None:
            raise Unanswered(f"the AWS CLI is not in {AWS[0]} or {AWS[1]}: install it")
        limits = ("--cli-connect-timeout", "10", "--cli-read-timeout", "30")
        line = [program, "ec2", *words, "--region", self.options.region, "--output", "json", *limits]
        try:
            return json.loads(run(line, self.options.timeout) or "{}")
        except (ValueError, RecursionError) as error:
            raise Unanswered(f"aws ec2 {words[0]} answers no JSON: {error}") from error

    def scontrol(self, what: str) -> str:
        """Return what Slurm shows of all nodes or partitions, one a line."""
        if what not in self._slurm:
            program = os.path.join(self.options.slurm, "bin/scontrol")
            self._slurm[what] = run([program, "-a", "-o", "show", what], self.options.timeout)
        return self._slurm[what]

    def nodes(self) -> Iterator[dict[str, str]]:
        for line in self.scontrol("nodes").splitlines():
            fields: dict[str, str] = {}
            # The first of a kind counts: free text, such as a reason, stands at the end of the line.
            for key, value in FIELD.findall(line):
                fields.setdefault(key, value)
            if "NodeName" in fields:
                yield fields

    # What EC2 knows

    def capacity_blocks(self) -> Samples:
        """Return when the capacity blocks end that the queues use. EC2 is not asked where there are none."""
        try:
            with open(self.options.fleet_config, encoding="utf-8") as stream:
                fleet = json.load(stream)
            entries = [entry for queue in fleet.values() for entry in queue.values()]
        except (OSError, ValueError, AttributeError, RecursionError) as error:
            raise Unanswered(f"{self.options.fleet_config} cannot be read: {error}") from error
        ids = {entry["CapacityReservationId"] for entry in entries if entry.get("CapacityType") == "capacity-block"}
        return {
            labels(reservation=one["CapacityReservationId"]): moment(one["EndDate"])
            for one in self.reservations(ids)
            if one.get("EndDate") and one.get("State") not in OVER
        }

    def reservations(self, ids: set[str]) -> list[dict[str, Any]]:
        """Return those that EC2 knows. A cluster may still name one that has ended long ago."""
        while ids:
            try:
                told = self.ec2("describe-capacity-reservations", "--capacity-reservation-ids", *sorted(ids))
                return list(told["CapacityReservations"])
            except Unanswered as error:
                unknown = ids & set(re.findall(r"cr-\w+", str(error))) if UNKNOWN in str(error) else set()
                if not unknown:
                    raise
                ids = ids - unknown
        return []

    def scheduled_events(self) -> Samples:
        """Return when an event begins that AWS has scheduled for an instance of the cluster."""
        told = self.ec2("describe-instance-status", "--filters", f"Name=event.code,Values={','.join(CODES)}")
        events: dict[str, dict[str, float]] = {}
        for one in told["InstanceStatuses"]:
            for event in one.get("Events") or []:
                # One that is over is told for another week.
                if event.get("NotBefore") and not event.get("Description", "").startswith(
                    ("[Completed]", "[Canceled]")
                ):
                    events.setdefault(one["InstanceId"], {})[event["Code"]] = moment(event["NotBefore"])
        if not events:
            return {}
        names = {node["NodeAddr"]: node["NodeName"] for node in self.nodes() if "NodeAddr" in node}
        found: Samples = {}
        for one in self.mine(sorted(events)):
            # Slurm knows neither head nor login nodes, whose name is the host's.
            name = names.get(one.get("PrivateIpAddress", "")) or one.get("PrivateDnsName", "").split(".")[0]
            for code, begins in events[one["InstanceId"]].items():
                # Not `instance`: Prometheus' own label of that name is the head node, which has the metric.
                found[labels(node=name, instance_id=one["InstanceId"], code=code)] = begins
        return found

    def mine(self, instances: list[str]) -> Iterator[dict[str, Any]]:
        """Yield those that are the cluster's, of instances of the whole account."""
        tag = f"Name=tag:parallelcluster:cluster-name,Values={self.options.cluster}"
        for begin in range(0, len(instances), VALUES):
            ids = f"Name=instance-id,Values={','.join(instances[begin : begin + VALUES])}"
            for group in self.ec2("describe-instances", "--filters", tag, ids)["Reservations"]:
                yield from group["Instances"]

    # What ParallelCluster and Slurm know

    def protected_mode(self) -> Samples:
        """Return for each queue whether it is INACTIVE in a fleet that is PROTECTED."""
        try:
            status = json.loads(run([self.options.fleet_status], self.options.timeout)).get("status")
        except (ValueError, AttributeError, RecursionError) as error:
            raise Unanswered(f"{self.options.fleet_status} answers no status: {error}") from error
        states = re.findall(r"^PartitionName=(\S+) .*?\sState=(\w+)", self.scontrol("partitions"), re.MULTILINE)
        return {labels(queue=name): float(status == "PROTECTED" and state == "INACTIVE") for name, state in states}

    def insufficient_capacity(self) -> Samples:
        """Count the nodes of each compute resource that are down because EC2 has no instances.

        Slurm has the reason of a dynamic node. Of a static one only clustermgtd's events tell.
        """
        without = self.refused()
        count: dict[tuple[str, str], int] = {}
        for node in self.nodes():
            name, states = NODE.fullmatch(node["NodeName"]), node.get("State", "").split("+")
            if name is None:
                continue
            key = (name[1], name[2])
            count.setdefault(key, 0)
            code = re.match(r"\(Code:(\w+)\)", node.get("Reason", ""))
            if "DOWN" in states and ((code and code[1] in NO_CAPACITY) or node["NodeName"] in without):
                count[key] += 1
        return {labels(queue=queue, compute_resource=name): float(n) for (queue, name), n in count.items()}

    def stranded_nodes(self) -> Samples:
        """Count the nodes of each compute resource that are powered down, and to which Slurm gives no job.

        This is is_stranded() of module_utils/_slurm/nodes.py, which is not there where this runs; a test compares both.
        """
        count: dict[tuple[str, str], int] = {}
        for node in self.nodes():
            name, states = NODE.fullmatch(node["NodeName"]), set(node.get("State", "").split("+"))
            if name is None:
                continue
            lost = states >= STRANDED and not states & ON_THE_WAY and node.get("NodeAddr") == node["NodeName"]
            count[name[1], name[2]] = count.get((name[1], name[2]), 0) + lost
        return {labels(queue=queue, compute_resource=name): float(n) for (queue, name), n in count.items()}

    def refused(self) -> set[str]:
        """Return the static nodes that clustermgtd could not launch lately, for want of capacity."""
        try:
            with open(self.options.events, "rb") as stream:
                stream.seek(max(0, os.fstat(stream.fileno()).st_size - TAIL))
                lines = stream.read().decode("utf-8", "replace").splitlines()
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise Unanswered(f"{self.options.events} cannot be read: {error.strerror}") from error
        found: set[str] = set()
        for line in lines:
            if '"ice-failures"' in line:
                # The first line may be the end of one.
                with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
                    event = json.loads(line)
                    if self.now - moment(event["datetime"]) <= RECENT:
                        details = event["detail"]["error-details"].values()
                        found |= {node["name"] for each in details for node in each["nodes"]}
        return found

    def waiting_jobs(self) -> Samples:
        """Count the jobs of each partition that wait for nodes, of which an array is one.

        slurmctld's own metrics tell no reasons of jobs.
        """
        count = dict.fromkeys(re.findall(r"^PartitionName=(\S+)", self.scontrol("partitions"), re.MULTILINE), 0)
        words = ("--noheader", "--all", "--states=PENDING", "--format=%P|%r")
        for line in run([os.path.join(self.options.slurm, "bin/squeue"), *words], self.options.timeout).splitlines():
            partitions, _mark, reason = line.partition("|")
            if not NO_NODES.fullmatch(reason):
                # A job that may run in several partitions waits in each of them.
                for name in partitions.split(","):
                    count[name] = count.get(name, 0) + 1
        return {labels(partition=name): float(n) for name, n in count.items()}

    def gpus(self) -> Samples:
        return self.counted("CfgTRES")

    def allocated_gpus(self) -> Samples:
        return self.counted("AllocTRES")

    def counted(self, field: str) -> Samples:
        """Count the GPUs of each partition, which slurmctld's own metrics do not before 26.05.

        Slurm counts them with AccountingStorageTRES=gres/gpu alone. Without it, how many jobs have is not known.
        """
        count: dict[str, int] = {}
        for node in self.nodes():
            if GPUS.search(node.get("CfgTRES", "")):
                found = GPUS.search(node.get(field, ""))
                for name in node.get("Partitions", "").split(","):
                    count[name] = count.get(name, 0) + (int(found[1]) if found else 0)
        return {labels(partition=name): float(n) for name, n in count.items() if name}


# The file


def before(path: str) -> dict[str, Samples]:
    """Return what an earlier run has written."""
    found: dict[str, Samples] = {}
    with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as stream:
        for line in stream:
            sample = SAMPLE.match(line)
            if sample:
                found.setdefault(sample["metric"], {})[sample["labels"] or ""] = float(sample["value"])
    return found


def look(cluster: Cluster, old: dict[str, Samples]) -> dict[str, Samples]:
    """Ask each source, and say what is wrong with one that does not answer."""
    new: dict[str, Samples] = {ANSWERED: {}, DENIED: {}}
    sources: dict[str, Callable[[], Samples]] = {name: getattr(cluster, name) for name in METRICS}
    for name, ask in sources.items():
        source, metric = labels(source=name), METRICS[name]
        try:
            new[metric] = ask()
            new[ANSWERED][source] = cluster.now
        except Denied as error:
            new[DENIED][source] = 1
            if source not in old.get(DENIED, {}):
                say(f"{name} is left out until the head node's role has the permission that is missing: {error}")
        except (Unanswered, KeyError, ValueError, TypeError, AttributeError) as error:
            why = str(error) if isinstance(error, Unanswered) else f"an answer is not understood: {error!r}"
            say(f"{name} is not known now: {why}")
            new[metric] = old.get(metric, {})
            if source in old.get(ANSWERED, {}):
                new[ANSWERED][source] = old[ANSWERED][source]
    return new


def render(samples: dict[str, Samples]) -> str:
    lines = []
    for metric, text in HELP.items():
        lines += [f"# HELP {metric} {text}", f"# TYPE {metric} gauge"] if samples.get(metric) else []
        lines += [f"{metric}{{{each}}} {value:.0f}" for each, value in sorted(samples.get(metric, {}).items())]
    return "".join(f"{line}\n" for line in lines)


def put(path: str, text: str) -> None:
    """Put a file in place whole: a scrape finds the old one or the new one."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with open(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
        os.fchmod(descriptor, 0o644)
    os.rename(temporary, path)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What AWS knows of a cluster's future, for node_exporter.")
    parser.add_argument("--cluster", required=True, help="the name of the cluster")
    parser.add_argument("--region", required=True, help="the region of the cluster")
    parser.add_argument("--output", required=True, help="the file to write")
    parser.add_argument("--slurm", default="/opt/slurm", help="where Slurm is (default: %(default)s)")
    parser.add_argument("--aws", default="", help="the AWS CLI (default: where ParallelCluster's images have it)")
    parser.add_argument("--fleet-config", default=FLEET_CONFIG, help="clustermgtd's queues (default: %(default)s)")
    parser.add_argument("--fleet-status", default=FLEET_STATUS, help="tells the fleet's status (default: %(default)s)")
    parser.add_argument("--events", default=EVENTS, help="clustermgtd's events (default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=60, help="seconds for each question (default: %(default)s)")
    options = parser.parse_args(words)
    try:
        put(options.output, render(look(Cluster(options, time.time()), before(options.output))))
    except OSError as error:
        print(visible(f"no metrics of what AWS knows: {error}"), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
