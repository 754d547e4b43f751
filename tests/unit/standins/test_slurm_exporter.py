# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The sandbox's slurm_exporter: of what Slurm's programs print it tells what the real one tells."""

from __future__ import annotations

import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.tests.programs import load
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab
from ansible_collections.pcluster.postboot.tests.waiting import until

# What each program prints, by words of its command line; as Slurm 25.11's would.
SINFO = {
    "%C": "40/56/96/192",
    "%N|%E|%H|%T": "gpu-dy-p5-1|none|Unknown|mixed\n"
    "gpu-dy-p5-2|Not responding|2026-11-22T10:00:00|down*\n"
    "gpu-dy-p5-3|row remap|2026-11-22T09:00:00|drained\n"
    "gpu-dy-p5-3|row remap|2026-11-22T09:00:00|drained\n"
    "gpu-dy-p5-4|Scheduler health check failed|2026-11-22T08:00:00|idle~",
    "Nodes: ,Gres:": "4 gpu:h100:8(S:0-1)",
    "Nodes:10 ,GresUsed:": "1          gpu:h100:3(IDX:0-2)",
    "Nodes: ,Gres: ,GresUsed:": "1 gpu:h100:8(S:0-1) gpu:h100:3(IDX:0-2)",
    "NodeList": "gpu-dy-p5-1 1024 2000000 40/152/0/192 mixed gpu*\n"
    "gpu-dy-p5-1 1024 2000000 40/152/0/192 mixed all\n"
    "gpu-dy-p5-5 0 2000000 0/192/0/192 idle~ gpu*",
    "%R|%D|%T|%b": "gpu|1|mixed|(null)\ngpu|3|idle~|b,a",
    "%R,%C": "gpu,40/56/96/192\nall,40/56/96/192",
    "Partition: ,Gres": "1 gpu* gpu:h100:8(S:0-1) gpu:h100:3(IDX:0-2)",
    "--version": "slurm 25.11.7",
}
SQUEUE = {
    "%P|%T|%C|%r|%u": "gpu|RUNNING|40|None|ubuntu\ngpu|PENDING|8|Resources|ubuntu\ngpu|PENDING|8|JobHeldUser|alice",
    "UserName": "7|ubuntu|RUNNING|1|40|cpu=40,node=1,billing=40,gres/gpu:h100=3,gres/gpu=3\n8|alice|PENDING|1|8|N/A",
    "PENDING": "gpu\ngpu",
    "RUNNING": "gpu",
    "--version": "slurm 25.11.7",
}
# As Slurm 24.11's sdiag prints it.
SDIAG = """\
Server thread count:  3
Jobs submitted: 1234567

Main schedule statistics (microseconds):
\tLast cycle:   62

Remote Procedure Call statistics by message type
\tREQUEST_PARTITION_INFO                  ( 2009) count:1234567 ave_time:163    total_time:201234421
\tMESSAGE_NODE_REGISTRATION_STATUS        ( 1002) count:4      ave_time:911    total_time:3645

Remote Procedure Call statistics by user
\troot            (       0) count:5321   ave_time:173    total_time:920533
\tanna.smith      (    1001) count:7      ave_time:120    total_time:840

Pending RPC statistics
\tNo pending RPCs
"""
Scrape = Callable[..., dict[str, float]]


@pytest.fixture
def standin() -> Any:
    return load("molecule/cluster/standins/slurm_exporter/slurm_exporter.py")


@pytest.fixture
def scrape(standin: Any, tmp_path: Path) -> Scrape:
    """scrape(*flags, broken=…) returns what it tells, by its name and labels."""

    def program(name: str, answers: dict[str, str]) -> None:
        cases = "".join(
            f"*{shlex.quote(words)}*) printf %s {shlex.quote(text)} ;;\n" for words, text in answers.items()
        )
        lab.program(tmp_path / name, f'#!/bin/sh\ncase "$*" in\n{cases}*) exit 9 ;;\nesac\n')

    def run(*flags: str, broken: tuple[str, ...] = ()) -> dict[str, float]:
        # What is more special comes first.
        ordered = sorted(SINFO, key=lambda words: -len(words))
        program("sinfo", {words: SINFO[words] for words in ordered})
        program("squeue", SQUEUE)
        program("sdiag", {"--version": "slurm 25.11.7", "": SDIAG})
        program("scontrol", {"show nodes": "NodeName=a\nNodeName=b\n", "--version": "slurm 25.11.7"})
        for name in ("sshare", "sacct", "srun"):
            program(name, {"--version": "slurm 25.11.7"})
        for name in broken:
            program(name, {})
        exporter = standin.Exporter([f"--slurm.bin-path={tmp_path}", *flags])
        exporter.check()
        lines = [line for line in exporter.text().splitlines() if not line.startswith("#")]
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}

    return run


def test_nodes_and_their_reasons(scrape: Scrape) -> None:
    found = scrape()
    assert found['slurm_node_status{node="gpu-dy-p5-1",partition="gpu",status="mixed"}'] == 1
    assert found['slurm_node_status{node="gpu-dy-p5-1",partition="all",status="mixed"}'] == 1
    assert found['slurm_node_status{node="gpu-dy-p5-5",partition="gpu",status="idle~"}'] == 1
    assert found['slurm_nodes_idle{active_feature_set="a,b",partition="gpu"}'] == 3
    assert found['slurm_nodes_mix{active_feature_set="null",partition="gpu"}'] == 1
    # Neither those that only do not answer, nor those that are well again.
    reasons = [name for name in found if name.startswith("slurm_node_drain_reason_info")]
    since = "2026-11-22T09:00:00"
    assert reasons == [f'slurm_node_drain_reason_info{{node="gpu-dy-p5-3",reason="row remap",since="{since}"}}']


def test_jobs_by_user_and_queue(scrape: Scrape) -> None:
    found = scrape()
    assert found['slurm_user_gpus_running{user="ubuntu"}'] == 3
    assert found['slurm_user_cpus_running{user="ubuntu"}'] == 40
    assert found['slurm_user_jobs_pending{user="alice"}'] == 1
    assert found['slurm_queue_pending{partition="gpu",reason="JobHeldUser",user="alice"}'] == 1
    assert found['slurm_partition_jobs_pending{partition="gpu"}'] == 2
    assert found['slurm_partition_gpus_allocated{partition="gpu"}'] == 3
    assert (found["slurm_jobs_pending"], found["slurm_jobs_cores_pending"]) == (2, 16)
    assert 'slurm_queue_pending{partition="gpu",reason="JobHeldUser"}' in scrape("--no-collector.queue.user-label")


def test_a_program_that_fails_is_counted_and_only_its_own_metrics_are_missing(scrape: Scrape) -> None:
    found = scrape(broken=("squeue", "scontrol"))
    assert found["slurm_jobs_pending"] == 0
    assert not [name for name in found if name.startswith(("slurm_queue_", "slurm_user_jobs_", "slurm_partition_"))]
    assert found['slurm_exporter_command_errors_total{command="squeue"}'] > 0
    assert found['slurm_nodes_idle{active_feature_set="a,b",partition="gpu"}'] == 3
    assert "slurm_nodes_total" not in found
    assert found['slurm_exporter_collector_success{collector="queue"}'] == 1


def test_programs_that_there_are_and_that_there_are_not(scrape: Scrape) -> None:
    found = scrape(broken=("sdiag",))
    versions = {name: value for name, value in found.items() if name.startswith("slurm_info")}
    assert versions['slurm_info{binary="sdiag",type="binary",version="not_found"}'] == 0
    assert versions['slurm_info{binary="srun",type="binary",version="25.11.7"}'] == 1
    assert versions['slurm_info{binary="",type="general",version="25.11.7"}'] == 1
    assert not [name for name in versions if "sbatch" in name]


def test_without_a_program_that_it_needs_it_does_not_start(standin: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        standin.Exporter([f"--slurm.bin-path={tmp_path}"]).check()
    with pytest.raises(SystemExit):
        standin.Exporter(["--no-collector.licences"])


def test_statistics_of_rpcs_name_users(scrape: Scrape) -> None:
    found = scrape("--no-collector.users", "--no-collector.queue.user-label")
    assert found["slurm_scheduler_jobs_submitted"] == 1234567
    assert found['slurm_rpc_stats{operation="REQUEST_PARTITION_INFO"}'] == 1234567
    assert found['slurm_rpc_stats_total_time{operation="REQUEST_PARTITION_INFO"}'] == 201234421
    assert found['slurm_user_rpc_stats{user="root"}'] == 5321
    assert found['slurm_user_rpc_stats_avg_time{user="root"}'] == 173
    assert found['slurm_user_rpc_stats_total_time{user="anna"}'] == 840
    assert not [name for name in scrape("--no-collector.scheduler") if "rpc" in name]


def test_only_sigkill_ends_it(standin: Any, tmp_path: Path) -> None:
    """As SckyzO/slurm_exporter#139 reports of 1.8.4."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def healthy() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
                return bool(answer.read() == b"ok")
        except OSError:
            return False

    command = [sys.executable, standin.__file__, f"--web.listen-address=127.0.0.1:{port}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as exporter:
        try:
            until(healthy)
            for number in (signal.SIGTERM, signal.SIGINT):
                exporter.send_signal(number)
                assert healthy()
            with pytest.raises(subprocess.TimeoutExpired):
                exporter.wait(0.5)
        finally:
            exporter.kill()
    assert exporter.returncode == -signal.SIGKILL
