# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""In how many turns nodes take a task, and from when on that is too many."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import turns as site_turns


def play(nodes: int, forks: int) -> dict[str, Any]:
    return {"ansible_play_hosts_all": [f"n{number}" for number in range(nodes)], "ansible_forks": forks}


@pytest.mark.parametrize(
    ("nodes", "forks", "turns"), [(1, 5, 1), (5, 5, 1), (6, 5, 2), (61, 5, 13), (64, 50, 2), (1000, 50, 20)]
)
def test_nodes_take_turns(nodes: int, forks: int, turns: int) -> None:
    assert site_turns.turns(play(nodes, forks)) == turns


def test_what_no_play_has_is_one_turn() -> None:
    assert site_turns.turns({}) == 1
    assert site_turns.too_many({}) == ""


@pytest.mark.parametrize(("nodes", "forks", "needed"), [(50, 5, 0), (51, 5, 6), (500, 50, 0), (1000, 50, 100)])
def test_too_many_turns_are_told_with_the_forks_that_would_do(nodes: int, forks: int, needed: int) -> None:
    told = site_turns.too_many(play(nodes, forks))
    assert bool(told) == bool(needed)
    if needed:
        assert f"needed: forks of at least {needed} (" in told
        assert not site_turns.too_many(play(nodes, needed))
