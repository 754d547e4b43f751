# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the head node knows of booting nodes: from Slurm, from clustermgtd, and from the records that nodes write."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._boot import cloud_init, record
from ansible_collections.pcluster.postboot.plugins.module_utils._host import document, files
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import NotRun, run
from ansible_collections.pcluster.postboot.plugins.module_utils._slurm.ask import scontrol
from ansible_collections.pcluster.postboot.plugins.module_utils._slurm.nodes import is_stranded
from ansible_collections.pcluster.postboot.plugins.module_utils._slurm.nodes import nodes as slurm_nodes

_ROOT = os.environ.get("PCLUSTER_POSTBOOT_ROOT", "")
CONFIG = "/opt/parallelcluster/shared/cluster-config.yaml"
FLEET = "/usr/local/bin/get-compute-fleet-status.sh"
HEARTBEAT = "etc/pcluster/.slurm_plugin/clustermgtd_heartbeat"
LOG = "/var/log/parallelcluster/clustermgtd"
ERROR = "/var/log/parallelcluster/bootstrap_error_msg"
_TAIL = 256 * 1024  # bytes of clustermgtd's log, which has a few hundred lines a minute on a large cluster
_RECENT = 300  # seconds; clustermgtd tells each minute how many boots of a queue have failed
# What precedes the message is clustermgtd's own; elsewhere in a line may be words of others.
_COUNTS = re.compile(
    r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d+ - \[slurm_plugin\.clustermgtd:\w+\] - INFO - Partitions bootstrap failure "
    r"count: (\{[^\n]*\}), cluster will be set into protected mode if protected failure count reaches threshold "
    r"(\d{1,9})",
    re.M,
)
_REASON, _SET = re.compile(r"\sReason=(.*)"), re.compile(r" \[[^\s@\[\]]*@([\dT:-]+)\]")
_PARTITION = re.compile(r"^PartitionName=(\S+) .*?\sState=(\w+)", re.M)


class Request(NamedTuple):
    """The module's options."""

    prefix: str = "/opt/slurm"
    timeout: float = 30.0


class Outcome(NamedTuple):
    """The module's result."""

    now: float
    booted: bool
    boot_error: str
    timeouts: dict[str, int]
    fleet: str
    inactive: list[str]
    failures: dict[str, int]
    failures_most: int
    heartbeat: float
    off: int
    nodes: list[dict[str, Any]]
    records: list[dict[str, str]]
    problems: list[str]


def look(request: Request) -> Outcome:
    """Return what the head node knows now. What it cannot read, because it boots itself, is one of the problems."""
    now = time.time()
    problems: list[str] = []
    nodes: list[dict[str, Any]] = []
    inactive: list[str] = []
    off = 0
    try:
        shown = scontrol(request.prefix, "-o", "show", "nodes", seconds=request.timeout).output()
        off, nodes = states(shown)
        partitions = scontrol(request.prefix, "-o", "show", "partitions", seconds=request.timeout).output()
        inactive = [name for name, state in _PARTITION.findall(partitions) if state == "INACTIVE"]
    except Problem as problem:
        problems.append(f"Slurm's controller does not answer: {problem}")
    failures, most = counts(_tail(_ROOT + LOG), now)
    beat = 0.0
    with contextlib.suppress(OSError):
        beat = os.stat(os.path.join(request.prefix, HEARTBEAT)).st_mtime
    return Outcome(
        now=now,
        booted=os.path.exists(_ROOT + cloud_init.RESULT),
        boot_error=_boot_error(),
        timeouts=timeouts(files.read(_ROOT + CONFIG) or ""),
        fleet=_fleet(request.timeout),
        inactive=inactive,
        failures=failures,
        failures_most=most,
        heartbeat=round(now - beat, 1) if beat else -1.0,
        off=off,
        nodes=nodes,
        records=list(_records(os.path.join(request.prefix, "pcluster-postboot/boots"))),
        problems=problems,
    )


def states(shown: str) -> tuple[int, list[dict[str, Any]]]:
    """Return how many dynamic nodes a job would start, and what Slurm says of all other nodes."""
    found: list[dict[str, Any]] = []
    off = 0
    begins = re.compile(r"NodeName=(\S+)")
    lines = {match[1]: line for line in shown.splitlines() if (match := begins.match(line))}
    for fields in slurm_nodes(shown, "State", "NodeAddr", "InstanceId"):
        name, flags = fields["NodeName"], set(fields.get("State", "").split("+"))
        reason = _REASON.search(lines.get(name, ""))
        since = _SET.search(reason[1]) if reason else None
        why = reason[1][: since.start()] if reason and since else ""
        stranded = is_stranded(fields)
        off_duty = {"IDLE", "POWERED_DOWN"} <= flags and not {"DOWN", "DRAIN"} & flags
        if "-dy-" in name and off_duty and not stranded:
            off += 1
            continue
        one: dict[str, Any] = {"name": name, "state": sorted(flags), **({"stranded": True} if stranded else {})}
        address, instance = fields.get("NodeAddr", ""), fields.get("InstanceId", "")
        one.update({"address": address} if address != name else {})
        one.update({"instance": instance} if instance.startswith("i-") else {})
        if why and why != "none" and flags & {"DOWN", "DRAIN", "FAIL", "POWERED_DOWN", "POWERING_DOWN"}:
            one.update(reason=why, reason_since=_seconds(since[1] if since else "", "%Y-%m-%dT%H:%M:%S"))
        found.append(one)
    return off, found


def counts(log: str, now: float) -> tuple[dict[str, int], int]:
    """Return how many boots of each queue have failed in a row, by clustermgtd's last word, and how many may."""
    told = _COUNTS.findall(log)
    if not told or now - _seconds(told[-1][0], "%Y-%m-%d %H:%M:%S") > _RECENT:
        return {}, 0
    try:
        found = ast.literal_eval(told[-1][1])
        return {str(queue): sum(of.values()) for queue, of in found.items()}, int(told[-1][2])
    except (ValueError, SyntaxError, AttributeError, TypeError, RecursionError, MemoryError):
        return {}, 0


def timeouts(config: str) -> dict[str, int]:
    """Return how long ParallelCluster waits for a boot, where the cluster's configuration says so."""
    found = {}
    for kind, key in (("head", "HeadNodeBootstrapTimeout"), ("compute", "ComputeNodeBootstrapTimeout")):
        told = re.search(rf"^[^#\n]*\b{key}[\"']?: *([0-9]{{1,9}})", config, re.M)
        if told:
            found[kind] = int(told[1])
    return found


def _seconds(text: str, form: str) -> float:
    try:
        return time.mktime(time.strptime(text, form))
    except (ValueError, OverflowError):
        return 0.0


def _tail(path: str) -> str:
    try:
        with open(path, "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - _TAIL))
            return stream.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _boot_error() -> str:
    """Return why ParallelCluster says that the boot of this head node has failed."""
    text = files.read(_ROOT + ERROR)
    if text is None:
        return ""
    try:
        found = document.parse(text)
        return str(found.get("message") or text)[:500]
    except (ValueError, AttributeError):
        return " ".join(text.split())[:500]


def _fleet(seconds: float) -> str:
    """Return the status of the compute fleet, such as RUNNING or PROTECTED; empty where the script gives none."""
    try:
        told = document.parse(run([_ROOT + FLEET], seconds).out)
        return str(told.get("status") or "")
    except (NotRun, ValueError, AttributeError):
        return ""


def _records(directory: str) -> Iterator[dict[str, str]]:
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return
    for name in names:
        if not name.startswith("."):
            with contextlib.suppress(OSError):  # the file of a node, which root of any node can replace
                found = record.parse(files.peek(os.path.join(directory, name)))
                if found:
                    yield found
