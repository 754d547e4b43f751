# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
---
name: shared_directory
short_description: The directory that all nodes of a cluster share
version_added: 0.2.0
author: The pcluster.postboot contributors (@pcluster)
description:
  - Returns the first that there is of the cluster's Lustre file systems, C(/fsx) where something is mounted there, and
    the cluster's other shared file systems but C(/home) and C(/opt/slurm); C(/fsx) where there is none.
  - dna.json names the file systems to all nodes in the same order, FSx, EFS, EBS. A mount at C(/fsx) that dna.json does
    not name is the work of a user's own script.
  - It is private to this collection, and may change in any release.
options:
  _input:
    description: The fact C(mounts) of M(pcluster.postboot.node_facts), or nothing.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show which directory the nodes share
  ansible.builtin.debug:
    msg: "{{ ansible_facts['pcluster']['mounts'] | pcluster.postboot.shared_directory }}"
"""

RETURN = r"""
_value:
  description: The path.
  type: str
  sample: /fsx
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

NOT_FOR_DATA = ("/home", "/opt/slurm")


def shared_directory(mounts: Mapping[str, Iterable[Mapping[str, str]]]) -> str:
    wanted, found = (list(mounts.get(kind) or []) for kind in ("wanted", "found"))
    lustre = [mount["path"] for mount in wanted if mount["type"] == "lustre"]
    own = [mount["path"] for mount in found if mount["path"] == "/fsx"]
    return [*lustre, *own, *(mount["path"] for mount in wanted if mount["path"] not in NOT_FOR_DATA), "/fsx"][0]


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"shared_directory": shared_directory}
