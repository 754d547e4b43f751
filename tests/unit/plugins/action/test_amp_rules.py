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
from moto import mock_aws

from ansible_collections.pcluster.postboot.plugins.action import amp_rules
from ansible_collections.pcluster.postboot.plugins.plugin_utils import _amp

NODES = "groups:\n  - name: nodes\n    rules: [{record: up:sum, expr: sum(up)}]\n"
GPUS = "# ours\ngroups:\n  - name: gpus\n    rules:\n      - alert: Lost\n        expr: up == 0\n"
FILES = [{"path": "rules/nodes.yml", "content": NODES}, {"path": "rules/gpus.yml", "content": GPUS}]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
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
    monkeypatch.setattr(amp_rules._inventory_session, "boto3", None)
    result = run(workspace=workspace, files=FILES)
    assert (result["changed"], result.get("failed", False)) == (False, False)
    assert "because boto3 is not there" in result["summary"]


@pytest.mark.parametrize(
    ("files", "why"),
    [
        (
            [*FILES, {"path": "more.yml", "content": NODES, "source": "prometheus_rules['more']"}],
            "prometheus_rules['more'] has the group 'nodes', which rules/nodes.yml has too: "
            "a workspace takes one of a name",
        ),
        ([{"path": "bad.yml", "content": "groups: ["}], "bad.yml is no file of rules: while parsing a flow node"),
        ([{"path": "bad.yml", "content": "rules: []"}], "bad.yml is no file of rules: it has no groups"),
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


def test_it_waits_until_the_workspace_has_taken_them() -> None:
    client = Workspace("ACTIVE", "UPDATING", "UPDATING", "ACTIVE")
    pauses: list[float] = []
    assert _amp.put(client, "ws-1", "ours", GPUS, False, pauses.append).changed
    assert len(pauses) == 2


def test_what_the_workspace_refuses_is_said() -> None:
    client = Workspace("ACTIVE", "UPDATING", "UPDATE_FAILED", reason="group gpus:\nbad rule")
    with pytest.raises(_amp.AmpError, match=r"^the workspace ws-1 refuses the rules ours: group gpus: bad rule$"):
        _amp.put(client, "ws-1", "ours", GPUS, False, lambda _seconds: None)


def test_what_was_refused_is_put_again() -> None:
    client = Workspace("CREATION_FAILED", "ACTIVE")
    assert _amp.put(client, "ws-1", "ours", NODES, False, lambda _seconds: None).changed
    assert client.calls == ["put"]


def test_it_does_not_wait_for_ever() -> None:
    with pytest.raises(_amp.AmpError, match="is still updating its rules ours after 60 s"):
        _amp.put(Workspace("ACTIVE", "UPDATING"), "ws-1", "ours", GPUS, False, lambda _seconds: None)


def test_somebody_else_is_waited_for() -> None:
    client = Workspace("UPDATING", "UPDATING", "ACTIVE")
    pauses: list[float] = []
    assert not _amp.put(client, "ws-1", "ours", NODES, False, pauses.append).changed
    assert (client.calls, len(pauses)) == ([], 2)


def test_somebody_else_was_faster() -> None:
    """Two clusters that share a workspace put the same rules at the same moment."""
    client = Workspace("GONE", "CREATING", "ACTIVE", conflicts=1)
    assert not _amp.put(client, "ws-1", "ours", NODES, False, lambda _seconds: None).changed
    assert client.calls == ["create"]
    client = Workspace("ACTIVE", conflicts=1)
    assert _amp.put(client, "ws-1", "ours", GPUS, False, lambda _seconds: None).changed
    assert client.calls == ["put", "put"]
    with pytest.raises(_amp.AmpError, match=r"^somebody else keeps changing the rules ours of workspace ws-1"):
        _amp.put(Workspace("ACTIVE", conflicts=99), "ws-1", "ours", GPUS, False, lambda _seconds: None)


def test_one_that_is_being_deleted_is_made_again() -> None:
    client = Workspace("DELETING", "GONE", "CREATING", "ACTIVE")
    assert _amp.put(client, "ws-1", "ours", NODES, False, lambda _seconds: None).changed
    assert client.calls == ["create"]


def test_rules_that_are_gone_again_are_not_called_kept() -> None:
    with pytest.raises(_amp.AmpError, match="has none of that name now"):
        _amp.put(Workspace("GONE"), "ws-1", "ours", NODES, False, lambda _seconds: None)
