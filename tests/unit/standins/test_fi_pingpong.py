# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The sandbox's fi_pingpong: a device that libfabric knows answers, any other is refused, and a dead one never ends."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.pcluster.postboot.tests.waiting import PATIENCE, until


class Node:
    """The stand-in, with two devices."""

    def __init__(self, top: Path, source: Path) -> None:
        self.dead, self.program = top / "dead", top / "fi_pingpong.py"
        text = source.read_text().replace("/sys/class/infiniband", f"{top}/devices")
        self.program.write_text(text.replace("/run/sandbox-efa-dead", str(self.dead)))
        for name, driver in (("rdmap64s0", "efa"), ("mlx5_0", "mlx5_core")):
            (top / "drivers" / driver).mkdir(parents=True)
            (top / "devices" / name / "device").mkdir(parents=True)
            (top / "devices" / name / "device/driver").symlink_to(top / "drivers" / driver)
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.port = int(server.getsockname()[1])

    def start(self, domain: str, *words: str) -> subprocess.Popen[str]:
        line = [sys.executable, str(self.program), "-e", "rdm", "-p", "efa", "-d", domain, *words]
        return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def listens(self) -> bool:
        return f":{self.port:04X} 00000000:0000 0A" in Path("/proc/net/tcp").read_text()

    def ping(self, domain: str) -> tuple[subprocess.Popen[str], subprocess.Popen[str]]:
        server = self.start(domain, "-B", str(self.port))
        until(self.listens)
        return server, self.start(domain, "-P", str(self.port), "localhost")


@pytest.fixture
def node(tmp_path: Path, repo: Path) -> Node:
    return Node(tmp_path, repo / "molecule/cluster/standins/efa/fi_pingpong.py")


def test_a_device_answers(node: Node) -> None:
    server, client = node.ping("rdmap64s0-rdm")
    out, err = client.communicate(timeout=PATIENCE)
    assert (client.returncode, server.wait(PATIENCE), err) == (0, 0, "")
    head, *rows = out.splitlines()
    assert head.split() == ["bytes", "#sent", "#ack", "total", "time", "MB/sec", "usec/xfer", "Mxfers/sec"]
    assert [row.split()[:4] for row in rows][::5] == [["64", "10", "=10", "1k"], ["1m", "10", "=10", "20m"]]
    server.communicate()


@pytest.mark.parametrize("domain", ["mlx5_0-rdm", "rdmap64s0", "rdmap9s0-rdm"])
def test_what_libfabric_does_not_know_is_refused(node: Node, domain: str) -> None:
    server, client = node.ping(domain)
    _out, err = client.communicate(timeout=PATIENCE)
    assert (client.returncode, server.wait(PATIENCE)) == (61, 61)
    assert err == "fi_getinfo(): util/pingpong.c:1434, ret=-61 (No data available)\n"
    server.communicate()


def test_a_client_without_a_server_ends(node: Node) -> None:
    client = node.start("rdmap64s0-rdm", "-P", str(node.port), "localhost")
    _out, err = client.communicate(timeout=PATIENCE)
    assert client.returncode == 111
    assert err.endswith("failed to connect: Connection refused\n")


def test_a_dead_device_never_ends(node: Node) -> None:
    node.dead.mkdir()
    (node.dead / "rdmap64s0").touch()
    server, client = node.ping("rdmap64s0-rdm")
    with pytest.raises(subprocess.TimeoutExpired):
        client.wait(1)
    for process in (server, client):
        process.kill()
        process.communicate()
