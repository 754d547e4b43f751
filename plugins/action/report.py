# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Keep the record of a run, print its table, and judge it. Nothing is sent to the node."""

from __future__ import annotations

import copy
import json
import os
import time
from collections.abc import Mapping
from typing import Any

from ansible import constants as C
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.pcluster.postboot.plugins.module_utils import _run
from ansible_collections.pcluster.postboot.plugins.plugin_utils import _report, _turns

_STATES = ("begun", "started", "missing", "failed", "stopped", "shown", "judged")
_LOG_WIDTH = 160
PROGRESS = "PCLUSTER_POSTBOOT_PROGRESS"  # where a run notes what it has done so far
display = Display()


class ActionModule(ActionBase):
    """One task for each moment of a run."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run on the controller."""
        variables = task_vars or {}
        result: dict[str, Any] = super().run(tmp, variables)
        _validation, args = self.validate_argument_spec(
            argument_spec={
                "state": {"type": "str", "choices": list(_STATES), "required": True},
                "component": {"type": "str"},
                "message": {"type": "str"},
                "waits": {"type": "bool", "default": True},
            },
            required_if=[
                ("state", "started", ["component"]),
                ("state", "failed", ["component"]),
                ("state", "missing", ["message"]),
            ],
        )
        result["changed"] = False
        if args["state"] == "missing":
            return {**result, "failed": True, "msg": args["message"], "waits_for": args["message"] * args["waits"]}
        result.update(getattr(self, f"_{args['state']}")(_report.Told.by(variables), args["component"], variables))
        return result

    def _begun(self, told: _report.Told, component: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        warning = _turns.too_many(variables)
        if warning:
            display.warning(warning)
        return {"msg": warning or "there are forks enough"}

    def _started(self, told: _report.Told, component: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        record = copy.deepcopy(dict(told.record)) or {"started": time.time(), "components": {}}
        run = _report.note_start(record, component, time.time())
        plan = record["components"][component]
        answer = {"record": record, "run": run, "msg": plan["reason"] if not run else f"{component} runs"}
        if run and plan["errors"]:
            answer.update(failed=True, run=False, msg="; ".join(plan["errors"]))
        # The run may be stopped at any moment from now on, and what it has done so far is known here only.
        so_far = _report.summarise(_report.Told.by({**variables, "__postboot_run": answer}), variables, time.time())
        self._progress(record, component, so_far)
        return answer

    def _failed(self, told: _report.Told, component: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        task = str((variables.get("ansible_failed_task") or {}).get("name") or "")
        task = task.split(" : ", 1)[-1].split(" | ", 1)[-1]  # the role's name and the file's
        failures = dict(told.failures)
        if _report.note_failure(dict(told.record), failures, component, task, variables.get("ansible_failed_result")):
            return {
                "failed": True,
                "failures": failures,
                "stop": component,
                "msg": f"nothing works without {component}",
            }
        return {"failures": failures, "msg": f"the node goes on without {component}: {failures[component]['message']}"}

    def _stopped(self, told: _report.Told, component: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        result = variables.get("ansible_failed_result") or {}
        # Lines are kept apart here: each is one thing to correct.
        cause = str(result.get("stop") or "")
        what = told.failures[cause]["message"] if cause else str(result.get("msg") or _report.message(result))
        return {"stopped": {"component": cause, "message": what}, "msg": "nothing more is done on this node"}

    def _shown(self, told: _report.Told, component: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        hostvars = variables.get("hostvars") or {}
        reports = []
        for host in variables.get("ansible_play_hosts_all") or []:
            theirs = hostvars[host]
            report = (theirs.get("__postboot_report") or {}).get("report")
            if report is None and "__postboot_facts" not in theirs:
                continue  # its turn has not come
            reports.append(report or _report.unreachable(host, _why_unreachable(theirs)))
        reports = _report.in_order(reports)
        check = bool(self._task.check_mode)
        lines = [
            *_report.table(reports, _width(), check),
            *_report.summaries(reports),
            *_report.notes(reports),
            _report.last_line(reports, max([report["seconds"] for report in reports] or [0.0]), check),
        ]
        lines = [_report.visible(line) for line in lines]
        if not _report.printed_last and not str(C.DEFAULT_STDOUT_CALLBACK).endswith("json"):
            display.display("\n" + "\n".join(lines))
        return {"msg": lines[-1], "lines": lines}

    def _progress(self, record: Mapping[str, Any], component: str, report: Mapping[str, Any]) -> None:
        path = os.environ.get(PROGRESS)
        if path and not self._task.check_mode:
            known = {"component": component, "since": time.time(), "ended": not component, "report": report}
            known.update(started=record.get("started"), plans=record.get("components"))
            _run.write_atomically(path, json.dumps(known) + "\n", 0o644)

    def _judged(self, told: _report.Told, component: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        report = (variables.get("__postboot_report") or {}).get("report") or {}
        self._progress(told.record, "", report)
        if told.stopped:
            cause, lines = told.stopped.get("component"), str(told.stopped["message"]).splitlines() or [""]
            more = f" (and {len(lines) - 1} more, which the table has)" if len(lines) > 1 else ""
            return {"failed": True, "msg": f"{cause + ' failed: ' if cause else ''}{lines[0]}{more}"}
        if report.get("ended_badly"):
            return {"failed": True, "msg": report["ended_badly"]}
        return {"msg": "nothing stopped this node"}


def _width() -> int:
    wanted = os.environ.get("COLUMNS", "")
    if wanted.isdigit():
        return int(wanted)
    try:
        # Ansible takes a log for a terminal of 79 columns. A worker asks what its parent writes to.
        terminal = os.readlink(f"/proc/{os.getppid()}/fd/1").startswith(("/dev/pts/", "/dev/tty", "/dev/console"))
    except OSError:
        terminal = True
    return int(display.columns) if terminal else _LOG_WIDTH


def _why_unreachable(theirs: Any) -> str:
    for name in ("__postboot_facts", "__postboot_begin"):
        result = theirs.get(name) or {}
        if result.get("unreachable"):
            return " ".join(str(result.get("msg") or "").split()) or "no connection"
    return "the connection was lost on the way"
