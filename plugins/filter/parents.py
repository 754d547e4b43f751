# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
---
name: parents
short_description: A directory and all directories above it
version_added: 0.2.0
author: The pcluster.postboot contributors (@pcluster)
description:
  - Returns the path of a directory after the paths of all directories above it, the highest first and without the root.
options:
  _input:
    description: An absolute path.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Show on which mounted file systems the shared directory lies
  ansible.builtin.debug:
    msg: "{{ mounted_paths | select('in', common_shared_dir | pcluster.postboot.parents) }}"
"""

RETURN = r"""
_value:
  description: The paths.
  type: list
  elements: str
  sample: [/fsx, /fsx/software, /fsx/software/nccl]
"""

from collections.abc import Callable
from itertools import accumulate
from typing import Any


def parents(path: str) -> list[str]:
    return list(accumulate(f"/{part}" for part in path.split("/") if part))


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"parents": parents}
