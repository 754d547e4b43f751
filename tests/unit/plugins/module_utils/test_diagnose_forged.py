# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Text that a user chooses neither makes a finding nor hides one.

Slurm's lines are those of 24.11.5, after `srun -p "$(printf 'gpu\\n[…] fatal: x')" true` of an ordinary user: slurmctld
writes the name of a partition that it rejects as it is, line feeds and escapes included.
"""

from __future__ import annotations

import calendar
import json
from collections.abc import Mapping
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose import cluster, judge, node
from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose.evidence import (
    CAUSE,
    NOTE,
    Evidence,
    Finding,
    finding,
)

NOW = float(calendar.timegm((2026, 11, 27, 12, 0, 0)))
CONTROLLER, SLURMD = "var/log/slurmctld.log", "var/log/slurmd.log"
MANAGER, RESUME = "var/log/parallelcluster/clustermgtd", "var/log/parallelcluster/slurm_resume.log"
KERNEL, CONSOLE, SYSLOG = "commands/kernel.txt", "console.txt", "var/log/syslog"
UNITS, SYSTEMD = "commands/units.txt", "commands/slurm-units.txt"
REJECTED = "[2026-11-27T11:48:13.162] _get_job_parts: invalid partition specified: {}\n"
XID = "NVRM: Xid (PCI:0000:53:00): 79, pid=1234, name=python, GPU has fallen off the bus."
PLACED = (
    "Nodes are now configured with instances (x1) "
    "[\"('cpu-st-c5-1', EC2Instance(id='i-0{0}', private_ip='10.0.0.{0}', hostname='h{0}'))\"]"
)
BY_MANAGER = "2026-11-27 11:40:00,123 - [slurm_plugin.{}] - {} - {}\n"
TOLD = "pcluster-postboot: enroot failed: x; see /var/log/pcluster-postboot/pull.log"
ENDED = (
    "2026-11-27T11:30:07+0000 ip-10-0-0-4 systemd[1]: slurmctld.service: Main process exited, code=exited, "
    "status=1/FAILURE\n"
)
ALIVE = "Id=slurmctld.service\nLoadState=loaded\nActiveState=active\nUnitFileState=enabled\n"


def found(texts: Mapping[str, str], **more: Any) -> dict[str, Finding]:
    """What is found in texts, by kind."""
    evidence = Evidence("n", more.pop("node_type", "head"), texts, now=NOW, **more)
    return {one.kind: one for one in judge.judge(evidence)}


FORGED = {
    "a partition": {CONTROLLER: REJECTED.format("fatal: \x1b[31mforged\x1b[0m")},
    "munge": {CONTROLLER: REJECTED.format("error: Munge decode failed: Invalid credential")},
    "an end that python alone sees": {CONTROLLER: REJECTED.format("x\u2028[2026-11-27T11:48:13.162] fatal: forged")},
    "a carriage return": {CONTROLLER: REJECTED.format("x\r[2026-11-27T11:48:13.162] fatal: forged")},
    "a step": {SLURMD: "[2026-11-27T11:48:13.162] [12.0] error: couldn't chdir to `/home/u/fatal: ': No such file\n"},
    "a program's file": {KERNEL: f"2026-11-27T11:48:13+0000 h kernel: python[12]: segfault at 0 in {XID}[401+1]\n"},
    "logger": {KERNEL: "-- No entries --\n", SYSLOG: f"Nov 27 11:48:13 h kernel: {XID}\n"},
    "logger, ISO": {KERNEL: "", SYSLOG: f"2026-11-27T11:48:13.123456+00:00 h kernel: [ 8659.726062] {XID}\n"},
    "logger, memory": {KERNEL: "", "var/log/messages": "Nov 27 11:48:13 h kernel: Out of memory: Killed process 1\n"},
    "logger, its own name": {SYSLOG: f"Nov 27 11:48:13 h user: kernel: {XID}\n"},
    "a line feed in a file's name, console": {
        CONSOLE: f"[   60.006338] python[12]: segfault at 0 in x\n[   60.006338] {XID}\n[   60.006338] x[401000+1000]\n"
    },
    "a line feed in a file's name, journal": {
        KERNEL: f"2026-11-27T11:48:13+0000 h kernel: x[12]: segfault at 0 in x\n{' ' * 37}{XID}[401000+1000]\n"
    },
    "a boot's line on the console": {
        CONSOLE: f"[   60.006338] python[12]: segfault at 0 in x\n[   60.006338] cloud-init[801]: {TOLD}\n"
    },
    "a program's name": {KERNEL: "2026-11-27T11:48:13+0000 h kernel: I/O error, dev [12]: segfault at 0 ip 0\n"},
    "another's name": {KERNEL: "2026-11-27T11:48:13+0000 h kernel: EXT4-fs error[12]: segfault at 0 ip 0\n"},
    "a process of a GPU": {
        "commands/nvidia-smi.txt": "+---+\n| Processes:  |\n|    0   N/A  N/A   12   C   /home/u/GPU is lost ERR!  |\n"
    },
    "a job's extra text": {
        RESUME: BY_MANAGER.format(
            "resume:_resume", "INFO", "{'extra': 'Found the following bootstrap failure nodes: (x1) [\\'a-st-b-1\\']'}"
        )
    },
    "a job's features": {
        RESUME: BY_MANAGER.format(
            "resume:_resume", "INFO", "{'features': 'Encountered exception when launching instances for nodes (x1) "
            "[\\'a-st-b-1\\']: An error occurred (UnauthorizedOperation)'}"
        )
    },
    "what a boot's programs print": {"var/log/cloud-init-output.log": f"a user's image called {TOLD}\n"},
    "a script's name": {
        "var/log/cloud-init-output.log": "x Failed to execute OnNodeConfigured script 2 s3://b/x.sh, return code: 3.\n"
    },
    "the end of a boot": {"var/log/cloud-init-output.log": "x: Timed-out when bootstrapping instance\n"},
    "chef": {"var/log/chef-client.log": "[2026-11-27T11:00:00+00:00] INFO: template[/x FATAL: y]\n"},
    "a node's comment": {
        "commands/scontrol-node.txt": "NodeName=n\n   Gres=gpu:h100:8(S:0-1)\n   Comment=x Gres=gpu:h100:9\n",
        "commands/nvidia-smi-list.txt": "".join(f"GPU {n}: NVIDIA H100\n" for n in range(8)),
    },
}  # fmt: skip


@pytest.mark.parametrize("texts", FORGED.values(), ids=FORGED.keys())
def test_a_users_text_is_no_finding(texts: Mapping[str, str]) -> None:
    assert found(texts) == {}


def test_a_line_of_a_users_own_in_slurms_log_is_no_end_of_the_daemon() -> None:
    """Where Slurm writes line feeds as they are, a user writes whole lines: systemd knows whether the daemon ended."""
    forged = REJECTED.format("x\n[2026-11-27T11:48:13.162] fatal: forged")
    assert found({CONTROLLER: forged, UNITS: ALIVE, SYSTEMD: "-- No entries --\n"}) == {}
    said = "2026-11-27T11:48:14+0000 h slurmctld[451]: systemd[1]: slurmctld.service: Main process exited\n"
    assert found({CONTROLLER: forged, UNITS: ALIVE, SYSTEMD: said}) == {}
    true = "[2026-11-27T11:30:06.900] fatal: Unable to open pidfile\n"
    for text in (true + forged, forged + true):
        one = found({CONTROLLER: text, UNITS: ALIVE, SYSTEMD: ENDED})["slurm-fatal"]
        assert one.line == true.strip()
    assert "slurm-fatal" in found({CONTROLLER: true, UNITS: ALIVE.replace("=active", "=failed"), SYSTEMD: ""})
    assert "slurm-fatal" in found({CONTROLLER: true})  # CloudWatch has no word of systemd


@pytest.mark.parametrize(
    "stamp",
    [
        "2026-11-27T11:30:06.900",
        "2026-11-27T11:30:06",
        "2026-11-27T11:30:06.900+00:00",
        "Nov 27 11:30:06",
        "12345",
        "Nov 27 11:30:06.900123 451  slurmctld 0x7f1c2d3e4f50",
    ],
)
def test_slurm_writes_its_time_in_six_ways(stamp: str) -> None:
    """SchedMD/slurm, src/common/log.c, vxstrfmt(), "%M": LogTimeFormat."""
    assert set(found({CONTROLLER: f"[{stamp}] fatal: x\n"})) == {"slurm-fatal"}
    assert set(found({CONTROLLER: f"[{stamp}] error: Munge decode failed: Expired credential\n"})) == {"slurm-munge"}


def test_a_refused_credential_hides_no_end_of_a_daemon() -> None:
    text = "[2026-11-27T11:30:06.900] fatal: x\n[2026-11-27T11:30:07.900] error: Munge decode failed: y\n"
    assert set(found({CONTROLLER: text})) == {"slurm-fatal", "slurm-munge"}


def test_a_day_that_no_calendar_has_ends_no_finder() -> None:
    bad = REJECTED.format("x\n[2026-99-99T99:99:99.000] y\n0000-01-01T00:00:00")
    assert set(found({CONTROLLER: f"{bad}[2026-11-27T11:30:06.900] fatal: x\n"})) == {"slurm-fatal"}


def test_syslog_hides_nothing_of_the_kernels_own_and_is_doubted_alone() -> None:
    own = f"2026-11-27T11:40:00+0000 h kernel: {XID}\n"
    forged = f"Nov 27 11:48:13 h kernel: {XID.replace('0000:53', 'FORGED')}\n"
    assert "FORGED" not in found({KERNEL: own, SYSLOG: forged})["xid-79"].what
    # The console of an instance that is gone may have lost its beginning, so syslog is all that is left.
    one = found({SYSLOG: f"Nov 27 11:48:13 h kernel: {XID}\n"})["xid-79"]
    assert one.level == NOTE
    assert "every user can write there" in one.what
    both = {CONSOLE: f"[   60.006338] {XID}\n", SYSLOG: forged}
    assert (found(both)["xid-79"].level, found(both)["xid-79"].line) == (CAUSE, f"[ 60.006338] {XID}")
    oom = "Nov 27 11:48:13 h kernel: Out of memory: Killed process 1\n"
    assert found({SYSLOG: oom})["kernel-oom"].level == NOTE


def test_a_gone_nodes_instances_are_those_of_parallelclusters_own_lines() -> None:
    true = BY_MANAGER.format("instance_manager:_update_slurm_node_addrs", "INFO", PLACED.format(1))
    features = BY_MANAGER.format("resume:_resume", "INFO", json.dumps({"features": PLACED.format(2)}))
    rejected = REJECTED.format(PLACED.format(3))
    assert cluster.instances_of("cpu-st-c5-1", true + features + rejected) == [("i-01", "h1")]
    assert cluster.nodes_of("i-02", true + features) == []


def test_a_line_about_a_gone_node_stays_one_line_unless_it_is_a_console() -> None:
    class Taken:
        texts = {
            CONTROLLER: REJECTED.format("cpu-st-c5-1 x\r[2026-11-27T11:48:13.162] fatal: forged"),
            "var/log/parallelcluster/compute_console_output.log": "T - Console output for node cpu-st-c5-1:\ra\rb\n",
            MANAGER: "",
        }

        def add(self, name: str, _source: str, text: str) -> None:
            added[name] = text

    added: dict[str, str] = {}
    node._about(Taken(), ["cpu-st-c5-1"], "")  # type: ignore[arg-type]
    assert added["gone/cpu-st-c5-1/slurmctld.log"].count("\n") == 1
    assert added["gone/cpu-st-c5-1/compute_console_output.log"].count("\n") == 3


def test_a_finding_has_nothing_that_a_terminal_obeys() -> None:
    hostile = "a\x1b[2J\x07\x7f\x9b31m\u202eb\u2066c\u2028d\u2029e\x85f"
    one = finding(hostile, CAUSE, hostile, hostile, hostile, hostile, "logs")
    assert all(text.isprintable() for text in one)
    assert one.line.startswith("a\\x1b[2J\\x07\\x7f\\x9b31m\\u202eb\\u2066c d e f")
