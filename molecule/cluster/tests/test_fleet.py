# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""fleet.yml on every node, by Run Command and the nodes' agents, with a bundle that installs nothing.

A real one, its upgrade and the way back are in test_pull.py.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from testinfra.host import Host

from .bundles import bucket, of_one_script
from .helpers import Nodes, On, Play, ok, until, variables

BUCKET = "sandbox-fleet"
NOTES, OPT = "/run/fleet-test", "/opt/pcluster-postboot"
BOOTSTRAP = f"""#!/usr/bin/env bash
mkdir -p {NOTES}
date +%s.%N > {NOTES}/began
printf '%s\\n' "$@" > {NOTES}/args
echo "$(id -u) ${{HOME:-}} $(tty)" > {NOTES}/who
sleep 1
while [ -e {NOTES}/waits ]; do sleep 0.2; done
date +%s.%N > {NOTES}/ended
if [ -e {NOTES}/fails ]; then echo "pcluster-postboot: fsx failed: /fsx is not mounted" >&2; exit 1; fi
echo "pcluster-postboot: all is well"
"""


@pytest.fixture(scope="module")
def bundle() -> Iterator[dict[str, str]]:
    """What fleet.yml needs of a bundle: where it is, and its sha256."""
    with bucket(BUCKET) as found:
        yield of_one_script(found, BOOTSTRAP)


@pytest.fixture(autouse=True)
def _clean(on: On, nodes: Nodes) -> Iterator[None]:
    yield
    for name in nodes:
        on(name).check_output(f"rm -rf {NOTES}; mkdir -p {OPT}; rmdir --ignore-fail-on-non-empty {OPT}")


def when(host: Host, what: str) -> float:
    return float(host.file(f"{NOTES}/{what}").content_string)


def test_check_mode_sends_nothing(on: On, play: Play, nodes: Nodes, bundle: dict[str, str]) -> None:
    result = ok(play("--check", *variables(**bundle), name="fleet"))
    assert "would send test to 2 head nodes, 2 at a time: el-head,head" in result.stdout
    assert not [name for name in nodes if on(name).file(NOTES).exists]


def test_every_node_runs_it_and_head_nodes_first(
    on: On, play: Play, nodes: Nodes, bundle: dict[str, str], tmp_path: Path
) -> None:
    report = tmp_path / "it.json"
    options = {**bundle, "fleet_concurrency": "100%", "fleet_args": "--mode cpu", "fleet_report": str(report)}
    result = ok(play(*variables(**options), name="fleet"))
    assert f"pcluster.postboot: {len(nodes)} nodes, 0 changed, 0 failed" in result.stdout
    assert {one["state"] for one in json.loads(report.read_text())["nodes"].values()} == {"ok"}
    assert not report.with_suffix(".limit").exists(), "nothing is left"
    for cluster in {node["cluster"] for node in nodes.values()}:
        ours = {name: node["type"] for name, node in nodes.items() if node["cluster"] == cluster}
        heads = [name for name, kind in ours.items() if kind == "HeadNode"]
        others = [name for name in ours if name not in heads]
        assert max(when(on(name), "ended") for name in heads) < min(when(on(name), "began") for name in others)
    for name in nodes:
        args = on(name).file(f"{NOTES}/args").content_string.split()
        assert args[2:4] == ["--sha256", bundle["fleet_sha256"]]
        assert args[-4:] == ["--defer", "no", "--mode", "cpu"]
        # The script runs as root, and with as few variables as SSM's agent gives.
        assert on(name).file(f"{NOTES}/who").content_string.split() == ["0", "not", "a", "tty"]
        assert on(name).run(f"ls -d {OPT}/.fleet.*").rc != 0


def test_a_failure_stops_it_and_a_second_run_goes_on_with_the_rest(
    on: On, play: Play, nodes: Nodes, bundle: dict[str, str], tmp_path: Path
) -> None:
    on("head").check_output(f"mkdir {NOTES} && touch {NOTES}/fails")
    report = tmp_path / "it.json"
    options = json.dumps({**bundle, "fleet_report": str(report)})
    result = play("-e", options, "--limit", "head,login", name="fleet")
    assert result.returncode == 2
    assert "stopped on head: fsx failed: /fsx is not mounted" in result.stdout
    assert "not sent to login: stopped after 1 failure (fleet_max_errors is 0)" in result.stdout
    assert "pcluster.postboot: 2 nodes, 0 changed, 1 failed" in result.stdout
    assert [name for name in nodes if on(name).file(NOTES).exists] == ["head"]
    assert "2 of 2 nodes do not run test, for the reasons above" in result.stdout
    limit = report.with_suffix(".limit")
    assert limit.read_text().split() == ["head", "login"]
    on("head").check_output(f"rm {NOTES}/fails")
    result = ok(play("-e", options, "--limit", f"@{limit}", name="fleet"))
    assert on("login").file(f"{NOTES}/ended").exists
    assert not limit.exists()


def test_nothing_more_is_sent_after_its_terminal_is_closed(
    on: On, command: Callable[..., list[str]], bundle: dict[str, str], tmp_path: Path
) -> None:
    """Ansible is ended by that; the process that runs the action ends itself, and with it the output."""
    report = tmp_path / "it.json"
    options = json.dumps({**bundle, "fleet_concurrency": "1", "fleet_report": str(report)})
    line = command("ansible-playbook", "pcluster.postboot.fleet", "-e", options, "--limit", "head,login")
    on("head").check_output(f"mkdir {NOTES} && touch {NOTES}/waits")
    # Because `nohup make test` has every program that it starts ignore a closed terminal.
    line = ["env", "--default-signal=HUP", *line]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        until(lambda: on("head").file(f"{NOTES}/began").exists, 30)
        run.send_signal(signal.SIGHUP)
        said, _nothing = run.communicate(timeout=60)
    on("head").check_output(f"rm {NOTES}/waits")
    until(lambda: on("head").file(f"{NOTES}/ended").exists, 30)
    assert "fleet was interrupted after" in said
    assert "were not sent it (1): login" in said
    told = json.loads(report.read_text())["nodes"]
    assert {name: one["state"] for name, one in told.items()} == {"head": "running", "login": "not sent"}
    assert report.with_suffix(".limit").read_text().split() == ["head", "login"]
    assert not on("login").file(NOTES).exists
