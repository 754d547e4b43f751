# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""playbooks/verify.yml on a cluster whose containers work, and on one where something does not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from testinfra.host import Host

from .helpers import On, Play, Run, failed, joined, ok, until, variables

TINY = "/fsx/containers/registry+5000_library_tiny-1.0.sqsh"
OWN = "an image of the node's own files"
WITHOUT_IMAGES = {"container_images_dir": "/fsx/no-containers"}
SPARE = "gpu-dy-p5-1"
REPORT = "/var/lib/pcluster-postboot/verify.json"


def verify(play: Play, node: str = "head", **values: Any) -> Run:
    given = {"verify_stages": ["containers"], "verify_report": "", **values}
    return play("--limit", node, *variables(**given), name="verify", timeout=600)


def report(host: Host) -> dict[str, Any]:
    return dict(json.loads(host.check_output(f"cat {REPORT}")))


def results(host: Host) -> dict[tuple[str, str], str]:
    return {(check["subject"], check["name"]): check["status"] for check in report(host)["checks"]}


def told(host: Host, name: str, subject: str = "gpu") -> tuple[str, str]:
    found = [check for check in report(host)["checks"] if (check["subject"], check["name"]) == (subject, name)]
    return found[0]["status"], found[0]["message"]


def burst(host: Host) -> set[str]:
    """The states of the nodes that are powered down until a job asks for them."""
    return set(host.check_output("/opt/slurm/bin/sinfo --noheader --partition=burst --format=%t").split())


def test_containers_work_everywhere(on: On, play: Play) -> None:
    # A node on which another test ran its job may still be on its way down.
    until(lambda: burst(on("head")) == {"idle~"}, 180, "the nodes of burst to be powered down")
    result = ok(verify(play))
    found = results(on("head"))
    for partition in ("cpu", "gpu"):
        assert found[(partition, "enroot")] == found[(partition, "container")] == "ok"
        assert ", from /fsx/containers/" in told(on("head"), "container", partition)[1]
    assert report(on("head"))["ok"]
    # The container has the node's GPUs. Only the beginning of the message is compared, as the sandbox has no CUDA.
    status, message = told(on("head"), "gpus")
    assert (status, message.partition(";")[0]) == ("ok", "8 GPUs in the container"), message
    # verify has removed its own image.
    status, message = told(on("head"), "docker")
    assert (status, message.partition(";")[0]) == ("ok", "8 GPUs in a container of Docker's"), message
    assert "postboot-verify" not in on("gpu-st-p5-1").check_output("docker images --all")
    # Nodes that are powered down stay so.
    assert found[("burst", "container")] == "skipped"
    assert "not measured: containers on burst: no node of it is up (" in result.stdout
    assert burst(on("head")) == {"idle~"}


@pytest.mark.long
def test_containers_work_on_amazon_linux_without_an_image(on: On, play: Play) -> None:
    ok(verify(play, "el-head", **WITHOUT_IMAGES))
    found = results(on("el-head"))
    assert found[("el-cpu", "enroot")] == found[("el-cpu", "container")] == "ok"
    assert f", from {OWN}" in told(on("el-head"), "container", "el-cpu")[1]
    assert report(on("el-head"))["ok"]


@pytest.mark.long
def test_an_image_from_a_registry(on: On, play: Play) -> None:
    image = "registry:5000#nvidia/pytorch:24.01-py3"
    ok(verify(play, verify_partitions=["cpu"], verify_container_image=image))
    check = next(check for check in report(on("head"))["checks"] if check["name"] == "container")
    assert check["message"] == f"Sandbox pytorch on cpu-st-c5-1, from {image}"


@pytest.mark.long
def test_an_image_that_does_not_exist_is_one_line(play: Play) -> None:
    result = failed(verify(play, verify_partitions=["cpu"], verify_container_image="/fsx/containers/none.sqsh"))
    lines = [line for line in result.stdout.splitlines() if line.startswith("failed: [head] (item=cpu: container")]
    assert len(lines) == 1, result.stdout
    assert "srun --container-image=/fsx/containers/none.sqsh ended with 1: " in lines[0]


@pytest.mark.long
def test_jobs_end_with_a_verify_that_is_killed(on: On, play: Play) -> None:
    """Ansible kills a module in this way when its time is up."""
    head, slurm = on("head"), "env PATH=/opt/slurm/bin:/usr/bin:/bin"
    job = head.check_output(
        f"cd /tmp && runuser -u alice -- {slurm} sbatch --parsable --exclusive -p cpu --wrap 'sleep 200' -o /dev/null"
    )
    waits = f"{slurm} squeue --noheader --format=%j | grep -q postboot-verify"
    try:
        with ThreadPoolExecutor() as pool:
            done = pool.submit(verify, play, verify_partitions=["cpu"], verify_container_image=TINY, verify_wait=150)
            head.check_output(f"for i in $(seq 240); do {waits} && exit; sleep 0.5; done; exit 1")
            # The module itself, and not the program of Ansible's that waits for it.
            head.check_output("kill -KILL $(pgrep -f '^[^ ]*python[^ ]* [^ ]*/AnsiballZ_verify.py')")
            head.check_output(f"for i in $(seq 40); do {waits} || exit 0; sleep 0.5; done; exit 1")
            assert done.result(timeout=300).returncode != 0
    finally:
        head.check_output(f"{slurm} scancel {job}")
    until(lambda: head.run("pgrep -f [j]ob-name=postboot-verify").rc == 1, 30, "srun ends")


def test_a_check_submits_nothing(on: On, play: Play) -> None:
    before = on("head").check_output(f"stat --format=%Y {REPORT}")
    ok(play("--limit", "head", "--check", name="verify"))
    assert on("head").check_output(f"stat --format=%Y {REPORT}") == before


# NCCL


def fabric(play: Play, *scopes: str, **values: Any) -> Run:
    given = {"verify_stages": ["nccl"], "verify_partitions": ["gpu"], "verify_nccl_collectives": ["all_reduce"]}
    return verify(play, verify_nccl_scopes=list(scopes), **{**given, **values})


def test_containers_and_nccl_in_one_without_an_image(on: On, play: Play) -> None:
    both = {"verify_stages": ["containers", "nccl"], "verify_partitions": ["cpu", "gpu"]}
    result = fabric(play, "container", **both, **WITHOUT_IMAGES)
    logs = on("head").run("tail -n 20 /fsx/nccl-tests/results/verify-*/gpu/container-*").stdout
    assert result.returncode == 0, result.stdout[-3000:] + logs
    for partition in ("cpu", "gpu"):
        status, message = told(on("head"), "container", partition)
        assert (status, message.partition(", from ")[2]) == ("ok", OWN), message
    status, message = told(on("head"), "gpus")
    assert (status, message.partition(";")[0]) == ("ok", "8 GPUs in the container"), message
    status, message = told(on("head"), "all_reduce in a container")
    assert (status, message.partition(":")[0]) == ("ok", OWN), message
    assert on("head").check_output("find /fsx/nccl-tests/results -maxdepth 1 -name '.verify-*'") == ""
    (run,) = report(on("head"))["runs"]
    assert (run["container"], run["ranks"]) == (True, 8)


def test_a_node_is_measured_and_compared(on: On, play: Play, tmp_path: Path) -> None:
    both = {"verify_stages": ["nodes", "nccl"], "verify_nccl_collectives": ["all_reduce", "alltoall"]}
    ok(fabric(play, "one", verify_report=str(tmp_path / "verify.html"), **both))
    found = results(on("head"))
    for check in ("last run", "versions", "efa", "all_reduce on one node"):
        assert found[("gpu", check)] == "ok", check
    status, message = told(on("head"), "exporters")
    assert (status, {"node_exporter", "nvidia-dcgm-exporter"} <= {*re.split("[ ,]+", message)}) == ("ok", True), message
    assert found[("gpu", "alltoall on one node")] == "unknown"
    assert "<title>main: verified</title>" in (tmp_path / "verify.html").read_text()


@pytest.fixture(scope="module")
def two_nodes(play: Play) -> Iterator[None]:
    """A second node with GPUs, for as long as these tests run, with what jobs over two nodes need and no more."""
    with joined(SPARE):
        ok(play("--limit", SPARE, "--tags", "efa,aws_ofi_nccl,nccl"))
        yield


@pytest.mark.long
@pytest.mark.usefixtures("two_nodes")
def test_nccl_on_two_nodes_is_measured_and_compared(on: On, play: Play) -> None:
    ok(fabric(play, "two", verify_nccl_collectives=["all_reduce", "alltoall"]))
    found = results(on("head"))
    for check in ("all_reduce on 2 nodes", "EFA is selected on 2 nodes", "GPUDirect RDMA on 2 nodes"):
        assert found[("gpu", check)] == "ok", check
    runs = {run["collective"]: run for run in report(on("head"))["runs"]}
    together = runs["all_reduce"]
    assert (together["ranks"], together["nics"]) == (16, 32)
    assert on("head").file(together["log"]).contains("NCCL INFO")
    # Of alltoall's connections, more than a thousand here, each process has told of one.
    log = runs["alltoall"]["log"]
    assert on("head").check_output(f"grep -c 'NCCL INFO Channel .* via ' {log}") == "16"


@pytest.mark.long
@pytest.mark.usefixtures("two_nodes")
def test_a_slow_node_is_short_and_named(on: On, play: Play) -> None:
    on(SPARE).check_output("mkdir -p /etc/sandbox && echo 4 all > /etc/sandbox/slow-node")
    try:
        result = fabric(play, "one", "two")
    finally:
        on(SPARE).check_output("rm /etc/sandbox/slow-node")
    failed(result)
    statuses = {
        check["message"].partition(":")[0]: check["status"]
        for check in report(on("head"))["checks"]
        if check["name"] == "all_reduce on one node"
    }
    assert statuses == {SPARE: "failed", "gpu-st-p5-1": "ok"}
    assert results(on("head"))[("gpu", "all_reduce on 2 nodes")] == "failed"
    assert f"item=gpu: all_reduce on one node (nccl): {SPARE}: " in result.stdout


@pytest.mark.long
@pytest.mark.usefixtures("two_nodes")
def test_without_efa_or_gpudirect_the_network_is_not_what_it_should_be(on: On, play: Play) -> None:
    on(SPARE).check_output("mkdir -p /etc/sandbox && touch /etc/sandbox/no-gpudirect")
    try:
        failed(fabric(play, "two"))
    finally:
        on(SPARE).check_output("rm /etc/sandbox/no-gpudirect")
    assert results(on("head"))[("gpu", "GPUDirect RDMA on 2 nodes")] == "failed"
    plugin = "/opt/amazon/ofi-nccl/lib"
    on(SPARE).check_output(f"mv {plugin} {plugin}.away && ldconfig")
    try:
        failed(fabric(play, "two"))
    finally:
        on(SPARE).check_output(f"mv {plugin}.away {plugin} && ldconfig")
    assert results(on("head"))[("gpu", "EFA is selected on 2 nodes")] == "failed"


@pytest.mark.long
@pytest.mark.usefixtures("two_nodes")
def test_nccl_in_containers_on_two_nodes(on: On, play: Play) -> None:
    ok(play("--limit", SPARE, "--tags", "nvidia_container_toolkit,enroot,pyxis,nccl"))
    result = fabric(play, "container")
    logs = on("head").run("tail -n 20 /fsx/nccl-tests/results/verify-*/gpu/container-*").stdout
    assert result.returncode == 0, result.stdout[-3000:] + logs
    for check in ("all_reduce", "EFA is selected", "GPUDirect RDMA"):
        assert told(on("head"), f"{check} in a container")[0] == "ok", check
    (run,) = report(on("head"))["runs"]
    assert (run["container"], run["ranks"], run["nics"]) == (True, 16, 32)
