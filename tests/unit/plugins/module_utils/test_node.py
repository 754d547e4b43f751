# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

import json
import os
import random
import re
import shutil
import time

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._node import facts as node_facts
from ansible_collections.pcluster.postboot.plugins.module_utils._node import identity, neuron, software, storage
from ansible_collections.pcluster.postboot.plugins.module_utils._node.tree import Tree
from ansible_collections.pcluster.postboot.tests import strangers
from ansible_collections.pcluster.postboot.tests.waiting import PATIENCE

TREES = (
    "head-ubuntu2404",
    "compute-gpu-ubuntu2404",
    "compute-neuron-ubuntu2404",
    "compute-cpu-ubuntu2404",
    "login-ubuntu2404",
    "head-alinux2023",
    "compute-alinux2023",
    "hyperpod-controller",
    "hyperpod-compute",
    "malformed",
)


def facts_of(root, **kwargs):
    facts = node_facts.read_node(str(root), **kwargs)
    assert set(facts) == set(node_facts.empty_facts())
    assert all(isinstance(line, str) and line and "\n" not in line for line in facts["problems"])
    json.dumps(facts)
    return facts


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        ("HeadNode", "head"),
        ("ComputeFleet", "compute"),
        ("Compute", "compute"),
        ("ComputeNode", "compute"),
        ("LoginNode", "login"),
        (" head ", "head"),
        ("compute", "compute"),
        ("login", "login"),
    ],
)
def test_node_type_knows_every_spelling(spelling, expected):
    assert node_facts.node_type(spelling) == expected


def test_node_type_refuses_others_on_one_line():
    with pytest.raises(ValueError, match=r"^node type 'Supervisor' is unknown: expected [^\n]+$"):
        node_facts.node_type("Supervisor")


def test_parse_cfnconfig_reads_what_a_shell_would():
    text = """# a comment
a=bare
b="double quoted"  # with a comment
c='single $HOME'
d=
e=()
f=(one "two words" 'three')
  export g=tab\t
h=url#fragment
i="unbalanced
j=a,b,/c
k=two words
not an assignment
2bad=x
a=last one wins
l=(x y) # comment
m=$(touch /tmp/never)
n=C:\\\\path
"""
    assert node_facts.parse_cfnconfig(text) == {
        "a": "last one wins",
        "b": "double quoted",
        "c": "single $HOME",
        "d": "",
        "e": [],
        "f": ["one", "two words", "three"],
        "g": "tab",
        "h": "url#fragment",
        "i": "unbalanced",
        "j": "a,b,/c",
        "k": "two words",
        "l": ["x", "y"],
        "m": "$(touch /tmp/never)",
        "n": "C:\\path",
    }


@pytest.mark.parametrize(
    ("text", "name", "family", "user"),
    [
        ('ID=ubuntu\nVERSION_ID="22.04"\nID_LIKE=debian', "ubuntu2204", "debian", "ubuntu"),
        ('ID="amzn"\nVERSION_ID="2023"\nID_LIKE="fedora"', "alinux2023", "redhat", "ec2-user"),
        ('ID="amzn"\nVERSION_ID="2"\nID_LIKE="centos rhel fedora"', "alinux2", "redhat", "ec2-user"),
        ('ID="rocky"\nVERSION_ID="9.5"\nID_LIKE="rhel centos fedora"', "rocky9", "redhat", "rocky"),
        ('ID="rhel"\nVERSION_ID="8.10"\nID_LIKE="fedora"', "rhel8", "redhat", "ec2-user"),
        ('ID=debian\nVERSION_ID="12"', "debian12", "debian", "admin"),
        ("ID=plan9", "plan9", None, None),
        ("", None, None, None),
    ],
)
def test_operating_systems_in_the_clusters_spelling(text, name, family, user):
    found = node_facts.parse_os_release(text)
    assert (found["name"], found["family"], identity.os_user(found["name"])) == (name, family, user)


def test_head_node(node_tree):
    facts = facts_of(node_tree("head-ubuntu2404"))
    assert facts["problems"] == []
    assert facts["is_parallelcluster"] is True
    assert facts["reason"] is None
    assert (facts["node_type"], facts["cluster"], facts["region"]) == ("head", "alpha", "us-east-2")
    assert (facts["cluster_user"], facts["scheduler"]) == ("ubuntu", "slurm")
    assert facts["node_name"] == "ip-10-0-0-10"
    assert facts["queue"] is facts["compute_resource"] is facts["head_node_ip"] is None
    assert (facts["instance_id"], facts["instance_type"]) == ("i-0aaaaaaaaaaaaaaaa", "m6i.2xlarge")
    assert facts["os"] == {
        "id": "ubuntu",
        "version": "24.04",
        "codename": "noble",
        "family": "debian",
        "name": "ubuntu2404",
    }
    assert (facts["architecture"], facts["go_architecture"]) == ("x86_64", "amd64")
    assert facts["version"] == "3.16.1"
    assert facts["slurm"] == {"prefix": "/opt/slurm", "version": "25.11.8"}
    assert facts["gpus"] == {"count": 0, "devices": [], "driver": None}
    assert facts["imds_secured"] is True
    assert facts["scratch"] is None
    assert facts["image_build"] is False
    assert facts["container"] is False
    assert facts["mounts"]["missing"] == []
    assert facts["mounts"]["wanted"] == [
        {"path": "/fsx", "type": "lustre", "source": "fs-0123456789abcdef0.fsx.us-east-2.amazonaws.com@tcp:/abcdefgh"},
        {"path": "/zfs", "type": "nfs", "source": "fs-0123456789abcdef1.fsx.us-east-2.amazonaws.com:/fsx/vol1"},
        {"path": "/efs", "type": "efs", "source": "fs-0fedcba9876543210:/"},
        {"path": "/shared", "type": "ebs", "source": "vol-0aaaaaaaaaaaaaaa1"},
        {"path": "/data", "type": "ebs", "source": "vol-0aaaaaaaaaaaaaaa2"},
    ]
    assert [mount["path"] for mount in facts["mounts"]["found"]] == ["/data", "/efs", "/fsx", "/shared", "/zfs"]
    assert facts["mounts"]["found"][2]["type"] == "lustre"
    assert "flock" in facts["mounts"]["found"][2]["options"]
    expected = dict.fromkeys(software.COMPONENTS)
    expected.update(
        docker="29.7.2",
        efa="1.49.0",
        aws_ofi_nccl="1.19.1",
        cloudwatch_agent="1.300062.0",
        ssm_agent="3.3.2299.0",
        node_exporter="1.12.1",
        lustre_client="2.15.6",
    )
    assert facts["components"] == expected


def test_gpu_compute_node(node_tree):
    facts = facts_of(node_tree("compute-gpu-ubuntu2404"))
    assert facts["problems"] == []
    assert (facts["node_type"], facts["queue"], facts["compute_resource"]) == ("compute", "gpu", "p5")
    assert facts["node_name"] == "gpu-st-p5-1"
    assert facts["head_node_ip"] == "10.0.0.10"
    assert (facts["instance_id"], facts["instance_type"]) == ("i-0bbbbbbbbbbbbbbbb", "p5.48xlarge")
    assert facts["gpus"] == {
        "count": 2,
        "devices": [{"address": "0000:53:00.0", "id": "10de:2330"}, {"address": "0000:64:00.0", "id": "10de:2330"}],
        "driver": "595.71.05",
    }
    assert facts["nvswitch"] == {"count": 2}
    assert facts["efa"] == {"count": 2, "devices": ["rdmap78s0", "rdmap79s0"], "pci_count": 2, "driver": "3.3.0g"}
    assert facts["scratch"] == "/scratch"
    # /fsx is an automount that nobody has used yet: its stand-in is not the file system.
    assert facts["mounts"]["missing"] == ["/fsx"]
    assert {"path": "/opt/slurm", "type": "nfs", "source": "10.0.0.10:/opt/slurm"} in facts["mounts"]["wanted"]
    components = {name: version for name, version in facts["components"].items() if version}
    assert components == {
        "enroot": "4.2.1",
        "pyxis": "unknown",
        "efa": "1.49.0",
        "aws_ofi_nccl": "1.19.1",
        "dcgm": "4.6.0",
        "gdrcopy": "2.6",
        "cuda": "13.3.1",
    }


def test_neuron_compute_node(node_tree):
    facts = facts_of(node_tree("compute-neuron-ubuntu2404"))
    assert facts["problems"] == []
    assert facts["instance_type"] == "trn1.32xlarge"
    assert facts["neuron"] == {"devices": 2, "cores": 4, "driver": "2.24.7.0", "tools": "2.26.14.0"}
    assert (facts["gpus"]["count"], facts["nvswitch"]["count"], facts["efa"]["count"]) == (0, 0, 1)
    assert facts["components"]["neuron"] == "2.26.14.0"


def test_neuron_devices_without_a_driver_are_a_problem(node_tree):
    root = node_tree("compute-neuron-ubuntu2404")
    shutil.rmtree(root / "sys/module/neuron")
    shutil.rmtree(root / "sys/devices/virtual")
    facts = facts_of(root)
    assert (facts["neuron"]["devices"], facts["neuron"]["cores"], facts["neuron"]["driver"]) == (2, 0, None)
    assert facts["problems"] == [
        "2 Neuron device(s) found, but no Neuron driver is loaded: use an image that carries the driver, or load it "
        "(modprobe neuron)"
    ]


def test_every_neuron_instance_type_is_known_by_its_name():
    assert all(neuron.has_neuron(name) for name in neuron.TYPES)
    assert not any(neuron.has_neuron(name) for name in ("p5.48xlarge", "i4i.32xlarge", "t3.large", "infra1.large"))
    assert neuron.TYPES["trn1.32xlarge"] == (16, 32)


def test_cpu_compute_node_on_arm(node_tree):
    facts = facts_of(node_tree("compute-cpu-ubuntu2404"))
    assert facts["problems"] == []
    assert (facts["architecture"], facts["go_architecture"]) == ("aarch64", "arm64")
    assert facts["imds_secured"] is False
    assert facts["instance_id"] == "i-0cccccccccccccccc"
    assert facts["instance_type"] is None
    assert facts["slurm"] == {"prefix": "/opt/slurm", "version": None}
    # "/shared2" is only the key's default: no EFS file system stands behind it.
    assert [(mount["path"], mount["type"], mount["source"]) for mount in facts["mounts"]["wanted"]] == [
        ("/shared", "nfs", "10.0.0.10:/shared"),
        ("/home", "efs", None),
        ("/opt/slurm", "efs", None),
    ]
    assert facts["mounts"]["missing"] == []


def test_login_node(node_tree):
    facts = facts_of(node_tree("login-ubuntu2404"))
    assert facts["problems"] == []
    assert facts["node_type"] == "login"
    assert facts["node_name"] == "ip-10-0-0-44"
    assert facts["queue"] is None
    assert facts["slurm"]["version"] == "25.05.0"
    assert facts["scratch"] == "/opt/dlami/nvme"  # /scratch is there too, but on the network
    assert facts["container"] is True
    assert [mount["path"] for mount in facts["mounts"]["wanted"]] == ["/fsx", "/home", "/opt/slurm"]
    assert facts["mounts"]["missing"] == []


def test_amazon_linux_head_node_asks_rpm_once(node_tree):
    asked = []

    def run(argv):
        asked.append(argv)
        if argv[0] == "rpm":
            return "amazon-ssm-agent\t3.3.2299.0\npackage docker-ce is not installed\ndocker\t25.0.16\n"
        return "slurm 25.11.8\n"

    facts = facts_of(node_tree("head-alinux2023"), run=run)
    assert facts["problems"] == []
    assert [argv[0].rpartition("/")[2] for argv in asked] == ["scontrol", "rpm"]
    assert facts["os"]["name"] == "alinux2023"
    assert facts["os"]["family"] == "redhat"
    assert facts["imds_secured"] is True
    assert facts["slurm"]["version"] == "25.11.8"
    assert facts["components"]["docker"] == "25.0.16"
    assert facts["components"]["ssm_agent"] == "3.3.2299.0"
    assert facts["components"]["aws_ofi_nccl"] == "1.22.0"
    assert facts["mounts"]["wanted"][0]["source"].endswith(".cn-north-1.amazonaws.com.cn@tcp:/ijklmnop")
    assert facts["mounts"]["wanted"][1] == {"path": "/home", "type": "ebs", "source": "vol-0aaaaaaaaaaaaaaa3"}


def test_nothing_is_run_for_a_tree_that_is_not_the_system(node_tree, monkeypatch):
    monkeypatch.setattr(node_facts, "run_program", lambda argv: pytest.fail(f"ran {argv}"))
    monkeypatch.setattr(storage, "touch", lambda *args: pytest.fail("touched"))
    assert facts_of(node_tree("head-alinux2023"))["components"]["docker"] is None


def test_amazon_linux_compute_node_without_drivers(node_tree):
    facts = facts_of(node_tree("compute-alinux2023"))
    assert facts["node_name"] == "q1-dy-g6-1"
    assert facts["slurm"] == {"prefix": None, "version": None}
    assert facts["mounts"]["missing"] == ["/home", "/opt/slurm"]
    assert facts["problems"] == [
        "1 NVIDIA GPU(s) (10de:27b8) found, but no NVIDIA driver is loaded: use an image that carries the driver, "
        "or load it (modprobe nvidia)",
        "1 EFA device(s) found on PCI, but only 0 in /sys/class/infiniband: the efa kernel module is missing or still "
        "starting (modprobe efa)",
    ]


def test_an_efa_device_that_is_newer_than_this_counts(node_tree):
    root = node_tree("compute-alinux2023")
    (root / "sys/bus/pci/devices/0000:32:00.0/device").write_text("0xefa4\n")
    assert facts_of(root)["efa"]["pci_count"] == 1


def test_malformed_node_names_each_file(node_tree):
    facts = facts_of(node_tree("malformed"))
    assert facts["is_parallelcluster"] is False
    assert facts["reason"].startswith("/etc/parallelcluster/cfnconfig: node type 'Supervisor' is unknown: expected ")
    assert facts["cluster"] == "alpha"
    assert facts["region"] == "us-east-2"
    assert facts["os"]["name"] == "ubuntu2404"
    assert facts["components"]["cuda"] == "13.3"
    starts = (
        "/etc/chef/dna.json is not valid JSON: line 1: ",
        "/etc/parallelcluster/slurm_plugin/slurm_node_spec.json holds a JSON list, an object was expected",
        "/etc/parallelcluster/cfnconfig: node type 'Supervisor' is unknown",
        "/proc/self/mounts is missing",
        "/opt/parallelcluster/.bootstrapped says 'half an image'",
        "/opt/amazon/efa_installed_packages cannot be read: it is a folder, a file was expected",
        "/var/lib/pcluster-postboot/receipts/node-exporter.json is not valid JSON: line 2",
    )
    assert len(facts["problems"]) == len(starts), facts["problems"]
    for line, start in zip(facts["problems"], starts):
        assert line.startswith(start)


def test_outside_of_parallelcluster(tmp_path):
    facts = facts_of(tmp_path)
    assert facts["is_parallelcluster"] is False
    assert facts["reason"] == "/etc/parallelcluster/cfnconfig is not there: this is no ParallelCluster node"
    assert facts["image_build"] is True
    assert facts["problems"] == ["/etc/os-release is missing", "/proc/self/mounts is missing"]


IDENTITY = {"node_type": "monitoring", "name": "eyes", "region": "us-east-2", "vpc": "vpc-0123456789abcdef0"}


def _monitoring(root, text):
    (root / "etc/pcluster-postboot").mkdir(parents=True)
    (root / "etc/pcluster-postboot/node.json").write_text(text)
    return facts_of(root)


def test_the_monitoring_instance_is_what_its_file_says(tmp_path):
    facts = _monitoring(tmp_path, json.dumps(IDENTITY))
    assert (facts["node_type"], facts["cluster"], facts["region"]) == ("monitoring", "eyes", "us-east-2")
    assert (facts["is_parallelcluster"], facts["vpc"]) == (False, "vpc-0123456789abcdef0")
    assert facts["reason"].startswith("/etc/pcluster-postboot/node.json makes it the monitoring instance")
    assert facts["mounts"]["wanted"] == []


def test_the_monitoring_instance_has_a_name_without_one(tmp_path):
    assert _monitoring(tmp_path, '{"node_type": "monitoring"}')["cluster"] == "monitoring"
    said = node_facts.merge(node_facts.empty_facts(), {"node_type": "monitoring", "region": "us-east-2"})
    assert (said["node_type"], said["cluster"], said["is_parallelcluster"]) == ("monitoring", "monitoring", False)
    assert said["reason"].startswith("common_node_overrides makes it the monitoring instance")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{", "is not valid JSON: line 1"),
        ('{"node_type": "head"}', "found node_type; needed: node_type: monitoring"),
        ('{"name": "eyes"}', "found node_type; needed"),
        ('{"node_type": "monitoring", "vpc": "all", "role": 1}', "found role, vpc; needed"),
        ('{"node_type": "monitoring", "name": "a\\nb"}', "found name; needed"),
    ],
)
def test_an_identity_that_is_none_is_a_problem(tmp_path, text, line):
    facts = _monitoring(tmp_path, text)
    assert facts["node_type"] is None
    (found,) = [one for one in facts["problems"] if "node.json" in one]
    assert line in found


def test_a_node_of_a_cluster_stays_one(node_tree):
    facts = _monitoring(node_tree("head-ubuntu2404"), json.dumps(IDENTITY))
    assert (facts["node_type"], facts["is_parallelcluster"], facts["vpc"]) == ("head", True, None)
    assert "/etc/pcluster-postboot/node.json is passed over, because this is a node of a cluster" in facts["problems"]


def test_dna_json_stands_in_for_a_missing_cfnconfig(node_tree):
    root = node_tree("compute-gpu-ubuntu2404")
    (root / "etc/parallelcluster/cfnconfig").unlink()
    facts = facts_of(root)
    assert (facts["node_type"], facts["queue"], facts["cluster_user"]) == ("compute", "gpu", "ubuntu")
    assert facts["problems"] == ["/etc/parallelcluster/cfnconfig is missing; /etc/chef/dna.json is used instead"]


def test_missing_dna_json_is_a_problem_inside_a_cluster(node_tree):
    root = node_tree("head-ubuntu2404")
    (root / "etc/chef/dna.json").unlink()
    facts = facts_of(root)
    assert facts["is_parallelcluster"] is True
    assert facts["problems"] == ["/etc/chef/dna.json is missing"]


def test_cfnconfig_without_a_node_type(node_tree):
    root = node_tree("head-ubuntu2404")
    (root / "etc/parallelcluster/cfnconfig").write_text("")
    (root / "etc/chef/dna.json").write_text("{}")
    facts = facts_of(root)
    assert facts["is_parallelcluster"] is False
    assert "names no cfn_node_type" in facts["reason"]
    assert "/etc/parallelcluster/cfnconfig holds no assignment (name=value)" in facts["problems"]


def _break(path, how, chance):
    data = path.read_bytes() if path.is_file() else b""
    if how == "cut":
        path.write_bytes(data[: chance.randrange(len(data) + 1)])
    elif how == "binary":
        path.write_bytes(bytes(chance.randrange(256) for _ in range(400)))
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "noise":
        changed = bytearray(data or b"x")
        for _ in range(8):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        path.write_bytes(bytes(changed))
    else:
        path.unlink()
        if how == "folder":
            path.mkdir()
        elif how == "fifo":
            os.mkfifo(path)
        elif how == "loop":
            path.symlink_to(path.name)
        elif how == "wrong":
            path.write_text(
                chance.choice(["[1]", "null", "3", '{"cluster": []}', '{"compute": 7, "version": {}}', "a=1"])
            )


@pytest.mark.parametrize("how", ["cut", "binary", "empty", "noise", "gone", "folder", "fifo", "loop", "wrong"])
def test_no_broken_file_ends_the_reading(node_tree, how):
    chance = random.Random(how)
    seen = set()
    for root in map(node_tree, TREES):
        files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
        for path in files:
            # Devices are read alike, and so are nodes: each kind of file is broken once by itself.
            kind = re.sub("devices/[^/]+", "devices", str(path.relative_to(root)))
            if kind in seen:
                continue
            seen.add(kind)
            kept = path.read_bytes()
            _break(path, how, chance)
            facts_of(root)
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink(missing_ok=True)
            path.write_bytes(kept)
        for path in files:  # and all of them at once
            _break(path, how, chance)
        facts_of(root)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_says_so(node_tree):
    root = node_tree("head-ubuntu2404")
    (root / "etc/chef/dna.json").chmod(0)
    assert facts_of(root)["problems"] == ["/etc/chef/dna.json cannot be read: Permission denied (run as root: become)"]


def test_overrides_come_last(node_tree):
    root = node_tree("compute-alinux2023")
    facts = facts_of(
        root,
        overrides={
            "gpus": {"count": "0"},
            "efa": {"count": 1},
            "node_type": "LoginNode",
            "architecture": "aarch64",
            "imds_secured": "yes",
            "problems": ["said by hand"],
            "components": {"docker": 27},
        },
    )
    assert facts["gpus"]["count"] == 0
    assert len(facts["gpus"]["devices"]) == 1
    assert facts["node_type"] == "login"
    assert facts["go_architecture"] == "arm64"
    assert facts["imds_secured"] is True
    assert facts["components"]["docker"] == "27"
    assert facts["problems"] == ["said by hand"]


def test_overriding_the_prefix_moves_where_slurm_is_read(node_tree):
    root = node_tree("head-ubuntu2404")
    (root / "shared/slurm/include/slurm").mkdir(parents=True)
    (root / "shared/slurm/include/slurm/slurm_version.h").write_text("#define SLURM_VERSION_NUMBER 0x180b06\n")
    facts = facts_of(root, overrides={"slurm": {"prefix": "/shared/slurm"}})
    assert facts["slurm"] == {"prefix": "/shared/slurm", "version": "24.11.6"}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"nodetype": "head"}, "there is no fact 'nodetype'; known are architecture, cluster"),
        ({"gpus": {"cout": 1}}, "there is no fact 'gpus.cout'; known are count, devices, driver"),
        ({"gpus": 8}, "gpus must be a dictionary, found int"),
        ({"gpus": {"count": "many"}}, "gpus.count must be a whole number, found 'many'"),
        ({"gpus": {"count": True}}, "gpus.count must be a whole number, found True"),
        ({"container": "perhaps"}, "container must be true or false, found 'perhaps'"),
        ({"problems": "none"}, "problems must be a list, found str"),
        ({"cluster": ["a"]}, "cluster must be a string, found list"),
        ({"node_type": "boss"}, "node type 'boss' is unknown"),
        ({"components": {"kernel": "6"}}, "there is no fact 'components.kernel'"),
    ],
)
def test_a_wrong_override_is_refused_on_one_line(overrides, message):
    with pytest.raises(ValueError, match=message) as caught:
        node_facts.merge(node_facts.empty_facts(), overrides)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["lustre", "nfs4", "cifs", "gpfs", "ceph", "weka"])
def test_a_network_file_system_is_shared_and_no_scratch(tmp_path, kind):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "scratch").mkdir()
    (tmp_path / "proc/self/mounts").write_text(f"server:/x /scratch {kind} rw 0 0\n/dev/nvme1n1 /local xfs rw 0 0\n")
    tree = Tree(str(tmp_path))
    assert [mount["path"] for mount in storage.read_mounts(tree, [])["found"]] == ["/scratch"]
    assert storage.scratch(tree, []) is None


def test_mounts_with_blanks_in_their_names():
    mounts = storage.parse_mounts("fs /a\\040b lustre rw 0 0\nshort line\n")
    assert mounts == [{"path": "/a b", "type": "lustre", "source": "fs", "options": "rw"}]


def test_no_path_of_a_user_forges_a_line_of_the_list_of_mounts(tmp_path, monkeypatch):
    (tmp_path / "mounts").write_bytes(("fs /fsx lustre rw,flock 0 0\n" + strangers.mount_list()).encode())
    monkeypatch.setattr(storage, "MOUNTS", str(tmp_path / "mounts"))
    assert [mount["path"] for mount in storage.mounts()] == ["/fsx", *(f"/tmp/{name}" for name in strangers.FORGED)]
    assert storage.file_system("/var/lib/enroot", {}) == ("/", "")


@strangers.TWO_USERS
def test_the_kernel_writes_mounts_as_they_are_read(tmp_path, monkeypatch):
    with strangers.mounted(tmp_path) as path:
        monkeypatch.setattr(storage, "MOUNTS", path)
        found = {mount["path"]: mount["type"] for mount in storage.mounts()}
    assert {name: found.get(f"{tmp_path}/{name}") for name in strangers.FORGED} == dict.fromkeys(
        strangers.FORGED, "tmpfs"
    )
    assert found.get("/var") != "lustre"


def test_touch_names_what_does_not_answer(tmp_path, monkeypatch):
    real = os.scandir

    def scandir(path):
        if path.endswith("dead"):
            time.sleep(600)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    (tmp_path / "alive").mkdir()
    began = time.monotonic()
    dead = storage.touch([str(tmp_path / name) for name in ("alive", "dead", "gone")], 3)
    assert dead == [str(tmp_path / "dead")]
    assert 2.7 < time.monotonic() - began < PATIENCE


def test_a_dead_mount_is_left_alone_and_named(node_tree, monkeypatch):
    root = node_tree("login-ubuntu2404")

    class Live(Tree):
        """A tree that claims to be the running system."""

        def __init__(self):
            super().__init__(str(root))
            self.live = True
            self.asked = []
            self._watch = self.asked.append

        def at(self, path):
            return str(root / path.lstrip("/"))

    monkeypatch.setattr(storage, "touch", lambda paths, seconds: ["/opt/slurm"])
    tree = Live()
    facts = node_facts.read_node(tree=tree, run=lambda argv: None)
    assert facts["mounts"]["missing"] == ["/opt/slurm"]
    assert facts["problems"] == ["/opt/slurm did not answer within 6 s: its file system is dead or cannot be reached"]
    assert facts["slurm"] == {"prefix": None, "version": None}
    assert not [path for path in tree.asked if path.startswith("/opt/slurm")]


def test_reading_in_a_child_gives_the_same(node_tree):
    root = str(node_tree("head-ubuntu2404"))
    assert node_facts.read_node_within(PATIENCE, root) == node_facts.read_node(root)


def test_a_hanging_file_is_named_in_time(node_tree, monkeypatch):
    def hang(tree):
        tree._watch("/sys/bus/pci/devices")
        time.sleep(600)

    monkeypatch.setattr(node_facts.hardware, "read_hardware", hang)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"^/sys/bus/pci/devices did not answer within 2 s: unmount or repair"):
        node_facts.read_node_within(2, str(node_tree("head-ubuntu2404")))
    assert time.monotonic() - began < PATIENCE


def test_a_fault_in_the_child_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(node_facts.hardware, "read_hardware", lambda tree: {}["line one\nline two"])
    with pytest.raises(RuntimeError, match=r"^KeyError: .*line one.*$"):
        node_facts.read_node_within(5, str(tmp_path))


def test_disks_that_are_being_set_up_are_waited_for(monkeypatch):
    # What systemctl prints of the first unit: it has yet to begin, it works, it has ended. The second one is not there.
    said = [f"MainPID={pid}\nJob={job}\n\nMainPID=0\nJob=\n" for pid, job in (("0", "208"), ("268", ""), ("0", ""))]
    pauses, asked = [], []
    monkeypatch.setattr(storage.time, "sleep", pauses.append)
    storage.wait_for_setup(lambda argv: (asked.append(argv), said.pop(0))[1])
    assert said == []
    assert len(pauses) == 2
    assert asked[0][-2:] == ["setup-ephemeral.service", "dlami-nvme.service"]


def test_disks_that_are_never_set_up_and_a_machine_without_systemd_are_not_waited_for(monkeypatch):
    monkeypatch.setattr(storage.time, "sleep", lambda seconds: None)
    storage.wait_for_setup(lambda argv: "MainPID=268\nJob=119\n", seconds=0.01)
    monkeypatch.setattr(storage.time, "sleep", lambda seconds: pytest.fail("waited"))
    storage.wait_for_setup(lambda argv: None)
