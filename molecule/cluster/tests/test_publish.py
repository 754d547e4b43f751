# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""publish.yml: what it prints is in S3, once, and is what a node gets there."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from .bundles import DIR, SCENARIO, STATE, bucket, printed
from .conftest import TOPOLOGY
from .helpers import On, Play, Run, failed, variables

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
    with bucket(BUCKET) as found:
        yield found


@pytest.fixture(scope="module")
def published(play: Play, s3: Any) -> Run:
    return play(*variables(**OPTIONS), name="publish")


def times(s3: Any) -> dict[str, Any]:
    return {entry.key: entry.last_modified for entry in s3.objects.all()}


def test_a_node_gets_what_was_printed(on: On, published: Run) -> None:
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


@pytest.mark.long
def test_a_cluster_whose_nodes_could_replace_the_bundles_is_refused(play: Play, s3: Any, tmp_path: Path) -> None:
    before = times(s3)
    queue = {"Name": "gpu", "Iam": {"S3Access": [{"BucketName": BUCKET, "EnableWriteAccess": True}]}}
    config = tmp_path / "cluster.yaml"
    config.write_text(
        yaml.safe_dump({"HeadNode": {"InstanceType": "m5.large"}, "Scheduling": {"SlurmQueues": [queue]}})
    )
    options = {**OPTIONS, "publish_dir": str(tmp_path / "bundles"), "publish_config": str(config)}
    result = failed(play(*variables(**options), name="publish"))
    assert f"queue gpu could write to s3://{BUCKET}/bundles/ by S3Access to {BUCKET}/* with" in result.stdout
    # Before anything was built, or uploaded.
    assert (times(s3), (tmp_path / "bundles").exists()) == (before, False)


@pytest.fixture(scope="module")
def again(play: Play, published: Run, s3: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run, bool]:
    """The same once more, for an image too; what was printed before, and whether everything in S3 is as it was."""
    component = tmp_path_factory.mktemp("image") / "component.yaml"
    before = times(s3)
    done = play(*variables(**OPTIONS, publish_image_component=str(component)), name="publish")
    return done, published, times(s3) == before and len(before) == 3


def test_nothing_is_uploaded_twice(again: tuple[Run, Run, bool]) -> None:
    done, first, kept = again
    assert "changed=1 " in done.stdout, done.stdout[-3000:]  # the component, which is a file
    assert (printed(done), kept) == (printed(first), True)


@pytest.mark.parametrize("version", ["3.16.1", pytest.param("3.13.2", marks=pytest.mark.long)])
def test_parallelcluster_builds_an_image_with_what_is_printed(again: tuple[Run, Run, bool], version: str) -> None:
    part = printed(again[0], image=True)
    parent = {"InstanceType": "c5.xlarge", "ParentImage": "ami-00000000000000000"}
    python = STATE / f"cache/parallelcluster-{version}/bin/python"
    done = subprocess.run(
        [python, SCENARIO / "parallelcluster/image.py"],
        input=yaml.safe_dump({"Build": {**parent, **part["Build"]}}),
        text=True,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    resources = json.loads(done.stdout)["Resources"]
    # After ParallelCluster's own software.
    *_others, last = resources["ImageRecipe"]["Properties"]["Components"]
    assert [{"Type": "arn", "Value": last["ComponentArn"]}] == part["Build"]["Components"]
    (reads,) = part["Build"]["Iam"]["AdditionalIamPolicies"]
    assert reads["Policy"] in resources["InstanceRole"]["Properties"]["ManagedPolicyArns"]


@pytest.mark.long
@pytest.mark.usefixtures("published")
def test_another_bundle_leaves_the_first(play: Play, s3: Any) -> None:
    before = times(s3)
    other = {**OPTIONS, "publish_group_vars": ""}
    check = play("--check", *variables(**other), name="publish")
    assert "changed=2" in check.stdout, check.stdout[-3000:]
    assert times(s3) == before
    # With a download too, which is the one that the head node's variables ask for.
    mirror = f"http://{TOPOLOGY['services']['mirror']['address']}"
    other |= {"publish_artifacts": True, "publish_components": ["node_exporter"], "publish_from": [mirror]}
    result = play(*variables(**other), name="publish")
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
