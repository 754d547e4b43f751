#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.ofi_plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: ofi_plugin
short_description: Find the plugin by which NCCL uses EFA on a node
description:
  - Reads the version of the EFA installer's C(libnccl-net.so), and loads it in a process of its own.
  - If that plugin is missing, too old or does not load, the builder has to build one (RV(needed)), and other nodes look
    at O(published). A missing published plugin is a warning, because NCCL falls back to sockets; one that does not load
    fails the task.
options:
  bundled:
    description: Directory of the EFA installer's plugin.
    type: path
    default: /opt/amazon/ofi-nccl
  minimum:
    description: Minimum version of O(bundled).
    type: str
    required: true
  published:
    description: Directory of the cluster's plugin, with C(lib/libnccl-net.so) in it.
    type: path
    required: true
  former:
    description: Where O(published) was before it had the system in its name. A plugin there is used until O(published)
      has one, if it loads.
    type: path
    default: ""
  build:
    description: V(auto) builds only if O(bundled) does not fit, V(always) does not look there, and V(never) keeps
      O(bundled) with a warning if it loads, and fails if it does not.
    type: str
    choices: [auto, always, never]
    default: auto
  buildable:
    description: Whether the source's hash is known. Otherwise O(bundled) is kept, however old, with a warning.
    type: bool
    default: true
  lacks:
    description: Why a build is impossible, with a remedy, such as a node without CUDA. Then O(bundled) is kept with a
      warning if it loads. Empty if a build is possible.
    type: str
    default: ""
  builder:
    description: Whether this node builds for the cluster, and so does not look at O(published).
    type: bool
    default: false
  libraries:
    description: Directories of libraries that jobs have and a plugin may need, such as CUDA's C(lib64).
    type: list
    elements: path
    default: []
extends_documentation_fragment: [pcluster.postboot.attributes.looks, pcluster.postboot.attributes.internal]
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
  description: Whether this node needs a plugin of the cluster.
  type: bool
  returned: success
why:
  description: Why O(bundled) does not fit; empty if it does.
  type: str
  returned: success
waits_for:
  description: What another node has to publish; empty for nothing.
  type: str
  returned: success
summary:
  description: What the node has, in one phrase; empty if the node has to build.
  type: str
  returned: success
"""

from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import arguments, by, serve
from ansible_collections.pcluster.postboot.plugins.module_utils._nccl.ofi_plugin import Request, look


def main() -> None:
    serve(
        arguments(
            Request,
            paths=("bundled", "published", "former", "libraries"),
            build={"choices": ["auto", "always", "never"]},
        ),
        by(Request, look),
    )


if __name__ == "__main__":
    main()
