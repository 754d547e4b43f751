# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""verify.yml as it is, with real Ansible, in check mode: a module that only pretends says what it was given."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

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
NODE: dict[str, Any] = {
    "node_type": "compute",
    "cluster": "main",
    "architecture": "x86_64",
    "image_build": False,
    "instance_type": "p5.48xlarge",
    "cluster_user": "ubuntu",
    "region": "us-east-2",
    "os": {"family": "debian"},
    "gpus": {"count": 8},
    "efa": {"count": 0, "pci_count": 0},
    "mounts": {"wanted": [], "found": [{"path": "/fsx"}], "missing": []},
    "slurm": {"prefix": "/opt/slurm"},
    "components": {"cuda": "12.8", "efa": None},
}


def node(name: str, **more: Any) -> dict[str, Any]:
    return {"node": {**NODE, "node_name": name, **more}}


class Playbook:
    """The collection, in which two modules are pretended."""

    def __init__(self, repo: Path, root: Path) -> None:
        self.root = root
        top = root / "ansible_collections/pcluster/postboot"
        top.mkdir(parents=True)
        for name in ("meta", "galaxy.yml", "roles"):
            (top / name).symlink_to(repo / name)
        for folder in ("lookup", "plugin_utils", "module_utils"):
            shutil.copytree(repo / "plugins" / folder, top / "plugins" / folder)
        (top / "playbooks").mkdir()
        shutil.copy(repo / "playbooks/verify.yml", top / "playbooks/verify.yml")
        for name, text in (("node_facts", FACTS), ("verify", VERIFY)):
            for folder, content in (("action", text), ("modules", "")):
                (top / "plugins" / folder).mkdir(exist_ok=True)
                (top / "plugins" / folder / f"{name}.py").write_text(content)

    def run(self, hosts: dict[str, Any], *arguments: str) -> tuple[int, str, dict[str, Any]]:
        """Return the exit code, what was printed, and what the module was given on each host."""
        told = self.root / "told"
        shutil.rmtree(told, ignore_errors=True)
        told.mkdir()
        general = {"ansible_connection": "local", "ansible_become": False, "told": f"{told}/"}
        inventory = self.root / "inventory.yml"
        inventory.write_text(yaml.safe_dump({"all": {"hosts": hosts, "vars": general}}))
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root),
            "LC_ALL": "C.UTF-8",
            "ANSIBLE_COLLECTIONS_PATH": str(self.root),
            "ANSIBLE_INJECT_FACT_VARS": "False",
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_LOCAL_TEMP": str(self.root / "tmp"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        line = [
            sys.executable,
            "-m",
            "ansible",
            "playbook",
            "-i",
            str(inventory),
            "pcluster.postboot.verify",
            "--check",
        ]
        done = subprocess.run(
            [*line, *arguments],
            env=environment,
            cwd=self.root,
            text=True,
            capture_output=True,
            timeout=120,
            check=False,
        )
        given = {path.name: json.loads(path.read_text()) for path in told.iterdir()}
        return done.returncode, " ".join((done.stdout + done.stderr).split()), given


@pytest.fixture(scope="module")
def verify(tmp_path_factory: pytest.TempPathFactory) -> Playbook:
    return Playbook(Path(__file__).resolve().parents[3], tmp_path_factory.mktemp("verify"))


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


def test_each_head_is_given_what_is_of_its_own_cluster(several: tuple[int, str, Any]) -> None:
    first, second = several[2]["h1"], several[2]["h2"]
    assert first["instance_types"] == {"gpu-st-p5-1": "p5.48xlarge", "gpu-st-p5-2": "p5.48xlarge"}
    # One that has what the head node has goes by that.
    assert set(first["versions"]) == {"", "gpu-st-p5-1"}
    assert [first["versions"][name]["efa_version"] for name in ("", "gpu-st-p5-1")] == ["1.50.0", "1.51.0"]
    assert (second["instance_types"], set(second["versions"])) == ({}, {""})
    for given, key in ((first, "cuda12-x86_64"), (second, "cuda13-x86_64")):
        assert given["nccl"]["tests_dir"] == f"/fsx/nccl-tests/current-{key}/bin"


def test_one_cluster_that_is_well(verify: Playbook) -> None:
    code, said, given = verify.run({"h1": node("h1", node_type="head"), "g": node("g")})
    assert (code, set(given)) == (0, {"h1"}), said
    assert "not measured: burst" in said


def test_where_things_are_is_the_roles_word_or_the_users(verify: Playbook) -> None:
    _code, said, given = verify.run({"h1": node("h1", node_type="head")})
    assert given["h1"].items() >= {"images_dir": "/fsx/containers", "results_dir": "/fsx/nccl-tests/results"}.items()
    usual = {"tests_dir": "/fsx/nccl-tests/current-cuda12-x86_64/bin", "environment": "/fsx/nccl/setup-nccl-env.sh"}
    assert given["h1"]["nccl"].items() >= {**usual, "mpi": "pmix"}.items(), said
    own = {"nccl_dir": "/home/n", "nccl_cuda": "13", "nccl_tests_dir": "/home/t", "container_images_dir": "/home/c"}
    _code, said, given = verify.run({"h1": {**node("h1", node_type="head"), **own, "nccl_tests_mpi": "pmi2"}})
    assert (given["h1"]["images_dir"], given["h1"]["results_dir"]) == ("/home/c", "/home/t/results")
    theirs = {"tests_dir": "/home/t/current-cuda13-x86_64/bin", "environment": "/home/n/setup-nccl-env.sh"}
    assert given["h1"]["nccl"].items() >= {**theirs, "mpi": "pmi2"}.items(), said


def test_an_option_that_is_misspelt_is_named(verify: Playbook) -> None:
    hosts = {"h1": node("h1", node_type="head")}
    code, said, given = verify.run(hosts, "-e", "verify_stage=nccl")
    assert (code, given) == (2, {})
    assert "verify_stage: no option of verify; needed: verify_container_image, " in said
    foreign = json.dumps({"verify_team": "x", "common_foreign_variables": ["verify_team"]})
    assert verify.run(hosts, "-e", foreign)[0] == 0


def test_options_are_known_used_and_documented() -> None:
    text = (Path(__file__).resolve().parents[3] / "playbooks/verify.yml").read_text()
    play = yaml.safe_load(text)[1]
    # The other strings of the expression are the beginning of a line, and what is before each.
    told = play["vars"].pop("__verify_known_options")
    known = {f"verify_{name}" for name in re.findall(r"'(\w+)'", told.partition("]")[0])}
    used = set(re.findall(r"(?<![\w./-])verify_\w+(?!\w*\.)", yaml.safe_dump(play["tasks"], width=1000)))
    documented = re.findall(r"^# (verify_\w+)|^# verify_\w+, (verify_\w+)", text, re.MULTILINE)
    assert known == used - {"verify_"}
    assert known == {name for names in documented for name in names if name} | {"verify_nccl_max_bytes"}


@pytest.mark.parametrize("arguments", [(), ("--limit", "h1")])
def test_no_node_is_no_success(verify: Playbook, arguments: tuple[str, ...]) -> None:
    code, said, _given = verify.run({}, *arguments)
    assert code != 0
    assert "The inventory lists no node" in said
