# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What role dcgm works out from what its tasks have said, with Ansible's own templating."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

from ansible_collections.pcluster.postboot.plugins.action import check_variables


def fill(repo: Path, text: str, **more: Any) -> Any:
    everything = {**yaml.safe_load((repo / "roles/dcgm/vars/main.yml").read_text()), **more}
    trusted = {name: check_variables._trusted(value) for name, value in everything.items()}
    return Templar(loader=DataLoader(), variables=trusted).template(check_variables._trusted(text))


@pytest.mark.parametrize(
    ("plan", "packages", "there"),
    [
        ({"failed": True}, None, False),
        ({"stays": True}, None, True),  # nothing to install, or no repository
        ({"stays": True}, {"failed": True}, True),
        ({"stays": False}, None, False),
        ({"stays": False}, {"failed": True}, False),
        ({"stays": False}, {"changed": True}, True),
    ],
)
def test_a_dcgm_that_is_there_runs_whatever_became_of_the_packages(
    repo: Path, plan: dict[str, Any], packages: dict[str, Any] | None, there: bool
) -> None:
    registered = {"__dcgm_plan": plan, **({} if packages is None else {"__dcgm_packages": packages})}
    assert fill(repo, "{{ __dcgm_there }}", **registered) is there


def test_a_profiling_module_that_came_later_restarts_the_host_engine(repo: Path) -> None:
    """Where the deb packages of both machines have it, and the rpm packages."""
    module = "libdcgmmoduleprofiling.so.4"
    assert fill(repo, "{{ __dcgm_programs }}") == [
        "/usr/bin/nv-hostengine",
        f"/usr/lib/x86_64-linux-gnu/{module}",
        f"/usr/lib/aarch64-linux-gnu/{module}",
        f"/usr/lib64/{module}",
    ]
