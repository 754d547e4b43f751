# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One script on many nodes, by Run Command of AWS Systems Manager: sent, and asked for until it has ended."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.errors import AwsErrors, code_of, explain
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.remote_script import (
    DELIVERY,
    GONE_EVERY,
    LATE,
    PATIENCE,
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
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory.cloud import (
    describe_instances,
    online_instances,
)
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory.nodes import TAG_CLUSTER

DOCUMENT = "AWS-RunShellScript"
BATCH = 50  # instance ids of one command, and invocations of one page
FEW = 2  # nodes of a command for which each is asked by itself, instead of for all that the command was sent to
UNLISTED = 5.0  # seconds after which SSM should list what a command was sent to
AGAIN = 60.0  # seconds until a command is sent again that SSM has cancelled itself
_ID = re.compile(r"\bi-[0-9a-f]+")
_CUT = "---Output truncated---"
_OVER = ("Success", "Failed", "TimedOut", "Cancelled")
_NOT_BEGUN = ("", "Pending", "Delayed")  # StatusDetails; InProgress may be either
_EXCEEDED = "Rate Exceeded: too many invocations of the account are pending"
_SILENT = (
    "its SSM agent does not answer; the usual reasons are that its role lacks the policy AmazonSSMManagedInstanceCore, "
    "which ParallelCluster does not add by itself, and that it has no way to the SSM endpoints"
)


@dataclass
class Sent:
    """A command that has not ended on these nodes."""

    command_id: str
    region: str
    since: float
    nodes: dict[str, Node]
    size: int  # nodes that it was sent to
    news: float  # when something of it ended last
    due: float = 0.0  # when it is looked at next
    begun: dict[str, float] = field(default_factory=dict)  # by instance, where that was seen
    details: dict[str, str] = field(default_factory=dict)


class RunCommand:
    """Sends a script to nodes, and knows where it has ended. A failed call is a CallError of one line."""

    def __init__(self, make_client: ClientMaker, script: Script, clock: Callable[[], float]) -> None:
        self._client, self._script, self._clock = make_client, script, clock
        self._sent: list[Sent] = []
        self._looked, self._looks = clock(), True
        self._patience = Patience(clock)
        self._refused: dict[str, float] = {}  # since when SSM cancels a region's commands itself
        self._held: dict[str, float] = {}  # until when none is sent to a region
        self._tells = False  # whether SSM lists plugins that have begun and not ended
        self._soonest = 0.0  # seconds after which something has ended at the earliest
        self.sending = False
        self.batch: dict[str, int] = {}  # instance ids of one command in regions that do not take BATCH
        self.ids: dict[Node, str] = {}  # of the command that each node was sent
        self.notes: list[str] = []

    @property
    def running(self) -> list[Node]:
        return [node for sent in self._sent for node in sent.nodes.values()]

    @property
    def since(self) -> dict[Node, float]:
        """Where it has not ended, and when it was sent there."""
        return {node: sent.since for sent in self._sent for node in sent.nodes.values()}

    def silent(self, nodes: Iterable[Node]) -> Answers:
        places: dict[tuple[str, str], list[Node]] = {}
        for node in nodes:
            places.setdefault((node.region, node.cluster), []).append(node)
        found: Answers = {}
        for (region, cluster), members in places.items():
            try:
                online = online_instances(self._client("ssm", region), f"tag:{TAG_CLUSTER}", [cluster])
            except AwsErrors as error:
                raise explain(error, region, "ssm:DescribeInstanceInformation", f"cluster {cluster}") from error
            found.update({node: Answer("unreachable", _SILENT) for node in members if node.instance_id not in online})
        return found

    def send(self, nodes: Sequence[Node]) -> tuple[Answers, list[Node]]:
        """Send it to at most 50 nodes of one region. Return those that do not get it, and those that may later."""
        region, ids = nodes[0].region, {node.instance_id: node for node in nodes}
        if self._clock() < self._held.get(region, 0.0):
            return {}, list(nodes)
        self.sending = True
        try:
            answer = self._client("ssm", region).send_command(
                InstanceIds=list(ids),
                DocumentName=DOCUMENT,
                Comment=self._script.comment[:100],
                Parameters={
                    "commands": self._script.text.splitlines(),
                    "executionTimeout": [str(self._script.seconds)],
                },
                TimeoutSeconds=DELIVERY,  # SSM itself would wait for these and for the seconds of the script
                # How many at a time, and how many failures, is decided here: one command is but a part of all.
                MaxConcurrency=str(len(ids)),
                MaxErrors="100%",
            )
        except AwsErrors as error:
            if code_of(error) == "InvalidInstanceId":
                return self._without(nodes, str(error))
            if self._patience.bears(error, region):
                return {}, list(nodes)
            raise explain(error, region, f"ssm:SendCommand on {DOCUMENT} and on the instances", named(nodes)) from error
        else:
            now, command = self._clock(), answer["Command"]["CommandId"]
            self._patience.went_well(region)
            due = now + min(SLOWEST, self._soonest / 2)
            self._sent.append(Sent(command, region, now, ids, len(ids), now, due))
            self.ids.update(dict.fromkeys(nodes, command))
        finally:
            self.sending = False
        return {}, []

    def _without(self, nodes: Sequence[Node], message: str) -> tuple[Answers, list[Node]]:
        """Leave out the nodes that SSM does not take: one of them keeps the command from all."""
        named = set(_ID.findall(message))
        bad = [node for node in nodes if node.instance_id in named]
        parts = [[node for node in nodes if node not in bad]]
        if not bad and len(nodes) > 1:
            half = len(nodes) // 2
            parts = [list(nodes[:half]), list(nodes[half:])]
        elif not bad:
            bad, parts = list(nodes), []
        refused = {node: Answer("unreachable", f"SSM refuses it (InvalidInstanceId): {_SILENT}") for node in bad}
        later: list[Node] = []
        for part in filter(None, parts):
            more, wait = self.send(part)
            refused.update(more)
            later += wait
        return refused, later

    def poll(self) -> Answers:
        """Return where it has ended since the last call."""
        found: Answers = {}
        busy: set[str] = set()  # regions in which nothing is asked before the next look
        for sent in list(self._sent):
            if sent.region in busy or self._clock() < sent.due:
                continue
            try:
                answers = self._ask(sent)
                self._patience.went_well(sent.region)
            except AwsErrors as error:
                if self._patience.bears(error, sent.region):
                    busy.add(sent.region)
                    continue
                if found:
                    break  # what has ended counts; the error comes again
                needed = "ssm:ListCommandInvocations and ssm:GetCommandInvocation"
                raise explain(error, sent.region, needed, named(sent.nodes.values())) from error
            if answers:
                sent.news = self._clock()
                self._soonest = min(self._soonest or SLOWEST * 2, sent.news - sent.since)
            sent.due = self._clock() + min(SLOWEST, (self._clock() - sent.news) / QUIET)
            found.update(answers)
            self._drop(answers)
        gone = self._gone()
        self._drop(gone)
        return {**found, **gone}

    def forget(self, why: str) -> Answers:
        """Return what is known of the nodes where it goes on unobserved."""
        found = {node: Answer("unreachable", f"it goes on there, but {why}") for node in self.running}
        self._sent = []
        return found

    def _drop(self, ended: Mapping[Node, Answer]) -> None:
        for sent in self._sent:
            for node in [node for node in sent.nodes.values() if node in ended]:
                del sent.nodes[node.instance_id]
        self._sent = [sent for sent in self._sent if sent.nodes]

    def _ask(self, sent: Sent) -> Answers:
        client = self._client("ssm", sent.region)
        listed = False
        found: Answers = {}
        for one in self._rows(client, sent):
            listed = True
            node = sent.nodes.get(one["InstanceId"])
            if node and one["Status"] in _OVER:
                found[node] = self._read(client, sent, one)
            elif node:
                self._note_begin(sent, one)
        if listed:
            self._refused.pop(sent.region, None)
        elif self._clock() - sent.since > UNLISTED and self._cancelled_by_ssm(client, sent):
            return self._again(sent)
        return {**self._late(client, sent, found), **found}

    def _rows(self, client: Any, sent: Sent) -> Iterable[Mapping[str, Any]]:
        """Return the invocations that are waited for; a page of all, with their outputs, may be 135 KB."""
        few: list[dict[str, str]] = [{}]
        if len(sent.nodes) <= FEW < sent.size:
            few = [{"InstanceId": instance} for instance in sent.nodes]
        for which in few:
            pages = client.get_paginator("list_command_invocations").paginate(
                CommandId=sent.command_id, Details=True, **which, PaginationConfig={"PageSize": BATCH}
            )
            for page in pages:
                yield from page.get("CommandInvocations", ())

    def _note_begin(self, sent: Sent, one: Mapping[str, Any]) -> None:
        """Note whether it has begun there, as far as SSM tells."""
        instance = one["InstanceId"]
        sent.details[instance] = _details(one)
        for plugin in one.get("CommandPlugins") or ():
            if plugin.get("ResponseStartDateTime") and plugin.get("Status") not in _NOT_BEGUN:
                sent.begun.setdefault(instance, self._clock())
                # The agent sends what a plugin has done when that has ended. Only where SSM was seen to list one before
                # does it say anything that none is listed.
                self._tells = self._tells or plugin.get("Status") == "InProgress"

    def _late(self, client: Any, sent: Sent, ended: Mapping[Node, Answer]) -> Answers:
        """Return what is not waited for any longer. What has not begun is not to begin any more."""
        now = self._clock()
        waited, longest = now - sent.since, self._script.seconds + LATE
        lost: Answers = {}
        silent: list[Node] = []  # where it has not begun for sure
        doubtful: list[Node] = []
        for instance, node in sent.nodes.items():
            begun = sent.begun.get(instance)
            if begun is not None:
                if node not in ended and now - begun > longest:
                    lost[node] = Answer("unreachable", f"it has begun, and SSM has had no word from it for {longest} s")
            elif node not in ended and waited > DELIVERY:
                sure = self._tells or sent.details.get(instance, "") in _NOT_BEGUN or waited > DELIVERY + longest
                (silent if sure else doubtful).append(node)
        if doubtful:
            answers = online_instances(client, "InstanceIds", [node.instance_id for node in doubtful])
            silent += [node for node in doubtful if node.instance_id not in answers]
        if silent:
            why = f"it has not begun within {DELIVERY} s, as far as SSM knows: its agent takes no command"
            try:
                client.cancel_command(CommandId=sent.command_id, InstanceIds=[node.instance_id for node in silent])
                why += "; the command to it is cancelled"
            except AwsErrors as error:
                if self._patience.bears(error, sent.region):
                    return lost
                why += f", and it may still begin ({explain(error, sent.region, 'ssm:CancelCommand', named(silent))})"
            lost.update(dict.fromkeys(silent, Answer("unreachable", why)))
        return lost

    def _cancelled_by_ssm(self, client: Any, sent: Sent) -> bool:
        """Say whether a command ended before any node had it: too many invocations of the account were pending."""
        try:
            found = client.list_commands(CommandId=sent.command_id).get("Commands") or [{}]
        except AwsErrors as error:
            if code_of(error) not in ("AccessDenied", "AccessDeniedException"):
                raise
            return False  # it is given up as what has not begun
        return found[0].get("Status") in _OVER

    def _again(self, sent: Sent) -> Answers:
        now = self._clock()
        since = self._refused.setdefault(sent.region, now)
        self._held[sent.region] = now + AGAIN
        self.batch[sent.region] = max(1, sent.size // 2)
        answer = Answer("again")
        if now - since > PATIENCE:
            answer = Answer("unreachable", f"SSM has cancelled each command to it ({_EXCEEDED})")
        elif not any(_EXCEEDED in note for note in self.notes):
            self.notes.append(
                f"{sent.region}: SSM has cancelled a command before any node had it ({_EXCEEDED}); it "
                f"is sent again every {AGAIN:.0f} s"
            )
        return dict.fromkeys(sent.nodes.values(), answer)

    def _read(self, client: Any, sent: Sent, one: Mapping[str, Any]) -> Answer:
        details = _details(one)
        output = "".join(str(plugin.get("Output", "")) for plugin in one.get("CommandPlugins") or ())
        # What a failed node said last is the reason, and the list has the beginning.
        if _CUT in output and (one["Status"] != "Success" or not self._script.enough(output)):
            whole = client.get_command_invocation(CommandId=sent.command_id, InstanceId=one["InstanceId"])
            output = str(whole.get("StandardOutputContent", ""))
        if one["Status"] == "Success":
            return Answer("success", "", output)
        why = {
            "DeliveryTimedOut": "SSM has had no word from it (DeliveryTimedOut); it may have run all the same",
            "Undeliverable": "SSM cannot deliver to it (Undeliverable): it is gone, or its agent does not answer",
            "ExecutionTimedOut": self._script.too_long,
            "Cancelled": "somebody has cancelled the command",
            "Terminated": "SSM has ended the command (Terminated)",
        }.get(details, "" if details == "Failed" else f"SSM says {details}")
        state = "unreachable" if details in ("DeliveryTimedOut", "Undeliverable") else "failed"
        return Answer(state, why, output)

    def _gone(self) -> Answers:
        """Return the nodes that have been terminated or stopped. SSM would wait for them as long as for any other."""
        if not self._looks or self._clock() - self._looked < GONE_EVERY:
            return {}
        self._looked = self._clock()
        found: Answers = {}
        for region in dict.fromkeys(node.region for node in self.running):
            nodes = [node for node in self.running if node.region == region]
            ids = [node.instance_id for node in nodes]
            states = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
            try:
                alive = {
                    one["InstanceId"]
                    for start in range(0, len(ids), 200)  # values of a filter
                    for one in describe_instances(
                        self._client("ec2", region),
                        [{"Name": "instance-id", "Values": ids[start : start + 200]}, *states],
                    )
                }
            except AwsErrors as error:
                if self._patience.bears(error, region):
                    return found
                self._looks = False
                why = explain(error, region, "ec2:DescribeInstances", named(nodes))
                self.notes.append(f"nodes that are terminated meanwhile are waited for, because {why}")
                return found
            gone = Answer("unreachable", "it was terminated or stopped before the end")
            found.update({node: gone for node in nodes if node.instance_id not in alive})
        return found


def _details(one: Mapping[str, Any]) -> str:
    return str(one.get("StatusDetails", "")).replace(" ", "")
