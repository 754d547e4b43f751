#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Put rules into a workspace of Amazon Managed Prometheus: the documentation of an action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: amp_rules
short_description: Put rules into a workspace of Amazon Managed Prometheus
description:
  - The action plugin works on the controller with boto3. Without boto3 the action does nothing, and the summary says
    so.
  - The namespace is written only where the meaning of its rules differs from O(files).
  - The credentials need C(aps:DescribeRuleGroupsNamespace), C(aps:CreateRuleGroupsNamespace),
    C(aps:PutRuleGroupsNamespace) and C(aps:DescribeWorkspace).
options:
  workspace:
    description: Id of the workspace.
    type: str
    required: true
  region:
    description: AWS region of the workspace.
    type: str
    required: true
  namespace:
    description: Namespace of the rule groups. Clusters with the same rules may share it.
    type: str
    required: true
  files:
    description: Files of rules. The namespace gets all their groups.
    type: list
    elements: dict
    required: true
    suboptions:
      path:
        description: Name of the file, for messages.
        type: str
        required: true
      content:
        description: Content of the file.
        type: str
        required: true
      source:
        description: What the file was made from, for messages.
        type: str
        default: ""
extends_documentation_fragment: [pcluster.postboot.attributes, pcluster.postboot.attributes.internal]
"""

EXAMPLES = r"""
- name: Put the collection's rules into the workspace
  pcluster.postboot.amp_rules:
    workspace: ws-01234567-89ab-cdef-0123-456789abcdef
    region: us-east-1
    namespace: pcluster-postboot
    files:
      - path: rules/nodes.yml
        content: "{{ lookup('ansible.builtin.file', 'nodes.yml') }}"
"""

RETURN = r"""
summary:
  description: Why nothing was done.
  type: str
  returned: where there is no boto3
"""
