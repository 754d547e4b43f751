# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""verify's stage health: an ordinary user's job has the node for itself, and finds what is broken there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from testinfra.host import Host

from .helpers import On, Play, Run, failed, ok, until, variables

NODE = "gpu-st-p5-1"
REPORT = "/var/lib/pcluster-postboot/verify.json"
REMAPPING = "/run/sandbox-dcgm/3/DCGM_FI_DEV_ROW_REMAP_FAILURE"
DEAD = "/run/sandbox-efa-dead/rdmap70s0"


def health(play: Play, *checks: str, **values: Any) -> Run:
    given = {"verify_stages": ["health"], "verify_partitions": ["gpu"], "verify_report": "", **values}
    return play("--limit", "head", *variables(verify_health_checks=list(checks), **given), name="verify", timeout=600)


def told(host: Host) -> dict[str, tuple[str, str]]:
    """The status and the message of each check on the nodes with GPUs."""
    report = json.loads(host.check_output(f"cat {REPORT}"))
    return {one["name"]: (one["status"], one["message"]) for one in report["checks"] if one["subject"] == "gpu"}


def findings(host: Host) -> list[tuple[str, str, str, str]]:
    report = json.loads(host.check_output(f"cat {REPORT}"))
    return [(one["node"], one["finding"], one["class"], one["subject"]) for one in report["findings"]]


@contextmanager
def planted(host: Host, path: str, text: str = "") -> Iterator[None]:
    """A file that says to a stand-in that something is broken."""
    host.check_output(f"mkdir -p $(dirname {path}) && echo '{text}' > {path}")
    try:
        yield
    finally:
        host.check_output(f"rm {path}")


def test_a_gpu_whose_memory_is_broken_is_named(on: On, play: Play, gpu: Host) -> None:
    with planted(gpu, REMAPPING, "1"):
        result = failed(health(play, "gpu_diag"))
    assert findings(on("head")) == [(NODE, "gpu_diag", "replace", "GPU 3")]
    line = f"item=gpu: gpu_diag (health): {NODE}: gpu_diag (replace): GPU 3: software: Page Retirement/Row Remap: GPU 3"
    assert line in result.stdout
    assert "row remapping failed" in result.stdout


@pytest.mark.long
def test_a_healthy_node_at_the_highest_level(on: On, play: Play) -> None:
    ok(health(play, "gpu_diag", "efa_loopback", "nccl_one_node", verify_health_level=4))
    found = told(on("head"))
    assert found["efa_loopback"] == ("ok", f"{NODE}: 32 EFA devices reach themselves")
    assert found["gpu_diag"][0] == found["nccl_one_node"][0] == "ok", found
    assert {"memory", "memtest", "pulse_test"} <= {*found["gpu_diag"][1].partition("passed: ")[2].split(", ")}, found
    assert findings(on("head")) == []


@pytest.mark.long
def test_an_efa_device_that_loses_what_is_sent_is_named(on: On, play: Play, gpu: Host) -> None:
    with planted(gpu, DEAD):
        failed(health(play, "efa_loopback"))
    assert findings(on("head")) == [(NODE, "efa_loopback", "reboot", "rdmap70s0")]
    assert gpu.run("pgrep fi_pingpong").rc == 1


@pytest.mark.long
def test_a_busy_node_is_named_and_left_alone(on: On, play: Play) -> None:
    head, slurm = on("head"), "env PATH=/opt/slurm/bin:/usr/bin:/bin"
    what = f"--parsable --exclusive --partition=gpu --nodelist={NODE} --output=/dev/null --wrap='sleep 300'"
    job = head.check_output(f"cd /tmp && runuser -u alice -- {slurm} sbatch {what}")
    try:
        until(lambda: "RUNNING" in head.check_output(f"{slurm} squeue --noheader --format=%T --job {job}"))
        failed(health(play, "gpu_diag"))
        assert told(head) == {"idle nodes": ("skipped", f"not looked at: {NODE} (busy)")}
    finally:
        head.check_output(f"{slurm} scancel {job}")
    until(lambda: "idle" in head.check_output(f"{slurm} sinfo --noheader --nodes={NODE} --format=%t"))
