# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Waits of tests: as long as a busy machine may need, and over as soon as what is waited for is so.

`make test` runs the unit tests with what the sandbox leaves them of the machine: a program may stand still for 20 s.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE = 120.0  # seconds that a test gives what works at once where the machine has time for it


def until(done: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Return what `done` says, once that is something true."""
    end = time.monotonic() + seconds
    while not (found := done()):
        assert time.monotonic() < end, f"not so within {seconds} s"
        time.sleep(0.05)
    return found
