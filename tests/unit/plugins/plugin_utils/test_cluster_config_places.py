# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Directories of shared file systems beside those of nodes' own disks, as ParallelCluster 3.16.1 means to judge them.

These are local_mount_dir_instance_types_dict, DuplicateMountDirValidator (a warning) and OverlappingMountDirValidator.
tests/unit/examples/test_places.py asks ParallelCluster itself.
"""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.pcluster.postboot.tests.unit.plugins.cluster_config_places import CASES
from ansible_collections.pcluster.postboot.tests.unit.plugins.cluster_config_sample import rendered

STARTS = {"refused": "cluster_config_storage: mine is at ", "noted": "SharedStorage mine and the own disks of "}


@pytest.mark.parametrize("name", CASES)
def test_only_nodes_with_disks_count_each_with_its_own_directory(name: str) -> None:
    base, more, verdict, nodes = CASES[name]
    outcome = rendered(base, subnet_head="", components=[], **more)
    notes = [note for note in outcome.notes if note.startswith(STARTS["noted"])]
    assert [line.startswith(STARTS["refused"]) for line in outcome.problems] == [True] * (verdict == "refused")
    assert len(notes) == (verdict == "noted")
    for line in (*outcome.problems, *notes):
        assert f"the own disks of {nodes}" in line


def test_a_file_system_without_a_directory_is_no_place_of_its_own() -> None:
    base: dict[str, Any] = {"SharedStorage": [{"Name": "a"}, {"Name": "b"}]}
    assert not any("None" in line for line in rendered(base).problems)
