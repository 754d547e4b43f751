# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What CloudFormation tells of a cluster's stack: its status, its events, and the parameters that `pcluster` reads.

What is in such a stack is made by deploy.py, so that the stack itself has no resources here. deploy.py says when an
operation begins; the head node's signal ends it, as the wait condition of ParallelCluster's template does.
"""

from __future__ import annotations

from typing import Any

from moto.cloudformation import cloudformation_backends
from moto.cloudformation.models import Event, Stack
from moto.core import DEFAULT_ACCOUNT_ID

UNFINISHED = "_IN_PROGRESS"
OF_USERS = ("CREATE_IN_PROGRESS", "UPDATE_IN_PROGRESS")


class Clusters:
    """The stacks of the clusters, in moto's CloudFormation."""

    def __init__(self) -> None:
        self.stacks: dict[str, Stack] = {}
        self.conditions: dict[str, str] = {}

    def begin(self, name: str, told: dict[str, Any]) -> None:
        """Begin what `status` says, such as CREATE_IN_PROGRESS, which also tells the stack's own values."""
        if told["status"] == "CREATE_IN_PROGRESS":
            self.create(name, told)
        stack = self.stacks[name]
        if told["status"] in OF_USERS:
            turn(stack, told["status"], "User Initiated")
            self.event(stack, "CREATE_IN_PROGRESS")  # each update has a wait condition of its own
        else:
            turn(stack, told["status"], self.failed(name))

    def create(self, name: str, told: dict[str, Any]) -> None:
        region, parameters = told["region"], told["parameters"]
        stack = Stack(told["id"], name, {}, parameters, DEFAULT_ACCOUNT_ID, region, tags=told["tags"])
        stack.resource_map.resolved_parameters = parameters  # which moto works out from a template otherwise
        cloudformation_backends[DEFAULT_ACCOUNT_ID][region].stacks[stack.stack_id] = stack
        self.stacks[name], self.conditions[name] = stack, told["condition"]

    def delete(self, name: str) -> None:
        """Forget a stack, if there is one."""
        if stack := self.stacks.pop(name, None):
            del cloudformation_backends[DEFAULT_ACCOUNT_ID][stack.region_name].stacks[stack.stack_id]

    def signal(self, name: str, told: dict[str, str]) -> None:
        """End what is going on, by what the head node has signalled."""
        stack = self.stacks.get(name)
        if not stack or not stack.status.endswith(UNFINISHED) or told.get("Status") not in ("SUCCESS", "FAILURE"):
            return
        operation = stack.status[: -len(UNFINISHED)]
        if told["Status"] == "SUCCESS":
            if stack.status in OF_USERS:
                self.event(stack, "CREATE_COMPLETE")
            turn(stack, f"{operation}_COMPLETE")
            return
        reason = f"WaitCondition received failed message: '{told['Reason']}' for uniqueId: {told['UniqueId']}"
        self.event(stack, "CREATE_FAILED", reason)
        if operation == "CREATE":  # and the resources stay, as with `--rollback-on-failure false`
            turn(stack, "CREATE_FAILED", self.failed(name))

    def failed(self, name: str) -> str:
        return f"The following resource(s) failed to create: [{self.conditions[name]}]. "

    def event(self, stack: Stack, status: str, reason: str | None = None) -> None:
        """Add an event of the stack's wait condition."""
        logical = self.conditions[stack.name]
        add(stack, logical, f"{stack.stack_id}/{logical}", "AWS::CloudFormation::WaitCondition", status, reason)


def turn(stack: Stack, status: str, reason: str | None = None) -> None:
    """Bring a stack into a status."""
    stack.status = status
    add(stack, stack.name, stack.stack_id, "AWS::CloudFormation::Stack", status, reason)


def add(stack: Stack, logical: str, physical: str, kind: str, status: str, reason: str | None) -> None:
    stack.events.append(Event(stack.stack_id, stack.name, logical, physical, kind, status, reason, None))
