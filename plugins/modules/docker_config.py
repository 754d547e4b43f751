#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.docker_config."""

from __future__ import annotations

DOCUMENTATION = r"""
module: docker_config
short_description: Write Docker's daemon.json, and say what has to be installed or restarted
description:
  - Merges O(settings) into C(daemon.json). Keys of others stay, and the file is written only if its meaning changes.
    Nothing is installed or restarted.
  - Nothing is written if the file is not JSON, if Docker's data would lie on a network file system, or if C(dockerd
    --validate) refuses the result (from Docker 23 on).
options:
  path:
    description: Path of C(daemon.json).
    type: path
    default: /etc/docker/daemon.json
  settings:
    description: Settings for the file. Dictionaries are merged, other values replaced, and V(null) removes a key.
    type: dict
    default: {}
  data_root:
    description:
      - Directory of Docker's images, containers and volumes; empty for what the file says. V(auto) keeps the directory
        that the file names or that has data, and is otherwise C(docker) below O(scratch), or Docker's default.
      - Docker 29 keeps images in C(/var/lib/containerd), wherever the data root is. A move, or a data root in the file
        while no image is stored yet, switches off that image store (C(features.containerd-snapshotter)), unless the
        file or O(settings) decides on it. Images that are in C(/var/lib/containerd) already cause a warning.
    type: str
    default: ""
  scratch:
    description: Directory on local scratch storage.
    type: path
  scratch_dropin:
    description: Drop-in of Docker's unit with C(RequiresMountsFor=) for data on a scratch disk. The task fails if the
      present data root is named there and is not below O(scratch), because Docker would start empty below the mount
      point.
    type: path
  shared:
    description: Types of the cluster's shared file systems, by mount point. Docker's data is refused there even while
      they are not mounted.
    type: dict
    default: {}
  package_manager:
    description: Package manager of the node.
    type: str
    choices: [apt, dnf]
    default: apt
  packages:
    description: Packages that need one common version; the first brings dockerd. Without any, nothing has to be
      installed.
    type: list
    elements: str
    default: []
  apart:
    description: Further packages, with versions of their own.
    type: list
    elements: str
    default: []
  alternatives:
    description: Packages with another dockerd, which stays unless O(version) or O(upgrade) asks for another.
    type: list
    elements: str
    default: []
  conflicts:
    description: Packages that cannot stay beside O(packages).
    type: list
    elements: str
    default: []
  version:
    description: Version of the first package, or the beginning of one, such as V(29). Empty accepts any.
    type: str
    default: ""
  fresh_version:
    description: O(version) for a node without Docker.
    type: str
    default: ""
  upgrade:
    description: Whether an installed Docker is replaced by a newer one, or by one of O(packages).
    type: bool
    default: false
  replace:
    description: Whether O(conflicts) may be removed. Otherwise they fail the task where packages have to be installed.
    type: bool
    default: false
extends_documentation_fragment:
  - pcluster.postboot.attributes
  - pcluster.postboot.attributes.internal
  - pcluster.postboot.attributes.restart
"""

EXAMPLES = r"""
- name: Keep Docker's data on the NVMe disks, and its containers running while it is restarted
  pcluster.postboot.docker_config:
    settings:
      live-restore: true
    data_root: auto
    scratch: "{{ ansible_facts['pcluster']['scratch'] or omit }}"
  register: docker
"""

RETURN = r"""
data_root:
  description: Directory of Docker's data once Docker has started with the file.
  type: str
  returned: success
install:
  description: Whether packages have to be installed (C(due)), C(why), and C(packages), C(version) and C(along) for
    M(pcluster.postboot.packages).
  type: dict
  returned: success
hold:
  description: Whether Docker runs and may not be restarted.
  type: bool
  returned: success
"""

from ansible_collections.pcluster.postboot.plugins.module_utils._docker.daemon import Request, apply
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import arguments, by, serve


def main() -> None:
    serve(
        arguments(
            Request,
            paths=("path", "scratch", "scratch_dropin"),
            package_manager={"choices": ["apt", "dnf"]},
            restart={"choices": ["auto", "always", "never"]},
        ),
        by(Request, apply),
    )


if __name__ == "__main__":
    main()
