# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""docs/first-cluster.md as a newcomer follows it: the page's files are written, and the page's commands are run.

tests/unit/playbooks/test_first_cluster.py goes as far as the configuration, test_first_cluster.py here to the end.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import ClientError

SCENARIO = Path(__file__).resolve().parent.parent
ROOT = SCENARIO.parent.parent
PAGE = (ROOT / "docs/first-cluster.md").read_text()
REGION, STACK = "us-east-2", "pcluster"  # the page's
BUCKET = f"{STACK}-postboot-123456789012-{REGION}"
Run = subprocess.CompletedProcess[str]

# The page's commands that no test runs, by how they begin, and what stands for each.
REPLACED = {
    "python3 -m venv ": "this checkout's environment",
    "pip install ": "the same",
    "ansible-galaxy collection install ": "a link to this checkout",
    "aws sts get-caller-identity": "moto's account, which has no AWS CLI",
    "pcluster version": "requirements/parallelcluster-*.txt",
    "pcluster create-cluster ": "check.py for the dry run, then sandbox.py create",
    "pcluster describe-cluster ": "the last line of sandbox.py create",
    "pcluster delete-cluster ": "sandbox.py delete",
    "aws cloudformation delete-stack ": "Newcomer.clear",
    "make ": "the tests themselves",
}
# Values that differ between accounts, by the page's file: the page's words, and what is printed before.
OF_THE_ACCOUNT = {
    "infrastructure.yml": (),
    "my-cluster.yml": ("<fleet_bundle>", "<fleet_sha256>"),
    "inventory/my.pcluster.yml": (REGION, "my-cluster", "ssm\nbucket: my-ansible-bucket"),
}


def commands(begin: str = "") -> list[str]:
    """The page's commands that begin so, in their order."""
    blocks = "".join(re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
    lines = re.sub(r" \\\n +", " ", blocks).splitlines()
    return [line[2:] for line in lines if line.startswith(f"$ {begin}")]


def files() -> dict[str, str]:
    """The page's files: each block of YAML by the file's name, which stands last before the block."""
    found = {}
    for block in re.finditer(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        name = re.findall(r"`([\w./-]+\.yml)`", PAGE[: block.start()])[-1]
        found[name] = block[1]
    return found


def filled(name: str, *values: str) -> str:
    """A file of the page, with an account's own values in place of the page's."""
    text = files()[name]
    for words, value in zip(OF_THE_ACCOUNT[name], values, strict=True):
        assert text.count(words) == 1, f"{name} has {words!r} {text.count(words)} times; needed: once"
        text = text.replace(words, value)
    return text


def told(printed: str) -> tuple[str, str]:
    """fleet_bundle and fleet_sha256, as publish prints them."""
    found = re.search(r"-e fleet_bundle=(\S+) -e fleet_sha256=([0-9a-f]{64})", printed)
    assert found, printed[-3000:]
    return found[1], found[2]


def changed(done: Run) -> int:
    """How many tasks of a run have changed something, or would; the run has to have succeeded."""
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    return sum(map(int, re.findall(r"\bchanged=(\d+)", done.stdout)))


def judge(config: Path, *options: str) -> str:
    """What check.py prints of a configuration, in place of `pcluster create-cluster --dryrun true`."""
    line = [sys.executable, str(SCENARIO / "parallelcluster/check.py"), *options, str(config)]
    done = subprocess.run(line, text=True, capture_output=True, timeout=300, check=False)
    return done.stdout + done.stderr


class Newcomer:
    """Somebody with an account, an empty directory and a home in which the collection is installed."""

    def __init__(self, home: Path, **environment: str) -> None:
        self.folder = home / "cluster"
        self.folder.mkdir(parents=True)
        installed = home / ".ansible/collections/ansible_collections/pcluster/postboot"
        installed.parent.mkdir(parents=True)
        installed.symlink_to(ROOT)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
        path = f"{Path(sys.executable).parent}:{kept['PATH']}"
        own = {"HOME": str(home), "PATH": path, "PWD": str(self.folder), "ANSIBLE_NOCOLOR": "1"}
        self.environment = {**kept, **own, **environment}

    def client(self, service: str, **credentials: Any) -> Any:
        return boto3.client(service, region_name=REGION, **credentials)

    def write(self, name: str, *values: str) -> None:
        """Write a file of the page, with the account's own values."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(filled(name, *values))

    def run(self, command: str, more: Mapping[str, Any] | None = None, timeout: int = 600) -> Run:
        """Run a command of the page, with what only the test asks for as further variables."""
        line = f"{command} -e {shlex.quote(json.dumps(more))}" if more else command
        return subprocess.run(
            ["sh", "-c", line],
            cwd=self.folder,
            env=self.environment,
            text=True,
            capture_output=True,
            timeout=timeout,
            check=False,
        )

    # The steps of the page

    def infrastructure(self) -> None:
        """Step 2: the check makes nothing, the run makes the stack, a second run changes nothing."""
        where: Any = {"CreateBucketConfiguration": {"LocationConstraint": REGION}}
        self.client("s3").create_bucket(Bucket="my-data", **where)
        self.write("infrastructure.yml")
        look, make = commands("ansible-playbook pcluster.postboot.infrastructure ")
        quick = {"infrastructure_poll": 0.1}
        looked = self.run(look, quick)
        assert changed(looked)
        assert "Add Lustre (AWS::FSx::FileSystem)" in looked.stdout
        assert self.stacks() == []
        assert not list(self.folder.glob("infrastructure-*"))
        assert changed(self.run(make, quick))
        assert self.stacks() == ["CREATE_COMPLETE"]
        assert changed(self.run(make, quick)) == 0

    def publish(self, **options: Any) -> tuple[str, str]:
        """Step 3, with further options of publish: the bundle's URL, and its hash; a second run changes nothing."""
        (folder,) = commands("mkdir ")
        (line,) = commands("ansible-playbook pcluster.postboot.publish ")
        assert self.run(folder).returncode == 0
        first = self.run(line, options)
        assert changed(first)
        assert changed(self.run(line, options)) == 0
        return told(first.stdout)

    def configuration(self, url: str, sha256: str) -> Path:
        """Step 4: the configuration of the page's cluster; a second run changes nothing."""
        self.write("my-cluster.yml", url, sha256)
        (line,) = commands("ansible-playbook pcluster.postboot.cluster_config ")
        assert changed(self.run(line))
        assert changed(self.run(line)) == 0
        return self.folder / "my-cluster.yaml"

    def configuration_of_sandbox(self, cluster: str) -> Path:
        """Step 4 with a cluster of the sandbox: what its network and its machines are takes the page's place."""
        own = self.folder / "sandbox.yml"
        subprocess.run([sys.executable, SCENARIO / "sandbox.py", "cluster_config", cluster, own], check=True)
        (line,) = commands("ansible-playbook pcluster.postboot.cluster_config ")
        assert changed(self.run(f"{line} -e @{own.name}"))
        return self.folder / f"{cluster}.yaml"

    def inventory(self, region: str, cluster: str) -> Run:
        """Step 6: the graph of a cluster that is reached by SSH."""
        self.write("inventory/my.pcluster.yml", region, cluster, "ssh")
        (settings,), (graph,) = commands("cp "), commands("ansible-inventory ")
        assert self.run(settings).returncode == 0
        return self.run(graph)

    def verify(self) -> Run:
        (line,) = commands("ansible-playbook -i inventory/my.pcluster.yml pcluster.postboot.verify ")
        return self.run(line, timeout=1800)

    # The account

    def stacks(self) -> list[str]:
        """The status of the page's stack; empty where there is none."""
        try:
            found = self.client("cloudformation").describe_stacks(StackName=STACK)["Stacks"]
        except ClientError:
            return []
        return [one["StackStatus"] for one in found if one["StackStatus"] != "REVIEW_IN_PROGRESS"]

    def node(self) -> Any:
        """S3 as a node sees it whose own role allows everything."""
        role = "arn:aws:iam::123456789012:role/my-cluster-RoleHeadNode"
        keys = self.client("sts").assume_role(RoleArn=role, RoleSessionName="i-0123")["Credentials"]
        return self.client(
            "s3",
            aws_access_key_id=keys["AccessKeyId"],
            aws_secret_access_key=keys["SecretAccessKey"],
            aws_session_token=keys["SessionToken"],
        )

    def refused(self, key: str) -> bool:
        """Whether a node may not write to the bucket of bundles here."""
        try:
            self.node().put_object(Bucket=BUCKET, Key=key, Body=b"")
        except ClientError as error:
            return "AccessDenied" in str(error)
        return False

    def clear(self) -> None:
        """Leave the account as empty as it was, also after a run that was killed: the stack, then what outlives it."""
        self.client("cloudformation").delete_stack(StackName=STACK)
        fsx = self.client("fsx")
        for one in fsx.describe_file_systems()["FileSystems"]:
            fsx.delete_file_system(FileSystemId=one["FileSystemId"])
        s3 = boto3.resource("s3", region_name=REGION)
        there = {bucket.name for bucket in s3.buckets.all()}
        for bucket in map(s3.Bucket, there & {BUCKET, "my-data"}):
            bucket.object_versions.delete()
            bucket.delete()
