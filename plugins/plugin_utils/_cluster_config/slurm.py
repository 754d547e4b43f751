# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Settings of Slurm: the user's, those that our components ask for, and the database of accounting."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.pcluster.postboot.plugins.module_utils._slurm import metrics
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config import cluster as shared
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config import versions
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config.cluster import Cluster
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config.draft import Step
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_file import slurm as yaml_settings
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_file.rules import is_true
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.variables import shown

_PATH = ("Scheduling", "SlurmSettings")
_CUSTOM = (*_PATH, yaml_settings.KEY)
_EXPORTER = "slurm_exporter"
# What ParallelCluster sets itself (SLURM_SETTINGS_DENY_LIST, 3.16.1), in lower case.
_DENIED = frozenset(
    {
        *("epilog", "grestypes", "launchparameters", "prolog", "reconfigflags", "resumefailprogram"),
        *("resumeprogram", "resumetimeout", "slurmctldhost", "slurmctldlogfile", "slurmctldparameters"),
        *("slurmdlogfile", "slurmuser", "suspendexcnodes", "suspendprogram", "suspendtime", "taskplugin"),
        *("treewidth",),
    }
)
_DENIED_WITH_DATABASE = frozenset(
    {
        *("accountingstoragetype", "accountingstoragehost", "accountingstorageport", "accountingstorageuser"),
        *("jobacctgathertype",),
    }
)
# Route 53 has no endpoint in a VPC. ParallelCluster writes no names there with the first setting; with the second one
# Slurm is told the names that EC2 gives (slurm_plugin/instance_manager.py of aws-parallelcluster-node).
_WITHOUT_DNS = ("DisableManagedDns", "UseEc2Hostnames")
_DENIED_OF_QUEUE = frozenset(["nodes", "partitionname", "resumetimeout", "state", "suspendtime", "oversubscribe"])
# Features is no setting of Slurm's, whose name is Feature; older versions refuse the word.
_DENIED_OF_NODES = frozenset(["cpus", "features", "gres", "nodeaddr", "nodehostname", "nodename", "state", "weight"])
# What ParallelCluster's own slurm.conf has in lists that a custom setting replaces (slurm.conf.erb of
# aws-parallelcluster-cookbook). Without the cloud of PrivateData nothing changes: Slurm 24.11 does not know that word.
_OWN_WORDS = {
    "authinfo": ("cred_expire=70", "credentials of jobs are valid for Slurm's 120 s"),
    "schedulerparameters": ("nohold_on_prolog_fail", "a job whose prolog fails is held, and not requeued"),
}
_TRES, _GPUS = "AccountingStorageTRES", "gres/gpu"


def settings(cluster: Cluster) -> None:
    given: Mapping[str, Any] = cluster.given.get("slurm_settings") or {}
    draft, where = cluster.draft, f"{shared.PREFIX}slurm_settings"
    idle = given.get("idle_minutes")
    if idle is not None and idle < -1:
        cluster.refuse(f"{where}.idle_minutes is {idle}; needed: -1 (never) or more")
    draft.ask(f"{where}.idle_minutes", idle, *_PATH, "ScaledownIdletime")
    draft.ask(f"{where}.update_strategy", given.get("update_strategy"), *_PATH, "QueueUpdateStrategy")
    draft.ask(f"{where}.memory_scheduling", given.get("memory_scheduling"), *_PATH, "EnableMemoryBasedScheduling")
    _dns(cluster)
    _database(cluster)
    custom = [
        _read(cluster, f"{where}.custom[{number}]", each) for number, each in enumerate(given.get("custom") or [])
    ]
    denied = _DENIED | (_DENIED_WITH_DATABASE if draft.get(*_PATH, "Database") else frozenset())
    # Because several settings at once are a partition or nodes of the user's own, ParallelCluster lets them be.
    _refuse(cluster, f"{where}.custom", (name for each in custom if len(each) == 1 for name in each), denied)
    for each in custom:
        _custom(cluster, f"{where}.custom", each)
    _metrics(cluster, given.get("native_metrics"))
    _count_gpus(cluster)
    _lost(cluster)


def of_queue(
    cluster: Cluster, where: str, item: Mapping[str, Any], queue: tuple[Step, ...], resource: tuple[Step, ...]
) -> None:
    for key, path, denied in (
        ("slurm_settings", queue, _DENIED_OF_QUEUE),
        ("node_settings", resource, _DENIED_OF_NODES),
    ):
        given = _read(cluster, f"{where}.{key}", item.get(key) or {})
        _refuse(cluster, f"{where}.{key}", given, denied)
        for name, value in given.items():
            cluster.draft.ask(f"{where}.{key}.{name}", value, *path, yaml_settings.KEY, name)


def _read(cluster: Cluster, where: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as Slurm reads them. What Ansible's YAML may have read as something else is refused."""
    found, lines = yaml_settings.settings(f"{where}.", given, yaml_settings.given)
    for line in lines:
        cluster.refuse(line)
    return found


def _refuse(cluster: Cluster, where: str, names: Iterable[str], denied: frozenset[str]) -> None:
    for name in names:
        if name.lower() in denied:
            cluster.refuse(f"{where} has {name}, which ParallelCluster sets itself; needed: settings without it")


def _custom(cluster: Cluster, where: str, wanted: Mapping[str, Any]) -> None:
    """Add settings of slurm.conf; a single one may be there with another value, and is a conflict then."""
    there = _setting(cluster, next(iter(wanted))) if len(wanted) == 1 else None
    value = next(iter(wanted.values()), None)
    if there is not None and str(there) != str(value):
        name = next(iter(wanted))
        cluster.refuse(
            f"{where} has {name} {value}, and CustomSlurmSettings {there} already; needed: the same, or one alone"
        )
    elif there is None:
        cluster.draft.add(dict(wanted), *_CUSTOM)


def _setting(cluster: Cluster, name: str) -> Any:
    return next(iter(_entry(cluster, name).values()), None)


def _entry(cluster: Cluster, name: str) -> dict[str, Any]:
    """Return the entry that has a setting, the last of them, as Slurm takes the last line; empty if there is none."""
    there = cluster.draft.get(*_CUSTOM) or []
    named = (each for each in reversed(there) if len(each) == 1 and str(next(iter(each))).lower() == name.lower())
    return next(named, {})


def _count_gpus(cluster: Cluster) -> None:
    """Have Slurm count GPUs if it keeps accounts in a database, beside what the user has it count.

    Without slurmdbd, slurmctld 24.11.5 ends with "fatal: slurmdbd is required to run with TRES gres/gpu".
    """
    draft = cluster.draft
    storage = str(_setting(cluster, "AccountingStorageType") or "").lower()
    database = any(draft.get(*_PATH, key) for key in ("Database", "ExternalSlurmdbd")) or storage.endswith("/slurmdbd")
    if not database:
        return
    entry = _entry(cluster, _TRES)
    if not entry:
        draft.add({_TRES: _GPUS}, *_CUSTOM)
        return
    key, there = next(iter(entry.items()))
    if _GPUS not in _words(there):
        entry[key] = f"{there},{_GPUS}" if there else _GPUS
        draft.notes.append(f"{'/'.join(_CUSTOM)}: {key} has {_GPUS} as well, without which Slurm counts no GPUs")


def _lost(cluster: Cluster) -> None:
    """Say which of ParallelCluster's own words a custom setting drops: the last line of a name counts."""
    for name, (word, consequence) in _OWN_WORDS.items():
        for key, there in _entry(cluster, name).items():
            option = word.partition("=")[0]
            if option not in [each.partition("=")[0] for each in _words(there)]:
                cluster.draft.notes.append(
                    f"{'/'.join(_CUSTOM)}: {key} replaces ParallelCluster's own, and {word} is lost: {consequence}. "
                    f"Add {word} to keep it"
                )


def _words(value: Any) -> list[str]:
    return [word.strip().lower() for word in str(value or "").split(",")]


def _metrics(cluster: Cluster, wanted: bool | None) -> None:
    has = versions.has_native_metrics(cluster.version)
    slurm = versions.shown(versions.slurm(cluster.version))
    if wanted and not has:
        cluster.refuse(
            f"{shared.PREFIX}slurm_settings.native_metrics is true, and cluster_config_version is "
            f"{versions.shown(cluster.version)} with Slurm {slurm}; needed: {versions.first_native_metrics()}, the "
            f"first whose Slurm is {versions.shown(metrics.SAFE)} or newer"
        )
    ours = has and any(each.name == _EXPORTER for each in cluster.components)
    if (ours if wanted is None else wanted) and _setting(cluster, "MetricsType") is None:
        cluster.draft.add({"MetricsType": metrics.PLUGIN}, *_CUSTOM)


def _dns(cluster: Cluster) -> None:
    """Render what makes a cluster work without Route 53, unless the user's own file wants Route 53."""
    if cluster.given.get("managed_dns") is not False:
        return
    for name in (*_WITHOUT_DNS, "HostedZoneId"):
        path = (*_PATH, "Dns", name)
        there, wanted = cluster.draft.get(*path), name in _WITHOUT_DNS or None
        if there is not None and (not wanted or not is_true(there)):
            cluster.refuse(
                f"{shared.PREFIX}managed_dns is false, and {'/'.join(path)} of {cluster.draft.name} is {shown(there)}; "
                f"needed: {'true' if wanted else 'none'} there, or {shared.PREFIX}managed_dns true"
            )
        cluster.draft.derive(wanted, *path)


def _database(cluster: Cluster) -> None:
    given: Mapping[str, Any] = cluster.given.get("database") or {}
    draft, where = cluster.draft, f"{shared.PREFIX}database"
    if not given:
        return
    for key, pattern, needed in (
        ("uri", r"[\w.-]+(:\d+)?", "<host>:<port>, without mysql:// and /"),
        ("user", r".+", "the name of the database's user"),
        ("password_secret", r"arn:(?:(?!arn:).)*:secret.*", "the ARN of a secret"),
    ):
        if not re.fullmatch(pattern, given.get(key) or ""):
            cluster.refuse(f"{where}.{key} is {given.get(key) or 'not set'}; needed: {needed}")
    name = given.get("name")
    if name and not re.fullmatch(r"[0-9a-z_]{1,64}", name):
        cluster.refuse(f"{where}.name is {name}; needed: at most 64 lowercase letters, digits and _")
    for key, theirs in (
        ("uri", "Uri"),
        ("user", "UserName"),
        ("password_secret", "PasswordSecretArn"),
        ("name", "DatabaseName"),
    ):
        draft.ask(f"{where}.{key}", given.get(key), *_PATH, "Database", theirs)
