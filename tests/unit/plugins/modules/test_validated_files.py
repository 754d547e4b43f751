# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A set of files: put in place together, or not at all."""

from __future__ import annotations

import grp
import os
import pwd
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils import _validated_files
from ansible_collections.pcluster.postboot.plugins.modules import validated_files

Run = Callable[..., dict[str, Any]]
WHO = {"owner": pwd.getpwuid(os.getuid()).pw_name, "group": grp.getgrgid(os.getgid()).gr_name}
# Accepts a folder in which no file says "bad", and tells where it saw one as promtool does.
CHECK = """#!{python}
import os, sys
for folder, _, files in os.walk(sys.argv[1], followlinks=True):
    for name in sorted(files):
        path = os.path.join(folder, name)
        for number, line in enumerate(open(path), 1):
            if "bad" in line:
                print("Checking " + path)
                sys.exit("  FAILED:\\n" + path + ": line " + str(number) + ": a word that\\n  is not liked")
"""


def entry(path: str, content: str, **more: str) -> dict[str, str]:
    return {"path": path, "content": content, **WHO, **more}


def files_of(top: Path) -> dict[str, str]:
    return {str(p.relative_to(top)): p.read_text() for p in top.rglob("*") if p.is_file()}


@pytest.fixture
def top(tmp_path: Path) -> Path:
    return tmp_path / "etc/app"


@pytest.fixture
def check(tmp_path: Path) -> str:
    program = tmp_path / "check"
    program.write_text(CHECK.format(python=sys.executable))
    program.chmod(0o755)
    return str(program)


def test_check_apply_check_apply(run_module: Run, top: Path, check: str) -> None:
    args: dict[str, Any] = {
        "path": str(top),
        "files": [entry("app.yml", "one\n", mode="0640"), entry("rules/a.yml", "two")],
        "validate": [check, "%s"],
    }
    checked = run_module(validated_files, args, check=True)
    assert checked["changed"]
    assert checked["validated"]
    assert not top.exists()
    applied = run_module(validated_files, args)
    assert applied["written"] == checked["written"] == ["app.yml", "rules/a.yml"]
    assert applied["diff"] == checked["diff"]
    assert applied["msg"] == "2 written"
    assert files_of(top) == {"app.yml": "one\n", "rules/a.yml": "two\n"}
    assert (top / "app.yml").stat().st_mode & 0o777 == 0o640
    assert not run_module(validated_files, args, check=True)["changed"]
    again = run_module(validated_files, args)
    assert not again["changed"]
    assert again["validated"]
    assert again["diff"] == []


def test_a_refused_set_changes_nothing_and_names_the_variable(run_module: Run, top: Path, check: str) -> None:
    args: dict[str, Any] = {
        "path": str(top),
        "files": [entry("app.yml", "one\n"), entry("rules/a.yml", "two\n", source="app_rules['a.yml']")],
        "purge": ["rules/*.yml"],
        "validate": [check, "%s"],
    }
    run_module(validated_files, args)
    (top / "rules/old.yml").write_text("old\n")
    before = {path: (path.stat().st_ino, path.stat().st_ctime_ns) for path in top.rglob("*")}
    args["files"] = [entry("app.yml", "three\n"), entry("rules/a.yml", "\nbad\n", source="app_rules['a.yml']")]
    for mode in (True, False):
        failed = run_module(validated_files, args, check=mode)
        assert failed["failed"]
        assert failed["msg"] == (
            f"check: {top}/rules/a.yml: line 2: a word that is not liked; correct app_rules['a.yml']; "
            f"nothing in {top} was changed"
        )
    assert {path: (path.stat().st_ino, path.stat().st_ctime_ns) for path in top.rglob("*")} == before


def test_files_that_are_no_longer_wanted_are_removed(run_module: Run, top: Path, check: str) -> None:
    (top / "rules/kept.yml").mkdir(parents=True)
    for name in ("old.yml", "notes.txt", ".new.yml.postboot"):
        (top / "rules" / name).write_text("bad\n" if name == "old.yml" else "x\n")
    (top / "rules/link.yml").symlink_to("/nonexistent")
    args: dict[str, Any] = {
        "path": str(top),
        "files": [entry("rules/new.yml", "x\n")],
        "purge": ["rules/*.yml", "absent/*"],
        "validate": [check, "%s"],
    }
    checked = run_module(validated_files, args, check=True)
    assert checked["removed"] == ["rules/link.yml", "rules/old.yml"]
    done = run_module(validated_files, args)
    assert (done["removed"], done["written"]) == (checked["removed"], ["rules/new.yml"])
    assert sorted(os.listdir(top / "rules")) == ["kept.yml", "new.yml", "notes.txt"]
    assert not run_module(validated_files, args)["changed"]


def test_what_else_is_there_is_checked_with_the_candidates(run_module: Run, top: Path, check: str) -> None:
    (top / "rules").mkdir(parents=True)
    (top / "rules/theirs.yml").write_text("bad\n")
    args = {"path": str(top), "files": [entry("rules/a.yml", "x\n")], "validate": [check, "%s"]}
    failed = run_module(validated_files, args)
    assert failed["msg"].startswith(f"check: {top}/rules/theirs.yml: line 1")
    assert not (top / "rules/a.yml").exists()


def test_candidates_are_only_ours_to_read(run_module: Run, top: Path, tmp_path: Path) -> None:
    program = tmp_path / "look"
    program.write_text(
        f'#!/bin/sh\nstat -c "%a" "$1" > {tmp_path}/seen; pwd >> {tmp_path}/seen; echo "$1" >> {tmp_path}/seen\n'
    )
    program.chmod(0o755)
    run_module(validated_files, {"path": str(top), "files": [entry("a", "x")], "validate": [str(program), "%s"]})
    mode, working, folder = (tmp_path / "seen").read_text().split()
    assert mode == "700"
    assert working == folder
    assert not os.path.exists(folder)


def test_a_program_that_is_not_there_is_overlooked_in_check_mode_only(run_module: Run, top: Path) -> None:
    args = {"path": str(top), "files": [entry("a", "x")], "validate": ["/nonexistent/check", "%s"]}
    checked = run_module(validated_files, args, check=True)
    assert checked["changed"]
    assert not checked["validated"]
    failed = run_module(validated_files, args)
    assert failed["msg"] == "validate: the program /nonexistent/check is not there; install it first"


def test_a_user_that_is_not_there_is_overlooked_in_check_mode_only(run_module: Run, top: Path) -> None:
    args = {"path": str(top), "files": [entry("a", "x", group="nobody-has-this")]}
    assert run_module(validated_files, args, check=True)["changed"]
    assert "group 'nobody-has-this' of a is not on this node" in run_module(validated_files, args)["msg"]
    assert not top.exists()


def test_a_program_that_does_not_end(run_module: Run, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_validated_files, "TIMEOUT", 0.2)
    args = {"path": str(top), "files": [entry("a", "x")], "validate": ["sleep", "30"]}
    assert run_module(validated_files, args)["msg"] == "validate: 'sleep 30' did not end within 0.2 s"
    args["validate"] = ["false"]
    assert run_module(validated_files, args)["msg"].startswith("false: false ended with 1 and said nothing")


def test_mode_owner_and_links_are_corrected(run_module: Run, top: Path, tmp_path: Path) -> None:
    top.mkdir(parents=True)
    (top / "a").write_text("x\n")
    (top / "a").chmod(0o666)
    (tmp_path / "elsewhere").write_text("x\n")
    (top / "b").symlink_to(tmp_path / "elsewhere")
    args = {"path": str(top), "files": [entry("a", "x\n", mode="0600"), entry("b", "y\n")]}
    done = run_module(validated_files, args)
    assert done["written"] == ["a", "b"]
    assert "(0666 " in done["diff"][0]["prepared"]
    assert "(0600 " in done["diff"][0]["prepared"]
    assert (top / "a").stat().st_mode & 0o777 == 0o600
    assert not (top / "b").is_symlink()
    assert (tmp_path / "elsewhere").read_text() == "x\n"


def test_an_unusual_umask_does_not_matter(run_module: Run, top: Path) -> None:
    before = os.umask(0o077)
    try:
        run_module(validated_files, {"path": str(top), "files": [entry("x/a", "x")]})
    finally:
        os.umask(before)
    assert [p.stat().st_mode & 0o777 for p in (top.parent, top, top / "x", top / "x/a")] == [0o755] * 3 + [0o644]


def test_every_line_end_and_byte_stays_as_it_is(run_module: Run, top: Path) -> None:
    args = {"path": str(top), "files": [entry("a", "x\r\ny\n"), entry("empty", "")]}
    assert run_module(validated_files, args)["changed"]
    assert (top / "a").read_bytes() == b"x\r\ny\n"
    assert (top / "empty").read_bytes() == b""
    assert not run_module(validated_files, args)["changed"]
    (top / "a").write_bytes(b"\xff\xfe")
    assert run_module(validated_files, args)["written"] == ["a"]


def test_what_a_killed_run_has_left_is_no_obstacle(run_module: Run, top: Path) -> None:
    top.mkdir(parents=True)
    (top / ".a.postboot").write_text("half a fi")
    (top / ".a.postboot").chmod(0o666)
    args = {"path": str(top), "files": [entry("a", "secret\n", mode="0600")]}
    assert run_module(validated_files, args)["changed"]
    assert os.listdir(top) == ["a"]
    assert (top / "a").stat().st_mode & 0o777 == 0o600


def test_nothing_is_moved_before_everything_is_written(
    run_module: Run, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = {"path": str(top), "files": [entry("a", "old\n"), entry("b", "old\n")]}
    run_module(validated_files, args)
    prepare = _validated_files._prepare

    def full_disk(path: str, *rest: Any) -> None:
        prepare(path, *rest)
        if path.endswith("/b"):
            raise OSError(28, "No space left on device", path)

    monkeypatch.setattr(_validated_files, "_prepare", full_disk)
    args["files"] = [entry("a", "new\n"), entry("b", "new\n")]
    failed = run_module(validated_files, args)
    assert "No space left on device" in failed["msg"]
    assert files_of(top) == {"a": "old\n", "b": "old\n"}


def test_the_diff_shows_what_comes(run_module: Run, top: Path) -> None:
    done = run_module(validated_files, {"path": str(top), "files": [entry("a", "password: hunter2\nb: c\n")]})
    assert done["diff"][0]["prepared"].endswith("+password: hunter2\n+b: c\n")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"path": "relative"}, "path: 'relative' is relative"),
        ({"files": [entry("../a", "x")]}, "is not below the folder"),
        ({"files": [entry("/a", "x")]}, "is not below the folder"),
        ({"files": [entry("a", "x"), entry("b/../a", "x")]}, "listed twice"),
        ({"files": [entry("a", "x", mode="rw")]}, "no octal number"),
        ({"purge": ["../*"]}, "purge: '../*' is not below"),
        ({"files": [entry("folder", "x")]}, "is a folder; needed"),
    ],
)
def test_what_cannot_be_meant_is_refused(run_module: Run, top: Path, change: dict[str, Any], said: str) -> None:
    (top / "folder").mkdir(parents=True)
    result = run_module(validated_files, {"path": str(top), "files": [entry("a", "x")], **change})
    assert result["failed"]
    assert said in result["msg"]


def test_a_file_that_becomes_somebody_elses(run_module: Run, top: Path) -> None:
    args: dict[str, Any] = {"path": str(top), "files": [{**entry("list", "first\n"), "force": False}], "purge": ["*"]}
    assert run_module(validated_files, args, check=True)["written"] == ["list"]
    assert run_module(validated_files, args)["written"] == ["list"]
    (top / "list").write_text("mine\n")
    args["files"][0]["content"] = "second\n"
    result = run_module(validated_files, args)
    assert (result["changed"], result["removed"]) == (False, [])
    assert (top / "list").read_text() == "mine\n"
