# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What roles dcgm and dcgm_exporter ask packages for, on dpkg's records."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.pcluster.postboot.plugins.module_utils._host import lock
from ansible_collections.pcluster.postboot.plugins.module_utils._packages import records
from ansible_collections.pcluster.postboot.plugins.modules import packages
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab

Run, WorkOut = Callable[..., dict[str, Any]], Callable[..., Callable[[str], Any]]
CORE, EXPORTER = "datacenter-gpu-manager-4-core", "datacenter-gpu-manager-exporter"
ALL = [CORE, *(f"datacenter-gpu-manager-4-{part}" for part in ("cuda13", "proprietary", "proprietary-cuda13"))]


class Node:
    def __init__(self, top: Path, run: Run, repo: Path, work_out: WorkOut) -> None:
        self.top, self.run, self.repo, self.work_out = top, run, repo, work_out
        (top / "dpkg").mkdir()
        self.has()

    def has(self, state: str = "installed", **versions: str) -> None:
        there = (lab.package(name.replace("_", "-"), f"1:{version}-1", state) for name, version in versions.items())
        (self.top / "dpkg/status").write_text("".join(there))

    def noted(self, version: str, done: bool, lead: str = CORE) -> None:
        (self.top / "state/packages").mkdir(parents=True, exist_ok=True)
        record = {"version": version, "done": done}
        (self.top / f"state/packages/{lead}.json").write_text(json.dumps(record))

    def asked(self, role: str, driver: str, cuda: str, **variables: Any) -> dict[str, Any]:
        """Return what a role asks packages for, by its first task and its own variables."""
        facts = {"gpus": {"driver": driver or None}, "components": {"cuda": cuda or None}}
        planned = {f"__{role}_state": "planned", "__common_package_manager": "apt"}
        value = self.work_out(role, facts, **planned, **variables)
        task = yaml.safe_load((self.repo / "roles" / role / "tasks/install.yml").read_text())[0]
        args = task["pcluster.postboot.packages"]
        return {name: value(given) if "{{" in given else given for name, given in args.items()}

    def __call__(
        self, role: str = "dcgm", driver: str = "595.112.07", cuda: str = "", manager: str = "apt", **variables: Any
    ) -> dict[str, Any]:
        known = {f"{'__' if name == 'pin' else ''}{role}_{name}": value for name, value in variables.items()}
        given = self.asked(role, driver, cuda, **known)
        program = f"{self.top}/{os.path.basename(given['program'])}"
        return self.run(packages, {**given, "manager": manager, "program": program})


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_module: Run, repo: Path, work_out: WorkOut) -> Node:
    monkeypatch.setattr(records, "DPKG", str(tmp_path / "dpkg"))
    monkeypatch.setattr(lock, "STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(records, "SOURCES", dict.fromkeys(("apt", "dnf"), f"{tmp_path}/{{}}.sources"))
    return Node(tmp_path, run_module, repo, work_out)


def all_of(version: str) -> dict[str, str]:
    return dict.fromkeys((name.replace("-", "_") for name in ALL), version)


def test_a_node_without_one_gets_the_pin(node: Node) -> None:
    found = node()
    assert (found["install"], found["version"], found["packages"]) == (True, "4.6.0", ALL)
    assert (found["why"], found["summary"]) == ("DCGM is not installed", "DCGM 4.6.0")
    assert (found["changed"], found["leaving"], found["left"], found["enough"]) == (False, [], False, False)
    assert node(proprietary=False)["packages"] == ALL[:2]


@pytest.mark.parametrize(
    ("args", "cuda"),
    [
        ({"driver": "580.126.20"}, "13"),
        ({"driver": "570.172.08"}, "12"),
        ({"driver": "525.60"}, "12"),
        ({"driver": "470.182.03"}, "11"),
        ({"driver": "", "cuda": "12.8.1"}, "12"),
        ({"driver": "570.1", "cuda": "13.3"}, "12"),
        ({"driver": "", "cuda": "10.2"}, "13"),
        ({"driver": ""}, "13"),
        ({"driver": "610.43", "cuda_major": "12"}, "12"),
    ],
)
def test_diagnostics_are_for_the_drivers_cuda(node: Node, args: dict[str, str], cuda: str) -> None:
    assert node(**args)["packages"][1] == f"datacenter-gpu-manager-4-cuda{cuda}"


def test_the_amis_own_stays_and_gets_what_it_lacks_in_its_own_version(node: Node) -> None:
    """ParallelCluster's recipes install the core and the diagnostics alone."""
    node.has(datacenter_gpu_manager_4_core="4.5.1", datacenter_gpu_manager_4_cuda13="4.5.1")
    found = node()
    assert (found["install"], found["enough"]) == (True, True)
    assert (found["version"], found["packages"]) == ("4.5.1", ALL)
    assert found["why"] == f"missing: {ALL[2]}, {ALL[3]}"
    assert found["summary"] == "DCGM 4.5.1, the node had it"
    assert not node(proprietary=False)["install"]
    node.has(**all_of("4.5.1"))
    found = node()
    assert (found["install"], found["enough"], found["why"]) == (False, True, f"{CORE} 4.5.1 is installed")


def test_what_else_the_amis_own_lacks_is_its_owners_affair(node: Node) -> None:
    node.has(**{name: version for name, version in all_of("4.6.0").items() if not name.endswith("4_cuda13")})
    assert not node()["install"]
    # Unless a version is asked for.
    assert node(version="4.6.0")["why"] == f"missing: {ALL[1]}"
    found = node(version="4.7")
    assert (found["version"], found["enough"]) == ("4.7", False)
    node.has(**all_of("4.6.0"))
    assert not node(version="4.6")["install"]


def test_one_that_is_too_old_is_replaced_with_all_that_belongs_to_it(node: Node) -> None:
    node.has(**all_of("4.4.1"), datacenter_gpu_manager_4_dev="4.4.1", datacenter_gpu_manager_4_cuda12="4.4.1")
    found = node()
    assert (found["install"], found["version"], found["leaving"]) == (True, "4.6.0", [])
    assert found["packages"] == [*ALL, "datacenter-gpu-manager-4-cuda12", "datacenter-gpu-manager-4-dev"]
    assert found["why"] == "DCGM 4.4.1 is older than 4.5"
    assert not node(minimum_version="4.4")["install"]


def test_dcgm_3_has_to_leave(node: Node) -> None:
    node.has(datacenter_gpu_manager="3.3.6")
    found = node()
    assert (found["install"], found["leaving"], found["packages"]) == (True, ["datacenter-gpu-manager"], ALL)
    assert (found["why"], found["enough"]) == ("DCGM 3.3.6 is older than 4.5", False)


def test_what_a_killed_run_left_is_finished(node: Node) -> None:
    """Also where what tells the version is there already."""
    node.has(datacenter_gpu_manager_4_core="4.6.0")
    for done, why in ((False, "the installation of {} was interrupted"), (True, "missing: {}")):
        node.noted("4.6.0", done)
        found = node(pin="4.7.0")
        assert (found["install"], found["version"], found["packages"]) == (True, "4.6.0", ALL)
        assert found["why"] == why.format(", ".join(ALL[1:]))
    node.noted("4.6.0", False)
    node.has(**all_of("4.6.0"))
    assert not node()["install"], "nothing is left to do, although nobody noted the end"
    assert node()["summary"] == "DCGM 4.6.0"
    status = node.top / "dpkg/status"
    status.write_text(status.read_text() + "Package: datacenter-gpu-manager-4-dev\nStatus: install ok unpacked\n\n")
    assert node()["why"] == "the installation of datacenter-gpu-manager-4-dev was interrupted"
    assert node(version="4.6.0")["install"]
    node.has("half-configured", **all_of("4.6.0"))
    found = node()
    assert (found["install"], found["version"]) == (True, "4.6.0")


def test_a_version_that_could_not_be_had_is_forgotten(node: Node) -> None:
    node.noted("4.99", False)
    assert node()["version"] == "4.6.0"
    node.has(**all_of("4.7.0"))
    found = node()
    assert (found["install"], found["version"]) == (False, "4.7.0")
    assert found["summary"] == "DCGM 4.7.0, the node had it"


def test_a_repository_that_a_killed_run_left_is_seen(node: Node) -> None:
    (node.top / "nvidia-dcgm.sources").write_text("URIs: x\n")
    assert node()["left"]
    assert not node("dcgm_exporter")["left"]


def test_the_exporter(node: Node) -> None:
    found = node("dcgm_exporter")
    assert (found["install"], found["packages"], found["version"]) == (True, [EXPORTER], "4.8.2")
    assert found["why"] == "DCGM exporter is not installed"
    node.has(datacenter_gpu_manager_exporter="4.8.4.3955", datacenter_gpu_manager="3.3.6")
    found = node("dcgm_exporter")
    assert (found["install"], found["leaving"]) == (False, [])
    assert found["summary"] == "DCGM exporter 4.8.4.3955, the node had it"
    assert node("dcgm_exporter", version="4.9")["install"]
    node.has(datacenter_gpu_manager_exporter="4.8.1")
    assert node("dcgm_exporter")["why"] == "DCGM exporter 4.8.1 is older than 4.8.2"
    # Who asks for an old one gets it, and who asks for the beginning of a version gets one that is new enough.
    assert not node("dcgm_exporter", version="4.8.1")["install"]
    assert node("dcgm_exporter", version="4.8")["version"] == "4.8"
    node.has()
    (node.top / "dcgm-exporter").write_text("")
    assert not node("dcgm_exporter")["install"]
    node.noted("4.8.2", False, EXPORTER)
    assert node("dcgm_exporter")["install"]
