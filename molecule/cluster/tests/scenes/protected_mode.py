# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Boots of the queue `burst` have failed until ParallelCluster took the queue out of use; here after the first one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3

from ..conftest import host
from ..failing_boots import Queue, failing
from ..helpers import until

LONG = True
QUEUES: list[Queue] = []
CONFIG = "/etc/parallelcluster/slurm_plugin/parallelcluster_clustermgtd.conf"
EARLY = f"sed -i '$ a protected_failure_count = 1' {CONFIG}"
STATUS = "get-compute-fleet-status.sh | jq -r .status"
PROTECTED = f'test "$({STATUS})" = PROTECTED'


@contextmanager
def scene(stage: Any) -> Iterator[None]:
    try:
        with failing(stage, prepare=EARLY, end=PROTECTED) as queue:  # the next update writes the file anew
            QUEUES[:] = [queue]
            yield
    finally:
        start_fleet()


def start_fleet() -> None:
    """Set every queue to UP, as `pcluster update-compute-fleet` does, wherever the page was left."""
    if host("head").check_output(STATUS).strip() == "RUNNING":
        return
    table = boto3.resource("dynamodb", region_name="us-east-1").Table("parallelcluster-main")
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    table.put_item(Item={"Id": "COMPUTE_FLEET", "Data": {"status": "START_REQUESTED", "lastStatusUpdatedTime": now}})
    until(lambda: host("head").check_output(STATUS).strip() == "RUNNING", 120, "the fleet runs again")


def instead(stage: Any, step: Any) -> None:
    """The cluster is updated with the bundle that was corrected."""
    if step.command.startswith("pcluster update-cluster ") and "--dryrun" not in step.command:
        QUEUES[0].take(QUEUES[0].good)
