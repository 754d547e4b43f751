#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.prometheus_load_info."""

from __future__ import annotations

DOCUMENTATION = r"""
module: prometheus_load_info
short_description: Estimate whether this node can hold the metrics of all nodes
description: Asks C(scontrol) for all nodes, with power or without, and estimates the series of their exporters by CPUs,
  GPUs, EFA devices and NeuronCores.
options:
  agent:
    description: Whether Prometheus runs as an agent, which keeps no samples.
    type: bool
    default: false
attributes:
  diff_mode:
    support: N/A
extends_documentation_fragment:
  - pcluster.postboot.attributes
  - pcluster.postboot.attributes.internal
  - pcluster.postboot.attributes.slurm
"""

EXAMPLES = r"""
- name: Tell whether the head node is too small for a Prometheus
  pcluster.postboot.prometheus_load_info:
  register: prometheus_load
"""

RETURN = r"""
summary:
  description: That this node is too small, and what to do.
  type: str
  returned: when the series take more than a quarter of this node's memory
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils import _prometheus_load
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import serve


def work(module: AnsibleModule) -> dict[str, Any]:
    return _prometheus_load.as_result(_prometheus_load.find(**module.params))


def main() -> None:
    serve(
        {
            "prefix": {"type": "path", "default": "/opt/slurm"},
            "agent": {"type": "bool", "default": False},
            "timeout": {"type": "float", "default": 10},
        },
        work,
    )


if __name__ == "__main__":
    main()
