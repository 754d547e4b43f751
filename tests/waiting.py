# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Waits of tests: as long as a busy machine may need, and over as soon as what is waited for is so."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def until(done: Callable[[], Any], seconds: float = 20) -> None:
    """Return once `done` says something true."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"not so within {seconds} s"
        time.sleep(0.05)
