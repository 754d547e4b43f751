#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Show which node of a cluster is where in its boot: the documentation of an action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: status
short_description: Show which node of a cluster is where in its boot
description:
  - The role C(status) uses it. Asks EC2 for the instances of the head node's cluster, and runs
    M(pcluster.postboot.boot_info) on the head node, until all nodes are up. A head node that does not answer yet is one
    that boots.
  - A line for each change is printed while the task runs.
options:
  state:
    description:
      - V(chosen) returns the head node of each cluster of the play. It is to be run once.
      - V(watched) watches the cluster of a head node.
      - V(shown) prints the last look at each cluster, as C(__status_watched) has it, and fails where a node has failed,
        is late, or is not up in time. It is to be run once.
    type: str
    choices: [chosen, watched, shown]
    required: true
extends_documentation_fragment:
  - pcluster.postboot.attributes.looks
  - pcluster.postboot.attributes.internal
  - pcluster.postboot.attributes.variables
"""

EXAMPLES = r"""
- name: Watch the cluster of each head node
  pcluster.postboot.status:
    state: watched
    variables: "{{ lookup('pcluster.postboot.variables', 'status') }}"
  register: __status_watched
"""

RETURN = r"""
hosts:
  description: The head nodes.
  type: list
  elements: str
  returned: O(state=chosen)
seen:
  description: The last look.
  type: dict
  returned: O(state=watched)
lines:
  description: The table, as it is printed.
  type: list
  elements: str
  returned: O(state=watched), and O(state=shown) where all is well
complaint:
  description: What is not well, on one line; empty where all is.
  type: str
  returned: O(state=watched)
clusters:
  description: The last look at each cluster.
  type: list
  elements: dict
  returned: O(state=shown) where all is well
"""
