#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.efa_check."""

from __future__ import annotations

DOCUMENTATION = r"""
module: efa_check
short_description: Check that every EFA device of a node answers
description:
  - Asks C(/opt/amazon/efa/bin/fi_info -p efa -t FI_EP_RDM) for the EFA devices, and fails where the number is wrong.
  - RV(summary) tells whether the node has to be rebooted, because an older kernel module is loaded than installed.
options:
  instance_type:
    description: EC2 instance type, which tells the number of devices. For an unknown type that on PCI counts.
    type: str
    default: ""
  devices:
    description: Number of devices. V(0) leaves the number to O(instance_type).
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
    description: Why EFA's software is not installed, for the message.
    type: str
    default: ""
extends_documentation_fragment: [pcluster.postboot.attributes.looks, pcluster.postboot.attributes.internal]
"""

EXAMPLES = r"""
- name: Check that every EFA device answers
  pcluster.postboot.efa_check:
    instance_type: p5.48xlarge
"""

RETURN = r"""
summary:
  description: What the node has, in one phrase.
  type: str
  returned: success
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils._efa import devices
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import arguments, serve


def work(module: AnsibleModule) -> dict[str, Any]:
    outcome = devices.check(devices.Request(**module.params))
    warnings = [f"{outcome.reboot}; reboot this node once no job runs on it"] if outcome.reboot else []
    return {**outcome._asdict(), "warnings": warnings}


def main() -> None:
    serve(arguments(devices.Request), work)


if __name__ == "__main__":
    main()
