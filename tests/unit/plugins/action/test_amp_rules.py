# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""amp_rules on moto's Amazon Managed Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import boto3
import pytest
import yaml
from botocore.exceptions import ClientError

from ansible_collections.pcluster.postboot.plugins.action import amp_rules
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws import amp

NODES = "groups:\n  - name: nodes\n    rules: [{record: up:sum, expr: sum(up)}]\n"
GPUS = "# ours\ngroups:\n  - name: gpus\n    rules:\n      - alert: Lost\n        expr: up == 0\n"
FILES = [{"path": "rules/nodes.yml", "content": NODES}, {"path": "rules/gpus.yml", "content": GPUS}]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    from moto import mock_aws

    with mock_aws():
        yield boto3.client("amp", region_name="us-east-1")


@pytest.fixture
def workspace(client: Any) -> str:
    return str(client.create_workspace(alias="main")["workspaceId"])


def run(check: bool = False, **args: Any) -> dict[str, Any]:
    task = mock.MagicMock(check_mode=check, async_val=0, args={"region": "us-east-1", "namespace": "ours", **args})
    action = amp_rules.ActionModule(task, mock.MagicMock(), mock.MagicMock(), None, None, None)
    return action.run(task_vars={})


def kept(client: Any, workspace: str) -> Any:
    found = client.describe_rule_groups_namespace(workspaceId=workspace, name="ours")["ruleGroupsNamespace"]
    return yaml.safe_load(found["data"])


def test_check_apply_check_apply(client: Any, workspace: str) -> None:
    checked = run(True, workspace=workspace, files=FILES)
    assert (checked["changed"], checked["groups"], checked["diff"]["before"]) == (True, 2, "")
    with pytest.raises(ClientError):
        kept(client, workspace)
    assert run(workspace=workspace, files=FILES)["changed"]
    assert [group["name"] for group in kept(client, workspace)["groups"]] == ["nodes", "gpus"]
    for check in (True, False):
        assert not run(check, workspace=workspace, files=FILES)["changed"]


def test_a_change_is_put_and_another_layout_is_none(client: Any, workspace: str) -> None:
    run(workspace=workspace, files=FILES)
    again = [{"path": "all.yml", "content": yaml.safe_dump({"groups": kept(client, workspace)["groups"]}, width=20)}]
    assert not run(workspace=workspace, files=again)["changed"]
    result = run(workspace=workspace, files=FILES[:1])
    assert result["changed"]
    assert "Lost" in result["diff"]["before"]
    assert [group["name"] for group in kept(client, workspace)["groups"]] == ["nodes"]


def test_a_workspace_that_is_not_there(client: Any) -> None:
    result = run(workspace="ws-none", files=FILES)
    assert result["failed"]
    assert result["msg"].startswith("there is no workspace ws-none in us-east-1 that the AWS credentials used ")
    assert "set prometheus_amp_rules_namespace to ''" in result["msg"]


def test_without_boto3(client: Any, workspace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amp_rules.session, "boto3", None)
    result = run(workspace=workspace, files=FILES)
    assert (result["changed"], result.get("failed", False)) == (False, False)
    assert "as boto3 is not there; run site --tags prometheus --limit pcluster_head from" in result["summary"]


@pytest.mark.parametrize(
    ("files", "why"),
    [
        (
            [*FILES, {"path": "more.yml", "content": NODES, "source": "prometheus_rules['more']"}],
            "prometheus_rules['more'] has the group 'nodes', which rules/nodes.yml has too: "
            "a workspace needs unique names",
        ),
        ([{"path": "bad.yml", "content": "groups: ["}], "bad.yml is no file of rules: while parsing a flow node"),
        ([{"path": "bad.yml", "content": "rules: []"}], "bad.yml is no file of rules: it has no groups"),
        ([{"path": "bad.yml", "content": "groups"}], "bad.yml is no file of rules: it has no groups"),
        (
            [{"path": "bad.yml", "content": "a: 2024-02-30"}],
            "bad.yml is no file of rules: day is out of range for month",
        ),
        (
            [{"path": "bad.yml", "content": "groups: {name: a, rules: []}"}],
            'bad.yml: groups is {"name": "a", "rules": []}; needed: a list of groups with name and rules',
        ),
        (
            [{"path": "bad.yml", "content": "groups: [nodes]"}],
            'bad.yml: groups is ["nodes"]; needed: a list of groups with name and rules',
        ),
    ],
)
def test_rules_that_cannot_be(client: Any, workspace: str, files: Any, why: str) -> None:
    assert run(workspace=workspace, files=files)["msg"] == why


class Conflict(Exception):
    """Somebody else is at it."""


class Workspace:
    """A client whose workspace takes its time, or refuses. GONE is a namespace that is not there."""

    def __init__(self, *states: str, reason: str = "", conflicts: int = 0) -> None:
        self.states, self.reason, self.conflicts = list(states), reason, conflicts
        self.data = NODES
        self.calls: list[str] = []
        self.meta = mock.Mock(region_name="us-east-1")
        self.exceptions = mock.Mock(ResourceNotFoundException=KeyError, ConflictException=Conflict)

    def describe_workspace(self, **_given: str) -> None: ...

    def describe_rule_groups_namespace(self, **_given: str) -> dict[str, Any]:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if state == "GONE":
            raise KeyError(state)
        status = {"statusCode": state, "statusReason": self.reason}
        return {"ruleGroupsNamespace": {"data": self.data.encode(), "status": status}}

    def put_rule_groups_namespace(self, **_given: Any) -> None:
        self._call("put")

    def create_rule_groups_namespace(self, **_given: Any) -> None:
        self._call("create")

    def _call(self, what: str) -> None:
        self.calls.append(what)
        if self.conflicts:
            self.conflicts -= 1
            raise Conflict


@pytest.mark.parametrize(
    ("states", "rules", "calls", "pauses"),
    [
        (("ACTIVE", "UPDATING", "UPDATING", "ACTIVE"), GPUS, ["put"], 2),
        (("UPDATING", "UPDATING", "ACTIVE"), NODES, [], 2),  # somebody else is at it
        (("CREATION_FAILED", "ACTIVE"), NODES, ["put"], 0),
        (("DELETING", "GONE", "CREATING", "ACTIVE"), NODES, ["create"], 2),
    ],
)
def test_it_waits_until_the_workspace_has_taken_them(
    states: tuple[str, ...], rules: str, calls: list[str], pauses: int
) -> None:
    client, slept = Workspace(*states), list[float]()
    assert amp.put(client, "ws-1", "ours", rules, False, slept.append).changed is bool(calls)
    assert (client.calls, len(slept)) == (calls, pauses)


def test_what_the_workspace_refuses_is_said() -> None:
    client = Workspace("ACTIVE", "UPDATING", "UPDATE_FAILED", reason="group gpus:\nbad rule")
    with pytest.raises(Problem, match=r"^the workspace ws-1 refuses the rules ours: group gpus: bad rule$"):
        amp.put(client, "ws-1", "ours", GPUS, False, lambda _seconds: None)


def test_it_does_not_wait_for_ever() -> None:
    with pytest.raises(Problem, match="is still updating its rules ours after 60 s"):
        amp.put(Workspace("ACTIVE", "UPDATING"), "ws-1", "ours", GPUS, False, lambda _seconds: None)


def test_somebody_else_was_faster() -> None:
    """Two clusters that share a workspace put the same rules at the same moment."""
    client = Workspace("GONE", "CREATING", "ACTIVE", conflicts=1)
    assert not amp.put(client, "ws-1", "ours", NODES, False, lambda _seconds: None).changed
    assert client.calls == ["create"]
    client = Workspace("ACTIVE", conflicts=1)
    assert amp.put(client, "ws-1", "ours", GPUS, False, lambda _seconds: None).changed
    assert client.calls == ["put", "put"]
    with pytest.raises(Problem, match=r"^somebody else keeps changing the rules ours of workspace ws-1"):
        amp.put(Workspace("ACTIVE", conflicts=99), "ws-1", "ours", GPUS, False, lambda _seconds: None)


def test_rules_that_are_gone_again_are_not_called_kept() -> None:
    with pytest.raises(Problem, match="has none of that name now"):
        amp.put(Workspace("GONE"), "ws-1", "ours", NODES, False, lambda _seconds: None)
