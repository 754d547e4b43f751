# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A job of alice's on two nodes: one process has stopped to work, the other waits for it as NCCL does, by polling."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..conftest import host
from ..jobs import running

CODES = {"sudo journalctl --no-pager --dmesg": 1}  # there is nothing of that kind
OWNER = "alice"  # and not the cluster's user, who follows the page
PROGRAM = f"/home/{OWNER}/train.py"
# The one that polls leaves the processor to everybody else.
TEXT = """import os, time
if os.environ["SLURM_PROCID"] == "0":
    time.sleep(900)
os.nice(19)
while True:
    pass
"""


@contextmanager
def scene(stage: Any) -> Iterator[None]:
    head = host("head")
    head.check_output(f"cat > {PROGRAM} << 'END'\n{TEXT}END\nchown {OWNER} {PROGRAM}")
    try:
        with running("hangs", "--partition static --nodes 2", f"srun python3 {PROGRAM}", OWNER) as job:
            stage.names.learn({"1234": job})
            yield
    finally:
        head.check_output(f"rm {PROGRAM}")
