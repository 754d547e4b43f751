#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Print what a cluster's configuration needs so that its nodes run a bundle: the documentation of an action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: custom_actions
short_description: Print what a cluster's configuration needs so that its nodes run a bundle
version_added: 0.1.0
description:
  - The playbook C(publish) uses it. It prints C(CustomActions) and C(Iam) of the head node, of each login pool and of
    each queue, as ParallelCluster's schema has them.
  - Of a configuration that is there only these parts are printed. Scripts that are there stay, in a C(Sequence); an
    older bundle is replaced, with the options that it has, but for C(OnNodeConfigured) of the head node and of login
    pools, which an update of a cluster may not change.
  - It fails where nodes could write to O(base), because every node runs the C(bootstrap.sh) that lies there as root.
    What a role or a policy of the user's own allows it cannot see, and says so.
options:
  base:
    description: Where bundles are published, as C(s3://<bucket>/<prefix>).
    type: str
    required: true
  id:
    description: The bundle's name. Without one the options and the configuration are looked at, and nothing is printed.
    type: str
    default: ""
  sha256:
    description: The hash of its archive.
    type: str
    default: ""
  account:
    description: The number of the AWS account, for the policy that login nodes need.
    type: str
    default: ""
  partition:
    description: Its part of AWS.
    type: str
    default: aws
  caller:
    description:
      - The ARN of who publishes, as STS tells it. With it, a policy is printed that lets nobody else write to O(base).
    type: str
    default: ""
  config:
    description: The configuration of a cluster. By default there is one pool and one queue without a name.
    type: path
  policies:
    description: ARNs of further policies that every node gets.
    type: list
    elements: str
    default: []
  login_policy:
    description: The ARN of the policy that lets login nodes read bundles; by default one that somebody has to make.
    type: str
    default: ""
  trusted_writers:
    description:
      - The nodes that may write to O(base) nevertheless, as they are called in the error, V(HeadNode),
        C(login pool <name>) or C(queue <name>). Who is root on one of these, or on a queue's nodes can start a job,
        can become root on every node.
    type: list
    elements: str
    default: []
  mode:
    description: What C(bootstrap.sh) takes a node for.
    type: str
    choices: [auto, gpu, cpu, none]
  budget:
    description: How many seconds it may take.
    type: int
  python:
    description: The Python that it uses.
    type: str
  defer:
    description: Whether it leaves long work for after the boot.
    type: bool
extends_documentation_fragment:
  - pcluster.postboot.attributes.looks
author:
  - The pcluster.postboot contributors (@pcluster)
"""

EXAMPLES = r"""
- name: Show what the cluster's configuration needs
  pcluster.postboot.custom_actions:
    base: s3://my-bucket/postboot
    id: 0.1.0-3f9e2c51ab07
    sha256: "{{ bundle.sha256 }}"
    config: my-cluster.yaml
    budget: 900
"""

RETURN = r"""
text:
  description: What was printed; empty without O(id).
  type: str
  returned: success
"""
