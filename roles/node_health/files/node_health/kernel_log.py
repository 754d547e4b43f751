# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""XIDs and SXIDs of the kernel's log.

A record of /dev/kmsg is "priority,sequence,microseconds,flags;text", with lines of details that begin with a space
(Linux, Documentation/ABI/testing/dev-kmsg). NVIDIA's drivers print (open-gpu-kernel-modules,
src/nvidia/src/kernel/gpu/rc/kernel_rc.c and src/common/nvswitch/kernel/inc/common_nvswitch.h):

    NVRM: Xid (PCI:0000:53:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
    nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 20009, Non-fatal, Link 28 RX Short Error Rate

A record counts only if it begins so and is the kernel's own: other records have words of users, such as the name of a
program's file where that program crashes.
What the log has said is remembered, because later records push the earlier ones out of it.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from .look import Look

# The kernel's longest record with its prefix and details; a shorter buffer would be refused.
LONGEST = 8192
WATCHED = 3600.0  # seconds for which a finding that is only watched is told
# The driver's own word on a GPU, in XID 154: "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)".
# The numbers are NVML's (nvmlDeviceGpuRecoveryAction_t), and all but these two end with a reset of the GPU.
ACTION = 154
ACTIONS = {0: "", 2: "reboot"}

_XID = re.compile(
    r"NVRM: Xid \(PCI:([0-9A-Fa-f]{1,8}:[0-9A-Fa-f]{1,8}:[0-9A-Fa-f]{1,8})[^)]*\): ([0-9]{1,9})(?:, (.*))?"
)
_SXID = re.compile(r"nvidia-nvswitch([0-9]{1,9}): SXid \(PCI:[^)]*\): ([0-9]{1,9}), (Fatal|Non-fatal)\b")
_TO = re.compile(r"recovery action changed from \S+ \([^()]*\) to 0x([0-9A-Fa-f]{1,8})\b")
_NUMBER = re.compile(r"[0-9]{1,18}")


class Record(NamedTuple):
    sequence: int
    seconds: float  # since the boot
    text: str


def _raw(path: str) -> Iterator[bytes]:
    """Yield the records that may be XIDs. Of the device a read returns one record, of a file all of them."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISCHR(os.fstat(descriptor).st_mode):
            with open(descriptor, "rb", closefd=False) as stream:
                yield from (line for line in stream.read().split(b"\n") if b"Xid" in line)
            return
        read = os.read
        while True:
            try:
                record = read(descriptor, LONGEST)
            except BlockingIOError:
                return
            except BrokenPipeError:
                continue  # the record was overwritten meanwhile: the next read has the oldest that is left
            if b"Xid" in record:
                yield record.split(b"\n", 1)[0]
    finally:
        os.close(descriptor)


def records(path: str) -> Iterator[Record]:
    for line in _raw(path):
        head, mark, text = line.decode("utf-8", "replace").partition(";")
        fields = head.split(",")
        # Below 8 the priority is the kernel's; what programs write into the log has a facility above.
        if mark and len(fields) >= 3 and all(map(_NUMBER.fullmatch, fields[:3])) and int(fields[0]) < 8:
            yield Record(int(fields[1]), int(fields[2]) / 1e6, text)


def _gpu(look: Look, address: str) -> str:
    """Return what people call the GPU at a PCI address such as 0000:53:00."""
    for gpu in look.remembered("gpus").values():
        if str(gpu["pci"]).lower().split(".", maxsplit=1)[0].endswith(address.lower()):
            return f"GPU {gpu['index']}"
    return f"PCI {address.lower()}"


def _event(look: Look, record: Record) -> dict[str, Any] | None:
    """Return what a record tells, if there is something to be done or watched."""
    settings = look.settings
    match = _XID.match(record.text)
    if match:
        address, number, said = match[1].lower(), int(match[2]), match[3] or ""
        kind = settings["xids"].get(str(number), "watch")
        changed = _TO.search(said) if number == ACTION else None
        if changed:
            kind = ACTIONS.get(int(changed[1], 16), "reset")
        if number in settings["xids_none"]:
            return None
        return {"finding": f"gpu_xid_{number}", "class": kind, "address": address, "recovered": not kind}
    match = _SXID.match(record.text)
    if match:
        kind = "reboot" if match[3] == "Fatal" else "watch"
        if kind == "watch" and int(match[2]) in settings["sxids_none"]:
            return None
        return {"finding": f"nvswitch_sxid_{match[2]}", "class": kind, "subject": f"NVSwitch {match[1]}"}
    return None


def _note(events: list[dict[str, Any]], event: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events with a new one among them: what came again counts from its first time on."""
    same = [one for one in events if one["key"] == event["key"]]
    if same and same[0]["class"] == event["class"]:
        same[0]["last"] = event["last"]
        return events
    return [*(one for one in events if one["key"] != event["key"]), event]


def check(look: Look, path: str) -> None:
    memory = look.remembered("kernel")
    events: list[dict[str, Any]] = memory.get("events", [])
    last, newest = memory.get("sequence", -1), memory.get("sequence", -1)
    booted = look.now - time.clock_gettime(time.CLOCK_MONOTONIC)
    try:
        for record in records(path):
            if record.sequence <= last:
                continue
            newest = record.sequence
            found = _event(look, record)
            if not found:
                continue
            at = min(look.now, booted + record.seconds)
            if found.get("recovered"):  # the GPU was reset
                events = [one for one in events if one.get("address") != found["address"] or one["class"] != "reset"]
                continue
            key = f"{found['finding']} {found.get('address') or found['subject']}"
            events = _note(events, {**found, "key": key, "evidence": record.text, "since": at, "last": at})
    except OSError as error:
        look.kernel_log = f"{path}: {error.strerror}"
        look.skip("kernel_log", look.kernel_log)
    events = [one for one in events if one["class"] != "watch" or look.now - one["last"] < WATCHED]
    look.memory["kernel"] = {"events": events, "sequence": newest}
    for one in events:
        subject = one.get("subject") or _gpu(look, one["address"])
        look.find(one["finding"], one["evidence"], subject, kind=one["class"], since=one["since"])
