# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""publish.yml: what it prints is in S3, once, and is what a node gets there."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from testinfra.host import Host

from .bundles import DIR, STATE, printed
from .conftest import TOPOLOGY

On = Callable[[str], Host]
Play = Callable[..., subprocess.CompletedProcess[str]]
BUCKET = "sandbox-publish"
NODE = "cpu-st-c5-1"
# What the sandbox itself runs on, so that little is downloaded, and nothing the second time.
OPTIONS = {
    "publish_s3": f"s3://{BUCKET}/bundles/",
    "publish_dir": str(DIR),
    "publish_pythons": ["3.11"],
    "publish_architectures": ["x86_64"],
    "publish_budget": 900,
}


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    """The bucket, as a resource of boto3."""
    bucket = boto3.resource("s3", region_name="us-east-1").Bucket(BUCKET)
    bucket.create()
    bucket.objects.all().delete()  # of a run that was killed
    yield bucket
    bucket.objects.all().delete()
    bucket.delete()


@pytest.fixture(scope="module")
def published(play: Play, s3: Any) -> subprocess.CompletedProcess[str]:
    return play("-e", json.dumps(OPTIONS), name="publish")


def times(s3: Any) -> dict[str, Any]:
    return {entry.key: entry.last_modified for entry in s3.objects.all()}


def test_a_node_gets_what_was_printed(on: On, published: subprocess.CompletedProcess[str]) -> None:
    (queue,) = printed(published)["Scheduling"]["SlurmQueues"]
    assert queue["Iam"]["S3Access"] == [{"BucketName": BUCKET, "KeyName": "bundles/*"}]
    action = queue["CustomActions"]["OnNodeConfigured"]
    args = dict(zip(action["Args"][::2], action["Args"][1::2]))
    assert args["--budget"] == "900"
    assert f"aws s3api put-bucket-policy --bucket {BUCKET} --policy " in published.stdout
    node, folder = on(NODE), "/tmp/published"
    node.check_output(f"mkdir -p {folder}")
    try:
        for url in (action["Script"], args["--bundle"], action["Script"].replace("bootstrap.sh", "SHA256SUMS")):
            node.check_output(f"aws s3 cp --quiet {url} {folder}/")
        node.check_output(f"cd {folder} && sha256sum --check --strict SHA256SUMS")
        assert node.file(f"{folder}/pcluster-postboot.tar.gz").sha256sum == args["--sha256"]
        node.check_output(f"cd {folder} && tar -xzf pcluster-postboot.tar.gz")
        assert node.file(f"{folder}/bundle.json").exists
        # The variables beside the sandbox's inventory came along, and only root may read them.
        variables = node.file(f"{folder}/inventory/group_vars/pcluster.yml")
        assert (variables.mode, "common_mirrors" in variables.content_string) == (0o600, True)
        node.check_output(f"cd {folder} && tar -xzOf pcluster-postboot.tar.gz bootstrap.sh | cmp - bootstrap.sh")
    finally:
        node.check_output(f"rm -rf {folder}")


def test_a_cluster_whose_nodes_could_replace_the_bundles_is_refused(play: Play, s3: Any, tmp_path: Path) -> None:
    before = times(s3)
    queue = {"Name": "gpu", "Iam": {"S3Access": [{"BucketName": BUCKET, "EnableWriteAccess": True}]}}
    config = tmp_path / "cluster.yaml"
    config.write_text(
        yaml.safe_dump({"HeadNode": {"InstanceType": "m5.large"}, "Scheduling": {"SlurmQueues": [queue]}})
    )
    options = {**OPTIONS, "publish_dir": str(tmp_path / "bundles"), "publish_config": str(config)}
    result = play("-e", json.dumps(options), name="publish")
    assert result.returncode != 0
    assert f"queue gpu could write to s3://{BUCKET}/bundles/ by S3Access to {BUCKET}/* with" in result.stdout
    # Before anything was built, or uploaded.
    assert (times(s3), (tmp_path / "bundles").exists()) == (before, False)


def test_nothing_is_uploaded_twice(play: Play, published: subprocess.CompletedProcess[str], s3: Any) -> None:
    before, first = times(s3), printed(published)
    assert len(before) == 3
    again = play("-e", json.dumps(OPTIONS), name="publish")
    assert "changed=0" in again.stdout, again.stdout[-3000:]
    assert (printed(again), times(s3)) == (first, before)


@pytest.mark.usefixtures("published")
def test_another_bundle_leaves_the_first(play: Play, s3: Any) -> None:
    before = times(s3)
    other = {**OPTIONS, "publish_group_vars": ""}
    check = play("--check", "-e", json.dumps(other), name="publish")
    assert "changed=2" in check.stdout, check.stdout[-3000:]
    assert times(s3) == before
    # With a download too, which is the one that the head node's variables ask for.
    mirror = f"http://{TOPOLOGY['services']['mirror']['address']}"
    other |= {"publish_artifacts": True, "publish_components": ["node_exporter"], "publish_from": [mirror]}
    result = play("-e", json.dumps(other), name="publish")
    assert printed(result) != printed(check)
    after = times(s3)
    assert {key: after[key] for key in before} == before
    (key,) = {key for key in after if key.endswith(".tar.gz")} - set(before)
    archive = DIR / key.split("/")[1] / "pcluster-postboot.tar.gz"
    listed = subprocess.run(["tar", "-tzf", archive], text=True, capture_output=True, check=True).stdout.split()
    version = json.loads((STATE / "mirror/pins.json").read_text())["node_exporter"]["version"]
    (download,) = [name for name in listed if name.startswith("mirror/")]
    assert download.startswith("mirror/github.com/prometheus/node_exporter/")
    assert version in download
    assert not [name for name in listed if "group_vars" in name]
