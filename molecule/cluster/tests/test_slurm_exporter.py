# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Metrics of Slurm: from an exporter beside the sandbox's real Slurm, and from a slurmctld that has its own."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator

import pytest
from testinfra.host import Host

from .helpers import On, Play, exposure, ok, process, until, variables

ONLY = ("--limit", "el-head", "--tags", "slurm_exporter")
# What `scontrol show config` of a newer Slurm says, and its slurmctld, which answers on a port of its own.
NATIVE = r"""
mkdir -p /run/native && cp /opt/slurm/bin/scontrol /run/native/scontrol.real
cat > /run/native/scontrol << 'END'
#!/bin/sh
[ "$*" = "show config" ] || exec /run/native/scontrol.real "$@"
echo "MetricsType             = metrics/openmetrics"
/run/native/scontrol.real show config |
  sed -E 's/^(SLURM_VERSION +=).*/\1 26.05.5/; s/^(SlurmctldPort +=).*/\1 16820-16829/'
END
cat > /run/native/slurmctld.py << 'END'
from http.server import BaseHTTPRequestHandler, HTTPServer
# Of five nodes one runs a job, one drains with one, one is idle, one is powered down, and one is down and powered down.
COUNTS = {"jobs_running": 3, "nodes_alloc": 1, "nodes_mixed": 1, "nodes_idle": 2, "nodes_down": 1, "nodes_drain": 0,
          "nodes_draining": 1, "nodes_powered_down": 2, "nodes_powering_down": 0, "nodes_powering_up": 0, "nodes": 5}
PAGES = {
    "/metrics/jobs": "slurm_jobs 4\nslurm_jobs_pending 1\n",
    "/metrics/nodes": "slurm_nodes 5\n",
    "/metrics/partitions": "".join(
        'slurm_partition_%s{partition="native"} %d\n' % count for count in COUNTS.items()),
    "/metrics/scheduler": "slurm_sched_mean_cycle 7\n",
    "/metrics/jobs-users-accts": 'slurm_user_jobs_running{username="alice"} 3\n',
}
class Pages(BaseHTTPRequestHandler):
    def do_GET(self):
        text = PAGES.get(self.path)
        self.send_response(200 if text else 404)
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        self.wfile.write((text or "").encode())
HTTPServer(("127.0.0.1", 16820), Pages).serve_forever()
END
chmod 0755 /run/native/scontrol
mount --bind /run/native/scontrol /opt/slurm/bin/scontrol
systemd-run --quiet --unit native-slurmctld /usr/bin/python3 /run/native/slurmctld.py
until curl -sf 127.0.0.1:16820/metrics/jobs > /dev/null; do sleep 0.1; done
"""


def ask(host: Host, query: str) -> dict[str, float]:
    """What Prometheus knows, by its labels."""
    text = host.check_output(
        f"curl -sfG http://localhost:9090/api/v1/query --data-urlencode {shlex.quote('query=' + query)}"
    )
    return {json.dumps(one["metric"]): float(one["value"][1]) for one in json.loads(text)["data"]["result"]}


def exported(host: Host, *begin: str) -> dict[str, float]:
    """What the exporter says now."""
    lines = host.check_output("curl -sf http://127.0.0.1:9341/metrics").splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line.startswith(begin)}


def test_it_may_do_little_and_only_this_node_reaches_it(on: On, head: str) -> None:
    host = on(head)
    pid = process(host, "slurm_exporter")
    status = dict(line.split(":\t", 1) for line in host.file(f"/proc/{pid}/status").content_string.splitlines())
    user = host.user("slurm_exporter").uid
    assert status["Uid"].split() == [str(user)] * 4
    assert int(status["CapEff"], 16) == 0
    assert host.socket("tcp://127.0.0.1:9341").is_listening
    assert "0.0.0.0:9341" not in host.check_output("ss --listening --tcp --numeric")
    assert exposure(host, "slurm_exporter") < 2


def test_jobs_of_the_real_slurm(on: On) -> None:
    host = on("head")
    host.check_output("systemctl reset-failed slurm_exporter")
    job = host.check_output(
        "runuser -u ubuntu -- /opt/slurm/bin/sbatch --parsable --hold --partition=gpu --gres=gpu:2 --chdir=/tmp "
        "--output=/dev/null --wrap 'sleep 60'"
    )
    try:
        held = 'slurm_queue_pending{partition="gpu",reason="JobHeldUser",user="ubuntu"}'
        assert exported(host, "slurm_queue_pending")[held] == 1
        host.check_output(f"/opt/slurm/bin/scontrol release {job}")
        running = 'slurm_queue_running{partition="gpu",user="ubuntu"}'
        until(lambda: exported(host, "slurm_queue_running").get(running) == 1, 20)
        found = exported(host, "slurm_gpus", "slurm_partition", "slurm_node_status", "slurm_jobs", "slurm_user_jobs")
        assert found["slurm_gpus_alloc"] == 2
        assert found['slurm_partition_gpus_allocated{partition="gpu"}'] == 2
        assert found['slurm_node_status{node="gpu-st-p5-1",partition="gpu",status="mixed"}'] == 1
        assert found['slurm_user_jobs_running{user="ubuntu"}'] == 1
    finally:
        host.check_output(f"/opt/slurm/bin/scancel {job}")
    until(lambda: 1 in ask(host, 'up{job="slurm"}').values(), 130)
    # Under the names that dashboards use, whatever was scraped last.
    until(lambda: ask(host, 'partition:slurm_nodes_powered_down:sum{partition="gpu"} > 0'), 130)


def test_a_stop_takes_seconds_and_leaves_no_failed_unit(on: On) -> None:
    """Though the exporter ignores SIGTERM, as version 1.8.4 does."""
    host = on("el-head")
    try:
        host.check_output(f"kill -TERM {process(host, 'slurm_exporter')}")
        assert exported(host, "slurm_jobs_running")
        host.check_output("timeout 20 systemctl stop slurm_exporter")
        assert host.run("systemctl is-active slurm_exporter").stdout.strip() == "inactive"
        assert host.run("systemctl is-failed slurm_exporter").rc != 0
    finally:
        host.check_output("systemctl start slurm_exporter")
    until(lambda: host.run("curl -sf http://127.0.0.1:9341/healthz").rc == 0, 20)


@pytest.mark.long
def test_without_users_prometheus_knows_none(on: On, play: Play) -> None:
    host = on("el-head")
    both = ("--limit", "el-head", "--tags", "slurm_exporter,prometheus")
    users = '{__name__=~"slurm_.+", user!=""}'
    until(lambda: ask(host, "slurm_user_rpc_stats"), 130)
    try:
        ok(play(*both, *variables(slurm_exporter_users=False)))
        assert exported(host, "slurm_user_rpc_stats")
        until(lambda: not ask(host, users), 130)
        assert ask(host, "slurm_rpc_stats")
    finally:
        ok(play(*both))


@pytest.fixture
def native(on: On, play: Play) -> Iterator[Host]:
    """A head node whose Slurm has metrics of its own; afterwards it is as before."""
    host = on("el-head")
    host.check_output(NATIVE)
    yield host
    host.check_output("umount /opt/slurm/bin/scontrol; systemctl stop native-slurmctld; rm -r /run/native")
    ok(play(*ONLY))
    assert host.check_output("systemctl is-active slurm_exporter") == "active"


@pytest.mark.long
def test_a_slurm_with_metrics_of_its_own_needs_no_exporter(native: Host, play: Play) -> None:
    result = ok(play(*ONLY))
    assert "slurm_exporter: slurmctld's own metrics (Slurm 25.11.8)" in result.stdout
    assert "0 changed" in play(*ONLY).stdout
    assert native.run("systemctl is-active slurm_exporter").stdout.strip() == "inactive"
    assert native.run("systemctl is-enabled slurm_exporter").stdout.strip() == "disabled"
    groups = json.loads(native.file("/etc/prometheus/targets.d/slurm.json").content_string)
    assert [group["labels"]["__metrics_path__"] for group in groups] == [
        f"/metrics/{part}" for part in ("jobs", "nodes", "partitions", "scheduler")
    ]
    until(lambda: len(ask(native, 'up{job="slurm", slurm_part!=""} == 1')) == 4, 80)
    labels = [json.loads(found) for found in ask(native, "slurm_partition_jobs_running")]
    own = {
        "job": "slurm",
        "slurm_part": "partitions",
        "partition": "native",
        "pc_cluster": "el",
        "pc_node_type": "head",
    }
    assert own.items() <= next(one for one in labels if one["partition"] == "native").items()
    found = until(lambda: ask(native, 'partition:slurm_nodes:sum{partition="native"}'), 70)
    states = {json.loads(one)["state"]: number for one, number in found.items()}
    assert states == {"in_use": 1, "idle": 2, "drained": 1, "down": 1}


@pytest.mark.long
def test_without_an_exporters_hash_the_report_says_what_is_needed(on: On, play: Play) -> None:
    host = on("el-head")
    try:
        result = ok(play(*ONLY, *variables(slurm_exporter_sha256={"x86_64": "", "aarch64": ""})))
        assert "0 failed" in result.stdout
        (line,) = (one for one in result.stdout.splitlines() if one.startswith("slurm_exporter: "))
        assert re.match(r"slurm_exporter: no metrics of Slurm: Slurm [\d.]+ is older than 25\.11\.5 ", line), line
        assert "; or set slurm_exporter_sha256['x86_64'] for the exporter" in line
        assert host.run("systemctl is-active slurm_exporter").stdout.strip() == "inactive"
        assert json.loads(host.file("/etc/prometheus/targets.d/slurm.json").content_string) == []
    finally:
        ok(play(*ONLY))
    assert host.check_output("systemctl is-active slurm_exporter") == "active"
