# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a node must have, and what each finding asks for, from the collection's own tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.pcluster.postboot.plugins.module_utils._efa.devices import DEVICES
from ansible_collections.pcluster.postboot.plugins.module_utils._node.storage import NETWORK_TYPES
from ansible_collections.pcluster.postboot.plugins.module_utils._verify.nccl_expected import HARDWARE
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.components import ROOT, load

CLASSES = ("replace", "reboot", "reset", "watch")


def findings(root: Path = ROOT) -> dict[str, dict[str, str]]:
    """Return the table of findings: of each its class, what it means, and the source."""
    table: dict[str, dict[str, str]] = load(root / "roles/node_health/files/findings.yml")
    return table


def settings(facts: Mapping[str, Any], gpus: int = 0, efa: int = 0, ignored: Collection[str] = ()) -> dict[str, Any]:
    """Return what the program on a node reads. `gpus` and `efa` are what somebody says; 0 is nothing said."""
    kind = str(facts["instance_type"] or "")
    known = HARDWARE.get(kind)
    on_pci = [str(device["address"]) for device in facts["gpus"]["devices"]]
    # Without EFA in the cluster's configuration even a p5 has no device.
    devices = max(int(facts["efa"]["count"]), int(facts["efa"]["pci_count"]))
    return {
        "node": facts["node_name"] or "",
        "node_type": facts["node_type"] or "",
        "instance_id": facts["instance_id"] or "",
        "instance_type": kind,
        "gpus": gpus or (known.gpus if known and on_pci else len(on_pci)),
        "gpu_addresses": on_pci,
        "nvswitch": bool(facts["nvswitch"]["count"] or (known and known.nvlink and on_pci)),
        "efa": efa or (DEVICES.get(kind, devices) if devices else 0),
        # HyperPod's nodes have a folder of Slurm each, in which no other node looks.
        "slurm": (facts["slurm"]["prefix"] or "") if facts.get("platform") != "hyperpod" else "",
        "mounts": [str(mount["path"]) for mount in facts["mounts"]["wanted"]],
        "network_types": sorted(NETWORK_TYPES),
        "classes": {name: row["class"] for name, row in findings().items() if row["class"]},
        "ignored": sorted(ignored),
    }
