# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What hardware a node has, as sysfs and procfs tell it."""

from __future__ import annotations

import os
import re
from typing import Any

from ansible_collections.pcluster.postboot.plugins.module_utils._node import neuron
from ansible_collections.pcluster.postboot.plugins.module_utils._node.tree import Tree

_PCI = "/sys/bus/pci/devices"
_INFINIBAND = "/sys/class/infiniband"
_NVIDIA = "0x10de"
_AMAZON = "0x1d0f"
_GPU_CLASSES = ("0x0300", "0x0302")
_NVSWITCHES = ("0x1af1", "0x22a3")
_EFA = "0xefa"  # and one more digit: 0xefa4 came with release 3.3.0 of the driver
_ELF_MACHINES = {62: "x86_64", 183: "aarch64"}
GO_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def _pci_devices(tree: Tree) -> list[dict[str, str]]:
    """Return the devices of NVIDIA and Amazon; others are passed over after one read."""
    devices = []
    for address in tree.names(_PCI):
        vendor = tree.line(f"{_PCI}/{address}/vendor")
        if vendor in (_NVIDIA, _AMAZON):
            device = tree.line(f"{_PCI}/{address}/device") or ""
            kind = tree.line(f"{_PCI}/{address}/class") or ""
            devices.append({"address": address, "vendor": vendor, "device": device, "class": kind})
    return devices


def nvidia_driver(tree: Tree) -> str | None:
    """Return the version of the NVIDIA kernel module that is loaded."""
    text = tree.read("/proc/driver/nvidia/version", quiet=True) or ""
    line = re.search(r"Kernel Module\b(.*)", text)
    match = re.search(r"(?<!\S)(\d+\.\d+(?:\.\d+)*)(?!\S)", line[1] if line else "")
    return match[1] if match else tree.line("/sys/module/nvidia/version")


def read_hardware(tree: Tree) -> dict[str, Any]:
    """Return the facts gpus, nvswitch, efa and neuron."""
    pci = _pci_devices(tree)
    gpus = [
        {"address": device["address"], "id": f"{device['vendor'][2:]}:{device['device'][2:]}"}
        for device in pci
        if device["vendor"] == _NVIDIA and device["class"][:6] in _GPU_CLASSES
    ]
    switches = [device for device in pci if device["vendor"] == _NVIDIA and device["device"] in _NVSWITCHES]
    functions = [device for device in pci if device["vendor"] == _AMAZON and device["device"].startswith(_EFA)]
    neurons = [device for device in pci if device["vendor"] == _AMAZON and device["device"] in neuron.PCI_IDS]
    # Instances with InfiniBand or Ethernet cards beside EFA show those here too: only the EFA driver's count.
    efas = [name for name in tree.names(_INFINIBAND) if _is_efa(tree, f"{_INFINIBAND}/{name}/device")]
    return {
        "gpus": {"count": len(gpus), "devices": gpus, "driver": nvidia_driver(tree)},
        "nvswitch": {"count": len(switches)},
        "efa": {
            "count": len(efas),
            "devices": efas,
            "pci_count": len(functions),
            "driver": tree.line("/sys/module/efa/version"),
        },
        "neuron": neuron.read_neuron(tree, len(neurons)),
    }


def _is_efa(tree: Tree, device: str) -> bool:
    if tree.link_name(f"{device}/driver") == "efa":
        return True
    return tree.line(f"{device}/vendor") == _AMAZON and (tree.line(f"{device}/device") or "").startswith(_EFA)


def hardware_problems(facts: dict[str, Any]) -> list[str]:
    """Return what is wrong with the hardware facts, each on one line."""
    problems = []
    gpus, efa = facts["gpus"], facts["efa"]
    if gpus["count"] and not gpus["driver"]:
        ids = ", ".join(sorted({str(device.get("id")) for device in gpus["devices"] if isinstance(device, dict)}))
        problems.append(
            f"{gpus['count']} NVIDIA GPU(s){f' ({ids})' if ids else ''} found, but no NVIDIA driver is loaded: "
            "use an image that carries the driver, or load it (modprobe nvidia)"
        )
    if facts["neuron"]["devices"] and not facts["neuron"]["driver"]:
        problems.append(
            f"{facts['neuron']['devices']} Neuron device(s) found, but no Neuron driver is loaded: "
            "use an image that carries the driver, or load it (modprobe neuron)"
        )
    if efa["pci_count"] > efa["count"]:
        problems.append(
            f"{efa['pci_count']} EFA device(s) found on PCI, but only {efa['count']} in {_INFINIBAND}: "
            "the efa kernel module is missing or still starting (modprobe efa)"
        )
    return problems


def glibc(tree: Tree) -> str | None:
    """Return the version of the C library, such as 2.35; None in a tree that is not the running system."""
    library = os.confstr("CS_GNU_LIBC_VERSION") if tree.live and "CS_GNU_LIBC_VERSION" in os.confstr_names else None
    return library.partition(" ")[2] or None if library else None


def architecture(tree: Tree) -> str | None:
    """Return x86_64 or aarch64: the running kernel's, or that of a program in the tree."""
    if tree.live:
        return os.uname().machine
    for path in ("/usr/bin/env", "/bin/sh", "/usr/bin/python3"):
        head = (tree.read_bytes(path, quiet=True) or b"")[:20]
        if head[:4] == b"\x7fELF" and len(head) == 20:
            return _ELF_MACHINES.get(int.from_bytes(head[18:20], "little" if head[5] == 1 else "big"))
    return None
