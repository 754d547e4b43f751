# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a machine of the sandbox has before its user data runs: the files of ParallelCluster's AMI, and its hardware.

The images have what a distribution carries. Stand-ins are laid over them here, so that a change of one needs no new
image. Nothing here knows which node the machine is to be.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from machines import Instance
    from sandbox import Sandbox

HERE = Path(__file__).resolve().parent
STANDINS = HERE / "standins"
SCRIPTS, STANDIN, UNITS = "opt/parallelcluster/scripts", "etc/chef/standin", "etc/systemd/system"


def lay(sandbox: Sandbox, one: Instance, user_data: str) -> Path:
    """Write the tree of a machine, and return where it is."""
    cluster = sandbox.clusters[one.cluster]
    tree = sandbox.state / "machines" / one.id
    hardware = sandbox.topology["instance_types"].get(one.type, {})
    write(tree / "opt/parallelcluster/.bootstrapped", f"aws-parallelcluster-cookbook-{cluster['parallelcluster']}\n")
    # Without one, systemd enables all that it finds.
    write(tree / "etc/machine-id", hashlib.sha256(one.id.encode()).hexdigest()[:32] + "\n")
    cookbook(tree, sandbox)
    metadata(tree, sandbox, one, user_data)
    agents(tree, one)
    if cluster["image"] == "el":
        repositories(tree, sandbox)
    if hardware.get("gpus"):
        put(tree / "usr/bin/nvidia-smi", HERE / "templates/nvidia-smi", 0o755)
    write(tree / "sandbox/boot.sh", sandbox.render("boot.sh.j2", {"node": hardware, "kind": one.kind}))
    return tree


def cookbook(tree: Path, sandbox: Sandbox) -> None:
    """ParallelCluster's recipes and programs, and those of CloudFormation that they are started by."""
    source = STANDINS / "cookbook"
    put(tree / "usr/bin/cinc-client", source / "cinc-client", 0o755)
    for name in ("recipes.py", "slurm_config.py"):
        put(tree / STANDIN / name, source / name)
    for template in (source / "templates").iterdir():
        put(tree / STANDIN / "templates" / template.name, template)
    for name in ("cfn-init", "cfn-signal"):
        put(tree / "opt/aws/bin" / name, source / name, 0o755)
    executor = "custom_action_executor.py"
    put(tree / SCRIPTS / executor, STANDINS / "custom-actions" / executor, 0o755)
    put(tree / SCRIPTS / "imds/imds-access.sh", STANDINS / "imds/imds-access.sh", 0o744)
    for name in ("restore_tables.sh", "save_tables.sh"):
        put(tree / "usr/local/sbin" / name, STANDINS / "imds" / name, 0o744)
    put(tree / UNITS / "parallelcluster-iptables.service", STANDINS / "imds/parallelcluster-iptables.service")
    disks = STANDINS / "setup-ephemeral"
    put(tree / "usr/local/sbin/setup-ephemeral-drives.sh", disks / "setup-ephemeral-drives.sh", 0o744)
    put(tree / UNITS / "setup-ephemeral.service", disks / "setup-ephemeral.service")
    # Upstream looks every 90 and every 15 seconds, for as long.
    clocks = {"after_reconfigure": 3, "wait_cluster_ready": 10, "wait_static_fleet_running": 5}
    write(tree / "etc/sandbox/clocks.json", f"{json.dumps(clocks)}\n")
    write(
        tree / "etc/sandbox/aws.env",
        f"AWS_ENDPOINT_URL={sandbox.endpoint}\nAWS_ACCESS_KEY_ID=sandbox\nAWS_SECRET_ACCESS_KEY=sandbox\n",
    )


def metadata(tree: Path, sandbox: Sandbox, one: Instance, user_data: str) -> None:
    """The metadata service's answers, and what cloud-init is given."""
    answers = one.metadata(sandbox.topology["region"], sandbox.public_key)
    write(tree / "sandbox/imds.json", json.dumps(answers, indent=1))
    for name in ("imds.py", "imds.sh"):
        put(tree / "sandbox" / name, STANDINS / "imds" / name, 0o755)
    put(tree / UNITS / "sandbox-imds.service", STANDINS / "imds/sandbox-imds.service")
    seed = tree / "var/lib/cloud/seed/nocloud"
    write(seed / "user-data", user_data)
    write(seed / "meta-data", f"instance-id: {one.id}\nlocal-hostname: {one.hostname}\n")


def agents(tree: Path, one: Instance) -> None:
    """The agents of Systems Manager and CloudWatch."""
    put(tree / "usr/bin/amazon-ssm-agent", STANDINS / "ssm-agent/agent.py", 0o755)
    put(tree / UNITS / "amazon-ssm-agent.service", STANDINS / "ssm-agent/amazon-ssm-agent.service")
    standin, home = STANDINS / "cloudwatch-agent", tree / "opt/aws/amazon-cloudwatch-agent"
    for name in ("amazon-cloudwatch-agent", "amazon-cloudwatch-agent-ctl", "start-amazon-cloudwatch-agent"):
        put(home / "bin" / name, standin / "agent.py", 0o755)
    write(home / "bin/CWAGENT_VERSION", "1.300071.0b1720\n")
    put(tree / UNITS / "amazon-cloudwatch-agent.service", standin / "amazon-cloudwatch-agent.service")
    write(home / "etc/common-config.toml", "# A stand-in's: nothing is set.\n")
    write(home / "logs/amazon-cloudwatch-agent.log", "")
    write(tree / "var/lib/cloud/data/instance-id", f"{one.id}\n")


def repositories(tree: Path, sandbox: Sandbox) -> None:
    put(tree / "etc/yum.repos.d/amazonlinux.repo", HERE / "templates/amazonlinux.repo")
    mirror = sandbox.state / "mirror/cdn.amazonlinux.com/al2023/core/mirrors/latest" / platform.machine()
    name = "RPM-GPG-KEY-amazon-linux-2023"
    put(tree / "etc/pki/rpm-gpg" / name, mirror / name)


def put(path: Path, source: Path, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, path)
    path.chmod(mode)


def write(path: Path, content: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != content:
        path.write_text(content)
    path.chmod(mode)
