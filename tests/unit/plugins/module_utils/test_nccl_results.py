# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Reading what nccl-tests prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._verify import nccl_results as results
from ansible_collections.pcluster.postboot.plugins.module_utils._verify.nccl_network import Network, network_problem
from ansible_collections.pcluster.postboot.tests import patterns

FIXTURES = Path(__file__).parents[2] / "fixtures" / "nccl"
GIB = 2**30
HEAD = "# nThread 1 nGpus 1 minBytes 8 maxBytes 1048576 step: 2(factor) warmup iters: 5 iters: 20 validation: 1 "


def read(name: str, collective: str = "") -> list[results.Result]:
    return results.parse((FIXTURES / name).read_text(), collective)


def figures(result: results.Result) -> list[tuple[int, float, float | None]]:
    """Return size and busbw out of place and in place."""
    return [(row.size, row.busbw, row.in_place.busbw if row.in_place else None) for row in result.rows]


def test_the_oldest_shape() -> None:
    """2.9 names no root and shows an error instead of a count; Open MPI tags the lines."""
    (result,) = read("2.9-openmpi.txt", "/opt/nccl-tests/build/all_reduce_perf")
    assert (result.collective, result.nccl, result.version) == ("all_reduce", "2.10.3", "")
    assert figures(result) == [(8, 0.0, 0.0), (134217728, 61.34, 61.44), (GIB, 73.99, 74.01)]
    assert result.rows[2].out_of_place == results.Values(27211.0, 39.46, 73.99, None)
    assert result.rows[2].root is None
    assert (result.complete, result.average_busbw, result.out_of_bounds) == (True, 45.1305, 0)
    assert len(result.ranks) == 16
    assert result.ranks[9] == results.Rank(9, 0, 9109, "gpu-st-p4d-2", 1, "0x10", "NVIDIA A100-SXM4-40GB")
    assert (result.network.provider, result.network.nics, result.network.gdr) == ("efa", None, True)
    assert network_problem(result.network, 4) == ""


def test_debug_lines_in_the_middle_of_a_row() -> None:
    """What NCCL says between the pieces of a row neither ends the row nor adds to it."""
    (result,) = read("2.13-srun-label.txt", "alltoall_perf")
    assert figures(result) == [(67108864, 52.86, 52.94), (268435456, 61.88, 61.97), (GIB, 68.04, 67.92)]
    assert [(row.root, row.redop, row.count) for row in result.rows[:1]] == [(-1, "none", 1048576)]
    assert result.rows[0].out_of_place.wrong == 0
    assert result.rows[0].in_place is not None
    assert result.rows[0].in_place.wrong is None
    assert result.hosts == ["gpu-dy-p5-1", "gpu-dy-p5-2"]
    assert set(result.network.hosts) == set(result.hosts)
    assert (result.network.plugin, result.network.protocol) == ("aws-ofi-nccl 1.9.2-aws", "RDMA")


def test_the_fewest_devices_that_a_process_found_are_told() -> None:
    """One process of the second node has lost one."""
    (result,) = read("2.13-srun-label.txt")
    assert {host: seen.nics for host, seen in result.network.hosts.items()} == {"gpu-dy-p5-1": 32, "gpu-dy-p5-2": 31}
    assert network_problem(result.network, 32) == "NCCL found 31 EFA devices on gpu-dy-p5-2; needed: 32"
    assert network_problem(result.network) == ""


def test_the_newer_header_and_timestamps() -> None:
    """Versions are those that ran, not those that it was compiled with."""
    (result,) = read("2.17-timestamps.txt")
    assert (result.collective, result.version, result.nccl) == ("all_reduce", "2.17.9", "2.30.4")
    assert [busbw for _size, busbw, _other in figures(result)] == [289.9, 436.61, 486.52]
    assert result.options["max_bytes"] == 16 * GIB
    assert result.checked
    assert not result.cputime
    assert result.warnings == ["gpu-dy-p5-2: NET/OFI Request completed late"]
    network = result.network
    assert (network.provider, network.fabric, network.nics, network.transport) == ("efa", "efa-direct", 32, "ofi")
    assert (network.tuner, network.cuda, network.libfabric) == ("region tuner of aws-ofi-nccl", "13.0", "2.7")
    assert network.environment == {"NCCL_SOCKET_IFNAME": "^docker,lo,veth"}


def test_per_iteration_columns_and_cpu_times() -> None:
    """More columns are no more rows, and N/A is not zero."""
    (result,) = read("2.19-per-iteration.txt")
    assert (result.collective, result.nccl, result.cputime, result.checked) == ("all_gather", "2.32.3", True, False)
    assert figures(result) == [(GIB, 343.97, 343.97), (8 * GIB, 368.66, 368.66)]
    assert result.rows[0].out_of_place == results.Values(2731.4, 393.11, 343.97, None)
    assert result.options["reduced_to"] == 8 * GIB
    assert result.complete


def test_a_job_that_was_cancelled() -> None:
    """Half a row is no row, and Slurm's reason comes before what followed from it."""
    (result,) = read("2.17-cancelled.txt")
    assert (len(result.rows), result.complete, result.average_busbw) == (1, False, None)
    assert len(result.errors) == 1
    assert "DUE TO TIME LIMIT" in results.why(result)


def test_where_nothing_says_why_the_end_is_told() -> None:
    text = (FIXTURES / "2.17-cancelled.txt").read_text().split("slurmstepd")[0]
    assert results.why(results.parse(text)[0]) == (
        "its output ends after 134217728 bytes; NCCL warned: gpu-dy-p5-2: NET/OFI Unresponsive receiver "
        "(reachable by EFA device but handshake failed)"
    )


def test_no_driver() -> None:
    (result,) = read("2.19-no-driver.txt")
    assert not result.complete
    assert result.errors == [
        "gpu-dy-p5-1: Test CUDA failure util.cu:602 'CUDA driver version is insufficient for CUDA runtime version'"
    ]


def test_processes_that_each_ran_alone() -> None:
    """Without MPI every rank prints a table of its own."""
    found = read("2.18-without-mpi.txt")
    assert [result.label for result in found] == ["0", "1"]
    assert [result.hosts for result in found] == [["gpu-dy-g5-1"], ["gpu-dy-g5-2"]]
    assert all(result.errors[0].startswith("2 processes each ran the test by themselves") for result in found)
    bare = "\n".join(line[3:] for line in (FIXTURES / "2.18-without-mpi.txt").read_text().splitlines())
    assert results.parse(bare)[-1].errors[0].startswith("2 processes each ran the test by themselves")


def test_sockets_instead_of_efa() -> None:
    network = read("2.18-without-mpi.txt")[0].network
    assert (network.transport, network.tuner) == ("socket", "NCCL's own")
    assert network_problem(network).startswith("NCCL used Socket and no EFA")
    text = (FIXTURES / "2.17-timestamps.txt").read_text().replace("provider is efa,", "provider is tcp,")
    found = network_problem(results.parse(text)[0].network)
    assert found == "libfabric selected the provider tcp on gpu-dy-p5-1; needed: efa"
    assert "NCCL_DEBUG=INFO" in network_problem(Network())


def test_gpudirect_is_told_of_each_node() -> None:
    """One connection that has it is enough: others of the same node may go to a device that is far away."""
    text = (FIXTURES / "2.17-timestamps.txt").read_text()
    assert results.parse(text)[0].network.gdr is True
    lines = [line for line in text.splitlines() if "via NET/" in line]
    assert {line.split(":")[0] for line in lines} == {"gpu-dy-p5-1", "gpu-dy-p5-2"}
    more = "\n".join([text, *(line.replace("/GDRDMA", "") for line in lines)])
    assert results.parse(more)[0].network.gdr is True
    other = text.replace(lines[-1], lines[-1].replace("/GDRDMA", ""))
    network = results.parse(other)[0].network
    assert network.gdr is False
    assert {host: seen.gdr for host, seen in network.hosts.items()} == {"gpu-dy-p5-1": True, "gpu-dy-p5-2": False}
    assert results.parse(text.replace("via NET", "via P2P"))[0].network.gdr is None


@pytest.mark.parametrize(
    "line",
    [
        "mca_base_component_repository_open: unable to open mca_pml_ucx: libucp.so.0: cannot open shared object file: "
        "No such file or directory (ignored)",
        "libibverbs: Warning: couldn't load driver 'libhfi1verbs-rdmav34.so': libhfi1verbs-rdmav34.so: cannot open "
        "shared object file: No such file or directory",
        "[gpu-dy-p5-1:00812] PMIX ERROR: ERROR in file gds_ds12_lock_pthread.c at line 169",
        "/etc/profile.d/foo.sh: line 3: module: command not found",
        "slurmstepd: error: couldn't chdir to `/home/x': No such file or directory: going to /tmp instead",
    ],
)
def test_what_a_library_says_is_an_error_only_of_a_run_that_did_not_end(line: str) -> None:
    """As these do no harm. Where the table is not whole they may be the reason."""
    text = (FIXTURES / "2.17-timestamps.txt").read_text()
    (result,) = results.parse(f"{line}\n{text}{line}\n")
    assert (result.complete, result.errors, results.why(result)) == (True, [], "")
    assert line in " ".join(result.warnings)
    (result,) = results.parse(f"{line}\n{text.split('# Out of bounds')[0]}")
    assert results.why(result) == line


def test_what_ended_a_test_is_told_before_what_libraries_say() -> None:
    ignored = "unable to open mca_mtl_ofi: libfabric.so.1: cannot open shared object file: No such file (ignored)"
    died = "n1: Test NCCL failure common.cu:1192 'unhandled system error (run with NCCL_DEBUG=INFO for details) / '"
    killed = "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-20T09:00:00 DUE TO TIME LIMIT ***"
    text = (FIXTURES / "2.17-timestamps.txt").read_text().split("# Out of bounds")[0]
    assert results.why(results.parse(f"{ignored}\n{text}{died}\n")[0]) == f"{died}; {ignored}"
    assert results.why(results.parse(f"{ignored}\n{text}{killed}\n")[0]) == f"{killed}; {ignored}"


def test_a_failure_of_the_test_is_one_of_a_whole_table_too() -> None:
    text = (FIXTURES / "2.17-timestamps.txt").read_text()
    (result,) = results.parse(
        f"{text}gpu-dy-p5-1: Test CUDA failure common.cu:422 'uncorrectable ECC error encountered'\n"
    )
    assert "uncorrectable ECC error" in results.why(result)


def test_the_layout_of_2018_is_refused() -> None:
    """Its times are milliseconds, and its last column is an error and no count."""
    text = (
        "# nThread 1 nGpus 2 minBytes 8 maxBytes 1048576 step: 2(factor) warmup iters: 5 iters: 20 validation: 1\n"
        "# NCCL Tests compiled with NCCL 2.4\n# Using devices\n#   Rank  0 on   p3-1 device  0 [0x05] Tesla V100\n\n"
        "#                                                 out-of-place                    in-place\n"
        "#      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res\n"
        "     1048576        262144   float     sum    0.112   9.36   9.36    3e+01    0.110   9.53   9.53    3e+01\n"
        " Out of bounds values : 0 OK\n Avg bus bandwidth    : 9.4\n"
    )
    (result,) = results.parse(text, "all_reduce")
    assert (result.rows, result.complete) == ([], False)
    assert results.why(result) == "its table has the columns of nccl-tests before 2.9; needed: a newer version"


def test_rows_without_their_header_are_refused_for_that() -> None:
    text = (FIXTURES / "2.17-timestamps.txt").read_text()
    rows = [line for line in text.splitlines() if line.strip()[:1].isdigit() and " float " in line]
    (result,) = results.parse("\n".join(rows), "all_reduce")
    assert (len(rows), result.rows, result.complete) == (3, [], False)
    assert (
        results.why(result)
        == "its output has rows, and no line '# nThread …' before them that says how they were measured"
    )


def test_a_test_that_died_silently_and_was_repeated() -> None:
    """Is no proof that its processes ran alone."""
    head = (FIXTURES / "2.17-timestamps.txt").read_text().split("#       size")[0]
    found = results.parse(head + (FIXTURES / "2.17-timestamps.txt").read_text())
    assert [error for result in found for error in result.errors] == []
    assert (len(found[-1].rows), len(found[-1].ranks)) == (3, 16)


def test_tests_that_ran_one_after_the_other() -> None:
    """Each begins anew, also after one that died; what stands before the first belongs to it."""
    text = "".join((FIXTURES / name).read_text() for name in ("2.17-cancelled.txt", "2.19-per-iteration.txt"))
    first, second = results.parse("srun: error: gpu-dy-p5-9: Prolog hung\n" + text)
    assert (first.collective, len(first.rows), first.complete) == ("all_reduce", 1, False)
    assert "Prolog hung" in first.errors[0]
    assert (second.collective, len(second.rows), second.complete, second.errors) == ("all_gather", 2, True, [])
    assert second.network.provider == ""


@pytest.mark.parametrize(
    ("prefix", "label"),
    [
        ("", ""),
        ("0: ", "0"),
        ("00: ", "0"),
        ("[1,0]<stdout>:", "0"),
        ("[prterun-head-77@1,12]<stdout>: ", "12"),
        ("[1,mpirank:0,algo-1]<stdout>:", "0"),
        ("[0] ", "0"),
    ],
)
def test_what_stands_before_the_lines(prefix: str, label: str) -> None:
    text = (FIXTURES / "2.17-timestamps.txt").read_text()
    labelled = "\n".join(prefix + line for line in text.splitlines())
    (result,), (plain,) = results.parse(labelled), results.parse(text)
    assert result == plain._replace(label=label)
    assert len(result.rows) == 3


def test_labels_inside_of_rows() -> None:
    """Hydra labels each piece."""
    pieces = "     1048576        262144     float     sum      -1", "    23.30   45.00   84.38      0"
    row = "".join(f"[0]{piece}" for piece in (*pieces, pieces[1].replace("84.38", "84.71")))
    (result,) = results.parse(f"[0] {HEAD}\n{row}\n")
    assert figures(result) == [(1048576, 84.38, 84.71)]


@pytest.mark.parametrize("host", ["p5-1", "10-0-0-1", "ip-10-0-0-1"])
@pytest.mark.parametrize("known", [True, False])
def test_a_host_that_is_glued_to_the_root(host: str, known: bool) -> None:
    """Its name may begin with digits; the width of the columns tells where none of the lists names it."""
    device = f"#  Rank  0 Group  0 Pid    812 on {host} device  0 [0000:53:00] NVIDIA H100 80GB HBM3\n" if known else ""
    row = f"           8             2     float     sum      -1{host}:812:847 [0] NCCL INFO Connected all trees"
    text = f"{HEAD}\n{device}{row}\n    45.30    0.00    0.00      0    44.10    0.00    0.01      0\n"
    (result,) = results.parse(text)
    assert [(row.size, row.root, row.busbw) for row in result.rows] == [(8, -1, 0.0)]


def test_wrong_values_are_an_error() -> None:
    text = (FIXTURES / "2.17-timestamps.txt").read_text().replace("values : 0 OK", "values : 4 FAILED")
    text = text.replace("486.52       0", "486.52  512000")
    (result,) = results.parse(text)
    assert result.rows[2].out_of_place.wrong == 512000
    assert "4 results had wrong values" in results.why(result)


def test_all_of_it_is_json() -> None:
    text = (FIXTURES / "2.17-timestamps.txt").read_text().replace("404.451", "nan")
    value = json.loads(json.dumps(results.plain(results.parse(text)[0]), allow_nan=False))
    assert value["average_busbw"] is None
    assert value["rows"][2]["out_of_place"] == {"time_us": 66210.0, "algbw": 259.48, "busbw": 486.52, "wrong": 0}
    assert value["network"]["hosts"]["gpu-dy-p5-1"]["nics"] == 32


@pytest.mark.parametrize("text", ["", "\n\n", "srun: error: Unable to allocate resources: Requested nodes are busy\n"])
def test_there_is_always_a_result(text: str) -> None:
    (result,) = results.parse(text, "all_reduce")
    assert (result.collective, result.rows, result.complete) == ("all_reduce", [], False)
    assert results.why(result)


def test_versions_by_number() -> None:
    """NCCL changed how it counts with 2.9."""
    assert [results.nccl_version(code) for code in (2708, 20902, 22907, 23203)] == [
        "2.7.8",
        "2.9.2",
        "2.29.7",
        "2.32.3",
    ]


TABLE = HEAD + "\n#  size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
ROW = " 1024 256 float sum -1 9.1 0.1 0.2 0 9.2 0.1 0.2 0\n"
# What any program of a job may print, in its size.
HOSTILE = {
    "numbers after half a row": lambda size: HEAD + "\n# size count busbw\n 8 2 float\n" + "1.5\n" * (size // 4),
    "hosts": lambda size: TABLE
    + "".join(f"h{n}:1:2 [0] NCCL INFO a\n 8 q{n}:1:2 [0] NCCL INFO b\n" for n in range(size // 60)),
    "a word of processes": lambda size: "NCCL " + "a:1:2" * (size // 5),
    "a debug line of brackets": lambda size: "NCCL " + "[2026-01-01 " * (size // 12),
    "a debug line of sources": lambda size: "a:1:2 [0] a:1 (" * (size // 15) + " NCCL ",
    "labels": lambda size: "[" + "mpirank:1" * (size // 9),
    "blanks in a row": lambda size: TABLE + ROW.rstrip() + " " * size + "x",
    "ranks": lambda size: "Rank 0 " * (size // 7),
    "complaints": lambda size: TABLE
    + ROW
    + "".join(f"srun: error: {n}\n" for n in range(size // 16))
    + "# Avg bus bandwidth : 1\n",
    "words of one complaint": lambda size: TABLE + "PRTE " * (size // 5),
    "channels": lambda size: "a:1:2 [0] NCCL INFO " + "Channel 0 : via NET/" * (size // 20),
    "tuners": lambda size: "a:1:2 [0] NCCL INFO " + "tuner " * (size // 6),
    "headers": lambda size: (HEAD + "\n") * (size // 100),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_time_grows_as_the_output_does(kind: str) -> None:
    # Eight times the text takes eight times as long, and quadratic work 64 times.
    small, large = (patterns.seconds(results.parse, HOSTILE[kind](size), 4) for size in (10_000, 80_000))
    assert large < max(20 * small, 0.05)


LONG = "9" * 5000  # Python converts no more than 4300 digits


@pytest.mark.parametrize(
    "line",
    [
        "² 2 float sum -1 9 9 9 0 9 9 9 0",
        f"{LONG} 2 float sum -1 9 9 9 0 9 9 9 0",
        f"8 {LONG} float sum -1 9 9 9 0 9 9 9 0",
        f"8 2 float sum {LONG} 9 9 9 0 9 9 9 0",
        f"8 2 float sum -1 9 9 9 {LONG} 9 9 9 0",
        f"# Out of bounds values : {LONG} FAILED",
        f"# Rank  0 Group  0 Pid {LONG} on a device  0 [0x00] NVIDIA H100",
        f"# nccl-tests version 2.17.4 nccl-headers=23007 nccl-library={LONG}",
        f"# Reducing maxBytes to {LONG} due to memory limitation",
        HEAD.replace("nThread 1", f"nThread {LONG}"),
        f"{HEAD} graph: {LONG}",
        f"[1,{LONG}]<stdout>:# nThread",
        f"[1,mpirank:{LONG},algo-1]<stdout>:# nThread",
        f"a:1:2 [0] NCCL INFO NET/OFI Selected provider is efa (found {LONG} nics)",
    ],
)
def test_odd_numbers_spoil_no_more_than_their_line(line: str) -> None:
    *_more, result = results.parse(f"{TABLE}{line}\n{ROW}# Avg bus bandwidth : 1\n")
    assert (1024, 0.2, 0.2) in figures(result)
    json.dumps(results.plain(result._asdict()))
