#!/usr/bin/env python3
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a push of site costs the machine that it comes from, and what it prints, with 20 and with 100 GPU nodes.

site.yml, its roles, Ansible's executor and its default callback are the real ones, with inventory/ansible.cfg. Only
what a node would do is made up: what a module answers is known in advance, so that none is sent. CPU time is that of
the process that drives the run. It is not the wall clock, which other work on this machine lengthens.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import figures
from figures import Figure

ROOT = Path(__file__).resolve().parents[2]
PLAY = "pcluster.postboot.site"
FORKS = 50  # of inventory/ansible.cfg
WIDTH = 160  # columns of the screen
# Nodes, and the component that is run: all, but for 100 nodes, with which those would take minutes. One node tells
# what a run takes to read its roles, however many nodes there are.
RUNS = ((1, ""), (20, ""), (1, "node_exporter"), (100, "node_exporter"))
# Seconds of a task on a node. SSM opens a session for each: ansible-collections/community.aws, issue 2209 (3 s more for
# each task) and 1853 (10 s for one `file`). SSH with pipelining: one to two. connections.py measures what a task takes
# at least, without the way to AWS: 1.7 s and 0.25 s.
SECONDS = {"SSM": 8.0, "SSH": 1.5}


# In the process that drives the run


# Modules that only look.
LOOKS = {"dcgm_check", "efa_check", "node_facts", "ofi_plugin", "pyxis_check", "shared_build"}


def answer(name: str, args: dict[str, Any]) -> dict[str, Any]:
    """What a module answers on a p5 node of ParallelCluster's AMI in a first run: all that can be changed is."""
    said: dict[str, Any] = {"changed": name not in LOOKS and args.get("state") != "planned"}
    plan = {"due": True, "install": True, "stays": True, "enough": True, "left": False, "leaving": [], "version": "1.0"}
    if name == "node_run":
        return {"changed": False, "taken": True, "held": False, "packages": [], "msg": "the node is ours"}
    if name == "docker_config":
        return {**said, "hold": False, "data_root": "/scratch/docker", "install": plan}
    if name == "nvidia_ctk":
        return {**said, "hold": False, "docker": True}
    if name == "packages" and args.get("state") == "planned":
        # The AMI has Enroot, DCGM and the CloudWatch agent, and neither the toolkit nor DCGM's exporter.
        due = any("nvidia" in one or "exporter" in one for one in args["packages"])
        return {**said, **plan, "due": due, "install": due, "origin": "package"}
    if name == "efa_installer":
        return {"changed": False, "due": False, "pending": "", "summary": "EFA 1.49.0"}
    if name == "shared_build":
        return {**said, "published": True, "building": "", "due": False, "missing": []}
    if name == "stat":
        return {**said, "changed": False, "stat": {"exists": True, "isdir": True}}
    return said


def drive(facts: str, told: str, arguments: list[str]) -> int:
    """Run ansible-playbook here, in front of nodes that answer at once."""
    from ansible.cli.playbook import PlaybookCLI
    from ansible.executor.task_queue_manager import TaskQueueManager
    from ansible.plugins.action import ActionBase

    node = json.loads(Path(facts).read_text())

    def execute(self: Any, module_name: str = "", module_args: Any = None, **others: Any) -> dict[str, Any]:
        name = (module_name or self._task.action).rpartition(".")[2]
        args = self._task.args if module_args is None else module_args
        with open(f"{told}.calls", "a") as calls:  # of all forks
            calls.write(f"{others['task_vars']['inventory_hostname']}\n")
        if name == "node_facts":
            mine = {**node, "node_name": others["task_vars"]["inventory_hostname"]}
            return {"changed": False, "ansible_facts": {"pcluster": mine}}
        return answer(name, args)

    untouched = TaskQueueManager.run
    spent: list[float] = []

    def measured(self: Any, play: Any) -> Any:
        before = resource.getrusage(resource.RUSAGE_SELF)
        try:
            return untouched(self, play)
        finally:
            after = resource.getrusage(resource.RUSAGE_SELF)
            spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

    ActionBase._execute_module = execute
    TaskQueueManager.run = measured
    try:
        return int(PlaybookCLI(["ansible-playbook", *arguments]).run() or 0)
    finally:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        Path(told).write_text(json.dumps({"seconds": sum(spent), "memory": memory}))


# In the process that measures


def node_facts(root: Path) -> dict[str, Any]:
    """Read the GPU node of the unit tests as node_facts does, with as many devices as a p5 has."""
    sys.path.insert(0, str(ROOT / "tests"))
    from conftest import unpack_node_tree

    from ansible_collections.pcluster.postboot.plugins.module_utils._node import facts as _node

    tree = ROOT / "tests/unit/fixtures/nodes/compute-gpu-ubuntu2404.tree"
    facts = _node.read_node(str(unpack_node_tree(tree, root)))
    # The file systems that automount brings are not there before somebody looks.
    (fsx,) = (mount for mount in facts["mounts"]["wanted"] if mount["path"] == "/fsx")
    facts["mounts"]["found"].append({**fsx, "options": "rw"})
    facts["mounts"]["missing"] = []
    facts["gpus"]["count"] = 8
    facts["efa"].update(count=32, pci_count=32)
    return facts


class Run(NamedTuple):
    nodes: int
    seconds: float  # of CPU, of the process that drives it
    memory: float  # MB
    tasks: int  # of all nodes together
    sent: int  # of those, what a node has to do
    lines: list[str]

    @property
    def on_screen(self) -> int:
        """Lines of a screen: a longer one takes several."""
        return sum(max(1, -(-len(line) // WIDTH)) for line in self.lines)

    @property
    def after_the_table(self) -> list[str]:
        """What follows the table's last line."""
        (end,) = (at for at, line in enumerate(self.lines) if line.startswith("pcluster.postboot: "))
        return self.lines[end + 1 :]

    @property
    def table(self) -> list[str]:
        return self.lines[len(self.lines) - self.lines[::-1].index("") :]


def push(room: Path, nodes: int, tag: str) -> Run:
    # As the inventory calls nodes whose Slurm names it does not know: no two follow each other.
    hosts = {f"main-gpu-p5-{number * 2654435761 % 2**32:08x}": {} for number in range(1, nodes + 1)}
    general = {"ansible_connection": "local", "ansible_become": False}
    (room / "inventory.json").write_text(json.dumps({"all": {"hosts": hosts, "vars": general}}))
    told, calls = room / "told", room / "told.calls"
    calls.unlink(missing_ok=True)
    command = [sys.executable, __file__, "drive", room / "facts.json", told, "-i", room / "inventory.json", PLAY]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    environment.update(ANSIBLE_CONFIG=str(ROOT / "inventory/ansible.cfg"), COLUMNS=str(WIDTH))
    environment["ANSIBLE_COLLECTIONS_PATH"] = str(ROOT / ".venv/collections")
    done = subprocess.run(
        [*command, *(["--tags", tag] if tag else [])],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    counts = Counter()
    for word, count in re.findall(r"(ok|skipped|failed|unreachable|rescued)=(\d+)", done.stdout):
        counts[word] += int(count)
    if done.returncode or counts["failed"] or counts["rescued"]:
        sys.exit(f"site ended with {done.returncode}:\n{done.stdout[-3000:]}")
    measured = json.loads(told.read_text())
    tasks = counts["ok"] + counts["skipped"]
    sent = len(calls.read_text().splitlines())
    lines = done.stdout.rstrip("\n").splitlines()
    return Run(nodes, measured["seconds"], measured["memory"], tasks, sent, lines)


def each(one: Run, run: Run) -> float:
    """Return the seconds of CPU of one more host and task."""
    return (run.seconds - one.seconds) / (run.tasks - one.tasks)


def minutes(one: Run, run: Run, nodes: int, forks: int, seconds: float) -> float:
    """Work out how long a push takes: a task's turns on the nodes, or what this machine needs to start them."""
    remote, tasks = run.sent / run.nodes, run.tasks / run.nodes
    start = nodes * each(one, run)
    return (remote * max(start, -(-nodes // forks) * seconds) + (tasks - remote) * start) / 60


def figures_of(one: Run, first: Run, one_component: Run, many: Run) -> list[Figure]:
    found = [
        Figure("tasks of a node", first.tasks / first.nodes),
        Figure("… of which it has to do something", first.sent / first.nodes),
    ]
    for alone, run in ((one, first), (one_component, many)):
        what = f"CPU of the parent a host and task, {run.nodes} nodes with {run.tasks / run.nodes:.0f} tasks"
        found.append(Figure(what, 1000 * each(alone, run), "ms", at_most=10))
    found.append(Figure(f"memory of the parent, {many.nodes} nodes", many.memory, "MB"))
    # A first run says most: a later one changes nothing.
    for run in (first, many):
        found.append(Figure(f"lines a host, {run.nodes} nodes", run.on_screen / run.nodes, at_most=20))
    for run in (first, many):
        found.append(Figure(f"lines after the table, {run.nodes} nodes", len(run.after_the_table), at_most=5))
    found.append(Figure(f"widest line of the report, {many.nodes} nodes", max(map(len, many.table)), "characters"))
    for nodes in (30, 100, 1000):
        for way, seconds in SECONDS.items():
            for forks in (5, FORKS):
                name = f"minutes by {way}, {nodes} nodes, {forks} forks"
                found.append(Figure(name, minutes(one, first, nodes, forks, seconds)))
    return found


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="bench-push-") as folder:
        room = Path(folder)
        (room / "facts.json").write_text(json.dumps(node_facts(room / "node")))
        return figures_of(*(push(room, nodes, tag) for nodes, tag in RUNS))


if __name__ == "__main__":
    if sys.argv[1:2] == ["drive"]:
        sys.exit(drive(sys.argv[2], sys.argv[3], sys.argv[4:]))
    sys.exit(figures.run("A push of site to many nodes", measure, about=__doc__))
