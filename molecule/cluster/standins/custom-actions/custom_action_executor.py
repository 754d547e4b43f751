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

EVENTS = {"preinstall": "OnNodeStart", "postinstall": "OnNodeConfigured", "postupdate": "OnNodeUpdated"}
CONFIG = Path("/opt/parallelcluster/shared/cluster-config.yaml")
CFNCONFIG = Path("/etc/parallelcluster/cfnconfig")
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


def cfnconfig(name: str) -> str:
    lines = CFNCONFIG.read_text().splitlines()
    return next((line.split("=", 1)[1] for line in lines if line.startswith(f"{name}=")), "")


def scripts(config: dict[str, Any], event: str) -> list[Script]:
    """The scripts of this node for an event: one, or a Sequence of them."""
    part: dict[str, Any] = config.get("HeadNode") or {}
    if cfnconfig("cfn_node_type") == "ComputeFleet":
        queue = cfnconfig("cfn_scheduler_queue_name")
        part = next((one for one in config["Scheduling"]["SlurmQueues"] if one["Name"] == queue), {})
    elif cfnconfig("cfn_node_type") == "LoginNode":
        part = config["LoginNodes"]["Pools"][0]
    action = (part.get("CustomActions") or {}).get(event) or {}
    found = action.get("Sequence") or ([action] if action else [])
    return [
        Script(event, step, one["Script"], [str(word) for word in one.get("Args") or []])
        for step, one in enumerate(found, 1)
    ]


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


def tell(event: str, error: ActionError) -> None:
    """Say what failed, as each kind of node does."""
    kind = cfnconfig("cfn_node_type")
    if event != "OnNodeUpdated":
        ERROR.parent.mkdir(parents=True, exist_ok=True)
        told = f"fetch_and_run - {error.without_url} {LOOK}" if kind == "HeadNode" else json.dumps(entry(event, error))
        ERROR.write_text(f"{told}\n")
        if kind in ("HeadNode", "LoginNode"):
            print(f"fetch_and_run - {error.message} {LOOK}", flush=True)
    if event == "OnNodeUpdated" or kind != "HeadNode":
        print(error.message, flush=True)


def entry(event: str, error: ActionError) -> dict[str, Any]:
    """What a compute or login node leaves for CloudWatch."""
    kind = cfnconfig("cfn_node_type")
    known: dict[str, Any] = {
        "datetime": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        "version": 0,
        "scheduler": "slurm",
        "cluster-name": cfnconfig("stack_name"),
        "node-role": kind,
        "component": "custom-action",
        "level": "ERROR",
        "event-type": "custom-action-error",
        "message": error.without_url,
        "detail": {"action": event, **error.detail},
    }
    if kind == "ComputeFleet":
        known["compute"] = {"name": NODENAME.read_text(), "queue-name": cfnconfig("cfn_scheduler_queue_name")}
    return known


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in EVENTS:
        parser.add_argument(f"-{name}", dest="event", action="store_const", const=EVENTS[name])
    # JSON is YAML, which the sandbox's nodes cannot read.
    parser.add_argument("-c", dest="config", type=Path, default=CONFIG)
    arguments = parser.parse_args()
    try:
        wanted = scripts(json.loads(arguments.config.read_text()), arguments.event)
        for script, path in [(script, download(script)) for script in wanted]:
            execute(script, path)
    except ActionError as error:
        tell(arguments.event, error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
