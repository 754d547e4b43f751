# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""examples/iam: actions and resources are those that AWS knows, and every call of the collection's code is allowed."""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore import xform_name

from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws import session_manager
from ansible_collections.pcluster.postboot.tests import installed

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "examples/iam"
DOCUMENTS = sorted(FOLDER.glob("*.json"))
# AWS' service authorization data, as cfn-lint has them.
KNOWN = json.loads((installed.package("cfnlint") / "data/AdditionalSpecs/Policies.json").read_text(encoding="utf-8"))

# Actions that know resources, and have none here.
WITHOUT_RESOURCES = {
    "cloudwatch:PutMetricData": "a metric is no resource, unless it is in a data set; the namespace is a condition",
    "cloudwatch:GetMetricData": "a metric is no resource, unless it is in a data set",
    "cloudwatch:ListMetrics": "a metric is no resource, unless it is in a data set",
    "logs:GetQueryResults": "the caller names a query, which only somebody who may begin one has",
}

# The files that call AWS, and the documents that whoever runs their code has.
BOTO3 = [
    ("plugins/action/cloudwatch_dashboard.py", ["cloudwatch"]),
    ("plugins/modules/s3_release.py", ["publish"]),
    ("plugins/module_utils/_bundle/s3_release.py", ["publish"]),
    ("plugins/plugin_utils/_aws/amp.py", ["amp-rules"]),
    ("plugins/plugin_utils/_aws/cloudformation.py", ["infrastructure"]),
    ("plugins/plugin_utils/_aws/cloudformation.py", ["monitoring"]),
    ("plugins/plugin_utils/_aws/cloudformation.py", ["observability"]),
    ("plugins/plugin_utils/_aws/log_group.py", ["cloudwatch"]),
    ("plugins/plugin_utils/_aws/log_group.py", ["diagnose"]),
    ("plugins/plugin_utils/_aws/run_command.py", ["fleet"]),
    ("plugins/plugin_utils/_aws/session.py", ["inventory"]),
    ("plugins/plugin_utils/_aws/session_manager.py", ["hyperpod-fleet"]),
    ("plugins/plugin_utils/_cluster_config/instances.py", ["cluster-config"]),
    ("plugins/plugin_utils/_diagnose/gone.py", ["diagnose"]),
    ("plugins/plugin_utils/_infrastructure/account.py", ["infrastructure", "infrastructure-storage"]),
    ("plugins/plugin_utils/_inventory/cloud.py", ["inventory"]),
    ("plugins/plugin_utils/_inventory/hyperpod.py", ["hyperpod-inventory"]),
    ("plugins/plugin_utils/_monitoring/account.py", ["monitoring", "monitoring-balancer"]),
]
CLI = {
    "plugins/action/status.py": ["hyperpod-inventory"],
    "plugins/module_utils/_aws/secret.py": ["head-secrets"],
    "plugins/module_utils/_artifact/fetch.py": ["node-mirror"],
    "plugins/module_utils/_artifact/s3_mirror.py": ["mirror"],
    "plugins/module_utils/_bundle/s3_release.py": ["publish-once"],
    # The hint to make a bucket that is not there.
    "plugins/plugin_utils/_infrastructure/account.py": ["publish-once"],
    "plugins/plugin_utils/_inventory/connection.py": ["push-ssm"],
    "plugins/plugin_utils/_publish/custom_actions.py": ["publish-once"],
    "plugins/plugin_utils/_publish/hyperpod.py": ["publish", "hyperpod-cluster"],
    "plugins/plugin_utils/_publish/image.py": ["image"],
    "plugins/plugin_utils/_publish/rights.py": ["publish-once"],
    "plugins/plugin_utils/_site/next_steps.py": ["push-ssm"],
    "roles/bake/files/bake.sh": ["node-bundle"],
    "roles/container_images/files/container_images/settings.py": ["node-ecr"],
    "roles/fleet/files/fleet.sh": ["node-bundle"],
    "roles/observability/templates/observability_next.txt.j2": ["grafana-people", "observability-alerts"],
    "roles/pull/files/bootstrap.sh": ["node-bundle"],
}
# The action that a call needs, where it does not have the call's name. None needs a permission.
ACTIONS: dict[str, tuple[str, ...]] = {
    "s3:HeadBucket": ("s3:ListBucket",),
    "s3:HeadObject": ("s3:GetObject",),
    "sts:GetCallerIdentity": (),
    "s3 cp": ("s3:GetObject",),
    "s3 mb": ("s3:CreateBucket",),
    "s3 sync": ("s3:ListBucket", "s3:PutObject"),
    "ecr get-login-password": ("ecr:GetAuthorizationToken",),
}
PREFIXES = {"s3api": "s3", "amp": "aps", "monitoring": "cloudwatch"}


def statements(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FOLDER / f"{name}.json").read_text())["Statement"]
    return found


def listed(value: Any) -> list[str]:
    return list(value) if isinstance(value, list) else [value]


def actions(*names: str) -> set[str]:
    return {action for name in names for each in statements(name) for action in listed(each["Action"])}


def knowledge(action: str) -> dict[str, Any] | None:
    service, _, name = action.lower().partition(":")
    found: dict[str, Any] | None = KNOWN.get(service, {}).get("Actions", {}).get(name)
    return found


def kinds(action: str) -> dict[str, list[str]]:
    """The kinds of things that an action may name, and their ARNs as regular expressions."""
    service = {kind.lower(): each for kind, each in KNOWN[action.partition(":")[0]]["Resources"].items()}
    return {
        kind: [re.sub(r"\\?\$\{\w+\}", "[^:]*", text) for text in service[kind.lower()]["ARNFormats"]]
        for kind in (knowledge(action) or {}).get("Resources", [])
    }


def resources(action: str) -> list[str]:
    """The ARNs that an action takes, as regular expressions."""
    return [pattern for patterns in kinds(action).values() for pattern in patterns]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda each: each.stem)
def test_a_document_allows_known_actions_on_narrow_resources(document: Path) -> None:
    whole = json.loads(document.read_text())
    assert set(whole) == {"Version", "Statement"}
    assert whole["Version"] == "2012-10-17"
    assert len({each["Sid"] for each in whole["Statement"]}) == len(whole["Statement"])
    for each in whole["Statement"]:
        assert each["Effect"] == "Allow"
        for action in listed(each["Action"]):
            assert "*" not in action
            known = knowledge(action)
            assert known is not None, f"{action} is no action of AWS"
            arns = resources(action)
            if not arns or action in WITHOUT_RESOURCES:
                assert listed(each["Resource"]) == ["*"], f"{action} of {each['Sid']} takes no resource"
            else:
                for resource in listed(each["Resource"]):
                    assert resource != "*", f"{action} of {each['Sid']} takes {arns}"
                    assert any(re.fullmatch(arn, resource) for arn in arns), f"{action} takes {arns}, not {resource}"


def test_each_exception_is_needed() -> None:
    assert {each for each in actions(*(document.stem for document in DOCUMENTS)) if each in WITHOUT_RESOURCES} == set(
        WITHOUT_RESOURCES
    )
    assert all(resources(each) for each in WITHOUT_RESOURCES)


def test_what_a_condition_asks_for_is_known() -> None:
    for document in DOCUMENTS:
        for each in statements(document.stem):
            for keys in each.get("Condition", {}).values():
                for key in keys:
                    found = json.dumps([KNOWN[action.partition(":")[0]] for action in listed(each["Action"])])
                    general = re.sub(r"(?<=Tag/).*", "${TagKey}", key)
                    assert key in found or general in found or key in CONDITIONS, f"{document.name}: {key}"


# Keys of the service itself, of which cfn-lint's data know those of resources alone.
CONDITIONS = {
    "cloudwatch:namespace": "https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/iam-cw-condition-keys-namespace.html",
    "iam:AWSServiceName": "https://docs.aws.amazon.com/service-authorization/latest/reference/list_awsidentityandaccessmanagement.html",
    "iam:PolicyARN": "https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_iam-condition-keys.html",
    "iam:PassedToService": "https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_iam-condition-keys.html",
    "s3:prefix": "https://docs.aws.amazon.com/AmazonS3/latest/userguide/amazon-s3-policy-keys.html",
}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda each: each.stem)
def test_the_page_says_why_each_action_is_there(document: Path) -> None:
    page = (FOLDER / "README.md").read_text()
    section = page.partition(f"\n## {document.name}\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([\w-]+:\w+)` \| \S", section, re.MULTILINE)) == actions(document.stem)
    assert f"| [{document.name}](#{document.stem}json) |" in page


# What the code calls


_CLIENT = re.compile(r"(client|sts)$|(client|make)\(.*\)$")
_BY_NAME = ("get_paginator", "_call", "_ask")


@functools.cache
def operations() -> dict[str, set[str]]:
    """The methods of all clients that the collection has, and the actions of each."""
    session = botocore.session.get_session()
    found: dict[str, set[str]] = {}
    services = ("amp", "cloudformation", "cloudwatch", "dynamodb", "ec2", "logs", "s3", "sagemaker", "ssm", "sts")
    for service in services:
        model = session.get_service_model(service)
        prefix = PREFIXES.get(service, service)
        for operation in model.operation_names:
            found.setdefault(xform_name(operation), set()).add(f"{prefix}:{operation}")
    # What boto3 adds, and what it calls.
    found["upload_fileobj"], found["download_fileobj"] = {"s3:PutObject"}, {"s3:GetObject"}
    return found


def methods(file: Path) -> Iterator[str]:
    """The methods of clients that a file calls, by themselves, in pages, or by their names."""
    for node in ast.walk(ast.parse(file.read_text())):
        names = []
        if isinstance(node, ast.Attribute) and _CLIENT.search(ast.unparse(node.value)):
            names = [node.attr]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _BY_NAME:
            names = [each.value for each in node.args if isinstance(each, ast.Constant)]
        yield from (name for name in names if name in operations())


def needed(action: str) -> tuple[str, ...]:
    return ACTIONS.get(action, (action,))


def test_every_file_that_asks_aws_is_listed() -> None:
    found = {str(file.relative_to(ROOT)) for file in (ROOT / "plugins").rglob("*.py") if any(methods(file))}
    assert found == {file for file, _documents in BOTO3}


@pytest.mark.parametrize(("file", "documents"), BOTO3)
def test_every_call_of_boto3_is_allowed(file: str, documents: list[str]) -> None:
    allowed = actions(*documents)
    called = set(methods(ROOT / file))
    assert called
    for method in called:
        choices = operations()[method]
        assert any(set(needed(each)) <= allowed for each in choices), f"{method} needs one of {sorted(choices)}"


def test_the_session_document_of_fleet_is_allowed() -> None:
    own = [each["Resource"] for each in statements("hyperpod-fleet") if each["Sid"] == "Document"]
    assert own == [f"arn:aws:ssm:us-east-2::document/{session_manager.DOCUMENT}"]


def test_every_call_of_the_ssm_connection_is_allowed() -> None:
    import ansible_collections.amazon.aws as amazon

    allowed, called = actions("push-ssm"), set()
    for name in ("s3clientmanager", "filetransfermanager", "sessionmanager"):
        called |= set(methods(Path(next(iter(amazon.__path__))) / f"plugins/plugin_utils/ssm/{name}.py"))
    assert {"start_session", "terminate_session", "upload_fileobj"} <= called  # by each version of amazon.aws
    for method in called:
        choices = operations()[method]
        assert any(set(needed(each)) <= allowed for each in choices), f"{method} needs one of {sorted(choices)}"


def test_every_session_document_that_pages_and_code_name_is_allowed() -> None:
    files = [file for folder in ("docs", "roles", "plugins") for file in (ROOT / folder).rglob("*")]
    texts = [file.read_text() for file in files if file.suffix in {".md", ".py", ".yml", ".j2"}]
    # A session's document, and not the one of a command that Run Command sends.
    named = {name for text in texts for name in re.findall(r"start-session [^`]*?--document-name ([\w-]+)", text)}
    own = [each for each in statements("push-ssm") if each["Action"] == "ssm:StartSession"]
    allowed = [resource.partition(":document/")[2] for each in own for resource in listed(each["Resource"])]
    assert named == {name for name in allowed if name.startswith("AWS-")}


# A command line of the AWS CLI, or its list of arguments.
_LINE = re.compile(r"""(?:\baws\b|\bprogram\b)["']?,?\s+["']?([a-z][a-z0-9-]+)["']?,?\s+["']?([a-z]+(?:-[a-z]+)*)\b""")


@functools.cache
def services() -> set[str]:
    """What botocore has a model of, which it takes long to find out."""
    return {*botocore.session.get_session().get_available_services(), "s3api"}


def commands(file: Path) -> set[tuple[str, str]]:
    return {(service, command) for service, command in _LINE.findall(file.read_text()) if service in services()}


def test_every_file_that_runs_or_prints_the_aws_cli_is_listed() -> None:
    kinds = {".py", ".sh", ".yml", ".j2"}
    found = {
        str(file.relative_to(ROOT))
        for folder in ("plugins", "roles", "playbooks")
        for file in (ROOT / folder).rglob("*")
        if file.suffix in kinds and file.name != "argument_specs.yml" and commands(file)
    }
    assert found == set(CLI)


@pytest.mark.parametrize("file", CLI)
def test_every_command_of_the_aws_cli_is_allowed(file: str) -> None:
    allowed = actions(*CLI[file])
    for service, command in commands(ROOT / file):
        name = "".join(part.capitalize() for part in command.split("-"))
        wanted = ACTIONS.get(f"{service} {command}", (f"{PREFIXES.get(service, service)}:{name}",))
        assert set(wanted) <= allowed, f"aws {service} {command}"
