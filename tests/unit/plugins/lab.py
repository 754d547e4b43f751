# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What stands for the rest of a machine in tests of modules: programs, packages, and servers on loopback."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Run = Callable[..., dict[str, Any]]  # a module, as the fixture run_module runs it


def program(path: Path, text: str) -> Path:
    """Write a program that can be run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def lines(path: Path) -> list[str]:
    """Return what a program has noted in a file, which is not there before the first call."""
    return path.read_text().splitlines() if path.exists() else []


def package(name: str, version: str, state: str = "installed", want: str = "install") -> str:
    """Return what dpkg's status file has of a package."""
    return f"Package: {name}\nStatus: {want} ok {state}\nArchitecture: amd64\nVersion: {version}\n\n"


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


class Pages(BaseHTTPRequestHandler):
    """A handler without a log."""

    def log_message(self, *_words: Any) -> None:
        pass

    def say(self, status: int, text: str | bytes = b"", **headers: str) -> None:
        body = text.encode() if isinstance(text, str) else text
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    """Say nothing of a client that has hung up: its words would stand in what a later test prints."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


@contextlib.contextmanager
def serving(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve on loopback, and return the address."""
    with Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class Files(SimpleHTTPRequestHandler):
    """A folder's files, without a log."""

    def log_message(self, *_words: Any) -> None:
        pass


def serving_files(folder: Path) -> contextlib.AbstractContextManager[str]:
    """Serve a folder, which is made."""
    folder.mkdir()
    return serving(functools.partial(Files, directory=str(folder)))
