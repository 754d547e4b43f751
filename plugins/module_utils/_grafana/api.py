# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Grafana's HTTP API, as far as it is needed here."""

from __future__ import annotations

import base64
import json
import urllib.parse
import urllib.request
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._host import document, http
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem


class Answer(NamedTuple):
    """What Grafana answered: its HTTP status, and what it said as JSON (None where it said something else)."""

    status: int
    said: Any

    def why(self) -> str:
        """Return Grafana's own message."""
        said = self.said if isinstance(self.said, dict) else {}
        message = str(said.get("message") or "")[:200]
        return f"{self.status}" + (f" ({message})" if message else "")


def basic(user: str, password: str) -> str:
    """Return the Authorization of a user."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


class Client:
    """One Grafana, and who asks it."""

    def __init__(self, url: str, authorization: str, timeout: float = 30, source: str = "url") -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise Problem(f"{source} is {url!r}; needed: the address of Grafana, such as https://grafana.example.org")
        self.url = url.rstrip("/")
        self.source = source
        self.timeout = timeout
        self.plain = parts.scheme == "http" and not http.on_this_machine(parts.hostname)
        self._headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if authorization:
            self._headers["Authorization"] = authorization

    def ask(self, method: str, path: str, body: Any = None) -> Answer:
        """Ask for something. Problem says why there is no answer; every status is one."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/api/{path}", data, self._headers, method=method)
        try:
            answer = http.ask(request, self.timeout, follow=False)
        except http.Unanswered as error:
            raise Problem(f"{self.url} cannot be reached: {error}; is {self.source} right?") from error
        if 300 <= answer.status < 400:
            where = answer.headers.get("Location", "somewhere else")
            raise Problem(f"{self.url} redirects to {where}; {self.source} needs the address of Grafana itself")
        try:
            return Answer(answer.status, document.parse(answer.body))
        except ValueError:
            if answer.good:
                raise Problem(
                    f"{self.url} answers /api/{path} without JSON: {self.source} needs Grafana's own address, "
                    "with the path below which it is served"
                ) from None
            return Answer(answer.status, None)
