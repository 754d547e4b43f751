# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What CloudFormation, and ParallelCluster's own CLI, tell of a cluster of the sandbox."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from ansible_collections.pcluster.postboot.tests.programs import REPO, load

REGION, CONDITION = "us-east-2", "HeadNodeWaitCondition20261121090000"
ID = f"arn:aws:cloudformation:{REGION}:123456789012:stack/main/2fa2fcbb-9245-9860-5220-e4ae569cecaf"
GROUP = "/aws/parallelcluster/main-202611210900"
CREATED = {
    "status": "CREATE_IN_PROGRESS",
    "region": REGION,
    "id": ID,
    "tags": {"parallelcluster:cluster-name": "main", "parallelcluster:version": "3.16.1"},
    "condition": CONDITION,
    "parameters": {
        "ArtifactS3RootDirectory": "parallelcluster/3.16.1/clusters/main-1",
        "ClusterCWLogGroup": GROUP,
        "ClusterUser": "ubuntu",
        "ConfigVersion": "1",
        "ResourcesS3Bucket": "parallelcluster-1-v1-do-not-delete",
        "Scheduler": "slurm",
    },
}
SUCCESS = {"Status": "SUCCESS", "Reason": "main setup complete", "UniqueId": "i-0123456789abcdef0"}
FAILURE = {**SUCCESS, "Status": "FAILURE", "Reason": "Failed to execute OnNodeConfigured script 1, return code: 1."}
X = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
Events = list[tuple[str, str, str]]


@pytest.fixture
def clusters(moto: str) -> Iterator[Any]:
    assert moto
    found = load("molecule/cluster/aws/cluster_stacks.py").Clusters()
    yield found
    found.delete("main")


@pytest.fixture
def client(moto: str) -> Callable[[str], Any]:
    return lambda service: boto3.client(service, endpoint_url=moto, region_name=REGION, **X)


@pytest.fixture
def told(client: Callable[[str], Any]) -> Callable[[], tuple[str, Events]]:
    """What CloudFormation tells: the status, and the events from the first to the last."""

    def ask() -> tuple[str, Events]:
        found = client("cloudformation").describe_stack_events(StackName="main")["StackEvents"]
        events = [
            (one["LogicalResourceId"], one["ResourceStatus"], one.get("ResourceStatusReason", "")) for one in found
        ]
        (stack,) = client("cloudformation").describe_stacks(StackName="main")["Stacks"]
        return stack["StackStatus"], events[::-1]

    return ask


def test_a_creation_ends_with_the_signal(clusters: Any, told: Callable[[], tuple[str, Events]]) -> None:
    clusters.begin("main", CREATED)
    begun = [("main", "CREATE_IN_PROGRESS", "User Initiated"), (CONDITION, "CREATE_IN_PROGRESS", "")]
    clusters.signal("main", {"Status": ""})
    assert told() == ("CREATE_IN_PROGRESS", begun)
    clusters.signal("main", SUCCESS)
    clusters.signal("main", SUCCESS)  # is over
    assert told() == ("CREATE_COMPLETE", [*begun, (CONDITION, "CREATE_COMPLETE", ""), ("main", "CREATE_COMPLETE", "")])


def test_a_head_node_that_fails_fails_the_creation(clusters: Any, told: Callable[[], tuple[str, Events]]) -> None:
    clusters.begin("main", CREATED)
    clusters.signal("main", FAILURE)
    status, events = told()
    assert status == "CREATE_FAILED"
    assert events[-2:] == [
        (
            CONDITION,
            "CREATE_FAILED",
            "WaitCondition received failed message: 'Failed to execute OnNodeConfigured script 1, return code: 1.' "
            "for uniqueId: i-0123456789abcdef0",
        ),
        ("main", "CREATE_FAILED", f"The following resource(s) failed to create: [{CONDITION}]. "),
    ]


def test_an_update_that_the_head_node_refuses_is_rolled_back(
    clusters: Any, told: Callable[[], tuple[str, Events]]
) -> None:
    clusters.begin("main", CREATED)
    clusters.signal("main", SUCCESS)
    clusters.begin("main", {"status": "UPDATE_IN_PROGRESS"})
    clusters.signal("main", FAILURE)
    assert told()[0] == "UPDATE_IN_PROGRESS"
    clusters.begin("main", {"status": "UPDATE_ROLLBACK_IN_PROGRESS"})
    clusters.signal("main", SUCCESS)
    status, events = told()
    assert status == "UPDATE_ROLLBACK_COMPLETE"
    assert [(logical, what) for logical, what, _ in events[4:]] == [
        ("main", "UPDATE_IN_PROGRESS"),
        (CONDITION, "CREATE_IN_PROGRESS"),
        (CONDITION, "CREATE_FAILED"),
        ("main", "UPDATE_ROLLBACK_IN_PROGRESS"),
        ("main", "UPDATE_ROLLBACK_COMPLETE"),
    ]


def test_a_stack_that_is_deleted_is_gone(clusters: Any, client: Callable[[str], Any]) -> None:
    clusters.begin("main", CREATED)
    clusters.delete("main")
    clusters.delete("main")
    assert "main" not in {stack["StackName"] for stack in client("cloudformation").describe_stacks()["Stacks"]}


@pytest.mark.skipif(
    not (REPO / ".sandbox/cache/parallelcluster-3.16.1").exists(), reason="scripts/setup.sh --sandbox prepares it"
)
def test_parallelclusters_cli_reads_the_stack_and_the_logs(
    clusters: Any, client: Callable[[str], Any], moto: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for target, name, value in load("molecule/cluster/aws/exports.py").patches():
        monkeypatch.setattr(target, name, value)
    clusters.begin("main", CREATED)
    clusters.signal("main", FAILURE)
    logs = client("logs")
    logs.create_log_group(logGroupName=GROUP)
    stream = {"logGroupName": GROUP, "logStreamName": "ip-10-0-0-1.i-0.cfn-init"}
    logs.create_log_stream(**stream)
    logs.put_log_events(**stream, logEvents=[{"timestamp": int(time.time() * 1000), "message": "hello"}])
    bucket = boto3.resource("s3", endpoint_url=moto, region_name=REGION, **X).Bucket("exported")
    bucket.create(CreateBucketConfiguration={"LocationConstraint": REGION})
    keys = {"AWS_ENDPOINT_URL": moto, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}

    def pcluster(*arguments: str) -> Any:
        line = [str(REPO / ".sandbox/cache/parallelcluster-3.16.1/bin/pcluster"), *arguments, "--region", REGION]
        done = subprocess.run(line, env={**os.environ, **keys}, text=True, capture_output=True, check=False)
        return json.loads(done.stdout)

    try:
        (found,) = pcluster("list-clusters")["clusters"]
        assert (found["clusterStatus"], found["version"]) == ("CREATE_FAILED", "3.16.1")
        found = pcluster("describe-cluster", "--cluster-name", "main")
        assert found["failures"] == [
            {
                "failureCode": "OnNodeConfiguredExecutionFailure",
                "failureReason": "Failed to execute OnNodeConfigured script.",
            }
        ]
        (event, *_) = pcluster("get-cluster-stack-events", "--cluster-name", "main")["events"]
        assert (event["resourceStatus"], event["stackName"]) == ("CREATE_FAILED", "main")
        archive = tmp_path / "logs.tar.gz"
        pcluster(
            *("export-cluster-logs", "--cluster-name", "main", "--bucket", bucket.name, "--output-file", str(archive))
        )
        with tarfile.open(archive) as found:
            assert any("/cloudwatch-logs/ip-10-0-0-1.i-0.cfn-init" in name for name in found.getnames())
    finally:
        bucket.objects.delete()
        bucket.delete()
        logs.delete_log_group(logGroupName=GROUP)
