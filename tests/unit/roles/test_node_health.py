# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What node_health works out for a node, and that its findings have one name, one class and one source everywhere."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose import gpu_messages
from ansible_collections.pcluster.postboot.plugins.plugin_utils._node_health import settings as tables
from ansible_collections.pcluster.postboot.roles.node_health.files.node_health import main
from ansible_collections.pcluster.postboot.tests.unit.roles.node_health_tree import facts

Variables = Callable[..., Callable[[str], Any]]
# What somebody else finds: the deep checks.
DEEP = {"gpu_diag", "efa_loopback", "nccl_one_node"}


@pytest.fixture
def variables(work_out: Variables) -> Variables:
    """variables(facts, **more) returns a function that works out a variable or a template."""
    return lambda of=None, **more: work_out("common node_health", facts() if of is None else of, **more)


@pytest.mark.parametrize(
    ("kind", "image", "wanted"),
    [
        ("head", False, True),
        ("compute", False, True),
        ("login", False, False),
        ("monitoring", False, False),
        (None, True, True),
    ],
)
def test_who_gets_it(variables: Variables, kind: str | None, image: bool, wanted: bool) -> None:
    value = variables({**facts(), "node_type": kind, "image_build": image})
    assert value("node_health_enabled") is wanted


@pytest.mark.parametrize(
    ("more", "gpus", "efa", "nvswitch"),
    [
        ({}, 8, 32, True),
        # One is gone already when the node is configured.
        ({"gpus": {"count": 7, "devices": facts()["gpus"]["devices"][1:]}}, 8, 32, True),
        ({"efa": {"count": 31, "pci_count": 31}}, 8, 32, True),
        # EFA is not enabled in the cluster's configuration.
        ({"efa": {"count": 0, "pci_count": 0}}, 8, 0, True),
        # Not in the tables: what there is.
        (
            {
                "instance_type": "g9.xlarge",
                "gpus": {"devices": [{"address": "0000:00:1e.0"}]},
                "nvswitch": {"count": 0},
            },
            1,
            32,
            False,
        ),
        (
            {
                "instance_type": "c5.xlarge",
                "gpus": {"devices": []},
                "nvswitch": {"count": 0},
                "efa": {"count": 0, "pci_count": 0},
            },
            0,
            0,
            False,
        ),
    ],
)
def test_what_a_node_must_have(more: dict[str, Any], gpus: int, efa: int, nvswitch: bool) -> None:
    found = tables.settings({**facts(), **more})
    assert (found["gpus"], found["efa"], found["nvswitch"]) == (gpus, efa, nvswitch)


def test_what_somebody_says_comes_first() -> None:
    found = tables.settings(facts(), gpus=4, efa=1, ignored=["gpu_persistence"])
    assert (found["gpus"], found["efa"], found["ignored"]) == (4, 1, ["gpu_persistence"])


def test_on_hyperpod_nodes_have_no_folder_of_slurm_in_common() -> None:
    assert tables.settings(facts())["slurm"] == "/opt/slurm"
    assert tables.settings({**facts(), "platform": "hyperpod"})["slurm"] == ""


def test_the_program_takes_what_the_role_writes(variables: Variables) -> None:
    value = variables(node_health_clock_skew="1.5")
    more = {"gpus": "node_health_gpus | int", "efa": "node_health_efa_devices | int"}
    assert [value(expression) for expression in more.values()] == [0, 0]
    assert value("node_health_interval") == 30
    written = {"page", "textfiles", "state", "interval"}
    assert set(main.NEEDED) <= {*tables.settings(facts()), *written}
    text = (Path(main.__file__).resolve().parents[2] / "vars/main.yml").read_text()
    assert written <= set(re.findall(r"^ +'(\w+)':", text, re.MULTILINE))
    json.dumps(tables.settings(facts()))


# One name, one class, one source


def found_by_the_program(repo: Path) -> set[str]:
    text = "".join(path.read_text() for path in repo.glob("roles/node_health/files/node_health/*.py"))
    found = set(re.findall(r'look\.find\(\s*f?"([a-z_]+)', text))
    found |= set(re.findall(r'units\.expect\(look, "[\w-]+", "\w+", "(\w+)"', text))
    found |= set(re.findall(r'\(\w+, "(gpu_\w+)"\)', text))
    found |= {name.rstrip("_") for name in re.findall(r'Message\(f"(\w+?_)\{', text)}
    return {name.rstrip("_") for name in found}


def test_every_finding_of_the_program_is_in_the_table(repo: Path) -> None:
    assert found_by_the_program(repo) == set(tables.findings()) - DEEP


def test_every_finding_has_a_class_and_a_source() -> None:
    for name, row in tables.findings().items():
        assert set(row) == {"class", "means", "source"}, name
        assert row["class"] in (*tables.CLASSES, ""), name
        assert (row["class"] == "") is (name in DEEP | {"gpu_xid", "nvswitch_sxid"})
        assert row["means"]
        assert row["source"]


def test_every_xid_that_pages_people_has_a_class(repo: Path) -> None:
    table = yaml.safe_load((repo / "roles/prometheus/files/xids.yml").read_text())
    for group in table["critical"]:
        assert group["class"] in ("replace", "reboot", "reset")
    assert all("class" not in group for group in table["none"])
    classes, none = gpu_messages.XIDS, gpu_messages.XIDS_NONE
    assert (classes[79], classes[64], classes[74], classes[95]) == ("replace", "replace", "reboot", "reset")
    assert not set(none) & set(classes)
    assert all(group["means"] for groups in table.values() for group in groups)


def test_sxids_that_are_no_finding_have_a_source(repo: Path) -> None:
    table = yaml.safe_load((repo / "roles/node_health/files/sxids.yml").read_text())
    assert all(group["sxids"] and group["source"] for group in table["none"])
    assert {22013} == gpu_messages.SXIDS_NONE
    page = (repo / "docs/node-health.md").read_text()
    assert all(f"`{sxid}`" in page for sxid in gpu_messages.SXIDS_NONE)


def test_the_page_has_the_table(repo: Path) -> None:
    """Each row of docs/node-health.md is one of findings.yml, or a XID's, and the other way round."""
    text = (repo / "docs/node-health.md").read_text()
    rows = re.findall(r"^\| `(\w+?)(?:_N)?` \| (\w+|by its \w+) \| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    page = {name: (kind, means, source) for name, kind, means, source in rows}
    assert page == {
        name: (row["class"] or f"by its {'error' if name in DEEP else 'number'}", row["means"], row["source"])
        for name, row in tables.findings().items()
    }
    classes = gpu_messages.XIDS
    for kind in tables.CLASSES[:3]:
        numbers = ", ".join(str(one) for one in sorted(classes) if classes[one] == kind)
        assert f"| {kind} | {numbers} |" in text


# The unit


def test_the_unit_starts_the_program(variables: Variables) -> None:
    value = variables(node_health_kernel_log="/run/kmsg")
    unit = value("pcluster-node-health.service.j2")
    assert unit.startswith("# Managed.\n")
    line = unit.split("ExecStart=")[1].split("\n\n")[0].replace("\\\n", " ").split()
    assert line == [
        *("/usr/bin/python3", "-I", "-S", "-X", "pycache_prefix=/run/pcluster-postboot/node-health/bytecode"),
        "/usr/local/libexec/pcluster-postboot/node-health",
        *("--config=/etc/pcluster-postboot/node-health.json", "--kmsg=/run/kmsg"),
    ]
    # A child that a dead file system holds may neither hold up the unit nor the next look.
    assert "\nKillMode=process\n" in unit
    assert "\nOnUnitActiveSec=45s\n" in variables(node_health_interval=45)("pcluster-node-health.timer.j2")


@pytest.mark.parametrize("patience", [1, 5, 29, 120])
def test_the_unit_gives_a_look_the_time_that_it_may_take(variables: Variables, patience: int) -> None:
    unit = variables(node_health_patience=patience)("pcluster-node-health.service.j2")
    assert int(re.findall(r"^TimeoutStartSec=(\d+)$", unit, re.MULTILINE)[0]) > main.longest(patience)


def test_a_look_of_which_much_hangs_is_no_silent_node(variables: Variables, repo: Path) -> None:
    rules = yaml.safe_load((repo / "roles/prometheus/files/rules/node_health.yml").read_text())
    (silent,) = [one for one in rules["groups"][0]["rules"] if one.get("alert") == "NodeHealthSilent"]
    value = variables()
    longest = main.longest(value("node_health_patience")) + value("node_health_interval")
    assert longest < int(re.findall(r"_timestamp_seconds\) > (\d+)", silent["expr"])[0])


def test_the_programs_parts_are_all_installed(repo: Path) -> None:
    files = repo / "roles/node_health/files"
    imported = set(re.findall(r"^from \. import (.+)$", (files / "node_health/main.py").read_text(), re.MULTILINE))
    modules = {path.stem for path in files.glob("node_health/*.py")}
    assert {name.strip() for line in imported for name in line.split(",")} <= modules
    assert all(len(path.read_text().splitlines()) < 400 for path in files.glob("node_health/*.py"))
