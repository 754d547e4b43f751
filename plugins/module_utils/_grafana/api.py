# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Grafana's HTTP API, as far as it is needed here."""

from __future__ import annotations

import base64
import http.client
import ipaddress
import json
import socket
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem

LARGEST = 64 << 20


class Answer(NamedTuple):
    """What Grafana answered: its HTTP status, and what it said as JSON (None where it said something else)."""

    status: int
    said: Any

    def why(self) -> str:
        """Say it in Grafana's words."""
        said = self.said if isinstance(self.said, dict) else {}
        message = str(said.get("message") or "")[:200]
        return f"{self.status}" + (f" ({message})" if message else "")


class _Stay(urllib.request.HTTPRedirectHandler):
    """Goes nowhere else: a POST would become a GET there, and the token would come along."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def basic(user: str, password: str) -> str:
    """Return the Authorization of a user."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def on_this_machine(host: str) -> bool:
    """Say whether an address leaves this machine nowhere."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Client:
    """One Grafana, and who asks it."""

    def __init__(self, url: str, authorization: str, timeout: float = 30, source: str = "url") -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise Problem(f"{source} is {url!r}; needed: the address of Grafana, such as https://grafana.example.org")
        self.url = url.rstrip("/")
        self.source = source
        self.timeout = timeout
        self.plain = parts.scheme == "http" and not on_this_machine(parts.hostname)
        self._headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if authorization:
            self._headers["Authorization"] = authorization
        handlers: list[urllib.request.BaseHandler] = [_Stay()]
        if on_this_machine(parts.hostname):
            handlers.append(urllib.request.ProxyHandler({}))
        self._opener = urllib.request.build_opener(*handlers)

    def ask(self, method: str, path: str, body: Any = None) -> Answer:
        """Ask for something. Problem says why there is no answer; every status is one."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/api/{path}", data, self._headers, method=method)
        try:
            try:
                answer = self._opener.open(request, timeout=self.timeout)
            except urllib.error.HTTPError as error:
                answer = error
            with answer:
                status, raw = answer.status or 0, answer.read(LARGEST)
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            text = "it gave no answer in time" if isinstance(reason, socket.timeout) else str(reason)
            raise Problem(f"{self.url} cannot be reached: {text}; is {self.source} right?") from error
        if 300 <= status < 400:
            where = answer.headers.get("Location", "somewhere else")
            raise Problem(f"{self.url} sends one to {where}; {self.source} needs the address of Grafana itself")
        try:
            return Answer(status, json.loads(raw))
        except ValueError:
            if 200 <= status < 300:
                raise Problem(
                    f"{self.url} answers /api/{path} without JSON: {self.source} needs Grafana's own address, "
                    "with the path below which it is served"
                ) from None
            return Answer(status, None)
