# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What variables come to, worked out with Ansible's own templating, whether their roles have run or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import lookup_loader
from ansible.template import Templar

from ansible_collections.pcluster.postboot.plugins.action import check_variables
from ansible_collections.pcluster.postboot.tests import templating

NODE = {**templating.NODE, "components": {"cuda": "12.4.1", "efa": None}}


def look(*roles: str, given: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    variables = {name: check_variables._trusted(value) for name, value in (given or {}).items()}
    variables["ansible_facts"] = {"pcluster": NODE}
    loader = DataLoader()
    lookup = lookup_loader.get(
        "pcluster.postboot.variables", loader=loader, templar=Templar(loader=loader, variables=variables)
    )
    (found,) = lookup.run(list(roles), variables, **options)
    return dict(found)


def test_defaults_and_what_is_set(repo: Path) -> None:
    found = look("nccl", "nccl_tests", given={"nccl_dir": "{{ common_shared_dir }}/mine", "nccl_jobs": 4, "other": 1})
    defaults = {
        name
        for role in ("nccl", "nccl_tests")
        for name in yaml.safe_load((repo / f"roles/{role}/defaults/main.yml").read_text())
    }
    assert set(found) == defaults
    assert (found["nccl_dir"], found["nccl_jobs"], int(found["nccl_cuda"])) == ("/fsx/mine", 4, 12)
    assert found["nccl_tests_scripts_dir"] == "/fsx/mine"  # of another role, which has not run


def test_only_what_is_set() -> None:
    given = {"nccl_dir": "{{ common_shared_dir }}/mine", "nccl_jobs": 0, "common_shared_dir": "/big", "efa_devices": 1}
    assert look("common", "nccl", given=given, only_set=True) == {"common_shared_dir": "/big", "nccl_dir": "/big/mine"}
    # Defaults of a role that has run are in sight, and nobody has set them.
    assert look("nccl", given={"nccl_cuda": "{{ __common_cuda }}"}, only_set=True) == {}


def test_versions_of_all_roles(repo: Path) -> None:
    found = look(pattern="_version$", given={"efa_version": "1.51.0"})
    roles = [path.parent.parent.name for path in repo.glob("roles/*/defaults/main.yml")]
    assert found["efa_version"] == "1.51.0"
    assert found["nccl_version"] == "2.32.3"
    assert all(name.endswith("_version") and name.startswith(tuple(roles)) for name in found)


def test_what_can_not_be_worked_out_is_an_error() -> None:
    with pytest.raises(Exception, match="nowhere"):
        look("nccl", given={"nccl_dir": "{{ nowhere }}"})
