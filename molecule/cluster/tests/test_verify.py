# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""playbooks/verify.yml on a cluster whose containers work, and on one where something does not."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from testinfra.host import Host

On = Callable[[str], Host]
Play = Callable[..., subprocess.CompletedProcess[str]]

TINY = "/fsx/containers/registry+5000_library_tiny-1.0.sqsh"
REPORT = "/var/lib/pcluster-postboot/verify.json"


def verify(play: Play, node: str = "head", **values: Any) -> subprocess.CompletedProcess[str]:
    return play("--limit", node, "-e", json.dumps(values), name="verify", timeout=600)


def report(host: Host) -> dict[str, Any]:
    return dict(json.loads(host.check_output(f"cat {REPORT}")))


def results(host: Host) -> dict[tuple[str, str], str]:
    return {(check["subject"], check["name"]): check["status"] for check in report(host)["checks"]}


@pytest.mark.parametrize(("where", "partitions"), [("head", ["cpu", "gpu"]), ("el-head", ["el-cpu"])])
def test_containers_work_everywhere(on: On, play: Play, where: str, partitions: list[str]) -> None:
    result = verify(play, where)
    assert result.returncode == 0, result.stdout[-3000:]
    found = results(on(where))
    for partition in partitions:
        assert found[(partition, "enroot")] == found[(partition, "container")] == "ok"
    assert report(on(where))["ok"]


def test_gpus_are_seen_in_the_container(on: On, play: Play) -> None:
    assert verify(play, verify_partitions=["gpu"], verify_container_image=TINY).returncode == 0
    check = next(check for check in report(on("head"))["checks"] if check["name"] == "gpus")
    assert (check["status"], check["message"]) == ("ok", "8 GPUs in the container")


def test_an_image_from_a_registry(on: On, play: Play) -> None:
    image = "registry:5000#nvidia/pytorch:24.01-py3"
    assert verify(play, verify_partitions=["cpu"], verify_container_image=image).returncode == 0
    check = next(check for check in report(on("head"))["checks"] if check["name"] == "container")
    assert check["message"] == "Sandbox pytorch on cpu-st-c5-1"


def test_powered_down_nodes_stay_so(on: On, play: Play) -> None:
    verify(play, verify_container_image=TINY)
    assert results(on("head"))[("burst", "container")] == "skipped"
    states = on("head").check_output("/opt/slurm/bin/sinfo --noheader --partition=burst --format=%t")
    assert set(states.split()) == {"idle~"}


def test_an_image_that_does_not_exist_is_one_line(play: Play) -> None:
    result = verify(play, verify_partitions=["cpu"], verify_container_image="/fsx/containers/none.sqsh")
    assert result.returncode != 0
    lines = [line for line in result.stdout.splitlines() if line.startswith("failed: [head] (item=cpu: container")]
    assert len(lines) == 1
    assert "srun --container-image=/fsx/containers/none.sqsh ended with 1: " in lines[0]


def test_a_busy_partition_is_skipped_and_named(on: On, play: Play) -> None:
    head = on("head")
    slurm = "env PATH=/opt/slurm/bin:/usr/bin:/bin"
    job = head.check_output(
        f"cd /tmp && runuser -u alice -- {slurm} sbatch --parsable --exclusive -p cpu --wrap 'sleep 100' -o /dev/null"
    )
    try:
        head.check_output(
            f"for i in $(seq 40); do {slurm} squeue -h -j {job} -t R | grep -q . && break; sleep 0.5; done"
        )
        result = verify(play, verify_partitions=["cpu"], verify_container_image=TINY, verify_wait=3)
    finally:
        head.check_output(f"{slurm} scancel {job}")
    assert results(head)[("cpu", "container")] == "skipped"
    assert "nothing was checked: cpu: its nodes had no room within 3 s" in result.stdout
    assert result.returncode != 0


def test_a_check_submits_nothing(on: On, play: Play) -> None:
    before = on("head").check_output(f"stat --format=%Y {REPORT}")
    assert play("--limit", "head", "--check", name="verify").returncode == 0
    assert on("head").check_output(f"stat --format=%Y {REPORT}") == before


def test_without_a_head_node(play: Play) -> None:
    result = play("--limit", "cpu-st-c5-1", name="verify")
    assert result.returncode != 0
    assert "found no head node among cpu-st-c5-1; needed: one" in result.stdout
