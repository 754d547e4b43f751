# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""prometheus_load_info, with a scontrol that prints what Slurm's own does of ParallelCluster's nodes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils import _prometheus_load
from ansible_collections.pcluster.postboot.plugins.module_utils._node import neuron
from ansible_collections.pcluster.postboot.plugins.modules import prometheus_load_info
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab

KINDS = {
    "gpu-st-p5": (192, "static,p5.48xlarge,p5,efa,gpu", "gpu:h100:8(S:0-1)"),
    "old-dy-p4": (96, "dynamic,p4d.24xlarge,p4,efa,gpu", "gpu:a100:8"),
    "one-dy-hpc": (96, "dynamic,hpc7a.96xlarge,hpc,efa", "(null)"),
    "trn-dy-trn1": (128, "dynamic,trn1.32xlarge,trn1,efa", "(null)"),
    "cpu-dy-c5": (4, "dynamic,c5.xlarge,c5", "(null)"),
}


def nodes(kind: str, number: int, state: str = "IDLE+CLOUD+POWERED_DOWN") -> str:
    cpus, features, gres = KINDS[kind]
    return "".join(
        f"NodeName={kind}-{place + 1} CoresPerSocket=1 CPUAlloc=0 CPUEfctv={cpus} CPUTot={cpus} CPULoad=0.00 "
        f"AvailableFeatures={features} ActiveFeatures={features} Gres={gres} NodeAddr={kind}-{place + 1} "
        f"RealMemory=1992294 AllocMem=0 Sockets={cpus} Boards=1 State={state} ThreadsPerCore=1 Partitions=q "
        "Reason=CPUTot=7 Gres=gpu:x:99 [root@2026-11-22T12:00:00]\n"
        for place in range(number)
    )


@pytest.fixture
def slurm(tmp_path: Path) -> Any:
    """slurm(text, status) makes a scontrol that prints a text, and returns its prefix."""

    def make(text: str, status: int = 0) -> Path:
        (tmp_path / "said").write_text(text)
        script = f'[ "$*" = "-a -o show nodes" ] || exit 9\ncat {tmp_path}/said\nexit {status}\n'
        lab.program(tmp_path / "bin/scontrol", f"#!/bin/sh\n{script}")
        return tmp_path

    return make


def test_every_kind_of_node_is_counted_by_what_it_has() -> None:
    text = nodes("gpu-st-p5", 3, "MIXED+CLOUD") + nodes("old-dy-p4", 2) + nodes("one-dy-hpc", 1) + nodes("cpu-dy-c5", 4)
    kind = _prometheus_load.Kind
    trn1 = kind(128, 0, 8, neuron.Kind(16, 32))
    assert _prometheus_load.parse(text + nodes("trn-dy-trn1", 5)) == Counter(
        {kind(192, 8, 32): 3, kind(96, 8, 4): 2, kind(96, 0, 1): 1, trn1: 5, kind(4, 0, 0): 4}
    )
    assert kind(4, 0, 0).series < kind(96, 0, 1).series < kind(96, 8, 4).series < kind(192, 8, 32).series


def test_a_head_node_that_is_too_small_is_told(slurm: Any) -> None:
    prefix = slurm(nodes("gpu-st-p5", 1024))
    found = _prometheus_load.find(str(prefix), 10, memory=16_000_000_000)
    assert (found.nodes, found.reason) == (1024, "")
    needed = found.series * _prometheus_load.BYTES_A_SERIES
    assert found.bytes == needed
    assert found.summary.startswith(f"1,024 nodes may bring {found.series / 1e6:.1f} million series, which take ")
    assert f"{needed / 1e9:.1f} GB of this node's 16.0 GB: take a head node with " in found.summary
    assert "\n" not in found.summary
    # The head node that it asks for is large enough, and one with a GB less is not.
    wanted = int(found.summary.split("head node with ")[1].split()[0]) * 10**9
    assert _prometheus_load.find(str(prefix), 10, memory=wanted).summary == ""
    assert _prometheus_load.find(str(prefix), 10, memory=wanted - 10**9).summary != ""
    # An agent takes a third less.
    agent = _prometheus_load.find(str(prefix), 10, agent=True, memory=16_000_000_000)
    assert (agent.series, agent.bytes) == (found.series, needed * 2 // 3)
    assert found.summary.endswith("; amp-only takes a third less")
    assert agent.summary.endswith("(metric_relabel_configs of prometheus_jobs)")


def test_one_that_is_large_enough_says_nothing(slurm: Any, run_module: Any) -> None:
    result = run_module(prometheus_load_info, {"prefix": str(slurm(nodes("cpu-dy-c5", 8)))}, check=True)
    assert (result["failed"], result["changed"], result["nodes"]) == (False, False, 8)
    assert "summary" not in result  # the report would have a line of it
    assert result["memory"] == _prometheus_load.memory_of() > 0


def test_a_slurm_that_does_not_answer_is_no_failure(slurm: Any, tmp_path: Path) -> None:
    failed = _prometheus_load.find(str(slurm("slurm_load_node error: Unable to contact slurm controller\n", 1)), 10)
    assert (failed.nodes, failed.summary) == (0, "")
    assert failed.reason.endswith(
        "/bin/scontrol -a -o show nodes' ended with 1: slurm_load_node error: Unable to contact slurm controller"
    )
    gone = _prometheus_load.find(str(tmp_path / "none"), 10)
    assert gone.reason == f"the program {tmp_path}/none/bin/scontrol is not there"
    (tmp_path / "bin/scontrol").write_text("#!/bin/sh\nexec sleep 10\n")
    assert _prometheus_load.find(str(tmp_path), 0.2).reason.endswith("did not end within 0.2 s")
