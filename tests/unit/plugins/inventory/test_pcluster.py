# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The plugin in Ansible: options, groups, variables, names, the user's expressions, the cache, and what it refuses."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleError, AnsibleParserError

from ansible_collections.pcluster.postboot.plugins.plugin_utils._publish import inventory

Make = Callable[..., Any]
EVIL = "{{ lookup('ansible.builtin.pipe', 'printf EVALU%s ATED') }}"
EVIL_PART = "{{ ('EVALU' ~ 'ATED') | trim }}"  # without a comma


def test_groups(aws: Any, make: Any, listing: Make) -> None:
    gpu = make.instance(99, InstanceType="p5.48xlarge", tags={"parallelcluster:networking": "EFA=true"})
    found = listing(aws([*make.cluster(), *make.cluster("beta", nodes=0, first=32), gpu]))
    everyone = set(found.hosts)
    assert everyone == {
        *("alpha-head", "alpha-people-00000011", "alpha-gpu-p5-00000012", "alpha-gpu-p5-00000013"),
        *("alpha-gpu-p5-00000063", "beta-head", "beta-people-00000021"),
    }
    assert set(found.group("pcluster")) == everyone
    assert found.group("pcluster_head") == ["alpha-head", "beta-head"]
    assert found.group("pcluster_login") == ["alpha-people-00000011", "beta-people-00000021"]
    compute = ["alpha-gpu-p5-00000012", "alpha-gpu-p5-00000013", "alpha-gpu-p5-00000063"]
    assert found.group("pcluster_compute") == compute
    assert found.group("pcluster_queue_gpu") == compute
    assert found.group("pcluster_compute_resource_p5") == compute
    assert found.group("pcluster_pool_people") == found.group("pcluster_login")
    assert found.group("pcluster_cluster_beta") == ["beta-head", "beta-people-00000021"]
    assert found.group("pcluster_gpu") == found.group("pcluster_efa") == ["alpha-gpu-p5-00000063"]
    assert found.inventory.groups["ungrouped"].hosts == []


def test_usual_groups_are_there_without_members(aws: Any, make: Any, listing: Make) -> None:
    found = listing(aws([make.instance(1, "HeadNode")]))
    for group in ("pcluster_login", "pcluster_compute", "pcluster_gpu", "pcluster_efa"):
        assert found.group(group) == []


def test_variables(aws: Any, make: Any, listing: Make) -> None:
    found = listing(aws(make.cluster()))
    own = found.inventory.hosts["alpha-gpu-p5-00000012"].vars
    assert {name: value for name, value in own.items() if not name.startswith("inventory_")} == {
        "ansible_host": "10.0.0.18",
        "pcluster_architecture": "x86_64",
        "pcluster_cluster": "alpha",
        "pcluster_compute_resource": "p5",
        "pcluster_efa": False,
        "pcluster_gpu": False,
        "pcluster_instance_id": "i-00000000000000012",
        "pcluster_instance_type": "m7i.large",
        "pcluster_launch_time": "2026-11-20T08:15:30+00:00",
        "pcluster_neuron": False,
        "pcluster_node_type": "compute",
        "pcluster_os": "ubuntu2204",
        "pcluster_private_dns": "ip-10-0-0-18.ec2.internal",
        "pcluster_private_ip": "10.0.0.18",
        "pcluster_queue": "gpu",
        "pcluster_region": "us-east-1",
        "pcluster_scheduler": "slurm",
        "pcluster_state": "running",
        "pcluster_version": "3.16.1",
        "pcluster_zone": "us-east-1a",
    }
    head = found.inventory.hosts["alpha-head"].vars
    assert head["pcluster_public_ip"] == head["ansible_host"] == "192.0.2.7"
    assert not {"pcluster_queue", "pcluster_compute_resource", "pcluster_pool", "pcluster_tags"} & set(head)
    assert found.inventory.groups["pcluster"].vars == {
        "ansible_connection": "ssh",
        "ansible_python_interpreter": "/usr/bin/python3",
        "ansible_user": "ubuntu",
    }


def test_connections(aws: Any, make: Any, listing: Make) -> None:
    cloud = aws(make.cluster())
    compute = "alpha-gpu-p5-00000012"
    ssm = listing(cloud, connection="ssm", bucket="files", ssm_timeout=900).variables(compute)
    assert ssm["ansible_connection"] == "amazon.aws.aws_ssm"
    assert (ssm["ansible_aws_ssm_bucket_name"], ssm["ansible_aws_ssm_timeout"]) == ("files", 900)
    assert (ssm["ansible_aws_ssm_instance_id"], ssm["ansible_aws_ssm_region"]) == ("i-00000000000000012", "us-east-1")
    assert listing(cloud, connection="ssm", bucket="files").variables(compute)["ansible_aws_ssm_timeout"] == 3600
    via = listing(cloud, connection="ssh_via_head", node_types=["compute"])
    assert via.variables(compute)["ansible_ssh_common_args"] == "-o ProxyJump=ubuntu@192.0.2.7"
    assert "alpha-head" not in via.hosts
    none = listing(cloud, connection="none").variables(compute)
    assert not [name for name in none if name.startswith("ansible_")]


def test_via_a_head_that_is_stopped(aws: Any, make: Any, listing: Make) -> None:
    cloud = aws([make.instance(1, "HeadNode", State={"Name": "stopped"}), make.instance(2)])
    found = listing(cloud, connection="ssh_via_head")
    assert found.hosts == ["alpha-gpu-p5-00000002"]
    assert "us-east-1, cluster alpha: connection: ssh_via_head found no running head node" in found.warnings[0]


def test_slurm_names(aws: Any, make: Any, listing: Make) -> None:
    cloud = aws(make.cluster(nodes=1))
    cloud.tables["parallelcluster-slurm-alpha"] = {"gpu-st-p5-1": "i-00000000000000012"}
    assert "alpha-gpu-st-p5-1" in listing(cloud, slurm_names=True).hosts
    found = listing(cloud, slurm_names=True, hostnames=["pcluster_slurm_node", "default"])
    assert set(found.hosts) == {"alpha-head", "alpha-people-00000011", "gpu-st-p5-1"}


def test_order_does_not_depend_on_aws(aws: Any, make: Any, listing: Make) -> None:
    instances = [*make.cluster("beta", nodes=3, first=32), *make.cluster("alpha", nodes=3)]
    assert listing(aws(instances)).hosts == listing(aws(instances[::-1])).hosts


# Names and templates from outside


def test_a_host_never_has_the_name_of_a_group(aws: Any, make: Any, listing: Make) -> None:
    from ansible.inventory.data import InventoryData

    data = InventoryData()
    data.add_group("elsewhere")
    cloud = aws([make.instance(1, tags={"Name": "pcluster_gpu"}), make.instance(2, tags={"Name": "elsewhere"})])
    found = listing(cloud, data, hostnames=["tag:Name"])
    assert found.hosts == ["pcluster_gpu-00000000000000001", "elsewhere-00000000000000002"]
    assert found.inventory.groups["elsewhere"].vars == {}


def test_keyed_groups_make_way_for_hosts(aws: Any, make: Any, listing: Make) -> None:
    cloud = aws(
        [make.instance(1, tags={"Name": "blue", "Team": "red"}), make.instance(2, tags={"Name": "red", "Team": "x"})]
    )
    found = listing(
        cloud, hostnames=["tag:Name"], keyed_groups=[{"key": "pcluster_tags.Team", "prefix": "", "separator": ""}]
    )
    assert found.hosts == ["blue", "red"]
    assert found.group("red_group") == ["blue"]
    assert found.group("x") == ["red"]
    assert "red" not in found.inventory.groups
    assert found.warnings == ["a host is called red, so the group of that name becomes red_group"]


def template(variables: dict[str, Any], expression: str) -> Any:
    from ansible.parsing.dataloader import DataLoader
    from ansible.template import Templar, trust_as_template

    return Templar(loader=DataLoader(), variables=variables).template(trust_as_template(expression))


@pytest.mark.parametrize("connection", ["ssh", "ssm", "ssh_over_ssm", "ssh_via_head"])
def test_tags_are_never_templates(aws: Any, make: Any, listing: Make, connection: str) -> None:
    tags = {
        "Note": EVIL,
        "parallelcluster:queue-name": EVIL,
        "parallelcluster:compute-resource-name": EVIL,
        "parallelcluster:cluster-name": EVIL,
        "parallelcluster:attributes": f"{EVIL_PART}, {EVIL_PART}, 3{EVIL_PART}, {EVIL_PART}",
    }
    cloud = aws([make.instance(1, "HeadNode", PublicIpAddress=EVIL, tags=tags), make.instance(2, tags=tags)])
    found = listing(
        cloud,
        connection=connection,
        bucket="files",
        tags=["Note"],
        hostnames=["tag:Note"],
        compose={"composed": "pcluster_tags.Note", "joined": "'x' ~ pcluster_queue"},
        keyed_groups=[{"key": "pcluster_tags.Note", "prefix": "note"}],
    )
    assert len(found.hosts) == 2
    for host in found.hosts:
        assert "{" not in host
        variables = {**found.variables(host), "inventory_hostname": host}
        for name in variables:
            assert "EVALUATED" not in str(template(variables, "{{ " + name + " }}")), name
        assert template(variables, "{{ pcluster_tags.Note }}") == EVIL
        assert template(variables, "{{ composed }}") == EVIL
    for name, group in found.inventory.groups.items():
        assert "{" not in name
        for value in group.vars.values():
            assert "EVALUATED" not in str(template({"value": value}, "{{ value }}"))


# The user's own variables and groups


def test_compose_groups_and_keyed_groups(aws: Any, make: Any, listing: Make) -> None:
    found = listing(
        aws([*make.cluster(), make.instance(99, tags={"Team": "nlp"})]),
        compose={"scrape": "pcluster_private_ip ~ ':9100'", "ansible_user": "'root'"},
        groups={"heads": "pcluster_node_type == 'head'", "spot-like": "scrape is search('10.0.0.1')"},
        keyed_groups=[
            {"key": "pcluster_version", "prefix": "version", "parent_group": "versions"},
            {"key": "pcluster_tags.Team", "prefix": "team", "default_value": "nobody"},
        ],
    )
    assert found.variables("alpha-head")["scrape"] == "10.0.0.16:9100"
    assert found.variables("alpha-head")["ansible_user"] == "root"
    assert found.group("heads") == ["alpha-head"]
    assert len(found.group("spot_like")) == 4
    assert len(found.group("version_3_16_1")) == len(found.group("versions")) == 5
    assert found.group("team_nlp") == ["alpha-gpu-p5-00000063"]


def test_strict(aws: Any, make: Any, listing: Make) -> None:
    cloud = aws(make.cluster())
    compose = {"queue": "pcluster_queue | upper"}
    assert "queue" not in listing(cloud, compose=compose).variables("alpha-head")
    with pytest.raises(AnsibleError, match="Could not set queue for host alpha-head"):
        listing(cloud, compose=compose, strict=True)


def test_shown_tags(aws: Any, make: Any, listing: Make) -> None:
    tags = {"Team": "nlp", "Project": "x", "Owner": "y"}
    expressions = {
        "compose": {"owner": "pcluster_tags.Owner"},
        "groups": {"of_y": "pcluster_tags.Owner == 'y'"},
        "keyed_groups": [{"key": "pcluster_tags.Owner", "prefix": "owner"}],
    }
    found = listing(aws([make.instance(1, tags=tags)]), tags=["Team", "Pro*"], **expressions)
    (host,) = found.hosts
    assert found.variables(host)["pcluster_tags"] == {"Team": "nlp", "Project": "x"}
    # Which tags hosts get does not matter to expressions.
    assert found.variables(host)["owner"] == "y"
    assert found.group("of_y") == found.group("owner_y") == [host]


# Options


@pytest.mark.parametrize("option", ["bucket", "profile"])
def test_options_may_be_templates(
    aws: Any, make: Any, listing: Make, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setenv("WHICH", "files-7")
    options = {"bucket": "other", option: "{{ lookup('env', 'WHICH') }}"}
    found = listing(aws(make.cluster()), connection="ssm", **options)
    name = {"bucket": "ansible_aws_ssm_bucket_name", "profile": "ansible_aws_ssm_profile"}[option]
    assert found.variables("alpha-head")[name] == "files-7"


def test_templates_in_lists(aws: Any, make: Any, listing: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHICH", "alpha")
    cloud = aws(make.cluster())
    assert len(listing(cloud, clusters=["{{ lookup('env', 'WHICH') }}"]).hosts) == 4
    assert cloud.calls[0][2]["tag:parallelcluster:cluster-name"] == ["alpha"]


@pytest.mark.parametrize(
    ("variables", "region"),
    [
        ({"AWS_REGION": "eu-west-1"}, "eu-west-1"),
        ({"AWS_DEFAULT_REGION": "eu-west-1"}, "eu-west-1"),
        ({"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "us-east-1"}, "eu-west-1"),
    ],
)
def test_region_of_the_environment(
    aws: Any, make: Any, listing: Make, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], region: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    cloud = aws(us_east_1=[], eu_west_1=make.cluster())
    assert listing(cloud, regions=None).variables("alpha-head")["pcluster_region"] == region


def test_credentials_of_options_and_environment(
    aws: Any, make: Any, listing: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud, seen = aws(make.cluster()), []
    plugin = listing(cloud).plugin
    module = sys.modules[type(plugin).__module__]

    def note(credentials: Any, region: str) -> Any:
        seen.append(credentials)
        return cloud.client

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    options = {"iam_role_arn": "arn:x", "aws_endpoint_url": "http://127.0.0.1:9"}
    monkeypatch.setattr(module, "client_maker", note)
    listing(None, **options)
    (credentials,) = seen
    assert (credentials.access_key, credentials.secret_key, credentials.session_token) == ("ENV", "secret", "token")
    assert (credentials.assume_role_arn, credentials.endpoint_url) == ("arn:x", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "")
    listing(None, access_key="OPTION", aws_secret_key="other")
    assert (seen[1].access_key, seen[1].secret_key) == ("OPTION", "other")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cluster": "alpha"}, "unknown option.s. cluster; known are .*clusters"),
        ({"connection": "ssm"}, "connection: ssm needs bucket"),
        ({"hostnames": ["private-ip"]}, "hostnames: 'private-ip' is unknown"),
        ({"clusters": []}, "clusters is empty"),
        ({"clusters": ["alfa"]}, "us-east-1: there is no cluster alfa; the clusters there are alpha"),
        ({"regions": ["eu-west-1"]}, "eu-west-1, all clusters: ec2:DescribeInstances is not allowed"),
        ({"states": ["stopped"]}, "the inventory would be empty .*allow_empty.*: us-east-1, cluster alpha: none of"),
        ({"ssm_online": True}, "the inventory would be empty .*AmazonSSMManagedInstanceCore"),
    ],
)
def test_refused(aws: Any, make: Any, listing: Make, options: Any, message: str) -> None:
    cloud = aws(us_east_1=make.cluster(), eu_west_1=make.error("UnauthorizedOperation"))
    with pytest.raises(AnsibleParserError, match=message) as caught:
        listing(cloud, **options)
    assert "\n" not in str(caught.value).strip()


@pytest.mark.parametrize("options", [{"node_types": ["worker"]}, {"connection": "telnet"}, {"states": ["dead"]}])
def test_refused_by_the_documentation(aws: Any, make: Any, listing: Make, options: Any) -> None:
    with pytest.raises(AnsibleError):
        listing(aws(make.cluster()), **options)


def test_an_empty_inventory_can_be_allowed(aws: Any, make: Any, listing: Make) -> None:
    found = listing(aws(make.cluster()), states=["stopped"], allow_empty=True)
    assert found.hosts == []
    assert found.group("pcluster_compute") == []
    assert "none of the nodes is stopped" in found.warnings[0]


def test_nothing_is_left_behind_by_a_failure(aws: Any, make: Any, listing: Make) -> None:
    from ansible.inventory.data import InventoryData

    data = InventoryData()
    with pytest.raises(AnsibleParserError):
        listing(aws(make.cluster()), data, clusters=["alpha", "alfa"])
    assert data.hosts == {}


@pytest.mark.parametrize(
    ("name", "taken"),
    [("pcluster.yml", True), ("a.pcluster.yaml", True), ("pcluster.json", False), ("aws_ec2.yml", False)],
)
def test_file_names(tmp_path: Path, name: str, taken: bool) -> None:
    from ansible.plugins.loader import inventory_loader

    path = tmp_path / name
    path.touch()
    assert inventory_loader.get("pcluster.postboot.pcluster").verify_file(str(path)) is taken


# The cache


@pytest.fixture
def cache(tmp_path: Path) -> dict[str, Any]:
    """Options by which answers are kept in a folder."""
    return {"cache": True, "cache_plugin": "jsonfile", "cache_connection": str(tmp_path / "cache")}


def test_cache(aws: Any, make: Any, listing: Make, cache: dict[str, Any]) -> None:
    cloud = aws([*make.cluster(), make.instance(99, tags={"parallelcluster:attributes": "?"})])
    options = {**cache, "connection": "ssh_via_head", "node_types": ["compute"]}
    first = listing(cloud, **options)
    asked = len(cloud.calls)

    def everything(found: Any) -> Any:
        return {host: found.variables(host) for host in found.hosts}, found.warnings

    again = listing(cloud, **options)
    assert len(cloud.calls) == asked
    assert everything(again) == everything(first)
    # Neither how to connect nor the names are part of the question; what is asked is.
    listing(cloud, **{**options, "hostnames": ["instance-id"]})
    assert len(cloud.calls) == asked
    listing(cloud, **{**options, "queues": ["gpu"]})
    assert len(cloud.calls) == asked + 1
    listing(cloud, **{**options, "queues": ["gpu"], "access_key": "other", "secret_key": "x"})
    assert len(cloud.calls) == asked + 2
    listing(cloud, **{**options, "queues": ["gpu"], "access_key": "other", "secret_key": "y", "session_token": "z"})
    assert len(cloud.calls) == asked + 2


def test_cache_is_refreshed(aws: Any, make: Any, listing: Make, cache: dict[str, Any]) -> None:
    cloud = aws(make.cluster())
    listing(cloud, **cache)
    cloud.instances["us-east-1"] = make.cluster(nodes=5)
    assert len(listing(cloud, **cache).hosts) == 4
    assert len(listing(cloud, refresh=True, **cache).hosts) == 7
    assert len(listing(cloud, **cache).hosts) == 7


def test_cache_keeps_no_secrets(aws: Any, make: Any, listing: Make, cache: dict[str, Any], tmp_path: Path) -> None:
    secrets = {"access_key": "KEY", "secret_key": "hush-hush", "session_token": "hush-token"}
    listing(aws(make.cluster()), **cache, **secrets)
    (file,) = (tmp_path / "cache").iterdir()
    assert "alpha" in file.read_text()
    assert "hush" not in file.read_text()


def test_cached_tags_are_never_templates(aws: Any, make: Any, listing: Make, cache: dict[str, Any]) -> None:
    cloud = aws([make.instance(1, tags={"Note": EVIL})])
    listing(cloud, **cache, tags=["Note"])
    found = listing(cloud, **cache, tags=["Note"])
    assert len(cloud.calls) == 1
    assert template(found.variables("alpha-gpu-p5-00000001"), "{{ pcluster_tags.Note }}") == EVIL


# The node's own files


def test_source_node(node_tree: Callable[[str], Path], listing: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    def no_calls(*_arguments: Any) -> None:
        raise AssertionError("a connection was made")

    monkeypatch.setattr(socket.socket, "connect", no_calls)
    found = listing(source="node", root=str(node_tree("compute-gpu-ubuntu2404")), keyed_groups=[{"key": "pcluster_os"}])
    assert found.hosts == ["localhost"]
    mine = {
        name for name, group in found.inventory.groups.items() if "localhost" in [h.name for h in group.get_hosts()]
    }
    assert mine == {
        *("all", "pcluster", "pcluster_compute", "pcluster_cluster_alpha", "pcluster_queue_gpu"),
        *("pcluster_compute_resource_p5", "pcluster_gpu", "pcluster_efa", "_ubuntu2404"),
    }
    variables = found.variables("localhost")
    assert variables["ansible_connection"] == "local"
    assert variables["pcluster_slurm_node"] == "gpu-st-p5-1"
    assert variables["pcluster_node_type"] == "compute"


@pytest.mark.parametrize(
    ("tree", "group"), [("head-alinux2023", "pcluster_head"), ("login-ubuntu2404", "pcluster_login")]
)
def test_source_node_groups(node_tree: Callable[[str], Path], listing: Make, tree: str, group: str) -> None:
    assert listing(source="node", root=str(node_tree(tree))).group(group) == ["localhost"]


CONFIG: dict[str, Any] = {
    "Region": "us-east-2",
    "Image": {"Os": "ubuntu2404"},
    "HeadNode": {"InstanceType": "m6i.2xlarge", "Networking": {"SubnetId": "subnet-01234567"}},
    "LoginNodes": {
        "Pools": [
            {
                "Name": "people",
                "InstanceType": "m6i.large",
                "Count": 1,
                "Networking": {"SubnetIds": ["subnet-01234567"]},
            }
        ]
    },
    "Scheduling": {
        "Scheduler": "slurm",
        "SlurmQueues": [
            {
                "Name": "gpu",
                "Tags": [{"Key": "Team", "Value": "nlp"}, {"Key": "Purpose", "Value": "training"}],
                "ComputeResources": [
                    {
                        "Name": "p5",
                        "InstanceType": "p5.48xlarge",
                        "MaxCount": 4,
                        "Efa": {"Enabled": True},
                        "Tags": [{"Key": "Purpose", "Value": "large training"}],
                    },
                    {"Name": "g6", "InstanceType": "g6.xlarge", "Tags": [{"Key": "Purpose", "Value": "tests"}]},
                ],
                "Networking": {"SubnetIds": ["subnet-01234567"]},
            },
            {
                "Name": "cpu",
                "Tags": [{"Key": "Team", "Value": "web"}],
                "ComputeResources": [{"Name": "p5", "InstanceType": "c7i.large"}],
                "Networking": {"SubnetIds": ["subnet-01234567"]},
            },
        ],
    },
    "Tags": [{"Key": "Team", "Value": "platform"}, {"Key": "Cost center", "Value": "17"}],
}
OWN: dict[str, Any] = {
    "compose": {"speed": "'fast' if pcluster_instance_type is match('p5') else 'slow'", "where": "pcluster_zone"},
    "groups": {
        "trainers": "pcluster_tags.Team == 'nlp' and pcluster_gpu",
        "shells": "pcluster_node_type == 'login' and pcluster_state == 'running'",
        "fast-ones": "speed == 'fast'",
    },
    "keyed_groups": [
        {"key": "pcluster_tags.Team", "prefix": "team", "parent_group": "teams"},
        {"key": "pcluster_tags.Purpose | default('')", "prefix": "for", "default_value": "anything"},
        {"key": "pcluster_tags['Cost center']", "prefix": "cost"},
        {"key": "pcluster_tags['parallelcluster:queue-name']", "prefix": "q"},
        {"key": "pcluster_tags['parallelcluster:version']", "prefix": "release"},
        {"key": "pcluster_tags.Name", "separator": ""},
        {"key": "[pcluster_os, pcluster_zone]"},
        {"key": "pcluster_pool", "prefix": "pool"},
    ],
    "tags": ["Team", "Purpose"],
}


@pytest.mark.parametrize(
    ("tree", "instance", "own"),
    [
        (
            "head-ubuntu2404",
            {"kind": "HeadNode", "InstanceType": "m6i.2xlarge", "tags": {}},
            {"team_platform", "for_anything", "HeadNode", "_us_east_2a"},
        ),
        (
            "login-ubuntu2404",
            {
                "kind": "LoginNode",
                "InstanceType": "m6i.large",
                "tags": {"parallelcluster:login-nodes-pool-name": "people"},
            },
            {"team_platform", "for_anything", "LoginNode", "_us_east_2a", "shells", "pool_people"},
        ),
        (
            "compute-gpu-ubuntu2404",
            {
                "kind": "Compute",
                "InstanceType": "p5.48xlarge",
                "tags": {"Team": "nlp", "Purpose": "large training", "parallelcluster:networking": "EFA=true"},
                "Placement": {"AvailabilityZone": "us-east-2b"},
            },
            {"team_nlp", "for_large_training", "Compute", "_us_east_2b", "trainers", "fast_ones", "q_gpu"},
        ),
    ],
)
def test_own_groups_are_the_same_by_push_and_on_the_node(
    aws: Any,
    make: Any,
    listing: Make,
    node_tree: Callable[[str], Path],
    tmp_path: Path,
    tree: str,
    instance: Any,
    own: set[str],
) -> None:
    """ParallelCluster tags instances with the cluster's Tags, over which those of queue and compute resource go."""
    of_all = {
        "Team": "platform",
        "Cost center": "17",
        "parallelcluster:attributes": "ubuntu2404, slurm, 3.16.1, x86_64",
        "parallelcluster:version": "3.16.1",
    }
    options = {"Placement": {"AvailabilityZone": "us-east-2a"}, **instance, "tags": {**of_all, **instance["tags"]}}
    pushed = listing(aws(us_east_2=[make.instance(1, **options)]), regions=["us-east-2"], **OWN)
    bundled = inventory.read([str(tmp_path / "pcluster.yml")], None, CONFIG)
    assert bundled.warnings == []
    root = node_tree(tree)
    shared = "shared_login_nodes" if "login" in tree else "shared"
    (root / "opt/parallelcluster" / shared).mkdir()
    (root / "opt/parallelcluster" / shared / "cluster-config.yaml").write_text(yaml.safe_dump(CONFIG))
    pulled = listing(source="node", root=str(root), **yaml.safe_load(bundled.text))
    assert pulled.warnings == []

    def found(of: Any) -> tuple[set[str], dict[str, Any]]:
        (host,) = of.hosts
        variables = {name: of.variables(host).get(name) for name in ("speed", "where", "pcluster_tags")}
        return {group.name for group in of.inventory.hosts[host].get_groups()}, variables

    assert found(pulled) == found(pushed)
    of_everyone = {"teams", "cost_17", "release_3_16_1", "_ubuntu2404"}
    assert {name for name in found(pulled)[0] if not name.startswith("pcluster")} == {"all", *of_everyone, *own}
    # And the bundle has the variables of each of them.
    for name in of_everyone | own:
        assert any(re.fullmatch(pattern, name) for pattern in bundled.groups), name


def test_source_node_elsewhere(listing: Make, tmp_path: Path) -> None:
    with pytest.raises(AnsibleParserError, match="this is no ParallelCluster node; use 'source: ec2'"):
        listing(source="node", root=str(tmp_path))


# The examples


def examples(repo: Path) -> list[dict[str, Any]]:
    from ansible_collections.pcluster.postboot.plugins.inventory import pcluster

    documents = list(yaml.safe_load_all(pcluster.EXAMPLES))
    assert len(documents) == 6
    files = [repo / "inventory/pcluster.yml", repo / "inventory/node.pcluster.yml"]
    return [*documents, *(yaml.safe_load(file.read_text()) for file in files)]


def test_examples_work(
    aws: Any,
    make: Any,
    listing: Make,
    node_tree: Callable[[str], Path],
    repo: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clusters = ("training", "inference", "dev-1")
    everything = [node for number, name in enumerate(clusters) for node in make.cluster(name, first=16 * (number + 1))]
    for instance in everything:
        instance["Tags"].append({"Key": "Project", "Value": "language-models"})
    cloud = aws(us_east_1=everything, eu_west_1=[])
    cloud.online = {instance["InstanceId"] for instance in everything}
    cloud.tables = {f"parallelcluster-slurm-{name}": {} for name in clusters}
    module = sys.modules[type(listing(cloud).plugin).__module__]
    monkeypatch.setattr(module, "regions_of", lambda credentials, regions: ("us-east-1", "eu-west-1"))
    monkeypatch.setenv("PCLUSTER_SSM_BUCKET", "files")
    root = node_tree("head-ubuntu2404")
    for example in examples(repo):
        options = dict(example)
        if options.get("platforms") == ["hyperpod"]:
            continue  # test_hyperpod.py
        assert options.pop("plugin") == "pcluster.postboot.pcluster"
        if options.get("source") == "node":
            options["root"] = str(root)
        found = listing(cloud, **options)
        assert found.hosts
        assert found.warnings == []
