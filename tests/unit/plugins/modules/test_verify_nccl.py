# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The stage nccl of verify, with a Slurm and an nccl-tests that give what a test wants."""

from __future__ import annotations

import inspect
import json
import os
import shlex
import shutil
import signal
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._verify import cluster as verify_cluster
from ansible_collections.pcluster.postboot.plugins.module_utils._verify import nccl as verify_nccl
from ansible_collections.pcluster.postboot.plugins.plugin_utils._verify.page import render
from ansible_collections.pcluster.postboot.tests import strangers
from ansible_collections.pcluster.postboot.tests.unit.fixtures.slurm.hostnames import hostnames
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab, slurm
from ansible_collections.pcluster.postboot.tests.unit.plugins.slurm import Run
from ansible_collections.pcluster.postboot.tests.waiting import PATIENCE, until

FIXTURES = Path(__file__).parents[2] / "fixtures" / "nccl"
P5 = "p5.48xlarge"


def table(program: str, words: list[str], nodes: list[str], tasks: int, state: dict[str, Any]) -> str:
    """Return what nccl-tests 2.19 prints under srun --label with NCCL_DEBUG=INFO."""
    size, most = (int(words[words.index(option) + 1]) for option in ("-b", "-e"))
    gpus = int(words[words.index("-g") + 1])
    lines = ["# nccl-tests version 2.19.6 nccl-headers=23203 nccl-library=23203"]
    lines.append(f"# Collective test starting: {program}")
    sizes = f"minBytes {size} maxBytes {most} step: 2(factor)"
    lines.append(f"# nThread 1 nGpus {gpus} {sizes} warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0")
    ranks = list(enumerate((node, local) for node in nodes for local in range(tasks * gpus)))
    for rank, (host, device) in ranks:
        lines.append(
            f"#  Rank {rank:2} Group  0 Pid {500 + rank:6} on {host} device {device:2} [0000:53:00] NVIDIA H100"
        )
    for rank, (host, device) in ranks:
        nics, said = state["nics"].get(host, state["efa"]), f"{host}:{500 + rank}:900 [{device}] NCCL INFO "
        if state["network"] == "Libfabric":
            found = f" (found {nics} nics)" if nics is not None else ""
            lines.append(f"{said}NET/OFI Initializing aws-ofi-nccl 1.21.1")
            lines.append(f"{said}NET/OFI Selected provider is efa, fabric is efa-direct{found}")
        lines.append(f"{said}Using network {state['network']}")
        # A line at each end of a connection over the network: of a ring, or with alltoall of every pair.
        direct = "" if host in state["indirect"] else "/GDRDMA"
        for other, (where, place) in ranks if state["channels"] else ():
            if where == host and other != rank and program == "alltoall_perf":
                lines.append(f"{said}Channel 00/1 : {rank}[{device}] -> {other}[{place}] via P2P/CUMEM")
            elif where != host and (place == device or program == "alltoall_perf"):
                over = f"via NET/{state['network']}/0{direct if state['network'] == 'Libfabric' else ''}"
                lines.append(f"{said}Channel 00/0 : {other}[{place}] -> {rank}[{device}] [receive] {over}")
                lines.append(f"{said}Channel 00/0 : {rank}[{device}] -> {other}[{place}] [send] {over}")
    usual = {"all_reduce_perf": (480.0, 487.0), "alltoall_perf": (300.0, 60.0)}.get(program, (371.0, 300.0))
    speed = state["speed"] or usual[len(nodes) > 1]
    speed *= min(state["slow" if len(nodes) > 1 else "alone"].get(node, 1.0) for node in nodes)
    half, unit = "    time   algbw   busbw  #wrong", "    (us)  (GB/s)  (GB/s)        "
    lines += [
        f"#       size         count      type   redop    root {half} {half}",
        f"#        (B)    (elements) {unit}",
    ]
    rows, wrong = [], state["wrong"]
    while size <= most:
        half = f"{size / speed / 1e3:8.2f}  {speed / 2:6.2f}  {speed:6.2f}  {wrong:6}"
        rows.append(f"{size:12}  {size // 4:12}     float     sum      -1  {half}  {half}")
        size *= 2
    lines += rows[: state["rows"]]
    if state["rows"] is None:
        lines.append(f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}")
        lines.append("# Avg bus bandwidth    : 99.5")
    ranks_of = {f"{host}:{500 + rank}:900": rank for rank, (host, _device) in ranks}
    return "".join(f"{ranks_of.get(line.split(' ')[0], 0) // gpus}: {line}\n" for line in lines)


def passed(text: str) -> str:
    """Return what a job's script passes on of a process that is not the first of its node."""
    lines, seen = [], set()
    for line in text.splitlines(True):
        words = ("/GDRDMA", " via NET/", " via ", " NET/OFI Selected ", " Using network ", " NCCL INFO ")
        kind = next((word for word in words if word in line), "")
        once = kind in words[:2] and kind not in seen
        seen.add(kind)
        if once or kind in ("", " NET/OFI Selected ", " Using network "):
            lines.append(line)
    return "".join(lines)


# Runs the script of a job in the first two processes of each node, one after the other: a program prints its own lines
# of the table. All but a node's first process differ in their lines alone. What a script passes on of these, `passed`
# tells without two shells for each, and has to tell the same of the second.
SRUN = """#!PYTHON -IS
from __future__ import annotations
import json, os, subprocess, sys, time
Any = None
PARTS
argv, options = sys.argv[1:], {}
state = json.load(open("ROOT/state"))
script = argv[-1]
for word in argv[:-3]:
    name, _, value = word.partition("=")
    options[name.lstrip("-")] = value
nodes = hostnames(options["nodelist"])
words = next((line[2:].split(";")[0].split() for line in script.splitlines() if line.startswith("{ ")), ["probe"])
program = words[0].rsplit("/", 1)[-1]
with open("ROOT/calls", "a") as calls:
    told = dict(program=program, words=words[1:], options=options, script=script, nodes=nodes)
    calls.write(json.dumps(told) + "\\n")
if set(nodes) & set(state["busy"].get(program, state["busy"].get("*", []))):
    sys.exit("srun: error: Unable to allocate resources: Requested nodes are busy")
if program in state["fails"]:
    sys.stderr.write(state["fails"][program])
    sys.exit(1)
each = int(options["ntasks-per-node"])
own = {}
if program == "probe":
    pass
elif state["prints"]:
    own[0] = state["prints"]
else:
    for line in table(program, words, nodes, each, state).splitlines(True):
        rank, _, text = line.partition(": ")
        own[int(rank)] = own.get(int(rank), "") + text
if "container-image" in options and program != "probe":
    inside = [mount.split(":")[1] for mount in options["container-mounts"].split(",")]
    for path in ("ROOT/fsx/nccl/setup-nccl-env.sh", "ROOT/fsx/nccl-tests/current/bin/" + program):
        if not any(path.startswith(folder + "/") for folder in inside):
            sys.exit(f"0: sh: 1: {path}: not found\\nsrun: error: {nodes[0]}: tasks 0-7: Exited with exit code 127")
code = 0
for rank in range(len(nodes) * each):
    node = nodes[rank // each]
    if program != "probe" and rank % each > 1:
        sys.stdout.write("".join(f"{rank}: {line}" for line in passed(own.get(rank, "")).splitlines(True)))
        continue
    environment = dict(os.environ, SLURMD_NODENAME=node, SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank % each))
    if program == "probe":
        code = subprocess.run(["sh", "-c", script.replace("ROOT/fsx", f"ROOT/nodes/{node}/fsx")],
                              env=environment).returncode or code
        continue
    with open(f"ROOT/own-{os.getpid()}", "w") as stream:
        stream.write(own.get(rank, ""))
    environment["OWN"] = stream.name
    process = subprocess.Popen(["sh", "-c", script], env=environment, stdout=subprocess.PIPE, text=True)
    told = []
    for line in process.stdout:
        told.append(line)
        sys.stdout.write(line if state["prints"] else f"{rank}: {line}")
        sys.stdout.flush()
    code = process.wait() or code
    if rank % each == 1 and not code and "".join(told) != passed(own.get(rank, "")):
        sys.exit(f"the script passes on {told} of process {rank}; needed: {passed(own[rank])}")
    if code:
        break
if code:
    sys.stderr.write(f"srun: error: {nodes[0]}: tasks 0-7: Exited with exit code {code}\\n")
sys.stderr.write(state["mutters"])
sys.exit(code)
"""
PERF = """#!/bin/sh
. ROOT/how
[ "$NCCL_DEBUG:$SOURCED" = INFO:yes ] || { echo 'the job did not set its environment' >&2; exit 1; }
cat "$OWN"
[ $hangs = 0 ] || { touch ROOT/hung; exec sleep 60; }
exit $code
"""


class Cluster(slurm.Cluster):
    USUAL = ["IDLE", "gpu", "gpu:h100:8"]

    def __init__(self, root: Path, *more: Any) -> None:
        self.fsx, self.results = root / "fsx", root / "fsx/nccl-tests/results"
        super().__init__(root, *more, stages=["nccl"], results_dir=str(self.results))
        self.tests, self.efa = self.fsx / "nccl-tests/current/bin", 32
        for path in ("containers", "fsx/nccl", "fsx/nccl-tests/results"):
            (root / path).mkdir(parents=True)
        (self.fsx / "nccl-tests/current").symlink_to("2.19.6")
        (self.fsx / "nccl/setup-nccl-env.sh").write_text("export SOURCED=yes\n")
        parts = ["import re", *map(inspect.getsource, (table, passed, hostnames))]
        self.program("slurm/bin/srun", SRUN.replace("PARTS", "\n".join(parts)))
        self.program("slurm/bin/scancel", '#!/bin/sh\necho "$*" > ROOT/cancelled\n')
        self.program("slurm/bin/ldd", "#!/bin/sh\nprintf '\\t%s (0x0)\\n' 'libc.so.6 => /lib/libc.so.6' "
                     "'libmpi.so.40 => /opt/amazon/openmpi/lib/libmpi.so.40'\n")  # fmt: skip
        self.program("fsx/nccl-tests/2.19.6/bin/all_reduce_perf", PERF)
        for name in ("all_gather", "reduce_scatter", "alltoall"):
            os.link(self.tests / "all_reduce_perf", self.tests / f"{name}_perf")
        (root / "containers/small.sqsh").write_bytes(b"x")
        # Bandwidths, factors of nodes alone and with others, what goes wrong in the table, and with the job.
        self.state: dict[str, Any] = {"speed": None, "alone": {}, "slow": {}, "efa": 32, "nics": {}, "wrong": 0}
        self.says(network="Libfabric", rows=None, busy={}, fails={}, mutters="", prints="", hangs=False, code=0)
        self.says(channels=True, indirect=[])
        self.nodes("n1", "n2")

    def says(self, **state: Any) -> None:
        self.state.update(state)
        (self.root / "state").write_text(json.dumps(self.state))
        code = 1 if self.state["wrong"] else self.state["code"]
        (self.root / "how").write_text(f"hangs={int(self.state['hangs'])} code={code}\n")

    def nodes(self, *lines: str, feature: str = P5, efa: int = 32, cpus: int = 192) -> None:
        self.efa = efa
        super().nodes(*lines, feature=f"{feature},efa", cpus=cpus)

    def node(self, name: str) -> None:
        folder = self.root / "nodes" / name
        if not folder.exists():
            folder.mkdir(parents=True)
            (folder / "fsx").symlink_to(self.fsx)
            self.efa_devices(f"nodes/{name}", self.efa)

    @property
    def calls(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in super().calls]

    def ran(self, *nodes: str) -> list[str]:
        """Return the programs that ran on just these nodes."""
        return [call["program"] for call in self.calls if call["program"] != "probe" and call["nodes"] == list(nodes)]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_module: Run) -> Cluster:
    probe = verify_nccl.PROBE.replace("/sys/class", f"{tmp_path}/nodes/$SLURMD_NODENAME/sys/class")
    monkeypatch.setattr(verify_nccl, "PROBE", probe.replace("/sys/devices", f"{tmp_path}/dmi"))
    return Cluster(tmp_path, monkeypatch, run_module)


@pytest.fixture
def run(cluster: Cluster) -> Run:
    own = {"tests_dir": str(cluster.tests), "environment": f"{cluster.fsx}/nccl/setup-nccl-env.sh"}

    def go(nccl: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        return cluster.run(nccl={**own, **(nccl or {})}, **more)

    return go


def only(*scopes: str, **more: Any) -> dict[str, Any]:
    return {"scopes": list(scopes), "collectives": ["all_reduce"], "min_bytes": "1G", **more}


def checks(result: dict[str, Any], status: str = "") -> list[tuple[str, str]]:
    assert "report" in result, result.get("msg")
    return [(one["name"], one["message"]) for one in result["report"]["checks"] if status in ("", one["status"])]


def statuses(result: dict[str, Any]) -> dict[str, str]:
    assert "report" in result, result.get("msg")
    return {one["name"]: one["status"] for one in result["report"]["checks"]}


def row(nodes: int, busbw: float, **more: Any) -> dict[str, Any]:
    return {"instance_type": P5, "nodes": nodes, "collective": "all_reduce", "size": "16G", "busbw": busbw, **more}


# What is measured


def test_without_gpus_nothing_is_measured_and_that_is_told(cluster: Cluster, run: Run) -> None:
    cluster.nodes("c1 IDLE cpu (null)")
    result = run(only("one"))
    assert checks(result) == [("nccl", "no partition has GPUs")]
    assert result["complaints"] == ["nothing was measured: nccl: no partition has GPUs"]
    assert checks(run(only("one"), partitions=["cpu"])) == [("nccl", "cpu has no GPUs")]


def test_gpus_whose_nodes_are_down_are_no_success(cluster: Cluster, run: Run) -> None:
    cluster.nodes("n1 DOWN gpu", "n2 IDLE+CLOUD+POWERED_DOWN gpu")
    result = run(only("one"))
    assert result["complaints"][0].startswith("nothing was measured: nccl on gpu: no node of it is up (DOWN, IDLE+")
    assert not result["report"]["ok"]


def test_all_scopes_and_the_report(cluster: Cluster, run: Run) -> None:
    cluster.nodes("n1", "n2", "n3")
    result = run(cluster="east")
    assert result["complaints"] == []
    four = ["all_reduce_perf", "all_gather_perf", "reduce_scatter_perf", "alltoall_perf"]
    assert cluster.ran("n1") == four
    assert cluster.ran("n2") == cluster.ran("n3") == four[:1]
    assert cluster.ran("n1", "n2") == [
        *four,
        four[0],
        four[0],
    ]  # then as a pair, since nobody tells what three should give, and in a container
    assert cluster.ran("n1", "n2", "n3") == four
    found = statuses(result)
    for name in (
        "all_reduce on one node",
        "all_gather on one node",
        "all_reduce on 2 nodes",
        "all_reduce in a container",
    ):
        assert found[name] == "ok", name
    # What nobody has published is told, and is no success.
    for name in ("alltoall on one node", "all_gather on 2 nodes", "all_reduce on 3 nodes"):
        assert found[name] == "unknown", name
    for what in ("EFA is selected", "GPUDirect RDMA"):
        names = [name for name, status in found.items() if name.startswith(what) and status == "ok"]
        assert names == [f"{what} on 2 nodes", f"{what} on 3 nodes", f"{what} in a container"]
    assert ("EFA is selected on 2 nodes", "32 devices on each node, by aws-ofi-nccl 1.21.1") in checks(result, "ok")
    assert ("all_reduce on 2 nodes", "487 GB/s at 16 GiB, 100% of the 487.1 GB/s expected") in checks(result, "ok")
    report = json.loads((cluster.root / "var/verify.json").read_text(), parse_constant=pytest.fail)
    assert report == result["report"]
    assert [one["stage"] for one in report["runs"]].count("one_node") == 6
    two = next(one for one in report["runs"] if one["stage"] == "two_nodes")
    assert (two["ranks"], two["nodes"], two["provider"], two["nics"]) == (16, ["n1", "n2"], "efa", 32)
    assert (two["rows"][0]["size"], two["rows"][-1]["size"], len(two["rows"])) == (8, 2**34, 32)
    assert two["expectation"]["limit"]["busbw"] == 750
    assert two["versions"] == {"nccl-tests": "2.19.6", "NCCL": "2.32.3", "network plugin": "aws-ofi-nccl 1.21.1"}
    assert "n3" in render(report)
    assert "487" in render(report)


def test_how_jobs_are_submitted(cluster: Cluster, run: Run) -> None:
    assert run(only("two", variables={"NCCL_X": "a b"}), time_limit=7, wait=9)["complaints"] == []
    probe, job = cluster.calls
    assert (probe["options"]["ntasks"], "exclusive" in probe["options"]) == ("2", False)
    options, names = job["options"], [call["options"]["job-name"] for call in cluster.calls]
    assert len(set(names)) == 2
    wanted = {"partition": "gpu", "nodes": "2", "ntasks": "16", "ntasks-per-node": "8", "gres": "gpu:8", "time": "7"}
    assert options.items() >= {**wanted, "immediate": "9", "mpi": "pmix", "label": "", "exclusive": ""}.items()
    # Not one CPU for each process, and no rank that waits for a dead one.
    assert options.items() >= {"cpus-per-task": "24", "kill-on-bad-exit": "1"}.items()
    assert options["cpu-bind"] == "none"
    # The user's own word comes last.
    for line in ("export OMPI_MCA_pml=^cm,ucx", "export OMPI_MCA_btl=tcp,self", "export PMIX_MCA_gds=hash"):
        assert f"{line}\n" in job["script"].partition("export NCCL_X='a b'\n")[0], line
    assert "export NCCL_X='a b'\n" in job["script"]
    assert f"\n{{ {cluster.tests}/all_reduce_perf -b {2**30} -e {2**34} -f 2 -g 1 -n 20 -c 1; " in job["script"]


@pytest.mark.parametrize(
    ("variables", "kept"),
    [
        ({}, {"exclude": "lo,docker0"}),
        ({"OMPI_MCA_btl_tcp_if_exclude": "lo,docker0,eth1"}, {"exclude": "lo,docker0,eth1"}),
        ({"OMPI_MCA_btl_tcp_if_include": "eth0"}, {"include": "eth0"}),
    ],
)
def test_open_mpi_does_not_wait_at_dockers_bridge(
    cluster: Cluster, run: Run, variables: dict[str, str], kept: dict[str, str]
) -> None:
    """Where both variables are set, Open MPI takes neither."""
    perf = (cluster.tests / "all_reduce_perf").read_text()
    (cluster.tests / "all_reduce_perf").write_text(
        f"{perf.rstrip()[: -len('exit $code')]}env > {cluster.root}/environment\n"
    )
    assert run(only("two", variables=variables))["complaints"] == []
    lines = (cluster.root / "environment").read_text().splitlines()
    found = dict(line.split("=", 1) for line in lines if "=" in line)
    prefix = "OMPI_MCA_btl_tcp_if_"
    assert {name[len(prefix) :]: value for name, value in found.items() if name.startswith(prefix)} == kept
    assert (found["OMPI_MCA_btl"], found["PMIX_MCA_gds"]) == ("tcp,self", "hash")


@pytest.mark.parametrize(("cpus", "word"), [(4, "overcommit"), (0, "exclusive")])
def test_nodes_with_fewer_cpus_than_gpus(cluster: Cluster, run: Run, cpus: int, word: str) -> None:
    cluster.nodes("n1", "n2", cpus=cpus)
    run(only("two"))
    assert word in cluster.calls[-1]["options"]
    assert "cpus-per-task" not in cluster.calls[-1]["options"]


def test_without_mpi_one_process_has_all_gpus(cluster: Cluster, run: Run) -> None:
    run(only("one", mpi="none"))
    assert cluster.calls[-1]["options"]["ntasks-per-node"] == "1"
    assert " -g 8 " in cluster.calls[-1]["script"]


def test_jobs_at_the_same_time(cluster: Cluster, run: Run) -> None:
    """Each has a name of its own, by which it could be cancelled; the report is in order, whoever was first."""
    cluster.nodes(*(f"n{index}" for index in range(9)))
    result = run(only("one", mpi="none"))
    names = [call["options"]["job-name"] for call in cluster.calls]
    assert len(names) == len(set(names)) == 10
    assert [one["nodes"] for one in result["report"]["runs"]] == [[f"n{index}"] for index in range(9)]


def test_a_container_sees_the_tests_and_the_clusters_nccl(cluster: Cluster, run: Run) -> None:
    assert statuses(run(only("container")))["all_reduce in a container"] == "ok"
    options = cluster.calls[-1]["options"]
    assert options["export"] == "ALL,NCCL_SHARED=1"
    assert options["container-image"] == f"{cluster.root}/containers/small.sqsh"
    mounts = [mount.split(":")[0] for mount in options["container-mounts"].split(",")]
    # What the tests are linked with is taken along from /opt, and nothing from the system.
    assert mounts == [f"{cluster.fsx}/nccl", str(cluster.tests), "/opt/amazon/openmpi"]


def test_which_image(cluster: Cluster, run: Run) -> None:
    for name in ("nvidia_pytorch-24.9.sqsh", "nvidia_pytorch-24.10.sqsh", ".pytorch-25.sqsh"):
        (cluster.root / "containers" / name).write_bytes(b"x" * 50)
    run(only("container", mpi="none"))
    assert cluster.calls[-1]["options"]["container-image"].endswith("/nvidia_pytorch-24.10.sqsh")
    run(only("container", mpi="none"), container_image="cuda:13")
    assert cluster.calls[-1]["options"]["container-image"] == "cuda:13"


def test_without_an_image_one_of_the_nodes_own_files_is_made(cluster: Cluster, run: Run) -> None:
    cluster.program("slurm/bin/mksquashfs", '#!/bin/sh\ntouch "$2"\n')
    result = run(only("container"), images_dir=f"{cluster.root}/nowhere")
    assert statuses(result)["all_reduce in a container"] == "ok"
    assert dict(checks(result))["all_reduce in a container"].startswith("an image of the node's own files: ")
    image = cluster.calls[-1]["options"]["container-image"]
    assert image.endswith("/gpu-n1.sqsh")
    # With what the tests need.
    (making,) = [call for call in cluster.calls if "mksquashfs" in call["script"]]
    assert f"\nenvironment={cluster.fsx}/nccl/setup-nccl-env.sh\ntests={cluster.tests}\n" in making["script"]
    assert making["nodes"] == ["n1"]
    assert "gres" not in making["options"]
    assert [path.name for path in cluster.results.iterdir() if not path.name.startswith("verify-")] == []


def test_an_image_that_cannot_be_made(cluster: Cluster, run: Run) -> None:
    cluster.program("slurm/bin/mksquashfs", "#!/bin/sh\necho 'FATAL ERROR: no space' >&2; exit 1\n")
    ((_name, line),) = checks(run(only("container"), images_dir=f"{cluster.root}/nowhere"), "failed")
    assert "none was made of the node's own files, as n1 says: FATAL ERROR: no space; name one in" in line


def test_gpus_of_jobs_are_visible_in_containers(cluster: Cluster, run: Run) -> None:
    (cluster.fsx / "nccl/setup-nccl-env.sh").write_text(f"export SOURCED=yes; env > {cluster.root}/environment\n")
    run(only("container"))
    seen = (cluster.root / "environment").read_text().splitlines()
    assert {"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"} <= set(seen)


def test_one_node_or_one_gpu(cluster: Cluster, run: Run) -> None:
    cluster.nodes("n1")
    result = run(only("all", "two", "container"))
    assert checks(result, "skipped") == [("nccl: several nodes", "only one node of it is up")]
    assert cluster.ran("n1") == ["all_reduce_perf"]
    cluster.nodes("n1 IDLE gpu gpu:1", feature="g5.xlarge")
    assert ("nccl: one node", "each node has one GPU alone") in checks(run(only("one")), "skipped")


def test_two_nodes_are_not_measured_twice(cluster: Cluster, run: Run) -> None:
    assert checks(run(only("two", "all", mpi="none")), "skipped") == []
    assert cluster.ran("n1", "n2") == ["all_reduce_perf"]
    run(only("all", mpi="none"))
    assert cluster.ran("n1", "n2") == ["all_reduce_perf"] * 2


# Partitions


def test_nodes_without_gpus_are_no_business(cluster: Cluster, run: Run) -> None:
    cluster.nodes("c1 IDLE cpu (null)", "c2 IDLE+CLOUD+POWERED_DOWN big (null)", "n1 IDLE gpu,cpu", "n2 DOWN gpu")
    result = run(only("one"))
    assert [check["subject"] for check in result["report"]["checks"]] == ["cpu", "gpu"]
    assert {name for call in cluster.calls for name in call["nodes"]} == {"n1"}


def test_partitions_that_share_nodes(cluster: Cluster, run: Run) -> None:
    cluster.nodes("n1 IDLE a,b,c", "n2 IDLE a,b,c", "n3 IDLE a,b")
    result = run(only("one", "two", "all", "container", mpi="none"))
    for nodes in (["n1"], ["n2"], ["n3"], ["n1", "n2", "n3"]):
        assert cluster.ran(*nodes) == ["all_reduce_perf"], nodes
    assert cluster.ran("n1", "n2") == ["all_reduce_perf"] * 3  # once as a pair, and once in a container
    told = [
        (check["subject"], check["name"], check["message"])
        for check in result["report"]["checks"]
        if check["status"] == "skipped"
    ]
    assert told[0] == ("b", "nccl", "its nodes are those of a")
    assert {(subject, message) for subject, _name, message in told[1:]} == {
        ("c", "another partition has the same nodes")
    }


def test_instance_types_are_measured_apart(cluster: Cluster, run: Run) -> None:
    cluster.nodes("n1", "n2", "n3", feature="x")
    kinds = {"n1": P5, "n2": P5, "n3": "p4d.24xlarge"}
    result = run(only("one", "two", mpi="none"), instance_types=kinds)
    assert {call["options"]["nodelist"] for call in cluster.calls} == {"n[1-3]", "n[1-2]", "n1", "n2", "n3"}
    assert {check["subject"] for check in result["report"]["checks"]} == {f"gpu {P5}", "gpu p4d.24xlarge"}
    assert {one["instance_type"] for one in result["report"]["runs"] if one["nodes"] == ["n3"]} == {"p4d.24xlarge"}
    assert all(call["options"]["partition"] == "gpu" for call in cluster.calls)
    assert all(Path(one["log"]).is_file() for one in result["report"]["runs"])


def test_a_node_of_several_possible_types_is_asked(cluster: Cluster, run: Run) -> None:
    cluster.nodes("n1", feature=f"{P5},p5en.48xlarge")
    for name, text in (("sys_vendor", "Amazon EC2\n"), ("product_name", "p5en.48xlarge\n")):
        path = cluster.root / "dmi/virtual/dmi/id" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert run(only("one"))["report"]["runs"][0]["instance_type"] == "p5en.48xlarge"


def test_no_more_nodes_are_booted_than_are_asked_for(cluster: Cluster, run: Run) -> None:
    down = "IDLE+CLOUD+POWERED_DOWN"
    cluster.nodes("n1", *(f"n{index} {down}" for index in range(2, 9)))
    run(only("all", mpi="none"))
    assert {name for call in cluster.calls for name in call["nodes"]} == {"n1"}
    run(only("all", mpi="none"), power_up=True, nodes=3)
    assert {name for call in cluster.calls for name in call["nodes"]} == {"n1", "n2", "n3"}
    assert "immediate" not in cluster.calls[-1]["options"]


def test_busy_nodes_are_left_out(cluster: Cluster, run: Run) -> None:
    cluster.nodes("n1 ALLOCATED", "n2", "n3")
    cluster.says(busy={"*": ["n1"]})
    result = run(only("one", "two", mpi="none"), wait=4)
    assert checks(result, "skipped") == [("nccl", "no room within 4 s on n1")]
    assert cluster.ran("n2", "n3") == ["all_reduce_perf"]
    assert result["complaints"] == []
    cluster.nodes("n1 MIXED", "n2 ALLOCATED")
    cluster.says(busy={"*": ["n1", "n2"]})
    result = run(only("one", mpi="none"), wait=4)
    assert result["complaints"] == ["nothing was measured: nccl on gpu: no room within 4 s on n[1-2]"]


def test_nodes_that_become_busy_are_no_failure(cluster: Cluster, run: Run) -> None:
    cluster.says(busy={"all_reduce_perf": ["n1"]})
    result = run({**only("one", "two", "container"), "collectives": ["all_reduce", "all_gather"]}, wait=4)
    assert result["complaints"] == []
    assert ("all_reduce on one node", "n1: no room within 4 s") in checks(result, "skipped")
    assert ("all_reduce on 2 nodes", "no room within 4 s") in checks(result, "skipped")
    assert cluster.ran("n2") == ["all_reduce_perf", "all_gather_perf"]
    assert "all_gather_perf" not in cluster.ran("n1", "n2")
    assert [one["nodes"] for one in result["report"]["runs"]] == [["n2"], ["n2"]]


# What is missing


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("nccl-tests/current", "/nccl-tests/current/bin/all_reduce_perf on n2; run site with --tags nccl_tests"),
        ("nccl/setup-nccl-env.sh", "/nccl/setup-nccl-env.sh on n2; run site with --tags nccl"),
    ],
)
def test_a_node_without_the_software(cluster: Cluster, run: Run, path: str, line: str) -> None:
    own = cluster.root / "nodes/n2/fsx"
    own.unlink()
    for name in ("nccl-tests", "nccl"):
        (own / name).mkdir(parents=True)
    for name in {"nccl-tests/current", "nccl/setup-nccl-env.sh"} - {path}:
        (own / name).symlink_to(cluster.fsx / name)
    assert run(only("one"))["complaints"] == [f"gpu: nccl (nccl): there is no {cluster.fsx}{line}"]
    assert [call["program"] for call in cluster.calls] == ["probe"]


def test_a_program_that_was_not_built(cluster: Cluster, run: Run) -> None:
    (cluster.tests / "alltoall_perf").unlink()
    result = run({**only("one"), "collectives": ["all_reduce", "alltoall"]})
    ((name, line),) = checks(result, "failed")
    assert name == "alltoall on one node"
    assert "alltoall_perf: not found" in line
    assert "Exited" not in line


def test_srun_fails_before_anything_starts(cluster: Cluster, run: Run) -> None:
    cluster.says(fails={"probe": "srun: job 7 queued and waiting for resources\nsrun: error: Node failure on n2\n"})
    assert run(only("one"))["complaints"] == ["gpu: nccl (nccl): srun ended with 1: Node failure on n2"]
    cluster.says(fails={"all_reduce_perf": "srun: error: Unable to allocate resources: Invalid account\n"})
    ((_name, line),) = checks(run(only("two")), "failed")
    assert line.startswith("srun: error: Unable to allocate resources: Invalid account (see /")


def test_a_container_that_does_not_start(cluster: Cluster, run: Run) -> None:
    text = "pyxis: importing docker image: x\nslurmstepd: error: pyxis: child 9 failed with error code: 1\n"
    text += "slurmstepd: error: pyxis:     [ERROR] No such file: x\nsrun: error: n1: task 0: Exited with exit code 1\n"
    cluster.says(fails={"all_reduce_perf": text})
    ((_name, line),) = checks(run(only("container")), "failed")
    assert line.startswith(f"{cluster.root}/containers/small.sqsh: [ERROR] No such file: x (see /")


@pytest.mark.parametrize("trouble", ["missing", "full"])
def test_where_output_cannot_be_kept(cluster: Cluster, run: Run, monkeypatch: pytest.MonkeyPatch, trouble: str) -> None:
    """The rest of the report is there all the same."""
    real = os.open

    def full(path: str, *more: Any) -> int:
        return real("/dev/full" if path.endswith(".log") else path, *more)

    if trouble == "missing":
        cluster.results.rmdir()
        line = f"{cluster.results} is not there; run site with --tags nccl_tests"
    else:
        monkeypatch.setattr(verify_cluster.os, "open", full)
        monkeypatch.setattr(verify_cluster.os, "fchmod", lambda *_words: None)
        line = "[Errno 28] No space left on device: "
    result = run(only("two"))
    assert result["complaints"][0].startswith(
        f"gpu: nccl (nccl): verify_results_dir: what jobs print could not be kept: {line}"
    )
    assert (cluster.root / "var/verify.json").exists()


def test_everybody_may_read_what_jobs_have_printed(cluster: Cluster, run: Run) -> None:
    with lab.umask(0o077):
        result = run(only("one"))
    for one in result["report"]["runs"]:
        log = Path(one["log"])
        assert "Collective test starting: all_reduce_perf" in log.read_text()
        assert log.stat().st_mode & 0o777 == 0o644
        assert [folder.stat().st_mode & 0o777 for folder in log.parents[:2]] == [0o755] * 2
        assert log.parents[2] == cluster.results


# What crosses the network


def through(filtered: str, program: str, local: int = 0, shell: str = "sh") -> subprocess.CompletedProcess[str]:
    """Run a program as a process of a job does."""
    environment = {"PATH": "/usr/bin:/bin", "SLURM_LOCALID": str(local)}
    line = [*shell.split(), "-c", filtered % shlex.join(["sh", "-c", program])]
    return subprocess.run(line, env=environment, text=True, capture_output=True, timeout=60, check=False)


SHELLS = [shell for shell in ("dash", "bash", "busybox sh") if shutil.which(shell.split()[0])]
SAID = "n1:812:847 [3] NCCL INFO "
PRINTED = f"""\
# nThread 1 nGpus 1
{SAID}Bootstrap: Using eth0:10.0.0.1<0>
{SAID}NET/OFI Selected provider is efa, fabric is efa-direct (found 32 nics)
{SAID}Using network Libfabric
{SAID}Channel 00/32 :  0  1  2  3
{SAID}Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
{SAID}Channel 00/1 : 8[0] -> 0[0] [receive] via NET/Libfabric/0/Shared
{SAID}Channel 00/1 : 0[0] -> 8[0] [send] via NET/Libfabric/0/Shared
{SAID}Channel 01/1 : 0[0] -> 8[0] [send] via NET/Libfabric/1/GDRDMA/Shared
{SAID}Channel 02/1 : 0[0] -> 8[0] [send] via NET/Libfabric/2/GDRDMA/Shared

n1:812:847 [3] misc/socket.cc:50 NCCL WARN a \\n backslash
     8388608       2097152     float     sum      -1{SAID}Channel 09/0 : 0[0] -> 8[0] [send] via NET/Libfabric/1
   130.5   64.28  120.53       0
the end without a newline"""


@pytest.mark.parametrize("shell", SHELLS)
def test_lines_of_connections_stay_on_the_nodes(tmp_path: Path, shell: str) -> None:
    (tmp_path / "printed").write_text(PRINTED)
    said = [through(verify_nccl.FILTER, f"cat {tmp_path}/printed", local, shell) for local in (0, 3)]
    lines = PRINTED.splitlines()
    gone = {"", lines[5], lines[7], lines[9]}
    assert [done.stderr for done in said] == ["", ""]
    assert said[0].stdout.splitlines() == [line for line in lines if line not in gone]
    # One process of a node says all of itself; the others which network they use.
    assert said[1].stdout.splitlines() == [line for line in lines if line not in {*gone, lines[1], lines[4]}]
    assert [done.returncode for done in said] == [0, 0]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(("program", "code"), [("exit 3", 3), ("kill -SEGV $$", 139), ("kill -KILL $$", 137)])
def test_how_a_program_ends_is_how_its_job_ends(shell: str, program: str, code: int) -> None:
    done = through(verify_nccl.FILTER, f"echo last words; {program}", shell=shell)
    assert (done.returncode, done.stdout) == (code, "last words\n")
    assert ("Segmentation fault" in done.stderr) == (code == 139)


@pytest.mark.parametrize("shell", SHELLS)
def test_last_words_of_a_job_that_is_cancelled_are_kept(tmp_path: Path, shell: str) -> None:
    """Slurm sends SIGTERM to every process of a step."""
    script = f"trap 'echo last words; exit 9' TERM; touch {tmp_path}/begun; while :; do sleep 0.05; done"
    line = [*shell.split(), "-c", verify_nccl.FILTER % shlex.join(["sh", "-c", script])]
    child = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True)
    until((tmp_path / "begun").exists)
    os.killpg(child.pid, signal.SIGTERM)
    out, _err = child.communicate(timeout=PATIENCE)
    assert out == "last words\n"
    assert child.returncode != 0


def test_too_much_output_is_cut_in_the_middle(cluster: Cluster, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_cluster, "_LAST", 4000)
    monkeypatch.setattr(verify_cluster, "_MOST_PRINTED", 40000)
    cluster.says(channels=False)
    text = table("all_reduce_perf", f"-b {2**30} -e {2**34} -g 1".split(), ["n1", "n2"], 8, cluster.state)
    head, names, rows = text.partition("0: #       size ")
    noise = "".join(f"3: n1:503:900 [3] NCCL INFO NET/OFI said for the {index}th time\n" for index in range(3000))
    cluster.says(prints=head + noise + names + rows)
    result = run(only("two"))
    assert result["complaints"] == []
    (log,) = [Path(one["log"]) for one in result["report"]["runs"]]
    left_out = [
        line for line in log.read_text().splitlines() if line.endswith("bytes are left out here, as this is too much")
    ]
    assert len(left_out) == 1
    assert int(left_out[0].split()[1]) + log.stat().st_size - len(left_out[0]) == pytest.approx(
        len(head + noise + names + rows), abs=3
    )
    assert log.stat().st_size < 40000
    assert len(result["report"]["runs"][0]["rows"]) == 5


# What a result means


def test_too_slow(cluster: Cluster, run: Run) -> None:
    cluster.says(alone={"n2": 0.5})
    result = run(only("one"))
    ((name, line),) = checks(result, "failed")
    assert (name, line) == (
        "all_reduce on one node",
        "n2: 240 GB/s at 16 GiB, 50% of the 480 GB/s expected; less than expected at 8 GiB too",
    )
    assert [one["judgement"]["status"] for one in result["report"]["runs"]] == ["ok", "short"]


def test_many_nodes_that_are_well_are_one_line(cluster: Cluster, run: Run) -> None:
    cluster.nodes(*(f"n{index}" for index in range(1, 13)))
    cluster.says(alone={"n3": 0.98, "n7": 0.5})
    result = run(only("one", mpi="none"))
    assert checks(result, "ok") == [
        ("all_reduce on one node", "n[1-6,8-12], the slowest n3: 470.4 GB/s at 16 GiB, 98% of the 480 GB/s expected")
    ]
    assert [line.partition(":")[0] for _name, line in checks(result, "failed")] == ["n7"]
    # The report has each of them.
    assert sorted(one["nodes"][0] for one in result["report"]["runs"]) == sorted(f"n{index}" for index in range(1, 13))
    cluster.says(alone=dict.fromkeys((f"n{index}" for index in range(3, 13)), 0.5))
    ((_name, line),) = checks(run(only("one", mpi="none")), "failed")
    assert line.startswith("n[3-12], the slowest n3: 240 GB/s at 16 GiB, 50% of")


def test_more_than_is_possible(cluster: Cluster, run: Run) -> None:
    cluster.says(speed=900.0)
    ((_name, line),) = checks(run(only("two")), "failed")
    assert "900 GB/s is more than is possible, 750 GB/s" in line


def test_unknown_is_no_failure_and_no_success(cluster: Cluster, run: Run) -> None:
    cluster.nodes("n1", "n2", feature="x")
    result = run(only("two"))
    assert checks(result, "unknown") == [
        ("all_reduce on 2 nodes", "487 GB/s at 16 GiB; nobody has published what to expect, so it is not judged")
    ]
    assert result["report"]["verdict"] == "1 checks passed, and 1 could not be judged"


def test_a_bandwidth_that_is_no_number(cluster: Cluster, run: Run) -> None:
    cluster.nodes("n1", "n2", feature="x")
    cluster.says(speed=float("inf"))
    run(only("two"))
    report = json.loads((cluster.root / "var/verify.json").read_text(), parse_constant=pytest.fail)
    assert report["checks"][0]["details"]["busbw"] is None


def test_wrong_values(cluster: Cluster, run: Run) -> None:
    cluster.says(wrong=3)
    result = run(only("two"))
    assert ("all_reduce on 2 nodes", "failed") in statuses(result).items()
    assert "30 values were wrong: a GPU, a link or the memory is broken (see /" in checks(result, "failed")[0][1]
    assert result["report"]["runs"][0]["judgement"]["status"] == "failed"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("2.17-cancelled", "DUE TO TIME LIMIT"),
        ("2.18-without-mpi", "2 processes each ran the test by themselves"),
        ("2.19-no-driver", "CUDA driver version is insufficient for CUDA runtime version"),
    ],
)
def test_logs_of_real_shape(cluster: Cluster, run: Run, name: str, line: str) -> None:
    cluster.says(prints=(FIXTURES / f"{name}.txt").read_text(), code=1)
    result = run(only("two"))
    assert line in dict(checks(result, "failed"))["all_reduce on 2 nodes"]
    assert result["report"]["runs"][0]["judgement"]["status"] == "failed"


@pytest.mark.parametrize(
    ("gpu", "line"),
    [
        ("Tesla T4", "has no kernels for a Tesla T4: add 75 to nccl_tests_cuda_architectures, and run site"),
        ("Tesla V100-SXM2-32GB", "add 70 to nccl_tests_cuda_architectures (CUDA 12 has it, CUDA 13 has not), and run"),
        ("NVIDIA X9", "has no kernels for a NVIDIA X9: add its compute capability to nccl_tests_cuda_architectures"),
    ],
)
def test_a_gpu_for_which_the_tests_were_not_built(cluster: Cluster, run: Run, gpu: str, line: str) -> None:
    text = table("all_reduce_perf", f"-b {2**30} -e {2**34} -g 1".split(), ["n1", "n2"], 8, cluster.state)
    head = [one for one in text.replace("NVIDIA H100", gpu).splitlines() if " 1073741824 " not in one]
    head = head[: next(index for index, one in enumerate(head) if "(elements)" in one) + 1]
    failure = "0: n1: Test CUDA failure common.cu:1030 'no kernel image is available for execution on the device'"
    cluster.says(prints="\n".join([*head, failure, "0:  .. n1 pid 812: Test failure common.cu:937", ""]), code=3)
    assert line in dict(checks(run(only("two")), "failed"))["all_reduce on 2 nodes"]
    # NCCL itself may lack them, too.
    failure = (
        "0: n1:500:900 [0] enqueue.cc:1431 NCCL WARN Cuda failure "
        "'no kernel image is available for execution on the device'\n"
        "0: n1: Test NCCL failure common.cu:937 'unhandled cuda error (run with NCCL_DEBUG=INFO for details) / '"
    )
    cluster.says(prints="\n".join([*head, failure, ""]))
    ((_name, told),) = checks(run(only("two")), "failed")
    assert told.startswith(
        f"NCCL has no kernels for a {gpu}: that of CUDA 13 begins with T4; nccl_cuda: 12 has older ones"
    )


def test_an_output_that_ends_too_early(cluster: Cluster, run: Run) -> None:
    cluster.says(rows=2)
    result = run(only("two"))
    assert dict(checks(result, "failed"))["all_reduce on 2 nodes"].startswith("its output ends after 2147483648 bytes")
    assert result["report"]["runs"][0]["judgement"]["status"] == "failed"
    # A run that is not whole is not the reason to look for a slow node.
    cluster.says(slow={"n1": 0.5})
    assert "slow node" not in statuses(run(only("two")))


def test_a_whole_table_of_a_job_that_failed(cluster: Cluster, run: Run) -> None:
    cluster.says(code=3)
    assert dict(checks(run(only("two")), "failed"))["all_reduce on 2 nodes"].startswith("srun ended with 3: ")
    cluster.says(code=0, mutters="slurmstepd: error: mpi/pmix_v4: no harm done\n")
    assert run(only("two"))["complaints"] == []


def test_a_job_that_hangs(cluster: Cluster, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is cancelled; what it has printed is kept, and says that the network was the wrong one."""
    cluster.says(hangs=True, rows=1, network="Socket")
    real = time.monotonic
    # All the time that a job may take is over as soon as it hangs.
    monkeypatch.setattr(verify_cluster.time, "monotonic", lambda: real() + 10**4 * (cluster.root / "hung").exists())
    monkeypatch.setattr(verify_cluster, "_PATIENCE", 3)
    monkeypatch.setattr(verify_cluster, "_BEAT", 0.1)
    result = run(only("two"))
    failed = dict(checks(result, "failed"))
    assert failed["all_reduce on 2 nodes"].startswith("the job did not end within 750 s, and was cancelled (see /")
    assert failed["EFA is selected on 2 nodes"].startswith("NCCL used Socket and no EFA")
    assert len(result["report"]["runs"][0]["rows"]) == 1
    name = cluster.calls[-1]["options"]["job-name"]
    assert (cluster.root / "cancelled").read_text() == f"--name={name}\n"


# EFA


@pytest.mark.parametrize(
    ("state", "line"),
    [
        ({"network": "Socket"}, "NCCL used Socket and no EFA: the network plugin aws-ofi-nccl was not loaded"),
        ({"nics": {"n2": 31}}, "NCCL found 31 EFA devices on n2; needed: 32"),
        ({"nics": {"n2": None}}, "NCCL did not tell how many EFA devices it found on n2; needed: 32"),
    ],
)
def test_efa_is_used_with_all_devices(cluster: Cluster, run: Run, state: dict[str, Any], line: str) -> None:
    cluster.says(**state)
    result = run(only("two"))
    assert dict(checks(result, "failed"))["EFA is selected on 2 nodes"].startswith(line)
    assert not result["report"]["ok"]


def test_every_node_must_tell(cluster: Cluster, run: Run) -> None:
    text = table("all_reduce_perf", f"-b {2**30} -e {2**34} -g 1".split(), ["n1", "n2"], 8, cluster.state)
    cluster.says(prints="\n".join(line for line in text.splitlines() if " n2:" not in line) + "\n")
    ((_name, line),) = checks(run(only("two")), "failed")
    assert line.startswith("NCCL told of EFA on n1 alone; needed: on 2 nodes")


@pytest.mark.parametrize(
    ("state", "status", "line"),
    [
        (
            {"indirect": ["n2"]},
            "failed",
            "no connection of n2 is GDRDMA: what its GPUs send goes through the CPU's memory",
        ),
        ({"channels": False}, "unknown", "NCCL did not tell of n[1-2] whether"),
    ],
)
def test_gpudirect_must_be_used_where_there_is_some(
    cluster: Cluster, run: Run, state: dict[str, Any], status: str, line: str
) -> None:
    cluster.says(**state)
    result = run(only("two"))
    assert dict(checks(result, status))["GPUDirect RDMA on 2 nodes"].startswith(line)
    assert result["report"]["ok"] == (status == "unknown")
    # Of EC2's types only P4 and newer ones have it, but for the smallest.
    for kind, devices, nodes in (("g6e.48xlarge", 4, ["n3", "n4"]), ("p5.4xlarge", 1, ["n5", "n6"])):
        cluster.nodes(*nodes, feature=kind, efa=devices)
        cluster.says(efa=devices, indirect=nodes)
        told = statuses(run(only("two")))
        assert told["EFA is selected on 2 nodes"] == "ok"
        assert "GPUDirect RDMA on 2 nodes" not in told


def test_a_type_that_nobody_has_measured_is_not_passed_at_any_speed(cluster: Cluster, run: Run) -> None:
    cluster.nodes("n1", "n2", feature="p5en.48xlarge", efa=16)
    for name in ("n1", "n2"):
        for index in range(16, 32):
            (cluster.root / f"nodes/{name}/sys/class/infiniband/rdmap{index}s0/device/driver").unlink()
    cluster.says(efa=16, speed=98.0)
    ((name, line),) = checks(run(only("two")), "failed")
    assert name == "all_reduce on 2 nodes"
    assert line.startswith("98 GB/s at 16 GiB, 13% of the 750 GB/s that is possible")


@pytest.mark.parametrize(("kind", "status"), [(P5, "failed"), ("g5.12xlarge", "skipped")])
def test_nodes_without_a_device(cluster: Cluster, run: Run, kind: str, status: str) -> None:
    """ParallelCluster gives all of them to the large types; smaller ones may do without."""
    cluster.nodes("n3", "n4", feature=kind, efa=0)
    cluster.says(network="Socket")
    found = [check for check in run(only("two"))["report"]["checks"] if check["name"].startswith("EFA")]
    assert [check["status"] for check in found] == [status]
    assert "no EFA device" in found[0]["message"]


def test_nodes_with_fewer_devices_than_their_type_has(cluster: Cluster, run: Run) -> None:
    cluster.nodes("n3", "n4", efa=31)
    cluster.says(efa=31)
    assert checks(run(only("two")), "failed") == [
        ("EFA is selected on 2 nodes", f"its nodes have 31 EFA devices; a {P5} has 32")
    ]


# The slow node


@pytest.mark.parametrize(
    ("count", "slow"),
    [(3, [2]), (4, [1]), (4, [4]), (5, [1]), (5, [3]), (5, [5]), (4, [1, 4]), (4, [1, 2]), (5, [2, 4]), (6, [1, 3])],
)
def test_slow_nodes_are_found(cluster: Cluster, run: Run, count: int, slow: list[int]) -> None:
    cluster.nodes(*(f"n{index}" for index in range(1, count + 1)))
    cluster.says(slow={f"n{index}": 0.5 for index in slow})
    result = run(only("all", expected=[row(count, 450)], mpi="none"))
    check = next(check for check in result["report"]["checks"] if check["name"] == "slow node")
    assert check["details"] == {"slow": [f"n{index}" for index in slow]}
    names = " and ".join(f"n{index}" for index in slow)
    verb = "is" if len(slow) == 1 else "are"
    assert (check["status"], check["message"]) == (
        "failed",
        f"{names} {verb} slow with every partner: replace the instance",
    )
    pairs = result["report"]["pairs"]
    assert {name for pair in pairs for name in pair["nodes"]} == {f"n{index}" for index in range(1, count + 1)}
    for pair in pairs:
        wanted = "short" if set(pair["nodes"]) & set(check["details"]["slow"]) else "ok"
        assert (pair["status"], pair["expected"], pair["size"]) == (wanted, 487.0, 2**34)
    logs = [path.name for path in cluster.results.glob("*/gpu/pair-*.log")]
    assert len(logs) == len(pairs) == len(set(map(str, [pair["nodes"] for pair in pairs])))
    assert len(result["report"]["runs"]) == 1
    assert check["details"]["slow"][0] in render(result["report"])


def test_where_two_nodes_fall_short_the_others_help(cluster: Cluster, run: Run) -> None:
    cluster.nodes("n1", "n2", "n3", "n4")
    cluster.says(slow={"n2": 0.5})
    result = run(only("two", "all", mpi="none"))
    assert [line for name, line in checks(result) if name == "slow node"] == [
        "n2 is slow with every partner: replace the instance"
    ]


def test_all_are_alike(cluster: Cluster, run: Run) -> None:
    cluster.nodes("n1", "n2", "n3", "n4")
    cluster.says(slow={f"n{index}": 0.5 for index in range(1, 5)})
    result = run(only("all", expected=[row(4, 480)], mpi="none"))
    assert checks(result, "unknown") == [
        ("slow node", "no pair is slower than the others (243.5 GB/s): no single node is the cause")
    ]
    assert {pair["status"] for pair in result["report"]["pairs"]} == {"ok"}


@pytest.mark.parametrize("slow", [None, "n8"])
def test_of_many_nodes_a_sample_meets_unless_one_is_slow(cluster: Cluster, run: Run, slow: str | None) -> None:
    cluster.nodes(*(f"n{index}" for index in range(1, 13)))
    sample = [node.name for node in verify_nccl._sample([node_of(f"n{index}") for index in range(1, 13)])]
    assert (len(sample), "n8" in sample) == (8, True)
    # What one slow node does to all of them together is not known, as nobody has published what to expect of 12.
    cluster.says(speed=390.0, slow={slow: 0.5} if slow else {})
    result = run(only("all", mpi="none"))
    met = {name for pair in result["report"]["pairs"] for name in pair["nodes"]}
    check = next(check for check in result["report"]["checks"] if check["name"] == "slow node")
    if slow:
        assert len(met) == 12
        assert (check["status"], check["details"]) == ("failed", {"slow": ["n8"]})
    else:
        assert met == set(sample)
        assert check["message"].startswith("no pair of 8 of the 12 nodes is slower than the others")
    jobs = [call for call in cluster.calls if len(call["nodes"]) == 2]
    assert len(jobs) == (12 if not slow else 4 + 6 + 1)


def node_of(name: str) -> verify_cluster.Node:
    return verify_cluster.Node(name, "IDLE", ("gpu",), 8)


def test_a_sample_is_the_root_of_many() -> None:
    counts = {
        count: len(set(verify_nccl._sample([node_of(f"n{index}") for index in range(count)])))
        for count in (2, 8, 9, 64, 65, 1000, 10000)
    }
    assert counts == {2: 2, 8: 8, 9: 8, 64: 8, 65: 9, 1000: 32, 10000: 100}


def test_two_nodes_alone(cluster: Cluster, run: Run) -> None:
    cluster.says(slow={"n2": 0.5})
    assert "two nodes do not show which of them is slow" in dict(checks(run(only("two")), "unknown"))["slow node"]


def test_pairs_that_are_not_looked_for(cluster: Cluster, run: Run) -> None:
    cluster.nodes("n1", "n2", "n3")
    assert "slow node" not in statuses(run(only("all", expected=[row(3, 480)], mpi="none")))
    cluster.says(slow={"n2": 0.5})
    assert "slow node" not in statuses(run(only("all", expected=[row(3, 480)], mpi="none", bisect=False)))


@pytest.mark.parametrize(("busy", "status"), [(["n4"], "failed"), (["n1", "n2", "n3", "n4"], "unknown")])
def test_a_busy_pair_is_no_slow_one(
    cluster: Cluster, run: Run, monkeypatch: pytest.MonkeyPatch, busy: list[str], status: str
) -> None:
    cluster.nodes("n1", "n2", "n3", "n4")
    cluster.says(slow={"n1": 0.5})
    several = verify_nccl._Stage._several

    def then_busy(stage: Any) -> Any:
        yield from several(stage)
        cluster.says(busy={"*": busy})

    monkeypatch.setattr(verify_nccl._Stage, "_several", then_busy)
    result = run(only("all", expected=[row(4, 480)], mpi="none"))
    check = next(check for check in result["report"]["checks"] if check["name"] == "slow node")
    assert (check["status"], check["details"].get("slow")) == (status, ["n1"] if status == "failed" else None)
    assert all("n4" not in pair["nodes"] for pair in result["report"]["pairs"])


# What the user says


def test_the_users_own_figures(cluster: Cluster, run: Run) -> None:
    result = run(only("two", expected=[row(2, 500, tolerance=0.01, source="our own")]))
    assert checks(result, "failed")[0] == ("all_reduce on 2 nodes", "487 GB/s at 16 GiB, 97% of the 500 GB/s expected")
    assert result["report"]["runs"][0]["expectation"]["points"][-1]["source"] == "our own"
    assert run(only("two", expected=[row(2, 500)]))["complaints"] == []
    assert run(only("two", expected=[row(2, 500)], tolerance=0.01))["complaints"] != []


@pytest.mark.parametrize(
    ("nccl", "line"),
    [
        (
            {"expected": [row(2, 500), row(4, -1)]},
            "verify_nccl_expected[1]: busbw: found -1; needed: a bus bandwidth in GB/s, above 0",
        ),
        ({"max_bytes": "16 gigs"}, "verify_nccl_max_bytes: '16 gigs' is no size; needed: "),
        ({"min_bytes": "1G", "max_bytes": "1M"}, "verify_nccl_min_bytes: found 1G; needed: no more than 1M"),
        ({"tolerance": 10}, "verify_nccl_tolerance: found 10.0; needed: a share from 0 to below 1, such as 0.1"),
        ({"collectives": []}, "verify_nccl_collectives: found none; needed: one or more"),
    ],
)
def test_what_makes_no_sense_is_one_line(cluster: Cluster, run: Run, nccl: dict[str, Any], line: str) -> None:
    assert run(nccl)["msg"].startswith(line)
    assert cluster.calls == []


def test_a_collective_that_does_not_exist(run: Run) -> None:
    assert "all_reduce_perf" in run({"collectives": ["all_reduce_perf"]})["msg"]


# The stage health, which measures single nodes by the same code

ALONE = {"stages": ["health"], "health": {"checks": ["nccl_one_node"]}}


def found(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the findings of the stage health."""
    return [(one["node"], one["finding"], one["class"]) for one in result["report"]["findings"]]


def test_health_measures_all_reduce_on_each_node_alone(cluster: Cluster, run: Run) -> None:
    result = run(**ALONE)
    ran = [(call["program"], call["nodes"]) for call in cluster.calls if call["program"] != "probe"]
    assert sorted(ran) == [("all_reduce_perf", ["n1"]), ("all_reduce_perf", ["n2"])]
    assert [check["name"] for check in result["report"]["checks"]] == ["nccl_one_node"]
    assert found(result) == []


def test_health_names_a_slow_node(cluster: Cluster, run: Run) -> None:
    cluster.says(alone={"n2": 0.5})
    result = run(**ALONE)
    assert found(result) == [("n2", "nccl_one_node", "watch")]
    (complaint,) = [line for line in result["complaints"] if "n2" in line]
    assert complaint.startswith("gpu: nccl_one_node (health): n2: ")


def test_health_takes_wrong_values_for_broken_hardware(cluster: Cluster, run: Run) -> None:
    cluster.nodes("n1")
    cluster.says(wrong=3)
    assert found(run(**ALONE)) == [("n1", "nccl_one_node", "replace")]


def test_health_compares_nodes_where_nobody_has_published_a_figure(cluster: Cluster, run: Run) -> None:
    cluster.nodes("n1", "n2", feature="g5.48xlarge", efa=0)
    cluster.says(speed=9.0, alone={"n2": 0.5})
    assert found(run(**ALONE)) == [("n2", "nccl_one_node", "watch")]


def test_health_measures_no_node_again_that_the_stage_nccl_has_measured(cluster: Cluster, run: Run) -> None:
    cluster.says(alone={"n2": 0.5})
    result = run(
        stages=["nccl", "health"],
        health={"checks": ["nccl_one_node"]},
        nccl={"scopes": ["one"], "collectives": ["all_reduce"], "bisect": False},
    )
    ran = [call["nodes"] for call in cluster.calls if call["program"] == "all_reduce_perf"]
    assert sorted(ran) == [["n1"], ["n2"]]
    assert found(result) == [("n2", "nccl_one_node", "watch")]
    (check,) = [check for check in result["report"]["checks"] if check["stage"] == "health"]
    assert check["message"] == "n[1-2]: measured by the stage nccl"


@strangers.TWO_USERS
def test_names_that_a_user_takes_beforehand_do_no_harm() -> None:
    with strangers.crowd() as place:

        def take() -> None:
            now = int(time.time())
            for second in range(now, now + 10):
                stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second))
                for name in (f"verify-{stamp}", *(f"verify-{stamp}-{number}" for number in range(100))):
                    (place / name).symlink_to("/etc")

        strangers.as_user(take)
        made = Path(verify_nccl._results_folder(str(place)))
        status = made.lstat()
        assert (stat.S_ISDIR(status.st_mode), status.st_uid, status.st_mode & 0o777) == (True, 0, 0o755)
