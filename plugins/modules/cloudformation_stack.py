#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bring a CloudFormation stack to a template: the documentation of an action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cloudformation_stack
short_description: Bring a CloudFormation stack to a template, and show what happens while it does
version_added: "0.1.0"
description:
  - Creates or updates a stack by a change set. One that would change nothing is not executed. Events are printed as
    they come.
  - It runs where Ansible runs, with boto3. A stack on which somebody works is waited for. One that cannot be updated,
    such as after a creation that failed, fails the task with one line that says why, and what to do.
  - A stack is never deleted, and an update that would replace or remove a resource of O(protect) is refused.
  - The caller needs C(cloudformation:DescribeStacks), C(DescribeStackEvents), C(CreateChangeSet), C(DescribeChangeSet),
    C(ExecuteChangeSet) and C(DeleteChangeSet), and what the template's resources need.
options:
  name:
    description: The stack.
    type: str
    required: true
  template:
    description: File of the template, 51,200 bytes at most.
    type: path
    required: true
  parameters:
    description:
      - Its parameters. One that is not given stays as the stack has it, and is the template's default in a new one.
    type: dict
    default: {}
  capabilities:
    description: What it may do beyond the ordinary.
    type: list
    elements: str
    default: [CAPABILITY_IAM]
  tags:
    description: Tags of the stack, which its resources get. Without any, those that it has stay.
    type: dict
    default: {}
  protect:
    description: Types of resources that an update may neither replace nor remove.
    type: list
    elements: str
    default: []
  timeout:
    description: Seconds to wait for CloudFormation.
    type: int
    default: 3600
  poll:
    description: Seconds between two questions.
    type: float
    default: 5.0
  region:
    description: Its region. Without one, that of the AWS profile or of C(AWS_REGION).
    type: str
    default: ""
  profile:
    description: Profile of the AWS credentials. Without it, boto3 finds them as usual.
    type: str
    default: ""
extends_documentation_fragment:
  - pcluster.postboot.attributes
attributes:
  check_mode:
    details: Of a stack that is there, a change set is made, shown and deleted. Of a new one, nothing is asked.
author:
  - The pcluster.postboot contributors (@pcluster)
"""

EXAMPLES = r"""
- name: The managed side of the telemetry is there
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
  description: What was changed, or in check mode would be; empty when all is as it should be.
  type: list
  elements: str
  returned: success
  sample: [Add Prometheus (AWS::APS::Workspace)]
status:
  description: The stack's status.
  type: str
  returned: success
  sample: CREATE_COMPLETE
outputs:
  description: Its outputs; in check mode those before.
  type: dict
  returned: success
region:
  description: Its region.
  type: str
  returned: success
"""
