# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What became of each component on each node, read from the results that the tasks registered; and its table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.pcluster.postboot.plugins.module_utils._host import lock
from ansible_collections.pcluster.postboot.plugins.module_utils._host.reason import reason
from ansible_collections.pcluster.postboot.plugins.module_utils._slurm.names import natural, ranges
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import advisories
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import variables as site_variables
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.roles import for_nodes

Record = dict[str, Any]

# The task of site.yml that has found the errors of a plan.
CHECKED_BY = "Check every variable before anything is touched"

# bootstrap.sh runs site again after these. Everywhere else nobody would, and what is not there yet is what it is.
PHASES_THAT_WAIT = ("boot", "later")

# Whether a callback prints the table, which it does after Ansible's own last lines; else the task that makes it does.
printed_last = False


def is_result(value: Any) -> bool:
    """Say whether a variable holds the registered result of a task."""
    return isinstance(value, Mapping) and (isinstance(value.get("changed"), bool) or bool(value.get("skipped")))


def results_of(component: str, variables: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the results that a component's tasks have registered."""
    others = [name for name in for_nodes() if name.startswith(component + "_")]
    found = {}
    for name in variables:
        if not name.startswith(f"__{component}_") or any(name.startswith(f"__{other}_") for other in others):
            continue
        if is_result(variables[name]):
            found[name[len(component) + 3 :]] = variables[name]
    return found


def is_changed(result: Mapping[str, Any]) -> bool:
    """Say whether a task that did not fail changed anything; of a loop, whether any of its items did."""
    if result.get("changed"):
        return not result.get("failed")
    items = result.get("results")
    return isinstance(items, list) and any(isinstance(i, Mapping) and i.get("changed") is True for i in items)


def message(result: Any) -> str:
    """Return why a task failed, on one line: its own message, its first failed item's, or its last error output."""
    if not isinstance(result, Mapping):
        return "no message"
    items = result.get("results")
    if isinstance(items, list):
        for item in items:
            if isinstance(item, Mapping) and item.get("failed"):
                return message(item)
    text = str(result.get("msg") or result.get("reason") or "")
    errors = str(result.get("stderr") or result.get("module_stderr") or result.get("exception") or "")
    why = reason(errors)
    if "non-zero return code" in text:
        command = result.get("cmd") or "the command"
        text = f"{' '.join(command) if isinstance(command, list) else command} ended with {result.get('rc')}"
        text += f": {why}" if why else ""
    elif why and (not text or "MODULE FAILURE" in text):
        text = f"{text}: {why}" if text else why
    return " ".join((text or str(result.get("censored") or "no message")).split())


def waits_for(result: Any, phase: str) -> str:
    """Return the result's `waits_for`, or an empty string in phases that are not followed by another run."""
    return str(result.get("waits_for") or "") if phase in PHASES_THAT_WAIT and isinstance(result, Mapping) else ""


def note_failure(record: Record, failures: Record, component: str, task: str, result: Any) -> bool:
    """Add to the failures that a component failed, or only waits; say whether the node has to stop."""
    waits = waits_for(result, str(record.get("phase") or ""))
    failures[component] = {"task": task, "message": waits or message(result), "waits": bool(waits)}
    return not waits and bool(record["components"].get(component, {}).get("essential", True))


@dataclass(frozen=True)
class Told:
    """What the tasks of a run have registered on one node."""

    record: Mapping[str, Any]  # check_variables, and when the turn of each component came on this node
    failures: Mapping[str, Any]  # report with state=failed
    stopped: Mapping[str, Any] | None  # report with state=stopped
    node: Mapping[str, Any]  # the facts of the node
    host: str
    starts: Mapping[str, float] = field(default_factory=dict)  # report with state=started, of all nodes

    @classmethod
    def by(cls, variables: Mapping[str, Any]) -> Told:
        def part(name: str, key: str) -> Any:
            found = variables.get(name)
            return found.get(key) if isinstance(found, Mapping) else None

        facts = variables.get("ansible_facts") or {}
        starts = part("__postboot_starts", "starts") or {}
        stopped = part("__postboot_stop", "stopped")
        return cls(
            record=_with_starts(part("__postboot_run", "record") or {}, starts, stopped),
            failures=part("__postboot_failure", "failures") or {},
            stopped=stopped,
            node=facts.get("pcluster") or {},
            host=str(variables.get("inventory_hostname") or ""),
            starts=starts,
        )


def _with_starts(record: Record, starts: Mapping[str, float], stopped: Mapping[str, Any] | None) -> Record:
    """Add to the plan of each component when its turn came. On a node that stopped, the turns of others go on."""
    last = starts.get(stopped["component"], 0.0) if stopped else math.inf
    had = {name: {"started": start} for name, start in starts.items() if start <= last}
    components = {name: {**plan, **had.get(name, {})} for name, plan in (record.get("components") or {}).items()}
    return {**record, "components": components}


def _refused(plan: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the failure of a component that does not run because something is wrong with its variables."""
    return {"task": CHECKED_BY, "message": "; ".join(plan["errors"]), "waits": False} if plan["errors"] else None


def summarise(told: Told, variables: Mapping[str, Any], now: float, check: bool = False) -> dict[str, Any]:
    plans: Mapping[str, Mapping[str, Any]] = told.record.get("components") or {}
    phase = str(told.record.get("phase") or "all")
    begun = float(told.record.get("started") or now)
    # Components run one after another, so one ends where the next begins.
    starts = sorted(plan["started"] for plan in plans.values() if plan.get("started"))
    components = []
    for name, plan in plans.items():
        started, failure = plan.get("started"), told.failures.get(name) or _refused(plan)
        if started is None and not told.stopped:
            continue  # the play has no such component
        entry: dict[str, Any] = {"name": name, "status": "unchanged", "changed": 0, "seconds": 0.0, "why": ""}
        entry["essential"] = bool(plan.get("essential"))
        if not plan["run"]:
            entry.update(status="deferred" if plan.get("deferred") else "skipped", why=plan["reason"])
        elif started is None:
            cause = (told.stopped or {}).get("component")
            entry.update(status="skipped", why=f"{cause} failed" if cause else "the run had ended")
        else:
            end = min([start for start in starts if start > started] or [now])
            results = results_of(name, variables)
            changes = sorted(key for key, one in results.items() if is_changed(one))
            summary = dict.fromkeys(str(one["summary"]) for one in results.values() if one.get("summary"))
            if summary:
                entry["summary"] = "; ".join(summary)
            entry["version"] = plan.get("version") or ""
            entry.update(changed=len(changes), changes=changes, seconds=round(max(0.0, end - started), 1))
            waits = [why for one in results.values() if (why := waits_for(one, phase))]
            if failure and failure.get("waits"):
                waits = [failure["message"]]
            if waits and (not failure or failure.get("waits")):
                entry.update(status="deferred", why=waits[-1])
            elif failure:
                entry.update(status="failed", why=failure["message"], task=failure["task"])
            elif changes:
                entry["status"] = "changed"
        components.append(entry)
    failed = any(entry["status"] == "failed" for entry in components)
    return {
        "run_id": told.record.get("run_id", ""),
        "host": told.host,
        "cluster": told.node.get("cluster") or "",
        "node": told.node.get("node_name") or "",
        "node_type": told.node.get("node_type") or "",
        "kind": site_variables.kind_of_node(told.node),
        "started": lock.utc(begun),
        "finished": lock.utc(now),
        "seconds": round(max(0.0, now - begun), 1),
        "phase": phase,
        "check_mode": check,
        "outcome": "stopped" if told.stopped else "failed" if failed else "ok",
        "stopped": told.stopped,
        "components": components,
        "advisories": advisories.told(told.node),
        "changed": sum(entry["changed"] for entry in components),
    }


def in_order(reports: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return reports by cluster, the head node first, and node 2 before node 10. What nobody knows comes last."""
    types = ("head", "login", "compute", "monitoring")

    def key(report: Mapping[str, Any]) -> tuple[Any, ...]:
        cluster, kind = report.get("cluster") or "", report.get("node_type")
        place = types.index(kind) if kind in types else len(types)
        return (not cluster, cluster, place, natural(str(report["host"])))

    return sorted(reports, key=key)


def unreachable(host: str, why: str) -> dict[str, Any]:
    return {
        "host": host,
        "outcome": "unreachable",
        "stopped": {"component": "", "message": why},
        "components": [],
        "changed": 0,
        "seconds": 0.0,
    }


def _cell(entry: Mapping[str, Any], check: bool) -> str:
    status = entry["status"]
    word = "would change" if check and status == "changed" else status
    seconds = math.floor(entry["seconds"] + 0.5)
    return f"{word} {seconds}s" if status not in ("skipped", "deferred") and seconds else word


def _columns(reports: Sequence[Mapping[str, Any]], rows: Sequence[str], check: bool) -> list[tuple[str, list[str]]]:
    columns = []
    for report in reports:
        cells = {entry["name"]: _cell(entry, check) for entry in report["components"]}
        rest = "" if report["outcome"] in ("ok", "failed") else "-"
        columns.append((str(report["host"]), [cells.get(row, rest) for row in rows]))
    return columns


def _alike(columns: Sequence[tuple[str, list[str]]]) -> list[tuple[list[str], list[str]]]:
    """Put nodes together of which the table says the same, seconds aside."""
    groups: dict[tuple[str, ...], tuple[list[str], list[str]]] = {}
    for host, cells in columns:
        words = tuple(cell.rstrip("s0123456789").rstrip() if cell.endswith("s") else cell for cell in cells)
        groups.setdefault(words, ([], list(words)))[0].append(host)
    return list(groups.values())


def _grid(header: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in [header, *body]) for i in range(len(header))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in [header, *body]]


def table(reports: Sequence[Mapping[str, Any]], width: int, check: bool = False) -> list[str]:
    """Return the lines of the table: a row for each component and a column for each node.

    When the columns do not fit, nodes of which the table would say the same share one, and a legend names them.
    """
    rows = list(dict.fromkeys(entry["name"] for report in reports for entry in report["components"]))
    if not rows:
        return []
    columns = _columns(reports, rows, check)
    body = [[row, *(cells[i] for _host, cells in columns)] for i, row in enumerate(rows)]
    lines = _grid(["", *(host for host, _cells in columns)], body)
    if len(columns) == 1 or max(len(line) for line in lines) <= width:
        return lines
    groups = _alike(columns)
    numbered = enumerate((hosts for hosts, _cells in groups), 1)
    titles = [hosts[0] if len(hosts) == 1 else f"[{number}] {len(hosts)} nodes" for number, hosts in numbered]
    body = [[row, *(cells[i] for _hosts, cells in groups)] for i, row in enumerate(rows)]
    lines = _grid(["", *titles], body)
    for number, (hosts, _cells) in enumerate(groups, 1):
        if len(hosts) > 1:
            lines.append(f"[{number}] {_names(hosts, 12)}")
    return lines


def _names(hosts: Sequence[str], most: int = 6) -> str:
    listed = ", ".join(hosts[:most]) + (f" and {len(hosts) - most} more" if len(hosts) > most else "")
    named = ranges(hosts)
    return named if len(hosts) > most and len(named) <= len(listed) else listed


def notes(reports: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each thing that failed, was skipped or never came, with the nodes on which it did."""
    said: dict[tuple[str, str, str], list[str]] = {}
    skipped: dict[tuple[str, str, str], list[str]] = {}
    for report in reports:
        host = str(report["host"])
        if report["outcome"] == "unreachable":
            said.setdefault(("unreachable", "", report["stopped"]["message"]), []).append(host)
        if report.get("ended_badly"):
            said.setdefault(("not ended cleanly", "", report["ended_badly"]), []).append(host)
        if report["outcome"] == "stopped" and not report["stopped"]["component"]:
            for line in report["stopped"]["message"].splitlines():
                said.setdefault(("stopped", "", line), []).append(host)
        because: dict[tuple[str, str], list[str]] = {}
        for entry in report["components"]:
            if entry["status"] == "failed":
                said.setdefault(("failed", entry["name"], f"{entry['task']}: {entry['why']}"), []).append(host)
            elif entry["status"] in ("skipped", "deferred"):
                because.setdefault((entry["status"], entry["why"]), []).append(entry["name"])
        for (word, why), names in because.items():
            skipped.setdefault((word, ", ".join(names), why), []).append(host)
        for line in report.get("advisories") or []:
            said.setdefault(("flaw", "", line), []).append(host)
    lines = [f"{word} on {_names(hosts)}: {names} ({why})" for (word, names, why), hosts in skipped.items()]
    for (word, component, text), hosts in said.items():
        lines.append(f"{word} on {_names(hosts)}: {component + ': ' if component else ''}{text}")
    return lines


def summaries(reports: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each thing that components say nodes have ended up with."""
    said: dict[tuple[str, str], list[str]] = {}
    for report in reports:
        for entry in report["components"]:
            if entry.get("summary") and entry["status"] not in ("failed", "deferred"):
                said.setdefault((entry["name"], entry["summary"]), []).append(str(report["host"]))
    everywhere = len(reports)
    return [
        f"{component}: {text}" + ("" if len(hosts) == everywhere else f" (on {_names(hosts)})")
        for (component, text), hosts in said.items()
    ]


def last_line(reports: Sequence[Mapping[str, Any]], seconds: float, check: bool = False) -> str:
    changed = sum(report["changed"] for report in reports)
    failed = sum(entry["status"] == "failed" for report in reports for entry in report["components"])
    failed += sum(report["outcome"] == "stopped" and not report["stopped"]["component"] for report in reports)
    failed += sum(bool(report.get("ended_badly")) for report in reports)
    deferred = sum(entry["status"] == "deferred" for report in reports for entry in report["components"])
    lost = sum(report["outcome"] == "unreachable" for report in reports)
    parts = [
        f"{len(reports)} node{'' if len(reports) == 1 else 's'}",
        f"{changed} {'would change' if check else 'changed'}",
        f"{failed} failed",
    ]
    if deferred:
        parts.append(f"{deferred} deferred")
    if lost:
        parts.append(f"{lost} unreachable")
    return f"pcluster.postboot: {', '.join(parts)}, {seconds:.0f} s"
