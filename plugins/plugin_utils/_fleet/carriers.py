# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run Command for nodes that EC2 knows, sessions for those that Session Manager alone knows: one Carrier for both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.remote_script import Answers, Carrier, Node


class Carriers:
    def __init__(self, instances: Carrier, targets: Carrier) -> None:
        self._instances, self._targets = instances, targets
        self._both = (instances, targets)
        self.notes: list[str] = []
        instances.notes = targets.notes = self.notes  # in the order in which they are made

    def _parts(self, nodes: Iterable[Node]) -> list[tuple[Carrier, list[Node]]]:
        """Return each carrier that has something to do, and its nodes."""
        nodes = list(nodes)
        targets = [node for node in nodes if node.target]
        instances = [node for node in nodes if not node.target]
        return [(one, few) for one, few in ((self._instances, instances), (self._targets, targets)) if few]

    @property
    def sending(self) -> bool:
        return any(one.sending for one in self._both)

    @property
    def running(self) -> list[Node]:
        return [node for one in self._both for node in one.running]

    @property
    def since(self) -> dict[Node, float]:
        return {**self._instances.since, **self._targets.since}

    @property
    def ids(self) -> dict[Node, str]:
        return {**self._instances.ids, **self._targets.ids}

    @property
    def batch(self) -> dict[str, int]:
        return {**self._instances.batch, **self._targets.batch}

    def silent(self, nodes: Iterable[Node]) -> Answers:
        return {node: answer for one, few in self._parts(nodes) for node, answer in one.silent(few).items()}

    def send(self, nodes: Sequence[Node]) -> tuple[Answers, list[Node]]:
        refused: Answers = {}
        later: list[Node] = []
        for one, few in self._parts(nodes):
            more, wait = one.send(few)
            refused.update(more)
            later += wait
        return refused, later

    def poll(self) -> Answers:
        found: Answers = {}
        for one in self._both:
            try:
                found.update(one.poll())
            except Problem:
                if not found:
                    raise
                break  # what has ended counts; the error comes again
        return found

    def forget(self, why: str) -> Answers:
        return {node: answer for one in self._both for node, answer in one.forget(why).items()}
