# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A callback plugin of Ansible for fleet.py beside it: in the process of the action, waiting takes no time.

Ansible forks that process from this one, so what is changed here holds there. The clock lies in a file that the
simulated AWS shares: `sleep` adds to it, and so does each call.
"""

from __future__ import annotations

import mmap
import os
import resource
import struct
import threading
import time
from types import SimpleNamespace
from typing import Any

from ansible.plugins.callback import CallbackBase


class Clock:
    """Seconds since 1970, in eight bytes of a file."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as stream:
            self._shared = mmap.mmap(stream.fileno(), 8)

    def now(self) -> float:
        found: float = struct.unpack("d", self._shared[:8])[0]
        return found

    def pass_by(self, seconds: float) -> None:
        self._shared[:8] = struct.pack("d", self.now() + max(0.0, seconds))


class CallbackModule(CallbackBase):  # type: ignore[misc]
    """Changes the action once the run begins."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "fleet_clock"

    def v2_playbook_on_start(self, playbook: Any) -> None:
        from botocore.retries import bucket

        from ansible_collections.pcluster.postboot.plugins.action import fleet

        clock, run = Clock(os.environ["FLEET_CLOCK"]), fleet.ActionModule.run

        class Condition(threading.Condition):
            def wait(self, timeout: float | None = None) -> bool:
                clock.pass_by(max(timeout or 0.0, 0.001))  # less is lost beside so many seconds
                return True

        def simulated(action: Any, tmp: Any = None, task_vars: Any = None) -> Any:
            time.sleep, time.monotonic, time.time = clock.pass_by, clock.now, clock.now
            bucket.threading = SimpleNamespace(Condition=Condition, Lock=threading.Lock)  # for boto3's own patience
            began, spent = clock.now(), time.process_time()
            try:
                return run(action, tmp, task_vars)
            finally:
                seconds, cpu = clock.now() - began, time.process_time() - spent
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                with open(os.environ["FLEET_COSTS"], "w") as stream:
                    stream.write(f"{seconds} {cpu} {peak}")

        fleet.ActionModule.run = simulated
