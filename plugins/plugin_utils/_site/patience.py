# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Says of a task that takes long that it still runs, for people who watch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

FIRST, LONGEST = 10.0, 60.0  # seconds before the first line, and at most between two
# Actions that say by themselves how far they are.
TALKERS = {
    f"pcluster.postboot.{name}"
    for name in ("cloudformation_stack", "efa_installer", "fleet", "shared_build", "status", "verify")
}


class Patience:
    """One thread for a whole run. Each task that begins ends the wait for the one before."""

    def __init__(self, tell: Callable[[str], None], first: float = FIRST, longest: float = LONGEST) -> None:
        self._tell, self._first, self._longest = tell, first, longest
        self._changed = threading.Condition()
        self._what, self._begun, self._next = "", 0.0, 0.0
        self._thread: threading.Thread | None = None

    def begin(self, what: str) -> None:
        """Watch what begins now; nothing, where the name is empty."""
        with self._changed:
            self._what, self._begun, self._next = what, time.monotonic(), self._first
            self._changed.notify()
            if what and not self._thread:
                # A daemon: it never keeps Ansible from ending.
                self._thread = threading.Thread(target=self._watch, daemon=True)
                self._thread.start()

    def _watch(self) -> None:
        with self._changed:
            while True:
                passed = time.monotonic() - self._begun
                if not self._what:
                    self._changed.wait()
                elif passed < self._next:
                    self._changed.wait(self._next - passed)
                else:
                    self._next = passed + min(self._next, self._longest)
                    self._tell(f"{self._what}: {passed:.0f} s")
