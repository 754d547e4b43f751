# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Prometheus on the head nodes: whom it finds, and what it does with a configuration that is wrong."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from testinfra.host import Host

from .helpers import Command, Killed, Nodes, On, Play, failure, joined, ok, process, until, variables

ONLY = ("--limit", "head", "--tags", "prometheus")
SPARE = "burst-dy-c5-1"
# A look at Slurm every 30 s, a second of the timer's, and 5 s that Prometheus gathers changes for.
REFRESH = 40
# Tests of the rules, which only promtool can run.
TESTS = Path(__file__).resolve().parents[3] / "tests/rules"
RULES = {"good.yml": {"groups": [{"name": "g", "rules": [{"record": "up:sum", "expr": "sum(up)"}]}]}}


def ask(host: Host, path: str, query: str = "") -> Any:
    """What Prometheus answers."""
    more = f" --data-urlencode {shlex.quote('query=' + query)}" if query else ""
    return json.loads(host.check_output(f"curl -sfG http://localhost:9090/api/v1/{path}{more}"))["data"]


def up(host: Host) -> dict[str, str]:
    """The nodes whose node_exporter has been scraped, and whether that went well."""
    results = ask(host, "query", 'up{job="node"}')["result"]
    return {one["metric"]["pc_node"]: one["value"][1] for one in results}


def targets(host: Host) -> dict[str, str]:
    """The address of every node that Prometheus would scrape."""
    found = ask(host, "targets?state=active")["activeTargets"]
    return {one["labels"]["pc_node"]: one["scrapeUrl"] for one in found if one["labels"]["job"] == "node"}


def hostname(node: dict[str, Any]) -> str:
    """The name that EC2 gives a node."""
    return "ip-" + node["address"].replace(".", "-")


def names(nodes: Nodes, cluster: str) -> set[str]:
    """The names by which the nodes of a cluster are known to Prometheus."""
    return {
        name if node["type"] == "Compute" else hostname(node)
        for name, node in nodes.items()
        if node["cluster"] == cluster
    }


@pytest.mark.parametrize("cluster", ["main", "el"])
def test_every_node_is_up(on: On, nodes: Nodes, cluster: str) -> None:
    head, expected = on("head" if cluster == "main" else "el-head"), names(nodes, cluster)
    until(lambda: all(up(head).get(name) == "1" for name in expected), 100, lambda: f"{expected}, but {up(head)}")


def test_labels(on: On, nodes: Nodes) -> None:
    found = ask(on("head"), "targets?state=active")["activeTargets"]
    labels = {one["labels"]["pc_node"]: one["labels"] for one in found if one["labels"]["job"] == "node"}
    common = {"job": "node", "pc_cluster": "main"}
    assert labels["gpu-st-p5-1"] == {
        **common,
        "instance": "gpu-st-p5-1",
        "pc_node": "gpu-st-p5-1",
        "pc_node_type": "compute",
        "pc_queue": "gpu",
    }
    for name, kind in ((hostname(nodes["head"]), "head"), (hostname(nodes["login"]), "login")):
        assert labels[name] == {**common, "instance": name, "pc_node": name, "pc_node_type": kind}


def test_only_what_is_there_is_scraped(on: On, nodes: Nodes, head: str) -> None:
    """dcgm on GPU nodes, Slurm on the head node, and nothing that would be down for ever."""
    found = ask(on(head), "targets?state=active")["activeTargets"]
    kinds: dict[str, set[str]] = {}
    for one in found:
        kinds.setdefault(one["labels"]["job"], set()).add(one["labels"]["pc_node_type"])
    assert kinds["node"] >= {"head", "compute"}
    assert kinds["prometheus"] == kinds["slurm"] == {"head"}
    gpus = {one["labels"]["pc_node"] for one in found if one["labels"]["job"] == "dcgm"}
    assert {name for name in gpus if not name.startswith("gpu-")} == set()
    assert ("gpu-st-p5-1" in gpus) == (head == "head")
    mine = "|".join(names(nodes, "main" if head == "head" else "el"))
    until(lambda: not ask(on(head), "query", f'up{{pc_node=~"{mine}"}} == 0')["result"], 70)


def test_the_rules_say_what_they_should(on: On) -> None:
    head = on("head")
    roles = TESTS.parent.parent / "roles/prometheus/files"
    head.check_output("mkdir -p /tmp/rules/tests /tmp/rules/roles/prometheus/files")
    for source, place in ((TESTS, "tests"), (roles / "rules", "roles/prometheus/files")):
        subprocess.run(["podman", "cp", source, f"postboot-head:/tmp/rules/{place}/"], check=True, capture_output=True)
    done = head.run("cd /tmp/rules/tests/rules && promtool test rules *.yml")
    head.check_output("rm -r /tmp/rules")
    assert done.rc == 0, done.stdout + done.stderr
    assert done.stderr.count("SUCCESS") + done.stdout.count("SUCCESS") == len(list(TESTS.glob("*.yml")))


def test_the_rules_are_evaluated(on: On, head: str) -> None:
    names = {path.stem for path in (TESTS.parent.parent / "roles/prometheus/files/rules").glob("*.yml")}
    groups = ask(on(head), "rules")["groups"]
    assert {group["file"] for group in groups} == {f"/etc/prometheus/rules/pcluster-{name}.yml" for name in names}
    until(
        lambda: {rule["health"] for group in ask(on(head), "rules")["groups"] for rule in group["rules"]} == {"ok"}, 70
    )


def test_powered_down_nodes_are_no_targets(on: On) -> None:
    assert "burst-dy-c5-2" in on("head").check_output("/opt/slurm/bin/scontrol -a -o show nodes")
    assert not any(name.startswith("burst-dy-c5-2") for name in targets(on("head")))


def test_it_runs_as_its_own_user_and_may_do_little(on: On, head: str) -> None:
    assert on(head).process.get(comm="prometheus").user == "prometheus"
    assert on(head).file("/etc/prometheus/prometheus.yml").mode == 0o640
    assert on(head).file("/var/lib/prometheus").mode == 0o750
    assert not on(head).file("/usr/local/bin/prometheus").mode & 0o022
    capabilities = on(head).check_output("grep CapEff /proc/%s/status", process(on(head), "prometheus"))
    assert capabilities.split()[-1] == "0000000000000000"


def test_it_takes_half_of_the_memory_at_most_and_few_queries_at_once(on: On, head: str) -> None:
    limit = int(on(head).check_output("systemctl show --property=MemoryMax --value prometheus"))
    total = 1024 * int(on(head).check_output("awk '/^MemTotal/ {print $2}' /proc/meminfo"))
    assert 0 < limit <= total / 2  # less where the node itself is limited
    assert ask(on(head), "status/flags")["query.max-concurrency"] == "4"


def test_every_job_has_a_limit_that_is_far_off(on: On, head: str) -> None:
    """And what ENA never counts is not kept."""
    most = ask(on(head), "query", "max by (job) (scrape_samples_post_metric_relabeling)")["result"]
    samples = {one["metric"]["job"]: int(one["value"][1]) for one in most}
    assert {"node", "slurm"} <= set(samples)
    assert max(samples.values()) < 10000, samples
    config = ask(on(head), "status/config")["yaml"]
    assert re.findall(r"^  sample_limit: (\d+)$", config, re.MULTILINE) == ["100000", *["20000"] * 3]
    assert ask(on(head), "query", "node_network_receive_bytes_total")["result"]
    assert not ask(on(head), "query", "node_network_transmit_colls_total")["result"]


def test_a_user_cannot_add_a_target(on: On) -> None:
    path = "/fsx/config/prometheus/main/login.d"
    assert on("login").file(path).mode == 0o700
    assert on("login").run(f"runuser -u ubuntu -- touch {path}/evil.json").rc != 0
    assert on("login").run(f"runuser -u ubuntu -- mv {path} /fsx/results/").rc != 0


def test_a_rule_that_is_wrong_changes_nothing(on: On, play: Play) -> None:
    head = on("head")
    before = process(head, "prometheus"), head.check_output("stat --format=%Z /etc/prometheus/prometheus.yml")
    rules = {"bad.yml": {"groups": [{"name": "g", "rules": [{"alert": "a", "expr": "up =="}]}]}}
    result = play(*ONLY, *variables(prometheus_rules=rules, prometheus_scrape_interval="17s"))
    assert result.returncode == 0  # telemetry is no essential
    line = failure(result, "head", "prometheus")
    assert "/etc/prometheus/rules/bad.yml" in line
    assert "correct prometheus_rules['bad.yml']; nothing in /etc/prometheus was changed" in line
    assert (process(head, "prometheus"), head.check_output("stat --format=%Z /etc/prometheus/prometheus.yml")) == before
    assert not head.file("/etc/prometheus/rules/bad.yml").exists


@pytest.mark.long
def test_a_scrape_configuration_that_is_wrong_changes_nothing(on: On, play: Play) -> None:
    before = process(on("head"), "prometheus")
    result = play(*ONLY, *variables(prometheus_scrape_configs=[{"job_name": "x", "statik_configs": []}]))
    line = failure(result, "head", "prometheus")
    assert "field statik_configs not found" in line
    assert "correct prometheus_scrape_configs" in line
    assert process(on("head"), "prometheus") == before
    assert ask(on("head"), "query", "prometheus_config_last_reload_successful")["result"][0]["value"][1] == "1"


@pytest.mark.long
@pytest.mark.usefixtures("as_before")
def test_a_changed_configuration_is_reloaded(on: On, play: Play) -> None:
    head = on("head")
    before = process(head, "prometheus")
    file = "/etc/prometheus/rules/good.yml"
    ok(play(*ONLY, *variables(prometheus_rules=RULES)))
    assert file in [group["file"] for group in ask(head, "rules")["groups"]]
    assert "0 changed" in play(*ONLY, *variables(prometheus_rules=RULES)).stdout
    ok(play(*ONLY))
    until(lambda: file not in [group["file"] for group in ask(head, "rules")["groups"]], 5)
    assert process(head, "prometheus") == before


@pytest.mark.long
@pytest.mark.usefixtures("as_before")
def test_an_exporter_that_brings_too_much_is_refused_and_told(on: On, play: Play) -> None:
    head = on("head")
    jobs = [{"name": "node", "port": 9100, "node_types": ["head"], "sample_limit": 100}]
    ok(play(*ONLY, *variables(prometheus_jobs=jobs)))
    until(lambda: bool(ask(head, "query", 'ALERTS{alertname="ScrapeRefused", job="node"}')["result"]))
    (refused,) = ask(head, "query", 'scrape_samples_post_metric_relabeling{job="node", pc_node_type="head"}')["result"]
    assert int(refused["value"][1]) > 100


@pytest.mark.usefixtures("as_before")
@pytest.mark.long
def test_a_run_that_died_before_the_reload_is_finished(on: On, play: Play, command: Command, killed: Killed) -> None:
    """kill -9 in the middle of a run that changes rules and a flag; the same run again completes and is content."""
    head = on("head")
    for days in ("16d", "17d"):
        rules = {f"{days}.yml": {"groups": [{"name": days, "rules": [{"record": "up:sum", "expr": "sum(up)"}]}]}}
        change = variables(prometheus_rules=rules, prometheus_retention_time=days, prometheus_default_rules=[])
        killed(command("ansible-playbook", "pcluster.postboot.site", *ONLY, *change), 3, 9)
        ok(play(*ONLY, *change))
        assert ask(head, "status/flags")["storage.tsdb.retention.time"] == days
        assert [group["name"] for group in ask(head, "rules")["groups"]] == [days]
        assert "0 changed" in play(*ONLY, *change).stdout


@pytest.mark.long
def test_compute_nodes_stay_while_slurm_is_down(on: On) -> None:
    head = on("head")
    before = head.check_output("cat /var/lib/prometheus-targets/nodes.json")
    head.check_output("systemctl stop slurmctld")
    try:
        assert head.run("systemctl start prometheus-targets").rc != 0
        line = head.check_output("journalctl --unit prometheus-targets --output cat --grep scontrol | tail -n 1")
        assert re.search(r"scontrol gave no answer within 10 s: the compute nodes stay as they were$", line), line
        assert head.check_output("cat /var/lib/prometheus-targets/nodes.json") == before
    finally:
        head.check_output("systemctl start slurmctld")
    until(lambda: head.run("systemctl start prometheus-targets").rc == 0, 30)
    assert head.check_output("cat /var/lib/prometheus-targets/nodes.json") == before


def test_a_login_node_that_is_gone_is_dropped(on: On) -> None:
    head, path = on("head"), "/fsx/config/prometheus/main/login.d"
    old = int(time.time()) - 1000
    entry = json.dumps({"name": "old", "address": "10.115.0.50", "time": old})
    head.check_output(f"echo {shlex.quote(entry)} > {path}/old.json")
    try:
        head.check_output("systemctl start prometheus-targets")
        assert "10.115.0.50" not in head.file("/var/lib/prometheus-targets/nodes.json").content_string
        head.check_output(f"echo {shlex.quote(entry.replace(str(old), str(int(time.time()))))} > {path}/old.json")
        head.check_output("systemctl start prometheus-targets")
        assert "10.115.0.50" in head.file("/var/lib/prometheus-targets/nodes.json").content_string
    finally:
        head.check_output(f"rm {path}/old.json; systemctl start prometheus-targets")


@pytest.mark.long
@pytest.mark.usefixtures("as_before")
def test_discovery_by_ec2(on: On, play: Play, nodes: Nodes) -> None:
    head = on("head")
    dropin = "/run/systemd/system/prometheus.service.d/credentials.conf"
    head.check_output(
        f"mkdir -p {Path(dropin).parent} && printf '[Service]\\nEnvironment=AWS_ACCESS_KEY_ID=sandbox "
        f"AWS_SECRET_ACCESS_KEY=sandbox\\n' > {dropin} && systemctl daemon-reload && systemctl restart prometheus"
    )
    change = variables(
        prometheus_discovery="ec2",
        prometheus_ec2_endpoint="http://10.115.0.3:5000",
        prometheus_jobs=[{"name": "node", "port": 9100}, {"name": "gpu", "port": 9400, "gpu_only": True}],
    )
    try:
        ok(play(*ONLY, *change))
        assert "0 changed" in play(*ONLY, *change).stdout
        assert head.run("systemctl is-active prometheus-targets.timer").stdout.strip() == "inactive"
        # The nodes of this cluster that run, whatever their SSM agents do.
        mine = {node["address"] for node in nodes.values() if node["cluster"] == "main"}
        urls = {f"http://{address}:9100/metrics" for address in mine}
        until(lambda: set(targets(head).values()) == urls, 30)
        found = ask(head, "targets?state=active")["activeTargets"]
        gpu = [one["labels"] for one in found if one["labels"]["job"] == "gpu"]
        assert gpu == [
            {
                "job": "gpu",
                "instance": hostname(nodes["gpu-st-p5-1"]),
                "pc_cluster": "main",
                "pc_node": hostname(nodes["gpu-st-p5-1"]),
                "pc_node_type": "compute",
                "pc_queue": "gpu",
            }
        ]
        kinds = {one["labels"]["pc_node"]: one["labels"]["pc_node_type"] for one in found}
        assert (kinds[hostname(nodes["head"])], kinds[hostname(nodes["login"])]) == ("head", "login")
    finally:
        head.check_output(f"rm {dropin}; systemctl daemon-reload; systemctl restart prometheus")


@pytest.mark.long
def test_nodes_come_and_go(on: On, nodes: Nodes, play: Play) -> None:
    """A node that Slurm powers up is found and scraped; once Slurm powers it down, it is forgotten."""
    head = on("head")
    with joined(SPARE):
        until(lambda: SPARE in targets(head), REFRESH)
        ok(play("--limit", SPARE, "--tags", "node_exporter"))
        until(lambda: up(head).get(SPARE) == "1", 100)
    # clustermgtd looks once a minute for instances of nodes that are powered down.
    until(lambda: SPARE not in targets(head), 90 + REFRESH)
    assert set(targets(head)) == names(nodes, "main")


@pytest.mark.long
def test_a_node_that_does_not_answer_any_more_is_an_alert(on: On) -> None:
    """Its node_exporter is stopped, and nothing else of it is scraped: that is what Prometheus sees of a dead node."""
    head, node = on("head"), "cpu-st-c5-1"
    alert = f'ALERTS{{alertname="NodeDown", alertstate="firing", pc_node="{node}"}}'
    until(lambda: up(head).get(node) == "1")
    assert not ask(head, "query", alert)["result"]
    on(node).check_output("systemctl stop node_exporter")
    try:
        # The sandbox scrapes and evaluates every 15 s. Slurm gives a dead node up after 180.
        until(lambda: bool(ask(head, "query", alert)["result"]), 170)
    finally:
        on(node).check_output("systemctl start node_exporter")
    until(lambda: up(head).get(node) == "1")
    assert ask(head, "query", alert)["result"], "the alert ended before anybody could be told"
