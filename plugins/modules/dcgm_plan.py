#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.dcgm_plan."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: dcgm_plan
short_description: Say which packages of NVIDIA's DCGM, or of its exporter, a node lacks
version_added: 0.1.0
description:
  - Looks at what the node has, and says what M(pcluster.postboot.packages) has to install. It changes nothing.
  - What somebody else has installed, and is as new as O(minimum_version), stays. Only what is not open source is added,
    in the same version, with O(proprietary). DCGM 3 and older, which was one package, is replaced.
options:
  manager:
    description: Who installs.
    type: str
    choices: [apt, dnf]
    required: true
  component:
    description: What is looked for.
    type: str
    choices: [dcgm, exporter]
    default: dcgm
  version:
    description: The version that must be there, or the beginning of one. Empty leaves one that is new enough.
    type: str
    default: ""
  fresh_version:
    description: The version that a node gets which has none, or one that is too old.
    type: str
    required: true
  minimum_version:
    description: What is older is replaced, unless O(version) asks for it.
    type: str
    default: ""
  driver:
    description: The version of NVIDIA's driver, which tells for which major version of CUDA the diagnostics must be.
    type: str
    default: ""
  cuda:
    description: The version of the CUDA toolkit, which tells that where no driver is loaded.
    type: str
    default: ""
  cuda_major:
    description: That major version, if it is not to be found out.
    type: str
    default: ""
  proprietary:
    description: Whether the packages that are not open source are wanted, without which there are no profiling fields.
    type: bool
    default: true
  repository:
    description: The name under which the repository with the packages is added.
    type: str
    required: true
  url:
    description: Its address.
    type: str
    required: true
  mirrors:
    description: Where copies of upstream sites are kept, as for M(pcluster.postboot.package_repository).
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - pcluster.postboot.attributes.looks
  - pcluster.postboot.attributes.linux
attributes:
  platform:
    platforms: debian, rhel
author:
  - The pcluster.postboot contributors (@pcluster)
"""

EXAMPLES = r"""
- name: What is due is known
  pcluster.postboot.dcgm_plan:
    manager: apt
    minimum_version: "4.5"
    fresh_version: 4.6.0
    driver: 595.112.07
    repository: nvidia-dcgm
    url: https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64
"""

RETURN = r"""
install:
  description: Whether packages have to be installed.
  type: bool
  returned: success
why:
  description: Why, or why not.
  type: str
  returned: success
  sample: DCGM 3.3.6 is older than 4.5
version:
  description: The version that there is, or will be. Empty where no package brought it.
  type: str
  returned: success
  sample: 4.6.0
packages:
  description: The packages that have to be there in that version.
  type: list
  elements: str
  returned: success
  sample: [datacenter-gpu-manager-4-core, datacenter-gpu-manager-4-cuda13]
legacy:
  description: Whether DCGM 3 is there, which cannot stay beside them.
  type: bool
  returned: success
add:
  description: Whether the repository has to be added, which it has not where the node has it under another name.
  type: bool
  returned: success
left:
  description: Whether the repository is still there, as a run leaves it that was killed.
  type: bool
  returned: success
stays:
  description: Whether what is there stays, and can run also where the packages that it lacks do not come.
  type: bool
  returned: success
other:
  description: Whether a host engine answers on port 5555 that is not that of C(nvidia-dcgm.service).
  type: bool
  returned: success
summary:
  description: What this node has, in one phrase.
  type: str
  returned: success
  sample: DCGM 4.6.0, the node had it
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils import _dcgm
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import frozen, serve


def work(module: AnsibleModule) -> dict[str, Any]:
    """Do what is asked for, and return the result."""
    return _dcgm.plan(_dcgm.Request(**frozen(module.params)))._asdict()


def main() -> None:
    """Run the module."""
    serve(
        {
            "manager": {"type": "str", "choices": ["apt", "dnf"], "required": True},
            "component": {"type": "str", "choices": ["dcgm", "exporter"], "default": "dcgm"},
            "version": {"type": "str", "default": ""},
            "fresh_version": {"type": "str", "required": True},
            "minimum_version": {"type": "str", "default": ""},
            "driver": {"type": "str", "default": ""},
            "cuda": {"type": "str", "default": ""},
            "cuda_major": {"type": "str", "default": ""},
            "proprietary": {"type": "bool", "default": True},
            "repository": {"type": "str", "required": True},
            "url": {"type": "str", "required": True},
            "mirrors": {"type": "list", "elements": "str", "default": []},
        },
        work,
    )


if __name__ == "__main__":
    main()
