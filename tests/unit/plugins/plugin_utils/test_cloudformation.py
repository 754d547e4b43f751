# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""_cloudformation against a stand-in of the stack API that answers as CloudFormation does, failures included."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws import cloudformation

TEMPLATE = """
Parameters:
  Name: {Type: String}
  Days: {Type: Number, Default: 150}
Resources:
  Prometheus:
    Type: AWS::APS::Workspace
    Properties: {Alias: !Ref Name}
  Role: {Type: "AWS::IAM::Role"}
"""
NO_CHANGES = "The submitted information didn't contain changes. Submit different information to create a change set."


class Api:
    """One stack. `plan` says how a change set turns out, `ends` what becomes of the stack that it is executed on."""

    def __init__(self, status: str = "", plan: Any = None, ends: str = "CREATE_COMPLETE") -> None:
        self.status, self.plan, self.ends = status, plan or [("Add", "Prometheus", None)], ends
        self.events: list[dict[str, Any]] = []
        self.calls: list[str] = []
        self.given: dict[str, Any] = {}
        self.change_sets: dict[str, str] = {}
        self.busy: list[str] = []
        self.failures: list[tuple[str, str]] = []
        self.parameters: dict[str, str] = {}
        if status:
            self.note("s", "AWS::CloudFormation::Stack", status)

    def note(self, name: str, kind: str, status: str, reason: str = "") -> None:
        event = {
            "EventId": f"e{len(self.events)}",
            "StackName": "s",
            "LogicalResourceId": name,
            "ResourceType": kind,
            "ResourceStatus": status,
        }
        self.events.append({**event, **({"ResourceStatusReason": reason} if reason else {})})

    def describe_stacks(self, StackName: str) -> dict[str, Any]:
        self.calls.append("DescribeStacks")
        status = self.busy.pop(0) if self.busy else self.status
        if not status:
            error = {"Code": "ValidationError", "Message": f"Stack with id {StackName} does not exist"}
            raise ClientError({"Error": error}, "DescribeStacks")
        outputs = [{"OutputKey": "Url", "OutputValue": "https://x"}]
        parameters = [{"ParameterKey": key, "ParameterValue": value} for key, value in self.parameters.items()]
        tags = [{"Key": "team", "Value": "ml"}, {"Key": "aws:cloudformation:x", "Value": "y"}]
        return {"Stacks": [{"StackStatus": status, "Outputs": outputs, "Parameters": parameters, "Tags": tags}]}

    def create_change_set(self, **given: Any) -> dict[str, str]:
        self.calls.append(f"CreateChangeSet {given['ChangeSetType']}")
        self.given = given
        self.change_sets[given["ChangeSetName"]] = "CREATE_PENDING"
        self.status = self.status or "REVIEW_IN_PROGRESS"
        return {"Id": given["ChangeSetName"]}

    def describe_change_set(self, ChangeSetName: str, NextToken: str = "") -> dict[str, Any]:
        if self.change_sets[ChangeSetName] == "CREATE_PENDING":
            self.change_sets[ChangeSetName] = "done"
            return {"Status": "CREATE_PENDING"}
        if isinstance(self.plan, str):
            return {"Status": "FAILED", "StatusReason": self.plan}
        first, rest = self.plan[:1], self.plan[1:]
        changes = [
            {
                "ResourceChange": {
                    "Action": a,
                    "LogicalResourceId": n,
                    "ResourceType": types()[n],
                    "Replacement": r or "False",
                }
            }
            for a, n, r in (rest if NextToken else first)
        ]
        return {
            "Status": "CREATE_COMPLETE",
            "Changes": changes,
            **({"NextToken": "1"} if rest and not NextToken else {}),
        }

    def delete_change_set(self, ChangeSetName: str) -> None:
        self.calls.append("DeleteChangeSet")
        del self.change_sets[ChangeSetName]

    def execute_change_set(self, ChangeSetName: str) -> None:
        self.calls.append("ExecuteChangeSet")
        kind = self.given["ChangeSetType"]
        self.note("s", "AWS::CloudFormation::Stack", f"{kind}_IN_PROGRESS")
        for name, reason in self.failures:
            self.note(name, types().get(name, "?"), f"{kind}_FAILED", reason)
        self.note("s", "AWS::CloudFormation::Stack", self.ends)
        self.busy = [f"{kind}_IN_PROGRESS", f"{kind}_IN_PROGRESS"]
        self.status = self.ends

    def get_paginator(self, name: str) -> Any:
        assert name == "describe_stack_events"
        api = self

        class Pages:
            def paginate(self, StackName: str) -> Iterator[dict[str, Any]]:
                newest_first = api.events[::-1]
                yield {"StackEvents": newest_first[:1]}
                yield {"StackEvents": newest_first[1:]}

        return Pages()


def types() -> dict[str, str]:
    return cloudformation.resources_of(TEMPLATE)


def deploy(api: Api, check: bool = False, **given: Any) -> tuple[cloudformation.Outcome, list[str]]:
    shown: list[str] = []
    values = {"name": "s", "region": "us-east-2", "template": TEMPLATE, "protect": ["AWS::APS::Workspace"], **given}
    stack = cloudformation.Stack(api, cloudformation.Wanted(**values), shown.append, poll=0)
    return stack.deploy(check), shown


def refusal(api: Api, **given: Any) -> str:
    with pytest.raises(Problem) as error:
        deploy(api, **given)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("before", ["", "REVIEW_IN_PROGRESS"])
def test_a_new_stack_also_after_a_run_that_died_before_it_was_made(before: str) -> None:
    api = Api(before)
    outcome, shown = deploy(api, parameters={"Name": "x"}, tags={"team": "hpc"})
    assert outcome == (["Add Prometheus (AWS::APS::Workspace)"], "CREATE_COMPLETE", {"Url": "https://x"})
    assert "CreateChangeSet CREATE" in api.calls
    assert api.given["Parameters"] == [{"ParameterKey": "Name", "ParameterValue": "x"}]
    assert api.given["Tags"] == [{"Key": "team", "Value": "hpc"}]
    assert api.given["Capabilities"] == ["CAPABILITY_IAM"]
    assert shown == [
        "s: Add Prometheus (AWS::APS::Workspace)",
        "s: CREATE_IN_PROGRESS s (AWS::CloudFormation::Stack)",
        "s: CREATE_COMPLETE s (AWS::CloudFormation::Stack)",
    ]


def test_what_is_not_given_stays_as_the_stack_has_it() -> None:
    """Or a run without an option of an earlier one would shorten the retention, and take tags away."""
    api = Api("CREATE_COMPLETE", ends="UPDATE_COMPLETE")
    api.parameters = {"Name": "x", "Days": "400", "Former": "no longer in the template"}
    deploy(api, parameters={"Name": "y"})
    assert api.given["Parameters"] == [
        {"ParameterKey": "Name", "ParameterValue": "y"},
        {"ParameterKey": "Days", "UsePreviousValue": True},
    ]
    assert api.given["Tags"] == [{"Key": "team", "Value": "ml"}]


@pytest.mark.parametrize("reason", [NO_CHANGES, "No updates are to be performed."])
def test_no_change_is_no_change(reason: str) -> None:
    api = Api("UPDATE_COMPLETE", plan=reason)
    outcome, shown = deploy(api)
    assert outcome == ([], "UPDATE_COMPLETE", {"Url": "https://x"})
    assert "ExecuteChangeSet" not in api.calls
    assert (api.change_sets, shown) == ({}, [])


def test_an_update_of_several_pages() -> None:
    api = Api(
        "CREATE_COMPLETE", plan=[("Modify", "Role", None), ("Modify", "Prometheus", None)], ends="UPDATE_COMPLETE"
    )
    outcome, _shown = deploy(api)
    assert outcome.changes == ["Modify Role (AWS::IAM::Role)", "Modify Prometheus (AWS::APS::Workspace)"]
    assert outcome.status == "UPDATE_COMPLETE"


def test_a_change_of_no_resource_is_a_change() -> None:
    api = Api("CREATE_COMPLETE", ends="UPDATE_COMPLETE")
    api.plan = []
    outcome, _shown = deploy(api)
    assert outcome.changes == ["Modify no resource, but tags, parameters or outputs"]
    assert "ExecuteChangeSet" in api.calls


def test_what_a_new_stack_can_have_has_its_condition() -> None:
    more = '  Grafana: {Type: "AWS::Grafana::Workspace", Condition: WithGrafana}'
    assert cloudformation.additions(TEMPLATE + more) == [
        "Add Prometheus (AWS::APS::Workspace)",
        "Add Role (AWS::IAM::Role)",
        "Add Grafana (AWS::Grafana::Workspace), if WithGrafana",
    ]


def test_a_check_executes_nothing() -> None:
    api = Api("CREATE_COMPLETE", plan=[("Modify", "Role", None)])
    outcome, _shown = deploy(api, check=True)
    assert outcome.changes == ["Modify Role (AWS::IAM::Role)"]
    assert api.change_sets == {}
    assert "ExecuteChangeSet" not in api.calls
    fresh = Api()
    assert deploy(fresh, check=True)[0].changes == [
        "Add Prometheus (AWS::APS::Workspace)",
        "Add Role (AWS::IAM::Role)",
    ]
    assert fresh.calls == ["DescribeStacks"], "a change set would leave an empty stack behind"


@pytest.mark.parametrize("protect", ["AWS::APS::Workspace", "Prometheus"])
@pytest.mark.parametrize("change", [("Modify", "Prometheus", "True"), ("Remove", "Prometheus", None)])
def test_what_holds_metrics_is_never_replaced(change: tuple[str, str, str | None], protect: str) -> None:
    api = Api("CREATE_COMPLETE", plan=[("Modify", "Role", "True"), change])
    said = refusal(api, protect=[protect])
    assert "was left as it is: the update would re" in said
    assert "Prometheus (AWS::APS::Workspace), and what it holds would be lost" in said
    assert "ExecuteChangeSet" not in api.calls
    assert api.change_sets == {}


@pytest.mark.parametrize("name", ["AWS::IAM::Role", "Role"])
def test_what_may_change_in_place_is_never_replaced(name: str) -> None:
    outcome, _shown = deploy(Api("CREATE_COMPLETE", plan=[("Modify", "Role", "Conditional")]), in_place=[name])
    assert outcome.changes == ["Modify or replace Role (AWS::IAM::Role)"]
    for change, verb in ((("Modify", "Role", "True"), "replace"), (("Remove", "Role", None), "remove")):
        said = refusal(Api("CREATE_COMPLETE", plan=[change]), in_place=[name], advice={"AWS::IAM::Role": "ask us"})
        assert said == f"stack s was left as it is: the update would {verb} Role (AWS::IAM::Role); ask us"
    said = refusal(Api("CREATE_COMPLETE", plan=[("Modify", "Role", "Conditional")]), in_place=[name], protect=[name])
    assert "would modify or replace Role (AWS::IAM::Role), and what it holds would be lost" in said


def test_another_who_works_on_it_is_waited_for() -> None:
    api = Api("UPDATE_COMPLETE", plan=NO_CHANGES)
    api.busy = ["UPDATE_IN_PROGRESS", "UPDATE_COMPLETE_CLEANUP_IN_PROGRESS"]
    deploy(api)
    assert api.calls[:3] == ["DescribeStacks"] * 3
    api.busy = ["UPDATE_IN_PROGRESS"] * 5
    assert "still UPDATE_IN_PROGRESS after -1 s" in refusal(api, timeout=-1)


def test_a_creation_that_fails_tells_its_first_cause_and_what_to_do() -> None:
    api = Api(ends="ROLLBACK_COMPLETE")
    api.failures = [
        ("Prometheus", "Resource creation cancelled"),
        ("Role", "User: x is not authorized to perform: iam:CreateRole"),
        ("s", "The following resource(s) failed to create: [Role]."),
    ]
    for said in (refusal(api), refusal(api)):  # while it happens, and in every later run
        assert said == (
            "stack s is ROLLBACK_COMPLETE: its creation failed and was undone (Role (AWS::IAM::Role): User: x is not "
            "authorized to perform: iam:CreateRole); correct that, run 'aws cloudformation delete-stack "
            "--stack-name s --region us-east-2', and run this again"
        )
    assert api.calls.count("ExecuteChangeSet") == 1


def test_an_update_that_fails_and_is_put_back() -> None:
    api = Api("CREATE_COMPLETE", ends="UPDATE_ROLLBACK_COMPLETE")
    api.note("Role", "AWS::IAM::Role", "CREATE_FAILED", "of another time")
    api.failures = [("Prometheus", "limit exceeded")]
    assert refusal(api) == (
        "stack s could not be updated: Prometheus (AWS::APS::Workspace): limit exceeded; it was put back as it was; "
        "correct that, and run this again"
    )
    api.ends, api.failures = "UPDATE_COMPLETE", []
    assert deploy(api)[0].status == "UPDATE_COMPLETE"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (
            "UPDATE_ROLLBACK_FAILED",
            "could not be undone (its events do not tell why); correct that, run 'aws "
            "cloudformation continue-update-rollback",
        ),
        ("DELETE_FAILED", "it could not be deleted"),
        (
            "ROLLBACK_FAILED",
            "could not be undone (its events do not tell why); correct that, run 'aws cloudformation delete",
        ),
        ("UPDATE_FAILED", "correct that, run 'aws cloudformation rollback-stack --stack-name s --region us-east-2'"),
        ("IMPORT_ROLLBACK_FAILED", "an operation failed (its events do not tell why); correct that, repair it by hand"),
    ],
)
def test_what_cannot_be_updated_is_one_line(status: str, words: str) -> None:
    api = Api(status)
    said = refusal(api)
    assert words in said
    # A stack that was once complete holds metrics: nobody is told to delete it.
    assert ("delete-stack" in said) is (status in ("DELETE_FAILED", "ROLLBACK_FAILED"))
    assert api.calls == ["DescribeStacks"]


@pytest.mark.parametrize("template", ["", "Parameters: [", "Resources:", "a text", "Resources: {A: {}}"])
def test_a_template_that_is_none(template: str) -> None:
    with pytest.raises(Problem, match=r"^the template is not CloudFormation's: "):
        deploy(Api(), check=True, template=template)


def test_a_change_set_that_is_refused() -> None:
    said = refusal(Api("CREATE_COMPLETE", plan="Transform failed"))
    assert said == "CloudFormation refuses the change of stack s: Transform failed"


def test_who_may_not_is_told_what_is_missing() -> None:
    api = Api("CREATE_COMPLETE")

    def denied(**_given: Any) -> Any:
        error = {"Code": "AccessDenied", "Message": "no"}
        raise ClientError({"Error": error}, "CreateChangeSet")

    api.create_change_set = denied  # type: ignore[method-assign]
    assert "give the caller the permission cloudformation:CreateChangeSet" in refusal(api)
