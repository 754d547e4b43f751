#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.efa_devices."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: efa_devices
short_description: See that every EFA device of a node answers
version_added: 0.1.0
description:
  - Asks libfabric, by C(/opt/amazon/efa/bin/fi_info -p efa -t FI_EP_RDM), which EFA devices there are, and fails with
    one line where it lists none, or another number than this node must have.
  - Tells whether the kernel module that is loaded is another than that which is installed, so that the node has to be
    rebooted. It is not.
options:
  instance_type:
    description:
      - The node's type, which tells how many devices it must have. Of a type that is not known, as many as are on PCI.
    type: str
    default: ""
  devices:
    description: How many devices there must be. V(0) leaves it to O(instance_type).
    type: int
    default: 0
  wait:
    description: Seconds to wait for devices that appear late.
    type: float
    default: 15
  minimal:
    description: Whether there is no libfabric, so that the kernel's devices count.
    type: bool
    default: false
  pending:
    description: Why EFA's software is not there, for the message.
    type: str
    default: ""
extends_documentation_fragment:
  - pcluster.postboot.attributes.looks
  - pcluster.postboot.attributes.linux
author:
  - The pcluster.postboot contributors (@pcluster)
"""

EXAMPLES = r"""
- name: Every EFA device answers
  pcluster.postboot.efa_devices:
    instance_type: p5.48xlarge
"""

RETURN = r"""
devices:
  description: The devices.
  type: list
  elements: str
  returned: success
  sample: [rdmap79s0]
expected:
  description: How many there must be; V(0) where nobody knows.
  type: int
  returned: success
  sample: 32
reboot:
  description: Why this node has to be rebooted; empty where it has not.
  type: str
  returned: success
  sample: version 3.1.0 of EFA's kernel module is loaded, and 3.3.0 is installed
summary:
  description: What this node has, in one phrase.
  type: str
  returned: success
  sample: 32 EFA devices
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils import _efa
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import serve


def work(module: AnsibleModule) -> dict[str, Any]:
    """Do what is asked for, and return the result."""
    outcome = _efa.check(_efa.Request(**module.params))
    warnings = [f"{outcome.reboot}; reboot this node once no job runs on it"] if outcome.reboot else []
    return {**outcome._asdict(), "warnings": warnings}


def main() -> None:
    """Run the module."""
    serve(
        {
            "instance_type": {"type": "str", "default": ""},
            "devices": {"type": "int", "default": 0},
            "wait": {"type": "float", "default": 15},
            "minimal": {"type": "bool", "default": False},
            "pending": {"type": "str", "default": ""},
        },
        work,
    )


if __name__ == "__main__":
    main()
