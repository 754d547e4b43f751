# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The stages of verify, one after another, and their report, which is written for as long as they run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.pcluster.postboot.plugins.module_utils._host import files
from ansible_collections.pcluster.postboot.plugins.module_utils._verify import containers, health, nccl, neuron, nodes
from ansible_collections.pcluster.postboot.plugins.module_utils._verify.cluster import Context, TimeOver
from ansible_collections.pcluster.postboot.plugins.module_utils._verify.report import Check, report, write

STAGES: dict[str, Callable[[Context], Iterator[Check]]] = {
    "nodes": nodes.run,
    "containers": containers.run,
    "nccl": nccl.run,
    "neuron": neuron.run,
    "health": health.run,
}
# Those that nobody has to ask for: health takes minutes on each node.
USUAL = ("nodes", "containers", "nccl", "neuron")
# How many seconds of results a run may lose that is killed.
_SAVED_EVERY = 60


def carry_out(
    context: Context, stages: Mapping[str, Callable[[Context], Iterator[Check]]], output: str, told: Mapping[str, Any]
) -> list[tuple[str, Check]]:
    """Run the stages. What is known is written after each of them, and each minute of one that takes long.

    What is being done stands in a log beside the output, for the action, which shows it.
    """
    begun, saved = time.time(), time.monotonic()
    log = doing(output)
    checks: list[tuple[str, Check]] = []
    left = list(stages)

    def save() -> None:
        nonlocal saved
        found = {"runs": context.runs, "pairs": context.pairs, "findings": context.findings}
        write(output, report(checks, begun, unfinished=left, **told, **found))
        saved = time.monotonic()

    def save_each_minute() -> None:
        if time.monotonic() - saved >= _SAVED_EVERY:
            save()

    def note(what: str) -> None:
        files.write(log, f"stage {left[0]}, {len(checks)} checks made: {what}\n", tidy=False)

    context.save, context.note = save_each_minute, note
    os.makedirs(os.path.dirname(log), mode=0o755, exist_ok=True)
    while left:
        note("begins")
        try:
            for check in stages[left[0]](context):
                checks.append((left[0], check))
                save_each_minute()
        except TimeOver:
            checks.append((left[0], Check("time", "cluster", "failed", _over(context.options.limit, left[1:]))))
            left.clear()
        else:
            del left[0]
        save()
    return checks


def doing(output: str) -> str:
    """Return the log's name."""
    return os.path.splitext(output)[0] + ".log"


def _over(limit: int, left: Sequence[str]) -> str:
    more = f", and {' and '.join(left)} not begun" if left else ""
    return f"verify_limit: {limit} minutes were over before this stage was{more}; needed: more of them, or fewer checks"
