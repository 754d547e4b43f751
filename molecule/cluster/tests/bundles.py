# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bundles that nodes of the sandbox boot with: as publish.yml prints them, and as other versions would be."""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import yaml

SCENARIO = Path(__file__).resolve().parent.parent
SANDBOX = SCENARIO / "sandbox.py"
STATE = SCENARIO.parent.parent / ".sandbox"
BUCKET, DIR = "sandbox-bundles", STATE / "publish"


@contextmanager
def bucket(name: str) -> Iterator[Any]:
    """A bucket, as a resource of boto3, for as long as tests need it."""
    found = boto3.resource("s3", region_name="us-east-1").Bucket(name)
    found.create()
    found.objects.all().delete()  # of a run that was killed
    yield found
    found.objects.all().delete()
    found.delete()


def of_one_script(s3: Any, text: str) -> dict[str, str]:
    """Put a bundle of nothing but a bootstrap.sh into a bucket; return the variables by which fleet takes it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        script = tarfile.TarInfo("bootstrap.sh")
        script.size = len(text)
        tar.addfile(script, io.BytesIO(text.encode()))
    s3.put_object(Key="test/pcluster-postboot.tar.gz", Body=buffer.getvalue())
    return {"fleet_bundle": f"s3://{s3.name}/test", "fleet_sha256": hashlib.sha256(buffer.getvalue()).hexdigest()}


@dataclass
class Bundle:
    """A bundle in S3, and the arguments with which a node takes it."""

    name: str
    script: str
    args: list[str]

    @classmethod
    def of(cls, action: dict[str, Any]) -> Bundle:
        return cls(action["Script"].split("/")[-2], action["Script"], action["Args"])

    @property
    def sha256(self) -> str:
        return self.args[self.args.index("--sha256") + 1]

    def action(self, **changes: str) -> dict[str, Any]:
        """The custom action; changes are arguments that come after the printed ones."""
        more = [word for name, value in changes.items() for word in (f"--{name}", value)]
        return {"Script": self.script, "Args": [*self.args, *more]}


def config(cluster: str) -> Path:
    """A cluster's configuration as its user wrote it."""
    return STATE / f"clusters/{cluster}/artifacts/configs/cluster-config.yaml"


def printed(result: subprocess.CompletedProcess[str], image: bool = False) -> dict[str, Any]:
    """What publish.yml has printed for the cluster's configuration, or for that of an image."""
    assert result.returncode == 0, result.stdout[-3000:]
    texts = re.findall(r"^# pcluster\.postboot .*?(?=^(?:TASK|PLAY|ok:|changed:) )", result.stdout, flags=re.M | re.S)
    found: dict[str, Any] = yaml.safe_load(texts[image])
    return found


def queue_of(found: dict[str, Any], name: str) -> dict[str, Any]:
    """One queue of what publish.yml has printed."""
    (queue,) = [one for one in found["Scheduling"]["SlurmQueues"] if one["Name"] == name]
    return dict(queue)


def update(cluster: str, folder: Path, parts: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Update a cluster's configuration with these parts, and with none of earlier updates."""
    file = folder / f"{cluster}.yaml"
    file.write_text(yaml.safe_dump(parts))
    line = [sys.executable, str(SANDBOX), "update", cluster, str(file)]
    return subprocess.run(line, text=True, capture_output=True, timeout=1500, check=False)


def republish(s3: Any, bundle: Bundle, version: str, extra: dict[str, Any]) -> Bundle:
    """Publish what another version of the collection would be, with further variables, as publish.yml does."""
    plain = io.BytesIO()
    source = DIR / bundle.name / "pcluster-postboot.tar.gz"
    with tarfile.open(source) as old, tarfile.open(fileobj=plain, mode="w:gz", compresslevel=1) as new:
        for member in old:
            stream = old.extractfile(member)
            content = stream.read() if stream else b""
            if member.name == "bundle.json":
                content = json.dumps({**json.loads(content), "version": version}).encode()
            if member.name.endswith("roles/node_exporter/templates/node_exporter.service.j2"):
                content = content.replace(b"metrics of this node", f"metrics of this node ({version})".encode())
            if member.name == "inventory/group_vars/pcluster.yml":
                content += yaml.safe_dump(extra).encode()
            member.size = len(content)
            new.addfile(member, io.BytesIO(content) if member.isfile() else None)
    sha256 = hashlib.sha256(plain.getvalue()).hexdigest()
    name = f"{version}-{sha256[:12]}"
    s3.put_object(Key=f"bundles/{name}/pcluster-postboot.tar.gz", Body=plain.getvalue())
    s3.put_object(Key=f"bundles/{name}/bootstrap.sh", Body=(DIR / bundle.name / "bootstrap.sh").read_bytes())
    where = f"s3://{s3.name}/bundles/{name}"
    args = ["--bundle", f"{where}/pcluster-postboot.tar.gz", "--sha256", sha256]
    return Bundle(name, f"{where}/bootstrap.sh", args)
