# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A push from a workstation by Session Manager, by SSH through it, and by SSH through the head node."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from .bundles import bucket
from .conftest import instance
from .helpers import On, Play, Run, failed, joined, ok, said, until
from .workstation import Workstation, sessions

NODES = ["cpu-st-c5-1", "el-cpu-st-c5-1"]
NODE = NODES[0]
SPARE = "burst-dy-c5-1"
SUDOERS = "/etc/sudoers.d/ssm-agent-users"
ONE = ("--limit", NODE, "--tags", "node_exporter")
GONE = "the node's SSM agent does not run, has just begun, or may not call SSM"


@pytest.fixture(scope="module")
def files() -> Iterator[Any]:
    """The bucket through which aws_ssm moves files."""
    with bucket("sandbox-push") as found:
        yield found


@pytest.fixture(scope="module")
def workstation(files: Any, tmp_path_factory: pytest.TempPathFactory) -> Workstation:
    return Workstation(tmp_path_factory.mktemp("workstation"), files.name)


@pytest.fixture(scope="module")
def ssm() -> Any:
    return boto3.client("ssm", region_name="us-east-1")


def last(done: Run) -> str:
    """The last line of a run's table."""
    return re.findall(r"^pcluster\.postboot: .*", done.stdout, re.M)[-1]


@pytest.mark.parametrize(
    ("what", "nodes"),
    [
        pytest.param(ONE, [NODE], id="one component"),
        pytest.param(("--limit", ",".join(NODES)), NODES, id="all components", marks=pytest.mark.long),
    ],
)
def test_site_again_over_ssm_changes_nothing_and_leaves_nothing(
    on: On, workstation: Workstation, files: Any, what: tuple[str, ...], nodes: list[str]
) -> None:
    done = ok(workstation.play("ssm", "site", *what))
    assert re.match(rf"pcluster\.postboot: {len(nodes)} nodes?, 0 changed, 0 failed", last(done)), last(done)
    assert [one.key for one in files.objects.all()] == []
    for node in nodes:
        assert on(node).check_output("ls -A ~ssm-user/.ansible/tmp") == ""
        assert on(node).file(SUDOERS).mode == 0o440


@pytest.mark.parametrize("connection", ["ssh_over_ssm", "ssh_via_head"])
def test_one_component_over_ssh(workstation: Workstation, connection: str) -> None:
    begun = sessions()["started"]
    done = ok(workstation.play(connection, "site", *ONE))
    assert last(done).startswith("pcluster.postboot: 1 node, 0 changed, 0 failed"), last(done)
    # All tasks share the first one's SSH connection, and that has one session.
    assert sessions()["started"] - begun == (1 if connection == "ssh_over_ssm" else 0)


def test_a_person_s_shell_and_a_forwarded_port(workstation: Workstation) -> None:
    """By AWS's own CLI, without Ansible."""
    start = ["aws", "ssm", "start-session", "--target", instance(NODE)]
    command = ["--document-name", "AWS-StartInteractiveCommand", "--parameters", "command=sudo id"]
    how: dict[str, Any] = {"env": workstation.environment, "stdout": subprocess.PIPE, "text": True}
    # A session ends with its standard input.
    with subprocess.Popen([*start, *command], stdin=subprocess.PIPE, **how) as run:
        assert run.stdout
        printed = run.stdout.read()
    assert re.search(r"Starting session with SessionId: (\S+)\n.*uid=0\(root\)", printed, re.S), printed
    assert run.returncode == 0
    forward = ["--document-name", "AWS-StartPortForwardingSession", "--parameters", "portNumber=9100"]
    with subprocess.Popen([*start, *forward], start_new_session=True, **how) as run:
        try:
            assert run.stdout
            lines = iter(run.stdout.readline, "")
            port = next(found for line in lines if (found := re.search(r"Port (\d+) opened for sessionId", line)))
            with urllib.request.urlopen(f"http://localhost:{port[1]}/metrics", timeout=10) as answer:
                assert b"node_uname_info" in answer.read()
        finally:
            os.killpg(run.pid, signal.SIGINT)
            run.stdout.read()  # what it prints at its end: with a closed output it would not end


def test_a_bucket_that_is_not_there(workstation: Workstation) -> None:
    done = failed(workstation.play("ssm", "site", *ONE, bucket="sandbox-nobody-s"))
    assert "`bucket` of the inventory names no bucket that your AWS credentials may use" in said(done)
    assert "Traceback" not in said(done)


def test_a_node_that_boots_is_waited_for(on: On, play: Play) -> None:
    """As long as its cloud-init has not ended, which is what its result tells."""
    node, result = on(NODE), "/run/cloud-init/result.json"
    node.check_output(f"mv {result} {result}.away")
    try:
        done = failed(play(*ONE, "--check"))
        assert re.search(rf"{NODE} still boots after \d+ s: cloud-init has not written {result}; needed: ", said(done))
        assert "found no mount" not in said(done)
        node.check_output(f"systemd-run --on-active=15 mv {result}.away {result}")
        done = ok(play(*ONE))
        assert f"{NODE} still boots: this run waits until cloud-init has written {result}, for 1800 s" in said(done)
    finally:
        node.run(f"[ ! -L {result}.away ] || mv {result}.away {result}")


@pytest.mark.long
@pytest.mark.parametrize("connection", ["ssm", "ssh_over_ssm", "ssh_via_head"])
def test_a_new_node_and_once_more(workstation: Workstation, on: On, connection: str) -> None:
    with joined(SPARE):
        done = ok(workstation.play(connection, "site", "--limit", SPARE, timeout=900))
        assert ", 0 failed" in last(done), done.stdout[-3000:]
        assert "nodename" in on(SPARE).check_output("curl -sf http://localhost:9100/metrics")
        again = ok(workstation.play(connection, "site", "--limit", SPARE, timeout=600))
        assert last(again).startswith("pcluster.postboot: 1 node, 0 changed, 0 failed"), last(again)


@pytest.mark.long
@pytest.mark.parametrize("end", ["terminated", "worker killed"])
def test_a_session_that_dies_in_the_middle(workstation: Workstation, on: On, ssm: Any, end: str) -> None:
    """At a random moment of a run that installs node_exporter: the run says how it ended, and the next one mends it."""
    node = on(NODE)
    node.check_output("systemctl disable --now node_exporter")
    node.check_output("rm /etc/systemd/system/node_exporter.service /usr/local/bin/node_exporter")
    wanted = [{"key": "Target", "value": instance(NODE)}, {"key": "Status", "value": "Connected"}]
    line, number = workstation.command("ssm", "site", *ONE), random.randint(1, 5)
    print(f"a session ends once {number} have begun")  # pytest shows it where the test fails
    begun = sessions()["started"]
    with subprocess.Popen(
        line, env=workstation.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as run:
        until(lambda: sessions()["started"] >= begun + number, 60)
        active = until(lambda: ssm.describe_sessions(State="Active", Filters=wanted)["Sessions"], 30)
        if end == "terminated":
            ssm.terminate_session(SessionId=active[0]["SessionId"])
        else:
            node.check_output("pkill --signal KILL --newest --full '[s]sm-session-worker'")
        told, _nothing = run.communicate(timeout=240)
    assert "Traceback" not in told, told
    assert re.search(r"^pcluster\.postboot: 1 node, |^fatal: \[cpu-st-c5-1\]: UNREACHABLE", told, re.M), told
    print(told[-1500:])
    done = ok(workstation.play("ssm", "site", *ONE))
    assert ", 0 failed" in last(done), done.stdout[-3000:]
    assert "nodename" in node.check_output("curl -sf http://localhost:9100/metrics")


@pytest.mark.long
def test_a_node_whose_agent_goes_away(workstation: Workstation, on: On, ssm: Any) -> None:
    """One of two nodes is lost in the middle: the run says so and goes on with the other."""
    node = on(NODE)
    line = workstation.command("ssm", "site", "--limit", ",".join(NODES), "--tags", "docker,enroot,node_exporter")
    begun = sessions()["started"]
    with subprocess.Popen(
        line, env=workstation.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as run:
        until(lambda: sessions()["started"] > begun + 6, 60)
        node.check_output("systemctl stop amazon-ssm-agent")
        try:
            told, _nothing = run.communicate(timeout=240)
        finally:
            node.check_output("systemctl start amazon-ssm-agent")
    assert run.returncode != 0
    words = " ".join(told.split())
    assert GONE in words, told
    assert "Traceback" not in words
    assert re.search(rf"^unreachable on {NODE}: ", told, re.M), told
    assert re.search(r"^pcluster\.postboot: 2 nodes, 0 changed, 0 failed, 1 unreachable", told, re.M), told
    until(lambda: instance(NODE) in sessions()["connected"], 30)
    done = ok(workstation.play("ssm", "site", "--limit", NODE, "--tags", "docker,enroot,node_exporter"))
    assert last(done).startswith("pcluster.postboot: 1 node, 0 changed, 0 failed"), last(done)


@pytest.mark.long
def test_ssm_user_has_another_uid_than_on_the_node_that_made_its_home(workstation: Workstation, on: On) -> None:
    ok(workstation.play("ssm", "site", "--limit", NODES[1], "--tags", "node_exporter"))
    head, again = on("el-head"), ("ssm", "site", "--limit", "el-head", "--tags", "node_exporter")
    uid = head.check_output("stat -c %u /home/ssm-user")  # /home is that of all nodes
    remove_user = f"pkill -u ssm-user; userdel ssm-user; rm -f {SUDOERS}"
    head.run(remove_user)
    head.check_output(f"useradd -M --uid {uid} other")
    try:
        assert "ssm-user cannot write to its home directory" in said(failed(workstation.play(*again)))
    finally:
        head.run(f"{remove_user}; userdel other")
    # What docs/push.md says.
    head.check_output(f"useradd --uid {uid} ssm-user && echo 'ssm-user ALL=(ALL) NOPASSWD:ALL' > {SUDOERS}")
    assert ", 0 failed" in last(ok(workstation.play(*again)))


@pytest.mark.long
def test_calls_that_are_throttled(workstation: Workstation) -> None:
    """boto3 repeats a few of them, and nobody learns of it. Where AWS throttles each call, the run says so and ends."""
    sessions(throttled=4)
    assert ", 0 failed" in last(ok(workstation.play("ssm", "site", *ONE)))
    sessions(throttled=10_000)
    try:
        done = failed(workstation.play("ssm", "site", *ONE))
    finally:
        sessions(throttled=0)
    assert "AWS starts no more sessions at this rate; use fewer forks, or AWS_RETRY_MODE=adaptive" in said(done)
    assert "Traceback" not in said(done)


@pytest.mark.long
def test_what_a_lost_workstation_began_ends_on_the_node(workstation: Workstation, on: On) -> None:
    """All processes of the workstation are gone at once; a second run takes the lock that the first one has left."""
    line = workstation.command("ssm", "site", *ONE)
    with subprocess.Popen(
        line, env=workstation.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as run:
        time.sleep(random.uniform(4, 12))
        os.killpg(run.pid, signal.SIGKILL)
    done = ok(workstation.play("ssm", "site", *ONE, timeout=600))
    assert ", 0 failed" in last(done), done.stdout[-3000:]
