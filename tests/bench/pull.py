#!/usr/bin/env python3
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Measure bootstrap.sh on a node: from its start to Ansible's first task, and to its end.

Needs the sandbox (make sandbox). A spare boots, and fetches a bundle from S3 for the first time; then each round runs
bootstrap.sh once more, on a node that has everything already (an official AMI after its first boot), and once after the
installed bundle was removed. Ratios come from one run, by medians.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import boto3
import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
SCENARIO = ROOT / "molecule/cluster"
STATE = ROOT / ".sandbox"
TOPOLOGY = yaml.safe_load((SCENARIO / "topology.yml").read_text())
SPARE, BUCKET = "burst-dy-c5-1", "sandbox-bench"
OPT, LOG = "/opt/pcluster-postboot", "/var/log/pcluster-postboot/pull.log"
os.environ |= {
    "ANSIBLE_CONFIG": str(SCENARIO / "ansible.cfg"),
    "AWS_ENDPOINT_URL": f"http://{TOPOLOGY['services']['aws']['address']}:5000",
    "AWS_ACCESS_KEY_ID": "sandbox",
    "AWS_SECRET_ACCESS_KEY": "sandbox",
    "CONTAINERS_CONF": str(STATE / "containers.conf"),
}


def run(*line: str | Path) -> str:
    """Run a program to its end and return what it printed; a failure ends the benchmark with its last words."""
    done = subprocess.run(line, text=True, capture_output=True, check=False)
    if done.returncode:
        sys.exit(f"{line[0]} {line[1]} … failed:\n{(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


def sandbox(*arguments: str | Path) -> str:
    return run(sys.executable, SCENARIO / "sandbox.py", *arguments)


def publish(folder: Path) -> str:
    """Publish a bundle, and return the command that takes it."""
    sandbox("variables", folder / "group_vars")
    options = {
        "publish_s3": f"s3://{BUCKET}/bundles",
        "publish_dir": str(STATE / "publish"),
        "publish_group_vars": str(folder / "group_vars"),
        "publish_pythons": ["3.11"],
        "publish_architectures": ["x86_64"],
    }
    program = Path(sys.executable).parent / "ansible-playbook"
    text = run(program, "pcluster.postboot.publish", "-e", json.dumps(options))
    printed = text[text.index("# pcluster.postboot ") :]
    config = yaml.safe_load(re.split(r"^(?:TASK|ok:) ", printed, maxsplit=1, flags=re.M)[0])
    action = config["Scheduling"]["SlurmQueues"][0]["CustomActions"]["OnNodeConfigured"]
    words = " ".join(action["Args"])
    fetch = f"aws s3 cp --only-show-errors {action['Script']} /root/bootstrap.sh && chmod +x /root/bootstrap.sh"
    sandbox("exec", SPARE, fetch)
    return f"/root/bootstrap.sh {words}"


def measured(command: str) -> dict[str, float]:
    """Run bootstrap.sh; return the seconds to its first task, and to its end."""
    start = time.monotonic()
    sandbox("exec", SPARE, command)
    seconds = time.monotonic() - start
    # What is deferred would work beside the next round.
    wait = "until [ $(systemctl show -p ActiveState --value pcluster-postboot) = inactive ]; do sleep 0.2; done"
    sandbox("exec", SPARE, f"timeout 300 sh -c '{wait}'")
    boot = sandbox("exec", SPARE, f"grep ' pull: ' {LOG}").split("site begins: phase boot")[-1]
    found = re.search(r"the first task begins after ([\d.]+) s", boot)
    assert found, boot
    return {"first task": float(found[1]), "end": seconds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each kind (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the result there as well")
    arguments = parser.parse_args()

    bucket = boto3.resource("s3", region_name=TOPOLOGY["region"]).Bucket(BUCKET)
    bucket.create()
    sandbox("join", SPARE)
    times: dict[str, list[dict[str, float]]] = {"new node": [], "new bundle": [], "all there": []}
    try:
        with tempfile.TemporaryDirectory() as folder:
            command = publish(Path(folder))
        times["new node"].append(measured(command))
        for _round in range(arguments.rounds):
            times["all there"].append(measured(command))
            sandbox("exec", SPARE, f"rm -rf {OPT}/*")
            times["new bundle"].append(measured(command))
    finally:
        sandbox("leave", SPARE)
        bucket.objects.all().delete()
        bucket.delete()
    median = {
        kind: {what: statistics.median(one[what] for one in found) for what in ("first task", "end")}
        for kind, found in times.items()
    }
    print("seconds from the start of bootstrap.sh   to the first task   to the end")
    for kind, found in median.items():
        print(f"  {kind:<38} {found['first task']:>17.1f} {found['end']:>12.1f}")
    result: dict[str, Any] = {"seconds": times, "median": median}
    result["ratio"] = median["all there"]["end"] / median["new node"]["end"]
    print(f"a node that has everything / a new node: {result['ratio']:.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
