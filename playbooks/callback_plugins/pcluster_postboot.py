# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Print the table of a run after all else, and which task takes long.

Ansible loads what lies here, beside its playbook, without being asked.
"""

from __future__ import annotations

import os
from typing import Any

from ansible.plugins.callback import CallbackBase

from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import forks, patience, report, terminal

DOCUMENTATION = r"""
name: pcluster_postboot
type: aggregate
short_description: Print the table of a run after all else, and which task takes long
description:
  - A task that takes longer than ten seconds is named with its seconds, now and then, until another task begins.
  - The table of M(pcluster.postboot.report) stands after the recap, in which Ansible has a line for each host.
"""


class CallbackModule(CallbackBase):
    """Keep the table until the playbook has ended."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "pcluster_postboot"

    def __init__(self) -> None:
        super().__init__()
        self._play: Any = None
        self._shown = False
        self._patience = patience.Patience(terminal.say)
        # Nobody watches a node that runs by itself.
        self._watched = not terminal.quiet() and "PCLUSTER_POSTBOOT_PROGRESS" not in os.environ
        report.printed_last = True  # tasks run in forks of this process
        forks.prepare()

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Remember who knows what its tasks register."""
        self._play = play

    # Called once a task. Being called with each host's result would cost a copy of it.
    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        """Note that there will be a table, and watch the task."""
        if self._watched:
            self._patience.begin("" if task.action in patience.TALKERS else str(task.name or task.action))
        if task.action == "pcluster.postboot.report" and task.args.get("state") == "shown":
            self._shown = True

    def v2_playbook_on_handler_task_start(self, task: Any) -> None:
        """Watch a handler too."""
        self.v2_playbook_on_task_start(task, False)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Print the table."""
        self._patience.begin("")
        if not self._shown:
            return
        self._shown = False
        known = self._play.get_variable_manager().get_vars(play=self._play)["hostvars"]
        tables = (known[host].get("__postboot_table") or {} for host in stats.processed)
        lines = next((table["lines"] for table in tables if table.get("lines")), [])
        terminal.say(*lines)
