# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The stage `health`: is the hardware of idle nodes broken?

What the node's own checks have found last is read from the shared file system. Then each idle node gets a job that has
the node for itself: EFA devices send to themselves, and DCGM's diagnostic runs. At last nccl-tests run on each node.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._efa import devices
from ansible_collections.pcluster.postboot.plugins.module_utils._host import document, files, lock
from ansible_collections.pcluster.postboot.plugins.module_utils._slurm.names import shown
from ansible_collections.pcluster.postboot.plugins.module_utils._verify import cluster, health_dcgm, health_jobs, nccl
from ansible_collections.pcluster.postboot.plugins.module_utils._verify.cluster import Context, Node, Output
from ansible_collections.pcluster.postboot.plugins.module_utils._verify.report import Check

# Where node_health keeps a copy of each node's state, below Slurm's folder, which all nodes have.
STATES = "pcluster-postboot/health/nodes"
# A copy is written every 5 minutes.
_OLD = 15 * 60
_FINDING = dict.fromkeys(("finding", "class", "subject", "evidence"), str)
_STATE = {"schema": int, "time": float, "findings": [_FINDING], "skipped": {document.ANY: str}}
# By how much the file server's clock may be ahead of this machine's.
_SKEW = 60
# How many lines of single nodes a check may have.
_MOST_LINES = 8
_AWSLABS = (
    "https://github.com/awslabs/awsome-distributed-ai/blob/main/4.validation_and_observability/"
    "2.gpu-cluster-healthcheck/README.md"
)
_GROUPS = "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html#efa-start-security"
CLASSES = ("replace", "reboot", "reset", "watch")
ADVICE = {
    "replace": "drain the node, and ParallelCluster replaces it",
    "reboot": "drain the node: a rebooted or a new instance is needed",
    "reset": "drain the node: its GPUs have to be reset, which a new instance is too",
    "watch": "jobs may run there; look again",
}


class Finding(NamedTuple):
    """Something that is wrong with a node."""

    node: str
    finding: str
    class_: str
    subject: str
    evidence: str
    source: str
    deep: bool = True

    @property
    def line(self) -> str:
        """Return it without the node's name, in one line."""
        where = f"{self.subject}: " if self.subject else ""
        return f"{where}{self.evidence}"

    def for_report(self) -> dict[str, Any]:
        """Return it as the report has it."""
        return {name.rstrip("_"): value for name, value in self._asdict().items()}


class _Told(NamedTuple):
    """What one check says of one node."""

    node: str
    status: str  # of a Check
    message: str
    findings: tuple[Finding, ...] = ()
    details: dict[str, Any] = {}
    missed: bool = True  # as of a Check


def run(context: Context) -> Iterator[Check]:
    """Yield what becomes of each check; findings are added to context.findings."""
    wanted, every = context.options.health.checks, context.nodes()
    done: set[frozenset[str]] = set()
    for partition, nodes, skipped in context.selected("health", every=True):
        own = [node for node in every if partition in node.partitions and "POWERED_DOWN" not in node.state]
        if "node_health" in wanted and own and (not skipped or skipped.missed):
            yield from _noted(context, "node_health", partition, _states(context, own))
        if skipped:
            yield skipped
            continue
        # Nodes without GPUs and EFA have nothing that these checks look at.
        deep = [node for node in own if node.gpus or node.efa] if set(wanted) - {"node_health"} else []
        deep += [node for node in nodes if node not in own and (node.gpus or node.efa)]
        idle = [node for node in nodes if node in deep and (node.is_idle or node.is_powered_down)]
        others = _away([node for node in deep if node not in idle])
        if others:
            yield Check("idle nodes", partition, "skipped", f"not looked at: {others}")
        if idle:
            yield from _deep(context, partition, idle, done)


def _away(nodes: Sequence[Node]) -> str:
    """Return which nodes are not idle, by why."""
    of: dict[str, list[str]] = {}
    for node in nodes:
        of.setdefault("busy" if node.is_up else node.state, []).append(node.name)
    return "; ".join(f"{shown(names)} ({why})" for why, names in of.items())


def _deep(context: Context, partition: str, nodes: Sequence[Node], done: set[frozenset[str]]) -> Iterator[Check]:
    options = context.options.health
    efa, diag = "efa_loopback" in options.checks, "gpu_diag" in options.checks
    if efa or diag:
        # One job a node, so that a node that hangs costs its own job alone.
        outputs: dict[Node, Output] = {}
        over = False
        with ThreadPoolExecutor(nccl.AT_ONCE) as pool:
            try:
                for node, output in zip(nodes, pool.map(lambda node: _job(context, partition, node), nodes)):
                    outputs[node] = output
            except cluster.TimeOver:
                over = True
        if efa:
            told = [_efa(node, output, context) for node, output in outputs.items() if node.efa or _has_efa(output)]
            yield from _noted(context, "efa_loopback", partition, told)
        if diag:
            told = [_diag(node, output, context) for node, output in outputs.items() if node.gpus]
            yield from _noted(context, "gpu_diag", partition, told)
        if over:
            raise cluster.TimeOver
    if "nccl_one_node" in options.checks and any(node.gpus for node in nodes):
        yield from _nccl(context, partition, [node for node in nodes if node.gpus], done)


def _job(context: Context, partition: str, node: Node) -> Output:
    options = context.options.health
    efa, diag = "efa_loopback" in options.checks, bool(node.gpus) and "gpu_diag" in options.checks
    script = health_jobs.script(efa, diag, options.level, options.minutes)
    minutes = health_jobs.limit(efa, diag, options.minutes)
    return context.srun(partition, [node], script, "--exclusive", minutes=minutes)


def _noted(context: Context, name: str, subject: str, told: Iterable[_Told]) -> Iterator[Check]:
    """Add the findings to the report, and yield a check for each status: some lines of failures, else one."""
    of: dict[str, dict[str, list[_Told]]] = {}
    for one in told:
        context.findings += [finding.for_report() for finding in one.findings]
        of.setdefault(one.status, {}).setdefault(one.message, []).append(one)
    for status, messages in of.items():
        some = list(messages.items())
        for message, alike in some[:_MOST_LINES]:
            details = {one.node: one.details for one in alike if one.details}
            what, missed = f"{shown(one.node for one in alike)}: {message}", any(one.missed for one in alike)
            yield Check(name, subject, status, what, details, missed)
        rest = [one.node for _message, alike in some[_MOST_LINES:] for one in alike]
        if rest:
            yield Check(name, subject, status, f"{shown(rest)}: {len(some) - _MOST_LINES} other reasons")


def _failed(findings: Sequence[Finding], **details: Any) -> _Told:
    """Return what is told of a node with findings, the gravest first."""
    some = sorted(findings, key=lambda one: CLASSES.index(one.class_))
    gravest = some[0]
    kinds = dict.fromkeys(one.finding for one in some)
    more = f", and {len(some) - 1} more" if len(some) > 1 else ""
    what = "; ".join([f"{', '.join(kinds)} ({gravest.class_}): {gravest.line}{more}", ADVICE[gravest.class_]])
    return _Told(gravest.node, "failed", what, tuple(some), details)


def _unseen(node: Node, output: Output, context: Context) -> _Told | None:
    """Return why a job has said nothing, if that is so."""
    if cluster.is_busy(output):
        return _Told(node.name, "skipped", f"no room within {context.options.wait} s")
    if node.name not in output.values:
        why = "; ".join(output.errors) or "it said nothing"
        return _Told(node.name, "failed", f"srun ended with {output.code}: {why}")
    return None


# --- what the node's own checks have found -----------------------------------------------------------------------


def _states(context: Context, nodes: Sequence[Node]) -> Iterator[_Told]:
    folder = os.path.join(context.options.slurm, STATES)
    states = {node.name: _state(os.path.join(folder, f"{node.name}.json")) for node in nodes}
    for name, state in states.items():
        if state is None:
            # Where no node has any, node_health is not in use, and nothing is missed.
            missed = any(one is not None for one in states.values())
            why = f"no state in {folder}: role node_health has not run there, or has been told not to"
            yield _Told(name, "unknown" if missed else "skipped", why, missed=missed)
            continue
        age = time.time() - state["stamped"]
        found = tuple(_known(name, state))
        if not -_SKEW <= age <= _OLD:
            why = f"its last state is of {lock.utc(state['stamped'])}; see 'systemctl status"
            yield _Told(name, "unknown", f"{why} pcluster-node-health.timer' there", found)
        elif any(one.class_ != "watch" for one in found):
            yield _failed(found)
        elif found:
            yield _failed(found)._replace(status="unknown")
        else:
            skipped = state.get("skipped")
            more = f"; not looked at: {', '.join(skipped)}" if skipped else ""
            yield _Told(name, "ok", f"its own checks found nothing{more}")


def _state(path: str) -> dict[str, Any] | None:
    with contextlib.suppress(OSError, ValueError), files.open_regular(path) as stream:
        found = document.fitted(document.parse(stream.read(document.LARGEST)), _STATE)
        if found.get("schema") == 1:
            # By the file server's clock: the node's own may be another.
            return {**found, "stamped": os.fstat(stream.fileno()).st_mtime if found.get("time") else 0.0}
    return None


def _known(node: str, state: Mapping[str, Any]) -> Iterator[Finding]:
    for one in state.get("findings", []):
        told = {key: one.get(key, "") for key in _FINDING}
        class_ = told["class"] if told["class"] in CLASSES else "watch"
        yield Finding(node, told["finding"], class_, told["subject"], told["evidence"], "node_health", deep=False)


# --- EFA ---------------------------------------------------------------------------------------------------------


def _has_efa(output: Output) -> bool:
    return any({"loopback", "efa_none"} & set(values) for values in output.values.values())


def _efa(node: Node, output: Output, context: Context) -> _Told:
    values = output.values.get(node.name, {})
    unseen = _unseen(node, output, context)
    if unseen:
        return unseen
    if "efa" not in values:
        why = "; ".join(output.errors) or f"srun ended with {output.code}"
        return _Told(node.name, "failed", f"its devices were not all looked at: {why}")
    if "efa_none" in values:
        return _Told(node.name, "skipped", f"{values['efa_none'][-1]}; run site with --tags efa")
    kind = context.options.instance_types.get(node.name) or node.instance_type
    there, wanted = len(values.get("loopback", [])), devices.DEVICES.get(kind, 1) if node.efa else 0
    missing: list[Finding] = []
    if there < wanted:
        why = f"{there} of {wanted} EFA devices are there"
        missing.append(Finding(node.name, "efa_missing", "replace", "", why, _AWSLABS))
    if missing and not there:
        return _failed(missing)
    lines = [line.split(" ", 2) for line in values.get("loopback", [])]
    of = {status: [line for line in lines if line[0] == status] for status in ("ok", "failed", "untried")}
    details = {"devices": {line[1]: " ".join([line[0], *line[2:]]) for line in lines}}
    if missing and not of["failed"]:
        return _failed(missing, **details)
    if not of["failed"]:
        return _Told(node.name, "ok", f"{len(lines)} EFA devices reach themselves", details=details)
    untried = f", and {len(of['untried'])} untried" if of["untried"] else ""
    if not of["ok"]:
        why = f"none of {len(lines)} devices reaches itself ({of['failed'][0][-1]}{untried}); first see whether the "
        why += "security group allows all traffic to and from itself"
        return _failed([*missing, Finding(node.name, "efa_loopback", "watch", "", why, _GROUPS)], **details)
    dead = [
        Finding(node.name, "efa_loopback", "reboot", line[1], line[-1] + untried, _AWSLABS) for line in of["failed"]
    ]
    return _failed([*missing, *dead], **details)


# --- DCGM --------------------------------------------------------------------------------------------------------


def _diag(node: Node, output: Output, context: Context) -> _Told:
    options = context.options.health
    values = output.values.get(node.name, {})
    what = f"dcgmi diag -r {options.level}"
    if "diag_none" in values:
        return _Told(node.name, "skipped", f"{values['diag_none'][-1]}; run site with --tags dcgm")
    if "diag_code" not in values:
        if values and any(error.startswith(cluster.LATE) or "DUE TO TIME LIMIT" in error for error in output.errors):
            return _hangs(node, what, options.minutes)
        return _unseen(node, output, context) or _Told(
            node.name, "failed", f"{what} did not end: {'; '.join(output.errors) or f'srun ended with {output.code}'}"
        )
    code = int(values["diag_code"][-1])
    found = health_dcgm.read("".join(values.get("diag", [])))
    if code in (health_dcgm.TIMEOUT, 124, 137):
        return _hangs(node, what, options.minutes)
    if code == health_dcgm.ALREADY_RUNNING:
        return _Told(node.name, "skipped", "another diagnostic of DCGM's runs there")
    if found.problem:
        more = "".join(f" ({error})" for error in values.get("diag_error", []) if error)
        return _Told(node.name, "failed", f"{what} ended with {code}: {found.problem}{more}")
    findings = [
        Finding(node.name, "gpu_diag", one.class_, one.subject, one.evidence, one.source) for one in found.worst
    ]
    if 0 < found.gpus < node.gpus:
        why = f"DCGM sees {found.gpus} of {node.gpus} GPUs"
        findings.append(Finding(node.name, "gpu_missing", "replace", "", why, _AWSLABS))
    details = {"version": found.version, "level": options.level, "tests": dict(found.tests), "exit_code": code}
    if findings:
        return _failed(findings, **details)
    if code:
        return _Told(node.name, "failed", f"{what} ended with {code}, and told of no error", details=details)
    passed = [name for name, status in found.tests if status == "Pass"]
    skipped = [name for name, status in found.tests if status == "Skip"]
    more = f"; skipped: {', '.join(skipped)}" if skipped else ""
    # Where it skips all but its first look at the software, the hardware has not been looked at.
    status = "ok" if len(passed) > 1 or options.level == 1 else "unknown"
    return _Told(
        node.name, status, f"{what} of DCGM {found.version} passed: {', '.join(passed)}{more}", details=details
    )


def _hangs(node: Node, what: str, minutes: int) -> _Told:
    why = f"{what} did not end within {minutes} minutes"
    return _failed([Finding(node.name, "gpu_diag", "reboot", "", why, _AWSLABS)])


# --- NCCL --------------------------------------------------------------------------------------------------------


def _nccl(context: Context, partition: str, nodes: Sequence[Node], done: set[frozenset[str]]) -> Iterator[Check]:
    """Measure all_reduce on nodes that the stage nccl has not measured; yield its checks."""
    names = {node.name for node in nodes}
    known = {run["nodes"][0] for run in _alone(context) if run["nodes"][0] in names}
    if known:
        yield Check("nccl_one_node", partition, "ok", f"{shown(known)}: measured by the stage nccl")
    rest = [node for node in nodes if node.name not in known]
    options = context.options.nccl._replace(scopes=("one",), collectives=("all_reduce",), bisect=False)
    alike: set[str] = set()
    for check in nccl.measure(context, partition, rest, done, options) if rest else ():
        if check.name == "alike on one node":
            alike |= set(check.details["nodes"])
        yield check._replace(name="nccl_one_node")
    for run in _alone(context):
        name, judgement = run["nodes"][0], run["judgement"]
        broken = judgement["status"] == "failed" and "values were wrong" in judgement["message"]
        slow = judgement["status"] in ("short", "suspicious", "failed") or name in alike
        if name in names and slow:
            message = judgement["message"] + ("; others are faster" if name in alike else "")
            found = Finding(name, "nccl_one_node", "replace" if broken else "watch", "", message, _AWSLABS)
            if found.for_report() not in context.findings:
                context.findings.append(found.for_report())


def _alone(context: Context) -> list[dict[str, Any]]:
    """Return the runs of all_reduce on one node, outside of containers."""
    return [
        run
        for run in context.runs
        if len(run["nodes"]) == 1 and run["collective"] == "all_reduce" and not run["container"]
    ]
