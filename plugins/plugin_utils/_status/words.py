# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What people see of a cluster that boots: a line for each change, and a table in the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ansible_collections.pcluster.postboot.plugins.module_utils._host.text import visible
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.progress import duration
from ansible_collections.pcluster.postboot.plugins.plugin_utils._status import stages
from ansible_collections.pcluster.postboot.plugins.plugin_utils._status.stages import Seen, Status, called

FEW = 12  # nodes up to which each change has a line of its own
ROWS = 24  # of the table, beyond which nodes that are alike share one
REASONS = 10
OFTEN = 30.0  # seconds between two lines of counts


def trouble(node: Status) -> str:
    """Return what is wrong with a node, and what to do."""
    failed = f"{node.component} failed: " if node.stage == stages.FAILED and node.component else ""
    # Our own line begins with the component already.
    why = node.why if node.why.startswith(failed) else f"{failed}{node.why}"
    return "; ".join(part for part in (why, node.todo) if part)


def _times(node: Status, now: float) -> str:
    """Return how long the boot has taken of how long it may."""
    if node.stage not in stages.MOVING or not node.launched:
        return ""
    limit = f" of {duration(node.deadline - node.launched)}" if node.deadline else ""
    return f"{duration(max(0.0, now - node.launched))}{limit}"


class News:
    """Says of each look what is new since the one before."""

    def __init__(self) -> None:
        self._steps: dict[str, str] = {}
        self._alarms: list[str] = []
        self._bad: dict[str, str] = {}
        self._counts = ""
        self._said = 0.0

    def of(self, seen: Seen) -> list[str]:
        """Return the lines of a look. The first one says where all nodes are."""
        first = not self._steps
        lines = [f"{seen.cluster}: {alarm}" for alarm in seen.alarms if alarm not in self._alarms]
        self._alarms = list(seen.alarms)
        if len(seen.wanted) <= FEW:
            lines += self._each(seen)
        else:
            lines += self._many(seen, first)
        self._steps = {node.name: node.step for node in seen.nodes}
        return [visible(line) for line in lines]

    def _each(self, seen: Seen) -> list[str]:
        lines = []
        for node in seen.nodes:
            new = self._steps.get(node.name, stages.OFF) != node.step
            told = f"{'late' if node.late else ''}{trouble(node)}"
            if new or ((node.bad or node.why) and told != self._bad.get(node.name, "")):
                lines.append(f"{seen.cluster}: {line(node, seen.now)}")
            self._bad[node.name] = told
        gone = [name for name in self._steps if name not in {node.name for node in seen.nodes}]
        return lines + [f"{seen.cluster}: {name}: its instance is gone" for name in gone]

    def _many(self, seen: Seen, first: bool) -> list[str]:
        lines = []
        counts = totals(seen)
        if first or (counts != self._counts and seen.now - self._said >= OFTEN):
            lines.append(f"{seen.cluster}: {counts}")
            self._counts, self._said = counts, seen.now
        fresh = [node for node in seen.bad if self._bad.get(node.name) != trouble(node)]
        self._bad = {node.name: trouble(node) for node in seen.bad}
        return lines + [f"{seen.cluster}: {text}" for text in reasons(fresh)]


def line(node: Status, now: float) -> str:
    """Return where one node is."""
    told = _times(node, now)
    words = [f"{node.name}: {node.step}", "late" if node.late else "", f"boots for {told}" if told else ""]
    return ", ".join(word for word in words if word) + (f" ({trouble(node)})" if trouble(node) else "")


def totals(seen: Seen) -> str:
    """Return how many nodes are in each stage, and which components run on how many."""
    count = Counter(node.stage for node in seen.wanted)
    words = [f"{count[stages.UP]} of {len(seen.wanted)} nodes up"]
    for stage in stages.ORDER:
        if stage in (stages.UP, stages.OFF) or not count[stage]:
            continue
        running = Counter(node.component for node in seen.wanted if node.stage == stage == stages.OURS)
        inner = ", ".join(f"{name or 'begins'} {number}" for name, number in running.most_common(4))
        words.append(f"{count[stage]} {stage}" + (f" ({inner})" if inner else ""))
    late = sum(node.late for node in seen.nodes)
    return ", ".join([*words, *([f"{late} late"] if late else [])])


def reasons(nodes: Sequence[Status]) -> list[str]:
    """Return a line for each thing that is wrong, with the nodes that it is wrong with."""
    groups: dict[tuple[str, str], list[Status]] = {}
    for node in nodes:
        why = trouble(node).replace(node.instance, "its instance") if node.instance else trouble(node)
        groups.setdefault(("late" if node.late else node.stage, why), []).append(node)
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    lines = [f"{state}: {called(members)}{f': {why}' if why else ''}" for (state, why), members in ordered]
    more = len(lines) - REASONS
    return lines[:REASONS] + ([f"{more} more reason{'s' if more > 1 else ''}"] if more > 0 else [])


def table(seen: Seen) -> list[str]:
    """Return the table of a cluster, what is wrong, and one line that sums it up."""
    header = ("node", "stage", "since", "boot so far")
    rows = [_row(node, seen.now) for node in seen.nodes if node.stage != stages.OFF or node.why]
    if len(rows) > ROWS:
        header = ("nodes", "stage", "number", "")
        groups: dict[tuple[str, str], list[Status]] = {}
        for node in seen.wanted:
            where = node.queue if node.kind == "compute" else node.kind
            groups.setdefault((where, "late" if node.late else node.step), []).append(node)
        rows = [(called(members, 60), step, str(len(members)), "") for (_where, step), members in groups.items()]
    lines = [f"cluster {seen.cluster}", *seen.alarms]
    widths = [max(len(row[place]) for row in (header, *rows)) for place in range(len(header))]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in (header, *rows)]
    told = [node for node in seen.nodes if node.bad or node.why]
    return [visible(one) for one in (*lines, *reasons(told), summary(seen))]


def _row(node: Status, now: float) -> tuple[str, str, str, str]:
    stage = f"{node.step}{', late' if node.late else ''}"
    known = node.since and node.stage not in (stages.OFF, stages.UP)
    since = duration(max(0.0, now - node.since)) if known else ""
    return node.name, stage, since, _times(node, now)


def summary(seen: Seen) -> str:
    off = sum(node.stage == stages.OFF for node in seen.nodes) + seen.off
    return f"{seen.cluster}: {totals(seen)}" + (f"; {off} more are off" if off else "")


def complaint(seen: Seen, waited: float) -> str:
    """Return why a cluster is not well, on one line; nothing where it is. `waited`: seconds, where the time is up."""
    parts = [alarm.split("; ")[0] for alarm in seen.alarms if alarm.startswith("protected mode")]
    late = f"not up after {duration(waited)}"
    for word, nodes in (
        ("failed", [node for node in seen.bad if not node.late]),
        ("late", [node for node in seen.bad if node.late]),
        (late, [node for node in seen.moving if waited and not node.bad]),
    ):
        if nodes:
            first = trouble(nodes[0])
            parts.append(f"{word}: {called(nodes)}" + (f" ({first})" if first else ""))
    return "; ".join(parts)


def as_json(seen: Seen) -> dict[str, Any]:
    """Return a look as programs read it."""
    keys = ("name", "kind", "stage", "queue", "instance", "since", "launched", "deadline", "late")
    own = ("component", "of", "why", "todo")
    return {
        "cluster": seen.cluster,
        "now": seen.now,
        "summary": summary(seen),
        "alarms": seen.alarms,
        "off": seen.off,
        "nodes": [{key: getattr(node, key) for key in (*keys, *own)} for node in seen.nodes],
    }
