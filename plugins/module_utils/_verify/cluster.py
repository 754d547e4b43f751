# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The cluster that is verified: its nodes as Slurm sees them, and jobs that an ordinary user submits to them."""

from __future__ import annotations

import contextlib
import ctypes
import io
import itertools
import os
import pwd
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._host import document, lock
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.reason import reason
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import NotRun, run
from ansible_collections.pcluster.postboot.plugins.module_utils._slurm import names
from ansible_collections.pcluster.postboot.plugins.module_utils._slurm import nodes as slurm_nodes
from ansible_collections.pcluster.postboot.plugins.module_utils._verify.report import Check

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MARK = "postboot-verify"
# With these variables a job asks for GPUs in a container whose image does not.
GPU_ENVIRONMENT = ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility")
# What a node may be besides up; anything else keeps jobs from it, or says that it is about to go. A job that ends there
# and the backfill scheduler's plans for it pass, and srun waits for them.
_HARMLESS = {"CLOUD", "COMPLETING", "DYNAMIC_NORM", "PLANNED"}
# The beginning of the line that says that this run has ended a job.
LATE = "the job did not end within"
# Jobs are submitted by several threads, and one that hangs is cancelled by its name.
_NUMBERS = itertools.count(1)
# Seconds that srun may take beyond its job, and to end after a signal.
_SPARE, _PATIENCE = 30, 20
# Seconds between two signs of life of this run while a job prints nothing.
_BEAT = 30
# Bytes that are kept of a job's output, of its errors, and of the end of a longer output.
_MOST_PRINTED, _MOST_COMPLAINTS, _LAST = 64 * 2**20, 4 * 2**20, 2**20
_LIBC = ctypes.PyDLL(None)
_PR_SET_PDEATHSIG = 1


class TimeOver(Exception):
    """The time of the whole verification (verify_limit) is over."""


class Nccl(NamedTuple):
    """Options of the stage nccl."""

    scopes: tuple[str, ...] = ("one", "two", "all", "container")
    collectives: tuple[str, ...] = ("all_reduce", "all_gather", "reduce_scatter", "alltoall")
    min_bytes: str = "8"
    max_bytes: str = "16G"
    iterations: int = 20
    tests_dir: str = "/fsx/nccl-tests/current/bin"
    environment: str = "/fsx/nccl/setup-nccl-env.sh"
    variables: dict[str, str] = {}
    mpi: str = "pmix"
    expected: tuple[Any, ...] = ()
    tolerance: float = 0.1
    bisect: bool = True


class Health(NamedTuple):
    """Options of the stage health."""

    checks: tuple[str, ...] = ("node_health", "gpu_diag", "efa_loopback", "nccl_one_node")
    level: int = 2
    minutes: int = 15


class Options(NamedTuple):
    """Options of the module."""

    user: str
    image: str = ""
    images_dir: str = "/fsx/containers"
    partitions: tuple[str, ...] = ()
    nodes: int = 2
    power_up: bool = False
    time_limit: int = 10
    wait: int = 120
    limit: int = 0
    slurm: str = "/opt/slurm"
    instance_types: dict[str, str] = {}
    versions: dict[str, dict[str, Any]] = {}
    exporters: tuple[dict[str, Any], ...] = ()
    results_dir: str = "/fsx/nccl-tests/results"
    nccl: Nccl = Nccl()
    health: Health = Health()


class Node(NamedTuple):
    """A node as Slurm sees it."""

    name: str
    state: str
    partitions: tuple[str, ...]
    gpus: int
    instance_type: str = ""  # as ParallelCluster's features of the node tell it, where all of a kind have one
    cpus: int = 0  # that jobs get; 0 where Slurm does not say
    efa: bool = False  # whether ParallelCluster gives it EFA devices, as its features tell

    @property
    def is_up(self) -> bool:
        """Say whether a job could run there now or soon, without booting anything."""
        base, *flags = self.state.split("+")
        return base in ("IDLE", "MIXED", "ALLOCATED") and not set(flags) - _HARMLESS

    @property
    def is_idle(self) -> bool:
        """Say whether the node is up and runs no job."""
        return self.is_up and self.state.startswith("IDLE")

    @property
    def is_powered_down(self) -> bool:
        """Say whether a job would boot the node."""
        base, *flags = self.state.split("+")
        return base == "IDLE" and set(flags) - _HARMLESS in ({"POWERED_DOWN"}, {"POWERING_UP"})


class Output(NamedTuple):
    """What a job has printed."""

    code: int
    values: dict[str, dict[str, list[str]]]  # by node, then by key
    errors: list[str]


def parse_nodes(text: str) -> list[Node]:
    """Return the nodes in the output of `scontrol -o show nodes`."""
    found = []
    for fields in slurm_nodes.nodes(text, "State", "Partitions", "Gres", "AvailableFeatures", "CPUTot", "CPUEfctv"):
        partitions = tuple(name for name in fields.get("Partitions", "").split(",") if name and name != "(null)")
        kinds = re.findall(r"(?:^|,)([a-z][a-z0-9-]*\.[a-z0-9-]+)(?=,|$)", fields.get("AvailableFeatures", ""))
        gpus, cpus = slurm_nodes.gpus_of(fields.get("Gres", "")), fields.get("CPUEfctv") or fields.get("CPUTot", "")
        kind = kinds[0] if len(kinds) == 1 else ""
        state, number = fields.get("State", ""), document.whole(cpus) or 0
        efa = "efa" in fields.get("AvailableFeatures", "").split(",")
        found.append(Node(fields["NodeName"], state, partitions, gpus, kind, number, efa))
    return found


def values_of(text: str) -> dict[str, dict[str, list[str]]]:
    """Return what a job has said, by node and key."""
    values: dict[str, dict[str, list[str]]] = {}
    for node, key, value in re.findall(rf"^{MARK}\|([^|\n]*)\|([^|\n]*)\|(.*)$", text, re.MULTILINE):
        values.setdefault(node, {}).setdefault(key, []).append(value)
    return values


def telling(errors: str) -> list[str]:
    """Return the lines of a failed job that say why, without what stands before each of them."""
    before = r"^(\d+: )?((srun|slurmstepd)[^:]*: )?"
    lines = [re.sub(before, "", line.strip()) for line in errors.splitlines() if line.strip()]
    lines = [re.sub(r"^error: ", "", line) for line in lines]
    # What enroot has said, which Pyxis shows indented, is nearest to the cause.
    enroot = [line[len("pyxis:") :].strip() for line in lines if line.startswith("pyxis:   ")]
    why = [line for line in enroot if re.search(r"\[ERROR\]|curl: \(|[Ee]rror|not found|denied|failed", line)]
    why = why or [line for line in [reason("\n".join(enroot))] if line]
    why = why or [line for line in lines if re.search(r"pyxis: (?!import|creating|starting|printing)", line)]
    why = why or [line for line in lines if not re.search(r"queued and waiting|has been allocated|tasks? \d", line)]
    return list(dict.fromkeys(why))[-3:]


class Printed:
    """What a job prints, in a file or in memory: all of it, or the first and the last of `most` bytes."""

    def __init__(self, path: str = "", most: int = 0) -> None:
        self.path = path
        self._room = most - 3 * _LAST if most else sys.maxsize
        self._last, self._left_out = bytearray(), 0
        self._file: IO[bytes] = io.BytesIO()
        if path:
            self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), "wb")
            os.fchmod(self._file.fileno(), 0o644)

    def write(self, part: bytes) -> None:
        """Keep a part of the output."""
        self._file.write(part[: self._room])
        # Flushed, so that people can follow the output, and a killed run leaves it.
        self._file.flush()
        self._last += part[self._room :]
        self._room -= len(part[: self._room])
        if len(self._last) > 2 * _LAST:
            self._left_out += len(self._last) - _LAST
            del self._last[:-_LAST]

    def close(self) -> None:
        """Write the end of the output, and close the file."""
        if self._left_out:
            begun = self._last.find(b"\n") + 1
            self._file.write(b"\n# %d bytes are left out here, as this is too much\n" % (self._left_out + begun))
            del self._last[:begun]
        self._file.write(self._last)
        if self.path:
            self._file.close()

    def __iter__(self) -> Iterator[str]:
        """Yield the lines, without all of them in memory."""
        with open(self.path, encoding="utf-8", errors="replace") as lines:
            yield from lines

    def text(self) -> str:
        """Return what was kept in memory."""
        return self._file.getvalue().decode(errors="replace") if isinstance(self._file, io.BytesIO) else ""


class Context:
    """The cluster, and the user who submits to it."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.runs: list[dict[str, Any]] = []
        self.pairs: list[dict[str, Any]] = []
        self.findings: list[dict[str, Any]] = []
        # Called where there is more to keep; whoever wants it sets it.
        self.save: Callable[[], None] = lambda: None
        self.note: Callable[[str], None] = lambda what: None  # what is being done
        self._until = time.monotonic() + 60 * options.limit if options.limit else float("inf")
        self.results_dir = ""
        self.images: dict[tuple[str, bool], Any] = {}  # what _verify_image has made
        self._images_folder = ""
        try:
            self.account = pwd.getpwnam(options.user)
        except KeyError as error:
            raise Problem(f"verify_user: {options.user!r} is no user of this node; needed: an ordinary one") from error
        if self.account.pw_uid == 0:
            raise Problem("verify_user: found root; needed: an ordinary user, who may less")

    def _as_user(self, *argv: str, root: bool = False) -> list[str]:
        if root:
            return ["env", "-i", f"PATH={self.options.slurm}/bin:{PATH}", "HOME=/root", "USER=root", "LC_ALL=C", *argv]
        own = [f"HOME={self.account.pw_dir}", f"USER={self.account.pw_name}", f"LOGNAME={self.account.pw_name}"]
        path = f"PATH={self.options.slurm}/bin:{PATH}"
        return ["runuser", "-u", self.account.pw_name, "--", "env", "-i", path, *own, "LC_ALL=C", *argv]

    def slurm(self, program: str, *argv: str) -> str:
        """Return what one of Slurm's programs prints."""
        return self._told(os.path.join(self.options.slurm, "bin", program), *argv)

    def images_folder(self) -> str:
        """Return a folder of the user's that all nodes see; it is there until the end of the run."""
        parent = self.options.results_dir
        if not self._images_folder:
            if not os.path.isdir(parent):
                raise Problem(f"verify_results_dir: {parent} is not there; run site with --tags nccl_tests")
            self._images_folder = self._told("mktemp", "-d", f"{parent}/.verify-images-XXXXXX").strip()
        return self._images_folder

    def close(self) -> None:
        """Remove the folder of images. Where that fails, the results of the run count all the same."""
        if self._images_folder:
            with contextlib.suppress(Problem):
                self._told("rm", "-rf", self._images_folder)

    def _told(self, program: str, *argv: str) -> str:
        """Return what a program prints that the user runs on this node."""
        command, program = self._as_user(program, *argv), os.path.basename(program)
        try:
            said = run(command, 60, cwd="/tmp")
        except NotRun as problem:
            raise Problem(f"{program}: {problem}") from problem
        if said.code:
            raise Problem(f"{program} {' '.join(argv)} ended with {said.code} and said: {said.reason}")
        return said.out

    def nodes(self) -> list[Node]:
        """Return all nodes of the cluster."""
        return parse_nodes(self.slurm("scontrol", "-a", "-o", "show", "nodes"))

    def selected(
        self, name: str, every: bool = False, only: Callable[[Node], bool] = lambda node: True
    ) -> Iterator[tuple[str, list[Node], Check | None]]:
        """Yield every partition with the nodes to look at; where there is none, with what to tell in place of `name`.

        `every` is all that are up, once where partitions share them; `only` chooses some. Otherwise it is as many as
        are asked for, of those with GPUs and of those without, and nodes with GPUs come first.
        """
        nodes = self.nodes()
        known = list(dict.fromkeys(name for node in nodes for name in node.partitions))
        wrong = [name for name in self.options.partitions if name not in known]
        if wrong:
            raise Problem(f"verify_partitions: found {', '.join(wrong)}; needed: some of {', '.join(known) or 'none'}")
        first: dict[frozenset[str], str] = {}
        for partition in self.options.partitions or sorted(known):
            own = [node for node in nodes if partition in node.partitions and only(node)]
            own.sort(key=lambda node: not node.gpus)
            if not own:
                continue
            number = self.options.nodes or len(own)
            chosen = [node for node in own if node.is_up]
            if not every:
                chosen = [node for kind in kinds(chosen) for node in kind[:number]]
            if self.options.power_up:
                # Nodes that are up cost nothing more. Of the others no more are booted than are asked for.
                chosen += [node for node in own if node.is_powered_down][: max(0, number - len(chosen))]
            states = ", ".join(sorted({node.state for node in own}))
            boots = any(node.is_powered_down for node in own) and not self.options.power_up
            advice = "; verify_power_up: true boots one" if boots else ""
            other = first.setdefault(frozenset(node.name for node in chosen), partition)
            if not chosen:
                why = f"no node of it is up ({states}){advice}"
                yield partition, [], Check(name, partition, "skipped", why)
            elif every and other != partition:
                why = f"its nodes are those of {other}"
                yield partition, [], Check(name, partition, "skipped", why, missed=False)
            else:
                yield partition, chosen, None

    def ask(
        self, partition: str, nodes: Sequence[Node], script: str, gpus: bool = True
    ) -> tuple[Output, list[Node], list[Node]]:
        """Run a shell script once on each of these nodes; return the output, who was asked, and who had no room."""
        seen, idle = self.srun(partition, nodes, script, gpus=gpus), [node for node in nodes if node.is_idle]
        if not is_busy(seen):
            return seen, list(nodes), []
        if idle and len(idle) < len(nodes):
            seen = self.srun(partition, idle, script, gpus=gpus)
            if not is_busy(seen):
                return seen, idle, [node for node in nodes if node not in idle]
        return seen, [], list(nodes)

    def no_room(self, nodes: Sequence[Node]) -> str:
        """Return why nodes were not asked."""
        return f"no room within {self.options.wait} s on {names.shown(node.name for node in nodes)}"

    def srun(
        self,
        partition: str,
        nodes: Sequence[Node],
        script: str,
        *more: str,
        gpus: bool = True,
        root: bool = False,
        minutes: int = 0,
    ) -> Output:
        """Run a shell script once on each of these nodes, and read what it prints with say()."""
        say = f'say() {{ printf "\\n{MARK}|%s|%s|%s\\n" "$SLURMD_NODENAME" "$1" "$2"; }}\n'
        code, out, err = self.submit(partition, nodes, say + script, *more, gpus=gpus, root=root, minutes=minutes)
        return Output(code, values_of(out.text()), telling(err))

    def submit(
        self,
        partition: str,
        nodes: Sequence[Node],
        script: str,
        *more: str,
        log: str = "",
        tasks_per_node: int = 1,
        gpus: bool = True,
        root: bool = False,
        minutes: int = 0,
    ) -> tuple[int, Printed, str]:
        """Run a shell script on these nodes, with their GPUs; return its exit code, what it printed and complained.

        A log is written while it runs, has no more than is kept of it, and ends with the complaints. It is the user's
        job; root's where the user may not do what is to be looked at. `minutes` are those of a job that may take longer
        than the others.
        """
        minutes = minutes or self.options.time_limit
        if time.monotonic() >= self._until:
            raise TimeOver
        out, err = Printed(log, _MOST_PRINTED if log else 0), Printed(most=_MOST_COMPLAINTS)
        name = f"{MARK}-{os.getpid()}-{next(_NUMBERS)}"
        count = min(node.gpus for node in nodes) if gpus else 0
        booting = any(node.is_powered_down for node in nodes)
        argv = [
            os.path.join(self.options.slurm, "bin", "srun"),
            f"--job-name={name}",
            f"--partition={partition}",
            f"--nodes={len(nodes)}",
            f"--ntasks={tasks_per_node * len(nodes)}",
            f"--ntasks-per-node={tasks_per_node}",
            f"--nodelist={names.ranges(node.name for node in nodes)}",
            f"--time={minutes}",
            "--chdir=/tmp",
            # Slurm does not know which CPUs are near which GPU; NCCL and the kernel do.
            "--cpu-bind=none",
            *([] if booting else [f"--immediate={self.options.wait}"]),
            *([f"--gres=gpu:{count}"] if count else []),
            *more,
            "sh",
            "-c",
            script,
        ]
        self.note(f"a job on {names.shown(node.name for node in nodes)}{', which boot first' if booting else ''}")
        # A node that boots may take as long as ParallelCluster gives it.
        limit = 60 * minutes + (2400 if booting else self.options.wait) + _SPARE
        # run() would keep all that is printed in memory and show others nothing of it, nor that this run is alive.
        with subprocess.Popen(
            self._as_user(*(GPU_ENVIRONMENT if count else ()), *argv, root=root),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/tmp",
            start_new_session=True,
            preexec_fn=_tie(os.getpid()),
        ) as child:
            sinks = {child.stdout: out, child.stderr: err}
            try:
                if not _follow(child, sinks, limit):
                    self._end(child, name, sinks)
                    err.write(f"\n{LATE} {limit} s, and was cancelled".encode())
            except OSError as error:  # the disk is full
                self._end(child, name, {child.stdout: Printed(), child.stderr: err})
                raise OSError(error.errno, error.strerror, log) from error
        err.close()
        if log:
            out.write(err.text().encode())
        out.close()
        return child.returncode, out, err.text()

    def _end(self, child: subprocess.Popen[bytes], name: str, sinks: Mapping[Any, Printed]) -> None:
        # srun itself is ended in any case, whether Slurm answers or not.
        with contextlib.suppress(NotRun):
            run(self._as_user(os.path.join(self.options.slurm, "bin", "scancel"), f"--name={name}"), 3 * _PATIENCE)
        for sign in (signal.SIGTERM, signal.SIGKILL):
            if _follow(child, sinks, _PATIENCE):
                return
            os.killpg(child.pid, sign)
        _follow(child, sinks, _PATIENCE)


def _tie(parent: int) -> Callable[[], None]:
    """Return what ends a child as soon as this process is gone, however that ends: by SIGTERM srun ends its job."""

    def tie() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return tie


def _follow(child: subprocess.Popen[bytes], sinks: Mapping[Any, Printed], seconds: float) -> bool:
    """Read a process's output until the process ends; say whether that was in time."""
    until = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for stream, sink in sinks.items():
            selector.register(stream, selectors.EVENT_READ, sink)
        while selector.get_map():
            lock.heartbeat()
            left = until - time.monotonic()
            if left <= 0:
                return False
            for key, _events in selector.select(min(left, _BEAT)):
                part = os.read(key.fd, 2**16)
                if part:
                    key.data.write(part)
                else:
                    selector.unregister(key.fileobj)
    try:
        child.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def kinds(nodes: Sequence[Node]) -> list[list[Node]]:
    """Return the nodes with GPUs, and those without: a job asks for GPUs on each of its nodes, or on none."""
    with_gpus, without = [node for node in nodes if node.gpus], [node for node in nodes if not node.gpus]
    return [kind for kind in (with_gpus, without) if kind]


def is_busy(output: Output) -> bool:
    """Say whether a job did not run because its nodes had no room for it."""
    return any(
        re.search(r"Unable to allocate resources: (Requested nodes are busy|Immediate)", e) for e in output.errors
    )
