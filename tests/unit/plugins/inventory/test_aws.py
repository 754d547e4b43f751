# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is asked of AWS, and what becomes of the answers."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError, NoCredentialsError

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory.cloud import Cloud, Found
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory.query import Query
from ansible_collections.pcluster.postboot.tests.waiting import PATIENCE

ONE = ("us-east-1",)


def find(cloud: Any, **query: Any) -> Found:
    return Cloud(Query(**{"regions": ONE, **query}), cloud.client).find()


def ids(found: Found) -> list[str]:
    return [node["instance_id"][-2:] for node in found.nodes]


def refused(cloud: Any, **query: Any) -> str:
    with pytest.raises(Problem) as caught:
        find(cloud, **query)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_all_nodes_of_all_pages(aws: Any, make: Any) -> None:
    cloud = aws(make.cluster(nodes=7))
    found = find(cloud)
    assert len(found.nodes) == 9
    assert found.warnings == []
    assert len(cloud.calls) == 1
    assert cloud.calls[0][2] == {"tag:parallelcluster:cluster-name": ["*"], "instance-state-name": ["running"]}


@pytest.mark.parametrize(
    ("clusters", "sent", "found"),
    [
        (("alpha",), ["alpha"], {"alpha"}),
        (("alpha", "beta"), ["alpha", "beta"], {"alpha", "beta"}),
        (("alp*",), ["alp*"], {"alpha", "alps", "alp1a"}),
        (("alp[gh]a",), ["alp?a"], {"alpha"}),
        (("*",), ["*"], {"alpha", "beta", "alps", "alp1a"}),
    ],
)
def test_clusters(aws: Any, make: Any, clusters: tuple[str, ...], sent: list[str], found: set[str]) -> None:
    names = ("alpha", "beta", "alps", "alp1a")
    cloud = aws([node for number, name in enumerate(names) for node in make.cluster(name, first=16 * (number + 1))])
    assert {node["cluster"] for node in find(cloud, clusters=clusters).nodes} == found
    assert cloud.calls[0][2]["tag:parallelcluster:cluster-name"] == sent


@pytest.mark.parametrize(
    ("query", "listed", "filters"),
    [
        ({"node_types": ("head",)}, ["10"], {"tag:parallelcluster:node-type": ["HeadNode"]}),
        ({"node_types": ("login", "compute")}, ["11", "12", "13", "1f"], {}),
        ({"queues": ("gpu",)}, ["10", "11", "12", "13"], {}),
        ({"queues": ("g[x-z]u", "cp?")}, ["10", "11", "1f"], {}),
        ({"queues": ("cpu",), "node_types": ("compute",)}, ["1f"], {"tag:parallelcluster:queue-name": ["cpu"]}),
        ({"queues": ("[c]pu",), "node_types": ("compute",)}, ["1f"], {"tag:parallelcluster:queue-name": ["?pu"]}),
        ({"states": ("stopped",)}, ["1e"], {"instance-state-name": ["stopped"]}),
        ({"filters": {"tag:Team": "nlp"}}, ["1f"], {"tag:Team": ["nlp"]}),
        ({"filters": {"vpc-id": ["vpc-1", "vpc-2"]}}, ["1f"], {"vpc-id": ["vpc-1", "vpc-2"]}),
    ],
)
def test_filters(aws: Any, make: Any, query: Any, listed: list[str], filters: dict[str, Any]) -> None:
    tags = {"parallelcluster:queue-name": "cpu", "Team": "nlp"}
    extra = [make.instance(0x1F, tags=tags, VpcId="vpc-2"), make.instance(0x1E, State={"Name": "stopped"})]
    cloud = aws([*make.cluster(), *extra])
    assert ids(find(cloud, **query)) == listed
    assert filters.items() <= cloud.calls[0][2].items()


def test_heads_are_known_where_they_are_not_listed(aws: Any, make: Any) -> None:
    cloud = aws(make.cluster())
    found = find(cloud, node_types=("compute",), queues=("gpu",), heads=True)
    assert ids(found) == ["12", "13"]
    assert [head["public_ip"] for head in found.heads] == ["192.0.2.7"]
    assert cloud.calls[0][2]["tag:parallelcluster:node-type"] == ["HeadNode", "Compute"]


def test_a_stopped_head_cannot_be_jumped_through(aws: Any, make: Any) -> None:
    cloud = aws([make.instance(1, "HeadNode", State={"Name": "stopped"}), make.instance(2)])
    found = find(cloud, states=("running", "stopped"), heads=True)
    assert (ids(found), found.heads) == (["01", "02"], [])


def test_regions_are_asked_at_once(aws: Any, make: Any) -> None:
    cloud = aws(us_east_1=make.cluster("alpha"), eu_west_1=make.cluster("beta", first=32), ap_south_1=[])
    together = threading.Barrier(3, timeout=PATIENCE)
    client = cloud.client

    def make_client(service: str, region: str) -> Any:
        found = client(service, region)
        describe = found.describe_instances
        found.describe_instances = lambda **arguments: (together.wait(), describe(**arguments))[1]
        return found

    cloud.client = make_client
    found = find(cloud, regions=("us-east-1", "eu-west-1", "ap-south-1"))
    assert {(node["region"], node["cluster"]) for node in found.nodes} == {
        ("us-east-1", "alpha"),
        ("eu-west-1", "beta"),
    }
    assert cloud.made_in == {threading.main_thread().name}


# What goes wrong


def test_a_region_that_fails_is_named(aws: Any, make: Any) -> None:
    denied = make.error("UnauthorizedOperation", "You are not\nauthorized")
    cloud = aws(us_east_1=make.cluster(), eu_west_1=denied, eu_south_1=make.error("InternalError"))
    message = refused(cloud, regions=("us-east-1", "eu-west-1", "eu-south-1"), clusters=("alpha", "beta"))
    assert "eu-west-1, clusters alpha, beta: ec2:DescribeInstances is not allowed" in message
    assert "permission ec2:DescribeInstances (You are not authorized)" in message
    assert "eu-south-1, clusters alpha, beta: ec2:DescribeInstances failed with InternalError: said AWS" in message
    assert "us-east-1" not in message


def test_regions_that_refuse_can_be_passed_over(aws: Any, make: Any) -> None:
    cloud = aws(
        us_east_1=make.cluster(), eu_west_1=make.error("UnauthorizedOperation"), ap_east_1=make.error("AuthFailure")
    )
    found = find(cloud, regions=("us-east-1", "eu-west-1", "ap-east-1"), skip_denied=True)
    assert len(found.nodes) == 4
    assert [warning.split(",")[0] for warning in found.warnings] == ["eu-west-1", "ap-east-1"]


@pytest.mark.parametrize("code", ["RequestExpired", "InternalError"])
def test_other_failures_are_never_passed_over(aws: Any, make: Any, code: str) -> None:
    cloud = aws(us_east_1=make.cluster(), eu_west_1=make.error(code))
    assert "eu-west-1" in refused(cloud, regions=("us-east-1", "eu-west-1"), skip_denied=True)


def test_all_regions_refusing_is_a_failure(aws: Any, make: Any) -> None:
    cloud = aws(make.cluster())
    cloud.instances["us-east-1"] = make.error("UnauthorizedOperation")
    assert "is not allowed" in refused(cloud, skip_denied=True)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("RequestExpired", "the AWS credentials have expired (RequestExpired); renew them"),
        ("ExpiredToken", "the AWS credentials have expired (ExpiredToken); renew them"),
        ("AuthFailure", "AWS does not accept the credentials in this region (AuthFailure: said AWS)"),
        ("RequestLimitExceeded", "failed with RequestLimitExceeded: said AWS"),
    ],
)
def test_answers_that_are_errors(aws: Any, make: Any, code: str, message: str) -> None:
    cloud = aws(us_east_1=make.error(code))
    assert message in refused(cloud)


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (NoCredentialsError(), "us-east-1, all clusters: ec2:DescribeInstances needs AWS credentials"),
        (EndpointConnectionError(endpoint_url="https://x"), "got no answer .*check the name of the region"),
    ],
)
def test_calls_that_fail_here(aws: Any, failure: Exception, message: str) -> None:
    with pytest.raises(Problem, match=message):
        find(aws(us_east_1=failure))


def test_a_cluster_that_does_not_exist(aws: Any, make: Any) -> None:
    cloud = aws([*make.cluster("alpha"), *make.cluster("beta", first=32)])
    message = refused(cloud, clusters=("alpha", "alfa"))
    assert message == (
        "us-east-1: there is no cluster alfa; the clusters there are alpha, beta; check clusters and regions"
    )


def test_no_cluster_at_all(aws: Any) -> None:
    assert refused(aws([]), clusters=("alpha",)) == (
        "us-east-1: there is no cluster alpha; this account has no cluster there; check clusters and regions"
    )
    assert "no cluster matches *; this account has no cluster there" in refused(aws([]))


def test_no_cluster_matches(aws: Any, make: Any) -> None:
    assert refused(aws(make.cluster()), clusters=("dev-*", "test-*")) == (
        "us-east-1: no cluster matches dev-*, test-*; the clusters there are alpha"
    )


def test_a_cluster_without_such_nodes_is_a_warning(aws: Any, make: Any) -> None:
    cloud = aws([*make.cluster("alpha"), make.instance(99, "HeadNode", "beta", State={"Name": "stopped"})])
    found = find(cloud, clusters=("alpha", "beta"))
    assert {node["cluster"] for node in found.nodes} == {"alpha"}
    (warning,) = found.warnings
    assert warning == "us-east-1, cluster beta: none of the nodes is running, a head or login or compute node"


def test_an_existing_cluster_may_have_no_such_nodes(aws: Any, make: Any) -> None:
    found = find(aws(make.cluster()), clusters=("al*",), node_types=("compute",), queues=("none",))
    assert found.nodes == []
    assert found.warnings == [
        "us-east-1, cluster alpha: none of the nodes is running, a compute node, of queue none (compute nodes)"
    ]


def test_problems_of_tags_are_passed_on(aws: Any, make: Any) -> None:
    found = find(aws([*make.cluster(), make.instance(99, tags={"parallelcluster:attributes": "?"})]))
    assert len(found.nodes) == 5
    assert "parallelcluster:attributes" in found.warnings[0]


# SSM


def test_nodes_without_an_agent_are_left_out(aws: Any, make: Any) -> None:
    cloud = aws([*make.cluster("alpha"), *make.cluster("beta", first=32)])
    cloud.online = {"i-00000000000000010", "i-00000000000000012"} | {f"i-{number:017x}" for number in range(32, 40)}
    found = find(cloud, ssm_online=True)
    assert ids(found) == ["10", "12", "20", "21", "22", "23"]
    (warning,) = found.warnings
    assert warning.startswith("us-east-1, cluster alpha: 2 of 4 node(s) left out, their SSM agents do not answer: ")
    assert "i-00000000000000011, i-00000000000000013;" in warning
    assert "AmazonSSMManagedInstanceCore, which ParallelCluster does not add by itself" in warning
    # Both clusters are asked at once, so either call may come first.
    ssm = [call[2] for call in cloud.calls if call[0] == "ssm"]
    assert sorted(ssm, key=str) == [
        {"tag:parallelcluster:cluster-name": ["alpha"]},
        {"tag:parallelcluster:cluster-name": ["beta"]},
    ]


def test_named_clusters_are_asked_once(aws: Any, make: Any) -> None:
    cloud = aws(make.cluster())
    cloud.online = {f"i-{number:017x}" for number in range(16, 20)}
    assert len(find(cloud, clusters=("alpha",), ssm_online=True).nodes) == 4
    assert [call[0] for call in cloud.calls].count("ssm") == 1


def test_named_clusters_are_asked_while_ec2_answers(aws: Any, make: Any) -> None:
    cloud = aws(make.cluster())
    cloud.online = {"i-00000000000000010"}
    together = threading.Barrier(2, timeout=PATIENCE)
    client = cloud.client

    def make_client(service: str, region: str) -> Any:
        found = client(service, region)
        name = {"ec2": "describe_instances", "ssm": "describe_instance_information"}[service]
        call = getattr(found, name)
        setattr(found, name, lambda **arguments: (together.wait(), call(**arguments))[1])
        return found

    cloud.client = make_client
    assert ids(find(cloud, clusters=("alpha",), ssm_online=True)) == ["10"]


def test_no_agent_answers(aws: Any, make: Any) -> None:
    found = find(aws(make.cluster()), clusters=("alpha",), ssm_online=True)
    assert found.nodes == []
    assert len(found.warnings) == 1
    assert "4 of 4" in found.warnings[0]


def test_ssm_is_not_allowed(aws: Any, make: Any) -> None:
    cloud = aws(make.cluster())
    cloud.online = make.error("AccessDeniedException", operation="DescribeInstanceInformation")
    assert refused(cloud, ssm_online=True).startswith(
        "us-east-1, cluster alpha: ssm:DescribeInstanceInformation is not allowed; give the caller the permission "
        "ssm:DescribeInstanceInformation"
    )


# Slurm names


def test_slurm_names(aws: Any, make: Any) -> None:
    cloud = aws(make.cluster())
    cloud.tables["parallelcluster-slurm-alpha"] = {
        "gpu-st-p5-1": "i-00000000000000012",
        "gpu-dy-p5-7": "i-00000000000000fff",
        "SOMETHING_ELSE": "i-00000000000000013",
        "gpu-st-p5-9": "i-00000000000000010",
    }
    found = find(cloud, slurm_names=True)
    assert {node["instance_id"][-2:]: node.get("slurm_node") for node in found.nodes} == {
        "10": None,
        "11": None,
        "12": "gpu-st-p5-1",
        "13": None,
    }
    assert found.warnings == []


def test_no_table(aws: Any, make: Any) -> None:
    found = find(aws(make.cluster()), slurm_names=True, clusters=("alpha",))
    assert len(found.nodes) == 4
    assert "there is no DynamoDB table parallelcluster-slurm-alpha" in found.warnings[0]


def test_table_is_not_allowed(aws: Any, make: Any) -> None:
    cloud = aws(make.cluster())
    cloud.tables["parallelcluster-slurm-alpha"] = make.error("AccessDeniedException", "no", "Scan")
    assert refused(cloud, slurm_names=True) == (
        "us-east-1, cluster alpha: dynamodb:Scan is not allowed; give the caller the permission "
        "dynamodb:Scan on the table parallelcluster-slurm-<cluster> (no)"
    )
