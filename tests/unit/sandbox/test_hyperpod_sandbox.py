# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The flavour `hyperpod` of the sandbox: what its nodes are given, what SageMaker is told, and what the agents do."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._node import platforms
from ansible_collections.pcluster.postboot.plugins.module_utils._node.tree import Tree
from ansible_collections.pcluster.postboot.tests.programs import load

HERE = Path(__file__).resolve().parents[3] / "molecule/cluster"
agent = load("molecule/cluster/hyperpod/cluster_agent.py")
host_agent = load("molecule/cluster/hyperpod/host_agent.py")


@pytest.fixture(scope="module")
def module() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        for folder in (HERE, HERE / "aws"):
            patch.syspath_prepend(str(folder))
        import hyperpod_sandbox

        yield hyperpod_sandbox
    for name in ("ami", "deploy", "machines", "register", "sandbox", "hyperpod_sandbox"):
        sys.modules.pop(name, None)


@pytest.fixture
def flavour(module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The flavour with containers that are what podman was asked for, and the clusters that SageMaker was told."""
    made = module.HyperPod(tmp_path)
    made.asked, made.told, made.codes = [], [], {}

    def podman(*arguments: str, **_options: Any) -> subprocess.CompletedProcess[str]:
        made.asked.append(list(arguments))
        code = made.codes.get(arguments[1], "0") if arguments[0] == "exec" and "cat" in arguments else ""
        return subprocess.CompletedProcess(arguments, 0, stdout=code, stderr="")

    made.podman, made.tell_clusters, made.wait_for_systemd = podman, made.told.append, lambda _name: None
    made.__dict__.update(image={"ubuntu": "ubuntu:1"}, public_key="ssh-ed25519 KEY\n", hybrid_cgroups=False)
    texts = tmp_path / "mirror/sandbox/alertmanager"
    texts.mkdir(parents=True)
    for name in ("default.tmpl", "email.tmpl"):
        (texts / name).touch()
    pins = {"enroot": {"version": "4"}, "pyxis": {"version": "0"}}
    (tmp_path / "mirror/pins.json").write_text(json.dumps(pins))
    return made


def tree(flavour: Any, name: str) -> Path:
    return Path(flavour.own / "machines" / flavour.cluster["instances"][name])


def test_it_boots_beside_the_other_flavour(flavour: Any) -> None:
    """No name, no address and no label is that of another machine or service."""
    flavour.deploy()
    flavour.boot()
    runs = [line for line in flavour.asked if line[0] == "run"]
    assert [line[line.index("--name") + 1] for line in runs] == [
        *("postboot-hp-controller", "postboot-hp-login", "postboot-hp-gpu"),
    ]
    assert {line[line.index("--label") + 1].split("=")[0] for line in runs} == {"sandbox.hyperpod"}
    others = (HERE / "topology.yml").read_text()
    mine = [node["address"] for node in flavour.cluster["nodes"].values()]
    mine.append(flavour.topology["services"]["aws"]["address"])
    assert len(set(mine)) == 4
    assert not [one for one in mine if f"{one}}}" in others or f"{one}," in others]
    assert [flavour.container(name) for name in ("aws", "mirror")] == ["postboot-hp-aws", "postboot-mirror"]
    assert flavour.endpoint == "http://10.115.0.6:5000"
    before = len(flavour.asked)
    flavour.running = lambda: {f"postboot-{name}" for name in flavour.cluster["nodes"]}
    flavour.boot()
    assert not [line for line in flavour.asked[before:] if line[0] in ("run", "start")], "a second run boots nothing"


def test_a_node_has_hyperpod_s_files_and_none_of_parallelcluster_s(flavour: Any) -> None:
    flavour.deploy()
    flavour.boot()
    gpu = tree(flavour, "hp-gpu")
    files = {str(path.relative_to(gpu)) for path in gpu.rglob("*") if path.is_file()}
    assert {
        "opt/ml/config/resource_config.json",
        "opt/slurm/etc/prolog.d/700_dcgm_job_map_register.sh",
        "usr/bin/SageMakerHostAgent",
        "etc/systemd/system/sagemaker-health-monitoring-agent.service",
    } <= files
    assert "opt/ml/config/provisioning_parameters.json" not in files, "the API tells the types of nodes"
    assert not [name for name in files if "parallelcluster" in name or "chef" in name]
    boot = gpu / "sandbox/boot.sh"
    assert "rm -rf /opt/parallelcluster" in boot.read_text()
    assert subprocess.run(["bash", "-n", boot], check=False).returncode == 0
    assert json.loads((gpu / "sandbox/imds.json").read_text())["/latest/meta-data/instance-type"] == "p5.48xlarge"
    resources = json.loads((gpu / "opt/ml/config/resource_config.json").read_text())
    assert resources["SlurmConfig"]["PrimaryControllerIp"] == "10.115.0.50"
    (group,) = [one for one in resources["InstanceGroups"] if one["InstanceType"] == "ml.p5.48xlarge"]
    assert group["Instances"][0]["CustomerIpAddress"] == "10.115.0.52"
    assert group["Instances"][0]["InstanceId"] == flavour.cluster["instances"]["hp-gpu"]


def test_node_types_by_the_file_of_lifecycle_scripts(flavour: Any, tmp_path: Path) -> None:
    parts = tmp_path / "parts.yaml"
    parts.write_text("{configuration: file}")
    flavour.create(str(parts))
    path = tree(flavour, "hp-login") / "opt/ml/config/provisioning_parameters.json"
    parameters = json.loads(path.read_text())
    assert (parameters["controller_group"], parameters["login_group"]) == ("steering", "door")
    assert parameters["worker_groups"] == [{"instance_group_name": "h100", "partition_name": "gpu"}]
    assert not [group for group in flavour.told[-1][0]["InstanceGroups"] if "SlurmConfig" in group]


ROUTES = """\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- {address}
        /32 host LOCAL
"""


@pytest.mark.parametrize(
    ("name", "kind"), [("hp-controller", "head"), ("hp-login", "login"), ("hp-gpu", "compute")], ids=str
)
def test_node_facts_reads_what_the_nodes_have(flavour: Any, tmp_path: Path, name: str, kind: str) -> None:
    parts = tmp_path / "parts.yaml"
    parts.write_text("{configuration: file}")
    flavour.create(str(parts))
    node = tree(flavour, name)
    (node / "proc/net").mkdir(parents=True)
    (node / "proc/net/fib_trie").write_text(ROUTES.format(address=flavour.cluster["nodes"][name]["address"]))
    found = platforms.identify(Tree(str(node)), "ubuntu")
    assert (found.platform, found.facts["node_type"], found.facts["cluster"]) == ("hyperpod", kind, "hp")
    assert found.facts["node_name"] == "ip-" + flavour.cluster["nodes"][name]["address"].replace(".", "-")
    assert found.facts["gpu_jobs_dir"] == "/run/slurm/dcgm-job-mapping"
    (node / "opt/ml/config/provisioning_parameters.json").unlink()
    assert "nothing tells the type of instance group" in platforms.identify(Tree(str(node))).facts["reason"]


def test_each_group_has_its_own_script(flavour: Any, tmp_path: Path) -> None:
    parts, life = tmp_path / "parts.json", {"SourceS3Uri": "s3://sagemaker-x/hook/", "OnInitComplete": "hook.sh"}
    parts.write_text(json.dumps({"InstanceGroups": [{"InstanceGroupName": "h100", "LifeCycleConfig": life}]}))
    flavour.create(str(parts))
    for name, found in (("hp-gpu", life), ("hp-login", {})):
        assert json.loads((tree(flavour, name) / "opt/ml/config/life_cycle_config.json").read_text()) == found
    groups = flavour.told[-1][0]["InstanceGroups"]
    assert {one["InstanceGroupName"]: one.get("LifeCycleConfig") for one in groups} == {
        **dict.fromkeys(("steering", "door")),
        "h100": life,
    }


def test_what_sagemaker_is_told_is_what_botocore_s_model_allows(flavour: Any) -> None:
    import hyperpod as api

    flavour.deploy()
    flavour.boot()
    service = api.Service()
    service.arrange({"clusters": flavour.told[-1]})
    (row,) = service.answer("ListClusters", "us-east-1", {})["ClusterSummaries"]
    assert (row["ClusterName"], row["ClusterStatus"]) == ("hp", "InService")
    found = service.answer("DescribeCluster", "us-east-1", {"ClusterName": "hp"})
    types = {one["InstanceGroupName"]: one["SlurmConfig"]["NodeType"] for one in found["InstanceGroups"]}
    assert types == {"steering": "Controller", "door": "Login", "h100": "Compute"}
    rows = service.answer("ListClusterNodes", "us-east-1", {"ClusterName": "hp"})["ClusterNodeSummaries"]
    assert {one["InstanceStatus"]["Status"] for one in rows} == {"Running"}
    gpu = flavour.cluster["instances"]["hp-gpu"]
    assert dict(service.targets("us-east-1"))[f"sagemaker-cluster:k2v9x0q7w3ab_h100-{gpu}"] == gpu


def test_a_script_that_fails_fails_the_node_and_the_cluster(flavour: Any) -> None:
    flavour.codes["postboot-hp-gpu"] = "3"
    flavour.deploy()
    with pytest.raises(SystemExit, match="Lifecycle scripts did not run successfully"):
        flavour.boot()
    (cluster,) = flavour.told[-1]
    assert cluster["ClusterStatus"] == "Failed"
    assert [node["InstanceStatus"]["Status"] for node in cluster["Nodes"]] == ["Running", "Running", "Failure"]


def test_a_replaced_node_is_another_instance_at_the_same_address(flavour: Any) -> None:
    flavour.deploy()
    flavour.boot()
    before = flavour.cluster
    flavour.running = lambda: {"postboot-hp-controller", "postboot-hp-login"}
    flavour.replace("hp-gpu")
    after = flavour.cluster
    assert after["instances"]["hp-gpu"] != before["instances"]["hp-gpu"]
    assert after["instances"]["hp-login"] == before["instances"]["hp-login"]
    (nodes,) = [cluster["Nodes"] for cluster in flavour.told[-1]]
    told = [[node["InstanceStatus"]["Status"] for node in clusters[0]["Nodes"]] for clusters in flavour.told[-2:]]
    assert told == [["Running", "Running", "Pending"], ["Running"] * 3], "the other nodes are there meanwhile"
    assert nodes[-1]["PrivateDnsHostname"] == "ip-10-115-0-52.ec2.internal"
    with pytest.raises(SystemExit, match=r"NODE is 'gpu'; the cluster's nodes are hp-controller"):
        flavour.replace("gpu")


def test_the_cluster_agent_writes_slurm_s_configuration(flavour: Any) -> None:
    flavour.deploy()
    partitions = {"h100": ["gpu"], "door": []}
    files = agent.configuration(flavour.resources, {"partitions": partitions}, confined=True)
    lines = files["slurm.conf"].splitlines()
    assert {"ClusterName=hp", "SlurmctldHost=ip-10-115-0-50(10.115.0.50)", "include accounting.conf"} <= set(lines)
    assert {"SlurmctldParameters=enable_configless", "TaskPlugin=task/affinity,task/cgroup"} <= set(lines)
    nodes = [line.split()[0] for line in lines if line.startswith("NodeName=")]
    assert nodes == ["NodeName=ip-10-115-0-51", "NodeName=ip-10-115-0-52"], "the controller runs no jobs"
    assert [line.split()[:3] for line in lines if line.startswith("PartitionName=")] == [
        ["PartitionName=dev", "Nodes=ALL", "Default=YES"],
        ["PartitionName=ml.m5.large", "Nodes=ip-10-115-0-51", "Default=NO"],
        ["PartitionName=gpu", "Nodes=ip-10-115-0-52", "Default=NO"],
    ]
    assert files["gres.conf"] == "NodeName=ip-10-115-0-52 Name=gpu Type=h100 File=/dev/nvidia[0-7]\n"
    assert "TaskPlugin=task/none" in agent.configuration(flavour.resources, {"partitions": {}}, False)["slurm.conf"]


def test_the_owner_s_script_runs_in_its_folder_without_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(f"/tmp/sagemaker-{tmp_path.name}/hook")
    source = tmp_path / "hook"
    source.mkdir()
    (source / "hook.sh").write_text("#!/bin/sh\necho $PWD ${HOME-none} $# $(cat beside)\nexit 5\n")
    (source / "beside").write_text("beside\n")
    monkeypatch.setattr(host_agent, "LOG", tmp_path / "log")
    monkeypatch.setattr(host_agent, "run", lambda *line: subprocess.run(["cp", "-rT", source, line[-1]], check=True))
    folder.parent.mkdir()
    try:
        wanted = {"SourceS3Uri": f"s3://sagemaker-{tmp_path.name}/hook/", "OnInitComplete": "hook.sh"}
        assert host_agent.script(wanted) == 5
        assert (tmp_path / "log").read_text() == f"{folder} none 0 beside\n"
        assert host_agent.script({}) == 0
    finally:
        subprocess.run(["rm", "-rf", folder.parent], check=True)


def test_the_files_of_gpus_have_the_jobs_that_run_there(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    for job, program in (("7", "register"), ("8", "register"), ("7", "cleanup")):
        text = (HERE / f"hyperpod/700_dcgm_job_map_{program}.sh").read_text()
        text = text.replace("/run/slurm/dcgm-job-mapping", str(jobs))
        environment = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": job, "SLURM_JOB_GPUS": "0,3" if job == "7" else "3"}
        subprocess.run(["bash", "-c", text], env=environment, check=True)
    assert {path.name: path.read_text() for path in jobs.iterdir() if path.name != ".lock"} == {"3": "8\n"}


def test_its_end_names_what_ran(flavour: Any, capsys: pytest.CaptureFixture[str]) -> None:
    flavour.deploy()
    capsys.readouterr()
    flavour.running = lambda: {"postboot-hp-controller", "postboot-hp-aws", "postboot-mirror"}
    flavour.destroy()
    assert capsys.readouterr().out == (
        "removed hp-controller, hp-aws; the services of both flavours stay until the other one is removed\n"
    )
    flavour.running = set
    flavour.destroy()
    assert capsys.readouterr().out == "", "nothing ran"


def test_two_flavours_can_be_made_at_the_same_time() -> None:
    """What the main job has printed is kept in a file until its last line is shown."""
    logs = []
    for more in ([], ["FLAVOUR=hyperpod"]):
        line = ["make", "--dry-run", "--directory", str(HERE.parents[1]), "sandbox", *more]
        told = subprocess.run(line, text=True, capture_output=True, check=True).stdout
        logs.append(set(re.findall(r"\.converge\S*\.log\b", told)))
    assert [len(found) for found in logs] == [1, 1]
    assert logs[0] != logs[1]


def test_another_cluster_in_its_place(flavour: Any, tmp_path: Path) -> None:
    """Its Slurm knows the instance type by no feature, as on HyperPod."""
    file = tmp_path / "cluster.json"
    groups = {
        "steering": {"node_type": "Controller", "instance_type": "ml.m5.xlarge"},
        "trn": {"node_type": "Compute", "instance_type": "ml.trn1.32xlarge", "partitions": ["trn"]},
    }
    nodes = {"c": {"address": "10.115.0.50", "group": "steering"}, "t": {"address": "10.115.0.52", "group": "trn"}}
    file.write_text(json.dumps({"groups": groups, "nodes": nodes}))
    flavour.create(str(file))
    assert set(flavour.cluster["instances"]) == {"c", "t"}
    slurm = agent.configuration(flavour.resources, {"partitions": {"trn": ["trn"]}}, confined=False)["slurm.conf"]
    assert "NodeName=ip-10-115-0-52 NodeAddr=10.115.0.52 CPUs=128 RealMemory=498073 State=UNKNOWN" in slurm
    assert "Feature" not in slurm
