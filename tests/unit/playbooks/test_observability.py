# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The managed side of the telemetry: its template, and the playbook against a stack API on loopback.

The API is moto's, which knows no workspace of Prometheus or Grafana: those two are stand-ins that only have attributes.
What policies allow, and how long anything takes, only AWS can show.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

server = pytest.importorskip("moto.server")
from moto.cloudformation import models, parsing  # noqa: E402
from moto.core.common_models import CloudFormationModel  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
TEMPLATE = ROOT / "playbooks/files/observability.template"
NAME = "pcluster-observability"
KEYS = {"aws_access_key_id": "x", "aws_secret_access_key": "x", "region_name": "us-east-2"}


class Standin(CloudFormationModel):
    """A resource that exists in name only."""

    kind, attributes = "", {}

    def __init__(self, name: str, properties: dict[str, Any]) -> None:
        self.name, self.properties, self.type = name, properties, self.cloudformation_type()

    @property
    def physical_resource_id(self) -> str:
        return self.get_cfn_attribute("Ref")

    @staticmethod
    def cloudformation_name_type() -> str:
        return "Name"

    @classmethod
    def has_cfn_attr(cls, attr: str) -> bool:
        return attr in cls.attributes

    def get_cfn_attribute(self, attribute_name: str) -> str:
        return self.attributes[attribute_name]

    @classmethod
    def create_from_cloudformation_json(cls, resource_name, cloudformation_json, account_id, region_name, **kwargs):  # type: ignore[no-untyped-def]
        return cls(resource_name, cloudformation_json["Properties"])

    @classmethod
    def update_from_cloudformation_json(  # type: ignore[no-untyped-def]
        cls, original_resource, new_resource_name, cloudformation_json, account_id, region_name
    ):
        original_resource.properties = cloudformation_json["Properties"]
        return original_resource

    @classmethod
    def delete_from_cloudformation_json(cls, resource_name, cloudformation_json, account_id, region_name):  # type: ignore[no-untyped-def]
        return None


class Prometheus(Standin):
    attributes = {
        "Ref": "arn:aws:aps:us-east-2:123456789012:workspace/ws-1",
        "Arn": "arn:aws:aps:us-east-2:123456789012:workspace/ws-1",
        "WorkspaceId": "ws-1",
        "PrometheusEndpoint": "https://aps-workspaces.us-east-2.amazonaws.com/workspaces/ws-1/",
    }

    @staticmethod
    def cloudformation_type() -> str:
        return "AWS::APS::Workspace"


class Grafana(Standin):
    attributes = {"Ref": "g-1", "Id": "g-1", "Endpoint": "g-1.grafana-workspace.us-east-2.amazonaws.com"}

    @staticmethod
    def cloudformation_type() -> str:
        return "AWS::Grafana::Workspace"


def diff(change_set: models.ChangeSet) -> list[models.Change]:
    """What changes, by the conditions too, at which moto does not look."""
    resources = change_set.template_dict["Resources"]
    there = {one.logical_resource_id for one in change_set.stack.stack_resources if one}
    grafana = change_set.parameters.get("Grafana", change_set.template_dict["Parameters"]["Grafana"]["Default"])
    wanted = {name for name, one in resources.items() if one.get("Condition") != "WithGrafana" or grafana == "true"}
    actions = [("Add", name) for name in wanted - there] + [("Remove", name) for name in there - wanted]
    return [models.Change(action, name, resources[name]["Type"]) for action, name in actions]


def apply(change_set: models.ChangeSet) -> None:
    """What follows, the outputs too, which moto forgets."""
    stack = change_set.stack
    stack.template_dict, stack.parameters, stack.tags = change_set.template_dict, change_set.parameters, change_set.tags
    stack.resource_map.update(change_set.template_dict, change_set.parameters)
    stack.output_map = stack._create_output_map()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    known = [*parsing.get_model_list(), Prometheus, Grafana]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models.ChangeSet, "diff", diff)
        patch.setattr(models.ChangeSet, "apply", apply)
        patch.setattr(parsing, "get_model_list", lambda: known)
        patch.setattr(parsing, "get_model_map", lambda: {one.cloudformation_type(): one for one in known})
        moto = server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        moto.start()
        yield "http://{}:{}".format(*moto.get_host_and_port())
        moto.stop()


Play = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def play(url: str, tmp_path_factory: pytest.TempPathFactory) -> Play:
    folder = tmp_path_factory.mktemp("observability")

    def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        line = [
            str(Path(sys.executable).parent / "ansible-playbook"),
            "-i",
            "localhost,",
            "pcluster.postboot.observability",
        ]
        line += ["-e", "observability_region=us-east-2", "-e", "observability_poll=0.1", *arguments]
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("AWS_")},
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "very-secret",
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_LOCALHOST_WARNING": "False",
            "PWD": str(folder),
            "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".venv/collections"),
        }
        done = subprocess.run(
            line, capture_output=True, text=True, check=False, cwd=folder, env=environment, timeout=120
        )
        assert done.returncode == code, done.stdout + done.stderr
        done.folder = folder  # type: ignore[attr-defined]
        return done

    return run


def stack(url: str) -> dict[str, Any]:
    client = boto3.client("cloudformation", endpoint_url=url, **KEYS)
    found: dict[str, Any] = client.describe_stacks(StackName=NAME)["Stacks"][0]
    return found


def changed(done: subprocess.CompletedProcess[str]) -> bool:
    return "changed=0" not in done.stdout.splitlines()[-2]


def test_the_template_is_valid() -> None:
    line = [str(Path(sys.executable).parent / "cfn-lint"), "--non-zero-exit-code", "informational", "--", str(TEMPLATE)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_workspace_lets_its_administrators_install_the_plugin_of_the_data_source() -> None:
    class Loader(yaml.SafeLoader):
        """Reads the short forms of CloudFormation's functions as what stands behind them."""

    Loader.add_multi_constructor("!", lambda loader, _suffix, node: getattr(node, "value", None))
    resources = yaml.load(TEMPLATE.read_text(), Loader)["Resources"]  # a SafeLoader, in all but name
    (workspace,) = (one for one in resources.values() if one["Type"] == "AWS::Grafana::Workspace")
    assert workspace["Properties"]["PluginAdminEnabled"] is True


def test_nobody_may_more_than_needed() -> None:
    class Loader(yaml.SafeLoader):
        pass

    Loader.add_multi_constructor("!", lambda loader, suffix, node: {suffix: getattr(node, "value", "")})
    resources = yaml.load(TEMPLATE.read_text(), Loader=Loader)["Resources"]
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


def test_a_check_of_a_new_stack_asks_for_nothing(play: Play, url: str) -> None:
    done = play("--check", "--diff")
    assert "Add Prometheus (AWS::APS::Workspace)" in done.stdout
    assert changed(done)
    client = boto3.client("cloudformation", endpoint_url=url, **KEYS)
    assert client.describe_stacks()["Stacks"] == []


def test_it_is_deployed_once_and_its_outputs_are_written(play: Play, url: str) -> None:
    options = {"observability_tags": {"team": "ml"}, "observability_retention_days": 400}
    done = play("-e", json.dumps(options))
    assert changed(done)
    assert f"{NAME}: Add Prometheus (AWS::APS::Workspace)" in done.stdout
    assert f"{NAME}: CREATE_COMPLETE {NAME}" in done.stdout, "progress is shown"
    assert stack(url)["StackStatus"] == "CREATE_COMPLETE"
    assert stack(url)["Tags"] == [{"Key": "team", "Value": "ml"}]
    path = done.folder / f"observability-{NAME}.yml"  # type: ignore[attr-defined]
    variables = yaml.safe_load(path.read_text())
    assert variables["prometheus_mode"] == "amp+amg"
    assert variables["prometheus_amp_workspace"] == Prometheus.attributes["PrometheusEndpoint"]
    assert variables["observability_head_node_policy"].startswith("arn:aws:iam::123456789012:policy/")
    assert variables["dashboards_grafana_url"] == f"https://{Grafana.attributes['Endpoint']}"
    assert variables["dashboards_amp_url"] == Prometheus.attributes["PrometheusEndpoint"]
    assert variables["observability_head_node_policy"] in done.stdout
    assert "very-secret" not in done.stdout + path.read_text()


def test_the_second_run_changes_nothing_whatever_it_leaves_out(play: Play, url: str) -> None:
    assert not changed(play())
    assert stack(url)["Tags"] == [{"Key": "team", "Value": "ml"}]
    assert {"ParameterKey": "RetentionDays", "ParameterValue": "400"} in stack(url)["Parameters"]
    client = boto3.client("cloudformation", endpoint_url=url, **KEYS)
    assert [one for one in client.list_change_sets(StackName=NAME)["Summaries"] if one["Status"] == "FAILED"] == []


def test_a_check_of_an_update_shows_it_and_leaves_no_change_set(play: Play, url: str) -> None:
    client = boto3.client("cloudformation", endpoint_url=url, **KEYS)
    before = len(client.list_change_sets(StackName=NAME)["Summaries"])
    done = play("--check", "-e", "observability_grafana=false", "-e", "observability_delete_grafana=true")
    assert changed(done)
    assert "Remove GrafanaWorkspace (AWS::Grafana::Workspace)" in done.stdout
    assert len(client.list_change_sets(StackName=NAME)["Summaries"]) == before
    assert "GrafanaUrl" in json.dumps(stack(url)["Outputs"])


def test_an_update_changes_what_the_others_are_told(play: Play, url: str) -> None:
    refused = play("-e", "observability_grafana=false", code=2)
    assert "would remove GrafanaWorkspace (AWS::Grafana::Workspace), and what it holds would be lost" in refused.stdout
    assert "GrafanaUrl" in json.dumps(stack(url)["Outputs"])
    done = play("-e", "observability_grafana=false", "-e", "observability_delete_grafana=true")
    assert changed(done)
    variables = yaml.safe_load((done.folder / f"observability-{NAME}.yml").read_text())  # type: ignore[attr-defined]
    assert variables["prometheus_mode"] == "amp-only"
    assert not any(name.startswith("dashboards") for name in variables)


def test_no_answer_is_one_line(play: Play) -> None:
    done = play("-e", "observability_region=nowhere-1", "-e", "observability_profile=absent", code=2)
    assert "no AWS session: The config profile (absent) could not be found; check profile" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
