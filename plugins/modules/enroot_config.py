#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.enroot_config."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: enroot_config
short_description: Configure Enroot, its hooks, and what it needs from the kernel
version_added: 0.1.0
description:
  - Writes C(/etc/enroot/enroot.conf) once C(bash -n), with which Enroot itself reads it, takes it, and then asks Enroot
    for its version, which reads the configuration that is in place.
  - Links hooks that Enroot brings switched off. Links to others of these are taken away; hooks that it brings switched
    on, and those of somebody else, stay.
  - Lets ordinary users make user namespaces, by C(/etc/sysctl.d/99-zz-enroot.conf) and at once, with those settings
    alone that the kernel knows and that are not enough as they are. Where AppArmor forbids it (Ubuntu 24.04), it is
    allowed to all programs only if no profile of C(enroot) in C(/etc/apparmor.d) allows it to Enroot.
  - Nothing is changed when a directory that has to be on a disk of the node itself is on a shared file system.
options:
  config:
    description:
      - The whole content of C(enroot.conf).
    type: str
    required: true
  source:
    description:
      - From what it was made, such as the name of a variable, for an error.
    type: str
    default: enroot.conf
  local:
    description:
      - Directories that have to be on a disk of the node itself, or in its memory, by the variable that names each.
    type: dict
    default: {}
  scratch:
    description:
      - Folder on local scratch storage, for advice.
    type: path
  shared:
    description:
      - Types of the file systems that the cluster shares, by mount point. They are refused even while they are not
        mounted.
    type: dict
    default: {}
  sysctls:
    description:
      - Kernel settings, each of which shall be at least this number.
    type: dict
    default: {}
  hooks:
    description:
      - Names of hooks in C(/usr/share/enroot/hooks.d) to switch on.
    type: list
    elements: str
    default: []
  gpus:
    description:
      - Whether containers get GPUs. With V(false), images that ask for GPUs, as all of NVIDIA do, start without any
        (C(NVIDIA_VISIBLE_DEVICES=void)); otherwise they would not start at all.
    type: bool
    default: true
  version:
    description:
      - The version for RV(summary) where Enroot is not there yet, in check mode.
    type: str
    default: ""
  origin:
    description:
      - Who installed it, as M(pcluster.postboot.packages) says, for RV(summary).
    type: str
    choices: [found, installed]
    default: installed
extends_documentation_fragment:
  - pcluster.postboot.attributes
  - pcluster.postboot.attributes.linux
attributes:
  check_mode:
    details: Works on a node on which Enroot is not there yet.
author:
  - The pcluster.postboot contributors (@pcluster)
"""

EXAMPLES = r"""
- name: Enroot unpacks containers on the NVMe disks
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
  description: What the node ended up with.
  type: str
  returned: success
  sample: Enroot 4.2.1, the AMI's own
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils import _enroot, _run, _validated_files


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "config": {"type": "str", "required": True},
            "source": {"type": "str", "default": "enroot.conf"},
            "local": {"type": "dict", "default": {}},
            "scratch": {"type": "path"},
            "shared": {"type": "dict", "default": {}},
            "sysctls": {"type": "dict", "default": {}},
            "hooks": {"type": "list", "elements": "str", "default": []},
            "gpus": {"type": "bool", "default": True},
            "version": {"type": "str", "default": ""},
            "origin": {"type": "str", "choices": ["found", "installed"], "default": "installed"},
        },
        supports_check_mode=True,
    )
    _run.heartbeat()
    given: dict[str, Any] = {**module.params, "hooks": tuple(module.params["hooks"])}
    try:
        given["sysctls"] = {key: int(value) for key, value in given["sysctls"].items()}
        outcome = _enroot.apply(_enroot.Request(check=module.check_mode, **given))
    except ValueError as error:
        module.fail_json(msg=f"sysctls: {error}; needed are whole numbers")
    except (_enroot.EnrootError, _validated_files.FilesError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=outcome.changed, diff=outcome.diff, summary=outcome.summary)


if __name__ == "__main__":
    main()
