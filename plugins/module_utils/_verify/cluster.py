# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Checks of a cluster by jobs that an ordinary user submits: what all stages share.

A stage is a module _verify_<stage>.py with a function run(Context) that yields one Check after another.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import itertools
import json
import os
import pwd
import re
import selectors
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils import _node_names, _run, _slurm_nodes, _verify_html

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MARK = "postboot-verify"
# By which a job asks for GPUs in its container where the image does not.
GPU_ENVIRONMENT = ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility")
# What a node may be besides up; anything else keeps jobs from it, or says that it is about to go. A job that ends there
# and the backfill scheduler's plans for it pass, and srun waits for them.
_HARMLESS = {"CLOUD", "COMPLETING", "DYNAMIC_NORM", "PLANNED"}
# How many things that were not measured the verdict names.
_MOST_TOLD = 6
# How wide the table is, as far as its first columns allow it.
_WIDTH = 200
# How a line begins that says that a job was ended from here.
LATE = "the job did not end within"
# Jobs are submitted by several threads, and one that hangs is cancelled by its name.
_NUMBERS = itertools.count(1)
# How many seconds srun has for more than its job, and to end where it is asked to.
_SPARE, _PATIENCE = 30, 20
# How many seconds a job may print nothing before others are shown that this run is alive.
_BEAT = 30
# How many bytes are kept of what a job of many nodes prints, of its complaints, and of the end where there is more.
_MOST_PRINTED, _MOST_COMPLAINTS, _LAST = 64 * 2**20, 4 * 2**20, 2**20
# How many seconds of results a run may lose that is killed.
_SAVED_EVERY = 60
_LIBC = ctypes.PyDLL(None)
_PR_SET_PDEATHSIG = 1


class VerifyError(Exception):
    """Why nothing can be checked, on one line."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class TimeOver(Exception):
    """All has taken as long as it may."""


class Check(NamedTuple):
    """What became of one check."""

    name: str
    subject: str  # the partition, or "cluster"
    status: str  # ok, failed, skipped, or unknown: measured, and nobody can say whether that is well
    message: str
    details: dict[str, Any] = {}
    missed: bool = True  # of one that was skipped: whether something is not known because of it


class Nccl(NamedTuple):
    """What the stage nccl is asked for; the module's documentation tells what each part means."""

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


class Options(NamedTuple):
    """What is asked for; the module's documentation tells what each part means."""

    user: str
    image: str = ""
    images_dir: str = ""
    partitions: tuple[str, ...] = ()
    nodes: int = 2
    power_up: bool = False
    time_limit: int = 10
    wait: int = 120
    limit: int = 0
    slurm: str = "/opt/slurm"
    instance_types: dict[str, str] = {}
    versions: dict[str, dict[str, Any]] = {}
    results_dir: str = "/fsx/nccl-tests/results"
    nccl: Nccl = Nccl()


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
        """Say whether no job ran there."""
        return self.is_up and self.state.startswith("IDLE")

    @property
    def is_powered_down(self) -> bool:
        """Say whether a job would boot it."""
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
    for fields in _slurm_nodes.nodes(text, "State", "Partitions", "Gres", "AvailableFeatures", "CPUTot", "CPUEfctv"):
        partitions = tuple(name for name in fields.get("Partitions", "").split(",") if name and name != "(null)")
        kinds = re.findall(r"(?:^|,)([a-z][a-z0-9-]*\.[a-z0-9-]+)(?=,|$)", fields.get("AvailableFeatures", ""))
        gpus, cpus = _slurm_nodes.gpus_of(fields.get("Gres", "")), fields.get("CPUEfctv") or fields.get("CPUTot", "")
        kind = kinds[0] if len(kinds) == 1 else ""
        state, number = fields.get("State", ""), int(cpus) if cpus.isdigit() else 0
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
        """Take what has just been printed."""
        self._file.write(part[: self._room])
        # Whoever looks meanwhile sees it, and it is there where this run is killed.
        self._file.flush()
        self._last += part[self._room :]
        self._room -= len(part[: self._room])
        if len(self._last) > 2 * _LAST:
            self._left_out += len(self._last) - _LAST
            del self._last[:-_LAST]

    def close(self) -> None:
        """Take no more."""
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
        # Called where there is more to keep; whoever wants it sets it.
        self.save: Callable[[], None] = lambda: None
        self._until = time.monotonic() + 60 * options.limit if options.limit else float("inf")
        self.results_dir = ""
        self.images: dict[tuple[str, bool], Any] = {}  # what _verify_image has made
        self._images_folder = ""
        try:
            self.account = pwd.getpwnam(options.user)
        except KeyError as error:
            raise VerifyError(
                f"verify_user: {options.user!r} is no user of this node; needed: an ordinary one"
            ) from error
        if self.account.pw_uid == 0:
            raise VerifyError("verify_user: found root; needed: an ordinary user, who may less")

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
                raise VerifyError(f"verify_results_dir: {parent} is not there; run site with --tags nccl_tests")
            self._images_folder = self._told("mktemp", "-d", f"{parent}/.verify-images-XXXXXX").strip()
        return self._images_folder

    def close(self) -> None:
        """Remove what was needed only for as long as jobs ran."""
        if self._images_folder:
            self._told("rm", "-rf", self._images_folder)

    def _told(self, program: str, *argv: str) -> str:
        """Return what a program prints that the user runs on this node."""
        command, program = self._as_user(program, *argv), os.path.basename(program)
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False, cwd="/tmp"
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise VerifyError(f"{program}: {error}") from error
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
            raise VerifyError(f"{program} {' '.join(argv)} ended with {done.returncode} and said: {said}")
        return done.stdout

    def selected(
        self, name: str, every: bool = False, gpus: bool = False
    ) -> Iterator[tuple[str, list[Node], Check | None]]:
        """Yield every partition with the nodes to look at; where there is none, with what to tell in place of `name`.

        `every` is all that are up, once where partitions share them; `gpus` only nodes that have some. Otherwise it is
        as many as are asked for, of those with GPUs and of those without, and nodes with GPUs come first.
        """
        nodes = parse_nodes(self.slurm("scontrol", "-a", "-o", "show", "nodes"))
        known = list(dict.fromkeys(name for node in nodes for name in node.partitions))
        wrong = [name for name in self.options.partitions if name not in known]
        if wrong:
            raise VerifyError(
                f"verify_partitions: found {', '.join(wrong)}; needed: some of {', '.join(known) or 'none'}"
            )
        first: dict[frozenset[str], str] = {}
        for partition in self.options.partitions or sorted(known):
            own = [node for node in nodes if partition in node.partitions and (node.gpus or not gpus)]
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
            advice = "" if self.options.power_up else "; verify_power_up: true boots one"
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
        return f"no room within {self.options.wait} s on {_node_names.shown(node.name for node in nodes)}"

    def srun(
        self,
        partition: str,
        nodes: Sequence[Node],
        script: str,
        *more: str,
        gpus: bool = True,
        root: bool = False,
    ) -> Output:
        """Run a shell script once on each of these nodes, and read what it prints with say()."""
        say = f'say() {{ printf "\\n{MARK}|%s|%s|%s\\n" "$SLURMD_NODENAME" "$1" "$2"; }}\n'
        code, out, err = self.submit(partition, nodes, say + script, *more, gpus=gpus, root=root)
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
    ) -> tuple[int, Printed, str]:
        """Run a shell script on these nodes, with their GPUs; return its exit code, what it printed and complained.

        A log is written while it runs, has no more than is kept of it, and ends with the complaints. It is the user's
        job; root's where the user may not do what is to be looked at.
        """
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
            f"--nodelist={_node_names.ranges(node.name for node in nodes)}",
            f"--time={self.options.time_limit}",
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
        # A node that boots may take as long as ParallelCluster gives it.
        limit = 60 * self.options.time_limit + (2400 if booting else self.options.wait) + _SPARE
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
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                self._as_user(os.path.join(self.options.slurm, "bin", "scancel"), f"--name={name}"),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=3 * _PATIENCE,
                check=False,
            )
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
    """Take what a process prints until it ends; say whether it has ended in time."""
    until = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for stream, sink in sinks.items():
            selector.register(stream, selectors.EVENT_READ, sink)
        while selector.get_map():
            _run.heartbeat()
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


def carry_out(
    context: Context, stages: Mapping[str, Callable[[Context], Iterator[Check]]], output: str, told: Mapping[str, Any]
) -> list[tuple[str, Check]]:
    """Run the stages; what is known is written after each of them, with `told`, and each minute of a long one."""
    begun, saved = time.time(), time.monotonic()
    checks: list[tuple[str, Check]] = []
    left = list(stages)

    def save() -> None:
        nonlocal saved
        known = report(checks, begun, unfinished=left, **told, runs=context.runs, pairs=context.pairs)
        write(output, known)
        saved = time.monotonic()

    def save_each_minute() -> None:
        if time.monotonic() - saved >= _SAVED_EVERY:
            save()

    context.save = save_each_minute
    while left:
        try:
            for check in stages[left[0]](context):
                checks.append((left[0], check))
                save_each_minute()
        except TimeOver:
            checks.append((left[0], Check("time", "cluster", "failed", _over(context.options.limit, left[1:]))))
            left.clear()
        else:
            del left[0]
        save()
    return checks


def _over(limit: int, left: Sequence[str]) -> str:
    more = f", and {' and '.join(left)} not begun" if left else ""
    return f"verify_limit: {limit} minutes were over before this stage was{more}; needed: more of them, or fewer checks"


def report(
    checks: Sequence[tuple[str, Check]], begun: float, unfinished: Sequence[str] = (), **more: Any
) -> dict[str, Any]:
    """Return what programs read; `unfinished` are the stages that have not ended yet."""
    said = f"not finished: {', '.join(unfinished)}. " if unfinished else ""
    return {
        **more,
        "started": _run.utc(begun),
        "finished": "" if unfinished else _run.utc(time.time()),
        "ok": not unfinished and not complaints(checks),
        "verdict": said + verdict(checks),
        "checks": [{"stage": stage, **check._asdict()} for stage, check in checks],
    }


def table(checks: Sequence[tuple[str, Check]]) -> list[str]:
    """Return what people read; a message that is too long for a line goes on below itself."""
    rows = [("STAGE", "WHERE", "CHECK", "RESULT", "")]
    rows += [(stage, check.subject, check.name, check.status, check.message) for stage, check in checks]
    widths = [max(len(row[index]) for row in rows) for index in range(4)]
    lines = []
    for row in rows:
        before = "".join(cell.ljust(width + 2) for cell, width in zip(row, widths))
        message = textwrap.wrap(row[4], max(80, _WIDTH - len(before)), break_long_words=False, break_on_hyphens=False)
        lines += [
            (text + part).rstrip() for text, part in zip([before] + [" " * len(before)] * len(message), message or [""])
        ]
    return lines


def _counts(check: Check) -> bool:
    """Say whether a check has looked at a node of a partition."""
    return check.status != "skipped" and check.subject != "cluster"


def _not_measured(checks: Sequence[tuple[str, Check]]) -> list[str]:
    """Return what nobody knows because it was skipped, once for all stages that were skipped for the same reason."""
    stages: dict[tuple[str, str], list[str]] = {}
    for stage, check in checks:
        if check.status == "skipped" and check.missed:
            stages.setdefault((check.subject, check.message), []).append(stage)
    return [f"{', '.join(dict.fromkeys(some))} on {subject}: {message}" for (subject, message), some in stages.items()]


def complaints(checks: Sequence[tuple[str, Check]]) -> list[str]:
    """Return one line for each check that failed, and for each stage that could look at nothing."""
    said = [f"{c.subject}: {c.name} ({stage}): {c.message}" for stage, c in checks if c.status == "failed"]
    for stage in dict.fromkeys(stage for stage, _check in checks):
        own = [one for one in checks if one[0] == stage]
        if not any(check.status == "failed" or _counts(check) for _stage, check in own):
            said += [f"nothing was measured: {why}" for why in _not_measured(own)]
    if said or any(_counts(check) for _stage, check in checks):
        return said
    skipped = [f"{stage}: {check.message}" for stage, check in checks if check.status == "skipped"]
    return [f"nothing was measured: {'; '.join(skipped) or 'there is no partition'}"]


def verdict(checks: Sequence[tuple[str, Check]]) -> str:
    """Return all in one sentence, and first what was not measured."""
    count = {status: sum(check.status == status for _stage, check in checks) for status in ("ok", "failed", "unknown")}
    said = f"{count['failed']} of {len(checks)} checks failed" if count["failed"] else f"{count['ok']} checks passed"
    said += f", and {count['unknown']} could not be judged" if count["unknown"] else ""
    missed = _not_measured(checks)
    more = f"; and {len(missed) - _MOST_TOLD} more" if len(missed) > _MOST_TOLD else ""
    return f"not measured: {'; '.join(missed[:_MOST_TOLD])}{more}. {said}" if missed else said


def write(path: str, result: dict[str, Any]) -> None:
    """Put the report in place, for programs and beside it as a page."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    _run.write_atomically(path, json.dumps(result, indent=1, sort_keys=True) + "\n", 0o644)
    _run.write_atomically(page_of(path), _verify_html.render(result), 0o644)


def page_of(path: str) -> str:
    """Return where the page is that belongs to a report."""
    return f"{os.path.splitext(path)[0]}.html"
