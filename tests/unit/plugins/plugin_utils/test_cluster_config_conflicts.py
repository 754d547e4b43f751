# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What cluster_config refuses of storage, bundle and database, and where a variable contradicts the user's file."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config import render
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import components
from ansible_collections.pcluster.postboot.tests.unit.plugins import cluster_config_sample as sample
from ansible_collections.pcluster.postboot.tests.unit.plugins.cluster_config_sample import only, rendered

P5 = "p5.48xlarge"
BLOCK = {"capacity": "capacity_block", "reservation": sample.BLOCK}
TWO = [sample.COMPUTE, sample.OTHER]
LUSTRE = {"mount": "/data", "type": "lustre", "size": 2400}


@pytest.mark.parametrize(
    ("items", "says"),
    [
        (
            [{"mount": "/more", "type": "openzfs", "id": sample.VOLUME}],
            f"cluster_config_storage[/more] and cluster_config_fsx_openzfs are both {sample.VOLUME}; needed",
        ),
        (
            [{"mount": "/home", "type": "efs", "id": "fs-01234567"}],
            "cluster_config_storage[/home] and cluster_config_fsx_",
        ),
        ([{**LUSTRE, "id": sample.FSX}], "cluster_config_storage[/data] has id, and size, which a new one has"),
        ([{**LUSTRE, "size": 1300}], "cluster_config_storage[/data].size is 1300; needed: 1200, or a multiple of 2400"),
        ([{**LUSTRE, "size": None}], "cluster_config_storage[/data].size is not set; needed: 1200"),
        (
            [{**LUSTRE, "throughput": 300}],
            "cluster_config_storage[/data].throughput is 300; needed for PERSISTENT_2: 125",
        ),
        ([{**LUSTRE, "deployment": "SCRATCH_2", "throughput": 250}], "cluster_config_storage[/data].throughput is 250"),
        (
            [{**LUSTRE, "deployment": "SCRATCH_2", "kms_key": "x"}],
            "cluster_config_storage[/data].kms_key is set with SC",
        ),
        ([{**LUSTRE, "encrypted": True}], "cluster_config_storage[/data].encrypted is set, which no lustre has"),
        (
            [{**LUSTRE, "deletion": "Snapshot"}],
            "cluster_config_storage[/data].deletion is Snapshot, which lustre has not",
        ),
        ([LUSTRE, {**LUSTRE, "mount": "/more"}], "cluster_config_storage has 2 new lustre; needed: 1 at most"),
        (
            [LUSTRE, {**LUSTRE, "name": "other"}],
            "cluster_config_storage[/data] and cluster_config_storage[/data] are bo",
        ),
        (
            [{**LUSTRE, "id": sample.FSX, "size": None}, {"mount": "/x", "type": "efs", "name": "data"}],
            "cluster_config_storage[/x] and cluster_config_storage[/data] are both called data",
        ),
        (
            [{"mount": "/data", "type": "openzfs"}],
            "cluster_config_storage[/data].id is not set, and ParallelCluster makes",
        ),
        (
            [{"mount": "/data", "type": "lustre", "id": "fs-1"}],
            "cluster_config_storage[/data].id is fs-1; needed: fs-…",
        ),
        ([{"mount": "data", "type": "efs"}], "cluster_config_storage[data].mount is data; needed: a directory"),
        ([{"mount": "/opt", "type": "efs"}], "cluster_config_storage[/opt].mount is /opt, which belongs to the system"),
        (
            [{"mount": "/default", "type": "efs"}],
            "cluster_config_storage[/default].name is default; needed: at most 30",
        ),
        ([{"mount": "/e", "type": "ebs"}], "cluster_config_storage[/e].size is not set; needed: 1 to 16384 GiB"),
        (
            [{"mount": "/e", "type": "ebs", "size": 9, "throughput": 9}],
            "cluster_config_storage[/e].throughput is 9; need",
        ),
        (
            [{"mount": "/e", "type": "efs", "throughput": 0}],
            "cluster_config_storage[/e].throughput is 0; needed: 1 to 10",
        ),
        (
            [{"mount": "/e", "type": "efs", "encrypted": False, "kms_key": "x"}],
            "cluster_config_storage[/e] has kms_key, and encrypted is false",
        ),
        (
            [{"mount": "/a", "type": "efs", "id": "fs-01234567"}, {"mount": "/a/b", "type": "ebs", "size": 1}],
            "cluster_config_storage: /a and /a/b lie within each other",
        ),
        (
            [{"mount": "/scratch/efs", "type": "efs"}],
            "cluster_config_storage: scratch-efs is at /scratch/efs, and the own disks of queue gpu (p5.48xlarge) at ",
        ),
        (
            [{**LUSTRE, "data_repositories": [{"name": "a", "bucket": "mine", "directory": "/a"}]}],
            "cluster_config_storage[/data].data_repositories[a].bucket is mine; needed: s3://<bucket>/<prefix>",
        ),
        (
            [
                {
                    **LUSTRE,
                    "data_repositories": [{"name": "a", "bucket": "s3://mine", "directory": "/a", "import": ["ALL"]}],
                }
            ],
            "cluster_config_storage[/data].data_repositories[a].import has ALL; needed: NEW, CHANGED, DELETED",
        ),
    ],
)
def test_storage(items: list[dict[str, Any]], says: str) -> None:
    only(says, storage=items, fsx_openzfs=sample.VOLUME)


def test_a_new_lustre_and_several_subnets() -> None:
    queues = [{"name": "a", "instance_types": ["g5.xlarge"], "subnets": TWO}]
    only("cluster_config_storage has a new lustre, and a queue several subnets", storage=[LUSTRE], queues=queues)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            {"url": "s3://my-bucket/x"},
            "cluster_config_bundle.url is s3://my-bucket/x; needed: s3://<bucket>/<prefix>/<b",
        ),
        ({"sha256": "abc"}, "cluster_config_bundle.sha256 is abc; needed: 64 hexadecimal digits"),
        ({"budget": 0}, "cluster_config_bundle.budget is 0; needed: a number of seconds"),
        ({"login_policy": "x"}, "cluster_config_bundle.login_policy is x; needed: the ARN of a policy"),
        (
            {"trusted_writers": ["Head"]},
            "cluster_config_bundle.trusted_writers has Head, which is no node of the confi",
        ),
    ],
)
def test_a_bundle(more: dict[str, Any], says: str) -> None:
    only(says, bundle={**sample.BUNDLE, **more})


def test_login_nodes_that_could_not_read_the_bundle() -> None:
    only("cluster_config_bundle.login_policy is not set, and there are login pools",
         bundle=sample.BUNDLE, login_pools=[{"name": "login"}])  # fmt: skip


def test_the_mode_gpu_without_gpus() -> None:
    queues = [{"name": "cpu", "instance_type": "c5.xlarge", "mode": "gpu"}]
    only("cluster_config_queues[cpu] has mode gpu, and c5.xlarge no NVIDIA GPU", bundle=sample.BUNDLE, queues=queues)


def test_a_node_that_could_replace_the_bundle() -> None:
    head = {"s3_access": [{"bucket": "my-bucket", "write": True}]}
    (line,) = rendered(bundle=sample.BUNDLE, head_node=head).problems
    assert line.startswith("the configuration: HeadNode could write to s3://my-bucket/postboot/ by S3Access")
    assert "publish_" not in line
    assert "'HeadNode' in cluster_config_bundle.trusted_writers" in line
    trusted = {**sample.BUNDLE, "trusted_writers": ["HeadNode"]}
    assert rendered(bundle=trusted, head_node=head).problems == []


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({}, "cluster_config_database.uri is not set; needed: <host>:<port>"),
        ({"uri": "mysql://x:1"}, "cluster_config_database.uri is mysql://x:1; needed: <host>:<port>"),
        ({"uri": "x:1"}, "cluster_config_database.user is not set"),
        (
            {"uri": "x:1", "user": "u", "password_secret": "p"},
            "cluster_config_database.password_secret is p; needed: the",
        ),
        (
            {"uri": "x:1", "user": "u", "password_secret": "arn:aws:x:secret:y", "name": "A"},
            "cluster_config_database.name is A; needed: at most 64 lowercase",
        ),
    ],
)
def test_a_database(more: dict[str, Any], says: str) -> None:
    assert rendered(database={"name": "x", **more}).problems[0].startswith(says)


def test_a_database_limits_the_name_and_the_settings() -> None:
    database = {"uri": "x:1", "user": "u", "password_secret": "arn:aws:x:secret:y"}
    only(
        f"cluster_config_name is {'a' * 41}; needed: a letter, and then letters, digits and hyphens, at most 40",
        "cluster_config_slurm_settings.custom has AccountingStorageHost, which ParallelCluster sets itself",
        name="a" * 41,
        database=database,
        slurm_settings={"custom": [{"AccountingStorageHost": "x"}]},
    )


def _dns(managed: bool = False, **there: Any) -> render.Outcome:
    return rendered({"Scheduling": {"SlurmSettings": {"Dns": there}}} if there else None, managed_dns=managed)


WITHOUT_DNS = {"DisableManagedDns": True, "UseEc2Hostnames": True}


def test_a_cluster_without_route_53() -> None:
    for there in ({}, WITHOUT_DNS, {"UseEc2Hostnames": True}):
        outcome = _dns(**there)
        assert (outcome.config["Scheduling"]["SlurmSettings"]["Dns"], list(outcome.problems)) == (WITHOUT_DNS, [])
    assert "Dns" not in _dns(managed=True).config["Scheduling"]["SlurmSettings"]
    assert _dns(managed=True, HostedZoneId="Z01").config["Scheduling"]["SlurmSettings"]["Dns"] == {
        "HostedZoneId": "Z01"
    }


@pytest.mark.parametrize(
    ("there", "found", "needed"),
    [
        ({"DisableManagedDns": False}, "DisableManagedDns of cluster_config_base is false", "true"),
        ({**WITHOUT_DNS, "UseEc2Hostnames": "no"}, 'UseEc2Hostnames of cluster_config_base is "no"', "true"),
        ({"HostedZoneId": "Z01"}, 'HostedZoneId of cluster_config_base is "Z01"', "none"),
    ],
)
def test_a_base_that_wants_route_53(there: dict[str, Any], found: str, needed: str) -> None:
    assert list(_dns(**there).problems) == [
        f"cluster_config_managed_dns is false, and Scheduling/SlurmSettings/Dns/{found}; needed: {needed} there, or "
        "cluster_config_managed_dns true"
    ]


BASE: dict[str, Any] = {
    "Region": "eu-west-1",
    "HeadNode": {"InstanceType": "m5.xlarge", "LocalStorage": {"RootVolume": {"Size": 50}}},
    "Scheduling": {
        "SlurmSettings": {"CustomSlurmSettings": [{"MaxArraySize": 5}]},
        "SlurmQueues": [{"Name": "gpu", "CapacityType": "SPOT", "Networking": {"PlacementGroup": {"Enabled": True}}}],
    },
    "SharedStorage": [{"Name": "mine", "MountDir": "data", "StorageType": "Efs"}],
}


def test_every_conflict_with_what_the_user_has_is_a_line() -> None:
    queues = [{"name": "gpu", "instance_type": P5, "count": 2, **BLOCK}]
    custom = {"custom": [{"maxarraysize": 6}]}
    given = sample.given(base="my.yaml", queues=queues, slurm_settings=custom, storage=[LUSTRE])
    given["head_node"] = {"instance_type": "m5.2xlarge"}
    assert list(render.render(given, BASE, components.read()).problems) == [
        'cluster_config_region is "us-east-1", and Region of my.yaml is "eu-west-1"; needed: the same, or only one of '
        "them",
        "cluster_config_slurm_settings.custom has maxarraysize 6, and CustomSlurmSettings 5 already; needed: the same, "
        "or one alone",
        'cluster_config_queues[gpu].capacity is "CAPACITY_BLOCK", and Scheduling/SlurmQueues/gpu/CapacityType of '
        'my.yaml is "SPOT"; needed: the same, or only one of them',
        "cluster_config_queues[gpu] has a placement group and a capacity block, which has its own place; needed: "
        "placement_group auto or false",
        'cluster_config_head_node.instance_type is "m5.2xlarge", and HeadNode/InstanceType of my.yaml is "m5.xlarge"; '
        "needed: the same, or only one of them",
        "HeadNode/LocalStorage/RootVolume/Size of my.yaml is 50; needed: 100 GiB or more (45 of the image + 40 "
        "container_images + 11 prometheus)",
        "cluster_config_storage: mine and data are both at /data; needed: one of them",
    ]


def test_a_section_of_the_users_that_is_none() -> None:
    with pytest.raises(Problem, match=r"HeadNode/Networking of cluster_config_base is 5; needed: a section"):
        rendered({"HeadNode": {"Networking": 5}})


def test_all_is_said_together() -> None:
    problems = rendered(name="", os="debian", queues=[{"name": "A", "instance_type": "c5.xlarge", "max": 0}]).problems
    assert len(problems) == 4


ROLE = "arn:aws:iam::123456789012:role/mine"


@pytest.mark.parametrize(
    ("iam", "item", "says"),
    [
        ({"InstanceRole": ROLE}, {"policies": [sample.POLICY]}, "policies, and {}/Iam of cluster_config_base has arn:"),
        ({"InstanceProfile": "x"}, {"s3_access": [{"bucket": "b"}]}, "s3_access, and {}/Iam of cluster_config_base"),
        (
            {"S3Access": [{"BucketName": "b"}]},
            {"instance_role": ROLE},
            "instance_role, and {}/Iam of cluster_config_base has S3Access",
        ),
    ],
)
def test_a_role_of_the_base_takes_the_place_of_policies(iam: dict[str, Any], item: dict[str, Any], says: str) -> None:
    base = {"HeadNode": {"Iam": iam}, "Scheduling": {"SlurmQueues": [{"Name": "gpu", "Iam": iam}]}}
    only(f"cluster_config_head_node has {says.format('HeadNode')}", base=base, head_node=item)
    queue = {"name": "gpu", "instance_type": P5, "max": 4, **item}
    found = rendered(base, queues=[queue], policies=[sample.POLICY])
    (line,) = found.problems
    assert line.startswith(f"cluster_config_queues[gpu] has {says.format('Scheduling/SlurmQueues/gpu')}")
    assert any(note.startswith("cluster_config_queues[gpu]: the role ") for note in found.notes)


@pytest.mark.parametrize(("word", "other"), [("true", "false"), ("yes", "No"), (1, 0), ("on", "OFF")])
def test_a_boolean_of_the_base_may_be_a_text_as_parallelcluster_takes_it(word: Any, other: Any) -> None:
    base: dict[str, Any] = {
        "HeadNode": {"Imds": {"Secured": word}},
        "Monitoring": {"DetailedMonitoring": other},
        "Scheduling": {
            "SlurmSettings": {"Dns": {"DisableManagedDns": word, "UseEc2Hostnames": word}},
            "SlurmQueues": [
                {
                    "Name": "gpu",
                    "Networking": {"SubnetIds": TWO, "PlacementGroup": {"Enabled": other}},
                    "ComputeResources": [{"Name": "p5", "Efa": {"Enabled": other}}],
                }
            ],
        },
    }
    more: dict[str, Any] = {
        "imds": {"secured": True},
        "monitoring": {"detailed": False},
        "managed_dns": False,
        "queues": [{"name": "gpu", "instance_types": [P5], "compute_resource": "p5", "max": 4}],
    }
    assert list(rendered(base, **more).problems) == []
    more["imds"], more["monitoring"] = {"secured": False}, {"detailed": True}
    assert len(rendered(base, **more).problems) == 2
