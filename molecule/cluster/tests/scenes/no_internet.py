# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""no-internet.md: the page's files, with what the sandbox has in the place of upstream's sites and of a new network."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import yaml

from ..bundles import DIR, SANDBOX, STATE, bucket

LONG = True
MIRROR, BUNDLES = "my-mirror-bucket", "sandbox-no-internet"
REGION, SUBNET = "us-east-1", "subnet-0123456789abcdef0"


def files() -> dict[str, Any]:
    """What the page has in its files, and what only the sandbox has."""
    pins = json.loads((STATE / "mirror/pins.json").read_text())["node_exporter"]
    queue = {"name": "gpu", "instance_type": "p5.48xlarge", "max": 4}
    return {
        "infrastructure.yml": {
            "infrastructure_region": REGION,
            "infrastructure_primary_az": f"{REGION}a",
            "infrastructure_nat": False,
        },
        "mirror.yml": {
            "mirror_dir": "",  # below
            "mirror_s3": f"s3://{MIRROR}/mirror",
            "mirror_architectures": ["x86_64"],
            "mirror_components": ["node_exporter"],
            "mirror_from": ["http://10.115.0.2"],  # every upstream site
            "node_exporter_version": pins["version"],
            "node_exporter_sha256": {"x86_64": pins["sha256"], "aarch64": ""},
        },
        "infrastructure-pcluster.yml": {
            "publish_s3": f"s3://{BUNDLES}/postboot",
            "publish_dir": str(DIR),
            "publish_pythons": ["3.13"],
            "publish_architectures": ["x86_64"],
            "cluster_config_region": REGION,
            "cluster_config_subnet_head": SUBNET,
            "cluster_config_subnet_compute": SUBNET,
            "cluster_config_managed_dns": False,
        },
        "main.yml": {
            "cluster_config_name": "main",
            "cluster_config_policies": [
                "arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore",
                "arn:aws:iam::123456789012:policy/main-node-mirror",
            ],
            "cluster_config_queues": [queue],
        },
    }


@contextmanager
def scene(stage: Any) -> Iterator[None]:
    for name, content in files().items():
        if "mirror_dir" in content:
            content["mirror_dir"] = str(stage.folder / "filled")
        (stage.folder / name).write_text(yaml.safe_dump(content))
    # The page's own variables, and not those by which the sandbox's nodes are reached.
    (stage.folder / "inventory").unlink()
    subprocess.run([sys.executable, SANDBOX, "variables", stage.folder / "inventory/group_vars"], check=True)
    with bucket(BUNDLES):
        try:
            yield
        finally:
            s3 = boto3.resource("s3", region_name=REGION)
            if MIRROR in {one.name for one in s3.buckets.all()}:
                s3.Bucket(MIRROR).objects.all().delete()
                s3.Bucket(MIRROR).delete()
