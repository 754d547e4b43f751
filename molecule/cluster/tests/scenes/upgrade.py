# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""upgrade.md: what the page leaves on the head node goes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..conftest import host


@contextmanager
def scene(stage: Any) -> Iterator[None]:
    assert stage
    try:
        yield
    finally:
        host("head").run("/opt/slurm/bin/scontrol delete ReservationName=upgrade; rm -f /fsx/home-main.tar.gz")
