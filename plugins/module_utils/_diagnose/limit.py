# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A limit of time for work on texts that other people have written."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from typing import Any


class TimeUp(Exception):
    """Work took longer than it may."""


class Budget:
    """The time of several steps. Each has its own limit, and all of them one together."""

    def __init__(self, each: float, all_: float) -> None:
        self.each, self._until = each, time.monotonic() + all_

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Raise TimeUp within a step when its time is up, also out of a pattern that is being searched for.

        The timer is the process's: only its main thread can set it.
        """
        seconds = min(self.each, self._until - time.monotonic())
        if seconds <= 0:
            raise TimeUp("the time was up")

        def ring(_signal: int, _frame: Any) -> None:
            raise TimeUp(f"it took more than {seconds:.3g} s")

        before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
