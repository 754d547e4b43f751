# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""dcgm_check, with a dcgmi and an exporter that say what a test wants."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils import _dcgm
from ansible_collections.pcluster.postboot.plugins.modules import dcgm_check
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose bin/ is the first of PATH."""
    monkeypatch.setattr(_dcgm.time, "sleep", lambda _seconds: None)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path


def dcgmi(top: Path, text: str, code: int = 0) -> None:
    script = f'[ "$*" = "discovery -l" ] || exit 9\ncat << END\n{text}\nEND\nexit {code}\n'
    lab.program(top / "bin/dcgmi", f"#!/bin/sh\n{script}")


@pytest.mark.parametrize(
    ("said", "gpus"),
    [("8 GPUs found.\n+---+", 8), ("8 GPUs found (Active).\n8 NvSwitches found.", 8), ("1 GPU found.", 1)],
)
def test_dcgm_sees_every_gpu(node: Path, run_module: Run, said: str, gpus: int) -> None:
    dcgmi(node, said)
    found = run_module(dcgm_check, {"gpus": gpus, "wait": 0})
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
def test_a_gpu_that_is_lost_is_told(node: Path, run_module: Run, said: str, code: int, wrong: str) -> None:
    dcgmi(node, said, code)
    failed = run_module(dcgm_check, {"gpus": 8, "wait": 0})
    assert failed["msg"].startswith(wrong)
    assert failed["msg"].endswith("; see 'journalctl -u nvidia-dcgm', /var/log/nv-hostengine.log and 'nvidia-smi'")


def test_gpus_that_come_late_are_waited_for(node: Path, run_module: Run) -> None:
    dcgmi(node, f"$(cat {node}/gpus) GPUs found.\n$(echo 8 > {node}/gpus)")
    (node / "gpus").write_text("6\n")
    assert run_module(dcgm_check, {"gpus": 8, "wait": 10})["summary"] == "8 GPUs"


def test_a_dcgm_that_is_not_there(node: Path, run_module: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(node / "bin"))
    assert run_module(dcgm_check, {"gpus": 8, "wait": 0})["msg"].startswith("the program dcgmi is not there")


@pytest.fixture
def exporter() -> Iterator[tuple[str, dict[str, Any]]]:
    said: dict[str, Any] = {"code": 200, "text": "", "profiles": 404}

    class Handler(lab.Pages):
        def do_GET(self) -> None:
            metrics = self.path == "/metrics"
            self.say(said["code" if metrics else "profiles"], said["text"] if metrics else "/usr/bin/dcgm-exporter")

    with lab.serving(Handler) as url:
        yield f"{url}/metrics", said


def test_the_exporter_knows_every_gpu(run_module: Run, exporter: tuple[str, dict[str, Any]]) -> None:
    url, said = exporter
    said["text"] = "# HELP DCGM_FI_DEV_GPU_TEMP gpu=\n" + "".join(
        f'{name}{{gpu="{gpu}",UUID="GPU-{gpu}",hpc_job="{job}"}} 30\n'
        for name in ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_UTIL")
        for gpu in range(8)
        for job in (1, 2)
    )
    counters = ["DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FAN_SPEED"]
    found = run_module(dcgm_check, {"gpus": 8, "url": url, "counters": counters, "wait": 0})
    assert found["metrics"] == counters[:2]
    assert found["missing"] == counters[2:]
    assert found["summary"] == "8 GPUs with 2 of 3 metrics"


def test_dashboards_that_will_be_empty_are_told(run_module: Run, exporter: tuple[str, dict[str, Any]]) -> None:
    url, said = exporter
    said["text"] = 'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 30\n'
    profiling = ["DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_DRAM_ACTIVE"]
    args = {"gpus": 1, "url": url, "counters": ["DCGM_FI_DEV_GPU_TEMP", *profiling], "wait": 0}
    assert run_module(dcgm_check, args)["summary"] == (
        "1 GPU with 1 of 3 metrics, none of them of profiling (DCGM_FI_PROF_*): GPUs before Hopper have those with the "
        "package datacenter-gpu-manager-4-proprietary in DCGM's version only, see dcgm_proprietary"
    )
    said["text"] += 'DCGM_FI_PROF_SM_ACTIVE{gpu="0"} 0.5\n'
    assert run_module(dcgm_check, args)["summary"] == "1 GPU with 2 of 3 metrics"


def test_an_exporter_whose_profiles_are_for_everybody_is_told(
    run_module: Run, exporter: tuple[str, dict[str, Any]]
) -> None:
    """Whether a package, an image or a flag brought that."""
    url, said = exporter
    said.update(text='DCGM_FI_DEV_GPU_TEMP{gpu="0"} 30\n', profiles=200)
    found = run_module(dcgm_check, {"gpus": 1, "url": url, "wait": 0})
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
    failed = run_module(dcgm_check, {"gpus": 8, "url": url, "wait": 0})
    assert failed["msg"].startswith(wrong.format(url))
    assert failed["msg"].endswith("; see 'journalctl -u nvidia-dcgm-exporter' and 'nvidia-smi'")
