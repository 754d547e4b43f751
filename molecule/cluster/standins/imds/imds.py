#!/usr/bin/python3
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A stand-in of EC2's instance metadata service, version 2 only, for one node of the sandbox.

imds.py [--instance FILE] [--role NAME] [--address ADDRESS]   without --role the instance has no role

FILE says what else is answered: a JSON object from paths to texts.
"""

from __future__ import annotations

import argparse
import json
import secrets
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

CREDENTIALS = "/latest/meta-data/iam/security-credentials/"
TOKENS: set[str] = set()
ANSWERS: dict[str, str] = {}


def credentials() -> str:
    """What the role's credentials are: those that the sandbox's Amazon Managed Prometheus knows."""
    now = datetime.now(timezone.utc)
    return json.dumps(
        {
            "Code": "Success",
            "LastUpdated": f"{now:%Y-%m-%dT%H:%M:%SZ}",
            "Type": "AWS-HMAC",
            "AccessKeyId": "ASIASANDBOXROLE",
            "SecretAccessKey": "sandbox-role-secret",
            "Token": "sandbox-role-token",
            "Expiration": f"{now + timedelta(hours=6):%Y-%m-%dT%H:%M:%SZ}",
        }
    )


class Service(BaseHTTPRequestHandler):
    """Answers as the real one does."""

    def do_PUT(self) -> None:
        life = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
        if self.path != "/latest/api/token" or not life.isdigit() or not 1 <= int(life) <= 21600:
            self.answer(400, "Bad Request")
            return
        token = secrets.token_urlsafe(40)
        TOKENS.add(token)
        self.answer(200, token, {"X-Aws-Ec2-Metadata-Token-Ttl-Seconds": life})

    def do_GET(self) -> None:
        if self.headers.get("X-aws-ec2-metadata-token") not in TOKENS:
            self.answer(401, "Unauthorized")
            return
        path = self.path if self.path != CREDENTIALS[:-1] else CREDENTIALS
        found = ANSWERS.get(path)
        if found is None:
            self.answer(404, "Not Found")
        else:
            self.answer(200, found or credentials())

    def answer(self, status: int, text: str, more: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "text/plain", "Content-Length": str(len(text)), **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_words: object) -> None:
        """Say nothing."""


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--instance", type=Path)
    parser.add_argument("--role", default="")
    parser.add_argument("--address", default="169.254.169.254")
    options = parser.parse_args()
    if options.instance:
        ANSWERS.update(json.loads(options.instance.read_text()))
    if options.role:
        ANSWERS.update({CREDENTIALS: options.role, CREDENTIALS + options.role: ""})
    ThreadingHTTPServer((options.address, 80), Service).serve_forever()
