# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A door for messages of Alertmanager, on port 5002: it keeps what is posted to any path, and gives it back.

POST /NAME      keeps the JSON document
GET /NAME       lists the documents, the oldest first
"""

from __future__ import annotations

import collections
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT = 5002
MOST = 2000  # documents that are kept of each path


class Door(BaseHTTPRequestHandler):
    kept: collections.defaultdict[str, collections.deque[object]] = collections.defaultdict(
        lambda: collections.deque(maxlen=MOST)
    )
    lock = threading.Lock()

    def do_POST(self) -> None:
        document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.lock:
            self.kept[self.path].append(document)
        self.answer(b"{}")

    def do_GET(self) -> None:
        with self.lock:
            body = json.dumps(list(self.kept[self.path])).encode()
        self.answer(body)

    def answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: messages come all the time."""


def serve() -> None:
    ThreadingHTTPServer(("", PORT), Door).serve_forever()


if __name__ == "__main__":
    serve()
