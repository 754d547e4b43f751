# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What cluster_config refuses: one line each, with the variable, what was found, and what is needed."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.pcluster.postboot.tests.unit.plugins import cluster_config_sample as sample
from ansible_collections.pcluster.postboot.tests.unit.plugins.cluster_config_sample import only, rendered

P5 = "p5.48xlarge"
BLOCK = {"capacity": "capacity_block", "reservation": sample.BLOCK}
TWO = [sample.COMPUTE, sample.OTHER]
LUSTRE = {"mount": "/data", "type": "lustre", "size": 2400}


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ({"placement_group": "true", "count": 2, **BLOCK}, " has a placement group and a capacity block"),
        ({"placement_group": "mine", "count": 2, **BLOCK}, " has a placement group and a capacity block"),
        (
            {"placement_group": "true", "reservation": sample.BLOCK},
            " has a placement group of its own and a reservation",
        ),
        ({"count": 2, "capacity": "capacity_block"}, ".capacity is capacity_block; needed: reservation"),
        (
            {"count": 2, "capacity": "capacity_block", "reservation": sample.GROUP},
            ".capacity is capacity_block; needed: reservation",
        ),
        ({"min": 1, "max": 2, **BLOCK}, " has min 1 and max 2 with a capacity block; needed: count"),
        ({"max": 2, **BLOCK}, " has min 0 and max 2 with a capacity block"),
        ({"count": 0}, ".count is 0; needed: 1 or more"),
        ({"max": 0}, ".max is 0; needed: 1 or more"),
        ({"min": 3, "max": 2}, ".min is 3; needed: 0 to max, which is 2"),
        ({"min": 11}, ".min is 11; needed: 0 to max, which is 10"),
        ({"min": -1}, ".min is -1; needed: 0 to max"),
        ({"count": 1, "max": 2}, " has count, and min or max too"),
        ({"reservation": "cr-x"}, ".reservation is cr-x; needed: cr-… or the ARN"),
        ({"reservation": sample.BLOCK, "capacity": "spot"}, " has capacity spot and a reservation"),
        ({"spot_price": 2.0}, ".spot_price is set, and capacity is on_demand; needed: capacity spot"),
        ({"subnets": TWO}, " has 2 subnets and instance_type"),
        ({"subnets": ["subnet-1"]}, ".subnets is subnet-1; needed: a subnet"),
        ({"allocation_strategy": "cheapest"}, ".allocation_strategy is cheapest; needed: one of lowest-price"),
        ({"allocation_strategy": "lowest-price"}, ".allocation_strategy is set, and EC2 has nothing to choose from"),
        (
            {"allocation_strategy": "capacity-optimized"},
            ".allocation_strategy is capacity-optimized with capacity on_d",
        ),
        ({"compute_resource": "P5"}, ".compute_resource is P5; needed: a lowercase letter"),
        ({"custom_ami": "ami-1"}, ".custom_ami is ami-1; needed: an image"),
        ({"scratch_dir": "scratch"}, ".scratch_dir is scratch; needed: a path"),
        ({"slurm_settings": {"State": "UP"}}, ".slurm_settings has State, which ParallelCluster sets itself"),
        ({"node_settings": {"Features": "x"}}, ".node_settings has Features, which ParallelCluster sets itself"),
        ({"node_settings": {"Gres": "gpu:8"}}, ".node_settings has Gres, which ParallelCluster sets itself"),
        ({"policies": ["mine"]}, ".policies is mine; needed: the ARN of a policy"),
        ({"instance_role": "mine"}, ".instance_role is mine; needed: the ARN of a role"),
        (
            {"instance_role": "arn:aws:iam::1:role/x", "policies": [sample.POLICY]},
            " has instance_role and policies; needed: one of them",
        ),
        ({"s3_access": [{"bucket": "Mine"}]}, ".s3_access is Mine; needed: the name of a bucket"),
        ({"security_groups": ["mine"]}, ".security_groups is mine; needed: a security group"),
        ({"instance_types": [P5]}, " has both of instance_type and instance_types"),
        ({"root_volume_size": 40}, ".root_volume_size is 40; needed: 45 GiB or more (45 of the image)"),
    ],
)
def test_a_queue(item: dict[str, Any], says: str) -> None:
    only(f"cluster_config_queues[gpu]{says}", queues=[{"name": "gpu", "instance_type": P5, **item}])


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ({}, " has neither of instance_type and instance_types"),
        ({"instance_type": "c5.xlarge", "efa": "true"}, ".efa is true, which c5.xlarge has not"),
        ({"instance_types": [P5, "g5.xlarge"], "efa": "true"}, ".efa is true, which g5.xlarge has not"),
        ({"instance_types": [P5], "efa": "true", "subnets": TWO}, ".efa is true with 2 subnets; needed: one"),
        ({"instance_type": "q9.48xlarge"}, ".efa is auto, and nothing is known of q9.48xlarge"),
        ({"instance_types": [P5], "placement_group": "true", "subnets": TWO}, " has a placement group and 2 subnets"),
        (
            {"instance_type": "t3.large", "placement_group": "true"},
            " has a placement group, which t3.large cannot be in",
        ),
        ({"instance_types": [P5], "reservation": sample.BLOCK}, f" has reservation {sample.BLOCK} and instance_types"),
        ({"instance_types": [P5, P5]}, f".instance_types has {P5} twice"),
        ({"instance_type": "p5"}, ".instance_type is p5, which is no instance type"),
        ({"instance_type": "p5.48xlrge"}, ".instance_type is p5.48xlrge, which is no instance type"),
        ({"instance_type": "p3.16xlarge", "efa": "false"}, ".instance_type is p3.16xlarge, whose GPUs are too old"),
        ({"instance_type": "c5.xlarge", "gpu_health_check": True}, ".gpu_health_check is true, and c5.xlarge has no"),
        ({"instance_type": "c5.xlarge", "scratch_dir": "/scratch"}, ".scratch_dir is /scratch, and c5.xlarge has no"),
        (
            {"instance_type": "c5.xlarge", "count": 1, **BLOCK},
            ".capacity is capacity_block, which EC2 does not sell c5",
        ),
        ({"instance_type": "p6e-gb200.36xlarge", "count": 9}, ".capacity is on_demand, which EC2 does not sell p6e"),
        ({"instance_type": "trn2u.48xlarge", "capacity": "spot"}, ".capacity is spot, which EC2 does not sell trn2u"),
        (
            {"instance_type": "c5.xlarge", "root_volume_size": 60},
            ".root_volume_size is 60; needed: 110 GiB or more (45 ",
        ),
        (
            {"instance_types": [P5], "allocation_strategy": "lowest-price", "count": 1, **BLOCK, "reservation": None},
            ".allocation_strategy is lowest-price with capacity capacity_block; needed: none",
        ),
    ],
)
def test_a_queue_by_its_instance_types(item: dict[str, Any], says: str) -> None:
    problems = rendered(queues=[{"name": "gpu", **item}]).problems
    assert f"cluster_config_queues[gpu]{says}" in "\n".join(problems)


@pytest.mark.parametrize(
    ("version", "more", "says"),
    [
        ("3.12.0", {}, "cluster_config_version is 3.12.0; needed: 3.13.0 or newer"),
        ("4.0.0", {}, "cluster_config_version is 4.0.0; needed: 3.13.0 or newer, below 4"),
        ("newest", {}, "cluster_config_version is newest; needed: 3.13.0 or newer"),
        ("3.16.1", {"os": "alinux2"}, "cluster_config_os is alinux2, which ParallelCluster has up to 3.15"),
        ("3.14.0", {"os": "ubuntu2004"}, "cluster_config_os is ubuntu2004, which ParallelCluster has up to 3.13"),
        ("3.13.0", {"os": "ubuntu2004"}, "cluster_config_os is ubuntu2004, which this collection does not configure"),
        ("3.16.1", {"os": "debian13"}, "cluster_config_os is debian13; needed: one of ubuntu2404"),
        ("3.16.1", {"os": "rocky9"}, "cluster_config_os is rocky9, for which ParallelCluster has no image"),
        (
            "3.13.2",
            {"queues": [{"name": "a", "instance_type": "p6-b200.48xlarge"}]},
            "cluster_config_queues[a].instance_type is p6-b200.48xlarge, and cluster_config_version is 3.13.2; needed: "
            "3.14.0, the first that supports it",
        ),
        (
            "3.14.2",
            {"queues": [{"name": "a", "instance_type": "p6-b300.48xlarge"}]},
            "cluster_config_queues[a].instance_type is p6-b300.48xlarge, and cluster_config_version is 3.14.2; needed: "
            "3.15.0",
        ),
        (
            "3.13.2",
            {"queues": [{"name": "a", "instance_types": [P5], "allocation_strategy": "prioritized"}]},
            "cluster_config_queues[a].allocation_strategy is prioritized, and cluster_config_version is 3.13.2; "
            "needed: 3.14.0, the first that has it",
        ),
        (
            "3.15.1",
            {"slurm_settings": {"native_metrics": True}},
            "cluster_config_slurm_settings.native_metrics is true, and cluster_config_version is 3.15.1 with Slurm "
            "25.11.4; needed: 3.16.0, the first whose Slurm is 25.11.5 or newer",
        ),
    ],
)
def test_what_a_version_lacks(version: str, more: dict[str, Any], says: str) -> None:
    only(says, version=version, **more)


def test_an_operating_system_of_which_a_type_is_not() -> None:
    gb = {"name": "gb", "instance_type": "p6e-gb200.36xlarge", "count": 9, **BLOCK}
    only("cluster_config_queues[gb].instance_type is p6e-gb200.36xlarge, and the operating system rhel9",
         os="rhel9", queues=[gb])  # fmt: skip


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"name": ""}, "cluster_config_name is not set"),
        ({"name": "1st"}, "cluster_config_name is 1st; needed: a letter"),
        ({"name": "a" * 61}, f"cluster_config_name is {'a' * 61}; needed: a letter, and then letters, digits and hyph"),
        ({"region": ""}, "cluster_config_region is not set, and neither is AWS_REGION"),
        ({"region": "us-east-2a"}, "cluster_config_region is us-east-2a; needed: a region, as us-east-2"),
        ({"region": "Ohio"}, "cluster_config_region is Ohio; needed: a region"),
        ({"custom_ami": "mine"}, "cluster_config_custom_ami is mine; needed: an image"),
        ({"subnet_head": ""}, "cluster_config_subnet_head is not set"),
        ({"subnet_head": "x"}, "cluster_config_subnet_head is x; needed: a subnet"),
        ({"subnet_login": "x"}, "cluster_config_subnet_login is x; needed: a subnet"),
        ({"security_groups": ["x"]}, "cluster_config_security_groups is x; needed: a security group"),
        ({"policies": ["x"]}, "cluster_config_policies is x; needed: the ARN of a policy"),
        ({"head_node_policies": ["x"]}, "cluster_config_head_node_policies is x; needed: the ARN of a policy"),
        ({"components": ["dokcer"]}, "cluster_config_components has dokcer, which is no component"),
        ({"queues": []}, "cluster_config_queues is empty; needed: one queue or more"),
        ({"queues": [{"name": "Gpu", "instance_type": P5}]}, "cluster_config_queues[Gpu].name is Gpu; needed: a lower"),
        ({"queues": [{"name": "default", "instance_type": P5}]}, "cluster_config_queues[default].name is default"),
        ({"queues": [{"name": "a" * 26, "instance_type": P5}]}, f"cluster_config_queues[{'a' * 26}].name is"),
        ({"queues": [{"name": f"q{i}", "instance_type": P5} for i in range(51)]}, "cluster_config_queues: 51 queues"),
        ({"head_node": {"root_volume_size": 60}}, "cluster_config_head_node.root_volume_size is 60; needed: 100 GiB"),
        ({"head_node": {"allowed_ips": "me"}}, "cluster_config_head_node.allowed_ips is me; needed: a CIDR"),
        (
            {"login_pools": [{"name": "login", "allowed_ips": "10.0.0.300/8"}]},
            "cluster_config_login_pools[login].allowed_ips is 10.0.0.300/8; needed: a CIDR",
        ),
        ({"head_node": {"allowed_ips": "10.0.0.0/33"}}, "cluster_config_head_node.allowed_ips is 10.0.0.0/33; needed"),
        ({"head_node": {"instance_type": "m7g.large"}}, "cluster_config_head_node.instance_type (m7g.large) is arm64"),
        ({"head_node": {"custom_ami": "x"}}, "cluster_config_head_node.custom_ami is x; needed: an image"),
        (
            {"head_node": {"security_groups": ["sg-01234567"]}, "security_groups": ["sg-01234567"]},
            "cluster_config_head_node.security_groups take the place of ParallelCluster's",
        ),
        ({"login_pools": [{"name": "a"}, {"name": "a"}]}, "cluster_config_login_pools has two pools a"),
        ({"login_pools": [{"name": f"p{i}"} for i in range(11)]}, "cluster_config_login_pools: 11 pools; needed: 10"),
        ({"login_pools": [{"name": "A"}]}, "cluster_config_login_pools[A].name is A"),
        ({"login_pools": [{"name": "a", "count": -1}]}, "cluster_config_login_pools[a].count is -1; needed: 0"),
        ({"login_pools": [{"name": "a", "grace_minutes": 1}]}, "cluster_config_login_pools[a].grace_minutes is 1"),
        ({"timeouts": {"head_node": 0}}, "cluster_config_timeouts.head_node is 0; needed: 1 to 43200"),
        ({"timeouts": {"compute_node": 50000}}, "cluster_config_timeouts.compute_node is 50000; needed: 1 to 43200"),
        (
            {"timeouts": {"compute_node": 900}, "bundle": sample.BUNDLE},
            "cluster_config_timeouts.compute_node is 900; needed: 1200 s or more (480 from the launch",
        ),
        (
            {
                "timeouts": {"head_node": 2100},
                "bundle": sample.BUNDLE,
                "queues": [{"name": "a", "instance_type": P5, "count": 1}],
            },
            "cluster_config_timeouts.head_node is 2100; needed: 4200 s or more (4200 twice the compute nodes' timeout)",
        ),
        ({"slurm_settings": {"idle_minutes": -2}}, "cluster_config_slurm_settings.idle_minutes is -2; needed: -1"),
        ({"slurm_settings": {"custom": [{"Prolog": "x"}]}}, "cluster_config_slurm_settings.custom has Prolog, which"),
        ({"monitoring": {"log_days": 8}}, "cluster_config_monitoring.log_days is 8; needed: one of 0, 1, 3"),
        ({"tags": {"parallelcluster:x": "y"}}, "cluster_config_tags has parallelcluster:x"),
        ({"tags": {str(i): "y" for i in range(41)}}, "cluster_config_tags: 41 tags; needed: 40 at most"),
    ],
)
def test_a_variable(more: dict[str, Any], says: str) -> None:
    only(says, **more)


def test_two_queues_of_one_name() -> None:
    item = {"name": "a", "instance_type": P5}
    assert (
        "cluster_config_queues has two queues a; needed: a name of its own for each"
        in rendered(queues=[item, {**item, "max": 3}]).problems
    )


def test_a_login_pool_without_a_subnet() -> None:
    problems = rendered(subnet_head="", login_pools=[{"name": "login"}]).problems
    assert problems == [
        "cluster_config_subnet_head is not set; needed: the head node's subnet",
        "cluster_config_login_pools[login].subnet is not set, and neither are cluster_config_subnet_login and _head; "
        "needed: a subnet",
    ]


def test_a_queue_without_a_subnet() -> None:
    problems = rendered(subnet_head="", subnet_compute="").problems
    assert any(line.startswith("cluster_config_queues[gpu].subnets is not set") for line in problems)
