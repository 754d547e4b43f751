#!/usr/bin/python3
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A stand-in for AWS' CloudWatch agent, for the sandbox: README.md says where it is faithful.

It is installed under each of the agent's names, and does what the name that it is called by does.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

HOME = os.environ.get("CLOUDWATCH_AGENT_HOME", "/opt/aws/amazon-cloudwatch-agent")
ENDPOINT = os.environ.get("CLOUDWATCH_AGENT_ENDPOINT", "http://aws:5000")
REGION = "us-east-1"
ETC = f"{HOME}/etc"
OLD, FOLDER = f"{ETC}/amazon-cloudwatch-agent.json", f"{ETC}/amazon-cloudwatch-agent.d"
TOML, YAML, ENV = f"{ETC}/amazon-cloudwatch-agent.toml", f"{ETC}/amazon-cloudwatch-agent.yaml", f"{ETC}/env-config.json"
LOG, VALIDATION = f"{HOME}/logs/amazon-cloudwatch-agent.log", f"{HOME}/logs/configuration-validation.log"
UNIT = "amazon-cloudwatch-agent.service"
NO_FILES = 99
DEFAULT = {
    "metrics": {
        "metrics_collected": {
            "mem": {"measurement": ["mem_used_percent"]},
            "disk": {"measurement": ["used_percent"], "resources": ["*"]},
        },
        "append_dimensions": {"InstanceId": "${aws:InstanceId}"},
    }
}
CPU = ("active", "guest", "guest_nice", "idle", "iowait", "irq", "nice", "softirq", "steal", "system", "user")
MEASUREMENTS = {
    "cpu": {f"{kind}_{x}" for kind in ("time", "usage") for x in CPU},
    "mem": {
        *("active", "available", "available_percent", "buffered", "cached", "free", "inactive", "shared"),
        *("total", "used", "used_percent"),
    },
    "swap": {"free", "used", "used_percent"},
    "disk": {"free", "inodes_free", "inodes_total", "inodes_used", "total", "used", "used_percent"},
    "net": {"bytes_sent", "bytes_recv", "drop_in", "drop_out", "err_in", "err_out", "packets_sent", "packets_recv"},
    "nvidia_gpu": {
        *("utilization_gpu", "temperature_gpu", "power_draw", "fan_speed"),
        *("utilization_memory", "memory_total", "memory_used", "memory_free"),
        *("pcie_link_gen_current", "pcie_link_width_current"),
        *(f"encoder_stats_{x}" for x in ("session_count", "average_fps", "average_latency")),
        *(f"clocks_current_{x}" for x in ("graphics", "sm", "memory", "video")),
    },
}
LIMITS = {
    *("cpu_time", "file_locks", "memory_data", "memory_locked", "memory_rss", "memory_stack", "memory_vms"),
    *("nice_priority", "num_fds", "realtime_priority", "signals_pending"),
}
PROCSTAT = {
    *("cpu_time", "cpu_usage", *(f"cpu_time_{x}" for x in CPU if x not in ("active", "softirq"))),
    *("cpu_time_soft_irq", "cpu_time_stolen", "involuntary_context_switches", "voluntary_context_switches"),
    *(f"memory_{x}" for x in ("data", "locked", "rss", "stack", "swap", "vms")),
    *("nice_priority", "num_fds", "num_threads", "pid", "pid_count", "realtime_priority", "signals_pending"),
    *(f"{kind}_{x}" for kind in ("read", "write") for x in ("bytes", "count")),
    *(f"rlimit_{limit}_{kind}" for limit in LIMITS for kind in ("hard", "soft")),
}
REAL_NAMES = {"nvidia_gpu": "nvidia_smi"}
# In drop_original_metrics the agent puts the real name before every name without the plugin's own, but for these.
DROPPED_AS_NAMED = {"collectd", "statsd", "ethtool", "efa"}
EFA = {
    *(f"{way}_{what}" for way in ("tx", "rx") for what in ("bytes", "pkts")),
    *(f"{way}_{what}" for way in ("send", "recv", "rdma_read", "rdma_write") for what in ("bytes", "wrs")),
    *("rx_dropped", "rdma_read_wr_err", "rdma_read_resp_bytes", "rdma_write_wr_err", "rdma_write_recv_bytes"),
    *("retrans_bytes", "retrans_pkts", "retrans_timeout_events"),
    *("unresponsive_remote_events", "impaired_remote_conn_events"),
}


class Refused(Exception):
    """The configuration is refused; the lines say why."""


# the translator


def load(path: str) -> dict:
    try:
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)
    except ValueError as error:
        raise Refused(f"Fail to read the json file {path}: {error}") from error


def configurations(multi: str) -> dict[str, dict]:
    """What is merged: with `default` the new file, with `append` that over what is there, else what is there."""
    found = {}
    if multi != "default" and os.path.exists(OLD):
        found[OLD] = load(OLD)
    for path in sorted(glob.glob(f"{FOLDER}/*")):
        if path.endswith(".tmp"):
            if multi != "remove":
                found[path[: -len(".tmp")]] = load(path)
        elif multi != "default" and not path.endswith(".yaml") and path not in found:
            found[path] = load(path)
    return found


# Sections whose parts are merged one by one, and lists to which each file adds.
SECTIONS = {
    "": ("agent", "metrics", "logs", "traces"),
    "metrics": ("metrics_collected",),
    "logs": ("logs_collected", "metrics_collected"),
    "logs/logs_collected": ("files",),
    "logs/metrics_collected": ("prometheus",),
}
LISTS = {"metrics/metrics_collected": ("procstat",), "logs/logs_collected/files": ("collect_list",)}


def merge(source: dict, result: dict, path: str, errors: list[str]) -> None:
    for key, value in source.items():
        below = f"{path}/{key}".strip("/")
        if key in SECTIONS.get(path, ()) and isinstance(value, dict):
            merge(value, result.setdefault(key, {}), below, errors)
        elif key in LISTS.get(path, ()):
            there = result.setdefault(key, [])
            there.extend(item for item in value if item not in there)
        elif key not in result:
            if path:  # at the top a name that it does not know is passed over
                result[key] = value
        elif result[key] != value:
            errors.append(f"Under path : /{below} | Error : Different values are specified for {key}")


def processes(entries: list) -> list[str]:
    errors, where = [], "/metrics/metrics_collected/procstat/"
    for number, entry in enumerate(entries):
        if not {"pid_file", "exe", "pattern"} & set(entry):
            errors.append(f"Under path : {where}{number} | Error : Must validate at least one schema (anyOf)")
        if "measurement" not in entry:
            errors.append(f"Under path : {where}{number} | Error : measurement is required")
        names = [re.sub("^procstat_", "", name.strip()) for name in entry.get("measurement", [])]
        invalid = [name for name in names if name not in PROCSTAT]
        errors += [f"Under path : {where} | Error : measurement name {name} is invalid" for name in invalid]
    return errors


COMMON = {
    *("metrics_collected", "force_flush_interval", "credentials", "endpoint_override"),
    *("service.name", "deployment.environment"),
}


def unknown(section: str, part: dict, known: set[str]) -> list[str]:
    where = f"Under path : /{section}"
    return [f"{where} | Error : Additional property {key} is not allowed" for key in sorted(set(part) - known - COMMON)]


def check(config: dict) -> None:
    errors = []
    metrics, logs = config.get("metrics"), config.get("logs")
    if metrics is not None:
        more = {"namespace", "append_dimensions", "aggregation_dimensions", "metrics_destinations"}
        errors += unknown("metrics", metrics, more)
        if not metrics.get("metrics_collected"):
            errors.append("Under path : /metrics | Error : metrics_collected is required")
        for plugin, part in (metrics.get("metrics_collected") or {}).items():
            interval = part.get("metrics_collection_interval", 60) if isinstance(part, dict) else 60
            if not isinstance(interval, int) or not 1 <= interval <= 172800:
                errors.append(
                    f"Under path : /metrics/metrics_collected/{plugin} | Error : Must be greater than or equal to 1"
                )
            if plugin == "procstat":
                errors += processes(part)
            if plugin in MEASUREMENTS:
                for name in part.get("measurement", []):
                    name = name["name"] if isinstance(name, dict) else name
                    if (
                        re.sub(f"^({plugin}|{REAL_NAMES.get(plugin, plugin)})_", "", name.strip())
                        not in MEASUREMENTS[plugin]
                    ):
                        where = f"/metrics/metrics_collected/{plugin}/"
                        errors.append(f"Under path : {where} | Error : measurement name {name} is invalid")
    if logs is not None:
        errors += unknown("logs", logs, {"logs_collected", "log_stream_name", "concurrency"})
        if not logs.get("logs_collected") and not logs.get("metrics_collected"):
            errors.append("Under path : /logs | Error : logs_collected is required")
    if errors:
        raise Refused("\n".join(["E! Invalid Json input schema.", *errors]))


def translate(multi: str) -> None:
    found = configurations(multi)
    if not found:
        if multi == "remove":
            sys.exit(NO_FILES)
        found = {"default": DEFAULT}
    merged, errors = {}, []
    for path in sorted(found):
        print(f"I! Reading json config file path: {path} ...")
        merge(found[path], merged, "", errors)
    if errors:
        raise Refused("\n".join([*errors, "E! Failed to merge multiple json config files."]))
    check(merged)
    with open(TOML, "w", encoding="utf-8") as stream:
        json.dump(merged, stream, indent=1)
    print("I! Valid Json input schema.\nConfiguration validation first phase succeeded")


# amazon-cloudwatch-agent-ctl


def running() -> bool:
    return subprocess.run(["systemctl", "is-active", "--quiet", UNIT], check=False).returncode == 0


def start(mode: str) -> None:
    if running():
        print("amazon-cloudwatch-agent has already been started")
        return
    if not os.path.exists(TOML):
        print("amazon-cloudwatch-agent is not configured. Applying amazon-cloudwatch-agent default configuration.")
        configure("default", False, mode, "default")
    for words in (["daemon-reload"], ["enable", "--quiet", UNIT], ["restart", UNIT]):
        done = subprocess.run(["systemctl", *words], check=False)
        if done.returncode:
            sys.exit(done.returncode)


def stop() -> None:
    if not running():
        print("amazon-cloudwatch-agent has already been stopped")
    elif subprocess.run(["systemctl", "stop", UNIT], check=False).returncode:
        sys.exit(1)


def download(source: str, multi: str) -> None:
    for path in glob.glob(f"{FOLDER}/*.tmp"):
        os.unlink(path)
    kind, _, where = source.partition(":")
    if kind == "file":
        name = "file_" + re.sub(r"[/ :]", "_", os.path.basename(where))
    elif source == "default":
        name = "default"
    else:
        raise Refused(f"location type {kind} is not supported")
    os.makedirs(FOLDER, exist_ok=True)
    try:
        if multi == "remove":
            os.unlink(f"{FOLDER}/{name}")
            return
        text = json.dumps(DEFAULT)
        if kind == "file":
            with open(where, encoding="utf-8") as stream:
                text = stream.read()
    except OSError as error:
        what = "failed to remove the json file" if multi == "remove" else "fail to fetch/remove json config:"
        raise Refused(f"{what} {error.filename}: {error.strerror}") from error
    with open(f"{FOLDER}/{name}.tmp", "w", encoding="utf-8") as stream:
        stream.write(text)
    print(f"Successfully fetched the config and saved in {FOLDER}/{name}.tmp")


def refuse(error: Refused, program: str) -> None:
    """What a program prints to its standard output is lost when it fails; what it logs is not."""
    for line in (*str(error).splitlines(), f"E! {program} process exited with non-zero status: 1"):
        print(time.strftime("%Y/%m/%d %H:%M:%S"), line, file=sys.stderr)
    sys.exit(1)


def configure(source: str, restart: bool, mode: str, multi: str) -> None:
    print("****** processing amazon-cloudwatch-agent ******", flush=True)
    if source == "all":
        if multi != "remove":
            print('ignore cwa configuration "all" as it is only supported by action "remove-config"')
            return
        shutil.rmtree(FOLDER, ignore_errors=True)
        os.makedirs(FOLDER)
    else:
        try:
            download(source, multi)
        except Refused as error:
            refuse(error, "config-downloader")
    if not os.listdir(FOLDER):
        print("all amazon-cloudwatch-agent configurations have been removed")
        for path in (TOML, YAML):
            if os.path.exists(path):
                os.unlink(path)
    else:
        print("Start configuration validation...", flush=True)
        try:
            translate(multi)
        except Refused as error:
            refuse(error, "config-translator")
        print(f"{HOME}/bin/amazon-cloudwatch-agent -schematest -config {TOML}")
        # What makes the second phase fail in a test.
        problem = f"{ETC}/second-phase-fails"
        with open(VALIDATION, "w", encoding="utf-8") as stream:
            stream.write("E! the sandbox lets it fail\n" if os.path.exists(problem) else "")
        if os.path.exists(problem):
            print(
                "Configuration validation second phase failed\n======== Error Log ========\nE! the sandbox lets it fail"
            )
            sys.exit(1)
        print("Configuration validation second phase succeeded\nConfiguration validation succeeded", flush=True)
        if multi == "default":
            if os.path.exists(OLD):
                os.unlink(OLD)
            for path in glob.glob(f"{FOLDER}/*"):
                if not path.endswith(".tmp"):
                    os.unlink(path)
        if multi != "remove":
            for path in glob.glob(f"{FOLDER}/*.tmp"):
                os.replace(path, path[: -len(".tmp")])
    if restart:
        stop()
        start(mode)


def status() -> None:
    pid = subprocess.run(
        ["systemctl", "show", "--property=MainPID", "--value", UNIT], capture_output=True, text=True, check=False
    )
    started = ""
    if pid.stdout.strip() not in ("", "0"):
        words = ["ps", "-o", "lstart=", "-p", pid.stdout.strip()]
        moment = subprocess.run(
            words, capture_output=True, text=True, check=False, env={"TZ": "UTC", "PATH": os.environ["PATH"]}
        ).stdout.strip()
        started = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.strptime(moment)) if moment else ""
    with open(f"{HOME}/bin/CWAGENT_VERSION", encoding="utf-8") as stream:
        version = stream.read().strip()
    print(
        json.dumps(
            {
                "status": "running" if running() else "stopped",
                "starttime": started,
                "configstatus": "configured" if os.path.exists(TOML) else "not configured",
                "version": version,
            },
            indent=2,
        )
    )


def ctl(words: list[str]) -> None:
    options = {"-a": "", "-c": "", "-m": "ec2", "-s": False, "-d": False}
    while words:
        word = words.pop(0)
        if word not in options:
            print(f"Invalid option: {word}", file=sys.stderr)
        elif isinstance(options[word], bool):
            options[word] = True
        elif not words:
            print(f"Option {word} requires an argument", file=sys.stderr)
            sys.exit(1)
        else:
            options[word] = words.pop(0)
    mode, action = options["-m"], options["-a"]
    if mode not in ("ec2", "onPremise", "onPrem", "auto"):
        print(f"Invalid mode: {mode}", file=sys.stderr)
        sys.exit(1)
    multi = {"fetch-config": "default", "append-config": "append", "remove-config": "remove"}
    if action in multi:
        configure(options["-c"] or "default", options["-s"], mode, multi[action])
    elif action == "start":
        start(mode)
    elif action == "stop":
        stop()
    elif action == "status":
        status()
    else:
        print(f"Invalid action: {action}", file=sys.stderr)
        sys.exit(1)


# the agent


def log(line: str) -> None:
    with open(LOG, "a", encoding="utf-8") as stream:
        stream.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {line}\n")


def call(service: str, body: bytes, **headers: str) -> bytes:
    scope = f"Credential=sandbox/20260101/{REGION}/{service}/aws4_request, SignedHeaders=host, Signature=none"
    request = urllib.request.Request(
        ENDPOINT,
        body,
        {"Authorization": f"AWS4-HMAC-SHA256 {scope}", **{k.replace("_", "-"): v for k, v in headers.items()}},
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer:
        return answer.read()


def instance_id() -> str:
    with open("/var/lib/cloud/data/instance-id", encoding="utf-8") as stream:
        return stream.read().strip()


def cpu_times() -> list[int]:
    with open("/proc/stat", encoding="ascii") as stream:
        return [int(word) for word in stream.readline().split()[1:9]]


def mounts() -> list[tuple[str, str, str]]:
    with open("/proc/self/mounts", encoding="utf-8") as stream:
        return [tuple(line.split()[:3]) for line in stream if line.startswith(("/", "overlay"))]  # type: ignore[misc]


class Collector:
    """Yields (name, value, dimensions of its own) for a plugin of `metrics_collected`."""

    def __init__(self) -> None:
        self.cpu: list[int] | None = None
        self.efa: dict[str, int] = {}

    def values(self, plugin: str, part: dict) -> list[tuple[str, float, dict[str, str]]]:
        method = getattr(self, f"of_{plugin}", None)
        return [(name, value, own) for name, value, own in method(part)] if method else []

    def of_cpu(self, part: dict):
        before, now = self.cpu, cpu_times()
        self.cpu = now
        if before is None:
            time.sleep(0.2)
            before, now = now, cpu_times()
        spent = [b - a for a, b in zip(before, now)]
        total = sum(spent) or 1
        share = {
            "user": spent[0],
            "system": spent[2],
            "idle": spent[3],
            "iowait": spent[4],
            "active": total - spent[3] - spent[4],
        }
        for name, value in share.items():
            yield f"cpu_usage_{name}", 100 * value / total, {"cpu": "cpu-total"}

    def of_mem(self, part: dict):
        with open("/proc/meminfo", encoding="ascii") as stream:
            info = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in stream}
        used = info["MemTotal"] - info["MemAvailable"]
        yield from (
            ("mem_total", info["MemTotal"], {}),
            ("mem_used", used, {}),
            ("mem_available", info["MemAvailable"], {}),
            ("mem_free", info["MemFree"], {}),
            ("mem_used_percent", 100 * used / info["MemTotal"], {}),
        )

    def of_disk(self, part: dict):
        wanted = part.get("resources") or ["*"]
        for device, path, kind in mounts():
            if ("*" not in wanted and path not in wanted) or kind in part.get("ignore_file_system_types", []):
                continue
            room = os.statvfs(path)
            used = room.f_blocks - room.f_bfree
            own = (
                {"path": path, "fstype": kind}
                if part.get("drop_device")
                else {"path": path, "fstype": kind, "device": device}
            )
            yield "disk_used_percent", 100 * used / (used + room.f_bavail or 1), own
            yield "disk_used", used * room.f_frsize, own

    def of_nvidia_gpu(self, part: dict):
        names = {
            "utilization.gpu": "utilization_gpu",
            "memory.used": "memory_used",
            "memory.total": "memory_total",
            "temperature.gpu": "temperature_gpu",
            "power.draw": "power_draw",
        }
        line = ["nvidia-smi", "--query-gpu=index,name," + ",".join(names), "--format=csv,noheader,nounits"]
        done = subprocess.run(line, capture_output=True, text=True, check=False) if shutil.which("nvidia-smi") else None
        for row in done.stdout.splitlines() if done and not done.returncode else []:
            index, name, *values = (word.strip() for word in row.split(","))
            for field, value in zip(names.values(), values):
                yield f"nvidia_smi_{field}", float(value), {"index": index, "name": name, "arch": "Hopper"}

    def of_efa(self, part: dict):
        for path in sorted(glob.glob("/sys/class/infiniband/*/ports/*/hw_counters/*")):
            device, port, counter = path.split("/")[4], path.split("/")[6], os.path.basename(path)
            counter = {"rx_drops": "rx_dropped"}.get(counter, counter)
            with open(path, encoding="ascii") as stream:
                value = int(stream.read())
            before = self.efa.get(path, value)
            self.efa[path] = value
            if counter in EFA:
                yield f"efa_{counter}", value - before, {"device": device, "port": port, "eniId": f"eni-{device}"}


def selected(plugin: str, part: dict) -> dict[str, tuple[str, str]]:
    """The names that the agent sends, by those that a plugin has, with their units."""
    real = REAL_NAMES.get(plugin, plugin)
    found = {}
    for one in part.get("measurement", []):
        name, rename, unit = (
            (one["name"], one.get("rename"), one.get("unit", "")) if isinstance(one, dict) else (one, None, "")
        )
        full = f"{real}_" + re.sub(f"^({plugin}|{real})_", "", name.strip())
        found[full] = (rename or full, unit)
    return found


def data(config: dict, collector: Collector) -> list[dict]:
    metrics, found = config["metrics"], []
    everywhere = {
        key: instance_id() if value == "${aws:InstanceId}" else value
        for key, value in metrics.get("append_dimensions", {}).items()
    }
    for plugin, part in metrics["metrics_collected"].items():
        if not isinstance(part, dict):
            continue
        names = selected(plugin, part)
        own = {} if plugin == "efa" else part.get("append_dimensions", {})
        dropped = {
            name if plugin in name or plugin in DROPPED_AS_NAMED else f"{REAL_NAMES.get(plugin, plugin)}_{name}"
            for name in part.get("drop_original_metrics", [])
            if name != "*"
        }
        for name, value, labels in collector.values(plugin, part):
            if name not in names:
                continue
            dimensions = {**labels, **own, **everywhere}
            if not everywhere:
                dimensions["host"] = os.uname().nodename
            sets = [] if name in dropped or "*" in part.get("drop_original_metrics", []) else [dimensions]
            for rollup in metrics.get("aggregation_dimensions", []):
                if len(rollup) < len(dimensions) and all(key in dimensions for key in rollup):
                    sets.append({key: dimensions[key] for key in rollup})
            found += [
                {"name": names[name][0], "unit": names[name][1], "value": value, "dimensions": one} for one in sets
            ]
    return found


def put_metrics(namespace: str, metrics: list[dict]) -> None:
    for start_at in range(0, len(metrics), 100):
        fields = {"Action": "PutMetricData", "Version": "2010-08-01", "Namespace": namespace}
        for n, one in enumerate(metrics[start_at : start_at + 100], 1):
            member = f"MetricData.member.{n}"
            fields |= {f"{member}.MetricName": one["name"], f"{member}.Value": f"{one['value']:.6f}"}
            if one["unit"]:
                fields[f"{member}.Unit"] = one["unit"]
            for m, (key, value) in enumerate(sorted(one["dimensions"].items()), 1):
                fields |= {f"{member}.Dimensions.member.{m}.Name": key, f"{member}.Dimensions.member.{m}.Value": value}
        call("monitoring", urllib.parse.urlencode(fields).encode(), Content_Type="application/x-www-form-urlencoded")


def send_metrics(config: dict, collector: Collector) -> None:
    namespace = config["metrics"].get("namespace", "CWAgent")
    everything = data(config, collector)
    put_metrics(namespace, everything)
    log(f"I! sent {len(everything)} metrics to {namespace}")


class Shipper:
    """Sends what is new in the files of `collect_list` to their log streams."""

    def __init__(self) -> None:
        self.sent: dict[tuple[str, str], tuple[int, int]] = {}
        self.made: set[tuple[str, str]] = set()

    def ask(self, action: str, **fields: object) -> None:
        call(
            "logs",
            json.dumps(fields).encode(),
            X_Amz_Target=f"Logs_20140328.{action}",
            Content_Type="application/x-amz-json-1.1",
        )

    def make(self, group: str, stream: str) -> None:
        for action, fields in (
            ("CreateLogGroup", {"logGroupName": group}),
            ("CreateLogStream", {"logGroupName": group, "logStreamName": stream}),
        ):
            if (group, stream if "Stream" in action else "") in self.made:
                continue
            try:
                self.ask(action, **fields)
            except urllib.error.HTTPError as error:
                if b"ResourceAlreadyExists" not in error.read():
                    raise
            self.made.add((group, stream if "Stream" in action else ""))

    def put(self, group: str, stream: str, messages: list[str]) -> None:
        self.make(group, stream)
        now = int(time.time() * 1000)
        self.ask(
            "PutLogEvents",
            logGroupName=group,
            logStreamName=stream,
            logEvents=[{"timestamp": now, "message": m} for m in messages],
        )

    def ship(self, config: dict) -> None:
        for one in config.get("logs", {}).get("logs_collected", {}).get("files", {}).get("collect_list", []):
            names = {
                "{instance_id}": instance_id(),
                "{hostname}": os.uname().nodename,
                "{local_hostname}": os.uname().nodename,
            }
            stream = one.get("log_stream_name", "{instance_id}")
            for word, value in names.items():
                stream = stream.replace(word, value)
            paths = [path for path in glob.glob(one["file_path"]) if os.path.isfile(path)]
            if not one.get("publish_multi_logs"):
                paths = sorted(paths, key=os.path.getmtime)[-1:]
            for path in paths:
                to = f"{stream}_{re.sub(r'[^._/#A-Za-z0-9-]', '_', path)}" if one.get("publish_multi_logs") else stream
                self.ship_file(path, one["log_group_name"], to, one.get("multi_line_start_pattern"))

    def ship_file(self, path: str, group: str, stream: str, begins: str | None) -> None:
        inode, size = os.stat(path).st_ino, os.stat(path).st_size
        was, offset = self.sent.get((path, stream), (inode, 0))
        if was != inode or offset > size:
            offset = 0
        if offset == size:
            return
        with open(path, "rb") as stream_of:
            stream_of.seek(offset)
            text = stream_of.read(1 << 20)
        end = text.rfind(b"\n") + 1
        lines = text[:end].decode("utf-8", "replace").splitlines()
        if begins and lines:
            joined: list[str] = []
            for line in lines:
                if joined and not re.search(begins, line):
                    joined[-1] += "\n" + line
                else:
                    joined.append(line)
            lines = joined
        if lines:
            self.put(group, stream, [line for line in lines if line.strip()][-1000:])
        self.sent[path, stream] = (inode, offset + end)


def scrape(config: dict, shipper: Shipper) -> None:
    part = config.get("logs", {}).get("metrics_collected", {}).get("prometheus")
    if not part:
        return
    with open(part["prometheus_config_path"], encoding="utf-8") as stream:
        jobs = json.load(stream)["scrape_configs"]  # YAML that is JSON: not every node has a parser of more
    for job in jobs:
        for group in job.get("static_configs", []):
            for target in group["targets"]:
                url = f"http://{target}{job.get('metrics_path', '/metrics')}"
                try:
                    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5) as answer:
                        text = answer.read().decode("utf-8", "replace")
                except OSError as error:
                    log(f"E! {url}: {error}")
                    continue
                labels = {"job": job["job_name"], "instance": target, **group.get("labels", {})}
                samples = [
                    (m[1], {**labels, **dict(re.findall(r'(\w+)="([^"]*)"', m[2] or ""))}, float(m[3]))
                    for m in re.finditer(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$", text, re.MULTILINE)
                ]
                rules = job.get("metric_relabel_configs", [])
                embed(part, [one for one in samples if kept({"__name__": one[0], **one[1]}, rules)], shipper)


def kept(labels: dict[str, str], rules: list[dict]) -> bool:
    """Say whether a sample is left by relabelling, of which only `drop` is known here."""
    for rule in rules:
        if rule["action"] != "drop":
            raise ValueError(f"metric_relabel_configs: action {rule['action']} is not in the stand-in")
        if re.fullmatch(rule["regex"], ";".join(labels.get(name, "") for name in rule["source_labels"])):
            return False
    return True


def embed(part: dict, samples: list[tuple[str, dict[str, str], float]], shipper: Shipper) -> None:
    emf, events = part["emf_processor"], []
    namespace = emf.get("metric_namespace", "CWAgent/Prometheus")
    for name, labels, value in samples:
        for rule in emf.get("metric_declaration", []):
            source = rule.get("label_separator", ";").join(labels.get(label, "") for label in rule["source_labels"])
            if not re.search(rule["label_matcher"], source) or not any(
                re.search(one, name) for one in rule["metric_selectors"]
            ):
                continue
            for dimensions in rule.get("dimensions", []):
                if all(key in labels for key in dimensions):
                    events.append((name, value, {key: labels[key] for key in dimensions}))
    # The real service makes the metrics out of the log events; here both are sent.
    put_metrics(namespace, [{"name": n, "unit": "", "value": v, "dimensions": d} for n, v, d in events])
    if events:
        shipper.put(
            part["log_group_name"], instance_id(), [json.dumps({"name": n, "value": v, **d}) for n, v, d in events]
        )


def run() -> None:
    with open(TOML, encoding="utf-8") as stream:
        config = json.load(stream)
    parts = [part for part in config.get("metrics", {}).get("metrics_collected", {}).values() if isinstance(part, dict)]
    default = config.get("agent", {}).get("metrics_collection_interval", 60)
    interval = min([part.get("metrics_collection_interval", default) for part in parts] or [default])
    collector, shipper, due = Collector(), Shipper(), 0.0
    while True:
        try:
            shipper.ship(config)
            if time.monotonic() >= due:
                due = time.monotonic() + interval
                if parts:
                    send_metrics(config, collector)
                scrape(config, shipper)
        except (OSError, ValueError) as error:
            log(f"E! {error}")
        time.sleep(2)


def begin() -> None:
    try:
        with open(LOG, "a", encoding="utf-8") as stream:
            sys.stdout = stream
            translate("remove")
    except Refused as error:
        log(f"E! Cannot translate JSON, ERROR is {error}")
        sys.exit(1)
    except SystemExit as error:
        log("I! No json config files found, please provide config, exit now")
        sys.exit(0 if error.code == NO_FILES else error.code)
    finally:
        sys.stdout = sys.__stdout__
    os.execv(f"{HOME}/bin/amazon-cloudwatch-agent", ["amazon-cloudwatch-agent", "-config", TOML, "-envconfig", ENV])


def main() -> None:
    name = os.path.basename(sys.argv[0])
    if name == "amazon-cloudwatch-agent-ctl":
        ctl(sys.argv[1:])
    elif name == "start-amazon-cloudwatch-agent":
        begin()
    elif "-version" in sys.argv:
        with open(f"{HOME}/bin/CWAGENT_VERSION", encoding="utf-8") as stream:
            print(f"CWAgent/{stream.read().strip()} (stand-in)")
    elif "-schematest" not in sys.argv:
        run()


if __name__ == "__main__":
    main()
