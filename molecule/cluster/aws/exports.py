# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Exports of CloudWatch's logs to S3 lie below the task's id, where ParallelCluster's CLI looks for them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock
from uuid import uuid4

from moto.logs.models import LogsBackend

MOTO = LogsBackend.create_export_task


def create_export_task(self: Any, *arguments: Any, **options: Any) -> str:
    """Do as moto does, which has an id for the task and another one for each stream's folder."""
    task = str(uuid4())
    with mock.patch("moto.logs.models.mock_random", SimpleNamespace(uuid4=lambda: task)):
        return str(MOTO(self, *arguments, **options))


def patches() -> list[tuple[Any, str, Any]]:
    """What is replaced: the object, the attribute, and the value."""
    return [(LogsBackend, "create_export_task", create_export_task)]


def register() -> None:
    for target, name, value in patches():
        setattr(target, name, value)
