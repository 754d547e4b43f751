# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The plugin and SageMaker HyperPod: boto3 against the sandbox's AWS API, which follows botocore's model."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
import yaml
from ansible.errors import AnsibleParserError

from ansible_collections.pcluster.postboot.tests.programs import REPO, load
from ansible_collections.pcluster.postboot.tests.unit.plugins.aws import KEYS, error, launch

pytest.importorskip("moto.server")
pytestmark = pytest.mark.once

LUSTRE = "fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com"
Arrange = Callable[..., Any]
Listing = Callable[..., Any]


def node(number: int, group: str, instance_type: str = "ml.p5.48xlarge", **changes: Any) -> dict[str, Any]:
    """Return an entry of ClusterNodeSummaries."""
    found = {
        "InstanceGroupName": group,
        "InstanceId": f"i-{number:017x}",
        "InstanceType": instance_type,
        "LaunchTime": 1795161330,
        "InstanceStatus": {"Status": "Running"},
        "PrivateDnsHostname": f"ip-10-1-{number // 256}-{number % 256}.us-west-2.compute.internal",
        **changes,
    }
    return {key: value for key, value in found.items() if value is not None}


def group(name: str, kind: str = "", **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"InstanceGroupName": name, "CurrentCount": 1, "TargetCount": 1, **more}
    if kind:
        found["SlurmConfig"] = {"NodeType": kind, **({"PartitionNames": ["dev"]} if kind == "Compute" else {})}
    return found


def cluster(
    name: str, cluster_id: str, groups: list[Any], nodes: list[Any], region: str = "us-west-2", **more: Any
) -> dict[str, Any]:
    return {
        "Region": region,
        "ClusterArn": f"arn:aws:sagemaker:{region}:123456789012:cluster/{cluster_id}",
        "ClusterName": name,
        "ClusterStatus": "InService",
        "CreationTime": 1795161000,
        "InstanceGroups": groups,
        "Nodes": nodes,
        **more,
    }


def training(workers: int = 3) -> dict[str, Any]:
    """Return a cluster whose groups' names would all mislead somebody who believed them."""
    groups = [
        group("worker-group-1", "Controller"),
        group("controller-machine", "Login"),
        group(
            "login-group",
            "Compute",
            NetworkInterface={"InterfaceType": "efa-only"},
            InstanceStorageConfigs=[{"FsxLustreConfig": {"DnsName": LUSTRE, "MountName": "1abcdefg"}}],
        ),
    ]
    nodes = [
        node(1, "worker-group-1", "ml.m5.xlarge"),
        node(2, "controller-machine", "ml.m5.large"),
        *(node(16 + number, "login-group") for number in range(workers)),
    ]
    return cluster(
        "training", "ab12cd34ef56", groups, nodes, Orchestrator={"Slurm": {"SlurmConfigStrategy": "Managed"}}
    )


@pytest.fixture(scope="module")
def application() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(REPO / "molecule/cluster/parallelcluster"))
        return load("molecule/cluster/aws/server.py").Application()


@pytest.fixture(scope="module")
def endpoint(application: Any) -> Iterator[str]:
    from werkzeug.serving import make_server

    server = make_server("127.0.0.1", 0, application, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.port}"
    server.shutdown()


@pytest.fixture
def arrange(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Arrange:
    """arrange(clusters=[…]) is what there is; without, it returns the calls since the last time."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")

    def arranged(**wanted: Any) -> Any:
        with urllib.request.urlopen(f"{endpoint}/sandbox/hyperpod", json.dumps(wanted).encode(), timeout=10) as answer:
            return json.loads(answer.read())["asked"]

    arranged(clusters=[training()], throttled=0)
    return arranged


@pytest.fixture
def pods(arrange: Arrange, listing: Listing) -> Listing:
    """pods(clusters=["training"]) runs the plugin for HyperPod alone."""

    def run(**options: Any) -> Any:
        return listing(**{"regions": ["us-west-2"], "platforms": ["hyperpod"], **options})

    return run


def test_nodes_have_the_type_that_the_api_tells_and_not_that_of_their_groups_name(pods: Listing) -> None:
    found = pods()
    assert found.warnings == []
    assert found.group("pcluster_head") == ["training-head"]
    assert found.group("pcluster_login") == ["training-controller-machine-00000002"]
    compute = [f"training-login-group-000000{number}" for number in (10, 11, 12)]
    assert found.group("pcluster_compute") == found.group("pcluster_queue_login_group") == compute
    assert found.group("pcluster_gpu") == found.group("pcluster_efa") == compute
    assert found.group("pcluster_pool_controller_machine") == found.group("pcluster_login")
    assert sorted(found.group("pcluster_platform_hyperpod")) == sorted(found.hosts) == sorted(found.group("pcluster"))
    variables = found.variables(compute[0])
    assert {key: value for key, value in variables.items() if not key.startswith("inventory_")} == {
        "pcluster_platform": "hyperpod",
        "pcluster_cluster": "training",
        "pcluster_node_type": "compute",
        "pcluster_queue": "login-group",
        "pcluster_instance_id": "i-00000000000000010",
        "pcluster_instance_type": "p5.48xlarge",
        "pcluster_state": "running",
        "pcluster_region": "us-west-2",
        "pcluster_scheduler": "slurm",
        "pcluster_private_ip": "10.1.0.16",
        "pcluster_private_dns": "ip-10-1-0-16.us-west-2.compute.internal",
        "pcluster_efa": True,
        "pcluster_gpu": True,
        "pcluster_neuron": False,
        "pcluster_mounts": [{"path": "/fsx", "type": "lustre", "source": f"{LUSTRE}@tcp:/1abcdefg"}],
        "pcluster_launch_time": "2026-11-20T07:55:30+00:00",
        "pcluster_ssm_target": "sagemaker-cluster:ab12cd34ef56_login-group-i-00000000000000010",
        "ansible_connection": "ssh",
        "ansible_host": "10.1.0.16",
        "ansible_python_interpreter": "/usr/bin/python3",
        "ansible_user": "ubuntu",
    }


def test_no_api_tells_which_of_several_controllers_is_the_primary_one(arrange: Arrange, pods: Listing) -> None:
    """So each is a head node here, and node_facts decides on the node itself."""
    found = training()
    found["Nodes"].append(node(3, "worker-group-1", "ml.m5.xlarge"))
    arrange(clusters=[found])
    listed = pods(connection="ssh_via_head")
    names = ["training-head-00000000000000001", "training-head-00000000000000003"]
    assert listed.group("pcluster_head") == names
    assert {listed.variables(name)["pcluster_node_type"] for name in names} == {"head"}
    assert listed.warnings == []


def test_without_the_platform_nothing_is_asked(arrange: Arrange, listing: Listing, endpoint: str) -> None:
    arrange()
    assert (
        listing(regions=["us-west-2"], node_types=["monitoring"], allow_empty=True, platforms=["hyperpod"]).hosts == []
    )
    with pytest.raises(AnsibleParserError, match="no cluster matches"):
        listing(regions=["us-west-2"])
    assert arrange() == []


def test_hyperpod_alone_asks_ec2_nothing(pods: Listing, monkeypatch: pytest.MonkeyPatch) -> None:
    from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws import session

    made: list[str] = []
    original = session.Credentials.client

    def client(self: Any, made_by: Any, service: str, region: str) -> Any:
        made.append(service)
        return original(self, made_by, service, region)

    monkeypatch.setattr(session.Credentials, "client", client)
    pods()
    assert set(made) == {"sagemaker"}


def test_pages(pods: Listing, arrange: Arrange) -> None:
    others = [cluster(f"other-{number}", f"{number:012d}", [], []) for number in range(120)]
    arrange(clusters=[*others, training(workers=230)])
    found = pods(clusters=["training"])
    assert len(found.group("pcluster_compute")) == 230
    assert arrange() == ["ListClusters"] * 2 + ["DescribeCluster"] + ["ListClusterNodes"] * 3


def test_throttled_calls_are_made_again(pods: Listing, arrange: Arrange) -> None:
    arrange(throttled=3)
    assert len(pods().hosts) == 5
    assert arrange() == ["ListClusters"] * 4 + ["DescribeCluster", "ListClusterNodes"]


def test_a_group_of_which_the_api_tells_no_type_is_one_line(pods: Listing, arrange: Arrange) -> None:
    groups = [group("controller-machine"), group("worker-group-1"), group("login-1", "Login")]
    nodes = [node(1, "controller-machine", "ml.m5.xlarge"), node(2, "login-1"), node(3, "worker-group-1")]
    arrange(clusters=[cluster("old", "ab12cd34ef57", groups, nodes)])
    found = pods()
    assert found.hosts == ["old-login-1-00000002"]
    assert found.warnings == [
        "us-west-2, cluster old: 2 node(s) left out, because the API tells no SlurmConfig.NodeType of instance "
        "group(s) controller-machine, worker-group-1; set hyperpod_node_types, such as {controller-machine: compute}"
    ]
    types = {"controller-machine": "head", "worker-group-1": "compute", "login-1": "compute"}
    found = pods(hyperpod_node_types=types)
    assert found.warnings == []
    # What the API tells counts.
    assert found.hosts == ["old-head", "old-login-1-00000002", "old-worker-group-1-00000003"]
    with pytest.raises(AnsibleParserError, match="hyperpod_node_types: found a: Controller; needed: head, login, comp"):
        pods(hyperpod_node_types={"a": "Controller"})


def test_states_and_nodes_without_an_instance_or_a_name(pods: Listing, arrange: Arrange) -> None:
    wanted = training(workers=0)
    statuses = ("Pending", "SystemUpdating", "DeepHealthCheckInProgress", "ShuttingDown", "Failure", "NotFound")
    wanted["Nodes"] += [
        node(32 + number, "login-group", InstanceStatus={"Status": status, "Message": "said SageMaker"})
        for number, status in enumerate(statuses)
    ]
    wanted["Nodes"].append(node(48, "login-group", InstanceId="", NodeLogicalId="logical-48", PrivateDnsHostname=None))
    wanted["Nodes"].append(node(49, "login-group", PrivateDnsHostname=None))
    arrange(clusters=[wanted])
    assert pods(node_types=["compute"]).hosts == ["training-login-group-00000031"]
    variables = pods().variables("training-login-group-00000031")
    assert not {"pcluster_private_ip", "pcluster_private_dns", "ansible_host"} & set(variables)
    found = pods(states=["pending", "stopping"], node_types=["compute"])
    assert [found.variables(host)["pcluster_state"] for host in found.hosts] == ["pending"] * 3 + ["stopping"]


def test_slurm_names_cost_no_call(pods: Listing, arrange: Arrange) -> None:
    arrange()
    found = pods(slurm_names=True, node_types=["compute"])
    assert found.hosts == [f"training-ip-10-1-0-{number}" for number in (16, 17, 18)]
    assert found.variables("training-ip-10-1-0-16")["pcluster_slurm_node"] == "ip-10-1-0-16"
    assert arrange() == ["ListClusters", "DescribeCluster", "ListClusterNodes"]


def test_queues_and_patterns(pods: Listing) -> None:
    assert len(pods(queues=["login-*"], clusters=["train*"]).group("pcluster_compute")) == 3
    assert pods(queues=["gpu"]).group("pcluster_compute") == []


def test_clusters_with_eks_are_left_out(pods: Listing, arrange: Arrange) -> None:
    eks = {"Eks": {"ClusterArn": "arn:aws:eks:us-west-2:123456789012:cluster/pods"}}
    other = cluster("pods", "ab12cd34ef58", [group("workers")], [node(64, "workers")], Orchestrator=eks)
    arrange(clusters=[training(), other])
    found = pods()
    assert len(found.hosts) == 5
    assert found.warnings == [
        "us-west-2: 1 HyperPod cluster(s) left out, because they have EKS instead of Slurm: pods",
    ]


def test_a_cluster_that_does_not_exist_fails(pods: Listing) -> None:
    line = "us-west-2: there is no cluster trainig; the clusters there are training; check clusters and regions"
    with pytest.raises(AnsibleParserError, match=line):
        pods(clusters=["trainig"])


def test_a_cluster_that_refuses_is_one_line(pods: Listing, arrange: Arrange, monkeypatch: pytest.MonkeyPatch) -> None:
    from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory import hyperpod

    describe = hyperpod.describe_cluster

    def refuse(client: Any, name: str) -> Any:
        if name == "theirs":
            raise error("AccessDeniedException", operation="DescribeCluster")
        return describe(client, name)

    arrange(clusters=[training(), cluster("theirs", "ab12cd34ef60", [], [])])
    monkeypatch.setattr(hyperpod, "describe_cluster", refuse)
    line = "us-west-2, HyperPod cluster theirs: sagemaker:DescribeCluster is not allowed; give the caller"
    with pytest.raises(AnsibleParserError, match=line):
        pods()
    found = pods(strict_permissions=False)
    assert len(found.hosts) == 5
    assert [warning.startswith(line) for warning in found.warnings] == [True]


def test_a_cluster_that_is_deleted_meanwhile_is_passed_over(
    pods: Listing, arrange: Arrange, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory import hyperpod

    arrange(clusters=[training(), cluster("gone", "ab12cd34ef59", [], [])])
    describe = hyperpod.describe_cluster

    def meanwhile(client: Any, name: str) -> Any:
        if name == "gone":
            arrange(clusters=[training()])
        return describe(client, name)

    monkeypatch.setattr(hyperpod, "describe_cluster", meanwhile)
    found = pods()
    assert len(found.hosts) == 5
    assert found.warnings == []


def test_filters_are_of_ec2(pods: Listing) -> None:
    with pytest.raises(
        AnsibleParserError, match="filters: found vpc-id with platforms: hyperpod; needed: filters with"
    ):
        pods(filters={"vpc-id": "vpc-1"})


def test_only_nodes_that_session_manager_reaches(pods: Listing, application: Any) -> None:
    here = ("i-00000000000000001", "i-00000000000000011")
    application.sessions.controls.update(dict.fromkeys(here, None))  # what an agent that is connected leaves there
    try:
        found = pods(ssm_online=True, connection="ssm", bucket="files")
    finally:
        for instance in here:
            del application.sessions.controls[instance]
    assert found.hosts == ["training-head", "training-login-group-00000011"]
    (warning,) = found.warnings
    assert warning.startswith(
        "us-west-2, cluster training: 3 of 5 node(s) left out, Session Manager does not reach them: "
        "i-00000000000000002, i-00000000000000010, i-00000000000000012; the usual reasons are that the execution role"
    )


def test_connections_over_ssm_name_the_target(pods: Listing) -> None:
    target = "sagemaker-cluster:ab12cd34ef56_worker-group-1-i-00000000000000001"
    variables = pods(connection="ssm", bucket="files").variables("training-head")
    assert variables["ansible_aws_ssm_instance_id"] == target
    assert variables["ansible_connection"] == "amazon.aws.aws_ssm"
    variables = pods(connection="ssh_over_ssm").variables("training-head")
    assert (variables["ansible_host"], variables["ansible_user"]) == (target, "ubuntu")
    assert "--target %h --document-name AWS-StartSSHSession" in variables["ansible_ssh_common_args"]
    found = pods(connection="ssh_via_head")
    variables = found.variables("training-login-group-00000010")
    assert variables["ansible_host"] == "10.1.0.16"
    assert variables["ansible_ssh_common_args"] == "-o ProxyJump=ubuntu@10.1.0.1"


def test_both_platforms_together(arrange: Arrange, listing: Listing, endpoint: str) -> None:
    region = "eu-north-1"  # in which no other test has instances, and moto keeps those of all tests
    arrange(clusters=[{**training(), "Region": region}])
    ec2 = boto3.client("ec2", region_name=region, endpoint_url=endpoint, **KEYS)
    tags = {
        "parallelcluster:cluster-name": "alpha",
        "parallelcluster:node-type": "HeadNode",
        "parallelcluster:attributes": "alinux2023, slurm, 3.16.1, x86_64",
    }
    launch(ec2, tags, InstanceType="m7i.large")
    both = {"regions": [region], "platforms": ["parallelcluster", "hyperpod"]}
    found = listing(**both, connection="ssh_over_ssm")
    assert len(found.hosts) == 6
    assert found.group("pcluster_head") == ["alpha-head", "training-head"]
    assert found.variables("alpha-head")["ansible_user"] == "ec2-user"
    assert found.variables("training-head")["ansible_user"] == "ubuntu"
    assert "pcluster_platform" not in found.variables("alpha-head")
    assert listing(**both, clusters=["alpha", "training"], node_types=["head"]).warnings == []
    with pytest.raises(AnsibleParserError, match="no cluster beta; the clusters there are alpha, training;"):
        listing(**both, clusters=["alpha", "beta"])


def test_the_cache_keeps_the_answer(pods: Listing, arrange: Arrange, tmp_path: Any) -> None:
    cache = {"cache": True, "cache_plugin": "ansible.builtin.jsonfile", "cache_connection": str(tmp_path / "cache")}
    first = pods(**cache)
    arrange()
    again = pods(**cache)
    assert {host: again.variables(host) for host in again.hosts} == {
        host: first.variables(host) for host in first.hosts
    }
    assert arrange() == []


def test_the_example(arrange: Arrange, listing: Listing) -> None:
    from ansible_collections.pcluster.postboot.plugins.inventory import pcluster

    (example,) = (one for one in yaml.safe_load_all(pcluster.EXAMPLES) if "hyperpod" in one.get("platforms", ()))
    groups = [group("controller-machine"), group("worker-group-1")]
    nodes = [node(1, "controller-machine", "ml.m5.xlarge"), node(2, "worker-group-1", "ml.trn1.32xlarge")]
    arrange(clusters=[cluster("old", "ab12cd34ef57", groups, nodes)])
    found = listing(**{key: value for key, value in example.items() if key != "plugin"})
    assert found.hosts == ["old-head", "old-worker-group-1-00000002"]
    assert found.group("pcluster_efa") == ["old-worker-group-1-00000002"]
    assert found.group("pcluster_gpu") == found.warnings == []


@pytest.mark.parametrize(("tree", "kind"), [("hyperpod-controller", "Controller"), ("hyperpod-compute", "Compute")])
def test_a_node_tells_of_itself_what_the_api_tells(
    pods: Listing, arrange: Arrange, listing: Listing, node_tree: Callable[[str], Any], tree: str, kind: str
) -> None:
    root = node_tree(tree)
    own = listing(source="node", root=str(root)).variables("localhost")
    told = json.loads((root / "opt/ml/config/resource_config.json").read_text())
    where, short = told["ClusterConfig"]["ClusterArn"].split(":")[3], told["ClusterConfig"]["ClusterArn"].split("/")[-1]
    groups = [group(one["Name"], kind) for one in told["InstanceGroups"]]
    nodes = [
        node(
            0,
            one["Name"],
            one["InstanceType"],
            InstanceId=instance["InstanceId"],
            PrivateDnsHostname=f"ip-{instance['CustomerIpAddress'].replace('.', '-')}.ec2.internal",
        )
        for one in told["InstanceGroups"]
        for instance in one.get("Instances", ())
    ]
    arrange(clusters=[cluster(told["ClusterConfig"]["ClusterName"], short, groups, nodes, where)])
    found = pods(regions=[where], slurm_names=True, hostnames=["instance-id"])
    theirs = found.variables(own["pcluster_instance_id"])
    # A node counts its devices, and these trees have none.
    same = ({name for name in own if name.startswith("pcluster_")} & set(theirs)) - {"pcluster_efa", "pcluster_gpu"}
    assert {name: own[name] for name in same} == {name: theirs[name] for name in same}
    assert same >= {
        *("pcluster_platform", "pcluster_cluster", "pcluster_node_type", "pcluster_instance_type", "pcluster_region"),
        *(("pcluster_queue", "pcluster_slurm_node") if kind == "Compute" else ()),
    }
