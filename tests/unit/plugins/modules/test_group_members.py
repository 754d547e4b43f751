# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""group_members, with a small program in place of gpasswd."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils import _group_members
from ansible_collections.pcluster.postboot.plugins.modules import group_members
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab

GPASSWD = """#!/bin/sh
echo "$@" >> {top}/calls
[ "$2" = broken ] && {{ echo "gpasswd: no way"; exit 1; }}
echo "$2" >> {top}/members
"""


@pytest.fixture(autouse=True)
def members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node with the users alice, bob and broken, and the group docker."""
    lab.program(tmp_path / "gpasswd", GPASSWD.format(top=tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    file = tmp_path / "members"
    file.write_text("")

    def getpwnam(name: str) -> Any:
        if name not in ("alice", "bob", "broken"):
            raise KeyError(name)
        return pwd.getpwuid(0)

    def getgrnam(name: str) -> Any:
        if name != "docker":
            raise KeyError(name)
        return grp.struct_group(("docker", "x", 999, file.read_text().split()))

    monkeypatch.setattr(_group_members.pwd, "getpwnam", getpwnam)
    monkeypatch.setattr(_group_members.grp, "getgrnam", getgrnam)
    return file


def test_check_apply_check_apply(run_module: lab.Run, members: Path) -> None:
    args = {"group": "docker", "users": ["alice", "bob", "alice"]}
    checked = run_module(group_members, args, check=True)
    assert checked["changed"]
    assert members.read_text() == ""
    applied = run_module(group_members, args)
    assert applied["added"] == checked["added"] == ["alice", "bob"]
    assert applied["diff"] == checked["diff"]
    assert members.read_text().split() == ["alice", "bob"]
    assert not run_module(group_members, args, check=True)["changed"]
    assert not run_module(group_members, args)["changed"]


def test_nobody_is_taken_out(run_module: lab.Run, members: Path) -> None:
    members.write_text("bob\n")
    assert run_module(group_members, {"group": "docker", "users": ["alice"]})["added"] == ["alice"]
    assert members.read_text().split() == ["bob", "alice"]


def test_unknown_users_are_never_made(run_module: lab.Run, members: Path) -> None:
    result = run_module(group_members, {"group": "docker", "users": ["alice", "alise", "zoe"]})
    assert result["failed"]
    assert result["msg"] == (
        "users: this node knows no alise, zoe; make them first, or take them out of the list for docker"
    )
    assert members.read_text() == ""


def test_a_group_that_is_not_there(run_module: lab.Run) -> None:
    args = {"group": "other", "users": ["alice"]}
    assert run_module(group_members, args, check=True)["added"] == ["alice"]
    assert run_module(group_members, args)["msg"].startswith("group: this node has no other")


def test_gpasswd_fails(run_module: lab.Run) -> None:
    result = run_module(group_members, {"group": "docker", "users": ["broken"]})
    assert result["msg"] == "'gpasswd --add broken docker' ended with 1: gpasswd: no way"


def test_gpasswd_hangs(run_module: lab.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gpasswd").write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(_group_members, "SECONDS", 0.2)
    result = run_module(group_members, {"group": "docker", "users": ["alice"]})
    assert result["msg"] == (
        "'gpasswd --add alice docker' did not end within 0.2 s; see whether the directory service of this node answers"
    )
