# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The bundle that every node runs: CustomActions and Iam, as publish prints them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config import cluster as shared
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config import needs
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config.cluster import Cluster
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config.draft import Entry
from ansible_collections.pcluster.postboot.plugins.plugin_utils._publish import custom_actions as actions

_WHERE = f"{shared.PREFIX}bundle"
_URL = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^/ *?]+)+/[^/ *?]+")
# The words of publish's own variables in its lines, which are others here.
_WORDS = {
    "which publish cannot see": "which the configuration does not show",
    "publish cannot see what it allows": "the configuration does not show what it allows",
    "publish_trusted_writers": f"{_WHERE}.trusted_writers",
    "publish_login_policy": f"{_WHERE}.login_policy",
    "publish_policies": f"{shared.PREFIX}policies",
    "publish_config": "the configuration",
    "publish_s3": f"{_WHERE}.url",
}


def bundle(cluster: Cluster) -> None:
    """Put the bundle into a draft whose nodes are all there."""
    given: Mapping[str, Any] = cluster.given.get("bundle") or {}
    config = cluster.draft.config
    if not config.get("HeadNode") or not config.get("Scheduling"):
        return
    fixed = _fixed(config, cluster.former)
    for node, there in fixed:
        if there:
            node["CustomActions"] = {**(node.get("CustomActions") or {}), actions.CONFIGURED: there}
    if not given or not _right(cluster, given):
        return
    base, _slash, name = given["url"].rstrip("/").rpartition("/")
    release = actions.Release(base, name, given["sha256"])
    wanted = actions.Wanted(
        actions.options({key: given.get(key) for key in ("mode", "budget", "python", "defer")}),
        [],
        given.get("login_policy") or "",
        given.get("trusted_writers") or [],
    )
    for line in actions.refusals(release, wanted, config):
        cluster.refuse(_in_our_words(line))
    parts, notes = actions.sections(release, wanted, config)
    for part in parts["Scheduling"]["SlurmQueues"]:
        _own_mode(cluster, release, wanted, part)
    _put(config["HeadNode"], parts["HeadNode"])
    for section in ("LoginNodes", "Scheduling"):
        key = "Pools" if section == "LoginNodes" else "SlurmQueues"
        for node, part in zip((config.get(section) or {}).get(key) or [], (parts.get(section) or {}).get(key) or []):
            _put(node, part)
    for node, there in fixed:
        if not there:
            del node["CustomActions"][actions.CONFIGURED]
    # With an update that is what was asked for, and a line of a new pool would come with the next run alone.
    told = ("no bundle yet", "stays as it is") if fixed else ("no bundle yet",)
    cluster.draft.notes += [_in_our_words(note) for note in notes if not any(words in note for words in told)]


def _fixed(config: Mapping[str, Any], former: Mapping[str, Any] | None) -> list[tuple[dict[str, Any], Any]]:
    """Return the head node and the pools of a cluster that exists, each with the OnNodeConfigured that it has.

    No update of the cluster may change that.
    """
    if former is None:
        return []
    nodes = [(config["HeadNode"], former.get("HeadNode") or {})]
    pools = {pool.get("Name"): pool for pool in (former.get("LoginNodes") or {}).get("Pools") or []}
    for pool in (config.get("LoginNodes") or {}).get("Pools") or []:
        if pool.get("Name") in pools:
            nodes.append((pool, pools[pool["Name"]]))
    return [(node, (there.get("CustomActions") or {}).get(actions.CONFIGURED)) for node, there in nodes]


def _right(cluster: Cluster, given: Mapping[str, Any]) -> bool:
    before = len(cluster.draft.problems)
    url, sha256 = given.get("url") or "", given.get("sha256") or ""
    if not _URL.fullmatch(url.rstrip("/")):
        cluster.refuse(
            f"{_WHERE}.url is {url or 'not set'}; needed: s3://<bucket>/<prefix>/<bundle>, as publish prints it"
        )
    if not re.fullmatch(r"[0-9a-f]{64}", sha256):
        cluster.refuse(
            f"{_WHERE}.sha256 is {sha256 or 'not set'}; needed: 64 hexadecimal digits, as publish prints them"
        )
    pools = cluster.draft.get("LoginNodes", "Pools") or []
    policy = given.get("login_policy")
    cluster.check_id(f"{_WHERE}.login_policy", policy, "policy")
    if not policy and any(not (pool.get("Iam") or {}).get("InstanceRole") for pool in pools):
        cluster.refuse(
            f"{_WHERE}.login_policy is not set, and there are login pools; needed: the policy that publish tells of"
        )
    budget = given.get("budget")
    if budget is not None and budget < 1:
        cluster.refuse(f"{_WHERE}.budget is {budget}; needed: a number of seconds")
    elif budget is not None and pools and budget > needs.LOGIN_TIME - needs.KEPT:
        cluster.draft.notes.append(
            f"{_WHERE}.budget is {budget}, and a login node is replaced {needs.LOGIN_TIME} s after its launch"
        )
    for queue in cluster.given.get("queues") or []:
        types = [queue["instance_type"]] if queue.get("instance_type") else queue.get("instance_types") or []
        mode = queue.get("mode") or given.get("mode")
        if mode == "gpu" and not all(cluster.catalog[name].gpus for name in types):
            cluster.refuse(
                f"{shared.PREFIX}queues[{queue['name']}] has mode gpu, and {', '.join(types)} no NVIDIA GPU; needed: "
                "auto or cpu, or its nodes refuse to boot"
            )
    return len(cluster.draft.problems) == before


def _own_mode(cluster: Cluster, release: actions.Release, wanted: actions.Wanted, part: dict[str, Any]) -> None:
    """Give a queue the mode that it has of its own."""
    modes = {queue["name"]: queue.get("mode") for queue in cluster.given.get("queues") or []}
    mode = modes.get(part["Name"])
    if mode:
        before = (cluster.draft.get("Scheduling", "SlurmQueues", Entry("Name", part["Name"])) or {}).get(
            "CustomActions"
        )
        ours = release.action({**wanted.options, "--mode": mode})
        there = (before or {}).get(actions.CONFIGURED)
        part["CustomActions"][actions.CONFIGURED] = actions.merge(there, ours)


def _put(node: dict[str, Any], part: Mapping[str, Any]) -> None:
    node.update({key: value for key, value in part.items() if key != "Name" and value})


def _in_our_words(line: str) -> str:
    for theirs, ours in _WORDS.items():
        line = line.replace(theirs, ours)
    return line
