# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Finds GPUs and EFA devices that are lost or complain."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose import gpu_messages, logs
from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose.evidence import (
    CAUSE,
    FAULT,
    NOTE,
    Evidence,
    Finding,
    finding,
)

PAGE = "lost-gpu"
# What nvidia-smi says of a GPU that does not answer.
_LOST = re.compile(r"Unable to determine the device handle|GPU is lost|GPU has fallen off the bus|Unknown Error|ERR!")
_PROCESSES = "| Processes:"  # the head of its table of processes, whose names users choose
_REPLACE = "drain the node (scontrol update nodename=… state=drain reason=…), so that ParallelCluster replaces it"
# How grave a message of a driver is, and what to do, by its class.
_BY_CLASS = {
    "replace": (CAUSE, _REPLACE),
    "reboot": (CAUSE, f"reboot the node once its jobs have ended, or {_REPLACE}"),
    "reset": (CAUSE, f"reset the GPU once its jobs have ended (nvidia-smi --gpu-reset), or {_REPLACE}"),
    "watch": (FAULT, "watch whether it recurs"),
    "": (NOTE, "a program's own fault, or none: see the job, and what the runbook says of the XID"),
}


class _Logged(NamedTuple):
    message: gpu_messages.Message
    log: str
    line: str


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


def driver(evidence: Evidence) -> Iterator[Finding]:
    """Find the messages of NVIDIA's drivers about GPUs and NVSwitches, one finding for each code.

    A message that a reset of the GPU has settled since, by the driver's later message, is no finding.
    """
    known: dict[tuple[str, bool], list[dict[str, _Logged]]] = {}  # by the GPU, and by whether users may have written it
    for name, line, said in evidence.kernel():
        message = gpu_messages.read(said.message)
        if message:
            cured, others = known.setdefault((message.subject, said.sure), [{}, {}])
            if message.all_clear:
                cured.clear()
                continue
            kept = cured if gpu_messages.curable(message.finding, message.kind) else others
            kept[message.finding] = _Logged(message, name, line)
    groups: dict[tuple[bool, str, str], list[_Logged]] = {}
    for (_subject, sure), (cured, others) in known.items():
        for logged in (*cured.values(), *others.values()):
            groups.setdefault((sure, logged.message.finding, logged.message.kind), []).append(logged)
    for (sure, label, kind), group in groups.items():
        code = "XID" if label.startswith("gpu_xid_") else "SXid"
        if not kind and code == "SXid":
            continue
        (level, todo), last = _BY_CLASS[kind], group[-1]
        subjects = sorted(logged.message.subject for logged in group)
        where = ", ".join(f"PCI:{subject}" if code == "XID" else subject for subject in subjects)
        what, sign = f"{code} {last.message.number} on {where}", f"{code.lower()}-{last.message.number}"
        yield finding(sign, *of_kernel(level, what, sure), last.line, last.log, todo, PAGE)


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


FINDERS = (lost_gpu, complaint, hung_gpu, driver, efa)
