# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The sandbox's DCGM and exporter: they refuse, leave out and write what the real ones do."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._verify import health_dcgm
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab
from ansible_collections.pcluster.postboot.tests.waiting import PATIENCE, until

SMI = """#!/bin/sh
echo "0, H100, 00000000:10:00.0, GPU-0, 595.1, 81559, 9.0"
echo "1, H100, 00000000:14:00.0, GPU-1, 595.1, 81559, 9.0"
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Node:
    """The stand-ins in a folder of their own, with two GPUs."""

    def __init__(self, top: Path, source: Path) -> None:
        self.top, self.engine, self.port = top, free_port(), free_port()
        self.said, self.jobs, self.counters = top / "said", top / "jobs", top / "counters.csv"
        self.jobs.mkdir()
        for name, version in (("nv_hostengine", "4.6.0"), ("dcgmi", "4.6.0"), ("dcgm_exporter", "4.8.2")):
            text = (source / f"{name}.py").read_text().replace("@VERSION@", version)
            text = text.replace("/run/sandbox-dcgm", str(self.said))
            text = text.replace("/usr/share/dcgm-exporter/fields.txt", str(source / "fields.txt"))
            (top / f"{name}.py").write_text(text.replace("/usr/lib", f"{top}/lib"))
        self.libraries = top / f"lib/{os.uname().machine}-linux-gnu"
        self.libraries.mkdir(parents=True)
        (self.libraries / "libdcgm.so.4").touch()
        lab.program(top / "bin/nvidia-smi", SMI)
        self.counters.write_text("# one\nDCGM_FI_DEV_GPU_TEMP, gauge, Temperature\n")
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, program: str, *words: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "PATH": f"{self.top}/bin:{os.environ['PATH']}"}
        line = [sys.executable, str(self.top / f"{program}.py"), *words]
        process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        self.processes.append(process)
        return process

    def run_engine(self) -> None:
        process = self.start("nv_hostengine", "-n", "-p", str(self.engine), "--service-account", "nvidia-dcgm")
        assert process.stdout
        assert "Started host engine" in process.stdout.readline()

    def run_exporter(self, *words: str) -> subprocess.Popen[str]:
        address = [f"--remote-hostengine-info=127.0.0.1:{self.engine}", f"--address=127.0.0.1:{self.port}"]
        return self.start("dcgm_exporter", f"--collectors={self.counters}", *address, *words)

    def stop(self, processes: list[subprocess.Popen[str]] | None = None) -> None:
        for process in processes or self.processes:
            process.kill()
            process.communicate()
        self.processes = [process for process in self.processes if process.returncode is None]

    def metrics(self, path: str = "/metrics") -> str:
        until(self.listens)
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=PATIENCE) as response:
            return str(response.read().decode())

    def listens(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.fixture
def node(tmp_path: Path, repo: Path) -> Iterator[Node]:
    made = Node(tmp_path, repo / "molecule/cluster/standins/dcgm")
    yield made
    made.stop()


def test_metrics_are_written_as_the_real_ones(node: Node) -> None:
    node.run_engine()
    node.counters.write_text(
        "DCGM_FI_DEV_GPU_TEMP, gauge, Temperature\nDCGM_FI_DEV_XID_ERRORS,gauge,XID\nDCGM_FI_DRIVER_VERSION,label,x\n"
        "DCGM_EXP_XID_ERRORS_COUNT,gauge,XIDs\nDCGM_FI_PROF_SM_ACTIVE,gauge,SM\nDCGM_FI_DEV_FAN_SPEED,gauge,Fan\n"
    )
    (node.said / "1").mkdir(parents=True)
    (node.said / "1/DCGM_FI_DEV_XID_ERRORS").write_text("79\n")
    (node.said / "1/DCGM_FI_DEV_GPU_TEMP").write_text("91\n")
    (node.jobs / "1").write_text("7\n8\n")
    (node.jobs / ".new").write_text("9\n")
    node.run_exporter(f"--hpc-job-mapping-dir={node.jobs}", "--no-hostname")
    text = node.metrics()
    one = 'gpu="1",UUID="GPU-1",pci_bus_id="00000000:14:00.0",device="nvidia1",modelName="H100"'
    one += ',DCGM_FI_DRIVER_VERSION="595.1"'
    assert f'DCGM_FI_DEV_GPU_TEMP{{{one},hpc_job="7"}} 91\nDCGM_FI_DEV_GPU_TEMP{{{one},hpc_job="8"}} 91\n' in text
    assert f'DCGM_FI_DEV_XID_ERRORS{{{one},err_code="79",err_msg="GPU off the bus",hpc_job="7"}} 79\n' in text
    assert f'DCGM_EXP_XID_ERRORS_COUNT{{{one},hpc_job="7",window_size_in_ms="300000",xid="79"}} 1\n' in text
    # Neither what is not known of these GPUs, nor a label.
    assert re.findall(r"# HELP (\w+)", text) == [
        "DCGM_FI_DEV_GPU_TEMP",
        "DCGM_FI_DEV_XID_ERRORS",
        "DCGM_EXP_XID_ERRORS_COUNT",
        "DCGM_FI_PROF_SM_ACTIVE",
    ]


def test_gpus_before_hopper_are_profiled_by_the_proprietary_module_alone(node: Node) -> None:
    smi = node.top / "bin/nvidia-smi"
    smi.write_text(SMI.replace("H100", "A100-SXM4-80GB").replace("9.0", "8.0"))
    node.counters.write_text("DCGM_FI_DEV_GPU_TEMP,gauge,Temperature\nDCGM_FI_PROF_SM_ACTIVE,gauge,SM\n")
    node.run_engine()
    node.run_exporter()
    assert "DCGM_FI_PROF" not in node.metrics()
    # A host engine that could not load the module does not try again, and an exporter asks when it starts.
    (node.libraries / "libdcgmmoduleprofiling.so.4").touch()
    node.stop(node.processes[1:])
    node.run_exporter()
    assert "DCGM_FI_PROF" not in node.metrics()
    node.stop()
    node.run_engine()
    node.run_exporter()
    assert "DCGM_FI_PROF_SM_ACTIVE" in node.metrics()


def test_the_hostname_is_that_of_the_host_engine(node: Node) -> None:
    node.run_engine()
    node.run_exporter()
    assert 'Hostname="127.0.0.1"' in node.metrics()


def test_a_mapping_that_cannot_be_read_fails_the_scrape(node: Node) -> None:
    node.run_engine()
    (node.jobs / "0").mkdir()
    node.run_exporter(f"--hpc-job-mapping-dir={node.jobs}")
    assert "hpc_job" not in node.metrics()
    # It has seen a file, which is gone when it opens it.
    (node.jobs / "1").symlink_to(node.jobs / "gone")
    with pytest.raises(urllib.error.HTTPError) as failed:
        node.metrics()
    assert failed.value.code == 500


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("DCGM_FI_DEV_NO_SUCH,gauge,x", "unknown ExporterCounter field 'DCGM_FI_DEV_NO_SUCH'"),
        ("DCGM_FI_DEV_GPU_UTIL,number,x", "could not find Prometheus metric type 'number'"),
        ("DCGM_FI_DEV_GPU_UTIL,gauge,a, b", "wrong number of fields"),
        ('DCGM_FI_DEV_GPU_UTIL,gauge, "a"', 'bare " in non-quoted-field'),
    ],
)
def test_a_counters_file_that_is_wrong_ends_it(node: Node, line: str, wrong: str) -> None:
    node.run_engine()
    node.counters.write_text(f"DCGM_FI_DEV_GPU_TEMP,gauge,Temperature\n{line}\n")
    process = node.run_exporter()
    said, _errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert wrong in said


def test_it_ends_with_its_host_engine(node: Node) -> None:
    exporter = node.run_exporter()
    assert "Failed to connect to remote hostengine" in exporter.communicate(timeout=PATIENCE)[0]
    node.run_engine()
    exporter = node.run_exporter()
    assert "# TYPE" in node.metrics()
    node.processes[1].kill()
    with pytest.raises(OSError, match=r"."):
        urllib.request.urlopen(f"http://127.0.0.1:{node.port}/metrics", timeout=PATIENCE)
    assert exporter.wait(timeout=PATIENCE) == 1


def test_a_flag_that_it_does_not_have_is_refused(node: Node) -> None:
    process = node.run_exporter("--no-such-flag")
    assert "flag provided but not defined: --no-such-flag" in process.communicate(timeout=PATIENCE)[0]
    assert process.returncode == 1


def test_profiles_are_for_everybody_before_4_8_2_and_by_a_flag_from_then_on(node: Node) -> None:
    node.run_engine()
    for version, flags, answers in (("4.8.1", [], True), ("4.8.2", [], False), ("4.8.2", ["--enable-pprof"], True)):
        program = node.top / "dcgm_exporter.py"
        program.write_text(re.sub(r'VERSION = "[\d.]+"', f'VERSION = "{version}"', program.read_text(), count=1))
        node.run_exporter(*flags)
        if answers:
            assert "--collectors=" in node.metrics("/debug/pprof/cmdline")
        else:
            with pytest.raises(urllib.error.HTTPError) as refused:
                node.metrics("/debug/pprof/cmdline")
            assert refused.value.code == 404
        node.stop(node.processes[1:])


def test_dcgmi(node: Node) -> None:
    host = ["discovery", "-l", "--host", f"127.0.0.1:{node.engine}"]
    asked = node.start("dcgmi", *host)
    assert "Host engine connection invalid/disconnected." in asked.communicate(timeout=PATIENCE)[0]
    assert asked.returncode == 235
    node.run_engine()
    asked = node.start("dcgmi", *host)
    assert asked.communicate(timeout=PATIENCE)[0].startswith("2 GPUs found (Active).\n")
    second = node.start("nv_hostengine", "-n", "-p", str(node.engine))
    assert second.communicate(timeout=PATIENCE)[0] == "Err: Failed to start DCGM Server: -7\n"


def test_the_diagnostic_fails_for_rows_that_could_not_be_remapped(node: Node) -> None:
    node.run_engine()
    line = ("diag", "--host", f"127.0.0.1:{node.engine}", "-r", "2", "-t", "900", "-j", "--enable-heartbeat")
    healthy = node.start("dcgmi", *line)
    found = health_dcgm.read(healthy.communicate(timeout=PATIENCE)[0])
    assert healthy.returncode == 0
    assert (found.version, found.gpus, found.failures) == ("4.6.0", 2, ())
    assert found.tests == (("software", "Pass"), ("memory", "Pass"), ("pcie", "Pass"))
    (node.said / "1").mkdir(parents=True)
    (node.said / "1/DCGM_FI_DEV_ROW_REMAP_FAILURE").write_text("1\n")
    broken = node.start("dcgmi", *line)
    (failure,) = health_dcgm.read(broken.communicate(timeout=PATIENCE)[0]).failures
    assert broken.returncode == 226
    assert (failure.test, failure.subject, failure.code, failure.severity) == ("software", "GPU 1", 80, "reset")
