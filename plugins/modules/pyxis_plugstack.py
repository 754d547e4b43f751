#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.pyxis_plugstack."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: pyxis_plugstack
short_description: Have Slurm load Pyxis in every job
version_added: 0.1.0
description:
  - Writes C(etc/plugstack.conf.d/pyxis.conf) below the prefix of Slurm, and lets C(etc/plugstack.conf) include it. It
    is for the head node, as all nodes share that folder.
  - The entry is V(required), because Slurm discards what an optional plugin reports, and would run a job on the host
    whose container did not start. So it is written only once Slurm has loaded the plugin with just these options, and
    taken away again where an ordinary user's C(srun) does not show C(--container-image) afterwards.
  - Files are made outside of C(plugstack.conf.d) and appear there by a rename, since Slurm loads whatever lies there.
  - A file there that stops every job fails the task before anything is written. Any other is named in a warning.
  - A running slurmctld is reconfigured after a change, which reaches every slurmd; also by the next run, where this
    one is killed before.
options:
  prefix:
    description: Where Slurm is installed.
    type: path
    required: true
  plugin:
    description: The C(spank_pyxis.so).
    type: path
    required: true
  version:
    description: Its version, which decides on the options that are written. Empty where it is not known.
    type: str
    default: ""
  options:
    description: Its options. One that this version does not know is left out, with a warning; one of V(null) too.
    type: dict
    default: {}
  others:
    description:
      - Patterns of file names in C(plugstack.conf.d) that are meant to be there, so that no warning names them.
    type: list
    elements: str
    default: []
  prune:
    description: Whether directories below C(<prefix>/pyxis) that no plugstack file names are removed.
    type: bool
    default: false
extends_documentation_fragment:
  - pcluster.postboot.attributes
  - pcluster.postboot.attributes.linux
attributes:
  check_mode:
    details: A plugin that is not there yet is not loaded.
author:
  - The pcluster.postboot contributors (@pcluster)
"""

EXAMPLES = r"""
- name: Have Slurm load Pyxis
  pcluster.postboot.pyxis_plugstack:
    prefix: /opt/slurm
    plugin: /opt/slurm/pyxis/0.24.0-slurm25.11.8/spank_pyxis.so
    version: 0.24.0
    options:
      runtime_path: /run/pyxis
      container_scope: job
"""

RETURN = r"""
actions:
  description: What was done, or in check mode would be, from V(wrote), V(reconfigured) and V(pruned).
  type: list
  elements: str
  returned: success
  sample: [wrote, reconfigured]
entry:
  description: The file that loads Pyxis.
  type: str
  returned: success
  sample: /opt/slurm/etc/plugstack.conf.d/pyxis.conf
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils import _pyxis_plugstack, _run


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "prefix": {"type": "path", "required": True},
            "plugin": {"type": "path", "required": True},
            "version": {"type": "str", "default": ""},
            "options": {"type": "dict", "default": {}},
            "others": {"type": "list", "elements": "str", "default": []},
            "prune": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    given: dict[str, Any] = {**module.params, "others": tuple(module.params["others"])}
    os.umask(0o022)  # every node and every user reads what is made here
    _run.heartbeat()
    try:
        outcome = _pyxis_plugstack.apply(_pyxis_plugstack.Request(check=module.check_mode, **given))
    except _pyxis_plugstack.PlugstackError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"plugstack below {given['prefix']}: {error}")
    for warning in outcome.warnings:
        module.warn(warning)
    module.exit_json(changed=bool(outcome.actions), actions=outcome.actions, entry=outcome.entry, diff=outcome.diff)


if __name__ == "__main__":
    main()
