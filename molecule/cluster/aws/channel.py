# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A channel of Session Manager: frames of a kind and a payload, both ways, through one connection.

AWS has web sockets and messages of its own in their place. The service, the session-manager-plugin and the nodes' agent
all have this file.
"""

from __future__ import annotations

import socket
import struct
import threading
from urllib.parse import urlsplit

HEAD = struct.Struct(">BI")
# Numbers of upstream's payload types (aws/session-manager-plugin 61cf1288, src/message/clientmessage.go).
OUTPUT, SIZE, HANDSHAKE, FLAG = 1, 3, 5, 10
# Of the sandbox's own: the session has ended; a session for an agent; a session's worker has failed; a sign of life.
CLOSED, START, FAILED, ALIVE = 20, 21, 22, 23
TERMINATE, UNREACHABLE = b"2", b"3"  # payloads of FLAG
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: sandbox-session\r\n\r\n"


class Channel:
    """One end of a channel. Any thread may send."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.sending = threading.Lock()

    def send(self, kind: int, payload: bytes = b"") -> bool:
        """Send a frame, and return whether the other end still takes one."""
        try:
            with self.sending:
                self.connection.sendall(HEAD.pack(kind, len(payload)) + payload)
        except OSError:
            return False
        return True

    def receive(self) -> tuple[int, bytes] | None:
        """Wait for a frame; None once the channel has ended, or its time-out is over."""
        head = self._read(HEAD.size)
        if head is None:
            return None
        kind, size = HEAD.unpack(head)
        payload = self._read(size)
        return None if payload is None else (kind, payload)

    def _read(self, size: int) -> bytes | None:
        found = b""
        while len(found) < size:
            try:
                part = self.connection.recv(size - len(found))
            except OSError:
                return None
            if not part:
                return None
            found += part
        return found

    def close(self) -> None:
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the other end was first
        self.connection.close()


def connect(url: str, token: str = "", timeout: float = 60) -> Channel:
    """Open a channel at a URL of the service."""
    parts = urlsplit(url)
    connection = socket.create_connection((parts.hostname or "", parts.port or 80), timeout=timeout)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    wanted = f"GET {parts.path}?{parts.query} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
    connection.sendall(f"{wanted}Connection: Upgrade\r\nUpgrade: sandbox-session\r\nX-Token: {token}\r\n\r\n".encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        if not byte:
            break
        answer += byte
    status = answer.split(b"\r\n")[0].decode(errors="replace")
    if " 101 " not in status:
        connection.close()
        raise ConnectionError(f"{url}: {status or 'no answer'}")
    connection.settimeout(None)
    return Channel(connection)
