# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A user has a checkpoint on the shared file system, and the account has a file system."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3

from ..conftest import TOPOLOGY, host

CHECKPOINT = "/fsx/checkpoints/of-a-runbook"


@contextmanager
def scene(stage: Any) -> Iterator[None]:
    head, fsx = host("head"), boto3.client("fsx", region_name=TOPOLOGY["region"])
    made = fsx.create_file_system(
        FileSystemType="LUSTRE", StorageCapacity=1200, SubnetIds=["subnet-0123456789abcdef0"]
    )["FileSystem"]
    head.check_output(f"su - alice -c 'head -c 1048576 /dev/zero > {CHECKPOINT}'")
    try:
        yield
    finally:
        head.check_output(f"rm {CHECKPOINT}")
        fsx.delete_file_system(FileSystemId=made["FileSystemId"])
