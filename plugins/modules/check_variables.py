#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Check the variables of a run before it touches anything: the documentation of an action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: check_variables
short_description: Check the variables of a run before it touches anything
description:
  - The action plugin works on the controller, after M(pcluster.postboot.node_facts).
  - Compares the roles' variables with their argument specifications, and finds misspelt variables and checksums that
    are not set for the node's architecture. Variables of components that the node does not get are not looked at.
  - A missing checksum of a component that is not essential fails that component alone.
options:
  components:
    description: Roles to check. The default is all roles of this collection in the play.
    type: list
    elements: str
  roles:
    description: Roles of which only the variables are checked, and neither the node nor a component.
    type: list
    elements: str
  require_cluster:
    description: Whether a host that is not a ParallelCluster node is an error.
    type: bool
    default: true
extends_documentation_fragment: [pcluster.postboot.attributes.looks, pcluster.postboot.attributes.internal]
"""

EXAMPLES = r"""
- name: Check the options of the playbook mirror
  pcluster.postboot.check_variables:
    roles: [mirror]
"""

RETURN = r"""
errors:
  description: Errors, one line each.
  type: list
  elements: str
  returned: when something is wrong
record:
  description: Record of the run on this node, with the plan of each component.
  type: dict
  returned: always
"""
