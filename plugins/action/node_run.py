# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Begin and end a run on a node. The controller adds what only it knows: who it is, and whether another run lives."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure

from ansible_collections.pcluster.postboot.plugins.module_utils._host import lock
from ansible_collections.pcluster.postboot.plugins.module_utils._host.text import visible
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import report as site_report
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import turns
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.in_process import InProcess

_MODULE = "pcluster.postboot.node_run"
# One remote command waits this long at most: connections such as Session Manager's end longer ones.
_TURN = 20.0
_PAUSE = 5.0


class ActionModule(InProcess):
    """Call the module as often as waiting needs, and hand it the report at the end."""

    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        variables = task_vars or {}
        result: dict[str, Any] = super().run(tmp, variables)
        args = dict(self._task.args)
        # A worker process is a child of the one that drives the run.
        mode = "pull" if self._connection.transport == "local" else "push"
        me = lock.Holder.of_process(os.getppid(), mode, turns.turns(variables))
        args["run"] = asdict(me)
        if args.get("state") == "end":
            result.update(self._end(args, variables))
        else:
            result.update(self._begin(args, variables))
        return result

    def _call(self, args: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = self._execute_module(module_name=_MODULE, module_args=args, task_vars=variables)
        return answer

    def _begin(self, args: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        until = time.monotonic() + _timeout(args)
        wait, told = 0.0, ""
        while True:
            answer = self._call({**args, "wait": wait}, variables)
            left = max(0.0, until - time.monotonic())
            if answer.get("busy"):
                if not left:
                    return {**answer, "failed": True}
                time.sleep(min(left, _PAUSE))
                continue
            if answer.get("taken") or not answer.get("held"):
                return answer
            # It is held. If its holder is of this machine, we know better than the node whether it lives.
            holder = lock.Holder.from_dict(answer.get("holder"))
            alive = holder.alive()
            if alive is not None:
                args.update(judged_run=holder.run_id, judged_alive=alive)
            news = alive is False and told != holder.run_id
            if not left and not news:
                return answer
            told = holder.run_id
            wait = 0.0 if news else min(left, _TURN)

    def _end(self, args: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        check = bool(self._task.check_mode)
        report = site_report.summarise(site_report.Told.by(variables), variables, time.time(), check)
        answer: dict[str, Any] = {"changed": False}
        if (variables.get("__postboot_begin") or {}).get("taken") and not check:
            # It does not fail here: the table, which comes next, has to be shown in any case.
            answer = self._ended({**args, "report": report}, variables)
            if answer.get("failed") or answer.get("busy"):
                report["ended_badly"] = str(answer.get("msg") or "no message")
                answer = {"changed": False, "msg": report["ended_badly"]}
        return {**answer, "report": report}

    def _ended(self, args: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        until = time.monotonic() + _timeout(args)
        try:
            answer = self._call(args, variables)
            while answer.get("busy") and time.monotonic() < until:
                time.sleep(_PAUSE)
                answer = self._call(args, variables)
        except AnsibleConnectionFailure as error:
            return {"failed": True, "msg": visible(f"the connection was lost at the end: {error}")}
        return answer


def _timeout(args: dict[str, Any]) -> float:
    found = args.get("lock_timeout", 600)
    try:
        return float(found)
    except (TypeError, ValueError) as error:
        raise AnsibleActionFail(f"lock_timeout is {found!r}; needed: a number of seconds") from error
