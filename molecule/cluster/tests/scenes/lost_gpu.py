# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A GPU has fallen off the bus: its device is gone, and DCGM has seen XID 79 on another one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..conftest import host, instance
from ..helpers import ok, until
from ..jobs import slurm

LONG = True
NODE = "gpu-st-p5-1"
XID = "/run/sandbox-dcgm/3/DCGM_FI_DEV_XID_ERRORS"


@contextmanager
def scene(stage: Any) -> Iterator[None]:
    node, former = host(NODE), instance(NODE)
    try:
        node.check_output("rm -f /dev/nvidia7 && systemctl restart nvidia-dcgm")
        node.check_output(f"mkdir -p {XID.rsplit('/', 1)[0]} && echo 79 > {XID}")
        counted = "curl -sf http://localhost:9400/metrics | grep 'XID_ERRORS_COUNT.*xid=\"79\"'"
        until(lambda: node.run(counted).rc == 0, 60, "the exporter has counted the XID")
        yield
    finally:
        # A page that broke off has not had the node replaced.
        if instance(NODE) == former:
            slurm(f"sudo /opt/slurm/bin/scontrol update nodename={NODE} state=drain reason='a lost GPU'")

        def replaced() -> bool:
            state = slurm(f"sinfo --noheader --nodes {NODE} --partition gpu --format %T")
            return instance(NODE) not in ("", former) and state == "idle"

        until(replaced, 420, f"{NODE} is replaced")
        ok(stage.fixture("play")("--limit", NODE, timeout=600))
