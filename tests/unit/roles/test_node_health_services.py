# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What node-health finds of EFA, slurmd, Pyxis, GDRCopy and the clock; and when programs are started."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.roles.node_health.files.node_health import fabric, services, slow, units
from ansible_collections.pcluster.postboot.roles.node_health.files.node_health.look import Look
from ansible_collections.pcluster.postboot.tests.unit.roles.node_health_tree import EFAS, SLURMD, Node

# chronyc -c -n tracking, as client.c of chrony 4 prints it.
TRACKING = (
    "A9FEA97B,169.254.169.123,4,1795409990.712,{},0.000000545,0.000010,-8.917,0.000,0.018,0.000320,0.000120,16.1,{}"
)
PYXIS = "/opt/slurm/pyxis/0.24.0-slurm24.11.5/spank_pyxis.so"


class Programs:
    """A node, the programs on it that a test puts there, and what it finds."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node = Node(tmp_path / "node")
        self.folder = tmp_path / "bin"
        self.folder.mkdir()
        for module, name in ((units, "SYSTEMCTL"), (fabric, "FI_INFO"), (services, "CHRONYC")):
            monkeypatch.setattr(module, name, str(self.folder / name.lower()))
        monkeypatch.setattr(services, "GDRCOPY", (str(tmp_path / "gdrcopy"),))

    def put(self, name: str, text: str, code: int = 0) -> None:
        (self.folder / f"{name}.out").write_text(text)
        program = self.folder / name
        program.write_text(
            f'#!/bin/sh\necho "$FI_HMEM $*" >> {self.folder}/{name}.asked\ncat {self.folder}/{name}.out\nexit {code}\n'
        )
        program.chmod(0o755)

    def asked(self, name: str) -> list[str]:
        path = self.folder / f"{name}.asked"
        return path.read_text().splitlines() if path.exists() else []

    def run(self, check: Any, memory: dict[str, Any] | None = None, later: float = 0) -> Look:
        memory = {} if memory is None else memory
        look = Look(self.node.settings, memory, str(self.node.root), lambda: self.node.now + later)
        check(look)
        look.result()
        return look


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    return Programs(tmp_path, monkeypatch)


def names(look: Look) -> list[tuple[str, str]]:
    return sorted(look.findings)


def evidence(look: Look) -> str:
    (finding,) = look.findings.values()
    return str(finding["evidence"])


def domains(count: int, fabrics: int = 1) -> str:
    """What fi_info prints of so many devices; libfabric 2 has each for two fabrics."""
    one = "provider: efa\n    fabric: efa{1}\n    domain: rdmap{0}s0{2}\n    version: 204.0\n    type: FI_EP_RDM\n"
    return "".join(
        one.format(64 + place, "-direct" if kind else "", "-rdm" if not kind else "")
        for place in range(count)
        for kind in range(fabrics)
    )


# EFA


def test_efa_that_is_well(programs: Programs) -> None:
    look = programs.run(fabric.check)
    assert (look.findings, look.skipped) == ({}, {})


def test_a_device_that_is_gone(programs: Programs) -> None:
    shutil.rmtree(programs.node.root / "sys/class/infiniband/rdmap70s0")
    look = programs.run(fabric.check)
    assert names(look) == [("efa_missing", "")]
    assert evidence(look) == "31 EFA devices in /sys/class/infiniband; a p5.48xlarge has 32"


def test_another_drivers_device_is_none_of_efa(programs: Programs) -> None:
    link = programs.node.root / "sys/class/infiniband/rdmap70s0/device"
    other = programs.node.root / "sys/bus/pci/devices/0000:f0:00.0"
    other.mkdir()
    (other / "driver").symlink_to("../../drivers/mlx5_core")
    link.unlink()
    link.symlink_to(other)
    assert names(programs.run(fabric.check)) == [("efa_missing", "")]


def test_a_port_that_is_down(programs: Programs) -> None:
    programs.node.write("sys/class/infiniband/rdmap71s0/ports/1/state", "1: DOWN\n")
    look = programs.run(fabric.check)
    assert names(look) == [("efa_link_down", "rdmap71s0")]
    assert evidence(look) == "/sys/class/infiniband/rdmap71s0/ports/1/state: 1: DOWN"


def test_a_node_without_efa_is_not_asked_for_any(programs: Programs) -> None:
    programs.node.settings["efa"] = 0
    shutil.rmtree(programs.node.root / "sys/class/infiniband")
    for check in (fabric.check, fabric.provider):
        look = programs.run(check)
        assert (look.findings, look.skipped) == ({}, {})


@pytest.mark.parametrize("fabrics", [1, 2])
def test_libfabric_lists_each_device(programs: Programs, fabrics: int) -> None:
    programs.put("fi_info", domains(EFAS, fabrics))
    look = programs.run(fabric.provider)
    assert (look.findings, look.skipped) == ({}, {})
    # libfabric must not look for CUDA.
    assert programs.asked("fi_info") == ["system -p efa -t FI_EP_RDM"]


def test_a_device_that_libfabric_does_not_list(programs: Programs) -> None:
    programs.put("fi_info", domains(EFAS - 1))
    look = programs.run(fabric.provider)
    assert names(look) == [("efa_provider", "")]
    assert evidence(look) == "'fi_info -p efa -t FI_EP_RDM' lists 31 of 32 EFA devices: rdmap95s0"


def test_libfabric_that_lists_none_says_why(programs: Programs) -> None:
    programs.put("fi_info", "")
    (programs.folder / "fi_info").write_text('#!/bin/sh\necho "fi_getinfo: -61 (No data available)" >&2\nexit 61\n')
    said = evidence(programs.run(fabric.provider))
    assert said.endswith("lists 0 of 32 EFA devices: fi_getinfo: -61 (No data available)")


def test_a_node_without_fi_info_is_told(programs: Programs) -> None:
    assert "efa_provider" in programs.run(fabric.provider).skipped


# slurmd, and memory that may be locked


def test_slurmd_that_has_ended(programs: Programs) -> None:
    programs.put("systemctl", "LoadState=loaded\nActiveState=failed\n")
    memory: dict[str, Any] = {}
    assert names(programs.run(services.slurmd, memory)) == []
    # A job's slurmstepd lives on in the service's cgroup.
    programs.node.slurmd(name="slurmstepd")
    assert names(programs.run(services.slurmd, memory, 30)) == []  # a restart
    look = programs.run(services.slurmd, memory, 90)
    assert names(look) == [("slurmd_down", "")]
    assert evidence(look) == "slurmd.service is failed"
    programs.node.slurmd()
    assert names(programs.run(services.slurmd, memory, 120)) == []


def test_slurmd_that_has_not_begun_in_this_boot_is_not_judged(programs: Programs) -> None:
    shutil.rmtree(programs.node.root / "sys/fs/cgroup/system.slice/slurmd.service")
    look = programs.run(services.slurmd, {})
    assert (look.findings, look.skipped) == ({}, {"slurmd": "slurmd has not run since this boot began"})
    assert programs.asked("systemctl") == []


def test_slurmd_whose_cgroup_is_elsewhere_is_asked_of_systemd(programs: Programs) -> None:
    programs.put("systemctl", "LoadState=loaded\nActiveState=active\n")
    shutil.rmtree(programs.node.root / "sys/fs/cgroup/system.slice/slurmd.service")
    look = programs.run(services.slurmd, {"slurmd": True})
    assert (look.findings, look.skipped) == ({}, {})


def test_cgroups_of_version_1(programs: Programs) -> None:
    top = programs.node.root / "sys/fs/cgroup"
    (top / "systemd").mkdir()
    (top / "system.slice").rename(top / "systemd/system.slice")
    memory: dict[str, Any] = {}
    programs.run(services.slurmd, memory)
    assert memory["slurmd"] is True


def test_a_head_node_has_no_slurmd(programs: Programs) -> None:
    programs.node.settings["node_type"] = "head"
    look = programs.run(services.slurmd, {"slurmd": True})
    assert (look.findings, look.skipped) == ({}, {})


@pytest.mark.parametrize(
    ("limit", "found"), [("unlimited", False), (str(16 * 2**30), False), (str(16 * 2**30 - 1), True), ("8388608", True)]
)
def test_memory_that_jobs_may_lock(programs: Programs, limit: str, found: bool) -> None:
    programs.node.slurmd(memlock=limit)
    look = programs.run(services.slurmd)
    assert names(look) == ([("memlock_limited", "")] if found else [])
    if limit == "8388608":
        assert evidence(look) == f"/proc/{SLURMD}/limits of slurmd: Max locked memory 8388608 bytes"


def test_memory_that_may_be_locked_matters_with_efa_only(programs: Programs) -> None:
    programs.node.slurmd(memlock="8388608")
    programs.node.settings["efa"] = 0
    assert names(programs.run(services.slurmd)) == []


# Pyxis, GDRCopy


def test_a_pyxis_that_is_gone(programs: Programs) -> None:
    look = programs.run(services.pyxis)
    assert look.skipped == {"pyxis": "/opt/slurm/etc/plugstack.conf.d names no Pyxis"}
    programs.node.write(
        "opt/slurm/etc/plugstack.conf.d/pyxis.conf", f"# ours\nrequired {PYXIS} runtime_path=/run/pyxis\n"
    )
    look = programs.run(services.pyxis)
    assert evidence(look) == f"/opt/slurm/etc/plugstack.conf.d names {PYXIS}, which is not there"
    programs.node.write(PYXIS.lstrip("/"), "")
    look = programs.run(services.pyxis)
    assert (look.findings, look.skipped) == ({}, {})


def test_a_module_of_gdrcopy_that_is_not_loaded(programs: Programs, tmp_path: Path) -> None:
    assert programs.run(services.gdrdrv).skipped == {}
    shutil.rmtree(programs.node.root / "sys/module/gdrdrv")
    assert programs.run(services.gdrdrv).skipped == {"gdrdrv": "GDRCopy is not installed"}
    programs.node.write("usr/src/gdrdrv-2.5.2/Makefile", "")
    look = programs.run(services.gdrdrv)
    assert evidence(look) == "/usr/src/gdrdrv-2.5.2 is there, and /sys/module/gdrdrv is not"


# The clock


@pytest.mark.parametrize(
    ("skew", "leap", "said"),
    [
        ("-0.000001297", "Normal", ""),
        ("0.499", "Normal", ""),
        ("-0.7", "Normal", "chronyc tracking: -0.7 s from 169.254.169.123"),
        ("0.000000000", "Not synchronised", "chronyc tracking: Not synchronised"),
    ],
)
def test_the_clock(programs: Programs, skew: str, leap: str, said: str) -> None:
    programs.put("chronyc", TRACKING.format(skew, leap) + "\n")
    look = programs.run(services.clock)
    assert [one["evidence"] for one in look.findings.values()] == ([said] if said else [])
    assert look.skipped == {}
    assert programs.asked("chronyc") == ["system -c -n -h 127.0.0.1 tracking"]


def test_a_chrony_that_does_not_run_is_told(programs: Programs) -> None:
    programs.put("chronyc", "506 Cannot talk to daemon\n", 1)
    assert programs.run(services.clock).skipped == {"clock": "chronyc: 506 Cannot talk to daemon"}


# How often programs are started


def test_programs_are_started_now_and_then(programs: Programs) -> None:
    programs.put("fi_info", domains(EFAS))
    memory: dict[str, Any] = {}
    for later in (0, 30, 570, 600, 630):
        programs.run(lambda look: slow.run(look, [fabric.provider]), memory, later)
    assert len(programs.asked("fi_info")) == 2


def test_what_programs_have_found_is_told_until_they_find_it_mended(programs: Programs) -> None:
    programs.put("fi_info", domains(EFAS - 1))
    memory: dict[str, Any] = {}

    def look(later: float) -> dict[tuple[str, str], dict[str, Any]]:
        return programs.run(lambda look: slow.run(look, [fabric.provider]), memory, later).findings

    first = look(0)["efa_provider", ""]
    programs.put("fi_info", domains(EFAS))
    assert look(30) == {("efa_provider", ""): first}
    assert len(programs.asked("fi_info")) == 1
    assert look(60) == {}


def test_a_program_that_hangs(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    programs.put("fi_info", "")
    (programs.folder / "fi_info").write_text("#!/bin/sh\nexec sleep 3600\n")
    run = units.run
    monkeypatch.setattr(units, "run", lambda line, patience: run(line, 0.2))
    look = programs.run(fabric.provider)
    assert names(look) == [("check_hangs", "fi_info")]
    assert look.skipped == {"efa_provider": evidence(look)}
    assert evidence(look).endswith("did not end within 0.2 s")
