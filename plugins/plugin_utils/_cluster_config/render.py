# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A complete configuration for ParallelCluster, out of the variables of the role cluster_config, or what is wrong."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config import (
    bundle,
    instances,
    needs,
    nodes,
    queues,
    slurm,
    storage,
    versions,
)
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config.cluster import PREFIX, Cluster
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config.draft import Draft, Entry
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config.instances import Catalog
from ansible_collections.pcluster.postboot.plugins.plugin_utils._publish import custom_actions
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.components import Component

_COLUMNS = 120  # as yamllint has them
_WRAPPED: dict[str, Any] = {"subsequent_indent": "#   ", "break_long_words": False, "break_on_hyphens": False}
MARK = "# Written by pcluster.postboot.cluster_config"
_DEFAULT_SYSTEM = versions.SYSTEMS[0]
_NAME = r"[a-zA-Z][a-zA-Z0-9-]*"
_LONGEST_NAME, _LONGEST_WITH_DATABASE = 60, 40
_MOST_TAGS = 40
_LOG_DAYS = (0, 1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1827, 3653)
_ORDER = ("Region", "Image", "HeadNode", "LoginNodes", "Scheduling", "SharedStorage", "Imds", "Monitoring", "Tags")


class Outcome(NamedTuple):
    config: dict[str, Any]
    problems: Sequence[str]
    notes: Sequence[str]


def instance_types(given: Mapping[str, Any], base: Mapping[str, Any] | None = None) -> list[str]:
    """Return the instance types that a configuration will have, where these are known beforehand."""
    found = [
        (given.get("head_node") or {}).get("instance_type"),
        ((base or {}).get("HeadNode") or {}).get("InstanceType"),
    ]
    for item in [*(given.get("queues") or []), *(given.get("login_pools") or [])]:
        found += [item.get("instance_type"), *(item.get("instance_types") or [])]
    for queue in ((base or {}).get("Scheduling") or {}).get("SlurmQueues") or []:
        found += [name for resource in queue.get("ComputeResources") or [] for name in instances.named(resource)]
    return list(dict.fromkeys(name for name in found if name))


def render(
    given: Mapping[str, Any],
    base: Mapping[str, Any] | None = None,
    components: Iterable[Component] = (),
    catalog: Catalog | None = None,
    unknown: Iterable[str] = (),
    former: Mapping[str, Any] | None = None,
) -> Outcome:
    """Return the configuration. `given` has the variables without their prefix; components are those of the cluster,
    and `former` is the configuration of the cluster that is to be updated."""
    problems = versions.problems(str(given.get("version") or ""))
    if problems:
        return Outcome({}, problems, [])
    version = versions.parse(str(given["version"])) or versions.OLDEST
    draft = Draft(base, str(given.get("base") or f"{PREFIX}base"))
    chosen = _chosen(draft, given.get("components"), list(components))
    draft.ask(f"{PREFIX}region", given.get("region"), "Region")
    draft.ask(f"{PREFIX}os", given.get("os"), "Image", "Os")
    draft.derive(_DEFAULT_SYSTEM, "Image", "Os")
    draft.ask(f"{PREFIX}custom_ami", given.get("custom_ami"), "Image", "CustomAmi")
    system = versions.System(str(draft.get("Image", "Os")), bool(draft.get("Image", "CustomAmi")))
    cluster = Cluster(given, version, system, draft, catalog or Catalog(), chosen, unknown=set(unknown), former=former)
    _name(cluster)
    draft.problems += versions.system_problems(system, version, bool(chosen or given.get("bundle")))
    cluster.check_id(f"{PREFIX}region", given.get("region"), "region")
    cluster.check_id(f"{PREFIX}custom_ami", given.get("custom_ami"), "image")
    for variable, kind in (("subnet_login", "subnet"), ("subnet_compute", "subnet"), ("security_groups", "group")):
        cluster.check_id(f"{PREFIX}{variable}", given.get(variable), kind)
    cluster.check_id(f"{PREFIX}policies", given.get("policies"), "policy")
    if not draft.get("Region"):
        cluster.refuse(f"{PREFIX}region is not set, and neither is AWS_REGION; needed: the cluster's region")
    cluster.sizes = {name: float(given.get(name) or 0) for name in ("container_image_gb", "prometheus_gb")}
    cluster.sizes = {**cluster.sizes, "nodes": float(_most_nodes(cluster))}
    draft.derive("slurm", "Scheduling", "Scheduler")
    slurm.settings(cluster)
    queues.queues(cluster)
    nodes.head_node(cluster)
    nodes.login_pools(cluster)
    storage.storage(cluster)
    _rest(cluster)
    cluster.one_architecture()
    bundle.bundle(cluster)
    _timeouts(cluster)
    ordered = {key: draft.config[key] for key in _ORDER if key in draft.config}
    return Outcome({**ordered, **draft.config}, list(dict.fromkeys(draft.problems)), draft.notes)


def _chosen(draft: Draft, names: Sequence[str] | None, known: list[Component]) -> list[Component]:
    if names is None:
        return known
    by_name = {each.name: each for each in known}
    for name in names:
        if name not in by_name:
            draft.problems.append(f"{PREFIX}components has {name}, which is no component; needed: {', '.join(by_name)}")
    return [each for each in known if each.name in names]


def _most_nodes(cluster: Cluster) -> int:
    return sum(
        queue.get("count") or (10 if queue.get("max") is None else queue["max"])
        for queue in cluster.given.get("queues") or []
    )


def _name(cluster: Cluster) -> None:
    name = str(cluster.given.get("name") or "")
    database = cluster.given.get("database") or cluster.draft.get("Scheduling", "SlurmSettings", "Database")
    longest = _LONGEST_WITH_DATABASE if database else _LONGEST_NAME
    if not re.fullmatch(_NAME, name) or len(name) > longest:
        why = " with a database" if database else ""
        cluster.refuse(
            f"{PREFIX}name is {name or 'not set'}; needed: a letter, and then letters, digits and hyphens, at most "
            f"{longest} in all{why}"
        )


def _rest(cluster: Cluster) -> None:
    given, draft = cluster.given, cluster.draft
    draft.ask(f"{PREFIX}imds.version", (given.get("imds") or {}).get("version"), "Imds", "ImdsSupport")
    wanted: Mapping[str, Any] = given.get("monitoring") or {}
    logs = ("Logs", "CloudWatch")
    for key, path in (
        ("detailed", ("DetailedMonitoring",)),
        ("logs", (*logs, "Enabled")),
        ("log_days", (*logs, "RetentionInDays")),
        ("log_deletion", (*logs, "DeletionPolicy")),
        ("dashboard", ("Dashboards", "CloudWatch", "Enabled")),
        ("alarms", ("Alarms", "Enabled")),
    ):
        draft.ask(f"{PREFIX}monitoring.{key}", wanted.get(key), "Monitoring", *path)
    days = wanted.get("log_days")
    if days is not None and days not in _LOG_DAYS:
        cluster.refuse(f"{PREFIX}monitoring.log_days is {days}; needed: one of {', '.join(map(str, _LOG_DAYS))}")
    for key, value in (given.get("tags") or {}).items():
        if str(key).startswith("parallelcluster:") or len(str(key)) > 128 or len(str(value)) > 256:
            cluster.refuse(
                f"{PREFIX}tags has {key}; needed: at most 128 characters, and 256 of the value, not parallelcluster:…"
            )
        draft.ask(f"{PREFIX}tags", str(value), "Tags", Entry("Key", str(key)), "Value")
    if len(draft.get("Tags") or []) > _MOST_TAGS:
        cluster.refuse(f"{PREFIX}tags: {len(draft.get('Tags'))} tags; needed: {_MOST_TAGS} at most")


def _timeouts(cluster: Cluster) -> None:
    """Put the seconds that nodes may take to boot, where the bundle needs more than ParallelCluster gives."""
    given, draft = cluster.given.get("timeouts") or {}, cluster.draft
    path = ("DevSettings", "Timeouts")
    places = {"head_node": "HeadNodeBootstrapTimeout", "compute_node": "ComputeNodeBootstrapTimeout"}
    for key, place in places.items():
        value = given.get(key)
        if value is not None and not 1 <= value <= versions.LONGEST_TIMEOUT:
            cluster.refuse(f"{PREFIX}timeouts.{key} is {value}; needed: 1 to {versions.LONGEST_TIMEOUT} s")
        draft.ask(f"{PREFIX}timeouts.{key}", value, *path, place)
    if not cluster.given.get("bundle") or not cluster.components:
        return
    slow = any(cluster.catalog[name].slow_to_start for name in instance_types(cluster.given))
    compute = needs.boot(cluster.components, "compute", slow)
    _timeout(cluster, "compute_node", (*path, places["compute_node"]), compute)
    static = any(
        int(resource.get("MinCount") or 0)
        for queue in draft.get("Scheduling", "SlurmQueues") or []
        for resource in queue.get("ComputeResources") or []
    )
    limit = int(draft.get(*path, places["compute_node"]) or versions.BOOT_TIMEOUT)
    head = needs.head_boot(needs.boot(cluster.components, "head", False), limit, static)
    _timeout(cluster, "head_node", (*path, places["head_node"]), head)


def _timeout(cluster: Cluster, key: str, path: tuple[str, ...], need: needs.Sum) -> None:
    there = cluster.draft.get(*path)
    if there is not None and int(there) < need.total:
        asked = (cluster.given.get("timeouts") or {}).get(key)
        whose = f"{PREFIX}timeouts.{key}" if asked else f"{'/'.join(path)} of {cluster.draft.name}"
        cluster.refuse(f"{whose} is {there}; needed: {need.total} s or more ({need})")
    if there is None and need.total > versions.BOOT_TIMEOUT:
        cluster.draft.derive(need.total, *path)
        cluster.draft.notes.append(f"{'/'.join(path)}: {need.total} s ({need})")


def text(outcome: Outcome, version: str) -> str:
    """Return the file's text: why figures are what they are, and the configuration."""
    lines = [f"{MARK}, for ParallelCluster {version}.", "# Change the variables, and run the playbook again."]
    for note in outcome.notes:
        lines += textwrap.wrap(f"# {note}", _COLUMNS, **_WRAPPED)
    return "\n".join(lines) + "\n" + custom_actions.dump(outcome.config)
