# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What CloudFormation makes of ParallelCluster's templates, as far as the sandbox has it.

The artifacts in S3, tables, the private zone, launch templates, the head node's instance, and the metadata that
cfn-init reads. A login pool's instances are launched by machines.py, compute nodes by ParallelCluster.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ami import write

if TYPE_CHECKING:
    from register import Account
    from sandbox import Sandbox

HERE = Path(__file__).resolve().parent


class Stack:
    """The stack of one cluster."""

    def __init__(self, sandbox: Sandbox, cluster: dict[str, Any]) -> None:
        self.sandbox, self.cluster, self.name = sandbox, cluster, cluster["name"]
        self.folder = sandbox.state / "clusters" / self.name

    @property
    def aws(self) -> Account:
        return self.sandbox.aws

    def synthesise(self, overrides: Path | None, previous: Path | None = None) -> dict[str, Any]:
        """Have ParallelCluster make the cluster's templates, or update them from what it had by `previous`."""
        given = ["--overrides", str(overrides)] if overrides else []
        given += ["--previous", str(previous)] if previous else []
        print(self.templates(self.folder, *given), end="")
        return self.sandbox.told(self.name)

    def prepare(self) -> None:
        """Have ParallelCluster make the templates of a new cluster. They are cached until create() asks for them."""
        with tempfile.TemporaryDirectory(dir=self.sandbox.state) as folder:
            self.templates(Path(folder))

    def templates(self, out: Path, *given: str) -> str:
        line = [sys.executable, str(HERE / "parallelcluster/synthesize.py"), "--cluster", self.name, "--out", str(out)]
        done = subprocess.run([*line, *given], text=True, stdout=subprocess.PIPE, check=False)
        if done.returncode:
            sys.exit(done.returncode)
        return done.stdout

    def create(self) -> None:
        """Make what is not there. Everything that is there stays."""
        kept = self.state("overrides")
        head = self.cluster["head"]["name"]
        if head in self.aws.named():
            return
        told = self.synthesise(kept if kept.exists() else None)
        self.publish(told)
        for table in told["dynamodb_tables"]:
            self.aws.table(table)
        zone = told["head"]["dna"]["cluster"]
        self.aws.zone(zone["hosted_zone"], zone["dns_domain"], told["account"]["vpc"])
        template = (self.folder / "artifacts/templates/aws-parallelcluster.cfn.yaml").read_text()
        self.aws.stack(told, re.findall(r"^  (HeadNodeWaitCondition\d+):", template, re.MULTILINE)[0])
        self.aws.launch_head(told, head, self.cluster["head"]["address"])
        print(f"created the stack of {self.name}")

    def create_with(self, overrides: Path) -> int:
        """Create the stack with these parts in its configuration, and return 0; or 1 where the head node fails.

        That stays as it is, as with `--rollback-on-failure false`.
        """
        write(self.state("overrides"), overrides.read_text())
        self.create()
        self.sandbox.deadline(f"{self.name}: its head node", lambda: self.aws.signal(self.name).get("Status"), 2100)
        signal = self.aws.signal(self.name)
        failed = signal["Status"] != "SUCCESS"
        print(f"{self.name}: CREATE_FAILED: {signal['Reason']}" if failed else f"{self.name}: CREATE_COMPLETE")
        return int(failed)

    def delete(self) -> None:
        """Remove the cluster: the head node first, which would launch nodes anew. What is in FSx stays."""
        for folder in (self.folder, self.sandbox.state / "stacks" / self.name):
            shutil.rmtree(folder, ignore_errors=True)
        for part in ("overrides", "previous", "next"):
            self.state(part).unlink(missing_ok=True)
        for head in (True, False):
            found = [one for one in self.aws.alive(self.name) if (one.kind == "HeadNode") == head]
            if found:
                self.aws.ec2.terminate_instances(InstanceIds=[one.id for one in found])
            self.sandbox.deadline(f"{self.name}: termination", lambda ids=found: not self.sandbox.machines_of(ids), 120)
        shares = (f"{self.sandbox.prefix}{self.name}-{share}" for share in ("slurm", "home", "shared", "login"))
        self.sandbox.podman("volume", "rm", "--force", *shares)
        self.aws.drop_tables(self.name)
        self.aws.tell(self.name, {})
        self.aws.forget_stack(self.name)

    def publish(self, told: dict[str, Any]) -> None:
        """Put up what the nodes read: artifacts, launch templates, and the head node's metadata."""
        bucket, directory = told["artifacts"]["bucket"], told["artifacts"]["directory"]
        artifacts = self.folder / "artifacts"
        for path in artifacts.rglob("*"):
            if path.is_file():
                self.aws.upload(bucket, f"{directory}/{path.relative_to(artifacts)}", path.read_bytes())
        templates = [*told["compute_resources"], *told["login_pools"]]
        templates.append({"launch_template_name": f"{self.name}-HeadNode", **told["head"]})
        for template in templates:
            self.aws.template(template["launch_template_name"], template["launch_template_data"])
        stack = self.sandbox.state / "stacks" / self.name
        write(stack / "metadata.json", json.dumps(told["head"]["cfn_init"], indent=1))
        # Last, as nodes of a pool are launched from its template at once.
        write(stack / "login_pools.json", json.dumps(told["login_pools"], indent=1))

    # Updates

    def update(self, overrides: Path) -> int:
        """Update the stack, and return 0; or roll it back where the head node refuses, and return 1.

        cfn-hup on each node sees the new metadata within a minute or two; here it is told at once.
        """
        wanted, previous = overrides.read_text(), self.state("previous")
        write(previous, self.state("overrides").read_text() if self.state("overrides").exists() else "{}\n")
        write(self.state("next"), wanted)
        told = self.synthesise(self.state("next"), previous)
        write(self.state("overrides"), wanted)
        print(f"{self.name}: UPDATE_IN_PROGRESS", flush=True)
        if self.bring(told, "UPDATE_IN_PROGRESS"):
            print(f"{self.name}: UPDATE_COMPLETE")
            return 0
        print(f"{self.name}: UPDATE_ROLLBACK_IN_PROGRESS: {self.aws.signal(self.name)['Reason']}", flush=True)
        write(self.state("overrides"), previous.read_text())
        self.bring(self.synthesise(previous, self.state("next")), "UPDATE_ROLLBACK_IN_PROGRESS")
        print(f"{self.name}: UPDATE_ROLLBACK_COMPLETE")
        return 1

    def state(self, name: str) -> Path:
        """A file with parts of a configuration: those that are in force, the former ones, the next ones."""
        return self.sandbox.state / "clusters" / f"{self.name}-{name}.yaml"

    def bring(self, told: dict[str, Any], status: str) -> bool:
        self.publish(told)
        return self.hup(told, status)

    def hup(self, told: dict[str, Any], status: str) -> bool:
        """Let every node that runs take the update: the head node, and then those that wait for it."""
        self.aws.tell(self.name, {"Status": ""})
        self.aws.stack_status(self.name, status)
        others = [
            (name, one) for name, one in self.aws.named().items() if one.cluster == self.name and one.kind != "HeadNode"
        ]
        with ThreadPoolExecutor() as pool:
            head = pool.submit(self.act, self.cluster["head"]["name"], "/opt/aws/bin/cfn-init -s stack -v -c update")
            for name, one in others:
                pool.submit(self.act, name, self.on_node(told, one))
            head.result()
        return str(self.aws.signal(self.name).get("Status")) == "SUCCESS"

    def on_node(self, told: dict[str, Any], one: Any) -> str:
        """What cfn-hup's action does on a compute or login node: take the new attributes, and the update's recipe."""
        if one.kind == "LoginNode":
            found = next(pool for pool in told["login_pools"] if pool["pool"] == one.pool)
        else:
            queue = one.tags["parallelcluster:queue-name"]
            found = next(part for part in told["compute_resources"] if part["queue"] == queue)
        dna = json.dumps(found["dna"], indent=1)
        recipe = "cinc-client --override-runlist aws-parallelcluster-entrypoints::update"
        more = " && /opt/parallelcluster/scripts/fetch_and_run -postupdate" if one.kind == "LoginNode" else ""
        return f"cat > /etc/chef/dna.json << 'END'\n{dna}\nEND\n{recipe}{more}"

    def act(self, name: str, command: str) -> None:
        log = ">> /var/log/parallelcluster/cfn-hup-runner.log 2>&1"
        self.sandbox.podman("exec", self.sandbox.prefix + name, "bash", "-c", f"{{ {command}\n}} {log}", check=False)
