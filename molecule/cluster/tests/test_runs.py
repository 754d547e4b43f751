# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a run does when something is wrong: killed, met by another, given bad input, or started on the wrong machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from testinfra.host import Host

On = Callable[[str], Host]
Play = Callable[..., subprocess.CompletedProcess[str]]
Command = Callable[..., list[str]]
Killed = Callable[[list[str], float, float], None]


def changed(output: str) -> int:
    """The number of changed tasks in the report's last line."""
    return int(re.findall(r"^pcluster\.postboot: .*?(\d+) changed", output, re.M)[-1])


@pytest.mark.parametrize("_time", [0, pytest.param(1, marks=pytest.mark.long)])
def test_rerun_after_a_kill_completes(on: On, play: Play, command: Command, killed: Killed, _time: int) -> None:
    """kill -9 of the whole play while it installs node_exporter anew; the next plain run finishes what is left."""
    node = on("cpu-st-c5-1")
    node.check_output("systemctl disable --now node_exporter")
    node.check_output("rm /etc/systemd/system/node_exporter.service /usr/local/bin/node_exporter")
    killed(command("ansible-playbook", "pcluster.postboot.site", "--limit", "cpu-st-c5-1"), 2, 12)
    again = play("--limit", "cpu-st-c5-1")
    assert again.returncode == 0, again.stdout[-3000:]
    assert "nodename" in node.check_output("curl -sf http://localhost:9100/metrics")
    assert changed(play("--limit", "cpu-st-c5-1").stdout) == 0


def test_service_that_was_never_restarted_is_restarted(on: On, play: Play) -> None:
    """A binary put in place by a run that died before its restart: the next run restarts the service by itself."""
    node = on("cpu-st-c5-1")
    before = node.check_output("systemctl show --property=MainPID --value node_exporter")
    node.check_output(
        "cp /usr/local/bin/node_exporter /usr/local/bin/.new && mv /usr/local/bin/.new /usr/local/bin/node_exporter"
    )
    result = play("--limit", "cpu-st-c5-1", "--tags", "node_exporter")
    assert result.returncode == 0, result.stdout[-3000:]
    assert node.check_output("systemctl show --property=MainPID --value node_exporter") != before
    # The table is what a run ends with.
    assert result.stdout.rstrip().splitlines()[-1].startswith("pcluster.postboot: 1 node, "), result.stdout[-3000:]


def test_second_run_names_the_holder(play: Play, command: Command) -> None:
    """While one run works on a node, another that will not wait leaves with one line."""
    first = subprocess.Popen(
        command("ansible-playbook", "pcluster.postboot.site", "--limit", "login"), stdout=subprocess.PIPE, text=True
    )
    assert first.stdout
    for line in first.stdout:
        if "TASK [" in line and "lock" in line:
            break
    time.sleep(2)
    second = play("--limit", "login", "-e", "common_lock_timeout=0")
    first.communicate(timeout=120)
    assert first.returncode == 0
    assert second.returncode != 0
    assert re.search(r"held by .*pid", second.stdout), second.stdout[-3000:]


def test_misspelt_variable_stops_before_anything_is_touched(on: On, play: Play) -> None:
    result = play("--limit", "login", "-e", "node_exporter_prot=9100")
    assert result.returncode != 0
    assert re.search(r"node_exporter_prot\b.*", result.stdout)
    assert "The binary is the pinned one" not in result.stdout


def test_essential_that_fails_stops_the_node(play: Play) -> None:
    """A file system of another type than expected: fsx fails, the rest does not run, the exit code is not 0."""
    result = play("--limit", "login", "-e", '{"fsx_fstypes": ["lustre"]}')
    assert result.returncode != 0
    assert re.search(r"failed on login: fsx: .*lustre", result.stdout), result.stdout[-3000:]
    assert re.search(r"^node_exporter +skipped", result.stdout, re.M), result.stdout[-3000:]


@pytest.mark.long
def test_telemetry_that_fails_is_reported_and_not_fatal(play: Play) -> None:
    result = play("--limit", "login", "-e", '{"node_exporter_sha256": {"x86_64": "' + "0" * 64 + '", "aarch64": ""}}')
    assert result.returncode == 0
    assert re.search(r"failed on login: node_exporter: .*sha256", result.stdout), result.stdout[-3000:]
    strict = play(
        "--limit",
        "login",
        "-e",
        '{"common_all_essential": true, "node_exporter_sha256": {"x86_64": "' + "0" * 64 + '", "aarch64": ""}}',
    )
    assert strict.returncode != 0
    assert play("--limit", "login").returncode == 0


def anywhere(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run site.yml without the sandbox's inventory and settings, but for where the collection is."""
    environment = {name: value for name, value in os.environ.items() if name != "ANSIBLE_CONFIG"}
    environment["ANSIBLE_COLLECTIONS_PATH"] = str(Path(sys.executable).parent.parent / "collections")
    line = [Path(sys.executable).parent / "ansible-playbook", *arguments, "pcluster.postboot.site"]
    return subprocess.run(line, cwd="/", env=environment, text=True, capture_output=True, timeout=120, check=False)


def test_machine_that_is_no_node_is_refused() -> None:
    result = anywhere(
        "--inventory",
        "localhost,",
        "--connection",
        "local",
        "-e",
        f"ansible_become=false ansible_python_interpreter={sys.executable}",
    )
    assert result.returncode != 0
    assert re.search(r"no(t a)? ParallelCluster", result.stdout), result.stdout[-2000:]


def test_inventory_without_a_node_is_no_success() -> None:
    result = anywhere()
    assert result.returncode != 0
    assert "The inventory lists no node" in result.stdout


def test_tags_list_the_components(command: Command) -> None:
    result = subprocess.run(
        command("ansible-playbook", "pcluster.postboot.site", "--list-tags"),
        text=True,
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert {"fsx", "node_exporter"} <= set(re.findall(r"\w+", result.stdout.rsplit("TASK TAGS", 1)[1]))


@pytest.mark.parametrize(("arguments", "said"), [([], "/root root"), (["AS=ubuntu"], "/home/ubuntu ubuntu")])
def test_make_node_runs_a_command_as_it_is(arguments: list[str], said: str) -> None:
    root = Path(__file__).resolve().parents[3]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    line = ["make", "--directory", str(root), "--no-print-directory", "node", "NODE=head", *arguments]
    done = subprocess.run(
        [*line, 'CMD=echo "$HOME" $(whoami)'], env=environment, text=True, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, said), done.stderr
    failed = subprocess.run([*line, "CMD=exit 7"], env=environment, text=True, capture_output=True, check=False)
    assert failed.returncode != 0
    assert "Error 7" in failed.stderr
