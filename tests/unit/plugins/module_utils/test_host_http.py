# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How a URL is opened: within a time, through a proxy or not, and with one line for what goes wrong."""

from __future__ import annotations

import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._host import http as host_http
from ansible_collections.pcluster.postboot.plugins.module_utils._host.http import Unanswered, ask
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab
from ansible_collections.pcluster.postboot.tests.waiting import PATIENCE


class _Web(lab.Pages):
    def do_GET(self) -> None:
        status = {"/moved": 302, "/missing": 404}.get(self.path, 200)
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/there")
        if self.path == "/cut":
            self.send_header("Content-Length", "9")
        self.end_headers()
        if self.path == "/silent":
            self.connection.recv(1)  # until the client has gone
        self.wfile.write(f"{self.path}|".encode())
        while self.path == "/trickle":
            time.sleep(0.1)
            self.wfile.write(b"|")  # which fails once the client has gone


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in ("http_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with lab.serving(_Web) as url:
        yield url


def test_an_answer_has_its_status_and_its_text(web: str) -> None:
    answer = ask(f"{web}/there", PATIENCE)
    assert (answer.status, answer.reason, answer.text, answer.good) == (200, "OK", "/there|", True)
    assert answer.good_text() == "/there|"
    assert ask(f"{web}/there", PATIENCE, most=3).text == "/th"
    assert ask(f"{web}/moved", PATIENCE).text == "/there|"


def test_what_is_no_success_is_an_answer(web: str) -> None:
    missing = ask(f"{web}/missing", PATIENCE)
    assert (missing.status, missing.text, missing.good) == (404, "/missing|", False)
    with pytest.raises(Problem, match=r"^HTTP Error 404: Not Found$"):
        missing.good_text()
    stays = ask(f"{web}/moved", PATIENCE, follow=False)
    assert (stays.status, stays.headers["Location"]) == (302, "/there")


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/silent", "no answer within 0.3 s|its answer was not complete within 0.3 s"),
        ("/trickle", "its answer was not complete within 0.3 s"),
        ("/cut", "its answer ended after 5 of 9 bytes"),
    ],
)
def test_half_an_answer_is_none(web: str, path: str, why: str) -> None:
    with pytest.raises(Unanswered, match=f"^({why})$"):
        ask(web + path, PATIENCE if path == "/cut" else 0.3)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "nonsense", "ftp://127.0.0.1/x", "file:///etc/hostname"])
def test_what_cannot_be_asked_ends_in_one_line(web: str, url: str) -> None:
    with pytest.raises(Unanswered, match=r"^.+$"):
        ask(url, 1)


def test_a_file_is_opened_where_that_is_meant(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("text")
    assert ask(f"file://{tmp_path}/key", 1, files=True).good_text() == "text"
    with pytest.raises(Unanswered, match="No such file"):
        ask(f"file://{tmp_path}/none", 1, files=True)


def test_a_proxy_is_asked_unless_nobody_wants_it(web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", web)
    assert ask("http://host.invalid/x", PATIENCE).text == "http://host.invalid/x|"


def test_without_proxies_the_address_itself_is_asked(web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(address: tuple[str, int], *_rest: object) -> None:
        raise OSError(f"nobody is at {address[0]}")

    monkeypatch.setenv("http_proxy", web)
    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(Unanswered, match=r"^nobody is at host\.invalid$"):
        ask("http://host.invalid/x", PATIENCE, proxies=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "169.254.169.254", "[::1]", "[fe80::1]"])
def test_this_machine_and_its_link_are_reached_without_a_proxy(
    web: str, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.invalid:1")
    proxies = host_http._Proxies()
    assert proxies.proxy_open(urllib.request.Request(f"http://{host}:9/x"), "http://proxy.invalid:1", "http") is None
    assert ask(f"{web}/there", PATIENCE).good
