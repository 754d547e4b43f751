# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""fleet.yml on every node, by Run Command and the nodes' agents, with a bundle that installs nothing.

A real one, its upgrade and the way back are in test_pull.py.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from testinfra.host import Host

On = Callable[[str], Host]
Play = Callable[..., subprocess.CompletedProcess[str]]
Nodes = dict[str, dict[str, Any]]

BUCKET = "sandbox-fleet"
NOTES, OPT = "/run/fleet-test", "/opt/pcluster-postboot"
BOOTSTRAP = f"""#!/usr/bin/env bash
mkdir -p {NOTES}
date +%s.%N > {NOTES}/began
printf '%s\\n' "$@" > {NOTES}/args
echo "$(id -u) ${{HOME:-}} $(tty)" > {NOTES}/who
sleep 1
date +%s.%N > {NOTES}/ended
if [ -e {NOTES}/fails ]; then echo "pcluster-postboot: fsx failed: /fsx is not mounted" >&2; exit 1; fi
echo "pcluster-postboot: all is well"
"""


@pytest.fixture(scope="module")
def bundle() -> Iterator[dict[str, str]]:
    """Where it is, and its sha256: what fleet.yml needs."""
    bucket = boto3.resource("s3", region_name="us-east-1").Bucket(BUCKET)
    bucket.create()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        script = tarfile.TarInfo("bootstrap.sh")
        script.size = len(BOOTSTRAP)
        tar.addfile(script, io.BytesIO(BOOTSTRAP.encode()))
    bucket.put_object(Key="test/pcluster-postboot.tar.gz", Body=buffer.getvalue())
    yield {"fleet_bundle": f"s3://{BUCKET}/test", "fleet_sha256": hashlib.sha256(buffer.getvalue()).hexdigest()}
    bucket.objects.all().delete()
    bucket.delete()


@pytest.fixture(autouse=True)
def _clean(on: On, nodes: Nodes) -> Iterator[None]:
    yield
    for name in nodes:
        on(name).check_output(f"rm -rf {NOTES}; mkdir -p {OPT}; rmdir --ignore-fail-on-non-empty {OPT}")


def when(host: Host, what: str) -> float:
    return float(host.file(f"{NOTES}/{what}").content_string)


def test_check_mode_sends_nothing(on: On, play: Play, nodes: Nodes, bundle: dict[str, str]) -> None:
    result = play("--check", "-e", json.dumps(bundle), name="fleet")
    assert result.returncode == 0, result.stdout[-3000:]
    assert "would send test to 2 head nodes, 1 at a time: el-head, head" in result.stdout
    assert not [name for name in nodes if on(name).file(NOTES).exists]


def test_every_node_runs_it_and_head_nodes_first(on: On, play: Play, nodes: Nodes, bundle: dict[str, str]) -> None:
    result = play("-e", json.dumps({**bundle, "fleet_concurrency": "100%", "fleet_args": "--mode cpu"}), name="fleet")
    assert result.returncode == 0, result.stdout[-3000:]
    assert f"pcluster.postboot: {len(nodes)} nodes, 0 changed, 0 failed" in result.stdout
    heads = [name for name, node in nodes.items() if node["type"] == "HeadNode"]
    others = [name for name in nodes if name not in heads]
    assert max(when(on(name), "ended") for name in heads) < min(when(on(name), "began") for name in others)
    assert max(when(on(name), "began") for name in others) < min(when(on(name), "ended") for name in others)
    for name in nodes:
        args = on(name).file(f"{NOTES}/args").content_string.split()
        assert args[2:4] == ["--sha256", bundle["fleet_sha256"]]
        assert args[-4:] == ["--defer", "no", "--mode", "cpu"]
        # As root, and with as little as SSM's agent gives.
        assert on(name).file(f"{NOTES}/who").content_string.split() == ["0", "not", "a", "tty"]
        assert on(name).run(f"ls -d {OPT}/.fleet.*").rc != 0


def test_a_failure_stops_it_and_limit_is_honoured(on: On, play: Play, nodes: Nodes, bundle: dict[str, str]) -> None:
    on("head").check_output(f"mkdir {NOTES} && touch {NOTES}/fails")
    result = play("-e", json.dumps(bundle), "--limit", "head,login", name="fleet")
    assert result.returncode == 2
    assert "stopped on head: fsx failed: /fsx is not mounted" in result.stdout
    assert "not sent to login: stopped after 1 failure (fleet_max_errors is 0)" in result.stdout
    assert "pcluster.postboot: 2 nodes, 0 changed, 1 failed" in result.stdout
    assert [name for name in nodes if on(name).file(NOTES).exists] == ["head"]


def test_a_bundle_that_is_not_there_is_one_line(on: On, play: Play, bundle: dict[str, str]) -> None:
    wrong = {**bundle, "fleet_bundle": f"s3://{BUCKET}/other"}
    result = play("-e", json.dumps(wrong), "--limit", "cpu-st-c5-1", name="fleet")
    assert result.returncode == 2
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("stopped on cpu-st-c5-1: ")]
    assert re.search(r"/other/pcluster-postboot.tar.gz cannot be read: fatal error: .*\(404\)", line)
    assert not on("cpu-st-c5-1").file(NOTES).exists
