# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A node with AWS Neuron devices: what it is found to be, its tools, and its metrics in Prometheus."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from testinfra.host import Host

from .alerts import often
from .bundles import queue_of, update
from .conftest import command, playbook
from .helpers import On, Play, as_user, exposure, image_of_busybox, joined, ok, process, until, variables
from .test_dashboards import FILES, every_query_has_data, has_data
from .test_prometheus import ask

pytestmark = pytest.mark.long
NODE, UNIT = "trn-dy-trn1-1", "neuron-exporter"
ONLY = ("--tags", "neuron,neuron_exporter", "--limit", NODE)
TOOLS = "/opt/aws/neuron/bin"
IMAGE = "/fsx/containers/test-neuron.sqsh"
# What a process does with two cores: the numbers of AWS' Neuron Monitor User Guide.
RUNTIME = {
    "pid": 4242,
    "neuron_runtime_tag": "4242",
    "error": "",
    "report": {
        "neuroncore_counters": {
            "period": 5.0,
            "neuroncores_in_use": {"0": {"neuroncore_utilization": 42.01}, "1": {"neuroncore_utilization": 42.02}},
            "error": "",
        },
        "execution_stats": {
            "period": 5.0,
            "error_summary": dict.fromkeys(("generic", "numerical", "transient", "model", "runtime", "hardware"), 0),
            "execution_summary": {
                "completed": 123,
                "completed_with_err": 0,
                "completed_with_num_err": 0,
                "timed_out": 0,
                "incorrect_input": 0,
                "failed_to_queue": 0,
            },
            "latency_stats": {
                "total_latency": {"p50": 0.01100008, "p99": 0.01100012, "p100": 0.01100013},
                "device_latency": None,
            },
            "error": "",
        },
        "memory_used": {
            "period": 5.0,
            "neuron_runtime_used_bytes": {
                "host": 6997643264,
                "neuron_device": 12519788544,
                "usage_breakdown": {
                    "neuroncore_memory_usage": {
                        core: {
                            "constants": 193986816,
                            "model_code": 176285056,
                            "model_shared_scratchpad": 0,
                            "runtime_memory": 0,
                            "tensors": 20971520,
                        }
                        for core in ("0", "1")
                    }
                },
            },
            "loaded_models": [],
            "error": "",
        },
        "neuron_runtime_vcpu_usage": {"period": 5.0, "vcpu_usage": {"user": 42.01, "system": 12.34}, "error": ""},
    },
}


@pytest.fixture(scope="module")
def neuron(on: On) -> Iterator[Host]:
    """The node, which a job asks for."""
    with joined(NODE):
        yield on(NODE)


@pytest.fixture(scope="module")
def converged(neuron: Host, play: Play) -> Host:
    """The node after a check on it as it is fresh, and a run."""
    assert ", 0 failed" in ok(play("--limit", NODE, "--check")).stdout
    assert not neuron.file(f"{TOOLS}/neuron-ls").exists
    assert ", 0 failed" in ok(play("--limit", NODE)).stdout
    return neuron


def told(host: Host) -> dict[str, Any]:
    """The report of the last run, by component."""
    report = json.loads(host.file("/var/lib/pcluster-postboot/report.json").content_string)
    return {one["name"]: one for one in report["components"]}


def scrape(host: Host) -> str:
    return str(host.check_output(f"curl -sf http://{NODE}:8000/metrics"))


def test_it_configures_itself_at_its_boot(on: On, publish: Callable[[str], dict[str, Any]], tmp_path: Path) -> None:
    """With the bundle that is published for its queue. Before the others, for which it boots bare."""
    queue, node = queue_of(publish("main"), "trn"), on(NODE)
    try:
        assert update("main", tmp_path, {"Scheduling": {"SlurmQueues": [queue]}}).returncode == 0
        with joined(NODE):
            idle = "systemctl show --property=ActiveState --value pcluster-postboot"
            until(lambda: node.check_output(idle) == "inactive", 180, "the end of what the boot has deferred")
            ran = {name: one["status"] for name, one in told(node).items()}
            # The boot has brought the tools before slurmd started, and the rest came after it.
            assert (ran["neuron"], ran["neuron_exporter"]) == ("unchanged", "changed"), ran
            assert node.file(f"{TOOLS}/neuron-ls").exists
            assert set(ran.values()) <= {"unchanged", "changed", "skipped"}
            assert node.service(UNIT).is_running
    finally:
        assert update("main", tmp_path, {}).returncode == 0


def test_it_is_in_the_inventorys_group(converged: Host) -> None:
    done = converged.backend.run_local(" ".join(command("ansible-inventory", "--list")))
    groups = json.loads(done.stdout)
    assert groups["pcluster_neuron"]["hosts"] == [NODE]
    assert NODE not in groups["pcluster_gpu"]["hosts"]


def test_its_facts(converged: Host) -> None:
    """No component of GPUs ran, and those of Neuron did."""
    ran = {name for name, one in told(converged).items() if one["status"] in ("changed", "unchanged")}
    assert {"neuron", "neuron_exporter", "efa", "docker", "enroot"} <= ran
    assert not {"nvidia_container_toolkit", "aws_ofi_nccl", "nccl", "nccl_tests", "dcgm", "dcgm_exporter"} & ran
    assert converged.check_output("dpkg-query -W -f '${Version}' aws-neuronx-tools") == "2.32.28.0"
    # The machine's driver came without a package, and stays.
    assert converged.run("dpkg-query -W aws-neuronx-dkms").rc != 0
    assert converged.run("ls /etc/apt/sources.list.d/aws-neuron*").rc != 0
    found = json.loads(converged.check_output(f"{TOOLS}/neuron-ls -j"))
    assert [(one["nc_count"], one["connected_to"]) for one in found[:2]] == [(2, [12, 3, 4, 1]), (2, [13, 0, 5, 2])]
    assert len(found) == 16


def test_a_second_run_changes_nothing(converged: Host, play: Play) -> None:
    before = process(converged, UNIT)
    assert "0 changed" in ok(play(*ONLY)).stdout
    assert process(converged, UNIT) == before


def test_prometheus_scrapes_it_like_gpus(converged: Host, on: On) -> None:
    head = on("head")
    query = f'up{{job="neuron", pc_node="{NODE}"}} == 1'
    (found,) = until(lambda: ask(head, "query", query)["result"], 120, "a scrape of the exporter")
    labels = {"pc_cluster": "main", "pc_node": NODE, "pc_node_type": "compute", "pc_queue": "trn", "instance": NODE}
    assert labels.items() <= found["metric"].items()
    others = ask(head, "query", 'up{job="neuron"}')["result"]
    assert {one["metric"]["pc_node"] for one in others} == {NODE}


def test_metrics_of_devices_and_of_what_uses_them(converged: Host, on: On) -> None:
    idle = scrape(on("head"))
    assert len(re.findall(r"^hardware_ecc_events_total\{", idle, re.MULTILINE)) == 16 * 4
    assert re.search(
        r'^neuron_hardware_info\{.*neuron_device_count="16",neuroncore_per_device_count="2"', idle, re.MULTILINE
    )
    assert "neuroncore_utilization_ratio{" not in idle
    assert "_created{" not in idle
    path = "/run/sandbox-neuron"
    converged.check_output(f"mkdir -p {path} && echo %s > {path}/runtimes.json", json.dumps([RUNTIME]))
    try:
        used = r'^neuroncore_utilization_ratio\{.*neuroncore="1".*runtime_tag="4242".*\} 0.4202$'
        until(lambda: re.search(used, scrape(on("head")), re.MULTILINE), 20, "the cores in use")
        busy = scrape(on("head"))
        assert re.search(
            r'^neuron_runtime_memory_used_bytes\{.*memory_location="neuron_device".*\} 1.2519788544e\+10$',
            busy,
            re.MULTILINE,
        )
        assert re.search(r'^execution_status_total\{.*status_type="completed".*\} \d', busy, re.MULTILINE)
    finally:
        converged.check_output(f"rm -r {path}")
    until(lambda: "neuroncore_utilization_ratio{" not in scrape(on("head")), 20, "the cores to be idle")


def test_every_query_of_its_dashboard_has_data(converged: Host, on: On) -> None:
    (path,) = (path for path in FILES if path.stem == "neuron")
    said = "/run/sandbox-neuron"
    converged.check_output(f"mkdir -p {said} && echo %s > {said}/runtimes.json", json.dumps([RUNTIME]))
    try:
        with often(on("head")):
            # Two scrapes of what is counted, which a rate needs, and the rules that follow them.
            until(lambda: has_data(f'pc_node:neuron_completed:rate5m{{pc_node="{NODE}"}} > 0'), 240, "executions")
            every_query_has_data(on, path, "", NODE)
    finally:
        converged.check_output(f"rm -r {said}")


def test_verify_counts_its_devices_and_measures(converged: Host, on: On) -> None:
    more = variables(verify_stages=["neuron"], verify_partitions=["trn"], verify_report="")
    done = playbook("--limit", "head", *more, name="verify")
    assert "16 devices with 32 cores on trn-dy-trn1-1" in ok(done).stdout
    assert "32 cores: 102.4 GB/s at 1 GiB; nobody has published what to expect" in done.stdout


def test_the_service_is_confined_and_ends_with_the_monitor(converged: Host) -> None:
    assert exposure(converged, f"{UNIT}.service") <= 2.6
    before = process(converged, UNIT)
    converged.check_output("pkill -f '^/usr/bin/python3 /opt/aws/neuron/bin/neuron-monitor$'")
    until(lambda: process(converged, UNIT) not in (before, "0"), 30, "another process of the service")
    until(lambda: converged.run("curl -sf http://localhost:8000/metrics").rc == 0, 20, "the exporter's answer")


def test_a_killed_run_is_finished_by_the_next(converged: Host, play: Play) -> None:
    """As far as the repository has come, which is there for the installation alone."""
    converged.check_output("dpkg --purge aws-neuronx-tools")
    converged.check_output("echo > /etc/apt/sources.list.d/aws-neuron.sources")
    assert ", 0 failed" in ok(play(*ONLY)).stdout
    assert not converged.file("/etc/apt/sources.list.d/aws-neuron.sources").exists
    assert converged.file(f"{TOOLS}/neuron-ls").exists


def test_containers_have_the_devices(converged: Host, on: On) -> None:
    head = on("head")
    image_of_busybox(head, IMAGE)
    try:
        line = f"/opt/slurm/bin/srun -p trn --container-image={IMAGE} ls /dev"
        done = as_user(head, "ubuntu", line, 120)
        assert {f"neuron{number}" for number in range(16)} <= set(done.stdout.split()), done.stderr
    finally:
        head.check_output(f"rm {IMAGE}")


def test_a_pin_without_a_hash_is_named_and_the_exporter_stays(converged: Host, play: Play) -> None:
    before = process(converged, UNIT)
    done = play(*ONLY, *variables(neuron_exporter_version="0.27.0", neuron_exporter_sha256={"noarch": ""}))
    assert "neuron_exporter_sha256['noarch']" in done.stdout + done.stderr
    assert process(converged, UNIT) == before
