# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Keeps the rules of a workspace of Amazon Managed Prometheus as they should be."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.variables import shown

_BUSY = ("CREATING", "UPDATING", "DELETING")
_SECONDS = 60
_ATTEMPTS = 5


@dataclass(frozen=True)
class Outcome:
    changed: bool
    before: str
    after: str
    groups: int


def merged(files: Sequence[Mapping[str, str]]) -> str:
    """Return one file with the groups of all. Their names must differ, as within a workspace's namespace."""
    groups: list[Any] = []
    homes: dict[str, str] = {}
    for file in files:
        where = file.get("source") or file["path"]
        try:
            content = yaml.safe_load(file["content"])
        except (yaml.YAMLError, ValueError) as error:  # ValueError: such as of 2024-02-30
            raise Problem(f"{where} is no file of rules: {str(error).splitlines()[0]}") from error
        if not isinstance(content, Mapping) or "groups" not in content:
            raise Problem(f"{where} is no file of rules: it has no groups")
        found = content["groups"] or []
        if not isinstance(found, list) or not all(isinstance(group, Mapping) for group in found):
            raise Problem(
                f"{where}: groups is {shown(content['groups'])}; needed: a list of groups with name and rules"
            )
        for group in found:
            name = str(group.get("name"))
            if name in homes:
                raise Problem(
                    f"{where} has the group {name!r}, which {homes[name]} has too: a workspace needs unique names"
                )
            homes[name] = where
        groups += found
    return yaml.safe_dump({"groups": groups}, sort_keys=False, allow_unicode=True, width=150)


def put(
    client: Any, workspace: str, name: str, rules: str, check: bool, pause: Callable[[float], None] = time.sleep
) -> Outcome:
    """Have one namespace hold the rules, and wait until the workspace has taken them.

    Clusters that share a workspace share the namespace, so others may be at it: they are waited for.
    """
    groups = len(yaml.safe_load(rules)["groups"])
    for _attempt in range(_ATTEMPTS):
        found = _settled(client, workspace, name, pause)
        before = found["data"] if found else ""
        failed = bool(found) and found["status"].endswith("_FAILED")
        if found and not failed and yaml.safe_load(before) == yaml.safe_load(rules):
            return Outcome(False, before, before, groups)
        if check:
            return Outcome(True, before, rules, groups)
        call = client.put_rule_groups_namespace if found else client.create_rule_groups_namespace
        try:
            call(workspaceId=workspace, name=name, data=rules.encode())
        except client.exceptions.ConflictException:
            pause(1)
            continue
        _judge(_settled(client, workspace, name, pause), workspace, name)
        return Outcome(True, before, rules, groups)
    raise Problem(f"somebody else keeps changing the rules {name} of workspace {workspace}; run this again")


def _describe(client: Any, workspace: str, name: str) -> dict[str, str]:
    try:
        answer = client.describe_rule_groups_namespace(workspaceId=workspace, name=name)["ruleGroupsNamespace"]
    except client.exceptions.ResourceNotFoundException as error:
        try:
            client.describe_workspace(workspaceId=workspace)
        except client.exceptions.ResourceNotFoundException:
            raise Problem(
                f"there is no workspace {workspace} in {client.meta.region_name} that the AWS credentials used here "
                "can see; if it is another account's, put its rules there from that account, and set "
                "prometheus_amp_rules_namespace to ''"
            ) from error
        return {}
    data = answer["data"]
    status = answer.get("status") or {}
    return {
        "data": data.decode() if isinstance(data, bytes) else str(data),
        "status": str(status.get("statusCode") or ""),
        "reason": str(status.get("statusReason") or ""),
    }


def _settled(client: Any, workspace: str, name: str, pause: Callable[[float], None]) -> dict[str, str]:
    """Return the namespace once nobody works on it; nothing where there is none."""
    for _second in range(_SECONDS):
        found = _describe(client, workspace, name)
        if found.get("status") not in _BUSY:
            return found
        pause(1)
    raise Problem(f"the workspace {workspace} is still {found['status'].lower()} its rules {name} after {_SECONDS} s")


def _judge(found: Mapping[str, str], workspace: str, name: str) -> None:
    if not found:
        raise Problem(f"the workspace {workspace} took the rules {name}, and has none of that name now; run this again")
    if found["status"].endswith("_FAILED"):
        raise Problem(f"the workspace {workspace} refuses the rules {name}: {found['reason'] or found['status']}")
