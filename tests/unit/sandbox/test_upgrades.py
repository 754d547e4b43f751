# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The version from which the sandbox's tests upgrade: the last release, or the one that UPGRADE_FROM names."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ansible_collections.pcluster.postboot.tests.programs import load

upgrades = load("molecule/cluster/tests/upgrades.py")


class Clone:
    """A repository of four commits, the first three of which may have tags."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.git("init", "--quiet", "--initial-branch", "main")
        self.commits = [self.commit(str(number)) for number in range(4)]

    def git(self, *arguments: str) -> str:
        who = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org", "-c", "commit.gpgsign=false")
        line = ["git", "-C", str(self.root), *who, *arguments]
        return subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, text: str) -> str:
        self.git("commit", "--quiet", "--allow-empty", "--message", text)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clone:
    monkeypatch.delenv("UPGRADE_FROM", raising=False)
    return Clone(tmp_path)


def test_the_newest_release_before_this_commit_is_taken(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, tag in ((0, "0.9.0"), (1, "0.10.0"), (2, "v1.0.0"), (3, "0.11.0")):
        clone.git("tag", tag, clone.commits[number])
    # This commit's own tag is what is upgraded to, and 10 is more than 9.
    assert upgrades.revision(clone.root) == clone.commits[1]
    monkeypatch.setenv("UPGRADE_FROM", "0.9.0")
    assert upgrades.revision(clone.root) == clone.commits[0]


def test_the_baseline_is_taken_where_nothing_was_released(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrades, "BASELINE", clone.commits[2])
    assert upgrades.revision(clone.root) == clone.commits[2]


def test_a_commit_that_the_clone_lacks_is_one_line(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPGRADE_FROM", "1.0.0")
    with pytest.raises(Exception, match=r"^1\.0\.0 is no commit of this clone; needed: UPGRADE_FROM=") as failure:
        upgrades.revision(clone.root)
    assert "\n" not in str(failure.value)
