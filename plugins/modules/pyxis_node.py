#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.pyxis_node."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: pyxis_node
short_description: See whether this node can use the Pyxis that the head node provides
version_added: 0.1.0
description:
  - Asks C(srun --help), as an ordinary user and with the cluster's own configuration, whether Slurm on this node loads
    what the head node has put into the shared plugstack. Nothing is changed.
  - Where the head node has put nothing there yet, a warning says so, and the task does not fail, since such a node runs
    every job without a container. What is there and does not load stops every job of the node, and fails the task.
  - Where images are to be mounted (C(use_squashfuse)), the task fails on a node that has Enroot and not what it mounts
    images with, since no container of an image file would start there.
options:
  prefix:
    description: Where Slurm is installed.
    type: path
    required: true
extends_documentation_fragment:
  - pcluster.postboot.attributes.looks
  - pcluster.postboot.attributes.linux
author:
  - The pcluster.postboot contributors (@pcluster)
"""

EXAMPLES = r"""
- name: See whether Pyxis loads on this node
  pcluster.postboot.pyxis_node:
    prefix: /opt/slurm
"""

RETURN = r"""
ready:
  description: Whether srun on this node has C(--container-image).
  type: bool
  returned: success
waits_for:
  description: What has to come from another node, in one phrase. A boot counts it as deferred.
  type: str
  returned: when it is not there yet
summary:
  description: What this node has, in one phrase.
  type: str
  returned: success
  sample: Pyxis 0.24.0 of the head node
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils import _pyxis_load as load
from ansible_collections.pcluster.postboot.plugins.module_utils import _run


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={"prefix": {"type": "path", "required": True}},
        supports_check_mode=True,
    )
    _run.heartbeat()
    prefix = module.params["prefix"]
    entry = load.entry_path(prefix)
    try:
        printed, why = load.complaint(prefix, "srun", os.path.join(prefix, "etc/slurm.conf"))
    except load.UndecidedError as error:
        module.fail_json(msg=f"whether jobs run on this node can not be told: {error}")
    if why:
        module.fail_json(
            msg=f"srun fails on this node, and so does every job: {why}; needed is a plugstack that loads: "
            "run the playbook on the head node, which mends or names what is wrong"
        )
    if load.OPTION not in printed:
        found = (
            f"{entry} is there, and srun has no {load.OPTION}" if os.path.exists(entry) else f"{entry} is not there yet"
        )
        module.warn(f"{found}: jobs run here, but none in a container; run the playbook on the head node")
        told = "no Pyxis yet: the head node has to provide it"
        module.exit_json(changed=False, ready=False, summary=told, waits_for=told)
    missing = load.missing_mounters()
    if missing and any("use_squashfuse=1" in one.arguments for one in load.read_entries(entry)):
        module.fail_json(
            msg=f"{entry} has use_squashfuse, and this node has no {' and no '.join(missing)}, so that no image file "
            "starts; needed: install it, or leave use_squashfuse out of pyxis_options, and run the head node again"
        )
    versions = [load.version_of(one.plugin) for one in load.read_entries(entry)]
    version = f" {versions[0]}" if versions and versions[0] else ""
    module.exit_json(changed=False, ready=True, summary=f"Pyxis{version} of the head node")


if __name__ == "__main__":
    main()
