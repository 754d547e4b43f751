# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A cluster that is created with what publish prints: its nodes configure themselves, or its creation says why not.

The cluster is the sandbox's `el`, under ParallelCluster 3.13. After the tests it is created again as it was.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from .bundles import SANDBOX, Bundle, republish
from .conftest import host
from .helpers import Create, ok
from .test_control_plane import EL, report_after_boot


@pytest.fixture(scope="module")
def printed(publish: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    return publish("el")


@pytest.mark.long
def test_a_head_node_that_fails_ends_the_creation(create: Create, printed: dict[str, Any], s3: Any) -> None:
    good = Bundle.of(printed["HeadNode"]["CustomActions"]["OnNodeConfigured"])
    broken = republish(s3, good, "94.0.0", {"nccl_versoin": "2.30.0"})
    done = create({"HeadNode": {**printed["HeadNode"], "CustomActions": {"OnNodeConfigured": broken.action()}}})
    assert done.returncode == 1, done.stdout + done.stderr
    assert (
        "el: CREATE_FAILED: fetch_and_run - Failed to execute OnNodeConfigured script 1, return code: 1." in done.stdout
    )
    log = host("el-head").check_output("cat /var/log/cfn-init.log")
    (line,) = [one for one in log.splitlines() if one.startswith("pcluster-postboot: ") and "nccl_versoin" in one]
    assert "nccl_version" in line.replace("nccl_versoin", ""), line


@pytest.mark.long
def test_a_cluster_is_created_with_what_publish_prints(create: Create, printed: dict[str, Any]) -> None:
    done = create(printed)
    ok(done)
    assert done.stdout.endswith("el: CREATE_COMPLETE\n")
    subprocess.run([sys.executable, SANDBOX, "boot"], check=True, timeout=900)
    for name in ("el-head", "el-cpu-st-c5-1"):
        found = report_after_boot(name)
        assert (found["outcome"], found["phase"]) == ("ok", "later"), found
    assert EL.slurm("srun --partition=el-cpu hostname").strip() == "el-cpu-st-c5-1"
