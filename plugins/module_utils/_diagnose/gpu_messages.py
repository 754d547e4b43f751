# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Messages of NVIDIA's kernel drivers about GPUs and NVSwitches, and the action that each of them asks for.

The program node-health cannot import the collection: `make docs` writes a copy of this file into its folder, and the
tables below from roles/prometheus/files/xids.yml and roles/node_health/files/sxids.yml.

The messages, with their source in NVIDIA/open-gpu-kernel-modules:

    src/nvidia/src/kernel/gpu/rc/kernel_rc.c, krcReportXid_IMPL(), with or without a process, and with a cause for 45
    NVRM: Xid (PCI:0000:53:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
    NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149
    NVRM: Xid (PCI:0000:53:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)

    src/common/nvswitch/kernel/inc/common_nvswitch.h
    nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 20009, Non-fatal, Link 28 RX Short Error Rate

A GPU that falls off the bus may have no XID (NVIDIA/NVSentinel#155 of driver 570.158.01, leptonai/gpud#1209): the
first form is osHandleGpuLost()'s of src/nvidia/arch/nvalloc/unix/src/osinit.c, which leaves the XID out at times; the
second, a message of three lines, is rm_is_supported_device()'s of osapi.c there. Both count as XID 79.

    NVRM: GPU 0000:a1:00.0: GPU has fallen off the bus.
    NVRM: The NVIDIA GPU 0000:b3:00.0
    NVRM: (PCI ID: 10de:26b5) installed in this system has
    NVRM: fallen off the bus and is not responding to commands.

Further lines follow a line feed, which /dev/kmsg writes as \\x0a (Linux, Documentation/ABI/testing/dev-kmsg) and
rsyslog as #012. In other messages, text of users may follow, so only the last form is read beyond its first line.
"""

from __future__ import annotations

import re
from typing import NamedTuple

OFF_THE_BUS = 79
# XID 154 names the action. The numbers are NVML's (nvmlDeviceGpuRecoveryAction_t), and the texts differ by driver:
# 0x2 is "Node Reboot Required" and, from driver 610 on, "OS Reboot". All but these two end with a reset of the GPU.
ACTION = 154
ACTIONS = {0: "", 2: "reboot"}

# fmt: off
# begin XIDs: written by scripts/render_role_docs.py
XIDS = {
    **dict.fromkeys((54, 64, 79,), "replace"),
    **dict.fromkeys((74, 151, 168,), "reboot"),
    **dict.fromkeys((46, 48, 62, 95, 109, 110, 119, 120, 136, 140, 143, 149, 150, 155, 156, 158,), "reset"),
}
XIDS_NONE = frozenset((8, 11, 13, 14, 25, 31, 37, 38, 39, 40, 41, 43, 44, 45, 60, 63, 66, 67, 68, 69, 70, 71, 72, 75,
        76, 77, 80, 82, 83, 84, 85, 86, 88, 89, 92, 93, 94, 96, 97, 98, 99, 100, 101, 102, 103, 104, 105, 106, 107, 108,
        121, 126, 127, 128, 129, 130, 131, 132, 133, 134, 135, 137, 139, 141, 147, 148, 152, 153, 160, 161, 162,))
SXIDS_NONE = frozenset((22013,))
# end XIDs
# fmt: on

_ADDRESS = r"([0-9A-Fa-f]{1,8}:[0-9A-Fa-f]{1,8}:[0-9A-Fa-f]{1,8})"
_XID = re.compile(rf"NVRM: Xid \((?:PCI:)?{_ADDRESS}[^)\n]{{0,40}}\): (\d{{1,6}})(?!\d)(?:, (.*))?")
_SXID = re.compile(r"nvidia-nvswitch(\d{1,6}): SXid \(PCI:[^)\n]{0,40}\): (\d{1,9}), (Fatal|Non-fatal)\b")
_TO = re.compile(r"recovery action changed from 0x[0-9A-Fa-f]{1,8} \([^()]{0,60}\) to 0x([0-9A-Fa-f]{1,8})\b")
_CAUSE = re.compile(r" caused by previous Xid (\d{1,6})$")
_LOST = re.compile(rf"NVRM: GPU {_ADDRESS}\.\d: GPU has fallen off the bus")
_ABSENT_BEGINS = "NVRM: The NVIDIA GPU "
_LINE_FEED = re.compile(r"\\x0a|#012|NVRM:")
_ABSENT = re.compile(
    rf"The NVIDIA GPU {_ADDRESS}\.\d (?:\(PCI ID: [\da-f:]{{1,20}}\) )?installed in this system has fallen off the bus"
)


class Message(NamedTuple):
    finding: str  # as node_health calls it: gpu_xid_79, nvswitch_sxid_20034
    kind: str  # replace (another instance), reboot, reset (of the GPU), or watch; empty if it asks for nothing
    subject: str  # the GPU's address on PCI, in lower case, or such as NVSwitch 3
    number: int
    all_clear: bool = False  # whether the driver says that the GPU needs nothing any more


def of_xid(number: int) -> str:
    """Return the class of an XID; nothing if it is a program's own, or asks for nothing."""
    return "" if number in XIDS_NONE else XIDS.get(number, "watch")


def curable(finding: str, kind: str) -> bool:
    """Tell whether a finding ends when the driver says that the GPU needs nothing any more."""
    return kind == "reset" or finding == f"gpu_xid_{ACTION}"


def read(text: str) -> Message | None:
    """Return what a message of the kernel says of a GPU or an NVSwitch, if it does."""
    match = _XID.match(text)
    if match:
        number, rest = int(match[2]), (match[3] or "").rstrip()
        changed = _TO.search(rest) if number == ACTION else None
        if changed:
            kind = ACTIONS.get(int(changed[1], 16), "reset")
            return Message(f"gpu_xid_{ACTION}", kind, match[1].lower(), number, not kind)
        cause = _CAUSE.search(rest)
        return _gpu(match[1], int(cause[1]) if cause else number)
    match = _SXID.match(text)
    if match:
        number = int(match[2])
        kind = "reboot" if match[3] == "Fatal" else "" if number in SXIDS_NONE else "watch"
        return Message(f"nvswitch_sxid_{number}", kind, f"NVSwitch {match[1]}", number)
    match = _LOST.match(text)
    if not match and text.startswith(_ABSENT_BEGINS):
        match = _ABSENT.match(" ".join(_LINE_FEED.sub(" ", text).split()))
    return _gpu(match[1], OFF_THE_BUS) if match else None


def _gpu(address: str, number: int) -> Message:
    return Message(f"gpu_xid_{number}", of_xid(number), address.lower(), number)
