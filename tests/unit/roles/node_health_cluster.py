# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A head node with nodes that have findings, for the tests of what drains them.

Slurm is a class that prints and takes what scontrol 24.11.5 did before a slurmctld of its own.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.roles.node_health.files.node_health_decider import command, run
from ansible_collections.pcluster.postboot.roles.node_health.files.node_health_decider.records import Clock, Settings
from ansible_collections.pcluster.postboot.roles.node_health.files.node_health_decider.slurm import NoAnswer

NOW = 1_795_000_000.0
XID = ("gpu_xid_79", "replace", "GPU 3", "NVRM: Xid (PCI:0000:97:00): 79, pid='<unknown>', GPU has fallen off the bus.")
MOUNT = ("mount_hangs", "reboot", "/fsx", "no answer within 5 s")
FULL = ("filesystem_full", "watch", "/", "96 % used")


class Slurm:
    """Nodes as slurmctld keeps them, for scontrol."""

    def __init__(self) -> None:
        self.nodes: dict[str, dict[str, Any]] = {}
        self.asked: list[str] = []
        self.answers = True

    def __call__(self, program: str, *words: str) -> str:
        self.asked.append(" ".join(words))
        if not self.answers:
            raise NoAnswer("Unable to contact slurm controller (connect failure)")
        kind, asked = words[0], dict(word.split("=", 1) for word in words if "=" in word)
        if words == ("--oneliner", "show", "nodes"):
            return "".join(self._line(name, node) for name, node in self.nodes.items())
        if words == ("--oneliner", "show", "reservations"):
            held = [(node["reserved"], name) for name, node in self.nodes.items() if node.get("reserved")]
            if not held:
                return "No reservations in the system\n"
            what = "StartTime=2026-11-27T20:04:46 EndTime=2027-11-27T20:04:46 Duration=365-00:00:00"
            return "".join(f"ReservationName={name} {what} Nodes={node} State=ACTIVE\n" for name, node in held)
        if kind == "update":
            self._update(asked)
        elif kind == "create":
            if self.nodes[asked["nodes"]].get("reserved"):
                why = "Requested reservation overlaps with another reservation"
                raise NoAnswer(f"Error creating the reservation: {why}")
            self.nodes[asked["nodes"]]["reserved"] = asked["reservationname"]
        elif kind == "delete":
            having = [node for node in self.nodes.values() if node.get("reserved") == asked["reservationname"]]
            if not having:
                raise NoAnswer(f"delete_reservation {words[1]}: Requested reservation is invalid")
            del having[0]["reserved"]
        return ""

    def _update(self, asked: dict[str, str]) -> None:
        node = self.nodes[asked["nodename"]]
        node["reason"] = asked["reason"]
        if asked["state"] == "drain":
            node["state"] += "" if "+DRAIN" in node["state"] else "+DRAIN"
        elif "+DRAIN" in node["state"]:
            node["state"] = node["state"].replace("+DRAIN", "")
        else:
            raise NoAnswer("slurm_update error: Invalid node state specified")

    def _line(self, name: str, node: dict[str, Any]) -> str:
        reason = f" Reason={node['reason']} [root@2026-11-23T04:49:09]" if node["reason"] else ""
        instance = f" InstanceId={node['instance']} " if node["instance"] else ""
        # slurmctld marks the nodes of a reservation some seconds later.
        node["shown"] = node.get("shown", 0) + 1 if node.get("reserved") else 0
        reserved = "+RESERVED" if node["shown"] > 2 else ""
        booted = node.get("booted", "2026-11-17T08:30:58")
        return (
            f"NodeName={name} Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 CPUEfctv=192 CPUTot=192 CPULoad=2.02 "
            f"Gres=gpu:h100:8 NodeAddr={node['address']} NodeHostName={name} Version=24.11.5 "
            f"State={node['state']}{reserved} ThreadsPerCore=1 TmpDisk=0 Partitions=gpu,static  BootTime={booted} "
            "SlurmdStartTime=2026-11-23T05:02:09 LastBusyTime=2026-11-23T04:49:09 ResumeAfterTime=None AllocTRES= "
            f"CurrentWatts=0 AveWatts=0 {reason}{instance}\n"
        )


class Cluster:
    """A head node with its folders, and Slurm."""

    def __init__(self, top: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.top, self.capsys, self.now, self.up, self.boot = top, capsys, NOW, 86400.0, "first"
        self.states = top / "nodes"
        self.states.mkdir()
        self.scontrol = Slurm()
        self.slurm = self.scontrol.nodes
        limits = {"max_nodes": 2, "max_share": 50, "max_per_hour": 4, "successor_window": 24, "silent_after": 900}
        files = {name: str(top / name) for name in ("history", "cache", "metrics", "scontrol")}
        self.settings = Settings(action="drain", states=str(self.states), **limits, **files)
        self.ids = itertools.count(1)

    def node(self, name: str, state: str = "IDLE+CLOUD", **more: Any) -> str:
        """Give a node to Slurm, with another instance than before; return the instance's id."""
        number = next(self.ids)
        address, instance = f"10.0.0.{number}", f"i-{number:017x}"
        self.slurm[name] = {"state": state, "address": address, "instance": instance, "reason": "", **more}
        return str(self.slurm[name]["instance"] or instance)

    def tells(self, name: str, *findings: tuple[str, str, str, str], **more: Any) -> None:
        """Have a node write its state, as of now."""
        state = {
            "schema": 1,
            "node": name,
            "instance_id": self.slurm[name]["instance"],
            "instance_type": "p5.48xlarge",
            "boot_id": "8e4f5e0c-3a0f-4c57-8d41-5f5d1b2f6a10",
            "time": self.now,
            "gpus": [f"GPU-{more.get('instance_id', self.slurm[name]['instance'])}-{number}" for number in range(8)],
            "findings": [
                {**dict(zip(("finding", "class", "subject", "evidence"), one)), "since": self.now} for one in findings
            ],
            "skipped": {"nvlink": "no NVLink"},
            **more,
        }
        path = self.states / f"{name}.json"
        path.write_text(json.dumps(state))
        os.utime(path, (self.now, self.now))

    def runs(self, later: float = 15) -> list[str]:
        """Have the timer start the program once; return the lines of its journal."""
        self.passes(later)
        run.run(self.settings, self.clock())
        return [line[3:] for line in self.capsys.readouterr().out.splitlines()]

    def clock(self) -> Clock:
        return Clock(self.now, self.up, self.boot)

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.up += seconds

    def steps(self, seconds: float) -> None:
        """Have the head node's clock set, as chronyd does at its start."""
        self.now += seconds

    def asked(self) -> list[str]:
        """What Slurm was asked since this was asked."""
        lines, self.scontrol.asked = self.scontrol.asked, []
        return lines

    def drained(self) -> list[str]:
        return [name for name, node in self.slurm.items() if "DRAIN" in node["state"]]

    def metric(self, name: str) -> list[str]:
        text = (self.top / "metrics").read_text()
        return re.findall(rf"^pcluster_node_health_{name}(.*)$", text, re.M)

    def replaced(self, name: str) -> str:
        """What clustermgtd does with a drained static node; return the successor's instance."""
        return self.node(name)

    def with_settings(self, **more: Any) -> None:
        self.settings = self.settings._replace(**more)

    def commands(self, *words: str) -> tuple[int, str]:
        """Run the administrators' command."""
        path = self.top / "config.json"
        path.write_text(json.dumps(self.settings._asdict()))
        code = command.main(["--config", str(path), *words])
        said = self.capsys.readouterr()
        return code, said.out + said.err


def made(top: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster with eight nodes, whose programs ask its Slurm and have its time."""
    monkeypatch.setattr(command.os, "geteuid", lambda: 0)
    found = Cluster(top, capsys)
    monkeypatch.setattr(run, "scontrol", found.scontrol)
    monkeypatch.setattr(command, "scontrol", found.scontrol)
    monkeypatch.setattr(command.Clock, "read", found.clock)
    for number in range(1, 9):
        found.node(f"gpu-st-p5-{number}")
    return found
