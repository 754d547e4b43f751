# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A module says the same in Ansible's own process as in one of its own; and it runs there only where a node pulls."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.plugins.action.normal import ActionModule as Normal

from ansible_collections.pcluster.postboot.plugins.action import node_module
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import in_process

REPO = Path(__file__).resolve().parents[4]
MODULE = """
import sys
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import serve
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem

DOCUMENTATION = "module: tried"


def apply(module):
    what = module.params["what"]
    print("a line that is no result")
    if what == "problem":
        raise Problem("found this; needed that", log=["a line"])
    if what == "crash":
        raise KeyError(what)
    return {
        "changed": True,
        "within": "ansible.executor" in sys.modules,
        "check": module.check_mode,
        "diff": {"before": "a", "after": "b"},
        "warnings": ["take care"],
        "given": module.params,
        "facts": {"é": [1, None, {"deep": "{{ no template }}"}]},
    }


if __name__ == "__main__":
    serve({"what": {"required": True}, "number": {"type": "int", "default": 3}, "secret": {"no_log": True}}, apply)
"""
TRIES: dict[str, dict[str, Any]] = {
    "ok": {"pcluster.postboot.tried": {"what": "é", "number": "7", "secret": "hidden"}},
    "check": {"pcluster.postboot.tried": {"what": "x"}, "check_mode": True, "diff": True},
    "problem": {"pcluster.postboot.tried": {"what": "problem"}},
    "crash": {"pcluster.postboot.tried": {"what": "crash"}},
    "missing": {"pcluster.postboot.tried": {"number": 1}},
    "surroundings": {"pcluster.postboot.tried": {"what": "x"}, "environment": {"SOME": "thing"}},
    "later": {"pcluster.postboot.tried": {"what": "x"}, "async": 20, "poll": 1},
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, ansible: Callable[..., Any]) -> dict[str, dict[str, Any]]:
    """Return what each try has registered: `own` in a process of its own, and `here`."""
    root = tmp_path_factory.mktemp("in_process")
    top = root / "ansible_collections/pcluster/postboot"
    (top / "plugins/modules").mkdir(parents=True)
    (top / "meta").mkdir()
    (top / "galaxy.yml").symlink_to(REPO / "galaxy.yml")
    for name in ("action", "module_utils", "plugin_utils"):
        (top / "plugins" / name).symlink_to(REPO / "plugins" / name)
    (top / "plugins/modules/tried.py").write_text(MODULE)
    routing = {"plugin_routing": {"modules": {"tried": {"action_plugin": "pcluster.postboot.node_module"}}}}
    (top / "meta/runtime.yml").write_text(json.dumps(routing))
    tasks = [{"name": name, "register": name, "ignore_errors": True, **task} for name, task in TRIES.items()]
    everything = f"{{{{ dict({list(TRIES)} | zip([{', '.join(TRIES)}])) | to_json }}}}"
    keep = {"ansible.builtin.copy": {"dest": "{{ dest }}", "content": everything, "mode": "0600"}}
    play = {"hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": [*tasks, keep]}
    (root / "play.yml").write_text(json.dumps([play]))
    found = {}
    for how, asked in (("own", {}), ("here", {in_process.ASKED: "1"})):
        env = {"ANSIBLE_COLLECTIONS_PATH": str(root), "ANSIBLE_REMOTE_TEMP": str(root / "remote"), **asked}
        own = json.dumps({"dest": str(root / how), "ansible_python_interpreter": sys.executable})
        line = ["-i", "localhost,", str(root / "play.yml"), "-e", own]
        done = ansible("playbook", *line, LC_ALL="C.UTF-8", ANSIBLE_PIPELINING="true", **env)
        assert done.returncode == 0, done.stdout + done.stderr
        found[how] = json.loads((root / how).read_text())
    return found


@pytest.mark.parametrize("name", TRIES)
def test_the_result_is_the_same(results: dict[str, dict[str, Any]], name: str) -> None:
    own, here = (results[how][name] for how in ("own", "here"))
    volatile = {"within", "exception", "ansible_job_id", "results_file"}
    assert {k: v for k, v in here.items() if k not in volatile} == {k: v for k, v in own.items() if k not in volatile}
    assert ("exception" in own) == ("exception" in here)


def test_it_runs_here_where_that_is_asked_for_and_can_be_done(results: dict[str, dict[str, Any]]) -> None:
    assert not any(result.get("within") for result in results["own"].values())
    within = {name: result["within"] for name, result in results["here"].items() if "within" in result}
    assert within == {"ok": True, "check": True, "surroundings": False, "later": False}


def test_what_is_done_before_and_after_is_ansibles_own() -> None:
    assert issubclass(node_module.ActionModule, Normal)


def test_each_module_of_a_role_can_run_here() -> None:
    """A new module is routed too, or its own action is derived from InProcess."""
    routed = yaml.safe_load((REPO / "meta/runtime.yml").read_text())["plugin_routing"]["modules"]
    actions = REPO / "plugins/action"
    site = (REPO / "playbooks/site.yml").read_text()
    roles = re.findall(r"postboot_component: (\w+)", site)
    files = [file for role in roles for file in (REPO / "roles" / role / "tasks").glob("*.yml")]
    called = {
        name
        for text in (site, *(file.read_text() for file in files))
        for name in re.findall(r"pcluster\.postboot\.(\w+):(?:\s|$)", text)
        if (REPO / f"plugins/modules/{name}.py").is_file()
    }
    own = {name for name in called if (actions / f"{name}.py").is_file()}
    assert called - own == set(routed)
    assert all(routing == {"action_plugin": "pcluster.postboot.node_module"} for routing in routed.values())
    with_module = {name for name in own if "serve(" in (REPO / f"plugins/modules/{name}.py").read_text()}
    for name in with_module:
        action = importlib.import_module(f"ansible_collections.pcluster.postboot.plugins.action.{name}")
        assert issubclass(action.ActionModule, in_process.InProcess), name
