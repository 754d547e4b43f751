# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Shared file systems near nodes' own disks: cluster_config notes what ParallelCluster warns of, and nothing else.

A directory within another is refused by cluster_config alone. ParallelCluster means to do so, by
OverlappingMountDirValidator, but 3.16.1 hands it the names of the file systems in place of their directories.
"""

from __future__ import annotations

from typing import Any

import yaml

from ansible_collections.pcluster.postboot.tests.unit.plugins.cluster_config_places import CASES

WARNING = "DuplicateMountDirValidator: "


def test_the_newest_warns_of_what_is_noted(check: Any) -> None:
    texts = {name: yaml.safe_dump(base) for name, (base, _more, _verdict, _nodes) in CASES.items()}
    found = check.check(texts, check.versions()[-1], "validators")
    warned = {name for name, lines in found.items() if any(line.startswith(WARNING) for line in lines)}
    assert warned == {name for name, (_base, _more, verdict, _nodes) in CASES.items() if verdict == "noted"}
    assert {name: lines for name, lines in found.items() if name not in warned and lines} == {}
