#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.package_repository."""

from __future__ import annotations

DOCUMENTATION = r"""
module: package_repository
short_description: Add a signed package repository to apt or dnf
version_added: 0.1.0
description:
  - One step for a repository - gets its key, refuses it unless its fingerprint was named, reads the repository's lists
    with that key, and only then adds the repository.
  - The key is taken apart by the module itself. No gpg program, agent or terminal is needed.
  - Only this repository's lists are read, so that another one that is broken does not matter.
options:
  name:
    description: Name of the repository, of its file and of its key's file.
    type: str
    required: true
  format:
    description:
      - V(apt) writes C(/etc/apt/sources.list.d/<name>.sources) and C(/etc/apt/keyrings/<name>.gpg).
      - V(dnf) writes C(/etc/yum.repos.d/<name>.repo) and C(/etc/pki/rpm-gpg/RPM-GPG-KEY-<name>).
    type: str
    choices: [apt, dnf]
    required: true
  state:
    description: V(absent) removes these two files. Packages that came from there, and the lists that were read, stay.
    type: str
    choices: [present, absent]
    default: present
  url:
    description:
      - Address of the repository (apt's URI, dnf's base URL). Variables of the package manager, such as C($basearch),
        may stand in it.
      - Needed for O(state=present). A password in it is refused, because everybody may read the file.
    type: str
  description:
    description: One line on what the repository is.
    type: str
  suites:
    description: apt's suites, such as V(noble); V(/) for a repository without suites.
    type: list
    elements: str
    default: []
  components:
    description: apt's components, such as V(stable); none where the suite ends in V(/).
    type: list
    elements: str
    default: []
  architectures:
    description: apt's architectures, such as V(amd64). All of the system's when left out.
    type: list
    elements: str
    default: []
  key_url:
    description:
      - Address of the public key, armored or not. Needed for O(state=present).
      - Nothing is downloaded while the key on disk has the right fingerprint, unless the repository's signature cannot
        be verified with it. Then it is fetched once more, as its owner may have extended its expiry.
    type: str
  key_fingerprints:
    description: Full fingerprints of the primary keys that may be in it, 40 hexadecimal digits each; blanks and colons
      do not matter. A file that holds any other key is refused. Needed for O(state=present).
    type: list
    elements: str
    default: []
  gpgcheck:
    description: Whether dnf checks the signature of each package. apt always checks that of its lists.
    type: bool
    default: true
  repo_gpgcheck:
    description: Whether dnf checks the signature of the repository's metadata, for repositories that sign it.
    type: bool
    default: false
  mirrors:
    description: Where copies of upstream sites are kept, each site under C(<mirror>/<host>/<path>), as for
      M(pcluster.postboot.artifact). With one that a package manager can read (an http, https or file URL, or a folder),
      both O(url) and O(key_url) are taken from the first.
    type: list
    elements: str
    default: []
  enabled:
    description: Whether the repository is used. The lists of one that is not are not read.
    type: bool
    default: true
  options:
    description:
      - Further fields of the C(.sources) file, or keys of the C(.repo) file. Those with an argument of their own, and
        those that would let unsigned packages in, are refused.
    type: dict
    default: {}
  refresh:
    description:
      - When to read the repository's lists - V(missing) before it is added and when they are missing; V(always) every
        time, which is what an installation needs, because old lists name packages that are no longer there; V(never).
      - Reading lists again counts as no change.
    type: str
    choices: [missing, always, never]
    default: missing
  unless_provided:
    description: Whether nothing is done where apt has the repository by a file of somebody else, as apt refuses to work
      at all with one that it has twice with different keys.
    type: bool
    default: false
  lock_timeout:
    description: Seconds to wait for another package operation to end.
    type: int
    default: 300
extends_documentation_fragment:
  - pcluster.postboot.attributes
  - pcluster.postboot.attributes.linux
attributes:
  check_mode:
    details: Asks no network, so whether the key is the right one is not known before the real run.
  diff_mode:
    details: Of the key, its fingerprints are shown.
  platform:
    platforms: debian, rhel
notes:
  - For apt, lines with the same address in C(/etc/apt/sources.list.d/<name>.list), as vendors' instructions leave
    them, are removed, because apt refuses to work at all while two files name one repository with different keys. In
    files of other names they are only warned of.
  - The errors are one line each. The key could not be had, it is none, it is another one (found and needed
    fingerprints are named), or apt or dnf cannot read the repository; then it is not added.
"""

EXAMPLES = r"""
- name: Add Docker's repository
  pcluster.postboot.package_repository:
    name: docker
    format: apt
    url: https://download.docker.com/linux/ubuntu
    suites: [noble]
    components: [stable]
    architectures: ["{{ ansible_facts['pcluster']['go_architecture'] }}"]
    key_url: https://download.docker.com/linux/ubuntu/gpg
    key_fingerprints: [9DC858229FC7DD38854AE2D88D81803C0EBFCD88]
    mirrors: "{{ common_mirrors }}"

- name: Add the repository of the NVIDIA Container Toolkit, which has no suites
  pcluster.postboot.package_repository:
    name: nvidia-container-toolkit
    format: apt
    url: https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH)
    suites: [/]
    key_url: https://nvidia.github.io/libnvidia-container/gpgkey
    key_fingerprints: [C95B321B61E88C1809C4F759DDCAE044F796ECB0]

- name: Add Grafana's repository
  pcluster.postboot.package_repository:
    name: grafana
    format: dnf
    url: https://rpm.grafana.com
    key_url: https://rpm.grafana.com/gpg.key
    key_fingerprints: [B53AE77BADB630A683046005963FA27710458545]
    repo_gpgcheck: true
"""

RETURN = r"""
actions:
  description: What was done, or in check mode would be, from V(installed-key), V(wrote), V(refreshed) and V(removed).
  type: list
  elements: str
  returned: success
  sample: [installed-key, wrote, refreshed]
url:
  description: Address of the repository as it is used, that of the mirror where there is one.
  type: str
  returned: success
  sample: https://download.docker.com/linux/ubuntu
source_path:
  description: The file that names the repository.
  type: str
  returned: success
  sample: /etc/apt/sources.list.d/docker.sources
key_path:
  description: The file that holds its key.
  type: str
  returned: success
  sample: /etc/apt/keyrings/docker.gpg
fingerprints:
  description: Fingerprints of the keys in that file; empty in check mode while there is none.
  type: list
  elements: str
  returned: success
  sample: [9DC858229FC7DD38854AE2D88D81803C0EBFCD88]
"""

from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import arguments, by, serve
from ansible_collections.pcluster.postboot.plugins.module_utils._packages.repository import Request, apply


def main() -> None:
    serve(
        arguments(
            Request,
            format={"choices": ["apt", "dnf"]},
            state={"choices": ["present", "absent"]},
            refresh={"choices": ["missing", "always", "never"]},
            key_url={"no_log": False},
            key_fingerprints={"no_log": False},
        ),
        by(Request, apply),
        required_if=[("state", "present", ("url", "key_url", "key_fingerprints"))],
    )


if __name__ == "__main__":
    main()
