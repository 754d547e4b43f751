#!/usr/bin/env python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a series costs the real Prometheus, measured: it scrapes simulated p5.48xlarge nodes, and evaluates the rules.

    python tests/bench/prometheus_memory.py [--nodes 64] [--minutes 15] [--interval 15] [--agent]

Each node answers as metrics.py's p5 does, with values that move. Then Prometheus is killed, and reads its log again.
It takes minutes and gigabytes, so that `make bench` does not run it: metrics.py has its result.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import metrics
from figures import Figure, table

from ansible_collections.pcluster.postboot.tests.unit.plugins.lab import Pages


def lines(folder: Path) -> dict[str, list[tuple[str, bool]]]:
    """What a node answers, by path: each series, and whether it counts."""
    text = metrics.exposition(metrics.role("common", "node_exporter")("__node_exporter_arguments"), folder)
    kinds = dict(re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE))
    found = re.findall(r"^(\w+)(\{.*\})? \S+$", text, re.MULTILINE)
    node = [(f"{name}{labels}", kinds.get(name) == "counter") for name, labels in found]
    # What metrics.py knows of and this machine cannot have.
    there, wanted = Counter(name for name, _labels in found), metrics.node_series(text)
    for name, number in wanted.items():
        node += [(f'{name}{{number="{place}"}}', False) for place in range(number - there[name])]
    gpus = [
        (f'{name}{{gpu="{gpu}",UUID="GPU-{gpu}",modelName="NVIDIA H100",hpc_job="1"}}', False)
        for name in metrics.gpu_series()
        for gpu in range(metrics.GPUS)
    ]
    return {"node": node, "dcgm": gpus}


def answer(series: list[tuple[str, bool]], node: int) -> bytes:
    """Counters at a pace of their own each, and other values that change every minute."""
    now = int(time.time() - 1.7e9)
    values = (
        now * ((place * 7919 + node * 104729) % 1000) if counts else (place * node + now // 60) % 97
        for place, (_name, counts) in enumerate(series)
    )
    return "".join(f"{name} {value}\n" for (name, _counts), value in zip(series, values)).encode()


def serve(answers: dict[str, list[tuple[str, bool]]]) -> ThreadingHTTPServer:
    class Node(Pages):
        def do_GET(self) -> None:
            _empty, kind, node = self.path.split("/")
            self.say(200, answer(answers[kind], int(node)), **{"Content-Type": "text/plain; version=0.0.4"})

        def do_POST(self) -> None:
            """What an agent sends is taken."""
            self.rfile.read(int(self.headers["Content-Length"]))
            self.say(204)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Node)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def configuration(nodes: int, interval: int, address: str, agent: bool) -> str:
    jobs = []
    for job in metrics.role("node_exporter", "dcgm_exporter", "prometheus")("prometheus_jobs"):
        targets = []
        for node in range(nodes):
            name = f"gpu-st-p5-{node}"
            labels = {
                "instance": name,
                "pc_node": name,
                "pc_cluster": "bench",
                "pc_queue": "gpu",
                "pc_node_type": "compute",
            }
            labels["__metrics_path__"] = f"/{job['name']}/{node}"
            targets.append({"targets": [address], "labels": labels})
        relabel = job.get("metric_relabel_configs", [])
        jobs.append({"job_name": job["name"], "static_configs": targets, "metric_relabel_configs": relabel})
    rules = str(metrics.REPO / "roles/prometheus/files/rules/*.yml")
    timing = {"scrape_interval": f"{interval}s", "evaluation_interval": "1m"}
    if agent:
        queue = metrics.role("prometheus")("__prometheus_amp_queue_defaults")
        write = {"url": f"http://{address}/write", "queue_config": queue}
        return json.dumps({"global": timing, "remote_write": [write], "scrape_configs": jobs})
    return json.dumps({"global": timing, "rule_files": [rules], "scrape_configs": jobs})


def told(text: str, name: str) -> float:
    """The sum of a metric's samples in what Prometheus tells of itself."""
    return sum(float(one) for one in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))


def resident(process: int) -> float:
    """Bytes of memory that are its own, without the files of its data that it has mapped."""
    return 1024 * float(re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{process}/status").read_text())[1])  # type: ignore[index]


def cpu(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def samples_of(process: int, minutes: float) -> Iterator[float]:
    for _each in range(int(minutes * 6)):
        time.sleep(10)
        yield resident(process)


def measure(nodes: int, minutes: float, interval: int, agent: bool) -> list[Figure]:
    kind = "agent" if agent else "tsdb"
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        server = serve(lines(folder))
        config = folder / "prometheus.json"
        config.write_text(configuration(nodes, interval, f"127.0.0.1:{server.server_port}", agent))
        url = f"http://127.0.0.1:{metrics.free_port()}"
        line: list[str | Path] = [metrics.program("prometheus", "prometheus", folder), f"--config.file={config}"]
        line += [f"--web.listen-address={url[7:]}", f"--storage.{kind}.path={folder / 'data'}"]
        line += ["--agent"] if agent else []
        with metrics.running(line, f"{url}/-/ready") as process:
            most = max(samples_of(process.pid, minutes))
            with urllib.request.urlopen(f"{url}/metrics", timeout=30) as response:
                own = response.read().decode()
        series = told(own, "prometheus_agent_active_series" if agent else "prometheus_tsdb_head_series")
        appended = told(own, f"prometheus_{'agent' if agent else 'tsdb_head'}_samples_appended_total")
        log = sum(path.stat().st_size for path in (folder / "data/wal").rglob("*") if path.is_file())
        begin = time.monotonic()
        with metrics.running(line, f"{url}/-/ready", 900) as process:
            waited, used = time.monotonic() - begin, cpu(process.pid)
        server.shutdown()
    return [
        Figure("series", series),
        Figure("memory at its highest", most / 1e9, "GB"),
        Figure("bytes a series", most / series),
        Figure("samples", appended),
        Figure("log of these", log / 1e6, "MB"),
        Figure("bytes of the log a sample", log / appended),
        Figure("seconds until it was ready again", waited, "s"),
        Figure("CPU seconds of these", used, "s"),
        Figure("log read in a second", log / waited / 1e6, "MB"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--interval", type=int, default=15)
    parser.add_argument("--agent", action="store_true", help="an agent, which only sends")
    given = parser.parse_args()
    what = "An agent" if given.agent else "Prometheus"
    title = f"{what} and {given.nodes} nodes, scraped every {given.interval} s for {given.minutes:g} min"
    print(table(title, measure(**vars(given))))


if __name__ == "__main__":
    main()
