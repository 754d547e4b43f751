# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What node-health finds of GPUs, on a tree as a p5.48xlarge has one, with the page of dcgm-exporter."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.pcluster.postboot.roles.node_health.files.node_health import exporter, units
from ansible_collections.pcluster.postboot.tests.unit.roles.node_health_tree import GPUS, Node, address


@pytest.fixture(autouse=True)
def no_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing asks this machine's systemd."""
    monkeypatch.setattr(units, "SYSTEMCTL", "/nowhere/systemctl")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    with node.exporter():
        yield node


def evidence(node: Node, finding: str) -> str:
    (said,) = [one["evidence"] for one in node.look(0)["findings"] if one["finding"] == finding]
    return str(said)


def test_a_node_that_is_well(node: Node) -> None:
    state = node.look()
    assert state["findings"] == []
    assert state["gpus"] == [f"GPU-0a7a51b0-0000-4000-8000-00000000000{gpu}" for gpu in range(GPUS)]
    assert "gpus" not in state["skipped"]
    assert not {"gpu_memory", "nvlink", "gpu_clocks", "gpu_persistence", "fabric_manager"} & set(state["skipped"])
    # H100's page says nothing of links that are down: nobody may take that for "all are up".
    assert "LINK_RECOVERY_FAILED_EVENTS" in state["skipped"]["nvlink_down"]


def test_a_gpu_that_dcgm_has_lost(node: Node) -> None:
    node.look()
    node.lost = {3}
    assert node.found() == {("gpu_missing", "GPU 3"): "replace"}
    assert evidence(node, "gpu_missing") == "8 by PCI, 8 by the driver, 7 by dcgm-exporter; a p5.48xlarge has 8"
    # The lost one is still named, so that the same machine is known when it comes back.
    assert len(node.look()["gpus"]) == GPUS
    node.lost = set()
    assert node.found() == {}


def test_a_gpu_that_is_gone_from_pci(node: Node) -> None:
    node.look()
    shutil.rmtree(node.root / f"sys/bus/pci/devices/{address(5)}")
    node.lost = {5}
    assert node.found() == {("gpu_missing", "GPU 5"): "replace"}
    assert evidence(node, "gpu_missing").startswith("7 by PCI")


def test_a_gpu_that_the_driver_has_given_up(node: Node) -> None:
    shutil.rmtree(node.root / f"proc/driver/nvidia/gpus/{address(0)}")
    assert node.found() == {("gpu_missing", ""): "replace"}


def test_a_driver_that_is_not_loaded(node: Node) -> None:
    shutil.rmtree(node.root / "sys/module/nvidia")
    shutil.rmtree(node.root / "proc/driver/nvidia")
    state = node.look()
    assert [(one["finding"], one["class"]) for one in state["findings"]] == [("gpu_driver", "reboot")]
    assert state["skipped"]["gpu_memory"] == "the driver is not loaded"


def test_a_gpu_without_a_driver(node: Node) -> None:
    (node.root / f"sys/bus/pci/devices/{address(2)}/driver").unlink()
    assert node.found() == {("gpu_driver", f"PCI {address(2)}"): "reboot"}


@pytest.mark.parametrize(
    ("field", "value", "finding", "kind"),
    [
        ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 2, "gpu_ecc_uncorrected", "reset"),
        ("DCGM_FI_DEV_ROW_REMAP_FAILURE", 1, "gpu_row_remap_failed", "replace"),
        ("DCGM_FI_DEV_ROW_REMAP_PENDING", 1, "gpu_row_remap_pending", "reset"),
        ("DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS", 1, "nvlink_down", "replace"),
        ("DCGM_FI_DEV_FABRIC_MANAGER_STATUS", 4, "fabric_manager", "reboot"),
    ],
)
def test_what_the_page_says_of_one_gpu(node: Node, field: str, value: int, finding: str, kind: str) -> None:
    node.values[6][field] = value
    assert node.found() == {(finding, "GPU 6"): kind}
    assert evidence(node, finding) == f'{field}{{gpu="6"}} {value}'
    node.values[6][field] = 3 if "FABRIC" in field else 0
    assert node.found() == {}


def test_a_value_that_dcgm_does_not_know_is_none(node: Node) -> None:
    node.values[1]["DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"] = 0x7FFFFFFFFFFFFFF2  # DCGM_INT64_NOT_SUPPORTED
    assert node.found() == {}


@pytest.mark.parametrize(("mask", "words"), [(0x8, "HW slowdown"), (0xC0, "HW thermal slowdown, HW power brake")])
def test_clocks_that_the_hardware_slows_down_for_five_minutes(node: Node, mask: int, words: str) -> None:
    node.values[0]["DCGM_FI_DEV_CLOCKS_EVENT_REASONS"] = mask
    assert node.found() == {}
    assert node.found(270) == {}
    assert node.found(30) == {("gpu_clocks_slowed", "GPU 0"): "watch"}
    assert words in evidence(node, "gpu_clocks_slowed")
    node.values[0]["DCGM_FI_DEV_CLOCKS_EVENT_REASONS"] = 0x1 | 0x4 | 0x20  # idle, the power limit, the driver's
    assert node.found() == {}
    node.values[0]["DCGM_FI_DEV_CLOCKS_EVENT_REASONS"] = mask
    assert node.found() == {}  # the five minutes begin anew


def test_persistence_that_stays_off(node: Node) -> None:
    for gpu in range(GPUS):
        node.values[gpu]["DCGM_FI_DEV_PERSISTENCE_MODE"] = 0
    node.look()
    assert node.found(300) == {("gpu_persistence", f"GPU {gpu}"): "watch" for gpu in range(GPUS)}


def test_errors_of_nvlink_that_grow(node: Node) -> None:
    field = "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL"
    node.values[4][field] = 7
    assert node.found() == {}  # since when is not known
    node.values[4][field] = 9
    assert node.found() == {("nvlink_errors", "GPU 4"): "watch"}
    assert evidence(node, "nvlink_errors") == f'{field}{{gpu="4"}} 9, 7 before'
    assert node.found(840) != {}
    assert node.found(120) == {}  # none came within a quarter of an hour
    node.values[4][field] = 0  # the driver was loaded anew
    assert node.found() == {}


def test_nvlink_of_a_node_without_switches_is_nobodys_business(node: Node) -> None:
    node.settings["nvswitch"] = False
    node.values[0]["DCGM_FI_DEV_FABRIC_MANAGER_STATUS"] = 4
    state = node.look()
    assert state["findings"] == []
    assert not {"nvlink", "nvlink_down", "fabric_manager"} & set(state["skipped"])


def test_a_health_watch_of_dcgm_tells_of_links_that_are_down() -> None:
    """As dcgm-exporter's gpu_health_collector.go labels them, where somebody has asked for that counter."""
    line = (
        'DCGM_EXP_GPU_HEALTH_STATUS{{gpu="0",UUID="GPU-0",pci_bus_id="00000000:10:00.0",device="nvidia0",'
        'modelName="NVIDIA H100 80GB HBM3",health_error_code="{}",health_watch="{}"}} {}\n'
    )
    page = line.format("DCGM_FR_VOLATILE_DBE_DETECTED", "MEM", 20) + line.format("DCGM_FR_NVLINK_DOWN", "NVLINK", 20)
    assert exporter.parse(page)["GPU-0"].nvlink == "DCGM_FR_NVLINK_DOWN"
    assert exporter.parse(line.format("DCGM_FR_OK", "NVLINK", 0))["GPU-0"].nvlink == "DCGM_FR_OK"


def test_an_exporter_that_is_not_there_is_no_finding_but_is_told(node: Node) -> None:
    node.settings["page"] = "http://127.0.0.1:1/metrics"
    state = node.look()
    assert state["findings"] == []
    for check in ("gpu_memory", "nvlink", "nvlink_down", "gpu_clocks", "gpu_persistence"):
        assert state["skipped"][check] == "http://127.0.0.1:1/metrics: Connection refused"
    # PCI and the driver still tell how many GPUs there are.
    shutil.rmtree(node.root / f"sys/bus/pci/devices/{address(5)}")
    assert node.found() == {("gpu_missing", ""): "replace"}


def test_an_exporter_that_hangs(node: Node) -> None:
    node.wait, node.settings["patience"] = 60, 2
    state = node.look()
    assert state["findings"] == []
    assert "gave no page within 2 s" in state["skipped"]["gpu_memory"]
    assert node.found(60) == {("check_hangs", "dcgm-exporter"): "watch"}


def test_a_field_that_the_page_does_not_have_is_told(node: Node) -> None:
    for gpu in range(GPUS):
        node.values[gpu]["DCGM_FI_DEV_PERSISTENCE_MODE"] = None
    assert node.look()["skipped"]["gpu_persistence"] == "dcgm-exporter's page has no DCGM_FI_DEV_PERSISTENCE_MODE"


def test_a_node_without_gpus_is_not_asked_for_any(node: Node) -> None:
    shutil.rmtree(node.root / "sys/module/nvidia")
    node.settings.update(gpus=0, gpu_addresses=[], nvswitch=False)
    state = node.look()
    assert state["findings"] == []
    assert not {"gpus", "gpu_memory", "nvlink", "fabric_manager"} & set(state["skipped"])


def test_fabric_manager_that_has_ended(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = tmp_path / "said"
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(f"#!/bin/sh\ncat {said}\n")
    systemctl.chmod(0o755)
    monkeypatch.setattr(units, "SYSTEMCTL", str(systemctl))
    shutil.rmtree(node.root / "sys/fs/cgroup/system.slice/nvidia-fabricmanager.service")
    said.write_text("LoadState=loaded\nActiveState=failed\n")
    assert node.found() == {("fabric_manager", ""): "reboot"}
    assert evidence(node, "fabric_manager") == "nvidia-fabricmanager.service is failed"
    said.write_text("LoadState=loaded\nActiveState=activating\n")
    assert node.found() == {}
    said.write_text("LoadState=not-found\nActiveState=inactive\n")
    state = node.look()
    assert state["findings"] == []
    assert state["skipped"]["fabric_manager"] == "nvidia-fabricmanager.service is not installed"


def test_what_is_ignored_is_not_found(node: Node) -> None:
    node.values[6]["DCGM_FI_DEV_ROW_REMAP_PENDING"] = 1
    node.settings["ignored"] = ["gpu_row_remap_pending"]
    assert node.found() == {}
