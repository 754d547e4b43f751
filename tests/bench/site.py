#!/usr/bin/env python3
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How long a node takes to be converged on the sandbox: pushed, pulled, and by plain bash, cold and once more.

Needs the sandbox (make sandbox). A spare node boots anew for each cold round: once for Ansible over SSH, once for
bootstrap.sh with a bundle from S3, and once for the script that does the same work from the same mirror. A fourth boot
is that of a node whose image was baked; with --baked only this one and a cold pull are measured. Ratios come from one
run, alternating, by medians.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import yaml
from figures import Figure
from figures import run as run_benchmark

ROOT = Path(__file__).resolve().parent.parent.parent
SCENARIO = ROOT / "molecule/cluster"
STATE = ROOT / ".sandbox"
TOPOLOGY = yaml.safe_load((SCENARIO / "topology.yml").read_text())
SPARE, BUCKET, ROUNDS = "burst-dy-c5-1", "sandbox-bench", 3
OPT, LOG = "/opt/pcluster-postboot", "/var/log/pcluster-postboot/pull.log"
COLD, BAKED = "pull, cold, nothing deferred", "pull, from an image, nothing deferred"
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
    "pcluster.postboot.wait_for_publisher",
}
os.environ |= {
    "ANSIBLE_CONFIG": str(SCENARIO / "ansible.cfg"),
    "AWS_ENDPOINT_URL": f"http://{TOPOLOGY['services']['aws']['address']}:5000",
    "AWS_ACCESS_KEY_ID": "sandbox",
    "AWS_SECRET_ACCESS_KEY": "sandbox",
    "CONTAINERS_CONF": str(STATE / "containers.conf"),
}


class Measured(NamedTuple):
    seconds: dict[str, list[float]]
    changes: dict[str, list[dict[str, int]]]  # how many tasks of each component have changed the node


def run(*line: str | Path, **environment: str) -> str:
    """Run a program to its end and return what it printed; a failure ends the benchmark with its last words."""
    done = subprocess.run(line, env={**os.environ, **environment}, text=True, capture_output=True, check=False)
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
    """Boot the spare anew, with nothing in the cluster's cache, and return its address."""
    sandbox("leave", SPARE)
    sandbox("exec", "head", "rm -rf /fsx/software/.cache")
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


@contextmanager
def published() -> Iterator[str]:
    """Publish a bundle, and give the words with which a node takes it."""
    bucket = boto3.resource("s3", region_name=TOPOLOGY["region"]).Bucket(BUCKET)
    bucket.create()
    try:
        with tempfile.TemporaryDirectory() as folder:
            sandbox("variables", f"{folder}/group_vars")
            options = {
                "publish_s3": f"s3://{BUCKET}/bundles",
                "publish_dir": str(STATE / "publish"),
                "publish_group_vars": f"{folder}/group_vars",
                "publish_pythons": ["3.11"],
                "publish_architectures": ["x86_64"],
            }
            program = Path(sys.executable).parent / "ansible-playbook"
            text = run(program, "pcluster.postboot.publish", "-e", json.dumps(options))
        config = yaml.safe_load(re.split(r"^(?:TASK|ok:) ", text[text.index("# pcluster.postboot ") :], flags=re.M)[0])
        action = config["Scheduling"]["SlurmQueues"][0]["CustomActions"]["OnNodeConfigured"]
        fetch = f"aws s3 cp --only-show-errors {action['Script']} /root/bootstrap.sh && chmod +x /root/bootstrap.sh"
        yield f"{fetch} && /root/bootstrap.sh {' '.join(action['Args'])}"
    finally:
        bucket.objects.all().delete()
        bucket.delete()


def pull(command: str) -> float:
    """Run bootstrap.sh on the spare; return its seconds, once what it deferred has ended too."""
    seconds = timed(lambda: sandbox("exec", SPARE, command))
    wait = "until [ $(systemctl show -p ActiveState --value pcluster-postboot) = inactive ]; do sleep 0.2; done"
    sandbox("exec", SPARE, f"timeout 300 sh -c '{wait}'")
    return seconds


def to_first_task() -> float:
    """Return the seconds from the start of bootstrap.sh to Ansible's first task, of the last boot."""
    boot = sandbox("exec", SPARE, f"grep ' pull: ' {LOG}").split("site begins: phase boot")[-1]
    found = re.search(r"the first task begins after ([\d.]+) s", boot)
    assert found, boot
    return float(found[1])


def changes() -> dict[str, int]:
    """Return how many tasks of each component have changed something in the spare's last run."""
    report = json.loads(sandbox("exec", SPARE, "cat /var/lib/pcluster-postboot/report.json"))
    return {entry["name"]: entry["changed"] for entry in report["components"] if entry["changed"]}


def boot(name: str, command: str, measured: Measured) -> None:
    """Configure the spare by a pull that defers nothing."""
    measured.seconds[name].append(pull(f"{command} --defer no"))
    measured.changes[name].append(changes())


def bake(command: str, measured: Measured) -> None:
    """Make the spare what a node is that boots from an image with the bundle, and let the node finish its boot."""
    fresh_node()
    measured.seconds["bake"].append(timed(lambda: sandbox("exec", SPARE, f"{command} --bake")))
    sandbox("exec", "head", "rm -rf /fsx/software/.cache")  # which the bake has filled, as no build instance does
    boot(BAKED, command, measured)


def left(measured: Measured) -> list[Figure]:
    """What a node of an image has left to do."""
    seconds = {name: statistics.median(measured.seconds[name]) for name in (COLD, BAKED)}
    counts = {name: statistics.median(sum(one.values()) for one in measured.changes[name]) for name in (COLD, BAKED)}
    return [
        *(
            Figure(f"tasks of {name} that an image leaves", count)
            for name, count in measured.changes[BAKED][-1].items()
        ),
        Figure(f"tasks that change the node, {COLD}", counts[COLD]),
        Figure(f"tasks that change the node, {BAKED}", counts[BAKED], at_most=counts[COLD] - 1),
        Figure(f"{BAKED} / {COLD}", seconds[BAKED] / seconds[COLD], at_most=1.0),
    ]


def downloads() -> int:
    """Return how often node_exporter is fetched when the four nodes of a cluster need it at once."""
    before = requests()
    sandbox("exec", "head", "rm -rf /fsx/software/.cache")
    for name in ("head", "login", "gpu-st-p5-1", "cpu-st-c5-1"):
        sandbox("exec", name, "rm -f /usr/local/bin/node_exporter")
    site("--limit", "pcluster_cluster_main", "--tags", "node_exporter")
    return sum(count for path, count in (requests() - before).items() if "node_exporter" in path)


def measure(baked: bool) -> list[Figure]:
    measured = Measured(defaultdict(list), defaultdict(list))
    if baked:
        try:
            with published() as command:
                for _round in range(ROUNDS):
                    fresh_node()
                    boot(COLD, command, measured)
                    bake(command, measured)
        finally:
            sandbox("leave", SPARE)
        medians = {name: statistics.median(times) for name, times in measured.seconds.items()}
        return [*(Figure(name, value, "s") for name, value in medians.items()), *left(measured)]
    tasks = remote_tasks()
    figures = [Figure(f"remote tasks of {component}", count, at_most=6) for component, count in tasks.items()]
    seconds = measured.seconds
    try:
        with published() as command:
            for number in range(ROUNDS):
                address = fresh_node()
                seconds["bash, cold"].append(timed(lambda address=address: shell_script(address)))
                fresh_node()
                seconds["push, cold"].append(timed(lambda: site("--limit", SPARE)))
                seconds["push, nothing to change"].append(timed(lambda: site("--limit", SPARE)))
                fresh_node()
                boot(COLD, command, measured)
                seconds["pull, nothing to change"].append(pull(command))
                seconds["pull, to the first task"].append(to_first_task())
                sandbox("exec", SPARE, f"rm -rf {OPT}/*")
                seconds["pull, a new bundle, nothing to change"].append(pull(command))
                bake(command, measured)
                print(
                    f"  round {number + 1}: "
                    + ", ".join(f"{name} {times[-1]:.1f} s" for name, times in seconds.items())
                )
    finally:
        sandbox("leave", SPARE)
    site()
    seconds["push to all nodes, nothing to change"] = [timed(site) for _round in range(ROUNDS)]
    median = {name: statistics.median(times) for name, times in seconds.items()}
    reach = {"pull, nothing to change": 5.0, "push to all nodes, nothing to change": 45.0}
    figures += [Figure(name, value, "s", at_most=reach.get(name)) for name, value in median.items()]
    for name in ("push, cold", COLD):
        figures.append(Figure(f"{name} / bash, cold", median[name] / median["bash, cold"], at_most=1.5))
    return [*figures, *left(measured), Figure("downloads of a file that 4 nodes need at once", downloads(), at_most=1)]


if __name__ == "__main__":
    sys.exit(run_benchmark("One node, and all of the sandbox", measure, baked="only what an image leaves to do"))
