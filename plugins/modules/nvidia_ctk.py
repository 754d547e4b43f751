#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.nvidia_ctk."""

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_ctk
short_description: Let containers find a node's NVIDIA GPUs
description:
  - Keeps the CDI files fresh, now, at each boot and after each change of the driver, by the toolkit's own units (from
    1.18 on). A node with GPUs of which CDI offers none fails the task.
  - Has C(nvidia-ctk) add its runtime to a copy of Docker's C(daemon.json), which is merged into the file once C(dockerd
    --validate) accepts it.
  - Restarts a Docker that is older than its configuration or NVIDIA's hooks, if O(restart) allows it.
options:
  docker:
    description: Whether Docker is configured, if the node has dockerd.
    type: bool
    default: true
  daemon_config:
    description: Path of Docker's C(daemon.json).
    type: path
    default: /etc/docker/daemon.json
  daemon_settings:
    description: The user's settings for that file, which take precedence. Dictionaries are merged, and V(null) removes
      a key.
    type: dict
    default: {}
  set_as_default:
    description: Whether NVIDIA's runtime becomes Docker's default. V(false) leaves the default as it is.
    type: bool
    default: false
  cdi:
    description: Whether CDI is switched on in Docker, as is the default from 28.2 on.
    type: bool
    default: true
  runtime_config:
    description: Path of the toolkit's own configuration.
    type: path
    default: /etc/nvidia-container-runtime/config.toml
  mode:
    description: How NVIDIA's runtime brings GPUs into a container. V(auto) is the toolkit's choice, which is CDI from
      1.18 on.
    type: str
    choices: [auto, cdi, jit-cdi, legacy]
    default: auto
  gpus:
    description: Number of GPUs of the node.
    type: int
    default: 0
  minimum_version:
    description: Version of the toolkit that fixes O(flaw). RV(summary) tells of an older one.
    type: str
    default: ""
  flaw:
    description: The flaw of older versions, such as V(CVE-2026-24260).
    type: str
    default: ""
extends_documentation_fragment:
  - pcluster.postboot.attributes
  - pcluster.postboot.attributes.internal
  - pcluster.postboot.attributes.restart
"""

EXAMPLES = r"""
- name: Have containers find the GPUs
  pcluster.postboot.nvidia_ctk:
    gpus: "{{ ansible_facts['pcluster']['gpus']['count'] }}"
    restart: auto
"""

RETURN = r"""
hold:
  description: Whether a restart of Docker is due and not allowed.
  type: bool
  returned: success
summary:
  description: What the node has, in one phrase.
  type: str
  returned: success
"""

from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import arguments, by, serve
from ansible_collections.pcluster.postboot.plugins.module_utils._nvidia_ctk import Request, apply


def main() -> None:
    serve(
        arguments(
            Request,
            paths=("daemon_config", "runtime_config"),
            restart={"choices": ["auto", "always", "never"]},
            mode={"choices": ["auto", "cdi", "jit-cdi", "legacy"]},
        ),
        by(Request, apply),
    )


if __name__ == "__main__":
    main()
