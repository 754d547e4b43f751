# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The sandbox's scontrol hands lists of instances out node by node, and leaves all else to the distribution's."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ansible_collections.pcluster.postboot.tests.unit.plugins import lab

# The distribution's scontrol: notes its arguments, knows the nodes burst-dy-c5-1 to 3, and expands lists (its own
# `show hostnames` knows ranges besides).
REAL = f"""#!{sys.executable}
import json, sys
words = sys.argv[1:]
if words[:2] == ["show", "hostnames"]:
    print("\\n".join(words[2].split(",")))
    sys.exit()
with open({{noted!r}}, "a") as file:
    print(json.dumps(words), file=file)
unknown = [word for word in words if word.startswith("nodename=") and word[-1] not in "123"]
sys.exit("slurm_update error: Invalid node name specified" if unknown else 0)
"""
NODES, ADDRESSES = "nodename=burst-dy-c5-1,burst-dy-c5-2", "nodeaddr=10.0.0.1,10.0.0.2"

Call = Callable[..., tuple[int, str, list[list[str]]]]


@pytest.fixture
def call(tmp_path: Path, repo: Path) -> Call:
    """call(*words) returns the exit status, what is said, and the calls of the distribution's scontrol."""
    noted = tmp_path / "noted"
    lab.program(tmp_path / "libexec/scontrol", REAL.format(noted=str(noted)))
    (tmp_path / "bin").mkdir()
    shutil.copy(repo / "molecule/cluster/standins/scontrol/scontrol", tmp_path / "bin")

    def called(*words: str, program: str = "bin/scontrol") -> tuple[int, str, list[list[str]]]:
        done = subprocess.run([tmp_path / program, *words], text=True, capture_output=True, check=False)
        return done.returncode, done.stderr, [json.loads(line) for line in lab.lines(noted)]

    return called


def test_each_node_gets_its_instance(call: Call) -> None:
    """What ParallelCluster 3.16 says of the instances that it has launched for a job."""
    assert call("update", NODES, ADDRESSES, "instanceid=i-0b1,i-0a2") == (
        0,
        "",
        [
            ["update", "nodename=burst-dy-c5-1", "nodeaddr=10.0.0.1", "instanceid=i-0b1"],
            ["update", "nodename=burst-dy-c5-2", "nodeaddr=10.0.0.2", "instanceid=i-0a2"],
        ],
    )


def test_what_is_said_once_is_for_all_nodes(call: Call) -> None:
    more = ("state=down", 'reason="a b, c"', "InstanceType=c5.xlarge")
    _, _, calls = call("update", *more, NODES, "InstanceId=i-1,i-2")
    assert calls == [
        ["update", *more, "nodename=burst-dy-c5-1", "InstanceId=i-1"],
        ["update", *more, "nodename=burst-dy-c5-2", "InstanceId=i-2"],
    ]


@pytest.mark.parametrize(
    "words",
    [
        ("update", NODES, ADDRESSES),
        ("update", NODES, ADDRESSES, "instanceid=i-1"),
        ("update", NODES, "instanceid=", "comment=a  b"),
        ("update", "partitionname=burst", "state=up"),
        ("--oneliner", "show", "nodes"),
        (),
    ],
)
def test_all_else_goes_on_as_it_came(call: Call, words: tuple[str, ...]) -> None:
    assert call(*words) == (0, "", [list(words)])


@pytest.mark.parametrize(
    "words",
    [
        (ADDRESSES, "instanceid=i-1,i-2,i-3"),
        ("nodeaddr=10.0.0.1", "instanceid=i-1,i-2"),
        ("instanceid=i-1,i-2", "instancetype=c5.large,c5.large,c5.large"),
    ],
)
def test_too_few_or_too_many_values_change_nothing(call: Call, words: tuple[str, ...]) -> None:
    """As update_node of slurmctld answers a "nodecount mismatch"."""
    assert call("update", NODES, *words) == (1, "slurm_update error: Invalid node name specified\n", [])


def test_a_node_that_cannot_be_updated_is_told_and_the_others_are_updated(call: Call) -> None:
    status, said, calls = call("update", "nodename=burst-dy-c5-9,burst-dy-c5-1", "instanceid=i-1,i-2")
    assert (status, said) == (1, "slurm_update error: Invalid node name specified\n")
    assert calls[1] == ["update", "nodename=burst-dy-c5-1", "instanceid=i-2"]


def test_a_link_to_it_is_as_good(call: Call, tmp_path: Path) -> None:
    """As role enroot makes one in /usr/local/bin on HyperPod."""
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/scontrol").symlink_to(tmp_path / "bin/scontrol")
    assert call("ping", program="usr/bin/scontrol") == (0, "", [["ping"]])
