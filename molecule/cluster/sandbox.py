#!/usr/bin/env python3
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The sandbox: two look-alike ParallelClusters, and the services around them, in podman on a network of their own.

create.yml and destroy.yml call its steps in turn; `make node` calls `exec`. A step does only what is not done yet, and
prints one line for each thing that it did, so that a step that prints nothing changed nothing. What nodes are told is
ParallelCluster's own (parallelcluster/). What CloudFormation would make of it is in deploy.py, what an AMI has in
ami.py, and which container runs for which instance in machines.py.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import ami
import deploy
import jinja2
import machines
import yaml
from ami import write

if TYPE_CHECKING:
    from collections.abc import Callable

    from machines import Instance

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PREFIX = "postboot-"
# The process of machines.py. One file for this computer, as podman's names are: whichever checkout removes a sandbox
# ends what follows its machines.
FOLLOWER = Path("/run/postboot-sandbox.pid")


class Sandbox:
    """The sandbox's state: what topology.yml asks for, what .sandbox holds, and what podman runs."""

    prefix = PREFIX
    # The program's steps, with what each needs.
    steps: ClassVar[dict[str, tuple[str, ...]]] = {
        **dict.fromkeys(("prepare", "services", "deploy", "boot", "machines", "status", "destroy", "purge"), ()),
        **dict.fromkeys(("join", "leave", "delete"), ("name",)),
        **dict.fromkeys(("create", "update"), ("name", "overrides")),
        "cluster_config": ("name", "file"),
        "variables": ("folder",),
    }

    def __init__(self, state: Path) -> None:
        self.state = state
        self.topology = self.wanted()
        self.network = self.topology["network"]["name"]
        self.templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(HERE / "templates"),
            keep_trailing_newline=True,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.templates.tests["search"] = lambda text, part: part in text
        state.mkdir(parents=True, exist_ok=True)

    def wanted(self) -> dict[str, Any]:
        """What the sandbox is to hold."""
        found: dict[str, Any] = yaml.safe_load((HERE / "topology.yml").read_text())
        return found

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
        """The clusters of topology.yml, with their names."""
        clusters: dict[str, dict[str, Any]] = self.topology["clusters"]
        for name, cluster in clusters.items():
            cluster["name"] = name
            for key, node in cluster["nodes"].items():
                node.update(name=key, cluster=name)
                if node["type"] == "HeadNode":
                    cluster["head"] = node
        return clusters

    def nodes(self) -> list[dict[str, Any]]:
        return [node for cluster in self.clusters.values() for node in cluster["nodes"].values()]

    def told(self, cluster: str) -> dict[str, Any]:
        """What ParallelCluster tells EC2 of a cluster; nothing before it was deployed."""
        found = self.state / "clusters" / cluster / "cluster.json"
        return json.loads(found.read_text()) if found.exists() else {}

    def fixed_name(self, one: Instance) -> str:
        """The name of a machine of which there is one: the monitoring instance, a head node, a login pool's node."""
        if one.kind == "monitoring":
            return str(self.topology["monitoring"]["name"])
        for node in self.clusters[one.cluster]["nodes"].values():
            if node["type"] == one.kind != "Compute" and node.get("pool", "") == one.pool:
                return str(node["name"])
        return ""

    @cached_property
    def public_key(self) -> str:
        """The key pair of the account."""
        key = self.state / "ssh/id"
        if not key.exists():
            key.parent.mkdir(exist_ok=True)
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "sandbox", "-f", key], check=True)
        return key.with_suffix(".pub").read_text()

    # Steps

    def prepare(self) -> None:
        """Build the node images, fill the mirror, and have ParallelCluster make its templates, side by side."""
        with ThreadPoolExecutor() as pool:
            beside = [pool.submit(stack.prepare) for stack in self.stacks()]
            base = pool.submit(self.build, "base")
            beside.append(pool.submit(self.images, base.result))
            self.mirror(base.result)
            for one in beside:
                one.result()

    def stacks(self) -> list[deploy.Stack]:
        """The stacks of the clusters that ParallelCluster makes."""
        return [self.stack(name) for name in self.clusters]

    def images(self, base: Callable[[], str]) -> None:
        """Build the node images once their base is built, or find them built."""
        base()
        before = self.podman("images", "--quiet").stdout
        write(self.state / "images", self.build("all"))
        if self.podman("images", "--quiet").stdout != before:
            print("built the node images")

    def build(self, what: str) -> str:
        """Build the image `base`, or `all`, or find them built; return their tags. `tag` is base's, and builds none."""
        line = [HERE / "images/build.sh", self.state / "cache", what]
        built = subprocess.run(line, env=self.environment, text=True, stdout=subprocess.PIPE, check=False)
        if built.returncode:
            sys.exit("the node images could not be built: see the lines above")
        return built.stdout

    @cached_property
    def image(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in (self.state / "images").read_text().split())

    def mirror(self, base: Callable[[], str]) -> None:
        """Fill the mirror's directory with every file that an upstream site would serve."""
        self.download()
        pins = self.state / "mirror/pins.json"
        before = json.loads(pins.read_text())["signing_key"] if pins.exists() else None
        sources = os.environ.get("SANDBOX_SOURCES", "standins")
        if sources not in ("standins", "internet"):
            sys.exit(f"SANDBOX_SOURCES is {sources!r}; needed: standins or internet")
        line = [HERE / "mirror/build.sh", self.state / "mirror", self.build("tag").split("=", 1)[1].strip()]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(line, env=self.environment, **pipes) as filling:
            base()
            printed, _ = filling.communicate("the image is there\n")
        if filling.returncode:
            sys.exit("the mirror could not be filled: see the lines above")
        upstream = self.upstream() if sources == "internet" else []
        if printed or upstream:
            print(printed, end="")
            for name in upstream:
                print(f"fetched upstream's {name}")
            # These would go on to serve the old directory.
            self.podman("rm", "--force", "--ignore", PREFIX + "mirror", PREFIX + "registry", PREFIX + "amp")
            if before != json.loads(pins.read_text())["signing_key"] and self.running() - {PREFIX + "aws"}:
                sys.exit(
                    "the mirror has a new signing key, which the running nodes do not know: make sandbox-down first"
                )

    def upstream(self) -> list[str]:
        """Put upstream's own releases into the mirror, and return which are new there."""
        sys.path.insert(0, str(HERE / "mirror"))
        import internet

        try:
            return internet.fill(self.state / "mirror", platform.machine())
        except BaseException:
            (self.state / "mirror/.stamp").unlink()  # the next run begins with the stand-ins
            raise

    def download(self) -> None:
        """Fetch what no distribution has, the wheels that roles pin, and keep them in the cache."""
        sys.path.insert(0, str(ROOT / "scripts"))
        import pins

        machine = platform.machine()
        for role, url, pin in (
            ("nccl", "__nccl_cu13_url", f"nccl_cu13_sha256['{machine}']"),
            ("neuron_exporter", "__neuron_exporter_url", "neuron_exporter_sha256['noarch']"),
        ):
            found, variables = pins.pins_of(ROOT / "roles" / role)
            self.wheel(pins.work_out(url, variables, machine), next(one.recorded for one in found if str(one) == pin))

    def wheel(self, url: str, digest: str) -> None:
        cache = self.state / "cache/downloads"
        wheel = cache / url.split("://", 1)[1]
        if wheel.exists():
            return
        name, version, *_, system = wheel.stem.split("-")
        for former in cache.rglob(f"{name}-*"):
            former.unlink()
        with tempfile.TemporaryDirectory(dir=self.state) as folder:
            wanted = Path(folder) / "requirements.txt"
            wanted.write_text(f"{name}=={version} --hash=sha256:{digest}\n")  # pip refuses any other
            how = ("--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:", "--platform")
            line = [sys.executable, "-m", "pip", "download", *how, system]
            line += ["--dest", folder, "--requirement", str(wanted)]
            done = subprocess.run(line, stderr=subprocess.PIPE, text=True, check=False)
            if done.returncode:
                sys.exit(f"{wheel.name} could not be downloaded from the package index: {done.stderr.strip()}")
            wheel.parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / wheel.name).rename(wheel)
        print(f"fetched {wheel.name}")

    def services(self) -> None:
        """Start the AWS API, the mirror, the container registry and Amazon Managed Prometheus, and wait for them."""
        self.serve()
        if not machines.runs(FOLLOWER):
            line = [sys.executable, str(HERE / "sandbox.py"), "--state", str(self.state), "machines"]
            machines.start(line, self.state / "machines.log", FOLLOWER)
            print("started the machines' follower")

    def serve(self) -> None:
        if self.podman("network", "exists", self.network, check=False).returncode:
            subnet = self.topology["network"]["subnet"]
            # Names are answered by the AWS API, from Route 53.
            self.podman("network", "create", "--disable-dns", "--subnet", subnet, self.network)
        running = self.running()
        services = (
            ("mirror", 80, self.mirror_arguments()),
            ("aws", 5000, self.aws_arguments()),
            ("registry", 5001, self.registry_arguments()),
            ("amp", 9090, self.amp_arguments()),
        )
        for name, _, arguments in services:
            address, container = self.topology["services"][name]["address"], self.container(name)
            if container not in running:
                self.podman("rm", "--force", "--ignore", container)
                self.podman(
                    "run",
                    "--detach",
                    "--name",
                    container,
                    "--hostname",
                    name,
                    "--network",
                    self.network,
                    *placed_at(address),
                    *arguments,
                )
                print(f"booted {container.removeprefix(PREFIX)} {address}")
        for name, port, _ in services:
            address = self.topology["services"][name]["address"]
            self.deadline(name, lambda at=(address, port): listens(at))

    def container(self, service: str) -> str:
        """The name of a service's container."""
        return PREFIX + str(self.topology["services"][service].get("container", service))

    def machines(self) -> None:
        """Keep one container for each instance that runs, until this is ended."""
        machines.Machines(self).follow()

    def deploy(self) -> None:
        """Make of each cluster what CloudFormation would: launch templates, tables, and the head node's instance."""
        for cluster in self.clusters.values():
            deploy.Stack(self, cluster).create()
        vpc = self.aws.subnet()["VpcId"]
        self.aws.launch_monitoring(self.render("monitoring.sh.j2", {"vpc": vpc, **self.topology}))
        for decoy in self.topology["decoys"]:
            self.aws.ensure(decoy)
        for line in self.aws.made:
            print(line)
        inventory = self.state / "inventory"
        inventory.mkdir(exist_ok=True)
        for part in (HERE / "inventory").iterdir():
            if not (inventory / part.name).exists():
                (inventory / part.name).symlink_to(part)

    def boot(self) -> None:
        """Wait until every node of topology.yml is up: ParallelCluster itself has launched the compute nodes."""
        before = self.state / "up"
        waits = {node["name"] for node in [*self.nodes(), self.topology["monitoring"]]}
        ids = {name: one.id for name, one in self.aws.named().items() if name in waits}
        if before.exists() and json.loads(before.read_text()) == ids and len(ids) == len(waits):
            return
        for cluster in self.clusters.values():
            self.deadline(f"{cluster['name']}: its head node", lambda c=cluster: self.signalled(c), 600)
        for name in [*(node["name"] for node in self.nodes()), self.topology["monitoring"]["name"]]:
            self.wait_for_systemd(name)
            print(f"{name} is up, at {self.aws.named()[name].address}")
        write(before, json.dumps({name: one.id for name, one in self.aws.named().items() if name in waits}))

    def signalled(self, cluster: dict[str, Any]) -> bool:
        """Whether the head node has told CloudFormation that all is up; ends the program where it has failed."""
        signal = self.aws.signal(cluster["name"])
        if signal.get("Status") == "FAILURE":
            sys.exit(f"the head node of {cluster['name']} has failed: {signal['Reason']}")
        return signal.get("Status") == "SUCCESS"

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
            "--volume",
            f"{HERE}/parallelcluster:/srv/parallelcluster:ro",
            "--volume",
            f"{HERE}/topology.yml:/srv/topology.yml:ro",
            "--env",
            "PYTHONPATH=/srv/libraries:/srv/parallelcluster",
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

    def boot_machine(self, one: Instance, name: str, user_data: str) -> None:
        """Start the container of an instance."""
        tree = ami.lay(self, one, user_data)
        volumes, names, image = [f"{tree}:/sandbox/node:ro"], [], self.topology["monitoring"]["image"]
        if one.cluster:
            volumes += self.shares(one)
            head, image = self.clusters[one.cluster]["head"]["address"], self.clusters[one.cluster]["image"]
            names.append(f"--add-host=ip-{head.replace('.', '-')}:{head}")
        self.start_machine(one, name, f"{machines.LABEL}={one.id}", self.image[image], volumes, names)

    def start_machine(
        self, one: Instance, name: str, label: str, image: str, volumes: list[str], names: list[str]
    ) -> None:
        """Start a container that is a machine; `names` are podman's arguments for names that the machine knows."""
        # The one that had this address before had another host key.
        known = self.state / "ssh/known_hosts"
        subprocess.run(["ssh-keygen", "-q", "-R", one.address, "-f", known], capture_output=True, check=False)
        services = self.topology["services"].items()
        self.podman(
            "run",
            "--detach",
            "--name",
            PREFIX + name,
            "--label",
            label,
            "--hostname",
            one.hostname,
            "--network",
            self.network,
            *placed_at(one.address),
            "--dns",
            self.topology["services"]["aws"]["address"],
            "--systemd=always",
            "--privileged",
            *(["--cgroupns=private"] if self.hybrid_cgroups else []),
            *names,
            *(f"--add-host={key}:{service['address']}" for key, service in services),
            *(argument for volume in volumes for argument in ("--volume", volume)),
            image,
        )

    def shares(self, one: Instance) -> list[str]:
        """The volumes of a node of a cluster: those that nodes share, and its own disks."""
        shared = [("slurm", "/opt/slurm"), ("home", "/home"), ("fsx", "/fsx")]
        shared += [("shared", "/opt/parallelcluster/shared")] if one.kind != "LoginNode" else []
        shared += [("login", "/opt/parallelcluster/shared_login_nodes")] if one.kind != "Compute" else []
        volumes = [f"{PREFIX}{one.id}-docker:/var/lib/docker"]
        volumes += [f"{PREFIX}{one.cluster}-{share}:{at}" for share, at in shared]
        if self.topology["instance_types"].get(one.type, {}).get("instance_store"):
            volumes.append(f"{PREFIX}{one.id}-store:/sandbox/instance-store")
        if one.kind == "HeadNode":
            volumes.append(f"{self.state}/stacks/{one.cluster}:/sandbox/stack:ro")
        return volumes

    def render(self, template: str, context: dict[str, Any]) -> str:
        return self.templates.get_template(template).render(context)

    def wait_for_systemd(self, name: str) -> None:
        """Wait until all units are up; one that lost a race for its version 1 cgroup at boot is started again."""
        again = "systemctl --failed --plain --no-legend | cut -d ' ' -f 1 | xargs --no-run-if-empty systemctl restart"

        def up() -> bool:
            state = self.podman("exec", PREFIX + name, "systemctl", "is-system-running", check=False).stdout.strip()
            if state == "degraded":
                self.podman("exec", PREFIX + name, "sh", "-c", again, check=False)
            return state == "running"

        self.deadline(f"{name}: systemd", up, 600)

    def slurm_command(self, cluster: dict[str, Any], command: str) -> subprocess.CompletedProcess[str]:
        return self.podman("exec", PREFIX + cluster["head"]["name"], "bash", "-lc", command, check=False)

    def slurm_state(self, cluster: dict[str, Any], name: str) -> str:
        """A node's state as sinfo has it, such as IDLE or POWERED_DOWN~."""
        states = self.slurm_command(cluster, f"sinfo --noheader --nodes={name} --Format=StateComplete").stdout.split()
        return states[0].upper() if states else ""

    def cluster_of(self, name: str) -> dict[str, Any]:
        """The cluster that has a compute node of this name, whether it runs or not."""
        for cluster in self.clusters.values():
            if self.slurm_state(cluster, name):
                return cluster
        sys.exit(f"NODE is {name!r}; no cluster of the sandbox has a compute node of that name")

    def deadline(self, what: str, done: Any, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() > end:
                sys.exit(f"{what} is not ready after {seconds:.0f} s")
            time.sleep(0.5)

    def join(self, name: str) -> None:
        """Have a job ask for a dynamic node, which ParallelCluster then launches, and wait until it has run there."""
        cluster, queue = self.cluster_of(name), name.split("-dy-")[0]
        self.deadline(f"{name}: power-down", lambda: "POWERING_DOWN" not in self.slurm_state(cluster, name), 300)
        job = f"timeout 1500 srun --partition={queue} --nodelist={name} true"
        done = self.slurm_command(cluster, f"runuser --login {cluster['user']} --command '{job}'")
        if done.returncode:
            sys.exit(f"no job ran on {name}: srun ended with {done.returncode}: {done.stderr.strip()}")
        self.wait_for_systemd(name)
        print(f"{name} is up, at {self.aws.named()[name].address}")

    def leave(self, name: str) -> None:
        """End a dynamic node through Slurm. clustermgtd terminates its instance within a minute."""
        cluster = self.cluster_of(name)
        self.slurm_command(cluster, f"scontrol update nodename={name} state=power_down_force")
        print(f"{name} is powered down")

    def stack(self, name: str) -> deploy.Stack:
        if name not in self.clusters:
            sys.exit(f"CLUSTER is {name!r}; the sandbox's clusters are {', '.join(self.clusters)}")
        return deploy.Stack(self, self.clusters[name])

    def create(self, name: str, overrides: str) -> None:
        """Create a cluster with what a YAML file has in its configuration, as `pcluster create-cluster` does."""
        sys.exit(self.stack(name).create_with(Path(overrides)))

    def update(self, name: str, overrides: str) -> None:
        """Update a cluster's configuration with what a YAML file has, as `pcluster update-cluster` does."""
        sys.exit(self.stack(name).update(Path(overrides)))

    def delete(self, name: str) -> None:
        """Delete a cluster, as `pcluster delete-cluster` does."""
        self.stack(name).delete()

    def machines_of(self, instances: list[Instance]) -> set[str]:
        """The containers that these instances still have."""
        return {one.id for one in instances} & machines.Machines(self).containers().keys()

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
        if PREFIX + name not in self.running():
            runs = sorted(one.removeprefix(PREFIX) for one in self.running())
            sys.exit(f"NODE is {name!r}, which does not run; these do: {', '.join(runs)}")
        terminal = ["--tty"] if sys.stdin.isatty() and sys.stdout.isatty() else []
        shell = ["runuser", "--login", user or "root", "--command", command]
        full = ["podman", "exec", "--interactive", *terminal, PREFIX + name, *shell]
        return subprocess.run(full, env=self.environment, check=False).returncode

    def variables(self, folder: str) -> None:
        """Write the sandbox's group_vars as a bundle can have them: a node has no file with the mirror's pins."""
        found = yaml.safe_load((HERE / "inventory/group_vars/pcluster.yml").read_text())
        kept = {name: value for name, value in found.items() if not name.startswith(("ansible_", "sandbox_state"))}
        kept["sandbox_pins"] = json.loads((self.state / "mirror/pins.json").read_text())
        write(Path(folder) / "pcluster.yml", yaml.safe_dump(kept, sort_keys=False))

    def cluster_config(self, name: str, file: str) -> None:
        """Write the variables of the playbook cluster_config that a cluster has of its own: network and machines."""
        sys.path.insert(0, str(HERE / "parallelcluster"))
        from synthesize import variables

        elsewhere = {"subnet_login": "", "subnet_compute": "", "security_groups": [], "fsx_openzfs": ""}
        own = {**variables(self.topology, name), **elsewhere}
        del own["components"]  # users choose these
        write(Path(file), yaml.safe_dump({f"cluster_config_{key}": value for key, value in own.items()}))

    def status(self) -> None:
        """Say what runs and where to look."""
        for name, one in sorted(self.aws.named().items(), key=lambda pair: (pair[1].cluster, pair[1].kind, pair[0])):
            if one.cluster in self.clusters or one.kind == "monitoring":
                print(f"  {name:<16} {one.address:<14} {one.cluster:<6} {one.kind}")
        services = self.topology["services"]
        print(f"  {'aws':<16} {self.endpoint}")
        print(f"  {'mirror':<16} http://{services['mirror']['address']}/")
        print(f"  {'registry':<16} http://{services['registry']['address']}:5000/v2/")
        print(f"  {'amp':<16} http://{services['amp']['address']}:9090")

    def destroy(self) -> None:
        """Remove every trace of the running sandbox. Images and the mirror's files stay, as a cache."""
        if not shutil.which("podman"):
            return  # nothing was ever set up here
        machines.stop(FOLLOWER)
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


def listens(at: tuple[str, int]) -> bool:
    try:
        socket.create_connection(at, timeout=2).close()
    except OSError:
        return False
    return True


def placed_at(address: str) -> list[str]:
    """podman's arguments for an address, always with the same hardware address: others remember that for a minute."""
    return ["--ip", address, "--mac-address", "02:42:" + ":".join(f"{int(part):02x}" for part in address.split("."))]


def main(kind: type[Sandbox] = Sandbox) -> int:
    told = sys.modules[kind.__module__].__doc__
    parser = argparse.ArgumentParser(description=told, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--state", type=Path, default=ROOT / ".sandbox", help="where the sandbox keeps its files (default: %(default)s)"
    )
    steps = parser.add_subparsers(dest="step", required=True)
    for name, needed in kind.steps.items():
        step = steps.add_parser(name, help=getattr(kind, name).__doc__)
        for argument in needed:
            step.add_argument(argument)
    run = steps.add_parser("exec", help=kind.exec.__doc__)
    run.add_argument("--user", default="root")
    run.add_argument("name")
    run.add_argument("command")
    arguments = vars(parser.parse_args())
    sandbox = kind(arguments.pop("state").resolve())
    name = arguments.pop("step")
    if name == "exec":
        return sandbox.exec(**arguments)
    getattr(sandbox, name)(*arguments.values())
    return 0


if __name__ == "__main__":
    sys.exit(main())
