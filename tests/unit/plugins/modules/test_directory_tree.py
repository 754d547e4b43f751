# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The shared tree: made in one task, and never underneath a missing mount."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils import _directory_tree
from ansible_collections.pcluster.postboot.plugins.modules import directory_tree

Run = Callable[..., dict[str, Any]]
WHO = {"owner": pwd.getpwuid(os.getuid()).pw_name, "group": grp.getgrgid(os.getgid()).gr_name}


def entry(path: str, mode: str = "0755", **more: str) -> dict[str, str]:
    return {"path": path, "mode": mode, **WHO, **more}


def modes(top: Path) -> dict[str, str]:
    return {str(p.relative_to(top)): f"{p.stat().st_mode & 0o7777:04o}" for p in top.rglob("*")}


def test_check_apply_check_apply(run_module: Run, tmp_path: Path) -> None:
    args = {
        "path": str(tmp_path),
        "directories": [entry("logs/training", "1777"), entry("logs"), entry("data", "1777")],
    }
    checked = run_module(directory_tree, args, check=True)
    assert checked["changed"]
    assert modes(tmp_path) == {}
    applied = run_module(directory_tree, args)
    assert applied["changed"]
    assert applied["created"] == checked["created"] == ["data", "logs", "logs/training"]
    assert applied["diff"] == checked["diff"]
    assert "logs/training: absent" in applied["diff"]["before"]
    assert modes(tmp_path) == {"data": "1777", "logs": "0755", "logs/training": "1777"}
    assert not run_module(directory_tree, args, check=True)["changed"]
    assert not run_module(directory_tree, args)["changed"]


def test_an_unusual_umask_does_not_matter(run_module: Run, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        run_module(directory_tree, {"path": str(tmp_path), "directories": [entry("data", "2775")]})
    finally:
        os.umask(before)
    assert modes(tmp_path) == {"data": "2775"}


def test_what_is_there_keeps_its_mode_unless_it_is_enforced(run_module: Run, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o750)
    args: dict[str, Any] = {"path": str(tmp_path), "directories": [entry("data", "1777")]}
    answer = run_module(directory_tree, args)
    assert not answer["changed"]
    assert answer["left"][0]["path"] == "data"
    assert answer["left"][0]["found"].startswith("0750 ")
    assert answer["msg"] == "1 left as found"
    args["enforce"] = True
    assert run_module(directory_tree, args, check=True)["corrected"] == ["data"]
    assert modes(tmp_path) == {"data": "0750"}
    assert run_module(directory_tree, args)["corrected"] == ["data"]
    assert modes(tmp_path) == {"data": "1777"}


def test_a_link_to_a_directory_is_left_alone(run_module: Run, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "data").symlink_to("elsewhere")
    args = {"path": str(tmp_path), "directories": [entry("data", "1777"), entry("data/sub")], "enforce": True}
    answer = run_module(directory_tree, args)
    assert answer["created"] == ["data/sub"]
    assert modes(tmp_path)["elsewhere"] == "0700"


@pytest.mark.parametrize(
    ("before", "says"),
    [("file", "is no directory: move it away"), ("dangling", "is a link that leads to no directory")],
)
def test_what_is_in_the_way_is_named(run_module: Run, tmp_path: Path, before: str, says: str) -> None:
    if before == "file":
        (tmp_path / "data").write_text("")
    else:
        (tmp_path / "data").symlink_to("nowhere")
    for path in ("data", "data/sub"):
        answer = run_module(directory_tree, {"path": str(tmp_path), "directories": [entry("data"), entry(path)]})
        assert answer["failed"]
        assert says in answer["msg"]


def test_a_file_above_a_directory_is_named(run_module: Run, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    answer = run_module(directory_tree, {"path": str(tmp_path), "directories": [entry("data/sub")]})
    assert answer["msg"] == f"{tmp_path}/data is no directory: move it away, or take data/sub out of the list"


def test_nothing_is_written_where_the_mount_is_missing(run_module: Run, tmp_path: Path) -> None:
    args = {"path": str(tmp_path), "mount": str(tmp_path), "directories": [entry("data")]}
    answer = run_module(directory_tree, args)
    assert answer["failed"]
    assert f"{tmp_path} is no mount point" in answer["msg"]
    assert modes(tmp_path) == {}


def test_an_automount_that_waits_is_no_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("systemd-1 /fsx autofs rw 0 0\nx /with\\040space ext4 rw 0 0\n")
    with pytest.raises(_directory_tree.TreeError, match="/fsx is no mount point"):
        _directory_tree.require_mount("/fsx", str(mounts))
    _directory_tree.require_mount("/with space/", str(mounts))
    mounts.write_text("systemd-1 /fsx autofs rw 0 0\n1.2.3.4@tcp:/x /fsx lustre rw 0 0\n")
    _directory_tree.require_mount("/fsx", str(mounts))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (entry("/etc"), "'/etc' is not below the tree's top"),
        (entry("a/../../b"), "'a/../../b' is not below the tree's top"),
        (entry("."), "'.' is not below the tree's top"),
        (entry(""), "'' is not below the tree's top"),
        (entry("a", "rwx"), "mode 'rwx' of a is no octal number"),
        (entry("a", owner="nobody-here"), "owner 'nobody-here' of a is no user of this node"),
        (entry("a", group="nobody-here"), "group 'nobody-here' of a is no group of this node"),
        (entry("a/b"), "the directory above"),
    ],
)
def test_a_mistake_in_the_list_is_one_line(run_module: Run, tmp_path: Path, given: dict[str, str], says: str) -> None:
    answer = run_module(directory_tree, {"path": str(tmp_path), "directories": [given]})
    assert answer["failed"]
    assert says in answer["msg"]
    assert "\n" not in answer["msg"]


def test_a_missing_top_is_not_made(run_module: Run, tmp_path: Path) -> None:
    answer = run_module(directory_tree, {"path": str(tmp_path / "absent"), "directories": [entry("a")]})
    assert answer["failed"]
    assert not (tmp_path / "absent").exists()
