# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the benchmark of verify has NCCL print, and how its clock counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._verify import cluster as verify_cluster
from ansible_collections.pcluster.postboot.plugins.module_utils._verify import nccl as verify_nccl
from ansible_collections.pcluster.postboot.plugins.module_utils._verify import nccl_results
from ansible_collections.pcluster.postboot.tests.programs import load

REPO = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def bench() -> Any:
    return load("tests/bench/verify.py")


def test_alltoall_prints_a_line_for_each_end_of_a_connection(bench: Any) -> None:
    assert [bench.per_peer(ranks) for ranks in (16, 64, 128, 256, 8000)] == [4, 4, 2, 1, 1]
    hosts = [f"gpu-st-p5-{index}" for index in range(1, 5)]
    texts = [bench.rank_says("alltoall_perf", rank, hosts, 40.0) for rank in range(32)]
    lines = [line for text in texts for line in text.splitlines() if " via NET/" in line]
    assert len(lines) == 2 * 32 * 24 * 4
    assert all(line.endswith("/GDRDMA/Shared") for line in lines)
    (result,) = nccl_results.parse("".join(texts), "alltoall")
    assert (result.complete, len(result.rows), len(result.ranks), len(result.network.hosts)) == (True, 32, 32, 4)
    assert (result.network.nics, result.network.gdr, result.network.provider) == (32, True, "efa")


def test_jobs_that_run_together_take_the_time_of_one(
    bench: Any, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_nccl, "AT_ONCE", 2)
    root = tmp_path_factory.mktemp("v")
    cluster = bench.Cluster(root, 5, False)
    cluster.quiet = 0.5
    monkeypatch.setattr(verify_cluster.Context, "submit", cluster.counted(verify_cluster.Context.submit))
    monkeypatch.setenv("PATH", f"{root}/bin:/usr/bin:/bin")
    nccl = verify_cluster.Nccl(
        ("one",), ("all_reduce",), tests_dir=str(cluster.tests), environment=str(cluster.environment)
    )
    options = verify_cluster.Options(user=bench.USER, slurm=f"{root}/slurm", results_dir=f"{root}/results", nccl=nccl)
    (check,) = verify_nccl.run(verify_cluster.Context(options))
    cluster.ended = True
    assert check.message.startswith("gpu-st-p5-[1-5], the slowest ")
    # One asks the nodes what they have; of the five others two run at a time.
    assert (cluster.jobs, cluster.clock) == (6, 4 * 40)
