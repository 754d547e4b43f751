# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
---
name: builder_in_play
short_description: Whether the node that builds for a cluster is in the play
version_added: 0.2.0
author: The pcluster.postboot contributors (@pcluster)
description:
  - Says whether one of the hosts of a play is the node that builds what the nodes of a cluster share. Such a node has
    done so, or has failed, when the others look for what it builds.
positional: hostvars, cluster, builder
options:
  _input:
    description: The hosts of the play.
    type: list
    elements: str
    required: true
  hostvars:
    description: The variables of all hosts. Only the facts of M(pcluster.postboot.node_facts) are looked at.
    type: dict
    required: true
  cluster:
    description: The name of the cluster.
    type: str
    required: true
  builder:
    description: The node that builds, by its own name or that of the inventory. Empty is the head node.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Show whether this run builds
  ansible.builtin.debug:
    msg: "{{ ansible_play_hosts_all | pcluster.postboot.builder_in_play(hostvars, 'main') }}"
"""

RETURN = r"""
_value:
  description: Whether the node is in the play.
  type: bool
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any


def builder_in_play(hosts: Iterable[str], hostvars: Mapping[str, Any], cluster: str, builder: str = "") -> bool:
    for host in hosts:
        node = (hostvars[host].get("ansible_facts") or {}).get("pcluster") or {}
        if not node or node["cluster"] != cluster:
            continue
        if builder in (node["node_name"], host) if builder else node["node_type"] == "head":
            return True
    return False


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"builder_in_play": builder_in_play}
