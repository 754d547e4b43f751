# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The plugin against an AWS API on loopback, from boto3's requests to what ansible-inventory prints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
from ansible.errors import AnsibleParserError

from ansible_collections.pcluster.postboot.tests.unit.plugins.aws import KEYS, launch

pytestmark = pytest.mark.once

NODES = {
    "us-east-1": [
        ("alpha", "HeadNode", 1),
        ("alpha", "LoginNode", 2),
        ("alpha", "Compute", 7),
        ("beta", "HeadNode", 1),
    ],
    "eu-west-1": [("gamma", "HeadNode", 1), ("gamma", "Compute", 1), ("", "", 2)],
    "ap-south-1": [("delta", "HeadNode", 1), ("", "monitoring", 1)],
    "us-west-2": [("eyes", "monitoring", 1)],
}


def tags_of(cluster: str, kind: str) -> dict[str, str]:
    if kind == "monitoring":
        tags = {"node-type": kind, "name": cluster, "os": "ubuntu2404"}
        return {f"pcluster-postboot:{key}": value for key, value in tags.items() if value}
    if not cluster:
        return {"Name": "no node"}
    tags = {
        "parallelcluster:cluster-name": cluster,
        "parallelcluster:node-type": kind,
        "parallelcluster:attributes": "alinux2023, slurm, 3.16.1, arm64",
        "parallelcluster:networking": "EFA=true" if kind == "Compute" else "EFA=NONE",
        "Note": "{{ lookup('ansible.builtin.pipe', 'printf EVALU%s ATED') }}",
    }
    if kind == "Compute":
        tags.update({"parallelcluster:queue-name": "gpu-1", "parallelcluster:compute-resource-name": "g5g"})
    return tags


@pytest.fixture(scope="module")
def endpoint(moto: str) -> str:
    for region, wanted in NODES.items():
        ec2 = boto3.client("ec2", region_name=region, endpoint_url=moto, **KEYS)
        for cluster, kind, count in wanted:
            for _ in range(count):  # one by one, because moto counts reservations, not instances, to a page
                launch(ec2, tags_of(cluster, kind), InstanceType="g5g.xlarge" if kind == "Compute" else "m7g.large")
    return moto


@pytest.fixture
def environment(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")


@pytest.mark.usefixtures("environment")
def test_pages_regions_and_clusters(listing: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory import cloud, xml

    read: list[int] = []
    read_instances = xml.read_instances

    def count(body: bytes) -> Any:
        found = read_instances(body)
        read.append(len(found[0]))
        return found

    monkeypatch.setattr(xml, "read_instances", count)
    monkeypatch.setattr(cloud, "PAGE_SIZE", 5)
    found = listing(regions=["us-east-1", "eu-west-1"], clusters=["alpha", "g*"])
    assert len(found.group("pcluster_cluster_alpha")) == 10
    assert len(found.group("pcluster_cluster_gamma")) == 2
    assert len(found.group("pcluster_queue_gpu_1")) == 8
    assert len(found.group("pcluster_gpu")) == len(found.group("pcluster_efa")) == 8
    assert len(found.hosts) == 12
    assert found.warnings == []
    assert sum(read) == 12  # by the quick reader, and nothing else was sent
    assert len(read) == 3
    head = found.variables("gamma-head")
    assert head["pcluster_region"] == "eu-west-1"
    assert (head["pcluster_os"], head["pcluster_architecture"]) == ("alinux2023", "aarch64")
    assert head["ansible_user"] == "ec2-user"
    assert head["pcluster_launch_time"].endswith("+00:00")


@pytest.mark.usefixtures("environment")
def test_without_the_quick_reader(listing: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory import xml

    def everything() -> Any:
        found = listing(clusters=["alpha"], tags=["*"])
        return {host: found.variables(host) for host in found.hosts}

    quick = everything()
    monkeypatch.setattr(xml, "register", lambda client: None)
    assert everything() == quick
    assert len(quick) == 10


@pytest.mark.usefixtures("environment")
def test_all_regions(listing: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from moto.ec2.models.availability_zones_and_regions import RegionsAndZonesBackend

    few = [region for region in RegionsAndZonesBackend.regions if region.name in (*NODES, "sa-east-1")]
    monkeypatch.setattr(RegionsAndZonesBackend, "regions", few)
    found = listing(regions=["all"], clusters=["*"], node_types=["head"])
    assert found.hosts == ["alpha-head", "beta-head", "delta-head", "gamma-head"]


@pytest.mark.usefixtures("environment")
def test_a_monitoring_instance_is_listed_where_it_is_asked_for(listing: Callable[..., Any]) -> None:
    everything = ["head", "login", "compute", "monitoring"]
    assert listing(regions=["ap-south-1"]).hosts == ["delta-head"]
    for options in ({"node_types": everything}, {"node_types": everything, "clusters": ["delta"]}):
        found = listing(regions=["ap-south-1"], connection="ssh_via_head", address="private", **options)
        assert (found.hosts, found.warnings) == (["delta-head", "monitoring"], [])
        assert found.group("pcluster_monitoring") == ["monitoring"]
        assert sorted(found.group("pcluster")) == found.hosts
    variables = found.variables("monitoring")
    assert (variables["pcluster_node_type"], variables["pcluster_cluster"]) == ("monitoring", "monitoring")
    assert (variables["ansible_user"], variables["ansible_host"]) == ("ubuntu", variables["pcluster_private_ip"])
    assert variables.get("ansible_ssh_common_args", "") == ""  # no head node is in between


@pytest.mark.usefixtures("environment")
def test_a_monitoring_instance_needs_no_cluster(listing: Callable[..., Any]) -> None:
    found = listing(regions=["us-west-2"], node_types=["monitoring"], slurm_names=True)
    assert (found.hosts, found.warnings) == (["eyes"], [])
    assert found.group("pcluster_cluster_eyes") == ["eyes"]
    line = "there is no instance with the tag pcluster-postboot:node-type=monitoring"
    with pytest.raises(AnsibleParserError, match=line):
        listing(regions=["eu-west-1"], node_types=["monitoring"])


@pytest.mark.usefixtures("environment")
def test_slurm_names(listing: Callable[..., Any], endpoint: str) -> None:
    dynamodb = boto3.client("dynamodb", region_name="eu-west-1", endpoint_url=endpoint, **KEYS)
    dynamodb.create_table(
        TableName="parallelcluster-slurm-gamma",
        KeySchema=[{"AttributeName": "Id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "Id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    (compute,) = listing(regions=["eu-west-1"], node_types=["compute"], hostnames=["instance-id"]).hosts
    for name, instance in (("gpu-1-dy-g5g-3", compute), ("gpu-1-dy-g5g-4", "i-0123456789abcdef0")):
        item = {"Id": {"S": name}, "InstanceId": {"S": instance}}
        dynamodb.put_item(TableName="parallelcluster-slurm-gamma", Item=item)
    found = listing(regions=["eu-west-1"], slurm_names=True)
    assert found.hosts == ["gamma-head", "gamma-gpu-1-dy-g5g-3"]


@pytest.mark.usefixtures("environment")
def test_ssm_that_fails_is_said(listing: Callable[..., Any]) -> None:
    """moto has no DescribeInstanceInformation and answers 500, which is as good as a service that is down."""
    from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws import session

    original = session.Credentials.client
    impatient = session.Config(retries={"total_max_attempts": 1})

    def client(self: Any, made: Any, service: str, region: str) -> Any:
        if service == "ssm":
            return made.client(service, region_name=region, config=impatient)
        return original(self, made, service, region)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session.Credentials, "client", client)
        with pytest.raises(AnsibleParserError, match="cluster alpha: ssm:DescribeInstanceInformation failed with "):
            listing(clusters=["alpha"], ssm_online=True)


@pytest.fixture
def run_inventory(environment: None, ansible: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """run_inventory(options, *arguments) lets ansible-inventory read a configuration with these options."""

    def run(options: str, *arguments: str) -> Any:
        (tmp_path / "my.pcluster.yml").write_text(f"plugin: pcluster.postboot.pcluster\n{options}")
        settings = {"HOME": str(tmp_path), "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true"}
        return ansible("inventory", "-i", "my.pcluster.yml", *arguments, cwd=tmp_path, **settings)

    return run


def test_ansible_inventory(run_inventory: Callable[..., Any]) -> None:
    ran = run_inventory("regions: [us-east-1, eu-west-1]\ntags: [Note]\n", "--list", "--export")
    assert ran.returncode == 0, ran.stderr
    assert "EVALUATED" not in ran.stdout + ran.stderr
    found = json.loads(ran.stdout)
    assert len(found["_meta"]["hostvars"]) == 13
    assert len(found["pcluster_cluster_alpha"]["hosts"]) == 10
    assert set(found["pcluster"]["children"]) >= {"pcluster_head", "pcluster_login", "pcluster_compute"}


def test_ansible_inventory_says_what_is_wrong(run_inventory: Callable[..., Any]) -> None:
    ran = run_inventory("regions: [us-east-1]\nclusters: [alfa]\n", "--list")
    assert ran.returncode != 0
    said = " ".join(ran.stderr.split())
    assert "us-east-1: there is no cluster alfa; the clusters there are alpha, beta" in said
    assert "Traceback" not in ran.stderr
