# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Files that are put in place whole, temporary names, and owners."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._host import files
from ansible_collections.pcluster.postboot.tests import strangers


def test_what_is_written_is_whole_and_has_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    files.write(str(path), "one", 0o640)
    files.write(str(path), "two\udcff", 0o640)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"two\xff", 0o640)
    files.write(str(path), b"three")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("three", 0o644)
    with pytest.raises(OSError, match="absent"):
        files.write(str(tmp_path / "absent" / "file"), "x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        files.write(str(tmp_path / "folder"), "x")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("end", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_is_cut_short_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, end: BaseException
) -> None:
    def ended(*_args: object) -> None:
        raise end

    (tmp_path / "file").write_text("old")
    monkeypatch.setattr(os, step, ended)
    with pytest.raises(type(end)):
        files.write(str(tmp_path / "file"), "new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "old")]


def test_a_write_removes_what_a_killed_one_has_left(tmp_path: Path) -> None:
    left = tmp_path / f".file.pcpb-tmp-{files.machine()}-999999-1-01234567"
    another = tmp_path / ".file.pcpb-tmp-00000000-1-1-01234567"  # of another machine, which may still write it
    for path in (left, another):
        path.write_text("half")
    files.write(str(tmp_path / "file"), "x", tidy=False)
    assert left.exists()
    files.write(str(tmp_path / "file"), "x")
    assert sorted(tmp_path.iterdir()) == [another, tmp_path / "file"]
    os.utime(another, (1, 1))
    files.write(str(tmp_path / "file"), "x")
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_a_temporary_name_tells_whose_it_is() -> None:
    name = files.temp_name("/opt/tool")
    match = files.TEMPORARY.match(os.path.basename(name))
    assert match
    assert os.path.dirname(name) == "/opt"
    assert (match["final"], match["kind"], match["owner"]) == ("tool", "tmp", files.owner())
    assert files.owner_alive(match["owner"]) is True
    assert files.owner_alive(f"{files.machine()}-{os.getppid()}-{files._started(os.getppid())}") is True
    assert files.owner_alive(f"{files.machine()}-{os.getppid()}-1") is False
    assert files.owner_alive("00000000-1-1") is None
    assert len(os.path.basename(files.temp_name("/opt/" + "x" * 255))) <= 255


@pytest.mark.parametrize(("ago", "kept"), [(0, True), (1800, True), (7200, False)])
@pytest.mark.parametrize("step", [0, 3 * 3600, -3 * 3600])
def test_the_files_of_other_machines_have_the_age_that_the_file_system_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ago: float, kept: bool, step: float
) -> None:
    """This machine's own clock may be another than that of the file server, which stamps the files of all."""
    theirs = tmp_path / ".file.pcpb-tmp-00000000-1-1-0123abcd"
    theirs.write_text("")
    stamped = theirs.stat().st_mtime - ago
    os.utime(theirs, (stamped, stamped))
    now = time.time() + step
    monkeypatch.setattr(time, "time", lambda: now)
    files.sweep(str(tmp_path))
    assert os.listdir(tmp_path) == ([theirs.name] if kept else [])


def test_a_staged_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    final = tmp_path / "file"
    with pytest.raises(OSError, match="the disk is gone"), files.Staged(str(final)) as staged:
        staged.file.writelines(_halves())
    assert list(final.parent.iterdir()) == []
    with files.Staged(str(final)) as staged:
        staged.file.write(b"whole")
        assert not final.exists()
        staged.settle(0o640)
        assert not final.exists()
        status = staged.commit()
    assert final.read_bytes() == b"whole"
    assert (status.st_size, status.st_mode & 0o777) == (5, 0o640)
    assert list(final.parent.iterdir()) == [final]


def test_a_staged_file_replaces_a_link_not_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("target")
    (tmp_path / "link").symlink_to("target")
    with files.Staged(str(tmp_path / "link")) as staged:
        staged.settle(0o644)
        staged.commit()
    assert (tmp_path / "target").read_text() == "target"
    assert not (tmp_path / "link").is_symlink()


def test_a_tree_moved_aside_by_a_killed_run_comes_back(tmp_path: Path) -> None:
    aside = tmp_path / f".tree.pcpb-old-{files.machine()}-999999-1-01234567"
    aside.mkdir()
    (aside / "file").write_text("old")
    files.sweep(str(tmp_path))
    assert (tmp_path / "tree" / "file").read_text() == "old"
    aside.mkdir()
    files.sweep(str(tmp_path))
    assert not aside.exists()
    files.sweep(str(tmp_path / "nowhere"))


@strangers.TWO_USERS
def test_what_other_users_call_like_temporary_files_is_left_alone() -> None:
    with strangers.crowd() as place:
        dead = f"{files.machine()}-999999-1"
        tree, moved, link, own = (
            place / f".{name}.pcpb-{kind}-{dead}-01234567"
            for name, kind in (("tree", "tmp"), ("passwd", "old"), ("link", "tmp"), ("own", "tmp"))
        )
        strangers.deep_tree(tree)
        strangers.as_user(moved.mkdir)
        strangers.as_user(lambda: link.symlink_to("/etc/passwd"))
        own.mkdir()
        files.write(str(place / "file"), "x")
        assert sorted(path.name for path in place.iterdir()) == sorted(["file", link.name, moved.name, tree.name])
        assert strangers.depth(tree) == strangers.DEEP
        name = place / f".churn.pcpb-tmp-{dead}-01234567"
        with strangers.churn(lambda: (name.mkdir(), name.rmdir())):
            for _again in strangers.until(1):
                files.sweep(str(place))


@strangers.TWO_USERS
def test_a_temporary_file_that_got_its_final_owner_goes_where_only_root_writes(tmp_path: Path) -> None:
    left = tmp_path / f".file.pcpb-tmp-{files.machine()}-999999-1-01234567"
    left.write_text("half")
    os.chown(left, strangers.USER, strangers.USER)
    files.sweep(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_removed_is_no_failure() -> None:
    with strangers.crowd() as place:
        with files.folder("own-", str(place)) as folder:
            assert os.stat(folder).st_mode & 0o777 == 0o700
            strangers.deep_tree(Path(folder) / "tree", os.geteuid())
        assert Path(folder).exists()
        with files.folder("own-", str(place)) as folder:
            Path(folder, "file").write_text("x")
        assert not Path(folder).exists()


def test_only_regular_files_are_opened_and_only_a_part_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text\xff" + b"x" * 100)
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    assert files.peek(str(tmp_path / "file"), 5) == "text\N{REPLACEMENT CHARACTER}"
    for name, why in (("link", "symbolic links"), ("pipe", "not a regular file"), (".", "not a regular file")):
        with pytest.raises(OSError, match=why):
            strangers.within(5, lambda name=name: files.peek(str(tmp_path / name)))
    with files.open_regular(str(tmp_path / "link"), follow=True) as stream:
        assert stream.read(4) == b"text"


def _halves() -> Iterator[bytes]:
    yield b"half"
    raise OSError("the disk is gone")


def test_remove_takes_files_trees_and_nothing(tmp_path: Path) -> None:
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").write_text("x")
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "outside")
    files.remove(str(tmp_path / "tree"))
    files.remove(str(tmp_path / "tree"))
    (tmp_path / "link").symlink_to(tmp_path / "outside")
    files.remove(str(tmp_path / "link"))
    assert (tmp_path / "outside" / "kept").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]


@pytest.mark.parametrize(("path", "clean"), [("a//b/./c", "a/b/c"), ("a/../b", "b")])
def test_a_path_below_is_told_in_its_shortest_form(path: str, clean: str) -> None:
    assert files.below(path) == clean


@pytest.mark.parametrize("path", ["", ".", "/a", "..", "a/../..", "../a"])
def test_a_path_that_leads_elsewhere_is_none(path: str) -> None:
    assert files.below(path) == ""


def test_users_and_groups_have_numbers_and_names() -> None:
    assert (files.user_id("root"), files.user_id("4711"), files.user_id("no-such-user")) == (0, 4711, None)
    assert (files.group_id("root"), files.group_id("4711"), files.group_id("no-such-group")) == (0, 4711, None)
    assert files.like(0o644, 0, 0) == "0644 root:root"
    assert files.like(0o4750, 0, 987654) == "4750 root:987654"
    assert files.user_called(987654) == "987654"
