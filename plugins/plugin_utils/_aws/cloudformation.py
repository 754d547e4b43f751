# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Brings one CloudFormation stack to a template, by change sets: what is about to happen is known before it does."""

# Because it would cost promises, amazon.aws.cloudformation (10.1.2) does not do this: it updates a stack without a look
# at the change first and never executes a change set, shows no event before the end, waits without a limit, forgets
# parameters that are not named, and says nothing of a new stack's resources in check mode.
from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple

import yaml

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.errors import AwsErrors, explain

USABLE = (
    "CREATE_COMPLETE",
    "UPDATE_COMPLETE",
    "UPDATE_ROLLBACK_COMPLETE",
    "IMPORT_COMPLETE",
    "IMPORT_ROLLBACK_COMPLETE",
)
REVIEW = "REVIEW_IN_PROGRESS"  # a change set that would create it was never executed
PREFIX = "pcluster-postboot-"
POLL = 5.0
_NO_CHANGES = ("didn't contain changes", "no updates are to be performed")
_LOST = ", and what it holds would be lost; keep the parameters as they were, or change the stack by hand"
_GOOD = ("CREATE_COMPLETE", "UPDATE_COMPLETE")
# Whoever waits for another resource that has failed says so, and is not the cause.
_FOLLOWED = ("cancelled", "the following resource(s) failed")


class Wanted(NamedTuple):
    name: str
    region: str
    template: str
    parameters: Mapping[str, str] = {}
    capabilities: Sequence[str] = ("CAPABILITY_IAM",)
    tags: Mapping[str, str] = {}
    protect: Sequence[str] = ()
    in_place: Sequence[str] = ()
    advice: Mapping[str, str] = {}
    timeout: float = 3600


class Change(NamedTuple):
    line: str
    refused: str = ""  # why, and what to do


class Outcome(NamedTuple):
    changes: list[str]
    status: str
    outputs: dict[str, str]


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML with CloudFormation's own tags, whose meaning is of no interest here."""


_Loader.add_multi_constructor("!", lambda _loader, suffix, _node: suffix)


def _parsed(template: str) -> dict[str, Any]:
    try:
        return dict(yaml.load(template, Loader=_Loader))
    except (yaml.YAMLError, TypeError, ValueError) as error:
        raise Problem(f"the template is not CloudFormation's: {error}") from error


def parameters_of(template: str) -> set[str]:
    return set(_parsed(template).get("Parameters") or {})


def defaults_of(template: str) -> dict[str, str]:
    """Return the defaults of parameters that have one, as the stack would have them."""
    found = _parsed(template).get("Parameters") or {}
    return {name: str(one["Default"]) for name, one in found.items() if "Default" in one}


def resources_of(template: str) -> dict[str, str]:
    try:
        return {name: str(one["Type"]) for name, one in _parsed(template)["Resources"].items()}
    except (AttributeError, TypeError, KeyError) as error:
        raise Problem(f"the template is not CloudFormation's: {error}") from error


def additions(template: str) -> list[str]:
    """Return a line for each resource that a new stack can have, with the template's condition of the resource."""
    kinds, given = resources_of(template), _parsed(template)["Resources"]
    when = {name: f", if {one['Condition']}" for name, one in given.items() if "Condition" in one}
    return [f"Add {name} ({kind}){when.get(name, '')}" for name, kind in kinds.items()]


def describe(client: Any, name: str, region: str) -> dict[str, Any] | None:
    """Return what CloudFormation says of a stack; None where there is no such stack."""
    try:
        stacks = client.describe_stacks(StackName=name)["Stacks"]
    except AwsErrors as error:
        said = getattr(error, "response", {}).get("Error", {})
        if said.get("Code") == "ValidationError" and "does not exist" in str(said.get("Message")):
            return None
        raise explain(error, region, "cloudformation:DescribeStacks", f"stack {name}") from error
    return dict(stacks[0]) if stacks else None


class Stack:
    def __init__(self, client: Any, wanted: Wanted, show: Callable[[str], None], poll: float = POLL) -> None:
        self.client, self.wanted, self.show, self.poll = client, wanted, show, poll
        self.deadline = time.monotonic() + wanted.timeout

    def deploy(self, check: bool) -> Outcome:
        """Create or update it, unless it is as it should be."""
        status = self._settled()
        if status not in (*USABLE, REVIEW, ""):
            raise Problem(self._dead(status))
        new = status in ("", REVIEW)
        if new and check:
            return Outcome(additions(self.wanted.template), status, {})
        change_set = self._make_change_set("CREATE" if new else "UPDATE")
        if not change_set:
            return Outcome([], status, self.outputs())
        found = list(self._changes(change_set))
        changes = [change.line for change in found] or ["Modify no resource, but tags, parameters or outputs"]
        for line in changes:
            self.show(f"{self.wanted.name}: {line}")
        refused = next((change for change in found if change.refused), None)
        if check or refused:
            self._call("DeleteChangeSet", "delete_change_set", ChangeSetName=change_set)
        if refused:
            what = refused.line[0].lower() + refused.line[1:]
            raise Problem(f"stack {self.wanted.name} was left as it is: the update would {what}{refused.refused}")
        if check:
            return Outcome(changes, status, self.outputs())
        known = {event["EventId"] for event in self._events()}
        self._call("ExecuteChangeSet", "execute_change_set", ChangeSetName=change_set)
        status = self._settled(known)
        if status not in _GOOD:
            raise Problem(self._failed(status))
        return Outcome(changes, status, self.outputs())

    def outputs(self) -> dict[str, str]:
        stack = self._describe() or {}
        return {one["OutputKey"]: one["OutputValue"] for one in stack.get("Outputs", [])}

    def _call(self, action: str, method: str, **given: Any) -> Any:
        try:
            return getattr(self.client, method)(**given)
        except AwsErrors as error:
            raise self._explained(action, error) from error

    def _explained(self, action: str, error: Exception) -> Problem:
        return explain(error, self.wanted.region, f"cloudformation:{action}", f"stack {self.wanted.name}")

    def _describe(self) -> dict[str, Any] | None:
        return describe(self.client, self.wanted.name, self.wanted.region)

    def _settled(self, known: set[str] | None = None) -> str:
        """Wait until nobody works on it, and return its status; empty where there is none. New events are shown."""
        while True:
            status = str((self._describe() or {}).get("StackStatus", ""))
            for event in self._events() if known is not None else []:
                if known is not None and event["EventId"] not in known:
                    known.add(event["EventId"])
                    self.show(_line(event))
            if not status.endswith("_IN_PROGRESS") or (status == REVIEW and known is None):
                return "" if status == "DELETE_COMPLETE" else status
            if time.monotonic() > self.deadline:
                raise Problem(
                    f"stack {self.wanted.name} is still {status} after {self.wanted.timeout:g} s; AWS goes on with it: "
                    "look there, and run this again when it has ended"
                )
            time.sleep(self.poll)

    def _events(self) -> list[dict[str, Any]]:
        """Return what has happened to it, the oldest first."""
        try:
            pages = self.client.get_paginator("describe_stack_events").paginate(StackName=self.wanted.name)
            return [event for page in pages for event in page["StackEvents"]][::-1]
        except AwsErrors as error:
            raise self._explained("DescribeStackEvents", error) from error

    def _make_change_set(self, kind: str) -> str:
        """Return a change set that can be executed; empty where it would change nothing."""
        wanted = self.wanted
        there = self._describe() if kind == "UPDATE" else None
        try:
            answer = self._call(
                "CreateChangeSet",
                "create_change_set",
                StackName=wanted.name,
                ChangeSetName=f"{PREFIX}{time.time_ns()}",
                ChangeSetType=kind,
                TemplateBody=wanted.template,
                Parameters=self._parameters(there or {}),
                Capabilities=list(wanted.capabilities),
                Tags=[{"Key": key, "Value": value} for key, value in self._tags(there or {}).items()],
            )
        except Problem as error:
            if any(text in str(error).lower() for text in _NO_CHANGES):
                return ""
            raise
        name = str(answer["Id"])
        while True:
            found = self._call("DescribeChangeSet", "describe_change_set", ChangeSetName=name)
            if found["Status"] in ("CREATE_COMPLETE", "FAILED"):
                break
            if time.monotonic() > self.deadline:
                raise Problem(
                    f"the change set of stack {wanted.name} is still {found['Status']} after {wanted.timeout:g} s"
                )
            time.sleep(self.poll)
        if found["Status"] == "CREATE_COMPLETE":
            return name
        self._call("DeleteChangeSet", "delete_change_set", ChangeSetName=name)
        reason = str(found.get("StatusReason", ""))
        if any(text in reason.lower() for text in _NO_CHANGES):
            return ""
        raise Problem(f"CloudFormation refuses the change of stack {wanted.name}: {reason}")

    def _parameters(self, there: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return those that are given. What a stack has of the others stays, and is not the template's default."""
        given = self.wanted.parameters
        kept = {one["ParameterKey"] for one in there.get("Parameters", [])} & parameters_of(self.wanted.template)
        return [
            *({"ParameterKey": key, "ParameterValue": value} for key, value in given.items()),
            *({"ParameterKey": key, "UsePreviousValue": True} for key in sorted(kept - set(given))),
        ]

    def _tags(self, there: Mapping[str, Any]) -> Mapping[str, str]:
        """Return those that are given, or else those that the stack has: an empty list would take them away."""
        kept = {one["Key"]: one["Value"] for one in there.get("Tags", [])}
        return self.wanted.tags or {key: value for key, value in kept.items() if not key.startswith("aws:")}

    def _changes(self, change_set: str) -> Iterator[Change]:
        more: dict[str, str] = {}
        while True:
            page = self._call("DescribeChangeSet", "describe_change_set", ChangeSetName=change_set, **more)
            for change in page.get("Changes", []):
                yield self._change(change.get("ResourceChange", {}))
            if not page.get("NextToken"):
                return
            more = {"NextToken": page["NextToken"]}

    def _change(self, one: Mapping[str, Any]) -> Change:
        name, kind, action = (str(one.get(key, "")) for key in ("LogicalResourceId", "ResourceType", "Action"))
        replacement = str(one.get("Replacement")) if action == "Modify" else ""
        word = {"True": "Replace", "Conditional": "Modify or replace"}.get(replacement, action)
        lost = replacement == "True" or action == "Remove"
        refused = ""
        if ({name, kind} & set(self.wanted.in_place) and lost) or (
            {name, kind} & set(self.wanted.protect) and (lost or replacement == "Conditional")
        ):
            refused = next((f"; {self.wanted.advice[key]}" for key in (name, kind) if key in self.wanted.advice), _LOST)
        return Change(f"{word} {name} ({kind})", refused)

    def _failed(self, status: str) -> str:
        if status != "UPDATE_ROLLBACK_COMPLETE":
            return self._dead(status)
        return (
            f"stack {self.wanted.name} could not be updated: {self._cause()}; it was put back as it was; "
            "correct that, and run this again"
        )

    def _cause(self) -> str:
        """Return why the last operation failed: its first resource that failed by itself."""
        operation: list[dict[str, Any]] = []
        for event in self._events():
            began = event.get("ResourceStatus") in ("CREATE_IN_PROGRESS", "UPDATE_IN_PROGRESS", "DELETE_IN_PROGRESS")
            if began and event.get("LogicalResourceId") == self.wanted.name:
                operation = []
            operation.append(event)
        for event in operation:
            reason = str(event.get("ResourceStatusReason", ""))
            if (
                event["LogicalResourceId"] != self.wanted.name
                and str(event.get("ResourceStatus", "")).endswith("_FAILED")
                and not any(text in reason.lower() for text in _FOLLOWED)
            ):
                return f"{event['LogicalResourceId']} ({event['ResourceType']}): {reason}"
        return "its events do not tell why"

    def _dead(self, status: str) -> str:
        """Say what is wrong with a stack that cannot be updated, and what helps."""
        name, region = self.wanted.name, self.wanted.region
        # Only where nothing is lost: deleting a stack that has been used deletes what it holds.
        what, verb = {
            "CREATE_FAILED": ("its creation failed", "delete-stack"),
            "ROLLBACK_COMPLETE": ("its creation failed and was undone", "delete-stack"),
            "ROLLBACK_FAILED": ("its creation failed and could not be undone", "delete-stack"),
            "DELETE_FAILED": ("it could not be deleted", "delete-stack"),
            "UPDATE_FAILED": ("an update failed and was not undone", "rollback-stack"),
            "UPDATE_ROLLBACK_FAILED": ("an update failed and could not be undone", "continue-update-rollback"),
        }.get(status, ("an operation failed", ""))
        do = f"run 'aws cloudformation {verb} --stack-name {name} --region {region}'" if verb else "repair it by hand"
        why = self._cause()
        return f"stack {name} is {status}: {what} ({why}); correct that, {do}, and run this again"


def _line(event: Mapping[str, Any]) -> str:
    reason = event.get("ResourceStatusReason")
    text = f"{event['StackName']}: {event['ResourceStatus']} {event['LogicalResourceId']} ({event['ResourceType']})"
    return f"{text}: {' '.join(str(reason).split())}" if reason else text
