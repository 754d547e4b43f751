# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Configurations that cluster_config renders, each of which ParallelCluster's own schema takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config import base as users
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config import needs, render
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.components import Component, Need
from ansible_collections.pcluster.postboot.tests.unit.plugins import cluster_config_sample as sample
from ansible_collections.pcluster.postboot.tests.unit.plugins import parallelcluster
from ansible_collections.pcluster.postboot.tests.unit.plugins.cluster_config_sample import config, queue, rendered

ROOT = Path(__file__).resolve().parents[4]
SCRIPT = "s3://my-bucket/postboot/0.2.0-5b1d0c9e77aa/bootstrap.sh"
LUSTRE = {"mount": "/data", "type": "lustre", "size": 4800, "throughput": 500}
# One of everything, as variables beyond those of the sample.
SAMPLES: dict[str, dict[str, Any]] = {
    "least": {},
    "capacity block": {
        "queues": [
            {
                "name": "train",
                "instance_type": "p5en.48xlarge",
                "count": 4,
                "capacity": "capacity_block",
                "reservation": sample.BLOCK,
                "gpu_health_check": True,
                "exclusive": True,
                "scratch_dir": "/local_scratch",
                "multithreading": False,
                "slurm_settings": {"MaxTime": "1-00:00:00"},
                "node_settings": {"Feature": "p5en,hopper"},
                "custom_ami": "ami-0123456789abcdef0",
                "tags": {"team": "ml", "cost": 7},
            }
        ]
    },
    "reservations": {
        "queues": [
            {"name": "odcr", "instance_type": "p4d.24xlarge", "max": 2, "reservation": sample.BLOCK},
            {"name": "group", "instance_types": ["p5.48xlarge"], "max": 2, "reservation": sample.GROUP},
            {
                "name": "placed",
                "instance_type": "p4d.24xlarge",
                "count": 1,
                "reservation": sample.BLOCK,
                "placement_group": "mine",
            },
        ]
    },
    "inference and trainium": {
        "queues": [
            {
                "name": "inference",
                "instance_types": ["g5.xlarge", "g6.xlarge"],
                "subnets": [sample.COMPUTE, sample.OTHER],
                "capacity": "spot",
                "allocation_strategy": "price-capacity-optimized",
                "spot_price": 1.5,
            },
            {"name": "trn", "instance_type": "trn1.32xlarge", "min": 0, "max": 2, "efa": "true"},
            {"name": "cpu", "instance_type": "c5.xlarge", "max": 8, "efa": "false", "root_volume_size": 200},
        ]
    },
    "nodes": {
        "head_node": {
            "instance_type": "m6i.4xlarge",
            "root_volume_size": 500,
            "ssh_key": "me",
            "allowed_ips": "192.0.2.0/24",
            "elastic_ip": "true",
            "policies": [sample.POLICY],
            "s3_access": [{"bucket": "data", "key": "x/*", "write": True}, {"bucket": "more"}],
            "custom_ami": "ami-0123456789abcdef0",
            "shared_storage_type": "Efs",
        },
        "login_pools": [
            {"name": "login", "count": 2, "allowed_ips": "pl-0123456789abcdef0", "grace_minutes": 10},
            {"name": "big", "instance_type": "m5.4xlarge", "subnet": sample.OTHER, "policies": [sample.POLICY]},
            {"name": "own", "instance_role": "arn:aws:iam::123456789012:role/mine"},
        ],
        "security_groups": ["sg-0123456789abcdef0"],
        "policies": [f"{sample.POLICY}-of-all"],
        "os": "rocky9",
        "custom_ami": "ami-0123456789abcdef1",
    },
    "storage": {
        "fsx_openzfs": sample.VOLUME,
        "storage": [
            {
                **LUSTRE,
                "data_repositories": [
                    {"name": "d", "bucket": "s3://mine/x", "directory": "/d", "import": ["NEW"], "export": ["NEW"]}
                ],
            },
            {"mount": "/fsx", "type": "lustre", "id": sample.FSX},
            {"mount": "/apps", "type": "ebs", "size": 200, "throughput": 250, "deletion": "Snapshot"},
            {"mount": "/shared", "type": "efs", "throughput": 128},
            {"mount": "/old", "type": "efs", "id": "fs-01234567"},
            {"mount": "/ontap", "type": "ontap", "id": sample.VOLUME[:-1] + "1"},
        ],
    },
    "scratch lustre": {"storage": [{"mount": "/s", "type": "lustre", "size": 1200, "deployment": "SCRATCH_2"}]},
    "settings": {
        "slurm_settings": {
            "idle_minutes": 30,
            "update_strategy": "DRAIN",
            "memory_scheduling": True,
            "custom": [{"TaskProlog": "/fsx/prolog.sh"}, {"PartitionName": "all", "Nodes": "ALL"}],
        },
        "database": {
            "uri": "db.example.com:3306",
            "user": "slurm",
            "password_secret": "arn:aws:secretsmanager:us-east-1:123456789012:secret:x",
            "name": "acct",
        },
        "imds": {"version": "v2.0", "secured": True},
        "monitoring": {
            "detailed": True,
            "logs": True,
            "log_days": 30,
            "log_deletion": "Retain",
            "dashboard": False,
            "alarms": False,
        },
        "tags": {"team": "ml"},
        "timeouts": {"head_node": 7200, "compute_node": 3600},
    },
    "no route 53": {"managed_dns": False},
    "bundle": {
        "bundle": {**sample.BUNDLE, "login_policy": sample.POLICY, "budget": 400, "defer": True},
        "login_pools": [{"name": "login"}],
        "queues": [
            {"name": "gpu", "instance_type": "p5.48xlarge", "count": 2, "mode": "gpu"},
            {"name": "cpu", "instance_type": "c5.xlarge", "max": 2},
        ],
    },
    "grace": {
        "queues": [
            {
                "name": "gb",
                "instance_type": "p6e-gb200.36xlarge",
                "count": 18,
                "capacity": "capacity_block",
                "reservation": sample.BLOCK,
            }
        ]
    },
}


@pytest.mark.parametrize("version", parallelcluster.VERSIONS)
def test_parallelclusters_own_schema_takes_every_configuration(version: str) -> None:
    samples = dict(SAMPLES)
    if version < "3.14":
        del samples["grace"]
    texts = [render.text(rendered(**{**more, "version": version}), version) for more in samples.values()]
    assert dict(zip(samples, parallelcluster.refusals(texts, version))) == dict.fromkeys(samples, "")


@pytest.mark.parametrize("name", SAMPLES)
def test_every_configuration_is_rendered_alike_each_time(name: str) -> None:
    outcome = rendered(**SAMPLES[name])
    assert list(outcome.problems) == []
    text = render.text(outcome, "3.16.1")
    assert text == render.text(rendered(**SAMPLES[name]), "3.16.1")
    assert yaml.safe_load(text) == outcome.config
    assert "&id" not in text


def test_the_example_of_the_readme_is_rendered() -> None:
    text = (ROOT / "roles/cluster_config/README.md").read_text()
    variables = yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])
    more = {name.removeprefix("cluster_config_"): value for name, value in variables.items()}
    found = config(**more)
    assert [queue["Name"] for queue in found["Scheduling"]["SlurmQueues"]] == ["train", "inference", "cpu"]
    assert found["DevSettings"] == {"Timeouts": {"HeadNodeBootstrapTimeout": 4200}}


def test_what_is_switched_off_is_in_the_file() -> None:
    found = config(monitoring={"dashboard": False, "alarms": False}, imds={"secured": False})
    assert found["Monitoring"] == {"Dashboards": {"CloudWatch": {"Enabled": False}}, "Alarms": {"Enabled": False}}
    assert found["HeadNode"]["Imds"] == {"Secured": False}


def test_the_least_is_a_whole_configuration() -> None:
    assert config(components=[]) == {
        "Region": "us-east-1",
        "Image": {"Os": "ubuntu2404"},
        "HeadNode": {"InstanceType": "m5.2xlarge", "Networking": {"SubnetId": sample.HEAD}},
        "Scheduling": {
            "Scheduler": "slurm",
            "SlurmQueues": [
                {
                    "Name": "gpu",
                    "Networking": {"SubnetIds": [sample.COMPUTE], "PlacementGroup": {"Enabled": True}},
                    "ComputeResources": [
                        {
                            "Name": "p5",
                            "InstanceType": "p5.48xlarge",
                            "MinCount": 0,
                            "MaxCount": 4,
                            "Efa": {"Enabled": True},
                        }
                    ],
                }
            ],
        },
    }


@pytest.mark.parametrize(
    ("variables", "efa", "placement"),
    [
        ({"instance_type": "p5.48xlarge"}, True, {"Enabled": True}),
        ({"instance_type": "p5.48xlarge", "efa": "false"}, None, None),
        ({"instance_type": "p5.48xlarge", "efa": False}, None, None),
        ({"instance_type": "p5.48xlarge", "placement_group": "false"}, True, {"Enabled": False}),
        ({"instance_type": "p5.48xlarge", "placement_group": False}, True, {"Enabled": False}),
        ({"instance_type": "p5.48xlarge", "reservation": sample.BLOCK}, True, {"Enabled": False}),
        (
            {"instance_type": "p5.48xlarge", "reservation": sample.BLOCK, "count": 1, "capacity": "capacity_block"},
            True,
            {"Enabled": False},
        ),
        ({"instance_type": "p5.48xlarge", "placement_group": "mine"}, True, {"Name": "mine"}),
        ({"instance_type": "c5.xlarge"}, None, None),
        ({"instance_type": "c5.xlarge", "placement_group": "true"}, None, {"Enabled": True}),
        ({"instance_types": ["p5.48xlarge", "p5en.48xlarge"]}, True, {"Enabled": True}),
        ({"instance_types": ["g5.8xlarge", "g5.xlarge"]}, None, None),
        ({"instance_types": ["p5.48xlarge"], "subnets": [sample.COMPUTE, sample.OTHER]}, None, None),
        ({"instance_type": "unknown9.48xlarge", "efa": "true"}, True, {"Enabled": True}),
    ],
)
def test_efa_and_the_placement_group_are_chosen(variables: dict[str, Any], efa: Any, placement: Any) -> None:
    found = queue(**variables)
    assert found["ComputeResources"][0].get("Efa") == ({"Enabled": efa} if efa else None)
    assert found["Networking"].get("PlacementGroup") == placement


@pytest.mark.parametrize(
    ("version", "components", "native", "expected"),
    [
        ("3.15.0", None, None, None),
        ("3.16.0", None, None, [{"MetricsType": "metrics/openmetrics"}]),
        ("3.16.1", ["docker"], None, None),
        ("3.16.1", None, False, None),
        ("3.16.1", [], True, [{"MetricsType": "metrics/openmetrics"}]),
    ],
)
def test_slurm_has_metrics_of_its_own_where_the_version_can(
    version: str, components: Any, native: bool | None, expected: Any
) -> None:
    found = config(version=version, components=components, slurm_settings={"native_metrics": native})
    assert found["Scheduling"].get("SlurmSettings", {}).get("CustomSlurmSettings") == expected


def test_a_setting_of_the_users_stands_before_ours() -> None:
    found = config(slurm_settings={"custom": [{"metricstype": "mine"}, {"MaxArraySize": 5}]})
    assert found["Scheduling"]["SlurmSettings"]["CustomSlurmSettings"] == [{"metricstype": "mine"}, {"MaxArraySize": 5}]


def test_root_volumes_hold_what_the_components_lay_there() -> None:
    outcome = rendered(
        queues=[{"name": "c", "instance_type": "c5.xlarge"}, {"name": "d", "instance_type": "c6id.xlarge"}]
    )
    assert outcome.config["HeadNode"]["LocalStorage"]["RootVolume"]["Size"] == 100
    plain, with_disks = outcome.config["Scheduling"]["SlurmQueues"]
    assert plain["ComputeSettings"]["LocalStorage"]["RootVolume"]["Size"] == 110
    assert "ComputeSettings" not in with_disks, "images lie on the node's own disks"
    assert "HeadNode/LocalStorage/RootVolume/Size: 100 GiB (45 of the image + 40 container_images + 11 prometheus)" in (
        outcome.notes
    )
    head = {"instance_type": "m6id.4xlarge"}
    assert config(head_node=head)["HeadNode"]["LocalStorage"]["RootVolume"]["Size"] == 60
    larger = config(container_image_gb=20, version="3.16.2")
    assert larger["HeadNode"]["LocalStorage"]["RootVolume"]["Size"] == 150


def test_timeouts_follow_from_the_components_of_the_bundle() -> None:
    static = [{"name": "gpu", "instance_type": "p5.48xlarge", "count": 2}]
    bundle = dict(sample.BUNDLE)
    assert "DevSettings" not in config(queues=static), "without a bundle a boot is ParallelCluster's alone"
    assert "DevSettings" not in config(bundle=bundle), "no node boots while the head node does"
    timeouts = {"HeadNodeBootstrapTimeout": 4200}
    assert config(queues=static, bundle=bundle)["DevSettings"] == {"Timeouts": timeouts}
    asked = config(queues=static, bundle=bundle, timeouts={"compute_node": 3600})["DevSettings"]["Timeouts"]
    assert asked == {"ComputeNodeBootstrapTimeout": 3600, "HeadNodeBootstrapTimeout": 7200}


def test_a_boot_is_the_sum_of_what_essential_components_take() -> None:
    def component(name: str, seconds: int, essential: bool) -> Component:
        return Component(name, needs=[Need("somewhere", ["compute"], seconds=seconds)], essential=essential)

    found = needs.boot([component("a", 2000, True), component("b", 5000, False)], "compute", slow=True)
    assert found.total == 2700
    assert str(found) == "480 from the launch to bootstrap.sh + 2000 a + 180 for the end"
    assert needs.boot([], "compute", slow=False).total == 600


def test_every_figure_has_a_component_of_site() -> None:
    assert {each.name for each in sample.COMPONENTS if each.needs} >= {
        "container_images",
        "prometheus",
        "efa",
        "docker",
    }


def test_the_bundle_is_run_by_every_node_as_publish_prints_it() -> None:
    found = config(**SAMPLES["bundle"])
    head = found["HeadNode"]
    assert head["CustomActions"]["OnNodeConfigured"] == head["CustomActions"]["OnNodeUpdated"]
    assert head["CustomActions"]["OnNodeConfigured"]["Script"] == f"{sample.BUNDLE['url']}/bootstrap.sh"
    assert head["Iam"] == {"S3Access": [{"BucketName": "my-bucket", "KeyName": "postboot/*"}]}
    gpu, cpu = found["Scheduling"]["SlurmQueues"]
    assert gpu["CustomActions"]["OnNodeConfigured"]["Args"][-6:] == [
        "--budget",
        "400",
        "--defer",
        "yes",
        "--mode",
        "gpu",
    ]
    assert "--mode" not in cpu["CustomActions"]["OnNodeConfigured"]["Args"]
    (pool,) = found["LoginNodes"]["Pools"]
    assert pool["Iam"] == {"AdditionalIamPolicies": [{"Policy": sample.POLICY}]}
    assert list(found)[:5] == ["Region", "Image", "HeadNode", "LoginNodes", "Scheduling"]


NEWER = {**SAMPLES["bundle"]["bundle"], "url": "s3://my-bucket/postboot/0.2.0-5b1d0c9e77aa", "sha256": "5" * 64}


def test_an_update_leaves_what_no_update_may_change() -> None:
    former = config(**SAMPLES["bundle"])
    pool = {"name": "new"}
    given = {**SAMPLES["bundle"], "bundle": NEWER, "login_pools": [*SAMPLES["bundle"]["login_pools"], pool]}
    outcome = render.render(sample.given(**given), None, sample.COMPONENTS, former=former)
    assert outcome.problems == []
    found = outcome.config
    made = f"{sample.BUNDLE['url']}/bootstrap.sh"
    login, new = found["LoginNodes"]["Pools"]
    for node, before in ((found["HeadNode"], former["HeadNode"]), (login, former["LoginNodes"]["Pools"][0])):
        actions = node["CustomActions"]
        assert actions["OnNodeConfigured"] == before["CustomActions"]["OnNodeConfigured"]
        assert (actions["OnNodeConfigured"]["Script"], actions["OnNodeUpdated"]["Script"]) == (made, SCRIPT)
    assert new["CustomActions"]["OnNodeConfigured"]["Script"] == SCRIPT
    for queue_ in found["Scheduling"]["SlurmQueues"]:
        assert queue_["CustomActions"]["OnNodeConfigured"]["Script"] == SCRIPT
    again = render.render(sample.given(**given), None, sample.COMPONENTS, former=found)
    assert again == outcome


def test_an_update_that_takes_the_bundle_away_leaves_it_where_no_update_may_change_it() -> None:
    former = config(**SAMPLES["bundle"])
    without = {key: value for key, value in SAMPLES["bundle"].items() if key != "bundle"}
    found = render.render(sample.given(**without), None, sample.COMPONENTS, former=former).config
    there = former["HeadNode"]["CustomActions"]["OnNodeConfigured"]
    for node in (found["HeadNode"], *found["LoginNodes"]["Pools"]):
        assert node["CustomActions"] == {"OnNodeConfigured": there}
    assert not any("CustomActions" in each for each in found["Scheduling"]["SlurmQueues"])


def test_an_update_that_brings_the_first_bundle() -> None:
    without = {key: value for key, value in SAMPLES["bundle"].items() if key != "bundle"}
    found = render.render(sample.given(**SAMPLES["bundle"]), None, sample.COMPONENTS, former=config(**without)).config
    for node in (found["HeadNode"], *found["LoginNodes"]["Pools"]):
        assert list(node["CustomActions"]) == ["OnNodeUpdated"]


def test_what_the_configuration_does_not_show_is_noted() -> None:
    notes = rendered(**{**SAMPLES["bundle"], "policies": [f"{sample.POLICY}-of-all"]}).notes
    (line,) = (note for note in notes if note.startswith(sample.POLICY))
    assert line.endswith("arn:aws:s3:::my-bucket/postboot/*, which the configuration does not show")
    role = "arn:aws:iam::123456789012:role/mine"
    notes = rendered(policies=[sample.POLICY], bundle=dict(sample.BUNDLE), head_node={"instance_role": role}).notes
    assert f"cluster_config_head_node: the role {role} has to allow what {sample.POLICY} allow" in notes
    assert any(
        note.startswith("HeadNode has an InstanceRole of its own, which must allow s3:GetObject") for note in notes
    )
    assert not any("publish" in note for note in notes)


def test_what_a_shell_expands_is_no_missing_value(tmp_path: Path) -> None:
    base = {"HeadNode": {"CustomActions": {"OnNodeConfigured": {"Script": "s3://b/x", "Args": ["${HOME}"]}}}}
    (tmp_path / "base.yaml").write_text(json.dumps(base))
    assert users.read(str(tmp_path / "base.yaml")) == base


POOL = {"name": "login"}
EVERYBODY = "cluster_config_login_pools[login]: port 22 is open to everybody who reaches the subnet; allowed_ips clos"


@pytest.mark.parametrize(
    ("queue", "more", "noted"),
    [
        ({"instance_type": "trn1.32xlarge"}, {}, "trn1.32xlarge"),
        ({"instance_types": ["c5.large", "inf2.xlarge"]}, {}, "inf2.xlarge"),
        ({"instance_type": "trn1.32xlarge", "custom_ami": "ami-0123456789abcdef0"}, {}, ""),
        ({"instance_type": "trn1.32xlarge"}, {"custom_ami": "ami-0123456789abcdef0"}, ""),
        ({"instance_type": "p5.48xlarge"}, {}, ""),
    ],
)
def test_neuron_devices_without_a_driver_are_noted(queue: dict[str, Any], more: dict[str, Any], noted: str) -> None:
    notes = [note for note in rendered(queues=[{"name": "trn", "max": 2, **queue}], **more).notes if "Neuron" in note]
    start = "cluster_config_queues[trn]: ParallelCluster's own image has no driver for the Neuron devices of "
    assert [note.split(";")[0] for note in notes] == ([start + noted] if noted else [])


@pytest.mark.parametrize(
    ("more", "start"),
    [
        ({"login_pools": [POOL]}, EVERYBODY),
        ({"login_pools": [{**POOL, "allowed_ips": "0.0.0.0/0"}]}, EVERYBODY),
        ({"login_pools": [{**POOL, "allowed_ips": "192.0.2.0/24"}]}, ""),
        ({"login_pools": [{**POOL, "security_groups": ["sg-0123456789abcdef0"]}]}, ""),
        ({"head_node": {"elastic_ip": "true"}}, "cluster_config_head_node: port 22 of its public address is open to e"),
        ({"head_node": {"elastic_ip": "true", "allowed_ips": "192.0.2.0/24"}}, ""),
        ({"head_node": {"allowed_ips": "0.0.0.0/0"}}, ""),
    ],
)
def test_a_port_22_that_is_open_to_everybody_is_noted(more: dict[str, Any], start: str) -> None:
    notes = [note for note in sample.rendered(**more).notes if "port 22" in note]
    assert [note[: len(start)] for note in notes] == ([start] if start else [])


def test_a_script_of_the_users_stays_beside_the_bundle() -> None:
    mine = {"Script": "s3://mine/x.sh"}
    base = {"Scheduling": {"SlurmQueues": [{"Name": "gpu", "CustomActions": {"OnNodeConfigured": mine}}]}}
    queues = [{"name": "gpu", "instance_type": "p5.48xlarge", "mode": "gpu"}]
    found = config(base, queues=queues, bundle=dict(sample.BUNDLE))
    sequence = found["Scheduling"]["SlurmQueues"][0]["CustomActions"]["OnNodeConfigured"]["Sequence"]
    assert sequence[0] == mine
    assert sequence[1]["Args"][-2:] == ["--mode", "gpu"]


BASE: dict[str, Any] = {
    "Region": "eu-west-1",
    "Image": {"Os": "alinux2023"},
    "HeadNode": {"InstanceType": "m5.xlarge", "Networking": {"SubnetId": sample.OTHER}, "Dcv": {"Enabled": True}},
    "Scheduling": {
        "Scheduler": "slurm",
        "SlurmSettings": {"CustomSlurmSettings": [{"MaxArraySize": 5}], "Dns": {"DisableManagedDns": True}},
        "SlurmQueues": [
            {
                "Name": "mine",
                "Networking": {"SubnetIds": [sample.OTHER]},
                "ComputeResources": [{"Name": "c", "InstanceType": "c5.large"}],
            }
        ],
    },
    "AdditionalPackages": {"IntelSoftware": {"IntelHpcPlatform": False}},
}


def test_what_the_user_has_is_kept_and_added_to() -> None:
    before = json.dumps(BASE)
    found = config(BASE, region="", subnet_head="", components=[], tags={"a": "b"})
    assert json.dumps(BASE) == before
    assert found["Region"] == "eu-west-1"
    assert found["Image"] == {"Os": "alinux2023"}
    assert found["HeadNode"] == BASE["HeadNode"]
    assert found["AdditionalPackages"] == BASE["AdditionalPackages"]
    mine, gpu = found["Scheduling"]["SlurmQueues"]
    assert mine == BASE["Scheduling"]["SlurmQueues"][0]
    assert gpu["Name"] == "gpu"
    assert found["Tags"] == [{"Key": "a", "Value": "b"}]


def test_what_follows_from_components_gives_way_to_what_the_user_has() -> None:
    base = {**BASE, "HeadNode": {**BASE["HeadNode"], "LocalStorage": {"RootVolume": {"Size": 300}}}}
    found = config(base, region="", subnet_head="")
    assert found["HeadNode"]["LocalStorage"]["RootVolume"]["Size"] == 300
    settings = found["Scheduling"]["SlurmSettings"]
    assert settings["CustomSlurmSettings"] == [
        {"MaxArraySize": 5},
        {"MetricsType": "metrics/openmetrics"},
    ]
    assert settings["Dns"] == {"DisableManagedDns": True}


def test_a_queue_of_the_users_takes_more_from_a_variable() -> None:
    item = {"name": "mine", "compute_resource": "c", "max": 7}
    found = config(BASE, region="", subnet_head="", components=[], queues=[{**item, "instance_type": "c5.large"}])
    (mine,) = found["Scheduling"]["SlurmQueues"]
    assert mine["ComputeResources"] == [{"Name": "c", "InstanceType": "c5.large", "MinCount": 0, "MaxCount": 7}]
    assert mine["Networking"] == {"SubnetIds": [sample.OTHER]}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "does not exist; needed: a configuration of ParallelCluster"),
        ("a: [", "is no YAML: "),
        ("- a", "has no sections"),
        ("HeadNode: 5", "HeadNode is 5; needed: a section"),
        ("Scheduling: {SlurmQueues: [a]}", 'Scheduling/SlurmQueues[0] is "a"; needed: Name: <a name>'),
        ("LoginNodes: {Pools: {a: 1}}", 'LoginNodes/Pools is {"a": 1}; needed: a list'),
        (
            "Image: {CustomAmi: PLACEHOLDER_CUSTOM_AMI_ID}\nTags: [{Key: a, Value: '${STACK}-$STACK'}]",
            "has PLACEHOLDER_CUSTOM_AMI_ID, ${STACK}, $STACK; needed: values, as after envsubst",
        ),
    ],
)
def test_a_base_that_is_no_configuration_is_one_line(tmp_path: Path, text: str | None, says: str) -> None:
    path = tmp_path / "base.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(Problem) as error:
        users.read(str(path))
    assert says in str(error.value)
    assert str(error.value).startswith(f"cluster_config_base: {path}")
    assert "\n" not in str(error.value)
