# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A job waits for a node of the queue `burst`, whose boot fails: a variable asks for a version that is not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..failing_boots import Queue, failing

LONG = True
QUEUES: list[Queue] = []


@contextmanager
def scene(stage: Any) -> Iterator[None]:
    with failing(stage, "--nodelist burst-dy-c5-1 --exclusive") as queue:
        QUEUES[:] = [queue]
        yield


def instead(stage: Any, step: Any) -> None:
    """The cluster is updated with the bundle that was corrected."""
    if step.command.startswith("pcluster update-cluster ") and "--dryrun" not in step.command:
        QUEUES[0].take(QUEUES[0].good)
