# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What stands on the ground floor, module_utils/_host: every module, and whatever runs a program."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

PLUGINS = Path(__file__).resolve().parents[3] / "plugins"
HOST = "ansible_collections.pcluster.postboot.plugins.module_utils._host"
# Why these run programs themselves, and not by _host/run.py.
REASONS = {
    "module_utils/_host/run.py": "it is the one way",
    "module_utils/_artifact/archive.py": "both ends of the program are files, which may be larger than the memory",
    "module_utils/_artifact/fetch.py": "the program's bytes are taken as they come, and only a silence is limited",
    "module_utils/_efa/installer.py": "a log is written while it runs, and its progress is told",
    "module_utils/_pyxis/load.py": "it is installed as a program of its own too, which has nothing of ours to import",
    "module_utils/_shared_build/steps.py": "a build has no time limit, and its log is written while it runs",
    "plugin_utils/_aws/session_manager.py": "its input stays open while its output is read, and threads run many",
    "module_utils/_verify/cluster.py": "many jobs run at once, and what they print is read as it comes",
}
# Why these read JSON themselves, and not by _host/document.py.
JSON = {
    "module_utils/_host/document.py": "it is the one way",
    "module_utils/_host/lock.py": "a lock is read in any shape, as another version may have written it",
    "module_utils/_diagnose/node.py": "the lock, as above",
    "module_utils/_diagnose/rooms.py": "what its own child has written",
    "module_utils/_node/facts.py": "what its own child has written",
    "module_utils/_grafana/dashboards.py": "a copy of what it has written",
    "plugin_utils/_publish/variables.py": "variables are read as Ansible reads them",
}
# Modules that show no sign of life, because the run that holds the node may be another than theirs.
SILENT = {
    "modules/boot_info.py",
    "modules/bundle.py",
    "modules/diagnose_node.py",
    "modules/node_facts.py",
    "modules/node_run.py",
    "modules/s3_release.py",
}


def names(tree: ast.AST) -> set[str]:
    """Return what a file imports, names of `from` included."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def calls(tree: ast.AST, name: str) -> list[ast.Call]:
    """Return the calls of a function by its plain name."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    return [call for call in found if getattr(call.func, "id", "") == name]


@functools.cache
def trees(folder: Path) -> dict[str, ast.Module]:
    return {str(path.relative_to(PLUGINS)): ast.parse(path.read_text()) for path in sorted(folder.rglob("*.py"))}


MODULES = {
    name: tree
    for name, tree in trees(PLUGINS / "modules").items()
    if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body)
}


@pytest.mark.parametrize("module", MODULES)
def test_a_module_goes_through_serve_which_shows_that_the_run_is_alive(module: str) -> None:
    tree = MODULES[module]
    (serve,) = calls(tree, "serve")
    assert f"{HOST}.module.serve" in names(tree)
    assert not calls(tree, "AnsibleModule")
    assert any(keyword.arg == "alive" for keyword in serve.keywords) == (module in SILENT)


def test_programs_run_by_the_ground_floor_or_for_a_reason() -> None:
    found = {
        name for name, tree in trees(PLUGINS).items() if any(one.split(".")[0] == "subprocess" for one in names(tree))
    }
    assert found == set(REASONS)


def test_urls_are_opened_by_the_ground_floor() -> None:
    openers = {"urlopen", "build_opener", "OpenerDirector"}
    for name, tree in trees(PLUGINS).items():
        used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        annotated = {"OpenerDirector"} if name == "module_utils/_host/http.py" else set()
        assert used & openers == annotated, name


def test_temporary_folders_are_made_by_the_ground_floor_or_for_a_reason() -> None:
    """TemporaryDirectory fails where it cannot remove the folder, and cleaning up must not fail a run."""
    makers = {"TemporaryDirectory", "NamedTemporaryFile", "mkdtemp", "mkstemp"}
    found = {
        name
        for name, tree in trees(PLUGINS).items()
        if makers & {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    }
    assert found == {
        "module_utils/_host/files.py",
        "module_utils/_pyxis/load.py",  # installed as a separate program
        "module_utils/_verify/nccl.py",  # its folder is kept
    }


def test_the_ground_floor_stands_on_nothing_of_ours() -> None:
    for name, tree in trees(PLUGINS / "module_utils/_host").items():
        ours = {one for one in names(tree) if one.startswith("ansible_collections.")}
        assert all(one.startswith(f"{HOST}.") for one in ours), name


def test_json_is_read_in_one_place() -> None:
    """Which turns deep nesting and numbers that Python cannot use into one line."""
    readers = {
        str(path.relative_to(PLUGINS))
        for path in PLUGINS.rglob("*.py")
        if re.search(r"\bjson\.loads?\(", path.read_text(encoding="utf-8"))
    }
    assert readers <= JSON.keys()
