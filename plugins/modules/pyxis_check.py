#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.pyxis_check."""

from __future__ import annotations

DOCUMENTATION = r"""
module: pyxis_check
short_description: Check that this node can use the head node's Pyxis
description:
  - Asks C(srun --help), as an ordinary user and with the cluster's configuration, whether Slurm loads the shared
    plugstack.
  - A missing Pyxis is a warning, because jobs still run outside of containers. A plugin that does not load fails the
    task, because it stops every job. So does C(use_squashfuse) on a node with Enroot and without the programs that
    mount images.
extends_documentation_fragment:
  - pcluster.postboot.attributes.looks
  - pcluster.postboot.attributes.internal
  - pcluster.postboot.attributes.prefix
"""

EXAMPLES = r"""
- name: See whether Pyxis loads on this node
  pcluster.postboot.pyxis_check:
    prefix: /opt/slurm
"""

RETURN = r"""
waits_for:
  description: What the head node has to publish.
  type: str
  returned: when it is not there yet
summary:
  description: What the node has, in one phrase.
  type: str
  returned: success
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import serve
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._pyxis import load


def work(module: AnsibleModule) -> dict[str, Any]:
    """Return whether containers start here; a Problem tells why no job does."""
    prefix = module.params["prefix"]
    entry = load.entry_path(prefix)
    try:
        printed, why = load.complaint(prefix, "srun", os.path.join(prefix, "etc/slurm.conf"))
    except load.UndecidedError as error:
        raise Problem(f"whether jobs run on this node can not be told: {error}") from error
    if why:
        raise Problem(
            f"srun fails on this node, and so does every job: {why}; needed is a plugstack that loads: "
            "run the playbook on the head node, which mends or names what is wrong"
        )
    if load.OPTION not in printed:
        found = (
            f"{entry} is there, and srun has no {load.OPTION}" if os.path.exists(entry) else f"{entry} is not there yet"
        )
        told = "no Pyxis yet: the head node has to provide it"
        warning = f"{found}: jobs run here, but none in a container; run the playbook on the head node"
        return {"ready": False, "summary": told, "waits_for": told, "warnings": [warning]}
    missing = load.missing_mounters()
    if missing and any("use_squashfuse=1" in one.arguments for one in load.read_entries(entry)):
        raise Problem(
            f"{entry} has use_squashfuse, and this node has no {' and no '.join(missing)}, so that no image file "
            "starts; needed: install it, or leave use_squashfuse out of pyxis_options, and run the head node again"
        )
    versions = [load.version_of(one.plugin) for one in load.read_entries(entry)]
    version = f" {versions[0]}" if versions and versions[0] else ""
    return {"ready": True, "summary": f"Pyxis{version} of the head node"}


def main() -> None:
    serve({"prefix": {"type": "path", "required": True}}, work)


if __name__ == "__main__":
    main()
