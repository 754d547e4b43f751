# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""There is a bucket for the logs that are exported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..bundles import bucket


@contextmanager
def scene(stage: Any) -> Iterator[None]:
    with bucket("exported-logs") as found:
        stage.names.learn({"my-bucket": found.name})
        yield
