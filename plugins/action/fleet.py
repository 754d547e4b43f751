# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bring a bundle to all nodes of the play by Run Command, show how far it is, and what became of each."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping
from typing import Any

from ansible import constants as C
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.pcluster.postboot.plugins.action.report import _width
from ansible_collections.pcluster.postboot.plugins.plugin_utils import _fleet, _inventory_session, _ssm_command
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory_nodes import InventoryError, one_line, some
from ansible_collections.pcluster.postboot.plugins.plugin_utils._progress import duration

_ROOM = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPT = os.path.join(_ROOM, "playbooks", "files", "fleet.sh")
# Seconds between two looks, and between two lines, where there is news and where there is none.
SHORTEST = 1.0
LONGEST = 10.0
OFTEN = 15.0
SELDOM = 60.0
_YES = {True: "yes", False: "no"}  # what YAML makes of them
_BAD = ("failed", "unreachable")  # which the others wait for
_NEEDED = ("pcluster_instance_id", "pcluster_region", "pcluster_cluster", "pcluster_node_type")
display = Display()


class ActionModule(ActionBase):
    """One task for all hosts: it is to be run once."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run on the controller."""
        variables = task_vars or {}
        result: dict[str, Any] = super().run(tmp, variables)
        _validation, args = self.validate_argument_spec(
            argument_spec={
                "bundle": {"type": "str", "required": True},
                "sha256": {"type": "str", "required": True},
                "args": {"type": "raw", "default": []},
                "concurrency": {"type": "str", "default": "10%"},
                "max_errors": {"type": "str", "default": "0"},
                "timeout": {"type": "int", "default": 3600},
                "profile": {"type": "str", "default": ""},
                "assume_role_arn": {"type": "str", "default": ""},
            }
        )
        try:
            request = _request(args)
            nodes = _nodes(variables)
            if _inventory_session.boto3 is None:
                raise _fleet.FleetError("fleet needs boto3 where Ansible runs, and it is not there: install boto3")
            who = _inventory_session.Credentials(profile=args["profile"], assume_role_arn=args["assume_role_arn"])
            with open(SCRIPT, encoding="utf-8") as stream:
                script = _fleet.script(request, stream.read())
            command = _ssm_command.RunCommand(
                _inventory_session.client_maker(who, nodes[0].region),
                _ssm_command.Script(script, f"pcluster.postboot.fleet: {request.name}", request.timeout),
            )
            result.update(
                self._foretell(nodes, request, command)
                if self._task.check_mode
                else self._roll_out(_fleet.Rollout(nodes, request, command, time.monotonic))
            )
        except (_fleet.FleetError, InventoryError) as error:
            result.update(failed=True, msg=one_line(error))
        return result

    def _foretell(
        self, nodes: list[_ssm_command.Node], request: _fleet.Request, command: _ssm_command.RunCommand
    ) -> dict[str, Any]:
        silent = command.silent(nodes)
        lines = _fleet.foretell(nodes, silent, request)
        _say(*lines)
        bad = {node.name: answer.why for node, answer in silent.items()}
        return {"changed": len(silent) < len(nodes), "msg": lines[0], "lines": lines, "bad": bad}

    def _roll_out(self, rollout: _fleet.Rollout) -> dict[str, Any]:
        begun = told = time.monotonic()
        known: dict[_ssm_command.Node, _fleet.Outcome] = {}
        state, pause = "", SHORTEST
        rollout.begin()
        while True:
            rollout.move()
            for node, outcome in rollout.outcomes.items():
                if node not in known and outcome.state in ("failed", "unreachable"):
                    _say(f"{node.name} {outcome.state}: {outcome.why}")
            known = dict(rollout.outcomes)
            if rollout.done:
                break
            now = time.monotonic()
            if now - told >= (OFTEN if rollout.state() != state else SELDOM):
                told, state = now, rollout.state()
                _say(f"fleet, {duration(now - begun)}: {state}")
            time.sleep(pause)
            pause = min(LONGEST, SHORTEST + (now - begun) / 30)
        lines = rollout.table(_width(), time.monotonic() - begun)
        _say("", *rollout.notes, *lines)
        outcomes = {node.name: outcome for node, outcome in known.items()}
        return {
            "changed": any(outcome.report["changed"] for outcome in outcomes.values()),
            "msg": lines[-1],
            "lines": lines,
            "nodes": {name: {"state": outcome.state, "why": outcome.why} for name, outcome in outcomes.items()},
            "bad": {name: outcome.why for name, outcome in outcomes.items() if outcome.state in _BAD},
        }


def _say(*lines: str) -> None:
    if not str(C.DEFAULT_STDOUT_CALLBACK).endswith("json"):
        display.display("\n".join(lines))


def _request(args: Mapping[str, Any]) -> _fleet.Request:
    words = args["args"]
    try:
        words = shlex.split(words) if isinstance(words, str) else [_YES.get(word, str(word)) for word in words]
    except (TypeError, ValueError) as error:
        raise _fleet.FleetError(f"fleet_args: found {args['args']!r}; needed: arguments of bootstrap.sh") from error
    request = _fleet.Request(
        args["bundle"], args["sha256"], tuple(words), args["concurrency"], args["max_errors"], args["timeout"]
    )
    request.check()
    return request


def _nodes(variables: Mapping[str, Any]) -> list[_ssm_command.Node]:
    """Return the hosts of the play, which has the inventory and --limit behind it."""
    hostvars = variables.get("hostvars") or {}
    nodes, strangers = [], []
    for host in variables.get("ansible_play_hosts_all") or []:
        theirs = hostvars[host]
        found = [str(theirs.get(name) or "") for name in _NEEDED]
        if all(found):
            nodes.append(_ssm_command.Node(str(host), *found))
        else:
            strangers.append(str(host))
    if strangers:
        raise _fleet.FleetError(
            f"{some(strangers)}: no {_NEEDED[0]}; needed: nodes that the inventory plugin pcluster.postboot.pcluster "
            "has found in EC2. --limit pcluster leaves others out"
        )
    return nodes
