#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.prometheus_load_info."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: prometheus_load_info
short_description: Find out whether this node can hold the metrics of all nodes
version_added: 0.1.0
description:
  - Asks C(scontrol) for all nodes that the cluster's configuration has, with power or without, and works out how many
    series their exporters bring, by their CPUs, GPUs and EFA devices.
  - Where these take more than a quarter of this node's memory, RV(summary) says so, and what to do.
options:
  prefix:
    description: Where Slurm is installed.
    type: path
    default: /opt/slurm
  agent:
    description: Whether the Prometheus is an agent, which keeps no samples.
    type: bool
    default: false
  timeout:
    description: Seconds that Slurm has to answer.
    type: float
    default: 10
extends_documentation_fragment:
  - pcluster.postboot.attributes
  - pcluster.postboot.attributes.linux
attributes:
  diff_mode:
    support: N/A
    details: Nothing is changed.
author:
  - The pcluster.postboot contributors (@pcluster)
"""

EXAMPLES = r"""
- name: Tell whether the head node is too small for a Prometheus
  pcluster.postboot.prometheus_load_info:
  register: prometheus_load
"""

RETURN = r"""
nodes:
  description: How many nodes the cluster may have.
  type: int
  returned: success
  sample: 1024
series:
  description: How many series they may bring at once, without those that jobs begin.
  type: int
  returned: success
  sample: 3989504
bytes:
  description: How much memory Prometheus needs for these.
  type: int
  returned: success
  sample: 11968512000
memory:
  description: How much memory this node has.
  type: int
  returned: success
  sample: 16000000000
reason:
  description: Why no node is known; empty otherwise.
  type: str
  returned: success
  sample: /opt/slurm/bin/scontrol gave no answer within 10 s
summary:
  description: That this node is too small, and what to do.
  type: str
  returned: when the series take more than a quarter of this node's memory
  sample: >-
    1,024 nodes may bring 4.0 million series, which take 12.0 GB of this node's 16.0 GB: take a head node with 48 GB or
    more, or drop series (metric_relabel_configs of prometheus_jobs); amp-only takes a third less
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils import _prometheus_load
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import serve


def work(module: AnsibleModule) -> dict[str, Any]:
    """Do what is asked for, and return the result."""
    return _prometheus_load.as_result(_prometheus_load.find(**module.params))


def main() -> None:
    """Run the module."""
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
