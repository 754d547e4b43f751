# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""dcgm_plan on dpkg's records and rpm's answers; dcgm_gpus with a dcgmi and an exporter that say what a test wants."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils import _dcgm, _docker_engine, _run
from ansible_collections.pcluster.postboot.plugins.modules import dcgm_gpus, dcgm_plan

Run = Callable[..., dict[str, Any]]
URL = "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64"
CORE, EXPORTER = "datacenter-gpu-manager-4-core", "datacenter-gpu-manager-exporter"
ALL = [CORE, *(f"datacenter-gpu-manager-4-{part}" for part in ("cuda13", "proprietary", "proprietary-cuda13"))]


class Node:
    """A node below a folder."""

    def __init__(self, top: Path, run: Run) -> None:
        self.top, self.run = top, run
        (top / "dpkg").mkdir()
        (top / "bin").mkdir()
        (top / "apt/sources.list.d").mkdir(parents=True)
        self.has()

    def has(self, state: str = "installed", **versions: str) -> None:
        text = "".join(
            f"Package: {name.replace('_', '-')}\nStatus: install ok {state}\nVersion: 1:{version}-1\n\n"
            for name, version in versions.items()
        )
        (self.top / "dpkg/status").write_text(text)

    def noted(self, version: str, done: bool, lead: str = CORE) -> None:
        (self.top / "state/packages").mkdir(parents=True, exist_ok=True)
        record = {"version": version, "done": done}
        (self.top / f"state/packages/{lead}.json").write_text(json.dumps(record))

    def __call__(self, **args: Any) -> dict[str, Any]:
        given = {"manager": "apt", "minimum_version": "4.5", "fresh_version": "4.6.0", "driver": "595.112.07"}
        return self.run(dcgm_plan, {**given, "repository": "nvidia-dcgm", "url": URL, **args})


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_module: Run) -> Node:
    monkeypatch.setattr(_docker_engine, "DPKG", str(tmp_path / "dpkg"))
    monkeypatch.setattr(_run, "STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(_dcgm, "APT_SOURCES", str(tmp_path / "apt"))
    monkeypatch.setattr(_dcgm, "PROGRAMS", {"dcgm": f"{tmp_path}/dcgmi", "exporter": f"{tmp_path}/dcgm-exporter"})
    monkeypatch.setattr(_dcgm._systemd, "running", lambda: False)
    monkeypatch.setattr(_dcgm.time, "sleep", lambda _seconds: None)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return Node(tmp_path, run_module)


def all_of(version: str) -> dict[str, str]:
    return dict.fromkeys((name.replace("-", "_") for name in ALL), version)


def test_a_node_without_one_gets_the_pin(node: Node) -> None:
    found = node()
    assert (found["install"], found["version"], found["packages"]) == (True, "4.6.0", ALL)
    assert (found["why"], found["summary"]) == ("there is no DCGM", "DCGM 4.6.0")
    assert (found["changed"], found["add"], found["legacy"], found["left"]) == (False, True, False, False)
    assert not found["stays"]
    assert node(proprietary=False)["packages"] == ALL[:2]


@pytest.mark.parametrize(
    ("args", "cuda"),
    [
        ({"driver": "580.126.20"}, "13"),
        ({"driver": "570.172.08"}, "12"),
        ({"driver": "525.60"}, "12"),
        ({"driver": "470.182.03"}, "11"),
        ({"driver": "", "cuda": "12.8.1"}, "12"),
        ({"driver": "570.1", "cuda": "13.3"}, "12"),
        ({"driver": "", "cuda": "10.2"}, "13"),
        ({"driver": ""}, "13"),
        ({"driver": "610.43", "cuda_major": "12"}, "12"),
    ],
)
def test_diagnostics_are_for_the_drivers_cuda(node: Node, args: dict[str, str], cuda: str) -> None:
    assert node(**args)["packages"][1] == f"datacenter-gpu-manager-4-cuda{cuda}"


def test_the_amis_own_stays_and_gets_what_it_lacks_in_its_own_version(node: Node) -> None:
    """ParallelCluster's recipes install the core and the diagnostics alone."""
    node.has(datacenter_gpu_manager_4_core="4.5.1", datacenter_gpu_manager_4_cuda13="4.5.1")
    found = node()
    assert (found["install"], found["add"], found["stays"]) == (True, True, True)
    assert (found["version"], found["packages"]) == ("4.5.1", ALL)
    assert found["why"] == f"DCGM 4.5.1 lacks {ALL[2]}, {ALL[3]}"
    assert found["summary"] == "DCGM 4.5.1, the node had it"
    assert not node(proprietary=False)["install"]
    node.has(**all_of("4.5.1"))
    found = node()
    assert (found["install"], found["stays"], found["why"]) == (False, True, "DCGM 4.5.1 is installed")


def test_what_else_the_amis_own_lacks_is_its_owners_affair(node: Node) -> None:
    node.has(**{name: version for name, version in all_of("4.6.0").items() if not name.endswith("4_cuda13")})
    assert not node()["install"]
    # Unless a version is asked for.
    assert node(version="4.6.0")["why"] == "DCGM 4.6.0 is wanted, there is 4.6.0"
    found = node(version="4.7")
    assert (found["version"], found["stays"]) == ("4.7", False)
    node.has(**all_of("4.6.0"))
    assert not node(version="4.6")["install"]


def test_one_that_is_too_old_is_replaced_with_all_that_belongs_to_it(node: Node) -> None:
    node.has(**all_of("4.4.1"), datacenter_gpu_manager_4_dev="4.4.1", datacenter_gpu_manager_4_cuda12="4.4.1")
    found = node()
    assert (found["install"], found["version"], found["legacy"]) == (True, "4.6.0", False)
    assert found["packages"] == [*ALL, "datacenter-gpu-manager-4-cuda12", "datacenter-gpu-manager-4-dev"]
    assert found["why"] == "DCGM 4.4.1 is older than 4.5"
    assert not node(minimum_version="4.4")["install"]


def test_versions_are_numbers(node: Node) -> None:
    node.has(**all_of("4.10.0"))
    assert not node()["install"]
    node.has(**all_of("4.5.0"))
    assert not node()["install"]


def test_dcgm_3_has_to_leave(node: Node) -> None:
    node.has(datacenter_gpu_manager="3.3.6")
    found = node()
    assert (found["install"], found["legacy"], found["packages"]) == (True, True, ALL)
    assert (found["why"], found["stays"]) == ("DCGM 3.3.6 is older than 4.5", False)


def test_what_a_killed_run_left_is_finished(node: Node) -> None:
    """Also where what tells the version is there already."""
    node.has(datacenter_gpu_manager_4_core="4.6.0")
    for done in (False, True):
        node.noted("4.6.0", done)
        found = node(fresh_version="4.7.0")
        assert (found["install"], found["version"], found["packages"]) == (True, "4.6.0", ALL)
        assert found["why"] == f"unfinished: {', '.join(ALL[1:])}"
    node.noted("4.6.0", False)
    node.has(**all_of("4.6.0"))
    assert not node()["install"], "nothing is left to do, although nobody noted the end"
    assert node()["summary"] == "DCGM 4.6.0"
    status = node.top / "dpkg/status"
    status.write_text(status.read_text() + "Package: datacenter-gpu-manager-4-dev\nStatus: install ok unpacked\n\n")
    assert node()["why"] == "unfinished: datacenter-gpu-manager-4-dev"
    assert node(version="4.6.0")["install"]
    node.has("half-configured", **all_of("4.6.0"))
    found = node()
    assert (found["install"], found["version"], found["why"]) == (True, "4.6.0", "there is no DCGM")


def test_a_version_that_could_not_be_had_is_forgotten(node: Node) -> None:
    node.noted("4.99", False)
    assert node()["version"] == "4.6.0"
    node.has(**all_of("4.7.0"))
    found = node()
    assert (found["install"], found["version"]) == (False, "4.7.0")
    assert found["summary"] == "DCGM 4.7.0, the node had it"


def test_one_that_no_package_brought_stays(node: Node) -> None:
    (node.top / "dcgmi").write_text("")
    found = node()
    assert (found["install"], found["version"]) == (False, "")
    assert found["why"] == f"{node.top}/dcgmi is there, and no package brought it; it is left as it is"
    assert (found["summary"], found["stays"]) == ("DCGM of unknown version, the node had it", True)
    node.has("half-configured", datacenter_gpu_manager_4_core="4.6.0")
    assert node()["install"], "a package was on its way, whoever began it"


def test_a_repository_that_the_node_has_is_not_added_again(node: Node) -> None:
    """apt would refuse to work at all."""
    folder = node.top / "apt/sources.list.d"
    theirs = folder / "cuda-ubuntu2404-x86_64.list"
    theirs.write_text(f"# deb {URL}/ /\n")
    assert node()["add"]
    (folder / "cuda.list.save").write_text(f"deb {URL}/ /\n")
    assert node()["add"]
    theirs.write_text(f"deb [signed-by=/usr/share/keyrings/cuda-archive-keyring.gpg] {URL}/ /\n")
    assert not node()["add"]
    assert node(mirrors=["http://mirror"])["add"]
    theirs.rename(folder / "cuda.sources").write_text(f"URIs: {URL}\nEnabled: no\n")
    assert node()["add"]
    (folder / "nvidia-dcgm.sources").write_text(f"URIs: {URL}\n")
    found = node()
    assert (found["add"], found["left"]) == (True, True)


def test_a_host_engine_of_somebody_else_is_seen(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"ActiveState": "inactive"}
    monkeypatch.setattr(_dcgm._systemd, "running", lambda: True)
    monkeypatch.setattr(_dcgm._systemd, "status_of", lambda _name: state)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(_dcgm, "ADDRESS", server.getsockname())
        assert node()["other"]
        assert not node(component="exporter")["other"]
        state["ActiveState"] = "active"
        assert not node()["other"]
        state["ActiveState"] = "inactive"
        monkeypatch.setattr(_dcgm._systemd, "running", lambda: False)
        assert not node()["other"], "in an image build nothing of the machine counts"
    monkeypatch.setattr(_dcgm._systemd, "running", lambda: True)
    state["ActiveState"] = "inactive"
    assert not node()["other"]


def test_the_exporter(node: Node) -> None:
    args = {"component": "exporter", "fresh_version": "4.8.2", "minimum_version": "4.8.2"}
    found = node(**args)
    assert (found["install"], found["packages"], found["version"]) == (True, [EXPORTER], "4.8.2")
    assert found["why"] == "there is no DCGM exporter"
    node.has(datacenter_gpu_manager_exporter="4.8.4.3955", datacenter_gpu_manager="3.3.6")
    found = node(**args)
    assert (found["install"], found["legacy"], found["packages"]) == (False, False, [EXPORTER])
    assert found["summary"] == "DCGM exporter 4.8.4.3955, the node had it"
    assert node(**args, version="4.9")["install"]
    node.has(datacenter_gpu_manager_exporter="4.8.1")
    assert node(**args)["why"] == "DCGM exporter 4.8.1 is older than 4.8.2"
    # Who asks for an old one gets it, and who asks for the beginning of a version gets one that is new enough.
    assert not node(**args, version="4.8.1")["install"]
    assert node(**args, version="4.8")["version"] == "4.8"
    node.has()
    (node.top / "dcgm-exporter").write_text("")
    assert not node(**args)["install"]
    node.noted("4.8.2", False, EXPORTER)
    assert node(**args)["install"]


def test_rpm(node: Node) -> None:
    program = node.top / "bin/rpm"
    program.write_text(f"#!/bin/sh\nprintf '{CORE}\\t4.4.1\\n'\n")
    program.chmod(0o755)
    found = node(manager="dnf")
    assert (found["install"], found["why"]) == (True, "DCGM 4.4.1 is older than 4.5")


# What is seen


def dcgmi(node: Node, text: str, code: int = 0) -> None:
    program = node.top / "bin/dcgmi"
    program.write_text(f'#!/bin/sh\n[ "$*" = "discovery -l" ] || exit 9\ncat << END\n{text}\nEND\nexit {code}\n')
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("said", "gpus"),
    [("8 GPUs found.\n+---+", 8), ("8 GPUs found (Active).\n8 NvSwitches found.", 8), ("1 GPU found.", 1)],
)
def test_dcgm_sees_every_gpu(node: Node, run_module: Run, said: str, gpus: int) -> None:
    dcgmi(node, said)
    found = run_module(dcgm_gpus, {"gpus": gpus, "wait": 0})
    assert (found["changed"], found["summary"]) == (False, f"{gpus} GPU{'s' if gpus > 1 else ''}")


@pytest.mark.parametrize(
    ("said", "code", "wrong"),
    [
        ("7 GPUs found.", 0, "DCGM sees 7 GPUs, and this node has 8"),
        ("1 GPU found.", 0, "DCGM sees 1 GPU, and this node has 8"),
        ("Error: unable to establish a connection", 235, "'dcgmi discovery -l' ended with 235: Error: unable to"),
        ("8 GPUs found.", 3, "'dcgmi discovery -l' ended with 3: 8 GPUs found."),
    ],
)
def test_a_gpu_that_is_lost_is_told(node: Node, run_module: Run, said: str, code: int, wrong: str) -> None:
    dcgmi(node, said, code)
    failed = run_module(dcgm_gpus, {"gpus": 8, "wait": 0})
    assert failed["msg"].startswith(wrong)
    assert failed["msg"].endswith("; see 'journalctl -u nvidia-dcgm', /var/log/nv-hostengine.log and 'nvidia-smi'")


def test_gpus_that_come_late_are_waited_for(node: Node, run_module: Run) -> None:
    dcgmi(node, f"$(cat {node.top}/gpus) GPUs found.\n$(echo 8 > {node.top}/gpus)")
    (node.top / "gpus").write_text("6\n")
    assert run_module(dcgm_gpus, {"gpus": 8, "wait": 10})["summary"] == "8 GPUs"


def test_a_dcgm_that_is_not_there(node: Node, run_module: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(node.top / "bin"))
    assert run_module(dcgm_gpus, {"gpus": 8, "wait": 0})["msg"].startswith("the program dcgmi is not there")


@pytest.fixture
def exporter() -> Iterator[tuple[str, dict[str, Any]]]:
    """Serve what a test says, and return the address and where to say it."""
    said: dict[str, Any] = {"code": 200, "text": "", "profiles": 404}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(said["code"] if self.path == "/metrics" else said["profiles"])
            self.end_headers()
            self.wfile.write(said["text"].encode() if self.path == "/metrics" else b"/usr/bin/dcgm-exporter")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/metrics", said
        server.shutdown()


def test_the_exporter_knows_every_gpu(run_module: Run, exporter: tuple[str, dict[str, Any]]) -> None:
    url, said = exporter
    said["text"] = "# HELP DCGM_FI_DEV_GPU_TEMP gpu=\n" + "".join(
        f'{name}{{gpu="{gpu}",UUID="GPU-{gpu}",hpc_job="{job}"}} 30\n'
        for name in ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_UTIL")
        for gpu in range(8)
        for job in (1, 2)
    )
    counters = ["DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FAN_SPEED"]
    found = run_module(dcgm_gpus, {"gpus": 8, "url": url, "counters": counters, "wait": 0})
    assert found["metrics"] == counters[:2]
    assert found["missing"] == counters[2:]
    assert found["summary"] == "8 GPUs with 2 of 3 metrics"


def test_dashboards_that_will_be_empty_are_told(run_module: Run, exporter: tuple[str, dict[str, Any]]) -> None:
    url, said = exporter
    said["text"] = 'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 30\n'
    profiling = ["DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_DRAM_ACTIVE"]
    args = {"gpus": 1, "url": url, "counters": ["DCGM_FI_DEV_GPU_TEMP", *profiling], "wait": 0}
    assert run_module(dcgm_gpus, args)["summary"] == (
        "1 GPU with 1 of 3 metrics, none of them of profiling (DCGM_FI_PROF_*): GPUs before Hopper have those with the "
        "package datacenter-gpu-manager-4-proprietary in DCGM's version only, see dcgm_proprietary"
    )
    said["text"] += 'DCGM_FI_PROF_SM_ACTIVE{gpu="0"} 0.5\n'
    assert run_module(dcgm_gpus, args)["summary"] == "1 GPU with 2 of 3 metrics"


def test_an_exporter_whose_profiles_are_for_everybody_is_told(
    run_module: Run, exporter: tuple[str, dict[str, Any]]
) -> None:
    """Whether a package, an image or a flag brought that."""
    url, said = exporter
    said.update(text='DCGM_FI_DEV_GPU_TEMP{gpu="0"} 30\n', profiles=200)
    found = run_module(dcgm_gpus, {"gpus": 1, "url": url, "wait": 0})
    assert found["summary"] == (
        "1 GPU; /debug/pprof/ answers everybody who reaches the exporter (CVE-2026-47483, mended in 4.8.2): correct "
        "dcgm_exporter_version, dcgm_exporter_image or dcgm_exporter_flags"
    )


@pytest.mark.parametrize(("code", "wrong"), [(200, "the exporter at {} has metrics of 0 GPUs"), (500, "{} gave no ")])
def test_an_exporter_without_metrics_is_told(
    run_module: Run, exporter: tuple[str, dict[str, Any]], code: int, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # nothing on this machine is reached through a proxy
    url, said = exporter
    said["code"] = code
    failed = run_module(dcgm_gpus, {"gpus": 8, "url": url, "wait": 0})
    assert failed["msg"].startswith(wrong.format(url))
    assert failed["msg"].endswith("; see 'journalctl -u nvidia-dcgm-exporter' and 'nvidia-smi'")
