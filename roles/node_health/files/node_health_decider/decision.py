# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is decided of the nodes with findings, from their states, Slurm's nodes and the history; nothing is done here.

ParallelCluster terminates a node that is drained and idle, and launches a successor. Because ParallelCluster would do
so for ever, limits and the history say when no node is drained any more.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .records import Clock, History, Record, Settings
from .slurm import Node

# The classes for which a node is drained, the most serious first. A finding of the class `watch` is only told.
CLASSES = ("replace", "reboot", "reset")
# While a check hangs, what that check had found may be missing among the findings, and is not gone.
HANGS = "check_hangs"
OURS = "node_health: "
REASON = 200
MARKED = 120.0

Withheld = tuple[str, str, str, str]  # node, finding, why (a label of the metric), and why in words


class Outcome(NamedTuple):
    """What one look has led to."""

    drain: list[Record]
    undrain: list[Record]
    withheld: list[Withheld]
    lines: list[str]
    # Whether a node with a finding is about to take jobs, so that the next run has to look again.
    waiting: bool


def acting(state: Record) -> list[Record]:
    """Return the findings of a state for which a node is drained, the most serious first."""
    found = [one for one in state["findings"] if one["class"] in CLASSES]
    return sorted(found, key=lambda one: (CLASSES.index(one["class"]), one["since"], one["finding"]))


def reason_of(finding: Record) -> str:
    """Return a drained node's reason: one line without quotes, which scontrol cuts off, and `=`, which its readers do
    not expect in a text.
    """
    text = f"{OURS}{finding['finding']}: {finding['subject']} {finding['evidence']}".replace("=", ":")
    return " ".join(re.sub(r"[^\s!#-&(-~]", "", text).split())[:REASON].strip()


def is_present(state: Record, node: Node, history: History) -> bool:
    """Whether a state is that of the node's present instance, and not of an earlier one of the same name.

    ParallelCluster tells Slurm the instance's id from 3.16 on. Before, an instance that was drained is known by its
    address, and any other by its state, which is older than the boot of the present one.
    """
    instance = state.get("instance_id", "")
    if node.instance:
        return bool(instance == node.instance)
    had = {one["address"] for one in history.drains if one["instance"] == instance}
    return had <= {node.address} and bool(state["told"] >= node.booted)


def is_same(record: Record, node: Node, state: Record | None) -> bool:
    """Whether a node's instance is still that which was drained.

    Without the id in Slurm the present state tells; until there is one, the address, which a successor may have again.
    """
    known = node.instance or (state or {}).get("instance_id", "")
    if known:
        return bool(record["instance"] == known)
    return bool(record["address"] == node.address and node.booted <= record["time"])


def is_healed(state: Record | None, record: Record) -> bool:
    """Whether the instance that was drained has no such finding any more, and all checks have looked that had then."""
    if state is None or state.get("instance_id") != record["instance"] or state["told"] <= record["time"]:
        return False
    hangs = any(one["finding"] == HANGS for one in state["findings"])
    return not acting(state) and not hangs and set(state["skipped"]) <= set(record["skipped"])


class Look:
    """One look at all states and at Slurm."""

    def __init__(
        self, settings: Settings, clock: Clock, states: dict[str, Record], nodes: dict[str, Node], history: History
    ) -> None:
        self.settings, self.clock, self.nodes, self.history = settings, clock, nodes, history
        self.now = clock.now
        fresh = {name: state for name, state in states.items() if clock.up - state["heard"] <= settings.silent_after}
        there = {name: state for name, state in fresh.items() if name in nodes}
        # What was told before the node's last boot may be cured by that.
        told = {name: state for name, state in there.items() if state["told"] >= nodes[name].booted}
        self.states = {name: state for name, state in told.items() if is_present(state, nodes[name], history)}
        self.past: list[Record] = []
        self.outcome = Outcome([], [], [], [], False)

    def decide(self) -> Outcome:
        self.follow()
        self.past = [one for one in self.history.drains if one["end"] and not one.get("forgotten")]
        open_now = {one["node"] for one in self.history.open()}
        judged, waiting = [], False
        for name, state in self.states.items():
            node = self.nodes[name]
            if not acting(state) or name in open_now:
                continue
            hold = self.history.holds.get(name)
            # slurmctld marks the nodes of a reservation some seconds after it is made, and the reservation may be gone.
            if hold and ("RESERVED" in node.states or self.clock.since(hold) < MARKED):
                self.withhold(name, acting(state)[0], "held", hold["reason"])
            elif node.up:
                judged.append((node, state))
            else:
                waiting = waiting or "DRAIN" not in node.states
        # Before any node is drained for a finding that is stopped.
        for node, state in judged:
            self.stop(node.name, state)
        found = [(node, state, self.eligible(node.name, state)) for node, state in judged]
        candidates = [(node, state, finding) for node, state, finding in found if finding]
        candidates.sort(key=lambda one: (CLASSES.index(one[2]["class"]), one[2]["since"], one[0].name))
        self.within_limits(candidates)
        return self.outcome._replace(waiting=waiting)

    def follow(self) -> None:
        """See what has become of the nodes that were drained."""
        for record in self.history.open():
            node = self.nodes.get(record["node"])
            if node is None:
                self.end(record, "gone", "the cluster has no such node any more")
                continue
            same = is_same(record, node, self.states.get(node.name))
            ours = same and "DRAIN" in node.states and node.reason == record["reason"]
            if not record["done"] and not ours:
                self.history.drains.remove(record)  # a run was killed before Slurm was told
            elif "POWERED_DOWN" in node.states or (node.up and not same):
                self.end(record, "replaced", "its instance is gone")
            elif node.up and record.get("healing"):
                self.end(record, "healed", "taken back into use")
            elif node.up:
                self.end(record, "resumed", "somebody else has taken the node back into use")
            else:
                self.history.confirm(record)
                healed = is_healed(self.states.get(node.name), record)
                usable = "DOWN" not in node.states and not node.off
                if healed and ours and usable and self.settings.action == "drain":
                    self.outcome.undrain.append(record)

    def end(self, record: Record, how: str, words: str) -> None:
        record.update(end=how, ended=self.now)
        self.outcome.lines.append(f"{record['node']}: {how} ({record['finding']}): {words}")

    def withhold(self, node: str, finding: Record, why: str, words: str) -> None:
        self.outcome.withheld.append((node, finding["finding"], why, words))

    def came_back(self, state: Record) -> Record | None:
        """Return the last drain of a machine that now is another instance: its GPUs tell."""
        gone = [one for one in self.past if one["end"] == "replaced" and one["instance"] != state["instance_id"]]
        same = [one for one in gone if set(one["gpus"]) & set(state["gpus"])]
        return same[-1] if same else None

    def stop(self, name: str, state: Record) -> None:
        """Stop the action for a finding that a successor has, too. Another machine with the same finding is no chance:
        the cause may be software, or the finding wrong, and the next successor no better.
        """
        instance, window = state["instance_id"], self.settings.successor_window * 3600
        if self.came_back(state):
            return
        for finding in acting(state):
            kind = finding["finding"]
            drains = [one for one in self.past if (one["node"], one["finding"], one["end"]) == (name, kind, "replaced")]
            former = [one for one in drains if one["instance"] != instance and abs(self.now - one["ended"]) <= window]
            if former and kind not in self.history.stops:
                instances = [former[-1]["instance"], instance]
                self.history.stops[kind] = {"time": self.now, "node": name, "instances": instances}

    def eligible(self, name: str, state: Record) -> Record | None:
        """Return the finding for which a node may be drained; what the history has against that is told."""
        left = [one for one in self.past if one["end"] == "resumed" and one["instance"] == state["instance_id"]]
        resumed = {one["finding"] for one in left}
        former = self.came_back(state)
        for finding in acting(state):
            kind = finding["finding"]
            again = f"'pcluster-node-health forget {former['finding'] if former else kind}' acts again"
            if kind in resumed:
                words = "somebody has taken this node back into use in spite of the finding"
                self.withhold(name, finding, "resumed", f"{words}; {again}")
            elif former:
                words = f"the same machine came back: {former['instance']} had its GPUs when {former['node']} was"
                self.withhold(name, finding, "came_back", f"{words} drained for {former['finding']}; tell AWS; {again}")
            elif kind in self.history.stops:
                stop = self.history.stops[kind]
                words = f"a successor had the same finding ({stop['node']}: {' and then '.join(stop['instances'])})"
                self.withhold(name, finding, "successor", f"{words}; {again}")
            else:
                return finding
        return None

    def within_limits(self, candidates: list[tuple[Node, Record, Record]]) -> None:
        settings, undrained = self.settings, {one["node"] for one in self.outcome.undrain}
        out = [one["node"] for one in self.history.open() if one["node"] not in undrained]
        hour = sum(self.clock.since(one) < 3600 for one in self.history.drains)
        sizes: dict[str, int] = {}
        for node in self.nodes.values():
            if "POWERED_DOWN" not in node.states:
                sizes[node.queue] = sizes.get(node.queue, 0) + 1
        for node, state, finding in candidates:
            share = max(1, int(sizes[node.queue] * settings.max_share / 100))
            if len(out) >= settings.max_nodes:
                limit = f"{len(out)} nodes are drained, node_health_max_nodes is {settings.max_nodes}"
            elif sum(node.queue == Node(one, frozenset()).queue for one in out) >= share:
                limit = f"{share} of the {sizes[node.queue]} nodes of queue {node.queue} are drained"
                limit += f", node_health_max_share is {settings.max_share:g} %"
            elif hour >= settings.max_per_hour:
                limit = f"{hour} nodes were drained within an hour, node_health_max_per_hour is {settings.max_per_hour}"
            else:
                limit, hour = "", hour + 1
                out.append(node.name)
            if limit:
                self.withhold(node.name, finding, "limit", limit)
            elif settings.action == "report":
                self.withhold(node.name, finding, "report", f"node_health_action is report; {reason_of(finding)}")
            else:
                self.outcome.drain.append(self.record(node, state, finding))

    def record(self, node: Node, state: Record, finding: Record) -> Record:
        kept = {"gpus": state["gpus"], "skipped": state["skipped"], "done": False, "end": "", "ended": 0.0}
        told = {key: finding[key] for key in ("finding", "class", "subject", "evidence")}
        where = {"node": node.name, "instance": state["instance_id"], "address": node.address}
        return {**self.clock.stamp(), **where, **told, "reason": reason_of(finding), **kept}
