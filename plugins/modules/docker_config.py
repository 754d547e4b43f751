#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.docker_config."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: docker_config
short_description: Write Docker's daemon.json, and say what has to follow
version_added: 0.1.0
description:
  - Puts settings over what C(daemon.json) says already. Keys that its user, C(nvidia-ctk) or anybody else put there
    stay, and the file is only written when it comes to mean something else.
  - Looks at the Docker that is there, and says in RV(install) and RV(hold) what a role has to do next. It installs and
    restarts nothing itself.
  - Nothing is written when the file that is there is no JSON, when Docker's data would lie on a network file system,
    or when C(dockerd --validate) refuses the result, which gets the flags that C(docker.service) gives dockerd. A
    dockerd older than 23 is not asked.
options:
  path:
    description:
      - The file.
    type: path
    default: /etc/docker/daemon.json
  settings:
    description:
      - What the file shall say. Dictionaries are merged at every depth, everything else is replaced, and a key whose
        value is V(null) is removed.
    type: dict
    default: {}
  data_root:
    description:
      - Where Docker keeps images, containers and volumes.
      - V(auto) leaves it where the file says, or where Docker has data already; else it is C(docker) below O(scratch),
        or Docker's own default without one.
      - Empty leaves it as the file says.
      - When it is moved, the image store of Docker 29, which keeps images in C(/var/lib/containerd) whatever the data
        root is, is switched off by C(features.containerd-snapshotter), unless O(settings) or the file decide on it.
    type: str
    default: ""
  scratch:
    description:
      - Folder on local scratch storage.
    type: path
  scratch_dropin:
    description:
      - Drop-in of Docker's unit that is there where the data is on a scratch disk, with a line C(RequiresMountsFor=)
        that names the data root.
      - The task fails where it names the present data root, and that is not below O(scratch). Docker would begin anew
        on the disk below the mount point.
    type: path
  shared:
    description:
      - Types of the file systems that the cluster shares, by mount point. Docker's data is refused there even while
        they are not mounted.
    type: dict
    default: {}
  package_manager:
    description:
      - Whose records tell what is installed.
    type: str
    choices: [apt, dnf]
    default: apt
  packages:
    description:
      - Packages that shall be there; the first is the one that brings dockerd. Without any, RV(install) is never due.
    type: list
    elements: str
    default: []
  versioned:
    description:
      - Those of O(packages) that have Docker's version; the first one always has it. The others have versions of their
        own.
    type: list
    elements: str
    default: []
  conflicts:
    description:
      - Packages that cannot stay beside O(packages).
    type: list
    elements: str
    default: []
  version:
    description:
      - Version of the first package that shall be there, or the beginning of one, such as V(29). Empty accepts any.
    type: str
    default: ""
  fresh_version:
    description:
      - What counts as O(version) where there is no Docker yet.
    type: str
    default: ""
  upgrade:
    description:
      - Whether a Docker that is there shall be replaced by a newer one, or by one of O(packages).
    type: bool
    default: false
  replace:
    description:
      - Whether O(conflicts) may be removed. Otherwise the task fails when some are installed and RV(install) is due.
    type: bool
    default: false
  restart:
    description:
      - When a running Docker may be restarted. V(auto) means when no container would be stopped by it.
    type: str
    choices: [auto, always, never]
    default: auto
extends_documentation_fragment:
  - pcluster.postboot.attributes
  - pcluster.postboot.attributes.linux
author:
  - The pcluster.postboot contributors (@pcluster)
"""

EXAMPLES = r"""
- name: Keep Docker's data on the NVMe disks, and its containers running while it is restarted
  pcluster.postboot.docker_config:
    settings:
      live-restore: true
    data_root: auto
    scratch: "{{ ansible_facts['pcluster']['scratch'] or omit }}"
  register: docker

- name: Docker runs
  pcluster.postboot.systemd_unit:
    name: docker.service
    enabled: true
    state: "{{ 'present' if docker.hold else 'started' }}"
    restart_on: [/etc/docker/daemon.json, /usr/bin/dockerd]

- name: Add a runtime, and forget a registry mirror
  pcluster.postboot.docker_config:
    settings:
      runtimes:
        nvidia:
          path: nvidia-container-runtime
      registry-mirrors: null
"""

RETURN = r"""
settings:
  description: What the file says afterwards, or in check mode would.
  type: dict
  returned: success
  sample: {live-restore: true, data-root: /scratch/docker}
data_root:
  description: Where Docker's data lies once it has been started with that.
  type: str
  returned: success
  sample: /scratch/docker
install:
  description: >-
    Whether packages have to be installed (C(due)) and C(why). M(pcluster.postboot.packages) does that with C(packages),
    C(extra), C(version) and C(latest). Besides, whether that C(replaces) a Docker that works, and what is
    C(in_the_way).
  type: dict
  returned: success
  sample:
    due: true
    why: Docker is not installed
    packages: [docker-ce, docker-ce-cli]
    extra: [containerd.io]
    version: "29"
    latest: false
    replaces: false
    in_the_way: []
hold:
  description: Whether Docker runs and may not be restarted.
  type: bool
  returned: success
why_hold:
  description: Why RV(hold) is true.
  type: str
  returned: success
  sample: 2 containers run in it, which would be stopped; set docker_restart to always, or run again when it idles
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils import _docker
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import frozen, serve


def work(module: AnsibleModule) -> dict[str, Any]:
    """Do what is asked for, and return the result."""
    return _docker.apply(_docker.Request(check=module.check_mode, **frozen(module.params)))._asdict()


def main() -> None:
    """Run the module."""
    words = {"type": "list", "elements": "str", "default": []}
    serve(
        {
            "path": {"type": "path", "default": "/etc/docker/daemon.json"},
            "settings": {"type": "dict", "default": {}},
            "data_root": {"type": "str", "default": ""},
            "scratch": {"type": "path"},
            "scratch_dropin": {"type": "path"},
            "shared": {"type": "dict", "default": {}},
            "package_manager": {"type": "str", "choices": ["apt", "dnf"], "default": "apt"},
            "packages": words,
            "versioned": words,
            "conflicts": words,
            "version": {"type": "str", "default": ""},
            "fresh_version": {"type": "str", "default": ""},
            "upgrade": {"type": "bool", "default": False},
            "replace": {"type": "bool", "default": False},
            "restart": {"type": "str", "choices": ["auto", "always", "never"], "default": "auto"},
        },
        work,
    )


if __name__ == "__main__":
    main()
