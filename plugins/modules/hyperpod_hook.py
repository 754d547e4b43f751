#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write the hook by which nodes of HyperPod run a bundle: the documentation of an action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: hyperpod_hook
short_description: Write the hook by which nodes of SageMaker HyperPod run a bundle
description:
  - The action plugin works on the controller. It writes the files that HyperPod downloads, and tells what a cluster
    needs to run them, C(LifeCycleConfig) of each instance group or a line for C(on_create.sh).
  - A node's type and file systems are in one of these files, because no file of HyperPod's on the node has them.
options:
  dest:
    description: Directory of hooks. Each has a directory of its own there, named by what it has.
    type: path
    required: true
  script:
    description: File that HyperPod starts, C(on_init_complete.sh).
    type: path
    required: true
  bootstrap:
    description: File C(bootstrap.sh) of the bundle.
    type: path
    required: true
  config:
    description: JSON of the cluster, as CreateCluster takes it or DescribeCluster answers it.
    type: path
    required: true
  base:
    description: Where bundles are published, as C(s3://sagemaker-<more>/<prefix>). Nodes of HyperPod read such buckets.
    type: str
    required: true
  id:
    description: Name of the bundle. Empty checks the options and O(config), and writes and prints nothing.
    type: str
    default: ""
  caller:
    description: ARN of the publisher, for a policy by which nobody else may write to O(base).
    type: str
    default: ""
  bucket_policy:
    description: The policy that the bucket of O(base) has, as JSON; empty is none. By default it is unknown.
    type: str
  print:
    description: Whether what the cluster needs is printed.
    type: bool
    default: false
attributes:
  diff_mode:
    support: none
extends_documentation_fragment:
  - pcluster.postboot.attributes
  - pcluster.postboot.attributes.internal
  - pcluster.postboot.attributes.bundle
  - pcluster.postboot.attributes.bootstrap
"""

EXAMPLES = r"""
- name: Write the hook for HyperPod
  pcluster.postboot.hyperpod_hook:
    dest: /home/me/postboot-bundles
    script: "{{ role_path }}/files/on_init_complete.sh"
    bootstrap: "{{ role_path }}/../pull/files/bootstrap.sh"
    config: create-cluster.json
    base: s3://sagemaker-my-bucket/postboot
    id: 1.4.2-3f9e2c51ab07
    sha256: "{{ bundle.sha256 }}"
"""

RETURN = r"""
name:
  description: Where the hook belongs below O(base), such as V(hyperpod/1.4.2-3f9e2c51ab07-1b2c3d4e).
  type: str
  returned: with O(id)
directory:
  description: Directory of the files.
  type: str
  returned: with O(id)
files:
  description: C(name) and C(sha256) of each file.
  type: list
  elements: dict
  returned: with O(id)
text:
  description: What the cluster needs.
  type: str
  returned: with O(id)
"""
