# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the sandbox's tests share: its nodes as testinfra hosts, and the collection's playbooks run on them."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from testinfra.host import Host

from .bundles import BUCKET, DIR, SANDBOX, SCENARIO, STATE, Bundle, bucket, config, printed, queue_of, update
from .helpers import Command, Create, Killed, Nodes, On, Play, Run, ok, until
from .nodes import host

TOPOLOGY = yaml.safe_load((SCENARIO / "topology.yml").read_text())
NODES = {
    name: {**node, "cluster": cluster}
    for cluster, found in TOPOLOGY["clusters"].items()
    for name, node in found["nodes"].items()
}
COMPUTE = [name for name, node in NODES.items() if node["type"] == "Compute"]
HEADS = [name for name, node in NODES.items() if node["type"] == "HeadNode"]

os.environ.setdefault("CONTAINERS_CONF", str(STATE / "containers.conf"))
os.environ.setdefault("ANSIBLE_CONFIG", str(SCENARIO / "ansible.cfg"))
os.environ.setdefault("AWS_ENDPOINT_URL", f"http://{TOPOLOGY['services']['aws']['address']}:5000")
os.environ.setdefault("AWS_ACCESS_KEY_ID", "sandbox")
os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "sandbox")
# Molecule asks for colours, and tests read what is printed.
os.environ.pop("ANSIBLE_FORCE_COLOR", None)
os.environ["ANSIBLE_NOCOLOR"] = "1"


@pytest.fixture(scope="session")
def on() -> On:
    """A function from a node's name to its testinfra host."""
    return host


def command(program: str, *arguments: str) -> list[str]:
    return [str(Path(sys.executable).parent / program), "--inventory", str(STATE / "inventory"), *arguments]


def playbook(*arguments: str, name: str = "site", timeout: int = 300) -> Run:
    """Run one of the collection's playbooks to its end, as a user would."""
    line = command("ansible-playbook", f"pcluster.postboot.{name}", *arguments)
    return subprocess.run(line, text=True, capture_output=True, timeout=timeout, check=False)


@pytest.fixture(scope="session")
def play() -> Play:
    """A function that runs a playbook and returns what it printed and its exit code."""
    return playbook


@pytest.fixture(scope="session", name="command")
def command_fixture() -> Command:
    """A function that makes the command line of one of Ansible's programs on the sandbox's inventory."""
    return command


def run_and_kill(line: list[str], earliest: float, latest: float) -> None:
    """Start a program and kill -9 it, with all that it has started here, at a random moment between these seconds."""
    seconds = random.uniform(earliest, latest)
    print(f"killed after {seconds:.2f} s")  # pytest shows it where the test fails
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True) as run:
        time.sleep(seconds)
        os.killpg(run.pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def killed() -> Killed:
    """A function that starts a program and kills it at a random moment."""
    return run_and_kill


def instances() -> Nodes:
    """The nodes' instances that run now, as EC2 describes them, by the nodes' names."""
    ec2 = boto3.client("ec2", region_name=TOPOLOGY["region"])
    filters = [
        {"Name": "tag:parallelcluster:cluster-name", "Values": list(TOPOLOGY["clusters"])},
        {"Name": "instance-state-name", "Values": ["running"]},
    ]
    pages = ec2.get_paginator("describe_instances").paginate(Filters=filters)
    found = {}
    for one in (one for page in pages for part in page["Reservations"] for one in part["Instances"]):
        name = next((tag["Value"] for tag in one["Tags"] if tag["Key"] == "sandbox:name"), None)
        if name:
            found[name] = one
    return found


def instance(name: str) -> str:
    """The id of the instance that is a node now; empty where none is."""
    return str(instances().get(name, {}).get("InstanceId", ""))


@pytest.fixture
def nodes() -> Nodes:
    """The nodes of topology.yml by name, with the addresses that they have now."""
    found = instances()
    return {name: {**node, "address": found[name]["PrivateIpAddress"]} for name, node in NODES.items()}


@pytest.fixture
def as_before(request: pytest.FixtureRequest, play: Play) -> Iterator[None]:
    """After a test, a run with the sandbox's own variables puts its file's component (ONLY) back."""
    yield
    assert ", 0 failed" in ok(play(*request.module.ONLY)).stdout


@contextmanager
def unmanaged(head: str = "head") -> Iterator[None]:
    """Keep clustermgtd from what a test does to nodes on purpose; it reads its configuration anew in each loop.

    A loop that has begun goes on with the former configuration, so its end is waited for; of its ten seconds it takes
    five and more, as it waits for instances to appear in EC2. A node that was resumed counts as unhealthy until
    slurmctld has heard from it.
    """
    conf = "/etc/parallelcluster/slurm_plugin/parallelcluster_clustermgtd.conf"
    log = "/var/log/parallelcluster/clustermgtd"
    silent = "/opt/slurm/bin/sinfo --noheader --partition=static --format=%T | grep -E '[*]|down'"
    host(head).check_output(f"echo 'disable_all_cluster_management = true' >> {conf}")
    heartbeat = host(head).check_output(f"sed -n 's/^heartbeat_file_path = //p' {conf}")

    def loop_ended() -> bool:
        began = host(head).check_output(f"date +%s.%N -d \"$(grep 'Managing cluster' {log} | tail -n 1 | cut -c1-23)\"")
        return float(host(head).check_output(f"stat -c %.Y {heartbeat}")) > float(began)

    time.sleep(0.5)  # a loop that has read the configuration a moment before says only then that it has begun
    until(loop_ended, 30)
    try:
        yield
    finally:
        host(head).run(f"for i in $(seq 60); do {silent} || break; sleep 0.5; done")
        host(head).check_output(f"sed -i /^disable_all_cluster_management/d {conf}")


@pytest.fixture(scope="session")
def gpu() -> Host:
    """The node that has GPUs and EFA devices."""
    return host("gpu-st-p5-1")


@pytest.fixture(scope="session")
def inventory() -> dict[str, Any]:
    """What the inventory plugin finds."""
    result = subprocess.run(
        command("ansible-inventory", "--list"), text=True, capture_output=True, timeout=60, check=True
    )
    # Strings from AWS are marked as such; here only their text matters.
    return {**json.loads(result.stdout, object_hook=lambda o: o.get("__ansible_unsafe", o)), "stderr": result.stderr}


# Bundles


@pytest.fixture(scope="session")
def s3() -> Iterator[Any]:
    """The bucket with the bundles, as a resource of boto3."""
    with bucket(BUCKET) as found:
        yield found
    for path in DIR.glob("[0-9]*"):  # the wheels stay
        shutil.rmtree(path)


@pytest.fixture(scope="session")
def publishing(s3: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """A function that publishes the collection as it is, for a cluster, with more options.

    Nodes run it with the Python that ParallelCluster has.
    """
    folder = tmp_path_factory.mktemp("publish")
    subprocess.run([sys.executable, SANDBOX, "variables", folder / "group_vars"], check=True)

    def published(cluster: str, **more: Any) -> Run:
        options = {
            "publish_s3": f"s3://{s3.name}/bundles",
            "publish_dir": str(DIR),
            "publish_group_vars": str(folder / "group_vars"),
            "publish_config": str(config(cluster)),
            "publish_pythons": ["3.13"],
            "publish_architectures": ["x86_64"],
            **more,
        }
        return playbook("-e", json.dumps(options), name="publish")

    return published


@pytest.fixture(scope="session")
def publish(publishing: Callable[..., Run]) -> Callable[[str], dict[str, Any]]:
    """A function that publishes the collection as it is, and returns what publish.yml prints for a cluster."""
    return lambda cluster: printed(publishing(cluster))


@pytest.fixture(scope="session")
def bundle(publish: Callable[[str], dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bundle]:
    """The collection as it is, published; an update of the cluster has brought it to the queue `burst`."""
    folder = tmp_path_factory.mktemp("update")
    queue = queue_of(publish("main"), "burst")
    done = update("main", folder, {"Scheduling": {"SlurmQueues": [queue]}})
    assert done.stdout.endswith("main: UPDATE_COMPLETE\n"), done.stdout + done.stderr
    yield Bundle.of(queue["CustomActions"]["OnNodeConfigured"])
    back = update("main", folder, {})
    # A test that has updated the cluster itself has already taken the bundle away.
    assert back.returncode == 0 or "No changes found" in back.stderr, back.stderr


@pytest.fixture(scope="module")
def create(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Create]:
    """A function that creates the cluster `el` anew, with these parts in its configuration; in the end as it was."""
    file: Path = tmp_path_factory.mktemp("create") / "parts.yaml"

    def created(parts: dict[str, Any]) -> Run:
        file.write_text(yaml.safe_dump(parts))
        subprocess.run([sys.executable, SANDBOX, "delete", "el"], check=True, timeout=300)
        line = [sys.executable, str(SANDBOX), "create", "el", str(file)]
        return subprocess.run(line, text=True, capture_output=True, timeout=2200, check=False)

    yield created
    ok(created({}))
    subprocess.run([sys.executable, SANDBOX, "boot"], check=True, timeout=900)
    ok(playbook("--limit", "el-head,el-cpu-st-c5-1"))


# First what the whole run has left, as other tests run single components, whose reports replace it. Then files that
# mostly wait, beside which `make test` runs the unit tests. Then what updates the cluster, and files of which each
# looks at nodes that were there, while the node of test_pull.py comes up.
ORDER = [
    "test_cluster.py",
    "test_control_plane.py",
    "test_creation.py",
    "test_first_cluster.py",
    "test_login_nodes.py",
    "test_scratch.py",
    "test_alertmanager.py",
    "test_alerts.py",
    "test_dashboards.py",
    "test_dcgm.py",
    "test_container_images.py",
    "test_nccl_tests.py",
    "test_node_health_decider.py",
    "test_update.py",
    "test_bake.py",
    "test_docker.py",
    "test_efa.py",
    "test_enroot.py",
    "test_mirror.py",
    "test_nvidia_container_toolkit.py",
    "test_publish.py",
    "test_push.py",
    "test_registry.py",
    "test_pull.py",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: ORDER.index(item.path.name) if item.path.name in ORDER else len(ORDER))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes `node`, `compute` or `head` on each of them."""
    for argument, names in (("node", list(NODES)), ("compute", COMPUTE), ("head", HEADS)):
        if argument in metafunc.fixturenames:
            metafunc.parametrize(argument, names)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A failed test shows the last lines of the node's journal."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    given = getattr(getattr(item, "callspec", None), "params", {})
    names = [value for value in given.values() if isinstance(value, str) and value in NODES]
    if report.when == "call" and report.failed and names:
        lines = host(names[0]).run("journalctl --no-pager --lines=30 --output=short").stdout
        report.sections.append((f"journal of {names[0]}", lines))
