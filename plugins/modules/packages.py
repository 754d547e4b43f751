#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.packages."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: packages
short_description: Have packages that belong together in one version, and keep them there
version_added: 0.1.0
description:
  - One step for a set of packages of one project - keeps what is there, or installs all of them in one version, from
    repositories or from files that were downloaded, and holds them.
  - When everything is as it should be, only the records of dpkg or rpm are read, and neither apt nor dnf is started,
    but with O(latest).
  - What is there stays at its version, unless O(version) names another one.
  - An installation that was killed is finished by the next run, also where dpkg was interrupted. Another package
    operation is waited for. No package is removed but those of O(replaces), and no service is restarted by needrestart.
options:
  manager:
    description:
      - Who installs.
    type: str
    choices: [apt, dnf]
    required: true
  packages:
    description:
      - The packages. The first one tells which version is there, and the others shall have the same.
    type: list
    elements: str
    required: true
  version:
    description:
      - The version without the package's own revision, or the beginning of one, such as V(1.19). What is there in
        another version is replaced. Empty leaves it.
    type: str
    default: ""
  fresh_version:
    description:
      - What counts as O(version) where the first package is not there.
    type: str
    default: ""
  minimum_version:
    description:
      - What is older is replaced by O(fresh_version), whoever has installed it, unless O(version) asks for it.
    type: str
    default: ""
  flaw:
    description:
      - What is wrong with versions before O(minimum_version), such as V(CVE-2026-24260). RV(summary) tells it of one
        that stays.
    type: str
    default: ""
  follow:
    description:
      - Whether O(fresh_version) counts also where this module has installed what is there, as
        C(/var/lib/pcluster-postboot/packages) tells. What somebody else has installed stays.
    type: bool
    default: false
  latest:
    description:
      - Whether an older one is replaced by the newest that repositories have, within O(version). Their lists are read
        anew for that, but not in check mode or with O(state=planned).
    type: bool
    default: false
  files:
    description:
      - Package files on the node that are installed in the place of what repositories have. They are needed only
        when RV(install) is true.
      - Everything that they depend on is taken from the repositories. Nobody checks a signature, so their bytes must
        have been verified.
    type: list
    elements: path
    default: []
  extra:
    description:
      - Packages of the distribution that are installed along with them, but are not asked for otherwise.
    type: list
    elements: str
    default: []
  replaces:
    description:
      - Packages that cannot stay beside them. They are removed when something is installed, after all of it has been
        downloaded. What depends on one of them makes the task fail, and stays.
    type: list
    elements: str
    default: []
  program:
    description:
      - A program that, where it is there and no package is, was brought otherwise and is left as it is.
    type: path
    default: ""
  hold:
    description:
      - Whether the packages are held afterwards, as C(apt-mark hold) or by C(excludepkgs) in C(/etc/dnf/dnf.conf), so
        that nothing else replaces one of them alone.
    type: bool
    default: false
  lock_timeout:
    description:
      - Seconds to wait for another package operation to end.
    type: int
    default: 300
  state:
    description:
      - V(planned) only says what is due, so that a repository or a file can be brought first.
    type: str
    choices: [present, planned]
    default: present
extends_documentation_fragment:
  - pcluster.postboot.attributes
  - pcluster.postboot.attributes.linux
attributes:
  check_mode:
    details: >-
      Neither apt nor dnf is asked to install, so a repository that is only foretold does not matter.
  platform:
    platforms: debian, rhel
author:
  - The pcluster.postboot contributors (@pcluster)
"""

EXAMPLES = r"""
- name: Enroot is installed from files, unless there is one
  pcluster.postboot.packages:
    manager: apt
    packages: [enroot, enroot+caps]
    fresh_version: 4.1.2
    follow: true
    files: [/var/cache/pcluster-postboot/enroot.deb, /var/cache/pcluster-postboot/enroot+caps.deb]

- name: Four packages in one version, from a repository, and held there
  pcluster.postboot.packages:
    manager: dnf
    packages:
      - nvidia-container-toolkit
      - nvidia-container-toolkit-base
      - libnvidia-container-tools
      - libnvidia-container1
    version: 1.19.1
    hold: true
"""

RETURN = r"""
due:
  description: Whether something had to be done.
  type: bool
  returned: success
install:
  description: Whether packages had to be installed, for which repositories or files are needed.
  type: bool
  returned: success
why:
  description: Why, or why not.
  type: str
  returned: success
  sample: enroot is not installed
version:
  description: >-
    The version of the first package, or in check mode and with O(state=planned) the one that would be there. Empty
    where no package brought the program.
  type: str
  returned: success
  sample: 4.1.2
stays:
  description: Whether what is there works as it is, and would only be replaced for O(minimum_version).
  type: bool
  returned: success
summary:
  description: What is wrong with a version that stays, for O(flaw); empty otherwise.
  type: str
  returned: success
  sample: grafana 13.2.1 has CVE-2026-15815, which 13.2.2 mends
origin:
  description: V(found) when somebody else has installed it, V(installed) when this module has, or would.
  type: str
  returned: success
  sample: installed
leaving:
  description: Those of O(replaces) that had to be removed; in check mode and with O(state=planned), that have to be.
  type: list
  elements: str
  returned: success
  sample: []
installed:
  description: The versions of the packages that are there; in check mode, of those that would be.
  type: dict
  returned: success
  sample: {enroot: 4.1.2, enroot+caps: 4.1.2}
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils import _packages
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import frozen, serve


def work(module: AnsibleModule) -> dict[str, Any]:
    """Do what is asked for, and return the result."""
    request = _packages.Request(check=module.check_mode, **frozen(module.params))
    outcome = _packages.apply(request)
    decided = outcome.plan
    replaced = decided.install and (module.check_mode or request.state == "planned")
    return {
        "changed": outcome.changed,
        "due": decided.install or bool(decided.hold),
        "install": decided.install,
        "why": decided.why,
        "version": decided.version,
        "origin": decided.origin,
        "stays": decided.stays,
        "summary": _packages.shortcoming(request, decided.version) if request.flaw and not replaced else "",
        "leaving": list(decided.leaving),
        "installed": outcome.installed,
        "diff": outcome.diff,
    }


def main() -> None:
    """Run the module."""
    words = {"type": "list", "elements": "str", "default": []}
    serve(
        {
            "manager": {"type": "str", "choices": ["apt", "dnf"], "required": True},
            "packages": {"type": "list", "elements": "str", "required": True},
            "version": {"type": "str", "default": ""},
            "fresh_version": {"type": "str", "default": ""},
            "minimum_version": {"type": "str", "default": ""},
            "flaw": {"type": "str", "default": ""},
            "follow": {"type": "bool", "default": False},
            "latest": {"type": "bool", "default": False},
            "files": {"type": "list", "elements": "path", "default": []},
            "extra": words,
            "replaces": words,
            "program": {"type": "path", "default": ""},
            "hold": {"type": "bool", "default": False},
            "lock_timeout": {"type": "int", "default": 300},
            "state": {"type": "str", "choices": ["present", "planned"], "default": "present"},
        },
        work,
    )


if __name__ == "__main__":
    main()
