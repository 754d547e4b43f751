#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.efa_installer."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: efa_installer
short_description: Have AWS's EFA software installed by its installer
version_added: 0.1.0
description:
  - Runs C(efa_installer.sh) where there is no EFA software, where an earlier run of it was killed, and where what is
    there is older than O(version) and may be replaced. It never goes back to an older version.
  - Before that, the publisher's signature of the installer is verified with a key that is known by its fingerprint.
    C(gpgv) does it, or C(gpg).
  - Whether an earlier run was killed is told by a record in C(/var/lib/pcluster-postboot/efa-installer.json), which is
    written before the installer starts and after it has ended. The installer's own note of its version comes too early.
  - While the installer runs, C(/run/pcluster-postboot/packages.lock) is held, and the installer's package manager waits
    for any other. An installer whose own run was killed keeps holding that lock, and is waited for.
  - Nothing is done while a job runs on this node, and nothing is ever rebooted.
  - What the installer prints is in C(/var/log/pcluster-postboot/efa-installer.log) while it runs.
options:
  version:
    description: The version of the installer.
    type: str
    required: true
  manager:
    description: Who installs packages on this node.
    type: str
    choices: [apt, dnf]
    required: true
  upgrade:
    description:
      - Whether an older EFA that somebody else has installed is replaced. What this module has installed is in any
        case.
    type: bool
    default: false
  options:
    description: What the installer is called with, beside C(-y).
    type: list
    elements: str
    default: []
  source:
    description:
      - The downloaded installer, a tar archive. It is needed when RV(due) is true and RV(pending) is empty, and removed
        once it has been installed.
    type: path
  verify:
    description: Whether the publisher's signature of O(source) is verified.
    type: bool
    default: true
  signature_url:
    description: Where the detached signature of O(source) is published.
    type: str
    default: ""
  signature_sha256:
    description: Its sha256, where it is known.
    type: str
    default: ""
  key_url:
    description: Where the publisher's key is published.
    type: str
    default: ""
  key_sha256:
    description: Its sha256, where it is known.
    type: str
    default: ""
  key_fingerprints:
    description: The fingerprints of the keys that are believed.
    type: list
    elements: str
    default: []
  mirrors:
    description: Where to look for both before their publisher, as M(pcluster.postboot.artifact) does.
    type: list
    elements: str
    default: []
  upstream:
    description: Whether the publisher may be asked.
    type: bool
    default: true
  busy:
    description:
      - A command that prints a word for each job on this node. While it does, or cannot tell, nothing is installed.
      - It is asked only while C(slurmd) runs. Empty, nothing is asked.
    type: list
    elements: str
    default: []
  lock_timeout:
    description: Seconds to wait for another package operation to end.
    type: int
    default: 600
  timeout:
    description: Seconds after which an installer that does not end is stopped.
    type: int
    default: 1800
  state:
    description: V(planned) only says what is due, so that the installer can be downloaded first.
    type: str
    choices: [present, planned]
    default: present
extends_documentation_fragment:
  - pcluster.postboot.attributes
  - pcluster.postboot.attributes.linux
attributes:
  check_mode:
    details: Nothing is downloaded or verified.
  platform:
    platforms: debian, rhel
notes:
  - With C(async) and a C(poll) of 0, the run waits for its end, and tells from time to time the last line of its log.
author:
  - The pcluster.postboot contributors (@pcluster)
"""

EXAMPLES = r"""
- name: Look whether EFA has to be installed
  pcluster.postboot.efa_installer:
    version: 1.50.0
    manager: apt
    state: planned
  register: plan

- name: Install it
  pcluster.postboot.efa_installer:
    version: 1.50.0
    manager: apt
    source: /var/cache/pcluster-postboot/aws-efa-installer.tar.gz
    signature_url: https://efa-installer.amazonaws.com/aws-efa-installer-1.50.0.tar.gz.sig
    key_url: https://efa-installer.amazonaws.com/aws-efa-installer.key
    key_fingerprints: [4E90 91BC BB97 A96B 26B1 5E59 A054 80B1 DD2D 3CCC]
    options: [--no-verify]
  when: plan.due and not plan.pending
"""

RETURN = r"""
due:
  description: Whether the installer has, or had, to be run.
  type: bool
  returned: success
why:
  description: Why, or why not.
  type: str
  returned: success
  sample: EFA's software is not installed
pending:
  description: Why it was not run although it is due; empty otherwise.
  type: str
  returned: success
  sample: >-
    EFA 1.50.0 is not installed now: jobs run here (17), which may use it; a run while the node idles does it
version:
  description: >-
    The version that is there, or in check mode would be; empty without one, V(unknown) where nobody has noted it.
  type: str
  returned: success
  sample: 1.50.0
origin:
  description: V(found) when somebody else has installed it, V(installed) when this module has, or would.
  type: str
  returned: success
  sample: installed
reboot:
  description: Whether the installer asks for a reboot.
  type: bool
  returned: success
summary:
  description: What this node has, in one phrase; empty while something is due.
  type: str
  returned: success
  sample: EFA 1.49.0, the AMI's own
log:
  description: The last lines of the installer.
  type: list
  elements: str
  returned: when it failed
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils import _efa_installer
from ansible_collections.pcluster.postboot.plugins.module_utils._efa_signature import Trust
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import frozen, serve
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem


def work(module: AnsibleModule) -> dict[str, Any]:
    """Do what is asked for, and return the result."""
    given = frozen(module.params)
    trust = Trust(**{key: given.pop(key) for key in Trust._fields})
    try:
        return _efa_installer.apply(_efa_installer.Request(check=module.check_mode, trust=trust, **given))._asdict()
    except OSError as error:
        raise Problem(f"EFA {given['version']}: {error}") from error


def main() -> None:
    """Run the module."""
    words = {"type": "list", "elements": "str", "default": []}
    serve(
        {
            "version": {"type": "str", "required": True},
            "manager": {"type": "str", "choices": ["apt", "dnf"], "required": True},
            "upgrade": {"type": "bool", "default": False},
            "options": words,
            "source": {"type": "path"},
            "verify": {"type": "bool", "default": True},
            "signature_url": {"type": "str", "default": ""},
            "signature_sha256": {"type": "str", "default": ""},
            "key_url": {"type": "str", "default": "", "no_log": False},
            "key_sha256": {"type": "str", "default": "", "no_log": False},
            "key_fingerprints": {**words, "no_log": False},
            "mirrors": words,
            "upstream": {"type": "bool", "default": True},
            "busy": words,
            "lock_timeout": {"type": "int", "default": 600},
            "timeout": {"type": "int", "default": 1800},
            "state": {"type": "str", "choices": ["present", "planned"], "default": "present"},
        },
        work,
    )


if __name__ == "__main__":
    main()
