#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Work out the parameters of the monitoring instance's stack: the documentation of an action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: monitoring_parameters
short_description: Work out the parameters of the monitoring instance's stack
description:
  - The action plugin works on the controller with boto3, and changes nothing.
  - Options that are not set are as the stack has them, or else the template's default. A new stack gets Canonical's
    newest image of Ubuntu 24.04.
  - Fails with one line for each option that is missing, or that AWS would refuse.
  - The caller needs C(cloudformation:DescribeStacks) and C(ec2:DescribeSubnets), and for a new stack
    C(ec2:DescribeInstanceTypes) and C(ssm:GetParameter).
extends_documentation_fragment:
  - pcluster.postboot.attributes
  - pcluster.postboot.attributes.internal
  - pcluster.postboot.attributes.variables
"""

EXAMPLES = r"""
- name: Work out the parameters of the stack
  pcluster.postboot.monitoring_parameters:
    variables: "{{ lookup('pcluster.postboot.variables', 'monitoring') }}"
  register: plan
"""

RETURN = r"""
parameters:
  description: All parameters of the stack.
  type: dict
  returned: success
new:
  description: Those that the stack does not have yet.
  type: dict
  returned: success
region:
  description: AWS region of the stack.
  type: str
  returned: success
"""
