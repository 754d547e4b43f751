# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One script on nodes that Run Command does not know, by sessions: one begins the script, others ask how far it is.

Nodes of SageMaker HyperPod take sessions alone. A session would end after 20 idle minutes, and an account may start
few, so that none waits for the script: session_command.sh, which a session runs, makes the script a unit of the node.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import os
import re
import secrets
import shlex
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.errors import AwsErrors, code_of, explain
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.remote_script import (
    DELIVERY,
    GONE_EVERY,
    LATE,
    QUIET,
    SLOWEST,
    Answer,
    Answers,
    Node,
    Patience,
    Script,
    named,
)
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.session import ClientMaker
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.session_manager import (
    AT_ONCE,
    DOCUMENT,
    LONGEST_COMMAND,
    Said,
    Sessions,
)
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory import hyperpod

PROGRAM = os.path.splitext(os.path.abspath(__file__))[0] + ".sh"
SOONEST = 5.0  # seconds between two looks at a node
EMPTY = 5  # sessions in a row that end without an answer, after which a node that has not begun is given up
_LINE = re.compile(r"^pcluster-postboot-command 1 (\w+) (-|\d+) (\S+) \.\r?$", re.M)
_TOO_LONG = (124, 137)
_PERMISSION = f"ssm:StartSession on {DOCUMENT} and on the nodes"
_SILENT = (
    "Session Manager does not reach it; the usual reasons are that the execution role of its instance group lacks "
    "ssmmessages:* (the policy AmazonSageMakerClusterInstanceRolePolicy has it), and that it has no way to the SSM "
    "endpoints"
)
_LOST = "it was ended on the node from outside, before it was done"


class Told(NamedTuple):
    """What session_command.sh has told."""

    state: str  # running, ended, lost: ended from outside, unknown: it has not begun, or the node has booted since
    code: int = 0
    output: str = ""


def read(text: str) -> Told | None:
    """Read what came through a session; None where that is nothing, or not all."""
    found = _LINE.findall(text)
    if not found:
        return None
    state, code, packed = found[-1]
    if state != "ended":
        return Told(state)
    try:
        return Told(state, int(code), gzip.decompress(base64.b64decode(packed, validate=True)).decode(errors="replace"))
    except (binascii.Error, OSError, EOFError, zlib.error, ValueError):
        return None


@dataclass
class Work:
    """The script on a node where it has not ended, as far as that is known."""

    since: float
    due: float = 0.0  # when the node is asked next
    begun: float = 0.0  # when the node has said so first
    empty: int = 0  # sessions in a row without an answer
    last: str = ""  # what such a session has said


class SessionCommand:
    """Brings a script to nodes over sessions, and knows where it has ended: a Carrier."""

    def __init__(
        self, make_client: ClientMaker, script: Script, clock: Callable[[], float], sessions: Sessions
    ) -> None:
        self._client, self._script, self._clock, self._sessions = make_client, script, clock, sessions
        # The same script has the same unit in each run, so that a run goes on with what another one has begun.
        self._unit = f"pcluster-postboot-command-{hashlib.sha256(script.text.encode()).hexdigest()[:12]}"
        self._run = secrets.token_hex(8)
        with open(PROGRAM, encoding="utf-8") as stream:
            self._program = stream.read()
        self._patience = Patience(clock)
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._work: dict[Node, Work] = {}
        self._away: set[Node] = set()  # that were not connected when they were asked last
        self._looked, self._looks = clock(), True
        self.sending = False
        self.batch: dict[str, int] = {}
        self.ids: dict[Node, str] = {}  # of the session that has begun the script on each node
        self.notes: list[str] = []

    @property
    def running(self) -> list[Node]:
        return list(self._work)

    @property
    def since(self) -> dict[Node, float]:
        return {node: work.since for node, work in self._work.items()}

    def silent(self, nodes: Iterable[Node]) -> Answers:
        self._sessions.need_plugin()
        self._line("begin")  # before anything is begun: it may be too long
        asked = {
            node: self._pool.submit(hyperpod.connected, self._client("ssm", node.region), node.target) for node in nodes
        }
        found: Answers = {}
        for node, answer in asked.items():
            try:
                if not answer.result():
                    found[node] = Answer("unreachable", _SILENT)
            except AwsErrors as error:
                needed = "ssm:GetConnectionStatus"
                raise explain(error, node.region, needed, f"HyperPod cluster {node.cluster}") from error
        return found

    def send(self, nodes: Sequence[Node]) -> tuple[Answers, list[Node]]:
        """Begin the script on a few nodes of one region; the others may have it later."""
        later, refused = list(nodes[AT_ONCE:]), {}
        failed: tuple[Node, Exception] | None = None
        self.sending = True
        try:
            for node, answer in self._ask(dict.fromkeys(nodes[:AT_ONCE], "begin")).items():
                if isinstance(answer, Said):
                    self._work[node] = Work(self._clock())
                    self.ids[node] = answer.session_id
                    self._hear(node, answer)
                    self._work[node].due = self._clock() + SOONEST
                elif code_of(answer) == "TargetNotConnected":
                    refused[node] = Answer("unreachable", _SILENT)
                elif self._patience.bears(answer, node.region):
                    later.append(node)
                else:
                    failed = (node, answer)
        finally:
            self.sending = False
        if failed:
            raise self._explained(*failed)
        return refused, later

    def poll(self) -> Answers:
        due = sorted((node for node in self._work if self._work[node].due <= self._clock()), key=self._turn)
        asked = {node: "look" if self._work[node].begun else "begin" for node in due[:AT_ONCE]}
        found: Answers = {}
        failed: tuple[Node, Exception] | None = None
        for node, answer in self._ask(asked).items():
            work = self._work[node]
            work.due = self._clock() + min(SLOWEST, max(SOONEST, (self._clock() - work.since) / QUIET))
            self._away.discard(node)
            if isinstance(answer, Said):
                self.ids.setdefault(node, answer.session_id)
                found.update(self._hear(node, answer))
            elif code_of(answer) == "TargetNotConnected":
                self._away.add(node)
            elif not self._patience.bears(answer, node.region):
                failed = (node, answer)
        self._drop(found)
        late = self._late()
        self._drop(late)
        gone = self._gone()
        self._drop(gone)
        found = {**found, **late, **gone}
        if failed and not found:  # what has ended counts; the error comes again
            raise self._explained(*failed)
        return found

    def forget(self, why: str) -> Answers:
        found = {node: Answer("unreachable", f"it goes on there, but {why}") for node in self._work}
        self._work = {}
        return found

    def _turn(self, node: Node) -> float:
        return self._work[node].due

    def _drop(self, ended: Iterable[Node]) -> None:
        for node in ended:
            del self._work[node]
            self._away.discard(node)

    def _ask(self, verbs: Mapping[Node, str]) -> dict[Node, Said | Exception]:
        """Run session_command.sh on nodes, on all at once, and return what each has said, or why it could not."""
        asked: dict[Node, Future[Said]] = {}
        for node, verb in verbs.items():
            client = self._client("ssm", node.region)
            asked[node] = self._pool.submit(self._sessions.run, client, node.target, self._line(verb))
        wait(asked.values())
        found: dict[Node, Said | Exception] = {}
        for node, answer in asked.items():
            try:
                found[node] = answer.result()
                self._patience.went_well(node.region)
            except AwsErrors as error:
                found[node] = error
            except OSError as error:
                found[node] = error
        return found

    def _line(self, verb: str) -> str:
        """Return the command of a session: of letters that no program on the way takes for its own."""
        words = [verb, self._unit, self._run]
        if verb == "begin":
            words += [str(self._script.seconds), self._script.comment, self._script.text]
        text = f"{self._program}main {shlex.join(words)} < /dev/null\n"
        packed = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
        # The user of sessions may do everything by sudo, as the agent's own ssm-user may; root may, too.
        line = f"sh -c 'echo {packed} | base64 -d | gzip -d | sudo -n sh'"
        if len(line) > LONGEST_COMMAND:
            raise Problem(f"the script is too long for a session: {len(line)} characters; needed: {LONGEST_COMMAND}")
        return line

    def _hear(self, node: Node, said: Said) -> Answers:
        """Take what a node has said, and return how the script ended where it has."""
        work, told = self._work[node], read(said.text)
        if told is None:
            work.empty, work.last = work.empty + 1, said.last
            if work.begun or work.empty < EMPTY:
                return {}
            return {node: Answer("failed", f"its sessions end without an answer{self._words(work)}")}
        work.empty, work.begun = 0, work.begun or self._clock()
        if told.state == "ended" and told.code in _TOO_LONG:
            return {node: Answer("failed", self._script.too_long, told.output)}
        if told.state == "ended":
            return {node: Answer("failed" if told.code else "success", "", told.output)}
        if told.state == "lost":
            return {node: Answer("failed", _LOST)}
        if told.state == "unknown":
            return {node: Answer("failed", "the node has booted before it was known to be done")}
        return {}

    def _words(self, work: Work) -> str:
        return f": {work.last}" if work.last else ""

    def _late(self) -> Answers:
        """Return what is not waited for any longer."""
        now, longest = self._clock(), self._script.seconds + LATE
        found: Answers = {}
        for node, work in self._work.items():
            if work.begun and now - work.begun > longest:
                found[node] = Answer("unreachable", f"it has begun, and no session has told its end for {longest} s")
            elif not work.begun and now - work.since > DELIVERY:
                why = f"no session has told within {DELIVERY} s that it has begun{self._words(work)}"
                found[node] = Answer("unreachable", f"{why}; it may be at work")
        return found

    def _gone(self) -> Answers:
        """Return the nodes that HyperPod has replaced or deleted, of those that no session reaches."""
        if not self._away or not self._looks or self._clock() - self._looked < GONE_EVERY:
            return {}
        self._looked = self._clock()
        found: Answers = {}
        for region, cluster in dict.fromkeys((node.region, node.cluster) for node in self._away):
            nodes = [node for node in self._away if (node.region, node.cluster) == (region, cluster)]
            try:
                alive = self._alive(region, cluster)
            except AwsErrors as error:
                if self._patience.bears(error, region):
                    return found
                self._looks = False
                why = explain(error, region, "sagemaker:ListClusterNodes", f"HyperPod cluster {cluster}")
                self.notes.append(f"nodes that are replaced meanwhile are waited for, because {why}")
                return found
            gone = Answer("unreachable", "it was replaced or deleted before the end")
            found.update({node: gone for node in nodes if node.instance_id not in alive})
        return found

    def _alive(self, region: str, cluster: str) -> set[str]:
        """Return the instances of a cluster that run, or will again."""
        client = self._client("sagemaker", region)
        try:
            listed = hyperpod.list_nodes(client, cluster)
        except AwsErrors as error:
            if code_of(error) != "ResourceNotFound":
                raise
            return set()  # the cluster was deleted
        states = {one["InstanceId"]: hyperpod.STATES.get(one["InstanceStatus"]["Status"], "") for one in listed}
        return {instance for instance, state in states.items() if state in ("running", "pending")}

    def _explained(self, node: Node, error: Exception) -> Exception:
        if isinstance(error, OSError):
            return Problem(f"{named([node])}: the session-manager-plugin cannot be started: {error}")
        return explain(error, node.region, _PERMISSION, named([node]))
