#!/usr/bin/env python3
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a task costs by each connection of the inventory: the same module on one node of the sandbox, in turns.

Needs the sandbox (make sandbox). Seconds are those of a play with many tasks less those of a play with few, so that
Ansible's own start and the first connection are left out; the first connection has a figure of its own. Connections
take turns, and medians of one run are compared.

The network is this machine's, and the agent, Session Manager and session-manager-plugin are the sandbox's: what a
session waits for by itself is there (a shell's first output comes after a second), AWS's answers come at once. So
seconds by SSM are the least that a task can take. The ratios of SSH by its three ways hold where the network is fast.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import boto3
import yaml
from botocore.exceptions import ClientError
from figures import Figure
from figures import run as run_benchmark

ROOT = Path(__file__).resolve().parents[2]
NODE, BUCKET = "cpu-st-c5-1", "sandbox-bench-connections"
FEW, MANY, ROUNDS = 1, 9, 3
# What is promised of the other ways of SSH; SSM has no promise.
REACH = {"ssh_via_head": 1.5, "ssh_over_ssm": 1.5, "ssm": None}
TASK = {"name": "Read what the node is", "pcluster.postboot.node_facts": {}}
os.environ |= {
    "ANSIBLE_CONFIG": str(ROOT / "inventory/ansible.cfg"),
    "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".venv/collections"),
    "AWS_ENDPOINT_URL": os.environ.get("AWS_ENDPOINT_URL", "http://10.115.0.3:5000"),
    "AWS_ACCESS_KEY_ID": "sandbox",
    "AWS_SECRET_ACCESS_KEY": "sandbox",
}


def play(folder: Path, tasks: int) -> str:
    """Write a play with so many tasks."""
    path = folder / f"{tasks}.yml"
    path.write_text(yaml.safe_dump([{"hosts": NODE, "become": True, "gather_facts": False, "tasks": [TASK] * tasks}]))
    return str(path)


def seconds(workstation: Any, connection: str, playbook: str) -> float:
    begun = time.monotonic()
    done = workstation.play(connection, playbook)
    if done.returncode:
        sys.exit(f"{connection}: {playbook} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return time.monotonic() - begun


def measure() -> list[Figure]:
    sys.path.insert(0, str(ROOT / "molecule/cluster/tests"))
    from workstation import CONNECTIONS, Workstation

    bucket = boto3.resource("s3", region_name="us-east-1").Bucket(BUCKET)
    bucket.create()
    found: dict[str, list[tuple[float, float]]] = {connection: [] for connection in CONNECTIONS}
    with tempfile.TemporaryDirectory(prefix="bench-connections-") as folder:
        workstation = Workstation(Path(folder), BUCKET)
        few, many = (play(Path(folder), tasks) for tasks in (FEW, MANY))
        for _ in range(ROUNDS):
            for connection in CONNECTIONS:
                # The first of both has no connection that is still open, and the other one does.
                time.sleep(0 if connection == "ssm" else 6)
                first = seconds(workstation, connection, few)
                found[connection].append((first, seconds(workstation, connection, many)))
    with suppress(ClientError):
        bucket.delete()
    each = {
        connection: statistics.median((many - few) / (MANY - FEW) for few, many in pairs)
        for connection, pairs in found.items()
    }
    figures = [Figure(f"a task by {connection}", each[connection], "s") for connection in CONNECTIONS]
    figures += [Figure(f"… {one} to ssh", each[one] / each["ssh"], at_most=most) for one, most in REACH.items()]
    begin = {connection: statistics.median(few for few, _many in pairs) for connection, pairs in found.items()}
    figures += [Figure(f"a play with one task by {connection}", begin[connection], "s") for connection in CONNECTIONS]
    return figures


if __name__ == "__main__":
    sys.exit(run_benchmark("A task by each connection", measure, about=__doc__))
