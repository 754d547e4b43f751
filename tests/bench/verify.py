#!/usr/bin/env python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What verify takes on many nodes: its real stages, with a Slurm that runs nothing and takes 40 s for each job.

    python tests/bench/verify.py [--json FILE]

The program srun on the disk asks this process what to print. Time is counted: when every job that verify has submitted
waits, 40 s have passed, and all of them end. What a rank prints comes from nccl-tests and NCCL as they write it, and
goes through the job's own script; it is run for three ranks of each job, and the others print the same of themselves.
"""

from __future__ import annotations

import json
import os
import pwd
import resource
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [
    str(REPOSITORY / ".venv/collections"),
    str(Path(__file__).parent),
    str(REPOSITORY / "tests/unit/fixtures/slurm"),
]

from figures import Figure, run  # noqa: E402
from hostnames import hostnames  # noqa: E402

from ansible_collections.pcluster.postboot.plugins.module_utils._host import lock  # noqa: E402
from ansible_collections.pcluster.postboot.plugins.module_utils._verify import cluster as verify_cluster  # noqa: E402
from ansible_collections.pcluster.postboot.plugins.module_utils._verify import report, stages  # noqa: E402
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import components  # noqa: E402

SECONDS_A_JOB = 40
COUNTS = (8, 64, 1000)
MINUTES, LOG_BYTES, LINE, ARGUMENT = 60, 64 * 2**20, 200, 128 * 2**10  # MAX_ARG_STRLEN: include/uapi/linux/binfmts.h
KIND, GPUS, NICS = "p5.48xlarge", 8, 32
USER = pwd.getpwuid(65534).pw_name

# --- what NCCL prints --------------------------------------------------------------------------------------------

# With NCCL_DEBUG=INFO, whose subsystems are INIT, BOOTSTRAP and ENV (NCCL 2.32, src/debug.cc). The texts are those of
# src/init.cc, src/bootstrap.cc, src/transport/{net,p2p,nvls,generic}.cc and src/graph/{rings,paths}.cc there, and of
# aws-ofi-nccl's src/nccl_ofi_net.cpp and src/platform-aws.cpp. {r} is the rank, {d} its device, {n} how many there are.
BEFORE = """\
Bootstrap: Using eth0:10.0.0.1<0>
cudaDriverVersion 13000
NCCL git version master 5067397c
NCCL_NET_PLUGIN set by environment to ofi
NET/Plugin: Loaded net plugin Libfabric (v10)
Successfully loaded external network plugin libnccl-net-ofi.so
NET/OFI Initializing aws-ofi-nccl 1.21.1
NET/OFI Using Libfabric version 2.4
NET/OFI Using CUDA driver version 13000 with runtime 13000
NET/OFI Plugin selected platform: AWS
NET/OFI Configuring AWS-specific options
NET/OFI Setting provider_filter to efa
NET/OFI Internode latency set at 75.0 us
NET/OFI Using transport protocol RDMA (platform set)
NET/OFI Selected provider is efa, fabric is efa-direct (found 32 nics)
"""
AFTER = """\
Initialized NET plugin Libfabric
Assigned NET plugin Libfabric to comm
Using network Libfabric
DMA-BUF is available on GPU device {d}
[Rank {r}] ncclCommInitRank comm 0x5581a000{d} rank {r} nranks {n} cudaDev {d} nvmlDev {d} busId 53000 commId 0x1f2e3d4c5b6a7988 - Init START
MNNVL busId 0x53000 fabric UUID 0.0 cliqueId 0x0 state 3 healthMask 0x0
NVLS multicast support is available on dev {d}
Rank {r}: 4 Net devices
Rank {r}: 0 CollNet devices
Local Net device counts across ranks: min 4 max 4
Local CollNet device counts across ranks: min 0 max 0
comm 0x5581a000{d} rank {r} nRanks {n} nNodes {m} localRanks 8 localRank {d} MNNVL 0
Trees {trees}
P2P Chunksize set to 131072
NVLS tuning: nChannels 16 chunkSize 131072 treeMaxChunkSize 65536
CC Off, workFifoBytes 1048576
Tuning P2P operations with maxP2pPeers = {n}
16 coll channels, 16 collnet channels, 16 nvls channels, 32 p2p channels, {per} p2p channels per peer
TUNER/Plugin: Using tuner plugin nccl_ofi_tuner
NET/OFI Region base Tuner is chosen for platform: p5.48xlarge
NET/OFI Tuner init: comm with {n} ranks and {m} nodes.
ncclCommInitRank comm 0x5581a000{d} rank {r} nranks {n} cudaDev {d} nvmlDev {d} busId 53000 commId 0x1f2e3d4c5b6a7988 - Init COMPLETE
Init timings - ncclCommInitRank: rank {r} nranks {n} total 9.81 (kernels 0.21, alloc 2.13, bootstrap 3.11, allgathers 0.81, topo 1.27, graphs 0.22, connections 1.33, rest 0.73)
Connected all rings, use ring PXN 0 GDR 1
Connected all trees
Connected NVLS tree
"""  # noqa: E501
COLUMNS = """\
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
"""


def per_peer(ranks: int) -> int:
    """Channels of a pair of ranks: halved from 4 until 32 are enough for all, by 8 (src/graph/paths.cc)."""
    channels = 4
    while channels > 1 and channels * -(-ranks // 8) > 32:
        channels //= 2
    return channels


def rank_says(program: str, rank: int, hosts: list[str], busbw: float) -> str:
    """What one rank of a test prints; the first one has the table (nccl-tests 2.19.6, src/common.cu)."""
    ranks, device, host = len(hosts) * GPUS, rank % GPUS, hosts[rank // GPUS]
    said = f"{host}:{90000 + device}:{90100 + device} [{device}] NCCL INFO "
    pairs = program == "alltoall_perf"
    lines = []
    if not rank:
        lines += [
            "# nccl-tests version 2.19.6 nccl-headers=23203 nccl-library=23203",
            f"# Collective test starting: {program}",
        ]
        lines.append(
            "# nThread 1 nGpus 1 minBytes 8 maxBytes 17179869184 step: 2(factor) warmup iters: 1 iters: 20 "
            "agg iters: 1 validation: 1 graph: 0 unalign: 0"
        )
        lines += ["#", "# Using devices"]
        for other in range(ranks):
            where, place = hosts[other // GPUS], other % GPUS
            who = f"Rank {other:2} Group  0 Pid {90000 + place:6} on {where:>10} device {place:2}"
            lines.append(f"#  {who} [0000:{53 + place:02x}:00] NVIDIA H100 80GB HBM3")
        lines.append(f"{said}NCCL version 2.32.3+cuda13.0")
    told = BEFORE + "".join(f"NET/OFI GUID of rdmap{nic}s0: {nic:016x}\n" for nic in range(NICS))
    told += "".join(f"NET/OFI GUID for dev[{nic}]: {nic:032x}\n" for nic in range(NICS // 4))
    trees = " ".join(f"[{channel}] {rank + 1}/{rank + 8}/-1->{rank}->{rank - 8}" for channel in range(16))
    told += AFTER.format(r=rank, d=device, n=ranks, m=len(hosts), per=per_peer(ranks), trees=trees[:1017])
    if not rank:
        order = " ".join(map(str, range(ranks)))
        told += "".join(f"Channel {channel:02}/16 : {order}"[:127] + "\n" for channel in range(16))
    lines += [said + line for line in told.splitlines()]
    others = [other for other in range(ranks) if other != rank] if pairs else [(rank + 8) % ranks, (rank + 1) % ranks]
    for channel in range(per_peer(ranks) if pairs else 2):
        for other in others:
            ways, there = f"Channel {channel:02}/{int(pairs)}", other % GPUS
            if other // GPUS == rank // GPUS:
                lines.append(f"{said}{ways} : {rank}[{device}] -> {other}[{there}] via P2P/CUMEM")
                continue
            over = f"via NET/Libfabric/{device * 4 + channel % 4}/GDRDMA{'/Shared' if pairs else ''}"
            lines.append(f"{said}{ways} : {other}[{there}] -> {rank}[{device}] [receive] {over}")
            lines.append(f"{said}{ways} : {rank}[{device}] -> {other}[{there}] [send] {over}")
    if not rank:
        lines += COLUMNS.splitlines()
        for power in range(3, 35):
            size = 2**power
            speed = busbw * size / (size + 2**24)
            half = f"  {size / speed / 1e3:7.0f}  {speed / 2:6.2f}  {speed:6.2f}       0"
            lines.append(f"{size:12}  {size // 4:12}     float     sum      -1{half}{half}")
        lines += ["# Out of bounds values : 0 OK", f"# Avg bus bandwidth    : {busbw / 3:g}", "#"]
        lines += [f"# Collective test concluded: {program}", "#", ""]
    return "\n".join([*lines, ""])


# --- a Slurm that runs nothing -----------------------------------------------------------------------------------

SRUN = """#!{python} -IS
import _socket, os, sys
asked = _socket.socket(_socket.AF_UNIX)
asked.connect({address!r})
question = "\\0".join(sys.argv[1:]).encode()
asked.send(len(question).to_bytes(8, "big"))
while question:
    question = question[asked.send(question):]
code = asked.recv(1)
while True:
    part = asked.recv(65536)
    if not part:
        break
    while part:
        part = part[os.write(1, part):]
sys.exit(code[0])
"""


class Cluster:
    """A head node, its Slurm and its clock."""

    def __init__(self, root: Path, count: int, slow: bool) -> None:
        self.root, self.count = root, count
        self.names = [f"gpu-st-p5-{index}" for index in range(1, count + 1)]
        # Where something is wrong it is wrong here and there.
        self.faulty = set(self.names[::97]) if slow else set()
        self.jobs, self.clock, self.raw = 0, 0.0, 0
        self.waiting: list[threading.Event] = []
        self.submitted = 0
        self.changed = threading.Condition()
        self.printed: dict[tuple[str, int], list[str]] = {}
        self.ended = False
        self.quiet = 0.15  # seconds after which no other job is about to be submitted
        for folder in ("slurm/bin", "bin", "containers", "fsx/nccl", "tests", "results", "report"):
            (root / folder).mkdir(parents=True)
        self.tests, self.environment = root / "tests", root / "fsx/nccl/setup.sh"
        self.environment.write_text("")
        (root / "containers/pytorch.sqsh").write_bytes(b"x")
        for name in ("all_reduce", "all_gather", "reduce_scatter", "alltoall"):
            self.program(f"tests/{name}_perf", '#!/bin/sh\nexec cat "$RAW"\n')
        self.program("slurm/bin/srun", SRUN.format(python=sys.executable, address=str(root / "socket")))
        lines = [
            f"NodeName={name} CPUTot=192 AvailableFeatures={KIND},efa Gres=gpu:h100:8 State=IDLE+CLOUD Partitions=gpu\n"
            for name in self.names
        ]
        (root / "nodes").write_text("".join(lines))
        self.program("slurm/bin/scontrol", f"#!/bin/sh\ncat {root}/nodes\n")
        self.program("bin/runuser", '#!/bin/sh\nshift 3\nexec "$@"\n')
        self.node()
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(str(root / "socket"))
        self.server.listen(512)
        threading.Thread(target=self.serve, daemon=True).start()
        threading.Thread(target=self.tick, daemon=True).start()

    def program(self, name: str, text: str) -> None:
        (self.root / name).write_text(text)
        (self.root / name).chmod(0o755)

    def node(self) -> None:
        """The files of a node, and what its programs say."""
        for nic in range(NICS):
            device = self.root / f"node/sys/class/infiniband/rdmap{nic}s0/device"
            device.mkdir(parents=True)
            (device / "driver").symlink_to("/sys/bus/pci/drivers/efa")
        (self.root / "node/opt/amazon/efa/bin").mkdir(parents=True)
        domains = "\n".join(f"    domain: rdmap{nic}s0-rdm" for nic in range(NICS))
        self.program("node/opt/amazon/efa/bin/fi_info", f"#!/bin/sh\nprintf '%s\\n' {shlex.quote(domains)}\n")
        gpus = "\n".join(f"GPU {index}: NVIDIA H100 80GB HBM3" for index in range(GPUS))
        self.program("bin/nvidia-smi", f"#!/bin/sh\nprintf '%s\\n' {shlex.quote(gpus)}\n")
        self.program("bin/enroot", "#!/bin/sh\necho 4.1.2\n")
        self.program("bin/curl", "#!/bin/sh\n")
        answers = (
            "case $1.$3 in is-enabled.node_exporter | is-enabled.nvidia-dcgm-exporter) ;; show.*) ;; *) exit 1 ;; esac"
        )
        self.program("bin/systemctl", f"#!/bin/sh\n{answers}\n")

    def counted(self, submit: Callable[..., Any]) -> Callable[..., Any]:
        """A Context.submit() that the clock knows of."""

        def call(*words: Any, **more: Any) -> Any:
            with self.changed:
                self.submitted += 1
            try:
                return submit(*words, **more)
            finally:
                with self.changed:
                    self.submitted -= 1

        return call

    def tick(self) -> None:
        """Let the time of a job pass whenever all that was submitted runs, and nothing else is about to be."""
        before, since = -1, time.monotonic()
        while not self.ended:
            time.sleep(0.02)
            with self.changed:
                now = len(self.waiting)
                if now != before or now != self.submitted:
                    before, since = now, time.monotonic()
                elif now and time.monotonic() - since > self.quiet:
                    self.clock += SECONDS_A_JOB
                    for event in self.waiting:
                        event.set()
                    self.waiting.clear()

    def serve(self) -> None:
        while True:
            asked, _address = self.server.accept()
            threading.Thread(target=self.answer, args=(asked,), daemon=True).start()

    def answer(self, asked: socket.socket) -> None:
        with asked, asked.makefile("rb") as stream:
            question = stream.read(int.from_bytes(stream.read(8), "big")).decode().split("\0")
            if question == ["--help"]:
                asked.sendall(b"\0  --container-image=[USER@][REGISTRY#]IMAGE\n")
                return
            event = threading.Event()
            with self.changed:
                self.jobs += 1
                self.waiting.append(event)
            event.wait()
            options = dict(word.lstrip("-").partition("=")[::2] for word in question[:-3])
            nodes = hostnames(options["nodelist"])
            asked.sendall(b"\0")
            for part in self.output(nodes, options, question[-1]):
                asked.sendall(part.encode())

    def output(self, nodes: list[str], options: dict[str, str], script: str) -> Any:
        program = next((line[2:].split(" ")[0] for line in script.splitlines() if line.startswith("{ /")), "")
        if not program:
            yield from self.said(nodes, script, "container-image" in options)
            return
        name, hosts = os.path.basename(program), ["FIRST-HOST", *(f"HOST-{index}" for index in range(1, len(nodes)))]
        key = (name, len(nodes))
        if key not in self.printed:
            self.printed[key] = [self.through(script, name, rank, hosts) for rank in (0, 1, GPUS % (len(nodes) * GPUS))]
        # GB/s of a node alone, of two and of more.
        speeds = {"all_reduce_perf": (480.0, 487.0, 380.0), "alltoall_perf": (290.0, 58.0, 40.0)}
        busbw = speeds.get(name, (371.0, 480.0, 380.0))[min(len(nodes), 3) - 1]
        busbw *= 0.5 if self.faulty & set(nodes) else 1
        first, local, other = self.printed[key]
        table = rank_says(name, 0, nodes, busbw)
        head, rows = first.partition("#  ")[0], COLUMNS + table.partition(COLUMNS)[2]
        devices = "".join(line + "\n" for line in table.splitlines() if line.startswith("#  Rank"))
        rest = "".join(line + "\n" for line in first.partition(COLUMNS)[0].splitlines() if " NCCL INFO " in line)
        yield label(0, head + devices + rest.replace("FIRST-HOST", nodes[0]))
        for rank in range(1, len(nodes) * GPUS):
            host = nodes[rank // GPUS]
            text = local.replace("FIRST-HOST", host) if rank % GPUS else other.replace("HOST-1", host)
            yield label(rank, text)
        yield label(0, rows)

    def through(self, script: str, program: str, rank: int, hosts: list[str]) -> str:
        """What is left of what a rank prints once the job's own script has passed it on."""
        raw = self.root / f"raw-{threading.get_ident()}"
        raw.write_text(rank_says(program, rank, hosts, 480.0))
        if program == "alltoall_perf" and len(hosts) == self.count and rank == 1:
            self.raw = raw.stat().st_size * len(hosts) * GPUS
        environment = {**os.environ, "SLURM_LOCALID": str(rank % GPUS), "RAW": str(raw)}
        return subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True, check=True).stdout

    def said(self, nodes: list[str], script: str, inside: bool) -> Any:
        """What a job says of each of its nodes: the real script's words on one, and the same of the others."""
        key = (script, int(inside))
        if key not in self.printed:
            environment = {**os.environ, "SLURMD_NODENAME": "THIS-NODE", "PATH": f"{self.root}/bin:/usr/bin:/bin"}
            done = subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True, check=False)
            text = done.stdout.replace(" /\n", " /inside\n") if inside else done.stdout
            self.printed[key] = [text]
        for node in nodes:
            text = self.printed[key][0].replace("|THIS-NODE|", f"|{node}|")
            if node in self.faulty:
                text = text.replace('"status": "unchanged"', '"status": "failed"', 1)
                text = text.replace("|up|node_exporter\n", "|down|node_exporter (localhost:9100)\n")
            yield text


def label(rank: int, text: str) -> str:
    """As srun --label does it."""
    return "".join(f"{rank}: {line}\n" for line in text.splitlines())


def report_of_site() -> str:
    """A node's report, as long as that of a p5: 11.7 KB."""
    why = "this node has no such device, or the variable of the component says that it is not wanted here"
    components = [
        {
            "name": f"component_{index}",
            "status": "unchanged",
            "why": "a reboot is due",
            "summary": f"{why} ({index})",
            "task": why,
        }
        for index in range(34)
    ]
    return json.dumps({"components": components, "stopped": None, "finished": "2026-11-20T09:21:00Z", "versions": {}})


def measured(root: Path, count: int, faulty: bool) -> tuple[Cluster, dict[str, Any]]:
    """Carry out all stages on so many nodes."""
    cluster = Cluster(root, count, faulty)
    (root / "report/report.json").write_text(report_of_site())
    probes = [(module, module.PROBE) for module in (stages.nodes, stages.nccl)]
    for module, probe in probes:
        probe = probe.replace(lock.STATE_DIR, str(root / "report")).replace("/opt/amazon", f"{root}/node/opt/amazon")
        module.PROBE = probe.replace("/sys/class", f"{root}/node/sys/class")
    submit = verify_cluster.Context.submit
    verify_cluster.Context.submit = cluster.counted(submit)  # type: ignore[method-assign]
    nccl = verify_cluster.Nccl(tests_dir=str(cluster.tests), environment=str(cluster.environment))
    path = os.environ["PATH"]
    os.environ["PATH"] = f"{root}/bin:{path}"
    begun = resource.getrusage(resource.RUSAGE_SELF)
    try:
        options = verify_cluster.Options(
            user=USER,
            exporters=tuple(components.exporters(components.read())),
            images_dir=f"{root}/containers",
            slurm=f"{root}/slurm",
            results_dir=f"{root}/results",
            nccl=nccl,
        )
        checks = stages.carry_out(verify_cluster.Context(options), stages.STAGES, f"{root}/var/verify.json", {})
    finally:
        os.environ["PATH"] = path
        verify_cluster.Context.submit = submit  # type: ignore[method-assign]
        for module, probe in probes:
            module.PROBE = probe
        cluster.ended = True
        cluster.server.close()
    used = resource.getrusage(resource.RUSAGE_SELF)
    lines = [*report.table(checks), report.verdict(checks), *report.complaints(checks)]
    logs = sorted(root.glob("results/*/gpu/*-alltoall-*"), key=lambda log: log.stat().st_size)
    return cluster, {
        "lines": lines,
        "log": logs[-1].stat().st_size,
        "cpu": used.ru_utime + used.ru_stime - begun.ru_utime - begun.ru_stime,
        "result": len("\n".join(lines)),
    }


def longest_argument(root: Path) -> int:
    """The longest argument of a job on 10,000 nodes of 20,000, each second of which is down."""
    for folder in ("slurm/bin", "bin"):
        (root / folder).mkdir(parents=True)
    for name, text in (
        ("slurm/bin/srun", f"#!/bin/sh\nfor word; do echo ${{#word}}; done | sort -n | tail -n 1 > {root}/longest\n"),
        ("bin/runuser", '#!/bin/sh\nshift 3\nexec "$@"\n'),
    ):
        (root / name).write_text(text)
        (root / name).chmod(0o755)
    nodes = [
        verify_cluster.Node(f"train-gpu-st-p5-48xlarge-{number}", "IDLE", ("gpu",), 8) for number in range(1, 20001, 2)
    ]
    path = os.environ["PATH"]
    os.environ["PATH"] = f"{root}/bin:{path}"
    try:
        verify_cluster.Context(verify_cluster.Options(user=USER, slurm=f"{root}/slurm")).srun("gpu", nodes, "true")
    finally:
        os.environ["PATH"] = path
    return int((root / "longest").read_text())


def measure() -> list[Figure]:
    figures = []
    for count, faulty in (*((count, False) for count in COUNTS), (COUNTS[-1], True)):
        with tempfile.TemporaryDirectory(prefix="v") as folder:
            cluster, told = measured(Path(folder), count, faulty)
        where = f"{count:,} nodes{', one in 97 slow and failed' if faulty else ''}"
        longest = max(told["lines"], key=len)
        if os.environ.get("SHOW"):
            print("\n".join(told["lines"]), file=sys.stderr)
        figures += [
            Figure(f"{where}: jobs", cluster.jobs),
            Figure(f"{where}: minutes, {SECONDS_A_JOB} s a job", cluster.clock / 60, "min", at_most=MINUTES),
            Figure(f"{where}: longest line", len(longest), "characters", at_most=LINE),
            Figure(f"{where}: what the module returns", told["result"] / 2**10, "KiB"),
        ]
        if not faulty:
            figures += [
                Figure(f"{where}: alltoall's ranks print", cluster.raw / 2**20, "MiB"),
                Figure(f"{where}: alltoall's log", told["log"] / 2**20, "MiB", at_most=LOG_BYTES / 2**20),
                Figure(f"{where}: CPU of the head node, this Slurm's included", told["cpu"], "s"),
            ]
    with tempfile.TemporaryDirectory(prefix="v") as folder:
        argument = longest_argument(Path(folder))
    figures.append(
        Figure("10,000 nodes with gaps: longest argument", argument / 2**10, "KiB", at_most=ARGUMENT / 2**10)
    )
    return figures


if __name__ == "__main__":
    sys.exit(run("verify on many nodes", measure, about=__doc__))
