# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Our file among those of a node's CloudWatch agent: appended, replaced and removed by the agent's own program.

Whatever happens, the others' part of the configuration goes on working: ParallelCluster ships its logs through it.
"""

from __future__ import annotations

import json
import os
import re
import socket
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._cloudwatch import config as parts
from ansible_collections.pcluster.postboot.plugins.module_utils._host import document, files
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import NotRun, run
from ansible_collections.pcluster.postboot.plugins.module_utils._systemd import unit

UNIT = "amazon-cloudwatch-agent.service"
HOME = "/opt/aws/amazon-cloudwatch-agent"
PARALLELCLUSTER = "amazon-cloudwatch-agent.json"
TIMEOUT = 120
NEWEST = "1.999999.0"


class Request(NamedTuple):
    """The module's options."""

    name: str = "pcluster-postboot"
    state: str = "present"
    home: str = HOME
    wanted: parts.Wanted = parts.Wanted()
    check: bool = False
    wait_seconds: int = 15


class Outcome(NamedTuple):
    """What was done, or in check mode would be, and what the agent has of ours now."""

    actions: list[str]
    diff: list[dict[str, str]]
    config: dict[str, Any]
    namespace: str
    left_out: list[str]
    version: str
    summary: str


class Agent:
    """The agent of this node, and where our file is among those of its configuration."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.home = request.home
        self.program = f"{self.home}/bin/amazon-cloudwatch-agent-ctl"
        self.old = f"{self.home}/etc/{PARALLELCLUSTER}"
        self.translated = f"{self.home}/etc/amazon-cloudwatch-agent.toml"
        self.folder = f"{self.home}/etc/amazon-cloudwatch-agent.d"
        self.own = f"{self.folder}/file_{request.name}.json"
        self.scrape = f"{self.home}/etc/{request.name}-prometheus.yaml"

    def version(self) -> str:
        """Return the agent's version; empty where there is no agent."""
        if not os.access(self.program, os.X_OK):
            return ""
        return (files.read(f"{self.home}/bin/CWAGENT_VERSION") or "unknown").strip()

    def others(self) -> dict[str, dict[str, Any]]:
        """Return the configurations that are not ours, by their files."""
        names = [self.old, *(os.path.join(self.folder, name) for name in self._appended())]
        found = {}
        for path in names:
            text = files.read(path)
            if text is None or path.endswith(".yaml"):
                continue
            try:
                config = document.parse(text)
            except ValueError as error:
                raise Problem(f"{path} is no JSON ({error}), so the agent takes nothing; correct it") from error
            found[path] = document.fitted(config, parts.OTHERS)
        return found

    def _appended(self) -> list[str]:
        """Return the names of all other files that were appended."""
        names = sorted(os.listdir(self.folder)) if os.path.isdir(self.folder) else []
        return [name for name in names if os.path.join(self.folder, name) != self.own and not name.endswith(".tmp")]

    def _call(self, action: str, path: str) -> None:
        said = run([self.program, "-a", action, "-m", "ec2", "-c", f"file:{path}"], TIMEOUT, merged=True)
        if said.code:
            told = re.findall(r"(?:Under path|E!|panic:) .*", "\n".join(said.lines)) or [said.reason]
            why = "; ".join(dict.fromkeys(told))
            why = why if len(why) <= 400 else why[:397] + "..."
            raise Problem(
                f"'{os.path.basename(self.program)} -a {action}' failed: {why}; the agent goes on as it was, "
                f"{self.home}/logs/configuration-validation.log may say more"
            )

    def append(self, text: str) -> None:
        """Put our file in place, if the agent accepts it together with the others."""
        with files.folder("postboot-cloudwatch-") as folder:
            path = os.path.join(folder, f"{self.request.name}.json")
            with open(path, "w", encoding="utf-8") as stream:
                stream.write(text)
            try:
                self._call("append-config", path)
            finally:
                # What it has refused stays there otherwise.
                if os.path.exists(self.own + ".tmp"):
                    os.unlink(self.own + ".tmp")

    def remove(self) -> None:
        """Remove our file.

        Without any other appended file the program would throw the whole configuration away, and the next start would
        put the default one in the place of ParallelCluster's. That is appended before, as ParallelCluster does it.
        """
        if not self._appended() and os.path.exists(self.old):
            self._call("append-config", self.old)
        self._call("remove-config", f"/{self.request.name}.json")

    def unused(self) -> bool:
        """Tell whether ParallelCluster has written its configuration and never applied it.

        It does so where the cluster's CloudWatch logs are off. The agent would apply it with the first file that is
        appended.
        """
        return os.path.exists(self.old) and not os.path.exists(self.own) and not os.path.exists(self.translated)

    def run(self, up: bool = False) -> list[str]:
        """Have the agent run with its present files; return what was done."""
        configured = bool(self._appended()) or os.path.exists(self.old)
        up = os.path.exists(self.own) or (up and configured)
        try:
            return unit.apply(
                unit.Request(
                    name=UNIT,
                    state="started" if up else "current" if configured else "stopped",
                    restart_on=(self.folder, self.scrape),
                    wait_seconds=self.request.wait_seconds,
                    check=self.request.check,
                )
            ).actions
        except unit.UnitError as error:
            message = f"{error}; {self.home}/logs/amazon-cloudwatch-agent.log may say more"
            raise unit.UnitError(message, error.journal) from error


def _text(config: dict[str, Any] | None) -> str:
    return json.dumps(config, indent=2, sort_keys=True) + "\n" if config else ""


def _same(text: str | None, config: dict[str, Any]) -> bool:
    try:
        return bool(document.parse(text or "{}") == config)
    except ValueError:
        return False


def apply(request: Request) -> Outcome:
    """Bring our part of the agent's configuration into the state that is asked for."""
    agent = Agent(request)
    wanted = request.wanted._replace(scrape_path=agent.scrape)
    parts.check(wanted)
    version = agent.version()
    if not version and request.state == "absent":
        return Outcome([], [], {}, "", [], "", "")
    if not version and not request.check:
        raise Problem(f"{agent.program} is not there, so there is no CloudWatch agent to configure; install it")
    others = agent.others()
    if request.state == "absent" or agent.unused():
        off = request.state == "present"
        reason = [f"all: CloudWatch logs are off in this cluster, {agent.old} was never applied"] if off else []
        fitted = parts.Fitted({}, None, "", reason)
    else:
        names = sorted({os.path.basename(path).replace("file_", "", 1) for path in others})
        whose = "ParallelCluster's own" if names == [PARALLELCLUSTER] else ", ".join(names)
        host = socket.gethostname().split(".")[0]
        # A check before the installation knows no version: the one that will be installed has all that is asked for.
        fitted = parts.fit(wanted, parts.merged(others), version or NEWEST, host, whose)
    actions, diff = _change(agent, fitted)
    if request.check and actions:
        actions.append("restarted")
    elif version and not actions:
        actions = agent.run()
    return Outcome(
        actions, diff, fitted.config, fitted.namespace, fitted.left_out, version, summary(fitted, request.state)
    )


def _change(agent: Agent, fitted: parts.Fitted) -> tuple[list[str], list[dict[str, str]]]:
    """Append, replace or remove our file, and start the agent with it; put back what was there when it fails."""
    before, scrape = files.read(agent.own), files.read(agent.scrape)
    text, targets = _text(fitted.config), _text(fitted.scrape)
    due = (before is not None) if not fitted.config else not _same(before, fitted.config)
    targets_due = (scrape or "") != targets
    if not due and not targets_due:
        return [], []
    diff = [files.diff(agent.own, before or "", text)] if due else []
    diff += [files.diff(agent.scrape, scrape or "", targets)] if targets_due else []
    actions = [("appended" if fitted.config else "removed")] if due else []
    actions += ["wrote"] if targets_due else []
    if agent.request.check:
        return actions, diff
    try:
        _put(agent, text if due else None, targets)
        actions += agent.run()
    except Problem as error:
        raise _undo(agent, before, scrape, error) from error
    return actions, diff


def _put(agent: Agent, text: str | None, targets: str | None) -> None:
    """Put both files in place; empty texts remove them, and None leaves ours as it is."""
    if targets:
        files.write(agent.scrape, targets)
    if text:
        agent.append(text)
    elif text is not None and os.path.exists(agent.own):
        agent.remove()
    # The agent's own check reads it, so that it goes last.
    if not targets and os.path.exists(agent.scrape):
        os.unlink(agent.scrape)


def _undo(agent: Agent, before: str | None, scrape: str | None, error: Problem) -> Problem:
    """Put back what was there; return an error that tells what has failed, and what became of the others' part."""
    refused = not isinstance(error, (unit.UnitError, NotRun))
    told = str(error)
    try:
        _put(agent, None if files.read(agent.own) == before else before or "", scrape)
        if not refused:
            agent.run(up=True)
            told += "; its configuration was put back as it was, and with that it runs"
    except (Problem, OSError) as worse:
        told += f"; and with its configuration as it was before: {worse}"
    return Problem(told, **error.told)


def summary(fitted: parts.Fitted, state: str) -> str:
    """Return one phrase for the report."""
    if not fitted.config:
        return (
            f"no configuration of this collection ({'; '.join(fitted.left_out) or 'nothing is selected'})"
            if state == "present"
            else ""
        )
    collected = fitted.config.get("metrics", {}).get("metrics_collected", {})
    # On how many devices there is each of them, the agent alone knows.
    names = sum(len(part.get("measurement", ())) for part in collected.values() if isinstance(part, dict))
    plugins = list(collected)
    plugins += ["prometheus"] if fitted.scrape else []
    logs = len(fitted.config.get("logs", {}).get("logs_collected", {}).get("files", {}).get("collect_list", []))
    count = f" ({names} names of metrics)" if names else ""
    said = [f"{', '.join(plugins)}{count} to {fitted.namespace}"] if plugins else []
    said += [f"{logs} log{'s' if logs != 1 else ''}"] if logs else []
    more = f" (left out: {'; '.join(fitted.left_out)})" if fitted.left_out else ""
    return " and ".join(said) + more
