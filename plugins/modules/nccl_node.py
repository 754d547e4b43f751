#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.nccl_node."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: nccl_node
short_description: Let the programs of a node find the NCCL that its cluster shares
version_added: 0.1.0
description:
  - Lets what no login shell has started, such as a step of a batch job, find C(libnccl.so.2) by
    C(/etc/ld.so.conf.d/00-pcluster-postboot-nccl.conf) and the cache of the dynamic linker, and its settings in
    C(/etc/nccl.conf), which NCCL itself reads. What a person has written into that file stays, and a name that it sets
    is not set by O(environment) as well.
  - Writes C(/etc/profile.d/nccl-shared.sh) for login shells, and Enroot's hook
    C(/etc/enroot/hooks.d/70-nccl-shared.sh) for containers.
  - Afterwards a program without any settings loads that NCCL, or the task fails.
options:
  home:
    description: The directory of NCCL, with C(lib/libnccl.so.2) in it.
    type: path
    required: true
  version:
    description: The version that has to be loaded, such as V(2.32.3). Empty accepts any.
    type: str
    default: ""
  plugins:
    description:
      - Directories of NCCL's plugins. Those that are there are found as well, if they are newer than that in
        O(installed).
    type: list
    elements: path
    default: []
  installed:
    description: Where the EFA installer has its own plugin, such as C(/opt/amazon/ofi-nccl).
    type: path
    default: ""
  environment:
    description: Variables that NCCL takes for its own, where a process does not have them. An empty one sets none.
    type: dict
    default: {}
  profile:
    description: The content of C(/etc/profile.d/nccl-shared.sh).
    type: str
    required: true
  hook:
    description: The content of Enroot's hook. Empty takes the hook away.
    type: str
    default: ""
extends_documentation_fragment:
  - pcluster.postboot.attributes
  - pcluster.postboot.attributes.linux
attributes:
  check_mode:
    details: Works before NCCL is published.
author:
  - The pcluster.postboot contributors (@pcluster)
"""

EXAMPLES = r"""
- name: Programs find the NCCL of the cluster
  pcluster.postboot.nccl_node:
    home: /fsx/nccl/current
    version: 2.32.3
    plugins: [/fsx/aws-ofi-nccl/current/lib]
    environment:
      NCCL_SOCKET_IFNAME: ^docker,lo,veth
    profile: |
      if [ -r /fsx/nccl/setup-nccl-env.sh ]; then
        . /fsx/nccl/setup-nccl-env.sh
      fi
"""

RETURN = r"""
library:
  description: The version of the NCCL that a program loads; empty in check mode.
  type: str
  returned: success
  sample: 2.32.3
kept:
  description: The names of O(environment) that C(/etc/nccl.conf) has set already, by somebody else.
  type: list
  elements: str
  returned: success
  sample: [NCCL_DEBUG]
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils import _nccl_node
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import frozen, serve


def work(module: AnsibleModule) -> dict[str, Any]:
    """Do what is asked for, and return the result."""
    parameters = frozen(module.params)
    parameters["environment"] = {str(name): str(value) for name, value in parameters["environment"].items()}
    return _nccl_node.apply(_nccl_node.Request(check=module.check_mode, **parameters))._asdict()


def main() -> None:
    """Run the module."""
    serve(
        {
            "home": {"type": "path", "required": True},
            "version": {"type": "str", "default": ""},
            "plugins": {"type": "list", "elements": "path", "default": []},
            "installed": {"type": "path", "default": ""},
            "environment": {"type": "dict", "default": {}},
            "profile": {"type": "str", "required": True},
            "hook": {"type": "str", "default": ""},
        },
        work,
    )


if __name__ == "__main__":
    main()
