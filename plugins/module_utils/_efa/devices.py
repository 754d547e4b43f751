# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which EFA devices libfabric finds on a node, how many there must be, and whether the node has to be rebooted."""

from __future__ import annotations

import json
import os
import re
import time
from typing import NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._host import document, files, lock
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import NotRun, run
from ansible_collections.pcluster.postboot.plugins.module_utils._node import hardware as node_hardware
from ansible_collections.pcluster.postboot.plugins.module_utils._node.tree import Tree

FI_INFO = "/opt/amazon/efa/bin/fi_info"
QUESTION = ("-p", "efa", "-t", "FI_EP_RDM")
RECORD = "efa-installer.json"  # below _run.STATE_DIR
SYS_VERSION = "/sys/module/efa/version"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
TIMEOUT = 60
PAUSE = 5.0

# How many EFA devices an instance type has; ParallelCluster attaches all of them. The source is EC2's own answer to
# DescribeInstanceTypes (NetworkInfo.EfaInfo.MaximumEfaInterfaces), as moto 5.2 keeps it; instance-profiles.conf of
# awslabs/awsome-distributed-ai says the same of p4d to p6-b200. Of p6-b300's 17 network cards, the first has no EFA.
# No source was found for p6e-gb200. Neither inf2 nor trn1.2xlarge has EFA. Where a type is not here, what is on PCI
# counts.
DEVICES = {
    "p4d.24xlarge": 4,
    "p4de.24xlarge": 4,
    "p5.4xlarge": 1,
    "p5.48xlarge": 32,
    "p5e.48xlarge": 32,
    "p5en.48xlarge": 16,
    "p6-b200.48xlarge": 8,
    "p6-b300.48xlarge": 16,
    "g6e.24xlarge": 2,
    "g6e.48xlarge": 4,
    "g7.48xlarge": 2,
    "g7e.24xlarge": 2,
    "g7e.48xlarge": 4,
    "trn1.32xlarge": 8,
    "trn1n.32xlarge": 16,
    "trn2.3xlarge": 1,
    "trn2.48xlarge": 16,
    "trn2u.48xlarge": 16,
}


class Request(NamedTuple):
    """The module's options."""

    instance_type: str = ""
    devices: int = 0
    wait: float = 15.0
    minimal: bool = False
    pending: str = ""


class Outcome(NamedTuple):
    """The module's result."""

    devices: list[str]
    expected: int
    reboot: str
    summary: str


class Record(NamedTuple):
    """What the installer was last run for by this collection; `done` is false while it runs, and where it was killed.

    `reboot` is the boot at which it asked for another one.
    """

    version: str
    done: bool
    options: list[str]
    reboot: str = ""


def record_path() -> str:
    """Return where the record is."""
    return os.path.join(lock.STATE_DIR, RECORD)


def read_record() -> Record | None:
    """Return the record, if there is one that can be read."""
    try:
        data = document.read(record_path())
        options = [str(option) for option in data["options"]]
        return Record(str(data["version"]), bool(data["done"]), options, str(data.get("reboot") or ""))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_record(record: Record) -> None:
    """Put the record in place, whole."""
    os.makedirs(lock.STATE_DIR, mode=0o755, exist_ok=True)
    files.write(record_path(), json.dumps(record._asdict()) + "\n")


def boot_id() -> str:
    """Return what names this boot."""
    return _line(BOOT_ID)


def _line(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as stream:
            return stream.readline().strip()
    except OSError:
        return ""


def domains(text: str) -> list[str]:
    """Return the devices in fi_info's answer. From libfabric 2 on it lists each one for two fabrics."""
    found = re.findall(r"^\s*domain: *(\S+?)(?:-rdm)?\s*$", text, re.MULTILINE)
    return sorted(set(found), key=lambda name: [document.whole(part) or 0 for part in re.findall(r"\d+", name)] or [0])


def ask() -> tuple[list[str], str]:
    """Return the devices that fi_info lists, and what it said where it lists none."""
    try:
        said = run([FI_INFO, *QUESTION], TIMEOUT, only=True)
    except NotRun as error:
        return [], str(error)
    found = domains(said.out) if said.code == 0 else []
    return found, "" if found else said.first


def hardware() -> tuple[list[str], int]:
    """Return the EFA devices that the kernel has, and how many are on PCI."""
    efa = node_hardware.read_hardware(Tree("/"))["efa"]
    return efa["devices"], efa["pci_count"]


def reboot_needed() -> str:
    """Return why this node has to be rebooted, or nothing."""
    loaded, there = _line(SYS_VERSION), ""
    try:
        there = run(["modinfo", "-F", "version", "efa"], TIMEOUT).output().strip()
    except Problem:
        pass  # no modinfo or no such module: no version to compare with
    if loaded and there and loaded != there:
        return f"version {loaded} of EFA's kernel module is loaded, and {there} is installed"
    record = read_record()
    if record and record.reboot and record.reboot == boot_id():
        return "EFA's kernel module was in use, and its installer asks for a reboot"
    return ""


def check(request: Request) -> Outcome:
    """See that every device answers that this node must have; late ones are waited for."""
    on_pci = hardware()[1]
    expected = request.devices or DEVICES.get(request.instance_type, 0) or on_pci
    if not request.minimal and not os.path.exists(FI_INFO):
        raise Problem(
            f"{FI_INFO} is not there; needed is EFA's software"
            + (
                f": {request.pending}"
                if request.pending
                else ", with libfabric: set efa_minimal if it has to do without"
            )
        )
    if not expected and not hardware()[0]:
        # A node on which programs are built, such as the head node, may have the software alone.
        return Outcome([], 0, "", "no EFA device")
    deadline = time.monotonic() + request.wait
    while True:
        found, said = (hardware()[0], "") if request.minimal else ask()
        left = deadline - time.monotonic()
        if (len(found) == expected if expected else found) or left <= 0:
            break
        lock.heartbeat()
        time.sleep(min(PAUSE, left))
    reboot = reboot_needed()
    if not found or (expected and len(found) != expected):
        raise Problem(_what_is_wrong(request, found, said, expected, reboot))
    summary = f"{len(found)} EFA device{'' if len(found) == 1 else 's'}"
    return Outcome(found, expected, reboot, summary + (", reboot needed" if reboot else ""))


def _what_is_wrong(request: Request, found: list[str], said: str, expected: int, reboot: str) -> str:
    who = "the kernel has" if request.minimal else f"'{FI_INFO} {' '.join(QUESTION)}' lists"
    line = f"{who} {len(found) or 'no'} EFA device{'s' if len(found) > 1 else ''}"
    line += f" ({said})" if said else ""
    line += f" after {request.wait:g} s" if request.wait and len(found) < max(expected, 1) else ""
    if expected:
        known = request.instance_type in DEVICES
        whose = "efa_devices is" if request.devices else f"a {request.instance_type} has" if known else "PCI has"
        line += f", {whose} {expected}"
    if reboot:
        return f"{line}; {reboot}: reboot this node once no job runs on it"
    missing = sorted(set(hardware()[0]) - set(found)) if not request.minimal else []
    if missing:
        line += (
            f"; the kernel{' also' if found else ''} has {', '.join(missing[:4])}{' ...' if len(missing) > 4 else ''}"
        )
    hint = "see 'dmesg | grep efa'"
    if found and not request.devices:
        hint += ", or set efa_devices if this node is meant to have another number"
    return f"{line}; {hint}"
