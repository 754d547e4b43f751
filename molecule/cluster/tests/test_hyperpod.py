# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The collection on SageMaker HyperPod: the flavour `hyperpod`, booted beside the sandbox and removed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

from .bundles import DIR, SCENARIO, STATE, Bundle, bucket, of_one_script, republish
from .helpers import On, Run, as_user, ok, until, variables
from .test_fleet import BOOTSTRAP, NOTES
from .workstation import Workstation

pytestmark = pytest.mark.long

TOPOLOGY = yaml.safe_load((SCENARIO / "hyperpod/topology.yml").read_text())
API = f"http://{TOPOLOGY['services']['aws']['address']}:5000"
OWN = STATE / "hyperpod"
CONTROLLER, LOGIN, GPU = TOPOLOGY["cluster"]["nodes"]
SLURM = "/opt/slurm/bin/"
PINS = STATE / "mirror/pins.json"
# The script of a cluster's owner who switches HyperPod's observability on, and then runs our hook beside the script.
EXTENSIONS = """\
#!/bin/bash
set -eu
here=$(dirname "$0")
bash "$here/observability.sh" {kind} {node_exporter} {slurm_exporter}
bash "$here/on_init_complete.sh"
"""


def address(name: str) -> str:
    return str(TOPOLOGY["cluster"]["nodes"][name]["address"])


def host_name(name: str) -> str:
    """The name that Slurm has for a node."""
    return "ip-" + address(name).replace(".", "-")


def flavour(*step: str, timeout: int = 900) -> Run:
    """Run a step of the flavour's program."""
    line = [sys.executable, str(SCENARIO / "hyperpod_sandbox.py"), *step]
    return subprocess.run(line, text=True, capture_output=True, timeout=timeout, check=False)


def line(program: str, *arguments: str) -> list[str]:
    return [str(Path(sys.executable).parent / program), "--inventory", str(OWN / "inventory"), *arguments]


def play(*arguments: str, name: str = "site", timeout: int = 900) -> Run:
    """Run one of the collection's playbooks on the flavour's inventory."""
    command = line("ansible-playbook", f"pcluster.postboot.{name}", *arguments)
    return subprocess.run(command, text=True, capture_output=True, timeout=timeout, check=False)


def last(done: Run) -> str:
    """The last line of a run's table."""
    return re.findall(r"^pcluster\.postboot: .*", ok(done).stdout, re.M)[-1]


@pytest.fixture(scope="module", autouse=True)
def api() -> Iterator[None]:
    """The flavour's AWS API, for as long as these tests run; in the end everything of the flavour is removed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", API)
        patch.setenv("PATH", str(SCENARIO / "standins/session-manager-plugin"), prepend=os.pathsep)
        try:
            for step in ("services", "deploy"):
                ok(flavour(step))
            yield
        finally:
            ok(flavour("destroy"))


@pytest.fixture(scope="module")
def hook(api: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What publish prints for the cluster, in a file: the bundle of the collection as it is, and the hook for it."""
    folder = tmp_path_factory.mktemp("publish")
    ok(flavour("variables", str(folder / "group_vars")))
    described = boto3.client("sagemaker", region_name="us-east-1").describe_cluster(ClusterName="hp")
    (folder / "cluster.json").write_text(json.dumps(described, default=str))
    with bucket("sagemaker-sandbox-bundles") as found:
        options = {
            "publish_s3": f"s3://{found.name}/bundles",
            "publish_dir": str(DIR),
            "publish_group_vars": str(folder / "group_vars"),
            "publish_hyperpod": str(folder / "cluster.json"),
            "publish_pythons": ["3.11"],
            "publish_architectures": ["x86_64"],
        }
        told = ok(play(*variables(**options), name="publish")).stdout
        print(told[-3000:])
        (printed,) = re.findall(r'^\{\n *"InstanceGroups".*?^\}$', told, re.M | re.S)
        (folder / "parts.json").write_text(printed)
        yield folder / "parts.json"


@pytest.fixture(scope="module")
def cluster(hook: Path) -> None:
    """The cluster, created with the hook: its nodes have what the bundle brings before anyone pushes anything."""
    done = flavour("create", str(hook), timeout=1800)
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def inventory(cluster: None) -> dict[str, Any]:
    done = subprocess.run(line("ansible-inventory", "--list"), text=True, capture_output=True, timeout=60, check=True)
    found: dict[str, Any] = json.loads(done.stdout, object_hook=lambda o: o.get("__ansible_unsafe", o))
    return found


def names(inventory: dict[str, Any]) -> dict[str, str]:
    """The inventory's names of the nodes, by the sandbox's."""
    hosts = {one["pcluster_private_ip"]: key for key, one in inventory["_meta"]["hostvars"].items()}
    return {name: hosts[address(name)] for name in (CONTROLLER, LOGIN, GPU)}


def report(on: On, name: str) -> dict[str, Any]:
    """What the run on a node has left."""
    found: dict[str, Any] = json.loads(on(name).check_output("cat /var/lib/pcluster-postboot/report.json"))
    return found


def scraped(on: On) -> set[str]:
    """What Prometheus scrapes, without a failure."""
    ask = "curl -sf 'http://localhost:9090/api/v1/targets?state=active'"
    found = json.loads(on(CONTROLLER).check_output(ask))["data"]["activeTargets"]
    return {one["scrapeUrl"].split("/metrics")[0] for one in found if one["health"] == "up"}


def settle(on: On, name: str) -> None:
    """Wait until the service has done what the hook had left."""
    state = "systemctl show -p ActiveState --value pcluster-postboot"
    until(lambda: on(name).check_output(state) == "inactive", 400, f"the deferred part of the run on {name}")


@pytest.mark.usefixtures("cluster")
def test_the_hook_has_configured_every_node(on: On) -> None:
    for name in (CONTROLLER, LOGIN, GPU):
        settle(on, name)
        assert report(on, name)["outcome"] == "ok", report(on, name)
        assert "pcluster-postboot: " in on(name).check_output("cat /var/log/provision/provisioning.log")


@pytest.mark.usefixtures("cluster")
def test_slurm_works_as_hyperpod_starts_it(on: On) -> None:
    states = on(CONTROLLER).check_output(f"{SLURM}sinfo --noheader --Node --format='%N %P %G'").splitlines()
    assert {row.strip() for row in states} == {
        f"{host_name(LOGIN)} dev* (null)",
        f"{host_name(LOGIN)} ml.m5.large (null)",
        f"{host_name(GPU)} dev* gpu:h100:8",
        f"{host_name(GPU)} gpu gpu:h100:8",
    }
    job = f"{SLURM}srun --partition=gpu --gres=gpu:2 sh -c 'hostname; pwd; ls /run/slurm/dcgm-job-mapping'"
    done = as_user(on(LOGIN), "ubuntu", job)
    assert done.stdout.split() == [host_name(GPU), "/fsx/ubuntu", "0", "1"], done.stderr
    until(lambda: on(GPU).check_output("ls /run/slurm/dcgm-job-mapping") == "", 20, "the end of the AMI's epilog")
    assert not on(GPU).file("/opt/slurm/etc/slurm.conf").exists, "slurmd fetches it"
    assert not on(GPU).file("/opt/parallelcluster").exists


def test_inventory_finds_the_nodes_by_sagemaker(inventory: dict[str, Any]) -> None:
    mine = names(inventory)
    for group, name in (("head", CONTROLLER), ("login", LOGIN), ("compute", GPU)):
        assert inventory[f"pcluster_{group}"]["hosts"] == [mine[name]]
    gpu = inventory["_meta"]["hostvars"][mine[GPU]]
    assert gpu["pcluster_instance_type"] == "p5.48xlarge"
    assert gpu["pcluster_ssm_target"].startswith("sagemaker-cluster:k2v9x0q7w3ab_h100-i-")
    assert inventory["pcluster_gpu"]["hosts"] == inventory["pcluster_efa"]["hosts"] == [mine[GPU]]


@pytest.mark.usefixtures("cluster")
def test_a_push_after_the_hook_changes_nothing() -> None:
    done = play()
    assert last(done).startswith("pcluster.postboot: 3 nodes, 0 changed, 0 failed"), done.stdout[-4000:]


@pytest.mark.usefixtures("cluster")
def test_a_push_over_session_manager(tmp_path_factory: pytest.TempPathFactory) -> None:
    """By the targets that HyperPod has."""
    with bucket("sagemaker-sandbox-push") as files:
        workstation = Workstation(tmp_path_factory.mktemp("workstation"), files.name)
        where = {"platforms": ["hyperpod"], "clusters": ["hp"], "hostnames": ["default"]}
        done = workstation.play("ssm", "site", "--limit", "pcluster_login", "--tags", "node_exporter", **where)
        assert last(done).startswith("pcluster.postboot: 1 node, 0 changed, 0 failed")


@pytest.mark.usefixtures("cluster")
def test_prometheus_scrapes_the_ports_of_hyperpod_s_dashboards(on: On) -> None:
    nodes = {f"http://{address(LOGIN)}:9100", f"http://{address(GPU)}:9100", f"http://{address(GPU)}:9400"}
    wanted = nodes | {"http://127.0.0.1:9100", "http://127.0.0.1:9341"}
    until(lambda: wanted <= scraped(on), 60, lambda: f"{wanted}, of {scraped(on)}")


@pytest.mark.usefixtures("cluster")
def test_verify_finds_nodes_containers_and_nccl_in_order() -> None:
    """With the Enroot and the Pyxis that the AMI has, and by the instance types that the controller knows."""
    options = {"verify_nccl_scopes": ["one", "container"], "verify_nccl_collectives": ["all_reduce"]}
    wanted = variables(verify_stages=["nodes", "containers", "nccl"], verify_report="", **options)
    done = ok(play("--limit", "pcluster_head", *wanted, name="verify"))
    for line in (
        r"containers +gpu +gpus +ok +8 GPUs in the container",
        r"nccl +dev +all_reduce on one node +ok .* of the 480 GB/s expected",
        r"nccl +dev +all_reduce in a container +ok ",
    ):
        assert re.search(line, done.stdout), f"{line} is not in {done.stdout[-5000:]}"


@pytest.mark.usefixtures("cluster")
def test_hyperpods_plugin_of_slurm_stays_beside_pyxis(on: On) -> None:
    """A step that is to be resumed, in a container; both plugins stand in the plugstack of the AMI."""
    stack = on(CONTROLLER).file("/opt/slurm/etc/plugstack.conf").content_string.splitlines()
    assert stack == ["required spank_auto_resume.so", "include /opt/slurm/etc/plugstack.conf.d/pyxis.conf"]
    (image,) = on(CONTROLLER).check_output("ls /fsx/containers/*library_tiny*.sqsh").split()
    step = f"srun --auto-resume=1 --container-image={image} grep ^NAME= /etc/os-release"
    done = as_user(on(LOGIN), "ubuntu", f"{SLURM}salloc --partition=gpu {SLURM}{step}", timeout=120)
    assert 'NAME="Sandbox tiny"' in done.stdout, done.stderr
    assert "TaskID: 0 process_task_init" in done.stderr
    alone = as_user(on(LOGIN), "ubuntu", f"{SLURM}srun --partition=gpu --auto-resume=1 true")
    assert alone.rc == 1
    assert "Auto Resume can only run within an exiting allocation" in alone.stderr


@pytest.mark.usefixtures("cluster")
def test_node_health_finds_nothing_on_a_sound_node(on: On) -> None:
    on(GPU).check_output("systemctl start pcluster-node-health.service")
    found = on(GPU).file("/var/lib/node_exporter/textfile_collector/node_health.prom").content_string
    assert "pcluster_node_health_check_timestamp_seconds" in found
    assert "pcluster_node_health_finding{" not in found, found


@pytest.mark.usefixtures("cluster")
def test_a_node_that_hyperpod_is_to_replace_stays_so(on: On) -> None:
    """HyperPod compares the reason letter by letter, and nobody else may write another one or resume the node."""
    update = f"{SLURM}scontrol update node={host_name(GPU)}"
    show = f"{SLURM}scontrol --oneliner show node {host_name(GPU)}"
    on(CONTROLLER).check_output(f"{update} state=fail reason=Action:Replace")
    try:
        assert ", 0 changed, 0 failed" in last(play("--limit", "pcluster_head:pcluster_compute", timeout=600))
        # node_health has looked since then.
        on(GPU).check_output("systemctl start pcluster-node-health.service")
        told = on(CONTROLLER).check_output(show)
        assert re.search(r" State=\S*FAIL\S* ", told), told
        assert re.search(r" Reason=Action:Replace \[", told), told
    finally:
        on(CONTROLLER).check_output(f"{update} state=resume")


def current(on: On, name: str) -> str:
    """The bundle that a node runs."""
    return Path(on(name).check_output("readlink /opt/pcluster-postboot/current")).name


@pytest.mark.usefixtures("cluster")
def test_fleet_brings_another_bundle_and_the_former_one_again(on: On, tmp_path: Path) -> None:
    before = current(on, LOGIN)
    published = boto3.resource("s3").Bucket("sagemaker-sandbox-bundles")
    newer = republish(published, Bundle(before, "", []), "9.9.9", {"sandbox_bundle": "newer"})
    plain = {"fleet_report": str(tmp_path / "it.json"), "fleet_concurrency": "100%"}
    where = f"s3://{published.name}/bundles"
    wanted = variables(**plain, fleet_bundle=f"{where}/{newer.name}", fleet_sha256=newer.sha256)
    told = ok(play("--check", *wanted, name="fleet")).stdout
    assert f"would send {newer.name} to 1 head node, 1 at a time" in told
    assert current(on, LOGIN) == before
    done = ok(play(*wanted, name="fleet"))
    print(done.stdout)
    assert re.match(r"pcluster\.postboot: 3 nodes, [1-9]\d* changed, 0 failed", last(done))
    assert {current(on, name) for name in (CONTROLLER, LOGIN, GPU)} == {newer.name}
    assert "(9.9.9)" in on(GPU).check_output("systemctl show --property=Description node_exporter")
    assert {one["state"] for one in json.loads((tmp_path / "it.json").read_text())["nodes"].values()} == {"changed"}
    done = ok(play(*wanted, name="fleet"))
    assert last(done).startswith("pcluster.postboot: 3 nodes, 0 changed, 0 failed"), done.stdout
    sha256 = hashlib.sha256((DIR / before / "pcluster-postboot.tar.gz").read_bytes()).hexdigest()
    ok(play(*variables(**plain, fleet_bundle=f"{where}/{before}", fleet_sha256=sha256), name="fleet"))
    assert {current(on, name) for name in (CONTROLLER, LOGIN, GPU)} == {before}


@pytest.mark.usefixtures("cluster")
def test_an_interrupted_fleet_and_a_session_that_dies_lose_nothing(on: On, tmp_path: Path) -> None:
    node, lock, worker = on(LOGIN), "/run/pcluster-postboot/commands/lock", "[s]sm-session-worker"
    node.check_output(f"mkdir -p {NOTES} && touch {NOTES}/waits")
    with bucket("sagemaker-sandbox-fleet") as found:
        options = variables(**of_one_script(found, BOOTSTRAP), fleet_report=str(tmp_path / "it.json"))
        fleet = line("ansible-playbook", "pcluster.postboot.fleet", "--limit", "pcluster_login", *options)
        how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
        with subprocess.Popen(fleet, **how) as run:
            until(lambda: node.file(f"{NOTES}/began").exists, 60, "the script")
            until(lambda: node.file(lock).exists, 60)
            run.send_signal(signal.SIGINT)
            told, _nothing = run.communicate(timeout=120)
        print(told)
        assert "have it and finish by themselves (1)" in told
        began = node.file(f"{NOTES}/began").content_string
        # The next session waits for the lock, so that its worker on the node can be killed in the middle.
        until(lambda: node.run(f"pgrep -f {worker}").rc == 1, 60, "the end of the interrupted run's session")
        node.check_output(f"systemd-run --quiet --unit=test-lock flock {lock} sleep 600")
        with subprocess.Popen(fleet, **how) as run:
            until(lambda: node.run(f"pgrep -f {worker}").rc == 0, 60, "a session")
            node.check_output(f"pkill -KILL -f {worker}")
            node.check_output("systemctl stop test-lock")
            node.check_output(f"rm {NOTES}/waits")
            told, _nothing = run.communicate(timeout=300)
        print(told)
        assert run.returncode == 0
        assert "pcluster.postboot: 1 node, 0 changed, 0 failed" in told
    assert node.file(f"{NOTES}/began").content_string == began, "the script ran once"


@pytest.mark.usefixtures("cluster")
def test_a_replaced_node_is_configured_by_the_hook_again_and_exporters_of_others_stay(on: On) -> None:
    """The owner's exporters come after the hook of another instance here; a push then leaves them alone."""
    ok(flavour("replace", LOGIN, timeout=1200))
    settle(on, LOGIN)
    assert on(LOGIN).service("node_exporter").is_running
    pins = json.loads(PINS.read_text())
    script = (SCENARIO / "hyperpod/observability.sh").read_text()
    on(LOGIN).check_output("systemctl disable --now node_exporter && rm /etc/systemd/system/node_exporter.service")
    on(LOGIN).check_output("bash -c %s observability login %s", script, pins["node_exporter"]["version"])
    done = play("--limit", "pcluster_login", "--tags", "node_exporter")
    assert ", 0 failed" in last(done)
    assert on(LOGIN).service("docker-node-exporter").is_running
    assert not on(LOGIN).file("/etc/systemd/system/node_exporter.service").exists


@pytest.fixture(scope="module")
def observed(hook: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The cluster created anew by an owner whose own script switches HyperPod's observability on before our hook."""
    parts, pins = json.loads(hook.read_text()), json.loads(PINS.read_text())
    place = parts["InstanceGroups"][0]["LifeCycleConfig"]["SourceS3Uri"].removeprefix("s3://")
    name, _, prefix = place.partition("/")
    versions = {one: pins[one]["version"] for one in ("node_exporter", "slurm_exporter")}
    beside = {"observability.sh": (SCENARIO / "hyperpod/observability.sh").read_text()}
    for group in parts["InstanceGroups"]:
        kind = TOPOLOGY["cluster"]["groups"][group["InstanceGroupName"]]["node_type"].lower()
        group["LifeCycleConfig"]["OnInitComplete"] = script = f"run_extensions_{kind}.sh"
        beside[script] = EXTENSIONS.format(kind=kind, **versions)
    store = boto3.client("s3", region_name="us-east-1")
    for key, text in beside.items():
        store.put_object(Bucket=name, Key=prefix + key, Body=text.encode())
    file = tmp_path_factory.mktemp("observed") / "parts.json"
    file.write_text(json.dumps(parts))
    done = flavour("create", str(file), timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.usefixtures("observed")
def test_exporters_that_come_before_the_hook_are_left_alone(on: On) -> None:
    for name in (CONTROLLER, LOGIN, GPU):
        settle(on, name)
        assert report(on, name)["outcome"] == "ok", report(on, name)
        assert on(name).service("docker-node-exporter").is_running
        assert not on(name).file("/etc/systemd/system/node_exporter.service").exists
    skipped = {one["name"]: one.get("why", "") for one in report(on, GPU)["components"] if one["status"] == "skipped"}
    assert skipped["node_exporter"] == "an exporter of HyperPod itself serves port 9100"
    assert skipped["dcgm_exporter"] == "an exporter of HyperPod itself serves port 9400"
    assert not on(GPU).service("nvidia-dcgm-exporter").is_running
    theirs = {f"http://{address(GPU)}:{port}" for port in (9100, 9109, 9400)}
    wanted = theirs | {f"http://{address(LOGIN)}:9100", "http://127.0.0.1:9100", "http://127.0.0.1:9341"}
    until(lambda: wanted <= scraped(on), 120, lambda: f"{wanted}, of {scraped(on)}")


@pytest.mark.usefixtures("observed")
def test_a_push_beside_those_exporters_changes_nothing() -> None:
    done = play()
    assert last(done).startswith("pcluster.postboot: 3 nodes, 0 changed, 0 failed"), done.stdout[-4000:]


@pytest.mark.usefixtures("observed")
def test_verify_does_not_miss_our_exporters_there() -> None:
    ok(play("--limit", "pcluster_head", *variables(verify_stages=["nodes"], verify_report=""), name="verify"))


@pytest.mark.usefixtures("observed")
def test_our_exporters_come_once_the_others_are_gone(on: On) -> None:
    script = (SCENARIO / "hyperpod/observability.sh").read_text()
    for name in (CONTROLLER, LOGIN, GPU):
        on(name).check_output("bash -c %s observability off", script)
    ok(play(timeout=1200))
    for name in (CONTROLLER, LOGIN, GPU):
        assert on(name).service("node_exporter").is_running
    assert on(GPU).service("nvidia-dcgm-exporter").is_running
    ours = {f"http://{address(GPU)}:{port}" for port in (9100, 9400)} | {"http://127.0.0.1:9341"}
    until(lambda: ours <= scraped(on), 120, lambda: f"{ours}, of {scraped(on)}")
    assert f"http://{address(GPU)}:9109" not in scraped(on)
    done = play()
    assert last(done).startswith("pcluster.postboot: 3 nodes, 0 changed, 0 failed"), done.stdout[-4000:]


@pytest.fixture(scope="module")
def trainium(api: None, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Another cluster in its place, of a controller and a node with 16 Neuron devices; a push configures both."""
    groups, nodes = TOPOLOGY["cluster"]["groups"], TOPOLOGY["cluster"]["nodes"]
    controllers = nodes[CONTROLLER]["group"]
    node = {"address": address(GPU), "group": "accelerated"}
    more = {"node_type": "Compute", "instance_type": "ml.trn1.32xlarge", "partitions": ["trn"]}
    file = tmp_path_factory.mktemp("trainium") / "cluster.json"
    asked = {
        "groups": {controllers: groups[controllers], "accelerated": more},
        "nodes": {CONTROLLER: nodes[CONTROLLER], "hp-trn": node},
    }
    file.write_text(json.dumps(asked))
    ok(flavour("create", str(file), timeout=900))
    assert ", 0 failed" in last(play(timeout=1200))
    return "hp-trn"


def test_prometheus_and_verify_find_neuron_devices_without_a_variable(on: On, trainium: str) -> None:
    """Slurm tells nothing of the instance type, and the play has the controller alone."""
    told = on(CONTROLLER).check_output(f"{SLURM}scontrol --oneliner show node {host_name(GPU)}")
    assert " AvailableFeatures=(null) " in told
    assert on(trainium).service("neuron-exporter").is_running
    url = f"http://{address(GPU)}:8000"
    until(lambda: url in scraped(on), 120, lambda: f"{url}, of {scraped(on)}")
    wanted = variables(verify_stages=["neuron"], verify_report="")
    done = ok(play("--limit", "pcluster_head", *wanted, name="verify"))
    found = rf"neuron +\S+ +neuron-ls +ok +16 devices with 32 cores on {host_name(GPU)}"
    assert re.search(found, done.stdout), done.stdout[-3000:]
