# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Finds what ParallelCluster's daemons and Slurm's controller complain of, on a head node.

Messages are those of aws-parallelcluster-node 3.16.1 (slurm_plugin/clustermgtd.py, instance_manager.py, resume.py,
slurm_resources.py, common.py), which are the same in 3.13.2 where both have them.
"""

from __future__ import annotations

import ast
import calendar
import re
import time
from collections import Counter
from collections.abc import Iterator

from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose import logs, services
from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose.evidence import (
    CAUSE,
    FAULT,
    NOTE,
    Evidence,
    Finding,
    age,
    finding,
    last,
    written,
)
from ansible_collections.pcluster.postboot.plugins.module_utils._slurm.names import ranges, shown
from ansible_collections.pcluster.postboot.plugins.module_utils._slurm.nodes import freed, stranded

PROTECTED, BOOT = "protected-mode", "node-does-not-come-up"
SILENCE = 600.0  # seconds; clustermgtd_timeout of computemgtd, after which compute nodes end themselves
# ParallelCluster's programs that launch instances. In Slurm's own log users may write whole lines.
MANAGERS = ("clustermgtd", "slurm_resume")
_DIES = 60.0  # seconds from a daemon's last line until systemd knows that it has ended
_MOST_INSTANCES = 3  # the last ones that a name stood for
_CONFIGURED = re.compile(rf"^{logs.MANAGER}INFO - Nodes are now configured with instances .*", re.MULTILINE)
_PLACED = re.compile(
    r"\('(?P<name>[\w.-]+)', EC2Instance\(id='(?P<id>i-[0-9a-f]+)'"
    r"(?:, private_ip='[^']*', hostname='(?P<host>[^']*)')?"
)
_FAILURES = re.compile(
    rf"{logs.MANAGER}WARNING - Found the following bootstrap failure nodes: \(x\d{{1,9}}\) (\[[^\[\]]*\])"
)
_INACTIVE = rf"{logs.MANAGER}INFO - Placing bootstrap failure partitions to INACTIVE: (\[[^\[\]]*\])$"
_CAPACITY = (
    *("InsufficientInstanceCapacity", "InsufficientHostCapacity", "InsufficientReservedInstanceCapacity"),
    *(
        "InsufficientCapacity",
        "MaxSpotInstanceCountExceeded",
        "SpotMaxPriceTooLow",
        "Unsupported",
        "LimitedInstanceCapacity",
    ),
)
# What users and ParallelCluster do on purpose.
_ORDINARY = re.compile(r"\(Code:[^()]*\)|Power(?:ed|ing)? ?(?:down|up)|^none$", re.IGNORECASE)

# How reasons begin that pass without help, the page about each, and the remedy if they last. Slurm's own are those of
# src/slurmctld of SchedMD/slurm 24.11.5 (power_save.c, proc_req.c, controller.c).
_PASSING = (
    (
        ("ResumeTimeout reached",),
        BOOT,
        "Slurm starts the node again if a job asks; the boot did not end within ComputeNodeBootstrapTimeout: "
        "-e diagnose_gone=NODE brings its logs",
    ),
    (
        ("inactive partition", "stopping cluster"),
        PROTECTED,
        "the fleet or the queue is stopped; if not on purpose, pcluster update-compute-fleet --status START_REQUESTED",
    ),
    (
        ("Scheduler health check failed", "Enabling node since insufficient capacity"),
        BOOT,
        "clustermgtd has powered the node down, and its log has the cause; Slurm starts the node again if a job asks",
    ),
    (
        ("Reboot ASAP", "reboot requested", "reboot issued"),
        BOOT,
        "Slurm takes the node back after its reboot; if that lasts, see slurmd's log and the console of the instance",
    ),
)
_OFF = ("~", "%", "!")  # the sign behind a state of sinfo's: powered down, powering down, about to be


def names_of(text: str) -> list[str]:
    """Return names of a list as print_with_count writes it; a node is written as name(address)."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return []
    return [str(one).split("(", 1)[0] for one in found] if isinstance(found, list) else []


def instances_of(name: str, text: str) -> list[tuple[str, str]]:
    """Return the instances that a node was, the last one last, each with its host name where the log tells it.

    instance_manager.py writes "Nodes are now configured with instances (x1) ["('cpu-st-c5-1', EC2Instance(id='i-0123',
    private_ip='10.0.0.5', hostname='ip-10-0-0-5', …))"]".
    """
    found: dict[str, str] = {}
    for match in _placed(text):
        if name in (match["name"], match["id"]):
            found.pop(match["id"], None)
            found[match["id"]] = match["host"] or ""
    if name.startswith("i-"):
        found.setdefault(name, "")
    return list(found.items())[-_MOST_INSTANCES:]


def nodes_of(instance: str, text: str) -> list[str]:
    """Return the names of the nodes that an instance was."""
    return [match["name"] for match in _placed(text) if match["id"] == instance]


def _placed(text: str) -> Iterator[re.Match[str]]:
    for line in _CONFIGURED.finditer(text):
        yield from _PLACED.finditer(line[0])


def bootstrap_failures(evidence: Evidence) -> tuple[str, str, Counter[str]]:
    """Return how often each node failed its boot, with the last line that says so and its log."""
    counts: Counter[str] = Counter()
    where = said = ""
    for name, line in evidence.recent("clustermgtd"):
        match = _FAILURES.match(line)
        if match:
            counts.update(names_of(match[1]))
            where, said = name, line
    return where, said, counts


def protected_mode(evidence: Evidence) -> Iterator[Finding]:
    """Find a fleet that launches no node any more."""
    name, status = evidence.mapping("fleet-status")
    line = f"status {status.get('status')} since {status.get('lastStatusUpdatedTime')}"
    if not status:
        current = rf"{logs.MANAGER}INFO - Current compute fleet status: (\w+)$"
        name, match = last(evidence.recent("clustermgtd"), current)
        status, line = ({"status": match[1]}, match.string) if match else ({}, "")
    if status.get("status") != "PROTECTED":
        return
    where, said, counts = bootstrap_failures(evidence)
    where = where or name
    _log, match = last(evidence.recent("clustermgtd"), _INACTIVE)
    queues = tuple(f"{queue}-{kind}-" for queue in names_of(match[1]) for kind in ("st", "dy")) if match else ()
    # A node's name begins with its queue; boots of other queues are another matter.
    counts = Counter({node: count for node, count in counts.items() if node.startswith(queues)}) if queues else counts
    failed = f": the boots of {shown(counts)} have failed" if counts else ""
    todo = (
        f"find why in the boot of one of them (-e diagnose_gone={next(iter(counts), '<node>')}), correct that, then "
        "pcluster update-compute-fleet --status START_REQUESTED"
    )
    yield finding("protected", CAUSE, f"the cluster is in protected mode{failed}", said or line, where, todo, PROTECTED)


def failed_boots(evidence: Evidence) -> Iterator[Finding]:
    """Find nodes whose boots fail again and again; after ten failures comes protected mode."""
    where, said, counts = bootstrap_failures(evidence)
    if counts:
        many = ", ".join(f"{name} ({count})" for name, count in counts.most_common(5))
        names = ",".join(name for name, _count in counts.most_common(3))
        todo = f"-e diagnose_gone={names} brings the logs of boots whose instances are gone"
        yield finding("bootstrap-failures", FAULT, f"nodes failed to boot: {many}", said, where, todo, BOOT)


def heartbeat(evidence: Evidence) -> Iterator[Finding]:
    """Find a clustermgtd that does not work: nobody launches or replaces nodes, and compute nodes end themselves."""
    name, text = evidence.text("clustermgtd_heartbeat")
    match = re.match(r"(\d+-\d+-\d+ \d+:\d+:\d+)\.\d+([+-])(\d\d):?(\d\d)$", text.strip())
    if not match:
        return
    east = (int(match[3]) * 3600 + int(match[4]) * 60) * (1 if match[2] == "+" else -1)
    beat = calendar.timegm(time.strptime(match[1], "%Y-%m-%d %H:%M:%S")) - east
    silence = evidence.now - beat
    if silence > SILENCE:
        where, error = last(evidence.recent("clustermgtd"), rf"{logs.MANAGER}(?:ERROR|CRITICAL) - ")
        said = error.string if error else f"last heartbeat {text.strip()}"
        todo = "supervisorctl status clustermgtd on the head node, and its log; nodes end themselves without it"
        yield finding(
            "clustermgtd", CAUSE, f"clustermgtd was silent for {age(silence)}", said, where or name, todo, "logs"
        )


def launches(evidence: Evidence) -> Iterator[Finding]:
    """Find launches that EC2 has refused, one finding for each of EC2's reasons."""
    found: dict[str, tuple[str, str, set[str]]] = {}
    pattern = re.compile(
        rf"{logs.MANAGER}ERROR - Encountered exception when launching instances for nodes \(x\d{{1,9}}\) "
        r"(\[[^\[\]]*\]): (?:(?!Encountered exception ).)*?An error occurred \(([\w.]+)\)"
    )
    for name, line in evidence.recent("clustermgtd", "slurm_resume"):
        match = pattern.match(line)
        if match:
            nodes = found.get(match[2], ("", "", set()))[2]
            nodes.update(names_of(match[1]))
            found[match[2]] = (name, line, nodes)
    for code, (name, line, nodes) in found.items():
        if code in _CAPACITY:
            todo = "wait, name further instance types or zones in the queue, or reserve capacity"
        elif code == "UnauthorizedOperation":
            todo = "give the head node's role the action that the line names"
        elif "Limit" in code:
            todo = "raise the account's quota in this region"
        else:
            todo = "the line has EC2's reason"
        yield finding(f"launch-{code}", CAUSE, f"EC2 refuses {shown(nodes)}: {code}", line, name, todo, BOOT)


def reasons(evidence: Evidence) -> Iterator[Finding]:
    """Find nodes that Slurm does not use, by the reason that it has for them (sinfo -R)."""
    name, text = evidence.text("sinfo-reasons")
    begun: list[str] = []  # sinfo prints the line feeds of a reason as they are
    for line in logs.lines(text):
        begun.append(line)
        if line.count("|") < 4:
            continue
        reason, user, since, state, nodes = (" ".join(field.split()) for field in " ".join(begun).rsplit("|", 4))
        begun = []
        if _ORDINARY.search(reason):
            continue
        said = f"{nodes} {state}: {reason} [{user} {since}]"
        kind, level, page, todo = _reason(reason, state, nodes)
        yield finding(f"slurm-{kind}-{nodes}", level, f"Slurm has {nodes} {state}: {reason}", said, name, todo, page)


def _reason(reason: str, state: str, nodes: str) -> tuple[str, str, str, str]:
    if "count reported lower than configured" in reason:
        todo = "nvidia-smi -L and XIDs on the node; drain it so that it is replaced, or reboot it"
        return "gres", CAUSE, "lost-gpu", todo
    if "Static node maintenance" in reason:
        return "replacement", NOTE, BOOT, "clustermgtd replaces the node; it is idle again after its boot"
    if re.search("not responding", reason, re.IGNORECASE):
        return "silent", FAULT, BOOT, "slurmd's log and unit on the node; clustermgtd replaces the node by itself"
    if re.search(r"prolog|epilog", reason, re.IGNORECASE):
        return "prolog", FAULT, "logs", "the last lines of slurmd's log on the node tell which script failed"
    if "Kill task failed" in reason:
        return "kill-task", FAULT, "hanging-job", "a process of a job cannot be killed: look for a hung mount or GPU"
    latest = reason.rpartition(" : ")[2]  # Slurm appends its own reasons to those that are there
    for begins, page, todo in _PASSING:
        if latest.startswith(begins):
            return "passing", NOTE, page, todo
    # A node that is off: state=resume would have Slurm wait for its slurmd, and start no job there.
    back = freed(nodes) if state[-1:] in _OFF else f"scontrol update nodename={nodes} state=resume"
    return "reason", FAULT, "logs", f"correct what the reason says, then {back}"


def stranded_nodes(evidence: Evidence) -> Iterator[Finding]:
    """Find powered-down nodes that no job starts again, although sinfo shows them as idle~."""
    name, text = evidence.text("scontrol-nodes")
    # scontrol continues a node's line with indented ones.
    names = stranded(re.sub(r"\n +", " ", text))
    if names:
        lost = ranges(names)
        what = f"Slurm starts no job on {shown(names)}: powered down, and Slurm waits for the slurmd there"
        said = f"State=IDLE+CLOUD+POWERED_DOWN+NOT_RESPONDING of {lost}"
        yield finding("stranded-nodes", CAUSE, what, said, name, f"{freed(lost)} on the head node", BOOT)


def daemons(evidence: Evidence) -> Iterator[Finding]:
    """Find programs that ParallelCluster's supervisord does not keep running."""
    name, text = evidence.text("supervisord-status")
    for line in logs.lines(text):
        match = re.match(r"(\S+)\s+(FATAL|BACKOFF|EXITED|STOPPED|UNKNOWN)\b", line)
        if match and match[1] in ("clustermgtd", "computemgtd", "clusterstatusmgtd"):
            todo = f"/var/log/parallelcluster/{match[1]} tells why; supervisorctl start {match[1]}"
            yield finding(f"daemon-{match[1]}", CAUSE, f"{match[1]} does not run", line, name, todo, "logs")


def controller(evidence: Evidence) -> Iterator[Finding]:
    """Find the fatal error that ended one of Slurm's daemons, in its own log and confirmed by systemd."""
    # SchedMD/slurm 24.11, src/common/log.c: fatal() ends the program.
    for daemon in ("slurmctld", "slurmd"):
        ends = _ends(evidence, daemon)
        fatal = [one for one in evidence.recent(daemon) if re.match(rf"{logs.SLURM}fatal: ", one[1])]
        if ends is not None:
            fatal = [one for one in fatal if any(0 <= end - (written(one[1]) or end) <= _DIES for end in ends)]
        if fatal:
            name, line = fatal[-1]
            todo = "correct what the line says, and start the daemon again"
            yield finding("slurm-fatal", FAULT, "a daemon of Slurm has ended", line, name, todo, "logs")


def _ends(evidence: Evidence, daemon: str) -> list[float] | None:
    """Return when systemd saw a daemon fail; None if systemd was not asked, or if the unit is failed now.

    Slurm's own log does not suffice. slurmctld writes line feeds in a partition's name as they are, so a user can add
    any line to it.
    """
    name, text = evidence.text("slurm-units")
    units = [unit for unit in services.states(evidence.text("units")[1]) if unit["Id"] == f"{daemon}.service"]
    if not name or any(unit.get("ActiveState") == "failed" for unit in units):
        return None
    failed = re.compile(rf"\S+ \S+ systemd\[1\]: {daemon}\.service: (?:Main process exited|Failed with result)")
    return [written(line) or 0.0 for line in logs.lines(text) if failed.match(line)]


def authentication(evidence: Evidence) -> Iterator[Finding]:
    """Find credentials that Slurm's daemons refuse. This is a separate finding, so that it hides no other line."""
    # src/plugins/auth/munge/auth_munge.c, _decode_cred()
    where, match = last(evidence.recent("slurmctld", "slurmd"), rf"{logs.SLURM}error: Munge decode failed: ")
    if match:
        todo = "the same munge key and clock on all nodes; munge -n | ssh NODE unmunge shows whether they are"
        what = "a daemon of Slurm refuses a credential"
        yield finding("slurm-munge", FAULT, what, match.string, where, todo, "logs")


def self_checks(evidence: Evidence) -> Iterator[Finding]:
    """Pass on what pcluster-diag has found, in the form that ParallelCluster 3.16's documentation describes."""
    name, found = evidence.mapping("pcluster-diag")
    results = found.get("results")
    for result in results if isinstance(results, list) else ():
        told = result.get("errors") if result.get("status") == "FAILURE" else result.get("warnings")
        if result.get("status") in ("FAILURE", "WARNING") and told:
            said = "; ".join(f"{one.get('code')}: {one.get('message')}" for one in told)
            level = FAULT if result["status"] == "FAILURE" else NOTE
            what = f"pcluster-diag: {result.get('check_id')}: {result['status']}"
            todo = str(result.get("check_description") or "its message says what to do")
            yield finding(f"diag-{result.get('check_id')}", level, what, said, name, todo, "logs")


FINDERS = (
    *(protected_mode, failed_boots, heartbeat, launches, reasons, stranded_nodes),
    *(daemons, controller, authentication, self_checks),
)
