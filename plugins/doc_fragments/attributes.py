# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What most modules say of check mode, diff mode, a second run and their nodes. A module tells what differs."""

from __future__ import annotations


class ModuleDocFragment:
    """The attributes of modules."""

    # A module that changes things on a node.
    DOCUMENTATION = r"""
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
