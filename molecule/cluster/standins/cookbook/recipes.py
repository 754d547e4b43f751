# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What ParallelCluster's recipes do to a node, as far as the collection or ParallelCluster's own daemons can tell.

README.md beside this file names the recipe of the cookbook behind each step. A step that fails is tried again as often
as there, and then fails the recipe.
"""

from __future__ import annotations

import grp
import json
import logging
import os
import pwd
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import jinja2
import slurm_config
import yaml

HERE = Path(__file__).resolve().parent
ETC = Path("/etc/parallelcluster")
PLUGIN = ETC / "slurm_plugin"
SHARED, SHARED_LOGIN = Path("/opt/parallelcluster/shared"), Path("/opt/parallelcluster/shared_login_nodes")
SCRIPTS = Path("/opt/parallelcluster/scripts")
SLURM = Path("/opt/slurm")
HEARTBEAT = SLURM / "etc/pcluster/.slurm_plugin/clustermgtd_heartbeat"
LOGS = Path("/var/log/parallelcluster")
ADMIN = "pcluster-admin"
IMDS = "http://169.254.169.254/latest"
log = logging.getLogger("recipes")


class Node:
    """The node that this runs on: its attributes, and what its instance is."""

    def __init__(self) -> None:
        self.dna: dict[str, Any] = json.loads(Path("/etc/chef/dna.json").read_text())["cluster"]
        self.type: str = self.dna["node_type"]
        self.cluster: str = self.dna["stack_name"]
        self.region: str = self.dna["region"]
        token = urllib.request.Request(
            f"{IMDS}/api/token", method="PUT", headers={"X-aws-ec2-metadata-token-ttl-seconds": "300"}
        )
        with urllib.request.urlopen(token, timeout=10) as answer:
            self.token = answer.read().decode()
        self.instance_id, self.address = self.metadata("instance-id"), self.metadata("local-ipv4")
        self.local_hostname = self.metadata("local-hostname")

    @property
    def is_head(self) -> bool:
        return self.type == "HeadNode"

    @property
    def is_compute(self) -> bool:
        return self.type == "ComputeFleet"

    @property
    def shared(self) -> Path:
        return SHARED_LOGIN if self.type == "LoginNode" else SHARED

    @property
    def config(self) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load((self.shared / "cluster-config.yaml").read_text())
        return found

    @property
    def version(self) -> tuple[int, ...]:
        """ParallelCluster's version, as the AMI has it."""
        found = Path("/opt/parallelcluster/.bootstrapped").read_text().strip().rsplit("-", 1)[1]
        return tuple(int(part) for part in found.split("."))

    @property
    def slurm_nodename(self) -> str:
        return (PLUGIN / "slurm_nodename").read_text().strip()

    @property
    def is_static(self) -> bool:
        return "-st-" in self.slurm_nodename

    def metadata(self, name: str) -> str:
        asked = urllib.request.Request(f"{IMDS}/meta-data/{name}", headers={"X-aws-ec2-metadata-token": self.token})
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return str(answer.read().decode())

    def aws(self, service: str) -> Any:
        return boto3.client(service, region_name=self.region)


# Small tools


def run(*line: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(line, text=True, capture_output=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(line)} ended with {done.returncode}: {(done.stderr or done.stdout).strip()}")
    return done


def again(what: Callable[[], Any], retries: int, delay: float) -> Any:
    """Call a function, and once more after each failure."""
    for attempt in range(retries):
        try:
            return what()
        except Exception as error:
            log.warning("attempt %d: %s", attempt + 1, error)
            time.sleep(delay)
    return what()


def write(path: Path, text: str, mode: int = 0o644, owner: str = "root", group: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    os.chown(path, pwd.getpwnam(owner).pw_uid, grp.getgrnam(group or owner).gr_gid)


def render(name: str, **values: Any) -> str:
    loader = jinja2.FileSystemLoader(HERE / "templates")
    env = jinja2.Environment(loader=loader, keep_trailing_newline=True, trim_blocks=True, lstrip_blocks=True)
    return env.get_template(name).render(**values)


def virtualenv(name: str) -> str:
    """Where a virtual environment of ParallelCluster has its programs; its own environment file names them."""
    return os.environ[f"{name.upper()}_VIRTUALENV_PATH"]


# init: before OnNodeStart


def init(node: Node) -> None:
    cfnconfig(node)
    if not node.is_head:
        mount_shared(node)
    cloudwatch(node)
    imds(node)
    fetch_config(node)
    if node.is_head:
        fleet_status(node)
    if node.is_compute:
        slurm_nodename(node)
    hostname(node)
    fetch_and_run(node)


def mount_shared(node: Node) -> None:
    """Wait until the head node exports its shared directories: mount.nfs tries for two minutes, eleven times."""

    def mount() -> None:
        end = time.monotonic() + 120
        while not (node.shared / "cluster-config-version").exists():
            if time.monotonic() > end:
                raise RuntimeError(f"mount.nfs: Connection timed out for {node.shared}")
            time.sleep(1)

    again(mount, 10, 6)


def cfnconfig(node: Node) -> None:
    write(ETC / "cfnconfig", render("cfnconfig.j2", **node.dna))


def cloudwatch(node: Node) -> None:
    if node.dna["cw_logging_enabled"] != "true":
        return
    home = Path("/opt/aws/amazon-cloudwatch-agent/etc")
    own = render("cloudwatch_agent.json.j2", hostname=socket.gethostname().split(".")[0], **node.dna)
    if not (home / "amazon-cloudwatch-agent.json").exists():
        write(home / "amazon-cloudwatch-agent.json", own)
        write(home / "amazon-cloudwatch-agent.d/file_amazon-cloudwatch-agent.json", own)
    run("systemctl", "enable", "--now", "--quiet", "amazon-cloudwatch-agent.service")


def imds(node: Node) -> None:
    if node.is_compute:
        return
    tool = str(SCRIPTS / "imds/imds-access.sh")
    run("bash", tool, "--flush")
    if node.dna.get("head_node_imds_secured", "true") == "true":  # a login node is not told
        run("bash", tool, "--allow", f"root,{ADMIN},{node.dna['cluster_user']}")
    for program, name in (("iptables-save", "iptables.rules"), ("ip6tables-save", "ip6tables.rules")):
        write(ETC / "sysconfig" / name, run(program).stdout)
    run("systemctl", "enable", "--now", "--quiet", "parallelcluster-iptables")


def fetch_config(node: Node, update: bool = False) -> None:
    config = node.shared / "cluster-config.yaml"
    version = node.dna["cluster_config_version"]
    if node.is_head:
        for folder in (SHARED, SHARED_LOGIN):
            folder.mkdir(parents=True, exist_ok=True)
        for key, name in (
            ("cluster_config_s3_key", "cluster-config.yaml"),
            ("instance_types_data_s3_key", "instance-types-data.json"),
            ("change_set_s3_key", "change-set.json"),
        ):
            target = SHARED / name
            if update and target.exists():
                shutil.copy(target, SHARED / f"previous-{name}")
            if update or (name != "change-set.json" and not target.exists()):
                node.aws("s3").download_file(node.dna["cluster_s3_bucket"], node.dna[key], str(target))
        shutil.copy(config, SHARED_LOGIN / "cluster-config.yaml")
        for folder in (SHARED, SHARED_LOGIN):
            write(folder / "cluster-config-version", version)
    elif update:
        delay = clock("cluster_config_version", 15)
        again(lambda: same_version(node.shared / "cluster-config-version", version), round(450 / delay), delay)
    elif not config.exists():
        raise RuntimeError(f"Cluster config not found in {config}")


def same_version(path: Path, version: str) -> None:
    if path.read_text() != version:
        raise RuntimeError(f"{path} is {path.read_text()}, not {version}")


def fleet_status(node: Node) -> None:
    for name in ("get-compute-fleet-status.sh", "update-compute-fleet-status.sh", "is_fleet_ready.sh"):
        write(Path("/usr/local/bin") / name, render(f"{name}.j2", **node.dna), 0o755)
    status = {"status": {"S": "RUNNING"}, "lastStatusUpdatedTime": {"S": now()}}
    item = {"Id": {"S": "COMPUTE_FLEET"}, "Data": {"M": status}}
    again(lambda: node.aws("dynamodb").put_item(TableName=node.dna["ddb_table"], Item=item), 3, 5)


def now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())


def slurm_nodename(node: Node) -> None:
    """Ask under which name clustermgtd, or the resume program, has launched this instance."""

    def asked() -> str:
        found = node.aws("dynamodb").query(
            TableName=node.dna["slurm_ddb_table"],
            IndexName="InstanceId",
            KeyConditionExpression="InstanceId = :instanceid",
            ExpressionAttributeValues={":instanceid": {"S": node.instance_id}},
        )["Items"]
        if not found:
            raise RuntimeError("Failed when retrieving Compute info from DynamoDB")
        return str(found[0]["Id"]["S"])

    name = again(asked, 30, 10)
    write(PLUGIN / "slurm_nodename", name)
    compute = {
        "queue-name": node.dna["scheduler_queue_name"],
        "compute-resource": node.dna["scheduler_compute_resource_name"],
        "name": name,
        "node-type": "static" if "-st-" in name else "dynamic",
        "instance-id": node.instance_id,
        "instance-type": node.metadata("instance-type"),
        "availability-zone": node.metadata("placement/availability-zone"),
        "address": node.address,
        "hostname": node.local_hostname,
    }
    spec = {
        "region": node.region,
        "cluster_name": node.cluster,
        "scheduler": "slurm",
        "node_role": "ComputeFleet",
        "instance_id": node.instance_id,
        "compute": compute,
    }
    write(PLUGIN / "slurm_node_spec.json", json.dumps(spec, indent=2) + "\n")


def hostname(node: Node) -> None:
    """Give a compute node the name that Slurm knows it by, and every node a line in /etc/hosts."""
    short, _dot, of_vpc = node.local_hostname.partition(".")
    of_cluster = node.dna["dns_domain"].rstrip(".")
    domain = of_vpc
    if node.is_compute:
        short, domain = node.slurm_nodename, of_cluster
    run("hostname", short)
    # podman has mounted these files: they are written, not replaced.
    Path("/etc/hostname").write_text(f"{short}\n")
    lines = [line for line in Path("/etc/hosts").read_text().splitlines() if not line.startswith(f"{node.address}\t")]
    lines = [line for line in lines if not line.startswith(f"{node.address} ")]
    Path("/etc/hosts").write_text("\n".join([*lines, f"{node.address} {short}.{domain} {short}"]) + "\n")
    Path("/etc/resolv.conf").write_text(
        re.sub(r"(?m)^search .*\n", "", Path("/etc/resolv.conf").read_text()) + f"search {of_cluster} {of_vpc}\n"
    )


def fetch_and_run(node: Node) -> None:
    spec = json.loads((PLUGIN / "slurm_node_spec.json").read_text())["compute"] if node.is_compute else {}
    values = {
        "python": f"{virtualenv('cookbook')}/python",
        "instance_id": node.instance_id,
        "instance_type": node.metadata("instance-type"),
        "address": node.address,
        "hostname": node.local_hostname,
        "zone": node.metadata("placement/availability-zone"),
        "resource": spec.get("compute-resource", ""),
        "config": node.shared / "cluster-config.yaml",
    }
    write(SCRIPTS / "fetch_and_run", render("fetch_and_run.j2", **values, dna=node.dna), 0o755)


# config: between OnNodeStart and OnNodeConfigured


def config(node: Node) -> None:
    authorized_keys(node)
    ephemeral_drives()
    fabric_manager()
    admin_user(node)
    supervisord(node)
    Path("/var/spool/slurmd").mkdir(exist_ok=True)
    if node.is_head:
        munge_key(node)
        head_node(node)
    else:
        again(lambda: copy_munge_key(node), 5, 10)
    write(Path("/etc/sudoers.d/99-parallelcluster-slurm"), render("sudoers.j2", node=virtualenv("node")), 0o600)
    if node.is_head:
        run("systemctl", "enable", "--now", "--quiet", "slurmctld")
        time.sleep(3)
        again(lambda: run("systemctl", "is-active", "--quiet", "slurmctld"), 5, 2)


def authorized_keys(node: Node) -> None:
    """The key pair of the instance, in the home directory that all nodes share."""
    if node.is_head:
        user = node.dna["cluster_user"]
        folder = Path("/home") / user / ".ssh"
        folder.mkdir(mode=0o700, exist_ok=True)
        os.chown(folder, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
        write(folder / "authorized_keys", node.metadata("public-keys/0/openssh-key"), 0o600, user)


def ephemeral_drives() -> None:
    """Mount the instance's own disks, and have that done at each later boot."""
    run("/usr/local/sbin/setup-ephemeral-drives.sh")
    run("systemctl", "enable", "--quiet", "setup-ephemeral")


def fabric_manager() -> None:
    """Start Fabric Manager where there are NVSwitches: those of p4 and p5."""
    devices = (path.read_text().strip() for path in Path("/sys/bus/pci/devices").glob("*/device"))
    if sum(device in ("0x1af1", "0x22a3") for device in devices) > 1:
        run("systemctl", "enable", "--now", "--quiet", "nvidia-fabricmanager")


def admin_user(node: Node) -> None:
    if not node.is_head:
        return
    home = Path("/home") / ADMIN
    home.mkdir(exist_ok=True)
    os.chown(home, pwd.getpwnam(ADMIN).pw_uid, pwd.getpwnam(ADMIN).pw_gid)
    # A real node has this from its instance profile, and reaches AWS by name.
    write(home / ".aws/config", render("aws_config.j2", endpoint=os.environ["AWS_ENDPOINT_URL"]), 0o600, ADMIN)
    os.chown(home / ".aws", pwd.getpwnam(ADMIN).pw_uid, pwd.getpwnam(ADMIN).pw_gid)
    run("groupadd", "--force", "--system", "pcluster-slurm-share")
    for user in ("slurm", ADMIN):
        run("usermod", "--append", "--groups", "pcluster-slurm-share", user)


def supervisord(node: Node) -> None:
    write(Path("/etc/supervisord.conf"), render("supervisord.conf.j2"))
    values = {"node_type": node.type, "admin": ADMIN, "node": virtualenv("node"), "loop": clock("fleet_status", 60)}
    values |= {key: node.dna.get(key) for key in ("region", "ddb_table")}
    write(ETC / "parallelcluster_supervisord.conf", render("parallelcluster_supervisord.conf.j2", **values))
    unit = render("supervisord.service.j2", cookbook=virtualenv("cookbook"))
    write(Path("/etc/systemd/system/supervisord.service"), unit)
    LOGS.mkdir(exist_ok=True)
    run("systemctl", "daemon-reload")


def munge_key(node: Node) -> None:
    """Make the cluster's key once, and share it with the nodes."""
    key = Path("/etc/munge/munge.key")
    if not (SHARED / ".munge/.munge.key").exists():
        write(key, secrets.token_hex(64), 0o600, "munge")
    for folder in (SHARED, SHARED_LOGIN):
        (folder / ".munge").mkdir(mode=0o700, exist_ok=True)
        shutil.copy(key, folder / ".munge/.munge.key")
        (folder / ".munge/.munge.key").chmod(0o600)
    run("systemctl", "enable", "--quiet", "munge")
    run("systemctl", "restart", "munge")


def copy_munge_key(node: Node) -> None:
    write(Path("/etc/munge/munge.key"), (node.shared / ".munge/.munge.key").read_text(), 0o600, "munge")
    run("systemctl", "enable", "--quiet", "munge")
    run("systemctl", "restart", "munge")


def head_node(node: Node) -> None:
    etc = SLURM / "etc"
    for kind in ("prolog.d", "epilog.d"):
        write(etc / "scripts" / kind / "90_pcluster_noop", "#!/bin/bash\nexit 0\n", 0o755)
    state = Path("/var/spool/slurm.state")
    state.mkdir(mode=0o700, exist_ok=True)
    os.chown(state, pwd.getpwnam("slurm").pw_uid, -1)
    if not Path("/var/log/slurmctld.log").exists():
        write(Path("/var/log/slurmctld.log"), "", 0o644, "slurm")
    limited = not Path("/sys/fs/cgroup/cgroup.controllers").exists()
    write(etc / "slurm.conf", render("slurm.conf.j2", version_1_cgroups=limited, **node.dna))
    write(etc / "cgroup.conf", render("cgroup.conf.j2", version_1_cgroups=limited))
    write(etc / "gres.conf", "include slurm_parallelcluster_gres.conf\n")
    slurm_config.generate(node.config, node.dna, socket.gethostname().split(".")[0], node.address)
    for program in ("resume", "suspend"):
        text = render(f"slurm_{program}.j2", node=virtualenv("node"), admin=ADMIN)
        write(SCRIPTS / f"slurm/slurm_{program}", text, 0o744, "slurm")
    for name, owner in (
        ("slurm_resume.log", ADMIN),
        ("slurm_resume.events", ADMIN),
        ("slurm_suspend.log", ADMIN),
        ("slurm_fleet_status_manager.log", ADMIN),
        ("clustermgtd.events", ADMIN),
        ("compute_console_output.log", ADMIN),
    ):
        if not (LOGS / name).exists():
            write(LOGS / name, "", 0o644, owner)
    daemons(node)


def daemons(node: Node) -> None:
    """Write what clustermgtd, computemgtd and Slurm's programs read."""
    values = {**node.dna, "heartbeat": HEARTBEAT, "address": node.address, "hostname": node.local_hostname}
    values |= {"instance_id": node.instance_id, "strategy": node.config["Scheduling"].get("ScalingStrategy")}
    HEARTBEAT.parent.mkdir(parents=True, exist_ok=True)
    os.chown(HEARTBEAT.parent, pwd.getpwnam(ADMIN).pw_uid, pwd.getpwnam(ADMIN).pw_gid)
    for name in ("clustermgtd", "slurm_resume", "slurm_suspend", "slurm_fleet_status_manager"):
        write(PLUGIN / f"parallelcluster_{name}.conf", render(f"{name}.conf.j2", **values))
    write(HEARTBEAT.parent / "parallelcluster_computemgtd.conf", render("computemgtd.conf.j2", **values))
    write(PLUGIN / "fleet-config.json", json.dumps(slurm_config.fleet(node.config), indent=4))


# finalize: after OnNodeConfigured


def finalize(node: Node) -> None:
    fetch_config(node)
    run("systemctl", "enable", "--quiet", "supervisord")
    run("systemctl", "restart", "supervisord")
    if node.is_compute:
        start_slurmd(node)
    if not node.is_head:
        deployed(node)
        return
    delay = clock("heartbeat", 10)
    again(lambda: HEARTBEAT.read_text(), round(300 / delay), delay)
    wait_static_fleet_running()
    wait_cluster_ready(node)


def start_slurmd(node: Node) -> None:
    options, file = f"-N {node.slurm_nodename}", Path("/etc/sysconfig/slurmd")
    if node.version >= (3, 16):  # a slurmd that does not say it makes slurmctld forget what clustermgtd has noted
        options += f" --instance-id={node.instance_id}"
    # A container has its machine's uptime: -b makes Slurm see that the node has booted since it was asked for.
    write(file, f"SLURMD_OPTIONS='{options} -b'\n")
    run("systemctl", "enable", "--now", "--quiet", "slurmd")
    time.sleep(3)
    again(lambda: run("systemctl", "is-active", "--quiet", "slurmd"), 5, 2)
    write(file, f"SLURMD_OPTIONS='{options}'\n")
    if node.is_static:
        scontrol = str(SLURM / "bin/scontrol")
        run(scontrol, "update", f"nodename={node.slurm_nodename}", "state=resume", "reason=Node start up", check=False)


def deployed(node: Node) -> None:
    """Note in DynamoDB with which version of the cluster's configuration this node is up."""
    data = {
        "cluster_config_version": {"S": node.dna["cluster_config_version"]},
        "status": {"S": "DEPLOYED"},
        "node_type": {"S": node.type},
        "lastUpdateTime": {"S": now()},
    }
    item = {"Id": {"S": f"CLUSTER_CONFIG.{node.instance_id}"}, "Data": {"M": data}}
    table = f"parallelcluster-{node.cluster}"
    again(lambda: node.aws("dynamodb").put_item(TableName=table, Item=item), 3, 5)


def wait_static_fleet_running() -> None:
    while run("/usr/local/bin/is_fleet_ready.sh").stdout.strip():
        status = json.loads(run("/usr/local/bin/get-compute-fleet-status.sh").stdout)
        if status["status"] == "PROTECTED":
            raise RuntimeError(
                "Cluster has been set to PROTECTED mode due to failures detected in static node provisioning"
            )
        log.info("Waiting for static fleet capacity provisioning")
        time.sleep(clock("wait_static_fleet_running", 15))
    log.info("Static fleet capacity is ready")


def clock(name: str, seconds: float) -> float:
    """One of upstream's clocks; /etc/sandbox/clocks.json has those that the sandbox runs faster."""
    found = Path("/etc/sandbox/clocks.json")
    return float(json.loads(found.read_text()).get(name, seconds)) if found.exists() else seconds


def wait_cluster_ready(node: Node) -> None:
    """Wait until every compute and login node that runs is up with this version of the configuration: 15 minutes."""
    delay = clock("wait_cluster_ready", 90)
    again(lambda: check_cluster_ready(node), round(900 / delay), delay)


def check_cluster_ready(node: Node) -> None:
    filters = [
        {"Name": "tag:parallelcluster:cluster-name", "Values": [node.cluster]},
        {"Name": "tag:parallelcluster:node-type", "Values": ["Compute", "LoginNode"]},
        {"Name": "instance-state-name", "Values": ["running"]},
    ]
    pages = node.aws("ec2").get_paginator("describe_instances").paginate(Filters=filters)
    ids = [one["InstanceId"] for page in pages for found in page["Reservations"] for one in found["Instances"]]
    missing, wrong = [], []
    for instance in ids:
        key = {"Id": {"S": f"CLUSTER_CONFIG.{instance}"}}
        item = node.aws("dynamodb").get_item(TableName=f"parallelcluster-{node.cluster}", Key=key).get("Item")
        version = item["Data"]["M"]["cluster_config_version"]["S"] if item else ""
        if not item:
            missing.append(instance)
        elif version != node.dna["cluster_config_version"]:
            wrong.append((instance, version))
    if missing or wrong:
        raise RuntimeError(
            "Check failed due to the following erroneous records:\n"
            f"  * missing records ({len(missing)}): {missing}\n  * wrong records ({len(wrong)}): {wrong}"
        )


# update: cfn-hup has seen a new version of the stack


def update(node: Node) -> None:
    fetch_config(node, update=True)
    if not node.is_head:
        fetch_and_run(node)
        deployed(node)
        return
    change_set = json.loads((SHARED / "change-set.json").read_text())["changeSet"]
    queues = [change for change in change_set if "SlurmQueues" in change["parameter"]]
    supervisorctl = f"{virtualenv('cookbook')}/supervisorctl"
    if queues:
        run(supervisorctl, "stop", "clustermgtd")
    replace_queue_nodes(node, change_set)
    slurm_config.generate(node.config, node.dna, socket.gethostname().split(".")[0], node.address)
    daemons(node)
    if queues:
        run("systemctl", "restart", "slurmctld")
    time.sleep(clock("after_restart", 5))
    again(lambda: run("systemctl", "is-active", "--quiet", "slurmctld"), 5, 2)
    if queues:
        again(lambda: run(str(SLURM / "bin/scontrol"), "reconfigure"), 3, 5)
    time.sleep(clock("after_reconfigure", 15))
    wait_cluster_ready(node)
    if queues:
        run(supervisorctl, "start", "clustermgtd")


def replace_queue_nodes(node: Node, change_set: list[dict[str, Any]]) -> None:
    """Drain or end the nodes of queues that a change replaces, as QueueUpdateStrategy says."""
    strategy = node.config["Scheduling"]["SlurmSettings"].get("QueueUpdateStrategy")
    if strategy not in ("DRAIN", "TERMINATE"):
        return
    for change in change_set:
        queue = re.search(r"Scheduling\.SlurmQueues\[([^\]]*)\]", change["parameter"])
        if change["updatePolicy"] != "QUEUE_UPDATE_STRATEGY" or not queue:
            continue
        for nodes in slurm_config.nodes_of(queue[1]):
            dynamic = "POWER_DOWN_ASAP" if strategy == "DRAIN" else "POWER_DOWN_FORCE"
            state = "DRAIN" if strategy == "DRAIN" and "-st-" in nodes else dynamic
            reason = "reason=updating node state during cluster update"
            run(str(SLURM / "bin/scontrol"), "update", f"state={state}", f"nodename={nodes}", reason)


RECIPES = {"init": init, "config": config, "finalize": finalize, "update": update}

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="[%(asctime)s] %(levelname)s: %(message)s")
    logging.getLogger("botocore").setLevel(logging.WARNING)
    try:
        RECIPES[sys.argv[1]](Node())
    except Exception as error:
        log.exception("FATAL: %s", error)
        sys.exit(1)
