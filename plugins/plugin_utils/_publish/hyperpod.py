# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The hook by which nodes of SageMaker HyperPod run a bundle, and what a cluster needs for it.

The cluster is the JSON of CreateCluster, or what DescribeCluster answers: both have the same shape where it is read
(botocore 1.44.5, ClusterInstanceGroupSpecification and ClusterInstanceGroupDetails). docs/hyperpod.md has the rest.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._host import document as json_document
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._node.hyperpod import mounts_of
from ansible_collections.pcluster.postboot.plugins.module_utils._node.identity import node_type
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_file import document, rules
from ansible_collections.pcluster.postboot.plugins.plugin_utils._publish import rights
from ansible_collections.pcluster.postboot.plugins.plugin_utils._publish.custom_actions import ARCHIVE, SCRIPT, Release

HOOK, ARGUMENTS, GROUPS = "on_init_complete.sh", "arguments", "hyperpod.json"
PREFIX = "s3://sagemaker-"
FOLDER = "pcluster-postboot"  # of our files, beside lifecycle scripts
_STORAGE = {
    "FsxLustreConfig": rules.texts("DnsName", "MountName", "MountPath", required=("DnsName", "MountName")),
    "FsxOpenZfsConfig": rules.texts("DnsName", "MountPath", required=("DnsName",)),
}
_GROUP: dict[str, rules.Rule] = {
    "InstanceGroupName": rules.text(),
    "SlurmConfig": rules.texts("NodeType"),
    "LifeCycleConfig": rules.texts("OnCreate", "OnInitComplete", "SourceS3Uri"),
    "InstanceStorageConfigs": rules.Items(rules.Section(_STORAGE)),
}
_CLUSTER = rules.Section({"InstanceGroups": rules.Entries("InstanceGroupName", rules.Section(_GROUP), True)})


class Hook(NamedTuple):
    name: str  # below the place of all bundles
    files: Mapping[str, bytes]

    @property
    def hashes(self) -> list[dict[str, str]]:
        return [{"name": name, "sha256": hashlib.sha256(text).hexdigest()} for name, text in self.files.items()]


def read(path: str) -> list[dict[str, Any]]:
    """Return the instance groups of a cluster."""
    needed = "the JSON of `aws sagemaker create-cluster --cli-input-json`, or what describe-cluster prints"
    try:
        found = document.present(json_document.read(path))
    except OSError as error:
        raise Problem(f"publish_hyperpod: {os.path.abspath(path)}: {error.strerror}; needed: {needed}") from error
    except ValueError as error:
        raise Problem(f"publish_hyperpod: {path} is no JSON: {error}; needed: {needed}") from error
    groups = found.get("InstanceGroups") if isinstance(found, dict) else None
    if not isinstance(groups, list) or not all(
        isinstance(group, dict) and isinstance(group.get("InstanceGroupName"), str) for group in groups
    ):
        raise Problem(f"publish_hyperpod: {path} lacks InstanceGroups with InstanceGroupName; needed: {needed}")
    document.check("publish_hyperpod", path, found, _CLUSTER)
    if "Eks" in (found.get("Orchestrator") or {}):
        raise Problem(f"publish_hyperpod: {path} has Orchestrator.Eks; needed: a cluster with Slurm")
    return groups


def described(groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what a node cannot read anywhere else: the type of each group, and which file systems it has."""
    found = {}
    for group in groups:
        name, kind = group["InstanceGroupName"], (group.get("SlurmConfig") or {}).get("NodeType")
        if kind is None:
            continue
        try:
            node_type(kind)
        except ValueError as error:
            told = f"publish_hyperpod: instance group {name} has SlurmConfig.NodeType {kind}"
            raise Problem(f"{told}; needed: Controller, Login or Compute") from error
        found[name] = {"node_type": kind, "mounts": mounts_of(group)}
    return {"groups": found}


def refuse_place(base: str) -> None:
    if not base.startswith(PREFIX):
        raise Problem(
            f"publish_s3 is {base}; needed with publish_hyperpod: {PREFIX}<more>/<prefix>, because nodes of HyperPod "
            "may read such buckets alone (AmazonSageMakerClusterInstanceRolePolicy)"
        )


def hook(
    release: Release, options: Mapping[str, str], groups: list[dict[str, Any]], script: bytes, bootstrap: bytes
) -> Hook:
    """Return the files that HyperPod downloads, in a folder of their own: HyperPod takes all that is there."""
    pairs = {"--bundle": f"{release.where}/{ARCHIVE}", "--sha256": release.sha256, **options}
    arguments = "".join(f"{word}\n" for pair in pairs.items() for word in pair)
    files = {
        SCRIPT: bootstrap,
        ARGUMENTS: arguments.encode(),
        GROUPS: (json.dumps(described(groups), indent=2) + "\n").encode(),
        HOOK: script,
    }
    digest = hashlib.sha256(b"".join(hashlib.sha256(text).digest() for text in files.values())).hexdigest()
    return Hook(f"hyperpod/{release.name}-{digest[:8]}", files)


def render(release: Release, made: Hook, groups: list[dict[str, Any]]) -> str:
    """Return what the cluster needs, as text for people around the JSON that the API takes."""
    source = f"{release.base.rstrip('/')}/{made.name}/"
    lines = [f"pcluster.postboot {release.name}: what a HyperPod cluster needs", ""]
    scripted = [group for group in groups if (group.get("LifeCycleConfig") or {}).get("OnCreate")]
    plain = [group for group in groups if group not in scripted]
    for group in plain:
        theirs = (group.get("LifeCycleConfig") or {}).get("OnInitComplete")
        if theirs and theirs != HOOK:
            lines.append(
                f"{group['InstanceGroupName']} has the hook {theirs}, and a group can have one: copy {source} beside "
                f"it, and have it run {HOOK} at its end"
            )
    for uri in dict.fromkeys(str(group["LifeCycleConfig"].get("SourceS3Uri")) for group in scripted):
        lines += [
            "Lifecycle scripts: copy the hook beside them,",
            f"  aws s3 cp --recursive {source} {uri.rstrip('/')}/{FOLDER}/",
            "and have on_create.sh run it once lifecycle_script.py has ended well, before its last line:",
            f'  [ "$exit_code" != 0 ] || bash {FOLDER}/{HOOK} || exit_code=$?',
        ]
    lacking = [group["InstanceGroupName"] for group in plain if not (group.get("SlurmConfig") or {}).get("NodeType")]
    if lacking:
        lines.append(
            f"{', '.join(lacking)}: without SlurmConfig.NodeType. Such nodes take their type from "
            "provisioning_parameters.json, and fail where they have none"
        )
    bare = [group["InstanceGroupName"] for group in groups if not mounts_of(group)]
    if 0 < len(bare) < len(groups):
        lines.append(
            f"{', '.join(bare)}: without a file system that other groups have, where role fsx ends the run. Give them "
            "the same FsxLustreConfig, or set fsx_required: false for their nodes"
        )
    lines += [
        "The hook runs when an instance is made: at its creation, where it replaces another, after a software update.",
        f"Nodes that run get the bundle over sessions, head nodes first: {release.fleet}",
        "Where the hook fails, the instance does; /var/log/pcluster-postboot/pull.log and CloudWatch say why.",
        f"The execution role has to allow s3:GetObject on {release.resource}, and no writing there.",
    ]
    if release.caller:
        arns = rights.publishers(release.caller)
        lines += rights.put_bucket_policy(release.bucket, release.resource, arns, release.bucket_policy)
    text = "\n".join(f"# {line}".rstrip() for line in lines) + "\n"
    if plain:
        config = {"SourceS3Uri": source, "OnInitComplete": HOOK}
        parts = [{"InstanceGroupName": group["InstanceGroupName"], "LifeCycleConfig": config} for group in plain]
        text += json.dumps({"InstanceGroups": parts}, indent=2) + "\n"
    return text
