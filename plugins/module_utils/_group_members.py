# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Adds users to a group of this node. The users may come from a directory service; none is ever made."""

from __future__ import annotations

import grp
import pwd
from collections.abc import Sequence

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import run

SECONDS = 60.0


def due(group: str, users: Sequence[str], check: bool) -> list[str]:
    """Return which users are not in the group yet."""
    unknown = []
    for user in users:
        try:
            pwd.getpwnam(user)
        except KeyError:
            unknown.append(user)
    if unknown:
        raise Problem(
            f"users: this node knows no {', '.join(unknown)}; make them first, or take them out of the list for {group}"
        )
    try:
        members = grp.getgrnam(group).gr_mem
    except KeyError as error:
        if check:  # the package that brings it may have been only foretold
            return list(dict.fromkeys(users))
        raise Problem(f"group: this node has no {group}; the package that brings it is not installed") from error
    return [user for user in dict.fromkeys(users) if user not in members]


def add(group: str, users: Sequence[str]) -> None:
    """Add users to a group. gpasswd, since usermod refuses users that are not in /etc/passwd."""
    for user in users:
        run(
            ["gpasswd", "--add", user, group],
            SECONDS,
            merged=True,
            hint="see whether the directory service of this node answers",
        ).output()
