# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What role dcgm works out from what its tasks have said, with Ansible's own templating."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("plan", "packages", "there"),
    [
        ({"failed": True}, None, False),
        ({"enough": True}, None, True),  # nothing to install, or no repository
        ({"enough": True}, {"failed": True}, True),
        ({"enough": False}, None, False),
        ({"enough": False}, {"failed": True}, False),
        ({"enough": False}, {"changed": True}, True),
    ],
)
def test_a_dcgm_that_is_there_runs_whatever_became_of_the_packages(
    work_out: Callable[..., Any], plan: dict[str, Any], packages: dict[str, Any] | None, there: bool
) -> None:
    registered = {"__dcgm_plan": plan, **({} if packages is None else {"__dcgm_installed": packages})}
    assert work_out("dcgm", {}, **registered)("__dcgm_there") is there


def test_a_profiling_module_that_came_later_restarts_the_host_engine(work_out: Callable[..., Any]) -> None:
    """Where the deb packages of both machines have it, and the rpm packages."""
    module = "libdcgmmoduleprofiling.so.4"
    assert work_out("dcgm", {})("__dcgm_programs") == [
        "/usr/bin/nv-hostengine",
        f"/usr/lib/x86_64-linux-gnu/{module}",
        f"/usr/lib/aarch64-linux-gnu/{module}",
        f"/usr/lib64/{module}",
    ]
