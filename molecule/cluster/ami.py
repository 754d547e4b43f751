# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a machine of the sandbox has before its user data runs: the files of its AMI, and its hardware.

The images have what a distribution carries. Stand-ins are laid over them here, so that a change of one needs no new
image. Nothing here knows which node the machine is to be.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from machines import Instance
    from sandbox import Sandbox

HERE = Path(__file__).resolve().parent
STANDINS = HERE / "standins"
SCRIPTS, STANDIN, UNITS = "opt/parallelcluster/scripts", "etc/chef/standin", "etc/systemd/system"


def lay(sandbox: Sandbox, one: Instance, user_data: str) -> Path:
    """Write the tree of a machine, and return where it is."""
    tree = sandbox.state / "machines" / one.id
    hardware = sandbox.topology["instance_types"].get(one.type, {})
    # Without one, systemd enables all that it finds.
    write(tree / "etc/machine-id", hashlib.sha256(one.id.encode()).hexdigest()[:32] + "\n")
    metadata(tree, sandbox, one, user_data)
    agents(tree, one)
    alertmanager(tree, sandbox)
    if one.cluster:
        parallelcluster(tree, sandbox, sandbox.clusters[one.cluster])
    if hardware.get("gpus"):
        driver(tree)
    write(tree / "sandbox/boot.sh", sandbox.render("boot.sh.j2", {"node": hardware, "kind": one.kind}))
    return tree


def driver(tree: Path) -> None:
    """The programs that NVIDIA's driver brings, with Fabric Manager for the NVSwitches."""
    for name in ("nvidia-smi", "nv-fabricmanager"):
        put(tree / "usr/bin" / name, HERE / "templates" / name, 0o755)
    write(tree / "usr/share/nvidia/nvswitch/fabricmanager.cfg", "")
    unit = "nvidia-fabricmanager.service"
    put(tree / "usr/lib/systemd/system" / unit, HERE / "templates" / unit)


def parallelcluster(tree: Path, sandbox: Sandbox, cluster: dict[str, Any]) -> None:
    """What an image of ParallelCluster has, and a plain one has not."""
    write(tree / "opt/parallelcluster/.bootstrapped", f"aws-parallelcluster-cookbook-{cluster['parallelcluster']}\n")
    cookbook(tree, sandbox)
    cloudwatch(tree)
    if cluster["image"] == "el":
        repositories(tree, sandbox)


def cookbook(tree: Path, sandbox: Sandbox) -> None:
    """ParallelCluster's recipes and programs, and those of CloudFormation that they are started by."""
    source = STANDINS / "cookbook"
    put(tree / "usr/bin/cinc-client", source / "cinc-client", 0o755)
    for name in ("recipes.py", "slurm_config.py", "clusterstatusmgtd.py"):
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
    # Seconds between two looks, and after what slurmctld is told; README.md of the stand-in has upstream's.
    clocks = {
        "after_reconfigure": 1,
        "after_restart": 1,
        "cluster_config_version": 1,
        "fleet_status": 10,
        "heartbeat": 1,
        "wait_cluster_ready": 2,
        "wait_static_fleet_running": 3,
    }
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
    """What every image of AWS has: the agent of Systems Manager, and what cloud-init leaves."""
    put(tree / "usr/bin/amazon-ssm-agent", STANDINS / "ssm-agent/agent.py", 0o755)
    put(tree / "usr/bin/ssm-session-worker", STANDINS / "ssm-agent/session_worker.py", 0o755)
    put(tree / "usr/lib/amazon-ssm-agent/channel.py", HERE / "aws/channel.py")
    put(tree / UNITS / "amazon-ssm-agent.service", STANDINS / "ssm-agent/amazon-ssm-agent.service")
    write(tree / "var/lib/cloud/data/instance-id", f"{one.id}\n")


def alertmanager(tree: Path, sandbox: Sandbox) -> None:
    """The texts of messages, which upstream's Alertmanager has in its program, and Debian's in files beside it."""
    for name in ("default.tmpl", "email.tmpl"):
        put(tree / "usr/share/prometheus/alertmanager" / name, sandbox.state / "mirror/sandbox/alertmanager" / name)


def cloudwatch(tree: Path) -> None:
    """CloudWatch's agent."""
    standin, home = STANDINS / "cloudwatch-agent", tree / "opt/aws/amazon-cloudwatch-agent"
    for name in ("amazon-cloudwatch-agent", "amazon-cloudwatch-agent-ctl", "start-amazon-cloudwatch-agent"):
        put(home / "bin" / name, standin / "agent.py", 0o755)
    write(home / "bin/CWAGENT_VERSION", "1.300071.0b1720\n")
    put(tree / UNITS / "amazon-cloudwatch-agent.service", standin / "amazon-cloudwatch-agent.service")
    write(home / "etc/common-config.toml", "# A stand-in's: nothing is set.\n")
    write(home / "logs/amazon-cloudwatch-agent.log", "")


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
