# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
---
name: environment
short_description: Variables of the environment as the programs that read them need them
version_added: 0.2.0
author: The pcluster.postboot contributors (@pcluster)
description:
  - Returns each value as text. A boolean becomes V(1) or V(0) for NCCL, its plugin for EFA, libfabric, UCX, Open MPI,
    PMIx, CUDA and PyTorch. A value that one of them would misread is refused.
  - A variable whose value is V(null) is left out.
options:
  _input:
    description: The values by the names of the variables.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show what NCCL finds set
  ansible.builtin.debug:
    msg: "{{ {'NCCL_P2P_DISABLE': true, 'NCCL_BUFFSIZE': 8388608} | pcluster.postboot.environment }}"
"""

RETURN = r"""
_value:
  description: The text of each variable.
  type: dict
  sample: {NCCL_P2P_DISABLE: "1", NCCL_BUFFSIZE: "8388608"}
"""

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible.module_utils.common.validation import check_type_dict

from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import parsers


def environment(settings: Any) -> dict[str, str]:
    try:
        # -e and an inventory in INI form give text.
        given = {str(name): value for name, value in check_type_dict(settings).items() if value is not None}
        return {name: parsers.setting(name, value) for name, value in given.items()}
    except (TypeError, ValueError) as error:
        raise AnsibleFilterError(f"variables of the environment: needed: {error}") from error


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"environment": environment}
