#!/usr/bin/env python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How many series a p5.48xlarge has, which of them a rule or a panel asks for, and what they need on the head node.

    python tests/bench/metrics.py [--json FILE]

The real node_exporter, with the flags of its role, reads the /proc and /sys that p5_tree.py writes, and the program
that reads EFA's counters does as well. dcgm_exporter's series are its role's counters. It takes the node_exporter on
PATH, or the sandbox's, or the distribution's package.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

import conftest  # noqa: E402,F401  # makes this checkout importable as a collection
import dashboards  # noqa: E402
import p5_tree  # noqa: E402
from figures import Figure, run  # noqa: E402

from ansible_collections.pcluster.postboot.plugins.module_utils import _prometheus_load  # noqa: E402
from ansible_collections.pcluster.postboot.tests.templating import work_out  # noqa: E402

REPO = Path(__file__).resolve().parents[2]
GPUS = 8
SIZES = (64, 256, 1024)

# Of the reaches, a p5 has at most this many series, and at least this share of them is asked for.
MOST_SERIES, LEAST_SHARE = 4100, 60

# What a restart reads again is up to three hours of samples, with so many bytes of the log each, of which it reads so
# many a second (tests/bench/prometheus_memory.py: Prometheus 3.5.3, 64 nodes, two shared cores).
HOURS_OF_LOG, LOG_BYTES_A_SAMPLE, LOG_BYTES_A_SECOND = 3, 9.5, 15e6
# Prometheus' documentation (docs/storage.md, 3.13): "an average of only 1-2 bytes per sample".
BYTES_A_SAMPLE = 1.5
DAYS_A_MONTH = 365 / 12
# Amazon Managed Prometheus in us-east-1: USD for ten million samples, up to so many a month
# (aws.amazon.com/prometheus/pricing).
AMP_PRICES = ((2e9, 0.90), (252e9, 0.35), (float("inf"), 0.16))

# How many units of a p5 the role's pattern lets through: amazon-cloudwatch-agent, amazon-efa-metrics, containerd,
# docker, munge, node_exporter, nvidia-{dcgm,dcgm-exporter,fabricmanager,persistenced}, pcluster-node-health, slurmd,
# supervisord. Each has five states (node_exporter 1.12.1, collector/systemd_linux.go: unitStatesName).
UNITS = 13
# dcgm-exporter leaves out what a GPU does not know: an H100 has NVLink 4, which counts its errors by other fields.
NOT_OF_H100 = re.compile(r"DCGM_FI_DEV_NVLINK_COUNT_\w+")
# What Prometheus adds for each target (docs/concepts/jobs_instances.md).
OF_A_TARGET = [
    "up",
    "scrape_duration_seconds",
    "scrape_samples_scraped",
    "scrape_samples_post_metric_relabeling",
    "scrape_series_added",
]


def role(*names: str) -> Any:
    """Return a function that works out a variable of some roles on a p5."""
    efa = {"count": p5_tree.EFAS, "pci_count": p5_tree.EFAS}
    kind = {"node_type": "compute", "image_build": False, "architecture": "x86_64", "go_architecture": "amd64"}
    return work_out(" ".join(names), {**kind, "gpus": {"count": GPUS}, "efa": efa})


def program(name: str, package: str, folder: Path) -> Path:
    """Return a program of the Prometheus project: the one on PATH, the sandbox's, or the distribution's package."""
    found = shutil.which(name) or shutil.which(package)
    if found:
        return Path(found)
    archives = sorted((REPO / ".sandbox/mirror/github.com/prometheus").glob(f"{name}/releases/download/*/*.tar.gz"))
    if archives:
        with tarfile.open(archives[-1]) as archive:
            member = archive.extractfile(next(one for one in archive.getmembers() if one.name.endswith(f"/{name}")))
            (folder / name).write_bytes(member.read())  # type: ignore[union-attr]
        (folder / name).chmod(0o755)
        return folder / name
    line = ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", package]
    if shutil.which("apt-get") and subprocess.run(line, cwd=folder, check=False).returncode == 0:
        subprocess.run(["dpkg-deb", "-x", next(folder.glob("*.deb")), folder / package], check=True)
        return folder / package / "usr/bin" / package
    raise SystemExit(
        f"found no {name}, in PATH, the sandbox or apt's packages; needed: {name}, or the package {package}"
    )


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def running(line: list[str | Path], url: str, seconds: float = 30) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program for as long as the block takes, from the moment at which its address answers."""
    process = subprocess.Popen([str(word) for word in line], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + seconds
        while True:
            try:
                with urllib.request.urlopen(url, timeout=5):
                    break
            except OSError:
                if process.poll() is not None or time.monotonic() > end:
                    raise SystemExit(f"{line[0]} did not answer at {url} within {seconds:g} s") from None
                time.sleep(0.1)
        yield process
    finally:
        process.kill()
        process.wait()


def exposition(arguments: list[str], folder: Path) -> str:
    """What node_exporter answers on a p5, run with some arguments."""
    tree, efa = folder / "p5", folder / "efa"
    if not tree.exists():
        p5_tree.write(tree)
        efa.mkdir()
        reader = REPO / "roles/node_exporter/files/amazon_efa_metrics.py"
        sysfs, output = tree / "sys/class/infiniband", efa / "amazon_efa.prom"
        subprocess.run([sys.executable, "-I", reader, "--sysfs", sysfs, "--output", output], check=True)
    address = f"127.0.0.1:{free_port()}"
    line: list[str | Path] = [program("node_exporter", "prometheus-node-exporter", folder)]
    line += [word for word in arguments if not re.match("--(web.listen-address|collector.textfile.directory)=", word)]
    # From the kernel, over netlink, it would have this machine's interfaces. Older ones do not have all of these.
    told = subprocess.run([line[0], "--help"], capture_output=True, text=True, check=False)
    files = [f"collector.{name}.netlink" for name in ("netdev", "arp")]
    line += [f"--no-{flag}" for flag in files if flag in told.stdout + told.stderr]
    line += [f"--web.listen-address={address}"]
    line += [f"--collector.textfile.directory={efa}", f"--path.rootfs={tree}"]
    line += [f"--path.{name}={tree / place}" for name, place in (("procfs", "proc"), ("sysfs", "sys"))]
    with running(line, f"http://{address}/"), urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


def node_series(text: str, systemd: bool = True) -> Counter[str]:
    """How many series there are of each name, with what needs a running kernel and systemd."""
    series = Counter(re.findall(r"^([a-zA-Z_:][\w:]*)", text, re.MULTILINE))
    series["node_network_receive_nohandler_total"] += len(p5_tree.INTERFACES)
    if systemd:
        series.update({"node_systemd_unit_state": 5 * UNITS, "node_systemd_units": 5, "node_systemd_version": 1})
        series.update(["node_systemd_system_running", "node_systemd_virtualization_info"])
    return series


def kept(series: Counter[str], relabel: list[dict[str, Any]]) -> Counter[str]:
    """What is left of series once a job's metric_relabel_configs have dropped some by their names."""
    for one in relabel:
        if one["source_labels"] != ["__name__"] or one["action"] != "drop":
            raise SystemExit(f"metric_relabel_configs: found {one}; needed: one that drops by the name alone")
        series = Counter({name: number for name, number in series.items() if not re.fullmatch(one["regex"], name)})
    return series


def gpu_series() -> Counter[str]:
    counters = role("common", "dcgm_exporter")("__dcgm_exporter_counters")
    names = [one["name"] for one in counters if one["type"] != "label" and not NOT_OF_H100.fullmatch(one["name"])]
    return Counter(dict.fromkeys(names, GPUS))


def expressions() -> list[str]:
    """Every PromQL expression of the rules and the dashboards."""
    found = [rule["expr"] for rule in dashboards.rules()]
    for board in dashboards.boards().values():
        found += [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
        found += [json.dumps(variable.get("query", "")) for variable in board["templating"]["list"]]
    return found


def asked_for(names: set[str], asked: list[str]) -> set[str]:
    """Which names of metrics stand in an expression, or are of a pattern that does."""
    text = "\n".join(asked)
    words = set(re.findall(r"[a-zA-Z_:][\w:]*", text))
    patterns = re.findall(r'__name__=~"([^"]*)"', text)
    return {name for name in names if name in words or any(re.fullmatch(pattern, name) for pattern in patterns)}


def p5() -> Any:
    """The kind of node that the role's module, which tells of a head node that is too small, takes a p5 for."""
    line = f"NodeName=gpu-st-p5-1 CPUTot={p5_tree.CPUS} AvailableFeatures=static,p5.48xlarge,p5,efa,gpu"
    (kind,) = _prometheus_load.parse(f"{line} Gres=gpu:h100:{GPUS}")
    return kind


def amp_price(samples: float) -> float:
    """USD a month for so many samples a month."""
    price, below = 0.0, 0.0
    for limit, rate in AMP_PRICES:
        price += max(0.0, min(samples, limit) - below) * rate / 1e7
        below = limit
    return price


def gigabytes(text: str) -> float:
    return float(re.fullmatch(r"([\d.]+)GB", text)[1]) * 1e9  # type: ignore[index]


def seconds(text: str) -> int:
    return int(text[:-1]) * {"s": 1, "m": 60}[text[-1]]


def measure() -> list[Figure]:
    arguments = role("common", "node_exporter")("__node_exporter_arguments")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        everything = node_series(exposition([], folder), systemd=False)
        node = node_series(exposition(arguments, folder))
    own = role("node_exporter", "dcgm_exporter", "prometheus")
    scraped = node.total()
    (job,) = (job for job in own("prometheus_jobs") if job["name"] == "node")
    node = kept(node, job["metric_relabel_configs"])
    gpu = gpu_series()
    targets = Counter(dict.fromkeys(OF_A_TARGET, 2))
    series = node + gpu + targets
    asked = asked_for(set(series), expressions())
    total = series.total()
    share = 100 * sum(series[name] for name in asked) / total
    interval = seconds(own("prometheus_scrape_interval"))
    figures = [
        Figure("series of a p5, all exporters", total, at_most=MOST_SERIES),
        Figure("of these, a rule or a panel asks for", share, "%", at_least=LEAST_SHARE),
        Figure("node_exporter, of which Prometheus keeps", node.total()),
        Figure("node_exporter, with the role's flags", scraped),
        Figure("node_exporter, without any flag", everything.total()),
        Figure("dcgm_exporter, and again for each job of the last 2 to 3 hours", gpu.total()),
        Figure(
            "what prometheus_load_info takes for a p5, as a share of these",
            100 * p5().series / total,
            "%",
            at_least=95,
            at_most=105,
        ),
        Figure(
            "the largest scrape, as a share of its limit",
            100 * scraped / own("prometheus_sample_limit"),
            "%",
            at_most=50,
        ),
    ]
    for nodes in SIZES:
        samples = nodes * total / interval
        log = samples * HOURS_OF_LOG * 3600 * LOG_BYTES_A_SAMPLE
        days = gigabytes(own("prometheus_retention_size")) / BYTES_A_SAMPLE / samples / 86400
        figures += [
            Figure(f"{nodes} nodes: series", nodes * total),
            Figure(f"{nodes} nodes: Prometheus' memory", nodes * total * _prometheus_load.BYTES_A_SERIES / 1e9, "GB"),
            Figure(f"{nodes} nodes: samples a second", samples),
            Figure(f"{nodes} nodes: days in {own('prometheus_retention_size')}", days, "days"),
            Figure(f"{nodes} nodes: log that a restart reads", log / 1e9, "GB"),
            Figure(f"{nodes} nodes: seconds of a restart", log / LOG_BYTES_A_SECOND, "s"),
            Figure(f"{nodes} nodes: sent to AMP", amp_price(samples * 86400 * DAYS_A_MONTH), "USD a month"),
        ]
    return figures


if __name__ == "__main__":
    sys.exit(run("Metrics of p5.48xlarge nodes", measure, about=__doc__))
