#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.diagnose_node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: diagnose_node
short_description: Gather and judge what a supporter asks for, on one node
description:
  - Reads logs, reports, configurations and what programs print, of this collection, ParallelCluster, Slurm and the
    node's hardware, within limits of size and time. Nothing is changed.
  - Secrets are replaced by C([redacted]) before anything is written.
  - The result is one archive in C(/run/pcluster-postboot), which only the connection's user may read, and which the
    next call replaces.
  - Every file system is asked for a sign of life first. Of what does not answer nothing is touched.
  - Check mode says what would be gathered.
options:
  name:
    description: Name of the node in the inventory.
    type: str
    default: ""
  file_mb:
    description: MB of each file, of which the last are kept.
    type: float
    default: 2.0
  node_mb:
    description: MB of all files, before they are compressed.
    type: float
    default: 20.0
  seconds:
    description: Seconds after which no further program is run.
    type: float
    default: 240.0
  mount_seconds:
    description: Seconds that a file system has to answer.
    type: float
    default: 6.0
  hours:
    description: Age in hours from which on a line of a log is no finding.
    type: float
    default: 48.0
  units:
    description: Services of this collection's components, without their suffix.
    type: list
    elements: str
    default: []
  about:
    description: Nodes or instances that are gone, about which a head node tells what it knows.
    type: list
    elements: str
    default: []
  report_dir:
    description: Shared directory with reports of nodes, C(common_report_dir).
    type: path
    default: ""
  overrides:
    description: Facts that replace those of the node, as in M(pcluster.postboot.node_facts).
    type: dict
    default: {}
extends_documentation_fragment: [pcluster.postboot.attributes.looks, pcluster.postboot.attributes.internal]
"""

EXAMPLES = r"""
- name: Gather what a supporter asks for
  pcluster.postboot.diagnose_node:
    units: "{{ query('pcluster.postboot.components', 'services') }}"
  register: gathered
"""

RETURN = r"""
path:
  description: The archive on the node; empty in check mode.
  type: str
  returned: success
node:
  description: Who the node is.
  type: dict
  returned: success
findings:
  description: What stands out, the gravest first.
  type: list
  elements: dict
  returned: success
parts:
  description: In check mode, what would be gathered.
  type: list
  elements: str
  returned: success
redacted:
  description: How many secrets of each kind were left out.
  type: dict
  returned: success
left:
  description: What was left out, and why.
  type: list
  elements: str
  returned: success
"""

from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose.node import Request, gather
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import arguments, by, serve

ARGUMENTS = arguments(Request, paths=("report_dir",), overrides={"type": "dict", "default": {}})


def main() -> None:
    # The run that holds the node is another one, or dead.
    serve(ARGUMENTS, by(Request, gather), alive=False)


if __name__ == "__main__":
    main()
