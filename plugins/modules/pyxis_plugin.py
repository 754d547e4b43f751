#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.pyxis_plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: pyxis_plugin
short_description: Have a Pyxis that loads in the Slurm that is installed
version_added: 0.1.0
description:
  - Looks for a C(spank_pyxis.so) that the installed Slurm loads, and builds one from source where there is none. That
    it loads is proven by C(srun --help) and C(sbatch --help) with a configuration of their own, which ask no other
    machine.
  - Whatever is used lies below C(<prefix>/pyxis), which all nodes see, in a directory that names its version and that
    of Slurm. Also a copy of what the image has elsewhere, as another node's image may have none. The directory
    appears complete, by a rename. Older ones stay.
  - Without O(source), RV(due) says whether the source has to be brought. So the module is called once without it, and
    once more with it where it is due.
  - An entry in plugstack.conf.d whose plugin does not load any more is withdrawn at once, since it stops every job.
options:
  prefix:
    description: Where Slurm is installed, with its headers.
    type: path
    required: true
  slurm_version:
    description: Its version.
    type: str
    required: true
  version:
    description: The version of Pyxis that is built.
    type: str
    required: true
  build:
    description:
      - V(auto) builds only where none of O(places) loads; V(always) does not look there; V(never) builds nothing.
    type: str
    choices: [auto, always, never]
    default: auto
  places:
    description: Where images have a C(spank_pyxis.so).
    type: list
    elements: path
    default: []
  source:
    description: The unpacked source of O(version). It is built in a copy on this node's own disk, and stays as it is.
    type: path
  squashfuse:
    description:
      - Whether images are to be mounted instead of unpacked. A Pyxis older than 0.22 is refused then, and so is a node
        that has Enroot and not what it mounts images with.
    type: bool
    default: false
extends_documentation_fragment:
  - pcluster.postboot.attributes
  - pcluster.postboot.attributes.linux
author:
  - The pcluster.postboot contributors (@pcluster)
"""

EXAMPLES = r"""
- name: Look for a Pyxis that loads
  pcluster.postboot.pyxis_plugin: &pyxis
    prefix: /opt/slurm
    slurm_version: 25.11.8
    version: 0.24.0
    places: [/usr/local/lib/slurm/spank_pyxis.so]
  register: found

- name: Build it where there is none
  pcluster.postboot.pyxis_plugin:
    <<: *pyxis
    source: /var/cache/pcluster-postboot/pyxis
  when: found.due
"""

RETURN = r"""
due:
  description: Whether O(source) has to be brought, and the module called again with it.
  type: bool
  returned: success
why:
  description: Why it is due, or was built or copied.
  type: str
  returned: success
  sample: Pyxis 0.24.0 was not built for Slurm 25.11.8 yet
plugin:
  description: The C(spank_pyxis.so) that is there; with RV(due) and in check mode, the one that will be.
  type: str
  returned: success
  sample: /opt/slurm/pyxis/0.24.0-slurm25.11.8/spank_pyxis.so
version:
  description: Its version; empty where it does not tell.
  type: str
  returned: success
  sample: 0.24.0
missing:
  description: With RV(due), the programs that a build needs and this node does not have.
  type: list
  elements: str
  returned: success
  sample: [make]
summary:
  description: What this node has, in one phrase.
  type: str
  returned: success
  sample: Pyxis 0.24.0 built for Slurm 25.11.8
log:
  description: The last lines of the build.
  type: list
  elements: str
  returned: when a build failed
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils import _pyxis_plugin, _run


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "prefix": {"type": "path", "required": True},
            "slurm_version": {"type": "str", "required": True},
            "version": {"type": "str", "required": True},
            "build": {"type": "str", "choices": ["auto", "always", "never"], "default": "auto"},
            "places": {"type": "list", "elements": "path", "default": []},
            "source": {"type": "path"},
            "squashfuse": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    given: dict[str, Any] = {**module.params, "places": tuple(module.params["places"])}
    os.umask(0o022)  # every node and every user reads what is made here
    _run.heartbeat()
    try:
        outcome = _pyxis_plugin.apply(_pyxis_plugin.Request(check=module.check_mode, **given))
    except _pyxis_plugin.PluginError as error:
        module.fail_json(msg=str(error), log=error.log)
    except OSError as error:
        module.fail_json(msg=f"Pyxis below {given['prefix']}: {error}", log=[])
    for warning in outcome.warnings:
        module.warn(warning)
    result = outcome._asdict()
    del result["warnings"]
    module.exit_json(**result)


if __name__ == "__main__":
    main()
