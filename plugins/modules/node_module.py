#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run a module of this collection: the documentation of an action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_module
short_description: Run a module of this collection
version_added: 0.2.0
description:
  - The action of the modules that C(site) runs on nodes and that have no action of their own. C(meta/runtime.yml)
    names them. No task calls this action by its name.
  - Where a node runs the collection itself, the module runs in the process that Ansible has forked for the task, and
    not in a Python of its own. Everywhere else Ansible runs the module as it runs every other one.
extends_documentation_fragment:
  - pcluster.postboot.attributes.looks
  - pcluster.postboot.attributes.internal
author:
  - The pcluster.postboot contributors (@pcluster)
"""

EXAMPLES = r"""
- name: Read what this node is
  pcluster.postboot.node_facts:
"""

RETURN = r"""
result:
  description: The result of the module.
  type: dict
  returned: always
"""
