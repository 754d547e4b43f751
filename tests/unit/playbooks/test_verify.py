# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""verify.yml as it is, with real Ansible, in check mode: a module that only pretends says what it was given."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.pcluster.postboot.tests import templating

pytestmark = pytest.mark.once

FACTS = """
from ansible.plugins.action import ActionBase
class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        if task_vars.get("gone"):
            return {"failed": True, "unreachable": True, "msg": "no connection"}
        return {"changed": False, "ansible_facts": {"pcluster": task_vars["node"]}}
"""
VERIFY = """
import json
from ansible.plugins.action import ActionBase
class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        with open(task_vars["told"] + task_vars["inventory_hostname"], "w") as stream:
            json.dump(self._task.args, stream)
        complaints = task_vars.get("complaints", [])
        return {"changed": False, "table": ["STAGE  WHERE"], "complaints": complaints, "verdict": "not measured: burst"}
"""
# In the place of VERIFY where it is to run as Ansible runs a module that takes long.
MODULE = """#!{python}
# WANT_JSON
import json, os, signal, sys
args = json.load(open(sys.argv[1]))
plan = json.load(open({plans!r}))[args["cluster"]]
with open(args["output"], "w") as stream:
    json.dump(plan["report"], stream)
if plan["result"] is None:
    os.kill(os.getpid(), signal.SIGKILL)
print(json.dumps(plan["result"]))
"""
NODE: dict[str, Any] = {
    **templating.NODE,
    "node_type": "compute",
    "instance_type": "p5.48xlarge",
    "cluster_user": "ubuntu",
    "region": "us-east-2",
    "gpus": {"count": 8},
    "components": {"cuda": "12.8", "efa": None},
}


def node(name: str, **more: Any) -> dict[str, Any]:
    return {"node": {**NODE, "node_name": name, **more}}


class Playbook:
    """The collection, in which two modules are pretended."""

    def __init__(self, root: Path, ansible: Callable[..., Any]) -> None:
        self.root, self.ansible = root, ansible
        self.repo = repo = Path(__file__).resolve().parents[3]
        top = root / "ansible_collections/pcluster/postboot"
        (top / "meta").mkdir(parents=True)
        # Not the real one, which would send node_facts to another action than the fake.
        (top / "meta/runtime.yml").write_text('requires_ansible: ">=2.19"\n')
        for name in ("deprecations.yml", "supported.yml"):
            (top / "meta" / name).symlink_to(repo / "meta" / name)
        for name in ("galaxy.yml", "roles"):
            (top / name).symlink_to(repo / name)
        for folder in ("filter", "lookup", "plugin_utils", "module_utils"):
            shutil.copytree(repo / "plugins" / folder, top / "plugins" / folder)
        self.plugins = top / "plugins"
        shutil.copytree(repo / "playbooks", top / "playbooks")
        for folder in ("action", "modules"):
            (top / "plugins" / folder).mkdir()
            shutil.copy(repo / f"plugins/{folder}/check_variables.py", top / "plugins" / folder)
        for name, text in (("node_facts", FACTS), ("verify", VERIFY)):
            for folder, content in (("action", text), ("modules", "")):
                (top / "plugins" / folder / f"{name}.py").write_text(content)

    def run(self, hosts: dict[str, Any], *arguments: str, check: bool = True) -> tuple[int, str, dict[str, Any]]:
        """Return the exit code, what was printed, and what the module was given on each host."""
        told = self.root / "told"
        shutil.rmtree(told, ignore_errors=True)
        told.mkdir()
        general = {"ansible_connection": "local", "ansible_become": False, "told": f"{told}/"}
        general["ansible_python_interpreter"] = sys.executable
        inventory = self.root / "inventory.yml"
        inventory.write_text(yaml.safe_dump({"all": {"hosts": hosts, "vars": general}}))
        arguments = (*(["--check"] if check else []), *arguments)
        done = self.ansible(
            *("playbook", "-i", str(inventory), "pcluster.postboot.verify", *arguments),
            cwd=self.root,
            HOME=str(self.root),
            ANSIBLE_COLLECTIONS_PATH=str(self.root),
            ANSIBLE_INJECT_FACT_VARS="False",
            ANSIBLE_ASYNC_DIR=str(self.root / "async"),
            PYTHONDONTWRITEBYTECODE="1",
        )
        given = {path.name: json.loads(path.read_text()) for path in told.iterdir()}
        return done.returncode, " ".join((done.stdout + done.stderr).split()), given


@pytest.fixture(scope="module")
def verify(tmp_path_factory: pytest.TempPathFactory, ansible: Callable[..., Any]) -> Playbook:
    return Playbook(tmp_path_factory.mktemp("verify"), ansible)


@pytest.fixture(scope="module")
def several(verify: Playbook) -> tuple[int, str, dict[str, Any]]:
    hosts = {
        "h1": {**node("h1", node_type="head"), "complaints": ["gpu: efa (nodes): 31 devices"]},
        "gpu1": {**node("gpu-st-p5-1"), "efa_version": "1.51.0"},
        "gpu2": node("gpu-st-p5-2"),
        "h2": {**node("h2", node_type="head", cluster="second", components={"cuda": None, "efa": None})},
        "head": node("c-1", cluster="third"),  # its name says nothing
        "c2": node("c-2", cluster="third"),
        "h4": {**node("h4", node_type="head", cluster="fourth"), "gone": True},
        "c4": node("c-4", cluster="fourth"),
        "odd": node("odd", cluster=None),
        "eyes": node("eyes", cluster="eyes", node_type="monitoring"),
    }
    return verify.run(hosts)


def test_a_cluster_without_its_head_is_named_and_the_others_are_verified(several: tuple[int, str, Any]) -> None:
    code, said, given = several
    assert code != 0
    assert set(given) == {"h1", "h2"}
    for cluster, hosts in (("third", "c2, head"), ("fourth", "c4"), ("without a name", "odd")):
        line = (
            f"cluster {cluster} was not verified: found no head node among {hosts}; needed: its own, because jobs are"
        )
        assert line in said
    # One that was verified, and failed, has its own line alone.
    assert "gpu: efa (nodes): 31 devices" in said
    assert "cluster main was not verified" not in said
    assert "cluster eyes" not in said  # the monitoring instance is in none


def test_each_head_is_given_what_is_of_its_own_cluster(several: tuple[int, str, Any]) -> None:
    first, second = several[2]["h1"], several[2]["h2"]
    assert first["instance_types"] == {"gpu-st-p5-1": "p5.48xlarge", "gpu-st-p5-2": "p5.48xlarge"}
    # One that has what the head node has goes by that.
    assert set(first["versions"]) == {"", "gpu-st-p5-1"}
    assert [first["versions"][name]["efa_version"] for name in ("", "gpu-st-p5-1")] == ["1.50.0", "1.51.0"]
    assert (second["instance_types"], set(second["versions"])) == ({}, {""})
    for given, key in ((first, "cuda12-x86_64"), (second, "cuda13-x86_64")):
        assert given["nccl"]["tests_dir"] == f"/fsx/nccl-tests/current-{key}-glibc2.39/bin"


def test_the_page_is_made_here_of_what_the_head_node_has_found(tmp_path: Path, ansible: Callable[..., Any]) -> None:
    """Also where the run was killed, and not of an earlier run's results."""
    playbook, old = Playbook(tmp_path, ansible), "2026-11-20T09:21:00Z"
    well = {"changed": False, "table": [], "complaints": ["gpu: efa (nodes): 31 devices"], "verdict": "1 failed"}
    plans = {
        "well": {"report": {"finished": old, "verdict": "1 failed"}, "result": well},
        "killed": {"report": {"finished": "", "verdict": "not finished: nccl"}, "result": None},
        "wrong": {"report": {"finished": old}, "result": {"failed": True, "msg": "verify_partitions: found x"}},
    }
    (tmp_path / "plans").write_text(json.dumps(plans))
    shutil.copy(playbook.repo / "plugins/action/verify.py", playbook.plugins / "action")
    text = MODULE.format(python=sys.executable, plans=str(tmp_path / "plans"))
    (playbook.plugins / "modules/verify.py").write_text(text)
    hosts = {name: node(name, node_type="head", cluster=name) for name in plans}
    where = ["-e", f"__verify_results={tmp_path}/{{{{ inventory_hostname }}}}"]
    code, said, _given = playbook.run(hosts, *where, check=False)
    assert code != 0
    assert "gpu: efa (nodes): 31 devices" in said
    assert "verify_partitions: found x" in said
    pages = {name: list(tmp_path.rglob(f"*{name}.html")) for name in plans}
    assert {name: len(found) for name, found in pages.items()} == {"well": 2, "killed": 2, "wrong": 0}, said
    for name in ("well", "killed"):
        here, there = tmp_path / f"verify-{name}.html", tmp_path / f"{name}.html"
        assert plans[name]["report"]["verdict"] in here.read_text() == there.read_text()


def test_where_things_are_is_the_roles_word_or_the_users(verify: Playbook) -> None:
    """Of two clusters that are well."""
    own = {"nccl_dir": "/home/n", "nccl_cuda": "13", "nccl_tests_dir": "/home/t", "container_images_dir": "/home/c"}
    second = {
        **node("h2", node_type="head", cluster="second"),
        **own,
        "nccl_tests_mpi": "pmi2",
        "verify_health_level": 3,
    }
    # HyperPod's controller knows the instance types of all nodes; a node in the play says so itself.
    types = {"instance_types": {"ip-10-1-4-190": "trn1.32xlarge", "g": "p4d.24xlarge"}}
    code, said, given = verify.run({"h1": node("h1", node_type="head", **types), "g": node("g"), "h2": second})
    assert (code, set(given)) == (0, {"h1", "h2"}), said
    assert "not measured: burst" in said
    assert given["h1"]["instance_types"] == {"ip-10-1-4-190": "trn1.32xlarge", "g": "p5.48xlarge"}
    assert given["h1"].items() >= {"images_dir": "/fsx/containers", "results_dir": "/fsx/nccl-tests/results"}.items()
    assert {"node_exporter", "nvidia-dcgm-exporter"} <= {one["unit"] for one in given["h1"]["exporters"]}
    tests = "/fsx/nccl-tests/current-cuda12-x86_64-glibc2.39/bin"
    usual = {"tests_dir": tests, "environment": "/fsx/nccl/setup-nccl-env.sh"}
    assert given["h1"]["nccl"].items() >= {**usual, "mpi": "pmix"}.items(), said
    assert (given["h2"]["images_dir"], given["h2"]["results_dir"]) == ("/home/c", "/home/t/results")
    theirs = {"tests_dir": "/home/t/current-cuda13-x86_64-glibc2.39/bin", "environment": "/home/n/setup-nccl-env.sh"}
    assert given["h2"]["nccl"].items() >= {**theirs, "mpi": "pmi2"}.items(), said
    # How long a diagnostic may take goes by its level.
    assert [given[name]["health"]["minutes"] for name in ("h1", "h2")] == [15, 60]


@pytest.mark.parametrize("arguments", [(), ("--limit", "h1")])
def test_no_node_is_no_success(verify: Playbook, arguments: tuple[str, ...]) -> None:
    code, said, _given = verify.run({}, *arguments)
    assert code != 0
    assert "The inventory lists no node" in said
