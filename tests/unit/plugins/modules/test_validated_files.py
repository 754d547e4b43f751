# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A set of files: put in place together, or not at all."""

from __future__ import annotations

import grp
import os
import pwd
import sys
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils import _validated_files
from ansible_collections.pcluster.postboot.plugins.module_utils._host import files
from ansible_collections.pcluster.postboot.plugins.modules import validated_files
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab
from ansible_collections.pcluster.postboot.tests.unit.plugins.lab import Run

WHO = {"owner": pwd.getpwuid(os.getuid()).pw_name, "group": grp.getgrgid(os.getgid()).gr_name}
LEFT = f".a.pcpb-tmp-{files.machine()}-999999-1-01234567"  # by a run that was killed
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
    return str(lab.program(tmp_path / "check", CHECK.format(python=sys.executable)))


@pytest.fixture
def put(run_module: Run, top: Path) -> Run:
    """put(entry(…), …) runs the module with these files."""

    def run(*files: dict[str, Any], check: bool = False, **more: Any) -> dict[str, Any]:
        return run_module(validated_files, {"path": str(top), "files": list(files), **more}, check=check)

    return run


def test_check_apply_check_apply(put: Run, top: Path, check: str) -> None:
    files = [entry("app.yml", "one\n", mode="0640"), entry("rules/a.yml", "two")]
    args = {"validate": [check, "%s"]}
    checked = put(*files, **args, check=True)
    assert checked["changed"]
    assert checked["validated"]
    assert not top.exists()
    applied = put(*files, **args)
    assert applied["written"] == checked["written"] == ["app.yml", "rules/a.yml"]
    assert applied["diff"] == checked["diff"]
    assert applied["msg"] == "2 written"
    assert files_of(top) == {"app.yml": "one\n", "rules/a.yml": "two\n"}
    assert (top / "app.yml").stat().st_mode & 0o777 == 0o640
    assert not put(*files, **args, check=True)["changed"]
    again = put(*files, **args)
    assert not again["changed"]
    assert again["validated"]
    assert again["diff"] == []


def test_a_refused_set_changes_nothing_and_names_the_variable(put: Run, top: Path, check: str) -> None:
    args: dict[str, Any] = {"purge": ["rules/*.yml"], "validate": [check, "%s"]}
    put(entry("app.yml", "one\n"), entry("rules/a.yml", "two\n", source="app_rules['a.yml']"), **args)
    (top / "rules/old.yml").write_text("old\n")
    before = {path: (path.stat().st_ino, path.stat().st_ctime_ns) for path in top.rglob("*")}
    files = [entry("app.yml", "three\n"), entry("rules/a.yml", "\nbad\n", source="app_rules['a.yml']")]
    for mode in (True, False):
        failed = put(*files, **args, check=mode)
        assert failed["failed"]
        assert failed["msg"] == (
            f"check: {top}/rules/a.yml: line 2: a word that is not liked; correct app_rules['a.yml']; "
            f"nothing in {top} was changed"
        )
    assert {path: (path.stat().st_ino, path.stat().st_ctime_ns) for path in top.rglob("*")} == before


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (
            "Checking 'FILE'  FAILED: yaml: unmarshal errors:\n  line 1: field rout not found in type config.plain\n",
            "Checking 'FILE' FAILED: yaml: unmarshal errors: line 1: field rout not found in type config.plain; "
            "correct am_route",
        ),
        (
            "Checking 'FILE'  SUCCESS\nFound:\n - global config\n - route\n - 1 templates\n"
            "  FAILED: template: own.tmpl:2: unexpected EOF\n\n",
            "template: own.tmpl:2: unexpected EOF; correct am_templates['own.tmpl']",
        ),
    ],
)
def test_what_amtool_refuses_is_said_though_its_standard_error_only_counts(
    put: Run, top: Path, tmp_path: Path, out: str, message: str
) -> None:
    """The words are those of amtool 0.33.1."""
    (tmp_path / "out").write_text(out)
    text = f"""#!/bin/sh
sed "s#FILE#$1#" {tmp_path}/out
echo 'amtool: error: failed to validate 1 file(s)' >&2
exit 1
"""
    amtool = lab.program(tmp_path / "amtool", text)
    files = [
        entry("am.yml", "x\n", source="am_route"),
        entry("templates/own.tmpl", "x\n", source="am_templates['own.tmpl']"),
    ]
    failed = put(*files, validate=[str(amtool), "%s/am.yml"])
    assert failed["msg"] == f"amtool: {message.replace('FILE', f'{top}/am.yml')}; nothing in {top} was changed"


def test_files_that_are_no_longer_wanted_are_removed(put: Run, top: Path, check: str) -> None:
    (top / "rules/kept.yml").mkdir(parents=True)
    for name in ("old.yml", "notes.txt", LEFT):
        (top / "rules" / name).write_text("bad\n" if name == "old.yml" else "x\n")
    (top / "rules/link.yml").symlink_to("/nonexistent")
    files = [entry("rules/new.yml", "x\n")]
    args: dict[str, Any] = {"purge": ["rules/*.yml", "absent/*"], "validate": [check, "%s"]}
    checked = put(*files, **args, check=True)
    assert checked["removed"] == ["rules/link.yml", "rules/old.yml"]
    done = put(*files, **args)
    assert (done["removed"], done["written"]) == (checked["removed"], ["rules/new.yml"])
    assert sorted(os.listdir(top / "rules")) == ["kept.yml", "new.yml", "notes.txt"]
    assert not put(*files, **args)["changed"]


def test_what_else_is_there_is_checked_with_the_candidates(put: Run, top: Path, check: str) -> None:
    (top / "rules").mkdir(parents=True)
    (top / "rules/theirs.yml").write_text("bad\n")
    failed = put(entry("rules/a.yml", "x\n"), validate=[check, "%s"])
    assert failed["msg"].startswith(f"check: {top}/rules/theirs.yml: line 1")
    assert not (top / "rules/a.yml").exists()


def test_candidates_are_only_ours_to_read(put: Run, top: Path, tmp_path: Path) -> None:
    look = lab.program(tmp_path / "look", f'#!/bin/sh\n(stat -c "%a" "$1"; pwd; echo "$1") > {tmp_path}/seen\n')
    put(entry("a", "x"), validate=[str(look), "%s"])
    mode, working, folder = (tmp_path / "seen").read_text().split()
    assert mode == "700"
    assert working == folder
    assert not os.path.exists(folder)


def test_a_program_that_is_not_there_is_overlooked_in_check_mode_only(put: Run, top: Path) -> None:
    checked = put(entry("a", "x"), validate=["/nonexistent/check", "%s"], check=True)
    assert (checked["changed"], checked["validated"]) == (True, False)
    failed = put(entry("a", "x"), validate=["/nonexistent/check", "%s"])
    assert failed["msg"] == "validate: the program /nonexistent/check is not there; install it first"


def test_a_user_that_is_not_there_is_overlooked_in_check_mode_only(put: Run, top: Path) -> None:
    file = entry("a", "x", group="nobody-has-this")
    assert put(file, check=True)["changed"]
    assert "group 'nobody-has-this' of a is not on this node" in put(file)["msg"]
    assert not top.exists()


def test_a_program_that_does_not_end(put: Run, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as hurried:
        hurried.setattr(_validated_files, "TIMEOUT", 0.2)
        assert put(entry("a", "x"), validate=["sleep", "30"])["msg"] == "validate: 'sleep 30' did not end within 0.2 s"
    assert put(entry("a", "x"), validate=["false"])["msg"].startswith("false: false ended with 1 and said nothing")


def test_mode_owner_and_links_are_corrected(put: Run, top: Path, tmp_path: Path) -> None:
    top.mkdir(parents=True)
    (top / "a").write_text("x\n")
    (top / "a").chmod(0o666)
    (tmp_path / "elsewhere").write_text("x\n")
    (top / "b").symlink_to(tmp_path / "elsewhere")
    done = put(entry("a", "x\n", mode="0600"), entry("b", "y\n"))
    assert done["written"] == ["a", "b"]
    assert "(0666 " in done["diff"][0]["prepared"]
    assert "(0600 " in done["diff"][0]["prepared"]
    assert (top / "a").stat().st_mode & 0o777 == 0o600
    assert not (top / "b").is_symlink()
    assert (tmp_path / "elsewhere").read_text() == "x\n"


def test_an_unusual_umask_does_not_matter(put: Run, top: Path) -> None:
    with lab.umask(0o077):
        put(entry("x/a", "x"))
    assert [p.stat().st_mode & 0o777 for p in (top.parent, top, top / "x", top / "x/a")] == [0o755] * 3 + [0o644]


def test_every_line_end_and_byte_stays_as_it_is(put: Run, top: Path) -> None:
    files = [entry("a", "x\r\ny\n"), entry("empty", "")]
    assert put(*files)["changed"]
    assert (top / "a").read_bytes() == b"x\r\ny\n"
    assert (top / "empty").read_bytes() == b""
    assert not put(*files)["changed"]
    (top / "a").write_bytes(b"\xff\xfe")
    assert put(*files)["written"] == ["a"]


def test_what_a_killed_run_has_left_is_no_obstacle(put: Run, top: Path) -> None:
    top.mkdir(parents=True)
    (top / LEFT).write_text("half a fi")
    assert put(entry("a", "secret\n", mode="0600"), purge=["*"])["changed"]
    assert os.listdir(top) == ["a"]
    assert (top / "a").stat().st_mode & 0o777 == 0o600


def test_nothing_is_moved_before_everything_is_written(put: Run, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(entry("a", "old\n"), entry("b", "old\n"))
    settle = files.Staged.settle

    def full_disk(staged: files.Staged, *rest: int) -> None:
        settle(staged, *rest)
        if staged.final.endswith("/b"):
            raise OSError(28, "No space left on device", staged.final)

    monkeypatch.setattr(files.Staged, "settle", full_disk)
    assert "No space left on device" in put(entry("a", "new\n"), entry("b", "new\n"))["msg"]
    assert files_of(top) == {"a": "old\n", "b": "old\n"}


def test_the_diff_shows_what_comes(put: Run, top: Path) -> None:
    done = put(entry("a", "password: hunter2\nb: c\n"))
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
def test_what_cannot_be_meant_is_refused(put: Run, top: Path, change: dict[str, Any], said: str) -> None:
    (top / "folder").mkdir(parents=True)
    result = put(**{"files": [entry("a", "x")], **change})
    assert result["failed"]
    assert said in result["msg"]


def test_a_file_that_becomes_somebody_elses(put: Run, top: Path) -> None:
    first = {**entry("list", "first\n"), "force": False}
    for check in (True, False):
        assert put(first, purge=["*"], check=check)["written"] == ["list"]
    (top / "list").write_text("mine\n")
    result = put({**first, "content": "second\n"}, purge=["*"])
    assert (result["changed"], result["removed"]) == (False, [])
    assert (top / "list").read_text() == "mine\n"
