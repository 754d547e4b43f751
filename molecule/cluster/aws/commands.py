# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run Command of AWS Systems Manager, as far as the collection uses it.

Agents of the sandbox's nodes fetch what is theirs by a long poll of GET /sandbox/ssm-agent and POST there how it ended.
Nothing times out by itself: what is due is worked out when somebody asks.

Statuses and time-outs are those of "Understanding command statuses" (awsdocs/aws-systems-manager-user-guide,
doc_source/monitor-commands.md, 03c7112): In Progress says that the service is sending, or that the agent has it; what
has not ended TimeoutSeconds + executionTimeout after it was sent is DeliveryTimedOut, also where it has begun, because
only the agent itself says ExecutionTimedOut. A plugin is listed once it has begun; whether AWS lists it before it has
ended, its documents leave open, and `begun` False is the AWS that does not (the agent sends a plugin's result when the
plugin is complete: aws/amazon-ssm-agent, agent/framework/runpluginutil/runplugins.go).
A command that would pass the account's limit of pending invocations, `most`, lists none and is RateExceeded.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

DOCUMENT, PLUGIN = "AWS-RunShellScript", "aws:runShellScript"
CONCURRENCY, ERRORS = re.compile(r"[1-9]\d*|[1-9]\d?%|100%"), re.compile(r"\d+|\d\d?%|100%")
STDOUT, STDERR, BOTH = 24000, 8000, 2500  # characters that the service keeps
CUT, CUT_ERROR, BETWEEN = "\n---Output truncated---", "\n---Error truncated----", "\n----------ERROR-------\n"
SECONDS_OF_A_POLL = 50.0
ON_ITS_WAY = 1.0  # seconds from Pending to In Progress


STATUSES = {
    "DeliveryTimedOut": "TimedOut",
    "ExecutionTimedOut": "TimedOut",
    "Terminated": "Cancelled",
    "RateExceeded": "Failed",
    "Incomplete": "Failed",
}


class InvalidRequest(ValueError):
    """What the real service refuses; the arguments are the error's code and its message."""


@dataclass
class Invocation:
    """A command on one instance."""

    instance: str
    details: str = "Pending"
    code: int = -1
    stdout: str = ""
    stderr: str = ""
    started: float = 0.0
    ended: float = 0.0

    @property
    def over(self) -> bool:
        return self.details not in ("Pending", "InProgress", "Cancelling")

    @property
    def waits(self) -> bool:
        """Whether its agent has not taken it yet."""
        return self.details in ("Pending", "InProgress") and not self.started

    @property
    def status(self) -> str:
        return STATUSES.get(self.details, self.details)


@dataclass
class Command:
    """What SendCommand was given."""

    region: str
    script: str
    delivery: float
    execution: float
    concurrency: int
    errors: int
    comment: str
    sent: float
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    invocations: dict[str, Invocation] = field(default_factory=dict)
    over: bool = False

    def settle(self) -> None:
        """Let happen what is due by now."""
        if self.over:
            return
        now, failed = time.time(), 0
        running = sum(one.details in ("InProgress", "Cancelling") for one in self.invocations.values())
        for one in self.invocations.values():
            if one.details == "Pending" and now >= self.sent + ON_ITS_WAY and running < self.concurrency:
                one.details, running = "InProgress", running + 1
            if not one.over and now > self.sent + self.delivery + self.execution:
                one.details, one.ended = "DeliveryTimedOut", now
            failed += one.details in ("Failed", "ExecutionTimedOut")
        if failed > self.errors:
            for one in self.invocations.values():
                if one.waits:
                    one.details, one.ended = "Terminated", now
        self.over = all(one.over for one in self.invocations.values())

    def next_for(self, instance: str) -> Invocation | None:
        one = self.invocations.get(instance)
        if one is None or not one.waits:
            return None
        running = sum(other.details == "InProgress" for other in self.invocations.values() if other is not one)
        return one if running < self.concurrency else None

    def cancel(self, instances: list[str]) -> None:
        """What has not begun does not begin; the agent would end what has."""
        for one in (self.invocations[name] for name in instances):
            if one.waits:
                one.details, one.ended = "Cancelled", time.time()
            elif not one.over:
                one.details = "Cancelling"

    @property
    def details(self) -> str:
        found = {one.details for one in self.invocations.values()}
        if not found:
            return "RateExceeded"
        if not self.over:
            return "Pending" if found == {"Pending"} else "InProgress"
        return found.pop() if len(found) == 1 else "Incomplete"


class Service:
    """Every command that was sent, and who waits for one."""

    def __init__(self, running: Callable[[str], set[str]], account: str) -> None:
        self.running, self.account = running, account  # `running` tells the instances of a region
        self.commands: dict[str, Command] = {}
        self.news = threading.Condition()
        self.most: int | None = None  # invocations of the account that may be pending; AWS does not tell its number
        self.begun = True  # whether the plugin is listed of what has begun and not ended

    # What AWS's clients call

    def send_command(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        ids = request.get("InstanceIds") or []
        parameters = request.get("Parameters") or {}
        concurrency, errors = request.get("MaxConcurrency", "50"), request.get("MaxErrors", "0")
        delivery = request.get("TimeoutSeconds", 3600)
        need(1 <= len(ids) <= 50, "ValidationException", f"InstanceIds has {len(ids)} members; it must have 1 to 50")
        need(len(set(ids)) == len(ids), "DuplicateInstanceId", "")
        need(request.get("DocumentName") == DOCUMENT, "InvalidDocument", "Document with name does not exist.")
        need(parameters.get("commands"), "InvalidParameters", "Parameters are missing: commands")
        need(not set(parameters) - {"commands", "workingDirectory", "executionTimeout"}, "InvalidParameters", "")
        need(len(request.get("Comment", "")) <= 100, "ValidationException", "Comment has more than 100 characters")
        need(30 <= delivery <= 2592000, "ValidationException", f"TimeoutSeconds is {delivery}")
        need(CONCURRENCY.fullmatch(concurrency), "ValidationException", f"MaxConcurrency is {concurrency}")
        need(ERRORS.fullmatch(errors), "ValidationException", f"MaxErrors is {errors}")
        unknown = [one for one in ids if one not in self.running(region)]
        need(
            not unknown,
            "InvalidInstanceId",
            f"Instances [[{', '.join(unknown)}]] not in a valid state for account {self.account}",
        )
        command = Command(
            region,
            "\n".join(parameters["commands"]) + "\n",
            delivery,
            float(parameters.get("executionTimeout", ["3600"])[0]),
            max(1, share(concurrency, len(ids))),
            share(errors, len(ids)),
            request.get("Comment", ""),
            time.time(),
        )
        if self.most is None or self.pending() + len(ids) <= self.most:
            command.invocations = {one: Invocation(one) for one in ids}
        command.over = not command.invocations
        with self.news:
            self.commands[command.id] = command
            self.news.notify_all()
        return {
            "Command": {
                "CommandId": command.id,
                "DocumentName": DOCUMENT,
                "Comment": command.comment,
                "InstanceIds": ids,
                "RequestedDateTime": command.sent,
                "ExpiresAfter": command.sent + command.delivery + command.execution,
                "Status": "Pending",
                "StatusDetails": "Pending",
                "TimeoutSeconds": delivery,
                "MaxConcurrency": concurrency,
                "MaxErrors": errors,
                "TargetCount": len(ids),
            }
        }

    def list_command_invocations(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        size, start = request.get("MaxResults", 50), int(request.get("NextToken") or 0)
        need(1 <= size <= 50, "ValidationException", f"MaxResults is {size}; it must be from 1 to 50")
        wanted = {one["key"]: one["value"] for one in request.get("Filters") or []}
        need(not set(wanted) - {"Status"}, "InvalidFilterKey", f"the sandbox knows Status alone, not {list(wanted)}")
        commands = [one for one in self.commands.values() if one.region == region]
        if "CommandId" in request:
            commands = [self.find(region, request["CommandId"])]
        rows = []
        for command in commands:
            command.settle()
            rows += [(command, one) for one in command.invocations.values()]
        rows = [
            (command, one)
            for command, one in rows
            if request.get("InstanceId", one.instance) == one.instance
            and wanted.get("Status", one.status) in (one.status, one.details)
        ]
        page = rows[start : start + size]
        details = request.get("Details", False)
        answer: dict[str, Any] = {
            "CommandInvocations": [row(*found, details and (self.begun or found[1].over)) for found in page]
        }
        if start + size < len(rows):
            answer["NextToken"] = str(start + size)
        return answer

    def list_commands(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        need(
            set(request) == {"CommandId"},
            "ValidationException",
            f"the sandbox knows CommandId alone, not {list(request)}",
        )
        command = self.find(region, request["CommandId"])
        command.settle()
        row = {"CommandId": command.id, "Comment": command.comment, "DocumentName": DOCUMENT}
        row.update(RequestedDateTime=command.sent, TargetCount=len(command.invocations))
        status = STATUSES.get(command.details, command.details)
        return {"Commands": [{**row, "Status": status, "StatusDetails": command.details}]}

    def cancel_command(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        command = self.find(region, request["CommandId"])
        ids = request.get("InstanceIds") or list(command.invocations)
        need(len(ids) <= 50, "ValidationException", f"InstanceIds has {len(ids)} members; it must have at most 50")
        need(len(set(ids)) == len(ids), "DuplicateInstanceId", "")
        need(set(ids) <= set(command.invocations), "InvalidInstanceId", "")
        command.cancel(ids)
        return {}

    def get_command_invocation(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        command = self.find(region, request["CommandId"])
        command.settle()
        one = command.invocations.get(request["InstanceId"])
        need(one, "InvocationDoesNotExist", "")
        return {
            "CommandId": command.id,
            "InstanceId": one.instance,
            "Comment": command.comment,
            "DocumentName": DOCUMENT,
            "PluginName": PLUGIN,
            "ResponseCode": one.code,
            "Status": one.status,
            "StatusDetails": one.details,
            "StandardOutputContent": shorten(one.stdout, STDOUT, CUT),
            "StandardErrorContent": shorten(one.stderr, STDERR, CUT_ERROR),
        }

    def pending(self) -> int:
        return sum(one.waits for command in self.commands.values() for one in command.invocations.values())

    def find(self, region: str, command: str) -> Command:
        found = self.commands.get(command)
        if found is None or found.region != region:
            raise InvalidRequest("InvalidCommandId", "")
        return found

    # What the agents do

    def fetch(self, instance: str, seconds: float = SECONDS_OF_A_POLL) -> dict[str, Any] | None:
        """Return what an instance is to run next, as soon as there is something."""
        end = time.monotonic() + seconds
        with self.news:
            while True:
                for command in [found for found in self.commands.values() if instance in found.invocations]:
                    command.settle()
                    one = command.next_for(instance)
                    if one:
                        one.details, one.started = "InProgress", time.time()
                        return {"id": command.id, "script": command.script, "seconds": command.execution}
                left = end - time.monotonic()
                if left <= 0 or not self.news.wait(left):
                    return None

    def reply(self, instance: str, said: dict[str, Any]) -> None:
        """Note how it ended there."""
        with self.news:
            one = self.commands[said["id"]].invocations[instance]
            if one.details == "Cancelling":
                one.code, one.ended, one.details = said["code"], time.time(), "Cancelled"
            elif not one.over:
                one.code, one.stdout, one.stderr, one.ended = said["code"], said["stdout"], said["stderr"], time.time()
                one.details = "ExecutionTimedOut" if said["late"] else "Failed" if one.code else "Success"
            self.news.notify_all()  # another one may have its turn


def need(condition: Any, code: str, message: str) -> None:
    if not condition:
        raise InvalidRequest(code, message)


def share(text: str, whole: int) -> int:
    return whole * int(text[:-1]) // 100 if text.endswith("%") else int(text)


def row(command: Command, one: Invocation, details: bool) -> dict[str, Any]:
    found = {
        "CommandId": command.id,
        "InstanceId": one.instance,
        "InstanceName": "",
        "Comment": command.comment,
        "DocumentName": DOCUMENT,
        "RequestedDateTime": command.sent,
        "Status": one.status,
        "StatusDetails": one.details,
        "StandardOutputUrl": "",
        "StandardErrorUrl": "",
        "CommandPlugins": [],
    }
    if details and one.started:
        plugin: dict[str, Any] = {"Name": PLUGIN, "Status": one.status, "StatusDetails": one.details}
        plugin.update(ResponseCode=one.code, ResponseStartDateTime=one.started, Output=both(one.stdout, one.stderr))
        if one.over:
            plugin["ResponseFinishDateTime"] = one.ended
        found["CommandPlugins"] = [plugin]
    return found


def shorten(text: str, most: int, mark: str) -> str:
    return text if len(text) <= most else text[: most - len(mark)] + mark


def both(stdout: str, stderr: str, most: int = BOTH) -> str:
    """Put output and errors together as the agent does: where they are too long, each has its part."""
    if not stderr:
        return shorten(stdout, most, CUT)
    left = most - len(BETWEEN)
    if len(stdout) + len(stderr) <= left:
        return stdout + BETWEEN + stderr
    out = min(len(stdout), max(left // 2, left - len(stderr)))
    return shorten(stdout, out, CUT) + BETWEEN + shorten(stderr, left - out, CUT_ERROR)
