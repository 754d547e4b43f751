# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What several modules say alike; a module tells what differs."""

from __future__ import annotations


class ModuleDocFragment:
    """Attributes, notes and options of modules."""

    # A module that changes things on a node.
    DOCUMENTATION = r"""
author:
  - The pcluster.postboot contributors (@pcluster)
attributes:
  check_mode:
    description: Can run in check mode and return what would change without changing it.
    support: full
  diff_mode:
    description: Will return details on what has changed when in diff mode.
    support: full
  idempotent:
    description: When run twice in a row, the second run changes nothing.
    support: full
"""

    # A module that only looks.
    LOOKS = r"""
author:
  - The pcluster.postboot contributors (@pcluster)
attributes:
  check_mode:
    description: Can run in check mode and return the same as without it.
    support: full
  diff_mode:
    description: Will return details on what has changed when in diff mode.
    support: none
    details: Nothing is ever changed.
  idempotent:
    description: When run twice in a row, the second run changes nothing.
    support: full
    details: Nothing is ever changed.
"""

    LINUX = r"""
attributes:
  platform:
    description: Target systems.
    support: full
    platforms: linux
"""

    # A module that only roles or playbooks of this collection call.
    INTERNAL = r"""
attributes: {}
notes:
  - Made for this collection's own roles and playbooks. Its options and its results may change in any release.
"""

    # A module whose options are the variables of a role.
    VARIABLES = r"""
options:
  variables:
    description: Variables of the role, as the lookup P(pcluster.postboot.variables#lookup) returns them.
    type: dict
    required: true
"""

    # A module that asks Slurm's controller.
    SLURM = r"""
options:
  prefix:
    description: Where Slurm is installed.
    type: path
    default: /opt/slurm
  timeout:
    description: Seconds that Slurm has to answer.
    type: float
    default: 10
"""

    # A module that asks AWS from where Ansible runs.
    PROFILE = r"""
options:
  profile:
    description: AWS profile; empty for boto3's own choice.
    type: str
    default: ""
"""

    # A module that prints or writes what runs a bundle.
    BUNDLE = r"""
options:
  sha256:
    description: Hash of the bundle's archive.
    type: str
    default: ""
  partition:
    description: AWS partition.
    type: str
    default: aws
"""

    # A module that passes options on to bootstrap.sh.
    BOOTSTRAP = r"""
options:
  mode:
    description: The option C(--mode) of C(bootstrap.sh).
    type: str
    choices: [auto, gpu, cpu, none]
  budget:
    description: Seconds that C(bootstrap.sh) may take.
    type: int
  python:
    description: Python that C(bootstrap.sh) uses.
    type: str
  defer:
    description: Whether C(bootstrap.sh) leaves long work for after the boot.
    type: bool
"""

    # A module that makes or reads a stack.
    REGION = r"""
options:
  region:
    description: AWS region; empty for that of the profile or of C(AWS_REGION).
    type: str
    default: ""
"""

    # A module for Slurm's plugins, which are built for one Slurm.
    PREFIX = r"""
options:
  prefix:
    description: Directory of Slurm.
    type: path
    required: true
"""

    # A module that changes Docker's configuration.
    RESTART = r"""
options:
  restart:
    description: When a running Docker may be restarted. V(auto) is while no container would be stopped.
    type: str
    choices: [auto, always, never]
    default: auto
"""
