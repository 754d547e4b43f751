# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The monitoring instance, a plain machine outside of the clusters: what it has, whom it finds, and who gets in."""

from __future__ import annotations

import json
from typing import Any

from testinfra.host import Host

from .helpers import Nodes, On, until
from .test_grafana import ask as ask_grafana
from .test_prometheus import ask, names, up

NAME = "monitoring"
ADDRESS = "10.115.0.30"
# What the exporters of the nodes are asked by, on the head node and here.
JOBS = ("node", "dcgm")


def labels(host: Host, cluster: str) -> list[dict[str, str]]:
    """The labels of a cluster's targets, in the order of their names."""
    found = ask(host, "targets?state=active")["activeTargets"]
    told = [one["labels"] for one in found if one["labels"]["job"] in JOBS and one["labels"]["pc_cluster"] == cluster]
    return sorted(told, key=lambda one: (one["job"], one["pc_node"]))


def test_it_is_found_by_its_tag(inventory: dict[str, Any]) -> None:
    assert inventory["pcluster_monitoring"]["hosts"] == [NAME]
    variables = inventory["_meta"]["hostvars"][NAME]
    assert (variables["pcluster_node_type"], variables["pcluster_private_ip"]) == ("monitoring", ADDRESS)


def test_it_has_no_more_than_monitoring_needs(on: On) -> None:
    host = on(NAME)
    assert not host.file("/etc/parallelcluster").exists
    report = json.loads(host.file("/var/lib/pcluster-postboot/report.json").content_string)
    assert (report["outcome"], report["cluster"], report["node_type"]) == ("ok", NAME, "monitoring")
    ran = {one["name"] for one in report["components"] if one["status"] != "skipped"}
    assert ran == {"node_exporter", "prometheus", "alertmanager", "grafana"}


def test_labels_are_those_of_the_head_nodes_prometheus(on: On) -> None:
    for cluster, head in (("main", "head"), ("el", "el-head")):
        until(lambda c=cluster, h=head: labels(on(NAME), c) == labels(on(h), c), 60, f"the targets of {cluster}")
        assert labels(on(NAME), cluster)


def test_every_node_of_every_cluster_is_up(on: On, nodes: Nodes) -> None:
    own = {f"ip-{ADDRESS.replace('.', '-')}"}
    wanted = dict.fromkeys(names(nodes, "main") | names(nodes, "el") | own, "1")
    until(lambda: up(on(NAME)) == wanted, 100)
    gpu = 'up{job="dcgm", pc_cluster="main", pc_node="gpu-st-p5-1"} == 1'
    until(lambda: ask(on(NAME), "query", gpu)["result"], 100)


def test_slurms_exporters_are_asked_for_on_head_nodes_alone(on: On, nodes: Nodes) -> None:
    found = [one for one in ask(on(NAME), "targets?state=active")["activeTargets"] if one["labels"]["job"] == "slurm"]
    heads = {node["address"] for node in nodes.values() if node["type"] == "HeadNode"}
    assert {one["scrapeUrl"] for one in found} == {f"http://{address}:9341/metrics" for address in heads}


def test_grafana_answers_a_load_balancer_and_has_no_known_password(on: On) -> None:
    host, base = on(NAME), f"http://{ADDRESS}:3000"
    assert json.loads(on("head").check_output(f"curl -sf {base}/api/health"))["database"] == "ok"
    ini = host.check_output("cat /etc/grafana/grafana.ini")
    assert "root_url = https://monitoring.example.org/" in ini
    assert "cookie_secure = true" in ini
    assert ask_grafana(host, "user", base=base)["login"] == "admin"
    for password in ("admin", "Grafana4PC!"):
        assert ask_grafana(host, "user", password, base) is None
    (source,) = ask_grafana(host, "datasources", base=base)
    assert source["uid"] == "pcluster-prometheus"
