# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
---
name: merged
short_description: A dictionary laid over its defaults
version_added: 0.2.0
author: The pcluster.postboot contributors (@pcluster)
description:
  - Returns the defaults with the keys of another dictionary added or replaced. A key whose value is V(null) is removed.
options:
  _input:
    description: The defaults.
    type: dict
    required: true
  given:
    description: The dictionary that is laid over the defaults.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show the settings of NCCL
  ansible.builtin.debug:
    msg: "{{ {'NCCL_DEBUG': 'WARN', 'NCCL_NET': 'Socket'} | pcluster.postboot.merged({'NCCL_NET': none}) }}"
"""

RETURN = r"""
_value:
  description: The merged dictionary, without keys whose value is V(null).
  type: dict
  sample: {NCCL_DEBUG: WARN}
"""

from collections.abc import Callable, Mapping
from typing import Any


def merged(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**defaults, **given}.items() if value is not None}


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"merged": merged}
