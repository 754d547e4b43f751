# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What an instance, or the node's own files, say about a node."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws import errors
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory import names, nodes


def read(instance: dict[str, Any]) -> tuple[Any, list[str]]:
    reader = nodes.Reader("us-east-1")
    return reader.node(instance), reader.problems()


def test_compute_node(make: Any) -> None:
    node, problems = read(make.instance(5, InstanceType="p5.48xlarge", tags={"parallelcluster:networking": "EFA=true"}))
    tags = node.pop("tags")
    assert node == {
        "cluster": "alpha",
        "node_type": "compute",
        "queue": "gpu",
        "compute_resource": "p5",
        "instance_id": "i-00000000000000005",
        "instance_type": "p5.48xlarge",
        "state": "running",
        "region": "us-east-1",
        "zone": "us-east-1a",
        "private_ip": "10.0.0.5",
        "private_dns": "ip-10-0-0-5.ec2.internal",
        "os": "ubuntu2204",
        "scheduler": "slurm",
        "version": "3.16.1",
        "architecture": "x86_64",
        "efa": True,
        "gpu": True,
        "neuron": False,
        "launch_time": "2026-11-20T08:15:30+00:00",
    }
    assert tags["Name"] == "Compute"
    assert problems == []
    assert set(node) <= set(nodes.VARIABLES)


@pytest.mark.parametrize(
    ("spelling", "kind"),
    [("HeadNode", "head"), ("LoginNode", "login"), ("Compute", "compute"), ("ComputeFleet", "compute")],
)
def test_node_types_have_one_spelling(make: Any, spelling: str, kind: str) -> None:
    node, _problems = read(make.instance(1, spelling))
    assert node["node_type"] == kind


@pytest.mark.parametrize("tag", nodes.TAG_POOLS)
def test_login_pool_has_two_tags(make: Any, tag: str) -> None:
    node, _problems = read(
        make.instance(1, "LoginNode", tags={"parallelcluster:login-nodes-pool": None, tag: "people"})
    )
    assert node["pool"] == "people"
    assert "queue" not in node


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (
            "alinux2023, slurm, 3.16.1, arm64",
            {"os": "alinux2023", "scheduler": "slurm", "version": "3.16.1", "architecture": "aarch64"},
        ),
        (
            "rhel9,slurm,3.14.0,x86_64",
            {"os": "rhel9", "scheduler": "slurm", "version": "3.14.0", "architecture": "x86_64"},
        ),
        ("ubuntu2204, slurm, 3.11.0, NONE", {"os": "ubuntu2204", "scheduler": "slurm", "version": "3.11.0"}),
        ("ubuntu2204, slurm, 3.11.0", {}),
        ("ubuntu2204, slurm, , x86_64", {}),
        ("slurm, ubuntu2204, x86_64, 3.11.0", {}),
        ("", {}),
    ],
)
def test_attributes(value: str, found: dict[str, str]) -> None:
    assert nodes.parse_attributes(value) == found


def test_architecture_without_attributes(make: Any) -> None:
    node, problems = read(make.instance(1, Architecture="arm64", tags={"parallelcluster:attributes": None}))
    assert node["architecture"] == "aarch64"
    assert "os" not in node
    assert problems


def test_malformed_tags_are_one_line_a_cluster(make: Any) -> None:
    reader = nodes.Reader("eu-west-1")
    for number in range(1, 6):
        reader.node(make.instance(number, tags={"parallelcluster:attributes": "what\never"}))
    reader.node(make.instance(9, "HeadOffice"))
    reader.node(make.instance(10, "HeadOffice", "be\nta"))
    kinds, elsewhere, attributes = reader.problems()
    assert kinds.startswith("eu-west-1, cluster alpha: 1 instance(s) left out")
    assert "parallelcluster:node-type" in kinds
    assert "'HeadOffice'" in kinds
    assert attributes.startswith("eu-west-1, cluster alpha: 5 instance(s) without pcluster_os and pcluster_version")
    assert attributes.endswith("and 2 more")
    assert "cluster be ta" in elsewhere
    assert "\n" not in kinds + elsewhere + attributes


@pytest.mark.parametrize("changes", [{"parallelcluster:cluster-name": None}, {"parallelcluster:cluster-name": ""}])
def test_no_cluster_is_no_node(make: Any, changes: dict[str, Any]) -> None:
    assert read(make.instance(1, tags=changes)) == (None, [])


@pytest.mark.parametrize(
    ("instance_type", "gpu"),
    [
        ("p5.48xlarge", True),
        ("p6-b200.48xlarge", True),
        ("p6e-gb200.36xlarge", True),
        ("p4de.24xlarge", True),
        ("g4dn.xlarge", True),
        ("g4ad.xlarge", False),
        ("g5g.xlarge", True),
        ("g6e.12xlarge", True),
        ("gr6.4xlarge", True),
        ("m7i.large", False),
        ("hpc7a.96xlarge", False),
        ("trn1.32xlarge", False),
        ("", False),
    ],
)
def test_gpu_by_instance_type(instance_type: str, gpu: bool) -> None:
    assert nodes.has_nvidia(instance_type) is gpu


def test_neuron_by_instance_type(make: Any) -> None:
    node, _problems = read(make.instance(1, InstanceType="trn2.48xlarge"))
    assert (node["neuron"], node["gpu"]) == (True, False)


def test_local_neuron_node(node_tree: Callable[[str], Path]) -> None:
    node = nodes.local_node(str(node_tree("compute-neuron-ubuntu2404")))
    assert (node["neuron"], node["gpu"], node["efa"]) == (True, False, True)
    assert {"pcluster_neuron", "pcluster_efa", "pcluster_queue_trn"} <= set(names.group_names(node))


@pytest.mark.parametrize(
    ("value", "efa"),
    [("EFA=true", True), ("EFA = true", True), ("EFA=NONE", False), (None, False), ("EFA=trueish", False)],
)
def test_efa(make: Any, value: str | None, efa: bool) -> None:
    node, _problems = read(make.instance(1, tags={"parallelcluster:networking": value}))
    assert node["efa"] is efa


def test_local_compute_node(node_tree: Callable[[str], Path]) -> None:
    node = nodes.local_node(str(node_tree("compute-gpu-ubuntu2404")))
    assert node == {
        "cluster": "alpha",
        "node_type": "compute",
        "queue": "gpu",
        "compute_resource": "p5",
        "slurm_node": "gpu-st-p5-1",
        "instance_id": "i-0bbbbbbbbbbbbbbbb",
        "instance_type": "p5.48xlarge",
        "state": "running",
        "region": "us-east-2",
        "zone": "us-east-2b",
        "os": "ubuntu2404",
        "scheduler": "slurm",
        "version": "3.16.1",
        "architecture": "x86_64",
        "efa": True,
        "gpu": True,
        "neuron": False,
    }


def test_local_nodes_of_hyperpod(node_tree: Callable[[str], Path]) -> None:
    root = node_tree("hyperpod-compute")
    node = nodes.local_node(str(root), [].append)
    assert node == {
        "platform": "hyperpod",
        "cluster": "my-hyperpod-cluster",
        "node_type": "compute",
        "queue": "gpu-workers",
        "slurm_node": "ip-10-1-4-190",
        "instance_id": "i-0aaaaaaaaaaaaaaa1",
        "instance_type": "p4d.24xlarge",
        "state": "running",
        "region": "us-east-1",
        "os": "alinux2023",
        "scheduler": "slurm",
        "architecture": "x86_64",
        "efa": False,
        "gpu": True,
        "neuron": False,
    }
    (root / "proc/net/fib_trie").write_text("Main:\n  |-- 10.1.18.53\n     /32 host LOCAL\n")
    login = nodes.local_node(str(root))
    assert (login["node_type"], login["pool"], login.get("queue")) == ("login", "login", None)
    file = root / "opt/ml/config/resource_config.json"
    file.write_text(file.read_text().replace('"ClusterConfig"', '"Clusterconfig"'))
    with pytest.raises(Problem, match=r"resource_config.json under \S+ names no cluster \(ClusterName\)"):
        nodes.local_node(str(root))


def test_local_head_and_login_nodes(node_tree: Callable[[str], Path]) -> None:
    head = nodes.local_node(str(node_tree("head-alinux2023")))
    assert (head["node_type"], head["os"], head["gpu"]) == ("head", "alinux2023", False)
    assert not {"queue", "slurm_node", "pool"} & set(head)
    assert "zone" not in head
    login = nodes.local_node(str(node_tree("login-ubuntu2404")))
    assert (login["node_type"], login["pool"], login["zone"]) == ("login", "people", "us-east-2a")


def test_tags_that_the_user_has_not_set(node_tree: Callable[[str], Path]) -> None:
    """ParallelCluster writes null where the user has none, and its own beside the user's."""
    root, told = node_tree("compute-gpu-ubuntu2404"), []
    (root / "opt/parallelcluster/shared").mkdir()
    (root / "opt/parallelcluster/shared/cluster-config.yaml").write_text(
        "Scheduling:\n  SlurmQueues:\n  - Name: gpu\n    Tags: null\n"
        "    ComputeResources:\n    - Name: p5\n      Tags: null\n"
        "Tags:\n- Key: parallelcluster:cluster-name\n  Value: alpha\n- Key: parallelcluster:version\n  Value: 3.16.1\n"
    )
    node = nodes.local_node(str(root), told.append)
    assert set(node["tags"]) == {*nodes.OWN_TAGS} - {*nodes.TAG_POOLS}
    assert told == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "/opt/parallelcluster/shared/cluster-config.yaml is missing"),
        ("Tags: [", "/opt/parallelcluster/shared/cluster-config.yaml is no YAML"),
        ("- no cluster", "/opt/parallelcluster/shared/cluster-config.yaml is no cluster's configuration"),
    ],
)
def test_tags_that_a_node_cannot_read_are_said(node_tree: Callable[[str], Path], text: str | None, why: str) -> None:
    root, told = node_tree("compute-gpu-ubuntu2404"), []
    if text is not None:
        (root / "opt/parallelcluster/shared").mkdir()
        (root / "opt/parallelcluster/shared/cluster-config.yaml").write_text(text)
    node = nodes.local_node(str(root), told.append)
    assert told == [f"{why}, so pcluster_tags lacks the Tags of the cluster's configuration"]
    assert node["tags"] == {
        "Name": "Compute",
        "parallelcluster:cluster-name": "alpha",
        "parallelcluster:node-type": "Compute",
        "parallelcluster:version": "3.16.1",
        "parallelcluster:queue-name": "gpu",
        "parallelcluster:compute-resource-name": "p5",
    }


def test_elsewhere_is_no_node(tmp_path: Path) -> None:
    with pytest.raises(Problem, match=r"cfnconfig is not there.*use 'source: ec2'"):
        nodes.local_node(str(tmp_path))


def test_node_without_cluster(node_tree: Callable[[str], Path]) -> None:
    root = node_tree("head-ubuntu2404")
    (root / "etc/parallelcluster/cfnconfig").write_text("cfn_node_type=HeadNode\n")
    (root / "etc/chef/dna.json").write_text("{}")
    with pytest.raises(Problem, match="names no cluster"):
        nodes.local_node(str(root))


def test_some() -> None:
    assert errors.some("ab") == "a, b"
    assert errors.some("abcdefg", 3) == "a, b, c and 4 more"
