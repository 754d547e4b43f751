# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run Command of AWS Systems Manager, as far as the collection uses it.

Agents of the sandbox's nodes fetch what is theirs by a long poll of GET /sandbox/ssm-agent and POST there how it ended.
Nothing times out by itself: what is due is worked out when somebody asks.
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
        return self.details not in ("Pending", "InProgress")

    @property
    def status(self) -> str:
        return {
            "DeliveryTimedOut": "TimedOut",
            "ExecutionTimedOut": "TimedOut",
            "Terminated": "Cancelled",
        }.get(self.details, self.details)


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

    def settle(self) -> None:
        """Let happen what is due by now."""
        now, failed = time.time(), 0
        for one in self.invocations.values():
            if one.details == "Pending" and now > self.sent + self.delivery:
                one.details, one.ended = "DeliveryTimedOut", now
            # The agent kills it; that one has not said so is the service's to notice.
            if one.details == "InProgress" and now > one.started + self.execution + 5:
                one.details, one.ended = "ExecutionTimedOut", now
            failed += one.details in ("Failed", "ExecutionTimedOut")
        if failed > self.errors:
            for one in self.invocations.values():
                if one.details == "Pending":
                    one.details, one.ended = "Terminated", now

    def next_for(self, instance: str) -> Invocation | None:
        running = sum(one.details == "InProgress" for one in self.invocations.values())
        one = self.invocations.get(instance)
        return one if one and one.details == "Pending" and running < self.concurrency else None


class Service:
    """Every command that was sent, and who waits for one."""

    def __init__(self, running: Callable[[str], set[str]], account: str) -> None:
        self.running, self.account = running, account  # `running` tells the instances of a region
        self.commands: dict[str, Command] = {}
        self.news = threading.Condition()

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
        command.invocations = {one: Invocation(one) for one in ids}
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
        answer: dict[str, Any] = {"CommandInvocations": [row(*found, request.get("Details", False)) for found in page]}
        if start + size < len(rows):
            answer["NextToken"] = str(start + size)
        return answer

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
                for command in list(self.commands.values()):
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
            if not one.over:
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
