# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Each fault is named by the words with which the programs themselves tell of it.

clustermgtd's and slurm_resume's lines are made as slurm_plugin of aws-parallelcluster-node 3.16.1 makes them:
logging/parallelcluster_clustermgtd_logging.conf and parallelcluster_resume_logging.conf have the forms, clustermgtd.py,
instance_manager.py and fleet_manager.py the messages, common.py print_with_count.
"""

from __future__ import annotations

import ast
import calendar
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose import (
    boot,
    cluster,
    gpu_messages,
    hardware,
    judge,
)
from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose.evidence import (
    CAUSE,
    FAULT,
    NOTE,
    Evidence,
    Finding,
    finding,
)
from ansible_collections.pcluster.postboot.tests import patterns

REPO = Path(__file__).resolve().parents[4]
NOW = float(calendar.timegm((2026, 11, 23, 12, 0, 0)))
LOG = "var/log/pcluster-postboot/pull.log"
REPORT = "var/lib/pcluster-postboot/report.json"
SHA = "0123456789abcdef" * 4


def found(texts: Mapping[str, str], **more: Any) -> dict[str, Finding]:
    """What is found in texts, by kind."""
    evidence = Evidence("n", more.pop("node_type", "compute"), texts, now=NOW, **more)
    return {one.kind: one for one in judge.judge(evidence)}


def stamp(hours: float = 1.0) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S,123", time.gmtime(NOW - hours * 3600))


def clustermgtd(level: str, message: str, hours: float = 1.0, where: str = "clustermgtd:_manage_cluster") -> str:
    return f"{stamp(hours)} - [slurm_plugin.{where}] - {level} - {message}\n"


def listed(*names: str) -> str:
    """As print_with_count of slurm_plugin/common.py."""
    return f"(x{len(names)}) {list(names)}"


# The boot, in the words of roles/pull/files

BEGINS = f"2026-11-23T11:00:01Z pull: site begins: phase boot, mode auto, 0.1.0-{SHA[:12]}, 3.13.5\n"
DONE = "2026-11-23T11:01:01Z pull: 12 components are as they should be, 7 changes, 18 s; deferred: node_exporter\n"
BUNDLE = "s3://my-bucket/postboot/0.1.0-3f9e2c51ab07/pcluster-postboot.tar.gz"
FAULTS = {
    f"{BUNDLE} is not what --sha256 says: its 1200 bytes have the sha256 {SHA}; needed: {'0' * 64}": "bundle-pin",
    f"{BUNDLE} cannot be read: fatal error: An error occurred (403) when calling the HeadObject operation: Forbidden": (
        "bundle-forbidden"
    ),
    f"{BUNDLE} cannot be read: fatal error: An error occurred (404) when calling the HeadObject operation: Not Found": (
        "bundle-gone"
    ),
    f'{BUNDLE} cannot be read: fatal error: Could not connect to the endpoint URL: "https://b.s3.amazonaws.com"': (
        "bundle-unreachable"
    ),
    f"{BUNDLE} could not be read within the budget of 5 s; 3 KB were there": "bundle-unreachable",
    "the budget of 15 s is used up while docker was running, for 9 s; not done yet: docker; jobs would find the "
    "node unfinished; needed: a longer DevSettings/Timeouts/ComputeNodeBootstrapTimeout": "boot-budget",
    "the bundle cannot be unpacked: tar: write error: No space left on device (3 MB are free in /opt)": "boot-disk",
    "no Python fits (/usr/bin/python3 is 3.9); needed: one of 3.11 3.12, in the image or named by --python": (
        "boot-python"
    ),
    "common_mode is gpu, and this node has no NVIDIA GPU": "boot-mode",
    "nccl_versoin is no variable of role nccl: did you mean nccl_version?": "boot-variables",
    "enroot failed: dpkg ended with 1: it said nothing": "component-enroot",
    f"enroot failed: no source delivered sha256 {SHA} (pinned by enroot_deb_sha256): mirror: 5 bytes came with sha256 "
    f"{SHA[::-1]}": "pin-enroot",
    "line 312 ended with 1: some command": "boot-failed",
}


@pytest.mark.parametrize(("line", "kind"), FAULTS.items(), ids=FAULTS.values())
def test_a_failed_boot_is_named_in_every_log_that_has_its_line(line: str, kind: str) -> None:
    told = f"pcluster-postboot: {line}; see /var/log/pcluster-postboot/pull.log\n"
    # custom_action_executor.py of aws-parallelcluster-cookbook writes a compute node's error so.
    error = {"detail": {"action": "OnNodeConfigured", "error": {"exit_code": 1, "stderr": told}}}
    for name, text in {
        LOG: f"{BEGINS}2026-11-23T11:02:00Z pull: failed: {line}\n",
        "var/log/cloud-init-output.log": f"{told}Failed to execute OnNodeConfigured script 1, return code: 1.\n",
        "var/log/cfn-init.log": told,
        "i-0123/console.txt": f"[   93.1] cloud-init[801]: {told}",
        "i-0123/cloudwatch/ip-10-0-0-5.i-0123.cloud-init-output": told,
        "cloudwatch/ip-10-0-0-5.i-0123.pcluster-postboot__var_log_pcluster-postboot_pull.log": (
            f"2026-11-23T11:02:00Z bootstrap.sh[812]: failed: {line}\n"
        ),
        "var/log/parallelcluster/bootstrap_error_msg": json.dumps(error),
    }.items():
        one = found({name: text})[kind]
        assert (one.level, one.file, one.page) == (CAUSE, name, "node-does-not-come-up")
        assert one.line.startswith(" ".join(line.split())[:250])
        assert one.todo


def test_a_head_node_whose_script_failed_has_the_page_of_failed_creations() -> None:
    told = "pcluster-postboot: enroot failed: x; see /var/log/pcluster-postboot/pull.log\n"
    executor = "fetch_and_run - Failed to execute OnNodeConfigured script 1 s3://b/x.sh, return code: 1.\n"
    for text, page in ((told + executor, "create-failed"), (told, "node-does-not-come-up")):
        assert found({"var/log/cfn-init.log": text}, node_type="head")["component-enroot"].page == page


def test_a_run_that_went_well_after_a_failed_one_leaves_no_finding() -> None:
    failed = "2026-11-23T10:00:00Z bootstrap.sh[812]: failed: another bootstrap.sh is at work\n"
    assert found({LOG: failed + BEGINS + DONE}) == {}
    assert "boot-failed" in found({LOG: BEGINS + DONE + failed})
    told = "pcluster-postboot: enroot failed: x; see /var/log/pcluster-postboot/pull.log\n"
    assert (
        found({"var/log/cfn-init.log": told + "pcluster-postboot: 12 components are as they should be, 0 changes\n"})
        == {}
    )


def test_a_killed_run_is_one_without_an_end() -> None:
    progress = json.dumps({"component": "docker", "ended": False})
    texts = {LOG: DONE + BEGINS, "run/pcluster-postboot/progress.json": progress}
    one = found(texts)["killed-run"]
    assert (one.level, one.what, one.file) == (CAUSE, "the last run was killed while docker was running", LOG)
    assert found(texts, running=True) == {}
    assert found({LOG: BEGINS + DONE}) == {}
    asked = BEGINS + "2026-11-23T11:00:09Z pull: asked to end while docker was running\n"
    assert found({LOG: asked}) == {}


def test_a_lock_of_a_dead_run_is_named() -> None:
    lock = json.dumps({"run_id": "x", "mode": "push", "user": "me", "controller": "laptop", "pid": 12})
    texts = {"run/pcluster-postboot/lock": lock}
    assert "push from me@laptop (pid 12)" in found(texts, running=False)["killed-run"].line
    assert found(texts, running=None) == {}


def test_the_report_names_components_by_what_their_failure_means() -> None:
    entries = [
        {"name": "node_exporter", "status": "failed", "why": f"no source delivered sha256 {SHA}: x came with sha256 1"},
        {"name": "enroot", "status": "failed", "why": "dpkg ended with 1"},
        {"name": "docker", "status": "changed"},
        {"name": "nccl", "status": "deferred", "why": "waits for the head node"},
    ]
    report = {"components": entries, "stopped": {"component": "enroot", "message": "dpkg ended with 1"}}
    told = found({REPORT: json.dumps(report)})
    assert [(kind, one.level) for kind, one in told.items()] == [
        ("component-enroot", CAUSE),
        ("pin-node_exporter", FAULT),
    ]
    told = found({REPORT: json.dumps({**report, "stopped": None})})
    assert (told["component-enroot"].level, told["deferred"].level) == (FAULT, NOTE)
    # A run whose time was up has stopped at a component that has not failed.
    line = "the budget of 15 s is used up while docker was running"
    cut = {"components": [], "stopped": {"component": "docker", "message": line}}
    assert found({REPORT: json.dumps(cut)})["boot-budget"].line == line


def test_scripts_and_recipes_of_others_are_named() -> None:
    # aws-parallelcluster 3.16.1, resources/compute_node/user_data.sh; custom_action_executor.py of the cookbook.
    output = "var/log/cloud-init-output.log"
    other = "Failed to execute OnNodeConfigured script 2 s3://my-bucket/mine.sh, return code: 3.\n"
    assert found({output: other})["custom-action"].what.endswith("ended with 3")
    assert found({output: "Timed-out when bootstrapping instance\n"})["boot-timeout"].level == CAUSE
    baked = (
        "Bootstrap failed with error: This AMI was created with ParallelCluster 3.13.0, but is trying to be used with "
        "ParallelCluster 3.16.1.\n"
    )
    assert found({output: baked})["recipe"].level == CAUSE
    fatal = "[2026-11-23T11:00:00+00:00] FATAL: Mixlib::ShellOut::ShellCommandFailed: mount failed\n"
    assert "ShellCommandFailed" in found({"var/log/chef-client.log": fatal})["recipe"].line


# The cluster

MANAGER = "var/log/parallelcluster/clustermgtd"
FAILURE = clustermgtd(
    "WARNING",
    f"Found the following bootstrap failure nodes: {listed('cpu-st-c5-1(10.0.0.5)', 'cpu-dy-c5-2(10.0.0.6)')}",
    where="clustermgtd:_handle_bootstrap_failure_nodes",
)


def test_protected_mode_names_the_nodes_whose_boots_failed() -> None:
    status = json.dumps({"lastStatusUpdatedTime": "2026-11-23 11:00:00 UTC", "status": "PROTECTED"})
    told = found({"commands/fleet-status.txt": status, MANAGER: FAILURE * 9}, node_type="head")
    one = told["protected"]
    assert (one.level, one.file, one.page) == (CAUSE, MANAGER, "protected-mode")
    assert one.what == "the cluster is in protected mode: the boots of cpu-dy-c5-2,cpu-st-c5-1 have failed"
    assert "bootstrap failure nodes" in one.line
    assert "update-compute-fleet --status START_REQUESTED" in one.todo
    assert told["bootstrap-failures"].what == "nodes failed to boot: cpu-st-c5-1 (9), cpu-dy-c5-2 (9)"
    other = FAILURE.replace("cpu-dy-c5-2", "burst-dy-c5-2")
    taken = clustermgtd("INFO", "Placing bootstrap failure partitions to INACTIVE: ['cpu']")
    told = found({"commands/fleet-status.txt": status, MANAGER: other + taken})
    assert told["protected"].what == "the cluster is in protected mode: the boots of cpu-st-c5-1 have failed"
    # Without an answer of DynamoDB the log says in which state the fleet is.
    state = clustermgtd("INFO", "Current compute fleet status: PROTECTED")
    assert found({MANAGER: FAILURE + state})["protected"].line == " ".join(FAILURE.split())
    running = clustermgtd("INFO", "Current compute fleet status: RUNNING")
    assert "protected" not in found({MANAGER: state + running})
    assert "protected" not in found({"commands/fleet-status.txt": status.replace("PROTECTED", "RUNNING")})


def test_old_lines_are_no_findings() -> None:
    assert found({MANAGER: FAILURE.replace(stamp(), stamp(hours=60))}) == {}
    assert "bootstrap-failures" in found({MANAGER: FAILURE.replace(stamp(), stamp(hours=60))}, hours=100.0)


def test_a_silent_clustermgtd_is_told_by_its_heartbeat() -> None:
    # common.py of slurm_plugin: TIMESTAMP_FORMAT
    name = "opt/slurm/etc/pcluster/.slurm_plugin/clustermgtd_heartbeat"
    error = clustermgtd("ERROR", "Unable to get partition/node info from slurm, no other action can be performed.")
    told = found({name: "2026-11-23 11:30:00.613338+0000\n", MANAGER: error})["clustermgtd"]
    assert (told.what, told.file) == ("clustermgtd was silent for 30 min", MANAGER)
    assert found({name: "2026-11-23 13:59:30.613338+0200\n"}) == {}


@pytest.mark.parametrize(
    ("code", "todo"),
    [("InsufficientInstanceCapacity", "capacity"), ("UnauthorizedOperation", "role"), ("VcpuLimitExceeded", "quota")],
)
def test_launches_that_ec2_refuses_are_one_finding_for_each_reason(code: str, todo: str) -> None:
    message = (
        f"Encountered exception when launching instances for nodes {listed('gpu-dy-p5-1', 'gpu-dy-p5-2')}: An error "
        f"occurred ({code}) when calling the RunInstances operation (reached max retries: 1): words"
    )
    # The resume program's lines have its process, too.
    line = f"{stamp()} - 1234 - [slurm_plugin.instance_manager:_launch_instances] - ERROR - {message}\n"
    one = found({"var/log/parallelcluster/slurm_resume.log": line * 2})[f"launch-{code}"]
    assert one.what == f"EC2 refuses gpu-dy-p5-[1-2]: {code}"
    assert todo in one.todo


def test_the_reasons_of_slurm_are_passed_on_but_for_ordinary_ones() -> None:
    lines = [
        "gres/gpu count reported lower than configured (7 < 8)|slurm|2026-11-23T11:00:00|drained|gpu-st-p5-1",
        "Not responding|slurm|2026-11-23T11:00:00|down*|cpu-st-c5-[1-3]",
        "(Code:InsufficientInstanceCapacity)Failure when resuming nodes|root|2026-11-23T11:00:00|down#|gpu-dy-p5-1",
        "a | in the reason|me|2026-11-23T11:00:00|drained|cpu-st-c5-9",
    ]
    text = "".join(f"{' ' * (500 - len(line.partition('|')[0]))}{line}\n" for line in lines)
    told = found({"commands/sinfo-reasons.txt": text})
    assert told["slurm-gres-gpu-st-p5-1"].page == "lost-gpu"
    assert told["slurm-silent-cpu-st-c5-[1-3]"].line.startswith("cpu-st-c5-[1-3] down*: Not responding [slurm ")
    assert told["slurm-reason-cpu-st-c5-9"].line.startswith("cpu-st-c5-9 drained: a | in the reason")
    assert len(told) == 3


def reason_lines(*lines: str) -> str:
    """As sinfo prints the format of sources.REASONS."""
    return "".join(f"{' ' * (500 - len(line.partition('|')[0]))}{line}\n" for line in lines)


@pytest.mark.parametrize(
    ("reason", "state", "page", "todo"),
    [
        # SchedMD/slurm 24.11.5: power_save.c, proc_req.c, controller.c, and set_node_reason(), which appends.
        ("ResumeTimeout reached", "down~", "node-does-not-come-up", "if a job asks"),
        ("node_health: x is gone : ResumeTimeout reached", "down~", "node-does-not-come-up", "ComputeNodeBootstrap"),
        ("Reboot ASAP : reboot issued", "reboot^", "node-does-not-come-up", "takes the node back after its reboot"),
        ("kernel : reboot issued", "reboot^", "node-does-not-come-up", "takes the node back after its reboot"),
        # aws-parallelcluster-node 3.16.1: clustermgtd.py, slurm_commands.py
        ("inactive partition", "down~", "protected-mode", "--status START_REQUESTED"),
        ("Scheduler health check failed", "drained%", "node-does-not-come-up", "clustermgtd has powered the node down"),
    ],
)
def test_reasons_that_pass_without_help_are_notes(reason: str, state: str, page: str, todo: str) -> None:
    text = reason_lines(f"{reason}|root|2026-11-23T11:00:00|{state}|burst-dy-c5-[3-4]")
    (one,) = found({"commands/sinfo-reasons.txt": text}).values()
    assert (one.level, one.page) == (NOTE, page)
    assert todo in one.todo
    assert "state=" not in one.todo


@pytest.mark.parametrize(
    ("state", "todo"),
    [
        ("drained", "scontrol update nodename=burst-dy-c5-3 state=resume"),
        ("down*", "scontrol update nodename=burst-dy-c5-3 state=resume"),
        ("drained~", "scontrol update nodename=burst-dy-c5-3 state=power_down_force"),
        ("down~", "scontrol update nodename=burst-dy-c5-3 state=power_down_force"),
        ("drained%", "scontrol update nodename=burst-dy-c5-3 state=power_down_force"),
    ],
)
def test_a_node_that_is_off_is_never_resumed(state: str, todo: str) -> None:
    """Slurm 24.11.5 then waits for its slurmd (_require_node_reg() of node_mgr.c), and starts no job there."""
    for reason in ("a test of somebody", "user : reboot timed out"):
        text = reason_lines(f"{reason}|root|2026-11-23T11:00:00|{state}|burst-dy-c5-3")
        (one,) = found({"commands/sinfo-reasons.txt": text}).values()
        assert (one.level, one.todo) == (FAULT, f"correct what the reason says, then {todo}")


def test_a_reason_of_several_lines_is_one() -> None:
    text = reason_lines(
        "bad RAM\nsee ticket 7|root|2026-11-23T11:00:00|drained|cpu-st-c5-9", "x|root|t|down|cpu-st-c5-8"
    )
    told = found({"commands/sinfo-reasons.txt": text})
    assert told["slurm-reason-cpu-st-c5-9"].what == "Slurm has cpu-st-c5-9 drained: bad RAM see ticket 7"
    assert told["slurm-reason-cpu-st-c5-8"].what == "Slurm has cpu-st-c5-8 down: x"


def test_powered_down_nodes_that_slurm_never_starts_are_found() -> None:
    # A cluster of the sandbox on which a test had resumed a drained node that was powered down.
    shown = (REPO / "tests/unit/fixtures/slurm/nodes-24.11.5.txt").read_text()
    shown = shown.replace("State=IDLE+CLOUD+POWERED_DOWN ", "State=IDLE+CLOUD+POWERED_DOWN+NOT_RESPONDING ", 1)
    # `scontrol show node` without --oneliner
    folded = re.sub(r" (?=(?:CPUAlloc|State|Partitions|BootTime|CfgTRES)=)", "\n   ", shown)
    for text in (shown, folded):
        (one,) = found({"commands/scontrol-nodes.txt": text}).values()
        assert (one.kind, one.level, one.page) == ("stranded-nodes", CAUSE, "node-does-not-come-up")
        assert "Slurm starts no job on burst-dy-c5-[2,4]: " in one.what
        assert one.todo == "scontrol update nodename=burst-dy-c5-[2,4] state=power_down_force on the head node"
        assert found({"commands/scontrol-nodes.txt": text.replace("+NOT_RESPONDING", "")}) == {}


def test_daemons_that_do_not_run_are_named() -> None:
    text = "clustermgtd                      FATAL     Exited too quickly (process log may have details)\n"
    assert found({"commands/supervisord-status.txt": text})["daemon-clustermgtd"].level == CAUSE
    well = "clustermgtd                      RUNNING   pid 1234, uptime 1:00:00\n"
    assert found({"commands/supervisord-status.txt": well}) == {}


def test_pcluster_diag_is_passed_on() -> None:
    results = [
        {
            "check_id": "SlurmAccounting",
            "check_description": "x",
            "status": "FAILURE",
            "errors": [{"code": "E1", "message": "m"}],
        },
        {"check_id": "Other", "check_description": "x", "status": "PASSED", "errors": [], "warnings": []},
    ]
    told = found({"commands/pcluster-diag.txt": json.dumps({"context": {}, "results": results})})
    assert [(kind, one.line) for kind, one in told.items()] == [("diag-SlurmAccounting", "E1: m")]


def test_the_instances_that_a_node_was_are_in_the_log() -> None:
    # fleet_manager.py: EC2Instance.__repr__, within the text of a list of tuples
    pairs = [
        f"('cpu-st-c5-1', EC2Instance(id='i-0{n}', private_ip='10.0.0.{n}', hostname='ip-10-0-0-{n}', "
        f"all_private_ips={{'10.0.0.{n}'}}))"
        for n in "12"
    ]
    text = "".join(clustermgtd("INFO", f"Nodes are now configured with instances {listed(one)}") for one in pairs)
    assert cluster.instances_of("cpu-st-c5-1", text) == [("i-01", "ip-10-0-0-1"), ("i-02", "ip-10-0-0-2")]
    assert cluster.instances_of("i-02", text) == [("i-02", "ip-10-0-0-2")]
    assert cluster.instances_of("i-09", text) == [("i-09", "")]
    assert cluster.nodes_of("i-02", text) == ["cpu-st-c5-1"]


# The hardware

LIST = "commands/nvidia-smi-list.txt"
GPUS = "".join(f"GPU {n}: NVIDIA H100 80GB HBM3 (UUID: GPU-0a7a51b0-0000-4000-8000-00000000000{n})\n" for n in range(7))


def test_a_lost_gpu_is_told_by_pci_or_by_slurm() -> None:
    one = found({LIST: GPUS}, facts={"gpus": {"count": 8}})["lost-gpu"]
    assert (one.level, one.what) == (CAUSE, "1 of 8 GPUs (as PCI has them) are lost")
    node = "NodeName=gpu-st-p5-1 Arch=x86_64\n   Gres=gpu:h100:8(S:0-1)\n"
    one = found({LIST: GPUS, "commands/scontrol-node.txt": node}, facts={"gpus": {"count": 7}})["lost-gpu"]
    assert one.what == "1 of 8 GPUs (as Slurm has them configured) are lost"
    assert found({LIST: GPUS, "commands/scontrol-node.txt": node.replace(":8(", ":7(")}) == {}
    assert found({}, facts={"gpus": {"count": 8}}) == {}  # without nvidia-smi nobody can say
    lost = "Unable to determine the device handle for GPU0000:59:00.0: Unknown Error\n"
    told = found({LIST: lost + GPUS}, facts={"gpus": {"count": 8}})
    assert set(told) == {"lost-gpu", "gpu-error"}
    assert told["lost-gpu"].line == lost.strip()


def test_a_driver_that_hangs_or_is_gone_is_named() -> None:
    hangs = "'/usr/bin/nvidia-smi -L' did not end within 20 s"
    assert found({LIST: hangs})["gpu-hangs"].page == "lost-gpu"
    gone = (
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
        "NVIDIA driver is installed and running.\n"
    )
    assert "no-driver" in found({LIST: gone}, facts={"gpus": {"count": 8}})
    assert found({LIST: gone}) == {}  # a CPU node


def test_xids_have_the_gravity_of_the_alerts() -> None:
    line = "2026-11-23T11:00:00+0000 ip-10-0-0-5 kernel: NVRM: Xid (PCI:0000:53:00): {}, pid=1234, name=python, words\n"
    told = found({"commands/kernel.txt": "".join(map(line.format, (79, 63, 31, 79)))})
    assert [(kind, one.level) for kind, one in told.items()] == [
        ("xid-79", CAUSE),
        ("xid-63", NOTE),
        ("xid-31", NOTE),
    ]
    rules = yaml.safe_load((REPO / "roles/prometheus/files/rules/gpu.yml").read_text())
    (alert,) = [one for group in rules["groups"] for one in group["rules"] if one.get("alert") == "GpuXidCritical"]
    numbers = re.search(r'xid=~"([\d|]+)"', alert["expr"])
    assert numbers
    assert {int(one) for one in numbers[1].split("|")} == set(gpu_messages.XIDS)


XID = "NVRM: Xid (PCI:0000:53:00): 79, pid=1234, name=python, GPU has fallen off the bus."
CRASH = f"python[1234]: segfault at 0 ip 0000000000401136 sp 00007ffd error 4 in {XID}[401000+1000]"


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("commands/kernel.txt", "2026-11-23T11:00:00+0000 ip-10-0-0-5 kernel: {}"),
        ("var/log/syslog", "2026-11-23T11:00:00.123456+00:00 ip-10-0-0-5 kernel: [ 8659.726062] {}"),
        ("var/log/messages", "Nov  3 11:00:00 ip-10-0-0-5 kernel: {}"),
        ("console.txt", "[   60.006338] {}"),
        ("console.txt", "[   60.006338][T1234] {}"),
    ],
)
def test_an_xid_is_the_drivers_own_word(log: str, line: str) -> None:
    """A user chooses the name of a file, which the kernel prints where that program crashes."""
    assert set(found({log: f"{line.format(XID)}\n"})) == {"xid-79"}
    assert found({log: f"{line.format(CRASH)}\n"}) == {}
    assert found({log: f"{line.format('in kernel: ' + XID)}\n"}) == {}


def test_efa_devices_that_nobody_can_use_are_named() -> None:
    assert found({}, facts={"efa": {"pci_count": 32, "count": 31}})["efa"].what == "1 of 32 EFA devices are lost"
    told = found(
        {"commands/efa.txt": "fi_getinfo: -61 (No data available)\n"}, facts={"efa": {"pci_count": 1, "count": 1}}
    )
    assert set(told) == {"libfabric"}


# Storage and services


def test_mounts_that_hang_are_missing_or_full_are_named() -> None:
    rooms = {
        "/fsx": {"dead": True, "type": "lustre", "seconds": 6.0},
        "/home": {"dead": False, "error": "Stale file handle", "type": "nfs4"},
        "/": {
            "dead": False,
            "type": "ext4",
            "total": 50_000_000_000,
            "free": 100_000_000,
            "files": 10,
            "files_free": 9,
        },
        "/data": {"dead": False, "type": "lustre", "total": 100, "free": 50, "files": 1000, "files_free": 20},
        "/ok": {"dead": False, "type": "xfs", "total": 100, "free": 50, "files": 0, "files_free": 0},
    }
    facts = {
        "mounts": {"missing": ["/fsx", "/scratch2"], "wanted": [{"path": "/scratch2", "type": "nfs", "source": "x:/y"}]}
    }
    told = found({}, rooms=rooms, facts=facts)
    assert [(kind, one.level, one.page) for kind, one in sorted(told.items())] == [
        ("broken-mount-/home", CAUSE, "hanging-job"),
        ("full-/", CAUSE, "logs"),
        ("full-/data", FAULT, "full-fsx"),
        ("hung-mount-/fsx", CAUSE, "hanging-job"),
        ("no-mount-/scratch2", CAUSE, "hanging-job"),
    ]
    assert told["full-/"].line == "0.1 of 50.0 GB are free in /"


@pytest.mark.parametrize(
    ("path", "free", "level", "todo"),
    [
        ("/dev/shm", 0, CAUSE, "NCCL and containers need room there: remove files of jobs that have ended (du -xa"),
        ("/run", 40, FAULT, "NCCL and containers need room there: remove files of jobs that have ended (du -xa /run)"),
        ("/tmp", 0, CAUSE, "it takes the node's memory: remove files of jobs that have ended (du -xa /tmp)"),
    ],
)
def test_memory_that_is_full_is_named(path: str, free: int, level: str, todo: str) -> None:
    room = {"dead": False, "type": "tmpfs", "total": 1000, "free": free, "files": 10, "files_free": 9}
    one = found({}, rooms={path: room})[f"full-{path}"]
    assert (one.level, one.page) == (level, "hanging-job")
    assert one.todo.startswith(todo)


KERNEL = {
    "kernel: nfs: server 10.0.0.10 not responding, still trying": "kernel-nfs",
    "kernel: LustreError: 167-0: abc-MDT0000-mdc-ffff: This client was evicted by abc-MDT0000": ("kernel-lustre"),
    "kernel: INFO: task python:1234 blocked for more than 122 seconds.": "kernel-hung-task",
    "kernel: Out of memory: Killed process 1234 (python) total-vm:1kB": "kernel-oom",
    "kernel: EXT4-fs error (device nvme0n1p1): ext4_find_entry:1455": "kernel-disk",
    "kernel: I/O error, dev nvme1n1, sector 1234 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 2": "kernel-disk",
    "kernel: XFS (nvme1n1): Corruption of in-memory data (0x8) detected at x.": "kernel-disk",
    "kernel: Lustre: abc-OST0000-osc-ffff: Connection to abc-OST0000 (at 10.0.0.9@tcp) was lost; in progress": (
        "kernel-lustre"
    ),
}


@pytest.mark.parametrize(("line", "kind"), KERNEL.items(), ids=KERNEL)
def test_words_of_the_kernel_are_named(line: str, kind: str) -> None:
    text = f"2026-11-23T11:00:00+0000 ip-10-0-0-5 {line}\n"
    assert set(found({"commands/kernel.txt": text})) == {kind}
    assert found({"commands/kernel.txt": text}, hours=0.5) == {}


def unit(**more: str) -> str:
    # systemctl show of systemd 252
    known = {
        "Type": "simple", "Result": "success", "NRestarts": "0", "ExecMainStatus": "0", "Id": "node_exporter.service",
        "LoadState": "loaded", "ActiveState": "active", "SubState": "running", "UnitFileState": "enabled",
        "ConditionResult": "yes", "TriggeredBy": "", "StateChangeTimestamp": "Mon 2026-11-23 11:00:00 UTC",
    }  # fmt: skip
    return "".join(f"{name}={value}\n" for name, value in {**known, **more}.items())


def test_the_run_of_a_boot_ends_and_may_fail() -> None:
    ended = {"Id": "pcluster-postboot.service", "Type": "exec", "ActiveState": "inactive", "SubState": "dead"}
    assert found({"commands/units.txt": unit(**ended)}) == {}
    failed = {**ended, "ActiveState": "failed", "SubState": "failed", "Result": "exit-code"}
    assert set(found({"commands/units.txt": unit(**failed)})) == {"unit-pcluster-postboot.service"}


def test_a_dead_exporter_is_one_that_is_enabled_and_does_not_run() -> None:
    dead = {"ActiveState": "inactive", "SubState": "dead"}
    texts = {"commands/units.txt": "\n".join([unit(Id="slurmd.service"), unit(**dead)])}
    told = found(texts, units=("node_exporter",))
    one = told["unit-node_exporter.service"]
    assert (one.level, one.what) == (FAULT, "node_exporter.service is enabled and does not run")
    assert "metrics are missing" in one.todo
    assert len(told) == 1
    for reason in (
        {"UnitFileState": "disabled"},
        {"Type": "oneshot"},
        {"TriggeredBy": "x.socket"},
        {"ConditionResult": "no"},
    ):
        assert found({"commands/units.txt": unit(**dead, **reason)}) == {}
    assert found({"commands/units.txt": unit(Id="slurmd.service", **dead)})["unit-slurmd.service"].level == CAUSE


def test_a_failed_unit_has_the_last_line_of_its_journal() -> None:
    texts = {
        "commands/units.txt": unit(ActiveState="failed", SubState="failed", Result="exit-code"),
        "commands/journal-node_exporter.service.txt": "-- Journal begins --\nx[1]: bind: address already in use\n",
        "commands/failed-units.txt": "node_exporter.service loaded failed failed N\n"
        "mine.service loaded failed failed M\n",
    }
    told = found(texts)
    assert told["unit-node_exporter.service"].line.endswith("address already in use")
    assert told["unit-node_exporter.service"].file == "commands/journal-node_exporter.service.txt"
    assert told["unit-mine.service"].level == NOTE


# The judge


def test_a_finder_that_fails_takes_no_other_with_it() -> None:
    def broken(_evidence: Evidence) -> list[Finding]:
        raise KeyError("x")

    def good(_evidence: Evidence) -> list[Finding]:
        return [finding("a", NOTE, "w", "l", "f", "t", "p"), finding("a", CAUSE, "w", "l", "f", "t", "p")]

    told = judge.judge(Evidence("n", "compute", {}), (broken, good))
    assert [(one.kind, one.level) for one in told] == [("a", CAUSE), ("finder-broken", NOTE)]


def test_nothing_stands_out_where_nothing_is_wrong() -> None:
    assert found({LOG: BEGINS + DONE, "commands/units.txt": unit()}) == {}


def test_texts_that_are_none_of_the_expected_end_no_finder() -> None:
    names = [
        LOG,
        REPORT,
        MANAGER,
        LIST,
        "commands/units.txt",
        "commands/sinfo-reasons.txt",
        "commands/pcluster-diag.txt",
    ]
    for text in ("", "\0\n", "[]", "null", '{"components": 3, "results": {}, "stopped": "x"}', "|" * 50, "x\n" * 3):
        told = found(dict.fromkeys(names, text))
        assert not any(kind.startswith("finder-") for kind in told), (text, told)


def test_every_page_is_one_of_the_runbooks() -> None:
    pages = {path.stem for path in (REPO / "docs/runbooks").glob("*.md")}
    named: set[str] = set()
    for folder in ("plugins/module_utils/_diagnose", "plugins/plugin_utils/_diagnose"):
        for path in (REPO / folder).glob("*.py"):
            tree = ast.parse(path.read_text())
            constants = {}
            for node in ast.walk(tree):
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], (ast.Name, ast.Tuple)):
                    targets = getattr(node.targets[0], "elts", [node.targets[0]])
                    values = getattr(node.value, "elts", [node.value])
                    constants.update({getattr(key, "id", ""): value for key, value in zip(targets, values)})
            calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
            last = [
                call.args[-1] for call in calls if getattr(call.func, "id", "") == "finding" and len(call.args) == 7
            ]
            last = [constants.get(getattr(arg, "id", ""), arg) for arg in last]
            named |= {str(arg.value) for arg in last if isinstance(arg, ast.Constant)}
    assert {"protected-mode", "logs", "lost-gpu", "hanging-job"} <= named
    assert named | {boot.PAGE, boot.HEAD_PAGE} <= pages


def test_a_time_that_is_none_hides_no_finding() -> None:
    """As logger(1) writes it into a log without a prefix."""
    fatal = "fatal: mkdir(/var/spool/slurmd): No space left on device"
    text = f"[2026-99-99T99:99:99.000] x\n[2026-11-23T11:00:00.000] {fatal}\n[0000-00-00T00:00:00.000] y\n"
    assert list(found({"var/log/slurmd.log": text})) == ["slurm-fatal"]


def test_many_devices_of_one_xid_cost_no_more_each() -> None:
    """As logger -t kernel writes them into syslog."""

    def work(size: int) -> float:
        line = "2026-11-23T11:00:00 ip-10-0-0-1 kernel: NVRM: Xid (PCI:{}): 79, x\n"
        text = "".join(line.format(count) for count in range(size // 70))
        evidence = Evidence("n", "compute", {"var/log/syslog": text}, now=NOW)
        return patterns.seconds(lambda _text: list(hardware.driver(evidence)), "", 3)

    assert work(1_600_000) < 20 * work(200_000)
