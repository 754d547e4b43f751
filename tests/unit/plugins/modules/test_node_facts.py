# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

import pytest
import yaml

from ansible_collections.pcluster.postboot.plugins.module_utils._boot import cloud_init
from ansible_collections.pcluster.postboot.plugins.module_utils._node import facts as _node
from ansible_collections.pcluster.postboot.plugins.module_utils._node import storage
from ansible_collections.pcluster.postboot.plugins.modules import node_facts


@pytest.mark.parametrize("check", [False, True])
def test_facts_under_one_name_and_nothing_changed(run_module, node_tree, check):
    result = run_module(node_facts, {"root": str(node_tree("head-ubuntu2404"))}, check=check)
    assert result["changed"] is False
    assert list(result["ansible_facts"]) == ["pcluster"]
    assert result["ansible_facts"]["pcluster"]["node_type"] == "head"


def test_overrides(run_module, node_tree):
    args = {"root": str(node_tree("head-ubuntu2404")), "overrides": {"gpus": {"count": 2}}}
    facts = run_module(node_facts, args)["ansible_facts"]["pcluster"]
    assert facts["gpus"]["count"] == 2
    assert facts["problems"] == [
        "2 NVIDIA GPU(s) found, but no NVIDIA driver is loaded: use an image that carries the driver, "
        "or load it (modprobe nvidia)"
    ]


def test_unknown_override_fails_on_one_line(run_module, tmp_path):
    result = run_module(node_facts, {"root": str(tmp_path), "overrides": {"nodetype": "head"}})
    assert result["failed"]
    assert result["msg"].startswith("overrides: there is no fact 'nodetype'")
    assert "\n" not in result["msg"]


def test_every_fact_is_documented():
    documented = yaml.safe_load(node_facts.RETURN)["ansible_facts"]["contains"]["pcluster"]
    assert set(documented["contains"]) == set(_node.empty_facts())
    assert set(documented["sample"]) == set(_node.empty_facts())


def test_arguments_are_documented():
    options = yaml.safe_load(node_facts.DOCUMENTATION)["options"]
    assert set(options) == {"root", "overrides", "timeout", "boot_timeout"}


@pytest.mark.parametrize(("there", "boots"), [((), True), (("result.json",), False), (("disabled",), False)])
def test_a_node_that_boots_says_so(run_module, node_tree, monkeypatch, tmp_path, there, boots):
    monkeypatch.setattr(cloud_init, "ROOT", str(tmp_path))
    args = {"root": str(node_tree("head-ubuntu2404")), "boot_timeout": 10}
    assert "ansible_facts" in run_module(node_facts, args)  # there is no cloud-init
    (tmp_path / "run/cloud-init").mkdir(parents=True)
    for name in there:
        (tmp_path / "run/cloud-init" / name).touch()
    found = run_module(node_facts, args)
    assert found.get("boots", False) is boots
    assert ("ansible_facts" in found) is not boots
    assert "ansible_facts" in run_module(node_facts, {**args, "boot_timeout": 0})


def test_this_machine(run_module, monkeypatch):
    asked = []
    monkeypatch.setattr(storage, "wait_for_setup", asked.append)
    facts = run_module(node_facts)["ansible_facts"]["pcluster"]
    assert asked == [_node.run_program]
    assert set(facts) == set(_node.empty_facts())
