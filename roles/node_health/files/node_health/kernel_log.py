# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""XIDs and SXIDs of the kernel's log.

A record of /dev/kmsg is "priority,sequence,microseconds,flags;text", with lines of details that begin with a space
(Linux, Documentation/ABI/testing/dev-kmsg). The messages of NVIDIA's drivers are in gpu_messages.py.

A record counts only if it begins with such a message and is the kernel's own: other records have text of users, such as
the name of the file of a program that crashes.
What the log has said is remembered, because later records push the earlier ones out of it.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from . import gpu_messages
from .look import Look

# The kernel's longest record with its prefix and details; a shorter buffer would be refused.
LONGEST = 8192
WATCHED = 3600.0  # seconds for which a finding that is only watched is told
# What a record must have to be read at all.
_MARKS = (b"Xid", b"fallen off the bus")
_NUMBER = re.compile(r"[0-9]{1,18}")


class Record(NamedTuple):
    sequence: int
    seconds: float  # since the boot
    text: str


def _raw(path: str) -> Iterator[bytes]:
    """Yield the records that may be about a GPU. Of the device a read returns one record, of a file all of them."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISCHR(os.fstat(descriptor).st_mode):
            with open(descriptor, "rb", closefd=False) as stream:
                yield from (line for line in stream.read().split(b"\n") if any(mark in line for mark in _MARKS))
            return
        read = os.read
        while True:
            try:
                record = read(descriptor, LONGEST)
            except BlockingIOError:
                return
            except BrokenPipeError:
                continue  # the record was overwritten meanwhile: the next read has the oldest that is left
            if any(mark in record for mark in _MARKS):
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


def _named(look: Look, subject: str) -> str:
    """Return what people call a subject: of a GPU it is the address on PCI, such as 0000:53:00."""
    if ":" not in subject:
        return subject
    for gpu in look.remembered("gpus").values():
        if str(gpu["pci"]).lower().split(".", maxsplit=1)[0].endswith(subject):
            return f"GPU {gpu['index']}"
    return f"PCI {subject}"


def _note(events: list[dict[str, Any]], event: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events with a new one among them: what came again counts from its first time on."""
    same = [one for one in events if (one["finding"], one["subject"]) == (event["finding"], event["subject"])]
    if same and same[0]["class"] == event["class"]:
        same[0]["last"] = event["last"]
        return events
    return [*(one for one in events if one not in same), event]


def check(look: Look, path: str) -> None:
    memory = look.remembered("kernel")
    # A release before this one has remembered GPUs as "address".
    events: list[dict[str, Any]] = [{"subject": one.get("address"), **one} for one in memory.get("events", [])]
    last, newest = memory.get("sequence", -1), memory.get("sequence", -1)
    booted = look.now - time.clock_gettime(time.CLOCK_MONOTONIC)
    try:
        for record in records(path):
            if record.sequence <= last:
                continue
            newest = record.sequence
            found = gpu_messages.read(record.text)
            if found and found.all_clear:
                events = [
                    one
                    for one in events
                    if one["subject"] != found.subject or not gpu_messages.curable(one["finding"], one["class"])
                ]
            elif found and found.kind:
                at = min(look.now, booted + record.seconds)
                event = {"finding": found.finding, "class": found.kind, "subject": found.subject}
                events = _note(events, {**event, "evidence": record.text, "since": at, "last": at})
    except OSError as error:
        look.kernel_log = f"{path}: {error.strerror}"
        look.skip("kernel_log", look.kernel_log)
    events = [one for one in events if one["class"] != "watch" or look.now - one["last"] < WATCHED]
    look.memory["kernel"] = {"events": events, "sequence": newest}
    for one in events:
        look.find(one["finding"], one["evidence"], _named(look, one["subject"]), kind=one["class"], since=one["since"])
