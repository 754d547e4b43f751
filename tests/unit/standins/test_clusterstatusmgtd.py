# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The stand-in of clusterstatusmgtd: a fleet is started and stopped as ParallelCluster's CLI asks."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from ansible_collections.pcluster.postboot.tests.programs import load

daemon = load("molecule/cluster/standins/cookbook/clusterstatusmgtd.py")


@pytest.fixture
def table(moto: str) -> Iterator[Any]:
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
    dynamodb = boto3.resource("dynamodb", endpoint_url=moto, region_name="us-east-1", **keys)
    made = dynamodb.create_table(
        TableName="parallelcluster-main",
        KeySchema=[{"AttributeName": "Id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "Id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    yield made
    made.delete()


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that keeps what it is told, in the place of ParallelCluster's."""
    monkeypatch.setattr(daemon, "STATUS", tmp_path / "computefleet-status.json")
    path = tmp_path / "manager"
    path.write_text(f'#!/bin/sh\n[ ! -e {tmp_path}/broken ] && cp "$2" {tmp_path}/told\n')
    path.chmod(0o755)
    return path


def ask(table: Any, status: str) -> None:
    table.put_item(Item={"Id": "COMPUTE_FLEET", "Data": {"status": status, "lastStatusUpdatedTime": "now"}})


def status(table: Any) -> str:
    return str(table.get_item(Key={"Id": "COMPUTE_FLEET"})["Item"]["Data"]["status"])


@pytest.mark.parametrize(
    ("asked", "told", "end"),
    [
        ("START_REQUESTED", "START_REQUESTED", "RUNNING"),
        ("STARTING", "START_REQUESTED", "RUNNING"),  # an earlier run was killed
        ("STOP_REQUESTED", "STOP_REQUESTED", "STOPPED"),
    ],
)
def test_what_is_asked_for_is_done(table: Any, manager: Path, asked: str, told: str, end: str) -> None:
    ask(table, asked)
    daemon.look(table, str(manager))
    assert status(table) == end
    assert json.loads((manager.parent / "told").read_text()) == {"status": told}


@pytest.mark.parametrize("rest", ["RUNNING", "STOPPED", "PROTECTED"])
def test_where_nothing_is_asked_for_nothing_is_done(table: Any, manager: Path, rest: str) -> None:
    ask(table, rest)
    daemon.look(table, str(manager))
    assert status(table) == rest
    assert not (manager.parent / "told").exists()


def test_a_failure_leaves_the_request_for_the_next_look(table: Any, manager: Path) -> None:
    (manager.parent / "broken").touch()
    ask(table, "START_REQUESTED")
    with pytest.raises(subprocess.CalledProcessError):
        daemon.look(table, str(manager))
    assert status(table) == "STARTING"
