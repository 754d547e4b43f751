# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Why a boot failed is told where ParallelCluster lets one look: bootstrap.sh, run by the stand-in of its executor."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.tests.unit.plugins import lab

ROOT = Path(__file__).resolve().parents[3]
EXECUTOR = ROOT / "molecule/cluster/standins/custom-actions/custom_action_executor.py"
BOOTSTRAP = ROOT / "roles/pull/files/bootstrap.sh"
URL = "s3://bucket/bootstrap.sh"
ARGS = ["--bundle", "s3://bucket/b.tar.gz", "--sha256", "abc"]
WHY = "--sha256 is 'abc'; needed: the 64 hexadecimal digits that publish has printed"


class Node:
    """A node that is a folder, with its part of the cluster's configuration."""

    def __init__(self, root: Path, kind: str) -> None:
        self.root, self.kind = root, kind
        # The script, or the status of the stack.
        print_or_copy = f'if [ "$file" = - ]; then printf UPDATE_IN_PROGRESS; else cp {BOOTSTRAP} "$file"; fi'
        lab.program(root / "bin/aws", f"#!/bin/sh\nfor file; do :; done\n{print_or_copy}\n")
        (root / "slurm_nodename").write_text("gpu-st-p5-1")
        text = EXECUTOR.read_text().replace("/etc/parallelcluster/slurm_plugin", str(root))
        (root / "executor.py").write_text(text.replace("/var/log/parallelcluster", str(root)))

    def run(self, event: str = "postinstall", arguments: list[str] = ARGS) -> subprocess.CompletedProcess[str]:
        names = {"postinstall": "OnNodeConfigured", "postupdate": "OnNodeUpdated"}
        part: dict[str, Any] = {"CustomActions": {names[event]: {"Script": URL, "Args": arguments}}}
        config = {
            "HeadNode": part,
            "LoginNodes": {"Pools": [{"Name": "login", **part}]},
            "Scheduling": {"SlurmQueues": [{"Name": "gpu", **part}]},
        }
        (self.root / "config.yaml").write_text(json.dumps(config))
        environment = {"PATH": f"{self.root}/bin:/usr/bin:/bin", "PCLUSTER_POSTBOOT_ROOT": str(self.root)}
        line = [sys.executable, self.root / "executor.py", f"-{event}", "-c", self.root / "config.yaml"]
        line += ["--stack-name", "main", "--node-type", self.kind, "--queue-name", "gpu", "--pool-name", "login"]
        return subprocess.run(line, env=environment, capture_output=True, text=True, check=False, timeout=60)

    @property
    def error(self) -> str:
        return (self.root / "bootstrap_error_msg").read_text()

    @property
    def line(self) -> str:
        """The line of bootstrap.sh."""
        return f"pcluster-postboot: {WHY}; see {self.root}/var/log/pcluster-postboot/pull.log\n"


@pytest.mark.parametrize("kind", ["HeadNode", "ComputeFleet", "LoginNode"])
def test_the_line_that_says_why_is_in_the_log_of_each_node_once(tmp_path: Path, kind: str) -> None:
    node = Node(tmp_path / "node", kind)
    done = node.run()
    assert done.returncode == 1
    assert done.stdout.startswith(node.line), done.stdout
    assert done.stdout.count(WHY) == 1
    assert WHY not in done.stderr
    assert f"Failed to execute OnNodeConfigured script 1 {URL}, return code: 1." in done.stdout
    if kind == "HeadNode":
        assert node.error.startswith("fetch_and_run - Failed to execute OnNodeConfigured script 1, return code: 1. ")
        assert WHY not in node.error
    else:
        told = json.loads(node.error)
        assert (told["node-role"], told["message"]) == (
            kind,
            "Failed to execute OnNodeConfigured script 1, return code: 1.",
        )
        assert told["detail"]["error"] == {"exit_code": 1, "stderr": node.line}


def test_a_failing_update_leaves_the_line_in_the_log_alone(tmp_path: Path) -> None:
    node = Node(tmp_path / "node", "HeadNode")
    done = node.run("postupdate")
    assert (done.returncode, done.stdout.count(WHY)) == (1, 1)
    assert not (node.root / "bootstrap_error_msg").exists()


def test_the_script_is_run_whatever_its_hash(tmp_path: Path) -> None:
    node = Node(tmp_path / "node", "ComputeFleet")
    done = node.run(arguments=["--mode", "none"])
    assert (done.returncode, done.stdout) == (0, "pcluster-postboot: --mode is none: nothing is done\n")
    assert done.stderr.startswith(f"INFO:root:The hash of script {URL} is: ")
