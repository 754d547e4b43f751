#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.nvidia_ctk."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: nvidia_ctk
short_description: Let containers find a node's NVIDIA GPUs
version_added: 0.1.0
description:
  - Has the NVIDIA Container Toolkit keep its CDI files fresh, now, at each boot and after each change of the driver,
    by the units that it brings for that (from 1.18 on). A node with GPUs of which none is offered fails the task.
  - Has C(nvidia-ctk) itself add its runtime to Docker's C(daemon.json). It edits a copy, which is merged into what is
    there, read by C(dockerd --validate), and put in place in one step. Keys of others stay.
  - It does not restart Docker, and says in RV(hold) whether that may be done.
options:
  docker:
    description:
      - Whether Docker is configured. Without a dockerd on the node it is not.
    type: bool
    default: true
  daemon_config:
    description:
      - Docker's configuration.
    type: path
    default: /etc/docker/daemon.json
  daemon_settings:
    description:
      - What the user wants the file to say, whatever C(nvidia-ctk) writes. Dictionaries are merged, and a value of
        V(null) removes a key, as with M(pcluster.postboot.docker_config).
    type: dict
    default: {}
  set_as_default:
    description:
      - Whether the NVIDIA runtime is the default one, also for containers that ask for no runtime. V(false) leaves the
        default as it is.
    type: bool
    default: false
  cdi:
    description:
      - Whether CDI is switched on in Docker, which is so by default from 28.2 on.
    type: bool
    default: true
  restart:
    description:
      - When a running Docker may be restarted. V(auto) means when no container would be stopped by it.
    type: str
    choices: [auto, always, never]
    default: auto
  runtime_config:
    description:
      - The toolkit's own configuration.
    type: path
    default: /etc/nvidia-container-runtime/config.toml
  mode:
    description:
      - How the NVIDIA runtime brings GPUs into a container. V(auto) is the toolkit's own choice, which from 1.18 on is
        CDI.
    type: str
    choices: [auto, cdi, jit-cdi, legacy]
    default: auto
  gpus:
    description:
      - How many GPUs the node has.
    type: int
    default: 0
  minimum_version:
    description:
      - The toolkit that mends O(flaw). RV(summary) tells it of an older one.
    type: str
    default: ""
  flaw:
    description:
      - What is wrong with older ones, such as V(CVE-2026-24260).
    type: str
    default: ""
extends_documentation_fragment:
  - pcluster.postboot.attributes
  - pcluster.postboot.attributes.linux
attributes:
  check_mode:
    details: Works on a node on which the toolkit is not there yet.
author:
  - The pcluster.postboot contributors (@pcluster)
"""

EXAMPLES = r"""
- name: Containers find the GPUs
  pcluster.postboot.nvidia_ctk:
    gpus: "{{ ansible_facts['pcluster']['gpus']['count'] }}"
  register: toolkit

- name: Docker uses it
  pcluster.postboot.systemd_unit:
    name: docker.service
    state: "{{ 'present' if toolkit.hold else 'started' }}"
    restart_on: [/etc/docker/daemon.json]
  when: toolkit.docker
"""

RETURN = r"""
version:
  description: The toolkit's version; empty in check mode where it is not there yet.
  type: str
  returned: success
  sample: 1.19.1
devices:
  description: The GPUs that CDI offers.
  type: list
  elements: str
  returned: success
  sample: [nvidia.com/gpu=0, nvidia.com/gpu=1]
docker:
  description: Whether Docker is there and was configured.
  type: bool
  returned: success
hold:
  description: Whether Docker runs and may not be restarted.
  type: bool
  returned: success
why_hold:
  description: Why RV(hold) is true.
  type: str
  returned: success
summary:
  description: What the node ended up with.
  type: str
  returned: success
  sample: NVIDIA Container Toolkit 1.19.1, 8 CDI devices
journal:
  description: The last lines that the unit which makes the CDI files left in the journal.
  type: list
  elements: str
  returned: when no GPU is offered
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils import _nvidia_ctk
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import serve


def work(module: AnsibleModule) -> dict[str, Any]:
    """Do what is asked for, and return the result."""
    return _nvidia_ctk.apply(_nvidia_ctk.Request(check=module.check_mode, **module.params))._asdict()


def main() -> None:
    """Run the module."""
    serve(
        {
            "docker": {"type": "bool", "default": True},
            "daemon_config": {"type": "path", "default": "/etc/docker/daemon.json"},
            "daemon_settings": {"type": "dict", "default": {}},
            "set_as_default": {"type": "bool", "default": False},
            "cdi": {"type": "bool", "default": True},
            "restart": {"type": "str", "choices": ["auto", "always", "never"], "default": "auto"},
            "runtime_config": {"type": "path", "default": "/etc/nvidia-container-runtime/config.toml"},
            "mode": {"type": "str", "choices": ["auto", "cdi", "jit-cdi", "legacy"], "default": "auto"},
            "gpus": {"type": "int", "default": 0},
            "minimum_version": {"type": "str", "default": ""},
            "flaw": {"type": "str", "default": ""},
        },
        work,
    )


if __name__ == "__main__":
    main()
