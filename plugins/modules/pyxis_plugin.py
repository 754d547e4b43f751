#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.pyxis_plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: pyxis_plugin
short_description: Find or build a Pyxis that the installed Slurm loads
description:
  - Looks for a C(spank_pyxis.so) that Slurm loads, proven by C(srun --help) and C(sbatch --help) with a separate
    configuration, and otherwise builds one from O(source). The module is called without O(source) first, and again with
    it if RV(due).
  - The plugin is copied or built into C(<prefix>/pyxis/<version>-slurm<version>), which all nodes share. The directory
    appears by a rename, and older ones stay.
  - A plugstack entry whose plugin no longer loads is removed at once, because it stops every job.
options:
  slurm_version:
    description: Version of Slurm.
    type: str
    required: true
  version:
    description: Version of Pyxis to build.
    type: str
    required: true
  build:
    description: V(auto) builds only if none of O(places) loads, V(always) does not look there, and V(never) does not
      build.
    type: str
    choices: [auto, always, never]
    default: auto
  places:
    description: Paths of a C(spank_pyxis.so) that images have.
    type: list
    elements: path
    default: []
  source:
    description: Unpacked source of O(version). A copy is built, on this node's own disk.
    type: path
  squashfuse:
    description: Whether images are mounted instead of unpacked. A Pyxis older than 0.22, or a node with Enroot and
      without the programs for it, is then an error.
    type: bool
    default: false
extends_documentation_fragment:
  - pcluster.postboot.attributes
  - pcluster.postboot.attributes.internal
  - pcluster.postboot.attributes.prefix
"""

EXAMPLES = r"""
- name: Look for a Pyxis that loads
  pcluster.postboot.pyxis_plugin:
    prefix: /opt/slurm
    slurm_version: 25.11.8
    version: 0.24.0
    places: [/usr/local/lib/slurm/spank_pyxis.so]
"""

RETURN = r"""
due:
  description: Whether the module has to be called again, with O(source).
  type: bool
  returned: success
plugin:
  description: Path of the C(spank_pyxis.so), also of one that is yet to be built.
  type: str
  returned: success
version:
  description: Version of the plugin; empty if unknown.
  type: str
  returned: success
missing:
  description: Programs that a build needs and this node does not have.
  type: list
  elements: str
  returned: success
summary:
  description: What the node has, in one phrase.
  type: str
  returned: success
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import arguments, frozen, serve
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._pyxis import plugin


def work(module: AnsibleModule) -> dict[str, Any]:
    """Find or build the plugin, and return what was done."""
    os.umask(0o022)  # every node and every user reads what is made here
    try:
        return plugin.apply(plugin.Request(check=module.check_mode, **frozen(module.params)))._asdict()
    except OSError as error:
        raise Problem(f"Pyxis below {module.params['prefix']}: {error}", log=[]) from error


def main() -> None:
    serve(
        arguments(
            plugin.Request,
            paths=("prefix", "places", "source"),
            build={"choices": ["auto", "always", "never"]},
        ),
        work,
    )


if __name__ == "__main__":
    main()
