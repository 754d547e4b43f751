#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Put rules into a workspace of Amazon Managed Prometheus: the documentation of an action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: amp_rules
short_description: Put rules into a workspace of Amazon Managed Prometheus
version_added: "0.1.0"
description:
  - A Prometheus in agent mode evaluates no rules, so they go to the workspace, as one namespace of rule groups.
  - Works on the controller with boto3, and with the credentials that it finds there; nothing is sent to the node.
    Where there is no boto3, nothing is done, and the report says so. The credentials need
    C(aps:DescribeRuleGroupsNamespace), C(aps:CreateRuleGroupsNamespace), C(aps:PutRuleGroupsNamespace) and
    C(aps:DescribeWorkspace).
  - What is in the namespace is compared by its meaning, so that another layout is no change. Waits until the workspace
    has taken the rules.
options:
  workspace:
    description: The id of the workspace.
    type: str
    required: true
  region:
    description: The region of the workspace.
    type: str
    required: true
  namespace:
    description: The name of the namespace. Clusters that share a workspace and have the same rules share it, too.
    type: str
    required: true
  files:
    description: Files of rules, all of whose groups the namespace will have.
    type: list
    elements: dict
    required: true
    suboptions:
      path:
        description: The name of the file, for messages.
        type: str
        required: true
      content:
        description: What is in it.
        type: str
        required: true
      source:
        description: From what it was made, for messages.
        type: str
        default: ""
extends_documentation_fragment:
  - pcluster.postboot.attributes
author:
  - The pcluster.postboot contributors (@pcluster)
"""

EXAMPLES = r"""
- name: The workspace has our rules
  pcluster.postboot.amp_rules:
    workspace: ws-01234567-89ab-cdef-0123-456789abcdef
    region: us-east-1
    namespace: pcluster-postboot
    files:
      - path: rules/nodes.yml
        content: "{{ lookup('ansible.builtin.file', 'nodes.yml') }}"
"""

RETURN = r"""
groups:
  description: How many groups the namespace has.
  type: int
  returned: where there is boto3
summary:
  description: Why nothing was done, for the report.
  type: str
  returned: where there is no boto3
"""
