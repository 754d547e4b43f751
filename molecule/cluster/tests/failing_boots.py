# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Nodes of the queue `burst` that fail their boot, for scenes: a variable of the bundle asks for what is not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .bundles import Bundle, queue_of, republish, update
from .conftest import host
from .helpers import until
from .jobs import slurm, submit

FAILURES = "grep -c 'Found the following bootstrap failure nodes' /var/log/parallelcluster/clustermgtd"


class Queue:
    """The queue, whose nodes boot with one bundle or another."""

    def __init__(self, stage: Any) -> None:
        self.good: Bundle = stage.fixture("bundle")
        self.broken = republish(stage.fixture("s3"), self.good, "93.0.0", {"enroot_version": "0.0.1"})
        self.queue = queue_of(stage.fixture("publish")("main"), "burst")
        self.folder = stage.folder
        self.now = self.good

    def take(self, bundle: Bundle) -> None:
        """Update the cluster's configuration, unless it is so: what boots from now on has this bundle."""
        if bundle == self.now:  # ParallelCluster refuses an update that changes nothing
            return
        queue = {**self.queue, "CustomActions": {"OnNodeConfigured": bundle.action()}}
        done = update("main", self.folder, {"Scheduling": {"SlurmQueues": [queue]}})
        assert done.stdout.endswith("main: UPDATE_COMPLETE\n"), done.stdout + done.stderr
        self.now = bundle


def failures() -> int:
    return int(host("head").run(FAILURES).stdout or 0)


@contextmanager
def failing(stage: Any, options: str = "", prepare: str = "true", end: str = "true") -> Iterator[Queue]:
    """A job asks for a node of the queue, and boots fail until a command succeeds on the head node.

    Another command is run there before the job.
    """
    queue, before = Queue(stage), failures()
    queue.take(queue.broken)
    host("head").check_output(prepare)
    submit("asks", f"--partition burst {options}", "sleep 900")
    try:
        until(lambda: failures() > before and host("head").run(end).rc == 0, 600, "boots have failed")
        yield queue
    finally:
        slurm("scancel --name asks")
        queue.take(queue.good)
