# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Reads what a node is once its boot has ended: before that, file systems and programs that are to come are missing."""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleActionFail

from ansible_collections.pcluster.postboot.plugins.module_utils._boot import cloud_init
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import terminal
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.in_process import InProcess

_MODULE = "pcluster.postboot.node_facts"
_PAUSE = 10.0
# Nothing is changed in check mode, and so nobody has to wait for long.
_LONGEST_CHECK = 10.0


class ActionModule(InProcess):
    """Call the module as often as waiting for the end of a boot needs."""

    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        variables = task_vars or {}
        result: dict[str, Any] = super().run(tmp, variables)
        result.update(self._read(dict(self._task.args), variables))
        return result

    def _read(self, args: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        seconds = _seconds(args)
        if self._connection.transport == "local":
            args["boot_timeout"] = 0  # the run may be a part of the boot, which would wait for itself
        if self._task.check_mode:
            seconds = min(seconds, _LONGEST_CHECK)
        begun = time.monotonic()
        host, told = variables.get("inventory_hostname"), False
        while True:
            answer: dict[str, Any] = self._execute_module(module_name=_MODULE, module_args=args, task_vars=variables)
            if not answer.get("boots"):
                return answer
            waited = time.monotonic() - begun
            if waited >= seconds:
                why = (
                    f"{host} still boots after {waited:.0f} s: cloud-init has not written {cloud_init.RESULT}; needed: "
                    "the end of its boot (see /var/log/cloud-init-output.log there), a longer common_boot_timeout, or "
                    "common_boot_timeout: 0, which does not wait"
                )
                return {"failed": True, "msg": why}
            if not told:
                terminal.say(
                    f"{host} still boots: this run waits until cloud-init has written {cloud_init.RESULT}, for "
                    f"{seconds:.0f} s at most (common_boot_timeout)"
                )
                told = True
            time.sleep(min(_PAUSE, seconds - waited))


def _seconds(args: dict[str, Any]) -> float:
    found = args.get("boot_timeout", 0)
    try:
        return float(found)
    except (TypeError, ValueError) as error:
        raise AnsibleActionFail(f"boot_timeout is {found!r}; needed: a number of seconds") from error
