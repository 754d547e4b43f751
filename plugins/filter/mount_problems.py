# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
---
name: mount_problems
short_description: What is wrong with the mounts that a cluster promises
version_added: 0.2.0
author: The pcluster.postboot contributors (@pcluster)
description:
  - Returns one sentence for each file system that the cluster promises to a node and that is not there, does not
    answer, or is of another kind.
positional: fstypes
options:
  _input:
    description: The mounts of a node, which M(pcluster.postboot.node_facts) returns as C(mounts).
    type: dict
    required: true
  fstypes:
    description: Which types of file systems a mount may have where the cluster promises Lustre.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Check the mounts of this node
  ansible.builtin.assert:
    that: ansible_facts['pcluster']['mounts'] | pcluster.postboot.mount_problems(['lustre']) | length == 0
"""

RETURN = r"""
_value:
  description: The sentences. None where nothing is wrong.
  type: list
  elements: str
  sample: ["/fsx: the cluster promises lustre, found no mount; see `systemctl status /fsx`, then `mount /fsx`"]
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any


def mount_problems(mounts: Mapping[str, Any], fstypes: Iterable[str]) -> list[str]:
    problems = []
    for wanted in mounts["wanted"]:
        path = wanted["path"]
        found = next((mount for mount in mounts["found"] if mount["path"] == path), None)
        promise = f"{path}: the cluster promises {wanted['type']}"
        if wanted["source"]:
            promise += f" from {wanted['source']}"
        if path in mounts["missing"]:
            seen = "a mount that does not answer" if found else "no mount"
            problems.append(f"{promise}, found {seen}; see `systemctl status {path}`, then `mount {path}`")
        elif wanted["type"] == "lustre" and found and found["type"] not in fstypes:
            problems.append(
                f"{promise}, found {found['type']} from {found['source']}; "
                f"mount the right one, or add {found['type']} to fsx_fstypes"
            )
    return problems


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"mount_problems": mount_problems}
