# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a run does when something is wrong: killed, met by another, given bad input, or started on the wrong machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .helpers import Command, Killed, On, Play, Run, failed, ok, process, variables


def changed(output: str) -> int:
    """The number of changed tasks in the report's last line."""
    return int(re.findall(r"^pcluster\.postboot: .*?(\d+) changed", output, re.M)[-1])


@pytest.mark.parametrize(
    ("tags", "latest"), [(("--tags", "docker,node_exporter"), 8), pytest.param((), 12, marks=pytest.mark.long)]
)
def test_rerun_after_a_kill_completes(
    on: On, play: Play, command: Command, killed: Killed, tags: tuple[str, ...], latest: float
) -> None:
    """kill -9 of the whole play while it installs node_exporter anew; the next plain run finishes what is left."""
    run = ("--limit", "cpu-st-c5-1", *tags)
    node = on("cpu-st-c5-1")
    node.check_output("systemctl disable --now node_exporter")
    node.check_output("rm /etc/systemd/system/node_exporter.service /usr/local/bin/node_exporter")
    killed(command("ansible-playbook", "pcluster.postboot.site", *run), 2, latest)
    ok(play(*run))
    assert "nodename" in node.check_output("curl -sf http://localhost:9100/metrics")
    assert changed(play(*run).stdout) == 0


def test_service_that_was_never_restarted_is_restarted(on: On, play: Play) -> None:
    """A binary put in place by a run that died before its restart: the next run restarts the service by itself."""
    node = on("cpu-st-c5-1")
    before = process(node, "node_exporter")
    node.check_output(
        "cp /usr/local/bin/node_exporter /usr/local/bin/.new && mv /usr/local/bin/.new /usr/local/bin/node_exporter"
    )
    result = ok(play("--limit", "cpu-st-c5-1", "--tags", "node_exporter"))
    assert process(node, "node_exporter") != before
    # The table is what a run ends with.
    assert result.stdout.rstrip().splitlines()[-1].startswith("pcluster.postboot: 1 node, "), result.stdout[-3000:]


@pytest.mark.long
def test_essential_that_fails_stops_the_node(play: Play) -> None:
    """A file system of another type than expected: fsx fails, the rest does not run, the exit code is not 0."""
    result = failed(play("--limit", "login", *variables(fsx_fstypes=["lustre"])))
    assert re.search(r"failed on login: fsx: .*lustre", result.stdout), result.stdout[-3000:]
    assert re.search(r"^node_exporter +skipped", result.stdout, re.M), result.stdout[-3000:]


@pytest.mark.long
def test_telemetry_that_fails_is_reported_and_not_fatal(play: Play) -> None:
    wrong = variables(node_exporter_sha256={"x86_64": "0" * 64, "aarch64": ""})
    result = ok(play("--limit", "login", *wrong))
    assert re.search(r"failed on login: node_exporter: .*sha256", result.stdout), result.stdout[-3000:]
    failed(play("--limit", "login", *wrong, *variables(common_all_essential=True)))
    ok(play("--limit", "login"))


def anywhere(*arguments: str) -> Run:
    """Run site.yml without the sandbox's inventory and settings, but for where the collection is."""
    environment = {name: value for name, value in os.environ.items() if name != "ANSIBLE_CONFIG"}
    environment["ANSIBLE_COLLECTIONS_PATH"] = str(Path(sys.executable).parent.parent / "collections")
    line = [Path(sys.executable).parent / "ansible-playbook", *arguments, "pcluster.postboot.site"]
    return subprocess.run(line, cwd="/", env=environment, text=True, capture_output=True, timeout=120, check=False)


def test_machine_that_is_no_node_is_refused() -> None:
    here = f"ansible_become=false ansible_python_interpreter={sys.executable}"
    result = failed(anywhere("--inventory", "localhost,", "--connection", "local", "-e", here))
    assert re.search(r"no(t a)? ParallelCluster", result.stdout), result.stdout[-2000:]


def test_inventory_without_a_node_is_no_success() -> None:
    result = failed(anywhere())
    assert "The inventory lists no node" in result.stdout


@pytest.mark.parametrize(("arguments", "said"), [([], "/root root"), (["AS=ubuntu"], "/home/ubuntu ubuntu")])
def test_make_node_runs_a_command_as_it_is(arguments: list[str], said: str) -> None:
    root = Path(__file__).resolve().parents[3]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    line = ["make", "--directory", str(root), "--no-print-directory", "node", "NODE=head", *arguments]
    done = subprocess.run(
        [*line, 'CMD=echo "$HOME" $(whoami)'], env=environment, text=True, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, said), done.stderr
    other = subprocess.run([*line, "CMD=exit 7"], env=environment, text=True, capture_output=True, check=False)
    assert other.returncode != 0
    assert "Error 7" in other.stderr
