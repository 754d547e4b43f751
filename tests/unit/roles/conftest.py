# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Works out what roles make of the facts of a node, with Ansible's own templating."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

from ansible_collections.pcluster.postboot.plugins.action import check_variables
from ansible_collections.pcluster.postboot.tests import templating


@pytest.fixture
def work_out() -> Callable[..., Callable[[str], Any]]:
    """work_out("common enroot", facts, **variables) returns a function that works out what its argument names."""
    return templating.work_out


@pytest.fixture
def complaints() -> Callable[..., list[str]]:
    """complaints(role, facts, **variables) returns what is wrong with the variables of a node that gets the role."""

    def check(role: str, facts: dict[str, Any], **variables: Any) -> list[str]:
        action = check_variables.ActionModule.__new__(check_variables.ActionModule)
        action._templar = Templar(loader=DataLoader(), variables={})
        facts = {**templating.NODE, **facts}
        given = {"ansible_facts": {"pcluster": facts}, **variables}
        checker = action._checker(check_variables.read_roles(), given)
        assert checker.run([role], facts, bool)[role].run
        found: list[str] = checker.errors
        return found

    return check
