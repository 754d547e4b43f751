# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""docs/runbooks/upgrade.md: removes the reservation and the archive that the page's commands leave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..conftest import host


@contextmanager
def scene(_stage: Any) -> Iterator[None]:
    try:
        yield
    finally:
        host("head").run("/opt/slurm/bin/scontrol delete ReservationName=upgrade; rm -f /fsx/home-main.tar.gz")
