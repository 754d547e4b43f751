# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the roles neuron and neuron_exporter work out of a node, and the program that runs AWS' exporter."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest

WorkOut = Callable[..., Callable[[str], Any]]
NEURON = {"devices": 16, "cores": 32, "driver": None, "tools": None}
# What neuron-monitor prints: the structure of AWS' "Neuron Monitor User Guide", cut to what AWS' script needs.
REPORT = '{"neuron_hardware_info": {"neuron_device_count": 16}}'
# AWS' script serves with prometheus_client, and asks for one more line where its standard input has ended, for ever
# (neuron-monitor-prometheus.py of aws-neuronx-tools, update_loop()).
SCRIPT = """
import argparse, json, sys
from prometheus_client import Gauge, start_http_server
parser = argparse.ArgumentParser()
parser.add_argument("-p", "--port", default=8000, type=int)
start_http_server(port=parser.parse_args().port)
gauge = Gauge("devices", "")
while True:
    line = sys.stdin.readline()
    if len(line) == 0:
        continue
    gauge.value = json.loads(line)["neuron_hardware_info"]["neuron_device_count"]
"""
# As prometheus_client's, as far as the script has to do with it.
CLIENT = """
import http.server, threading
page = {}
class Gauge:
    def __init__(self, name, _help): self.__dict__["name"] = name
    def __setattr__(self, _key, value): page[self.name] = value
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        self.wfile.write("".join(f"{name} {value}\\n" for name, value in page.items()).encode())
    def log_message(self, *_): pass
def start_http_server(port, addr="0.0.0.0"):
    server = http.server.HTTPServer((addr, port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
"""


@pytest.mark.parametrize(("devices", "enabled"), [(16, True), (0, False)])
def test_nodes_with_neuron_devices_get_both(work_out: WorkOut, devices: int, enabled: bool) -> None:
    facts = {"neuron": {**NEURON, "devices": devices}}
    for role in ("neuron", "neuron_exporter"):
        assert work_out(role, facts)(f"{role}_enabled") is enabled


@pytest.mark.parametrize(
    ("instance_type", "pin"), [("trn1.32xlarge", "2.30.2.0"), ("inf1.6xlarge", "2.24"), (None, "2.30.2.0")]
)
def test_inf1_has_a_driver_that_knows_it(work_out: WorkOut, instance_type: str | None, pin: str) -> None:
    assert work_out("neuron", {"instance_type": instance_type})("__neuron_driver_pin") == pin


@pytest.mark.parametrize(
    ("driver", "image", "check", "due"),
    [
        (None, False, False, True),
        ("2.30.2.0", False, False, False),  # another, which a reboot replaces
        (None, True, False, False),
        (None, False, True, False),
    ],
)
def test_a_node_without_the_driver_in_its_kernel_fails(
    work_out: WorkOut, driver: str | None, image: bool, check: bool, due: bool
) -> None:
    value = work_out("neuron", {"neuron": {**NEURON, "driver": driver}, "image_build": image}, ansible_check_mode=check)
    assert value("__neuron_has_to_load") is due


@pytest.mark.parametrize(("manager", "host"), [("apt", "apt"), ("dnf", "yum")])
def test_each_package_manager_has_its_repository(work_out: WorkOut, manager: str, host: str) -> None:
    value = work_out("neuron", {}, __common_package_manager=manager)
    assert value("neuron_base_url") == f"https://{host}.repos.neuron.amazonaws.com"


@pytest.mark.parametrize(
    "role", ["nvidia_container_toolkit", "nccl", "dcgm", "dcgm_exporter", "nccl_tests", "aws_ofi_nccl"]
)
def test_no_component_of_gpus_runs_there(work_out: WorkOut, role: str) -> None:
    facts = {"neuron": NEURON, "node_type": "compute", "efa": {"count": 8, "pci_count": 8}, "components": {}}
    value = work_out(f"common efa {role}", facts)
    assert not value(f"{role}_enabled")


class Exporter:
    """The program with AWS' two beside it; `monitor` is the text of neuron-monitor."""

    def __init__(self, repo: Path, tmp_path: Path, monitor: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        tools, client = tmp_path / "tools", tmp_path / "client"
        tools.mkdir()
        client.mkdir()
        (tools / "neuron-monitor").write_text(f"#!/bin/sh\n{monitor}\n")
        (tools / "neuron-monitor").chmod(0o755)
        (tools / "neuron-monitor-prometheus.py").write_text(SCRIPT)
        (client / "prometheus_client.py").write_text(CLIENT)
        self.tools = tools
        self.line = [sys.executable, "-I", str(repo / "roles/neuron_exporter/files/neuron_exporter.py")]
        self.line += [f"--client={client}", f"--tools={tools}", f"--listen-address=127.0.0.1:{self.port}"]

    @contextlib.contextmanager
    def running(self) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(self.line, stderr=subprocess.PIPE, text=True, start_new_session=True)
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def page(self) -> str:
        for _ in range(100):
            with contextlib.suppress(OSError):
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
                    text: str = answer.read().decode()
                if text:
                    return text
            time.sleep(0.1)
        raise AssertionError("the exporter gave no metrics within 10 s")


def test_what_the_monitor_says_is_served_where_the_role_says(repo: Path, tmp_path: Path) -> None:
    exporter = Exporter(repo, tmp_path, f"echo '{REPORT}'; exec sleep 60")
    with exporter.running():
        assert exporter.page() == "devices 16\n"
        with socket.socket() as other:  # AWS' script alone would listen on every address
            assert other.connect_ex(("127.0.0.2", exporter.port)) != 0


def test_it_ends_with_the_monitor(repo: Path, tmp_path: Path) -> None:
    """AWS' script would go on with the last numbers, and with a core of the node."""
    exporter = Exporter(repo, tmp_path, f"echo '{REPORT}'; sleep 0.5; exit 7")
    with exporter.running() as process:
        _, said = process.communicate(timeout=20)
        assert (process.returncode, said.splitlines()[-1]) == (1, "neuron-monitor ended with 7")


def test_it_says_what_is_missing(repo: Path, tmp_path: Path) -> None:
    exporter = Exporter(repo, tmp_path, "exit 0")
    (exporter.tools / "neuron-monitor").unlink()
    with exporter.running() as process:
        _, said = process.communicate(timeout=20)
    missing = f"{exporter.tools}/neuron-monitor is not there; needed is aws-neuronx-tools, which role neuron installs\n"
    assert (process.returncode, said) == (1, missing)
