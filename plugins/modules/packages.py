#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.packages."""

from __future__ import annotations

DOCUMENTATION = r"""
module: packages
short_description: Have packages that belong together in one version, and keep them there
version_added: 0.2.0
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
    description: Package manager of the node.
    type: str
    choices: [apt, dnf]
    required: true
  packages:
    description: Packages that need one common version. The first tells which version is installed.
    type: list
    elements: str
    required: true
  title:
    description: Name of the packages in messages. The default is the first package's name.
    type: str
    default: ""
  optional:
    description: Packages among O(packages) that are left as they are, absent or in another version, if somebody else
      has installed the first one and that stays.
    type: list
    elements: str
    default: []
  apart:
    description: Further packages, with versions of their own. If only these are missing, they are installed without
      naming O(packages), so that nothing replaces those.
    type: list
    elements: str
    default: []
  family:
    description: Packages that need the version of O(packages), if they are installed.
    type: list
    elements: str
    default: []
  alternatives:
    description: Packages that count as the first one where that is absent. One of them stays if its version is as
      O(version) and O(minimum_version) ask, and O(latest) is not set. What has to be removed then is said by
      O(replaces).
    type: list
    elements: str
    default: []
  version:
    description: The version without the package's own revision, or the beginning of one, such as V(1.19). What is there
      in another version is replaced. Empty leaves it.
    type: str
    default: ""
  fresh_version:
    description: O(version) for a node without the first package.
    type: str
    default: ""
  minimum_version:
    description: An older version is replaced by O(fresh_version), whoever has installed it, unless O(version) asks for
      it.
    type: str
    default: ""
  flaw:
    description: The flaw of versions before O(minimum_version), such as V(CVE-2026-24260). RV(summary) names it for a
      version that stays.
    type: str
    default: ""
  follow:
    description: Whether O(fresh_version) counts also where this module has installed what is there, as
      C(/var/lib/pcluster-postboot/packages) tells. What somebody else has installed stays.
    type: bool
    default: false
  latest:
    description: Whether an older one is replaced by the newest that repositories have, within O(version) or else
      O(fresh_version), and one of O(alternatives) by the first package. Lists are read anew for that, but not in check
      mode or with O(state=planned).
    type: bool
    default: false
  files:
    description:
      - Package files on the node that are installed in the place of what repositories have. They are needed only when
        RV(install) is true.
      - Everything that they depend on is taken from the repositories. Nobody checks a signature, so their bytes must
        have been verified.
    type: list
    elements: path
    default: []
  extra:
    description: Packages of the distribution that are installed along with O(packages), and are not needed otherwise.
    type: list
    elements: str
    default: []
  replaces:
    description: Packages that cannot stay beside O(packages). They are removed when packages are installed, after the
      download. A package that depends on one of them stays, and fails the task.
    type: list
    elements: str
    default: []
  program:
    description: Path of a program. If it exists and no package is installed, it was installed otherwise and is left as
      it is.
    type: path
    default: ""
  hold:
    description: Whether the packages are held afterwards, as C(apt-mark hold) or by C(excludepkgs) in
      C(/etc/dnf/dnf.conf), so that nothing else replaces one of them alone.
    type: bool
    default: false
  temporary_repository:
    description: Name of a repository that M(pcluster.postboot.package_repository) adds for the installation alone.
      RV(left) tells whether it is still there.
    type: str
    default: ""
  lock_timeout:
    description: Seconds to wait for another package operation to end.
    type: int
    default: 300
  state:
    description: V(planned) only says what is due, so that a repository or a file can be brought first.
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
  description: The version of the first package, or in check mode and with O(state=planned) the one that would be there.
    Empty where no package brought the program.
  type: str
  returned: success
  sample: 4.1.2
stays:
  description: Whether what is there works as it is, and would only be replaced for O(minimum_version).
  type: bool
  returned: success
enough:
  description: Whether what is there is as O(version) and O(minimum_version) ask, and so works whatever else comes.
  type: bool
  returned: success
left:
  description: Whether O(temporary_repository) is there, as a run leaves it that was killed.
  type: bool
  returned: success
summary:
  description: What is wrong with a version that stays, for O(flaw). With O(title) and O(state=planned), which version
    the node has or gets, and whether the node had it.
  type: str
  returned: success
  sample: grafana 13.2.1 has CVE-2026-15815, which 13.2.2 mends
origin:
  description: V(found) when somebody else has installed it, V(installed) when this module has, or would.
  type: str
  returned: success
  sample: installed
packages:
  description: The packages that had to come, or have to, in RV(version).
  type: list
  elements: str
  returned: success
  sample: [enroot, enroot+caps]
along:
  description: The packages that had to come along with them, or have to, in whichever version.
  type: list
  elements: str
  returned: success
  sample: []
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

from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import arguments, frozen, serve
from ansible_collections.pcluster.postboot.plugins.module_utils._packages import install, plan


def work(module: AnsibleModule) -> dict[str, Any]:
    request = plan.Request(check=module.check_mode, **frozen(module.params))
    outcome = install.apply(request)
    decided = outcome.plan
    planned = request.state == "planned"
    summary = ""
    if request.flaw and not (decided.install and (module.check_mode or planned)):
        summary = plan.shortcoming(request, decided.version)
    elif request.title and planned:
        summary = plan.summary(request, decided)
    return {
        "changed": outcome.changed,
        "due": decided.install or bool(decided.hold),
        "install": decided.install,
        "why": decided.why,
        "version": decided.version,
        "origin": decided.origin,
        "stays": decided.stays,
        "enough": decided.enough,
        "left": plan.is_left(request),
        "summary": summary,
        "packages": list(decided.packages),
        "along": list(decided.along),
        "leaving": list(decided.leaving),
        "installed": outcome.installed,
        "diff": outcome.diff,
    }


def main() -> None:
    serve(
        arguments(
            plan.Request,
            paths=("files", "program"),
            manager={"choices": ["apt", "dnf"]},
            packages={"type": "list", "elements": "str"},
            state={"choices": ["present", "planned"]},
        ),
        work,
    )


if __name__ == "__main__":
    main()
