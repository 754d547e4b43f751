# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""AWS Neuron: which devices (Trainium, Inferentia) and cores instance types have, and what a node has of them."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._node.tree import Tree

# The driver's view, one folder for each device (aws-neuron-driver 2.24.7.0, neuron_cdev.c; the Neuron SDK's "Neuron
# Sysfs User Guide"). /sys/class/neuron_device has links to the same.
SYSFS = "/sys/devices/virtual/neuron_device"
# Amazon's device IDs on PCI (aws-neuron-driver, neuron_device.h): four of Inferentia, one each of Trainium, Inferentia2
# and Trainium2, and two of Trainium3, which 2.24.7.0 does not have yet.
PCI_IDS = ("0x7064", "0x7065", "0x7066", "0x7067", "0x7164", "0x7264", "0x7364", "0x7564", "0x7565")
_TYPE = re.compile(r"(trn|inf)\d", re.ASCII)


class Kind(NamedTuple):
    """What an instance type has: devices, and NeuronCores of all of them together."""

    devices: int
    cores: int


# The source is EC2's own answer to DescribeInstanceTypes (NeuronInfo.NeuronDevices), as moto 5.2 keeps it. It has no
# trn2u.48xlarge, which has what trn2.48xlarge has by the Neuron SDK's "Amazon EC2 Trn2 Architecture". Cores are
# physical, as core_count in sysfs; on Trainium2 neuron-ls counts logical ones, of two physical cores each by default.
TYPES = {
    "inf1.xlarge": Kind(1, 4),
    "inf1.2xlarge": Kind(1, 4),
    "inf1.6xlarge": Kind(4, 16),
    "inf1.24xlarge": Kind(16, 64),
    "inf2.xlarge": Kind(1, 2),
    "inf2.8xlarge": Kind(1, 2),
    "inf2.24xlarge": Kind(6, 12),
    "inf2.48xlarge": Kind(12, 24),
    "trn1.2xlarge": Kind(1, 2),
    "trn1.32xlarge": Kind(16, 32),
    "trn1n.32xlarge": Kind(16, 32),
    "trn2.3xlarge": Kind(1, 8),
    "trn2.48xlarge": Kind(16, 128),
    "trn2u.48xlarge": Kind(16, 128),
}


def has_neuron(instance_type: str) -> bool:
    """Tell from its name whether an instance type has Neuron devices."""
    return bool(_TYPE.match(instance_type))


def read_neuron(tree: Tree, on_pci: int) -> dict[str, Any]:
    """Return the fact `neuron`, without the tools; `on_pci` is the number of devices that PCI has."""
    counts = [tree.line(f"{SYSFS}/{name}/core_count") or "" for name in tree.names(SYSFS)]
    return {
        "devices": on_pci,
        "cores": sum(int(count) for count in counts if re.fullmatch(r"[0-9]{1,4}", count)),
        "driver": tree.line("/sys/module/neuron/version"),
        "tools": None,
    }
