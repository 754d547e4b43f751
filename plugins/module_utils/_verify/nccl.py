# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The stage `nccl`: nccl-tests through Slurm on one node, on two, on all of a partition, and in a container.

Every partition whose nodes have GPUs is measured. What a run gives is compared with what others have published for the
same instance type; where nobody has, it is told and not judged. When several nodes together fall short, pairs of them
find the one that holds the others back.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._efa import devices
from ansible_collections.pcluster.postboot.plugins.module_utils._slurm.names import shown
from ansible_collections.pcluster.postboot.plugins.module_utils._verify import cluster, nccl_network
from ansible_collections.pcluster.postboot.plugins.module_utils._verify import image as verify_image
from ansible_collections.pcluster.postboot.plugins.module_utils._verify import nccl_expected as expected
from ansible_collections.pcluster.postboot.plugins.module_utils._verify import nccl_results as results
from ansible_collections.pcluster.postboot.plugins.module_utils._verify.cluster import Context, Nccl, Node
from ansible_collections.pcluster.postboot.plugins.module_utils._verify.report import Check

# How many jobs on different nodes run at the same time. Each is an allocation of its own, so that a node that dies
# costs its own job alone.
AT_ONCE = 64
# A pair of nodes that gives less than this share of what the best pair gives is slow.
SLOW = 0.85
# How often each node gets another partner as long as all pairs are alike.
ROUNDS = 3
# Of more nodes only the root of their number, and no fewer than this, meet in pairs where nothing was too slow yet.
SAMPLE = 8
# The number of nodes of one status with a line each.
_MOST_LINES = 8
# The report's names for runs, by the number of nodes.
STAGES = {1: "one_node", 2: "two_nodes"}
STATUSES = {"ok": "ok", "short": "failed", "suspicious": "failed", "unknown": "unknown"}

# EC2's types whose NICs can reach the GPUs' memory (GPUDirect RDMA): P4 and newer. aws-ofi-nccl asks for it on all of
# them but p5.4xlarge (src/platform-aws.cpp, gdr_required).
_GPUDIRECT = re.compile(r"p([4-9]|[1-9]\d)(?!\.4xlarge$)")
# AWS' own settings for Open MPI, which has little to send here: over TCP, and not over the bridge of Docker. The bridge
# has the same address on every node, where Open MPI would wait for ever. Slurm's PMIx offers what Open MPI's has not,
# which would say so in many lines. Interfaces may be named by only one of the two variables.
_MPI = ["export OMPI_MCA_pml=^cm,ucx", "export OMPI_MCA_btl=tcp,self", "export PMIX_MCA_gds=hash"]
_MPI_INTERFACES = (
    '[ -n "${OMPI_MCA_btl_tcp_if_include:-}" ] || '
    "export OMPI_MCA_btl_tcp_if_exclude=${OMPI_MCA_btl_tcp_if_exclude:-lo,docker0}"
)
_NO_KERNELS = "no kernel image is available"
# By what a GPU's name tells for which of nccl_tests_cuda_architectures the tests are to be built.
_ARCHITECTURES = {"T4": "75 to {}", "V100": "70 to {} (CUDA 12 has it, CUDA 13 has not)"}

# Runs a program, and passes on what it prints, but for most of NCCL's lines of connections: with alltoall each process
# has one for each channel to and from every other, in all twice the square of the processes. The first over the
# network tells how it goes there, and the first with GPUDirect RDMA that a NIC reaches the GPU's memory. A line that
# begins with a blank is the end of a row of the table. Of what NCCL says of itself, one process of a node is enough;
# the others tell which network they use, by which provider. The exit code comes last, as sh knows no pipefail. A
# SIGTERM to all of them must not cost what the program has said last. No more than a shell is needed, as containers
# may have no other program.
FILTER = """
trap : TERM
{ %s; printf '\n%%s\n' "postboot-verify-code $?"; } | {
  trap '' TERM
  far= direct= code=143
  while IFS= read -r line || [ -n "$line" ]; do
    case $line in
      '') continue ;;
      ' '*) ;;
      *' NCCL INFO Channel '*' via NET/'*/GDRDMA*) [ -z "$direct" ] || continue; direct=1 ;;
      *' NCCL INFO Channel '*' via NET/'*) [ -z "$far" ] || continue; far=1 ;;
      *' NCCL INFO Channel '*' via '*) continue ;;
      *' NCCL INFO NET/OFI Selected '* | *' NCCL INFO NET/'*': Using ['*) ;;
      *' NCCL INFO Using network '* | *' NCCL INFO Assigned NET plugin '*) ;;
      *' NCCL INFO '*) [ "${SLURM_LOCALID:-0}" = 0 ] || continue ;;
      'postboot-verify-code '*) code=${line##* }; continue ;;
    esac
    printf '%%s\n' "$line"
  done
  exit "$code"
}
"""

# Of the libraries that the tests need, an image may lack those in /opt: the EFA installer's Open MPI.
PROBE = """
[ "$(cat /sys/devices/virtual/dmi/id/sys_vendor 2> /dev/null)" != "Amazon EC2" ] ||
  say type "$(cat /sys/devices/virtual/dmi/id/product_name)"
readlink /sys/class/infiniband/*/device/driver | while read -r driver; do
  case $driver in */efa) say efa "$driver" ;; esac
done
[ ! -x {tests}/all_reduce_perf ] || say tests {tests}
[ ! -r {environment} ] || say environment {environment}
ldd {tests}/all_reduce_perf 2> /dev/null | sed -n 's|.* => \\(/opt/.*\\)/[^/]*/[^/]* (.*|\\1|p' | sort -u |
  while read -r folder; do say mount "$folder"; done
"""


class Measured(NamedTuple):
    """One run of one program."""

    scope: str
    nodes: tuple[str, ...]
    collective: str
    container: str
    result: results.Result
    judgement: expected.Judgement
    log: str
    problem: str  # why this is no measurement, on one line; nothing if it is one
    busy: bool  # whether it did not even begin, because its nodes had no room

    @property
    def busbw(self) -> float:
        """Return the bus bandwidth of the largest message in GB/s; 0 where nothing was measured."""
        return max(self.result.rows, key=lambda row: row.size).busbw if self.result.rows and not self.problem else 0.0


class Group(NamedTuple):
    """What is measured together: nodes of one partition and one instance type."""

    partition: str
    subject: str  # the partition, with the instance type where it has several
    nodes: tuple[Node, ...]
    instance_type: str
    efa: dict[str, int]  # how many devices each node has
    mounts: tuple[str, ...]  # what a container needs of the host

    @property
    def gpus(self) -> int:
        """Return how many GPUs of each node take part."""
        return min(node.gpus for node in self.nodes)


def run(context: Context) -> Iterator[Check]:
    """Yield what becomes of each check; the runs themselves are added to context.runs and context.pairs."""
    done: set[frozenset[str]] = set()
    none = True
    for name, nodes, skipped in context.selected("nccl", every=True, only=lambda node: bool(node.gpus)):
        none = False
        if skipped:
            yield skipped
            continue
        try:
            yield from measure(context, name, nodes, done, context.options.nccl)
        except OSError as error:
            yield Check("nccl", name, "failed", f"verify_results_dir: what jobs print could not be kept: {error}")
    if none:
        partitions = ", ".join(context.options.partitions)
        why = f"{partitions} has no GPUs" if partitions else "no partition has GPUs"
        yield Check("nccl", "cluster", "skipped", why, missed=False)


def measure(
    context: Context, name: str, nodes: Sequence[Node], done: set[frozenset[str]], options: Nccl
) -> Iterator[Check]:
    """Measure these nodes of a partition; `done` has the sets of nodes that are measured already."""
    script = PROBE.format(tests=shlex.quote(options.tests_dir), environment=shlex.quote(options.environment))
    seen, asked, busy = context.ask(name, nodes, script)
    if busy:
        yield Check("nccl", name, "skipped", context.no_room(busy))
    if not asked:
        return
    if seen.code:
        why = f"srun ended with {seen.code}: {'; '.join(seen.errors) or 'it said nothing'}"
        yield Check("nccl", name, "failed", why)
        return
    of = {node.name: seen.values.get(node.name, {}) for node in asked}
    for key, what, tag in (
        ("environment", options.environment, "nccl"),
        ("tests", f"{options.tests_dir}/all_reduce_perf", "nccl_tests"),
    ):
        without = [node for node, values in of.items() if key not in values]
        if without:
            why = f"there is no {what} on {shown(without)}; run site with --tags {tag}"
            yield Check("nccl", name, "failed", why)
            return
    kinds: dict[str, list[Node]] = {}
    for node in asked:
        told = context.options.instance_types.get(node.name) or node.instance_type
        kinds.setdefault(told or of[node.name].get("type", [""])[-1], []).append(node)
    context.results_dir = context.results_dir or _results_folder(context.options.results_dir)
    for kind, some in sorted(kinds.items()):
        subject = name if len(kinds) == 1 else f"{name} {kind or 'of unknown type'}"
        efa = {node.name: len(of[node.name].get("efa", [])) for node in some}
        mounts = set.intersection(*(set(of[node.name].get("mount", [])) for node in some))
        group = Group(name, subject, tuple(some), kind, efa, tuple(sorted(mounts)))
        yield from _Stage(context, group, done, options).checks()


class _Stage:
    """The runs on one group."""

    def __init__(self, context: Context, group: Group, done: set[frozenset[str]], options: Nccl) -> None:
        self.context, self.group, self.done, self.options = context, group, done, options
        self.short: list[Measured] = []
        self.unjudged = False
        self.pairs: list[Measured] = []

    def checks(self) -> Iterator[Check]:
        nodes, scopes = self.group.nodes, self.options.scopes
        if "one" in scopes:
            yield from self._one()
        if "two" in scopes or "all" in scopes:
            yield from self._several()
        if (self.short or (self.unjudged and len(nodes) > 2)) and self.options.bisect:
            try:
                check = self._slow_node(self.short[0].collective if self.short else self.options.collectives[0])
            finally:
                self._note_pairs()
            yield check
        if "container" in scopes:
            yield from self._container(nodes[:2])

    def _first_time(self, nodes: Sequence[Node], how: str = "") -> bool:
        """Say whether these nodes have not been measured yet, because partitions may share them."""
        key = frozenset([how, *(node.name for node in nodes)])
        first = key not in self.done
        self.done.add(key)
        return first

    def _one(self) -> Iterator[Check]:
        """Measure the first collective on every node by itself, and the others on one of them."""
        first, *others = self.options.collectives
        nodes = [node for node in self.group.nodes if self._first_time([node])]
        if self.group.gpus < 2 or not nodes:
            why = "each node has one GPU alone" if nodes else "another partition has the same nodes"
            yield Check("nccl: one node", self.group.subject, "skipped", why)
            return
        alone: list[Measured] = []
        over = False
        with ThreadPoolExecutor(AT_ONCE) as pool:
            try:
                for measured in pool.map(lambda node: self._measure("one", [node], first), nodes):
                    alone.append(self._noted(measured))
            except cluster.TimeOver:
                over = True
        yield from self._each(f"{first} on one node", alone)
        if over:
            raise cluster.TimeOver
        free = [measured.nodes[0] for measured in alone if not measured.busy][:1]
        for collective in others if free else ():
            measured = self._noted(self._measure("one", [one for one in nodes if one.name in free], collective))
            yield self._check(f"{collective} on one node", measured, where=f"{free[0]}: ")
        best = max(alone, key=lambda one: one.busbw)
        unjudged = [one for one in alone if one.judgement.status == "unknown"]
        behind = [one.nodes[0] for one in unjudged if 0 < one.busbw < SLOW * best.busbw]
        if behind:
            why = f"{shown(behind)}: less than {SLOW:.0%} of the {best.busbw:.4g} GB/s of {best.nodes[0]}"
            yield Check("alike on one node", self.group.subject, "failed", why, {"nodes": behind})

    def _each(self, name: str, alone: Sequence[Measured]) -> Iterator[Check]:
        """Yield checks of single nodes: one for many nodes of the same status, with the slowest node's figures."""
        of: dict[str, list[tuple[Measured, Check]]] = {}
        for measured in alone:
            check = self._check(name, measured, where=f"{measured.nodes[0]}: ")
            of.setdefault(check.status, []).append((measured, check))
        for status, some in of.items():
            some.sort(key=lambda one: one[0].busbw)
            lines = some if len(some) == 1 or (status == "failed" and len(some) <= _MOST_LINES) else []
            yield from (check for _measured, check in lines)
            if lines:
                continue
            nodes = [measured.nodes[0] for measured, _check in some]
            slowest, check = some[0]
            how = "the slowest" if slowest.busbw else "such as"
            message = f"{shown(nodes, 30)}, {how} {check.message}"
            yield check._replace(message=message, details={**check.details, "nodes": nodes})

    def _several(self) -> Iterator[Check]:
        nodes, scopes = self.group.nodes, self.options.scopes
        if len(nodes) < 2:
            yield Check("nccl: several nodes", self.group.subject, "skipped", "only one node of it is up")
            return
        for scope, some in (("two", nodes[:2]), ("all", nodes)):
            if scope not in scopes or (scope == "all" and "two" in scopes and len(nodes) == 2):
                continue
            if not self._first_time(some):
                why = "another partition has the same nodes"
                yield Check(f"nccl: {len(some)} nodes", self.group.subject, "skipped", why)
                continue
            yield from self._together(scope, some)

    def _together(self, scope: str, nodes: Sequence[Node]) -> Iterator[Check]:
        runs: list[Measured] = []
        for collective in self.options.collectives:
            runs.append(self._noted(self._measure(scope, nodes, collective)))
            yield self._check(f"{collective} on {len(nodes)} nodes", runs[-1])
            if runs[-1].busy:
                break
        yield from self._network(runs, f" on {len(nodes)} nodes")
        self.short += [measured for measured in runs if not measured.problem and measured.judgement.status == "short"]
        # Where nobody can say what to expect of all together, pairs of them tell whether one holds the others back.
        self.unjudged |= scope == "all" and not runs[0].problem and runs[0].judgement.status == "unknown"

    def _container(self, nodes: Sequence[Node]) -> Iterator[Check]:
        name = f"{self.options.collectives[0]} in a container"
        if not self._first_time(nodes, "container"):
            yield Check(name, self.group.subject, "skipped", "another partition has the same nodes")
            return
        image = verify_image.find(self.context, self.group.partition, nodes, pytorch=True)
        if not image.path:
            yield Check(name, self.group.subject, "skipped" if image.busy else "failed", image.problem)
            return
        measured = self._noted(self._measure("container", nodes, self.options.collectives[0], image.path))
        yield self._check(name, measured, where=f"{image.name}: ")
        if len(nodes) > 1:
            yield from self._network([measured], " in a container")

    def _measure(self, scope: str, nodes: Sequence[Node], collective: str, image: str = "") -> Measured:
        """Run one program, and note for the report what it gave."""
        options, group = self.options, self.group
        tasks, each = (group.gpus, 1) if options.mpi != "none" else (1, group.gpus)
        program = os.path.join(options.tests_dir, f"{collective}_perf")
        sizes = ["-b", options.min_bytes, "-e", options.max_bytes, "-f", "2"]
        words = [program, *sizes, "-g", str(each), "-n", str(options.iterations), "-c", "1"]
        lines = [f". {shlex.quote(options.environment)}", "export NCCL_DEBUG=INFO", *_MPI]
        lines += [f"export {name}={shlex.quote(value)}" for name, value in options.variables.items()]
        lines.append(_MPI_INTERFACES)
        # Where one process dies the others would wait for it until the time is over.
        more = ["--label", f"--mpi={options.mpi}", "--kill-on-bad-exit=1", *whole_nodes(nodes, tasks)]
        if image:
            # Images that bring an Open MPI of their own say where it is, and would have ours load its parts.
            lines.append("unset OPAL_PREFIX")
            mounts = [os.path.dirname(options.environment), options.tests_dir, *group.mounts]
            more += [
                f"--container-image={image}",
                f"--container-mounts={','.join(f'{path}:{path}' for path in mounts)}",
                "--export=ALL,NCCL_SHARED=1",
            ]
        script = "\n".join(lines) + FILTER % shlex.join(words)
        names = tuple(node.name for node in nodes)
        log = self._log(f"{scope}-{collective}-{'-'.join(names[:2])}")
        code, out, err = self.context.submit(group.partition, nodes, script, *more, log=log, tasks_per_node=tasks)
        tests = results.parse(out, collective)
        result = next((one for one in tests if one.rows), tests[0])
        result = result._replace(errors=_errors(result, code, err))
        judgement = expected.judge_result(
            result, group.instance_type, nodes=len(nodes), rows=options.expected, tolerance=options.tolerance
        )
        problem = _problem(result)
        if problem:
            judgement = expected.Judgement("failed", problem)
        busy = not result.rows and cluster.is_busy(cluster.Output(code, {}, cluster.telling(err)))
        if busy:
            os.unlink(log)
        return Measured(scope, names, collective, image, result, judgement, "" if busy else log, problem, busy)

    def _log(self, name: str) -> str:
        """Return the path of a job's log, which everybody may read."""
        return os.path.join(
            _made(os.path.join(self.context.results_dir, self.group.subject.replace(" ", "-"))), f"{name}.log"
        )

    def _noted(self, measured: Measured) -> Measured:
        """Add a run to the report; return it."""
        if not measured.busy:
            self.context.runs.append(self._for_report(measured))
        self.context.save()
        return measured

    def _check(self, name: str, measured: Measured, where: str = "") -> Check:
        """Return the check of a run."""
        subject = self.group.subject
        if measured.busy:
            return Check(name, subject, "skipped", f"{where}no room within {self.context.options.wait} s")
        details = {"log": measured.log, "busbw": results.plain(measured.busbw), "nodes": list(measured.nodes)}
        if measured.problem:
            return Check(name, subject, "failed", f"{where}{measured.problem} (see {measured.log})", details)
        judgement = measured.judgement
        return Check(name, subject, STATUSES[judgement.status], where + judgement.message, details)

    def _network(self, runs: Sequence[Measured], where: str) -> Iterator[Check]:
        """Check that nodes with EFA used EFA, with all their devices."""
        # A run that took too long may have been slow because of just this.
        told = [one for one in runs if not one.busy and (not one.problem or one.result.network.hosts)]
        if not told:
            return
        name, subject, kind = f"EFA is selected{where}", self.group.subject, self.group.instance_type
        nics = max(self.group.efa[node] for one in told for node in one.nodes)
        wanted = devices.DEVICES.get(kind, nics) if nics or any(node.efa for node in self.group.nodes) else 0
        if not nics and not wanted:
            yield Check(name, subject, "skipped", "its nodes have no EFA device")
            return
        for measured in told:
            problem = _fabric_problem(measured, nics) if nics else ""
            if problem:
                yield Check(name, subject, "failed", f"{problem} (see {measured.log})")
                return
        if nics != wanted:
            why = f"its nodes have {nics or 'no'} EFA devices; a {kind} has {wanted}"
            yield Check(name, subject, "failed", why)
            return
        plugin = told[0].result.network.plugin or "the network plugin"
        yield Check(name, subject, "ok", f"{nics} devices on each node, by {plugin}")
        if _GPUDIRECT.match(kind):
            yield self._gpudirect(told, where)

    def _gpudirect(self, runs: Sequence[Measured], where: str) -> Check:
        """Check that the NICs of every node reach its GPUs' memory."""
        name, subject, silent = f"GPUDirect RDMA{where}", self.group.subject, set[str]()
        for measured in runs:
            hosts = measured.result.network.hosts
            without = sorted(host for host, seen in hosts.items() if seen.gdr is False)
            if without:
                why = f"no connection of {shown(without)} is GDRDMA: what its GPUs send goes through the CPU's memory"
                return Check(
                    name, subject, "failed", f"{why}; see 'lsmod' and 'dmesg' for efa there (see {measured.log})"
                )
            silent |= {host for host, seen in hosts.items() if seen.gdr is None}
        if silent:
            why = f"NCCL did not tell of {shown(silent)} whether NICs reach the GPUs' memory"
            return Check(name, subject, "unknown", why)
        return Check(name, subject, "ok", "the NICs of every node reach its GPUs' memory")

    # Slow nodes

    def _slow_node(self, collective: str) -> Check:
        """Find the slow nodes: pairs of all, and then each that has met no good one with one of a good pair."""
        name, subject, nodes = "slow node", self.group.subject, self.group.nodes
        if len(nodes) < 3:
            why = "two nodes do not show which of them is slow; measure each alone"
            return Check(name, subject, "unknown", why)
        some = nodes if self.short else _sample(nodes)
        met = self._meet(some, collective)
        if len(some) < len(nodes) and not _alike(met):
            # One of the sample is slow, so any may be.
            met.update(self._meet(nodes, collective))
        usual = max(met.values(), default=0.0)
        if not usual:
            return Check(name, subject, "unknown", "no pair of its nodes could be measured")
        slow = self._slow(met, usual, collective)
        if slow:
            verb = "is" if len(slow) == 1 else "are"
            told = " and ".join(slow) if len(slow) < 3 else shown(slow)
            why = f"{told} {verb} slow with every partner: replace the instance"
            return Check(name, subject, "failed", why, {"slow": slow})
        count = len(_names(met))
        where = f" of {count} of the {len(nodes)} nodes" if count < len(nodes) else ""
        why = f"no pair{where} is slower than the others ({usual:.4g} GB/s)"
        if self.short:
            return Check(name, subject, "unknown", f"{why}: no single node is the cause")
        return Check(name, subject, "ok", why)

    def _meet(self, nodes: Sequence[Node], collective: str) -> dict[tuple[str, ...], float]:
        """Measure rounds of pairs, until one of them is slow or each node has had some partners."""
        met: dict[tuple[str, ...], float] = {}
        for number, pairs in enumerate(_rounds(nodes), 1):
            met.update(self._measure_pairs(pairs, collective))
            # One of an odd number has its first turn in the second round. Two slow ones may look alike at first.
            if number == ROUNDS or (not _alike(met) and len(_names(met)) == len(nodes)):
                break
        return met

    def _slow(self, met: dict[tuple[str, ...], float], usual: float, collective: str) -> list[str]:
        """Return who is slow: each that has met no good one meets one of a good pair, many of them at a time."""
        good = _names(pair for pair, busbw in met.items() if busbw >= SLOW * usual)
        waiting = [node for node in self.group.nodes if node.name in _names(met) and node.name not in good]
        slow = set()
        while waiting:
            partners = [node for node in self.group.nodes if node.name in good]
            pairs, later = [], []
            for node in waiting:
                partner = next((one for one in partners if _pair(node, one) not in met), None)
                if partner:
                    partners.remove(partner)
                    pairs.append((node, partner))
                else:
                    later.append(node)
            again = self._measure_pairs(pairs, collective)
            slow |= {node.name for node, other in pairs if again.get(_pair(node, other), 0.0) < SLOW * usual}
            if not pairs:  # nobody is left whom they have not met
                slow |= {node.name for node in later}
                break
            waiting = later
        return [node.name for node in self.group.nodes if node.name in slow]

    def _measure_pairs(self, pairs: Sequence[tuple[Node, Node]], collective: str) -> dict[tuple[str, ...], float]:
        """Measure pairs without a common node at the same time; return what each gave, if it had room."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            measured = []
            for one in pool.map(lambda pair: self._measure("pair", pair, collective), pairs):
                self.context.save()
                if not one.busy:
                    measured.append(one)
                    self.pairs.append(one)
        return {tuple(sorted(one.nodes)): one.busbw for one in measured}

    def _note_pairs(self) -> None:
        usual = max((one.busbw for one in self.pairs), default=0.0)
        for one in self.pairs:
            status, why = ("failed", one.problem) if one.problem else ("ok", "")
            if not one.problem and one.busbw < SLOW * usual:
                status, why = "short", f"less than {SLOW:.0%} of the best pair's {usual:.4g} GB/s"
            pair = {
                "partition": self.group.partition,
                "collective": one.collective,
                "size": max((row.size for row in one.result.rows), default=None),
                "nodes": list(one.nodes),
                "busbw": one.busbw,
                "expected": usual,
                "status": status,
                "message": why,
            }
            self.context.pairs.append(results.plain(pair))

    def _for_report(self, measured: Measured) -> dict[str, Any]:
        result, network, kind = measured.result, measured.result.network, self.group.instance_type
        versions = {"nccl-tests": result.version, "NCCL": network.nccl or result.nccl, "CUDA": network.cuda}
        versions |= {"network plugin": network.plugin, "libfabric": network.libfabric, "tuner": network.tuner}
        count, ranks = len(measured.nodes), len(result.ranks)
        expectation = expected.for_report(
            kind, count, measured.collective, ranks=ranks, rows=self.options.expected, tolerance=self.options.tolerance
        )
        return {
            "stage": "all_nodes" if measured.scope == "all" else STAGES[count],
            "partition": self.group.partition,
            "instance_type": kind,
            "nodes": list(measured.nodes),
            "ranks": ranks,
            "collective": measured.collective,
            "container": bool(measured.container),
            "rows": results.plain(result.rows),
            "expectation": expectation,
            "judgement": measured.judgement._asdict(),
            "provider": network.provider,
            "nics": network.nics,
            "environment": network.environment,
            "versions": {name: version for name, version in versions.items() if version},
            "log": measured.log,
            "errors": list(result.errors),
        }


def _pair(one: Node, other: Node) -> tuple[str, ...]:
    return tuple(sorted((one.name, other.name)))


def _names(pairs: Iterable[tuple[str, ...]]) -> set[str]:
    return {name for pair in pairs for name in pair}


def _alike(met: Mapping[tuple[str, ...], float]) -> bool:
    return not met or min(met.values()) >= SLOW * max(met.values())


def _sample(nodes: Sequence[Node]) -> list[Node]:
    """Return some nodes, as far from each other in the list as they can be."""
    count = min(len(nodes), max(SAMPLE, math.isqrt(len(nodes) - 1) + 1))
    return [nodes[index * len(nodes) // count] for index in range(count)]


def _rounds(nodes: Sequence[Node]) -> Iterator[list[tuple[Node, Node]]]:
    """Yield rounds of pairs without a common node, until each has met each other; of an odd number one rests."""
    ring: list[Node | None] = [*nodes, *([None] if len(nodes) % 2 else [])]
    half = len(ring) // 2
    for _round in ring[1:]:
        yield [(one, other) for one, other in zip(ring[:half], reversed(ring[half:])) if one and other]
        ring = [ring[0], ring[-1], *ring[1:-1]]


def whole_nodes(nodes: Sequence[Node], tasks: int) -> list[str]:
    """Return how srun shares all CPUs of a node among the processes; with --exclusive alone each would get one."""
    cpus = min(node.cpus for node in nodes)
    if not cpus:
        return ["--exclusive"]
    return ["--exclusive", f"--cpus-per-task={cpus // tasks}" if cpus >= tasks else "--overcommit"]


def _errors(result: results.Result, code: int, err: str) -> list[str]:
    """Return why a job failed, in the words that tell most."""
    late = [line for line in err.splitlines() if line.startswith(cluster.LATE)]
    said = cluster.telling(err)
    if late:
        return late
    if not result.rows:
        # It did not come to the table: what the shell, the linker, Slurm or Pyxis has said counts.
        own = [error for error in result.errors if not re.search(r": tasks? \S+ (Exited|Terminated|Killed)", error)]
        return own if own and "error: pyxis:" not in err else said or result.errors
    if code and not results.why(result):
        return [f"srun ended with {code}: {'; '.join(said) or 'it said nothing'}"]
    return result.errors


def _problem(result: results.Result) -> str:
    """Return in one line why a run is no measurement; nothing if it is one."""
    halves = [half for row in result.rows for half in (row.out_of_place, row.in_place) if half]
    wrong = sum(half.wrong or 0 for half in halves)
    if wrong:
        return f"{wrong} values were wrong: a GPU, a link or the memory is broken"
    gpu = result.ranks[0].gpu if result.ranks else "GPU of this kind"
    if not result.complete and any(_NO_KERNELS in said for said in result.warnings):
        return f"NCCL has no kernels for a {gpu}: that of CUDA 13 begins with T4; nccl_cuda: 12 has older ones"
    if any(_NO_KERNELS in said for said in result.errors):
        known = next((more for word, more in _ARCHITECTURES.items() if word in gpu.replace("-", " ").split()), "")
        what = (known or "its compute capability to {}").format("nccl_tests_cuda_architectures")
        return f"nccl-tests has no kernels for a {gpu}: add {what}, and run site with --tags nccl_tests"
    return results.why(result)


def _fabric_problem(measured: Measured, nics: int) -> str:
    """Return in one line why a run did not use EFA on all nodes, with all their devices; nothing if it did."""
    network = measured.result.network
    problem = nccl_network.network_problem(network, nics)
    if problem:
        return problem
    hosts = [host for host, seen in network.hosts.items() if seen.provider]
    if len(hosts) < len(measured.nodes) and not measured.problem:
        return f"NCCL told of EFA on {shown(hosts)} alone; needed: on {len(measured.nodes)} nodes"
    for host in hosts:
        if network.hosts[host].nics is None:
            return f"NCCL did not tell how many EFA devices it found on {host}; needed: {nics}"
    return ""


def _made(path: str) -> str:
    """Make a folder that everybody may read, whatever the umask is; return it."""
    os.makedirs(path, exist_ok=True)
    os.chmod(path, 0o755)
    return path


def _results_folder(parent: str) -> str:
    """Make a folder of this run's own where every user may make some; return it."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    if not os.path.isdir(parent):
        raise FileNotFoundError(f"{parent} is not there; run site with --tags nccl_tests")
    path = os.path.join(parent, f"verify-{stamp}")
    try:
        os.mkdir(path)
    except FileExistsError:  # a user may take any name that can be foreseen
        path = tempfile.mkdtemp(prefix=f"verify-{stamp}-", dir=parent)
    return _made(path)
