# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which tools login_tools works out from the facts of a node, and that they come in one step of any versions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

Variables = Callable[..., Callable[[str], Any]]
FAMILIES = {"ubuntu": "debian", "amzn": "redhat", "rocky": "redhat", "rhel": "redhat", "fedora": "redhat"}


@pytest.fixture
def variables(work_out: Variables) -> Variables:
    """variables(system, node_type, **more) returns a function that works out a variable."""

    def make(system: str = "ubuntu", node_type: str = "login", **more: Any) -> Callable[[str], Any]:
        facts = {"os": {"id": system, "family": FAMILIES[system]}, "node_type": node_type}
        return work_out("common login_tools", facts, **more)

    return make


@pytest.mark.parametrize(("kind", "wanted"), [("login", True), ("head", False), ("compute", False)])
def test_login_nodes_get_them_and_others_on_request(variables: Variables, kind: str, wanted: bool) -> None:
    assert variables(node_type=kind)("login_tools_enabled") is wanted


@pytest.mark.parametrize(
    ("system", "names"),
    [
        ("ubuntu", ["git", "htop", "jq", "tmux", "tree", "vim"]),
        ("amzn", ["git", "htop", "jq", "tmux", "tree", "vim-enhanced"]),
        ("rocky", ["git", "jq", "tmux", "tree", "vim-enhanced"]),
        ("rhel", ["git", "jq", "tmux", "tree", "vim-enhanced"]),
        ("fedora", []),
    ],
)
def test_each_distribution_has_names_of_its_own(variables: Variables, system: str, names: list[str]) -> None:
    assert variables(system)("__login_tools_wanted") == names


def test_ones_own_come_along_once(variables: Variables) -> None:
    more = variables(login_tools_packages=["tree"], login_tools_extra_packages=["nvtop", "tree"])
    assert more("__login_tools_wanted") == ["tree", "nvtop"]


def test_a_list_that_is_empty_asks_for_nothing(repo: Path) -> None:
    (task,) = yaml.safe_load((repo / "roles/login_tools/tasks/install.yml").read_text())
    assert task["when"] == "__login_tools_wanted | length > 0"
    assert task["pcluster.postboot.packages"].keys() == {"manager", "packages", "apart", "lock_timeout"}
