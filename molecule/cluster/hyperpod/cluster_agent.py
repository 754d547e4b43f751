#!/usr/bin/python3
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A stand-in for SageMakerClusterAgent: writes Slurm's configuration on the controller.

Elsewhere it ends at once. What it writes, and from where that is known, is in README.md.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

CONFIG, ETC = Path("/opt/ml/config"), Path("/opt/slurm/etc")
TOLD = Path("/etc/sandbox/hyperpod.json")
# CPUs, memory in MiB and GPUs of each instance type that the sandbox has.
MACHINES = {
    "ml.p5.48xlarge": (192, 2097152, "h100:8"),
    "ml.trn1.32xlarge": (128, 524288, ""),
    "ml.m5.xlarge": (4, 16384, ""),
    "ml.m5.large": (2, 8192, ""),
}
USABLE = 0.95  # of an instance's memory
PLAIN = """\
ClusterName={name}
SlurmctldHost={host}({address})
SlurmUser=slurm
SlurmctldPort=6817
SlurmdPort=6818
AuthType=auth/munge
SlurmctldParameters=enable_configless
SlurmdParameters=config_overrides
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
PluginDir=/opt/slurm/lib/slurm
Prolog=/opt/slurm/etc/prolog.d/*
Epilog=/opt/slurm/etc/epilog.d/*
MpiDefault=none
ReturnToService=1
SlurmctldTimeout=300
SlurmdTimeout=300
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
JobCompType=jobcomp/none
{confined}
include accounting.conf
"""
# As in ../standins/cookbook: Slurm cannot use version 1 cgroups from inside a container.
CONFINED = {True: "ProctrackType=proctrack/cgroup\nTaskPlugin=task/affinity,task/cgroup"}
CONFINED[False] = "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none"


def host(address: str) -> str:
    """The name that Slurm has for a node."""
    return f"ip-{address.replace('.', '-')}"


def configuration(resources: dict[str, Any], told: dict[str, Any], confined: bool) -> dict[str, str]:
    """The text of each of Slurm's files, by its name."""
    controller = resources["SlurmConfig"]["PrimaryControllerIp"]
    name = resources["ClusterConfig"]["ClusterName"]
    lines = [PLAIN.format(name=name, host=host(controller), address=controller, confined=CONFINED[confined])]
    gres, partitions = [], {"dev": ["ALL"]}
    for group in resources["InstanceGroups"]:
        addresses = [one["CustomerIpAddress"] for one in group["Instances"]]
        if controller in addresses:
            continue
        cpus, memory, gpus = MACHINES[group["InstanceType"]]
        for address in addresses:
            line = f"NodeName={host(address)} NodeAddr={address} CPUs={cpus} RealMemory={int(memory * USABLE)}"
            lines.append(f"{line}{f' Gres=gpu:{gpus}' if gpus else ''} State=UNKNOWN\n")
            if gpus:
                kind, _, count = gpus.partition(":")
                devices = f"/dev/nvidia[0-{int(count) - 1}]"
                gres.append(f"NodeName={host(address)} Name=gpu Type={kind} File={devices}\n")
        for partition in told["partitions"].get(group["Name"]) or [group["InstanceType"]]:
            partitions.setdefault(partition, []).extend(map(host, addresses))
    for partition, nodes in partitions.items():
        default = "YES" if partition == "dev" else "NO"
        line = f"PartitionName={partition} Nodes={','.join(nodes)} Default={default} MaxTime=INFINITE State=UP\n"
        lines.append(line)
    cgroup = "ConstrainCores=yes\nConstrainDevices=yes\n"
    return {
        "slurm.conf": "".join(lines),
        "gres.conf": "".join(gres),
        "cgroup.conf": cgroup,
        "accounting.conf": "# ACCOUNTING\n",
    }


def main() -> None:
    told = json.loads(TOLD.read_text())
    if told["node_type"] != "Controller":
        sys.exit(0)
    resources = json.loads((CONFIG / "resource_config.json").read_text())
    confined = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    # slurm.conf last: it is what the others wait for.
    for name, text in reversed(configuration(resources, told, confined).items()):
        if not (ETC / name).exists():
            (ETC / name).write_text(text)
    signal.pause()


if __name__ == "__main__":
    main()
