# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the report reads from a role that waits for another node."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ansible_collections.pcluster.postboot.plugins.action.wait_for_publisher import ActionModule
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import report


class Action(ActionModule):
    def __init__(self, **args: object) -> None:
        self._task = SimpleNamespace(args=args, check_mode=False, async_val=0)
        self._connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir=None))


@pytest.mark.parametrize(
    ("waits", "phase", "told"),
    [(True, "boot", "the head publishes it"), (True, "all", ""), (False, "boot", "")],
)
def test_only_what_may_come_by_itself_is_waited_for_in_a_boot(waits: bool, phase: str, told: str) -> None:
    result = Action(message="the head publishes it", waits=waits).run(task_vars={})
    assert (result["failed"], result["msg"]) == (True, "the head publishes it")
    assert report.waits_for(result, phase) == told
