#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Print what a cluster's configuration needs so that its nodes run a bundle: the documentation of an action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: custom_actions
short_description: Print what a cluster's configuration needs so that its nodes run a bundle
description:
  - The action plugin works on the controller. It prints C(CustomActions) and C(Iam) of the head node, of each login
    pool and of each queue.
  - Scripts in O(config) stay, in a C(Sequence). An older bundle is replaced and keeps its options. C(OnNodeConfigured)
    of an existing head node or login pool stays, because an update of a cluster may not change it.
  - Fails if nodes may write to O(base), because every node runs the C(bootstrap.sh) there as root.
options:
  base:
    description: Where bundles are published, as C(s3://<bucket>/<prefix>).
    type: str
    required: true
  id:
    description: Name of the bundle. Empty checks the options and the configuration, and prints nothing.
    type: str
    default: ""
  account:
    description: Number of the AWS account, for the login nodes' policy.
    type: str
    default: ""
  caller:
    description: ARN of the publisher, for a policy by which nobody else may write to O(base).
    type: str
    default: ""
  bucket_policy:
    description:
      - The policy that the bucket of O(base) has, as JSON; empty is none. A policy that keeps others from writing stays
        as it is, and of another one the printed policy keeps what it says.
      - Without this option the printed policy takes the place of whatever the bucket has.
    type: str
  config:
    description: Configuration of a cluster. The default has one login pool and one queue, without names.
    type: path
  policies:
    description: ARNs of further policies for all nodes.
    type: list
    elements: str
    default: []
  login_policy:
    description: ARN of the policy by which login nodes read bundles. The default is a policy to be made.
    type: str
    default: ""
  trusted_writers:
    description: Nodes that may write to O(base), as the error names them, V(HeadNode), C(login pool <name>) or C(queue
      <name>). Root on such a node can become root on every node.
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - pcluster.postboot.attributes.looks
  - pcluster.postboot.attributes.internal
  - pcluster.postboot.attributes.bundle
  - pcluster.postboot.attributes.bootstrap
"""

EXAMPLES = r"""
- name: Show what the cluster's configuration needs
  pcluster.postboot.custom_actions:
    base: s3://my-bucket/postboot
    id: 1.3.0-3f9e2c51ab07
    sha256: "{{ bundle.sha256 }}"
    config: my-cluster.yaml
    budget: 900
"""

RETURN = r"""
text:
  description: The printed configuration; empty without O(id).
  type: str
  returned: success
"""
