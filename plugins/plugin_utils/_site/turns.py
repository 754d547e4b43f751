# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""In how many turns the nodes of a play take each task, as Ansible works on as many at once as it has forks.

A node that is done with a task is silent while the others have their turns. Each sign of life of the node announces for
how long, by the seconds that the descriptions of components tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import components

# With more turns than this a task of seconds takes minutes, and one of minutes an hour.
MOST = 10
# Seconds of a node's tasks of one component, beside those of its description: two tasks over SSM (docs/push.md).
TASKS = 15
# All of them may take this many times as long, as over a slow network.
SLOW = 2


def _counted(variables: Mapping[str, Any]) -> tuple[int, int]:
    return len(variables.get("ansible_play_hosts_all") or [0]), max(1, int(variables.get("ansible_forks") or 5))


def turns(variables: Mapping[str, Any]) -> int:
    """Return the number of turns that a task takes."""
    nodes, forks = _counted(variables)
    return -(-nodes // forks)


def _seconds(name: str, count: int) -> int:
    """Return how long what is slow in a component takes until all nodes have had their turns."""
    needs = components.component(components.ROOT / "roles" / name).needs
    return SLOW * sum(need.seconds * (1 if set(need.nodes) == {"head"} else count) for need in needs)


def silences(variables: Mapping[str, Any], runs: Mapping[str, bool]) -> dict[str, int]:
    """Return for how many seconds a node may be silent after a task of each component.

    `runs` says in the order of the components which the node has. After its last task of one, the node is silent until
    its turn in the next that it has, and meanwhile the other nodes have their turns in all of these. The lease itself
    has room for the quick tasks of one component.
    """
    count = turns(variables)
    found: dict[str, int] = {}
    following = 0
    for name, runs_here in reversed(list(runs.items()) if count > 1 else []):
        own = _seconds(name, count)
        found[name] = own + following
        following = own if runs_here else own + SLOW * TASKS * count + following
    return found


def silence(variables: Mapping[str, Any]) -> int:
    """Return for how many seconds a node may be silent after the present task."""
    known = ((variables.get("__postboot_run") or {}).get("record") or {}).get("silences") or {}
    # Handlers, and what comes before and after all components, are tasks of none of them.
    return int(known.get(variables.get("postboot_component"), max(known.values(), default=0)))


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
