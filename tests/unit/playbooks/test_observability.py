# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The managed side of the telemetry: its template, and the playbook against a stack API on loopback.

The API is moto's with what the sandbox adds (molecule/cluster/aws/resources.py), where the two workspaces only have
attributes. What policies allow, and how long anything takes, only AWS can show.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.pcluster.postboot.tests.unit.playbooks import stacks
from ansible_collections.pcluster.postboot.tests.unit.playbooks.stacks import Play, changed, stack

NAME = "pcluster-observability"
PROMETHEUS = "https://aps-workspaces.us-east-2.amazonaws.com/workspaces/ws-1/"


@pytest.fixture(scope="module")
def play(deploy: Callable[..., list[str]]) -> Play:
    """play({variables}, …) runs the playbook once for each, and returns what each run has said."""
    common = {"observability_region": "us-east-2", "observability_poll": 0.1}
    return lambda *runs, **how: deploy("observability", common, runs, **how)


WITHOUT_GRAFANA = {"observability_grafana": False}
REMOVED = {**WITHOUT_GRAFANA, "observability_delete_grafana": True}


@pytest.fixture(scope="module")
def deployed(play: Play) -> list[str]:
    """What a first run says, a second one that leaves out its options, and one that would lose Grafana."""
    options = {"observability_tags": {"team": "ml"}, "observability_retention_days": 400}
    return play(options, {}, WITHOUT_GRAFANA, code=2)


@pytest.fixture(scope="module")
def resources() -> dict[str, Any]:
    found: dict[str, Any] = stacks.template("observability")["Resources"]
    return found


def test_the_workspace_lets_its_administrators_install_the_plugin_of_the_data_source(resources: dict[str, Any]) -> None:
    (workspace,) = (one for one in resources.values() if one["Type"] == "AWS::Grafana::Workspace")
    assert workspace["Properties"]["PluginAdminEnabled"] is True


def test_nobody_may_more_than_needed(resources: dict[str, Any]) -> None:
    policies = [resources["HeadNodePolicy"]["Properties"]["PolicyDocument"]]
    policies += [one["PolicyDocument"] for one in resources["GrafanaRole"]["Properties"]["Policies"]]
    statements = [one for policy in policies for one in policy["Statement"]]
    assert len(statements) == 5
    for statement in statements:
        actions = [statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"]
        assert not any("*" in action for action in actions)
        if statement["Resource"] == "*":
            # What cannot be told a resource, and changes nothing.
            assert all(action.split(":")[1].startswith(("Describe", "List", "Get", "Stop")) for action in actions)
    assert [one["Action"] for one in policies[0]["Statement"]] == ["aps:RemoteWrite"]
    trust = resources["GrafanaRole"]["Properties"]["AssumeRolePolicyDocument"]["Statement"][0]
    assert set(trust["Condition"]) == {"StringEquals", "StringLike"}


def test_a_check_of_a_new_stack_asks_for_nothing(play: Play, client: Callable[..., Any]) -> None:
    (said,) = play({}, check=True)
    assert "Add Prometheus (AWS::APS::Workspace)" in said
    assert changed(said)
    assert client("cloudformation").describe_stacks()["Stacks"] == []


def test_it_is_deployed_once_and_its_outputs_are_written(
    deployed: list[str], client: Callable[..., Any], folder: Path
) -> None:
    first = deployed[0]
    assert changed(first)
    assert f"{NAME}: Add Prometheus (AWS::APS::Workspace)" in first
    assert f"{NAME}: CREATE_COMPLETE {NAME}" in first, "progress is shown"
    assert stack(client, NAME)["StackStatus"] == "CREATE_COMPLETE"
    path = folder / f"observability-{NAME}.yml"
    variables = yaml.safe_load(path.read_text())
    assert variables["prometheus_mode"] == "amp+amg"
    assert variables["prometheus_amp_workspace"] == PROMETHEUS
    assert variables["observability_head_node_policy"].startswith("arn:aws:iam::123456789012:policy/")
    assert variables["dashboards_grafana_url"] == "https://g-1.grafana-workspace.us-east-2.amazonaws.com"
    assert variables["dashboards_amp_url"] == PROMETHEUS
    assert variables["observability_head_node_policy"] in first
    assert "very-secret" not in first + path.read_text()


def test_the_second_run_changes_nothing_whatever_it_leaves_out(deployed: list[str], client: Callable[..., Any]) -> None:
    assert not changed(deployed[1])
    assert stack(client, NAME)["Tags"] == [{"Key": "team", "Value": "ml"}]
    assert {"ParameterKey": "RetentionDays", "ParameterValue": "400"} in stack(client, NAME)["Parameters"]
    sets = client("cloudformation").list_change_sets(StackName=NAME)["Summaries"]
    assert [one for one in sets if one["Status"] == "FAILED"] == []


@pytest.mark.usefixtures("deployed")
def test_a_check_of_an_update_shows_it_and_leaves_no_change_set(play: Play, client: Callable[..., Any]) -> None:
    before = len(client("cloudformation").list_change_sets(StackName=NAME)["Summaries"])
    (said,) = play(REMOVED, check=True)
    assert changed(said)
    assert "Remove GrafanaWorkspace (AWS::Grafana::Workspace)" in said
    assert len(client("cloudformation").list_change_sets(StackName=NAME)["Summaries"]) == before
    assert "GrafanaUrl" in json.dumps(stack(client, NAME)["Outputs"])


def test_what_holds_data_is_removed_only_by_name(deployed: list[str], client: Callable[..., Any]) -> None:
    assert "would remove GrafanaWorkspace (AWS::Grafana::Workspace), and what it holds would be lost" in deployed[2]
    assert "GrafanaUrl" in json.dumps(stack(client, NAME)["Outputs"])


@pytest.mark.usefixtures("deployed")
def test_an_update_changes_what_the_others_are_told_and_no_answer_is_one_line(play: Play, folder: Path) -> None:
    updated, unanswered = play(
        REMOVED, {"observability_region": "nowhere-1", "observability_profile": "absent"}, code=2
    )
    assert changed(updated)
    variables = yaml.safe_load((folder / f"observability-{NAME}.yml").read_text())
    assert variables["prometheus_mode"] == "amp-only"
    assert not any(name.startswith("dashboards") for name in variables)
    assert "no AWS session: The config profile (absent) could not be found; check profile" in unanswered
    assert "Traceback" not in unanswered
