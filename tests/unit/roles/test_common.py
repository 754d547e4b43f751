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


def test_the_inventory_tells_what_a_node_of_hyperpod_is(work_out: Variables) -> None:
    told: dict[str, Any] = {"pcluster_platform": "hyperpod", "pcluster_node_type": "compute", "pcluster_queue": "h100"}
    of = work_out("common", {}, **told)
    assert of("__common_overrides") == {"node_type": "compute", "platform": "hyperpod", "queue": "h100"}
    mounts = [{"path": "/fsx", "type": "lustre", "source": "fs-01.fsx.us-east-1.amazonaws.com@tcp:/1abcdefg"}]
    with_mounts = work_out("common", {}, **told, pcluster_mounts=mounts)
    assert with_mounts("__common_overrides")["mounts"] == {"wanted": mounts}
    mine = work_out("common", {}, **{**told, "common_node_overrides": {"node_type": "head"}})
    assert mine("__common_overrides")["node_type"] == "head", "what a person says counts more"
    assert work_out("common", {}, pcluster_node_type="compute")("__common_overrides") == {}
