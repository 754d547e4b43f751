# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The creation of a cluster, the sandbox's `el`, has failed: a variable of its bundle is misspelt."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..bundles import SANDBOX, Bundle, republish
from ..helpers import failed, ok

LONG = True
PARTS: dict[str, Any] = {}


@contextmanager
def scene(stage: Any) -> Iterator[None]:
    stage.names.learn({"my-cluster": "el"})
    stage.nodes["head"] = "el-head"
    PARTS.update(stage.fixture("publish")("el"))
    good = Bundle.of(PARTS["HeadNode"]["CustomActions"]["OnNodeConfigured"])
    broken = republish(stage.fixture("s3"), good, "94.0.0", {"nccl_versoin": "2.30.0"})
    head = {**PARTS["HeadNode"], "CustomActions": {"OnNodeConfigured": broken.action()}}
    failed(stage.fixture("create")({"HeadNode": head}))
    yield


def instead(stage: Any, step: Any) -> None:
    """The cluster is deleted, and created with the bundle that was corrected: the fixture does both."""
    if step.command.startswith("pcluster create-cluster "):
        ok(stage.fixture("create")(PARTS))
        subprocess.run([sys.executable, SANDBOX, "boot"], check=True, timeout=900)
