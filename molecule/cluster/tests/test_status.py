# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""status.yml: of clusters that are up, and of a node that boots with a bundle, that fails, and that takes too long."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from .bundles import Bundle, queue_of, republish, update
from .conftest import host, unmanaged
from .helpers import Command, On, Play, Run, failed, joined, ok, until, variables

SPARE = "burst-dy-c5-1"
SLURM = "/opt/slurm/bin"
RECORD = "/opt/slurm/pcluster-postboot/boots"


def once(play: Play, *options: str, **more: Any) -> Run:
    return play(*options, *variables(status_wait=False, **more), name="status")


def test_of_clusters_that_are_up_all_nodes_are_up(play: Play, tmp_path: Path) -> None:
    file = tmp_path / "status.json"
    # With the default, which ends at once where all are up.
    done = ok(play(*variables(status_json=str(file), status_timeout=60), name="status"))
    seen = {one["cluster"]: one for one in json.loads(file.read_text())["clusters"]}
    assert set(seen) == {"main", "el"}
    stages = {node["name"]: node["stage"] for one in seen.values() for node in one["nodes"] if node["stage"] != "off"}
    assert {stages[name] for name in ("head", "cpu-st-c5-1", "gpu-st-p5-1", "el-cpu-st-c5-1")} == {"up"}
    assert set(stages.values()) == {"up"}
    assert {node["kind"] for node in seen["main"]["nodes"]} >= {"head", "login", "compute"}
    # Another test's node may still be up.
    assert re.search(r"^main: (\d) of \1 nodes up; \d more are off$", done.stdout, re.M), done.stdout
    assert re.search(r"^el: 2 of 2 nodes up$", done.stdout, re.M)
    assert "changed=0" in done.stdout


def test_a_node_that_slurm_gave_up_fails_the_run_with_slurms_reason(play: Play, on: On) -> None:
    head, node = on("el-head"), "el-cpu-st-c5-1"
    with unmanaged("el-head"):
        head.check_output(f"{SLURM}/scontrol update nodename={node} state=down reason='a test of status'")
        try:
            done = failed(once(play, "--limit", "el-head"))
        finally:
            head.check_output(f"{SLURM}/scontrol update nodename={node} state=resume")
    assert re.search(rf"^failed: {node}: a test of status; ", done.stdout, re.M), done.stdout
    assert f"el: failed: {node} (a test of status; ParallelCluster replaces a static node" in " ".join(
        done.stdout.split()
    )
    state = f"{SLURM}/sinfo --noheader --nodes={node} --format=%T"
    until(lambda: head.check_output(state) == "idle", 60, f"{node} is up again")
    until(lambda: f"{node}: up" in ok(once(play, "--limit", "el-head")).stdout, 60, f"{node} is told to be up")


def test_without_a_head_node_nothing_is_asked(play: Play) -> None:
    done = failed(once(play, "--limit", "cpu-st-c5-1"))
    assert "cluster main: found no head node among the hosts; needed: the head node" in done.stdout


# A node that boots


@pytest.fixture
def watching(command: Command) -> Callable[..., subprocess.Popen[str]]:
    """A function that starts a watch of the cluster `main`, once its spare was asked for."""

    def started(seconds: int = 500) -> subprocess.Popen[str]:
        show = f"{SLURM}/scontrol -o show node {SPARE}"
        until(lambda: "POWERING_UP" in host("head").check_output(show), 300, f"{SPARE} is asked for")
        options = {"status_interval": 1, "status_timeout": seconds}
        line = command("ansible-playbook", "pcluster.postboot.status", "--limit", "head", "-e", json.dumps(options))
        return subprocess.Popen(line, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    return started


def steps(said: str) -> list[str]:
    """The stages of the spare, in the order in which they were printed."""
    found = re.findall(rf"^[\d:]+ main: {SPARE}: ([a-z ]+)", said, re.M)
    return [step for number, step in enumerate(found) if number == 0 or found[number - 1] != step]


@pytest.mark.long
def test_a_node_is_followed_from_its_launch_to_slurm(
    bundle: Bundle, watching: Callable[[], subprocess.Popen[str]]
) -> None:
    assert bundle.name
    with ThreadPoolExecutor(1) as pool:
        watch = pool.submit(watching)
        with joined(SPARE):
            process = watch.result()
            said, _none = process.communicate(timeout=600)
            record = host("head").check_output(f"cat {RECORD}/{SPARE}")
    assert process.returncode == 0, said
    found = steps(said)
    order = ["requested", "instance pending", "booting", "our run", "joining", "up"]
    assert found == [step for step in order if step in found], said
    assert {"booting", "our run", "up"} <= set(found), said
    assert re.search(rf"{SPARE}: our run: \w+, \d+ of \d+, boots for \d+ min \d\d s of 35 min 00 s", said), said
    assert re.search(r"^stage (later|waits|done)$", record, re.M), record


@pytest.fixture
def burst(publish: Callable[[str], dict[str, Any]], tmp_path: Path) -> Iterator[Callable[..., None]]:
    """A function that updates the cluster so that nodes of the queue `burst` boot with these actions."""

    def boots_with(*actions: dict[str, Any], **more: Any) -> None:
        queue = {**queue_of(publish("main"), "burst"), "CustomActions": {"OnNodeConfigured": {"Sequence": [*actions]}}}
        done = update("main", tmp_path, {"Scheduling": {"SlurmQueues": [queue]}, **more})
        assert done.stdout.endswith("main: UPDATE_COMPLETE\n"), done.stdout + done.stderr

    yield boots_with
    assert update("main", tmp_path, {}).returncode == 0


@pytest.fixture
def job() -> Iterator[Callable[[], None]]:
    """A function that submits a job which asks for the spare; the job is cancelled afterwards."""
    ids: list[str] = []

    def submitted() -> None:
        line = f"{SLURM}/sbatch --parsable --output=/dev/null -p burst -w {SPARE} --wrap hostname"
        ids.append(host("head").check_output(line).strip())

    yield submitted
    for one in ids:
        host("head").check_output(f"{SLURM}/scancel {one}")
    state = f"{SLURM}/sinfo --noheader --nodes={SPARE} --format=%T"
    until(lambda: host("head").check_output(state).strip() == "idle~", 400, f"{SPARE} is powered down")


@pytest.mark.long
def test_a_component_that_fails_a_boot_is_named_with_its_reason(
    burst: Callable[..., None], bundle: Bundle, s3: Any, job: Callable[[], None], watching: Callable[[], Any]
) -> None:
    broken = republish(s3, bundle, "94.0.0", {"enroot_version": "0.0.1"})
    burst(broken.action())
    job()
    # A job asks for the node again and again, so that the time is over before all nodes are up.
    said, _none = (process := watching(150)).communicate(timeout=300)
    assert process.returncode == 2, said
    line = re.search(rf"^[\d:]+ main: {SPARE}: failed \((.*)\)$", said, re.M)
    assert line, said
    assert re.search(r"enroot failed: .*enroot", line[1]), line[1]
    assert "see /var/log/pcluster-postboot/pull.log" in line[1]


@pytest.mark.long
def test_a_boot_that_takes_longer_than_parallelcluster_waits_is_told(
    burst: Callable[..., None], bundle: Bundle, s3: Any, job: Callable[[], None], watching: Callable[[], Any]
) -> None:
    s3.put_object(Key="bundles/slow.sh", Body=b'#!/bin/bash\nsleep "$1"\n')
    slow = {"Script": f"s3://{s3.name}/bundles/slow.sh", "Args": ["150"]}
    burst(slow, bundle.action(), DevSettings={"Timeouts": {"ComputeNodeBootstrapTimeout": 60}})
    job()
    process = watching()
    seen = (
        rf"^[\d:]+ main: {SPARE}: (booting, late, boots for 1 min \d\d s of 1 min 00 s|failed \(ResumeTimeout reached)"
    )
    said = ""
    for line in process.stdout:
        said += line
        if re.search(seen, line):
            break
    process.terminate()
    process.communicate(timeout=60)
    assert re.search(seen, said, re.M), said
