#!/usr/bin/env python3
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Measure site.yml on the sandbox: remote tasks, cold and repeated runs against plain bash, and downloads a cluster.

Needs the sandbox (make sandbox). Each cold round boots a spare node anew, once for Ansible and once for the script
that does the same work from the same mirror; both reach it over SSH. Ratios come from one run, alternating, by medians.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
SCENARIO = ROOT / "molecule/cluster"
STATE = ROOT / ".sandbox"
TOPOLOGY = yaml.safe_load((SCENARIO / "topology.yml").read_text())
SPARE = "burst-dy-c5-1"
# Actions that run on the controller: they cost a node nothing.
LOCAL = {
    "ansible.builtin.assert",
    "ansible.builtin.debug",
    "ansible.builtin.fail",
    "ansible.builtin.import_role",
    "ansible.builtin.include_role",
    "ansible.builtin.include_tasks",
    "ansible.builtin.meta",
    "ansible.builtin.set_fact",
    "ansible.builtin.validate_argument_spec",
    "pcluster.postboot.check_variables",
    "pcluster.postboot.report",
}
ENVIRONMENT = {
    **os.environ,
    "ANSIBLE_CONFIG": str(SCENARIO / "ansible.cfg"),
    "AWS_ENDPOINT_URL": f"http://{TOPOLOGY['services']['aws']['address']}:5000",
    "AWS_ACCESS_KEY_ID": "sandbox",
    "AWS_SECRET_ACCESS_KEY": "sandbox",
    "CONTAINERS_CONF": str(STATE / "containers.conf"),
}


def run(*line: str | Path, **environment: str) -> str:
    """Run a program to its end and return what it printed; a failure ends the benchmark with its last words."""
    done = subprocess.run(line, env={**ENVIRONMENT, **environment}, text=True, capture_output=True, check=False)
    if done.returncode:
        sys.exit(f"{line[0]} {line[1]} … failed:\n{(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


def site(*arguments: str, **environment: str) -> str:
    program = Path(sys.executable).parent / "ansible-playbook"
    return run(program, "-i", STATE / "inventory", "pcluster.postboot.site", *arguments, **environment)


def sandbox(*arguments: str) -> str:
    return run(sys.executable, SCENARIO / "sandbox.py", *arguments)


def remote_tasks() -> dict[str, int]:
    """The remote tasks of each component on the node that has most of them."""
    output = site(ANSIBLE_STDOUT_CALLBACK="ansible.posix.json", ANSIBLE_CALLBACK_RESULT_FORMAT="json")
    plays = json.loads(output[output.index("{\n") :])["plays"]
    counts: dict[str, Counter[str]] = {}
    for task in (task for play in plays for task in play["tasks"]):
        match = re.match(r"pcluster\.postboot\.(\w+) : ", task["task"]["name"])
        component = match.group(1) if match else "the run itself"
        for host, result in task["hosts"].items():
            if result.get("action") not in LOCAL and not result.get("skipped"):
                counts.setdefault(component, Counter())[host] += 1
    return {component: max(hosts.values()) for component, hosts in counts.items()}


def requests() -> Counter[str]:
    """How often each of the mirror's files was fetched since it was started."""
    log = run("podman", "logs", "postboot-mirror")
    return Counter(re.findall(r'"GET (\S+\.(?:tar\.gz|deb|rpm)) HTTP/[\d.]+" 200', log))


def timed(action: Any) -> float:
    start = time.monotonic()
    action()
    return time.monotonic() - start


def fresh_node() -> str:
    """Boot the spare anew and return its address."""
    sandbox("leave", SPARE)
    return sandbox("join", SPARE).strip().rsplit(" ", 1)[1]


def shell_script(address: str) -> None:
    """What site.yml does for a CPU node, as plain bash."""
    pins = json.loads((STATE / "mirror/pins.json").read_text())
    script = (Path(__file__).parent / "site.sh").read_text()
    assignments = ""
    for name, pin in ((name.upper(), pin) for name, pin in pins.items() if "version" in pin):
        hashes = pin.get("sha256", "")
        assignments += f"{name}_VERSION={pin['version']}\n"
        for file, sha256 in hashes.items() if isinstance(hashes, dict) else [("", hashes)]:
            assignments += f"{name}_{file.upper()}{'_' if file else ''}SHA256={sha256}\n"
    options = [
        "-i",
        STATE / "ssh/id",
        "-o",
        f"UserKnownHostsFile={STATE}/ssh/known_hosts.bench",
        "-o",
        "LogLevel=ERROR",
    ]
    line = ["ssh", *options, "-o", "StrictHostKeyChecking=no", f"ubuntu@{address}", "sudo", "bash", "-s"]
    done = subprocess.run(line, input=assignments + script, text=True, capture_output=True, check=False)
    if done.returncode:
        sys.exit(f"the shell script failed:\n{(done.stdout + done.stderr)[-2000:]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="cold rounds of each kind (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the result there as well")
    arguments = parser.parse_args()

    result: dict[str, Any] = {"remote_tasks": remote_tasks()}
    print("remote tasks on the busiest node (reach: at most 6 a component)")
    for component, count in result["remote_tasks"].items():
        print(f"  {component:<16} {count}")

    seconds: dict[str, list[float]] = {"site cold": [], "site repeated": [], "shell cold": []}
    cache = "rm -rf /fsx/software/.cache"
    for number in range(arguments.rounds):
        fresh_node()
        sandbox("exec", "head", cache)
        seconds["site cold"].append(timed(lambda: site("--limit", SPARE)))
        seconds["site repeated"].append(timed(lambda: site("--limit", SPARE)))
        address = fresh_node()
        seconds["shell cold"].append(timed(lambda address=address: shell_script(address)))
        print(f"  round {number + 1}: " + ", ".join(f"{name} {times[-1]:.1f} s" for name, times in seconds.items()))
    sandbox("leave", SPARE)
    median = {name: statistics.median(times) for name, times in seconds.items()}
    result |= {"seconds": seconds, "cold ratio": median["site cold"] / median["shell cold"]}
    result["repeated ratio"] = median["site repeated"] / median["shell cold"]
    print(f"site.yml cold / plain bash cold on one node: {result['cold ratio']:.2f} (reach: at most 1.5)")
    print(f"site.yml repeated / plain bash cold: {result['repeated ratio']:.2f}")

    before = requests()
    sandbox("exec", "head", cache + "; rm -f /usr/local/bin/node_exporter")
    for name in ("login", "gpu-st-p5-1", "cpu-st-c5-1"):
        sandbox("exec", name, "rm -f /usr/local/bin/node_exporter")
    site("--limit", "pcluster_cluster_main", "--tags", "node_exporter")
    result["downloads"] = sum(count for path, count in (requests() - before).items() if "node_exporter" in path)
    print(f"downloads of node_exporter when the 4 nodes of a cluster need it at once: {result['downloads']} (reach: 1)")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
