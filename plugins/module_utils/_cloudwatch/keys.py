# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The keys that the CloudWatch agent reads, and what is wrong with a configuration.

The agent's own schema lets most misspelt keys through, and what it does not know it passes over without a word.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

# A type is that of a value, a dictionary the keys of an object, a list with one element the elements of a list.
# ANY stands for every key of an object, or for a value that is not looked into.
ANY = "*"
_TEXTS = [str]
_NAMES = {"service.name": str, "deployment.environment": str}
_CREDENTIALS = {"role_arn": str}
_MEASUREMENT = [ANY]
_PLUGIN = {
    "measurement": _MEASUREMENT,
    "metrics_collection_interval": int,
    "append_dimensions": {ANY: str},
    "drop_original_metrics": _TEXTS,
}
_RESOURCES = {**_PLUGIN, "resources": _TEXTS}
_LOG = {
    "log_group_name": str,
    "log_stream_name": str,
    "log_group_class": str,
    "retention_in_days": int,
    "filters": [{"type": str, "expression": str}],
}
KEYS: dict[str, Any] = {
    "agent": {
        "metrics_collection_interval": int,
        "region": str,
        "credentials": _CREDENTIALS,
        "logfile": str,
        "debug": bool,
        "aws_sdk_log_level": str,
        "run_as_user": str,
        "omit_hostname": bool,
        "user_agent": str,
        "use_dualstack_endpoint": bool,
        "system_metrics_enabled": bool,
        **_NAMES,
    },
    "metrics": {
        "namespace": str,
        "append_dimensions": {"ImageId": str, "InstanceId": str, "InstanceType": str, "AutoScalingGroupName": str},
        "aggregation_dimensions": [_TEXTS],
        "force_flush_interval": int,
        "credentials": _CREDENTIALS,
        "endpoint_override": str,
        "metrics_destinations": {"cloudwatch": {}, "amp": {"workspace_id": str}},
        **_NAMES,
        "metrics_collected": {
            "cpu": {**_RESOURCES, "totalcpu": bool},
            "disk": {**_RESOURCES, "ignore_file_system_types": _TEXTS, "drop_device": bool},
            "diskio": _RESOURCES,
            "mem": _PLUGIN,
            "swap": _PLUGIN,
            "net": _RESOURCES,
            "netstat": _PLUGIN,
            "processes": _PLUGIN,
            "nvidia_gpu": _PLUGIN,
            # It takes no dimensions.
            "efa": {key: kind for key, kind in _PLUGIN.items() if key != "append_dimensions"},
            "procstat": [{**_PLUGIN, "pid_file": str, "exe": str, "pattern": str}],
            "ethtool": {
                "interface_include": _TEXTS,
                "interface_exclude": _TEXTS,
                "metrics_include": _TEXTS,
                "append_dimensions": {ANY: str},
                "drop_original_metrics": _TEXTS,
            },
            "statsd": {
                "service_address": str,
                "metrics_collection_interval": int,
                "metrics_aggregation_interval": int,
                "metric_separator": str,
                "allowed_pending_messages": int,
                "drop_original_metrics": _TEXTS,
                **_NAMES,
            },
            "collectd": {
                "service_address": str,
                "name_prefix": str,
                "collectd_auth_file": str,
                "collectd_security_level": str,
                "collectd_typesdb": _TEXTS,
                "metrics_aggregation_interval": int,
                "append_dimensions": {ANY: str},
                "drop_original_metrics": _TEXTS,
                **_NAMES,
            },
            "jmx": ANY,
            "otlp": ANY,
            "prometheus": {"prometheus_config_path": str},
        },
    },
    "logs": {
        "log_stream_name": str,
        "force_flush_interval": int,
        "credentials": _CREDENTIALS,
        "endpoint_override": str,
        "concurrency": int,
        **_NAMES,
        "logs_collected": {
            "files": {
                "collect_list": [
                    {
                        **_LOG,
                        "file_path": str,
                        "multi_line_start_pattern": str,
                        "timestamp_format": str,
                        "timezone": str,
                        "trim_timestamp": bool,
                        "encoding": str,
                        "auto_removal": bool,
                        "backpressure_mode": str,
                        "blacklist": str,
                        "publish_multi_logs": bool,
                        **_NAMES,
                    }
                ]
            },
            "journald": {"collect_list": [{**_LOG, "units": _TEXTS, "priority": str, "matches": [{ANY: str}]}]},
        },
        "metrics_collected": {
            "prometheus": {
                "cluster_name": str,
                "log_group_name": str,
                "prometheus_config_path": str,
                "disable_metric_extraction": bool,
                "emf_processor": {
                    "metric_declaration_dedup": bool,
                    "metric_namespace": str,
                    "metric_unit": {ANY: str},
                    "metric_declaration": [
                        {
                            "source_labels": _TEXTS,
                            "label_matcher": str,
                            "label_separator": str,
                            "metric_selectors": _TEXTS,
                            "dimensions": [_TEXTS],
                        }
                    ],
                },
            }
        },
    },
}

_CPU = ("active", "guest", "guest_nice", "idle", "iowait", "irq", "nice", "softirq", "steal", "system", "user")
_TCP = ("close", "close_wait", "closing", "established", "fin_wait1", "fin_wait2", "last_ack", "listen", "none")
_DISK_IO = ("read_ops", "write_ops", "read_bytes", "write_bytes", "read_time", "write_time")
_EXCEEDED = ("performance_exceeded_iops", "performance_exceeded_tp")
# What each plugin can measure on Linux, without its own name before it. One that is not here is not looked at.
MEASUREMENTS: dict[str, frozenset[str]] = {
    plugin: frozenset(names)
    for plugin, names in {
        "cpu": [f"{kind}_{name}" for kind in ("time", "usage") for name in _CPU],
        "disk": ["free", "inodes_free", "inodes_total", "inodes_used", "total", "used", "used_percent"],
        "diskio": [
            *("iops_in_progress", "io_time", "reads", "read_bytes", "read_time", "writes", "write_bytes", "write_time"),
            *(f"{kind}_total_{name}" for kind in ("ebs", "instance_store") for name in _DISK_IO),
            *(f"{kind}_{name}" for kind in ("ebs_volume", "ebs_ec2_instance", "instance_store") for name in _EXCEEDED),
            *("ebs_volume_queue_length", "instance_store_volume_queue_length"),
        ],
        "mem": [
            *("active", "available", "available_percent", "buffered", "cached", "free", "inactive", "shared"),
            *("total", "used", "used_percent"),
        ],
        "swap": ["free", "used", "used_percent"],
        "net": [
            *("bytes_sent", "bytes_recv", "drop_in", "drop_out", "err_in", "err_out", "packets_sent", "packets_recv"),
        ],
        "netstat": [*(f"tcp_{name}" for name in (*_TCP, "syn_sent", "syn_recv", "time_wait")), "udp_socket"],
        "processes": [
            *("blocked", "dead", "idle", "paging", "running", "sleeping", "stopped", "total", "total_threads"),
            *("wait", "zombies"),
        ],
        "nvidia_gpu": [
            *("utilization_gpu", "utilization_memory", "memory_total", "memory_used", "memory_free"),
            *("temperature_gpu", "power_draw", "fan_speed", "pcie_link_gen_current", "pcie_link_width_current"),
            *(f"encoder_stats_{name}" for name in ("session_count", "average_fps", "average_latency")),
            *(f"clocks_current_{name}" for name in ("graphics", "sm", "memory", "video")),
        ],
        "efa": [
            *("tx_bytes", "rx_bytes", "tx_pkts", "rx_pkts", "rx_dropped", "send_bytes", "send_wrs", "recv_bytes"),
            *("recv_wrs", "rdma_read_bytes", "rdma_read_resp_bytes", "rdma_read_wrs", "rdma_read_wr_err"),
            *("rdma_write_bytes", "rdma_write_recv_bytes", "rdma_write_wrs", "rdma_write_wr_err", "retrans_bytes"),
            *("retrans_pkts", "retrans_timeout_events", "unresponsive_remote_events", "impaired_remote_conn_events"),
        ],
    }.items()
}
_TIMES = ("guest", "guest_nice", "idle", "iowait", "irq", "nice", "soft_irq", "steal", "stolen", "system", "user")
_LIMITS = ("cpu_time", "memory_data", "memory_locked", "memory_rss", "memory_stack", "memory_vms", "nice_priority")
_LIMITED = (*_LIMITS, "num_fds", "realtime_priority", "signals_pending")
# What can be measured of a process.
PROCESS = frozenset(
    [
        *("cpu_time", *(f"cpu_time_{name}" for name in _TIMES), "cpu_usage"),
        *("pid", "pid_count", "num_fds", "num_threads"),
        *("memory_data", "memory_locked", "memory_rss", "memory_stack", "memory_swap", "memory_vms"),
        *("involuntary_context_switches", "voluntary_context_switches", "nice_priority", "realtime_priority"),
        *("read_bytes", "read_count", "write_bytes", "write_count", "signals_pending"),
        *(f"rlimit_{name}_{kind}" for name in (*_LIMITED, "file_locks") for kind in ("hard", "soft")),
    ]
)
_PROCESS_BY = ("pid_file", "exe", "pattern")
# What EC2's network driver counts, beside what it counts for each queue. The driver decides that, and not the agent.
ENA = frozenset(
    [
        *(f"{name}_allowance_exceeded" for name in ("bw_in", "bw_out", "pps", "conntrack", "linklocal")),
        *("conntrack_allowance_available", "tx_timeout", "suspend", "resume", "wd_expired", "admin_q_pause"),
        *("interface_up", "interface_down", "reset_fail"),
        *(f"ena_srd_{name}" for name in ("mode", "tx_pkts", "eligible_tx_pkts", "rx_pkts", "resource_utilization")),
        *(f"ena_admin_q_{kind}_cmd" for kind in ("aborted", "submitted", "completed")),
        *("ena_admin_q_out_of_space", "ena_admin_q_no_completion", "phc_cnt", "phc_exp", "phc_skp", "phc_err"),
    ]
)
# Names by which the agent knows a plugin, and puts before its measurements.
REAL_NAMES = {"nvidia_gpu": "nvidia_smi"}
_KINDS = {str: "a text", int: "a whole number", bool: "true or false"}
LONGEST_INTERVAL = 172800


def bare(plugin: str, measurement: str) -> str:
    """Return a measurement's name without its plugin's before it."""
    for name in (plugin, REAL_NAMES.get(plugin, plugin)):
        if measurement.startswith(name + "_"):
            return measurement[len(name) + 1 :]
    return measurement


def metric_name(plugin: str, measurement: str) -> str:
    """Return the name that a measurement has in CloudWatch."""
    return f"{REAL_NAMES.get(plugin, plugin)}_{bare(plugin, measurement)}"


def drop_name(plugin: str, measurement: str) -> str:
    """Return the name by which a plugin's drop_original_metrics knows a measurement.

    The agent puts the plugin's real name before every one in which it does not find the name of the configuration.
    """
    return bare(plugin, measurement) if plugin in REAL_NAMES else metric_name(plugin, measurement)


def unknown(what: str, name: str, known: Iterator[str] | list[str]) -> str:
    """Return the error for an unknown name, with the known names that are like it."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, 1)
    advice = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"
    return f"{what} is not known to the agent, which would pass over it; {advice}"


def problems(config: Mapping[str, Any], source: str) -> list[str]:
    """Return what is wrong with a configuration, a line for each; `source` is the variable that it comes from."""
    return [*_walk(config, KEYS, source), *_measurements(config, source)]


def _walk(value: Any, kind: Any, path: str) -> Iterator[str]:
    if kind == ANY:
        return
    if isinstance(kind, Mapping):
        if not isinstance(value, Mapping):
            yield f"{path} is {value!r}; needed: an object with keys"
            return
        for key, inner in value.items():
            if key in kind or ANY in kind:
                yield from _walk(inner, kind.get(key, kind.get(ANY)), f"{path}.{key}")
            else:
                yield unknown(f"{path}.{key}", str(key), list(kind))
    elif isinstance(kind, list):
        if not isinstance(value, list):
            yield f"{path} is {value!r}; needed: a list"
            return
        for number, inner in enumerate(value):
            yield from _walk(inner, kind[0], f"{path}[{number}]")
    elif not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        yield f"{path} is {value!r}; needed: {_KINDS[kind]}"
    elif path.endswith("_interval") and not 0 < value <= LONGEST_INTERVAL:
        yield f"{path} is {value}; needed: 1 to {LONGEST_INTERVAL} seconds"


def _measurements(config: Mapping[str, Any], source: str) -> Iterator[str]:
    metrics = config.get("metrics")
    collected = metrics.get("metrics_collected") if isinstance(metrics, Mapping) else None
    for plugin, part in collected.items() if isinstance(collected, Mapping) else []:
        yield from _processes(part, f"{source}.metrics.metrics_collected.{plugin}") if plugin == "procstat" else ()
        yield from _counters(part, f"{source}.metrics.metrics_collected.{plugin}") if plugin == "ethtool" else ()
        wanted = part.get("measurement") if isinstance(part, Mapping) else None
        where = f"{source}.metrics.metrics_collected.{plugin}.measurement"
        if wanted is None and plugin in MEASUREMENTS:
            yield f"{where} is missing; without one the agent collects nothing of it"
        for one in wanted if isinstance(wanted, list) else []:
            name = one.get("name") if isinstance(one, Mapping) else one
            if not isinstance(name, str):
                yield f"{where} has {one!r}; needed: a name, or an object with a name"
            elif plugin in MEASUREMENTS and bare(plugin, name) not in MEASUREMENTS[plugin]:
                yield unknown(f"{where}: {name}", bare(plugin, name), sorted(MEASUREMENTS[plugin]))


def _processes(entries: Any, where: str) -> Iterator[str]:
    """Look at procstat: one name that it does not know has the agent refuse all of its configuration."""
    for number, entry in enumerate(entries if isinstance(entries, list) else []):
        if not isinstance(entry, Mapping):
            continue
        here = f"{where}[{number}]"
        if not any(entry.get(key) for key in _PROCESS_BY):
            yield f"{here} names no process; needed: pid_file, exe or pattern"
        if not entry.get("measurement"):
            yield f"{here}.measurement is missing; without one the agent refuses its configuration"
        wanted = entry.get("measurement")
        for name in wanted if isinstance(wanted, list) else []:
            if not isinstance(name, str):
                yield f"{here}.measurement has {name!r}; needed: a name"
            elif bare("procstat", name) not in PROCESS:
                yield unknown(f"{here}.measurement: {name}", bare("procstat", name), sorted(PROCESS))


def _counters(part: Any, where: str) -> Iterator[str]:
    """Look at ethtool, whose names may be patterns. What is no slip of a known one may be of a newer driver."""
    wanted = part.get("metrics_include") if isinstance(part, Mapping) else None
    for name in wanted if isinstance(wanted, list) else []:
        close = difflib.get_close_matches(str(name), sorted(ENA), 1, 0.9)
        if close and name not in ENA:
            yield f"{where}.metrics_include: {name} is no counter of the ENA driver; did you mean {close[0]}?"
