#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bring a cluster's CloudWatch dashboards into a state: the documentation of an action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cloudwatch_dashboard
short_description: Bring a cluster's CloudWatch dashboards into a state
version_added: "0.1.0"
description:
  - Writes up to three dashboards of a cluster, made of what its nodes' CloudWatch agents send as the role
    C(cloudwatch_agent) configures them, and of what AWS itself measures. They are C(ParallelCluster-<cluster>),
    C(ParallelCluster-<cluster>-Advanced) and C(ParallelCluster-<cluster>-EFA). ParallelCluster's own, which is
    C(<cluster>-<region>), is left alone.
  - It runs where Ansible runs, with boto3, and asks nothing of the node. A dashboard is only written when it differs
    from what CloudWatch has, so what was changed by hand is lost. Copy a dashboard before you change it.
  - The caller needs C(cloudwatch:GetDashboard), C(cloudwatch:PutDashboard), C(cloudwatch:DeleteDashboards) and, for
    the widgets with logs, C(logs:DescribeLogGroups).
options:
  cluster:
    description: The cluster.
    type: str
    required: true
  region:
    description: Its region, in which the dashboards are.
    type: str
    required: true
  kinds:
    description: Which dashboards.
    type: list
    elements: str
    choices: [default, advanced, efa]
    default: [default, advanced, efa]
  state:
    description: Whether they are there.
    type: str
    choices: [present, absent]
    default: present
  namespace:
    description: Namespace of the nodes' metrics. Without it, C(ParallelCluster/<cluster>). Head nodes use C(CWAgent).
    type: str
  metrics:
    description: What the agents collect, as the role's C(cloudwatch_agent_metrics) says.
    type: list
    elements: str
    choices: [host, gpu, efa, prometheus]
    default: [host, gpu, efa]
  measurements:
    description: What each plugin measures, as C(cloudwatch_agent_measurements) says. What is not measured is not shown.
    type: dict
    default: {}
  per_device:
    description: Whether each device has metrics of its own, as C(cloudwatch_agent_per_device) says.
    type: bool
    default: false
  interval:
    description: Seconds between two values of a metric.
    type: int
    default: 60
  scrapes:
    description: What is scraped from exporters, as C(cloudwatch_agent_scrapes) says.
    type: list
    elements: dict
    default: []
  head_instance:
    description: EC2 instance of the head node, for its own graphs.
    type: str
    default: ""
  file_systems:
    description: File systems of FSx for Lustre to show, by their ids.
    type: list
    elements: str
    default: []
  log_group:
    description: The cluster's log group. Without it, CloudWatch Logs is asked for ParallelCluster's.
    type: str
    default: ""
  profile:
    description: Profile of the AWS credentials. Without it, boto3 finds them as usual.
    type: str
    default: ""
extends_documentation_fragment:
  - pcluster.postboot.attributes
author:
  - The pcluster.postboot contributors (@pcluster)
"""

EXAMPLES = r"""
- name: The cluster's dashboards are there
  pcluster.postboot.cloudwatch_dashboard:
    cluster: my-cluster
    region: us-east-2
    measurements:
      cpu: [usage_active]
      mem: [used_percent]
"""

RETURN = r"""
dashboards:
  description: The dashboards that were written or removed, or in check mode would be.
  type: list
  elements: str
  returned: success
  sample: [ParallelCluster-my-cluster]
urls:
  description: Where each can be looked at.
  type: dict
  returned: success
log_group:
  description: The log group that they show; empty where none is known.
  type: str
  returned: success
  sample: /aws/parallelcluster/my-cluster-202611210900
"""
