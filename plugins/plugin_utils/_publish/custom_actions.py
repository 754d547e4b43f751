# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a cluster's configuration needs so that its nodes run a bundle, as ParallelCluster's schema has it.

Queues have no OnNodeUpdated, login nodes no S3Access. OnNodeConfigured of the head node and of a login pool may only be
set when these are made: an update that changes it is refused, while OnNodeUpdated may change at any time.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import yaml

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_file import document, rules
from ansible_collections.pcluster.postboot.plugins.plugin_utils._publish import rights

_CONFIG = "publish_config"
CONFIGURED, UPDATED = "OnNodeConfigured", "OnNodeUpdated"
SCRIPT, ARCHIVE = "bootstrap.sh", "pcluster-postboot.tar.gz"
_FORMER_POLICY = "pcluster-postboot-bundles"  # of login nodes, one for all buckets and prefixes
_YES_NO = re.compile(r"yes|no")
_OPTIONS = {  # what each may be, and how that is told
    "mode": (re.compile(r"auto|gpu|cpu|none"), "auto, gpu, cpu or none"),
    "budget": (re.compile(r"0*[1-9][0-9]*"), "a number of seconds"),
    "python": (re.compile(r"\S+"), "the path of a Python on the nodes"),
    "defer": (_YES_NO, "true or false"),
}
_GONE = "--hold"  # an option that bootstrap.sh had
# Without a configuration of the user: one of each kind.
_EXAMPLE = {
    "HeadNode": {},
    "LoginNodes": {"Pools": [{"Name": "<each pool, if there is one>"}]},
    "Scheduling": {"SlurmQueues": [{"Name": "<each queue>"}]},
}
_Named = tuple[str, dict[str, Any]]


class Release(NamedTuple):
    base: str  # s3://bucket/prefix
    name: str
    sha256: str
    account: str = ""
    partition: str = "aws"
    caller: str = ""  # the ARN of who publishes
    bucket_policy: str | None = None  # as S3 tells it; empty where there is none, None where that is unknown

    @property
    def bucket(self) -> str:
        return self.base[len("s3://") :].split("/")[0]

    @property
    def objects(self) -> str:
        """What nodes read, of this bundle and of all others, below the bucket."""
        return self.base[len("s3://") :].partition("/")[2].strip("/") + "/*"

    @property
    def place(self) -> str:
        """Below which all bundles are."""
        return f"{self.bucket}/{self.objects[:-1]}"

    @property
    def resource(self) -> str:
        return f"arn:{self.partition}:s3:::{self.bucket}/{self.objects}"

    @property
    def policy_name(self) -> str:
        """One for each bucket and prefix, of at most 90 of the 128 characters that IAM takes."""
        return f"pcluster-postboot-{self.bucket}-{hashlib.sha256(self.place.encode()).hexdigest()[:8]}"

    @property
    def policy(self) -> str:
        """The policy of login nodes, which somebody has to make."""
        return f"arn:{self.partition}:iam::{self.account or '<account>'}:policy/{self.policy_name}"

    @property
    def where(self) -> str:
        return f"{self.base.rstrip('/')}/{self.name}"

    @property
    def fleet(self) -> str:
        """The command that brings it to nodes that run."""
        variables = f"-e fleet_bundle={shlex.quote(self.where)} -e fleet_sha256={self.sha256}"
        return f"ansible-playbook -i <inventory> pcluster.postboot.fleet {variables}"

    def action(self, options: Mapping[str, str]) -> dict[str, Any]:
        pairs = {"--bundle": f"{self.where}/{ARCHIVE}", "--sha256": self.sha256, **options}
        return {"Script": f"{self.where}/{SCRIPT}", "Args": [word for pair in pairs.items() for word in pair]}


class Wanted(NamedTuple):
    options: dict[str, str]  # of bootstrap.sh
    policies: list[str]  # further policies of every node
    login_policy: str = ""
    trusted: Sequence[str] = ()  # the nodes that may write to bundles


def read(path: str) -> dict[str, Any]:
    config = document.load(_CONFIG, path)
    document.check(_CONFIG, path, config, rules.PUBLISHED)
    if not config.get("HeadNode") or not config.get("Scheduling", {}).get("SlurmQueues"):
        raise Problem(f"{_CONFIG}: {path} lacks HeadNode or Scheduling/SlurmQueues; needed: a cluster's YAML")
    return config


def options(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of bootstrap.sh that were asked for, as the strings that ParallelCluster takes."""
    found = {}
    for name, (pattern, needed) in _OPTIONS.items():
        value = given.get(name)
        if value is None:
            continue
        word = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
        if pattern is _YES_NO:
            word = {"true": "yes", "false": "no"}.get(word.lower(), word.lower())
        if not pattern.fullmatch(word):
            raise Problem(f"publish_{name} is {word or 'empty'}; needed: {needed}")
        found[f"--{name}"] = word
    return found


class _Parts:
    """Makes the parts of a configuration, one node at a time, and notes what to know about them."""

    def __init__(self, release: Release, wanted: Wanted, exists: bool) -> None:
        self.release, self.wanted, self.exists = release, wanted, exists
        self.notes: list[str] = []
        self.new: list[str] = []  # nodes without a bundle
        self.held: list[str] = []  # actions with the option that is gone

    def part(self, named: _Named, events: tuple[str, ...]) -> dict[str, Any]:
        where, node = named
        actions, found = self._actions(where, node, events), {"Name": node["Name"]} if "Name" in node else {}
        iam = dict(node.get("Iam") or {})
        own = next((name for name in ("InstanceRole", "InstanceProfile") if iam.get(name)), "")
        if own:
            self.notes.append(
                f"{where} has an {own} of its own, which must allow s3:GetObject on {self.release.resource}, and no "
                "writing there: publish cannot see what it allows"
            )
        else:
            if where.startswith("login pool "):  # which has no S3Access
                self._allow_by_policy(where, node, iam)
            else:
                self._allow_by_access(iam)
            _add_policies(iam, self.wanted.policies)
        return {**found, "CustomActions": actions, "Iam": iam}

    def _actions(self, where: str, node: Mapping[str, Any], events: tuple[str, ...]) -> dict[str, Any]:
        actions = dict(node.get("CustomActions") or {})
        for event in events:
            fixed = event == CONFIGURED and UPDATED in events
            if fixed and _ours(actions.get(event)):
                self.notes.append(
                    f"{where}: {event} stays as it is, because an update of the cluster may not change it"
                )
                continue
            self.new += [where] if fixed and self.exists else []
            if any(_is_ours(script) and _GONE in script["Args"] for script in _scripts(actions.get(event))):
                self.held.append(f"{where}/{event}")
            actions[event] = merge(actions.get(event), self.release.action(self.wanted.options))
        return actions

    def _allow_by_access(self, iam: dict[str, Any]) -> None:
        access = iam["S3Access"] = list(iam.get("S3Access") or [])
        if not any(_covers(entry, self.release) for entry in access):
            access.append({"BucketName": self.release.bucket, "KeyName": self.release.objects})

    def _allow_by_policy(self, where: str, node: Mapping[str, Any], iam: dict[str, Any]) -> None:
        former = [arn for arn in rights.policies(iam) if arn.endswith(f":policy/{_FORMER_POLICY}")]
        if former and not self.wanted.login_policy and _has_bundles_of(node, self.release):
            self.notes.append(
                f"{where} keeps {former[0]}, because its Iam may only change while the pool is stopped; it must allow "
                f"s3:GetObject on {self.release.resource}"
            )
        else:
            _add_policies(iam, [self.wanted.login_policy or self.release.policy])


def sections(release: Release, wanted: Wanted, config: Mapping[str, Any] | None = None) -> tuple[Any, list[str]]:
    """Return the parts of a cluster's configuration that change, and what to know about them."""
    head, pools, queues = _nodes(document.unshared(_EXAMPLE if config is None else config))
    parts = _Parts(release, wanted, config is not None)
    result: dict[str, Any] = {"HeadNode": parts.part(head, (CONFIGURED, UPDATED))}
    if pools:
        result["LoginNodes"] = {"Pools": [parts.part(pool, (CONFIGURED, UPDATED)) for pool in pools]}
    result["Scheduling"] = {"SlurmQueues": [parts.part(queue, (CONFIGURED,)) for queue in queues]}
    notes = parts.notes
    if parts.new:
        rights = ", and without Iam of a pool whose Count is not 0" if pools else ""
        notes.append(
            f"{', '.join(parts.new)}: no bundle yet. To a cluster that exists already, add these parts without "
            f"{CONFIGURED}{rights}; ParallelCluster would refuse the update"
        )
    if parts.held:
        notes.append(
            f"{', '.join(parts.held)}: {_GONE} is left out of Args, because ParallelCluster 3.13 to 3.15 terminates "
            "the nodes that it held back; where a boot needs more time, set "
            "DevSettings/Timeouts/ComputeNodeBootstrapTimeout"
        )
    return result, notes + _about_rights(_rights(result), release)


def _about_rights(found: Mapping[str, Mapping[str, Any]], release: Release) -> list[str]:
    """Return who is trusted with writing to the bundles, and what cannot be judged."""
    notes = [
        f"{where} can write to the bundles by {way}, and publish_trusted_writers trusts it"
        for where, iam in found.items()
        for way in rights.writers(iam, release.place)
    ]
    known = (release.policy_name, _FORMER_POLICY)
    arns = {arn for iam in found.values() for arn in rights.policies(iam) if not rights.of_aws(arn)}
    unseen = sorted(arn for arn in arns if arn.rpartition("/")[2] not in known)
    if unseen:
        notes.append(
            f"{', '.join(unseen)}: these must not allow writing to {release.resource}, which publish cannot see"
        )
    return notes


def refusals(release: Release, wanted: Wanted, config: Mapping[str, Any] | None = None) -> list[str]:
    """Return a line for each right by which nodes could put another bootstrap.sh in the place of ours."""
    found = _rights(sections(release, wanted, config)[0])
    lines = [
        f"publish_trusted_writers has {name}, which is no node of publish_config; needed: one of {', '.join(found)}"
        for name in wanted.trusted
        if config is not None and name not in found
    ]
    origin = {wanted.login_policy: "publish_login_policy", **dict.fromkeys(wanted.policies, "publish_policies")}
    for where, iam in found.items():
        for way in rights.writers(iam, release.place) if where not in wanted.trusted else ():
            lines.append(
                f"{origin.get(way, 'publish_config')}: {where} could write to s3://{release.place} by {way}, and so "
                "replace the bootstrap.sh that every node runs as root; needed: no such right there (a bucket of its "
                f"own for publish_s3, or a narrower policy), or '{where}' in publish_trusted_writers"
            )
    return lines


def _nodes(config: Mapping[str, Any]) -> tuple[_Named, list[_Named], list[_Named]]:
    """Return the head node, the login pools and the queues, each with what messages call it."""
    pools = (config.get("LoginNodes") or {}).get("Pools") or []
    return (
        ("HeadNode", config["HeadNode"]),
        [(f"login pool {pool.get('Name')}", pool) for pool in pools],
        [(f"queue {queue.get('Name')}", queue) for queue in config["Scheduling"]["SlurmQueues"]],
    )


def _rights(found: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    head, pools, queues = _nodes(found)
    return {where: node["Iam"] for where, node in (head, *pools, *queues)}


def merge(there: Mapping[str, Any] | None, ours: Mapping[str, Any]) -> dict[str, Any]:
    """Put our script beside those that are there, or in the place of an older one with the options that it has."""
    if not there:
        return dict(ours)
    scripts = _scripts(there)
    if not any(map(_is_ours, scripts)):
        return {"Sequence": [*scripts, dict(ours)]}
    scripts = [_renewed(script, ours) if _is_ours(script) else script for script in scripts]
    return {"Sequence": scripts} if "Sequence" in there else scripts[0]


def _renewed(script: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    pairs = {**_pairs(script["Args"]), **_pairs(ours["Args"])}
    pairs.pop(_GONE, None)
    return {"Script": ours["Script"], "Args": [word for pair in pairs.items() for word in pair]}


def _pairs(words: list[str]) -> dict[str, str]:
    return dict(zip(words[::2], words[1::2]))


def _is_ours(script: Mapping[str, Any]) -> bool:
    return str(script.get("Script", "")).endswith(f"/{SCRIPT}") and "--bundle" in (script.get("Args") or [])


def _scripts(action: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    return [dict(script) for script in action.get("Sequence", [action])] if action else []


def _ours(action: Mapping[str, Any] | None) -> bool:
    return any(map(_is_ours, _scripts(action)))


def _has_bundles_of(node: Mapping[str, Any], release: Release) -> bool:
    scripts = [script for action in (node.get("CustomActions") or {}).values() for script in _scripts(action)]
    return any(
        _is_ours(script) and script["Script"].rsplit("/", 2)[0] == f"s3://{release.place[:-1]}" for script in scripts
    )


def _covers(entry: Mapping[str, Any], release: Release) -> bool:
    key = entry.get("KeyName", "*")
    return entry.get("BucketName") in (release.bucket, "*") and key in ("*", release.objects)


def _add_policies(iam: dict[str, Any], arns: list[str]) -> None:
    there = list(iam.get("AdditionalIamPolicies") or [])
    known = [entry.get("Policy") for entry in there]
    missing = [{"Policy": arn} for arn in arns if arn not in known]
    if missing:
        iam["AdditionalIamPolicies"] = [*there, *missing]


class _Dumper(yaml.SafeDumper):
    """Writes as people write: lists further in than their key, and nothing by reference."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style=style)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_multi_representer(str, _represent_text)  # Ansible's own strings are of another class


def dump(found: Any) -> str:
    return yaml.dump(found, Dumper=_Dumper, sort_keys=False, width=1 << 16, allow_unicode=True)


def render(release: Release, wanted: Wanted, config: Mapping[str, Any] | None = None) -> str:
    """Return it as YAML, below what to know about it."""
    found, notes = sections(release, wanted, config)
    lines = [f"pcluster.postboot {release.name}: what the cluster's configuration needs, beside what is there", ""]
    if config is None:
        lines.append(
            "A script of yours stays beside it: Sequence: [{Script: yours}, {Script: bootstrap.sh, Args: […]}]"
        )
    lines += [
        f"HeadNode, LoginNodes: {CONFIGURED} may only be set when the cluster, or the pool, is made. Where it exists,",
        f"  leave {CONFIGURED} there as it is; {UPDATED} does the same during the update that brings it.",
        "SlurmQueues: new nodes have it; QueueUpdateStrategy says what becomes of those that run.",
        f"Nodes that run get it by SSM Run Command, head nodes first: {release.fleet}",
    ]
    if any(release.policy in rights.policies(iam) for iam in _rights(found).values()):
        lines.append(f"LoginNodes has no S3Access. Once, make the policy that its Iam names: {create_policy(release)}")
    if release.caller:
        arns = rights.publishers(release.caller)
        lines += rights.put_bucket_policy(release.bucket, release.resource, arns, release.bucket_policy)
    lines += notes
    comment = "\n".join(f"# {line}".rstrip() for line in lines)
    return f"{comment}\n{dump(found)}"


def create_policy(release: Release) -> str:
    statement = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": release.resource}
    document = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    return f"aws iam create-policy --policy-name {release.policy_name} --policy-document '{document}'"
