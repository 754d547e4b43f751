# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""node_health: what is planted on a node is found, told to Prometheus and the head node, and gone once it is mended."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from testinfra.host import Host

from .conftest import unmanaged
from .helpers import On, Play, exposure, ok, until
from .test_diagnose import HUNG

GPU, CPU = "gpu-st-p5-1", "cpu-st-c5-1"
UNIT = "pcluster-node-health"
STATE = "/run/pcluster-postboot/node-health/state.json"
KMSG = "/run/sandbox-kmsg"
PROGRAM = f"/usr/bin/python3 -I -S /usr/local/libexec/pcluster-postboot/node-health --kmsg={KMSG}"
SHARED = "/opt/slurm/pcluster-postboot/health/nodes"

Findings = dict[tuple[str, str], str]


def look(host: Host) -> dict[str, Any]:
    """Have a node looked at now; return its state."""
    host.check_output(f"systemctl start {UNIT}")
    found: dict[str, Any] = json.loads(host.file(STATE).content_string)
    return found


def found(state: dict[str, Any]) -> Findings:
    return {(one["finding"], one["subject"]): one["class"] for one in state["findings"]}


def metrics(host: Host, node: str) -> set[tuple[str, str]]:
    """The findings that Prometheus gets, from where it runs."""
    text = host.check_output(f"curl -sf http://{node}:9100/metrics")
    pattern = r'^pcluster_node_health_finding\{class="(\w+)",finding="(\w+)"\} 1$'
    return {(finding, kind) for kind, finding in re.findall(pattern, text, re.MULTILINE)}


def log(host: Host, text: str) -> None:
    """Write into a node's kernel log what a driver would print."""
    sequence = time.monotonic_ns() // 1000
    host.check_output(f"printf '4,{sequence},{sequence},-;%%s\\n SUBSYSTEM=pci\\n' %s >> {KMSG}", text)


# Has a hung mount seem to have been found ten minutes earlier.
EARLIER = """import json, pathlib
memory = pathlib.Path("/run/pcluster-postboot/node-health/memory.json")
kept = json.loads(memory.read_text())
kept["seen"]["mount_hangs /mnt/hung"] -= 600
memory.write_text(json.dumps(kept))
"""


def forget(host: Host) -> None:
    host.check_output(f": > {KMSG}; {PROGRAM} --forget")


@pytest.fixture
def gpu_that_is_well(on: On) -> Iterator[Host]:
    """The GPU node; whatever a test has planted there is gone afterwards."""
    host = on(GPU)
    host.check_output(f"touch {KMSG}")
    assert found(look(host)) == {}
    yield host
    host.run("mv /root/nvidia3 /dev/nvidia3; rm -rf /run/sandbox-dcgm")
    forget(host)
    until(lambda: not found(look(host)), 30, "the node is well again")


def test_a_gpu_that_is_gone_and_a_xid_are_found_told_and_gone_again(gpu_that_is_well: Host, on: On) -> None:
    gpu, head = gpu_that_is_well, on("head")
    gpu.check_output("mv /dev/nvidia3 /root/nvidia3")
    log(gpu, "NVRM: Xid (PCI:0000:1c:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    planted = {("gpu_missing", "GPU 3"): "replace", ("gpu_xid_79", "GPU 3"): "replace"}
    until(lambda: found(look(gpu)) == planted, 10, "both are found")
    assert metrics(head, GPU) == {("gpu_missing", "replace"), ("gpu_xid_79", "replace")}
    # What the head node reads is what the node says.
    told = json.loads(head.file(f"{SHARED}/{GPU}.json").content_string)
    assert found(told) == planted
    assert len(told["gpus"]) == 8
    evidence = {one["finding"]: one["evidence"] for one in told["findings"]}
    assert evidence["gpu_missing"] == "8 by PCI, 7 by dcgm-exporter; a p5.48xlarge has 8"
    assert evidence["gpu_xid_79"].endswith("GPU has fallen off the bus.")
    gpu.check_output("mv /root/nvidia3 /dev/nvidia3")
    forget(gpu)
    until(lambda: not found(look(gpu)), 10, "both are gone")
    assert metrics(head, GPU) == set()
    assert json.loads(head.file(f"{SHARED}/{GPU}.json").content_string)["findings"] == []


def test_nodes_that_are_well_say_so_and_what_they_cannot_see(on: On) -> None:
    for name in ("head", CPU):
        state = look(on(name))
        assert state["findings"] == [], name
        assert state["gpus"] == []
        # Nothing of GPUs and EFA is asked of a node without.
        assert set(state["skipped"]) <= {"clock", "pyxis", "slurmd"}, name


def test_the_timer_runs_by_itself_and_its_service_is_confined(on: On) -> None:
    gpu = on(GPU)
    assert gpu.service(f"{UNIT}.timer").is_running
    assert gpu.service(f"{UNIT}.timer").is_enabled
    assert exposure(gpu, UNIT) <= 2.8
    assert time.time() - json.loads(gpu.file(STATE).content_string)["time"] < 60


@pytest.mark.long
@pytest.mark.parametrize(
    ("field", "value", "finding", "kind"),
    [
        ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 2, "gpu_ecc_uncorrected", "reset"),
        ("DCGM_FI_DEV_ROW_REMAP_FAILURE", 1, "gpu_row_remap_failed", "replace"),
        ("DCGM_FI_DEV_ROW_REMAP_PENDING", 1, "gpu_row_remap_pending", "reset"),
    ],
)
def test_what_dcgm_says_of_memory(gpu_that_is_well: Host, field: str, value: int, finding: str, kind: str) -> None:
    gpu = gpu_that_is_well
    gpu.check_output(f"mkdir -p /run/sandbox-dcgm/5; echo {value} > /run/sandbox-dcgm/5/{field}")
    assert found(look(gpu)) == {(finding, "GPU 5"): kind}
    gpu.check_output("rm -r /run/sandbox-dcgm")
    assert found(look(gpu)) == {}


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "finding", "kind"),
    [
        ("NVRM: Xid (PCI:0000:1c:00): 119, pid=7, name=python, Timeout after 6s", "gpu_xid_119", "reset"),
        ("NVRM: Xid (PCI:0000:1c:00): 74, pid=7, name=python, NVLink: fatal error", "gpu_xid_74", "reboot"),
        ("NVRM: Xid (PCI:0000:1c:00): 32, pid=7, name=python, Ch 00000010", "gpu_xid_32", "watch"),
    ],
)
def test_xids_are_found_by_the_timer_with_their_class(
    gpu_that_is_well: Host, text: str, finding: str, kind: str
) -> None:
    gpu = gpu_that_is_well
    log(gpu, text)
    read = lambda: found(json.loads(gpu.file(STATE).content_string))  # noqa: E731
    until(lambda: read() == {(finding, "GPU 3"): kind}, 45, "the timer's look")


@pytest.mark.long
def test_a_program_that_was_killed_by_a_fault_of_its_own_is_no_finding(gpu_that_is_well: Host) -> None:
    for number in (13, 31, 43, 45):
        log(gpu_that_is_well, f"NVRM: Xid (PCI:0000:1c:00): {number}, pid=7, name=python, Ch 00000008")
    assert found(look(gpu_that_is_well)) == {}


@pytest.mark.long
def test_an_efa_device_that_is_gone(gpu_that_is_well: Host) -> None:
    gpu, hardware = gpu_that_is_well, "/run/sandbox-hardware/class/infiniband"
    gone = gpu.check_output(f"ls {hardware} | head -n 1")
    gpu.check_output(f"mv {hardware}/{gone} /run/sandbox-hardware/gone")
    try:
        assert found(look(gpu)) == {("efa_missing", ""): "replace"}
    finally:
        gpu.check_output(f"mv /run/sandbox-hardware/gone {hardware}/{gone}")
    assert found(look(gpu)) == {}


@pytest.mark.long
def test_fabric_manager_that_is_stopped(gpu_that_is_well: Host) -> None:
    gpu, unit = gpu_that_is_well, "nvidia-fabricmanager"
    assert gpu.service(unit).is_running
    gpu.check_output(f"systemctl stop {unit}")
    try:
        assert found(look(gpu)) == {("fabric_manager", ""): "reboot"}
    finally:
        gpu.check_output(f"systemctl start {unit}")
    assert found(look(gpu)) == {}


@pytest.mark.long
def test_an_exporter_that_hangs_is_told_and_keeps_nothing_from_looking(gpu_that_is_well: Host) -> None:
    gpu = gpu_that_is_well
    gpu.check_output("systemctl kill --signal=STOP nvidia-dcgm-exporter")
    try:
        state = look(gpu)
        assert "gave no page within 5 s" in state["skipped"]["gpu_memory"]
        assert "mounts" not in state["skipped"]
        until(lambda: found(look(gpu)) == {("check_hangs", "dcgm-exporter"): "watch"}, 90, "it is a finding")
    finally:
        gpu.check_output("systemctl kill --signal=CONT nvidia-dcgm-exporter")


@pytest.mark.long
def test_a_mount_that_hangs_holds_up_nothing_and_no_process_joins_it(on: On) -> None:
    cpu = on(CPU)
    assert found(look(cpu)) == {}
    try:
        cpu.check_output("printf %%s %s > /root/hung.py", HUNG)
        cpu.check_output("systemd-run --quiet --unit=hung-mount python3 /root/hung.py /mnt/hung")
        until(lambda: "/mnt/hung" in cpu.file("/proc/mounts").content_string, 10, "the mount hangs")
        cpu.check_output(f"systemctl stop {UNIT}.timer")
        # As long as a file system of the network may be maintained, it is no finding.
        assert found(look(cpu)) == {}
        cpu.check_output("python3 -c %s", EARLIER)
        for _look in range(3):
            begun = time.monotonic()
            state = look(cpu)
            assert time.monotonic() - begun < 15
            assert found(state) == {("mount_hangs", "/mnt/hung"): "reboot"}
        assert int(cpu.check_output("pgrep --count --full libexec/pcluster-postboot/node-health || true")) <= 1
    finally:
        cpu.run("umount -l /mnt/hung; systemctl stop hung-mount; rm -rf /mnt/hung /root/hung.py")
        cpu.check_output(f"systemctl start {UNIT}.timer")
    until(lambda: not found(look(cpu)), 30, "the mount is gone")


@pytest.mark.long
def test_slurmd_that_has_ended_is_found_after_a_minute(on: On) -> None:
    cpu = on(CPU)
    assert found(look(cpu)) == {}
    with unmanaged():
        cpu.check_output("systemctl stop slurmd")
        try:
            assert found(look(cpu)) == {}
            until(lambda: found(look(cpu)) == {("slurmd_down", ""): "watch"}, 90, "the minute is over")
        finally:
            cpu.check_output("systemctl start slurmd")
    until(lambda: not found(look(cpu)), 30, "slurmd runs")


@pytest.mark.long
def test_a_run_changes_nothing_and_a_check_mode_touches_nothing(play: Play) -> None:
    only = ("--tags", "node_health", "--limit", f"head:{GPU}:{CPU}")
    for more, words in ((("--check",), "0 would change"), ((), "0 changed")):
        assert words in ok(play(*only, *more)).stdout
