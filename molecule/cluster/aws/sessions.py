# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Session Manager of AWS Systems Manager, as far as the collection uses it.

Each agent holds a control channel, by which it learns of sessions; an instance without one is TargetNotConnected,
whatever DescribeInstanceInformation still says. A session has a data channel to the client and one to the agent, and
what comes through one goes to the other. A client that has gone leaves its session Disconnected, and what runs there
runs on, until it has ended or the session was idle for 20 minutes ("Specify an idle session timeout value", AWS Systems
Manager User Guide). Of an agent that has gone without a word the client learns nothing before that, either.

A test may have the next calls of StartSession throttled, and sessions time out sooner: `throttled`, `idle`.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from channel import ALIVE, CLOSED, FAILED, FLAG, START, SWITCHED, TERMINATE, Channel
from commands import need

# agent/appconfig/constants.go
SHELL, PORT, INTERACTIVE = "Standard_Stream", "Port", "InteractiveCommands"
COMMAND = "NonInteractiveCommands"
FORWARDING = "LocalPortForwarding"
CONTROL, DATA = "/v1/control-channel/", "/v1/data-channel/"
SILENCE = 15.0  # seconds without a sign of life after which an agent's control channel has ended
WAIT = 30.0  # seconds in which both ends of a session have to come


@dataclass(frozen=True)
class Document:
    """A session document: which plugin of the agent it is for, and its parameters with their defaults."""

    plugin: str
    parameters: dict[str, str] = field(default_factory=dict)
    fixed: dict[str, str] = field(default_factory=dict)


# "Session document schema" and "Start a session" (AWS Systems Manager User Guide).
DOCUMENTS = {
    "SSM-SessionManagerRunShell": Document(SHELL),
    "AWS-StartInteractiveCommand": Document(INTERACTIVE, {"command": ""}),
    "AWS-StartNonInteractiveCommand": Document(COMMAND, {"command": ""}),
    "AWS-StartSSHSession": Document(PORT, {"portNumber": "22"}),
    "AWS-StartPortForwardingSession": Document(
        PORT, {"portNumber": "80", "localPortNumber": "0"}, {"type": FORWARDING}
    ),
    "AWS-StartPortForwardingSessionToRemoteHost": Document(
        PORT, {"host": "localhost", "portNumber": "80", "localPortNumber": "0"}, {"type": FORWARDING}
    ),
}


@dataclass
class Session:
    region: str
    target: str
    document: str
    properties: dict[str, str]
    reason: str
    id: str = field(default_factory=lambda: f"sandbox-{secrets.token_hex(9)[:17]}")
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    status: str = "Connecting"
    started: float = field(default_factory=time.time)
    ended: float = 0.0
    touched: float = field(default_factory=time.monotonic)
    ends: dict[str, Channel] = field(default_factory=dict)

    def described(self) -> dict[str, Any]:
        row = {"SessionId": self.id, "Target": self.target, "Status": self.status, "DocumentName": self.document}
        row.update(StartDate=self.started, Owner="arn:aws:iam::123456789012:user/sandbox")
        if self.reason:
            row["Reason"] = self.reason
        if self.ended:
            row["EndDate"] = self.ended
        return row


class Service:
    """Every session of the account."""

    def __init__(self, running: Callable[[str], dict[str, str]]) -> None:
        self.running = running
        self.controls: dict[str, Channel] = {}
        self.sessions: dict[str, Session] = {}
        self.news = threading.Condition()
        self.throttled, self.idle = 0, 1200.0
        threading.Thread(target=self._watch, daemon=True).start()

    # What clients ask

    def start_session(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        """Start a session. StreamUrl is a path: on which host, only the caller of this knows."""
        target, name = request["Target"], request.get("DocumentName", "SSM-SessionManagerRunShell")
        with self.news:
            throttled = self.throttled > 0
            self.throttled -= throttled
        need(not throttled, "ThrottlingException", "Rate exceeded")
        need(name in DOCUMENTS, "InvalidDocument", f"Document with name {name} does not exist.")
        document, given = DOCUMENTS[name], request.get("Parameters") or {}
        unknown = sorted(set(given) - set(document.parameters))
        need(not unknown, "InvalidParameters", f"Parameters {unknown} are not supported by the document {name}")
        control = self.controls.get(self.running(region).get(target, ""))
        need(control, "TargetNotConnected", f"{target} is not connected.")
        properties = {**document.parameters, **{key: values[0] for key, values in given.items()}, **document.fixed}
        session = Session(region, target, name, properties, request.get("Reason", ""))
        self.sessions[session.id] = session
        path = f"{DATA.lstrip('/')}{session.id}?role="
        told = {"id": session.id, "plugin": document.plugin, "properties": properties}
        control.send(START, json.dumps({**told, "channel": f"{path}agent", "token": session.token}).encode())
        return {"SessionId": session.id, "TokenValue": session.token, "StreamUrl": f"{path}publish_subscribe"}

    def get_connection_status(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        target = request["Target"]
        there = self.running(region).get(target) in self.controls
        return {"Target": target, "Status": "connected" if there else "notconnected"}

    def terminate_session(self, _region: str, request: dict[str, Any]) -> dict[str, Any]:
        if session := self.sessions.get(request["SessionId"]):
            self.close(session)
        return {"SessionId": request["SessionId"]}

    def describe_sessions(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        size, start = request.get("MaxResults", 200), int(request.get("NextToken") or 0)
        need(1 <= size <= 200, "ValidationException", f"MaxResults is {size}; it must be from 1 to 200")
        keys = {"Target": "Target", "Status": "Status", "SessionId": "SessionId", "Owner": "Owner"}
        wanted = {one["key"]: one["value"] for one in request.get("Filters") or []}
        need(not set(wanted) - set(keys), "InvalidFilterKey", f"the sandbox knows {sorted(keys)}, not {list(wanted)}")
        over = {"Active": False, "History": True}[request["State"]]
        rows = [one.described() for one in self.sessions.values() if one.region == region and bool(one.ended) == over]
        rows = [row for row in rows if all(row[keys[key]] == value for key, value in wanted.items())]
        answer: dict[str, Any] = {"Sessions": rows[start : start + size]}
        if start + size < len(rows):
            answer["NextToken"] = str(start + size)
        return answer

    # What tests ask

    def arrange(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Set what a test wants: calls to throttle, seconds of an idle session. Return both, and what there is."""
        self.throttled = int(wanted.get("throttled", self.throttled))
        self.idle = float(wanted.get("idle", self.idle))
        told = {"throttled": self.throttled, "idle": self.idle, "connected": sorted(self.controls)}
        return {**told, "started": len(self.sessions)}

    # Channels

    def serve(self, path: str, role: str, token: str, connection: socket.socket) -> NoReturn:
        """Take a connection over as a channel until the channel has ended."""
        session = self.sessions.get(path.removeprefix(DATA))
        if path.startswith(DATA) and (not session or session.token != token or session.ended):
            connection.sendall(b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\n\r\n")
            raise ConnectionAbortedError(path)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(SWITCHED)
        channel = Channel(connection)
        try:
            if session:
                self._data(session, "agent" if role == "agent" else "client", channel)
            else:
                self._control(path.removeprefix(CONTROL), channel)
        finally:
            channel.close()
        raise ConnectionAbortedError(path)  # so that werkzeug writes no answer behind it

    def _control(self, instance: str, channel: Channel) -> None:
        channel.connection.settimeout(SILENCE)
        self.controls[instance] = channel
        while frame := channel.receive():
            channel.send(ALIVE)
            if frame[0] == FAILED:
                told = json.loads(frame[1])
                self.close(self.sessions[told["id"]], told["output"])
        if self.controls.get(instance) is channel:
            del self.controls[instance]

    def _data(self, session: Session, end: str, channel: Channel) -> None:
        with self.news:
            session.ends[end] = channel
            self.news.notify_all()
            there = self.news.wait_for(lambda: len(session.ends) == 2 or session.ended, WAIT)
        if not there:
            self.close(session)
            return
        other = session.ends["client" if end == "agent" else "agent"] if not session.ended else channel
        session.status = "Connected" if not session.ended else session.status
        while frame := channel.receive():
            session.touched = time.monotonic()
            if end == "agent" and frame[0] == CLOSED:
                self.close(session, frame[1].decode())
            elif end == "client" and frame == (FLAG, TERMINATE):
                self.close(session)
            else:
                other.send(*frame)
        if not session.ended:
            session.status = "Disconnected"

    def close(self, session: Session, output: str = "") -> None:
        """End a session; both ends are told, and what was said last."""
        with self.news:
            if session.ended:
                return
            session.ended, session.status = time.time(), "Terminated"
            self.news.notify_all()
        for channel in list(session.ends.values()):
            channel.send(CLOSED, output.encode())

    def _watch(self) -> None:
        """End the sessions in which nothing has come or gone for too long."""
        while True:
            time.sleep(0.5)
            for session in list(self.sessions.values()):
                if not session.ended and time.monotonic() - session.touched > self.idle:
                    self.close(session)
