#!/usr/bin/python3
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A stand-in of SckyzO's slurm_exporter 1.8.4: its flags, and its metrics with their labels, from the Slurm that runs.

README.md says which file of the real one each part follows, and what is not here.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

VERSION = "1.8.4"
COLLECTORS = (
    *("accounts", "cpus", "drain_reason", "fairshare", "gpus", "info", "licenses", "node", "nodes", "partitions"),
    *("queue", "reservation_nodes", "reservations", "scheduler", "users"),
)
OFF_BY_DEFAULT = ("sacct_efficiency",)
VALUES = {
    "web.listen-address": ":9341",
    "web.config.file": "",
    "command.timeout": "5s",
    "log.level": "info",
    "log.format": "text",
    "slurm.bin-path": "",
    "collector.sacct.interval": "5m",
    "collector.sacct.lookback": "1h",
}
SWITCHES = {
    "web.disable-exporter-metrics": False,
    "collector.nodes.feature-set": True,
    "collector.queue.user-label": True,
    "collector.fairshare.user-metrics": True,
    **{f"collector.{name}": True for name in COLLECTORS},
    **{f"collector.{name}": False for name in OFF_BY_DEFAULT},
}
NEEDED = ("sinfo", "squeue", "sdiag", "scontrol", "sshare", "sacct")
VERSIONS = ("sinfo", "squeue", "sdiag", "scontrol", "sacct")
OPTIONAL = ("sbatch", "salloc", "srun")
JOB_STATES = (
    *("pending", "running", "suspended", "completing", "completed", "configuring", "failed", "timeout"),
    *("preempted", "node_fail", "cancelled"),
)
# What a state of a node begins with; resv is written res.
NODE_STATES = ("alloc", "comp", "down", "drain", "fail", "err", "idle", "inval", "maint", "mix", "resv", "planned")
PARTITION = (
    *("cpus_allocated", "cpus_idle", "cpus_other", "cpus_total", "jobs_pending", "jobs_running"),
    *("gpus_idle", "gpus_allocated"),
)
GPU = re.compile(r"gpu:(\(null\)|[^:(]*):?([0-9]+)(\([^)]*\))?")
RPC = re.compile(r"\s*([A-Za-z0-9_-]*).*count:([0-9]*)\s*ave_time:([0-9]*)\s\s*total_time:([0-9]*)\s*")
TRES = re.compile(r"gres[:/]gpu[^,\s]*[:/=](\d+)")
Sample = tuple[str, dict[str, str], float]


class Failed(Exception):
    """A command of Slurm did not answer."""


class Exporter:
    """What is asked for, and what was counted."""

    def __init__(self, words: list[str]) -> None:
        self.values, self.switches = dict(VALUES), dict(SWITCHES)
        for word in words:
            self.take(word)
        self.errors: Counter[str] = Counter()
        self.lock = threading.Lock()

    def take(self, word: str) -> None:
        name, given, value = word.removeprefix("--").partition("=")
        if word == "--version":
            print(f"slurm_exporter, version {VERSION} (branch: stand-in, revision: sandbox)")
            raise SystemExit(0)
        if word.startswith("--") and name in self.values and given:
            self.values[name] = value
        elif word.startswith("--") and name.removeprefix("no-") in self.switches:
            self.switches[name.removeprefix("no-")] = not name.startswith("no-") and value != "false"
        else:
            print(f"slurm_exporter: error: unknown long flag '{word}', try --help", file=sys.stderr)
            raise SystemExit(1)

    def check(self) -> None:
        """Refuse to start where a program of Slurm is missing. Without a path, the real one finds out when asked."""
        path = self.values["slurm.bin-path"]
        missing = [name for name in NEEDED if path and not os.access(os.path.join(path, name), os.X_OK)]
        for name in missing:
            print(f'level=ERROR msg="Slurm binary validation failed" err="binary not found: {path}/{name}"', flush=True)
        if missing:
            raise SystemExit(1)

    def run(self, *words: str) -> list[str]:
        path = self.values["slurm.bin-path"]
        number = re.fullmatch(r"(\d+)(ms|s|m)", self.values["command.timeout"])
        seconds = int(number[1]) * {"ms": 0.001, "s": 1, "m": 60}[number[2]] if number else 5
        try:
            done = subprocess.run(
                [os.path.join(path, words[0]), *words[1:]],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=seconds,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            with self.lock:
                self.errors[words[0]] += 1
            print(f'level=ERROR msg="Failed to execute command" command={words[0]} err="{error}"', flush=True)
            raise Failed from error
        return [line for line in done.stdout.decode().splitlines() if line.strip()]

    # The collectors

    def accounts(self) -> Iterator[Sample]:
        yield from self.people("account", "Account")

    def users(self) -> Iterator[Sample]:
        yield from self.people("user", "UserName")

    def people(self, label: str, field: str) -> Iterator[Sample]:
        sums: dict[str, Counter[str]] = {}
        fields = f"JobID:|,{field}:|,State:|,NumNodes:|,NumCPUs:|,tres-alloc:"
        for line in self.run("squeue", "-a", "-r", "-h", "-O", fields):
            _, name, state, _, cpus, tres = (line.split("|") + [""] * 6)[:6]
            found = sums.setdefault(name.strip(), Counter())
            state = state.strip().lower()
            if state in ("pending", "running", "suspended"):
                found[f"jobs_{state}"] += 1
            if state == "running":
                found["cpus_running"] += int(cpus)
                gpus = TRES.search(tres)
                found["gpus_running"] += int(gpus[1]) if gpus else 0
        for name, found in sums.items():
            for what, value in found.items():
                if value:
                    yield f"slurm_{label}_{what}", {label: name}, value

    def cpus(self) -> Iterator[Sample]:
        for name, value in zip(("alloc", "idle", "other", "total"), self.run("sinfo", "-h", "-o", "%C")[0].split("/")):
            yield f"slurm_cpus_{name}", {}, float(value)

    def drain_reason(self) -> Iterator[Sample]:
        seen = set()
        for line in self.run("sinfo", "-h", "-N", "-o", "%N|%E|%H|%T"):
            node, reason, since, state = line.split("|")[:4]
            told = reason.lower() not in ("", "none", "not responding", "unknown")
            if state.startswith(("drain", "down")) and told and node not in seen:
                seen.add(node)
                yield "slurm_node_drain_reason_info", {"node": node, "reason": reason, "since": since}, 1

    def gpus(self) -> Iterator[Sample]:
        has = self.run("sinfo", "-a", "-h", "--Format=Nodes: ,Gres:")
        total = sum(self.gpu_count(*line.split()[:2]) for line in has)
        used = self.run("sinfo", "-a", "-h", "--Format=Nodes:10 ,GresUsed:", "--state=allocated")
        alloc = sum(self.gpu_count(*line.split()[:2]) for line in used)
        idle = 0.0
        for line in self.run("sinfo", "-a", "-h", "--Format=Nodes: ,Gres: ,GresUsed:", "--state=idle,allocated"):
            nodes, gpus, uses = (line.split() + [""] * 3)[:3]
            idle += self.gpu_count(nodes, gpus) - self.gpu_count(nodes, uses)
        values = {"alloc": alloc, "idle": idle, "other": max(0, total - alloc - idle), "total": total}
        for name, value in {**values, "utilization": alloc / total if total else 0}.items():
            yield f"slurm_gpus_{name}", {}, value

    @staticmethod
    def gpu_count(nodes: str, gres: str) -> float:
        return float(nodes) * sum(int(found[2]) for part in gres.split(",") if (found := GPU.search(part)))

    def info(self) -> Iterator[Sample]:
        path = self.values["slurm.bin-path"]
        for kind, name in (("general", "sinfo"), *(("binary", name) for name in (*VERSIONS, *OPTIONAL))):
            if name in OPTIONAL and not shutil.which(os.path.join(path, name)):
                continue
            try:
                version, value = self.run(name, "--version")[0].split()[1], 1
            except Failed:
                version, value = "not_found", 0
            yield "slurm_info", {"type": kind, "binary": name * (kind == "binary"), "version": version}, value

    def node(self) -> Iterator[Sample]:
        fields = "NodeList: ,AllocMem: ,Memory: ,CPUsState: ,StateLong: ,Partition:"
        for line in sorted(set(self.run("sinfo", "-h", "-N", "-O", fields))):
            node, used, memory, cpus, status, partition = line.split()[:6]
            labels = {"node": node, "status": status, "partition": partition.rstrip("*")}
            for name, value in zip(("alloc", "idle", "other", "total"), cpus.split("/")):
                yield f"slurm_node_cpu_{name}", labels, float(value)
            yield "slurm_node_mem_alloc", labels, float(used)
            yield "slurm_node_mem_total", labels, float(memory)
            yield "slurm_node_status", labels, 1

    def nodes(self) -> Iterator[Sample]:
        sums: dict[tuple[str, str], Counter[str]] = {}
        for line in sorted(set(self.run("sinfo", "-h", "-o", "%R|%D|%T|%b"))):
            partition, count, state, features = line.split("|")[:4]
            known = next((name for name in NODE_STATES if state.startswith(name.replace("resv", "res"))), "other")
            label = ",".join(sorted(features.split(","))).replace("(null)", "null")
            sums.setdefault((partition.rstrip("*"), label), Counter())[known] += int(count)
        for (partition, features), found in sums.items():
            labels = {"partition": partition}
            if self.switches["collector.nodes.feature-set"]:
                labels["active_feature_set"] = features
            for name in (*NODE_STATES, "other"):
                yield f"slurm_nodes_{name}", labels, found[name]
        yield "slurm_nodes_total", {}, len(self.run("scontrol", "show", "nodes", "-o"))

    def partitions(self) -> Iterator[Sample]:
        found: dict[str, Counter[str]] = {}
        for line in self.run("sinfo", "-h", "-o", "%R,%C"):
            partition, cpus = line.rsplit(",", 1)
            numbers = dict(zip(("allocated", "idle", "other", "total"), map(int, cpus.split("/"))))
            found[partition.rstrip("*")] = Counter({f"cpus_{name}": number for name, number in numbers.items()})
        for line in self.run("sinfo", "-h", "--Format=Nodes: ,Partition: ,Gres: ,GresUsed:", "--state=idle,allocated"):
            nodes, partition, has, uses = (line.split() + [""] * 4)[:4]
            if "gpu:" in line:
                sums = found.setdefault(partition.rstrip("*"), Counter())
                sums["gpus_allocated"] += int(self.gpu_count(nodes, uses))
                sums["gpus_idle"] += int(self.gpu_count(nodes, has) - self.gpu_count(nodes, uses))
        for state in ("pending", "running"):
            for partition in self.run("squeue", "-a", "-r", "-h", "-o", "%P", f"--states={state.upper()}"):
                if partition in found:
                    found[partition][f"jobs_{state}"] += 1
        for partition, sums in found.items():
            for name in PARTITION:
                yield f"slurm_partition_{name}", {"partition": partition}, sums[name]

    def queue(self) -> Iterator[Sample]:
        jobs: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()
        totals: Counter[str] = Counter()
        try:
            for line in self.run("squeue", "-h", "-o", "%P|%T|%C|%r|%u"):
                partition, state, cpus, reason, user = line.split("|", 4)
                state = state.lower()
                labels = {"user": user, "partition": partition.rstrip("*")}
                if not self.switches["collector.queue.user-label"]:
                    del labels["user"]
                if state == "pending":
                    labels["reason"] = reason
                if state not in JOB_STATES:
                    continue
                jobs[f"slurm_queue_{state}", tuple(labels.items())] += 1
                jobs[f"slurm_cores_{state}", tuple(labels.items())] += int(cpus)
                totals[state] += 1
                totals[f"cores_{state}"] += int(cpus)
        except Failed:
            jobs.clear()
        for (name, pairs), value in jobs.items():
            yield name, dict(pairs), value
        for name in (*JOB_STATES, "cores_running", "cores_pending"):
            yield f"slurm_jobs_{name}", {}, totals[name]

    def scheduler(self) -> Iterator[Sample]:
        said = self.run("sdiag")
        wanted = {
            "Server thread count": "threads",
            "Agent queue size": "queue_size",
            "DBD Agent queue size": "dbd_queue_size",
            "Jobs submitted": "jobs_submitted",
            "Jobs started": "jobs_started",
            "Jobs completed": "jobs_completed",
            "Jobs canceled": "jobs_canceled",
            "Jobs failed": "jobs_failed",
            "Cycles per minute": "cycle_per_minute",
            "Depth Mean": "backfill_depth_mean",
            "Total backfilled jobs (since last slurm start)": "backfilled_jobs_since_start_total",
            "Total backfilled jobs (since last stats cycle start)": "backfilled_jobs_since_cycle_total",
            "Total backfilled heterogeneous job components": "backfilled_heterogeneous_total",
        }
        part = ""
        values = dict.fromkeys(wanted.values(), 0.0)
        values.update(last_cycle=0, mean_cycle=0, backfill_last_cycle=0, backfill_mean_cycle=0)
        for line in said:
            if line.startswith("Backfilling stats"):
                part = "backfill_"
            elif line.startswith("Remote Procedure"):
                break
            key, _, value = line.strip().partition(":")
            number = re.match(r"\s*(-?\d+)", value)
            name = {"Last cycle": f"{part}last_cycle", "Mean cycle": f"{part}mean_cycle"}.get(key, wanted.get(key))
            if number and name:
                values[name] = float(number[1])
        for name, value in values.items():
            yield f"slurm_scheduler_{name}", {}, value
        yield from self.rpc_stats(said)

    @staticmethod
    def rpc_stats(lines: list[str]) -> Iterator[Sample]:
        """A message's or a user's name ends at the first character that upstream's pattern does not know, as a dot."""
        kind, label = "", ""
        for line in lines:
            if "Remote Procedure Call statistics by message type" in line:
                kind, label = "slurm_rpc_stats", "operation"
            elif "Remote Procedure Call statistics by user" in line:
                kind, label = "slurm_user_rpc_stats", "user"
            found = RPC.fullmatch(line) if kind else None
            for place, suffix in enumerate(("", "_avg_time", "_total_time"), 2):
                if found:
                    yield f"{kind}{suffix}", {label: found[1]}, float(found[place] or 0)

    # What a scrape gets

    def samples(self) -> Iterator[Sample]:
        for name in COLLECTORS:
            collector: Callable[[], Iterable[Sample]] | None = getattr(self, name, None)
            if not self.switches[f"collector.{name}"]:
                continue
            begin = time.monotonic()
            found: list[Sample] = []
            try:
                for sample in collector() if collector else []:
                    found.append(sample)
            except Failed:
                pass  # it is counted; the real one, too, calls the collector a success, and keeps what it had
            yield from found
            yield "slurm_exporter_collector_success", {"collector": name}, 1
            yield "slurm_exporter_collector_duration_seconds", {"collector": name}, time.monotonic() - begin
        for command, count in sorted(self.errors.items()):
            yield "slurm_exporter_command_errors_total", {"command": command}, count

    def text(self) -> str:
        lines: dict[str, list[str]] = {}
        for name, labels, value in self.samples():
            inside = ",".join(f'{key}="{escaped(text)}"' for key, text in sorted(labels.items()))
            lines.setdefault(name, []).append(
                f"{name}{{{inside}}} {digits(value)}" if inside else f"{name} {digits(value)}"
            )
        kind = {"slurm_exporter_command_errors_total": "counter"}
        return "".join(
            f"# HELP {name} of the stand-in\n# TYPE {name} {kind.get(name, 'gauge')}\n" + "\n".join(found) + "\n"
            for name, found in sorted(lines.items())
        )


def digits(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def main() -> None:
    exporter = Exporter(sys.argv[1:])
    exporter.check()

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            pages: dict[str, Callable[[], str]] = {"/metrics": exporter.text, "/healthz": lambda: "ok"}
            text = pages.get(self.path, lambda: "<html><head><title>Slurm Exporter</title></head></html>")().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_words: object) -> None:
            pass

    host, _, port = exporter.values["web.listen-address"].rpartition(":")
    try:
        server = ThreadingHTTPServer((host.strip("[]"), int(port)), Pages)
    except OSError as error:
        why = f"listen tcp {host}:{port}: {error.strerror}"
        print(f'level=ERROR msg="Failed to start HTTP server" err="{why}"', flush=True)
        raise SystemExit(1) from error
    # It catches both and hands them to one collector alone, which is off: nothing ends the server (upstream's #139).
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_caught: None)
    print(f'level=INFO msg="Listening on" address={host or "[::]"}:{port}', flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
