#!/usr/bin/env python3
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The sandbox: two look-alike ParallelClusters, and the services around them, in podman on a network of their own.

create.yml and destroy.yml call its steps in turn; `make node` calls `exec`. A step does only what is not done yet, and
prints one line for each thing that it did, so that a step that prints nothing changed nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import resource
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PREFIX = "postboot-"
POWER_DOWN_REQUESTED, POWERING_DOWN, POWERED_DOWN, POWERING_UP = "!%~#"  # what sinfo puts behind a node's state


class Sandbox:
    """The sandbox's state: what topology.yml asks for, what .sandbox holds, and what podman runs."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.topology = yaml.safe_load((HERE / "topology.yml").read_text())
        self.network = self.topology["network"]["name"]
        self.templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(HERE / "templates"),
            keep_trailing_newline=True,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.templates.tests["search"] = lambda text, part: part in text
        state.mkdir(parents=True, exist_ok=True)

    # What is there

    @cached_property
    def hybrid_cgroups(self) -> bool:
        """Whether this machine has version 1 cgroups, which crun refuses and Slurm can not use inside a container."""
        return not Path("/sys/fs/cgroup/cgroup.controllers").exists()

    @cached_property
    def environment(self) -> dict[str, str]:
        """podman's environment, with a configuration that fits this machine's cgroups and limits."""
        files, processes = (resource.getrlimit(limit)[1] for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC))
        lines = ["[engine]", 'events_logger = "file"', 'cgroup_manager = "cgroupfs"']
        if self.hybrid_cgroups:
            lines.append('runtime = "runc"')
        limits = ", ".join(
            f'"{name}={at_most}:{at_most}"'
            for name, at_most in (
                ("nofile", min(files, 65536) if files > 0 else 65536),
                ("nproc", min(processes, 32768) if processes > 0 else 32768),
            )
        )
        lines += ["[containers]", 'log_driver = "k8s-file"', f"default_ulimits = [{limits}]"]
        conf = self.state / "containers.conf"
        write(conf, "\n".join(lines) + "\n")
        return {**os.environ, "CONTAINERS_CONF": str(conf)}

    def podman(self, *arguments: str, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run podman quietly; its own words are shown only when it fails."""
        result = subprocess.run(
            ["podman", *arguments], env=self.environment, text=True, capture_output=True, check=False, **options
        )
        if check and result.returncode:
            sys.exit(f"podman {' '.join(arguments[:3])} … failed: {result.stderr.strip()}")
        return result

    def running(self) -> set[str]:
        return set(self.podman("ps", "--filter", f"name=^{PREFIX}", "--format", "{{.Names}}").stdout.split())

    @cached_property
    def clusters(self) -> dict[str, dict[str, Any]]:
        """The clusters with what templates need: names, host names, instance ids."""
        clusters = self.topology["clusters"]
        remembered = self.state / "instances.json"
        ids = json.loads(remembered.read_text()) if remembered.exists() else {}
        for name, spare in self.topology["spares"].items():
            clusters[spare["cluster"]]["nodes"][name] = {**spare, "spare": True}
        for cluster_name, cluster in clusters.items():
            cluster.update(name=cluster_name, hash=hashlib.sha256(cluster_name.encode()).hexdigest()[:16])
            for name, node in cluster["nodes"].items():
                hostname = name if node["type"] == "Compute" else "ip-" + node["address"].replace(".", "-")
                node.update(name=name, hostname=hostname, instance_id=ids.get(name), cluster=cluster_name)
                if node["type"] == "HeadNode":
                    cluster["head"] = node
        return clusters

    def nodes(self, *, spares: bool = False) -> list[dict[str, Any]]:
        return [n for c in self.clusters.values() for n in c["nodes"].values() if spares or not n.get("spare")]

    def node(self, name: str) -> dict[str, Any]:
        found = {node["name"]: node for node in self.nodes(spares=True)}
        if name not in found:
            sys.exit(f"NODE is {name!r}; the sandbox's nodes are {', '.join(found)}")
        return found[name]

    # Steps

    def images(self) -> None:
        """Build the node images, or find them built."""
        before = self.podman("images", "--quiet").stdout
        built = subprocess.run(
            [HERE / "images/build.sh", self.state / "cache"],
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            check=False,
        )
        if built.returncode:
            sys.exit("the node images could not be built: see the lines above")
        write(self.state / "images", built.stdout)
        if self.podman("images", "--quiet").stdout != before:
            print("built the node images")

    @cached_property
    def image(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in (self.state / "images").read_text().split())

    def mirror(self) -> None:
        """Fill the mirror's directory with every file that an upstream site would serve."""
        self.download()
        pins = self.state / "mirror/pins.json"
        before = json.loads(pins.read_text())["signing_key"] if pins.exists() else None
        line = [HERE / "mirror/build.sh", self.state / "mirror", self.image["base"]]
        done = subprocess.run(line, env=self.environment, text=True, stdout=subprocess.PIPE, check=False)
        if done.returncode:
            sys.exit("the mirror could not be filled: see the lines above")
        if done.stdout:
            print(done.stdout, end="")
            # These would go on to serve the old directory.
            self.podman("rm", "--force", "--ignore", PREFIX + "mirror", PREFIX + "registry", PREFIX + "amp")
            if before != json.loads(pins.read_text())["signing_key"] and self.running() - {PREFIX + "aws"}:
                sys.exit(
                    "the mirror has a new signing key, which the running nodes do not know: make sandbox-down first"
                )

    def download(self) -> None:
        """Fetch what no distribution has, the wheel of NCCL that the role pins, and keep it in the cache."""
        sys.path.insert(0, str(ROOT / "scripts"))
        import pins

        machine = platform.machine()
        found, variables = pins.pins_of(ROOT / "roles/nccl")
        url = pins.work_out("__nccl_cu13_url", variables, machine)
        digest = next(pin.recorded for pin in found if str(pin) == f"nccl_cu13_sha256['{machine}']")
        cache = self.state / "cache/downloads"
        wheel = cache / url.split("://", 1)[1]
        if wheel.exists():
            return
        for former in cache.rglob("nvidia_nccl_cu13-*"):
            former.unlink()
        name, version = wheel.name.split("-")[:2]
        with tempfile.TemporaryDirectory(dir=self.state) as folder:
            wanted = Path(folder) / "requirements.txt"
            wanted.write_text(f"{name}=={version} --hash=sha256:{digest}\n")  # pip refuses any other
            how = ("--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:", "--platform")
            line = [sys.executable, "-m", "pip", "download", *how, wheel.stem.split("-")[-1]]
            line += ["--dest", folder, "--requirement", str(wanted)]
            done = subprocess.run(line, stderr=subprocess.PIPE, text=True, check=False)
            if done.returncode:
                sys.exit(f"{wheel.name} could not be downloaded from the package index: {done.stderr.strip()}")
            wheel.parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / wheel.name).rename(wheel)
        print(f"fetched {wheel.name}")

    def services(self) -> None:
        """Start the AWS API, the mirror, the container registry and Amazon Managed Prometheus, and wait for them."""
        if self.podman("network", "exists", self.network, check=False).returncode:
            self.podman("network", "create", "--subnet", self.topology["network"]["subnet"], self.network)
        running = self.running()
        services = (
            ("mirror", 80, self.mirror_arguments()),
            ("aws", 5000, self.aws_arguments()),
            ("registry", 5001, self.registry_arguments()),
            ("amp", 9090, self.amp_arguments()),
        )
        for name, _, arguments in services:
            address = self.topology["services"][name]["address"]
            if PREFIX + name not in running:
                self.podman("rm", "--force", "--ignore", PREFIX + name)
                self.podman(
                    "run",
                    "--detach",
                    "--name",
                    PREFIX + name,
                    "--hostname",
                    name,
                    "--network",
                    self.network,
                    *placed_at(address),
                    *arguments,
                )
                print(f"booted {name} {address}")
        for name, port, _ in services:
            address = self.topology["services"][name]["address"]
            self.deadline(name, lambda at=(address, port): listens(at))

    def boot(self) -> None:
        """Start the nodes that are not running, and wait until their systemd is up."""
        running = self.running()
        for node in self.nodes():
            self.boot_node(node, running)
        for node in self.nodes():
            self.wait_for_systemd(node["name"])

    def mirror_arguments(self) -> list[str]:
        return [
            "--volume",
            f"{self.state}/mirror:/srv/mirror:ro",
            "--volume",
            f"{HERE}/mirror/nginx.conf:/etc/nginx/nginx.conf:ro",
            self.image["base"],
            "nginx",
            "-g",
            "daemon off;",
        ]

    def aws_arguments(self) -> list[str]:
        libraries = next((ROOT / ".venv/lib").glob("python3*/site-packages"))
        return [
            "--volume",
            f"{libraries}:/srv/libraries:ro",
            "--volume",
            f"{HERE}/aws:/srv/aws:ro",
            "--env",
            "PYTHONPATH=/srv/libraries",
            "--env",
            "PYTHONDONTWRITEBYTECODE=1",
            self.image["base"],
            "python3",
            "/srv/aws/server.py",
        ]

    def registry_arguments(self) -> list[str]:
        return [
            "--volume",
            f"{self.state}/mirror/sandbox:/srv/sandbox:ro",
            "--volume",
            f"{HERE}/registry:/srv/registry:ro",
            "--env",
            "PYTHONDONTWRITEBYTECODE=1",
            self.image["base"],
            "python3",
            "/srv/registry/serve.py",
        ]

    def amp_arguments(self) -> list[str]:
        libraries = next((ROOT / ".venv/lib").glob("python3*/site-packages"))
        return [
            "--volume",
            f"{self.state}/mirror:/srv/mirror:ro",
            "--volume",
            f"{libraries}:/srv/libraries:ro",
            "--volume",
            f"{HERE}/amp/serve.py:/srv/serve.py:ro",
            "--env",
            "PYTHONPATH=/srv/libraries",
            "--env",
            "PYTHONDONTWRITEBYTECODE=1",
            self.image["base"],
            "python3",
            "/srv/serve.py",
        ]

    def boot_node(self, node: dict[str, Any], running: set[str]) -> None:
        container, cluster = PREFIX + node["name"], self.clusters[node["cluster"]]
        if container in running:
            return
        tree = self.node_tree(node, cluster)
        self.podman("rm", "--force", "--ignore", "--volumes", container)
        # The one that had this address before had another host key.
        known = self.state / "ssh/known_hosts"
        subprocess.run(["ssh-keygen", "-q", "-R", node["address"], "-f", known], capture_output=True, check=False)
        volumes = [f"{tree}:/sandbox/node:ro", f"{container}-docker:/var/lib/docker"]
        volumes += [
            f"{PREFIX}{cluster['name']}-{share}:{at}"
            for share, at in (("slurm", "/opt/slurm"), ("home", "/home"), ("fsx", "/fsx"))
        ]
        if node["type"] == "HeadNode":
            volumes += [
                f"{self.state}/head-{cluster['name']}:/sandbox/head:ro",
                f"{self.state}/ssh/id.pub:/sandbox/authorized_keys:ro",
            ]
        names = [f"--add-host={other['hostname']}:{other['address']}" for other in cluster["nodes"].values()]
        names += [f"--add-host={name}:{service['address']}" for name, service in self.topology["services"].items()]
        self.podman(
            "run",
            "--detach",
            "--name",
            container,
            "--hostname",
            node["hostname"],
            "--network",
            self.network,
            *placed_at(node["address"]),
            "--systemd=always",
            "--privileged",
            *(["--cgroupns=private"] if self.hybrid_cgroups else []),
            *names,
            *(argument for volume in volumes for argument in ("--volume", volume)),
            self.image[cluster["image"]],
        )
        print(f"booted {node['name']} {node['address']}")

    def node_tree(self, node: dict[str, Any], cluster: dict[str, Any]) -> Path:
        """Write the files that ParallelCluster puts on this one node, and on a head node those of /opt/slurm/etc."""
        context = {
            "node": node,
            "cluster": cluster,
            "region": self.topology["region"],
            "hybrid_cgroups": self.hybrid_cgroups,
            "actions": node.get("spare") and self.actions_of(cluster).exists(),
        }
        tree = self.state / "nodes" / node["name"]
        write(tree / "etc/parallelcluster/cfnconfig", self.render("cfnconfig.j2", context))
        write(tree / "etc/chef/dna.json", self.render("dna.json.j2", context))
        write(
            tree / "opt/parallelcluster/.bootstrapped",
            f"aws-parallelcluster-cookbook-{self.topology['parallelcluster']}\n",
        )
        write(
            tree / "etc/machine-id", hashlib.sha256(node["name"].encode()).hexdigest()[:32] + "\n"
        )  # without one, systemd enables all that it finds
        for program in ("slurm_resume", "slurm_suspend"):
            write(
                tree / "opt/parallelcluster/scripts/slurm" / program,
                "#!/bin/sh\n# A stand-in: the sandbox's nodes are started by hand.\nexit 0\n",
            )
        if cluster["image"] == "el":
            write(tree / "etc/yum.repos.d/amazonlinux.repo", (HERE / "templates/amazonlinux.repo").read_text())
            keys = (
                self.state
                / "mirror/cdn.amazonlinux.com/al2023/core/mirrors/latest"
                / platform.machine()
                / "RPM-GPG-KEY-amazon-linux-2023"
            )
            write(tree / "etc/pki/rpm-gpg/RPM-GPG-KEY-amazon-linux-2023", keys.read_text())
        if node.get("gpus"):
            write(tree / "usr/bin/nvidia-smi", (HERE / "templates/nvidia-smi").read_text(), mode=0o755)
        if node["type"] != "Compute":
            imds = HERE / "standins/imds"
            tool = tree / "opt/parallelcluster/scripts/imds/imds-access.sh"
            write(tool, (imds / "imds-access.sh").read_text(), mode=0o744)
            for name in ("imds.py", "imds.sh"):
                write(tree / "sandbox" / name, (imds / name).read_text(), mode=0o755)
        if node["type"] == "Compute":
            write(tree / "etc/parallelcluster/slurm_plugin/slurm_nodename", node["name"])
            write(
                tree / "etc/parallelcluster/slurm_plugin/slurm_node_spec.json",
                self.render("slurm_node_spec.json.j2", context),
            )
        self.cloudwatch_agent(tree, context)
        self.custom_actions(tree, node, cluster)
        write(tree / "usr/bin/amazon-ssm-agent", (HERE / "standins/ssm-agent/agent.py").read_text(), mode=0o755)
        unit = "amazon-ssm-agent.service"
        write(tree / "etc/systemd/system" / unit, (HERE / "standins/ssm-agent" / unit).read_text())
        write(tree / "sandbox/boot.sh", self.render("boot.sh.j2", context))
        write(tree / "etc/munge/munge.key", self.secret(f"munge-{cluster['name']}"))
        if node["type"] == "HeadNode":
            etc = self.state / f"head-{cluster['name']}"
            for name in ("slurm.conf", "slurm_parallelcluster.conf", "gres.conf"):
                write(etc / name, self.render(f"{name}.j2", context))
            write(etc / "cgroup.conf", "CgroupAutomount=no\nConstrainCores=yes\n")
            write(etc / "pcluster/custom_slurm_settings_include_file_slurm.conf", "# CustomSlurmSettings\n")
            for kind in ("prolog.d", "epilog.d"):
                write(etc / "scripts" / kind / "90_pcluster_noop", "#!/bin/bash\nexit 0\n", mode=0o755)
            key = self.state / "ssh/id"
            if not key.exists():
                key.parent.mkdir(exist_ok=True)
                subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "sandbox", "-f", key], check=True)
        return tree

    def actions_of(self, cluster: dict[str, Any]) -> Path:
        """The cluster configuration by which spares boot, where it is there."""
        return self.state / f"cluster-config-{cluster['name']}.yaml"

    def custom_actions(self, tree: Path, node: dict[str, Any], cluster: dict[str, Any]) -> None:
        """Write the program that runs custom actions, and for a spare what they are."""
        standin, scripts = HERE / "standins/custom-actions", tree / "opt/parallelcluster/scripts"
        for name in ("custom_action_executor.py", "boot.sh"):
            write(scripts / name, (standin / name).read_text(), mode=0o755)
        unit = "cloud-final.service"
        write(tree / "etc/systemd/system" / unit, (standin / unit).read_text())
        if node.get("spare") and self.actions_of(cluster).exists():
            config = yaml.safe_load(self.actions_of(cluster).read_text())
            write(tree / "opt/parallelcluster/shared/cluster-config.yaml", json.dumps(config, indent=1))

    def cloudwatch_agent(self, tree: Path, context: dict[str, Any]) -> None:
        """Write the CloudWatch agent of an official AMI, with ParallelCluster's own configuration appended to it."""
        standin, home = HERE / "standins/cloudwatch-agent", tree / "opt/aws/amazon-cloudwatch-agent"
        for name in ("amazon-cloudwatch-agent", "amazon-cloudwatch-agent-ctl", "start-amazon-cloudwatch-agent"):
            write(home / "bin" / name, (standin / "agent.py").read_text(), mode=0o755)
        write(home / "bin/CWAGENT_VERSION", "1.300071.0b1720\n")
        unit = "amazon-cloudwatch-agent.service"
        write(tree / "etc/systemd/system" / unit, (standin / unit).read_text())
        own = self.render("cloudwatch_agent.json.j2", context)
        write(home / "etc/amazon-cloudwatch-agent.json", own)
        write(home / "etc/amazon-cloudwatch-agent.d/file_amazon-cloudwatch-agent.json", own)
        write(home / "etc/common-config.toml", "# A stand-in's: nothing is set.\n")
        write(home / "logs/amazon-cloudwatch-agent.log", "")
        write(tree / "var/lib/cloud/data/instance-id", f"{context['node']['instance_id']}\n")

    def render(self, template: str, context: dict[str, Any]) -> str:
        return self.templates.get_template(template).render(context)

    def secret(self, name: str) -> str:
        path = self.state / "secrets" / name
        if not path.exists():
            write(path, secrets.token_hex(64), mode=0o600)
        return path.read_text()

    def wait_for_systemd(self, name: str) -> None:
        """Wait until all units are up; one that lost a race for its version 1 cgroup at boot is started again."""
        again = "systemctl --failed --plain --no-legend | cut -d ' ' -f 1 | xargs --no-run-if-empty systemctl restart"

        def up() -> bool:
            state = self.podman("exec", PREFIX + name, "systemctl", "is-system-running", check=False).stdout.strip()
            if state == "degraded":
                self.podman("exec", PREFIX + name, "sh", "-c", again, check=False)
            return state == "running"

        # A spare may boot with custom actions.
        self.deadline(f"{name}: systemd", up, 600 if self.node(name).get("spare") else 60)

    def slurm(self, *names: str) -> None:
        """Tell Slurm where its nodes are, as ParallelCluster's clustermgtd does, and wait until they are idle."""
        for cluster in self.clusters.values():
            computes = [
                n
                for n in cluster["nodes"].values()
                if n["type"] == "Compute" and (n["name"] in names if names else not n.get("spare"))
            ]
            for node in computes:
                up = self.slurm_state(cluster, node) in ("IDLE", "ALLOCATED", "MIXED")
                if up and self.slurm_address(cluster, node) == node["address"]:
                    continue
                self.deadline(
                    f"{cluster['name']}: slurmctld",
                    lambda c=cluster: not self.slurm_command(c, "scontrol ping").returncode,
                )
                at = f"NodeName={node['name']} NodeAddr={node['address']} NodeHostname={node['name']}"
                self.slurm_command(cluster, f"scontrol update {at}")
                if not up:
                    self.podman("exec", PREFIX + node["name"], "systemctl", "restart", "slurmd")
                    self.deadline(
                        f"{node['name']} in Slurm", lambda c=cluster, n=node: self.slurm_state(c, n) == "IDLE"
                    )
                print(f"{node['name']} is idle in Slurm, at {node['address']}")

    def slurm_command(self, cluster: dict[str, Any], command: str) -> subprocess.CompletedProcess[str]:
        return self.podman("exec", PREFIX + cluster["head"]["name"], "bash", "-lc", command, check=False)

    def slurm_state(self, cluster: dict[str, Any], node: dict[str, Any]) -> str:
        states = self.slurm_command(
            cluster, f"sinfo --noheader --nodes={node['name']} --partition={node['queue']} --format=%T"
        ).stdout.split()
        return states[0].upper() if states else ""

    def slurm_address(self, cluster: dict[str, Any], node: dict[str, Any]) -> str:
        words = self.slurm_command(cluster, f"scontrol --oneliner show node {node['name']}").stdout.split()
        return next((word.partition("=")[2] for word in words if word.startswith("NodeAddr=")), "")

    def deadline(self, what: str, done: Any, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() > end:
                sys.exit(f"{what} is not ready after {seconds:.0f} s")
            time.sleep(0.5)

    def join(self, name: str) -> None:
        """Boot one of the spares, as when a job needs it: Slurm asks for it, and then it appears."""
        node = self.node(name)
        cluster = self.clusters[node["cluster"]]
        power_down = (POWER_DOWN_REQUESTED, POWERING_DOWN)
        self.deadline(f"{name}: power-down", lambda: not self.slurm_state(cluster, node).endswith(power_down), 240)
        self.slurm_command(cluster, f"scontrol update NodeName={name} State=POWER_UP")
        # One that appeared before Slurm has begun to power it up would count as rebooted by somebody else.
        self.deadline(f"{name}: power-up", lambda: self.slurm_state(cluster, node).endswith(POWERING_UP))
        self.register(name)
        self.boot_node(self.node(name), self.running())
        self.wait_for_systemd(name)
        failed = self.podman("exec", PREFIX + name, "cat", "/var/log/parallelcluster/bootstrap_error_msg", check=False)
        if not failed.returncode:
            sys.exit(f"{name} was not configured: {failed.stdout.strip()}")
        self.slurm(name)
        # From now on slurmd may be restarted without counting as a boot.
        self.podman("exec", PREFIX + name, "sed", "-i", "s/ -b'/'/", "/etc/sysconfig/slurmd")

    def leave(self, name: str) -> None:
        """End a spare as ParallelCluster does: Slurm powers it down, and then the instance is terminated."""
        node = self.node(name)
        cluster = self.clusters[node["cluster"]]
        self.slurm_command(cluster, f"scontrol update NodeName={name} State=POWER_DOWN_FORCE")
        # A job that is being ended comes first.
        down = (POWERING_DOWN, POWERED_DOWN)
        self.deadline(f"{name}: power-down", lambda: self.slurm_state(cluster, node).endswith(down), 240)
        self.podman("rm", "--force", "--ignore", "--volumes", "--time=0", PREFIX + name)
        self.aws.terminate(node)
        print(f"{name} has left")

    def register(self, *names: str) -> None:
        """Hold the nodes and the decoys as instances in the AWS API, and remember the nodes' instance ids."""
        wanted = [
            node for node in self.nodes(spares=True) if (node["name"] in names if names else not node.get("spare"))
        ]
        for node in wanted:
            node["instance_id"] = self.aws.ensure(node, self.clusters[node["cluster"]])
        for decoy in self.topology["decoys"] if not names else []:
            self.aws.ensure(decoy, self.clusters.get(decoy.get("cluster")))
        for line in self.aws.made:
            print(line)
        inventory = self.state / "inventory"
        inventory.mkdir(exist_ok=True)
        for part in (HERE / "inventory").iterdir():
            if not (inventory / part.name).exists():
                (inventory / part.name).symlink_to(part)
        write(
            self.state / "instances.json",
            json.dumps({n["name"]: n["instance_id"] for n in self.nodes(spares=True)}, indent=2) + "\n",
        )

    @cached_property
    def aws(self) -> Any:
        sys.path.insert(0, str(HERE / "aws"))
        from register import Account

        return Account(self.endpoint, self.topology)

    @property
    def endpoint(self) -> str:
        return f"http://{self.topology['services']['aws']['address']}:5000"

    def exec(self, name: str, command: str, user: str) -> int:
        """Run one command on a node in a login shell, and return its exit code."""
        self.node(name)
        if PREFIX + name not in self.running():
            how = f"sandbox.py join {name}" if self.node(name).get("spare") else "make sandbox"
            sys.exit(f"node {name} is not running: {how} boots it")
        terminal = ["--tty"] if sys.stdin.isatty() and sys.stdout.isatty() else []
        full = [
            "podman",
            "exec",
            "--interactive",
            *terminal,
            PREFIX + name,
            "runuser",
            "--login",
            user or "root",
            "--command",
            command,
        ]
        return subprocess.run(full, env=self.environment, check=False).returncode

    def variables(self, folder: str) -> None:
        """Write the sandbox's group_vars as a bundle can have them: a node has no file with the mirror's pins."""
        found = yaml.safe_load((HERE / "inventory/group_vars/pcluster.yml").read_text())
        kept = {name: value for name, value in found.items() if not name.startswith(("ansible_", "sandbox_state"))}
        kept["sandbox_pins"] = json.loads((self.state / "mirror/pins.json").read_text())
        write(Path(folder) / "pcluster.yml", yaml.safe_dump(kept))

    def status(self) -> None:
        """Say what runs and where to look."""
        running = self.running()
        for node in self.nodes(spares=True):
            if PREFIX + node["name"] in running:
                print(f"  {node['name']:<16} {node['address']:<14} {node['cluster']:<6} {node['type']}")
        services = self.topology["services"]
        print(f"  {'aws':<16} {self.endpoint}")
        print(f"  {'mirror':<16} http://{services['mirror']['address']}/")
        print(f"  {'registry':<16} http://{services['registry']['address']}:5000/v2/")
        print(f"  {'amp':<16} http://{services['amp']['address']}:9090")

    def destroy(self) -> None:
        """Remove every trace of the running sandbox. Images and the mirror's files stay, as a cache."""
        if not shutil.which("podman"):
            return  # nothing was ever set up here
        names = self.podman("ps", "--all", "--filter", f"name=^{PREFIX}", "--format", "{{.Names}}").stdout.split()
        if names:
            self.podman("rm", "--force", "--volumes", "--time=0", *names)
            print("removed " + ", ".join(name.removeprefix(PREFIX) for name in names))
        volumes = self.podman("volume", "ls", "--filter", f"name=^{PREFIX}", "--format", "{{.Name}}").stdout.split()
        if volumes:
            self.podman("volume", "rm", "--force", *volumes)
        if not self.podman("network", "exists", self.network, check=False).returncode:
            self.podman("network", "rm", "--force", self.network)
        for path in self.state.iterdir():
            if path.name not in ("cache", "mirror", "images", "containers.conf"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def purge(self) -> None:
        """Remove the cached images and the mirror's files as well."""
        self.destroy()
        images = [
            i
            for i in self.podman("images", "--format", "{{.Repository}}:{{.Tag}}").stdout.split()
            if i.startswith(f"localhost/{PREFIX}")
        ]
        if images:
            self.podman("rmi", "--force", *images)
        shutil.rmtree(self.state)


def write(path: Path, content: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != content:
        path.write_text(content)
    path.chmod(mode)


def listens(at: tuple[str, int]) -> bool:
    try:
        socket.create_connection(at, timeout=2).close()
    except OSError:
        return False
    return True


def placed_at(address: str) -> list[str]:
    """podman's arguments for an address, always with the same hardware address: others remember that for a minute."""
    return ["--ip", address, "--mac-address", "02:42:" + ":".join(f"{int(part):02x}" for part in address.split("."))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--state", type=Path, default=ROOT / ".sandbox", help="where the sandbox keeps its files (default: %(default)s)"
    )
    steps = parser.add_subparsers(dest="step", required=True)
    for step in ("images", "mirror", "services", "register", "boot", "slurm", "status", "destroy", "purge"):
        steps.add_parser(step, help=getattr(Sandbox, step).__doc__)
    for step in ("join", "leave"):
        steps.add_parser(step, help=getattr(Sandbox, step).__doc__).add_argument("name")
    steps.add_parser("variables", help=Sandbox.variables.__doc__).add_argument("folder")
    run = steps.add_parser("exec", help=Sandbox.exec.__doc__)
    run.add_argument("--user", default="root")
    run.add_argument("name")
    run.add_argument("command")
    arguments = vars(parser.parse_args())
    sandbox = Sandbox(arguments.pop("state").resolve())
    step = arguments.pop("step")
    if step == "exec":
        return sandbox.exec(**arguments)
    getattr(sandbox, step)(*arguments.values())
    return 0


if __name__ == "__main__":
    sys.exit(main())
