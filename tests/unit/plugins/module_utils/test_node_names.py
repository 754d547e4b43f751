# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import random

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._slurm import names as slurm_names
from ansible_collections.pcluster.postboot.tests.programs import load


def hostnames(hostlist: str) -> list[str]:
    return list(load("tests/unit/fixtures/slurm/hostnames.py").hostnames(hostlist))


@pytest.mark.parametrize(
    ("names", "hostlist"),
    [
        ("", ""),
        ("login-1", "login-1"),
        ("head", "head"),
        ("gpu-st-p5-7 gpu-st-p5-1 gpu-st-p5-3 login-1 gpu-st-p5-2", "gpu-st-p5-[1-3,7],login-1"),
        ("n9 n10 n11 n100", "n[9-11,100]"),
        ("n08 n09 n10 n11", "n[08-11]"),
        ("n099 n100 n101", "n[099-101]"),
        # 8 and 08 are two nodes; a range that begins with 9 is not followed by 010.
        ("n8 n08 n09", "n[8,08-09]"),
        ("n9 n010", "n[9,010]"),
        ("a1 a1 a2", "a[1-2]"),
        ("b-dy-c5-2 a-st-p5-10 a-st-p5-9 b-dy-c5-1", "a-st-p5-[9-10],b-dy-c5-[1-2]"),
        # A name that has no number at its end, though others begin like it.
        ("head head1 head2 gpu1a gpu2a", "gpu1a,gpu2a,head,head[1-2]"),
    ],
)
def test_ranges(names: str, hostlist: str) -> None:
    assert slurm_names.ranges(names.split()) == hostlist


def test_every_name_is_there_once() -> None:
    chance = random.Random(7)
    for _round in range(200):
        names = {
            f"{chance.choice(['q-st-p5-', 'q-dy-g5-', 'n'])}{chance.choice(['', '0', '00'])}{number}"
            for number in chance.sample(range(130), 40)
        }
        assert sorted(hostnames(slurm_names.ranges(names))) == sorted(names)


def test_ten_thousand_nodes_are_few_bytes() -> None:
    assert slurm_names.ranges(f"gpu-st-p5-{number}" for number in range(10000, 0, -1)) == "gpu-st-p5-[1-10000]"


def test_what_people_are_shown_has_a_length() -> None:
    assert slurm_names.shown(f"gpu-st-p5-{number}" for number in range(1, 1001)) == "gpu-st-p5-[1-1000]"
    odd = [f"gpu-st-p5-{number}" for number in range(1, 1001, 2)]
    assert slurm_names.shown(odd, 30) == "gpu-st-p5-[1,3,5,7,9,11,13,15] and 492 more"
    assert slurm_names.shown(["a-name-that-is-long"], 10) == "a-name-that-is-long"
    assert slurm_names.shown([]) == ""
