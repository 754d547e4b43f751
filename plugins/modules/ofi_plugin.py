#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.ofi_plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: ofi_plugin
short_description: See with which plugin NCCL uses EFA on a node
version_added: 0.1.0
description:
  - Looks for the C(libnccl-net.so) that the EFA installer brings along, reads its version from the file, and loads it
    in a process of its own. Nothing is changed.
  - Where it is not there, too old, or does not load, the cluster needs one of its own; a node that builds is told so by
    RV(needed). Every other node looks for what is published. Where there is nothing yet a warning says so, since NCCL
    then goes over sockets; what is there and does not load fails the task.
options:
  bundled:
    description: Where the EFA installer puts its own.
    type: path
    default: /opt/amazon/ofi-nccl
  minimum:
    description: From which version on that one will do.
    type: str
    required: true
  published:
    description: Where the cluster's own is, with C(lib/libnccl-net.so) in it.
    type: path
    required: true
  build:
    description:
      - V(auto) wants one of its own only where O(bundled) will not do; V(always) does not look there; V(never) fails
        where it will not do.
    type: str
    choices: [auto, always, never]
    default: auto
  buildable:
    description:
      - Whether one can be built, as its hash is known. Otherwise what the EFA installer brings is kept, however old,
        with a warning.
    type: bool
    default: true
  builder:
    description: Whether this node builds what the cluster shares. Then it does not look at O(published).
    type: bool
    default: false
  libraries:
    description:
      - Folders with what a plugin may need and a job has, such as CUDA's C(lib64), whether or not the dynamic linker
        knows them.
    type: list
    elements: path
    default: []
extends_documentation_fragment:
  - pcluster.postboot.attributes.looks
  - pcluster.postboot.attributes.linux
author:
  - The pcluster.postboot contributors (@pcluster)
"""

EXAMPLES = r"""
- name: See whether the EFA installer's own plugin will do
  pcluster.postboot.ofi_plugin:
    minimum: 1.17.2
    published: /fsx/aws-ofi-nccl/current
  register: plugin
"""

RETURN = r"""
needed:
  description: Whether the cluster has to provide one, and this node has none.
  type: bool
  returned: success
why:
  description: Why the EFA installer's own will not do; empty where it does.
  type: str
  returned: success
  sample: there is no libnccl-net.so in /opt/amazon/ofi-nccl
origin:
  description: V(bundled), V(published), or empty.
  type: str
  returned: success
  sample: bundled
directory:
  description: The directory of the C(libnccl-net.so) that will do; empty for none.
  type: str
  returned: success
  sample: /opt/amazon/ofi-nccl/lib
version:
  description: Its version; empty for none.
  type: str
  returned: success
  sample: 1.21.1
waits_for:
  description: What has to come from another node, in one phrase. A boot counts it as deferred. Empty where nothing has.
  type: str
  returned: success
summary:
  description: What this node has, in one phrase. Empty where this node has to build one.
  type: str
  returned: success
  sample: aws-ofi-nccl 1.21.1 of the EFA installer
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils import _ofi_plugin
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import frozen, serve


def work(module: AnsibleModule) -> dict[str, Any]:
    """Do what is asked for, and return the result."""
    return _ofi_plugin.look(_ofi_plugin.Request(**frozen(module.params)))._asdict()


def main() -> None:
    """Run the module."""
    serve(
        {
            "bundled": {"type": "path", "default": "/opt/amazon/ofi-nccl"},
            "minimum": {"type": "str", "required": True},
            "published": {"type": "path", "required": True},
            "build": {"type": "str", "choices": ["auto", "always", "never"], "default": "auto"},
            "builder": {"type": "bool", "default": False},
            "buildable": {"type": "bool", "default": True},
            "libraries": {"type": "list", "elements": "path", "default": []},
        },
        work,
    )


if __name__ == "__main__":
    main()
