#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bring a bundle to all nodes of a play by Run Command: the documentation of an action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fleet
short_description: Bring a bundle to all nodes of a play by AWS Run Command
version_added: "0.1.0"
description:
  - The playbook C(pcluster.postboot.fleet) uses it. It is to be run once, and takes all hosts of the play, which have
    to come from the inventory plugin P(pcluster.postboot.pcluster#inventory).
  - No connection is made to any node. AWS Systems Manager hands each the same script, with which it fetches and
    verifies the bundle and runs C(bootstrap.sh); the node sends its report back as the script's output.
  - In each cluster the head node comes first, because it publishes what the others use. The nodes of a cluster whose
    head node fails do not get the bundle. Five others have it before the first result is known.
  - It tells how far it is, prints what became of all nodes, and fails where one does not run the bundle. RV(report) has
    all that is known, and the nodes in RV(limit) are those to run it for again.
options:
  bundle:
    description: The bundle's directory in S3, as C(s3://bucket/prefix/bundle), or its archive there.
    type: str
    required: true
  sha256:
    description: What the bundle's archive has to be, as C(pcluster.postboot.publish) prints it.
    type: str
    required: true
  args:
    description: Further arguments of C(bootstrap.sh), as a list or as a shell would read them.
    type: raw
    default: []
  concurrency:
    description: How many nodes may be at it at the same time, as a number or as a part of each cluster's other nodes;
      at least one.
    type: str
    default: 10%
  max_errors:
    description: How many nodes may fail, as a number or as a part of all, before no other gets the bundle. Those that
      cannot be reached do not count.
    type: str
    default: "0"
  timeout:
    description: Seconds that it may take on a node, from 300 to 28800.
    type: int
    default: 3600
  profile:
    description: Named AWS profile; boto3's own choice if empty.
    type: str
    default: ""
  assume_role_arn:
    description: Role to assume.
    type: str
    default: ""
  report:
    description: A file for what becomes of each node. The default is C(fleet-<bundle>.json) in the working directory.
      The names of the nodes that do not run the bundle are beside it, in a file that ends with C(.limit).
    type: str
    default: ""
requirements:
  - boto3
extends_documentation_fragment:
  - pcluster.postboot.attributes
attributes:
  check_mode:
    details: Says what would be sent to whom, and sends nothing.
  diff_mode:
    description: There is nothing to show.
    support: none
  idempotent:
    details: On nodes that have the bundle and are as they should be, nothing is changed.
author:
  - The pcluster.postboot contributors (@pcluster)
"""

EXAMPLES = r"""
- name: Every node runs the bundle
  pcluster.postboot.fleet:
    bundle: s3://my-bucket/postboot/0.2.0-3f9e2c51ab07
    sha256: 3f9e2c51ab070d2ab5f1a1d9c0a0a2e5c0f7b1f2d3c4b5a69788796a5b4c3d2e
    concurrency: 20%
  run_once: true
"""

RETURN = r"""
report:
  description: The file with each node's state (V(ok), V(changed), V(failed), V(unreachable) or V(not sent)), why, and
    its report.
  type: str
  returned: not in check mode
limit:
  description: The file with the names of the nodes that do not run the bundle.
  type: str
  returned: where there are such nodes, and not in check mode
lines:
  description: What would be sent.
  type: list
  elements: str
  returned: in check mode
"""
