# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""EFA: installed where a device is, from what AWS has signed; every device answers, and no job is disturbed."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from testinfra.host import Host

from .helpers import Nodes, On, Play, ok, said, until

NODE = "gpu-st-p5-1"
NOTE = "/opt/amazon/efa_installed_packages"
RECORD = "/var/lib/pcluster-postboot/efa-installer.json"
LOG = "/var/log/pcluster-postboot/efa-installer.log"
ASK = "/opt/amazon/efa/bin/fi_info -p efa -t FI_EP_RDM"
TAGS = ("--tags", "efa", "--limit", NODE)
UPGRADE = ("-e", "efa_upgrade=true")

# Kills the Ansible module, the installer and its package manager, at a moment after the installer has begun.
KILL = f"""until grep -q 'Installing EFA packages' {LOG}; do sleep 0.02; done; sleep %s
kill -9 $(sed 's/pid //' /run/pcluster-postboot/packages.lock)
for name in apt-get dpkg efa_installer.s; do pkill -9 -x $name; done; true"""


@pytest.fixture
def older(gpu: Host, play: Play) -> Iterator[Host]:
    """The node as an AMI with an older EFA leaves it, put back afterwards."""
    gpu.check_output(f"sed -i s/1.50.0/1.49.0/ {NOTE} && rm -f {RECORD} && apt-get remove -y libnccl-ofi && : > {LOG}")
    yield gpu
    gpu.check_output("rm -f /run/sandbox-efa-busy")
    # A test that has not finished its upgrade: the node claims the older version again, for the role to install anew.
    if not gpu.file(RECORD).exists or json.loads(gpu.file(RECORD).content_string)["reboot"]:
        gpu.check_output(f"sed -i s/1.50.0/1.49.0/ {NOTE}")
    ok(play(*TAGS, *UPGRADE))
    assert gpu.package("libnccl-ofi").is_installed


def domains(host: Host) -> set[str]:
    return {line.split()[1] for line in host.check_output(ASK).splitlines() if line.strip().startswith("domain:")}


def test_every_device_answers(gpu: Host, nodes: Nodes) -> None:
    assert len(domains(gpu)) == nodes[NODE]["efa"]
    assert gpu.file(NOTE).content_string.splitlines()[0] == "# EFA installer version: 1.50.0"


def test_users_find_it(gpu: Host) -> None:
    assert gpu.check_output("su - alice -c 'command -v fi_info mpirun'").split() == [
        "/opt/amazon/efa/bin/fi_info",
        "/opt/amazon/openmpi/bin/mpirun",
    ]


def test_nodes_without_a_device_have_none(on: On, nodes: Nodes) -> None:
    for name, node in nodes.items():
        if not node.get("efa") and node["type"] != "HeadNode":
            assert not on(name).file("/opt/amazon/efa").exists, name


def test_heads_of_both_systems_have_what_programs_are_built_against(on: On, head: str) -> None:
    """The sandbox's variables ask for EFA there, as ParallelCluster's AMIs have it; fi_info finds no device (61)."""
    assert on(head).file("/opt/amazon/efa/include/rdma/fabric.h").exists
    assert "libfabric.so.1 " in on(head).check_output("ldconfig -p")
    assert on(head).run(ASK).rc == 61


def test_a_second_run_changes_nothing_and_says_what_is_there(play: Play) -> None:
    done = ok(play(*TAGS))
    assert "1 node, 0 changed, 0 failed" in done.stdout
    assert "EFA 1.50.0, installed by this collection" in done.stdout
    assert "32 EFA devices" in done.stdout


@pytest.mark.long
def test_what_the_ami_brought_stays_until_it_is_to_be_replaced(older: Host, play: Play) -> None:
    done = ok(play(*TAGS))
    assert "1 node, 0 changed" in done.stdout
    assert "EFA 1.49.0, the AMI's own (efa_upgrade brings 1.50.0)" in done.stdout
    assert "32 EFA devices" in done.stdout
    checked = play("--check", *TAGS, *UPGRADE)
    assert "would change" in checked.stdout
    assert "1.49.0" in older.file(NOTE).content_string
    done = ok(play(*TAGS, *UPGRADE))
    assert "EFA 1.50.0, installed by this collection" in done.stdout
    assert older.package("libnccl-ofi").is_installed


@pytest.mark.long
def test_it_is_fetched_beside_other_components(older: Host, play: Play) -> None:
    done = ok(play("--tags", "efa,node_exporter", "--limit", NODE, *UPGRADE))
    started, waited = (
        done.stdout.find(f"[pcluster.postboot.efa : {task}]")
        for task in ("download | Start the download", "install | Wait for the download that was started earlier")
    )
    assert 0 < started < done.stdout.find("[pcluster.postboot.node_exporter : ")
    assert started < waited


@pytest.mark.long
def test_nothing_is_installed_while_a_job_runs(older: Host, on: On, play: Play) -> None:
    head = on("head")
    job = head.check_output(f"su - alice -c 'sbatch --parsable --partition gpu -w {NODE} --wrap \"sleep 600\"'")
    try:
        until(lambda: head.check_output(f"/opt/slurm/bin/squeue -h -j {job} -o %T") == "RUNNING", 60, "the job runs")
        done = ok(play(*TAGS, *UPGRADE))
        assert f"EFA 1.50.0 is not installed now: jobs run here ({job})" in said(done)
        assert "1 node, 0 changed, 0 failed" in done.stdout
        assert "1.49.0" in older.file(NOTE).content_string
    finally:
        head.check_output(f"/opt/slurm/bin/scancel {job}")
        until(lambda: not head.check_output(f"/opt/slurm/bin/squeue -h -w {NODE}"), 60, "the job ends")


@pytest.mark.long
def test_a_killed_installer_is_finished_by_the_next_run(older: Host, play: Play, command: Any) -> None:
    seconds = random.uniform(0, 0.7)
    print(f"killed {seconds:.2f} s after it began")
    older.check_output("apt-get remove -y libfabric1-aws openmpi40-aws openmpi50-aws efa")
    line = command("ansible-playbook", "pcluster.postboot.site", *TAGS, *UPGRADE)
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        older.check_output(KILL % seconds)
        assert run.wait(timeout=200) != 0
    ok(play(*TAGS))
    assert older.check_output("dpkg --audit") == ""
    assert len(domains(older)) == 32
    assert older.package("openmpi50-aws").is_installed


@pytest.mark.long
def test_a_kernel_module_that_stays_loaded_is_reported(older: Host, play: Play) -> None:
    older.check_output("touch /run/sandbox-efa-busy")
    done = ok(play(*TAGS, *UPGRADE))
    assert "32 EFA devices, reboot needed" in done.stdout
    assert "Reboot is needed!" in older.file(LOG).content_string
