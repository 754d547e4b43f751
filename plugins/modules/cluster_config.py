#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write a cluster's configuration for ParallelCluster: the documentation of an action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cluster_config
short_description: Write a cluster's configuration for ParallelCluster
description:
  - The action plugin works on the controller. It makes the configuration of the variables of the role
    C(cluster_config), and writes it whole.
  - Variables that are wrong, contradict each other, or ask for what the version of ParallelCluster lacks fail the task,
    all in one message with a line for each, and nothing is written.
options:
  directory:
    description: Directory in which relative paths begin.
    type: path
    default: .
extends_documentation_fragment:
  - pcluster.postboot.attributes
  - pcluster.postboot.attributes.internal
  - pcluster.postboot.attributes.variables
"""

EXAMPLES = r"""
- name: Write the cluster's configuration
  pcluster.postboot.cluster_config:
    variables: "{{ lookup('pcluster.postboot.variables', 'cluster_config') }}"
"""

RETURN = r"""
path:
  description: File that was written.
  type: str
  returned: success
region:
  description: Region of the cluster.
  type: str
  returned: success
notes:
  description: What figures of the configuration are made of, and what only the user can see to.
  type: list
  elements: str
  returned: success
"""
