# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the schemas of ParallelCluster's own versions, as far as the sandbox's cache has them, say of configurations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import supported

CACHE = Path(__file__).resolve().parents[3] / ".sandbox/cache"
VERSIONS = [
    version
    for version in supported.read().parallelcluster["tested"]
    if (CACHE / f"parallelcluster-{version}/bin/python").exists()
]
_SCHEMA = """
import json, sys
import yaml
from pcluster.schemas.cluster_schema import ClusterSchema
said = []
for text in json.load(sys.stdin):
    try:
        ClusterSchema(cluster_name="ml").load(yaml.safe_load(text))
        said.append("")
    except Exception as error:
        said.append(str(error) or type(error).__name__)
print(json.dumps(said))
"""

# Read files with ParallelCluster installed beside Ansible, as on a controller that has both.
_READ = """
import json, sys
from pathlib import Path
packages, folder, texts = json.load(sys.stdin)
sys.path.append(packages)
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config import base
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_file import upstream
from ansible_collections.pcluster.postboot.plugins.plugin_utils._publish import custom_actions
assert upstream.schema() is not None
path, said = Path(folder) / "cluster.yaml", []
for text in texts:
    path.write_text(text)
    said.append([])
    for read in (base.read, custom_actions.read):
        try:
            read(str(path))
            said[-1].append("")
        except Problem as error:
            said[-1].append(str(error))
print(json.dumps(said))
"""


def read_beside(texts: list[str], version: str, folder: Path, collections: Path) -> list[list[str]]:
    """Return what cluster_config and publish refuse of each configuration where this ParallelCluster is installed."""
    (packages,) = (CACHE / f"parallelcluster-{version}").glob("lib/python*/site-packages")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _READ],
        input=json.dumps([str(packages), str(folder), texts]),
        env={**os.environ, "PYTHONPATH": str(collections)},
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[list[str]] = json.loads(done.stdout)
    return found


def refusals(texts: list[str], version: str) -> list[str]:
    """Return what ClusterSchema.load refuses of each configuration; empty where it takes the configuration."""
    done = subprocess.run(
        [str(CACHE / f"parallelcluster-{version}/bin/python"), "-W", "ignore", "-c", _SCHEMA],
        input=json.dumps(texts),
        env={**os.environ, "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[str] = json.loads(done.stdout)
    return found
