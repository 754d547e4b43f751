# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The table of instance types, against EC2's own answer as moto keeps it."""

from __future__ import annotations

import gzip
import json
from typing import Any

import boto3
import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config import instances
from ansible_collections.pcluster.postboot.tests import installed
from ansible_collections.pcluster.postboot.tests.unit.plugins.aws import error

ANSWER: dict[str, dict[str, Any]] = json.loads(
    gzip.decompress((installed.package("moto") / "ec2/resources/instance_types.json.gz").read_bytes())
)


def test_the_table_says_what_ec2_says_of_every_type_that_it_knows() -> None:
    known = [name for name in ANSWER if instances.of_table(name).known]
    assert len(known) > 700
    differ = {}
    for name in known:
        table, told = instances.of_table(name), instances._of_answer(ANSWER[name])
        if table._replace(capacities=frozenset()) != told._replace(capacities=frozenset()):
            differ[name] = (table, told)
        block = "capacity_block"
        assert (block in table.capacities) == (block in told.capacities), name
    assert differ == {}


def test_every_family_for_training_is_known() -> None:
    wanted = ("p4d.", "p4de.", "p5.", "p5e.", "p5en.", "p6-", "trn", "g5.", "g6.", "g6e.", "c5.", "c7i.", "m5.", "m7g.")
    names = [name for name in ANSWER if name.startswith(wanted)]
    assert len(names) > 60
    assert [name for name in names if not instances.of_table(name).known] == []


def test_every_name_of_a_known_family_is_one() -> None:
    families = {name.partition(".")[0] for name in ANSWER if instances.of_table(name).known}
    assert [name for name in ANSWER if name.partition(".")[0] in families and not instances.is_name(name)] == []


@pytest.mark.parametrize("name", ["q9.48xlarge", "p5", "", "p5.", "p5.48xlrge", "subnet-1"])
def test_what_nobody_knows_is_unknown(name: str) -> None:
    assert not instances.of_table(name).known


def test_ec2_is_asked_and_stands_above_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("DEFAULT_REGION", "us-east-1"), ("ACCESS_KEY_ID", "x"), ("SECRET_ACCESS_KEY", "x")):
        monkeypatch.setenv(f"AWS_{name}", value)
    from moto import mock_aws

    with mock_aws():
        client = boto3.client("ec2", region_name="us-east-1")
        catalog, missing = instances.ask(client, ["u7i-12tb.224xlarge", "q9.large", "p5.48xlarge"], "us-east-1")
    assert missing == ["q9.large"]
    assert catalog["u7i-12tb.224xlarge"].efa
    assert catalog["u7i-12tb.224xlarge"].known
    assert catalog["p5.48xlarge"] == instances._of_answer(ANSWER["p5.48xlarge"])
    assert catalog["c5.xlarge"] == instances.of_table("c5.xlarge")


def test_a_call_that_is_refused_is_one_line() -> None:
    class Refusing:
        def describe_instance_types(self, **_given: Any) -> None:
            raise error("UnauthorizedOperation", operation="DescribeInstanceTypes")

    with pytest.raises(Problem, match="ec2:DescribeInstanceTypes"):
        instances.ask(Refusing(), ["p5.48xlarge"], "us-east-1")
