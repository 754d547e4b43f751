# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What this collection has the CloudWatch agent collect, and how that fits beside what others have it collect.

The agent merges the files of its configuration. Most keys may stand in one of them only, or with the same value in all,
and several are about the metrics of all files: a namespace in ours would move ParallelCluster's metrics away from its
alarms. So what another file says comes first, and what of ours cannot stand beside it is left out, and told.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._cloudwatch import keys
from ansible_collections.pcluster.postboot.plugins.module_utils._host import document
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem

DEFAULT_NAMESPACE = "CWAgent"
EFA_SINCE = (1, 300068, 0)
# Plugins that report one series for each device, which are of no interest one by one; a disk is.
_OF_DEVICES = ("cpu", "nvidia_gpu", "efa", "net", "diskio")
_GROUPS = {"nvidia_gpu": "gpu", "efa": "efa"}
# Sections that are merged key by key, and lists to which each file adds.
_SECTIONS = {
    "": ("agent", "metrics", "logs", "traces"),
    "metrics": ("metrics_collected",),
    "logs": ("logs_collected", "metrics_collected"),
    "logs.logs_collected": ("files",),
    "logs.metrics_collected": ("prometheus",),
}
_LISTS = {
    "metrics.metrics_collected": ("procstat", "jmx", "otlp"),
    "logs.logs_collected.files": ("collect_list",),
}


_OBJECT = {document.ANY: object}
# What is read of another's file; what the agent itself makes of another shape, it says.
OTHERS = {
    **_OBJECT,
    "agent": _OBJECT,
    "metrics": {
        **_OBJECT,
        "namespace": str,
        "metrics_collected": {**_OBJECT, **{key: [object] for key in _LISTS["metrics.metrics_collected"]}},
    },
    "logs": {
        **_OBJECT,
        "logs_collected": {**_OBJECT, "files": {**_OBJECT, "collect_list": [{**_OBJECT, "log_group_name": str}]}},
        "metrics_collected": {**_OBJECT, "prometheus": _OBJECT},
    },
    "traces": _OBJECT,
}


class Scrape(NamedTuple):
    """An exporter on the node, and what of it goes to CloudWatch."""

    job: str
    target: str
    metrics: tuple[str, ...]
    path: str = "/metrics"
    dimensions: tuple[str, ...] = ()
    metric_relabel_configs: tuple[Mapping[str, Any], ...] = ()
    gpus: bool = False


class Wanted(NamedTuple):
    """The module's options."""

    metrics: tuple[str, ...] = ()
    measurements: Mapping[str, list[Any]] = {}
    per_device: bool = False
    interval: int = 60
    namespace: str = DEFAULT_NAMESPACE
    dimensions: Mapping[str, str] = {}
    disks: tuple[str, ...] = ("/",)
    gpus: int = 0
    efa: int = 0
    logs: tuple[str, ...] = ()
    log_group: str = ""
    scrapes: tuple[Scrape, ...] = ()
    scrape_log_group: str = "/pcluster-postboot/prometheus"
    scrape_path: str = ""
    config: Mapping[str, Any] = {}


class Fitted(NamedTuple):
    """Our part of the configuration, and what became of what was asked for."""

    config: dict[str, Any]
    scrape: dict[str, Any] | None
    namespace: str
    left_out: list[str]


def version_of(text: str) -> tuple[int, ...]:
    """Return an agent's version, such as 1.300071.0b1720, as numbers."""
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", text)
    return tuple(int(number) for number in match.groups()) if match else ()


def merged(files: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return what several files say together. Where they contradict each other the agent complains, and not we."""
    result: dict[str, Any] = {}
    for config in files.values():
        _merge(config, result, "")
    return result


def _merge(source: Mapping[str, Any], result: dict[str, Any], path: str) -> None:
    for key, value in source.items():
        if key in _SECTIONS.get(path, ()) and isinstance(value, Mapping):
            _merge(value, result.setdefault(key, {}), f"{path}.{key}".strip("."))
        elif key in _LISTS.get(path, ()) and isinstance(value, list):
            result[key] = [*result.get(key, []), *(item for item in value if item not in result.get(key, []))]
        else:
            result.setdefault(key, value)


def check(wanted: Wanted) -> None:
    """Refuse what the agent would pass over."""
    source = "cloudwatch_agent_measurements"
    problems = [
        keys.unknown(f"{source}.{plugin}", plugin, list(keys.MEASUREMENTS))
        for plugin in wanted.measurements
        if plugin not in keys.MEASUREMENTS
    ]
    known = {name: {"measurement": what} for name, what in wanted.measurements.items() if name in keys.MEASUREMENTS}
    for line in keys.problems({"metrics": {"metrics_collected": known}}, source):
        problems.append(re.sub(r"\.metrics\.metrics_collected\.(\w+)(\.measurement)?", r".\1", line))
    problems += keys.problems(wanted.config, "cloudwatch_agent_config")
    if not 0 < wanted.interval <= keys.LONGEST_INTERVAL:
        problems.append(f"cloudwatch_agent_interval is {wanted.interval}; needed: 1 to {keys.LONGEST_INTERVAL} seconds")
    for scrape in wanted.scrapes:
        if not scrape.metrics:
            problems.append(f"cloudwatch_agent_scrapes: {scrape.job} names no metrics, and all of them would be sent")
        for pattern in scrape.metrics:
            try:
                re.compile(pattern)
            except re.error as error:
                problems.append(f"cloudwatch_agent_scrapes: {pattern!r} of {scrape.job} is no pattern: {error}")
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise Problem(f"{problems[0]}{more}; nothing was changed")


def fit(wanted: Wanted, others: Mapping[str, Any], version: str, host: str, whose: str) -> Fitted:
    """Return what of ours can stand beside `others`, which is what `whose` files say."""
    left_out: list[str] = []
    wanted = wanted._replace(scrapes=tuple(one for one in wanted.scrapes if wanted.gpus or not one.gpus))
    metrics = others.get("metrics")
    namespace = wanted.namespace
    if metrics:
        namespace = metrics.get("namespace", DEFAULT_NAMESPACE)
    efa = wanted.efa > 0 and "efa" in wanted.metrics
    if efa and version_of(version) < EFA_SINCE:
        left_out.append(f"efa: it needs agent {'.'.join(map(str, EFA_SINCE))}, this is {version or 'unknown'}")
        efa = False
    rollup = not wanted.per_device and not metrics
    config: dict[str, Any] = {}
    plugins = _plugins(wanted, efa, rollup)
    if plugins:
        config["metrics"] = {"metrics_collected": plugins}
    if plugins and not metrics:
        # EFA's metrics take no other dimensions.
        by_node = [sorted([*wanted.dimensions, "InstanceId"]), *([["InstanceId"]] if efa else [])]
        # Without any dimension, each metric once for all nodes of the namespace: a search finds 500 series at most, so
        # that a sum over one is wrong for many nodes.
        config["metrics"]["aggregation_dimensions"] = [*(by_node if rollup else []), []]
    log_group = wanted.log_group or _log_group(others)
    if wanted.logs and not log_group:
        left_out.append("logs: no log group is known (cloudwatch_agent_log_group)")
    elif wanted.logs:
        files = {"collect_list": [_log(path, log_group, host) for path in wanted.logs]}
        config["logs"] = {"logs_collected": {"files": files}}
    scrape = _scrape(wanted) if "prometheus" in wanted.metrics and wanted.scrapes else None
    if scrape:
        config.setdefault("logs", {})["metrics_collected"] = {"prometheus": _embedded(wanted)}
    _add(config, wanted.config)
    if config.get("metrics", {}).get("metrics_collected") and not metrics:
        config["metrics"].setdefault("namespace", namespace)
        config["metrics"].setdefault("append_dimensions", {"InstanceId": "${aws:InstanceId}"})
    left_out += [f"{name}: {whose}" for name in _yield(config, others, "")]
    if metrics and "metrics" in config:
        for key in [key for key in config["metrics"] if key != "metrics_collected"]:
            if key not in metrics:
                left_out.append(f"metrics.{key}: it would change {whose} too")
            del config["metrics"][key]
    if not config.get("metrics", {}).get("metrics_collected"):
        config.pop("metrics", None)
    return Fitted(config, scrape, namespace, left_out)


def _plugins(wanted: Wanted, efa: bool, rollup: bool) -> dict[str, Any]:
    found = {}
    for plugin, measurement in wanted.measurements.items():
        group = _GROUPS.get(plugin, "host")
        if group not in wanted.metrics or not measurement:
            continue
        if (plugin == "nvidia_gpu" and not wanted.gpus) or (plugin == "efa" and not efa):
            continue
        part: dict[str, Any] = {"measurement": list(measurement), "metrics_collection_interval": wanted.interval}
        if plugin != "efa":
            part["append_dimensions"] = dict(wanted.dimensions)
        if plugin == "cpu":
            part["totalcpu"] = True
        if plugin == "disk":
            part.update(resources=list(wanted.disks), drop_device=True)
        if plugin in ("net", "diskio"):
            part["resources"] = ["*"]
        if rollup and plugin in _OF_DEVICES:
            names = [one["name"] if isinstance(one, Mapping) else one for one in measurement]
            part["drop_original_metrics"] = [keys.drop_name(plugin, name) for name in names]
        found[plugin] = part
    return found


def _log_group(others: Mapping[str, Any]) -> str:
    files = ((others.get("logs") or {}).get("logs_collected") or {}).get("files") or {}
    return next((str(one["log_group_name"]) for one in files.get("collect_list", []) if one.get("log_group_name")), "")


def _log(path: str, group: str, host: str) -> dict[str, Any]:
    """Return the entry of a log, whose stream is named as ParallelCluster names its own."""
    entry: dict[str, Any] = {"file_path": path, "log_group_name": group}
    if re.search(r"[*?\[{]", path):
        # What the file is called follows by itself.
        return {**entry, "log_stream_name": f"{host}.{{instance_id}}.pcluster-postboot", "publish_multi_logs": True}
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", re.sub(r"\.(log|json|txt)$", "", path.rpartition("/")[2]))
    entry["log_stream_name"] = f"{host}.{{instance_id}}.pcluster-postboot-{stem}"
    if path.endswith(".json"):
        entry["multi_line_start_pattern"] = r"^\{"  # a document is one event
    return entry


def _scrape(wanted: Wanted) -> dict[str, Any]:
    """Return what the agent's Prometheus reads from a file of its own."""
    labels = dict(wanted.dimensions)
    return {
        "global": {"scrape_interval": f"{wanted.interval}s"},
        "scrape_configs": [
            {
                "job_name": one.job,
                "metrics_path": one.path,
                "static_configs": [{"targets": [one.target], "labels": labels}],
                **({"metric_relabel_configs": one.metric_relabel_configs} if one.metric_relabel_configs else {}),
            }
            for one in wanted.scrapes
        ],
    }


def _embedded(wanted: Wanted) -> dict[str, Any]:
    return {
        "cluster_name": wanted.dimensions.get("ClusterName", ""),
        "log_group_name": wanted.scrape_log_group,
        "prometheus_config_path": wanted.scrape_path,
        "emf_processor": {
            "metric_declaration_dedup": True,
            "metric_namespace": wanted.namespace,
            "metric_declaration": [
                {
                    "source_labels": ["job"],
                    "label_matcher": f"^{re.escape(one.job)}$",
                    "dimensions": [sorted([*wanted.dimensions, *one.dimensions])],
                    "metric_selectors": [f"^(?:{pattern})$" for pattern in one.metrics],
                }
                for one in wanted.scrapes
            ],
        },
    }


def _add(config: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Put the user's own keys over ours: objects are merged, and lists are joined."""
    for key, value in more.items():
        there = config.get(key)
        if isinstance(there, dict) and isinstance(value, Mapping):
            _add(there, value)
        elif isinstance(there, list) and isinstance(value, list):
            config[key] = [*there, *(item for item in value if item not in there)]
        else:
            config[key] = value


def _yield(ours: dict[str, Any], others: Mapping[str, Any], path: str) -> list[str]:
    """Leave out of ours what another file says otherwise; return the names of that."""
    left_out = []
    for key in list(ours):
        below = f"{path}.{key}".strip(".")
        if key not in others or ours[key] == others[key] or key in _LISTS.get(path, ()):
            continue
        if key in _SECTIONS.get(path, ()) and isinstance(ours[key], dict) and isinstance(others[key], Mapping):
            left_out += _yield(ours[key], others[key], below)
        else:
            del ours[key]
            left_out.append(key if path == "metrics.metrics_collected" else below)
    return left_out
