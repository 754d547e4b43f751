# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is left of a node that is gone, or does not answer: AWS' logs, its console, and its state in EC2.

ParallelCluster's log group is /aws/parallelcluster/<cluster>-<time of its creation>, and its streams are
<host name>.<instance>.<log>: aws-parallelcluster 3.16.1, templates/cluster_stack.py and constants.py;
aws-parallelcluster-cookbook (7b36c2e), write_cloudwatch_agent_json.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose import boot, hardware, judge, logs, storage
from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose.evidence import (
    CAUSE,
    FAULT,
    NOTE,
    Evidence,
    Finding,
    finding,
)
from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose.redact import KNOWN, Redactor
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws import log_group
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.errors import AwsErrors, code_of, explain
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.session import ClientMaker
from ansible_collections.pcluster.postboot.plugins.plugin_utils._diagnose.model import Node

PAGE = "node-does-not-come-up"
_MOST_PAGES = 200  # of one question; a page has 50 streams
# A gone node's own words, and nothing of other nodes.
_FINDERS = (*boot.FINDERS, *hardware.FINDERS, *storage.FINDERS)
_COMPLAINT = re.compile(rf"{logs.MANAGER}(?:(?:WARNING|ERROR) - |INFO - Placing bootstrap failure )")
_NAME = re.compile(r"[a-z][a-z0-9-]{0,63}-(?:st|dy)-[a-z0-9-]{1,64}-\d+|i-[0-9a-f]{8,17}")


class Limits(NamedTuple):
    file: int  # bytes of a log
    hours: float
    now: float


def check(names: Iterable[str]) -> None:
    """Refuse what is neither a name of Slurm's nor an instance."""
    wrong = [name for name in names if not _NAME.fullmatch(name)]
    if wrong:
        raise Problem(
            f"diagnose_gone: found {', '.join(wrong)}; needed: names of compute nodes in Slurm, such as gpu-st-p5-1, "
            "or ids of instances, such as i-0123456789abcdef0"
        )


class Aws:
    """Asks AWS about instances of one cluster. What cannot be asked is noted and ends nothing."""

    def __init__(self, make: ClientMaker, region: str, cluster: str, limits: Limits, group: str = "") -> None:
        self.make, self.region, self.cluster, self.limits, self.group = make, region, cluster, limits, group
        self.notes: list[str] = []

    def gather(self, node: Node, instances: Iterable[tuple[str, str]]) -> None:
        """Add to a node's texts and findings what AWS has of its instances."""
        for instance, host in instances:
            logs = self._logs(instance, host, node.name)
            for name, text in (*self._state(instance), *self._console(instance), *logs):
                node.texts[f"{instance}/{name}"] = text

    def _ask(self, service: str, method: str, permission: str, about: str, **more: Any) -> Any:
        """Return an answer; None where there is none, which is noted."""
        client = self.make(service, self.region)
        try:
            return getattr(client, method)(**more)
        except AwsErrors as error:
            if code_of(error) not in ("InvalidInstanceID.NotFound", "ResourceNotFoundException"):
                self._note(str(explain(error, self.region, permission, about)))
            return None

    def _note(self, line: str) -> None:
        if line not in self.notes:
            self.notes.append(line)

    def _state(self, instance: str) -> Iterator[tuple[str, str]]:
        told = self._ask("ec2", "describe_instances", "ec2:DescribeInstances", instance, InstanceIds=[instance])
        for one in [one for part in (told or {}).get("Reservations", []) for one in part["Instances"]]:
            lines = {
                "instance": one.get("InstanceId"),
                "type": one.get("InstanceType"),
                "zone": (one.get("Placement") or {}).get("AvailabilityZone"),
                "image": one.get("ImageId"),
                "launched": one.get("LaunchTime"),
                "state": (one.get("State") or {}).get("Name"),
                "reason": (one.get("StateReason") or {}).get("Message"),
                "transition": one.get("StateTransitionReason"),
            }
            yield "ec2.txt", "".join(f"{name}: {value}\n" for name, value in lines.items() if value)

    def _console(self, instance: str) -> Iterator[tuple[str, str]]:
        told = self._ask("ec2", "get_console_output", "ec2:GetConsoleOutput", instance, InstanceId=instance)
        text = str((told or {}).get("Output") or "")
        if text:
            yield "console.txt", text.replace("\r", "")[-self.limits.file :]

    def _logs(self, instance: str, host: str, name: str) -> Iterator[tuple[str, str]]:
        if not self.group:
            self.group = self._find_group()
        if not self.group:
            return
        # The host name comes first in a stream's name, so that without it all have to be listed. ParallelCluster names
        # its streams before a host is given its name in Slurm, and our role afterwards.
        for begin in sorted({f"{host}.{instance}.", f"{name}.{instance}."}) if host else ("",):
            for stream in self._streams(instance, begin):
                yield f"cloudwatch/{stream}", self._events(stream)

    def _streams(self, instance: str, begin: str) -> list[str]:
        found: list[str] = []
        more: dict[str, Any] = {"logStreamNamePrefix": begin} if begin else {}
        for _page in range(_MOST_PAGES):
            told = self._ask(
                "logs",
                "describe_log_streams",
                "logs:DescribeLogStreams",
                self.group,
                logGroupName=self.group,
                **more,
            )
            found += [one["logStreamName"] for one in (told or {}).get("logStreams", [])]
            if not (told or {}).get("nextToken"):
                break
            more["nextToken"] = told["nextToken"]
        else:
            self._note(f"{self.group} has more than {_MOST_PAGES * 50} streams, and the rest was not looked at")
        return [name for name in found if f".{instance}." in name]

    def _find_group(self) -> str:
        try:
            found = log_group.newest(self.make("logs", self.region), self.cluster)
        except AwsErrors as error:
            self._note(str(explain(error, self.region, "logs:DescribeLogGroups", self.cluster)))
            found = ""
        else:
            if not found:
                group = f"{log_group.PREFIX}{self.cluster}-<time>"
                self._note(f"CloudWatch has no log group {group}: the cluster's logs were not kept")
        return found

    def _events(self, stream: str) -> str:
        """Return the end of a stream. A page may be empty and not be the last, whose token comes again."""
        lines: list[str] = []
        size, token = 0, ""
        for _page in range(_MOST_PAGES):
            more = {"nextToken": token} if token else {}
            told = self._ask(
                "logs",
                "get_log_events",
                "logs:GetLogEvents",
                self.group,
                logGroupName=self.group,
                logStreamName=stream,
                startFromHead=False,
                **more,
            )
            events = [str(one["message"]) for one in (told or {}).get("events", [])]
            lines = events + lines
            size += sum(len(line) + 1 for line in events)
            before = (told or {}).get("nextBackwardToken")
            if size >= self.limits.file or before in ("", None, token):
                break
            token = before
        else:
            self._note(f"{self.group}, stream {stream}: only the last {_MOST_PAGES} pages of events were read")
        # Each event of this stream is a whole report, of which the last one counts.
        text = lines[-1] if lines and stream.endswith(".pcluster-postboot-report") else "\n".join(lines)
        return text[-self.limits.file :] + "\n" if text else ""


def clean(node: Node, redactor: Redactor) -> None:
    """Take the secrets out of a node's texts."""
    for name, text in node.texts.items():
        cleaned, counts = redactor.clean(text)
        node.texts[name] = cleaned
        for kind, count in counts.items():
            node.redacted[kind] = node.redacted.get(kind, 0) + count
    for name, text in node.texts.items():
        node.texts[name], count = redactor.known(text)
        if count:
            node.redacted[KNOWN] = node.redacted.get(KNOWN, 0) + count


def judged(node: Node, limits: Limits) -> list[Finding]:
    """Return what the cleaned texts of a node tell."""
    kind = str(node.who.get("node_type") or "compute")
    evidence = Evidence(node.slurm, kind, node.texts, now=limits.now, hours=limits.hours, running=False)
    return judge.judge(evidence, (*(judge.FINDERS if kind == "head" else _FINDERS), _ended, _about))


def _ended(evidence: Evidence) -> Iterator[Finding]:
    """Tell why EC2 says that an instance has ended."""
    for name, text in evidence.named("ec2"):
        told = dict(line.split(": ", 1) for line in logs.lines(text) if ": " in line)
        reason = told.get("reason", "")
        if "Spot" in reason:
            todo = "capacity that is reserved, or on demand; checkpoints for what runs on spot"
            yield finding("spot", CAUSE, "EC2 took a spot instance back", reason, name, todo, PAGE)
        elif reason.startswith("Server."):
            todo = "a fault of AWS' side: the next instance is another machine"
            yield finding("ec2-server", CAUSE, "EC2 ended the instance", reason, name, todo, PAGE)
        elif told.get("state") in ("shutting-down", "terminated", "stopped"):
            said = f"{told['instance']} {told['state']}: {reason or told.get('transition', '')}"
            todo = "a node that fails its boot shuts itself down (InstanceInitiatedShutdown); else clustermgtd ended it"
            yield finding("ended", NOTE, "the instance has ended", said, name, todo, PAGE)


def _about(evidence: Evidence) -> Iterator[Finding]:
    """Tell what clustermgtd said last of the node; the head node's log has the lines about it alone."""
    for name, text in evidence.named("clustermgtd"):
        lines = [line for line in logs.lines(text) if _COMPLAINT.match(line)]
        if lines and name.startswith("head/"):
            todo = "the boot's own logs say why: cloud-init-output, bootstrap_error_msg, console"
            what = "clustermgtd gave the node up"
            yield finding("given-up", FAULT, what, lines[-1], name, todo, PAGE)
            return
