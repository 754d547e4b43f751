# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The options of playbooks without roles: those that are checked are those that are used and documented."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

REPO = Path(__file__).resolve().parents[3]
# What the playbook itself writes for people, and does not read.
WRITTEN = {"observability_head_node_policy"}


@pytest.mark.parametrize(("name", "page"), [("dashboards", "dashboards"), ("observability", "observability")])
def test_options_are_known_used_and_documented(name: str, page: str) -> None:
    text = (REPO / f"playbooks/{name}.yml").read_text()
    (play,) = yaml.safe_load(text)
    known = set(play["vars"].pop(f"__{name}_options"))
    assert known
    # A name in a path or of an own variable is no option.
    used = set(re.findall(rf"(?<![\w./-]){name}_\w+(?!\w*\.)", yaml.safe_dump(play, width=1000)))
    assert used == known - WRITTEN
    table = (REPO / f"docs/{page}.md").read_text()
    assert set(re.findall(rf"^\| `({name}_\w+)` \|", table, re.MULTILINE)) == known - WRITTEN
