# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The clusters after a run: what the inventory found, what the nodes report, and that Slurm works as before."""

from __future__ import annotations

import json
from typing import Any

from .helpers import Nodes, On, as_user
from .nodes import CONTROLLERS


def test_inventory_finds_exactly_the_nodes(inventory: dict[str, Any], nodes: Nodes) -> None:
    assert set(inventory["_meta"]["hostvars"]) == {*nodes, "monitoring"}


def test_inventory_groups(inventory: dict[str, Any], nodes: Nodes) -> None:
    def members(group: str) -> set[str]:
        return set(inventory[group]["hosts"])

    assert members("pcluster_head") == {"head", "el-head"}
    assert members("pcluster_login") == {"login"}
    assert members("pcluster_compute") == {name for name, node in nodes.items() if node["type"] == "Compute"}
    assert members("pcluster_gpu") == members("pcluster_efa") == {"gpu-st-p5-1"}
    assert members("pcluster_cluster_el") == {"el-head", "el-cpu-st-c5-1"}
    assert members("pcluster_queue_cpu") == {"cpu-st-c5-1"}


def test_inventory_addresses_are_the_nodes_own(inventory: dict[str, Any], nodes: Nodes) -> None:
    found = {name: variables["pcluster_private_ip"] for name, variables in inventory["_meta"]["hostvars"].items()}
    del found["monitoring"]  # test_monitoring.py has it
    assert found == {name: node["address"] for name, node in nodes.items()}


def test_inventory_warns_of_the_node_whose_agent_is_silent(inventory: dict[str, Any]) -> None:
    assert "AmazonSSMManagedInstanceCore" in inventory["stderr"]


def test_a_test_s_command_is_the_node_s_own(on: On) -> None:
    """The cgroups that count and limit it are the container's, seen from within, and not those of this machine."""
    rows = [line.split(":", 2) for line in on("head").check_output("cat /proc/self/cgroup").splitlines()]
    found = {name: path for _number, name, path in rows if name in ("", *CONTROLLERS)}
    assert found
    assert not [path for path in found.values() if ".." in path], found


def test_report(on: On, node: str) -> None:
    report = json.loads(on(node).file("/var/lib/pcluster-postboot/report.json").content_string)
    assert report["outcome"] == "ok", report
    components = {component["name"]: component["status"] for component in report["components"]}
    assert set(components.values()) <= {"unchanged", "changed", "skipped"}, components
    assert components["node_exporter"] in ("unchanged", "changed")


def test_no_lock_and_no_hold_is_left(on: On, node: str, nodes: Nodes) -> None:
    assert not on(node).file("/run/pcluster-postboot/lock").exists
    assert not on(node).file("/var/lib/pcluster-postboot/holds.json").exists
    if nodes[node]["cluster"] == "main":
        # Apart from those that a role holds for good: the toolkit's, which stay at one version together, and Grafana.
        held = on(node).check_output("apt-mark showhold").split()
        assert [name for name in held if "nvidia-container" not in name and name != "grafana"] == []


def test_shared_tree(on: On, head: str) -> None:
    for name in ("containers", "scripts", "config", "logs", "nccl", "software", "datasets", "checkpoints", "results"):
        assert on(head).file(f"/fsx/{name}").is_directory, name


def test_user_can_write_where_users_should(on: On) -> None:
    probes = "/fsx/checkpoints/probe /fsx/results/probe"
    on("login").check_output(f"runuser -u ubuntu -- touch {probes} && rm {probes}")


def test_node_exporter_answers_on_every_node(on: On, node: str, nodes: Nodes) -> None:
    metrics = on("head" if nodes[node]["cluster"] == "main" else "el-head").check_output(
        f"curl -sf http://{nodes[node]['address']}:9100/metrics"
    )
    assert f'nodename="{on(node).check_output("hostname")}"' in metrics


def test_node_exporter_runs_as_its_own_user(on: On, node: str) -> None:
    process = on(node).process.get(comm="node_exporter")
    assert process.user == "node_exporter"
    assert not on(node).file("/usr/local/bin/node_exporter").mode & 0o022


def test_node_exporter_reads_text_files(on: On, node: str) -> None:
    path = "/var/lib/node_exporter/textfile_collector/sandbox_probe.prom"
    on(node).check_output(f"echo 'sandbox_probe 42' > {path}")
    try:
        assert "sandbox_probe 42" in on(node).check_output("curl -sf http://localhost:9100/metrics")
    finally:
        on(node).check_output(f"rm {path}")


def test_slurm_runs_jobs_on_two_nodes(on: On) -> None:
    done = as_user(on("login"), "ubuntu", "srun -N2 hostname", timeout=30)
    assert sorted(done.stdout.split()) == ["cpu-st-c5-1", "gpu-st-p5-1"], done.stderr


def test_the_head_node_finds_the_login_node_by_name(on: On) -> None:
    """Where it does not, slurmctld stands still for ten seconds at the end of each job that somebody waits for."""
    name = on("login").check_output("hostname")
    assert on("head").check_output(f"getent ahostsv4 {name} | awk '{{ print $1; exit }}'") == on("login").check_output(
        "hostname -I | awk '{ print $1 }'"
    )


def test_slurm_gives_gpus(on: On) -> None:
    done = as_user(on("login"), "ubuntu", "srun -p gpu --gres=gpu:8 printenv CUDA_VISIBLE_DEVICES", timeout=30)
    assert done.stdout == "0,1,2,3,4,5,6,7\n", done.stderr
