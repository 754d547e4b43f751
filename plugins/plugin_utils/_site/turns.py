# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""In how many turns the nodes of a play take each task, as Ansible works on as many at once as it has forks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# With more turns than this a task of seconds takes minutes, and one of minutes an hour.
MOST = 10


def _counted(variables: Mapping[str, Any]) -> tuple[int, int]:
    return len(variables.get("ansible_play_hosts_all") or [0]), max(1, int(variables.get("ansible_forks") or 5))


def turns(variables: Mapping[str, Any]) -> int:
    """Return the number of turns that a task takes."""
    nodes, forks = _counted(variables)
    return -(-nodes // forks)


def too_many(variables: Mapping[str, Any]) -> str:
    """Say what to do where there are too many nodes for the forks; empty where there are not."""
    nodes, forks = _counted(variables)
    if nodes <= MOST * forks:
        return ""
    return (
        f"forks is {forks}, so that {nodes} nodes take each task in {turns(variables)} turns; needed: forks of at "
        f"least {-(-nodes // MOST)} (the collection's inventory/ansible.cfg has 50), or the playbooks publish and "
        "fleet, by which nodes configure themselves"
    )
