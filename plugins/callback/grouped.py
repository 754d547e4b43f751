# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ansible's own output, in which the hosts that a task has changed share a line."""

from __future__ import annotations

DOCUMENTATION = r"""
name: grouped
type: stdout
short_description: Ansible's own output for many hosts
version_added: 0.2.0
description:
  - What P(ansible.builtin.default#callback) prints, with one line for all hosts that a task has changed, and none for
    hosts that it has not. Hosts of like names are named as C(gpu-st-p5-[1-98]).
  - Failures, warnings, what C(debug) says and the recap are those of P(ansible.builtin.default#callback), and so is
    everything with C(-v).
extends_documentation_fragment:
  - default_callback
  - result_format_callback
requirements:
  - set as C(stdout_callback) in the configuration; C(inventory/ansible.cfg) of this collection does so
author: The pcluster.postboot contributors (@pcluster)
"""

from collections.abc import Iterable
from typing import Any

from ansible import constants as C
from ansible.plugins.callback.default import CallbackModule as Default

from ansible_collections.pcluster.postboot.plugins.module_utils._host.text import visible
from ansible_collections.pcluster.postboot.plugins.module_utils._slurm.names import ranges


def _named(hosts: Iterable[str]) -> str:
    names = list(hosts)
    return f"[{names[0]}]" if len(names) == 1 else f"{len(names)} hosts, {ranges(names)}"


class CallbackModule(Default):
    """Keep the hosts that a task has changed until it has ended."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "pcluster.postboot.grouped"

    def __init__(self) -> None:
        super().__init__()
        self._changed: list[str] = []

    def _tell_changed(self) -> None:
        if self._changed:
            self._display.display(visible(f"changed: {_named(self._changed)}"), color=C.COLOR_CHANGED)
            self._changed = []

    def _task_start(self, task: Any, prefix: Any = None) -> None:
        self._tell_changed()
        super()._task_start(task, prefix)

    def v2_runner_on_ok(self, result: Any) -> None:
        """Keep a host that was changed; say of others what they warn of."""
        looped = result.task.loop and "results" in result.result
        if self._run_is_verbose(result) or (looped and result.is_changed()):
            super().v2_runner_on_ok(result)
            return
        if result.is_changed() and self._last_task_banner != result.task._uuid:
            self._tell_changed()  # of another task, as with the strategy `free`
            self._print_task_banner(result.task)
        self._handle_warnings_and_exception(result)
        if result.is_changed():
            self._changed.append(self.host_label(result))

    def v2_runner_item_on_ok(self, result: Any) -> None:
        """Show an item that was changed; say of others what they warn of."""
        if self._run_is_verbose(result) or result.is_changed():
            super().v2_runner_item_on_ok(result)
        else:
            self._handle_warnings_and_exception(result)

    def v2_playbook_on_include(self, included_file: Any) -> None:
        self._tell_changed()
        names = _named(host.name for host in included_file._hosts)
        self._display.display(visible(f"included: {included_file._filename} for {names}"), color=C.COLOR_INCLUDED)

    def v2_playbook_on_play_start(self, play: Any) -> None:
        self._tell_changed()
        super().v2_playbook_on_play_start(play)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        self._tell_changed()
        super().v2_playbook_on_stats(stats)
