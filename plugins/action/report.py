# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Keep the record of a run, print its table, and judge it. Nothing is sent to the node."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any

from ansible import constants as C
from ansible import context

from ansible_collections.pcluster.postboot.plugins.module_utils._host import files
from ansible_collections.pcluster.postboot.plugins.module_utils._host.text import visible
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import next_steps, terminal, turns
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import report as site_report
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.on_controller import OnController

_STATES = ("begun", "started", "failed", "stopped", "shown", "judged")
PROGRESS = "PCLUSTER_POSTBOOT_PROGRESS"  # where a run notes what it has done so far


class ActionModule(OnController):
    SPEC = {
        "state": {"type": "str", "choices": list(_STATES), "required": True},
        "component": {"type": "str"},
    }
    RULES = {"required_if": [("state", "started", ["component"]), ("state", "failed", ["component"])]}

    def work(self, args: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        moment = getattr(self, f"_{args['state']}")
        return dict(moment(site_report.Told.by(variables), args["component"], variables))

    def _begun(self, told: site_report.Told, component: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        warning = turns.too_many(variables)
        if warning:
            terminal.warn(warning)
        return {"msg": warning or "there are forks enough"}

    def _started(self, told: site_report.Told, component: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        now = time.time()
        answer = {"starts": {**told.starts, component: now}, "msg": f"component {component} begins"}
        if os.environ.get(PROGRESS):
            # The run may be stopped at any moment from now on, and what it has done so far is known here only.
            told = site_report.Told.by({**variables, "__postboot_starts": answer})
            self._progress(told.record, component, site_report.summarise(told, variables, now))
        return answer

    def _failed(self, told: site_report.Told, component: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        task = str((variables.get("ansible_failed_task") or {}).get("name") or "")
        task = task.split(" : ", 1)[-1].split(" | ", 1)[-1]  # the role's name and the file's
        failures = dict(told.failures)
        if site_report.note_failure(
            dict(told.record), failures, component, task, variables.get("ansible_failed_result")
        ):
            return {
                "failed": True,
                "failures": failures,
                "stop": component,
                "msg": f"component {component} failed and is essential, so the run on the node ends",
            }
        why = failures[component]["message"]
        return {"failures": failures, "msg": f"component {component} failed, and the node goes on without it: {why}"}

    def _stopped(self, told: site_report.Told, component: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        result = variables.get("ansible_failed_result") or {}
        # Lines are kept apart here: each is one thing to correct.
        cause = str(result.get("stop") or "")
        what = told.failures[cause]["message"] if cause else str(result.get("msg") or site_report.message(result))
        return {"stopped": {"component": cause, "message": what}, "msg": "nothing more is done on this node"}

    def _shown(self, told: site_report.Told, component: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        hostvars = variables.get("hostvars") or {}
        reports = []
        for host in variables.get("ansible_play_hosts_all") or []:
            theirs = hostvars[host]
            report = (theirs.get("__postboot_report") or {}).get("report")
            if report is None and "__postboot_facts" not in theirs:
                continue  # its turn has not come
            reports.append(report or site_report.unreachable(host, _why_unreachable(_raw(hostvars, host))))
        reports = site_report.in_order(reports)
        check = bool(self._task.check_mode)
        lines = [
            *site_report.table(reports, terminal.width(), check),
            *site_report.summaries(reports),
            *site_report.notes(reports),
            site_report.last_line(reports, max([report["seconds"] for report in reports] or [0.0]), check),
        ]
        summary = lines[-1]
        if self._is_whole_run(variables):
            raw = {report["host"]: _raw(hostvars, report["host"]) for report in reports}
            lines += next_steps.steps(reports, raw, _sources())
        lines = [visible(line) for line in lines]
        if not site_report.printed_last:
            terminal.say("", *lines)
        return {"msg": visible(summary), "lines": lines}

    def _is_whole_run(self, variables: Mapping[str, Any]) -> bool:
        """Say whether a person has run all components, and not a node by itself, which keeps its progress."""
        tags = [*(variables.get("ansible_run_tags") or []), *(variables.get("ansible_skip_tags") or [])]
        return not self._task.check_mode and not os.environ.get(PROGRESS) and set(tags) <= {"all"}

    def _progress(self, record: Mapping[str, Any], component: str, report: Mapping[str, Any]) -> None:
        path = os.environ.get(PROGRESS)
        if path and not self._task.check_mode:
            known = {"component": component, "since": time.time(), "ended": not component, "report": report}
            known.update(started=record.get("started"), plans=record.get("components"))
            files.write(path, json.dumps(known) + "\n")

    def _judged(self, told: site_report.Told, component: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        report = (variables.get("__postboot_report") or {}).get("report") or {}
        self._progress(told.record, "", report)
        if told.stopped:
            cause, lines = told.stopped.get("component"), str(told.stopped["message"]).splitlines() or [""]
            more = f" (and {len(lines) - 1} more, which the table has)" if len(lines) > 1 else ""
            return {"failed": True, "msg": f"{cause + ' failed: ' if cause else ''}{lines[0]}{more}"}
        if report.get("ended_badly"):
            return {"failed": True, "msg": report["ended_badly"]}
        return {"msg": "nothing stopped this node"}


def _raw(hostvars: Any, host: str) -> Mapping[str, Any]:
    """Return a host's variables without working out templates: there are hundreds."""
    found = hostvars.raw_get(host) if hasattr(hostvars, "raw_get") else hostvars[host]
    return found if isinstance(found, Mapping) else {}


def _sources() -> list[str]:
    """Return what -i has named."""
    sources = [str(one) for one in context.CLIARGS.get("inventory") or ()]
    return [] if sources == [str(one) for one in C.DEFAULT_HOST_LIST] else sources


def _why_unreachable(known: Mapping[str, Any]) -> str:
    """What the task said in which the node was lost."""
    lost = [one for one in known.values() if isinstance(one, Mapping) and one.get("unreachable") is True]
    said = " ".join(str(lost[-1].get("msg") or "").split()) if lost else ""
    return said or "the connection was lost on the way"
