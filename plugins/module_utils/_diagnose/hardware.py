# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Finds GPUs and EFA devices that are lost or complain."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose import logs
from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose.evidence import (
    CAUSE,
    FAULT,
    NOTE,
    Evidence,
    Finding,
    finding,
)

PAGE = "lost-gpu"
# A fault of the machine, and not of a program: as the alert GpuXidCritical, which has NVIDIA's catalogue as its source.
XID_CRITICAL = frozenset(
    (46, 48, 54, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 149, 150, 151, 155, 156, 158, 168)
)
# A program's own, and what the driver does after another one.
XID_ORDINARY = frozenset((13, 31, 43, 45))
# As the driver writes them: "NVRM: Xid (PCI:0000:53:00): 79, pid=1234, name=python, GPU has fallen off the bus."
# Elsewhere in a message are words of users, such as names of files.
_XID = re.compile(r"NVRM: Xid \((?P<device>[^)]{1,40})\): (?P<number>\d{1,6}),")
# What nvidia-smi says of a GPU that does not answer.
_LOST = re.compile(r"Unable to determine the device handle|GPU is lost|GPU has fallen off the bus|Unknown Error|ERR!")
_PROCESSES = "| Processes:"  # the head of its table of processes, whose names users choose
_REPLACE = "drain the node (scontrol update nodename=… state=drain reason=…), so that ParallelCluster replaces it"


def lost_gpu(evidence: Evidence) -> Iterator[Finding]:
    """Find a node with fewer GPUs than PCI, its instance type's configuration in Slurm, or its devices promise."""
    name, text = evidence.text("nvidia-smi-list")
    seen = len(re.findall(r"^GPU \d+:", text, re.MULTILINE))
    expected, source = _expected(evidence)
    if name and seen < expected:
        told = next((line for line in logs.lines(text) if line.strip() and not line.startswith("GPU ")), "")
        said = told or f"nvidia-smi -L lists {seen} GPUs"
        what = f"{expected - seen} of {expected} GPUs ({source}) are lost"
        yield finding("lost-gpu", CAUSE, what, said, name, _REPLACE, PAGE)


def _expected(evidence: Evidence) -> tuple[int, str]:
    """Return how many GPUs the node should have, by whoever knows of most, and who that is."""
    known = {"as PCI has them": int((evidence.facts.get("gpus") or {}).get("count") or 0)}
    for _name, text in evidence.named("scontrol-node"):
        gres = ",".join(re.findall(r"^ *Gres=(\S*)", text, re.MULTILINE))
        counts = re.findall(r"(?:^|,)gpu:(?:[^:(,]+:)?(\d{1,9})", gres)
        if counts:
            known["as Slurm has them configured"] = int(counts[-1])
    source = max(known, key=lambda key: known[key])
    return known[source], source


def complaint(evidence: Evidence) -> Iterator[Finding]:
    """Find a GPU that does not answer nvidia-smi, and a driver that is not there."""
    gpus = (evidence.facts.get("gpus") or {}).get("count")
    for name, text in evidence.named("nvidia-smi-list", "nvidia-smi"):
        for line in logs.lines(text.split(_PROCESSES, 1)[0]):
            if "couldn't communicate with the NVIDIA driver" in line and gpus:
                todo = "modprobe nvidia, and dkms status; a newer kernel than that of the driver is the usual cause"
                yield finding("no-driver", CAUSE, "the NVIDIA driver does not answer", line, name, todo, PAGE)
                return
            if _LOST.search(line):
                yield finding("gpu-error", CAUSE, "a GPU does not answer", line, name, _REPLACE, PAGE)
                return


def hung_gpu(evidence: Evidence) -> Iterator[Finding]:
    """Find an nvidia-smi that does not end, as when the driver waits for a GPU that is gone."""
    for name, text in evidence.named("nvidia-smi-list", "nvidia-smi", "nvidia-smi-query", "dcgm"):
        line = logs.last(text)
        if re.match(r"'[^']+' did not end within [\d.]+ s", line):
            yield finding("gpu-hangs", CAUSE, "the NVIDIA driver hangs", line, name, f"{_REPLACE}, or reboot it", PAGE)
            return


def xids(evidence: Evidence) -> Iterator[Finding]:
    """Find the XIDs of the kernel's log, one finding for each number."""
    found: dict[int, tuple[str, str, set[str]]] = {}
    unsure: dict[int, tuple[str, str, set[str]]] = {}
    for name, line, said in evidence.kernel():
        match = _XID.match(said.message)
        if match:
            known, number = found if said.sure else unsure, int(match["number"])
            devices = known.get(number, ("", "", set()))[2]
            devices.add(match["device"])
            known[number] = (name, line, devices)
    for number, (name, line, devices) in {**unsure, **found}.items():
        critical, ordinary = number in XID_CRITICAL, number in XID_ORDINARY
        level = CAUSE if critical else NOTE if ordinary else FAULT
        todo = _REPLACE if critical else "a program's own fault: see the job" if ordinary else "watch whether it recurs"
        what = f"XID {number} on {', '.join(sorted(devices))}"
        yield finding(f"xid-{number}", *of_kernel(level, what, number in found), line, name, todo, PAGE)


def of_kernel(level: str, what: str, sure: bool) -> tuple[str, str]:
    """Return how grave a message of the kernel is and what it means, if a user may have written it to syslog."""
    return (level, what) if sure else (NOTE, f"{what} (only syslog has it, and every user can write there)")


def efa(evidence: Evidence) -> Iterator[Finding]:
    """Find EFA devices of PCI that no program can use."""
    known = evidence.facts.get("efa") or {}
    missing = int(known.get("pci_count") or 0) - int(known.get("count") or 0)
    if missing > 0:
        said = f"{known['pci_count']} on PCI, {known.get('count')} in /sys/class/infiniband"
        todo = "modprobe efa; the driver has to fit the running kernel (dkms status)"
        yield finding(
            "efa",
            CAUSE,
            f"{missing} of {known['pci_count']} EFA devices are lost",
            said,
            "facts.json",
            todo,
            "slow-job",
        )
    name, text = evidence.text("efa")
    if known.get("count") and name and "provider: efa" not in text:
        said = logs.last(text) or "fi_info lists no domain"
        todo = "/opt/amazon/efa/bin/fi_info -p efa on the node; role efa's README"
        yield finding("libfabric", CAUSE, "libfabric finds no EFA device", said, name, todo, "slow-job")


FINDERS = (lost_gpu, complaint, hung_gpu, xids, efa)
