# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""In how many turns nodes take a task, and from when on that is too many."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._host import lock as host_lock
from ansible_collections.pcluster.postboot.plugins.module_utils._host import process
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import components
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


# --- a run in many turns, and its locks -------------------------------------------------------------------------------

LEASE, FORKS = 3600.0, 1
OTHER = host_lock.Holder(run_id="other", machine="another boot pid")
# What each component has on nodes of a type; what is not there has it everywhere.
HAVE = {
    "compute": {"slurm_exporter", "prometheus", "alertmanager", "grafana", "neuron", "neuron_exporter", "login_tools"},
    "head": {"docker", "nvidia_container_toolkit", "efa", "dcgm", "dcgm_exporter", "neuron", "neuron_exporter"},
    "login": {"docker", "nvidia_container_toolkit", "enroot", "pyxis", "efa", "aws_ofi_nccl", "nccl", "nccl_tests"},
}


class Run:
    """A push in 40 turns, as Ansible's strategy `linear` drives 200 nodes with 5 forks, on a separate clock."""

    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch, slow: float) -> None:
        self.now, self.slow = 100.0, slow
        monkeypatch.setattr(process, "boot_time", lambda: self.now)
        monkeypatch.setattr(os, "fsync", lambda _descriptor: None)  # /run has none
        self.monkeypatch = monkeypatch
        self.kinds = ["head", "login", *["compute"] * 38]
        self.play = play(len(self.kinds), FORKS)
        self.locks = [host_lock.Lock(str(top / str(number))) for number in range(len(self.kinds))]
        self.names = components.names()
        self.needs = {each.name: each.needs for each in components.read()}
        self.known = {
            kind: site_turns.silences(self.play, {name: name not in HAVE[kind] for name in self.names}) for kind in HAVE
        }
        self.ended = 0.0
        me = host_lock.Holder(run_id="me", machine="lost boot pid", turns=40)
        for lock in self.locks:
            assert lock.take(me, LEASE).taken

    def seconds(self, name: str, kind: str) -> float:
        return sum(need.seconds for need in self.needs[name] if kind in need.nodes) * self.slow

    def shows(self, node: int, component: str, at: float) -> None:
        """Have a node show a sign of life, and somebody else try to take its lock just before that."""
        self.now = at
        assert not self.locks[node].look(LEASE, OTHER).taken, (component, node, self.kinds[node], at)
        record = {"silences": self.known[self.kinds[node]]}
        variables = {"postboot_component": component, "__postboot_run": {"record": record}}
        self.monkeypatch.setenv(host_lock.SILENCE, str(site_turns.silence(variables)))
        self.locks[node].show()

    def task(self, component: str, long: bool) -> None:
        """One task of a component: each node that has the component, in the order of the inventory."""
        free, begun = [self.ended] * FORKS, self.ended
        signs = []
        for node, kind in enumerate(self.kinds):
            if component in HAVE[kind]:
                continue
            fork = min(range(FORKS), key=free.__getitem__)
            took = 3.0 * self.slow + (self.seconds(component, kind) if long else 0)
            # A long program has a thread that shows signs all the while.
            signs += [(free[fork] + more, node) for more in range(0, int(took) + 1, 120)]
            free[fork] += took
        for at, node in sorted(signs):
            self.shows(node, component, at)
        self.ended = max(begun, *free)

    def go(self, until: str = "") -> None:
        self.ended = self.now
        for name in self.names:
            for number in range(4):
                self.task(name, long=number == 2)
            if name == until:
                return


def test_a_slow_run_in_many_turns_is_taken_over_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path, monkeypatch, slow=site_turns.SLOW)
    run.go()
    assert run.now > 10 * LEASE  # EFA's installer alone takes 40 turns of ten minutes


def test_a_run_that_announces_nothing_would_be_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the simulation would show nothing."""
    run = Run(tmp_path, monkeypatch, 1)
    run.known = {kind: {} for kind in run.known}
    with pytest.raises(AssertionError, match=r"^\('enroot', 0, 'head', "):
        run.go()


@pytest.mark.parametrize(("lost_after", "most"), [("pull", 0), ("efa", 9), ("container_images", 0.5)])
def test_the_locks_of_a_lost_controller_are_free_a_lease_after_their_next_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost_after: str, most: float
) -> None:
    """Before, all of them were held for 40 hours. A login node waits longest: it has no part in much that is slow."""
    run = Run(tmp_path, monkeypatch, 1)
    run.go(until=lost_after)
    lost = run.ended
    run.now = lost + (most + 1) * LEASE + 1
    assert [node for node, lock in enumerate(run.locks) if lock.take(OTHER, LEASE).how != "expired"] == []
