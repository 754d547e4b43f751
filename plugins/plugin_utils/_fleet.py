# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A bundle on many nodes: head nodes first, some at a time, and no further after too many failures."""

from __future__ import annotations

import base64
import binascii
import gzip
import json
import re
import shlex
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.plugin_utils import _report, _ssm_command
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory_nodes import InventoryError, one_line, some
from ansible_collections.pcluster.postboot.plugins.plugin_utils._ssm_command import Answer, Node

ARCHIVE = "pcluster-postboot.tar.gz"
MARK = "pcluster-postboot-fleet"  # with which fleet.sh begins the line for the controller
FORMAT = "1"
LONGEST = 28800  # seconds; the pattern of the document's executionTimeout ends there
LAST_SECONDS = 60  # between bootstrap.sh's budget and SSM's kill
LOG = "/var/log/pcluster-postboot/pull.log"
_URL = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^/\s'*?{}]+)+/?")
_SAYS = "pcluster-postboot: "


class FleetError(Exception):
    """What is wrong with what is asked for, on one line."""


class Request(NamedTuple):
    """What is asked for; the action's documentation tells what each part means."""

    bundle: str
    sha256: str
    arguments: tuple[str, ...] = ()
    concurrency: str = "10%"
    max_errors: str = "0"
    timeout: int = 3600

    @property
    def url(self) -> str:
        return self.bundle if self.bundle.endswith(".tar.gz") else f"{self.bundle.rstrip('/')}/{ARCHIVE}"

    @property
    def name(self) -> str:
        """What people call the bundle."""
        return self.url.split("/")[-2] if self.url.endswith(f"/{ARCHIVE}") else self.url.split("/")[-1]

    def check(self) -> None:
        """Raise FleetError for what cannot be."""
        if not _URL.fullmatch(self.bundle):
            found = f"found {self.bundle!r}" if self.bundle else "it is not set"
            raise FleetError(
                f"fleet_bundle: {found}; needed: s3://<bucket>/<prefix>/<bundle>, where publish has put the bundle"
            )
        if not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            found = f"found {self.sha256!r}" if self.sha256 else "it is not set"
            raise FleetError(
                f"fleet_sha256: {found}; needed: the bundle's 64 hexadecimal digits, as publish prints them"
            )
        digits = re.search(r"-([0-9a-f]{12})$", self.name)
        if digits and not self.sha256.startswith(digits[1]):
            raise FleetError(f"fleet_sha256: found {self.sha256}; needed: that of {self.name}, or another fleet_bundle")
        if not re.fullmatch(r"[1-9]\d*|[1-9]\d?%|100%", self.concurrency):
            raise FleetError(f"fleet_concurrency: found {self.concurrency!r}; needed: a number from 1, or 1% to 100%")
        if not re.fullmatch(r"\d+|\d\d?%|100%", self.max_errors):
            raise FleetError(f"fleet_max_errors: found {self.max_errors!r}; needed: a number from 0, or 0% to 100%")
        if not 5 * LAST_SECONDS <= self.timeout <= LONGEST:
            raise FleetError(f"fleet_timeout: found {self.timeout}; needed: {5 * LAST_SECONDS} to {LONGEST} seconds")
        if any("{{" in word for word in self.arguments):
            raise FleetError("fleet_args: found {{, which SSM would take for a parameter of its own")


def script(request: Request, body: str) -> str:
    """Return what runs on the nodes: fleet.sh, and what it has to know before it."""
    # All of it is done before the node takes jobs or says that it is done: nobody would see what came of the rest.
    words = ["--defer", "no", *request.arguments]
    known = {"url": request.url, "sha256": request.sha256, "seconds": str(request.timeout - LAST_SECONDS)}
    lines = [f"{name}={shlex.quote(value)}" for name, value in known.items()]
    first, rest = body.split("\n", 1)
    return "\n".join([first, *lines, f"set -- {shlex.join(words)}", rest])


class Told(NamedTuple):
    """What fleet.sh has printed on a node."""

    before: str = ""  # the bundle that was installed
    after: str = ""
    report: dict[str, Any] | None = None
    last: str = ""  # what bootstrap.sh said last


def read(output: str) -> Told:
    """Read what fleet.sh has printed; SSM may have cut off its end."""
    lines = [line for line in map(_visible, output.splitlines()) if line]
    said = [line for line in lines if not line.startswith((MARK, "---"))]
    last = said[-1].removeprefix(_SAYS) if said else ""
    for line in lines:
        words = line.split()
        if words[:2] == [MARK, FORMAT] and len(words) == 6:
            before, after = ("" if word == "-" else word for word in words[3:5])
            return Told(before, after, _unpack(words[5]), last)
    return Told(last=last)


def _unpack(word: str) -> dict[str, Any] | None:
    try:
        found = json.loads(gzip.decompress(base64.b64decode(word, validate=True)))
    except (binascii.Error, OSError, EOFError, zlib.error, ValueError):
        return None
    if not _is_report(found):
        return None
    report: dict[str, Any] = _all_visible(found)
    if report.get("stopped"):  # the only text of several lines
        report["stopped"]["message"] = "\n".join(map(_visible, found["stopped"]["message"].splitlines()))
    return report


def _visible(text: str) -> str:
    """Return a node's words on one line, with what a terminal would obey written out, as in \\x1b[2J."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in one_line(text))


def _all_visible(found: Any) -> Any:
    """Return what JSON has become, with all its texts visible."""
    if isinstance(found, dict):
        return {_visible(name): _all_visible(one) for name, one in found.items()}
    if isinstance(found, list):
        return [_all_visible(one) for one in found]
    return _visible(found) if isinstance(found, str) else found


def _is_report(found: Any) -> bool:
    """Say whether it has what the table needs. A node is not to be trusted with more than itself."""
    if not isinstance(found, dict) or not isinstance(found.get("components"), list):
        return False
    numbers = [found.get("changed"), found.get("seconds")]
    texts = [found.get("outcome")]
    stopped = found.get("stopped")
    if stopped or found.get("outcome") == "stopped":
        if not isinstance(stopped, dict):
            return False
        texts += [stopped.get("component"), stopped.get("message")]
    for entry in found["components"]:
        if not isinstance(entry, dict):
            return False
        numbers += [entry.get("changed"), entry.get("seconds")]
        texts += [entry.get(name) for name in ("name", "status", "why")]
        texts += [entry.get("task")] if entry.get("status") == "failed" else []
    return all(isinstance(one, (int, float)) for one in numbers) and all(isinstance(one, str) for one in texts)


class Outcome(NamedTuple):
    """What became of a node."""

    state: str  # ok, changed, failed, unreachable, not sent
    why: str
    report: dict[str, Any]  # as the table takes it


def judge(node: Node, answer: Answer, seconds: float) -> Outcome:
    """Say what became of a node where the command has ended, or never came."""
    about = {"host": node.name, "cluster": node.cluster, "node_type": node.kind}
    if answer.state == "unreachable":
        return Outcome("unreachable", answer.why, {**_report.unreachable(node.name, answer.why), **about})
    told = read(answer.output)
    failed = answer.state == "failed"
    why = (answer.why or told.last or f"it says nothing; look at {LOG} on the node") if failed else ""
    report = told.report
    if report is None:
        report = {"outcome": "ok", "stopped": None, "components": [], "changed": 0, "seconds": round(seconds, 1)}
        if failed:
            report.update(outcome="stopped", stopped={"component": "", "message": why})
    elif failed and report["outcome"] not in ("stopped", "failed"):
        report["ended_badly"] = why
    changed = told.before != told.after
    entry = {
        "name": "bundle",
        "status": "changed" if changed else "unchanged",
        "changed": int(changed),
        "seconds": 0.0,
        "why": "",
        "summary": told.after,
    }
    report.update(components=[entry, *report["components"]], changed=report["changed"] + changed, **about)
    return Outcome("failed" if failed else "changed" if report["changed"] else "ok", why, report)


def part(text: str, whole: int) -> int:
    """Return a number, or a part of the whole, rounded down."""
    return whole * int(text[:-1]) // 100 if text.endswith("%") else int(text)


class Step(NamedTuple):
    """Nodes that may run it together, and how many at a time."""

    what: str
    nodes: list[Node]
    at_a_time: int


def steps(nodes: Sequence[Node], concurrency: str) -> list[Step]:
    """Return head nodes, which publish what the others use, and then the others."""
    heads = [node for node in nodes if node.kind == "head"]
    others = [node for node in nodes if node.kind != "head"]
    kinds = (("head node", heads), ("other node", others))
    return [Step(what, group, max(1, part(concurrency, len(group)))) for what, group in kinds if group]


def foretell(nodes: Sequence[Node], silent: Mapping[Node, Answer], request: Request) -> list[str]:
    """Return what would be sent."""
    lines = []
    for step in steps([node for node in nodes if node not in silent], request.concurrency):
        names = some((node.name for node in step.nodes), 6)
        plural = "s" if len(step.nodes) > 1 else ""
        lines.append(
            f"would send {request.name} to {len(step.nodes)} {step.what}{plural}, {step.at_a_time} at a time: {names}"
        )
    for why in dict.fromkeys(answer.why for answer in silent.values()):
        names = some((node.name for node, answer in silent.items() if answer.why == why), 6)
        lines.append(f"unreachable: {names}: {why}")
    return lines


class Rollout:
    """Brings the bundle to all nodes, one move at a time."""

    def __init__(
        self, nodes: Sequence[Node], request: Request, command: _ssm_command.RunCommand, clock: Callable[[], float]
    ) -> None:
        self.nodes, self.request, self._command, self._clock = list(nodes), request, command, clock
        self.outcomes: dict[Node, Outcome] = {}
        self._begun: dict[Node, float] = {}
        self._steps: list[Step] = []
        self._waiting: list[Node] = []
        self._at_a_time = 1
        self._may_fail = part(request.max_errors, len(self.nodes))

    @property
    def done(self) -> bool:
        return len(self.outcomes) == len(self.nodes)

    @property
    def failed(self) -> int:
        return sum(outcome.state == "failed" for outcome in self.outcomes.values())

    def begin(self) -> None:
        """Find out who can be reached."""
        silent = self._command.silent(self.nodes)
        self._note(silent)
        self._steps = steps([node for node in self.nodes if node not in silent], self.request.concurrency)
        self._hold_back()

    def move(self) -> None:
        """See what has ended, and send what may be sent."""
        try:
            self._note(self._command.poll())
            self._hold_back()
            self._send()
        except InventoryError as error:
            # What has begun goes on by itself, and nothing more is sent.
            self._skip([node for node in self.nodes if node not in self._begun], str(error))
            self._note(self._command.forget(str(error)))

    def _send(self) -> None:
        while not self._waiting and self._steps and not self._command.running:
            step = self._steps.pop(0)
            self._waiting, self._at_a_time = [node for node in step.nodes if node not in self.outcomes], step.at_a_time
        free = self._at_a_time - len(self._command.running)
        # Nodes end one by one. Each command costs a call at every look, so there are to be few of them.
        while self._waiting and free >= min(len(self._waiting), max(1, self._at_a_time // 4), _ssm_command.BATCH):
            region = self._waiting[0].region
            batch = [node for node in self._waiting if node.region == region][: min(free, _ssm_command.BATCH)]
            self._waiting = [node for node in self._waiting if node not in batch]
            try:
                refused, later = self._command.send(batch)
            except InventoryError as error:
                here = self._command.running
                self._note({node: Answer("failed", str(error)) for node in batch if node not in here})
                raise
            self._begun.update({node: self._clock() for node in batch if node not in later})
            self._note(refused)
            self._waiting = [*later, *self._waiting]
            free = self._at_a_time - len(self._command.running)
            if later:
                return

    def _hold_back(self) -> None:
        """Skip the nodes that are not to have it any more."""
        if self.failed > self._may_fail:
            failures = f"{self.failed} failure{'s' if self.failed > 1 else ''}"
            why = f"stopped after {failures} (fleet_max_errors is {self.request.max_errors})"
            self._skip([node for node in self.nodes if node not in self._begun], why)
        bad = ("failed", "unreachable", "not sent")
        heads = [node for node, outcome in self.outcomes.items() if node.kind == "head" and outcome.state in bad]
        for head in heads:
            ours = [node for node in self.nodes if (node.region, node.cluster) == (head.region, head.cluster)]
            why = f"its head node {head.name}, which comes first, does not run the bundle"
            self._skip([node for node in ours if node not in self._begun], why)

    def _skip(self, nodes: Iterable[Node], why: str) -> None:
        for node in nodes:
            if node not in self.outcomes:
                report = {**_report.unreachable(node.name, why), "outcome": "not sent"}
                report.update(cluster=node.cluster, node_type=node.kind)
                self.outcomes[node] = Outcome("not sent", why, report)
        self._waiting = [node for node in self._waiting if node not in self.outcomes]

    def _note(self, answers: Mapping[Node, Answer]) -> None:
        for node, answer in answers.items():
            self.outcomes[node] = judge(node, answer, self._clock() - self._begun.get(node, self._clock()))

    # What people see

    @property
    def notes(self) -> list[str]:
        """What else there is to know."""
        return self._command.notes

    def state(self) -> str:
        """Return how far it is."""
        count = dict.fromkeys(("failed", "unreachable", "not sent"), 0)
        for outcome in self.outcomes.values():
            if outcome.state in count:
                count[outcome.state] += 1
        running = len(self._command.running)
        words = [f"{number} {state}" for state, number in count.items() if number]
        words += [f"{running} running"] if running else []
        return f"{len(self.outcomes)} of {len(self.nodes)} nodes done" + "".join(f", {word}" for word in words)

    def table(self, width: int, seconds: float) -> list[str]:
        """Return what became of all nodes."""
        reports = _report.in_order([outcome.report for outcome in self.outcomes.values()])
        lines = [*_report.table(reports, width), *_report.summaries(reports), *_report.notes(reports)]
        unsent: dict[str, list[str]] = {}
        for node, outcome in self.outcomes.items():
            if outcome.state == "not sent":
                unsent.setdefault(outcome.why, []).append(node.name)
        lines += [f"not sent to {some(names, 6)}: {why}" for why, names in unsent.items()]
        missing = sum(map(len, unsent.values()))
        return [*lines, _report.last_line(reports, seconds) + (f"; not sent to {missing}" if missing else "")]
