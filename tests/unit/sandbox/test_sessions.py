# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The sandbox's Session Manager: the service, an agent with its workers, and the stand-in of session-manager-plugin.

Each README names upstream's files that say the same.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws import session_manager
from ansible_collections.pcluster.postboot.tests.programs import REPO, load
from ansible_collections.pcluster.postboot.tests.waiting import PATIENCE, until

pytest.importorskip("moto.server")

SCENARIO = REPO / "molecule/cluster"
PLUGIN = SCENARIO / "standins/session-manager-plugin/session-manager-plugin"
KEYS = {"region_name": "us-east-1", "aws_access_key_id": "x", "aws_secret_access_key": "x"}
Arrange = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """The sandbox's AWS API."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCENARIO / "parallelcluster"))
        program = load("molecule/cluster/aws/server.py")
        application = program.Application()
        # A side that had to wait for the machine has not gone.
        patch.setattr(program.sessions, "SILENCE", PATIENCE)
        patch.setattr(program.sessions, "WAIT", PATIENCE)
        from werkzeug.serving import make_server

        server = make_server("127.0.0.1", 0, application, threaded=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.port}"
        server.shutdown()


@pytest.fixture(scope="module")
def ssm(endpoint: str) -> Any:
    config = Config(retries={"total_max_attempts": 1}, read_timeout=PATIENCE)
    return boto3.client("ssm", endpoint_url=endpoint, config=config, **KEYS)


@pytest.fixture(scope="module")
def arrange(endpoint: str) -> Arrange:
    """A function that tells the service what a test wants, and returns what there is."""

    def arranged(**wanted: Any) -> dict[str, Any]:
        url, said = f"{endpoint}/sandbox/sessions", json.dumps(wanted).encode()
        with urllib.request.urlopen(url, said, timeout=PATIENCE) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found

    return arranged


def launched(endpoint: str) -> str:
    ec2 = boto3.client("ec2", endpoint_url=endpoint, **KEYS)
    return str(ec2.run_instances(ImageId="ami-1", MinCount=1, MaxCount=1)["Instances"][0]["InstanceId"])


@pytest.fixture(scope="module")
def node(endpoint: str, arrange: Arrange, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An instance with an agent, whose sessions run as a user of this machine."""
    folder, instance = tmp_path_factory.mktemp("node"), launched(endpoint)
    (folder / "id").write_text(instance)
    environment = {
        **os.environ,
        "SSM_AGENT_API": f"{endpoint}/sandbox/ssm-agent",
        "SSM_AGENT_INSTANCE_ID": str(folder / "id"),
        "SSM_AGENT_LIBRARY": str(SCENARIO / "aws"),
        "SSM_AGENT_WORKER": str(SCENARIO / "standins/ssm-agent/session_worker.py"),
        "SSM_AGENT_RUN_AS": "nobody",
        "SSM_AGENT_FIRST_OUTPUT": "0.1",
        "SSM_AGENT_SILENCE": str(PATIENCE),
    }
    line = [sys.executable, SCENARIO / "standins/ssm-agent/agent.py"]
    with subprocess.Popen(line, env=environment, cwd="/usr/bin", start_new_session=True) as agent:
        until(lambda: instance in arrange()["connected"])
        yield instance
        os.killpg(agent.pid, signal.SIGKILL)


class Client:
    """The plugin, started as amazon.aws and the AWS CLI start it, and what it has printed so far."""

    def __init__(self, ssm: Any, response: dict[str, Any], target: str) -> None:
        told = {key: response[key] for key in ("SessionId", "TokenValue", "StreamUrl")}
        variable, request = "AWS_SSM_START_SESSION_RESPONSE", json.dumps({"Target": target})
        self.id, self.text = response["SessionId"], ""
        self.process = subprocess.Popen(
            [sys.executable, PLUGIN, variable, "us-east-1", "StartSession", "", request, ssm.meta.endpoint_url],
            env={**os.environ, variable: json.dumps(told)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        os.set_blocking(self.process.stdout.fileno(), False)

    def send(self, text: str) -> None:
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()

    def reads(self, wanted: str) -> str:
        """Wait until a pattern was printed, and return its first group."""

        def found() -> str:
            self.text += (self.process.stdout.read() or b"").decode()
            match = re.search(wanted, self.text, re.S)
            return match[match.lastindex or 0] if match else ""

        return str(until(found))

    def takes_signals(self) -> bool:
        """Say whether a signal would reach the session, and no longer end the plugin itself, which waits for them."""
        blocked = re.search(r"^SigBlk:\t(\w+)$", Path(f"/proc/{self.process.pid}/status").read_text(), re.M)
        return bool(blocked and int(blocked[1], 16) >> (signal.SIGINT - 1) & 1)

    def ends(self) -> int:
        return self.process.wait(timeout=PATIENCE)


@pytest.fixture
def start(ssm: Any, node: str) -> Iterator[Callable[..., Client]]:
    clients: list[Client] = []

    def started(**request: Any) -> Client:
        target = request.setdefault("Target", node)
        clients.append(Client(ssm, ssm.start_session(**request), target))
        return clients[-1]

    yield started
    for client in clients:
        ssm.terminate_session(SessionId=client.id)
        client.ends()


def test_a_shell_in_a_terminal_that_echoes(start: Callable[..., Client]) -> None:
    client = start()
    assert client.reads(r"^\nStarting session with SessionId: (\S+)\n") == client.id
    client.send("echo $((6*7)) $(whoami) $PWD $TERM; tty; stty size\n")
    user = "nobody" if os.geteuid() == 0 else ""
    client.reads(r"echo \$\(\(6\*7\)\).*\r\n" + f"42 {user}")  # the echo, and the answer
    client.reads(r"/usr/bin xterm-256color\r\n/dev/pts/\d+\r\n100 300\r\n")
    client.send("exit\n")
    client.reads(f"\n\nExiting session with sessionId: {client.id}.\n\n")
    assert client.ends() == 0


def test_a_node_of_hyperpod_is_another_target_of_its_agent(
    start: Callable[..., Client], ssm: Any, node: str, endpoint: str
) -> None:
    cluster = {
        "Region": "us-east-1",
        "ClusterArn": "arn:aws:sagemaker:us-east-1:123456789012:cluster/ab12cd34ef56",
        "ClusterName": "training",
        "ClusterStatus": "InService",
        "CreationTime": 1795161000,
        "InstanceGroups": [{"InstanceGroupName": "gpu-1"}],
    }
    told = {
        "InstanceGroupName": "gpu-1",
        "InstanceId": node,
        "InstanceType": "ml.p5.48xlarge",
        "LaunchTime": 1795161330,
    }
    wanted = {"clusters": [{**cluster, "Nodes": [{**told, "InstanceStatus": {"Status": "Running"}}]}]}
    with urllib.request.urlopen(f"{endpoint}/sandbox/hyperpod", json.dumps(wanted).encode(), timeout=10):
        pass
    target, other = (f"sagemaker-cluster:ab12cd34ef56_{group}-{node}" for group in ("gpu-1", "gpu-2"))
    client = start(Target=target)
    client.send("echo $((6*7)).\n")
    client.reads(r"42\.")
    assert ssm.get_connection_status(Target=target)["Status"] == "connected"
    assert ssm.get_connection_status(Target=other)["Status"] == "notconnected"
    assert code(ssm.start_session, Target=other) == ("TargetNotConnected", f"{other} is not connected.")
    sent = {"DocumentName": "AWS-RunShellScript", "Parameters": {"commands": ["true"]}}
    assert code(ssm.send_command, InstanceIds=[target], **sent)[0] == "InvalidInstanceId"


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> session_manager.Sessions:
    """What `fleet` runs commands on nodes of HyperPod with; it finds the plugin by its name."""
    monkeypatch.setenv("PATH", os.pathsep.join([str(PLUGIN.parent), os.environ["PATH"]]))
    found = session_manager.Sessions()
    found.need_plugin()
    return found


def test_fleet_s_sessions_say_what_a_command_has_printed(
    sessions: session_manager.Sessions, ssm: Any, node: str, arrange: Arrange
) -> None:
    said = sessions.run(ssm, node, "sh -c 'seq 3000; exit 3'")
    assert said.text.startswith(f"\nStarting session with SessionId: {said.session_id}\n1\n2\n3\n")
    assert said.text.endswith(f"2999\n3000\n\n\nExiting session with sessionId: {said.session_id}.\n\n")
    assert said.last == "3000"
    said = sessions.run(ssm, node, "/no/program")
    assert said.last.startswith("Error occurred starting the command: ")
    arrange(throttled=1)
    with pytest.raises(ClientError, match="ThrottlingException"):
        sessions.run(ssm, node, "true")


def test_a_session_that_takes_too_long_is_ended(
    sessions: session_manager.Sessions, ssm: Any, node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("sleep", f"700.{os.getpid()}")
    monkeypatch.setattr(session_manager, "SECONDS", 2.0)
    said = sessions.run(ssm, node, " ".join(words))
    assert "Exiting" not in said.text
    until(lambda: not running(*words))
    assert ssm.describe_sessions(State="Active")["Sessions"] == []


def test_threads_take_turns_so_that_others_may_start_sessions_too(
    sessions: session_manager.Sessions, ssm: Any, node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(session_manager, "time", SimpleNamespace(monotonic=lambda: 100.0, sleep=waits.append))
    with ThreadPoolExecutor() as pool:
        said = list(pool.map(lambda number: sessions.run(ssm, node, f"echo {number}"), range(4)))
    assert [one.last for one in said] == ["0", "1", "2", "3"]
    assert sorted(waits) == [0.0, 0.5, 1.0, 1.5]


def test_many_lines_come_through(start: Callable[..., Client]) -> None:
    client = start()
    client.send("stty -echo\n" + "".join(f": {'x' * 1000}\n" for _ in range(10)) + "echo all$((1+1))\n")
    client.reads("all2")


COMMAND = "AWS-StartNonInteractiveCommand"


def test_a_command_prints_once_it_has_ended(start: Callable[..., Client]) -> None:
    line = "sh -c 'echo $((6*7)) \"$0\" $(whoami) $PWD; tty; (sleep 600; echo late)& echo wrong >&2' 'two words' # no"
    client = start(DocumentName=COMMAND, Parameters={"command": [line]})
    user = "nobody" if os.geteuid() == 0 else ""
    client.reads(f"^\nStarting session with SessionId: {client.id}\n42 two words {user}.*/usr/bin\nnot a tty\nwrong\n")
    client.reads(f"wrong\n\n\nExiting session with sessionId: {client.id}.\n\n$")
    assert client.ends() == 0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (" ", "\n\nSessionId: .* : Commands cannot be empty for session type NonInteractiveCommands\n\n$"),
        ("/no/program", "\nError occurred starting the command: .*\n\n\nExiting session with sessionId: .*\n\n$"),
        ("echo 'a", "\nUnable to start command: Failed to parse commands input: .*Exiting session with"),
    ],
)
def test_a_command_that_cannot_begin(start: Callable[..., Client], line: str, said: str) -> None:
    client = start(DocumentName=COMMAND, Parameters={"command": [line]})
    client.reads(said)
    assert client.ends() == 0


def running(*words: str) -> list[int]:
    """The processes with this command line."""
    line = b"\0".join(word.encode() for word in words) + b"\0"
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += [int(path.parent.name)] if path.read_bytes() == line else []
        except OSError:
            pass  # it has ended meanwhile
    return found


def test_a_command_is_killed_with_its_session_and_takes_a_signal(start: Callable[..., Client], ssm: Any) -> None:
    words = ("sleep", f"600.{os.getpid()}")

    def begun() -> Client:
        client = start(DocumentName=COMMAND, Parameters={"command": [" ".join(words)]})
        client.reads("Starting session")
        until(lambda: running(*words) and client.takes_signals())
        return client

    client = begun()
    client.process.send_signal(signal.SIGINT)
    client.reads("Exiting session")
    assert not running(*words)
    client = begun()
    ssm.terminate_session(SessionId=client.id)
    client.reads("Exiting session")
    until(lambda: not running(*words))


def test_a_client_whose_input_ends_leaves_a_command_s_session(start: Callable[..., Client]) -> None:
    client = start(DocumentName=COMMAND, Parameters={"command": ["sleep 600"]})
    client.process.stdin.close()
    client.reads("Cannot perform start session: EOF\n")
    assert client.ends() == 0


def test_a_program_whose_reader_has_gone_is_ended_without_a_word(start: Callable[..., Client]) -> None:
    client = start()
    client.send("stty -echo\nyes | head -n 1; echo end$((1+1))\n")
    client.reads("y\r\n.*end2")
    assert "Broken pipe" not in client.text


def test_signals_are_keys_of_the_terminal(start: Callable[..., Client]) -> None:
    client = start()
    # The program itself says that it has the terminal: a signal before that would end the line, or nothing.
    client.send("trap 'echo got$((1+1))' INT; sh -c 'echo ready$((1+1)); exec sleep 600'\n")
    client.reads("ready2")
    client.process.send_signal(signal.SIGINT)
    client.reads("got2")


def test_terminate_session_ends_both_sides(start: Callable[..., Client], ssm: Any, node: str) -> None:
    client = start()
    client.send("echo pid=$$.; exec sleep 600\n")
    pid = int(client.reads(r"pid=(\d+)\."))
    (row,) = ssm.describe_sessions(State="Active", Filters=[{"key": "Target", "value": node}])["Sessions"]
    assert (row["SessionId"], row["Status"]) == (client.id, "Connected")
    ssm.terminate_session(SessionId=client.id)
    client.reads(f"\n\nExiting session with sessionId: {client.id}.\n\n")
    assert client.ends() == 0
    until(lambda: not Path(f"/proc/{pid}").exists())
    assert ssm.describe_sessions(State="Active")["Sessions"] == []
    assert client.id in [row["SessionId"] for row in ssm.describe_sessions(State="History")["Sessions"]]


def test_a_worker_that_dies_is_told_of_by_its_agent(start: Callable[..., Client]) -> None:
    client = start()
    client.send("echo worker=$(awk '/^PPid/ {print $2}' /proc/$$/status).\n")
    os.kill(int(client.reads(r"worker=(\d+)\.")), signal.SIGKILL)
    client.reads(rf"\n\nSessionId: {client.id} : document process failed unexpectedly: .*\n\n")
    assert client.ends() == 0


def test_what_runs_goes_on_without_its_client_until_the_session_was_idle(
    start: Callable[..., Client], ssm: Any, arrange: Arrange
) -> None:
    client = start()
    client.send("echo pid=$$.; exec sleep 600\n")
    pid = int(client.reads(r"pid=(\d+)\."))
    client.process.kill()
    until(lambda: ssm.describe_sessions(State="Active")["Sessions"][0]["Status"] == "Disconnected")
    assert Path(f"/proc/{pid}").exists()
    arrange(idle=0.1)
    try:
        until(lambda: not Path(f"/proc/{pid}").exists())
    finally:
        arrange(idle=1200)


def test_input_that_ends_ends_a_shell(start: Callable[..., Client]) -> None:
    client = start()
    client.send("echo ready$((1+1))\n")
    client.reads("ready2")
    client.process.stdin.close()
    client.reads("Cannot perform start session: EOF\n")
    assert client.ends() == 0


def test_a_port_s_bytes_are_standard_input_and_output(start: Callable[..., Client]) -> None:
    with Echo() as echo:
        client = start(DocumentName="AWS-StartSSHSession", Parameters={"portNumber": [str(echo.port)]})
        client.send("SSH-2.0-x\r\n")
        client.reads(f"^\nStarting session with SessionId: {client.id}\nSSH-2.0-x\r\n$")
        client.process.stdin.close()
        assert client.ends() == 0


def test_a_port_on_which_nothing_listens(start: Callable[..., Client]) -> None:
    client = start(DocumentName="AWS-StartSSHSession", Parameters={"portNumber": ["1"]})
    client.reads(rf"\n\nSessionId: {client.id} : Unable to connect to specified port: dial tcp .*refused\n\n$")
    assert client.ends() == 0


@pytest.mark.parametrize("document", ["AWS-StartPortForwardingSession", "AWS-StartPortForwardingSessionToRemoteHost"])
def test_a_forwarded_port_takes_several_connections_at_once(start: Callable[..., Client], document: str) -> None:
    with Echo() as echo:
        client = start(DocumentName=document, Parameters={"portNumber": [str(echo.port)]})
        port = int(client.reads(rf"Port (\d+) opened for sessionId {client.id}.\nWaiting for connections...\n"))
        connections = [socket.create_connection(("localhost", port), timeout=PATIENCE) for _ in range(3)]
        for number, connection in enumerate(connections):
            connection.sendall(str(number).encode() * 5000)
        for number, connection in enumerate(connections):
            found = b""
            while len(found) < 5000:
                found += connection.recv(5000)
            assert found == str(number).encode() * 5000
            connection.close()
        client.process.send_signal(signal.SIGINT)
        client.reads(rf"Terminate signal received, exiting.\n\n\nExiting session with sessionId: {client.id}.\n\n$")
        assert client.ends() == 0


class Echo:
    """A server that sends back what comes."""

    def __enter__(self) -> Echo:
        self.listener = socket.create_server(("localhost", 0))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self.accept, daemon=True)
        self.thread.start()
        return self

    def accept(self) -> None:
        while True:
            try:
                connection = self.listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self.send_back, args=(connection,), daemon=True).start()

    def send_back(self, connection: Any) -> None:
        while found := connection.recv(4096):
            connection.sendall(found)

    def __exit__(self, *_: object) -> None:
        # A thread that waits on a closed socket would serve the next that gets its number, once the process was paused.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.listener.close()


def code(call: Callable[..., Any], **request: Any) -> tuple[str, str]:
    with pytest.raises(ClientError) as caught:
        call(**request)
    return caught.value.response["Error"]["Code"], caught.value.response["Error"]["Message"]


def test_calls_that_are_refused(ssm: Any, node: str, endpoint: str, arrange: Arrange) -> None:
    silent = launched(endpoint)  # Online, as DescribeInstanceInformation has it, and without an agent
    assert silent in [one["InstanceId"] for one in ssm.describe_instance_information()["InstanceInformationList"]]
    assert code(ssm.start_session, Target=silent) == ("TargetNotConnected", f"{silent} is not connected.")
    assert code(ssm.start_session, Target=node, DocumentName="Other")[0] == "InvalidDocument"
    assert code(ssm.start_session, Target=node, Parameters={"portNumber": ["1"]})[0] == "InvalidParameters"
    arrange(throttled=1)
    assert code(ssm.start_session, Target=node) == ("ThrottlingException", "Rate exceeded")
    ssm.terminate_session(SessionId=ssm.start_session(Target=node)["SessionId"])


def test_the_plugin_without_a_session() -> None:
    def says(*arguments: str) -> str:
        return subprocess.run([sys.executable, PLUGIN, *arguments], text=True, capture_output=True, check=True).stdout

    assert "installed successfully" in says()
    assert re.fullmatch(r"\d+\.\d+\.\d+\.\d+\n", says("--version"))
    assert "Unknown operation x" in says("x")
    assert says("{}", "us-east-1", "Other", "") == "Invalid Operation"
    assert says("{", "us-east-1", "StartSession", "", "{}", "").startswith("Cannot perform start session: ")
