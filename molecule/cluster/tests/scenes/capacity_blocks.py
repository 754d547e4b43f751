# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""capacity-blocks.md: a configuration to which the page's queue is added. No reservation of Slurm's stays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml

from ..conftest import host

CODES = {"ansible-playbook pcluster.postboot.cluster_config ": 2}  # refuses the placement group
VARIABLES = {
    "cluster_config_name": "main",
    "cluster_config_region": "us-east-1",
    "cluster_config_subnet_head": "subnet-0123456789abcdef0",
}


@contextmanager
def scene(stage: Any) -> Iterator[None]:
    stage.names.learn({"cr-0123456789abcdef0": "cr-0123456789abcdef0"})  # no reservation is bought here
    (stage.folder / "main.yml").write_text(yaml.safe_dump(VARIABLES))
    try:
        yield
    finally:
        host("head").run("/opt/slurm/bin/scontrol delete ReservationName=block-ends")
