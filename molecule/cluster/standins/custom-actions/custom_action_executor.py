#!/usr/bin/env python3
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A stand-in of ParallelCluster's program that runs custom actions: what scripts meet on a node is the same.

The node's cluster configuration says which scripts. All of them are downloaded, from s3:// or https:// and with one
try, before the first one runs. Each is made executable, goes through dos2unix, and runs as root without a terminal. Its
standard output goes where this program's does, its standard error is shown only where it fails. Then nothing else runs,
bootstrap_error_msg says so, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

EVENTS = {"preinstall": "OnNodeStart", "postinstall": "OnNodeConfigured", "postupdate": "OnNodeUpdated"}
CONFIG = Path("/opt/parallelcluster/shared/cluster-config.yaml")
ERROR = Path("/var/log/parallelcluster/bootstrap_error_msg")


class ActionError(Exception):
    """Why a node does not come up."""


def cfnconfig(name: str) -> str:
    lines = Path("/etc/parallelcluster/cfnconfig").read_text().splitlines()
    return next((line.split("=", 1)[1] for line in lines if line.startswith(f"{name}=")), "")


def scripts(config: dict[str, Any], event: str) -> list[dict[str, Any]]:
    """The scripts of this node for an event: one, or a Sequence of them."""
    part: dict[str, Any] = config.get("HeadNode") or {}
    if cfnconfig("cfn_node_type") == "ComputeFleet":
        queue = cfnconfig("cfn_scheduler_queue_name")
        part = next((one for one in config["Scheduling"]["SlurmQueues"] if one["Name"] == queue), {})
    elif cfnconfig("cfn_node_type") == "LoginNode":
        part = config["LoginNodes"]["Pools"][0]
    action = (part.get("CustomActions") or {}).get(event) or {}
    return list(action.get("Sequence") or ([action] if action else []))


def download(url: str) -> str:
    handle, path = tempfile.mkstemp()
    os.close(handle)
    if url.startswith("s3://"):
        done = subprocess.run(["aws", "s3", "cp", "--only-show-errors", url, path], stderr=subprocess.PIPE, text=True)
        if done.returncode:
            raise ActionError(f"Failed to download {url} using aws s3, cause: {done.stderr.strip()}.")
    elif url.startswith("https://"):
        with urllib.request.urlopen(url, timeout=60) as answer:
            Path(path).write_bytes(answer.read())
    else:
        raise ActionError(f"Failed to download {url}, URL must be an s3 or HTTPs.")
    return path


def execute(url: str, path: str, arguments: list[str]) -> None:
    os.chmod(path, 0o700)
    script = Path(path)
    script.write_bytes(script.read_bytes().replace(b"\r\n", b"\n"))
    done = subprocess.run([path, *arguments], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    os.unlink(path)
    if done.returncode:
        raise ActionError(f"Failed to execute {url}, return code: {done.returncode}. {done.stderr}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in EVENTS:
        parser.add_argument(f"-{name}", dest="event", action="store_const", const=EVENTS[name])
    # JSON is YAML, which the sandbox's nodes cannot read.
    parser.add_argument("-c", dest="config", type=Path, default=CONFIG)
    arguments = parser.parse_args()
    try:
        wanted = scripts(json.loads(arguments.config.read_text()), arguments.event)
        for script, path in [(script, download(script["Script"])) for script in wanted]:
            execute(script["Script"], path, [str(argument) for argument in script.get("Args") or []])
    except (ActionError, OSError) as error:
        message = f"fetch_and_run - {error} Please check the logs."
        print(message, flush=True)
        ERROR.parent.mkdir(parents=True, exist_ok=True)
        ERROR.write_text(message.split(" return code", 1)[0] + "\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
