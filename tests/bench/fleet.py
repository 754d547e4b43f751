#!/usr/bin/env python
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A bundle on 1,000 and 5,000 nodes: how long it takes, what it costs, and how much it says.

    python tests/bench/fleet.py [--json FILE]

The playbook, its action, the inventory plugin, boto3 and HTTP are real. AWS is simulated: EC2 as in inventory.py, Run
Command by the sandbox's own model (molecule/cluster/aws/commands.py), on a clock that fleet_clock.py moves on while the
action waits. A node takes 180 ± 60 s, 1 % end badly, and lost nodes are Online and never begin. A call takes 80 ms.

The reach: `steps` are the waves in which nodes can have it at all, the head nodes first, then 5, 10, 20 and so on up to
fleet_concurrency. Nobody can be faster than steps × 180 s if waves wait for each other, as they do while there are few;
1.1 times that may be used, and 1.3 times that with 25 lost nodes, each of which keeps its place for 600 s.
"""

from __future__ import annotations

import base64
import gzip
import heapq
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections import Counter
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from figures import Figure, run  # noqa: E402
from programs import load, load_collection  # noqa: E402

import inventory  # noqa: E402

load_collection()

from ansible_collections.pcluster.postboot.tests.unit.plugins.lab import Pages  # noqa: E402

REPOSITORY = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
MEAN, SPREAD = 180.0, 60.0  # seconds that a node takes, from 120 to 240
LOST, BAD = 25, 0.01
LATENCY = 0.08
DELIVERY = (0.1, 1.0)  # seconds until an agent has it: it holds a connection, and begins within tenths of a second
UPGRADED, FOR_GPUS = ("docker", "node_exporter"), ("dcgm", "dcgm_exporter", "nvidia_container_toolkit", "gpu")
# Calls a second, and as many at once. AWS publishes no numbers; in aws/aws-rfdk's pull request 1723 many hosts met the
# limit with one ListCommandInvocations a second each.
RATES = {"SendCommand": 5.0}
RATE = 10.0
FIRST, CONCURRENCY = 5, 10  # of docs/fleet.md
DIGEST = "3f9e2c51ab07" + "0" * 52
BUNDLE = f"s3://bucket/postboot/0.2.0-{DIGEST[:12]}"


# --- the nodes -----------------------------------------------------------------------------------------------------


def report(dice: random.Random, bad: bool, gpu: bool) -> dict[str, Any]:
    """A node's report of all components, as `report` makes it after an upgrade of some of them."""
    components = []
    jobs = {path.stem for path in REPOSITORY.glob("playbooks/*.yml")}
    for name in sorted({path.name for path in (REPOSITORY / "roles").iterdir()} - {"common", *jobs}):
        status = "changed" if name in UPGRADED else "unchanged" if gpu or name not in FOR_GPUS else "skipped"
        entry = {"name": name, "status": status, "changed": int(status == "changed"), "essential": name == "fsx"}
        entry.update(why="this node has no NVIDIA GPU" if status == "skipped" else "", changes=[])
        entry.update(seconds=round(dice.uniform(0, 20), 1), version=f"{dice.randrange(30)}.1.2")
        entry["summary"] = f"{name} {entry['version']}, {dice.getrandbits(32):08x}"
        components.append(entry)
    found: dict[str, Any] = {"outcome": "ok", "stopped": None, "components": components, "phase": "all"}
    if bad:
        why = f"the file system is not mounted: {dice.randrange(900)} s without an answer of 10.0.0.1@tcp"
        fsx = next(entry for entry in components if entry["name"] == "fsx")
        fsx.update(status="failed", why=why, task="Mount the shared file systems")
        found.update(outcome="stopped", stopped={"component": "fsx", "message": why})
    found.update(
        changed=sum(entry["changed"] for entry in components), seconds=170.3, run_id=f"{dice.getrandbits(64):x}"
    )
    return found


def answer(dice: random.Random, bad: bool, gpu: bool) -> str:
    """What fleet.sh prints: the line for the controller, and 20 lines of what bootstrap.sh has said."""
    packed = base64.b64encode(gzip.compress(json.dumps(report(dice, bad, gpu)).encode(), 9)).decode()
    lines = [f"pcluster-postboot: {number:2} of 18 components done" for number in range(19)]
    lines.append(
        "pcluster-postboot: fsx failed: the file system is not mounted; see /var/log/pcluster-postboot/pull.log"
        if bad
        else "all is well"
    )
    after = BUNDLE.rsplit("/", 1)[1]
    return "\n".join([f"pcluster-postboot-fleet 1 {int(bad)} 0.1.0-old {after} {packed}", *lines]) + "\n"


class Nodes:
    """What agents do, and when."""

    def __init__(self, service: Any, count: int, lost: int, clock: Any) -> None:
        self.service, self.clock, self.dice = service, clock, random.Random(7)
        names = [f"i-{number:017x}" for number in range(count)]
        self.heads = {name for number, name in enumerate(names) if inventory.node(number).get("tag Name") == "HeadNode"}
        others = [name for name in names if name not in self.heads]
        chosen = self.dice.sample(others, lost + int(BAD * count))
        self.lost, self.bad = set(chosen[:lost]), set(chosen[lost:])
        self.due: list[tuple[float, int, str, Any]] = []
        self.number = 0
        self.sent: Counter[str] = Counter()
        self.before_the_first_result: int | None = None

    def later(self, seconds: float, instance: str, what: Any = None) -> None:
        self.number += 1
        heapq.heappush(self.due, (self.clock.now() + seconds, self.number, instance, what))

    def got(self, instances: list[str]) -> None:
        for instance in instances:
            self.sent[instance] += 1
            if instance not in self.lost:
                self.later(self.dice.uniform(*DELIVERY), instance)

    def catch_up(self) -> None:
        """Let happen what is due by now."""
        while self.due and self.due[0][0] <= self.clock.now():
            _when, _number, instance, command = heapq.heappop(self.due)
            if command is None:
                command = self.service.fetch(instance, 0)
                if command:
                    self.later(self.dice.uniform(MEAN - SPREAD, MEAN + SPREAD), instance, command)
                continue
            bad = instance in self.bad
            gpu = "gpu" in str(inventory.node(int(instance[2:], 16)).get("tag parallelcluster:queue-name"))
            said = {"id": command["id"], "code": int(bad), "stdout": answer(self.dice, bad, gpu)}
            self.service.reply(instance, {**said, "stderr": "", "late": False})
            if self.before_the_first_result is None and instance not in self.heads:
                self.before_the_first_result = len(set(self.sent) - self.heads)


# --- AWS -----------------------------------------------------------------------------------------------------------


class Cloud:
    """EC2 and SSM of one region."""

    def __init__(self, count: int, lost: int, clock: Any) -> None:
        commands = load("molecule/cluster/aws/commands.py")
        commands.time = SimpleNamespace(time=clock.now, monotonic=clock.now)  # type: ignore[attr-defined]
        self.names = [f"i-{number:017x}" for number in range(count)]
        everything = set(self.names)
        self.refusal, self.clock = commands.InvalidRequest, clock
        self.service = commands.Service(lambda region: everything, "123456789012")
        self.nodes = Nodes(self.service, count, lost, clock)
        self.calls: Counter[str] = Counter()
        self.throttled = self.bytes = 0
        self.tokens: dict[str, tuple[float, float]] = {}
        self.rendered = {name: self.item(number) for number, name in enumerate(self.names)}
        self.clusters = {name: inventory.CLUSTERS[number % 4] for number, name in enumerate(self.names)}

    @staticmethod
    def item(number: int) -> str:
        return (
            f"<item><reservationId>r-{number:017x}</reservationId><ownerId>123456789012</ownerId><groupSet/>"
            f"<instancesSet>{inventory.render_instance(number, 1)}</instancesSet></item>"
        )

    def may(self, operation: str) -> bool:
        rate, now = RATES.get(operation, RATE), self.clock.now()
        left, since = self.tokens.get(operation, (rate, now))
        left = min(rate, left + (now - since) * rate)
        self.tokens[operation] = (left - (left >= 1), now)
        return left >= 1

    def ec2(self, form: dict[str, list[str]]) -> bytes:
        """DescribeInstances: at most 1,000 a page (its API reference, MaxResults)."""
        self.calls["DescribeInstances"] += 1
        wanted = set(self.names)
        filters = [key[: -len(".Name")] for key in form if key.startswith("Filter.") and key.endswith(".Name")]
        for each in filters:
            if form[f"{each}.Name"] == ["instance-id"]:
                wanted = {value[0] for key, value in form.items() if key.startswith(f"{each}.Value.")}
                assert len(wanted) <= 200, "a filter takes 200 values"
        names = [name for name in self.names if name in wanted]
        start = int(form.get("NextToken", ["0"])[0])
        size = min(1000, int(form.get("MaxResults", ["1000"])[0]))
        token = f"<nextToken>{start + size}</nextToken>" if start + size < len(names) else ""
        items = "".join(self.rendered[name] for name in names[start : start + size])
        return (
            f'<?xml version="1.0" encoding="UTF-8"?>\n<DescribeInstancesResponse xmlns="{inventory.NAMESPACE}">'
            f"<reservationSet>{items}</reservationSet>{token}</DescribeInstancesResponse>"
        ).encode()

    def ssm(self, operation: str, request: dict[str, Any]) -> tuple[int, Any]:
        self.calls[operation] += 1
        if not self.may(operation):
            self.throttled += 1
            return 400, {"__type": "ThrottlingException", "message": "Rate exceeded"}
        if operation == "DescribeInstanceInformation":
            return 200, self.information(request)
        names = {
            "SendCommand": "send_command",
            "ListCommandInvocations": "list_command_invocations",
            "ListCommands": "list_commands",
            "GetCommandInvocation": "get_command_invocation",
            "CancelCommand": "cancel_command",
        }
        try:
            found = getattr(self.service, names[operation])(inventory.REGION, request)
        except self.refusal as error:
            return 400, {"__type": error.args[0], "message": error.args[1]}
        if operation == "SendCommand":
            self.nodes.got(request["InstanceIds"])
        return 200, found

    def information(self, request: dict[str, Any]) -> dict[str, Any]:
        """At most 50 a page (botocore's model of ssm, MaxResultsEC2Compatible)."""
        (wanted,) = request["Filters"]  # SSM takes no other filter beside a tag's
        assert wanted["Key"].startswith("tag:")
        cluster = wanted["Values"][0]
        names = [name for name in self.names if self.clusters[name] == cluster]
        start, size = int(request.get("NextToken") or 0), request["MaxResults"]
        assert size <= 50
        more = {"NextToken": str(start + size)} if start + size < len(names) else {}
        rows = [{"InstanceId": name, "PingStatus": "Online"} for name in names[start : start + size]]
        return {"InstanceInformationList": rows, **more}

    def stats(self) -> dict[str, Any]:
        return {
            "calls": self.calls,
            "throttled": self.throttled,
            "bytes": self.bytes,
            "twice": sum(times > 1 for times in self.nodes.sent.values()),
            "first": self.nodes.before_the_first_result,
            "cancelled": sum(
                one.details == "Cancelled"
                for command in self.service.commands.values()
                for one in command.invocations.values()
            ),
        }


def serve(count: int, lost: int, path: str) -> None:
    """Print the port, and answer until killed."""
    cloud = Cloud(count, lost, load("tests/bench/fleet_clock.py").Clock(path))
    one_at_a_time = threading.Lock()

    class Handler(Pages):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.say(200, json.dumps(cloud.stats()))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            operation = self.headers.get("X-Amz-Target", "").partition(".")[2]
            with one_at_a_time:
                cloud.clock.pass_by(LATENCY)
                cloud.nodes.catch_up()
                if operation:
                    status, found = cloud.ssm(operation, json.loads(body))
                    text, kind = json.dumps(found).encode(), "application/x-amz-json-1.1"
                else:
                    status, text, kind = 200, cloud.ec2(urllib.parse.parse_qs(body)), "text/xml;charset=UTF-8"
                cloud.bytes += len(text)
            self.say(status, text, **{"Content-Type": kind})

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


# --- what is measured ----------------------------------------------------------------------------------------------


def steps(count: int) -> int:
    """In how many waves the nodes can have it: head nodes, then 5 others and always as many again as have ended."""
    others = Counter(number % 4 for number in range(count) if inventory.node(number).get("tag Name") != "HeadNode")
    most = sum(max(1, each * CONCURRENCY // 100) for each in others.values())
    waves = ended = 0
    while ended < others.total():
        ended += min(most, FIRST + ended)
        waves += 1
    return 1 + waves


def simulate(count: int, lost: int, scratch: Path) -> dict[str, Any]:
    clock, costs = scratch / "clock", scratch / "costs"
    clock.write_bytes(struct.pack("d", time.time()))
    (scratch / "mine.pcluster.yml").write_text(inventory.OURS)
    plugins = scratch / "callbacks"
    plugins.mkdir(exist_ok=True)
    if not (plugins / "fleet_clock.py").exists():
        (plugins / "fleet_clock.py").symlink_to(HERE / "fleet_clock.py")
    line = [sys.executable, __file__, "--serve", str(count), str(lost), str(clock)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            url = f"http://127.0.0.1:{int(server.stdout.readline())}"
            found = play(url, {"FLEET_CLOCK": str(clock), "FLEET_COSTS": str(costs)}, scratch)
            with urllib.request.urlopen(url, timeout=60) as told:
                found.update(json.loads(told.read()))
        finally:
            server.terminate()
    found["wall"], found["cpu"], found["memory"] = map(float, costs.read_text().split())
    nodes = json.loads((scratch / "report.json").read_text())["nodes"]
    found["states"] = Counter(node["state"] for node in nodes.values())
    return found


def play(url: str, environment: dict[str, str], scratch: Path) -> dict[str, Any]:
    known = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "ANSIBLE_"))}
    known.update(
        environment,
        AWS_ENDPOINT_URL=url,
        AWS_ACCESS_KEY_ID="none",
        AWS_SECRET_ACCESS_KEY="none",
        AWS_EC2_METADATA_DISABLED="true",
        ANSIBLE_COLLECTIONS_PATH=os.environ.get("ANSIBLE_COLLECTIONS_PATH", str(REPOSITORY / ".venv/collections")),
        ANSIBLE_CALLBACK_PLUGINS=str(scratch / "callbacks"),
        ANSIBLE_CALLBACKS_ENABLED="fleet_clock",
        ANSIBLE_LOCALHOST_WARNING="false",
        ANSIBLE_NOCOLOR="1",
        COLUMNS="200",
    )
    options = {"bundle": BUNDLE, "sha256": DIGEST, "max_errors": "100%", "report": str(scratch / "report.json")}
    extra = json.dumps({f"fleet_{name}": value for name, value in options.items()})
    program = str(Path(sys.executable).parent / "ansible-playbook")
    line = [program, "-i", str(scratch / "mine.pcluster.yml"), "pcluster.postboot.fleet", "-e", extra]
    output = scratch / "output"
    with output.open("w") as stream:
        process = subprocess.Popen(line, env=known, stdout=stream, stderr=subprocess.STDOUT, cwd=scratch)
        _pid, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    text = output.read_text()
    if process.returncode != 2:  # nodes that end badly are among them
        raise SystemExit(f"ansible-playbook ended with {process.returncode}:\n{text[-5000:]}")
    return {"lines": len(text.splitlines()), "text": text, "all_cpu": used.ru_utime + used.ru_stime}


def measure() -> list[Figure]:
    figures = []
    for count in (1000, 5000):
        reach = 1.1 * steps(count) * MEAN
        for lost in (0, LOST):
            with tempfile.TemporaryDirectory(prefix="fleet-bench-") as scratch:
                found = simulate(count, lost, Path(scratch))
            if os.environ.get("FLEET_SHOW"):
                print(found["text"], found["calls"], found["states"])
            calls, states = found["calls"], found["states"]
            name = f"{count:,} nodes, {lost} lost: " if lost else f"{count:,} nodes: "
            figures += [
                Figure(
                    f"{name}wall, {steps(count)} steps of {MEAN:.0f} s",
                    found["wall"],
                    "s",
                    at_most=reach * (1.3 if lost else 1),
                ),
                Figure(f"{name}ended well", states["changed"], "nodes", at_least=count - lost - int(BAD * count)),
                Figure(f"{name}others that had it before the first result", found["first"], "nodes", at_most=FIRST),
                Figure(f"{name}sent it twice", found["twice"], "nodes", at_most=0),
                Figure(f"{name}cancelled", found["cancelled"], "nodes", at_most=lost, at_least=lost),
                Figure(f"{name}lines on the screen", found["lines"], at_most=60),
                *(Figure(f"{name}{operation}", number, "calls") for operation, number in sorted(calls.items())),
                Figure(f"{name}throttled", found["throttled"], "calls"),
                Figure(f"{name}from AWS", found["bytes"] / 1e6, "MB"),
                Figure(f"{name}CPU of the action", found["cpu"], "s"),
                Figure(f"{name}CPU of ansible-playbook", found["all_cpu"], "s"),
                Figure(f"{name}memory of the action, at most", found["memory"], "MB"),
            ]
    return figures


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    sys.exit(
        run("A bundle on the nodes of four clusters, 10 % at a time, 1 % of which end badly", measure, about=__doc__)
    )
