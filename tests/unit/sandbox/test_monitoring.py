# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The sandbox's monitoring instance, from EC2 to the container: a plain machine that its user data makes one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parents[3] / "molecule/cluster"
MODULES = ("ami", "deploy", "machines", "register", "sandbox")


@pytest.fixture(scope="module")
def sandbox_module() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        for folder in (HERE, HERE / "aws"):
            patch.syspath_prepend(str(folder))
        import sandbox

        yield sandbox
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def sandbox(sandbox_module: Any, moto: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A sandbox whose containers are what podman was asked for, with the network of the AWS API."""
    monkeypatch.setattr(sandbox_module.Sandbox, "endpoint", moto)
    made = sandbox_module.Sandbox(tmp_path)
    made.asked = []

    def podman(*arguments: str, **_options: Any) -> subprocess.CompletedProcess[str]:
        made.asked.append(list(arguments))
        return subprocess.CompletedProcess(arguments, 0, stdout="", stderr="")

    made.podman = podman
    made.__dict__.update(image={"ubuntu": "ubuntu:1", "el": "el:1"}, public_key="ssh-ed25519 KEY", hybrid_cgroups=False)
    (tmp_path / "ssh").mkdir()
    (tmp_path / "ssh/known_hosts").touch()
    texts = tmp_path / "mirror/sandbox/alertmanager"
    texts.mkdir(parents=True)
    for name in ("default.tmpl", "email.tmpl"):
        (texts / name).touch()
    cidr, ec2 = made.topology["network"]["subnet"], made.aws.ec2
    if not ec2.describe_subnets(Filters=[{"Name": "cidr-block", "Values": [cidr]}])["Subnets"]:
        ec2.create_subnet(VpcId=ec2.create_vpc(CidrBlock=cidr)["Vpc"]["VpcId"], CidrBlock=cidr)
    return made


def user_data(sandbox: Any) -> str:
    return str(sandbox.render("monitoring.sh.j2", {"vpc": "vpc-1", **sandbox.topology}))


def test_it_is_launched_once_and_is_a_plain_machine(sandbox: Any) -> None:
    import machines

    for _ in range(2):
        sandbox.aws.launch_monitoring(user_data(sandbox))
    follower = machines.Machines(sandbox)
    (one,) = follower.instances().values()
    assert (one.kind, one.cluster, one.address) == ("monitoring", "", sandbox.topology["monitoring"]["address"])
    assert follower.user_data(one) == user_data(sandbox)
    follower.look()
    (line,) = [arguments for arguments in sandbox.asked if arguments[0] == "run"]
    assert line[line.index("--name") + 1] == "postboot-monitoring"
    assert line[-1] == "ubuntu:1"
    volumes = [line[number + 1] for number, word in enumerate(line) if word == "--volume"]
    assert [volume.split(":")[1] for volume in volumes] == ["/sandbox/node"], "it shares nothing with a cluster"
    tree = sandbox.state / "machines" / one.id
    files = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}
    assert {"usr/bin/amazon-ssm-agent", "sandbox/imds.json", "var/lib/cloud/seed/nocloud/user-data"} <= files
    assert not [name for name in files if "parallelcluster" in name or "cloudwatch" in name or "chef" in name]
    boot = (tree / "sandbox/boot.sh").read_text()
    assert "rm -rf /opt/parallelcluster /opt/slurm" in boot
    assert subprocess.run(["bash", "-n", tree / "sandbox/boot.sh"], check=False).returncode == 0


def test_a_node_of_a_cluster_has_what_it_had(sandbox: Any) -> None:
    """Where ParallelCluster's files come from, and its volumes."""
    import ami
    from machines import Instance

    tags = {"parallelcluster:cluster-name": "el", "parallelcluster:node-type": "Compute"}
    one = Instance("i-1", "c5.xlarge", "10.115.0.77", "ami", "us-east-1a", machines_now(), True, tags)
    repositories = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ami, "repositories", lambda tree, _sandbox: repositories.append(tree))
        sandbox.boot_machine(one, "node", "#!/bin/sh\n")
    (line,) = [arguments for arguments in sandbox.asked if arguments[0] == "run"]
    places = {line[number + 1].split(":")[1] for number, word in enumerate(line) if word == "--volume"}
    assert places == {
        *("/sandbox/node", "/var/lib/docker", "/opt/slurm", "/home", "/fsx"),
        *("/opt/parallelcluster/shared",),
    }
    assert (line[-1], len(repositories)) == ("el:1", 1)
    tree = sandbox.state / "machines/i-1"
    assert (tree / "opt/parallelcluster/.bootstrapped").read_text() == "aws-parallelcluster-cookbook-3.13.2\n"
    assert (tree / "opt/aws/amazon-cloudwatch-agent/bin/CWAGENT_VERSION").exists()
    assert "pcluster_cookbook_environment.sh" in (tree / "sandbox/boot.sh").read_text()


def machines_now() -> Any:
    from datetime import datetime, timezone

    return datetime.now(timezone.utc)


def test_its_user_data_says_what_it_is(sandbox: Any, tmp_path: Path) -> None:
    bin_, root = tmp_path / "bin", tmp_path / "root"
    bin_.mkdir()
    (root / "home").mkdir(parents=True)
    for program, does in (("curl", "echo ssh-ed25519 KEY"), ("install", 'eval mkdir -p \\"\\${$#}\\"'), ("chown", ":")):
        (bin_ / program).write_text(f"#!/bin/bash\n{does}\n")
        (bin_ / program).chmod(0o755)
    text = user_data(sandbox).replace("/etc/", f"{root}/etc/").replace("/home/", f"{root}/home/")
    done = subprocess.run(["bash", "-c", text], env={"PATH": f"{bin_}:/usr/bin:/bin"}, check=False)
    assert done.returncode == 0
    node = json.loads((root / "etc/pcluster-postboot/node.json").read_text())
    assert node == {"node_type": "monitoring", "name": "monitoring", "region": "us-east-1", "vpc": "vpc-1"}
    assert (root / "home/ubuntu/.ssh/authorized_keys").read_text() == "ssh-ed25519 KEY\n"


def test_a_checkout_ends_what_follows_the_machines_of_another(
    sandbox: Any, sandbox_module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = tmp_path / "follower"
    monkeypatch.setattr(sandbox_module, "FOLLOWER", pid)
    monkeypatch.setattr(sandbox_module.shutil, "which", lambda name: f"/usr/bin/{name}")
    line = [sys.executable, "-c", "import time; time.sleep(60)", "machines"]
    sandbox_module.machines.start(line, tmp_path / "log", pid)
    other = sandbox_module.Sandbox(tmp_path / "other")
    other.podman = sandbox.podman
    assert sandbox_module.machines.runs(pid)
    other.destroy()
    assert not sandbox_module.machines.runs(pid)
