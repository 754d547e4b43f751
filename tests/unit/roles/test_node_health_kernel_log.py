# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What node-health makes of XIDs and SXIDs in the kernel's log: records of /dev/kmsg, with the drivers' own words.

The words of XIDs are those of open-gpu-kernel-modules, src/nvidia/src/kernel/gpu/rc/kernel_rc.c (krcReportXid), those
of SXIDs as NVIDIA's switch driver prints them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.roles.node_health.files.node_health import kernel_log, units
from ansible_collections.pcluster.postboot.tests.unit.roles.node_health_tree import Node

# XIDs of the GPUs at 0000:10:00, which is GPU 0, and 0000:1c:00, which is GPU 3.
XID = "NVRM: Xid (PCI:0000:1c:00): {}, pid='<unknown>', name=<unknown>, {}"
CHANGED = "NVRM: Xid (PCI:0000:1c:00): 154, GPU recovery action changed from {} to {}"
NONE, RESET, REBOOT = "0x0 (None)", "0x1 (GPU Reset Required)", "0x2 (Node Reboot Required)"


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setattr(units, "SYSTEMCTL", "/nowhere/systemctl")
    node = Node(tmp_path)
    with node.exporter():
        node.look()
        yield node


def only(state: dict[str, Any]) -> dict[str, Any]:
    (finding,) = state["findings"]
    return dict(finding)


@pytest.mark.parametrize(
    ("number", "words", "kind"),
    [
        (79, "GPU has fallen off the bus.", "replace"),
        (64, "Row Remapper Error: (0x0000000000000000) - Failed to remap", "replace"),
        (48, "An uncorrectable double bit error (DBE) has been detected on GPU", "reset"),
        (119, "Timeout after 6s of waiting for RPC response from GPU3 GSP!", "reset"),
        (74, "NVLink: fatal error detected on link 14(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)", "reboot"),
        (151, "Key rotation error", "reboot"),
        (32, "Ch 00000010, intr 00040000", "watch"),
    ],
)
def test_a_xid_by_its_class(node: Node, number: int, words: str, kind: str) -> None:
    text = XID.format(number, words)
    node.log(text)
    finding = only(node.look())
    assert (finding["finding"], finding["class"], finding["subject"]) == (f"gpu_xid_{number}", kind, "GPU 3")
    assert finding["evidence"] == text


@pytest.mark.parametrize("number", [13, 31, 43, 45, 63, 94])
def test_a_programs_own_xid_and_what_asks_for_nothing_are_none(node: Node, number: int) -> None:
    node.log(XID.format(number, "Ch 00000008"))
    assert node.found() == {}


def test_a_gpu_that_is_divided(node: Node) -> None:
    node.log("NVRM: Xid (PCI:0000:10:00 GPU-I:01 GPU-CI:00): 95, pid=12, name=python, Uncontained ECC error")
    assert node.found() == {("gpu_xid_95", "GPU 0"): "reset"}


def test_a_gpu_that_dcgm_has_never_told_of_is_named_by_pci(node: Node) -> None:
    node.log("NVRM: Xid (PCI:0001:9A:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    assert node.found() == {("gpu_xid_79", "PCI 0001:9a:00"): "replace"}


def test_sxids(node: Node) -> None:
    node.log(
        "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 20009, Non-fatal, Link 28 RX Short Error Rate",
        "nvidia-nvswitch1: SXid (PCI:0000:c4:00.0): 20034, Fatal, Link 27 LTSSM Fault Up",
        # What a switch says more of the same error.
        "nvidia-nvswitch1: SXid (PCI:0000:c4:00.0): 20034, Severity 1 Engine instance 27 Sub-engine instance 00",
        "nvidia-nvswitch1: SXid (PCI:0000:c4:00.0): 20034, Data {0x00000001, 0x00000001, 0x00000000, 0x00000000}",
    )
    assert node.found() == {
        ("nvswitch_sxid_20009", "NVSwitch 0"): "watch",
        ("nvswitch_sxid_20034", "NVSwitch 1"): "reboot",
    }


def test_an_sxid_that_asks_for_nothing_is_none_unless_it_is_fatal(node: Node) -> None:
    """H100 nodes log 22013 when they boot."""
    line = "nvidia-nvswitch3: SXid (PCI:0000:0a:00.0): 22013, {}, Link 55 Minion Link DLREQ interrupt"
    node.log(line.format("Non-fatal"))
    assert node.found() == {}
    node.log(line.format("Fatal"))
    assert node.found() == {("nvswitch_sxid_22013", "NVSwitch 3"): "reboot"}


def test_what_the_log_has_forgotten_is_remembered_until_the_next_boot(node: Node) -> None:
    node.log(XID.format(79, "GPU has fallen off the bus."))
    since = only(node.look())["since"]
    assert abs(since - (node.now - 5)) < 1  # by the record's own time
    node.kmsg.write_text("")
    node.log("eth0: link up")
    assert only(node.look(86400))["since"] == since
    node.write("proc/sys/kernel/random/boot_id", "f0000000-0000-4000-8000-000000000002\n")
    node.kmsg.write_text("6,1,0,-;Linux version 6.8.0-1040-aws\n")
    assert node.found() == {}


def test_what_is_watched_is_told_for_an_hour_after_the_last_time(node: Node) -> None:
    node.log(XID.format(32, "Ch 00000010"))
    assert node.found() == {("gpu_xid_32", "GPU 3"): "watch"}
    assert node.found(3000) != {}
    assert node.found(700) == {}


def test_what_comes_again_counts_from_its_first_time_on(node: Node) -> None:
    node.log(XID.format(48, "the first"))
    first = only(node.look())
    node.log(XID.format(48, "the second"))
    assert only(node.look(600)) == first


def test_the_driver_says_that_a_gpu_needs_a_reset_and_then_that_it_had_one(node: Node) -> None:
    node.log(XID.format(119, "Timeout"), CHANGED.format(NONE, RESET))
    assert node.found() == {("gpu_xid_119", "GPU 3"): "reset", ("gpu_xid_154", "GPU 3"): "reset"}
    node.log("NVRM: Xid (PCI:0000:10:00): 48, pid=1, name=python, DBE")
    node.log(CHANGED.format(RESET, NONE))
    assert node.found() == {("gpu_xid_48", "GPU 0"): "reset"}  # another GPU's


def test_the_driver_says_that_a_node_needs_a_reboot(node: Node) -> None:
    node.log(CHANGED.format(NONE, RESET))
    assert node.found() == {("gpu_xid_154", "GPU 3"): "reset"}
    node.log(CHANGED.format(RESET, REBOOT))
    assert node.found() == {("gpu_xid_154", "GPU 3"): "reboot"}
    # 5 is of drivers after 595, and no table here has it.
    node.log(CHANGED.format(NONE, "0x5 (GPU Reset Bus)"))
    assert node.found() == {("gpu_xid_154", "GPU 3"): "reset"}


def test_a_reset_by_hand_is_told_by_forget(node: Node) -> None:
    node.log(XID.format(79, "GPU has fallen off the bus."))
    assert node.found() != {}
    node.log(XID.format(119, "Timeout"))  # which no look has seen
    assert node.found(forget=True) == {}
    assert node.found() == {}  # the records are still in the log
    node.log(XID.format(79, "GPU has fallen off the bus."))
    assert node.found() == {("gpu_xid_79", "GPU 3"): "replace"}


def test_a_log_that_cannot_be_read_is_told_and_the_exporters_xids_count(node: Node) -> None:
    node.kmsg = node.root / "nowhere"
    node.values[3]["xids"] = [79, 45, 79]
    state = node.look()
    assert only(state)["finding"] == "gpu_xid_79"
    assert only(state)["class"] == "replace"
    assert only(state)["subject"] == "GPU 3"
    assert state["skipped"]["kernel_log"] == f"{node.root}/nowhere: No such file or directory"


def test_the_exporters_xids_do_not_count_twice(node: Node) -> None:
    node.values[3]["xids"] = [119]
    assert node.found() == {}  # the kernel's log is read, and does not have it
    assert "kernel_log" not in node.look()["skipped"]


def test_records_that_are_no_xids_cost_nothing_and_broken_ones_are_passed_over(node: Node) -> None:
    with node.kmsg.open("a") as stream:
        stream.write("NVRM: Xid (PCI:0000:1c:00): 79, without a prefix\n")
        stream.write("4,x,y,-;NVRM: Xid (PCI:0000:1c:00): 79, with a broken one\n")
        stream.write("6,990,1,-;systemd[1]: Started fluXidx.\n")
    node.sequence = 991
    assert node.found() == {}


# What the kernel prints of a program that crashes (arch/x86/mm/fault.c): after the process, which has 15 characters of
# the user's choice, comes the name of a file, which is the user's choice as well.
CRASH = "python[4711]: segfault at 0 ip 0000000000401136 sp 00007ffd error 4 in {}[401000+1000]"


@pytest.mark.parametrize(
    "words",
    [
        "NVRM: Xid (PCI:0000:53:00): 79",
        "NVRM: Xid (PCI:0000:1c:00): 154, recovery action changed from 1 (x) to 0x0",
        "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 20034, Fatal",
    ],
)
def test_a_program_whose_name_is_a_drivers_message_forges_none(node: Node, words: str) -> None:
    node.log(XID.format(119, "Timeout"))
    assert node.found() == {("gpu_xid_119", "GPU 3"): "reset"}
    node.log(CRASH.format(words), f"{words[:15]}[4711]: segfault at 0 ip 0000000000401136 in {words}[401000+1000]")
    assert node.found() == {("gpu_xid_119", "GPU 3"): "reset"}


def test_only_the_kernels_own_records_count(node: Node) -> None:
    """Programs of root write into the log as well, such as journald what users tell; no such record is the kernel's
    (facility 0, which the kernel gives to nobody else's records).
    """
    with node.kmsg.open("a") as stream:
        for sequence, priority in enumerate((12, 30), 990):
            stream.write(f"{priority},{sequence},1,-;NVRM: Xid (PCI:0000:1c:00): 79, GPU has fallen off the bus.\n")
        # With the thread that printed the record (CONFIG_PRINTK_CALLER).
        stream.write("3,995,1,-,caller=T1;NVRM: Xid (PCI:0000:1c:00): 48, DBE\n")
    node.sequence = 996
    assert node.found() == {("gpu_xid_48", "GPU 3"): "reset"}


def kernel_log_opens() -> bool:
    """The kernel may refuse what the device's mode allows (kernel.dmesg_restrict)."""
    try:
        os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not kernel_log_opens(), reason="needs the right to read this machine's kernel log")
def test_the_device_itself_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []
    real = os.read

    def noted(descriptor: int, size: int) -> bytes:
        read.append(real(descriptor, size))
        return read[-1]

    monkeypatch.setattr(os, "read", noted)
    list(kernel_log.records("/dev/kmsg"))
    assert read
    assert all(record.count(b";") >= 1 for record in read)
