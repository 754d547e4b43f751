#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.efa_installer."""

from __future__ import annotations

DOCUMENTATION = r"""
module: efa_installer
short_description: Run AWS's EFA installer
description:
  - Runs C(efa_installer.sh) if there is no EFA software, if an earlier run of the installer was killed, or if an older
    version may be replaced. EFA is never downgraded.
  - C(gpgv) or C(gpg) verifies the installer's signature first.
  - C(/var/lib/pcluster-postboot/efa-installer.json) records that an installer has started and ended, because the
    installer notes its version too early.
  - The installer holds C(/run/pcluster-postboot/packages.lock), also after its own run was killed, and logs to
    C(/var/log/pcluster-postboot/efa-installer.log).
  - Nothing is installed while a job runs on the node, and nothing is rebooted. Check mode neither downloads nor
    verifies.
options:
  version:
    description: Version of the installer.
    type: str
    required: true
  manager:
    description: Package manager of the node.
    type: str
    choices: [apt, dnf]
    required: true
  upgrade:
    description: Whether an older EFA that others installed is replaced. One that this module installed always is.
    type: bool
    default: false
  options:
    description: Options of the installer besides C(-y).
    type: list
    elements: str
    default: []
  source:
    description: Archive of the installer, needed when RV(due) is true and RV(pending) is empty, and removed afterwards.
    type: path
  verify:
    description: Whether the signature of O(source) is verified.
    type: bool
    default: true
  signature_url:
    description: URL of the detached signature.
    type: str
    default: ""
  signature_sha256:
    description: Its sha256; empty if unknown.
    type: str
    default: ""
  key_url:
    description: URL of the publisher's key.
    type: str
    default: ""
  key_sha256:
    description: Its sha256; empty if unknown.
    type: str
    default: ""
  key_fingerprints:
    description: Fingerprints of the trusted keys.
    type: list
    elements: str
    default: []
  mirrors:
    description: Mirrors of signature and key, as M(pcluster.postboot.artifact) has them.
    type: list
    elements: str
    default: []
  upstream:
    description: Whether the publisher may be asked.
    type: bool
    default: true
  busy:
    description: Command that prints a word for each job of the node, asked while C(slurmd) runs. Nothing is installed
      while it prints or fails. Empty asks nothing.
    type: list
    elements: str
    default: []
  lock_timeout:
    description: Seconds to wait for another package operation.
    type: int
    default: 600
  timeout:
    description: Seconds after which the installer is stopped.
    type: int
    default: 1800
  state:
    description: V(planned) only says what is due.
    type: str
    choices: [present, planned]
    default: present
extends_documentation_fragment: [pcluster.postboot.attributes, pcluster.postboot.attributes.internal]
"""

EXAMPLES = r"""
- name: Ask whether EFA has to be installed
  pcluster.postboot.efa_installer:
    version: 1.50.0
    manager: apt
    state: planned
  register: plan
"""

RETURN = r"""
due:
  description: Whether the installer has to run, or had to.
  type: bool
  returned: success
pending:
  description: Why the installer did not run although it is due; empty otherwise.
  type: str
  returned: success
summary:
  description: What the node has, in one phrase; empty while something is due.
  type: str
  returned: success
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils._artifact.signature import Trust
from ansible_collections.pcluster.postboot.plugins.module_utils._efa import installer
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import arguments, frozen, serve
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem


def work(module: AnsibleModule) -> dict[str, Any]:
    given = frozen(module.params)
    trust = Trust(words=installer.WORDS, **{key: given.pop(key) for key in Trust._fields if key != "words"})
    try:
        return installer.apply(installer.Request(check=module.check_mode, trust=trust, **given))._asdict()
    except OSError as error:
        raise Problem(f"EFA {given['version']}: {error}") from error


def main() -> None:
    serve(
        {
            **arguments(
                installer.Request,
                paths=("source",),
                without=("trust",),
                manager={"choices": ["apt", "dnf"]},
                state={"choices": ["present", "planned"]},
            ),
            **arguments(
                Trust,
                without=("words",),
                key_url={"no_log": False},
                key_sha256={"no_log": False},
                key_fingerprints={"no_log": False},
            ),
        },
        work,
    )


if __name__ == "__main__":
    main()
