#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bring a bundle to all nodes of a play by Run Command or sessions: the documentation of an action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fleet
short_description: Bring a bundle to all nodes of a play by AWS Run Command or sessions
description:
  - The action plugin works once, on the controller with boto3, for all hosts of the play. They have to come from the
    inventory plugin P(pcluster.postboot.pcluster#inventory).
  - Nodes of SageMaker HyperPod, which Run Command does not know, are reached over sessions of Session Manager, by the
    session-manager-plugin on the controller.
  - Each node gets the same script, which fetches and verifies the bundle, runs C(bootstrap.sh), and prints
    the node's report.
  - The head node of a cluster comes first. If it fails, its cluster's other nodes do not get the bundle. Check mode
    says what would be sent.
options:
  bundle:
    description: Directory of the bundle in S3, as C(s3://bucket/prefix/bundle), or its archive.
    type: str
    required: true
  sha256:
    description: Hash of the bundle's archive.
    type: str
    required: true
  args:
    description: Further arguments of C(bootstrap.sh), as a list or as a shell's words.
    type: raw
    default: []
  concurrency:
    description: Number of nodes at the same time, or percentage of each cluster's other nodes, at least one.
    type: str
    default: 10%
  max_errors:
    description: Number or percentage of nodes that may fail before no other node gets the bundle. Unreachable nodes do
      not count.
    type: str
    default: "0"
  timeout:
    description: Seconds for a node, from 300 to 28800.
    type: int
    default: 3600
  assume_role_arn:
    description: ARN of a role to assume.
    type: str
    default: ""
  report:
    description: File for the nodes' results. The default is C(fleet-<bundle>.json) in the working directory. The names
      of nodes that do not run the bundle go into a file beside it that ends with C(.limit).
    type: str
    default: ""
requirements:
  - boto3
  - session-manager-plugin, for nodes of SageMaker HyperPod
attributes:
  diff_mode:
    support: none
extends_documentation_fragment:
  - pcluster.postboot.attributes
  - pcluster.postboot.attributes.internal
  - pcluster.postboot.attributes.profile
"""

EXAMPLES = r"""
- name: Run the bundle on every node
  pcluster.postboot.fleet:
    bundle: s3://my-bucket/postboot/1.4.2-3f9e2c51ab07
    sha256: 3f9e2c51ab070d2ab5f1a1d9c0a0a2e5c0f7b1f2d3c4b5a69788796a5b4c3d2e
    concurrency: 20%
  run_once: true
"""

RETURN = r"""
report:
  description: File with the state of each node, the reason, and the node's report.
  type: str
  returned: not in check mode
limit:
  description: File with the names of the nodes that do not run the bundle.
  type: str
  returned: where there are such nodes, and not in check mode
"""
