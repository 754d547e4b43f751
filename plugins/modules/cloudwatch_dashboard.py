#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bring a cluster's CloudWatch dashboards into a state: the documentation of an action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cloudwatch_dashboard
short_description: Bring a cluster's CloudWatch dashboards into a state
description:
  - The action plugin works on the controller with boto3.
  - Writes the dashboards C(ParallelCluster-<cluster>), C(ParallelCluster-<cluster>-Advanced) and
    C(ParallelCluster-<cluster>-EFA). ParallelCluster's own, C(<cluster>-<region>), is left alone.
  - A dashboard that differs is overwritten.
  - The caller needs C(cloudwatch:GetDashboard), C(cloudwatch:PutDashboard), C(cloudwatch:DeleteDashboards) and
    C(logs:DescribeLogGroups).
options:
  cluster:
    description: Name of the cluster.
    type: str
    required: true
  region:
    description: AWS region of the cluster.
    type: str
    required: true
  kinds:
    description: Dashboards to write or remove.
    type: list
    elements: str
    choices: [default, advanced, efa]
    default: [default, advanced, efa]
  state:
    description: Whether the dashboards exist.
    type: str
    choices: [present, absent]
    default: present
  namespace:
    description: Namespace of the nodes' metrics. The default is C(ParallelCluster/<cluster>).
    type: str
  metrics:
    description: The role's variable C(cloudwatch_agent_metrics).
    type: list
    elements: str
    choices: [host, gpu, efa, prometheus]
    default: [host, gpu, efa]
  measurements:
    description: The role's variable C(cloudwatch_agent_measurements).
    type: dict
    default: {}
  per_device:
    description: The role's variable C(cloudwatch_agent_per_device).
    type: bool
    default: false
  interval:
    description: Seconds between two values of a metric.
    type: int
    default: 60
  scrapes:
    description: The role's variable C(cloudwatch_agent_scrapes).
    type: list
    elements: dict
    default: []
  head_instance:
    description: EC2 instance of the head node, for its own graphs.
    type: str
    default: ""
  file_systems:
    description: Ids of the FSx for Lustre file systems to show.
    type: list
    elements: str
    default: []
  log_group:
    description: Log group of the cluster; empty to look up ParallelCluster's.
    type: str
    default: ""
extends_documentation_fragment:
  - pcluster.postboot.attributes
  - pcluster.postboot.attributes.internal
  - pcluster.postboot.attributes.profile
"""

EXAMPLES = r"""
- name: Write the cluster's dashboards
  pcluster.postboot.cloudwatch_dashboard:
    cluster: my-cluster
    region: us-east-2
    measurements:
      cpu: [usage_active]
      mem: [used_percent]
"""

RETURN = r"""
urls:
  description: URL of each dashboard.
  type: dict
  returned: success
"""
