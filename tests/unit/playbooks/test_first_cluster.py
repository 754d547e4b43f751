# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""docs/first-cluster.md, followed with the sandbox's AWS on loopback as far as ParallelCluster's judgement.

molecule/cluster/tests/test_first_cluster.py goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.pcluster.postboot.tests.programs import load

ROOT = Path(__file__).resolve().parents[3]
page = load("molecule/cluster/tests/first_cluster.py")


# The page


def test_every_command_of_the_page_is_run_or_has_something_that_stands_for_it() -> None:
    run = (
        "ansible-playbook pcluster.postboot.",
        "ansible-playbook -i inventory/my.pcluster.yml ",
        "ansible-inventory ",
        "mkdir ",
        "cp ",
    )
    known = (*run, *page.REPLACED)
    assert [line for line in page.commands() if not line.startswith(known)] == []
    assert [begin for begin in known if not page.commands(begin)] == []


def test_each_file_of_the_page_has_its_name_and_the_values_that_differ() -> None:
    assert list(page.files()) == list(page.OF_THE_ACCOUNT)
    for name, words in page.OF_THE_ACCOUNT.items():
        assert page.filled(name, *words) == page.files()[name]


def test_a_value_that_the_page_no_longer_has_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "PAGE", page.PAGE.replace("<fleet_sha256>", "elsewhere"))
    with pytest.raises(AssertionError, match="has '<fleet_sha256>' 0 times"):
        page.filled("my-cluster.yml", "s3://a/b/c", "0")


def test_the_inventory_of_the_page_has_options_of_the_plugin() -> None:
    source = (ROOT / "plugins/inventory/pcluster.py").read_text()
    options = yaml.safe_load(source.partition('DOCUMENTATION = r"""')[2].partition('"""')[0])["options"]
    assert set(yaml.safe_load(page.files()["inventory/my.pcluster.yml"])) <= set(options)
    found = yaml.safe_load(page.filled("inventory/my.pcluster.yml", "us-east-1", "el", "ssh"))
    assert (found["regions"], found["clusters"], found["connection"]) == (["us-east-1"], ["el"], "ssh")
    assert "bucket" not in found


# The page, followed


@pytest.fixture(scope="module")
def newcomer(aws: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    assert aws
    found = page.Newcomer(tmp_path_factory.mktemp("newcomer"))
    found.clear()  # nothing is there yet, which must not matter
    yield found
    found.clear()
    left = found.client("s3").list_buckets()["Buckets"] + found.client("fsx").describe_file_systems()["FileSystems"]
    assert left + found.stacks() == []


# The playbooks and ParallelCluster's judgement have short tests of their own, and make first-cluster goes on from here.
@pytest.mark.long
def test_the_page_leads_to_a_configuration_that_parallelcluster_takes(newcomer: Any) -> None:
    newcomer.infrastructure()
    # What this machine needs is enough here: one Python, one architecture.
    url, sha256 = newcomer.publish(publish_pythons=["3.13"], publish_architectures=["x86_64"])
    key = url.removeprefix(f"s3://{page.BUCKET}/") + "/bootstrap.sh"
    assert newcomer.node().get_object(Bucket=page.BUCKET, Key=key)["Body"].read().startswith(b"#!/usr/bin/env bash\n")
    assert newcomer.refused(key)
    assert not newcomer.refused("elsewhere")

    config = newcomer.configuration(url, sha256)
    assert page.judge(config).endswith(": nothing to say\n")
    (pool,) = yaml.safe_load(config.read_text())["LoginNodes"]["Pools"]
    assert pool["Ssh"]["AllowedIps"].startswith("pl-")

    sandbox = newcomer.configuration_of_sandbox("el")
    assert page.judge(sandbox, "--parallelcluster", "3.13.2", "--depth", "schema").endswith(": nothing to say\n")
    found = yaml.safe_load(sandbox.read_text())
    theirs = yaml.safe_load(config.read_text())
    assert found["HeadNode"]["CustomActions"] == theirs["HeadNode"]["CustomActions"]
    assert found["HeadNode"]["Iam"] == theirs["HeadNode"]["Iam"]
    ((ours,), (queue,)) = (one["Scheduling"]["SlurmQueues"] for one in (found, theirs))
    assert (ours["CustomActions"], ours["Iam"]) == (queue["CustomActions"], queue["Iam"])
    # Nothing of the stack's network is left, and what the sandbox asks of Slurm is there.
    stack = yaml.safe_load((newcomer.folder / "infrastructure-pcluster.yml").read_text())
    text = sandbox.read_text()
    for name in ("cluster_config_subnet_head", "cluster_config_subnet_login", "cluster_config_fsx_lustre"):
        assert stack[name] not in text
    assert stack["cluster_config_security_groups"][0] not in text
    assert {"SlurmdParameters": "config_overrides"} in found["Scheduling"]["SlurmSettings"]["CustomSlurmSettings"]
