# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The hook for HyperPod, run for real, and what is printed for a cluster, against botocore's model of SageMaker."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.validate import ParamValidator

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._node import facts
from ansible_collections.pcluster.postboot.plugins.plugin_utils._publish import hyperpod
from ansible_collections.pcluster.postboot.plugins.plugin_utils._publish.custom_actions import Release
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab

SCRIPT = Path(__file__).resolve().parents[4] / "roles/publish/files/on_init_complete.sh"
RELEASE = Release("s3://sagemaker-mine/post/boot", "0.2.0-e12345678901", "1e" + "2" * 62)
ROLE = "arn:aws:iam::123456789012:role/execution"
LUSTRE = {"DnsName": "fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com", "MountName": "1abcdefg"}
# As the example of CreateCluster in awslabs/awsome-distributed-ai at 95b939c, Extensions/observability/README.md.
CLUSTER: dict[str, Any] = {
    "ClusterName": "my-hyperpod-cluster",
    "InstanceGroups": [
        {
            "InstanceGroupName": "controller",
            "InstanceType": "ml.c5.xlarge",
            "InstanceCount": 1,
            "SlurmConfig": {"NodeType": "Controller"},
            "ExecutionRole": ROLE,
            "InstanceStorageConfigs": [{"EbsVolumeConfig": {"VolumeSizeInGB": 500}}],
        },
        {
            "InstanceGroupName": "gpu-workers",
            "InstanceType": "ml.p4d.24xlarge",
            "InstanceCount": 1,
            "SlurmConfig": {"NodeType": "Compute", "PartitionNames": ["dev"]},
            "ExecutionRole": ROLE,
            "InstanceStorageConfigs": [{"FsxLustreConfig": LUSTRE}],
        },
    ],
}
# As its README.md has it for lifecycle scripts.
SCRIPTED = {
    "InstanceGroups": [
        {
            "InstanceGroupName": "controller-machine",
            "InstanceType": "ml.c5.xlarge",
            "InstanceCount": 1,
            "LifeCycleConfig": {
                "SourceS3Uri": "s3://sagemaker-mine/LifecycleScripts/base-config/",
                "OnCreate": "on_create.sh",
            },
            "ExecutionRole": ROLE,
        }
    ]
}


def made(groups: list[dict[str, Any]], bootstrap: bytes = b"", **options: str) -> hyperpod.Hook:
    given = {f"--{name}": value for name, value in options.items()}
    return hyperpod.hook(RELEASE, given, groups, SCRIPT.read_bytes(), bootstrap)


def printed(cluster: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the words, and the JSON below them."""
    groups = cluster["InstanceGroups"]
    words, _brace, part = hyperpod.render(RELEASE, made(groups), groups).partition("{\n")
    return words, json.loads("{" + part) if part else {}


def test_what_is_printed_is_what_the_api_takes() -> None:
    words, part = printed(CLUSTER)
    assert "\n# controller: without a file system that other groups have, where role fsx ends the run." in words
    found = {group.pop("InstanceGroupName"): group for group in part["InstanceGroups"]}
    cluster = {
        **CLUSTER,
        "InstanceGroups": [{**one, **found[one["InstanceGroupName"]]} for one in CLUSTER["InstanceGroups"]],
    }
    model = botocore.session.get_session().get_service_model("sagemaker").operation_model("CreateCluster")
    assert not ParamValidator().validate(cluster, model.input_shape).has_errors()
    for group in cluster["InstanceGroups"]:
        config = group["LifeCycleConfig"]
        assert config["SourceS3Uri"].startswith("s3://sagemaker-mine/post/boot/hyperpod/0.2.0-e12345678901-")
        assert config["SourceS3Uri"].endswith("/")
        assert config["OnInitComplete"] in made(CLUSTER["InstanceGroups"]).files


def test_lifecycle_scripts_are_told_where_the_hook_belongs() -> None:
    words, part = printed(SCRIPTED)
    assert part == {}
    assert "without a file system" not in words
    name = made(SCRIPTED["InstanceGroups"]).name
    beside = "s3://sagemaker-mine/LifecycleScripts/base-config/pcluster-postboot/"
    assert f"aws s3 cp --recursive s3://sagemaker-mine/post/boot/{name}/ {beside}" in words
    assert "bash pcluster-postboot/on_init_complete.sh || exit_code=$?" in words
    assert hyperpod.described(SCRIPTED["InstanceGroups"]) == {"groups": {}}


def test_a_group_has_one_hook() -> None:
    theirs = {"SourceS3Uri": "s3://sagemaker-mine/Extensions/", "OnInitComplete": "run_extensions.sh"}
    groups = [{**group, "LifeCycleConfig": theirs} for group in CLUSTER["InstanceGroups"]]
    assert (
        "gpu-workers has the hook run_extensions.sh, and a group can have one" in printed({"InstanceGroups": groups})[0]
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "No such file"),
        ("{", "is no JSON"),
        ("[]", "lacks InstanceGroups"),
        ('{"InstanceGroups": [{}]}', "lacks InstanceGroups with InstanceGroupName"),
        (
            '{"InstanceGroups": [{"InstanceGroupName": "a", "SlurmConfig": "Controller"}]}',
            r'InstanceGroups\[a\]/SlurmConfig is "Controller"',
        ),
        (
            '{"InstanceGroups": [{"InstanceGroupName": "a", "InstanceStorageConfigs": {"EbsVolumeConfig": {}}}]}',
            r"InstanceGroups\[a\]/InstanceStorageConfigs is \{",
        ),
        (
            '{"InstanceGroups": [{"InstanceGroupName": "a", "InstanceStorageConfigs": [{"FsxOpenZfsConfig": {}}]}]}',
            r"InstanceGroups\[a\]/InstanceStorageConfigs\[0\]/FsxOpenZfsConfig lacks DnsName",
        ),
        ('{"InstanceGroups": [], "Orchestrator": {"Eks": {"ClusterArn": "arn:aws:eks:…"}}}', "has Orchestrator.Eks"),
    ],
)
def test_a_cluster_that_is_none_is_refused_on_one_line(tmp_path: Path, text: str | None, says: str) -> None:
    if text is not None:
        (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(Problem, match=rf"^publish_hyperpod: [^\n]*{says}[^\n]*; needed: [^\n]+$"):
        hyperpod.read(str(tmp_path / "cluster.json"))


def test_a_type_and_a_bucket_that_hyperpod_does_not_know() -> None:
    with pytest.raises(Problem, match=r"group x has SlurmConfig.NodeType Worker; needed: Controller, Login or Compute"):
        hyperpod.described([{"InstanceGroupName": "x", "SlurmConfig": {"NodeType": "Worker"}}])
    with pytest.raises(Problem, match=r"^publish_s3 is s3://mine/x; needed with publish_hyperpod: s3://sagemaker-"):
        hyperpod.refuse_place("s3://mine/x")


class Instance:
    """An instance of HyperPod at its creation, and what HyperPod has downloaded."""

    def __init__(self, root: Path, hook: hyperpod.Hook, scripts: Path) -> None:
        self.root, self.scripts = root, scripts
        for name, text in hook.files.items():
            (scripts / "pcluster-postboot").mkdir(parents=True, exist_ok=True)
            (scripts / "pcluster-postboot" / name).write_bytes(text)
        lab.program(root / "bin/sleep", 'echo "$@" >> "$PCLUSTER_POSTBOOT_ROOT/slept"')

    def run(self) -> subprocess.CompletedProcess[str]:
        line = ["bash", str(self.scripts / "pcluster-postboot" / hyperpod.HOOK)]
        environment = {"PATH": "/usr/bin:/bin", "PCLUSTER_POSTBOOT_ROOT": str(self.root)}
        return subprocess.run(line, cwd=self.scripts, env=environment, capture_output=True, text=True, check=False)


def instance(tmp_path: Path, node_tree: Any, tree: str, code: int) -> Instance:
    bootstrap = f'printf "%s\\n" "$@" > "$PCLUSTER_POSTBOOT_ROOT/asked"; exit {code}\n'
    hook = made(CLUSTER["InstanceGroups"], bootstrap.encode(), mode="gpu", defer="no")
    return Instance(node_tree(tree), hook, tmp_path / "scripts")


def test_the_hook_tells_the_node_what_it_is_and_starts_the_bundle(tmp_path: Path, node_tree: Any) -> None:
    node = instance(tmp_path, node_tree, "hyperpod-compute", 0)
    (node.root / "etc/pcluster-postboot/hyperpod.json").unlink()
    assert facts.read_node(str(node.root))["node_type"] is None
    assert node.run().returncode == 0
    found = facts.read_node(str(node.root))
    assert (found["platform"], found["node_type"]) == ("hyperpod", "compute")
    assert found["mounts"]["wanted"] == [
        {"path": "/fsx", "type": "lustre", "source": f"{LUSTRE['DnsName']}@tcp:/1abcdefg"}
    ]
    assert (node.root / "asked").read_text().split("\n") == [
        *("--bundle", "s3://sagemaker-mine/post/boot/0.2.0-e12345678901/pcluster-postboot.tar.gz"),
        *("--sha256", RELEASE.sha256, "--mode", "gpu", "--defer", "no", ""),
    ]
    assert not (node.root / "slept").exists()


def test_a_bundle_that_fails_fails_the_instance_and_leaves_time_for_its_log(tmp_path: Path, node_tree: Any) -> None:
    node = instance(tmp_path, node_tree, "hyperpod-compute", 1)
    assert node.run().returncode == 1
    assert (node.root / "slept").read_text() == "60\n"


def test_the_parameters_beside_lifecycle_scripts_are_kept(tmp_path: Path, node_tree: Any) -> None:
    node = instance(tmp_path, node_tree, "hyperpod-controller", 0)
    (node.root / "opt/ml/config/provisioning_parameters.json").rename(node.scripts / "provisioning_parameters.json")
    assert node.run().returncode == 0
    assert facts.read_node(str(node.root))["node_type"] == "head"


def test_a_hook_is_named_by_what_it_has() -> None:
    one, other = made(CLUSTER["InstanceGroups"]), made(CLUSTER["InstanceGroups"], mode="gpu")
    assert one.name == made(CLUSTER["InstanceGroups"]).name != other.name
    (digest,) = [file["sha256"] for file in one.hashes if file["name"] == hyperpod.HOOK]
    assert digest == hashlib.sha256(SCRIPT.read_bytes()).hexdigest()
