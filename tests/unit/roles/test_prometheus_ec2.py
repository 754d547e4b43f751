# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What Prometheus finds by the EC2 API: the filters against an API on loopback, and the labels against those that the
head node's Prometheus gives.

Prometheus itself, whose part relabel() and meta() play here, is asked in the sandbox.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
import yaml

from ansible_collections.pcluster.postboot.tests.programs import load
from ansible_collections.pcluster.postboot.tests.relabelling import Labels, relabel
from ansible_collections.pcluster.postboot.tests.unit.playbooks import stacks
from ansible_collections.pcluster.postboot.tests.unit.plugins.aws import KEYS, launch

Variables = Callable[..., Callable[[str], Any]]
REGION, NAME_TAG = "us-west-2", "Slurm node"
targets = load("roles/prometheus/files/prometheus_targets.py")


def tags(cluster: str, kind: str, queue: str = "", name: str = "") -> dict[str, str]:
    found = {"Name": kind, "parallelcluster:cluster-name": cluster, "parallelcluster:node-type": kind}
    found.update({"parallelcluster:queue-name": queue} if queue else {}, **({NAME_TAG: name} if name else {}))
    return found


NODES = [
    ("10.0.1.10", "m5.xlarge", tags("alpha", "HeadNode", name="no node of Slurm")),
    ("10.0.1.11", "m5.large", tags("alpha", "LoginNode")),
    ("10.0.1.12", "p5.48xlarge", tags("alpha", "Compute", "gpu", "gpu-st-p5-1")),
    ("10.0.1.20", "m5.xlarge", tags("beta", "HeadNode")),
    ("10.0.1.21", "c5.xlarge", tags("beta", "Compute", "cpu", "cpu-dy-c5-3")),
    ("10.0.1.22", "trn1.32xlarge", tags("beta", "Compute", "trn", "trn-dy-trn1-1")),
    ("10.0.1.30", "c5.xlarge", {"pcluster-postboot:node-type": "monitoring"}),
]


@pytest.fixture(scope="module")
def ec2(moto: str) -> Iterator[tuple[Any, str]]:
    """An account with two clusters in a VPC, and one in another; and the id of the first VPC."""
    client = boto3.client("ec2", REGION, endpoint_url=moto, **KEYS)
    made, vpcs = [], []
    for network, nodes in (("10.0", NODES), ("10.9", [("10.9.1.10", "m5.xlarge", tags("gamma", "HeadNode"))])):
        vpcs.append(client.create_vpc(CidrBlock=f"{network}.0.0/16")["Vpc"]["VpcId"])
        subnet = client.create_subnet(VpcId=vpcs[-1], CidrBlock=f"{network}.1.0/24")["Subnet"]["SubnetId"]
        for address, kind, found in nodes:
            one = launch(client, found, InstanceType=kind, SubnetId=subnet, PrivateIpAddress=address)
            made.append(one["InstanceId"])
    yield client, vpcs[0]
    client.terminate_instances(InstanceIds=made)


@pytest.fixture
def variables(work_out: Variables, ec2: tuple[Any, str]) -> Variables:
    """variables(**more) works out a variable or a template of prometheus, on a monitoring instance by default."""

    def make(node_type: str = "monitoring", **more: Any) -> Callable[[str], Any]:
        outside = node_type == "monitoring"
        node = {"node_type": node_type, "region": REGION, "cluster": "eyes" if outside else "alpha"}
        node["vpc"] = ec2[1] if outside else None
        return work_out("prometheus", {**node, **more.pop("facts", {})}, **more)

    return make


def meta(instance: dict[str, Any]) -> Labels:
    """Prometheus' labels of an instance, as far as our configuration asks for them (discovery/aws/ec2.go)."""
    found = {
        "__address__": instance["PrivateIpAddress"] + ":80",
        "__meta_ec2_instance_type": instance["InstanceType"],
        "__meta_ec2_private_ip": instance["PrivateIpAddress"],
        "__meta_ec2_private_dns_name": instance["PrivateDnsName"],
    }
    plain = {re.sub(r"[^A-Za-z0-9_]", "_", tag["Key"]): tag["Value"] for tag in instance["Tags"]}
    return {**found, **{f"__meta_ec2_tag_{key}": value for key, value in plain.items()}}


def found(value: Callable[[str], Any], client: Any) -> dict[str, list[Labels]]:
    """The targets of each job that asks EC2."""
    jobs = {}
    for job in yaml.safe_load(value("prometheus.yml.j2"))["scrape_configs"]:
        for asked in job.get("ec2_sd_configs", []):
            assert asked["region"] == REGION
            filters = [{"Name": one["name"], "Values": one["values"]} for one in asked["filters"]]
            answer = client.describe_instances(Filters=filters)["Reservations"]
            told = [meta(instance) for part in answer for instance in part["Instances"]]
            left = [relabel(one, job["relabel_configs"]) for one in told]
            jobs[job["job_name"]] = sorted((one for one in left if one), key=lambda one: one["__address__"])
    return jobs


def by_slurm(job: str, port: int, *nodes: tuple[str, Any]) -> list[Labels]:
    """The same targets by the file that the head node's Prometheus reads."""
    groups = [targets.group_of(node, cluster) for cluster, node in nodes]
    return [
        {
            "__address__": f"{group['targets'][0]}:{port}",
            **{name: text for name, text in group["labels"].items() if not name.startswith("__meta_")},
        }
        for group in groups
    ]


def test_labels_are_those_of_the_head_nodes_prometheus(variables: Variables, ec2: tuple[Any, str]) -> None:
    jobs = found(variables(prometheus_ec2_name_tag=NAME_TAG), ec2[0])
    node = targets.Node
    gpu = ("alpha", node("gpu-st-p5-1", "10.0.1.12", "compute", "gpu", 8))
    trn = ("beta", node("trn-dy-trn1-1", "10.0.1.22", "compute", "trn", neuron=True))
    every = [
        ("alpha", node("ip-10-0-1-10", "10.0.1.10", "head")),
        ("alpha", node("ip-10-0-1-11", "10.0.1.11", "login")),
        gpu,
        ("beta", node("ip-10-0-1-20", "10.0.1.20", "head")),
        ("beta", node("cpu-dy-c5-3", "10.0.1.21", "compute", "cpu")),
        trn,
    ]
    assert jobs["node"] == by_slurm("node", 9100, *every)
    assert jobs["dcgm"] == by_slurm("dcgm", 9400, gpu)
    assert jobs["neuron"] == by_slurm("neuron", 8000, trn)
    assert jobs["slurm"] == by_slurm("slurm", 9341, every[0], every[3])
    assert set(jobs) == {"node", "dcgm", "neuron", "slurm"}


@pytest.mark.parametrize(
    ("stack", "group"), [("monitoring", "InstanceSecurityGroup"), ("infrastructure", "MonitoringSecurityGroup")]
)
def test_the_stacks_let_the_instance_in_wherever_it_scrapes(variables: Variables, stack: str, group: str) -> None:
    resources = stacks.template(stack)["Resources"].values()
    rules = [one["Properties"] for one in resources if one["Type"] == "AWS::EC2::SecurityGroupIngress"]
    ours = [one for one in rules if one.get("SourceSecurityGroupId") == {"Ref": group}]
    reached = {port for one in ours for port in range(one["FromPort"], one["ToPort"] + 1)}
    assert {job["port"] for job in variables()("prometheus_jobs")} - reached == set()


def test_without_a_tag_a_node_goes_by_its_host_name(variables: Variables, ec2: tuple[Any, str]) -> None:
    names = {one["__address__"]: one["pc_node"] for one in found(variables(), ec2[0])["node"]}
    assert names["10.0.1.12:9100"] == "ip-10-0-1-12"


@pytest.mark.parametrize(
    ("more", "clusters"),
    [
        ({}, {"alpha", "beta"}),
        ({"prometheus_ec2_clusters": ["alp*"]}, {"alpha"}),
        ({"prometheus_ec2_clusters": ["beta", "gamma"]}, {"beta"}),
        ({"prometheus_ec2_vpc": ""}, {"alpha", "beta", "gamma"}),
        ({"node_type": "head", "prometheus_discovery": "ec2"}, {"alpha"}),
    ],
)
def test_which_clusters_are_scraped(
    variables: Variables, ec2: tuple[Any, str], more: dict[str, Any], clusters: set[str]
) -> None:
    jobs = found(variables(**more), ec2[0])
    assert {one["pc_cluster"] for one in jobs["node"]} == clusters
    # On a head node a file says where Slurm's metrics are.
    assert ("slurm" in jobs) is ("node_type" not in more)


def test_a_monitoring_instance_scrapes_itself(variables: Variables) -> None:
    text = variables(prometheus_scrape_interval="15s")("prometheus.yml.j2")
    made = {one["job_name"]: one for one in yaml.safe_load(text)["scrape_configs"]}
    assert made["prometheus"]["static_configs"][0]["labels"]["pc_node_type"] == "monitoring"
    (own,) = made["local"]["static_configs"]
    assert own == {"targets": ["127.0.0.1:9100"], "labels": {"job": "node", "__metrics_path__": "/metrics"}}
    labels = relabel({"__address__": "127.0.0.1:9100", **own["labels"]}, made["local"]["relabel_configs"])
    assert labels is not None
    assert (labels["job"], labels["pc_cluster"], labels["pc_node_type"]) == ("node", "eyes", "monitoring")
    assert made["slurm"]["scrape_timeout"] == "15s"  # Prometheus refuses one above the interval
    head = yaml.safe_load(variables("head")("prometheus.yml.j2"))["scrape_configs"]
    assert [one for one in head if one["job_name"] == "local" and "static_configs" in one] == []


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({}, ""),
        ({"node_type": "head"}, ""),
        ({"prometheus_discovery": "slurm"}, "prometheus_discovery: found slurm; needed: ec2 on the"),
        ({"facts": {"region": None}}, "region of /etc/pcluster-postboot/node.json: found none; needed: the region"),
        ({"prometheus_ec2_clusters": []}, "prometheus_ec2_clusters: found none; needed: the names of clusters"),
    ],
)
def test_what_cannot_be_found_is_refused(variables: Variables, more: dict[str, Any], line: str) -> None:
    problems = variables(**more)("__prometheus_discovery_problems")
    assert len(problems) == bool(line)
    assert "".join(problems).startswith(line)


def test_the_monitoring_instance_runs_the_server(variables: Variables) -> None:
    value = variables()
    assert (value("prometheus_enabled"), value("prometheus_discovery")) == (True, "ec2")
    assert value("__prometheus_serves | bool") is True
    assert value("__prometheus_downloads | bool") is True
    assert value("__prometheus_credentials_for") == ["prometheus_discovery"]
    assert variables(prometheus_mode="none")("__prometheus_serves | bool") is False
