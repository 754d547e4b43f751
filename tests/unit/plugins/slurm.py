# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A Slurm whose programs answer as a test says, and module verify run with it."""

from __future__ import annotations

import json
import pwd
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.modules import verify
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab
from ansible_collections.pcluster.postboot.tests.unit.plugins.lab import Run

USER = pwd.getpwuid(65534).pw_name
HOSTNAMES = Path(__file__).parents[1] / "fixtures/slurm/hostnames.py"
# Runs the script of a job on each of its nodes, and keeps how the job was submitted. A file of a node's folder tells
# what is wrong: "busy" has the words of the jobs for which there is no room, and is empty for all jobs.
SRUN = """#!/bin/bash
for word; do case $word in --nodelist=*) nodes=$(PYTHON -IS HOSTNAMES "${word#*=}") ;; esac; done
printf '%s\\n' "$*" | head -n 1 >> ROOT/calls
fail() { echo "srun: error: $*" >&2; exit 1; }
for node in $nodes; do
  [ -e ROOT/$node/busy ] || continue
  case $* in *"$(cat ROOT/$node/busy)"*) fail 'Unable to allocate resources: Requested nodes are busy' ;; esac
done
for node in $nodes; do
  [ ! -e ROOT/$node/lost ] || fail "Node failure on $node"
  [ ! -e ROOT/$node/cancelled ] || {
    echo "postboot-verify|$node|job|begun"
    echo "slurmstepd: error: *** STEP 7.0 ON $node CANCELLED AT 2026-11-20T09:00:00 DUE TO TIME LIMIT ***" >&2
    exit 143
  }
  SLURMD_NODENAME=$node sh -c "${!#}" || exit
done
"""


class Cluster:
    """The base of each stage's cluster; ROOT, PYTHON and HOSTNAMES in a program become paths."""

    USUAL = ["IDLE", "q", "gpu:8"]  # state, partitions and GRES of a node whose line does not tell them

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, run_module: Run, **options: Any) -> None:
        self.root, self._run_module = root, run_module
        self.options: dict[str, Any] = {
            "user": USER,
            "slurm": f"{root}/slurm",
            "images_dir": f"{root}/containers",
            "results_dir": f"{root}/results",
            "output": f"{root}/var/verify.json",
            **options,
        }
        monkeypatch.setenv("PATH", f"{root}/bin:/usr/bin:/bin")
        self.program("bin/runuser", '#!/bin/sh\necho "$2" > ROOT/user\nshift 3; exec "$@"\n')

    def program(self, name: str, text: str) -> None:
        for word, path in (("ROOT", self.root), ("PYTHON", sys.executable), ("HOSTNAMES", HOSTNAMES)):
            text = text.replace(word, str(path))
        lab.program(self.root / name, text)

    def nodes(self, *lines: str, feature: str = "c5.xlarge", cpus: int = 192) -> None:
        """Each line is NAME [STATE [PARTITIONS [GRES]]]."""
        told = ""
        for line in lines:
            words = line.split()
            name, state, partitions, gres = [*words, *self.USUAL[len(words) - 1 :]]
            told += f"NodeName={name} CPUTot={cpus} AvailableFeatures={feature} Gres={gres} State={state} "
            told += f"Partitions={partitions} Reason=x State=y\n"
            self.node(name)
        self.program("slurm/bin/scontrol", f"#!/bin/sh\nprintf %s {shlex.quote(told)}\n")

    def node(self, name: str) -> None:
        """Make the files of a node."""

    def efa_devices(self, folder: str, count: int) -> None:
        """Make a node's EFA devices in its folder, and a network card of another kind."""
        sysfs = self.root / folder / "sys"
        drivers = {**{f"rdmap{index}s0": "efa" for index in range(count)}, "mlx5_0": "mlx5_core"}
        for device, name in drivers.items():
            driver, path = sysfs / "bus/pci/drivers" / name, sysfs / "class/infiniband" / device / "device"
            driver.mkdir(parents=True, exist_ok=True)
            path.mkdir(parents=True)
            (path / "driver").symlink_to(driver)

    def run(self, check: bool = False, **options: Any) -> dict[str, Any]:
        """Return what verify says, and its report if it wrote one."""
        result = self._run_module(verify, {**self.options, **options}, check=check)
        assert "report" not in result
        path = Path(self.options["output"])
        return {**result, "report": json.loads(path.read_text())} if "table" in result and path.exists() else result

    @property
    def calls(self) -> list[Any]:
        return lab.lines(self.root / "calls")


def checks(result: dict[str, Any], name: str = "") -> list[tuple[str, str, str, str]]:
    """Return subject, name, status and message of each check, or of those of one name."""
    assert "report" in result, result.get("msg")
    found = result["report"]["checks"]
    return [(c["subject"], c["name"], c["status"], c["message"]) for c in found if name in ("", c["name"])]
