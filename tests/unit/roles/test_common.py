# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What common works out from the facts of a node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Variables = Callable[..., Callable[[str], Any]]


@pytest.mark.parametrize(("family", "manager"), [("debian", "apt"), ("redhat", "dnf"), (None, "none")])
def test_the_package_manager(work_out: Variables, family: str | None, manager: str) -> None:
    assert work_out("common", {"os": {"family": family}})("__common_package_manager") == manager
