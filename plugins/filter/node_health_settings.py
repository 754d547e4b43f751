# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
---
name: node_health_settings
short_description: What a node must have, and what each finding of its health asks for
version_added: 0.2.0
author: The pcluster.postboot contributors (@pcluster)
description:
  - Returns what the program of the role C(node_health) reads, from the facts of a node and the tables of this
    collection.
  - It is private to this collection, and may change in any release.
positional: _input
options:
  _input:
    description: The facts of M(pcluster.postboot.node_facts).
    type: dict
    required: true
  gpus:
    description: The GPUs that the node must have; V(0) takes those of its instance type.
    type: int
    default: 0
  efa:
    description: The EFA devices that the node must have; V(0) takes those of its instance type.
    type: int
    default: 0
  ignored:
    description: Findings that are left out.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Show what this node must have
  ansible.builtin.debug:
    msg: "{{ ansible_facts['pcluster'] | pcluster.postboot.node_health_settings }}"
"""

RETURN = r"""
_value:
  description: What the program reads.
  type: dict
  sample: {gpus: 8, efa: 32, classes: {gpu_missing: replace}}
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.pcluster.postboot.plugins.plugin_utils._node_health.settings import settings


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"node_health_settings": settings}
