# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Every query of every dashboard, asked of the sandbox's Prometheus; and the playbook that brings them elsewhere."""

from __future__ import annotations

import json
import math
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .alerts import often
from .conftest import unmanaged
from .helpers import On, Play, failed, ok

SCENARIO = Path(__file__).resolve().parent.parent
FILES = sorted((SCENARIO.parents[1] / "roles/grafana/files/dashboards").glob("*.json"))
METRICS = SCENARIO.parents[1] / "docs/runbooks/metrics.md"
PROMETHEUS = "http://10.115.0.10:9090/api/v1"
SLURM = "/opt/slurm/bin"
NODE = "gpu-st-p5-1"  # has GPUs and EFA devices, and runs the job
# A row of memory that waits for a reset of the GPU: role node_health finds that, and by default only reports it.
PENDING = Path("/run/sandbox-dcgm/0/DCGM_FI_DEV_ROW_REMAP_PENDING")
# What cannot have data here, by dashboard and panel.
WITHOUT: dict[tuple[str, str], str] = {
    ("overview", "Root disk"): "a node's root is an overlay, which node_exporter leaves out",
    ("node", "Fullest root disk"): "a node's root is an overlay, which node_exporter leaves out",
    ("slurm", "GPUs"): "Slurm tells a job's GPUs only where it counts them (AccountingStorageTRES), not here",
}


def get(path: str, **parameters: str) -> Any:
    """What Prometheus answers."""
    url = f"{PROMETHEUS}/{path}?{urllib.parse.urlencode(parameters)}"
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        return pytest.fail(f"{parameters}: {error.read().decode()}")


def has_data(query: str) -> bool:
    """Whether a query returns a number."""
    return any(not math.isnan(float(one["value"][1])) for one in get("query", query=query)["result"])


class Chosen:
    """What a person has chosen in a dashboard: everything, and one job; of panels of one node, its node."""

    def __init__(self, made: Any, job: str, interval: str, node: str) -> None:
        self.node = node
        # Grafana works the rate's interval out of the data source's interval.
        seconds = int(interval.removesuffix("s"))
        self.values = {"__rate_interval": f"{4 * seconds}s", "__range": "30m", "__interval": interval}
        for variable in made["templating"]["list"]:
            if variable["type"] == "query":
                found = self.options(variable["query"]["query"])
                assert found, f"the variable {variable['name']} offers nothing: {variable['query']['query']}"
                # Grafana takes the variable's own value for All, or each of the options.
                every = variable.get("allValue") or f"({'|'.join(found)})"
                one = job if variable["name"] == "job" else found[0]
                self.values[variable["name"]] = every if variable["includeAll"] else one
                if variable["name"] == "job":
                    assert job in found

    def fill(self, text: str) -> str:
        text = text.replace('pc_node="$node"', f'pc_node="{self.node}"')
        return re.sub(r"\$\{?([a-z_]\w*)\}?", lambda match: self.values[match[1]], text)

    def options(self, query: str) -> list[str]:
        """What label_values(metric, label) returns."""
        match = re.fullmatch(r"label_values\((.*), (\w+)\)", query)
        assert match, query
        return list(get(f"label/{match[2]}/values", **{"match[]": self.fill(match[1])}))


@pytest.fixture(scope="module")
def job(on: On) -> Iterator[str]:
    """A job that has the GPUs of a node, one that waits, a drained node, and a finding, as long as tests ask."""
    head = on("head")

    def submit(*words: str) -> str:
        line = f"runuser -u ubuntu -- {SLURM}/sbatch --parsable --output=/dev/null --partition=gpu --gres=gpu:8 "
        return head.check_output(line + " ".join(words) + " --wrap 'sleep 900'").strip()

    drained = "burst-dy-c5-4"
    with often(head), unmanaged():  # clustermgtd would replace a drained node
        head.check_output(f"{SLURM}/scontrol update nodename={drained} state=drain reason='a test of dashboards'")
        jobs = [submit(f"--nodelist={NODE}"), submit(f"--nodelist={NODE}")]
        on(NODE).check_output(
            f"mkdir -p {PENDING.parent} && echo 1 > {PENDING} && systemctl start pcluster-node-health"
        )
        try:
            begin = time.monotonic()
            # Two scrapes of what is counted, which a rate needs, and the rules that follow them.
            signs = (
                f'count_over_time(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{hpc_job="{jobs[0]}"}}[10m]) > 1',
                "slurm_queue_pending > 0",
                "slurm_node_drain_reason_info",
                f'hpc_job:gpu_utilization:avg{{hpc_job="{jobs[0]}"}}',
                f'pc_node:job_gpus:count{{hpc_job="{jobs[0]}"}}',
                "pc_node:health_withheld:max",
                "pc_node:health_state:max > 0",
            )
            while not all(has_data(sign) for sign in signs):
                missing = [sign for sign in signs if not has_data(sign)]
                assert time.monotonic() - begin < 240, f"no data after 240 s: {missing}"
                time.sleep(2)
            yield jobs[0]
        finally:
            # Never state=resume: this node is powered down, and no job would start it after the next reconfiguration.
            freed = f"{SLURM}/scontrol update nodename={drained} state=power_down_force"
            head.check_output(f"{SLURM}/scancel {' '.join(jobs)}; {freed}")
            on(NODE).check_output(f"rm {PENDING}")


# Those with data as long as the cluster runs; test_neuron.py asks the other, once a node with Neuron devices is there.
@pytest.mark.parametrize("path", [path for path in FILES if path.stem != "neuron"], ids=lambda path: path.stem)
def test_every_query_has_data(on: On, path: Path, job: str) -> None:
    every_query_has_data(on, path, job)


def every_query_has_data(on: On, path: Path, job: str, node: str = NODE) -> None:
    """Ask each query of a dashboard; `node` is the one of panels of one node."""
    made = json.loads(path.read_text())
    sources = on("head").check_output("grep -v '^#' /etc/grafana/provisioning/datasources/pcluster.yml")
    chosen = Chosen(made, job, json.loads(sources)["datasources"][0]["jsonData"]["timeInterval"], node)
    empty, asked = [], 0
    for panel in made["panels"]:
        for target in panel.get("targets", []):
            asked += 1
            query = chosen.fill(target["expr"])
            title = named(panel, target)
            if has_data(query) == ((path.stem, title) in WITHOUT):
                empty.append(f"{title}: {query}")
    assert asked
    assert not empty, "without data, or excused though they have some:\n" + "\n".join(empty)


def named(panel: Any, target: Any) -> str:
    """The title of a panel, or of a column of a table."""
    if panel["type"] != "table" or len(panel["targets"]) == 1:
        return str(panel["title"])
    (organize,) = (one for one in panel["transformations"] if one["id"] == "organize")
    return str(organize["options"]["renameByName"].get(f"Value #{target['refId']}", panel["title"]))


def column(head: str, number: int) -> list[str]:
    """What stands as code in a column of the page's tables that begin with this heading."""
    tables = re.findall(rf"^\| {head} \|.*\n\|[-|]+\n((?:\|.*\n)+)", METRICS.read_text(), re.MULTILINE)
    rows = [row for table in tables for row in table.splitlines()]
    return [code for row in rows for code in re.findall(r"`([^`]+)`", re.split(r" \| ", row)[number])]


def test_every_metric_of_the_page_is_there(job: str) -> None:
    assert job
    names = column("metric", 0)
    assert len(names) > 60
    assert [name for name in names if not has_data(f"count({name})")] == []


def test_every_query_of_the_page_has_data(job: str) -> None:
    queries = [query.replace('"1234"', f'"{job}"') for query in column("question", 1)]
    assert len(queries) > 35
    assert [query for query in queries if not has_data(query)] == []


def test_panels_of_one_node_are_empty_until_one_is_chosen(on: On, job: str) -> None:
    """What a node's GPUs do is in Prometheus, and no panel asks it of all nodes."""
    made = json.loads((FILES[0].parent / "gpu.json").read_text())
    queries = [one["expr"] for panel in made["panels"] for one in panel.get("targets", []) if '="$node"' in one["expr"]]
    assert len(queries) > 5
    (cluster,) = get("label/pc_cluster/values", **{"match[]": f'up{{pc_node="{NODE}"}}'})
    for query in queries:
        filled = query.replace("$cluster", cluster).replace("$__range", "30m")
        assert has_data(filled.replace("$node", NODE)), query
        assert not has_data(filled.replace("$node", ".*")), query


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Another Grafana, on this machine, and the token of one of its service accounts."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = [sys.executable, str(SCENARIO / "standins/grafana/grafana.py")]
    settings = tmp_path / "grafana.ini"
    settings.write_text(f"[paths]\ndata = {tmp_path}/data\n[server]\nhttp_addr = 127.0.0.1\nhttp_port = {port}\n")
    token = tmp_path / "token"
    with subprocess.Popen([*program, "server", f"--config={settings}"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        assert "HTTP Server Listen" in server.stdout.readline()
        made = subprocess.run(
            [*program, "cli", f"--config={settings}", "stand-in-token", "Admin"], capture_output=True, check=True
        )
        token.write_bytes(made.stdout)
        yield f"http://127.0.0.1:{port}", token
        server.terminate()


def test_they_are_brought_into_another_grafana(play: Play, elsewhere: tuple[str, Path]) -> None:
    url, token = elsewhere
    workspace = "https://aps-workspaces.us-east-1.amazonaws.com/workspaces/ws-1/"
    given = (
        "-e",
        f"dashboards_grafana_url={url}",
        "-e",
        f"dashboards_token_file={token}",
        "-e",
        f"dashboards_amp_url={workspace}",
    )
    assert "dashboard 'GPUs' created" in play(*given, "--check", "--diff", name="dashboards").stdout
    result = ok(play(*given, name="dashboards"))
    assert token.read_text().strip() not in result.stdout
    request = urllib.request.Request(
        f"{url}/api/search", headers={"Authorization": f"Bearer {token.read_text().strip()}"}
    )
    with urllib.request.urlopen(request, timeout=5) as answer:
        assert len(json.load(answer)) == len(FILES)
    assert "everything was there" in play(*given, name="dashboards").stdout


def test_without_a_token_one_line_says_so(
    play: Play, elsewhere: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRAFANA_TOKEN", raising=False)
    result = failed(play("-e", f"dashboards_grafana_url={elsewhere[0]}", name="dashboards"))
    assert "there is no token; needed: one in the environment variable GRAFANA_TOKEN" in result.stdout + result.stderr
