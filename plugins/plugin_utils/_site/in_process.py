# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Runs a module within the process that Ansible has forked for its task, where the node runs the collection itself.

Ansible packs each module with all that it imports, and has a new Python compile the package: 0.3 to 0.4 s a task, of
which a module that finds nothing to do needs a tenth. A node that pulls has the files and a Python that has compiled
most of them. roles/pull/files/pull.py asks for it with an environment variable; every other run is as ever.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import yaml
from ansible.executor.module_common import _BuiltModule
from ansible.module_utils._internal._ansiballz import _loader
from ansible.module_utils.common.json import Direction, get_module_encoder

from ansible_collections.pcluster.postboot.plugins.module_utils._host import lock
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import turns
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.reach import Reaching

ASKED = "PCLUSTER_POSTBOOT_IN_PROCESS"
_OURS = "pcluster.postboot."
_MODULES = "ansible_collections.pcluster.postboot.plugins.modules"
_PROFILE = "legacy"  # how Ansible writes the arguments and the result of modules such as these


def prepare() -> None:
    """Load what modules import, where forks of this process will run them: each would compile it anew."""
    if not os.environ.get(ASKED):
        return
    importlib.import_module("ansible.module_utils.basic")
    runtime = yaml.safe_load((Path(__file__).resolve().parents[3] / "meta/runtime.yml").read_text())
    for name in runtime["plugin_routing"]["modules"]:
        module = f"{_MODULES}.{name}"
        importlib.import_module(module)
        del sys.modules[module]  # a module that is run is executed anew


class InProcess(Reaching):
    """An action whose module may run in this process. What Ansible does before and after it is Ansible's own."""

    def _here(self, module_name: str) -> bool:
        return bool(
            os.environ.get(ASKED)
            and module_name.startswith(_OURS)
            and self._connection.transport == "local"
            and self._connection.become is None
            and not self._task.async_val
            and not any(self._task.environment or ())
        )

    def _execute_module(self, *args: Any, **options: Any) -> dict[str, Any]:
        silence = turns.silence(options.get("task_vars") or {})
        if silence:
            self._task.environment = [*(self._task.environment or ()), {lock.SILENCE: str(silence)}]
        return super()._execute_module(*args, **options)

    def _configure_module(self, module_name: str, module_args: dict[str, Any], task_vars: dict[str, Any]) -> Any:
        if not self._here(module_name):
            return super()._configure_module(module_name=module_name, module_args=module_args, task_vars=task_vars)
        encoder = get_module_encoder(_PROFILE, Direction.CONTROLLER_TO_MODULE)
        arguments = json.dumps({"ANSIBLE_MODULE_ARGS": module_args}, cls=encoder).encode()
        self._module = f"{_MODULES}.{module_name[len(_OURS) :]}"
        self._arguments = arguments
        built = _BuiltModule(b_module_data=arguments, module_style="new", shebang="#!", serialization_profile=_PROFILE)
        return built, self._module

    def _low_level_execute_command(self, cmd: str, *args: Any, in_data: bytes | None = None, **options: Any) -> Any:
        if in_data is None or in_data is not getattr(self, "_arguments", None):
            return super()._low_level_execute_command(cmd, *args, in_data=in_data, **options)
        code, out = self._run_here()
        return {"rc": code, "stdout": out, "stdout_lines": out.splitlines(), "stderr": "", "stderr_lines": []}

    def _run_here(self) -> tuple[int, str]:
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                _loader.run_module(
                    json_params=self._arguments,
                    profile=_PROFILE,
                    module_fqn=self._module,
                    modlib_path="",
                    extensions={},
                )
        except SystemExit as ended:
            return int(ended.code or 0), printed.getvalue()
        raise AssertionError("a module ends itself")
