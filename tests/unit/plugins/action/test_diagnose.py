# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the action adds of nodes that are gone or do not answer: from a head node, and from AWS."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.action import diagnose
from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose.redact import Redactor
from ansible_collections.pcluster.postboot.plugins.plugin_utils._diagnose import fleet, gone
from ansible_collections.pcluster.postboot.plugins.plugin_utils._diagnose.model import GONE, SILENT, Node

LIMITS = gone.Limits(1_000_000, 48.0, time.time())
NAME = "cpu-st-c5-1"
PLACED = (
    "2026-11-23 11:00:00,123 - [slurm_plugin.instance_manager:_update_slurm_node_addrs] - INFO - Nodes are now "
    f"configured with instances (x1) [\"('{NAME}', EC2Instance(id='i-0a1', private_ip='10.0.0.5', "
    "hostname='ip-10-0-0-5', all_private_ips={'10.0.0.5'}, launch_time=x))\"]\n"
)
TOLD = "pcluster-postboot: enroot failed: dpkg ended with 1; see /var/log/pcluster-postboot/pull.log\n"
STOPPED = {"components": [], "stopped": {"component": "", "message": "nccl_versoin is no variable of role nccl"}}


class Aws(gone.Aws):
    """Notes about which instances it is asked, and knows that they have ended."""

    def gather(self, node: Node, instances: Iterable[tuple[str, str]]) -> None:
        for instance, host in instances:
            node.texts[f"{instance}/ec2.txt"] = f"instance: {instance}\nstate: terminated\nreason: {host}\n"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[str, str], str]]:
    """The clusters that AWS is asked about, with their log groups."""
    told: list[tuple[tuple[str, str], str]] = []

    def aws(_args: object, where: tuple[str, str], limits: gone.Limits, group: str) -> gone.Aws:
        told.append((where, group))
        return Aws(lambda _service, _region: None, where[1], where[0], limits, group)

    monkeypatch.setattr(diagnose, "_aws", aws)
    return told


def head(name: str = "head", cluster: str = "alpha", **texts: str) -> Node:
    who = {"cluster": cluster, "region": "us-east-2", "node_type": "head"}
    return Node(name, who=who, file="fetched", texts={"var/log/parallelcluster/clustermgtd": PLACED, **texts})


def test_a_node_that_is_gone_has_what_its_head_node_and_aws_tell(asked: list[tuple[tuple[str, str], str]]) -> None:
    dna = json.dumps({"cluster": {"log_group_name": "/aws/parallelcluster/alpha-1"}})
    mine = head(
        **{
            f"gone/{NAME}/clustermgtd": PLACED,
            f"gone/{NAME}/compute_console_output.log": TOLD,
            f"gone/{NAME}/report.json": json.dumps(STOPPED),
            "gone/other-st-c5-1/clustermgtd": "of another one",
            "etc/chef/dna.json": dna,
        }
    )
    nodes = [head("other-head", "beta"), mine]
    elsewhere = diagnose.Elsewhere({}, nodes, LIMITS, Redactor())
    elsewhere.add(NAME)
    one = nodes[-1]
    assert (one.name, one.state, one.cluster, one.who["instance_id"]) == (NAME, GONE, "alpha", "i-0a1")
    assert asked == [(("alpha", "us-east-2"), "/aws/parallelcluster/alpha-1")]
    assert set(one.texts) == {"head/clustermgtd", "head/console.txt", "report.json", "i-0a1/ec2.txt"}
    assert "reason: ip-10-0-0-5" in one.texts["i-0a1/ec2.txt"]
    kinds = [each.kind for each in one.findings]
    assert {"component-enroot", "boot-variables", "ended"} <= set(kinds)
    assert {part["name"] for part in one.files} == set(one.texts)
    assert elsewhere.notes == []


def test_an_instance_is_asked_about_without_a_head_node_that_knows_of_it(
    asked: list[tuple[tuple[str, str], str]],
) -> None:
    nodes = [Node("login", who={"cluster": "alpha", "region": "us-east-2", "node_type": "login"})]
    diagnose.Elsewhere({}, nodes, LIMITS, Redactor()).add("i-0123456789abcdef0")
    assert list(nodes[-1].texts) == ["i-0123456789abcdef0/ec2.txt"]
    assert asked == [(("alpha", "us-east-2"), "")]


def test_a_node_that_nobody_knows_is_a_finding(asked: list[tuple[tuple[str, str], str]]) -> None:
    nodes = [head()]
    diagnose.Elsewhere({}, nodes, LIMITS, Redactor()).add("gpu-st-p5-9")
    assert [one.kind for one in nodes[-1].findings] == ["unknown"]


def test_aws_is_asked_about_the_first_silent_nodes_only(
    asked: list[tuple[tuple[str, str], str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnose, "_MOST_SILENT", 2)
    nodes = [Node(f"n{n}", who={"cluster": "alpha", "region": "r", "instance_id": f"i-0{n}"}) for n in range(4)]
    for one in nodes[:3]:
        fleet.silent(one, "no route")
    elsewhere = diagnose.Elsewhere({}, nodes, LIMITS, Redactor())
    elsewhere.silent()
    assert [bool(one.texts) for one in nodes] == [True, True, False, False]
    assert elsewhere.notes == ["AWS was asked about 2 of the 3 nodes that do not answer"]


@pytest.mark.parametrize(
    ("known", "what"),
    [
        ({"__diagnose_node": {"unreachable": True, "msg": "no route"}}, "the node does not answer: no route"),
        (
            {"__diagnose_node": {"msg": "no python"}, "__diagnose_failed": "x"},
            "the node could not gather anything: no python",
        ),
        (
            {"__diagnose_node": {"node": {"node": "n"}, "findings": []}, "__diagnose_failed": "denied"},
            "what the node has gathered could not be fetched: denied",
        ),
    ],
)
def test_what_did_not_come_home_is_told(tmp_path: Path, known: dict[str, Any], what: str) -> None:
    one = diagnose._node("a/b", {"pcluster_cluster": "alpha", **known}, str(tmp_path), False)
    assert (one.name, one.state, one.cluster) == ("a_b", SILENT, "alpha")
    assert [f"{each.what}: {each.line}" for each in one.findings] == [what]


def test_why_aws_is_not_asked_is_a_note() -> None:
    for args, where, why in (
        ({"aws": False}, ("alpha", "r"), "AWS was not asked (diagnose_aws)"),
        ({"aws": True}, ("", ""), "AWS was not asked: no node of the play tells its cluster and region"),
    ):
        assert diagnose._aws(args, where, LIMITS, "") == why
