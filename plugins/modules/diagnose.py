#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Make one archive of what nodes have gathered: the documentation of an action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: diagnose
short_description: Make one archive of what nodes have gathered, with a page that says what stands out
description:
  - The action plugin works on the controller, once for all hosts of the play.
  - V(begin) in O(state) checks the options and says whom to ask; V(end) writes the archive of what
    M(pcluster.postboot.diagnose_node) has left on the hosts, and of what CloudWatch and EC2 have of nodes that are gone
    or do not answer.
  - What AWS would not say is noted in the archive, and ends nothing. Check mode says what would be gathered.
options:
  state:
    description: Whether the run begins or ends.
    type: str
    choices: [begin, end]
    required: true
  begun:
    description: Result of the task with V(begin) in O(state).
    type: dict
    default: {}
requirements:
  - boto3, where AWS is asked
attributes:
  diff_mode:
    support: none
  idempotent:
    support: partial
    details: A second run writes another archive, and changes nothing else.
extends_documentation_fragment:
  - pcluster.postboot.attributes
  - pcluster.postboot.attributes.internal
  - pcluster.postboot.attributes.variables
"""

EXAMPLES = r"""
- name: Check the options
  pcluster.postboot.diagnose:
    state: begin
    variables: "{{ lookup('pcluster.postboot.variables', 'diagnose') }}"
  run_once: true
  register: begun

- name: Write the archive
  pcluster.postboot.diagnose:
    state: end
    variables: "{{ lookup('pcluster.postboot.variables', 'diagnose') }}"
    begun: "{{ begun }}"
  run_once: true
"""

RETURN = r"""
archive:
  description: The archive's path.
  type: str
  returned: success
findings:
  description: What stands out, the gravest first, each with its nodes.
  type: list
  elements: dict
  returned: with V(end) in O(state), and not in check mode
summary:
  description: The first page of the archive as text.
  type: str
  returned: with V(end) in O(state), and not in check mode
"""
