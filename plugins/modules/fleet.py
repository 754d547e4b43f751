#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bring a bundle to all nodes of a play by Run Command or sessions: the documentation of an action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fleet
short_description: Bring a bundle to all nodes of a play by AWS Run Command or sessions
description:
  - The action plugin works once, on the controller with boto3, for all hosts of the play. They have to come from the
    inventory plugin P(pcluster.postboot.pcluster#inventory).
  - Nodes of SageMaker HyperPod, which Run Command does not know, are reached over sessions of Session Manager, by the
    session-manager-plugin on the controller.
  - Each node gets the same script, which fetches and verifies the bundle, runs C(bootstrap.sh), and prints
    the node's report.
  - The head node of a cluster comes first. If it fails, its cluster's other nodes do not get the bundle. Check mode
    says what would be sent.
requirements:
  - boto3
  - session-manager-plugin, for nodes of SageMaker HyperPod
attributes:
  diff_mode:
    support: none
extends_documentation_fragment:
  - pcluster.postboot.attributes
  - pcluster.postboot.attributes.internal
  - pcluster.postboot.attributes.variables
"""

EXAMPLES = r"""
- name: Run the bundle on every node
  pcluster.postboot.fleet:
    variables: "{{ lookup('pcluster.postboot.variables', 'fleet') }}"
  run_once: true
"""

RETURN = r"""
report:
  description: File with the state of each node, the reason, and the node's report.
  type: str
  returned: not in check mode
limit:
  description: File with the names of the nodes that do not run the bundle.
  type: str
  returned: where there are such nodes, and not in check mode
"""
