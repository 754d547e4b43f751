#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Check the variables of a run before it touches anything: the documentation of an action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: check_variables
short_description: Check the variables of a run before it touches anything
version_added: "0.1.0"
description:
  - Compares the variables of the roles of this collection with the roles' argument specifications, finds misspelt
    ones, and finds checksums that are not set for the node's architecture. Every error is one line.
  - Works on the controller; nothing is sent to the node. M(pcluster.postboot.node_facts) must have run.
  - A checksum that is not set for a component that is no essential is an error of that component alone.
  - A variable that is only wrong for a component that this node does not get is not looked at.
options:
  components:
    description: The roles to check. By default, the roles of this collection that the play names.
    type: list
    elements: str
  require_cluster:
    description: Whether a host that is no ParallelCluster node is an error.
    type: bool
    default: true
extends_documentation_fragment:
  - pcluster.postboot.attributes.looks
author:
  - The pcluster.postboot contributors (@pcluster)
"""

EXAMPLES = r"""
- name: Know the node
  pcluster.postboot.node_facts:

- name: Check what is set for these two roles
  pcluster.postboot.check_variables:
    components: [docker, node_exporter]
"""

RETURN = r"""
errors:
  description: What is wrong, one line each.
  type: list
  elements: str
  returned: when something is wrong
record:
  description: The record of the run on this node, with the plan of each component.
  type: dict
  returned: always
"""
