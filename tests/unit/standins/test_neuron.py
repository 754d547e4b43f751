# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The sandbox's neuron-ls and neuron-monitor have the shape of what AWS' guides show."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# Of the guides in aws-neuron-sdk at Neuron 2.32.0: a device of `neuron-ls -j`, and the groups of a report.
DEVICE = {
    *("neuron_device", "bdf", "cpu_affinity", "numa_node", "connected_to", "nc_count", "logical_neuroncore_config"),
    *("memory_size", "neuroncore_ids", "neuron_processes"),
}
REPORT = {"neuron_runtime_data", "system_data", "instance_info", "neuron_hardware_info"}
ECC = {"mem_ecc_corrected", "mem_ecc_uncorrected", "sram_ecc_corrected", "sram_ecc_uncorrected"}
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path, repo: Path) -> Start:
    """start("neuron_ls", "-j") starts a stand-in where there are two devices."""
    sysfs, devices = tmp_path / "sysfs", tmp_path / "dev"
    devices.mkdir()
    for number in range(2):
        one = sysfs / f"neuron{number}"
        (one / "info/architecture").mkdir(parents=True)
        (one / "stats/hardware/mem_ecc_uncorrected").mkdir(parents=True)
        (one / "stats/hardware/mem_ecc_uncorrected/total").write_text(f"{number}\n")
        (one / "core_count").write_text("2")
        (one / "connected_devices").write_text(f"{1 - number}\n")
        (one / "info/architecture/device_name").write_text("Trainium1\n")
        (one / "info/architecture/instance_type").write_text("Trn1\n")
        (devices / one.name).touch()

    def run(name: str, *words: str) -> subprocess.Popen[str]:
        text = (repo / f"molecule/cluster/standins/neuron/{name}.py").read_text()
        for place in ("/sys/devices/virtual/neuron_device", "/run/sandbox-hardware/ioctl"):
            text = text.replace(place, str(sysfs))
        text = text.replace('"/dev"', f'"{devices}"')
        program = tmp_path / f"{name}.py"
        program.write_text(text.replace("http://169.254.169.254", "http://127.0.0.1:9"))
        return subprocess.Popen([sys.executable, str(program), *words], stdout=subprocess.PIPE, text=True)

    return run


def test_neuron_ls(start: Start) -> None:
    found: list[dict[str, Any]] = json.loads(start("neuron_ls", "--json-output").communicate(timeout=20)[0])
    assert [set(one) for one in found] == [DEVICE, DEVICE]
    assert (found[1]["nc_count"], found[1]["neuroncore_ids"], found[1]["connected_to"]) == (2, [2, 3], [0])
    assert found[1]["memory_size"] == 32 << 30
    table = start("neuron_ls").communicate(timeout=20)[0].splitlines()
    assert table[0] == "instance-type: Trn1"
    assert table[3].replace(" ", "") == "|DEVICE|CORES|COREIDS|MEMORY|DEVICES|BDF|"
    assert len(table) == 8


def test_neuron_monitor(start: Start) -> None:
    process = start("neuron_monitor")
    assert process.stdout
    report = json.loads(process.stdout.readline())
    process.kill()
    process.communicate()
    assert set(report) == REPORT
    counters = report["system_data"]["neuron_hw_counters"]["neuron_devices"]
    assert [set(one) for one in counters] == [{"neuron_device_index", *ECC}] * 2
    assert [one["mem_ecc_uncorrected"] for one in counters] == [0, 1]
    assert report["neuron_hardware_info"]["neuron_device_count"] == 2
