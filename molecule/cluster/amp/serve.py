# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The sandbox's Amazon Managed Prometheus: a second Prometheus behind a door that knows SigV4 and can be out of order.

Port 9090 answers below /workspaces/ws-…/api/v1/, and only to requests that are signed for the service `aps` with
credentials that the sandbox knows: those of its AWS API, and those of the role that the stand-in of IMDS hands out.
Three more addresses are for tests and need no signature:

  PUT /sandbox/fault    what happens to remote writes from now on: 403, 429, 500, hang, or nothing for all is well
  GET /sandbox/counts   what became of the requests so far
  /sandbox/api/v1/…     the Prometheus itself
"""

from __future__ import annotations

import glob
import http.client
import json
import subprocess
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

PORT, BEHIND = 9090, 9091
REGION = "us-east-1"
# Access key: its secret, and the session token that goes with it. The second is what standins/imds hands out.
KNOWN = {
    "sandbox": ("sandbox", ""),
    "ASIASANDBOXROLE": ("sandbox-role-secret", "sandbox-role-token"),
}
FAULTS = {"403": "AccessDenied", "429": "ThrottlingException", "500": "InternalServerException", "hang": "", "": ""}
WRITE = "api/v1/remote_write"
SKEW_SECONDS, HANG_SECONDS = 300, 600


class Refused(Exception):
    """Why a request is not let in: the words of the service."""


class State:
    """What tests set and read."""

    def __init__(self) -> None:
        self.fault = ""
        self.changed = threading.Condition()
        self.counts: Counter[str] = Counter()

    def count(self, what: str) -> None:
        with self.changed:
            self.counts[what] += 1

    def hang(self) -> None:
        """Wait until the fault is another one."""
        with self.changed:
            self.changed.wait_for(lambda: self.fault != "hang", HANG_SECONDS)


STATE = State()


def verify(method: str, path: str, headers: Mapping[str, str], body: bytes) -> None:
    """Raise Refused unless a request is signed as the service wants it."""
    given = {name.lower(): value for name, value in headers.items()}
    kind, _, rest = given.get("authorization", "").partition(" ")
    fields = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    if kind != "AWS4-HMAC-SHA256" or set(fields) != {"Credential", "SignedHeaders", "Signature"}:
        raise Refused("Missing Authentication Token")
    key, date, region, service, end = (fields["Credential"].split("/") + [""] * 5)[:5]
    if key not in KNOWN:
        raise Refused("The security token included in the request is invalid.")
    secret, token = KNOWN[key]
    if (region, service, end) != (REGION, "aps", "aws4_request"):
        raise Refused(f"Credential should be scoped to a valid region and service; it is for {region} and {service}.")
    if given.get("x-amz-security-token", "") != token:
        raise Refused("The security token included in the request is invalid.")
    stamp = given.get("x-amz-date", "")
    when = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    if abs(when.timestamp() - time.time()) > SKEW_SECONDS or not stamp.startswith(date):
        raise Refused("Signature expired")
    signed = fields["SignedHeaders"].split(";")
    if "host" not in signed or (token and "x-amz-security-token" not in signed):
        raise Refused("Signature must cover the host and the session token.")
    request = AWSRequest(method, f"http://{given['host']}{path}", {name: given[name] for name in signed}, body)
    request.context["timestamp"] = stamp
    signer = SigV4Auth(Credentials(key, secret, token or None), service, region)
    signer.headers_to_sign = lambda made: signed_only(made, signed)  # botocore would leave out some that Go signs
    expected = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
    if expected != fields["Signature"]:
        raise Refused("The request signature we calculated does not match the signature you provided.")


def signed_only(request: AWSRequest, names: list[str]) -> http.client.HTTPMessage:
    message = http.client.HTTPMessage()
    for name in names:
        message[name] = request.headers[name]
    return message


class Door(BaseHTTPRequestHandler):
    """Answers as the service would."""

    protocol_version = "HTTP/1.1"

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/sandbox/fault" and self.command == "PUT":
            self.set_fault(body.decode())
        elif self.path == "/sandbox/counts":
            self.answer(200, dict(STATE.counts))
        elif self.path.startswith("/sandbox/api/"):
            self.pass_on(self.path.removeprefix("/sandbox"), body)
        else:
            self.serve(body)

    do_GET = do_POST = do_PUT = handle_any

    def set_fault(self, fault: str) -> None:
        if fault not in FAULTS:
            self.answer(400, {"message": f"the faults are {', '.join(name for name in FAULTS if name)}"})
            return
        with STATE.changed:
            STATE.fault = fault
            STATE.changed.notify_all()
        self.answer(200, {"fault": fault})

    def serve(self, body: bytes) -> None:
        _, room, workspace, rest = (urllib.parse.urlsplit(self.path).path.split("/", 3) + [""] * 3)[:4]
        if room != "workspaces" or not workspace.startswith("ws-") or not rest.startswith("api/v1/"):
            self.answer(404, {"message": "Not Found"})
            return
        try:
            verify(self.command, self.path, self.headers, body)
        except (Refused, ValueError) as error:
            STATE.count("refused")
            self.answer(403, {"message": str(error)}, "AccessDeniedException")
            return
        fault = STATE.fault if rest == WRITE else ""
        if fault == "hang":
            STATE.count("hang")
            STATE.hang()
            self.close_connection = True
            return
        if fault:
            STATE.count(fault)
            self.answer(int(fault), {"message": f"the sandbox was told to answer {fault}"}, FAULTS[fault])
            return
        STATE.count("passed")
        # Prometheus itself receives under another name.
        self.pass_on("/api/v1/write" if rest == WRITE else self.path.removeprefix(f"/workspaces/{workspace}"), body)

    def pass_on(self, path: str, body: bytes) -> None:
        behind = http.client.HTTPConnection("127.0.0.1", BEHIND, timeout=60)
        kept = ("content-type", "content-encoding", "x-prometheus-remote-write-version")
        behind.request(self.command, path, body, {k: v for k, v in self.headers.items() if k.lower() in kept})
        answer = behind.getresponse()
        self.reply(answer.status, answer.read(), answer.headers.get("Content-Type", "text/plain"))

    def answer(self, status: int, what: object, kind: str = "") -> None:
        self.reply(status, json.dumps(what).encode(), "application/json", {"x-amzn-ErrorType": kind} if kind else {})

    def reply(self, status: int, body: bytes, kind: str, more: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if status != 204:
            self.wfile.write(body)

    def log_message(self, *_words: object) -> None:
        """Leave the log to Prometheus."""


def main() -> None:
    archive = glob.glob("/srv/mirror/github.com/prometheus/prometheus/releases/download/*/prometheus-*.tar.gz")[0]
    unpack = ["tar", "--extract", "--gzip", "--file", archive, "--directory", "/usr/local/bin", "--strip-components=1"]
    subprocess.run([*unpack, "--wildcards", "*/prometheus"], check=True)
    with open("/tmp/prometheus.yml", "w", encoding="utf-8") as file:
        file.write("global: {scrape_interval: 1h}\n")
    flags = ["--web.enable-remote-write-receiver", f"--web.listen-address=127.0.0.1:{BEHIND}", "--log.level=warn"]
    flags += ["--config.file=/tmp/prometheus.yml", "--storage.tsdb.path=/tmp/data", "--storage.tsdb.retention.time=1d"]
    with subprocess.Popen(["/usr/local/bin/prometheus", *flags]) as behind:
        server = ThreadingHTTPServer(("0.0.0.0", PORT), Door)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        raise SystemExit(behind.wait())


if __name__ == "__main__":
    main()
