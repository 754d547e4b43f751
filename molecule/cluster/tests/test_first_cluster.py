# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""docs/first-cluster.md, followed in its order with the page's own files and commands, to a cluster with a verdict.

The cluster is the sandbox's `el`, made anew; the page says what is replaced, and why. `make first-cluster` runs this.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from .bundles import DIR, SANDBOX, STATE
from .conftest import TOPOLOGY
from .first_cluster import BUCKET, Newcomer, judge
from .helpers import Create, Run, ok
from .test_control_plane import EL, report_after_boot

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Newcomer]:
    # The page's command has no options for this, because a user's own keys and known hosts are in the user's home.
    known = f"-o UserKnownHostsFile={STATE}/ssh/known_hosts -o StrictHostKeyChecking=accept-new"
    found = Newcomer(
        tmp_path_factory.mktemp("newcomer"),
        ANSIBLE_PRIVATE_KEY_FILE=f"{STATE}/ssh/id",
        ANSIBLE_SSH_EXTRA_ARGS=known,
    )
    found.clear()
    yield found
    found.clear()


@pytest.fixture(scope="module")
def account(newcomer: Newcomer) -> Newcomer:
    """The newcomer with the network, the file system and the bucket of step 2."""
    newcomer.infrastructure()
    return newcomer


@pytest.fixture(scope="module")
def bundle(account: Newcomer) -> tuple[str, str]:
    """The URL and the hash of the bundle of step 3, with the variables that nodes of the sandbox need."""
    variables = account.folder / "inventory/group_vars"
    variables.mkdir(parents=True)
    subprocess.run([sys.executable, SANDBOX, "variables", variables], check=True)
    return account.publish(publish_dir=str(DIR), publish_pythons=["3.13"], publish_architectures=["x86_64"])


@pytest.fixture(scope="module")
def configuration(account: Newcomer, bundle: tuple[str, str]) -> Path:
    """The page's configuration of step 4."""
    return account.configuration(*bundle)


@pytest.fixture(scope="module")
def cluster(account: Newcomer, configuration: Path, create: Create) -> Run:
    """The sandbox's cluster, created with the page's variables and its own machines."""
    assert configuration.exists()
    done = create(yaml.safe_load(account.configuration_of_sandbox(EL.name).read_text()))
    ok(done)
    subprocess.run([sys.executable, SANDBOX, "boot"], check=True, timeout=900)
    return done


def test_nodes_may_read_bundles_and_not_write_them(account: Newcomer, bundle: tuple[str, str]) -> None:
    url, _ = bundle
    key = url.removeprefix(f"s3://{BUCKET}/") + "/bootstrap.sh"
    assert account.node().get_object(Bucket=BUCKET, Key=key)["Body"].read()
    assert account.refused(key)


def test_parallelcluster_takes_the_configuration(configuration: Path) -> None:
    assert judge(configuration).endswith(": nothing to say\n")


def test_the_cluster_is_created_and_its_nodes_configure_themselves(cluster: Run, bundle: tuple[str, str]) -> None:
    assert cluster.stdout.endswith("el: CREATE_COMPLETE\n")
    for name in (EL.head, EL.node):
        found = report_after_boot(name)
        assert (found["outcome"], found["phase"]) == ("ok", "later"), found
    written = (STATE / f"clusters/{EL.name}/artifacts/configs/cluster-config.yaml").read_text()
    assert bundle[0] in written


@pytest.mark.usefixtures("cluster")
def test_the_graph_shows_the_nodes(account: Newcomer) -> None:
    graph = ok(account.inventory(TOPOLOGY["region"], EL.name)).stdout
    for group in ("pcluster_head", "pcluster_compute"):
        assert f"@{group}:" in graph, graph


@pytest.mark.usefixtures("cluster")
def test_the_cluster_is_verified(account: Newcomer) -> None:
    done = ok(account.verify())
    assert re.search(r"\d+ checks passed", done.stdout), done.stdout[-3000:]
    # Nobody can measure what is not there; the verdict names nothing else that was left out.
    assert "no partition has GPUs" in done.stdout
    assert "not measured" not in done.stdout
    page = (account.folder / f"verify-{EL.name}.html").read_text()
    assert "no partition has GPUs" in page
