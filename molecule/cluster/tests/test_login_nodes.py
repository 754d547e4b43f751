# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Login nodes that take too long or fail, and the update of the cluster that waits for those that run."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

from .bundles import SANDBOX, Bundle, config, republish, update
from .conftest import host
from .helpers import Play, Run, ok
from .test_control_plane import report_after_boot

Boot = Callable[..., Run]

# A script of the user's own that takes its time; after it the mirror answers no more.
SLOW = """#!/bin/bash
sleep "$1"
iptables --append OUTPUT --destination "$(getent hosts mirror | cut -d ' ' -f 1)" --jump DROP
"""
POOL = "second"
READY = "Check failed due to the following erroneous records"


@pytest.fixture(scope="module")
def published(publish: Callable[[str], dict[str, Any]]) -> Bundle:
    (pool,) = publish("main")["LoginNodes"]["Pools"]
    return Bundle.of(pool["CustomActions"]["OnNodeConfigured"])


@pytest.fixture
def boot(play: Play, tmp_path: Path) -> Iterator[Boot]:
    """A function that updates the cluster so that it has a second pool, whose node boots with these actions.

    ParallelCluster lets no pool that is there change them. A plain login node is there again afterwards.
    """
    (first,) = yaml.safe_load(config("main").read_text())["LoginNodes"]["Pools"]
    second = {**first, "Name": POOL}

    def boots_with(*actions: dict[str, Any]) -> Run:
        second["CustomActions"] = {"OnNodeConfigured": {"Sequence": list(actions)}}
        return update("main", tmp_path, {"LoginNodes": {"Pools": [second]}})

    yield boots_with
    # A pool goes only while no login node runs.
    stopped = {"LoginNodes": {"Pools": [{**first, "Count": 0}, {**second, "Count": 0}]}}
    for parts in (stopped, {}):
        done = update("main", tmp_path, parts)
        assert done.stdout.endswith("main: UPDATE_COMPLETE\n"), done.stdout + done.stderr
    subprocess.run([sys.executable, SANDBOX, "boot"], check=True, timeout=900)
    done = ok(play("--limit", "login"))


def member() -> str:
    """The instance of the second pool, which is its container's name too."""
    filters = [{"Name": "tag:parallelcluster:login-nodes-pool", "Values": [POOL]}]
    filters.append({"Name": "instance-state-name", "Values": ["running"]})
    found = boto3.client("ec2", region_name="us-east-1").describe_instances(Filters=filters)["Reservations"]
    return str(found[0]["Instances"][0]["InstanceId"]) if found else ""


@pytest.mark.long
def test_a_login_node_whose_time_is_up_comes_up_and_its_service_goes_on(boot: Boot, published: Bundle, s3: Any) -> None:
    """Its launch hook allows 600 s; the update's head node waits for it."""
    s3.put_object(Key="bundles/slow.sh", Body=SLOW.encode())
    docker = republish(s3, published, "93.0.0", {"docker_enabled": True})
    done = boot({"Script": f"s3://{s3.name}/bundles/slow.sh", "Args": ["350"]}, docker.action())
    assert done.stdout.endswith("main: UPDATE_COMPLETE\n"), done.stdout + done.stderr
    now = member()
    login = host(now)
    said = login.file("/var/log/cloud-init-output.log").content_string
    assert re.search(r"pcluster-postboot: the budget of \d+ s is used up while docker was running, .*goes on", said), (
        said
    )
    waited = host("head").check_output("cat /var/log/chef-client.log")
    assert READY in waited
    assert now in waited[waited.rindex(READY) :]
    login.check_output("iptables --delete OUTPUT --destination $(getent hosts mirror | cut -d ' ' -f 1) --jump DROP")
    found = report_after_boot(now)
    assert (found["outcome"], member()) == ("ok", now), found
    assert login.service("docker").is_running


@pytest.mark.long
def test_a_login_node_that_fails_its_boot_is_replaced_without_an_end(boot: Boot, published: Bundle, s3: Any) -> None:
    """Each one shuts down, and the pool launches the next one. Only while one runs does the head node miss it."""
    broken = republish(s3, published, "92.0.0", {"docker_versoin": "29"})
    done = boot(broken.action())
    if done.returncode:
        assert "main: UPDATE_ROLLBACK_COMPLETE" in done.stdout
        assert READY in host("head").check_output("cat /var/log/chef-client.log")
    else:  # at the moment of the head node's look none of them ran
        assert done.stdout.endswith("main: UPDATE_COMPLETE\n"), done.stdout
        seen: set[str] = set()
        until = time.monotonic() + 240
        while len(seen - {""}) < 3 and time.monotonic() < until:
            seen.add(member())
            time.sleep(1)
        assert len(seen - {""}) == 3
