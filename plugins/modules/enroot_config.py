#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.enroot_config."""

from __future__ import annotations

DOCUMENTATION = r"""
module: enroot_config
short_description: Configure Enroot, its hooks, and the kernel settings that it needs
description:
  - Writes C(/etc/enroot/enroot.conf) if C(bash -n) accepts it, and has C(enroot version) read it.
  - Links O(hooks), and removes links to other hooks that Enroot ships switched off. Hooks of others stay.
  - Raises O(sysctls) where the kernel has them and they are lower, in C(/etc/sysctl.d/99-zz-enroot.conf) and at once.
    If AppArmor forbids user namespaces (Ubuntu 24.04) and no profile in C(/etc/apparmor.d) allows them to Enroot, they
    are allowed to all programs.
options:
  config:
    description: Content of C(enroot.conf). If it has no C(ENROOT_SQUASH_OPTIONS), and C(mksquashfs) lacks Enroot's
      default compressor, lzo, as on RHEL 9, C(ENROOT_SQUASH_OPTIONS -comp zstd -noD) is added.
    type: str
    required: true
  source:
    description: What the content was made from, such as a variable, for errors.
    type: str
    default: enroot.conf
  local:
    description: Directories that must not be on a shared file system, by the variable that names each. One that is
      fails the task before any change.
    type: dict
    default: {}
  scratch:
    description: Directory on local scratch storage, for advice.
    type: path
  shared:
    description: Types of the cluster's shared file systems, by mount point, also of those that are not mounted.
    type: dict
    default: {}
  sysctls:
    description: Minimum of each kernel setting.
    type: dict
    default: {}
  hooks:
    description: Names of the hooks in C(/usr/share/enroot/hooks.d) to switch on.
    type: list
    elements: str
    default: []
  address_hook:
    description: Content of C(/etc/enroot/hooks.d/51-slurm-address.sh), which is removed without content.
    type: str
    default: ""
  scontrol:
    description: Slurm's program, which hooks ask, where the service that starts them does not find the program. It is
      linked as C(/usr/local/bin/scontrol), unless such a program is in the path that systemd gives a service. Without
      O(hooks) nothing is linked.
    type: path
    default: ""
    version_added: 0.2.0
  gpus:
    description: Whether containers get GPUs. V(false) sets C(NVIDIA_VISIBLE_DEVICES=void), because NVIDIA's images
      would not start without GPUs otherwise.
    type: bool
    default: true
  version:
    description: Version for RV(summary) in check mode, where Enroot is not installed.
    type: str
    default: ""
  origin:
    description: Who installed Enroot, for RV(summary).
    type: str
    choices: [found, installed]
    default: installed
extends_documentation_fragment: [pcluster.postboot.attributes, pcluster.postboot.attributes.internal]
"""

EXAMPLES = r"""
- name: Unpack containers on the NVMe disks
  pcluster.postboot.enroot_config:
    config: |
      ENROOT_RUNTIME_PATH /run/enroot/user-$(id -u)
      ENROOT_DATA_PATH /scratch/enroot/data/user-$(id -u)
    local:
      enroot_runtime_dir: /run/enroot
      enroot_data_dir: /scratch/enroot/data
    hooks: [50-slurm-pmi.sh, 50-slurm-pytorch.sh]
    gpus: "{{ ansible_facts['pcluster']['gpus']['count'] > 0 }}"
"""

RETURN = r"""
summary:
  description: What the node has, in one phrase.
  type: str
  returned: success
"""

from ansible_collections.pcluster.postboot.plugins.module_utils._enroot import Request, apply
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import arguments, by, serve


def main() -> None:
    serve(
        arguments(
            Request,
            paths=("scratch", "scontrol"),
            origin={"choices": ["found", "installed"]},
        ),
        by(Request, apply),
    )


if __name__ == "__main__":
    main()
