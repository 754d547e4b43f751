#!/usr/bin/env python3
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A stand-in for ssm-session-worker: one session on a node, a shell in a terminal, a command, or connections to a port.

The agent starts it with the session as JSON; it ends with the session. README.md beside it names what it has from the
agent's source, and what is otherwise.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import pwd
import shlex
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, os.environ.get("SSM_AGENT_LIBRARY", "/usr/lib/amazon-ssm-agent"))

from channel import CLOSED, FLAG, HANDSHAKE, OUTPUT, SIZE, UNREACHABLE, Channel, connect

USER = os.environ.get("SSM_AGENT_RUN_AS", "ssm-user")
SUDOERS = Path("/etc/sudoers.d/ssm-agent-users")
FIRST_OUTPUT = float(os.environ.get("SSM_AGENT_FIRST_OUTPUT", "1"))  # seconds after which a terminal is first read
PAYLOAD = 1024
STREAM = struct.Struct(">IB")  # of several connections through one channel: a connection's number, and what is with it
OPEN, DATA, END = 0, 1, 2
SIGNALS = {0x03: signal.SIGINT, 0x1C: signal.SIGQUIT}  # bytes of a client that are signals for a command


class Failure(Exception):
    """What ends a session before it has begun; the client prints it."""


def make_user(name: str) -> pwd.struct_passwd:
    """The user of sessions, whom the first session on a node creates, and who may do everything by sudo."""
    try:
        return pwd.getpwnam(name)
    except KeyError:
        subprocess.run(["useradd", "-m", name], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if not SUDOERS.exists():
        SUDOERS.write_text(f"# User rules for {name}\n{name} ALL=(ALL) NOPASSWD:ALL\n")
        SUDOERS.chmod(0o440)
    return pwd.getpwnam(name)


def session_user() -> tuple[pwd.struct_passwd, dict[str, str]]:
    """Return the user of sessions, and the environment of what the user runs."""
    user = make_user(USER) if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    environment = {**os.environ, "TERM": "xterm-256color", "HOME": f"/home/{user.pw_name}"}
    environment.setdefault("LANG", "C.UTF-8")
    environment.pop("SSM_AGENT_SESSION", None)
    return user, environment


def become(user: pwd.struct_passwd) -> None:
    """Make this process the user's."""
    # Python ignores SIGPIPE, and a background job SIGINT and SIGQUIT; so would all that is started.
    for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    if os.geteuid() == 0:
        os.setgroups(os.getgrouplist(user.pw_name, user.pw_gid))
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)


def command(channel: Channel, words: str) -> None:
    """Run one command without a terminal or standard input, and tell what it has printed once it has ended."""
    if not words.strip():
        raise Failure("Commands cannot be empty for session type NonInteractiveCommands")
    user, environment = session_user()
    with tempfile.TemporaryFile() as printed:
        try:
            parts = shlex.split(words, comments=True)
        except ValueError as error:
            channel.send(OUTPUT, f"Unable to start command: Failed to parse commands input: {error}\n\n".encode())
            return
        try:
            process = subprocess.Popen(
                parts,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                env=environment,
                preexec_fn=lambda: become(user),
            )
        except OSError as error:
            channel.send(OUTPUT, f"Error occurred starting the command: {error}\n".encode())
            return
        threading.Thread(target=signals, args=(channel, process), daemon=True).start()
        process.wait()
        printed.seek(0)
        while found := printed.read(PAYLOAD):
            if not channel.send(OUTPUT, found):
                return


def signals(channel: Channel, process: subprocess.Popen[bytes]) -> None:
    """Send a command the signals that the client sends; once the session has ended, kill the command alone."""
    while frame := channel.receive():
        if frame[0] == CLOSED:
            break
        for number in filter(None, map(SIGNALS.get, frame[1] if frame[0] == OUTPUT else b"")):
            process.send_signal(number)
    process.kill()


def shell(channel: Channel, commands: str) -> None:
    """Run a shell, or the given commands, in a terminal, until it ends or the session does."""
    user, environment = session_user()
    pid, terminal = pty.fork()
    if pid == 0:
        become(user)
        os.execvpe("sh", ["sh", "-c", commands] if commands else ["sh"], environment)
    threading.Thread(target=from_client, args=(channel, pid, terminal), daemon=True).start()
    time.sleep(FIRST_OUTPUT)
    while True:
        try:
            found = os.read(terminal, PAYLOAD)
        except OSError:
            break  # the last program that had the terminal has closed it
        if not found or not channel.send(OUTPUT, found):
            break
    os.waitpid(pid, 0)


def from_client(channel: Channel, pid: int, terminal: int) -> None:
    """Give the terminal what the client sends; once the session has ended, kill the shell and close the terminal."""
    while frame := channel.receive():
        kind, payload = frame
        if kind == OUTPUT:
            while payload:
                payload = payload[os.write(terminal, payload) :]
        elif kind == SIZE:
            size = json.loads(payload)
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size["rows"], size["cols"], 0, 0))
        elif kind == CLOSED:
            break
    os.kill(pid, signal.SIGKILL)
    os._exit(0)  # with this the terminal is gone, so that what else runs in it gets SIGHUP


def one_port(channel: Channel, port: str) -> None:
    """Connect the client to a port of this node, once."""
    try:
        connection = socket.create_connection(("localhost", int(port)))
    except OSError as error:
        raise Failure(f"Unable to connect to specified port: dial tcp {error}") from error
    threading.Thread(target=pump, args=(connection, channel), daemon=True).start()
    while frame := channel.receive():
        if frame[0] == CLOSED:
            return
        if frame[0] == OUTPUT:
            connection.sendall(frame[1])


def pump(connection: socket.socket, channel: Channel) -> None:
    while found := connection.recv(PAYLOAD):
        channel.send(OUTPUT, found)
    channel.send(CLOSED)


def many(channel: Channel, host: str, port: str) -> None:
    """Connect each of the client's connections to a port of this node, or of another machine."""
    connections: dict[int, socket.socket] = {}

    def read(number: int) -> None:
        connection = connections[number]
        try:
            while found := connection.recv(PAYLOAD):
                channel.send(OUTPUT, STREAM.pack(number, DATA) + found)
        except OSError:
            pass  # closed by this side
        channel.send(OUTPUT, STREAM.pack(number, END))

    while frame := channel.receive():
        if frame[0] == CLOSED:
            return
        if frame[0] != OUTPUT:
            continue
        number, what = STREAM.unpack(frame[1][: STREAM.size])
        if what == OPEN:
            try:
                connections[number] = socket.create_connection((host or "localhost", int(port)), timeout=30)
                connections[number].settimeout(None)
            except OSError:
                channel.send(FLAG, UNREACHABLE)
                channel.send(OUTPUT, STREAM.pack(number, END))
                continue
            threading.Thread(target=read, args=(number,), daemon=True).start()
        elif number in connections:
            try:
                if what == DATA:
                    connections[number].sendall(frame[1][STREAM.size :])
                else:
                    connections.pop(number).shutdown(socket.SHUT_WR)
            except OSError:
                pass  # its other end has closed it, which the reader tells


def serve(session: dict[str, Any], url: str) -> None:
    channel = connect(url + session["channel"], session["token"])
    properties, plugin = session["properties"], session["plugin"]
    try:
        if plugin == "Port":
            channel.send(HANDSHAKE, json.dumps({"SessionType": plugin, "Properties": properties}).encode())
            if properties.get("type") == "LocalPortForwarding":
                many(channel, properties.get("host", ""), properties["portNumber"])
            else:
                one_port(channel, properties["portNumber"])
        elif plugin == "NonInteractiveCommands":
            channel.send(HANDSHAKE, json.dumps({"SessionType": plugin, "Properties": None}).encode())
            command(channel, properties["command"])
        else:
            shell(channel, properties.get("command", ""))
    except Failure as failure:
        channel.send(CLOSED, str(failure).encode())
    except (OSError, subprocess.CalledProcessError) as error:
        channel.send(CLOSED, f"----------ERROR-------\nUnable to start command: {error}\n".encode())
    channel.send(CLOSED)


if __name__ == "__main__":
    serve(json.loads(os.environ["SSM_AGENT_SESSION"]), sys.argv[1])
