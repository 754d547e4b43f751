# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""nccl-tests and aws-ofi-nccl: built once, published whole, run by job files on one node, on two, in a container."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from testinfra.host import Host

from .helpers import On, Play, as_user, ended, image_of_busybox, ok, said, system, variables

TESTS = "/fsx/nccl-tests"
PERF = f"{TESTS}/current/bin/all_reduce_perf"
SCRIPTS = "/fsx/nccl"
PLUGIN = "/fsx/aws-ofi-nccl"
GPU = "gpu-st-p5-1"
IMAGE = "/fsx/containers/test-nccl-tests.sqsh"
EFA = re.compile(r"NET/OFI Selected provider is efa, fabric is efa \(found 32 nics\)")


def submit(host: Host, line: str) -> tuple[int, str]:
    """Submit a job file as alice, wait for its end, and return its exit code and what it printed."""
    job = as_user(host, "alice", line.replace("sbatch ", "sbatch --parsable ", 1)).stdout.strip()
    code = ended(host, job)
    (path,) = host.check_output(f"ls {TESTS}/results/nccl-*-{job}.out").split()
    return code, host.file(path).content_string


@pytest.fixture(scope="module", autouse=True)
def results(on: On) -> Iterator[None]:
    yield
    on("head").run(f"rm -f {TESTS}/results/nccl-*")


# What there is


@pytest.mark.parametrize("name", ["head", "el-head"])
def test_the_tests_are_published_once(on: On, name: str) -> None:
    host = on(name)
    pins = json.loads(host.check_output("curl -sf http://mirror/pins.json"))["nccl_tests"]
    release = f"{pins['version']}-cuda13-{host.check_output('uname -m')}-{system(host)}"
    assert host.check_output(f"readlink {TESTS}/current") == release
    manifest = json.loads(host.file(f"{TESTS}/current/manifest.json").content_string)
    assert (manifest["builder"], manifest["inputs"]["sha256"]) == (host.check_output("hostname"), pins["sha256"])
    assert manifest["inputs"]["mpi"] == "/opt/amazon/openmpi"
    assert {"bin/all_reduce_perf", "bin/all_gather_perf", "bin/reduce_scatter_perf", "bin/alltoall_perf"} <= set(
        manifest["files"]
    )
    assert host.file(f"{TESTS}/results").mode == 0o1777
    assert host.check_output(f"find {TESTS} -maxdepth 1 -name '.stage-*'") == ""
    # The programs find the cluster's NCCL by themselves.
    version = host.file("/fsx/nccl/.nccl_version").content_string.strip().split(".")
    number = int(version[0]) * 10000 + int(version[1]) * 100 + int(version[2].split("-")[0])
    assert f"nccl-library={number}" in host.check_output(f"env -i {PERF} -b 8 -e 8")


def test_the_efa_installers_own_plugin_is_kept(on: On) -> None:
    assert not on("head").file(f"{PLUGIN}/current").exists
    assert "libnccl-net.so" in on(GPU).check_output("ls /opt/amazon/ofi-nccl/lib")


# What users do


def test_one_node(on: On) -> None:
    code, text = submit(on("login"), f"MAX_BYTES=1G sbatch --partition=gpu {SCRIPTS}/phase1-baseline.sbatch")
    assert code == 0, text
    assert EFA.search(text)
    row = re.search(rf"^{GPU} +all_reduce_perf +1 +8 +1073741824 +\S+ +\S+ +(\S+) +\S+ +0$", text, re.MULTILINE)
    assert row, text
    assert 400 < float(row[1]) < 500


@pytest.mark.parametrize("mpi", ["pmix", pytest.param("none", marks=pytest.mark.long)])
def test_two_nodes_are_one_run(on: On, mpi: str) -> None:
    line = f"GPUS_PER_NODE=2 NCCL_TESTS_MPI={mpi} MAX_BYTES=16M sbatch --nodes=2 {SCRIPTS}/phase2-multinode.sbatch"
    code, text = submit(on("login"), line)
    assert code == 0, text
    assert re.search(r"^2-nodes +all_reduce_perf +2 +4 +16777216 ", text, re.MULTILINE), text
    assert re.search(r"^alltoall_perf +2 +\S+ +100% +\d+$", text, re.MULTILINE), text
    assert re.search(r"^all_reduce_perf +2 +8 +\S+ +[+-]\d", text, re.MULTILINE), text
    # Because one of the two nodes has no EFA device, the job says that EFA is not used.
    assert "# EFA is not used between the nodes" in text


@pytest.mark.long
@pytest.mark.parametrize("phase", ["phase3-workload", "phase4-optimization"])
def test_the_other_phases(on: On, phase: str) -> None:
    code, text = submit(on("login"), f"MAX_BYTES=64M sbatch --partition=gpu --nodes=1 {SCRIPTS}/{phase}.sbatch")
    assert code == 0, text
    if phase.startswith("phase4"):
        assert re.search(r"^67108864 +\d+\.\d+( +\d+\.\d+){4} +default$", text, re.MULTILINE), text
    else:
        assert re.search(r"^experts +alltoall_perf +1 +8 +268435456 ", text, re.MULTILINE), text


def test_a_partition_without_gpus_is_refused(on: On) -> None:
    code, text = submit(on("login"), f"sbatch --partition=cpu {SCRIPTS}/phase1-baseline.sbatch")
    assert code == 2
    assert text.splitlines()[-1].startswith("error: no GPU on ")


@pytest.fixture
def image(on: On) -> Iterator[str]:
    """An image with no more than a C library, so that what runs in it comes from the cluster."""
    programs = f"{PERF} /opt/amazon/ofi-nccl/lib/libnccl-net.so /opt/amazon/efa/lib*/libfabric.so"
    copied = f"ldd {programs} | grep -oE '[[:space:]]/(usr/)?lib[^ ]*' | sort -u | xargs cp -L --parents -t ."
    image_of_busybox(on("head"), IMAGE, copied)
    yield IMAGE
    on("head").run(f"rm -f {IMAGE}")


@pytest.mark.long
def test_in_a_container(on: On, image: str) -> None:
    line = f"CONTAINER_IMAGE={image} MAX_BYTES=1G sbatch --partition=gpu {SCRIPTS}/phase1-baseline-container.sbatch"
    code, text = submit(on("login"), line)
    assert code == 0, text
    assert f", in {image}" in text
    assert EFA.search(text), text
    assert re.search(rf"^{GPU} +alltoall_perf +1 +8 +1073741824 .* 0$", text, re.MULTILINE), text


def test_the_known_scripts(on: On) -> None:
    head = on("head")
    version = head.file("/fsx/nccl/.nccl_version").content_string.strip()
    done = as_user(
        head, "alice", f"{SCRIPTS}/install-nccl-shared.sh v{version}-1 v1.21.1 /fsx; {SCRIPTS}/install-nccl-tests.sh"
    )
    assert [line.split(" published already: ")[0] for line in done.stdout.splitlines()] == ["NCCL is", "nccl-tests are"]
    done = as_user(head, "alice", f"{SCRIPTS}/install-nccl-shared.sh v2.28.7-1")
    assert (done.rc, done.stderr.split("; ")[0]) == (2, "found no sha256 of nccl 2.28.7")
    done = as_user(head, "alice", f"{SCRIPTS}/install-nccl-shared.sh v2.28.7-1 --sha256 {'0' * 64}")
    assert done.rc == 3
    assert done.stderr.startswith("the NCCL in /fsx/nccl is ")
    assert "--tags aws_ofi_nccl,nccl -e nccl_version=2.28.7" in done.stderr
    done = as_user(head, "alice", f"{SCRIPTS}/apply-nccl-to-running-nodes.sh")
    assert done.rc == 0, done.stdout + done.stderr
    assert re.match(rf"1 running nodes find {re.escape(version)}-cuda13-\S+; \d+ nodes do not run", done.stdout), (
        done.stdout
    )


def test_the_known_paths(on: On) -> None:
    """What job files of AWS' AMIs name."""
    line = "LD_LIBRARY_PATH=/opt/nccl/build/lib srun --partition=gpu --exclusive /opt/nccl-tests/build/all_reduce_perf"
    done = as_user(on("login"), "alice", f"{line} -b 8 -e 8")
    assert done.rc == 0, done.stderr
    assert "nccl-library=" in done.stdout


# What changes, and what goes wrong


@pytest.mark.long
def test_a_plugin_of_the_clusters_own(on: On, play: Play) -> None:
    head = on("head")
    newer = json.loads(head.check_output("curl -sf http://mirror/pins.json"))["aws_ofi_nccl"]["newer"]
    own: dict[str, Any] = {"aws_ofi_nccl_build": "always", "aws_ofi_nccl_version": newer["version"]}
    own["aws_ofi_nccl_sha256"] = {"noarch": newer["sha256"]}
    line = f"NCCL_DEBUG=INFO srun --partition=gpu --exclusive --ntasks=2 {PERF} -b 8 -e 8"
    # Role nccl lets programs find it.
    where = ("--tags", "aws_ofi_nccl,nccl", "--limit", f"head,{GPU}")
    try:
        done = ok(play(*where, *variables(**own)))
        release = f"{newer['version']}-{head.check_output('uname -m')}-{system(head)}"
        assert head.check_output(f"readlink {PLUGIN}/current") == release
        told = as_user(on("login"), "alice", line).stdout
        assert f"NET/OFI Initializing aws-ofi-nccl {newer['version']}" in told
        assert EFA.search(told)
        again = play(*where, *variables(**own))
        assert not re.search(r"changed=[1-9]", again.stdout), again.stdout
    finally:
        head.run(f"rm -rf {PLUGIN}")
        done = play(*where)
    ok(done)
    told = as_user(on("login"), "alice", line).stdout
    assert EFA.search(told)
    assert newer["version"] not in told


@pytest.mark.long
def test_another_version_lies_beside_the_first(on: On, play: Play) -> None:
    head = on("head")
    older = json.loads(head.check_output("curl -sf http://mirror/pins.json"))["nccl_tests"]["older"]
    before = head.check_output(f"readlink {TESTS}/current")
    where = ("--tags", "nccl_tests", "--limit", "head")
    version = {"nccl_tests_version": older["version"], "nccl_tests_sha256": {"noarch": older["sha256"]}}
    try:
        done = ok(play(*where, *variables(**version)))
        assert f"nccl-tests version {older['version']}" in head.check_output(f"{PERF} -b 8 -e 8")
        assert head.file(f"{TESTS}/{before}/manifest.json").exists
    finally:
        done = play(*where)
        head.run(f"rm -rf {TESTS}/{older['version']}-*")
    ok(done)
    assert head.check_output(f"readlink {TESTS}/current") == before


@pytest.mark.long
def test_a_compiler_that_fails_is_named_and_nothing_changes(on: On, play: Play) -> None:
    head = on("head")
    before = head.check_output(f"readlink {TESTS}/current")
    broken = {"nccl_tests_nvcc": "/bin/false", "nccl_tests_cuda_architectures": [90]}
    done = play("--tags", "nccl_tests", "--limit", "head", *variables(**broken))
    assert f"its log is {TESTS}/logs/" in said(done)
    assert done.returncode == 0  # no job needs the tests: it is reported
    assert head.check_output(f"readlink {TESTS}/current") == before
    assert head.check_output(f"find {TESTS} -maxdepth 1 -name '.stage-*'") == ""
