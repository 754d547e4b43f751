# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A stand-in of clusterstatusmgtd: does what `pcluster update-compute-fleet` has asked for, by the fleet's status.

START_REQUESTED becomes STARTING and then RUNNING, STOP_REQUESTED becomes STOPPING and then STOPPED. The work in between
is ParallelCluster's own slurm_fleet_status_manager.

Usage: clusterstatusmgtd.py REGION TABLE MANAGER SECONDS
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import boto3
from boto3.dynamodb.conditions import Attr

STATUS = Path("/opt/slurm/etc/pcluster/.slurm_plugin/computefleet-status.json")
# What is asked for: the status meanwhile, and at the end.
STEPS = {"START_REQUESTED": ("STARTING", "RUNNING"), "STOP_REQUESTED": ("STOPPING", "STOPPED")}
log = logging.getLogger("clusterstatusmgtd")


def turn(table: Any, former: str, status: str) -> None:
    """Change the status, unless somebody else has changed it since."""
    log.info("Updating compute fleet status from %s to %s", former, status)
    table.update_item(
        Key={"Id": "COMPUTE_FLEET"},
        UpdateExpression="set #dt.#st=:s, #dt.#lut=:t",
        ExpressionAttributeNames={"#dt": "Data", "#st": "status", "#lut": "lastStatusUpdatedTime"},
        ExpressionAttributeValues={":s": status, ":t": str(datetime.now(tz=timezone.utc))},
        ConditionExpression=Attr("Data.status").eq(former),
    )


def look(table: Any, manager: str) -> None:
    """Do what is asked for, if anything is, or what an earlier run has left undone."""
    asked = table.get_item(ConsistentRead=True, Key={"Id": "COMPUTE_FLEET"})["Item"]["Data"]["status"]
    for request, (meanwhile, end) in STEPS.items():
        if asked in (request, meanwhile):
            if asked == request:
                turn(table, request, meanwhile)
            STATUS.write_text(json.dumps({"status": request}))
            subprocess.run([manager, "-cf", str(STATUS)], check=True)
            turn(table, meanwhile, end)


def main(region: str, name: str, manager: str, seconds: str) -> None:
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s - [%(name)s:%(funcName)s] - %(levelname)s - %(message)s"
    )
    log.info("Clusterstatusmgtd Startup")
    table = boto3.resource("dynamodb", region_name=region).Table(name)
    while True:
        try:
            look(table, manager)
        except Exception as error:
            log.error("Failed when handling compute fleet status transitions with exception %s", error)
        time.sleep(float(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
