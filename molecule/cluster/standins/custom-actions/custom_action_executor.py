#!/usr/bin/env python3
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A stand-in of ParallelCluster's program that runs custom actions: what scripts meet on a node is the same.

README.md names the original, each behaviour that is the same here, and what is left out.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import yaml

EVENTS = {"preinstall": "OnNodeStart", "postinstall": "OnNodeConfigured", "postupdate": "OnNodeUpdated"}
CONFIG = Path("/opt/parallelcluster/shared/cluster-config.yaml")
# What fetch_and_run says of the node.
OPTIONS = (
    *("region", "stack-name", "cluster-name", "node-type", "queue-name", "pool-name", "instance-id", "instance-type"),
    *("ip-address", "hostname", "resource", "availability-zone", "scheduler", "node-spec-file"),
)
NODENAME = Path("/etc/parallelcluster/slurm_plugin/slurm_nodename")
ERROR = Path("/var/log/parallelcluster/bootstrap_error_msg")
LOOK = "Please check /var/log/cfn-init.log in the head node, or check the cfn-init.log in CloudWatch logs."


class ActionError(Exception):
    """Why a node does not come up."""

    def __init__(self, what: str, step: int, url: str, why: str, stage: str, error: Any) -> None:
        self.message = f"{what} {step} {url}{why}"
        self.without_url = f"{what} {step}{why.partition(', cause')[0].rstrip('.')}."
        self.detail = {"step": step, "stage": stage, "error": error}
        super().__init__(self.message)


class Script(NamedTuple):
    """A script of a custom action."""

    event: str
    step: int
    url: str
    arguments: list[str]


def scripts(config: dict[str, Any], options: argparse.Namespace) -> list[Script]:
    """The scripts of this node for an event: one, or a Sequence of them."""
    part: dict[str, Any] = config.get("HeadNode") or {}
    if options.node_type == "ComputeFleet":
        part = next(one for one in config["Scheduling"]["SlurmQueues"] if one["Name"] == options.queue_name)
    elif options.node_type == "LoginNode":
        part = next(one for one in config["LoginNodes"]["Pools"] if one["Name"] == options.pool_name)
    action = (part.get("CustomActions") or {}).get(options.event) or {}
    found = action.get("Sequence") or ([action] if action else [])
    return [
        Script(options.event, step, one["Script"], [str(word) for word in one.get("Args") or []])
        for step, one in enumerate(found, 1)
    ]


def updating(stack: str) -> bool:
    """Whether the stack is in an update, and not in its rollback; DescribeStacks would tell."""
    line = ["aws", "s3", "cp", "--only-show-errors", f"s3://sandbox-stacks/{stack}", "-"]
    return subprocess.run(line, stdout=subprocess.PIPE, text=True, check=False).stdout == "UPDATE_IN_PROGRESS"


def download(script: Script) -> Path:
    what, stage = f"Failed to download {script.event} script", "downloading"
    handle, name = tempfile.mkstemp()
    os.close(handle)
    if script.url.startswith("s3://"):
        line = ["aws", "s3", "cp", "--only-show-errors", script.url, name]
        done = subprocess.run(line, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            told = done.stderr.strip()
            raise ActionError(what, script.step, script.url, f" using aws s3, cause: {told}.", stage, told)
    elif script.url.startswith("https://"):
        with urllib.request.urlopen(script.url, timeout=60) as answer:
            Path(name).write_bytes(answer.read())
    else:
        raise ActionError(what, script.step, script.url, ", URL must be an s3 or HTTPs.", stage, None)
    return Path(name)


def execute(script: Script, path: Path) -> None:
    """Run a script, whatever its hash is. Its standard output goes where this program's does."""
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    print(f"INFO:root:The hash of script {script.url} is: {found}", file=sys.stderr, flush=True)
    path.chmod(0o700)
    path.write_bytes(path.read_bytes().replace(b"\r\n", b"\n"))
    done = subprocess.run([path, *script.arguments], stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        error = {"exit_code": done.returncode, "stderr": done.stderr}
        why = f", return code: {done.returncode}."
        raise ActionError(f"Failed to execute {script.event} script", script.step, script.url, why, "executing", error)
    path.unlink()


def tell(options: argparse.Namespace, error: ActionError) -> None:
    """Say what failed, as each kind of node does."""
    kind, updates = options.node_type, options.event == "OnNodeUpdated"
    if not updates:
        ERROR.parent.mkdir(parents=True, exist_ok=True)
        if kind == "HeadNode":
            told = f"fetch_and_run - {error.without_url} {LOOK}"
        else:
            told = json.dumps(entry(options, error))
        ERROR.write_text(f"{told}\n")
        if kind in ("HeadNode", "LoginNode"):
            print(f"fetch_and_run - {error.message} {LOOK}", flush=True)
    if updates or kind != "HeadNode":
        print(error.message, flush=True)


def entry(options: argparse.Namespace, error: ActionError) -> dict[str, Any]:
    """What a compute or login node leaves for CloudWatch."""
    known: dict[str, Any] = {
        "datetime": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        "version": 0,
        "scheduler": "slurm",
        "cluster-name": options.cluster_name,
        "node-role": options.node_type,
        "component": "custom-action",
        "level": "ERROR",
        "instance-id": options.instance_id,
        "event-type": "custom-action-error",
        "message": error.without_url,
        "detail": {"action": options.event, **error.detail},
    }
    if options.node_type == "ComputeFleet":
        known["compute"] = {"name": NODENAME.read_text(), "queue-name": options.queue_name}
    return known


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in EVENTS:
        parser.add_argument(f"-{name}", dest="event", action="store_const", const=EVENTS[name])
    parser.add_argument("-c", "--cluster-configuration", dest="config", type=Path, default=CONFIG)
    for name in OPTIONS:
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    if options.event == "OnNodeUpdated" and not updating(options.stack_name):
        return 0
    try:
        wanted = scripts(yaml.safe_load(options.config.read_text()), options)
        for script, path in [(script, download(script)) for script in wanted]:
            execute(script, path)
    except ActionError as error:
        tell(options, error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
