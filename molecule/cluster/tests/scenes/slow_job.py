# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A job runs on the node with GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..jobs import running

LONG = True


@contextmanager
def scene(stage: Any) -> Iterator[None]:
    with running("train", "--partition gpu --gpus 8", "sleep 900"):
        yield
