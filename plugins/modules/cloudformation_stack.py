#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bring a CloudFormation stack to a template: the documentation of an action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cloudformation_stack
short_description: Bring a CloudFormation stack to a template, and show what happens while it does
description:
  - The action plugin works on the controller with boto3, and prints the stack's events as they come.
  - Creates or updates the stack by a change set. A change set without a change is not executed. Check mode shows and
    deletes the change set of an existing stack, and asks nothing about a new one.
  - A stack is never deleted. A stack that is being changed is waited for, and one that cannot be updated fails the
    task.
  - The caller needs C(cloudformation:DescribeStacks), C(DescribeStackEvents), C(CreateChangeSet), C(DescribeChangeSet),
    C(ExecuteChangeSet) and C(DeleteChangeSet), and what the template's resources need.
options:
  name:
    description: Name of the stack.
    type: str
    required: true
  template:
    description: File of the template, 51,200 bytes at most.
    type: path
    required: true
  parameters:
    description: Parameters of the stack. A parameter that is left out keeps its value, or has the template's default in
      a new stack.
    type: dict
    default: {}
  capabilities:
    description: Capabilities that CloudFormation has to be given.
    type: list
    elements: str
    default: [CAPABILITY_IAM]
  tags:
    description: Tags of the stack and its resources. Without any, the stack's tags stay.
    type: dict
    default: {}
  protect:
    description: Types or logical ids of resources. An update that would or might replace one, or would remove one, is
      refused.
    type: list
    elements: str
    default: []
  in_place:
    description: Types or logical ids of resources. An update that would replace or remove one is refused. An update
      that might replace one is not, such as that of an instance's type, for which CloudFormation says C(Conditional).
    type: list
    elements: str
    default: []
  advice:
    description: What a refusal tells to do, by the type or the logical id of the resource that it is about.
    type: dict
    default: {}
  timeout:
    description: Seconds to wait for CloudFormation.
    type: int
    default: 3600
  poll:
    description: Seconds between two questions.
    type: float
    default: 5.0
extends_documentation_fragment:
  - pcluster.postboot.attributes
  - pcluster.postboot.attributes.internal
  - pcluster.postboot.attributes.profile
  - pcluster.postboot.attributes.region
"""

EXAMPLES = r"""
- name: Create or update the stack
  pcluster.postboot.cloudformation_stack:
    name: pcluster-observability
    template: observability.yml
    parameters:
      Name: pcluster-observability
    protect: [AWS::APS::Workspace]
  register: stack
"""

RETURN = r"""
changes:
  description: Changes that were made, or in check mode would be.
  type: list
  elements: str
  returned: success
status:
  description: Status of the stack.
  type: str
  returned: success
outputs:
  description: Outputs of the stack, in check mode those before the update.
  type: dict
  returned: success
region:
  description: AWS region of the stack.
  type: str
  returned: success
"""
