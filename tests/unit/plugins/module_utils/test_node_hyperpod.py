# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

import json

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._node import facts as node_facts
from ansible_collections.pcluster.postboot.plugins.module_utils._node import hyperpod, platforms
from ansible_collections.pcluster.postboot.plugins.module_utils._node.tree import Tree

COMPUTE, CONTROLLER = "hyperpod-compute", "hyperpod-controller"
LISTENING = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def facts_of(root, **more):
    facts = node_facts.read_node(str(root), **more)
    assert set(facts) == set(node_facts.empty_facts())
    json.dumps(facts)
    return facts


def edit(root, path, **changes):
    file = root / path.lstrip("/")
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def becomes(root, address):
    """Have the node be another one of its cluster."""
    (root / "proc/net/fib_trie").write_text(f"Main:\n  |-- {address}\n     /32 host LOCAL\n")


def test_a_compute_node_whose_type_publish_has_written(node_tree):
    facts = facts_of(node_tree(COMPUTE))
    assert facts["problems"] == []
    assert (facts["platform"], facts["is_parallelcluster"], facts["reason"]) == ("hyperpod", False, None)
    assert (facts["node_type"], facts["node_name"]) == ("compute", "ip-10-1-4-190")
    assert (facts["cluster"], facts["region"]) == ("my-hyperpod-cluster", "us-east-1")
    assert (facts["queue"], facts["instance_group"]) == ("gpu-workers", "gpu-workers")
    assert (facts["instance_id"], facts["instance_type"]) == ("i-0aaaaaaaaaaaaaaa1", "p4d.24xlarge")
    assert (facts["head_node_ip"], facts["scheduler"]) == ("10.1.197.201", "slurm")
    assert (facts["scratch"], facts["gpus"]["count"]) == ("/opt/dlami/nvme", 1)
    assert [mount["path"] for mount in facts["mounts"]["wanted"]] == ["/fsx"]
    assert facts["mounts"]["missing"] == []
    assert facts["gpu_jobs_dir"] == "/run/slurm/dcgm-job-mapping"
    assert facts["exporter_ports"] == [9100, 9109, 9400]


def test_file_systems_without_a_mount_path_are_where_hyperpod_mounts_them():
    """By AWS's reference of HyperPod: /fsx for Lustre, /home for OpenZFS."""
    lustre = {"FsxLustreConfig": {"DnsName": "fs-1.fsx", "MountName": "1abcdefg"}}
    found = hyperpod.mounts_of({"InstanceStorageConfigs": [lustre, {"FsxOpenZfsConfig": {"DnsName": "fs-2.fsx"}}]})
    assert found == [
        {"path": "/fsx", "type": "lustre", "source": "fs-1.fsx@tcp:/1abcdefg"},
        {"path": "/home", "type": "nfs", "source": "fs-2.fsx:/fsx"},
    ]


def test_a_controller_whose_type_the_parameters_tell(node_tree):
    facts = facts_of(node_tree(CONTROLLER))
    assert facts["problems"] == []
    assert (facts["platform"], facts["node_type"]) == ("hyperpod", "head")
    assert (facts["cluster"], facts["region"]) == ("my-cluster", "us-east-1")
    assert (facts["instance_type"], facts["cluster_user"]) == ("t3.medium", "ubuntu")
    assert (facts["queue"], facts["instance_group"], facts["head_node_ip"]) == (None, "controller-machine", None)
    assert facts["scratch"] == "/opt/sagemaker"
    assert facts["mounts"]["wanted"] == [
        {"path": "/fsx", "type": "lustre", "source": "fs-12345678a90b01cde.fsx.us-west-2.amazonaws.com@tcp:/1abcdefg"}
    ]
    assert (facts["exporter_ports"], facts["gpu_jobs_dir"]) == ([], None)
    assert facts["instance_types"] == {
        "ip-10-1-197-201": "t3.medium",
        "ip-10-1-18-53": "m5.xlarge",
        "ip-10-1-4-190": "p5.48xlarge",
        "ip-10-1-5-138": "p5.48xlarge",
    }


@pytest.mark.parametrize(
    ("address", "kind", "group"),
    [("10.1.18.53", "login", "my-login-group"), ("10.1.5.138", "compute", "compute-nodes")],
)
def test_the_others_of_that_cluster(node_tree, address, kind, group):
    root = node_tree(CONTROLLER)
    becomes(root, address)
    facts = facts_of(root)
    assert (facts["node_type"], facts["instance_group"]) == (kind, group)
    assert (facts["node_name"], facts["head_node_ip"]) == ("ip-" + address.replace(".", "-"), "10.1.197.201")
    assert facts["instance_types"] == {}, "what they have of the list may be old"


def second_controller(root):
    """Give the cluster a second controller, as multi_headnode_setup/headnode_setup.sh finds it in the list."""
    found = json.loads((root / hyperpod.RESOURCES.lstrip("/")).read_text())
    found["SlurmConfig"]["SecondaryControllerIps"] = ["10.1.197.202"]
    found["InstanceGroups"][0]["Instances"].append(
        {
            "InstanceName": "controller-machine-2",
            "InstanceId": "i-042a4657490624640",
            "AgentIpAddress": "172.16.34.9",
            "CustomerIpAddress": "10.1.197.202",
        }
    )
    edit(root, hyperpod.RESOURCES, **found)


@pytest.mark.parametrize("told", [{}, {"node_type": "head", "platform": "hyperpod"}], ids=["itself", "inventory"])
def test_of_two_controllers_one_is_the_head_node(node_tree, told):
    """Both are of the instance group of controllers, and no API says which of them is the primary one."""
    root = node_tree(CONTROLLER)
    second_controller(root)
    found = [(facts_of(root, overrides=told), becomes(root, "10.1.197.202"))[0] for _ in range(2)]
    assert [facts["node_type"] for facts in found] == ["head", "login"]
    assert [facts["head_node_ip"] for facts in found] == [None, "10.1.197.201"]
    assert [facts["platform"] for facts in found] == ["hyperpod", "hyperpod"]


def test_the_primary_controller_may_be_the_second_of_the_list(node_tree):
    root = node_tree(CONTROLLER)
    second_controller(root)
    edit(root, hyperpod.RESOURCES, SlurmConfig={"PrimaryControllerIp": "10.1.197.202"})
    assert facts_of(root)["node_type"] == "login"
    becomes(root, "10.1.197.202")
    assert facts_of(root)["node_type"] == "head"


def test_without_a_primary_controller_the_first_is_the_head_node(node_tree):
    root = node_tree(CONTROLLER)
    second_controller(root)
    edit(root, hyperpod.RESOURCES, SlurmConfig={})
    assert facts_of(root)["node_type"] == "head"
    becomes(root, "10.1.197.202")
    assert facts_of(root)["node_type"] == "login"


def test_a_primary_controller_that_the_list_does_not_have_says_nothing(node_tree):
    root = node_tree(CONTROLLER)
    edit(root, hyperpod.RESOURCES, SlurmConfig={"PrimaryControllerIp": "10.1.197.99"})
    assert facts_of(root)["node_type"] == "head"


def test_the_parameters_beside_lifecycle_scripts(node_tree):
    root = node_tree(CONTROLLER)
    (root / "etc/pcluster-postboot").mkdir()
    (root / "opt/ml/config/provisioning_parameters.json").rename(
        root / "etc/pcluster-postboot/provisioning_parameters.json"
    )
    assert facts_of(root)["node_type"] == "head"


def test_what_publish_writes_comes_before_the_parameters(node_tree):
    root = node_tree(CONTROLLER)
    (root / "etc/pcluster-postboot").mkdir()
    (root / "etc/pcluster-postboot/hyperpod.json").write_text(
        json.dumps({"groups": {"controller-machine": {"node_type": "Login", "mounts": []}}})
    )
    facts = facts_of(root)
    assert (facts["node_type"], facts["mounts"]["wanted"]) == ("login", [])
    told = facts_of(root, overrides={"mounts": {"wanted": [{"path": "/none", "type": "lustre", "source": "fs-1"}]}})
    assert told["mounts"]["missing"] == ["/none"], "what the inventory tells is looked for, too"


def test_the_name_of_a_group_tells_no_type(node_tree):
    root = node_tree(COMPUTE)
    becomes(root, "10.1.197.201")  # of the group "controller"
    (root / "etc/pcluster-postboot/hyperpod.json").unlink()
    facts = facts_of(root)
    assert (facts["platform"], facts["node_type"]) == (None, None)
    assert facts["reason"].startswith("nothing tells the type of instance group controller: /etc/pcluster-postboot/")
    assert "publish_hyperpod" in facts["reason"]


def test_a_node_that_is_not_in_the_list(node_tree):
    root = node_tree(COMPUTE)
    becomes(root, "10.1.99.99")
    facts = facts_of(root)
    assert facts["platform"] is None
    assert facts["reason"] in facts["problems"]
    assert "CustomerIpAddress" in facts["reason"]


def test_a_cluster_of_eks_has_no_slurm(node_tree):
    root = node_tree(COMPUTE)
    edit(root, hyperpod.RESOURCES, ClusterType="Kubernetes")
    assert "ClusterType Kubernetes; needed: a HyperPod cluster with Slurm" in facts_of(root)["reason"]


def test_a_type_that_no_api_knows(node_tree):
    root = node_tree(COMPUTE)
    edit(root, hyperpod.GROUPS, groups={"gpu-workers": {"node_type": "Worker"}})
    facts = facts_of(root)
    assert facts["platform"] is None
    assert "instance group gpu-workers: node type 'Worker' is unknown" in facts["reason"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"InstanceGroups": {}}', '{"InstanceGroups": [1, {"Instances": 2}]}'])
def test_a_list_that_says_nothing_ends_no_reading(node_tree, text):
    root = node_tree(COMPUTE)
    (root / hyperpod.RESOURCES.lstrip("/")).write_text(text)
    facts = facts_of(root)
    assert facts["platform"] is None
    assert any(hyperpod.RESOURCES in line for line in facts["problems"])


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("", [9341]),
        ("[Service]\nExecStart=/usr/bin/slurm_exporter\n", [9341]),  # install_slurm_exporter.sh
        ("# Ansible managed\n[Service]\nExecStart=/usr/local/bin/slurm_exporter --web\n", []),
    ],
)
def test_a_port_of_our_own_exporter_is_not_taken(node_tree, unit, expected):
    root = node_tree(CONTROLLER)
    # Port 9341 (247D), in state LISTEN on all addresses of IPv6, as /proc/net/tcp6 has it.
    line = "   0: 00000000000000000000000000000000:247D 00000000000000000000000000000000:0000 0A 00000000:00000000 00:"
    (root / "proc/net/tcp6").write_text(f"{LISTENING}{line}00000000 00000000     0        0 20741 1\n")
    if unit:
        (root / "etc/systemd/system").mkdir(parents=True)
        (root / "etc/systemd/system/slurm_exporter.service").write_text(unit)
    assert facts_of(root)["exporter_ports"] == expected


def test_other_platforms_have_other_readers(node_tree, tmp_path):
    assert platforms.PLATFORMS == ("parallelcluster", "hyperpod")
    found = [
        platforms.identify(Tree(str(node_tree(name)))).platform
        for name in ("head-ubuntu2404", COMPUTE, "compute-alinux2023")
    ]
    assert found == ["parallelcluster", "hyperpod", "parallelcluster"]
    assert platforms.identify(Tree(str(tmp_path))).facts["reason"].endswith("this is no ParallelCluster node")
