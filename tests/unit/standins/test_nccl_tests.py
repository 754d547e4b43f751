# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The sandbox's stand-ins for nccl-tests and aws-ofi-nccl: built as upstream's are, and what they print and do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._nccl import ofi_plugin
from ansible_collections.pcluster.postboot.plugins.module_utils._verify import nccl_results

pytestmark = pytest.mark.skipif(not (shutil.which("cc") and shutil.which("make")), reason="no C compiler")
Done = subprocess.CompletedProcess[str]
STANDINS = Path(__file__).resolve().parents[3] / "molecule/cluster/standins"
NCCL_H = "#define NCCL_VERSION_CODE 23203\ntypedef int ncclResult_t;\nncclResult_t ncclGetVersion(int *version);\n"
FABRIC_H = """#include <stdint.h>
#define FI_MAJOR_VERSION 1
#define FI_MINOR_VERSION 17
#define FI_VERSION(major, minor) (((major) << 16) | (minor))
#define FI_VERSION_LT(one, other) ((one) < (other))
#define FI_MAJOR(version) ((version) >> 16)
#define FI_MINOR(version) ((version) & 0xffff)
uint32_t fi_version(void);
int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags, const void *hints, void **info);
"""
FABRIC_C = """#include <rdma/fabric.h>
uint32_t fi_version(void) { return FI_VERSION(1, 17); }
int fi_getinfo(uint32_t v, const char *n, const char *s, uint64_t f, const void *h, void **i) { return -61; }
"""


def run(*line: str | Path, cwd: Path | None = None, **environment: str) -> Done:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "NCCL_", "LD_", "FI_"))}
    words = [str(word) for word in line]
    return subprocess.run(
        words, cwd=cwd, env={**clean, **environment}, text=True, capture_output=True, timeout=60, check=False
    )


def shared(path: Path, code: str, *options: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    line = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{path.name}", "-x", "c", "-", "-o", str(path), *options]
    subprocess.run(line, input=code, text=True, check=True)


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small NCCL, and a small libfabric."""
    top = tmp_path_factory.mktemp("standins")
    (top / "nccl/include").mkdir(parents=True)
    (top / "nccl/include/nccl.h").write_text(NCCL_H)
    version = "int ncclGetVersion(int *version) { *version = 23203; return 0; }"
    shared(top / "nccl/lib/libnccl.so.2", version)
    (top / "nccl/lib/libnccl.so").symlink_to("libnccl.so.2")
    (top / "efa/include/rdma").mkdir(parents=True)
    (top / "efa/include/rdma/fabric.h").write_text(FABRIC_H)
    shared(top / "efa/lib/libfabric.so.1", FABRIC_C, f"-I{top}/efa/include")
    (top / "efa/lib/libfabric.so").symlink_to("libfabric.so.1")
    (top / "efa/include/hwloc.h").write_text("")
    return top


def build(top: Path, name: str, *variables: str) -> Done:
    source = STANDINS / "nccl-tests"
    places = [f"NCCL_HOME={top}/nccl", f"BUILDDIR={top}/{name}", "NVCC=cc", "CUDA_HOME=/usr/local/cuda"]
    places.append("CFLAGS=-std=gnu11 -Wall -Wextra")  # without optimisation, which takes a third of the time
    line = ["make", "-C", source, "-j2", "src.build", *places, "NVCC_GENCODE=-gencode=x", *variables]
    return run(*line, LD_RUN_PATH=f"{top}/nccl/lib")


@pytest.fixture(scope="module")
def tests(top: Path) -> Path:
    done = build(top, "mpi", "MPI=1", f"MPI_HOME={top}")
    assert done.returncode == 0, done.stderr
    return top / "mpi"


Node = Callable[..., Path]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """node(name, gpus, efa, slow) makes the files of a node, and returns where they are."""

    def make(name: str = "n0", gpus: int = 8, efa: int = 0, slow: str = "") -> Path:
        root = tmp_path / name
        (root / "dev").mkdir(parents=True)
        for index in range(gpus):
            (root / f"dev/nvidia{index}").write_text("")
        for index in range(efa):
            (root / f"sys/class/infiniband/rdmap{index}s0/device").mkdir(parents=True)
            (root / f"sys/class/infiniband/rdmap{index}s0/device/vendor").write_text("0x1d0f\n")
        if slow:
            (root / "etc/sandbox").mkdir(parents=True)
            (root / "etc/sandbox/slow-node").write_text(f"{slow}\n")
        return root

    return make


def step(program: Path, roots: list[Path], *options: str, each: int = 1, **environment: str) -> list[Done]:
    """Start a program as srun would, with so many processes on each node; node of the first process is this machine."""
    count = len(roots) * each
    started = []
    for rank in range(count):
        slurm = {
            "SLURM_JOB_ID": str(os.getpid()),
            "SLURM_STEP_ID": str(abs(hash(str(roots[0]))) % 1000),
            "SLURM_STEP_NODELIST": "localhost",
            "SLURM_STEP_NUM_TASKS": str(count),
            "SLURM_STEP_NUM_NODES": str(len(roots)),
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(rank % each),
            "NCCL_HOSTID": roots[rank // each].name,
            "SANDBOX_ROOT": str(roots[rank // each]),
        }
        line = [str(program), *options]
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(line, env={**os.environ, **slurm, **environment}, **both))  # type: ignore[call-overload]
    ended = []
    for process in started:
        out, err = process.communicate(timeout=60)
        ended.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    return ended


def result_of(done: Done) -> nccl_results.Result:
    """Read a run as verify does."""
    (result,) = nccl_results.parse(done.stdout, "all_reduce")
    assert nccl_results.why(result) == ""
    return result


def busbw(done: Done) -> float:
    """Return the bus bandwidth of the largest size."""
    values = result_of(done).rows[-1].out_of_place
    assert values is not None
    return values.busbw


def test_what_a_run_on_one_node_prints(tests: Path, node: Node) -> None:
    done = run(tests / "all_reduce_perf", "-b", "8", "-e", "1G", "-f", "2", "-g", "8", SANDBOX_ROOT=str(node()))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "# nccl-tests version 2.19.6 nccl-headers=23203 nccl-library=23203"
    assert lines[1] == "# Collective test starting: all_reduce_perf"
    assert lines[2] == (
        "# nThread 1 nGpus 8 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 "
        "validation: 1 graph: 0 unalign: 0"
    )
    assert re.fullmatch(
        r"#  Rank  7 Group  0 Pid +\d+ on +\S+ device  7 \[0000:2c:00\] NVIDIA H100 80GB HBM3", lines[12]
    )
    half = "     time   algbw   busbw  #wrong"
    assert lines[14].split() == ["#", "out-of-place", "in-place"]
    assert lines[15] == f"#       size         count      type   redop    root{half}{half} "
    assert lines[16].split() == ["#", "(B)", "(elements)", *["(us)", "(GB/s)", "(GB/s)"] * 2]
    assert re.fullmatch(
        r" {11}8 {13}2     float     sum      -1( +\d+\.\d\d){3}       0( +\d+\.\d\d){3}       0", lines[17]
    )
    assert [line.split(" : ")[0] for line in lines[-6:]] == [
        "# Out of bounds values",
        "# Avg bus bandwidth   ",
        "#",
        "# Collective test concluded: all_reduce_perf",
        "#",
        "",
    ]
    result = result_of(done)
    assert [row.size for row in result.rows] == [8 << index for index in range(28)]
    last = result.rows[-1].out_of_place
    assert last is not None
    assert last.busbw == pytest.approx(last.algbw * 2 * 7 / 8, abs=0.01)
    assert 440 < last.busbw < 480


@pytest.mark.parametrize(
    ("program", "size", "count", "operation", "root", "factor"),
    [
        ("all_gather", 1048576, 32768, "none", -1, 7 / 8),
        ("reduce_scatter", 1048576, 32768, "sum", -1, 7 / 8),
        ("alltoall", 1048576, 32768, "none", -1, 7 / 8),
        ("broadcast", 1048576, 262144, "none", 0, 1),
        ("reduce", 1048576, 262144, "sum", 0, 1),
        ("gather", 1048576, 32768, "none", 0, 7 / 8),
        ("sendrecv", 1048576, 262144, "sum", -1, 1),
    ],
)
def test_each_collective_has_its_own_counts(
    tests: Path, node: Node, program: str, size: int, count: int, operation: str, root: int, factor: float
) -> None:
    done = run(tests / f"{program}_perf", "-b", "1M", "-e", "1M", "-g", "8", "-c", "0", SANDBOX_ROOT=str(node()))
    (row,) = [line.split() for line in done.stdout.splitlines() if line[:1] == " "]
    assert row[:5] == [str(size), str(count), "float", operation, str(root)]
    assert row[8] == row[12] == "N/A"
    assert float(row[7]) == pytest.approx(float(row[6]) * factor, abs=0.02)


def test_the_first_of_several_processes_speaks(tests: Path, node: Node) -> None:
    first, *others = step(tests / "all_reduce_perf", [node("n0"), node("n1")], "-b", "1G", "-e", "1G", each=2)
    assert first.returncode == 0, first.stderr
    assert [(done.returncode, done.stdout) for done in others] == [(0, "")] * 3
    assert len(re.findall(r"#  Rank +\d+ ", first.stdout)) == 4
    assert "device  1 [0000:14:00]" in first.stdout
    # Without EFA it goes over sockets.
    assert busbw(first) < 3


def test_without_mpi_each_process_is_alone(top: Path, node: Node) -> None:
    assert build(top, "alone", "PROGRAMS=all_reduce").returncode == 0
    ended = step(top / "alone/all_reduce_perf", [node("n0")], "-b", "8", "-e", "8", each=2)
    assert ["concluded" in done.stdout for done in ended] == [True, True]


def test_a_wrong_mpi_and_a_broken_nccl_are_noticed(top: Path, tests: Path, tmp_path: Path) -> None:
    done = build(top, "wrong", "MPI=1", "MPI_HOME=/nowhere")
    assert done.returncode != 0
    assert "mpi.h" in done.stdout
    shutil.copytree(top / "nccl", tmp_path / "nccl", symlinks=True)
    (tmp_path / "nccl/lib/libnccl.so.2").write_text("half a library")
    done = run(tests / "all_reduce_perf", "--help", LD_LIBRARY_PATH=str(tmp_path / "nccl/lib"))
    assert done.returncode == 127
    assert "libnccl.so.2" in done.stderr
    (tmp_path / "nccl/include/nccl.h").unlink()
    assert build(tmp_path, "broken").returncode != 0


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["-h"], 0, "USAGE: all_reduce_perf"),
        (["-b", "1x"], 255, "invalid size specified for 'minbytes'"),
        (["-b", "2M", "-e", "1M"], 255, "invalid sizes for 'minbytes' and 'maxbytes': 2097152 > 1048576"),
        (["-g", "9"], 5, "Invalid number of GPUs: 9 requested but only 8 were found."),
        (["-d", "decimal", "-b", "8", "-e", "8"], 0, "invalid type decimal, defaulting to float"),
    ],
)
def test_options_that_it_refuses(tests: Path, node: Node, options: list[str], code: int, says: str) -> None:
    done = run(tests / "all_reduce_perf", *options, SANDBOX_ROOT=str(node()))
    assert done.returncode == code
    assert says in done.stdout + done.stderr


# aws-ofi-nccl


@pytest.fixture(scope="module")
def plugin(top: Path) -> Path:
    """Build the plugin in another folder than that of its source, and install it elsewhere than it is to be."""
    folder = top / "ofi"
    folder.mkdir()
    configure = STANDINS / "aws-ofi-nccl/configure"
    options = ["--prefix=/fsx/aws-ofi-nccl/current", f"--with-libfabric={top}/efa", "--with-cuda=/usr/local/cuda"]
    done = run(configure, *options, "--enable-platform-aws", "--disable-tests", cwd=folder)
    assert "Enabled Platforms: Default, AWS" in done.stdout, done.stdout + done.stderr
    for line in (["make", "-j2"], ["make", "install", f"DESTDIR={top}/installed"]):
        done = run(*line, cwd=folder, LD_RUN_PATH=f"{top}/efa/lib")
        assert done.returncode == 0, done.stderr
    return top / "installed/fsx/aws-ofi-nccl/current"


def test_the_plugin_is_what_upstream_installs(plugin: Path) -> None:
    names = {path.name for path in (plugin / "lib").iterdir()}
    assert names == {"libnccl-net.so", "libnccl-net-ofi.so", "libnccl-ofi-tuner.so", "libnccl-tuner-ofi.so"}
    assert ofi_plugin.version_of(str(plugin / "lib/libnccl-net.so")) == "1.21.1"
    assert ofi_plugin.refusal(str(plugin / "lib/libnccl-net.so")) == ""


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--with-libfabric=/nowhere"], "NCCL OFI Plugin could not find a working Libfabric install."),
        (["--with-nothing"], "unrecognized option: `--with-nothing'"),
    ],
)
def test_what_configure_refuses(tmp_path: Path, options: list[str], says: str) -> None:
    if options[0].endswith("nowhere") and Path("/usr/include/rdma/fabric.h").exists():
        pytest.skip("this machine has a libfabric")
    done = run(STANDINS / "aws-ofi-nccl/configure", *options, cwd=tmp_path)
    assert done.returncode == 1
    assert says in done.stderr


def test_nccl_says_what_it_uses(tests: Path, plugin: Path, node: Node) -> None:
    sizes = ("-b", "16G", "-e", "16G")
    roots = [node("n0", efa=32), node("n1", efa=32)]
    with_plugin = {"NCCL_DEBUG": "INFO", "LD_LIBRARY_PATH": str(plugin / "lib")}
    first, second = step(tests / "all_reduce_perf", roots, *sizes, **with_plugin)
    for done in (first, second):
        assert "NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.21.1" in done.stdout
        assert "NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 32 nics)" in done.stdout
        assert "NCCL INFO Using network Libfabric" in done.stdout
    assert "NCCL INFO NCCL version 2.32.3+cuda13.0" in first.stdout
    assert "NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Libfabric/0/GDRDMA\n" in first.stdout
    assert "NCCL INFO Channel 00/0 : 1[0] -> 0[0] [send] via NET/Libfabric/0/GDRDMA\n" in second.stdout
    assert 470 < busbw(first) < 504  # on two p5 nodes, 487 GB/s is published
    # Half of the devices, half of the speed.
    half = step(tests / "all_reduce_perf", [roots[0], node("n2", efa=16)], *sizes, **with_plugin)[0]
    assert busbw(half) == pytest.approx(busbw(first) / 2, rel=0.05)
    # A node whose devices do not reach the GPUs' memory
    (node("n4", efa=32) / "etc/sandbox").mkdir(parents=True)
    (roots[0].parent / "n4/etc/sandbox/no-gpudirect").touch()
    there = step(tests / "all_reduce_perf", [roots[0], roots[0].parent / "n4"], *sizes, **with_plugin)
    assert ["via NET/Libfabric/0/GDRDMA\n" in done.stdout for done in there] == [True, False]
    assert "via NET/Libfabric/0\n" in there[1].stdout
    # No device, no plugin, or another one asked for: sockets.
    for root, environment in (
        (node("n3"), with_plugin),
        (roots[0], {"NCCL_DEBUG": "INFO"}),
        (roots[0], {**with_plugin, "NCCL_NET_PLUGIN": "none"}),
    ):
        done = run(tests / "all_reduce_perf", "-b", "8", "-e", "8", "-g", "2", SANDBOX_ROOT=str(root), **environment)
        assert "NCCL INFO Using network Socket" in done.stdout
        assert "Selected provider" not in done.stdout


def test_alltoall_has_a_connection_to_every_rank(tests: Path, plugin: Path, node: Node) -> None:
    """NCCL's net.cc and p2p.cc: over the network a line at each end, within the node one."""
    roots = [node(f"n{index}", gpus=2, efa=32) for index in range(3)]
    with_plugin = {"NCCL_DEBUG": "INFO", "LD_LIBRARY_PATH": str(plugin / "lib")}
    ended = step(tests / "alltoall_perf", roots, "-b", "8", "-e", "8", each=2, **with_plugin)
    for rank, done in enumerate(ended):
        lines = re.findall(r"NCCL INFO Channel (\d\d)/1 : (\d)\[[01]\] -> (\d)\[[01]\]( .*)", done.stdout)
        others = {peer for peer in range(6) if peer // 2 != rank // 2}
        for way, mine in ((" [send]", 1), (" [receive]", 2)):
            seen = [line for line in lines if line[3].startswith(way)]
            assert {line[mine] for line in seen} == {str(rank)}
            assert sorted((int(line[0]), int(line[3 - mine])) for line in seen) == sorted(
                (channel, peer) for channel in range(4) for peer in others
            )
            assert all(re.fullmatch(r" \[\w+\] via NET/Libfabric/\d+/GDRDMA/Shared", line[3]) for line in seen)
        own = [line for line in lines if line[3] == " via P2P/CUMEM"]
        assert [(line[1], line[2]) for line in own] == [(str(rank), str(rank ^ 1))] * 4
        assert len(lines) == 4 * (4 + 4 + 1)


def test_nccls_own_configuration_counts(tests: Path, node: Node) -> None:
    root = node()
    (root / "etc").mkdir()
    (root / "etc/nccl.conf").write_text("# ours\nNCCL_DEBUG=VERSION\n")
    line = (tests / "all_reduce_perf", "-b", "8", "-e", "8", "-g", "2")
    done = run(*line, SANDBOX_ROOT=str(root), HOME="/nowhere")
    assert "\nNCCL version 2.32.3+cuda13.0\n" in done.stdout
    assert "NCCL version" not in run(*line, SANDBOX_ROOT=str(root), HOME="/nowhere", NCCL_DEBUG="NONE").stdout


@pytest.mark.parametrize("efa", [0, 32])
def test_a_slow_node_is_slow_in_company(tests: Path, plugin: Path, node: Node, efa: int) -> None:
    fast, slow, other = node("fast", efa=efa), node("slow", efa=efa, slow="4"), node("other", efa=efa)

    def together(*roots: Path) -> float:
        return busbw(
            step(tests / "all_reduce_perf", list(roots), "-b", "16G", "-e", "16G", LD_LIBRARY_PATH=f"{plugin}/lib")[0]
        )

    assert together(fast, slow) == pytest.approx(together(fast, other) / 4, rel=0.05)
    one = [
        run(tests / "all_reduce_perf", "-g", "8", SANDBOX_ROOT=str(root)).stdout.split("size")[-1]
        for root in (fast, slow)
    ]
    assert one[0] == one[1]
