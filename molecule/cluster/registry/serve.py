# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The sandbox's container registry: the real one on port 5000, filled with images.py's, and in front of it port 5001.

Port 5001 passes everything on, but an image's name may ask for more:

  private/NAME            needs a login, with a bearer token as nvcr.io wants it: user USER, password PASSWORD
  fault/401/NAME          no login is ever good enough
  fault/429/NAME          429 Too Many Requests, with Retry-After
  fault/503/NAME          503 Service Unavailable, with Retry-After
  fault/503-twice/NAME    503 for the first two requests, then as if nothing had been
  fault/truncate/NAME     each blob ends in its middle
  fault/slow/NAME         each answer waits, and blobs come slowly

Two more addresses are for tests: GET /requests lists what was asked for, and POST /reset forgets that, and with it what
fault/503-twice counts. Port 5002 is door.py's, which keeps what Alertmanager sends.
"""

from __future__ import annotations

import base64
import http.client
import json
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import door
import images

USER, PASSWORD = "$oauthtoken", "sandbox-ngc-key"
REAL, PORT = 5000, 5001
TOKEN_PATH = "/proxy_auth"
SLOW_BYTES, SLOW_SECONDS = 64 * 1024, 0.25
CONFIG = """\
version: 0.1
log: {level: warn, accesslog: {disabled: true}}
storage: {filesystem: {rootdirectory: /var/lib/registry}}
http: {addr: ":5000"}
"""


class State:
    """What the front remembers between requests."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.requests: list[str] = []
        self.counts: dict[str, int] = {}

    def count(self, name: str) -> int:
        with self.lock:
            self.counts[name] = self.counts.get(name, 0) + 1
            return self.counts[name]

    def note(self, line: str) -> None:
        with self.lock:
            self.requests.append(line)

    def reset(self) -> None:
        with self.lock:
            self.requests.clear()
            self.counts.clear()


state = State()


class Front(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        status = code.value if hasattr(code, "value") else code
        state.note(f"{self.command} {self.path} {status}")
        sys.stdout.write(f"{self.command} {self.path} {status}\n")
        sys.stdout.flush()

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        if self.path != "/reset":
            return self.refuse(405, "UNSUPPORTED")
        self.answer(200, b"{}")
        return state.reset()

    def do_GET(self) -> None:
        path = urllib.parse.urlsplit(self.path).path
        if path == "/requests":
            return self.answer(200, json.dumps(state.requests).encode())
        if path == TOKEN_PATH:
            return self.token()
        if path in ("/v2", "/v2/"):
            return self.answer(200, b"{}") if self.bearer() else self.challenge("")
        return self.image(path.removeprefix("/v2/"))

    def image(self, path: str) -> None:
        """One request for an image: the faults first, then the real registry."""
        slow = truncate = False
        if path.startswith("private/"):
            name = path.partition("/manifests/")[0].partition("/blobs/")[0]
            if self.bearer() != f"token for {name}":
                return self.challenge(name)
            path = path.removeprefix("private/")
        elif path.startswith("fault/"):
            _, fault, path = path.split("/", 2)
            name = path.partition("/manifests/")[0].partition("/blobs/")[0]
            slow, truncate = fault == "slow", fault == "truncate" and "/blobs/" in path
            if fault == "401":
                return self.challenge(f"fault/401/{name}")
            if fault == "429":
                return self.refuse(429, "TOOMANYREQUESTS", {"Retry-After": "1"})
            if fault == "503" or (fault == "503-twice" and state.count(name) <= 2):
                return self.refuse(503, "UNAVAILABLE", {"Retry-After": "1"})
            if fault not in ("503-twice", "slow", "truncate"):
                return self.refuse(404, "NAME_UNKNOWN")
        return self.pass_on(path, slow, truncate)

    def pass_on(self, path: str, slow: bool, truncate: bool) -> None:
        if slow:
            time.sleep(SLOW_SECONDS)
        real = http.client.HTTPConnection("127.0.0.1", REAL, timeout=30)
        # A client may send several of a kind.
        kept = {
            name: ", ".join(self.headers.get_all(name) or []) for name in ("Accept", "Range") if name in self.headers
        }
        real.request(self.command, f"/v2/{path}", headers=kept)
        response = real.getresponse()
        self.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() not in ("server", "date", "connection", "transfer-encoding"):
                self.send_header(name, value)
        self.end_headers()
        left = int(response.headers.get("Content-Length") or 0) if self.command == "GET" else 0
        left = left // 2 if truncate else left
        while left and (part := response.read(min(left, SLOW_BYTES))):
            self.wfile.write(part)
            left -= len(part)
            if slow:
                time.sleep(SLOW_SECONDS)
        real.close()
        self.close_connection = self.close_connection or truncate

    # Logins: a challenge names where to get a token, and for what; the token then is for that only.

    def bearer(self) -> str:
        kind, _, value = self.headers.get("Authorization", "").partition(" ")
        try:
            return base64.b64decode(value).decode() if kind == "Bearer" else ""
        except ValueError:
            return ""

    def challenge(self, name: str) -> None:
        scope = f',scope="repository:{name}:pull"' if name else ""
        realm = f'Bearer realm="http://{self.headers.get("Host")}{TOKEN_PATH}",service="registry"{scope}'
        self.refuse(401, "UNAUTHORIZED", {"WWW-Authenticate": realm})

    def token(self) -> None:
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        parts = query.get("scope", [""])[0].split(":")
        name = parts[1] if len(parts) > 1 else ""
        kind, _, value = self.headers.get("Authorization", "").partition(" ")
        known = kind == "Basic" and value == base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        # A wrong login is refused even where none is needed; without one, what is public may be had.
        if (kind and not known) or name.startswith("fault/401/") or (name.startswith("private/") and not known):
            return self.refuse(401, "UNAUTHORIZED")
        token = base64.b64encode(f"token for {name}".encode()).decode()
        return self.answer(200, json.dumps({"token": token, "expires_in": 300}).encode())

    def refuse(self, status: int, code: str, headers: dict[str, str] | None = None) -> None:
        body = {"errors": [{"code": code, "message": "the sandbox's registry says so"}]}
        self.answer(status, json.dumps(body).encode(), headers)

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def main() -> None:
    with open("/etc/docker-registry.yml", "w") as file:
        file.write(CONFIG)
    registry = subprocess.Popen(["docker-registry", "serve", "/etc/docker-registry.yml"])
    address = f"http://127.0.0.1:{REAL}"
    end = time.monotonic() + 30
    while True:
        try:
            urllib.request.urlopen(f"{address}/v2/", timeout=5)
            break
        except OSError:
            if registry.poll() is not None or time.monotonic() > end:
                sys.exit("the registry did not start")
            time.sleep(0.1)
    images.fill(address)
    threading.Thread(target=door.serve, daemon=True).start()
    # Last, so that who finds this port open finds the images.
    front = ThreadingHTTPServer(("", PORT), Front)
    threading.Thread(target=front.serve_forever, daemon=True).start()
    sys.exit(registry.wait())


if __name__ == "__main__":
    main()
