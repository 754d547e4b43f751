# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bring a bundle to all nodes of the play by Run Command or sessions, show how far it is, and what became of each."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.text import visible_lines
from ansible_collections.pcluster.postboot.plugins.module_utils._node.hyperpod import PLATFORM as HYPERPOD
from ansible_collections.pcluster.postboot.plugins.module_utils._node.identity import MONITORING
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws import (
    run_command,
    session,
    session_command,
    session_manager,
)
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.errors import some
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.remote_script import Carrier, Node, Script
from ansible_collections.pcluster.postboot.plugins.plugin_utils._fleet import carriers as fleet_carriers
from ansible_collections.pcluster.postboot.plugins.plugin_utils._fleet import files as fleet_files
from ansible_collections.pcluster.postboot.plugins.plugin_utils._fleet import rollout as fleet_rollout
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import terminal
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.on_controller import OnController
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.progress import duration
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.roles import options

_ROOM = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPT = os.path.join(_ROOM, "roles", "fleet", "files", "fleet.sh")
# Seconds between two looks: a tenth of what nodes take, and before that is known, of what has passed.
SHORTEST = 2.0
LONGEST = 6.0
# Seconds between two lines: half of what has passed.
OFTEN = 15.0
SELDOM = 300.0
_YES = {True: "yes", False: "no"}  # what YAML makes of them
_NEEDED = ("pcluster_instance_id", "pcluster_region", "pcluster_cluster", "pcluster_node_type")
_KIND = ("pcluster_queue", "pcluster_instance_type")
_TARGET = "pcluster_ssm_target"


class Interrupted(BaseException):
    """The run is to end: by a signal, or because ansible-playbook is gone, which is 0."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Stop:
    """Makes SIGINT and SIGTERM an exception, but not while it is unknown whether a command was sent.

    Ansible runs the action in a process with a session of its own, and passes on these two signals and no other.
    """

    def __init__(self, command: Carrier) -> None:
        self._command, self._parent = command, os.getppid()
        self._number, self._over = 0, False

    def look(self) -> None:
        if self._number or os.getppid() != self._parent:
            self._over = True
            raise Interrupted(self._number)

    @contextmanager
    def listening(self) -> Iterator[None]:
        before = {one: signal.signal(one, self._heard) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    def _heard(self, number: int, _frame: FrameType | None) -> None:
        if self._over:
            return  # Ansible sends SIGTERM right after SIGINT, while that is still answered
        self._number = self._number or number
        if not self._command.sending:
            self._over = True
            raise Interrupted(self._number)


class ActionModule(OnController):
    SPEC = {"variables": {"type": "dict", "required": True}}

    def work(self, args: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Roll the bundle out, or tell what would be sent."""
        args = options("fleet", args["variables"])
        request = _request(args)
        nodes = _nodes(variables)
        session.need_boto3()
        who = session.Credentials(profile=args["profile"], assume_role_arn=args["assume_role_arn"])
        with open(SCRIPT, encoding="utf-8") as stream:
            script = fleet_rollout.script(request, stream.read())
        comment = f"pcluster.postboot.fleet: {request.name}"
        what = Script(script, comment, request.timeout, fleet_rollout.enough)
        make_client = session.client_maker(who, nodes[0].region)
        sessions = session_manager.Sessions(args["profile"])
        command = fleet_carriers.Carriers(
            run_command.RunCommand(make_client, what, time.monotonic),
            session_command.SessionCommand(make_client, what, time.monotonic, sessions),
        )
        if self._task.check_mode:
            return self._foretell(nodes, request, command)
        rollout = fleet_rollout.Rollout(nodes, request, command, time.monotonic)
        report = args["report"] or f"fleet-{request.name.removesuffix('.tar.gz')}.json"
        files = fleet_files.Files(report, [node.name for node in nodes])
        return self._roll_out(rollout, files, Stop(command))

    def _foretell(self, nodes: list[Node], request: fleet_rollout.Request, command: Carrier) -> dict[str, Any]:
        silent = command.silent(nodes)
        lines = fleet_rollout.foretell(nodes, silent, request)
        terminal.say(*lines)
        bad = {"failed": True} if silent else {}
        return {"changed": len(silent) < len(nodes), "msg": lines[-1] if silent else lines[0], "lines": lines, **bad}

    def _roll_out(self, rollout: fleet_rollout.Rollout, files: fleet_files.Files, stop: Stop) -> dict[str, Any]:
        begun, screen = time.monotonic(), fleet_files.screen(os.getppid())
        try:
            files.note(rollout.left)
        except OSError as error:
            raise Problem(f"fleet_report: {files.limit} cannot be written: {error}") from error
        terminal.say(f"what becomes of each node: {files.report}; nodes that do not run the bundle: {files.limit}")
        with stop.listening():
            try:
                self._until_done(rollout, files, stop, begun)
            except Interrupted as interrupted:
                self._end(rollout, files, screen, interrupted.number, time.monotonic() - begun)
        lines = rollout.table(terminal.width(), time.monotonic() - begun)
        terminal.say("", *lines)
        self._keep(rollout, files, lines[-1])
        reports = [outcome.report for outcome in rollout.outcomes.values()]
        result: dict[str, Any] = {"changed": any(report["changed"] for report in reports), "msg": lines[-1]}
        result["report"] = files.report
        if rollout.left:
            result.update(failed=True, limit=files.limit)
            result["msg"] = (
                f"{len(rollout.left)} of {len(rollout.nodes)} nodes do not run {rollout.request.name}, for the reasons "
                f"above; --limit @{files.limit} takes these alone, and {files.report} has all that is known"
            )
        return result

    def _until_done(self, rollout: fleet_rollout.Rollout, files: fleet_files.Files, stop: Stop, begun: float) -> None:
        told, notes = begun, 0
        rollout.begin()
        while True:
            stop.look()
            rollout.move()
            stop.look()
            self._note(rollout, files)
            terminal.say(*rollout.news(), *rollout.notes[notes:])
            notes = len(rollout.notes)
            if rollout.done:
                return
            now = time.monotonic()
            if now - told >= min(SELDOM, max(OFTEN, (told - begun) / 2)):
                told = now
                terminal.say(f"fleet, {duration(now - begun)}: {rollout.state()}")
            time.sleep(min(LONGEST, max(SHORTEST, (rollout.seconds or now - begun) / 10)))

    def _note(self, rollout: fleet_rollout.Rollout, files: fleet_files.Files) -> None:
        try:
            files.note(rollout.left)
        except OSError as error:
            terminal.whisper(f"{files.limit}: {error}")  # it could be written before anything was sent

    def _keep(self, rollout: fleet_rollout.Rollout, files: fleet_files.Files, how: str) -> None:
        request = rollout.request
        found = {"bundle": request.url, "sha256": request.sha256, "summary": how, "nodes": rollout.told()}
        self._note(rollout, files)
        try:
            files.write(found)
        except OSError as error:
            terminal.say(f"{files.report} cannot be written: {error}")

    def _end(
        self, rollout: fleet_rollout.Rollout, files: fleet_files.Files, screen: int | None, number: int, seconds: float
    ) -> None:
        """Say who has the bundle and who does not, and end as Ansible would have."""
        why = signal.Signals(number).name if number else "ansible-playbook is gone"
        how = f"fleet was interrupted after {duration(seconds)} ({why}); nothing more is sent"
        self._keep(rollout, files, how)
        lines = [how, *rollout.interrupted()]
        lines.append(f"{files.report} has the id of each node's command; go on with --limit @{files.limit}")
        if screen is not None and not terminal.quiet():
            try:
                os.write(screen, (visible_lines("\n".join(["", *lines])) + "\n").encode())
            except OSError:
                pass  # the terminal is closed
        if number:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        os._exit(1)  # nobody is there to take a result


def _request(args: Mapping[str, Any]) -> fleet_rollout.Request:
    words = args["args"]
    try:
        words = shlex.split(words) if isinstance(words, str) else [_YES.get(word, str(word)) for word in words]
    except (TypeError, ValueError) as error:
        raise Problem(f"fleet_args: found {args['args']!r}; needed: arguments of bootstrap.sh") from error
    request = fleet_rollout.Request(
        args["bundle"], args["sha256"], tuple(words), args["concurrency"], args["max_errors"], args["timeout"]
    )
    request.check()
    return request


def _nodes(variables: Mapping[str, Any]) -> list[Node]:
    """Return the hosts of the play, which has the inventory and --limit behind it; without a monitoring instance."""
    hostvars = variables.get("hostvars") or {}
    nodes, strangers = [], []
    for host in variables.get("ansible_play_hosts_all") or []:
        theirs = hostvars[host]
        needed = (*_NEEDED, _TARGET) if theirs.get("pcluster_platform") == HYPERPOD else _NEEDED
        found = [str(theirs.get(name) or "") for name in needed]
        if theirs.get("pcluster_node_type") == MONITORING:
            continue
        if all(found):
            group = " ".join(str(theirs.get(name) or "") for name in _KIND)
            nodes.append(Node(*[str(host), *found[: len(_NEEDED)], group, *found[len(_NEEDED) :]]))
        else:
            strangers.append(str(host))
    if strangers:
        raise Problem(
            f"{some(strangers)}: no {_NEEDED[0]}, or no {_TARGET} on HyperPod; needed: nodes that the inventory plugin "
            "pcluster.postboot.pcluster has found. --limit pcluster leaves others out"
        )
    if not nodes:
        raise Problem("found no node of a cluster; needed: one, because a monitoring instance runs no bundle")
    return nodes
