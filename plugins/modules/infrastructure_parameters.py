#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Work out the parameters of the infrastructure's stack: the documentation of an action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: infrastructure_parameters
short_description: Work out the parameters of the infrastructure's stack
description:
  - The action plugin works on the controller with boto3, and changes nothing.
  - Options that are not set are as the stack has them, or else the template's default. Addresses of subnets follow from
    those of the VPC.
  - Fails with one line for each option that AWS or a cluster would refuse.
  - The caller needs C(cloudformation:DescribeStacks), C(ec2:DescribeAvailabilityZones), and C(s3:ListBucket) on a
    bucket that is linked to FSx for Lustre.
options:
  template:
    description: File of the template, whose parameters have the defaults.
    type: path
    required: true
extends_documentation_fragment:
  - pcluster.postboot.attributes.looks
  - pcluster.postboot.attributes.internal
  - pcluster.postboot.attributes.variables
"""

EXAMPLES = r"""
- name: Work out the parameters of the stack
  pcluster.postboot.infrastructure_parameters:
    template: infrastructure.template
    variables: "{{ lookup('pcluster.postboot.variables', 'infrastructure') }}"
  register: plan
"""

RETURN = r"""
parameters:
  description: All parameters of the stack.
  type: dict
  returned: success
protect:
  description: Logical ids of resources of which an update may replace or remove none.
  type: list
  elements: str
  returned: success
region:
  description: AWS region of the stack.
  type: str
  returned: success
endpoints:
  description: Services that have an interface endpoint.
  type: list
  elements: str
  returned: success
"""
