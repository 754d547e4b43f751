# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What efa works out from the facts of a node, with Ansible's own templating, and which of its options can be meant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

Variables = Callable[..., Callable[[str], Any]]


def facts(efa: str | None = None, count: int = 2, pci: int = 2, **more: Any) -> dict[str, Any]:
    node = {
        "node_type": "compute",
        "node_name": "gpu-st-p5-1",
        "instance_type": "p5.48xlarge",
        "gpus": {"count": 8},
        "efa": {"count": count, "pci_count": pci},
        "components": {"efa": efa},
    }
    return {**node, **more}


@pytest.fixture
def variables(work_out: Variables) -> Variables:
    """variables(node, **more) returns a function that works out a variable."""
    return lambda node=None, **more: work_out("common efa", node or facts(), **more)


@pytest.mark.parametrize(("count", "pci", "enabled"), [(2, 2, True), (0, 2, True), (0, 0, False)])
def test_nodes_with_a_device_get_it(variables: Variables, count: int, pci: int, enabled: bool) -> None:
    assert variables(facts(count=count, pci=pci))("efa_enabled") is enabled


@pytest.mark.parametrize(
    ("efa", "upgrade", "needed"),
    [
        (None, False, ["efa"]),
        ("1.49.0", False, []),
        ("1.49.0", True, ["efa"]),
        ("1.9.0", "yes", ["efa"]),
        ("1.50.0", True, []),
        ("1.51.0", True, []),
        ("unknown", True, ["efa"]),
        ("unknown", False, []),
    ],
)
def test_only_what_is_needed_needs_a_hash(
    variables: Variables, efa: str | None, upgrade: bool | str, needed: list[str]
) -> None:
    assert variables(facts(efa), efa_upgrade=upgrade)("__efa_downloads") == needed


def test_where_it_comes_from(variables: Variables) -> None:
    value = variables(efa_base_url="https://example.org", efa_version="1.51.0")
    assert value("__efa_url") == "https://example.org/aws-efa-installer-1.51.0.tar.gz"
    assert value("__efa_signature_url") == "https://example.org/aws-efa-installer-1.51.0.tar.gz.sig"
    assert value("__efa_key_url") == "https://example.org/aws-efa-installer.key"
    (artifact,) = value("__efa_artifacts")
    # The facts of a node take a receipt called efa for what is installed.
    assert artifact["name"] not in ("efa", "aws_ofi_nccl")


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({}, []),
        ({"efa_minimal": True}, ["--minimal"]),
        ({"efa_mpi": ["openmpi5"]}, ["--mpi=openmpi5"]),
        ({"efa_mpi": []}, ["--skip-mpi"]),
        ({"efa_mpi": ["openmpi5", "openmpi4"], "efa_installer_options": ["--skip-kmod"]}, ["--skip-kmod"]),
    ],
)
def test_its_options(variables: Variables, settings: dict[str, Any], options: list[str]) -> None:
    assert variables(**settings)("__efa_options") == ["--no-verify", *options]


def test_jobs_are_asked_for_where_they_run(variables: Variables) -> None:
    asked = variables()("__efa_busy")
    assert (asked[0], asked[-1]) == ("/opt/slurm/bin/squeue", "--nodelist=gpu-st-p5-1")
    assert variables(facts(slurm={"prefix": None}))("__efa_busy") == []
    assert variables(facts(node_type="head"))("__efa_busy") == []


@pytest.mark.parametrize("there", ["1.49.0", "1.50.0", "1.51.0"])
def test_an_ami_that_has_it_needs_no_hash(complaints: Callable[..., list[str]], there: str) -> None:
    """With nothing set, on a node that brings EFA, of whatever version."""
    assert complaints("efa", facts(there)) == []


def test_the_pinned_version_is_the_default_one(repo: Path) -> None:
    defaults = yaml.safe_load((repo / "roles/efa/defaults/main.yml").read_text())
    assert yaml.safe_load((repo / "roles/efa/vars/main.yml").read_text())["__efa_pinned"] == defaults["efa_version"]


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"efa_installer_options": ["--uninstall"]}, "efa_installer_options is"),
        ({"efa_mpi": ["openmpi6"]}, "efa_mpi is"),
        # AWS' signature vouches for an installer without a hash.
        ({"efa_sha256": {"noarch": ""}}, ""),
        (
            {"efa_sha256": {"noarch": ""}, "efa_verify_signature": False},
            "efa_sha256['noarch'] is not set; needed: the 64 hexadecimal digits",
        ),
        ({"efa_upgrades": True}, "efa_upgrades is no variable of role efa: did you mean efa_upgrade?"),
        ({"efa_signature_sha256": {"noarch": ""}}, ""),
        # What public scripts call it with.
        ({"efa_installer_options": ["--skip-kmod", "--skip-rdma-core", "--skip-plugin", "--build-ngc"]}, ""),
    ],
)
def test_mistakes_are_named_before_anything_is_touched(
    complaints: Callable[..., list[str]], setting: dict[str, Any], says: str
) -> None:
    assert [line[: len(says)] for line in complaints("efa", facts(), **setting)] == ([says] if says else [])


NOTHING, DUE = {"changed": False, "due": False, "pending": ""}, {"changed": False, "due": True, "pending": ""}


@pytest.mark.parametrize(
    ("early", "asks"),
    [
        ({}, True),  # a play without download.yml
        ({"__efa_foretold": {"changed": False, "failed": True, "msg": "no apt"}}, True),
        ({"__efa_foretold": DUE}, True),
        ({"__efa_foretold": NOTHING}, False),
    ],
)
def test_what_the_early_look_has_answered_is_not_asked_again(
    variables: Variables, repo: Path, early: dict[str, Any], asks: bool
) -> None:
    look = yaml.safe_load((repo / "roles/efa/tasks/install.yml").read_text())[0]
    assert variables(**early)(look["when"]) is asks
    answered = DUE if asks else {"changed": False, "skipped": True}
    assert variables(**early, __efa_plan=answered)("__efa_known") == (DUE if asks else NOTHING)
