# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A bundle on many nodes: head nodes first, some at a time, and no further after too many failures."""

from __future__ import annotations

import base64
import binascii
import gzip
import re
import shlex
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._host import document
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.report import SHAPE
from ansible_collections.pcluster.postboot.plugins.module_utils._host.text import visible
from ansible_collections.pcluster.postboot.plugins.module_utils._slurm.names import natural, shown
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws import run_command
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.errors import one_line, some
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.remote_script import Answer, Carrier, Node
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import report as site_report
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.progress import duration

ARCHIVE = "pcluster-postboot.tar.gz"
MARK = "pcluster-postboot-fleet"  # with which fleet.sh begins the line for the controller
FORMAT = "1"
LONGEST = 28800  # seconds; the pattern of the document's executionTimeout ends there
LAST_SECONDS = 60  # between bootstrap.sh's budget and SSM's kill
FIRST = 5  # nodes that have the bundle before the first result is known: head nodes, and then others
FEW = 12  # nodes up to which the table has a column for each
REASONS = 10  # that are told of what went wrong; the report has all
WIDE = 200  # characters that the names of a line may take
PARTS = 16  # of those that may have it at a time; a command goes to at least such a part
STRAGGLES = 2  # times what nodes take on the average
LOG = "/var/log/pcluster-postboot/pull.log"
_URL = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^/\s'*?{}]+)+/?")
_SAYS = "pcluster-postboot: "


class Request(NamedTuple):
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
        if not _URL.fullmatch(self.bundle):
            found = f"found {self.bundle!r}" if self.bundle else "it is not set"
            raise Problem(
                f"fleet_bundle: {found}; needed: s3://<bucket>/<prefix>/<bundle>, where publish has put the bundle"
            )
        if not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            found = f"found {self.sha256!r}" if self.sha256 else "it is not set"
            raise Problem(f"fleet_sha256: {found}; needed: the bundle's 64 hexadecimal digits, as publish prints them")
        digits = re.search(r"-([0-9a-f]{12})$", self.name)
        if digits and not self.sha256.startswith(digits[1]):
            raise Problem(f"fleet_sha256: found {self.sha256}; needed: that of {self.name}, or another fleet_bundle")
        if not re.fullmatch(r"[1-9]\d*|[1-9]\d?%|100%", self.concurrency):
            raise Problem(f"fleet_concurrency: found {self.concurrency!r}; needed: a number from 1, or 1% to 100%")
        if not re.fullmatch(r"\d+|\d\d?%|100%", self.max_errors):
            raise Problem(f"fleet_max_errors: found {self.max_errors!r}; needed: a number from 0, or 0% to 100%")
        if not 5 * LAST_SECONDS <= self.timeout <= LONGEST:
            raise Problem(f"fleet_timeout: found {self.timeout}; needed: {5 * LAST_SECONDS} to {LONGEST} seconds")
        if any("{{" in word for word in self.arguments):
            raise Problem("fleet_args: found {{, which SSM would take for a parameter of its own")


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


def enough(output: str) -> bool:
    """Say whether the beginning of what fleet.sh has printed holds the line for the controller whole."""
    line = output.split("\n", 1)[0].split()
    return "\n" in output and len(line) == 6 and line[0] == MARK and (line[5] == "-" or _unpack(line[5]) is not None)


def _unpack(word: str) -> dict[str, Any] | None:
    try:
        told = document.parse(gzip.decompress(base64.b64decode(word, validate=True)))
    except (binascii.Error, OSError, EOFError, zlib.error, ValueError):
        return None
    if not _is_report(told):
        return None
    found = {"stopped": None, **document.fitted(told, SHAPE)}
    report: dict[str, Any] = _all_visible(found)
    if report.get("stopped"):  # the only text of several lines
        report["stopped"]["message"] = "\n".join(map(_visible, found["stopped"]["message"].splitlines()))
    return report


def _visible(text: str) -> str:
    """Return a node's words on one line, with what a terminal would obey written out."""
    return visible(one_line(text))


def _all_visible(found: Any) -> Any:
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
    counted = all(document.fitted(one, float) is not None for one in numbers)
    return counted and all(isinstance(one, str) for one in texts)


_BAD = ("failed", "unreachable", "not sent")  # what matters most first


class Outcome(NamedTuple):
    state: str  # ok, changed, failed, unreachable, not sent
    why: str
    report: dict[str, Any]  # as the table takes it


def judge(node: Node, answer: Answer, seconds: float) -> Outcome:
    """Say what became of a node where the command has ended, or never came."""
    about = {"host": node.name, "cluster": node.cluster, "node_type": node.kind}
    if answer.state == "unreachable":
        return Outcome("unreachable", answer.why, {**site_report.unreachable(node.name, answer.why), **about})
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


Place = tuple[str, str, bool]  # a region, a cluster, and whether it is about its head node


def place(node: Node) -> Place:
    """Return where a node belongs: steps are taken for each cluster by itself."""
    return node.region, node.cluster, node.kind == "head"


def in_turn(nodes: Sequence[Node]) -> list[Node]:
    """Return head nodes first, and others in turns: of each cluster, queue and instance type one, then the next."""
    seen: Counter[tuple[Place, str]] = Counter()
    turns = []
    for number, node in enumerate(nodes):
        kind = (place(node), node.group)
        turns.append((node.kind != "head", seen[kind], number))
        seen[kind] += 1
    return [nodes[number] for _other, _turn, number in sorted(turns)]


class Room:
    def __init__(self, nodes: Sequence[Node], concurrency: str) -> None:
        sizes = Counter(place(node) for node in nodes)
        self.share = {where: max(1, part(concurrency, size)) for where, size in sizes.items()}
        self.whole = len(nodes) if concurrency.endswith("%") else int(concurrency)

    def at_a_time(self, heads: bool, results: int | None = None) -> int:
        """Return how many head nodes or others may, after so many results. Few come first, and then always as many more
        as have said how it went."""
        most = min(self.whole, sum(share for where, share in self.share.items() if where[2] is heads))
        return most if results is None else min(most, FIRST + results)


def foretell(nodes: Sequence[Node], silent: Mapping[Node, Answer], request: Request) -> list[str]:
    lines = []
    there = in_turn([node for node in nodes if node not in silent])
    room = Room(there, request.concurrency)
    for what, heads in (("head node", True), ("other node", False)):
        group = [node for node in there if (node.kind == "head") is heads]
        if group:
            most = room.at_a_time(heads)
            many = f"{len(group)} {what}{'s' if len(group) > 1 else ''}"
            at_a_time = f"{FIRST} first and then at most {most}" if most > FIRST else str(most)
            lines.append(f"would send {request.name} to {many}, {at_a_time} at a time: {called(group)}")
    for why in dict.fromkeys(answer.why for answer in silent.values()):
        names = called(node for node, answer in silent.items() if answer.why == why)
        lines.append(f"unreachable: {names}: {why}")
    return lines


def called(nodes: Iterable[Node]) -> str:
    """Return the names of nodes, as Slurm writes many; where they take too much room, the first of them."""
    return shown((node.name for node in nodes), WIDE)


class Rollout:
    """Brings the bundle to all nodes, one move at a time."""

    def __init__(self, nodes: Sequence[Node], request: Request, command: Carrier, clock: Callable[[], float]) -> None:
        self.nodes, self.request, self._command, self._clock = list(nodes), request, command, clock
        self.outcomes: dict[Node, Outcome] = {}
        self._begun: dict[Node, float] = {}
        self._waiting: list[Node] = []
        self._room = Room(nodes, request.concurrency)
        self._may_fail = part(request.max_errors, len(self.nodes))
        self._took: list[float] = []  # seconds, of nodes that have ended
        self._told: set[str] = set()  # reasons
        self._heads: dict[tuple[str, str], list[Node]] = {}
        for node in nodes:
            if node.kind == "head":
                self._heads.setdefault((node.region, node.cluster), []).append(node)

    @property
    def done(self) -> bool:
        return len(self.outcomes) == len(self.nodes)

    @property
    def failed(self) -> int:
        return sum(outcome.state == "failed" for outcome in self.outcomes.values())

    def begin(self) -> None:
        silent = self._command.silent(self.nodes)
        self._note(silent)
        self._waiting = in_turn([node for node in self.nodes if node not in silent])
        self._room = Room(self._waiting, self.request.concurrency)
        self._hold_back()

    def move(self) -> None:
        """See what has ended, and send what may be sent."""
        try:
            self._note(self._command.poll())
            self._hold_back()
            self._send()
        except Problem as error:
            # What has begun goes on by itself, and nothing more is sent.
            self._skip([node for node in self.nodes if node not in self._begun], str(error))
            self._note(self._command.forget(str(error)))

    def _send(self) -> None:
        held: set[str] = set()  # regions that take no command now
        for heads in (True, False):
            while batch := self._batch(heads, held):
                sent = set(batch)
                self._waiting = [node for node in self._waiting if node not in sent]
                try:
                    refused, later = self._command.send(batch)
                except Problem as error:
                    here = set(self._command.running)
                    self._note({node: Answer("failed", str(error)) for node in batch if node not in here})
                    raise
                self._begun.update({node: self._clock() for node in batch if node not in later})
                self._note(refused)
                self._waiting = [*later, *self._waiting]
                held.update(node.region for node in later)

    def _batch(self, heads: bool, held: set[str]) -> list[Node]:
        """Return which nodes of one region are sent it next, if any."""
        running = self._command.running
        busy = Counter(place(node) for node in running)
        results = sum(
            outcome.state in ("ok", "changed", "failed") and (node.kind == "head") is heads
            for node, outcome in self.outcomes.items()
        )
        most = self._room.at_a_time(heads, results)
        free = min(self._room.whole - len(running), most - sum(busy[where] for where in busy if where[2] is heads))
        ready: list[Node] = []
        more = False
        for node in self._waiting:
            if (node.kind == "head") is not heads or node.region in held or not self._may_begin(node):
                continue
            if len(ready) >= free or busy[place(node)] >= self._room.share[place(node)]:
                more = True
                if len(ready) >= free:
                    break
                continue
            ready.append(node)
            busy[place(node)] += 1
        # Nodes end one by one. Each command costs a call at every look, so there are to be few.
        if more and len(ready) < min(max(1, most // PARTS), run_command.BATCH):
            return []
        region = ready[0].region if ready else ""
        return [node for node in ready if node.region == region][: self._command.batch.get(region, run_command.BATCH)]

    def _may_begin(self, node: Node) -> bool:
        """Say whether the head node of a node's cluster, where it has one in this run, has the bundle."""
        heads = () if node.kind == "head" else self._heads.get((node.region, node.cluster), ())
        return all(head in self.outcomes for head in heads)

    def _hold_back(self) -> None:
        """Skip the nodes that are not to have it any more."""
        if self.failed > self._may_fail:
            failures = f"{self.failed} failure{'s' if self.failed > 1 else ''}"
            why = f"stopped after {failures} (fleet_max_errors is {self.request.max_errors})"
            self._skip([node for node in self.nodes if node not in self._begun], why)
        heads = [head for found in self._heads.values() for head in found if self._state(head) in _BAD]
        for head in heads:
            ours = [node for node in self.nodes if (node.region, node.cluster) == (head.region, head.cluster)]
            why = f"its head node {head.name}, which comes first, does not run the bundle"
            self._skip([node for node in ours if node not in self._begun], why)

    def _skip(self, nodes: Iterable[Node], why: str) -> None:
        for node in nodes:
            if node not in self.outcomes:
                report = {**site_report.unreachable(node.name, why), "outcome": "not sent"}
                report.update(cluster=node.cluster, node_type=node.kind)
                self.outcomes[node] = Outcome("not sent", why, report)
        self._waiting = [node for node in self._waiting if node not in self.outcomes]

    def _note(self, answers: Mapping[Node, Answer]) -> None:
        now = self._clock()
        again = [node for node, answer in answers.items() if answer.state == "again"]
        for node in again:
            del self._begun[node]
        self._waiting = [*again, *self._waiting]
        for node, answer in answers.items():
            if answer.state != "again":
                took = now - self._begun.get(node, now)
                self.outcomes[node] = judge(node, answer, took)
                self._took += [took] if self.outcomes[node].state in ("ok", "changed") else []

    def _state(self, node: Node) -> str:
        return self.outcomes[node].state if node in self.outcomes else ""

    # What people see

    @property
    def seconds(self) -> float:
        """How long nodes take, as far as that is known."""
        return sum(self._took) / len(self._took) if self._took else 0.0

    @property
    def notes(self) -> list[str]:
        return self._command.notes

    @property
    def left(self) -> list[str]:
        """The nodes that do not run the bundle, as far as it is known."""
        return [node.name for node in self.nodes if self._state(node) not in ("ok", "changed")]

    def news(self) -> list[str]:
        """Return what went wrong for a reason that was not told yet."""
        new = [group for group in self._wrong() if group.state != "not sent" and group.kind not in self._told]
        new = new[: max(0, REASONS - len(self._told))]
        self._told.update(group.kind for group in new)
        return [group.line for group in new]

    def state(self) -> str:
        count = dict.fromkeys(_BAD, 0)
        for outcome in self.outcomes.values():
            if outcome.state in count:
                count[outcome.state] += 1
        words = [f"{number} {state}" for state, number in count.items() if number]
        since = self._command.since
        words += [f"{len(since)} running"] if since else []
        words.insert(0, f"{len(self.outcomes) - count['not sent']} of {len(self.nodes)} nodes done")
        return ", ".join(words) + self._stragglers(since)

    def _stragglers(self, since: Mapping[Node, float]) -> str:
        usual = max(120.0, STRAGGLES * self.seconds) if self._took else 300.0
        late = [node for node, sent in since.items() if self._clock() - sent > usual]
        if not late:
            return ""
        least = duration(min(self._clock() - since[node] for node in late)).split(" min")[0]
        those = "" if len(late) == len(since) else f", {len(late)} of them"
        return f"{those} for more than {least} min: {some(sorted((node.name for node in late), key=natural), 3)}"

    def table(self, width: int, seconds: float) -> list[str]:
        """Return what became of all nodes; what went wrong comes last."""
        reports = site_report.in_order([outcome.report for outcome in self.outcomes.values()])
        wrong = self._wrong()
        if len(reports) <= FEW:
            unsent = [group for group in wrong if group.state == "not sent"]
            lines = [*site_report.table(reports, width), *site_report.summaries(reports), *site_report.notes(reports)]
            lines += [f"not sent to {called(group.nodes)}: {group.why}" for group in unsent]
        else:
            more = len(wrong) - REASONS
            lines = [*_counts(reports)]
            lines += [f"{more} more reason{'s' if more > 1 else ''} in the report, and these:"] if more > 0 else []
            lines += [group.line for group in reversed(wrong[:REASONS])]
        missing = sum(outcome.state == "not sent" for outcome in self.outcomes.values())
        return [*lines, site_report.last_line(reports, seconds) + (f"; not sent to {missing}" if missing else "")]

    def interrupted(self) -> list[str]:
        """Return who has it, who runs it, and who does not have it."""
        running = set(self._command.running)
        parts = {
            "run it": [node for node in self.nodes if self._state(node) in ("ok", "changed")],
            "have it and finish by themselves": [node for node in self.nodes if node in running],
            "failed or were lost": [node for node in self.nodes if self._state(node) in ("failed", "unreachable")],
        }
        known = {node for nodes in parts.values() for node in nodes}
        parts["were not sent it"] = [node for node in self.nodes if node not in known]
        return [f"{what} ({len(nodes)}): {called(nodes)}" for what, nodes in parts.items() if nodes]

    def told(self) -> dict[str, dict[str, Any]]:
        running = set(self._command.running)
        found = {}
        for node in self.nodes:
            outcome = self.outcomes.get(node)
            found[node.name] = {
                "state": outcome.state if outcome else "running" if node in running else "not sent",
                "why": outcome.why if outcome else "",
                "instance_id": node.instance_id,
                "region": node.region,
                "command_id": self._command.ids.get(node, ""),
                "report": outcome.report if outcome else None,
            }
        return found

    def _wrong(self) -> list[Wrong]:
        """Return what went wrong, grouped by reason; one with another number in it is the same."""
        groups: dict[str, Wrong] = {}
        for node, outcome in self.outcomes.items():
            if outcome.state in _BAD:
                kind = f"{outcome.state}: {re.sub('[0-9]+', '0', outcome.why)}"
                groups.setdefault(kind, Wrong(kind, outcome.state, outcome.why, [])).nodes.append(node)
        return sorted(groups.values(), key=lambda group: (_BAD.index(group.state), -len(group.nodes)))


class Wrong(NamedTuple):
    """Nodes that do not run the bundle for the same reason."""

    kind: str
    state: str
    why: str
    nodes: list[Node]

    @property
    def line(self) -> str:
        return f"{len(self.nodes)} {self.state}: {called(self.nodes)}: {self.why}"


def _counts(reports: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return on how many nodes components are what; components that are alike share a line."""
    found: dict[str, Counter[str]] = {}
    for report in reports:
        for entry in report["components"]:
            found.setdefault(entry["name"], Counter())[entry["status"]] += 1
    alike: dict[str, list[str]] = {}
    for name, count in found.items():
        words = ", ".join(f"{number} {status}" for status, number in count.most_common())
        alike.setdefault(words, []).append(name)
    return [f"{words}: {', '.join(names)}" for words, names in alike.items()]
