# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The one way to open a URL: within a time, and with one line for whatever goes wrong.

What this machine itself answers, and the metadata service, is asked directly. Everything else goes through the proxies
of the environment, unless the one who asks wants none.
"""

from __future__ import annotations

import functools
import http.client
import ipaddress
import socket
import ssl
import time
import urllib.error
import urllib.request
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ansible_collections.pcluster.postboot.plugins.module_utils._host import document
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem

LARGEST = 64 << 20
_CHUNK = 1 << 16


class Unanswered(Problem):
    """Why an address gave no whole answer."""


class Answer(NamedTuple):
    """What an address answered: its status, the status in words, its headers, and the body."""

    status: int
    reason: str
    headers: Any
    body: bytes

    @property
    def good(self) -> bool:
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    def good_text(self) -> str:
        """Return the text. Raises Problem where the status is none of success."""
        if not self.good:
            raise Problem(f"HTTP Error {self.status}: {self.reason}")
        return self.text


def on_this_machine(host: str | None) -> bool:
    """Say whether an address leaves this machine nowhere."""
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return host == "localhost"


def _direct(host: str | None) -> bool:
    """Say whether an address is reached without any proxy: this machine's own, and those of its link, as IMDS has."""
    try:
        return on_this_machine(host) or ipaddress.ip_address(host or "").is_link_local
    except ValueError:
        return False


class _Proxies(urllib.request.ProxyHandler):
    """The proxies of the environment, but for what is reached directly."""

    def proxy_open(self, req: urllib.request.Request, proxy: str, type: str) -> Any:
        return None if _direct(urlsplit(req.full_url).hostname) else super().proxy_open(req, proxy, type)


class _Stay(urllib.request.HTTPRedirectHandler):
    """Goes nowhere else: a POST would become a GET there, and a secret in a header would come along."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class _Https(urllib.request.AbstractHTTPHandler):
    """HTTPS. To read the certificates of the system takes longer than this machine's own answers, so it comes last."""

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(http.client.HTTPSConnection, req, context=_trust())

    https_request = urllib.request.AbstractHTTPHandler.do_request_


@functools.cache
def _trust() -> ssl.SSLContext:
    return ssl.create_default_context()


def opener(
    *, proxies: bool = True, redirects: urllib.request.HTTPRedirectHandler | None = None, files: bool = False
) -> urllib.request.OpenerDirector:
    """Return what opens a URL of HTTP or HTTPS.

    proxies:   whether the proxies of the environment are used
    redirects: what follows redirects in another way than Python does
    files:     whether it opens file: too
    """
    made = urllib.request.OpenerDirector()
    for handler in (
        *([_Proxies()] if proxies else []),
        urllib.request.HTTPHandler(),
        _Https(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
        redirects or urllib.request.HTTPRedirectHandler(),
        *([urllib.request.FileHandler()] if files else []),
    ):
        made.add_handler(handler)
    return made


def ask(
    request: str | urllib.request.Request,
    seconds: float,
    *,
    proxies: bool = True,
    follow: bool = True,
    files: bool = False,
    most: int = LARGEST,
) -> Answer:
    """Return what an address answers, whatever its status is.

    seconds: how long the address may be silent, and how long all of its answer may take
    proxies: whether the proxies of the environment are used
    follow:  whether redirects are followed; one that is not is an answer
    files:   whether file: is opened, too
    most:    after that many bytes the rest is not read

    Raises Unanswered where there is no answer, or not all of it.
    """
    until = time.monotonic() + seconds
    try:
        try:
            response = opener(proxies=proxies, redirects=None if follow else _Stay(), files=files).open(
                request, timeout=seconds
            )
        except urllib.error.HTTPError as error:
            response = error
        with response:
            body = _read(response, until, seconds, most)
            return Answer(response.status or 200, str(getattr(response, "reason", "")), response.headers, body)
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        late = isinstance(reason, socket.timeout)
        raise Unanswered(f"no answer within {seconds:g} s" if late else str(reason) or type(reason).__name__) from error


def _read(response: Any, until: float, seconds: float, most: int) -> bytes:
    body = b""
    while len(body) < most:
        # As much as has come: a server that trickles would otherwise be waited for again and again.
        chunk = response.read1(min(_CHUNK, most - len(body)))
        if not chunk:
            announced = document.whole(response.headers.get("Content-Length") or "") or 0
            if len(body) < announced:
                raise Unanswered(f"its answer ended after {len(body)} of {announced} bytes")
            break
        body += chunk
        if time.monotonic() > until:
            raise Unanswered(f"its answer was not complete within {seconds:g} s")
    return body
