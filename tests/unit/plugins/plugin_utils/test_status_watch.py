# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A watch from look to look: what is printed, when it ends, and what EC2 is asked for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._status import stages, watch, words
from ansible_collections.pcluster.postboot.plugins.plugin_utils._status.stages import Seen, Status
from ansible_collections.pcluster.postboot.tests.unit.plugins.aws import KEYS, error, launch

NOW = 1_795_400_000.0


def node(name: str, stage: str, ago: float = 60, **more: Any) -> Status:
    kind = "head" if name == "head" else "compute"
    times = {"since": NOW - ago / 2, "launched": NOW - ago, "deadline": NOW - ago + 2100}
    if stage not in stages.MOVING:
        times["deadline"] = 0.0
    return Status(name, kind, stage, **{"queue": "cpu", **times, **more})


def seen(*nodes: Status, now: float = NOW, **more: Any) -> Seen:
    return Seen("main", now, list(nodes), **more)


HEAD = node("head", stages.UP)


def test_each_change_of_a_node_is_a_line_and_nothing_else_is() -> None:
    news = words.News()
    assert news.of(seen(HEAD, node("cpu-st-c5-1", stages.REQUESTED, launched=0.0))) == [
        "main: head: up",
        "main: cpu-st-c5-1: requested",
    ]
    assert news.of(seen(HEAD, node("cpu-st-c5-1", stages.REQUESTED, launched=0.0))) == []
    assert news.of(seen(HEAD, node("cpu-st-c5-1", stages.BOOTING))) == [
        "main: cpu-st-c5-1: booting, boots for 1 min 00 s of 35 min 00 s"
    ]
    assert news.of(seen(HEAD, node("cpu-st-c5-1", stages.BOOTING, 75))) == []
    ours = {"component": "docker", "of": "2 of 5"}
    (line,) = news.of(seen(HEAD, node("cpu-st-c5-1", stages.OURS, 90, **ours)))
    assert line == "main: cpu-st-c5-1: our run: docker, 2 of 5, boots for 1 min 30 s of 35 min 00 s"
    (line,) = news.of(seen(HEAD, node("cpu-st-c5-1", stages.OURS, 2400, late=True, todo="look there", **ours)))
    assert line == (
        "main: cpu-st-c5-1: our run: docker, 2 of 5, late, boots for 40 min 00 s of 35 min 00 s (look there)"
    )
    assert news.of(seen(HEAD)) == ["main: cpu-st-c5-1: its instance is gone"]


def test_what_a_node_says_reaches_no_terminal_as_it_is() -> None:
    (line,) = words.News().of(seen(node("cpu-st-c5-1", stages.FAILED, why="\x1b[2J\x07gone")))
    assert line == "main: cpu-st-c5-1: failed (\\x1b[2J\\x07gone)"


def fleet(up: int, ours: int, *more: Status, now: float = NOW) -> Seen:
    nodes = [node(f"cpu-st-c5-{number}", stages.UP) for number in range(1, up + 1)]
    nodes += [node(f"cpu-st-c5-{number}", stages.OURS, component="docker") for number in range(up + 1, up + ours + 1)]
    return seen(HEAD, *nodes, *more, now=now)


def test_of_many_nodes_counts_are_told_and_names_of_those_that_are_not_well() -> None:
    news = words.News()
    assert news.of(fleet(1, 999)) == ["main: 2 of 1001 nodes up, 999 our run (docker 999)"]
    assert news.of(fleet(2, 998, now=NOW + 15)) == []  # counts come at most twice a minute
    assert news.of(fleet(500, 500, now=NOW + 30)) == ["main: 501 of 1001 nodes up, 500 our run (docker 500)"]
    bad = [node(f"gpu-st-p5-{n}", stages.FAILED, why="efa failed: no device", component="efa") for n in (1, 2, 3)]
    lines = news.of(fleet(500, 497, *bad, now=NOW + 45))
    assert lines == ["main: failed: gpu-st-p5-[1-3]: efa failed: no device"]
    assert news.of(fleet(500, 497, *bad, now=NOW + 59)) == []


def test_the_table_of_few_has_a_row_for_each_and_ends_with_the_sum() -> None:
    ours = node("cpu-st-c5-1", stages.OURS, component="docker", of="2 of 5")
    off = node("cpu-st-c5-2", stages.OFF)
    gone = node("cpu-st-c5-3", stages.FAILED, why="fsx failed: x", component="fsx", todo="see y")
    lines = words.table(seen(HEAD, ours, off, gone, off=3, alarms=["protected mode: z"]))
    assert [" ".join(line.split()) for line in lines] == [
        "cluster main",
        "protected mode: z",
        "node stage since boot so far",
        "head up",
        "cpu-st-c5-1 our run: docker, 2 of 5 0 min 30 s 1 min 00 s of 35 min 00 s",
        "cpu-st-c5-3 failed 0 min 30 s",
        "failed: cpu-st-c5-3: fsx failed: x; see y",
        "main: 1 of 3 nodes up, 1 our run (docker 1), 1 failed; 4 more are off",
    ]


def test_the_table_of_a_thousand_is_a_page() -> None:
    bad = [node(f"gpu-st-p5-{n}", stages.FAILED, why=f"reason {n}") for n in range(30)]
    lines = words.table(fleet(600, 370, *bad))
    assert len(lines) < 25
    assert any(" ".join(line.split()) == "cpu-st-c5-[1-600] up 600" for line in lines), lines
    assert "20 more reasons" in lines
    assert words.complaint(fleet(1000, 0), 0) == ""


def test_json_has_all_of_it() -> None:
    found = words.as_json(seen(HEAD, node("cpu-st-c5-1", stages.OURS, component="efa"), off=2))
    assert (found["cluster"], found["off"], found["nodes"][1]["component"]) == ("main", 2, "efa")
    assert found["summary"] == "main: 1 of 2 nodes up, 1 our run (efa 1); 2 more are off"


# The watch


class Played:
    """A watch on a clock of its own; each look finds what the test says next, and the last of it again and again."""

    def __init__(self, *looks: Any, **plan: Any) -> None:
        self.looks, self.said, self.now, self.count = list(looks), [], NOW, 0
        self.watch = watch.Watch(
            watch.Plan("main", **plan), lambda: ([], ""), self.head, self.said.extend, lambda: self.now, self.sleep
        )

    def head(self) -> Any:
        self.count += 1
        return (self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]), "no route"

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def answer(state: str, now: float = NOW, reason: str = "") -> dict[str, Any]:
    one = {"name": "cpu-st-c5-1", "state": state.split("+"), "reason": reason, "reason_since": now}
    return {"now": now, "nodes": [one], "fleet": "RUNNING", "booted": True}


def test_a_cluster_that_is_up_takes_one_look() -> None:
    played = Played({**answer("IDLE+CLOUD"), "nodes": []})
    found, waited = played.watch.run()
    assert (played.count, waited, words.complaint(found, waited)) == (1, 0.0, "")


def test_it_looks_until_the_last_node_is_up() -> None:
    played = Played(*[answer("DOWN+CLOUD")] * 3, {**answer("IDLE"), "nodes": []})
    assert played.watch.run()[1] == 0.0
    assert (played.count, played.now - NOW) == (4, 45)
    played = Played(answer("DOWN+CLOUD"), wait=False)
    assert words.complaint(*played.watch.run()) == ""  # a node that boots is no failure
    assert played.count == 1


def test_it_gives_up_when_the_time_is_over_and_says_who_is_not_up() -> None:
    played = Played(answer("DOWN+CLOUD"), timeout=100, interval=30)
    found, waited = played.watch.run()
    assert waited == 100
    assert words.complaint(found, waited) == "not up after 1 min 40 s: cpu-st-c5-1"
    assert played.said[-1] == "main: the time is over after 1 min 40 s (status_timeout)"


def test_where_nothing_boots_any_more_a_failure_ends_it_but_not_at_once() -> None:
    ice = "(Code:InsufficientInstanceCapacity)Failure when resuming nodes"
    played = Played(answer("DOWN+CLOUD+POWERED_DOWN", reason=ice), timeout=3600)
    found, waited = played.watch.run()
    assert watch.GRACE <= played.now - NOW < watch.GRACE + 60
    assert words.complaint(found, waited).startswith(f"failed: cpu-st-c5-1 ({ice}; EC2 has no capacity")


# EC2


@pytest.fixture
def ec2(moto: str) -> Any:
    client = boto3.client("ec2", region_name="ap-southeast-1", endpoint_url=moto, **KEYS)
    for cluster, kind, count in (("one", "HeadNode", 1), ("one", "Compute", 2), ("one-more", "HeadNode", 1)):
        tags = {"cluster-name": cluster, "node-type": kind, "attributes": "ubuntu2404, slurm, 3.16.1, x86_64"}
        launch(client, {f"parallelcluster:{key}": value for key, value in tags.items()}, count)
    yield client
    found = client.describe_instances()["Reservations"]
    client.terminate_instances(InstanceIds=[one["InstanceId"] for part in found for one in part["Instances"]])


def test_ec2_is_asked_once_a_look_for_one_cluster(ec2: Any) -> None:
    calls: list[str] = []
    ec2.meta.events.register("before-call.ec2", lambda model, **_more: calls.append(model.name))
    nodes, old = watch.Instances(ec2, "ap-southeast-1", "one").read()
    assert sorted(one["node_type"] for one in nodes) == ["compute", "compute", "head"]
    assert (calls, old) == (["DescribeInstances"], "")
    assert all(abs(stages.epoch(one["launch_time"]) - time.time()) < 600 for one in nodes)
    stopped = [one["instance_id"] for one in nodes if one["node_type"] == "compute"]
    ec2.terminate_instances(InstanceIds=stopped[:1])
    assert len(watch.Instances(ec2, "ap-southeast-1", "one").read()[0]) == 2


class Ec2:
    """A client whose pages the test makes."""

    def __init__(self, pages: Callable[[], Any]) -> None:
        self._pages = pages

    def get_paginator(self, _name: str) -> Any:
        return self

    def paginate(self, **_arguments: Any) -> Any:
        return self._pages()


def test_what_ec2_said_before_counts_while_it_does_not_answer() -> None:
    answers: list[Any] = [[{"Reservations": []}], error("RequestLimitExceeded"), error("UnauthorizedOperation")]

    def pages() -> Any:
        told = answers.pop(0)
        if isinstance(told, ClientError):
            raise told
        return told

    instances = watch.Instances(Ec2(pages), "us-east-1", "main")
    assert instances.read() == ([], "")
    nodes, old = instances.read()
    assert (nodes, "RequestLimitExceeded" in old) == ([], True)
    with pytest.raises(Problem, match="ec2:DescribeInstances is not allowed"):
        instances.read()
    answers.append(error("RequestLimitExceeded"))
    with pytest.raises(Problem, match="us-east-1, cluster main: ec2:DescribeInstances"):
        watch.Instances(Ec2(pages), "us-east-1", "main").read()
