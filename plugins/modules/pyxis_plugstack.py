#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.pyxis_plugstack."""

from __future__ import annotations

DOCUMENTATION = r"""
module: pyxis_plugstack
short_description: Have Slurm load Pyxis in every job
description:
  - Writes C(<prefix>/etc/plugstack.conf.d/pyxis.conf), which all nodes share, by a rename from outside of that
    directory, and includes it in C(plugstack.conf).
  - The entry is V(required), because a job would run outside of its container if an optional plugin failed. It is
    written only if Slurm loads the plugin with these options, and removed again if C(srun) of an ordinary user does not
    show C(--container-image).
  - Another file there that stops every job fails the task before any change.
  - slurmctld is reconfigured if it is older than the entry. Check mode does not load a plugin that is not there yet.
options:
  plugin:
    description: Path of the C(spank_pyxis.so).
    type: path
    required: true
  version:
    description: Version of the plugin, which decides which options are written; empty if unknown.
    type: str
    default: ""
  options:
    description: Options of the plugin. V(null), and with a warning an option that the version does not know, is left
      out.
    type: dict
    default: {}
  others:
    description: Patterns of file names in C(plugstack.conf.d) that no warning names.
    type: list
    elements: str
    default: []
  prune:
    description: Whether directories below C(<prefix>/pyxis) that no plugstack file names are removed.
    type: bool
    default: false
extends_documentation_fragment:
  - pcluster.postboot.attributes
  - pcluster.postboot.attributes.internal
  - pcluster.postboot.attributes.prefix
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
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import arguments, frozen, serve
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._pyxis import plugstack


def work(module: AnsibleModule) -> dict[str, Any]:
    """Have Pyxis in the plugstack, and return what was done."""
    os.umask(0o022)  # every node and every user reads what is made here
    try:
        return plugstack.apply(plugstack.Request(check=module.check_mode, **frozen(module.params)))._asdict()
    except OSError as error:
        raise Problem(f"plugstack below {module.params['prefix']}: {error}") from error


def main() -> None:
    serve(arguments(plugstack.Request, paths=("prefix", "plugin")), work)


if __name__ == "__main__":
    main()
