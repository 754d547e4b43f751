#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.nccl_use."""

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_use
short_description: Let the programs of a node find the NCCL that its cluster shares
description:
  - Programs that no login shell has started find C(libnccl.so.2) by
    C(/etc/ld.so.conf.d/00-pcluster-postboot-nccl.conf), and the settings in C(/etc/nccl.conf). A person's own lines in
    C(/etc/nccl.conf) stay and take precedence.
  - Login shells use C(/etc/profile.d/nccl-shared.sh), and containers Enroot's hook
    C(/etc/enroot/hooks.d/70-nccl-shared.sh).
  - The task fails if a program without settings does not load this NCCL afterwards. Check mode works before NCCL is
    published.
options:
  home:
    description: Directory of NCCL, with C(lib/libnccl.so.2) in it.
    type: path
    required: true
  version:
    description: Version that has to be loaded. Empty accepts any.
    type: str
    default: ""
  plugins:
    description: Directories where NCCL's plugin may be. The first that exists and has a newer plugin than O(installed)
      is used.
    type: list
    elements: path
    default: []
  installed:
    description: Directory of the EFA installer's plugin, such as C(/opt/amazon/ofi-nccl).
    type: path
    default: ""
  environment:
    description: Variables for C(/etc/nccl.conf). An empty value sets none.
    type: dict
    default: {}
  profile:
    description: Content of C(/etc/profile.d/nccl-shared.sh).
    type: str
    required: true
  hook:
    description: Content of Enroot's hook. Empty removes the hook.
    type: str
    default: ""
  links:
    description: Links to make, by path, for people who know NCCL by that path. What is there already stays.
    type: dict
    default: {}
extends_documentation_fragment: [pcluster.postboot.attributes, pcluster.postboot.attributes.internal]
"""

EXAMPLES = r"""
- name: Let programs find the cluster's NCCL
  pcluster.postboot.nccl_use:
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
  description: Version of the NCCL that a program loads; empty in check mode.
  type: str
  returned: success
"""

from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import arguments, by, serve
from ansible_collections.pcluster.postboot.plugins.module_utils._nccl.environment import Request, apply


def main() -> None:
    serve(
        arguments(
            Request,
            paths=("home", "plugins", "installed"),
        ),
        by(Request, apply),
    )


if __name__ == "__main__":
    main()
