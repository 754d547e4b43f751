# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Looks at one cluster again and again, until all of its nodes are up or the time is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.errors import AwsErrors, explain
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory.cloud import describe_instances
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory.nodes import Node, Reader
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory.query import Query
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.progress import duration
from ansible_collections.pcluster.postboot.plugins.plugin_utils._status import stages, words

# Seconds for which nothing boots and a failure stays until the watch ends: clustermgtd, which looks once a minute, may
# replace a node that has failed.
GRACE = 180.0
_STATES = ("pending", "running", "stopping", "stopped")
Head = tuple[Mapping[str, Any] | None, str]  # what boot_info has found, or why there is no answer


class Plan(NamedTuple):
    cluster: str
    wait: bool = True
    timeout: int = 3600
    interval: int = 15


class Instances:
    """The instances of a cluster: one call for each 1,000 of them."""

    def __init__(self, client: Any, region: str, cluster: str) -> None:
        self._client, self._region, self._cluster = client, region, cluster
        self._found: list[Node] | None = None

    def read(self) -> tuple[list[Node], str]:
        """Return them, and why they are those of an earlier look. That the first one fails is a Problem."""
        query = Query((self._region,), (self._cluster,), ("head", "login", "compute"), states=_STATES)
        try:
            told = describe_instances(self._client, query.questions()[0])
        except AwsErrors as error:
            problem = explain(error, self._region, "ec2:DescribeInstances", f"cluster {self._cluster}")
            if self._found is None or problem.denied:
                raise problem from error
            return self._found, str(problem)
        reader = Reader(self._region)
        nodes = [node for node in map(reader.node, told) if node is not None]
        self._found = [node for node in nodes if node["cluster"] == self._cluster]
        return self._found, ""


class Watch:
    def __init__(
        self,
        plan: Plan,
        instances: Callable[[], tuple[Sequence[Node], str]],
        head: Callable[[], Head],
        say: Callable[[list[str]], None],
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._plan, self._instances, self._head, self._say = plan, instances, head, say
        self._clock, self._sleep = clock, sleep
        self._memory: stages.Memory = {}
        self._news = words.News()
        self._warned = ""
        self._begun = 0.0  # by the clock of the head node

    def look(self) -> stages.Seen:
        found, old = self._instances()
        answer, silent = self._head()
        # Both clocks are set by AWS's; that of the head node counts, because nodes and Slurm note times by it.
        now = float(answer["now"]) if answer else self._clock()
        if old and old != self._warned:
            self._say([f"{self._plan.cluster}: what EC2 said before still counts: {old}"])
        self._warned = old
        self._begun = self._begun or (now if self._plan.wait else 0.0)
        return stages.judge(self._plan.cluster, found, answer, silent, now, self._memory, self._begun)

    def run(self) -> tuple[stages.Seen, float]:
        """Return the last look, and after how many seconds the watch gave up; 0 where it did not."""
        begun = self._clock()
        quiet, troubles = begun, ""
        while True:
            seen = self.look()
            self._say(self._news.of(seen))
            now = self._clock()
            if not self._plan.wait or not (seen.moving or seen.bad):
                return seen, 0.0
            wrong = words.complaint(seen, 0)
            if seen.moving or wrong != troubles:
                quiet, troubles = now, wrong
            if now - quiet >= GRACE:
                return seen, 0.0
            if now - begun >= self._plan.timeout:
                self._say([f"{self._plan.cluster}: the time is over after {duration(now - begun)} (status_timeout)"])
                return seen, now - begun
            self._sleep(min(self._plan.interval, max(0.5, begun + self._plan.timeout - now)))
