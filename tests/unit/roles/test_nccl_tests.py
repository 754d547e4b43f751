# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What nccl_tests works out from the facts of a node, and what its job files and scripts do with a small Slurm."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._verify import nccl_expected
from ansible_collections.pcluster.postboot.tests import templating
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab

pytestmark = pytest.mark.once

Variables = Callable[..., Callable[[str], Any]]
Done = subprocess.CompletedProcess[str]
PHASES = ("phase1-baseline", "phase2-multinode", "phase3-workload", "phase4-optimization")
JOBS = [f"{phase}{end}.sbatch" for phase in PHASES for end in ("", "-container")]
# What getconf GNU_LIBC_VERSION tells of this machine.
SYSTEM = str(os.confstr("CS_GNU_LIBC_VERSION")).replace(" ", "")
SHA256 = "0123456789abcdef" * 4
# What would switch off what NCCL and AWS' plugin know better (or is an old name of it).
HARMFUL = ("NCCL_PROTO", "NCCL_ALGO", "NCCL_MIN_NRINGS", "RDMAV_FORK_SAFE", "NCCL_BUFFSIZE")


def work_out(
    kind: str = "head", gpus: int = 0, cuda: str | None = "13.0.2", family: str = "debian", **more: Any
) -> Callable[[str], Any]:
    """Return a function that works out a variable."""
    facts = {"os": {"family": family}, "gpus": {"count": gpus}, "components": {"cuda": cuda}}
    return templating.work_out(
        "common nccl_tests",
        {"node_type": kind, **facts},
        inventory_hostname="one",
        ansible_managed="Ansible managed",
        ansible_check_mode=False,
        ansible_search_path=[str(templating.ROLES / "nccl_tests")],
        **more,
    )


@pytest.fixture
def variables() -> Variables:
    """variables(node type, gpus=…, cuda=…, family=…, **more) returns a function that works out a variable."""
    return work_out


TOP = "/top-of-a-test"


@functools.cache
def files(mpi: bool) -> list[dict[str, str]]:
    """Return the files of the role, which take long to work out, for a cluster below TOP."""
    there = {"stat": {"exists": mpi, "isdir": mpi}}
    given = {"common_shared_dir": f"{TOP}/fsx", "__nccl_tests_memory": f"{TOP}/remembered.json"}
    found: list[dict[str, str]] = work_out(**given, __nccl_tests_mpi_there=there)("__nccl_tests_files")
    return found


@pytest.mark.parametrize(
    ("kind", "given", "gets"),
    [
        ("head", {}, True),
        ("head", {"common_builder": "other"}, False),
        ("compute", {}, False),
        ("compute", {"gpus": 8}, True),
        ("compute", {"common_builder": "one"}, True),
        ("login", {}, False),
    ],
)
def test_which_nodes_have_to_do_with_it(variables: Variables, kind: str, given: Any, gets: bool) -> None:
    assert variables(kind, **given)("nccl_tests_enabled") is gets


@pytest.mark.parametrize(
    ("cuda", "major", "architectures"),
    [
        ("13.0.2", "13", [75, 80, 90, 100]),
        ("12.8", "12", [75, 80, 90, 100]),
        ("12.4.1", "12", [75, 80, 90]),
        (None, "13", [75, 80, 90, 100]),
        ("unknown", "13", [75, 80, 90, 100]),
    ],
)
def test_for_which_cuda_it_is_built(variables: Variables, cuda: str, major: str, architectures: list[int]) -> None:
    value = variables(cuda=cuda)
    assert value("__nccl_tests_release") == f"2.19.6-cuda{major}-x86_64-glibc2.39"
    assert value("nccl_tests_cuda_architectures") == architectures
    last = architectures[-1]
    flags = [f"-gencode=arch=compute_{one},code=sm_{one}" for one in architectures]
    assert value("__nccl_tests_gencode").split() == [*flags, f"-gencode=arch=compute_{last},code=compute_{last}"]


def test_how_it_is_built(variables: Variables) -> None:
    value = variables(__nccl_tests_mpi_there={"stat": {"exists": True, "isdir": True}})
    make = value("__nccl_tests_steps")[0]
    assert make[:4] == ["make", "--directory={source}", "--jobs={jobs}", "src.build"]
    assert {"MPI=1", "MPI_HOME=/opt/amazon/openmpi", "NCCL_HOME=/fsx/nccl/current-cuda13-x86_64"} <= set(make)
    assert "BUILDDIR={scratch}/build" in make
    assert value("__nccl_tests_inputs")["mpi"] == "/opt/amazon/openmpi"
    assert value("__nccl_tests_environment")["LD_RUN_PATH"].split(":")[0] == "/fsx/nccl/current-cuda13-x86_64/lib"
    compiled = variables(nccl_method="source")
    assert compiled("nccl_tests_nccl_home") == "/fsx/nccl/current-cuda13-x86_64-glibc2.39"
    without = variables(__nccl_tests_mpi_there={"stat": {"exists": False}})
    assert "MPI=0" in without("__nccl_tests_steps")[0]
    assert without("__nccl_tests_inputs")["mpi"] == ""


def test_what_a_compiler_needs(variables: Variables) -> None:
    found = {"missing": ["/usr/local/cuda/bin/nvcc", "g++", "which"]}
    assert variables(family="redhat", __nccl_tests_found=found)("__nccl_tests_missing") == ["gcc-c++", "which"]
    assert variables(__nccl_tests_found=found)("__nccl_tests_missing") == ["g++", "debianutils"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, ""),
        ({"common_shared_dir": "/scratch"}, "common_shared_dir: found /scratch, which is on the disk of this node"),
        ({"nccl_tests_dir": "/fsx/a b"}, "nccl_tests_dir: found /fsx/a b; needed: an absolute path"),
        ({"nccl_tests_max_bytes": "16 GB"}, "nccl_tests_max_bytes: found 16 GB; needed: a number of bytes"),
        ({"nccl_tests_cuda_architectures": []}, "nccl_tests_cuda_architectures: found none; needed: those of the GPUs"),
    ],
)
def test_what_is_wrong_is_one_line(variables: Variables, given: Any, says: str) -> None:
    lines = variables(**given)("__nccl_tests_problems")
    assert [line[: len(says)] for line in lines] == ([says] if says else [])


# What users submit


class Cluster:
    """A shared directory with the role's files, and programs that stand for Slurm's and Ansible's."""

    def __init__(self, top: Path, mpi: bool = True) -> None:
        self.top, self.shared, self.fake, self.mpi = top, top / "fsx", top / "bin", mpi
        self.scripts, self.results = self.shared / "nccl", self.shared / "nccl-tests/results"
        for folder in (self.scripts, self.results, self.fake, self.shared / "containers"):
            folder.mkdir(parents=True)
        self.files = {one["path"]: one for one in files(mpi)}
        for name, one in self.files.items():
            (self.scripts / name).write_text(one["content"].replace(TOP, str(top)))
            (self.scripts / name).chmod(int(one["mode"], 8))
        self.node("cuda13-x86_64")
        self.program("scontrol", 'printf "%s\\n" n1 n2')
        self.program("srun", SRUN.format(top=top))
        (top / "sizes").write_text("1048576 16777216\n")

    def program(self, name: str, lines: str) -> None:
        lab.program(self.fake / name, f"#!/bin/bash\n{lines}\n")

    def publish(self, root: str, release: str, *files: str) -> None:
        for file in files:
            lab.program(self.shared / root / release / file, "#!/bin/sh\n")
        manifest = {"inputs": {"mpi": "/opt/amazon/openmpi" if self.mpi else ""}}
        (self.shared / root / release / "manifest.json").write_text(json.dumps(manifest, indent=2))
        for name in ("current", f"current-{release.split('-', 1)[1]}"):
            link = self.shared / root / name
            link.unlink(missing_ok=True)
            link.symlink_to(release)

    def node(self, key: str) -> None:
        """Be a node for which something is called current-<key>; an empty one is a node that is configured later."""
        home = f"export NCCL_HOME={self.scripts}/current-{key} NCCL_DEBUG=WARN" if key else ":"
        (self.scripts / "setup-nccl-env.sh").write_text(f"{home}\n")

    def run(self, name: str, *words: str, **environment: str) -> Done:
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "NCCL_", "FI_"))}
        path = {"PATH": f"{self.fake}:/usr/bin:/bin"}
        line = ["/bin/bash", str(self.scripts / name), *words]
        given = {**clean, **path, **environment}
        return subprocess.run(line, env=given, text=True, capture_output=True, timeout=60, check=False)

    def job(self, name: str, nodes: int = 2, **environment: str) -> Done:
        slurm = {
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NAME": f"nccl-{name}",
            "SLURM_JOB_NUM_NODES": str(nodes),
            "SLURM_JOB_NODELIST": "n[1-2]",
            "SLURM_JOB_CPUS_PER_NODE": "200(x2),192",
            "GPUS_PER_NODE": "8",
        }
        return self.run(name, **{**slurm, **environment})

    def calls(self) -> list[str]:
        return lab.lines(self.top / "calls")


# srun prints what nccl-tests would, with a bandwidth that some settings change.
SRUN = """
mpi="PML=${{OMPI_MCA_pml-}} BTL=${{OMPI_MCA_btl-}} NOT=${{OMPI_MCA_btl_tcp_if_exclude-}} GDS=${{PMIX_MCA_gds-}}"
echo "NVLS=${{NCCL_NVLS_ENABLE-}} TUNER=${{NCCL_TUNER_PLUGIN-}} SHARED=${{NCCL_SHARED-}} $mpi $*" >> {top}/calls
# What has the content of this file in it fails; where the file is empty, everything does.
[ ! -e {top}/fails ] || [[ "$(tail -n 1 {top}/calls)" != *"$(cat {top}/fails)"* ]] ||
  {{ echo "srun: error: n2: task 9: Killed"; exit 137; }}
busbw=$(cat {top}/busbw 2> /dev/null || echo 400) wrong=$(cat {top}/wrong 2> /dev/null || echo 0)
case "$NCCL_NVLS_ENABLE" in 0) busbw=300 ;; esac
case "$*" in *"-R 1"*) busbw=450 ;; esac
if [ "$NCCL_DEBUG" = INFO ]; then
  echo "n1:1:1 [0] NCCL INFO NCCL version 2.32.3+cuda13.0"
  [ -e {top}/sockets ] || echo "n1:1:1 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 32 nics)"
fi
for size in $(cat {top}/sizes); do
  echo "$size $size float sum -1 500.00 200.00 $busbw.00 0 501.00 201.00 $((busbw + 1)).00 $wrong"
done
"""


# What ldd prints of a program that was built with the EFA installer's Open MPI.
LDD = r"""printf '\t%s\n' 'linux-vdso.so.1 (0x00007ffc0)' 'libmpi.so.40 => /opt/amazon/openmpi/lib/libmpi.so.40 (0x00007f1)' \
  'libopen-pal.so.40 => /opt/amazon/openmpi/lib/libopen-pal.so.40 (0x00007f2)' 'libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f3)'"""  # noqa: E501


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    made = Cluster(tmp_path)
    made.publish("nccl-tests", f"2.19.6-cuda13-x86_64-{SYSTEM}", "bin/all_reduce_perf")
    made.publish("nccl", "2.32.3-cuda13-x86_64", "lib/libnccl.so.2")
    return made


def table(done: Done) -> list[list[str]]:
    lines = done.stdout.split("## Summary")[1].splitlines()[2:]
    return [line.split() for line in lines[: lines.index("")]]


def test_bash_reads_all_of_them(cluster: Cluster) -> None:
    assert set(cluster.files) == {
        "nccl-tests-job.sh",
        "install-nccl-shared.sh",
        "install-nccl-tests.sh",
        "apply-nccl-to-running-nodes.sh",
        *JOBS,
    }
    for name in cluster.files:
        assert (cluster.scripts / name).read_text().splitlines()[1] == "# Ansible managed"
        line = ["shellcheck", "--shell=bash", "--severity=warning", "--exclude=SC2034,SC2154", cluster.scripts / name]
        line = line if shutil.which("shellcheck") else ["bash", "-n", cluster.scripts / name]
        done = subprocess.run(line, text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", JOBS)
def test_nothing_is_forced_upon_a_job(cluster: Cluster, name: str) -> None:
    lines = (cluster.scripts / name).read_text().splitlines()
    told = [line for line in lines if line.startswith("#SBATCH")]
    assert not [line for line in told if "partition" in line or "gres" in line or "account" in line]
    assert f"#SBATCH --output={cluster.results}/%x-%j.out" in told
    assert f"source {cluster.scripts}/setup-nccl-env.sh || exit 2" in lines
    text = "\n".join(lines) + (cluster.scripts / "nccl-tests-job.sh").read_text()
    assert not [one for one in HARMFUL if re.search(rf"(export +|^ *|[( ;]){one}=[^}}]", text, re.MULTILINE)]


@pytest.mark.parametrize("name", JOBS)
def test_every_job_ends_well(cluster: Cluster, name: str) -> None:
    (cluster.shared / "containers/nvcr.io_nvidia_pytorch-24.01-py3.sqsh").write_text("")
    (cluster.shared / "containers/nvcr.io_nvidia_pytorch-26.09-py3.sqsh").write_text("")
    cluster.program("ldd", LDD)
    done = cluster.job(name, OPAL_PREFIX="/opt/hpcx/ompi")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith(": done")
    assert "Selected provider is efa, fabric is efa (found 32 nics)" in done.stdout
    assert {row[-1] for row in table(done)} == {"0"}
    assert all("--ntasks-per-node=8 --mpi=pmix" in call and "--cpus-per-task=24" in call for call in cluster.calls())
    # Slurm does not know which GPU is near which core, so it binds nothing.
    assert all("--cpu-bind=none" in call for call in cluster.calls())
    program = f"{cluster.shared}/nccl-tests/current-cuda13-x86_64-{SYSTEM}/bin/"
    if "container" in name:
        image = f"--container-image={cluster.shared}/containers/nvcr.io_nvidia_pytorch-26.09-py3.sqsh"
        mounts = f"{cluster.shared}/nccl-tests:{cluster.shared}/nccl-tests,/opt/amazon/openmpi:/opt/amazon/openmpi"
        assert all(f"{image} --container-mounts={mounts} " in call for call in cluster.calls())
        assert all("SHARED=1" in call for call in cluster.calls())
        # An image's own Open MPI says where its parts are, and the mounted one is not to take those.
        assert all(f' sh -c unset OPAL_PREFIX; exec "$0" "$@" {program}' in call for call in cluster.calls())
    else:
        assert not [call for call in cluster.calls() if "container" in call or "OPAL_PREFIX" in call]


def test_mpi_connects_over_no_interface_that_docker_has(cluster: Cluster) -> None:
    """Docker's bridge has the same address on every node, where Open MPI would wait for ever."""
    cluster.job("phase2-multinode.sbatch")
    assert all("PML=^cm,ucx BTL=tcp,self NOT=lo,docker0 GDS=hash " in call for call in cluster.calls())
    # Whoever names interfaces knows better. Open MPI refuses both.
    (cluster.top / "calls").unlink()
    cluster.job("phase2-multinode.sbatch", OMPI_MCA_btl_tcp_if_include="eth0")
    assert all("BTL=tcp,self NOT= GDS=hash " in call for call in cluster.calls())
    (cluster.top / "calls").unlink()
    cluster.job("phase2-multinode.sbatch", OMPI_MCA_btl_tcp_if_exclude="lo,br0")
    assert all("NOT=lo,br0 " in call for call in cluster.calls())


def test_no_test_lasts_for_ever(cluster: Cluster) -> None:
    cluster.job("phase2-multinode.sbatch")
    first, *others = cluster.calls()
    assert " --time=10 " in first
    assert all(" --time=60 " in call for call in others)
    (cluster.top / "calls").unlink()
    cluster.job("phase2-multinode.sbatch", STEP_MINUTES="5")
    assert all(" --time=5 " in call for call in cluster.calls())


@pytest.mark.parametrize("name", [name for name in JOBS if "phase1" not in name])
def test_where_nccl_does_not_start_between_the_nodes_nothing_more_is_tried(cluster: Cluster, name: str) -> None:
    (cluster.top / "fails").write_text("")
    done = cluster.job(name, CONTAINER_IMAGE="docker://x")
    assert done.returncode == 1
    assert len(cluster.calls()) == 1
    assert "# NCCL did not start: srun: error: n2: task 9: Killed" in done.stdout
    assert done.stdout.splitlines()[-1].endswith(": FAILED")


def test_one_node_that_does_not_start_is_found_by_phase_1(cluster: Cluster) -> None:
    (cluster.top / "fails").write_text("")
    done = cluster.job("phase1-baseline.sbatch")
    assert done.returncode == 1
    assert "# n2: sendrecv_perf ended with 137" in done.stdout


def test_phase_1_measures_each_node_by_itself(cluster: Cluster) -> None:
    rows = table(cluster.job("phase1-baseline.sbatch"))
    assert [row[0] for row in rows] == ["n1"] * 6 + ["n2"] * 6
    assert rows[0] == ["n1", "all_reduce_perf", "1", "8", "16777216", "500.00", "200.00", "400.00", "401.00", "0"]
    assert any("--nodes=1 --nodelist=n2" in call and "alltoall_perf" in call for call in cluster.calls())


def test_phase_2_takes_more_and_more_nodes(cluster: Cluster) -> None:
    done = cluster.job("phase2-multinode.sbatch", nodes=6)
    rows = table(done)
    assert [row[2] for row in rows[:4]] == ["1", "2", "4", "6"]
    assert [row[3] for row in rows[:4]] == ["8", "16", "32", "48"]
    assert re.search(r"all_reduce_perf +6 +400.00 +100%", done.stdout)
    done = cluster.job("phase2-multinode.sbatch", nodes=1)
    assert (done.returncode, done.stderr) == (2, "error: found 1 node; needed: more, as with sbatch --nodes=2\n")


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "alltoall"])
@pytest.mark.parametrize("nodes", [2, 4])
def test_phase_2_tells_how_busy_the_network_is(cluster: Cluster, collective: str, nodes: int) -> None:
    """At the limit of a p5's network, by the formula of verify, this is all of its 3200 Gbit/s."""
    most = nccl_expected.limit("p5.48xlarge", nodes, collective)
    assert most
    (cluster.top / "busbw").write_text(f"{most.busbw:.0f}")
    done = cluster.job("phase2-multinode.sbatch", nodes=nodes)
    (row,) = [
        line.split()
        for line in done.stdout.split("## Scaling")[1].splitlines()
        if re.match(rf"{collective}_perf +{nodes} .*%", line)
    ]
    assert float(row[4]) == pytest.approx(3200, rel=0.01)


def test_phase_2_tells_the_latency(cluster: Cluster) -> None:
    srun = (cluster.fake / "srun").read_text()
    (cluster.fake / "srun").write_text(
        srun.replace("-1 500.00", "-1 $time").replace(
            "for size", 'case "$*" in --nodes=1*) time=31.50 ;; *) time=69.12 ;; esac; for size'
        )
    )
    done = cluster.job("phase2-multinode.sbatch")
    rows = [line.split() for line in done.stdout.split("## Latency")[1].splitlines() if "_perf" in line][:4]
    assert rows[0] == ["all_reduce_perf", "2", "1048576", "69.12", "+37.6"]
    assert len(rows) == 4


def test_phase_4_compares_settings(cluster: Cluster) -> None:
    done = cluster.job("phase4-optimization.sbatch")
    lines = [line.split() for line in done.stdout.splitlines() if re.match(r"(size|1048576) ", line)]
    assert ["size", "default", "tuner-off", "nvls-off", "both-off", "registered", "best"] in lines
    assert ["1048576", "400.00", "400.00", "300.00", "300.00", "450.00", "registered"] in lines
    seen = {call.split("SHARED")[0].strip() for call in cluster.calls()}
    assert seen == {"NVLS= TUNER=", "NVLS= TUNER=none", "NVLS=0 TUNER=", "NVLS=0 TUNER=none"}


def test_what_goes_wrong_is_said_at_the_end(cluster: Cluster) -> None:
    (cluster.top / "wrong").write_text("3")
    done = cluster.job("phase1-baseline.sbatch", nodes=1)
    assert done.returncode == 1
    assert "# n1: all_reduce_perf gave 6 wrong values: a GPU, a link or the memory is broken" in done.stdout
    assert done.stdout.splitlines()[-1].endswith(": FAILED")
    (cluster.top / "wrong").unlink()
    done = cluster.job("phase4-optimization.sbatch", NCCL_ALGO="Ring")
    assert done.returncode == 0
    assert "# WARNING: NCCL_ALGO=Ring switches off NVLS" in done.stdout
    (cluster.top / "fails").write_text("NVLS=0")
    done = cluster.job("phase4-optimization.sbatch")
    assert done.returncode == 1
    assert "# nvls-off: all_reduce_perf ended with 137" in done.stdout
    (cluster.top / "fails").unlink()
    (cluster.top / "sockets").write_text("")
    assert "# EFA is not used between the nodes" in cluster.job("phase3-workload.sbatch").stdout


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"GPUS_PER_NODE": "0"}, "no GPU on "),
        ({"SLURM_JOB_ID": ""}, "this is a job file; submit it: sbatch"),
    ],
)
def test_what_a_job_needs(cluster: Cluster, environment: dict[str, str], says: str) -> None:
    done = cluster.job("phase1-baseline.sbatch", **environment)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {says}")
    assert cluster.calls() == []


def test_a_job_in_a_container_needs_an_image(cluster: Cluster) -> None:
    done = cluster.job("phase1-baseline-container.sbatch")
    assert done.stderr.startswith(f"error: no *pytorch*.sqsh in {cluster.shared}/containers; name an image")
    done = cluster.job("phase1-baseline-container.sbatch", CONTAINER_IMAGE="docker://x", NCCL_SHARED="0")
    assert done.returncode == 0, done.stderr
    assert all("SHARED=0" in call and "--container-image=docker://x" in call for call in cluster.calls())


def test_steps_have_the_gpus_of_the_job(cluster: Cluster) -> None:
    """An exclusive job has all of a node's, and its steps none that they do not ask for. Slurm may not know of GPUs."""
    cluster.job("phase1-baseline.sbatch", SLURM_GPUS_ON_NODE="8")
    calls = cluster.calls()
    assert calls
    assert all("--gres=gpu:8 " in call for call in calls)
    cluster.job("phase1-baseline.sbatch")
    assert not any("--gres" in call for call in cluster.calls()[len(calls) :])


def test_few_cores_and_no_mpi(tmp_path: Path) -> None:
    alone = Cluster(tmp_path, mpi=False)
    alone.publish("nccl-tests", f"2.19.6-cuda13-x86_64-{SYSTEM}", "bin/all_reduce_perf")
    done = alone.job("phase1-baseline.sbatch", nodes=1, SLURM_JOB_CPUS_PER_NODE="192,2")
    assert done.returncode == 0, done.stderr
    assert all("--ntasks-per-node=1 " in call and " -g 8 " in call for call in alone.calls())
    assert "the tests were built without MPI, for one node alone; found 2" in alone.job("phase1-baseline.sbatch").stderr


def test_more_gpus_than_cores(cluster: Cluster) -> None:
    cluster.job("phase1-baseline.sbatch", nodes=1, SLURM_JOB_CPUS_PER_NODE="192,2")
    assert all("--overcommit" in call for call in cluster.calls())


# What users call


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (
            "",
            0,
            "NCCL is published already: {nccl}/2.32.3-cuda13-x86_64; for this shell: source {nccl}/setup-nccl-env.sh",
        ),
        ("v2.32.3-1", 0, "NCCL is published already"),
        ("2.32.3 1.21.1", 0, "NCCL is published already"),
        ("v2.32.3-1 v1.21.1-aws {shared}", 0, "NCCL is published already"),
        (
            "v2.28.7-1 v1.17.2-aws --sha256 {sha} --ofi-sha256 {sha}",
            3,
            "the NCCL in {nccl} is 2.32.3-cuda13-x86_64, not 2.28.7; there is no aws-ofi-nccl 1.17.2",
        ),
        ("2.32.3 1.21.1 /elsewhere --sha256 {sha} --ofi-sha256 {sha}", 3, "there is no NCCL in /elsewhere/nccl"),
        (
            "2.28.7",
            2,
            "found no sha256 of nccl 2.28.7; needed: install-nccl-shared.sh … --sha256 HEX "
            "(https://pypi.org/project/nvidia-nccl-cu13/2.28.7/#files tells it), or no version, which takes the pinned "
            "ones (there is NCCL 2.32.3-cuda13-x86_64 in {nccl} already)",
        ),
        (
            "v2.28.7-1 v1.17.2-aws {shared}",
            2,
            "found no sha256 of nccl 2.28.7 and aws_ofi_nccl 1.17.2; needed: install-nccl-shared.sh … --sha256 HEX "
            "(https://pypi.org/project/nvidia-nccl-cu13/2.28.7/#files tells it) --ofi-sha256 HEX (that of "
            "aws-ofi-nccl-1.17.2.tar.gz), or no version,",
        ),
        (
            "v2.28.7-1 v1.17.2-aws --ofi-sha256 {sha}",
            2,
            "found no sha256 of nccl 2.28.7; needed: ",
        ),
        (
            "2.32.3 1.17.2",
            2,
            "found no sha256 of aws_ofi_nccl 1.17.2; needed: install-nccl-shared.sh … --ofi-sha256 HEX",
        ),
        (
            "2.28.7 --sha256 sha:1",
            2,
            "--sha256: found sha:1; needed: the hexadecimal digits of the sha256 or sha512 of nccl 2.28.7",
        ),
        ("2.28.7 --sha256", 2, "--sha256: found none; needed: "),
        ("--help", 2, "usage: install-nccl-shared.sh [NCCL_VERSION"),
    ],
)
@pytest.mark.parametrize("ofi", ["1.21.1-x86_64", f"1.21.1-x86_64-{SYSTEM}"])
def test_install_nccl_shared_without_ansible(cluster: Cluster, words: str, code: int, says: str, ofi: str) -> None:
    cluster.publish("aws-ofi-nccl", ofi, "lib/libnccl-net.so")
    where = {"nccl": cluster.scripts, "shared": cluster.shared, "sha": SHA256}
    done = cluster.run("install-nccl-shared.sh", *words.format(**where).split())
    assert done.returncode == code
    (line,) = (done.stdout + done.stderr).splitlines()
    assert line.startswith(says.format(**where))
    if code == 3:
        assert (
            "ansible-playbook -i INVENTORY pcluster.postboot.site --limit pcluster_head --tags aws_ofi_nccl,nccl"
            in line
        )
        assert ("-e nccl_version=2.28.7 " in f"{line} ") == ("v2.28.7-1" in words)
        # As it stands it can be pasted into a shell.
        shown = ["bash", "-c", f"printf '%s\\n' {line.split('run: ')[1]}"]
        again = subprocess.run(shown, text=True, capture_output=True, timeout=60, check=True)
        assert {"nccl_cu13_sha256": {os.uname().machine: SHA256}} in [
            json.loads(word) for word in again.stdout.splitlines() if word.startswith("{")
        ]


def test_with_ansible_the_roles_run(cluster: Cluster) -> None:
    cluster.program("ansible-galaxy", 'echo "pcluster.postboot 0.1.0"')
    cluster.program("ansible-playbook", 'echo "$@"')
    begin = "-c local -i localhost, pcluster.postboot.site --tags"
    done = cluster.run("install-nccl-shared.sh", "v2.30.7-1", "--sha256", SHA256, "--", "-e", "nccl_method=source")
    pinned = f'-e nccl_version=2.30.7-1 -e {{"nccl_source_sha256":{{"noarch":"{SHA256}"}}}}'
    assert done.stdout == f"{begin} aws_ofi_nccl,nccl {pinned} -e nccl_method=source\n"
    hashes = ("--ofi-sha256", SHA256, "--", "-e", "@nccl_sha256.yml")
    done = cluster.run("install-nccl-shared.sh", "v2.28.7-1", "v1.17.2-aws", "/fsx2", *hashes)
    assert done.stdout == (
        f"{begin} aws_ofi_nccl,nccl -e nccl_version=2.28.7 -e aws_ofi_nccl_version=1.17.2 "
        f'-e {{"aws_ofi_nccl_sha256":{{"noarch":"{SHA256}"}}}} -e aws_ofi_nccl_build=always -e common_shared_dir=/fsx2 '
        "-e @nccl_sha256.yml\n"
    )
    assert cluster.run("install-nccl-tests.sh", "--", "--check").stdout == f"{begin} nccl_tests --check\n"
    # Ansible alone will not do.
    cluster.program("ansible-galaxy", "exit 1")
    assert cluster.run("install-nccl-tests.sh").stdout.startswith("nccl-tests are published already: ")


def test_what_was_set_for_the_last_run_is_set_again(cluster: Cluster) -> None:
    cluster.program("ansible-galaxy", 'echo "pcluster.postboot 0.1.0"')
    cluster.program("ansible-playbook", 'echo "$@"')
    remembered = cluster.top / "remembered.json"
    given = {"nccl_method": "source", "nccl_version": "2.29.2-1", "nccl_source_sha256": {"noarch": SHA256}}
    remembered.write_text(json.dumps(given, indent=4))
    told = f"-c local -i localhost, pcluster.postboot.site -e @{remembered} --tags"
    assert cluster.run("install-nccl-shared.sh").stdout == f"{told} aws_ofi_nccl,nccl\n"
    assert cluster.run("install-nccl-tests.sh").stdout == f"{told} nccl_tests\n"
    # What is remembered has its hash; anything else has none, and the source is what it is made of.
    assert cluster.run("install-nccl-shared.sh", "v2.29.2-1").stdout.endswith("nccl -e nccl_version=2.29.2-1\n")
    assert "HEX (that of v2.30.7-1.tar.gz)" in cluster.run("install-nccl-shared.sh", "v2.30.7-1").stderr
    cluster.node("")
    remembered.write_text('{\n    "nccl_cuda": 12\n}')
    done = cluster.run("install-nccl-shared.sh", "2.28.7", "--sha256", SHA256)
    assert f'-e nccl_version=2.28.7 -e {{"nccl_cu12_sha256":{{"{os.uname().machine}":"{SHA256}"}}}}' in done.stdout


def test_a_pinned_version_needs_no_hash(cluster: Cluster, variables: Variables) -> None:
    cluster.program("ansible-galaxy", 'echo "pcluster.postboot 0.1.0"')
    cluster.program("ansible-playbook", 'echo "$@"')
    (cluster.scripts / "current-cuda13-x86_64").unlink()  # nothing is published yet
    pinned = [name for name in variables()("__nccl_tests_pinned") if name.endswith((os.uname().machine, "noarch"))]
    (nccl,) = (name.split("-")[1] for name in pinned if name.startswith("nccl_cu13-"))
    (ofi,) = (name.split("-")[1] for name in pinned if name.startswith("aws_ofi_nccl-"))
    done = cluster.run("install-nccl-shared.sh", f"v{nccl}-1", f"v{ofi}-aws", str(cluster.shared))
    assert done.stdout == (
        "-c local -i localhost, pcluster.postboot.site --tags aws_ofi_nccl,nccl "
        f"-e nccl_version={nccl} -e aws_ofi_nccl_version={ofi} -e aws_ofi_nccl_build=always\n"
    )
    # A version of the source is pinned for what is built from the source alone.
    done = cluster.run("install-nccl-shared.sh", f"v{nccl}-1", "--", "-e", "nccl_method=source")
    assert (done.returncode, done.stdout) == (2, "")
    source = variables(nccl_method="source")("__nccl_tests_pinned")
    assert [name.split("-")[0] for name in source] == ["nccl_source", "aws_ofi_nccl"]


def test_what_is_remembered_is_for_root(cluster: Cluster) -> None:
    cluster.program("ansible-galaxy", 'echo "pcluster.postboot 0.1.0"')
    cluster.program("ansible-playbook", 'echo "$@"')
    (cluster.top / "remembered.json").write_text("{}")
    with tempfile.TemporaryDirectory() as name:  # where another user may go
        copy = Path(name) / "copy"
        shutil.copytree(cluster.top, copy, symlinks=True)
        script = copy / "fsx/nccl/install-nccl-shared.sh"
        script.write_text(script.read_text().replace(str(cluster.top), str(copy)))
        (copy / "remembered.json").chmod(0)
        Path(name).chmod(0o755)
        copy.chmod(0o755)
        path = {"PATH": f"{copy}/bin:/usr/bin:/bin"}
        who = 65534 if os.getuid() == 0 else None
        done = subprocess.run([script], env=path, user=who, text=True, capture_output=True, timeout=60, check=False)
        assert (done.returncode, done.stdout) == (3, "")
        assert (
            done.stderr == f"{copy}/remembered.json is for root alone, and has the variables of the last run: sudo "
            "ansible-playbook -c local -i localhost, pcluster.postboot.site "
            f"-e @{copy}/remembered.json --tags aws_ofi_nccl,nccl\n"
        )


def test_nobody_is_told_to_be_root_in_what_is_shared(cluster: Cluster, repo: Path) -> None:
    """Whoever owns a folder of the shared file system may put another script there."""
    texts = [(cluster.scripts / name).read_text() for name in cluster.files]
    for role in ("efa", "aws_ofi_nccl", "nccl", "nccl_tests"):
        texts += [path.read_text() for path in (repo / "roles" / role).rglob("*") if path.is_file()]
    lines = [line for text in texts for line in text.splitlines()]
    assert not [line for line in lines if re.search(r"sudo +(ba)?(sh +)?(/fsx|\$0)", line)]


def test_each_node_has_what_is_for_its_cuda(cluster: Cluster) -> None:
    """Two clusters share the files, and nothing else."""
    cluster.publish("nccl-tests", f"2.19.6-cuda12-x86_64-{SYSTEM}", "bin/all_reduce_perf")
    cluster.publish("nccl", "2.29.2-cuda12-x86_64", "lib/libnccl.so.2")
    for key, version in (("cuda13-x86_64", "2.32.3"), ("cuda12-x86_64", "2.29.2")):
        cluster.node(key)
        assert f"/nccl/{version}-{key};" in cluster.run("install-nccl-shared.sh").stdout
        assert f"/nccl-tests/2.19.6-{key}-{SYSTEM}/bin;" in cluster.run("install-nccl-tests.sh").stdout
        done = cluster.job("phase1-baseline.sbatch")
        assert f"# nccl-tests 2.19.6-{key}-{SYSTEM}, NCCL {version}-{key}\n" in done.stdout
        assert (
            f"{cluster.shared}/nccl-tests/current-{key}-{SYSTEM}/bin/all_reduce_perf"
            in cluster.calls()[-1] + cluster.calls()[-12]
        )
    # A node that nobody has configured has what is called current.
    cluster.node("")
    assert "/nccl/2.29.2-cuda12-x86_64;" in cluster.run("install-nccl-shared.sh").stdout
    assert cluster.job("phase1-baseline.sbatch").returncode == 0


@pytest.mark.parametrize("nccl", ["cuda13-x86_64", f"cuda13-x86_64-{SYSTEM}", "cuda13-x86_64-glibc2.28"])
@pytest.mark.parametrize("former", [True, False])
def test_each_node_has_what_is_for_its_c_library(cluster: Cluster, nccl: str, former: bool) -> None:
    """Whether NCCL is NVIDIA's package, or compiled; and before the release of nccl-tests has the new name, too."""
    for name in ("2.19.6-cuda13-x86_64", "2.19.6-cuda13-x86_64-glibc2.28"):  # also what another cluster has
        cluster.publish("nccl-tests", name, "bin/all_reduce_perf")
    release = "2.19.6-cuda13-x86_64" if former else f"2.19.6-cuda13-x86_64-{SYSTEM}"
    if former:
        (cluster.shared / f"nccl-tests/current-cuda13-x86_64-{SYSTEM}").unlink()
    cluster.publish("nccl", f"2.30.7-{nccl}", "lib/libnccl.so.2")
    cluster.node(nccl)
    assert f"/nccl-tests/{release}/bin;" in cluster.run("install-nccl-tests.sh").stdout
    assert f"# nccl-tests {release}, NCCL 2.30.7-{nccl}\n" in cluster.job("phase1-baseline.sbatch").stdout


def test_nothing_of_one_cluster_is_in_the_shared_files(variables: Variables, tmp_path: Path) -> None:
    one = variables(cuda="12.4", __nccl_tests_mpi_there={"stat": {"exists": True, "isdir": True}})
    other = variables(cuda="13.0", __nccl_tests_mpi_there={"stat": {"exists": False}})
    assert one("__nccl_tests_files") == other("__nccl_tests_files")


def test_install_nccl_tests_without_ansible(cluster: Cluster) -> None:
    done = cluster.run("install-nccl-tests.sh")
    assert (done.returncode, done.stderr) == (0, "")
    (cluster.shared / f"nccl-tests/current-cuda13-x86_64-{SYSTEM}").unlink()
    done = cluster.run("install-nccl-tests.sh")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith(f"there are no nccl-tests in {cluster.shared}/nccl-tests; on the machine")


# Nodes that run, some of them busy or not for jobs now, four that do not, and one without a GPU.
# A sign behind a state is sinfo's.
NODES = ["n1 a idle", "n2 a mix", "n1 b idle", "n3 a alloc", "n4 b idle~", "n5 b down*", "n6 b idle"]
NODES += ["n8 a mix$", "n9 a plnd", "n10 a drain", "n11 a alloc@", "n12 a idle#", "n13 a mix*"]
SINFO = "printf '%s\\n' " + " ".join(f"'{node} gpu:h100:8'" for node in NODES) + " 'n7 c idle (null)'"
ASKED = r"""
echo "${{*:1:8}}" >> {top}/calls
case "$*" in
  *--nodelist=n1\ * | *--nodelist=n9*) echo ok ;;
  *--nodelist=n8*)
    echo "srun: error: Unable to allocate resources: Required node not available (down, drained or reserved)"
    exit 1 ;;
  *--nodelist=n2*) echo "srun: error: Unable to allocate resources: Requested nodes are busy"; exit 1 ;;
  *--nodelist=n6*) [ -e {top}/mended ] && echo ok || echo "programs do not find NCCL" ;;
esac
"""


def test_only_nodes_that_run_are_asked(cluster: Cluster) -> None:
    cluster.program("sinfo", SINFO)
    cluster.program("srun", ASKED.format(top=cluster.top))
    done = cluster.run("apply-nccl-to-running-nodes.sh")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "n6: programs do not find NCCL",
        "2 running nodes find 2.32.3-cuda13-x86_64; not asked, as they are busy: n2,n3,n8,n10,n11; "
        "4 nodes do not run, and find it when they boot",
    ]
    assert done.stderr.endswith("(nodes without NCCL: n6)\n")
    asked = {re.findall(r"--nodelist=(\S+)", call)[0] for call in cluster.calls()}
    assert asked == {"n1", "n2", "n6", "n8", "n9"}
    assert len(cluster.calls()) == 5
    assert all("--immediate=" in call for call in cluster.calls())
    (cluster.top / "mended").write_text("")
    assert cluster.run("apply-nccl-to-running-nodes.sh").returncode == 0
    done = cluster.run("apply-nccl-to-running-nodes.sh", "b")
    assert done.stdout.startswith("2 running nodes find ")
    (cluster.scripts / "current-cuda13-x86_64").unlink()
    done = cluster.run("apply-nccl-to-running-nodes.sh")
    assert (done.returncode, done.stdout) == (3, "")
