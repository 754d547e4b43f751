# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Print the table of a run after all else. Ansible loads what lies here, beside its playbook, without being asked."""

from __future__ import annotations

from typing import Any

from ansible import constants as C
from ansible.plugins.callback import CallbackBase

from ansible_collections.pcluster.postboot.plugins.plugin_utils import _report

DOCUMENTATION = r"""
name: pcluster_postboot
type: aggregate
short_description: Print the table of a run after all else
description:
  - The table of M(pcluster.postboot.report) stands after the recap, in which Ansible has a line for each host.
  - Where hosts that are C(ok) are not shown, their warnings are, and what C(debug) says.
extends_documentation_fragment:
  - default_callback
"""


class CallbackModule(CallbackBase):
    """Keep the table until the playbook has ended."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "pcluster_postboot"

    def __init__(self) -> None:
        super().__init__()
        self._table: list[str] = []
        _report.printed_last = True  # tasks run in forks of this process

    def v2_runner_on_ok(self, result: Any) -> None:
        """Keep the table, and show what is not to be lost where hosts that are ok are not shown."""
        if str(C.DEFAULT_STDOUT_CALLBACK).endswith("json"):
            return
        if result.task.action == "pcluster.postboot.report":
            self._table = result.result.get("lines") or self._table
        if self.get_option("display_ok_hosts"):
            return
        if result.warnings:
            self._handle_warnings(result.result)
        if result.task.action in C._ACTION_DEBUG and "msg" in result.result:
            said = result.result["msg"]
            self._display.display("\n".join(map(str, said)) if isinstance(said, list) else str(said))

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Print it."""
        if self._table:
            self._display.display("\n".join(self._table))
        self._table = []
