# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The artifact module as Ansible runs it, against a real HTTP server on loopback that does what servers do."""

from __future__ import annotations

import base64
import email.utils
import errno
import fcntl
import hashlib
import io
import json
import os
import re
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._artifact import cache, fetch, files, model
from ansible_collections.pcluster.postboot.plugins.module_utils._artifact import ensure as core
from ansible_collections.pcluster.postboot.plugins.module_utils._host import files as host_files
from ansible_collections.pcluster.postboot.plugins.module_utils._host import http as host_http
from ansible_collections.pcluster.postboot.plugins.modules import artifact as module
from ansible_collections.pcluster.postboot.tests.programs import load
from ansible_collections.pcluster.postboot.tests.unit.plugins.lab import program, umask
from ansible_collections.pcluster.postboot.tests.waiting import PATIENCE

REPO = Path(__file__).resolve().parents[4]
SOAK = REPO / "tests" / "soak" / "artifact.py"


soak = load("tests/soak/artifact.py")
FILES = {"pkg-1.0/bin/tool": b"tool 1.0\n" * 4000, "pkg-1.0/bin/helper": b"helper\n", "pkg-1.0/README": b"read me\n"}
PACKED = soak.tar_bytes(FILES)
UP = "/up/pkg-1.0.tar.gz"
MIRRORED = "/m/127.0.0.1" + UP


class Lab:
    def __init__(self, root: Path, server: Any, run: Callable[..., dict[str, Any]]) -> None:
        self.root, self.server, self._run = root, server, run
        self.dest = root / "opt"
        self.state = root / "state"
        self.cache = root / "fsx" / "cache"

    def members(self, **more: Any) -> dict[str, Any]:
        wanted = [{"src": "*/bin/tool", "mode": "0755"}, {"src": "pkg-1.0/README", "dest": "doc/"}]
        return {**self.plain(), "dest": str(self.dest), "members": wanted, **more}

    def plain(self, **more: Any) -> dict[str, Any]:
        given = {"name": "pkg", "version": "1.0", "url": self.server.url(UP), "sha256": soak.sha256(PACKED)}
        return {**given, "dest": str(self.dest / "pkg.tar.gz"), **more}

    def tree(self, **more: Any) -> dict[str, Any]:
        return {**self.plain(), "dest": str(self.dest / "pkg"), "unpack": True, "strip_components": 1, **more}

    def run(self, *artifacts: dict[str, Any], check: bool = False, **more: Any) -> dict[str, Any]:
        given = {"artifacts": list(artifacts), "state_dir": str(self.state), "timeout": 5, "retries": 2, **more}
        return self._run(module, given, check=check)

    def ok(self, *artifacts: dict[str, Any], **more: Any) -> dict[str, Any]:
        """Run the module, see it succeed and leave nothing; return the result of the only artifact."""
        result = self.run(*artifacts, **more)
        assert not result["failed"], result["msg"]
        assert self.leftovers() == []
        return result["artifacts"][0]

    def fails(self, *artifacts: dict[str, Any], **more: Any) -> str:
        """Run the module, see it fail in one line and leave nothing; return the line."""
        result = self.run(*artifacts, **more)
        assert result["failed"], result
        assert "\n" not in result["msg"]
        assert self.leftovers() == []
        return result["msg"]

    def leftovers(self) -> list[str]:
        return [str(path) for path in self.root.rglob("*") if ".pcpb-" in path.name or ".lease." in path.name]

    def installed(self) -> dict[str, bytes]:
        """Every file below the destination, but for the receipt that a tree carries."""
        found = {str(path.relative_to(self.dest)): path.read_bytes() for path in self.dest.rglob("*") if path.is_file()}
        return {name: content for name, content in found.items() if not name.endswith("/.pcluster-postboot.json")}

    def hits(self) -> dict[str, int]:
        """How often each path was asked for, and from now on anew."""
        counted = dict(self.server.hits)
        self.server.hits.clear()
        return counted


def looks(path: Path) -> tuple[int, ...]:
    """What changes when anybody writes or replaces a file."""
    status = path.stat()
    return status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@pytest.fixture
def server() -> Iterator[Any]:
    running = soak.Server({UP: PACKED, MIRRORED: PACKED})
    running.start()
    yield running
    running.stop()


@pytest.fixture
def lab(tmp_path: Path, server: Any, run_module: Any, monkeypatch: pytest.MonkeyPatch) -> Lab:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr(fetch, "LONGEST_PAUSE", 0.05)
    return Lab(tmp_path, server, run_module)


# --- installing ----------------------------------------------------------------------------------------------------


def test_members_are_installed_on_a_fresh_host_and_then_left_alone(lab: Lab) -> None:
    first = lab.ok(lab.members())
    assert lab.installed() == {"tool": FILES["pkg-1.0/bin/tool"], "doc/README": b"read me\n"}
    assert stat.S_IMODE((lab.dest / "tool").stat().st_mode) == 0o755
    assert (first["changed"], first["source"], first["bytes"]) == (True, "upstream", len(PACKED))
    assert first["files"] == [f"{lab.dest}/tool", f"{lab.dest}/doc/README"]
    before = {path: looks(path) for path in lab.dest.rglob("*")}
    lab.hits()
    again = lab.ok(lab.members())
    assert (again["changed"], again["source"], again["bytes"]) == (False, "installed", 0)
    assert again["files"] == first["files"]
    assert lab.hits() == {}
    assert {path: looks(path) for path in lab.dest.rglob("*")} == before


def test_a_plain_file_gets_its_mode(lab: Lab) -> None:
    lab.ok(lab.plain())
    assert stat.S_IMODE((lab.dest / "pkg.tar.gz").stat().st_mode) == 0o644
    lab.ok(lab.plain(mode="0755"))
    assert stat.S_IMODE((lab.dest / "pkg.tar.gz").stat().st_mode) == 0o755
    assert lab.hits() == {UP: 1}


def test_a_tree_appears_whole_and_keeps_the_times_of_its_files(lab: Lab) -> None:
    result = lab.ok(lab.tree())
    assert result["files"] == [f"{lab.dest}/pkg/"]
    assert set(lab.installed()) == {"pkg/bin/tool", "pkg/bin/helper", "pkg/README"}
    assert (lab.dest / "pkg/bin/tool").stat().st_mtime == 1_700_000_000
    assert not lab.ok(lab.tree())["changed"]


def test_several_artifacts_in_one_task_come_at_once(lab: Lab) -> None:
    for number in range(4):
        lab.server.files[f"/n{number}"] = b"%d" % number
        lab.server.script[f"/n{number}"] = ["slow"]
    wanted = [
        {"name": f"n{n}", "url": lab.server.url(f"/n{n}"), "sha256": soak.sha256(b"%d" % n), "dest": f"{lab.dest}/{n}"}
        for n in range(4)
    ]
    result = lab.run(*wanted)
    assert lab.server.busiest > 1
    assert [one["name"] for one in result["artifacts"]] == ["n0", "n1", "n2", "n3"]
    assert lab.installed() == {"0": b"0", "1": b"1", "2": b"2", "3": b"3"}


def test_one_failure_keeps_no_other_artifact_from_being_installed(lab: Lab) -> None:
    missing = {**lab.plain(), "name": "other", "url": lab.server.url("/nowhere"), "dest": f"{lab.dest}/other"}
    result = lab.run(missing, lab.members())
    assert result["failed"]
    assert result["changed"]
    assert "other 1.0: no source delivered" in result["msg"]
    assert "pkg" not in result["msg"].split("upstream")[0].replace("pkg-1.0", "")
    assert (lab.dest / "tool").exists()
    assert [bool(one.get("error")) for one in result["artifacts"]] == [True, False]


def test_a_new_version_replaces_files_and_tree(lab: Lab) -> None:
    lab.ok(lab.members(), lab.tree(name="tree"))
    newer = soak.tar_bytes({"pkg-2.0/bin/tool": b"tool 2.0", "pkg-2.0/README": b"read me\n"})
    lab.server.files["/up/pkg-2.0.tar.gz"] = newer
    new = {"version": "2.0", "url": lab.server.url("/up/pkg-2.0.tar.gz"), "sha256": soak.sha256(newer)}
    wanted = [{"src": "*/bin/tool", "mode": "0755"}, {"src": "*/README", "dest": "doc/"}]
    unchanged = looks(lab.dest / "doc/README")
    result = lab.run(lab.members(**{**new, "members": wanted}), lab.tree(name="tree", **new))
    assert [one["changed"] for one in result["artifacts"]] == [True, True]
    assert "version: 1.0" in result["diff"][0]["before"]
    assert "version: 2.0" in result["diff"][0]["after"]
    assert (lab.dest / "tool").read_bytes() == b"tool 2.0"
    assert looks(lab.dest / "doc/README") == unchanged  # the same bytes: not even touched
    assert {path for path in lab.installed() if path.startswith("pkg/")} == {"pkg/bin/tool", "pkg/README"}
    assert lab.leftovers() == []


def test_a_new_version_with_the_old_hash_is_half_a_pin(lab: Lab) -> None:
    lab.ok(lab.members())
    (one,) = lab.run(lab.members(version="2.0", sha256_variable="tool_sha256['x86_64']"))["artifacts"]
    assert (
        "its sha256 is that of version 1.0, which is installed; set tool_sha256['x86_64'] for version 2.0"
        in one["error"]
    )


def test_a_new_version_with_the_hash_of_a_cached_one_is_half_a_pin(lab: Lab) -> None:
    """On a node that has nothing yet, and whose cache has what another node has downloaded."""
    lab.server.files["/up/pkg-2.0.tar.gz"] = b"version 2.0"
    lab.ok(lab.members(), cache=str(lab.cache))
    more = {"cache": str(lab.cache), "state_dir": str(lab.root / "another node")}
    given = {"sha256_variable": "tool_sha256['x86_64']", "dest": str(lab.root / "another")}
    half = {"version": "2.0", "url": lab.server.url("/up/pkg-2.0.tar.gz")}
    line = lab.fails(lab.members(**given, **half), **more)
    assert "11 bytes came with sha256" in line
    assert "its sha256 is that of version 1.0, which is in the cache; set tool_sha256['x86_64'] for version 2.0" in line
    assert lab.ok(lab.members(**given), **more)["source"] == "cache"


@pytest.mark.parametrize("stale", ["2.0", "1.", "", "\x00\x00", "2.0\n1.", "x" * 9000])
def test_a_note_of_the_version_that_is_wrong_refuses_nothing(lab: Lab, stale: str) -> None:
    """Such as one of a first pin whose version was wrong, or one that a crash has cut."""
    lab.ok(lab.plain(), cache=str(lab.cache))
    note = Path(f"{_entry(lab)}.version")
    assert note.read_text() == "1.0"
    note.write_text(stale)
    lab.hits()
    for number, (source, hits) in enumerate([("upstream" if stale else "cache", 1 if stale else 0), ("cache", 0)]):
        again = lab.plain(dest=f"{lab.dest}/{number}", name=f"n{number}")
        assert lab.ok(again, cache=str(lab.cache))["source"] == source
        assert sum(lab.hits().values()) == hits
    assert note.read_text().splitlines() == ["1.0", *stale[:4000].splitlines()][: None if stale else 0]


@pytest.mark.parametrize(("upstream", "act"), [(False, "ok"), (True, "503"), (True, "404")])
def test_where_no_source_tells_the_hash_decides_alone(lab: Lab, upstream: bool, act: str) -> None:
    lab.ok(lab.plain(), cache=str(lab.cache))
    Path(f"{_entry(lab)}.version").write_text("2.0")
    lab.server.script[UP] = [act]
    found = lab.ok(lab.plain(dest=f"{lab.dest}/again", name="again"), cache=str(lab.cache), upstream=upstream)
    assert found["source"] == "cache"


def test_a_tree_is_replaced_where_names_cannot_be_exchanged(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "exchange", lambda one, other: False)
    lab.ok(lab.tree())
    (lab.dest / "pkg/README").write_text("altered")
    assert lab.ok(lab.tree())["changed"]
    assert (lab.dest / "pkg/README").read_bytes() == b"read me\n"


def test_a_directory_that_is_not_ours_is_never_replaced(lab: Lab) -> None:
    (lab.dest / "pkg").mkdir(parents=True)
    (lab.dest / "pkg/precious").write_text("mine")
    assert "holds files that pkg did not unpack" in lab.fails(lab.tree())
    assert "holds files that pkg did not unpack" in lab.fails(lab.tree(), check=True)
    assert lab.installed() == {"pkg/precious": b"mine"}
    assert lab.hits() == {}
    (lab.dest / "pkg/precious").unlink()
    lab.ok(lab.tree())


def test_a_tree_on_shared_storage_is_known_by_every_node(lab: Lab) -> None:
    lab.ok(lab.tree())
    lab.hits()
    shutil.rmtree(lab.state)  # another node
    assert lab.ok(lab.tree())["source"] == "installed"
    shutil.rmtree(lab.state)
    (lab.dest / "pkg/README").write_text("altered")
    assert lab.ok(lab.tree())["source"] == "upstream"


def test_a_mark_that_anyone_could_have_written_counts_for_nothing(lab: Lab) -> None:
    lab.ok(lab.tree())
    shutil.rmtree(lab.state)
    (lab.dest / "pkg/.pcluster-postboot.json").chmod(0o666)
    assert "did not unpack" in lab.fails(lab.tree())


def test_directories_on_the_way_can_be_entered_whatever_the_umask(lab: Lab) -> None:
    with umask(0o077):
        lab.ok(lab.members())
    assert stat.S_IMODE((lab.dest / "doc").stat().st_mode) == 0o755


# --- receipts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "members", "tree"])
def test_what_was_altered_or_deleted_is_installed_anew(lab: Lab, kind: str) -> None:
    artifact = getattr(lab, kind)()
    lab.ok(artifact)
    good = lab.installed()
    victim = lab.dest / {"plain": "pkg.tar.gz", "members": "tool", "tree": "pkg/bin/tool"}[kind]
    for harm in (victim.unlink, lambda: victim.write_bytes(b"x" * victim.stat().st_size)):
        harm()
        result = lab.run(artifact)
        assert result["artifacts"][0]["changed"]
        assert f"missing or altered: {victim}" in result["diff"][0]["before"]
        assert lab.installed() == good


def test_altered_bytes_are_seen_behind_an_old_time(lab: Lab) -> None:
    lab.ok(lab.members())
    victim = lab.dest / "tool"
    status = victim.stat()
    victim.write_bytes(b"X" * status.st_size)
    os.utime(victim, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert lab.ok(lab.members())["changed"]
    assert victim.read_bytes() == FILES["pkg-1.0/bin/tool"]


def test_a_link_in_place_of_a_file_is_replaced(lab: Lab) -> None:
    lab.ok(lab.members())
    (lab.root / "elsewhere").write_bytes(FILES["pkg-1.0/bin/tool"])
    (lab.dest / "tool").unlink()
    (lab.dest / "tool").symlink_to(lab.root / "elsewhere")
    assert lab.ok(lab.members())["changed"]
    assert not (lab.dest / "tool").is_symlink()


@pytest.mark.parametrize("kind", ["plain", "members", "tree"])
def test_mode_that_drifted_is_put_right_without_a_download(lab: Lab, kind: str) -> None:
    artifact = getattr(lab, kind)()
    lab.ok(artifact)
    lab.hits()
    victim = lab.dest / {"plain": "pkg.tar.gz", "members": "tool", "tree": "pkg/bin/tool"}[kind]
    mode = stat.S_IMODE(victim.stat().st_mode)
    victim.chmod(0o777)
    assert lab.ok(artifact, check=True)["changed"]
    assert stat.S_IMODE(victim.stat().st_mode) == 0o777
    result = lab.ok(artifact)
    assert (result["changed"], result["source"]) == (True, "installed")
    assert stat.S_IMODE(victim.stat().st_mode) == mode
    assert not lab.ok(artifact)["changed"]
    assert lab.hits() == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_owner_that_drifted_is_put_right(lab: Lab) -> None:
    given = {"owner": "12345", "group": "54321"}
    for artifact, name in ((lab.members(**given), "tool"), (lab.tree(name="tree", **given), "README")):
        lab.ok(artifact)
        victim = Path(artifact["dest"]) / name
        assert (victim.stat().st_uid, victim.stat().st_gid) == (12345, 54321)
        os.chown(victim, 0, 0)
        assert lab.ok(artifact)["changed"]
        assert (victim.stat().st_uid, victim.stat().st_gid) == (12345, 54321)


def test_an_unknown_owner_fails_before_the_download_but_not_in_check_mode(lab: Lab) -> None:
    assert "owner 'nobody-like-that' is no user" in lab.fails(lab.members(owner="nobody-like-that"))
    assert "group 'no-such-group' is no group" in lab.fails(lab.members(group="no-such-group"))
    assert lab.hits() == {}
    assert lab.ok(lab.members(owner="nobody-like-that"), check=True)["changed"]


def test_a_file_that_is_there_already_needs_no_download(lab: Lab) -> None:
    lab.dest.mkdir()
    (lab.dest / "pkg.tar.gz").write_bytes(PACKED)
    assert lab.ok(lab.plain(), check=True)["changed"] is False
    assert lab.ok(lab.plain()) == {**lab.ok(lab.plain()), "seconds": pytest.approx(0, abs=1)}
    assert lab.hits() == {}
    assert (lab.state / "pkg.json").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 99}', '{"schema": 1, "name": "pkg"}', "\x00\xff"])
def test_a_damaged_receipt_is_written_anew_and_no_file_is_touched(lab: Lab, text: str) -> None:
    lab.ok(lab.members())
    before = looks(lab.dest / "tool")
    (lab.state / "pkg.json").write_text(text, encoding="latin-1")
    result = lab.ok(lab.members())
    assert (result["changed"], result["source"]) == (False, "upstream")
    assert looks(lab.dest / "tool") == before
    assert lab.ok(lab.members())["source"] == "installed"


def test_what_a_later_version_notes_in_a_receipt_is_no_damage(lab: Lab) -> None:
    lab.ok(lab.members())
    told = json.loads((lab.state / "pkg.json").read_text())
    told["files"] = [{**one, "later": ""} for one in told["files"]]
    (lab.state / "pkg.json").write_text(json.dumps({**told, "later": []}))
    assert lab.ok(lab.members())["source"] == "installed"


def test_another_choice_of_members_is_another_installation(lab: Lab) -> None:
    lab.ok(lab.members())
    lab.ok(lab.members(members=[{"src": "*/bin/*", "dest": "all/"}]))
    assert set(lab.installed()) == {"tool", "doc/README", "all/tool", "all/helper"}


# --- check mode ----------------------------------------------------------------------------------------------------


def test_check_mode_predicts_on_a_fresh_host_and_does_nothing(lab: Lab) -> None:
    result = lab.run(lab.members(), lab.tree(name="tree"), lab.plain(name="file"), check=True, cache=str(lab.cache))
    assert not result["failed"]
    assert result["changed"]
    assert [one["source"] for one in result["artifacts"]] == ["predicted"] * 3
    assert result["diff"][0]["before"] == ""
    assert f"sha256: {soak.sha256(PACKED)}\nfile: {lab.dest}/tool" in result["diff"][0]["after"]
    assert f"file: {lab.dest}/pkg/\n" in result["diff"][1]["after"]
    assert list(lab.root.iterdir()) == []
    assert lab.hits() == {}
    lab.ok(lab.members())
    assert not lab.ok(lab.members(), check=True)["changed"]


def test_ansible_runs_it_with_check_and_diff(lab: Lab, repo: Path) -> None:
    import ansible

    program = Path(sys.executable).with_name("ansible")
    if not program.exists():
        pytest.skip("no ansible beside this Python")
    link = lab.root / "collections" / "ansible_collections" / "pcluster" / "postboot"
    link.parent.mkdir(parents=True)
    link.symlink_to(repo)
    args = {"artifacts": [lab.members()], "state_dir": str(lab.state), "mirrors": [lab.server.url("/m")]}
    environment = {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": str(lab.root / "collections"),
        "ANSIBLE_INVENTORY_UNPARSED_WARNING": "0",
        "ANSIBLE_LOCALHOST_WARNING": "0",
        "ANSIBLE_LOCAL_TEMP": str(lab.root / "tmp"),
        "ANSIBLE_REMOTE_TEMP": str(lab.root / "tmp"),
        "PYTHONPATH": str(Path(ansible.__file__).parents[1]),
    }
    command = [str(program), "localhost", "-m", "pcluster.postboot.artifact", "-a", json.dumps(args), "--diff"]
    for extra, source in ((["--check"], "predicted"), ([], f"mirror:{lab.server.url('/m')}")):
        done = subprocess.run([*command, *extra], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"+file: {lab.dest}/tool" in done.stdout
        result = json.loads(done.stdout.partition("localhost | CHANGED => ")[2])
        assert result["artifacts"][0]["source"] == source
    assert (lab.dest / "tool").exists()


# --- where it comes from -------------------------------------------------------------------------------------------


def test_the_bundle_of_the_node_is_asked_before_its_mirrors(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "BUNDLED", f"{lab.root}/bundled")
    mirrors = [lab.server.url("/m/")]
    assert lab.ok(lab.plain(dest=f"{lab.dest}/a"), mirrors=mirrors)["source"] == f"mirror:{mirrors[0]}"
    there = Path(model.mirrored(model.BUNDLED, lab.plain()["url"]))
    there.parent.mkdir(parents=True)
    shutil.copy(f"{lab.dest}/a", there)
    assert lab.ok(lab.plain(dest=f"{lab.dest}/b"), mirrors=mirrors)["source"] == f"mirror:{lab.root}/bundled"


def test_order_is_cache_then_mirrors_then_upstream(lab: Lab) -> None:
    mirrors = [lab.server.url("/empty"), lab.server.url("/m/")]
    assert lab.ok(lab.plain(dest=f"{lab.dest}/a"), mirrors=mirrors)["source"] == f"mirror:{mirrors[1]}"
    assert lab.hits() == {"/empty/127.0.0.1" + UP: 1, MIRRORED: 1}
    assert lab.ok(lab.plain(dest=f"{lab.dest}/b"), mirrors=mirrors[:1], cache=str(lab.cache))["source"] == "upstream"
    lab.hits()
    assert lab.ok(lab.plain(dest=f"{lab.dest}/c"), mirrors=mirrors, cache=str(lab.cache))["source"] == "cache"
    assert lab.hits() == {}


@pytest.mark.parametrize("spelling", ["{}", "file://{}"])
def test_a_mirror_may_be_a_directory(lab: Lab, spelling: str) -> None:
    kept = lab.root / "fsx" / "127.0.0.1" / "up" / "a+b c%.tar.gz"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(PACKED)
    artifact = lab.members(url=lab.server.url("/up/a+b%20c%25.tar.gz"))
    mirror = spelling.format(lab.root / "fsx")
    assert lab.ok(artifact, mirrors=[mirror], upstream=False)["source"] == f"mirror:{mirror}"
    assert lab.hits() == {}


def test_upstream_false_never_asks_upstream(lab: Lab) -> None:
    said = lab.fails(lab.members(), mirrors=[f"{lab.root}/none"], upstream=False)
    assert f"mirror {lab.root}/none/127.0.0.1{UP}: No such file or directory" in said
    assert "upstream: not allowed (upstream is false)" in said
    assert lab.hits() == {}


def _aws(lab: Lab, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    path = program(lab.root / "bin/aws", f'#!/bin/sh\necho "$@" >> {lab.root}/aws.log\n{script}\n')
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")


def test_a_mirror_in_s3_is_read_by_the_aws_cli(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    (lab.root / "object").write_bytes(PACKED)
    _aws(lab, monkeypatch, f"cat {lab.root}/object")
    result = lab.ok(lab.members(url=lab.server.url("/up/enroot%2Bcaps.deb")), mirrors=["s3://bucket/prefix/"])
    assert result["source"] == "mirror:s3://bucket/prefix/"
    said = (lab.root / "aws.log").read_text()
    assert said == "s3 cp --only-show-errors s3://bucket/prefix/127.0.0.1/up/enroot+caps.deb -\n"
    assert lab.hits() == {}


@pytest.mark.parametrize(
    ("script", "reason", "calls"),
    [
        ("echo 'fatal error: An error occurred (404) when calling: Key does not exist' >&2; exit 1", "(404)", 1),
        ("printf 'fatal error:\\nno\\ncredentials' >&2; exit 1", "fatal error: no credentials (3 tries)", 3),
        ("printf part; sleep 30", "no bytes for 0.1 s (3 tries)", 3),
        ("printf part; exit 1", "`aws s3 cp` ended with status 1 (3 tries)", 3),
        ("printf part", "4 bytes came with sha256", 1),
        ("kill -9 $$", "ended with status -9", 3),
    ],
)
def test_what_goes_wrong_in_s3_moves_on_to_upstream(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, script: str, reason: str, calls: int
) -> None:
    _aws(lab, monkeypatch, script)
    wait = 0.1 if "sleep" in script else PATIENCE  # no busy machine lets a program begin in time
    assert lab.ok(lab.plain(), mirrors=["s3://bucket"], timeout=wait)["source"] == "upstream"
    assert len((lab.root / "aws.log").read_text().splitlines()) == calls
    assert reason in lab.fails(lab.plain(dest=f"{lab.dest}/b"), mirrors=["s3://bucket"], timeout=wait, upstream=False)


def test_the_aws_cli_is_found_outside_the_path_or_missed_in_one_line(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(fetch, "AWS_PLACES", (f"{lab.root}/bin/*",))
    assert "needs the AWS CLI" in lab.fails(lab.members(), mirrors=["s3://bucket/prefix"], upstream=False)
    (lab.root / "object").write_bytes(PACKED)
    _aws(lab, monkeypatch, f"/bin/cat {lab.root}/object")
    monkeypatch.setenv("PATH", "/nonexistent")
    lab.ok(lab.members(), mirrors=["s3://bucket/prefix"], upstream=False)


# --- servers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", ["truncate", "reset", "stall", "mute", "cut", "500", "503", "503:0", "429:0", "429:7"])
def test_what_may_pass_is_tried_again(lab: Lab, act: str) -> None:
    lab.server.script[UP] = [act, act, "ok"]
    wait = 1 if act in ("stall", "mute") else PATIENCE
    assert lab.ok(lab.members(), timeout=wait)["source"] == "upstream"
    assert lab.hits() == {UP: 3}


@pytest.mark.parametrize("act", ["404", "403", "401", "410", "wrong", "short", "redirect:file:///etc/passwd"])
def test_what_will_not_pass_moves_on_at_once(lab: Lab, warnings: list[str], act: str) -> None:
    lab.server.script[MIRRORED] = [act]
    assert lab.ok(lab.members(), mirrors=[lab.server.url("/m")])["source"] == "upstream"
    assert lab.hits() == {MIRRORED: 1, UP: 1}
    # Other bytes tell of a mirror that is stale or was tampered with; a mirror without the file is of no harm.
    assert len(warnings) == (act in ("wrong", "short"))
    told = f"pkg 1.0: the file from mirror {lab.server.url(MIRRORED)} was passed over: "
    assert all(line.startswith(told) and " bytes came with sha256 " in line for line in warnings), warnings


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        ("truncate", f"ended after {len(PACKED) // 2} of {len(PACKED)} bytes (3 tries)"),
        ("stall", "no bytes for 0.1 s (3 tries)"),
        ("mute", "no bytes for 0.1 s (3 tries)"),
        ("reset", "Connection reset by peer (3 tries)"),
        ("cut", "ended in the middle"),
        ("503", "HTTP 503 (3 tries)"),
        ("404", "HTTP 404"),
        ("wrong", f"{len(PACKED)} bytes came with sha256 "),
        ("redirect:file:///etc/passwd", "HTTP 302: refused its redirect"),
        ("redirect:" + UP, "HTTP 302: refused its redirect (endless"),
    ],
)
def test_a_failure_names_each_source_and_its_reason(lab: Lab, act: str, reason: str) -> None:
    lab.server.script = {UP: [act], MIRRORED: [act]}
    wait = 0.1 if "0.1 s" in reason else PATIENCE  # of a busy machine even a quick answer may take a while
    said = lab.fails(lab.members(sha256_variable="pkg_sha256.aarch64"), mirrors=[lab.server.url("/m")], timeout=wait)
    head, _mirror, sources = said.partition(": mirror ")
    mirror, upstream = sources.split("; upstream ")
    assert head == f"pkg 1.0: no source delivered sha256 {soak.sha256(PACKED)} (pinned by pkg_sha256.aarch64)"
    assert mirror.startswith(f"{lab.server.url(MIRRORED)}: ")
    assert upstream.startswith(f"{lab.server.url(UP)}: ")
    assert reason in mirror
    assert reason in upstream
    assert lab.installed() == {}


def test_a_server_that_is_not_there_is_named(lab: Lab) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert "Connection refused (3 tries)" in lab.fails(lab.plain(url=f"{nowhere}/x"))
    assert "its name does not resolve" in lab.fails(lab.plain(url="http://name.invalid/x"), retries=0)


@pytest.mark.parametrize("act", ["chunked", "redirect:/m/127.0.0.1" + UP])
def test_chunks_and_redirects_are_followed(lab: Lab, act: str) -> None:
    lab.server.script[UP] = [act]
    assert lab.ok(lab.members())["source"] == "upstream"


def test_redirect_308_is_followed_by_every_python(lab: Lab) -> None:
    original = soak.Handler._answer

    def answer(self: Any, code: int, *rest: Any, **more: Any) -> None:
        original(self, 308 if code == 302 else code, *rest, **more)

    lab.server.script[UP] = ["redirect:" + MIRRORED]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(soak.Handler, "_answer", answer)
        lab.ok(lab.members())


def test_retry_after_is_honoured_within_bounds(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    # Its own name for it: other threads of this process sleep, too.
    monkeypatch.setattr(fetch, "time", types.SimpleNamespace(sleep=pauses.append))
    monkeypatch.setattr(fetch, "LONGEST_PAUSE", 60.0)
    soon = email.utils.formatdate(time.time() + 30, usegmt=True)
    lab.server.script[UP] = ["429:7", "503:86400", f"503:{soon}", "503", "503:soon", "ok"]
    lab.ok(lab.members(), retries=5)
    assert pauses[:2] == [7, 60]
    assert 25 < pauses[2] <= 31
    assert pauses[3:] == [8, 16]  # no wish of the server's: twice as long each time


def test_requests_say_who_asks_and_credentials_stay_with_their_host(lab: Lab, server: Any) -> None:
    other = soak.Server({UP: PACKED})
    other.start()
    lab.server.script[UP] = [f"redirect:{other.url(UP)}"]
    url = lab.server.url(UP).replace("http://", "http://me:p%40ssword@") + "?token=abcdefgh"
    result = lab.run(lab.members(url=url))
    assert not result["failed"]
    headers = lab.server.seen[0][1]
    assert headers["User-Agent"].startswith("pcluster.postboot")
    assert headers["Authorization"] == "Basic " + base64.b64encode(b"me:p@ssword").decode()
    assert "Authorization" not in other.seen[0][1]
    other.stop()
    assert "ssword" not in (lab.state / "pkg.json").read_text() + json.dumps(result)


def test_credentials_are_in_no_message(lab: Lab) -> None:
    url = lab.server.url("/nowhere").replace("http://", "http://me:p%40ssword@") + "?token=abcdefgh"
    mirror = lab.server.url("/m").replace("http://", "http://me:p%40ssword@")
    said = lab.fails(lab.members(url=url), mirrors=[mirror])
    assert "127.0.0.1" in said
    assert not re.search("ssword|me:|token|abcdefgh", said)
    assert model.secrets(url) == {"me:p%40ssword", "p%40ssword", "p@ssword", "token=abcdefgh"}


def test_the_proxy_of_the_environment_is_used(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", lab.server.url())
    assert lab.ok(lab.members(url="http://upstream.invalid" + UP))["source"] == "upstream"
    assert lab.hits() == {UP: 1}


@pytest.fixture
def https(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A server with a certificate that the system trusts only where a test says so."""
    if not shutil.which("openssl"):
        pytest.skip("needs openssl")
    certificate = lab.root.parent / f"{lab.root.name}.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=test -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(
        [*command.split(), "-keyout", certificate, "-out", f"{certificate}.crt"], check=True, capture_output=True
    )
    running = soak.Server({UP: PACKED})
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"{certificate}.crt", certificate)
    running.socket = context.wrap_socket(running.socket, server_side=True)
    running.scheme = "https"
    running.start()
    running.trust = lambda: monkeypatch.setenv("SSL_CERT_FILE", f"{certificate}.crt")
    host_http._trust.cache_clear()
    yield running
    host_http._trust.cache_clear()
    running.stop()


def test_certificates_are_verified(lab: Lab, https: Any) -> None:
    said = lab.fails(lab.members(url=https.url(UP)))
    assert "its certificate is not trusted (self" in said
    host_http._trust.cache_clear()
    https.trust()
    lab.ok(lab.members(url=https.url(UP)))


def test_redirects_go_up_to_https_and_never_down(lab: Lab, https: Any) -> None:
    https.trust()
    lab.server.script[UP] = [f"redirect:{https.url(UP)}"]
    lab.ok(lab.members())
    https.script[UP] = [f"redirect:{lab.server.url(MIRRORED)}?secret=1"]
    said = lab.fails(lab.plain(url=https.url(UP)))
    assert f"refused its redirect from https to {lab.server.url(MIRRORED)}" in said
    assert "secret" not in said
    assert MIRRORED not in lab.hits()


# --- a publisher that tells its sha512 alone -----------------------------------------------------------------------

SHA512 = hashlib.sha512(PACKED).hexdigest()


@pytest.mark.parametrize("kind", ["plain", "members", "tree"])
def test_a_hash_of_128_digits_is_a_sha512(lab: Lab, kind: str) -> None:
    wanted = getattr(lab, kind)(sha256=SHA512.upper())
    found = lab.ok(wanted, cache=str(lab.cache))
    assert (found["changed"], found["source"], found["sha256"]) == (True, "upstream", SHA512)
    entry = lab.cache / "sha512" / SHA512[:2] / SHA512
    assert entry.read_bytes() == PACKED
    before = lab.installed()
    again = lab.ok(wanted, cache=str(lab.cache))
    assert (again["changed"], again["source"]) == (False, "installed")
    altered = next(path for path in lab.dest.rglob("*") if path.is_file() and path.name in ("pkg.tar.gz", "README"))
    altered.write_bytes(b"other")
    lab.hits()
    mended = lab.ok(wanted, cache=str(lab.cache))
    assert (mended["changed"], mended["source"], lab.installed()) == (True, "cache", before)
    assert lab.hits() == {}


def test_other_bytes_than_those_of_a_sha512_are_not_used(lab: Lab) -> None:
    other = "0" * 128
    said = lab.fails(lab.members(sha256=other, sha256_variable="pkg_sha256['noarch']"))
    assert f"no source delivered sha512 {other} (pinned by pkg_sha256['noarch'])" in said
    assert f"{len(PACKED)} bytes came with sha512 {SHA512}" in said
    assert not lab.dest.exists()


def test_a_file_that_is_there_already_is_known_by_its_sha512(lab: Lab) -> None:
    lab.dest.mkdir()
    (lab.dest / "pkg.tar.gz").write_bytes(PACKED)
    found = lab.ok(lab.plain(sha256=SHA512))
    assert (found["changed"], found["source"], lab.hits()) == (False, "installed", {})
    os.utime(lab.dest / "pkg.tar.gz", (1, 1))
    assert not lab.ok(lab.plain(sha256=SHA512))["changed"]


# --- arguments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"sha256": ""}, "no sha256 is known for http://127.0.0.1"),
        ({"sha256": "", "sha256_variable": "pkg_sha256.aarch64"}, "set pkg_sha256.aarch64 to the hash of that file"),
        ({"sha256": "abc"}, "is not 64 hexadecimal digits, or 128 of a sha512"),
        ({"sha256": "a" * 100}, "is not 64 hexadecimal digits, or 128 of a sha512"),
        ({"name": "../x"}, "cannot name a receipt"),
        ({"dest": "relative"}, "must be an absolute path"),
        ({"dest": "/"}, "must be an absolute path below /"),
        ({"url": "ftp://host/x"}, "must begin with http://"),
        ({"url": "http://[bad/x"}, "must begin with http://"),
        ({"url": "https:///x"}, "must begin with http://"),
        ({"mode": "rwx"}, "must be octal digits"),
        ({"mode": True}, "must be octal digits"),
        ({"unpack": True, "mode": "0755"}, "mode is for files"),
        ({"unpack": True, "members": [{"src": "x"}]}, "exclude each other"),
        ({"strip_components": 1}, "needs members or unpack"),
        ({"members": [{"src": "../x"}]}, "must be a relative path"),
        ({"members": [{"src": "/x"}]}, "must be a relative path"),
        ({"members": [{"src": "x", "mode": "9"}]}, "must be octal digits"),
    ],
)
def test_arguments_that_mean_nothing_fail_in_one_line(lab: Lab, given: dict[str, Any], line: str) -> None:
    assert line in lab.fails(lab.plain(**given))
    assert list(lab.root.iterdir()) == []


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"mirrors": ["relative/path"]}, "mirror 'relative/path' must be"),
        ({"cache": "relative"}, "cache 'relative' must be an absolute path"),
        ({"state_dir": "relative"}, "state_dir 'relative' must be an absolute path"),
        ({"timeout": 0}, "timeout must be above 0"),
    ],
)
def test_settings_that_mean_nothing_fail_in_one_line(lab: Lab, more: dict[str, Any], line: str) -> None:
    assert line in lab.fails(lab.plain(), **more)


def test_names_and_destinations_are_given_once(lab: Lab) -> None:
    assert "name 'pkg' is given twice" in lab.fails(lab.plain(), lab.tree())
    assert "destination" in lab.fails(lab.members(), lab.plain(name="other", dest=f"{lab.dest}/tool"))


def test_a_directory_in_place_of_the_file_is_named(lab: Lab) -> None:
    (lab.dest / "pkg.tar.gz").mkdir(parents=True)
    assert "is a directory and must be the file's own path" in lab.fails(lab.plain())
    (lab.dest / "tool").mkdir()
    assert lab.fails(lab.members()) == f"pkg 1.0: {lab.dest}/tool: Is a directory"


# --- archives ------------------------------------------------------------------------------------------------------


def test_a_bad_archive_is_refused_before_anything_is_written(lab: Lab) -> None:
    bad = soak.tar_bytes({**FILES, "pkg-1.0/../../etc/passwd": b"root"})
    lab.server.files[UP] = bad
    for artifact in (lab.members(sha256=soak.sha256(bad)), lab.tree(sha256=soak.sha256(bad))):
        assert "archive refused, nothing unpacked: 'pkg-1.0/../../etc/passwd' leads outside" in lab.fails(artifact)
        assert lab.installed() == {}


def test_something_else_than_an_archive_is_named(lab: Lab) -> None:
    lab.server.files[UP] = b"<html>sorry</html>" * 100
    assert "cannot be read as an archive" in lab.fails(lab.members(sha256=soak.sha256(b"<html>sorry</html>" * 100)))


# --- the cache -----------------------------------------------------------------------------------------------------


def _entry(lab: Lab) -> Path:
    name = soak.sha256(PACKED)
    return lab.cache / "sha256" / name[:2] / name


def test_a_download_fills_the_cache_for_everybody(lab: Lab) -> None:
    lab.ok(lab.members(), cache=str(lab.cache))
    assert _entry(lab).read_bytes() == PACKED
    assert stat.S_IMODE(_entry(lab).stat().st_mode) == 0o644


@pytest.mark.parametrize("poison", [b"", b"poison", PACKED[:-1], PACKED + b"x"])
def test_a_poisoned_entry_is_told_removed_and_fetched_anew(lab: Lab, warnings: list[str], poison: bytes) -> None:
    _entry(lab).parent.mkdir(parents=True)
    _entry(lab).write_bytes(poison)
    lab.ok(lab.members(), cache=str(lab.cache))
    assert lab.installed()["tool"] == FILES["pkg-1.0/bin/tool"]
    assert _entry(lab).read_bytes() == PACKED
    (said,) = warnings
    assert f"cache {lab.cache}: entry {soak.sha256(PACKED)} holds other bytes" in said


@pytest.mark.parametrize("thing", ["fifo", "link", "directory", "socket"])
def test_strange_things_in_the_cache_neither_hang_nor_fail(lab: Lab, thing: str) -> None:
    entry = _entry(lab)
    entry.parent.mkdir(parents=True)
    if thing == "fifo":
        os.mkfifo(entry)
    elif thing == "link":
        (lab.root / "secret").write_bytes(PACKED)
        entry.symlink_to(lab.root / "secret")
    elif thing == "directory":
        entry.mkdir()
    else:
        old = os.getcwd()
        os.chdir(entry.parent)  # a socket's path is short
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(entry.name)
        os.chdir(old)
    assert lab.ok(lab.members(), cache=str(lab.cache))["source"] == "upstream"


@pytest.mark.parametrize("number", ["ENOSPC", "EROFS", "EACCES", "EIO"])
@pytest.mark.parametrize("where", ["lease", "entry"])
def test_a_cache_that_cannot_be_written_costs_a_warning(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, warnings: list[str], number: str, where: str
) -> None:
    real = os.open

    def refuse(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        hit = str(lab.cache) in str(path) and flags & os.O_CREAT and (".lease." in str(path)) == (where == "lease")
        if hit:
            raise OSError(getattr(errno, number), os.strerror(getattr(errno, number)), path)
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)
    assert lab.ok(lab.members(), cache=str(lab.cache))["source"] == "upstream"
    (said,) = warnings
    assert said.startswith(f"cache {lab.cache} cannot be used (")
    assert os.strerror(getattr(errno, number)) in said


def test_a_cache_that_is_a_file_costs_a_warning(lab: Lab) -> None:
    lab.cache.parent.mkdir()
    lab.cache.write_text("not a directory")
    assert lab.ok(lab.members(), cache=str(lab.cache))["source"] == "upstream"


def test_a_read_only_cache_still_serves(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    _entry(lab).parent.mkdir(parents=True)
    _entry(lab).write_bytes(PACKED)
    (_entry(lab).parent / f".{_entry(lab).name}.lease.0").write_text("left")
    real = os.unlink

    def refuse(path: Any, *rest: Any, **more: Any) -> None:
        if str(lab.cache) in str(path):
            raise OSError(30, "Read-only file system", path)
        real(path, *rest, **more)

    monkeypatch.setattr(os, "unlink", refuse)
    result = lab.run(lab.members(), cache=str(lab.cache))
    assert result["artifacts"][0]["source"] == "cache"


def test_threads_of_one_task_share_one_download(lab: Lab) -> None:
    lab.server.script[UP] = ["slow"]
    wanted = [lab.plain(name=f"n{n}", dest=f"{lab.dest}/{n}") for n in range(8)]
    result = lab.run(*wanted, cache=str(lab.cache))
    assert sorted(one["source"] for one in result["artifacts"]) == ["cache"] * 7 + ["upstream"]
    assert lab.hits() == {UP: 1}
    assert lab.leftovers() == []


def _nodes(lab: Lab, count: int, **more: Any) -> list[Any]:
    """Let so many nodes want the same at once; return their outcomes."""
    wanted = [model.parse_all([lab.plain(dest=f"{lab.dest}/{number}")]) for number in range(count)]
    given = {"cache": str(lab.cache), "timeout": 5, "retries": 1, "backoff": 0.05, **more}

    def node(number: int) -> Any:
        return core.ensure_all(wanted[number], core.Settings(f"{lab.state}/{number}", **given))

    with ThreadPoolExecutor(count) as pool:
        return [one for found in pool.map(node, range(count)) for one in found]


def test_after_an_outage_of_upstream_one_node_downloads_and_not_all(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "FIRST_SLEEP", 0.05)
    lab.server.script[UP] = ["503"] * 12 + ["slow"]
    found = _nodes(lab, 20)
    assert lab.hits() == {UP: 13}
    assert sorted(one.source for one in found if not one.error) == ["cache"] * 13 + ["upstream"]
    assert [one.error.count("HTTP 503 (2 tries)") for one in found if one.error] == [1] * 6
    assert lab.leftovers() == []
    assert list(lab.cache.rglob("*.failed")) == []


def test_an_outage_that_does_not_end_is_told_to_those_who_waited(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "FIRST_SLEEP", 0.05)
    monkeypatch.setattr(cache, "LONGEST_SLEEP", 0.2)
    lab.server.script[UP] = ["503"]
    found = _nodes(lab, 20, cache_wait=1, backoff=0.2)
    assert all("HTTP 503 (2 tries)" in one.error and "\n" not in one.error for one in found)
    waited = [one for one in found if "no node could download it within 1 s" in one.error]
    assert len(waited) > 3
    assert sum(lab.hits().values()) == 2 * (20 - len(waited))


def _comes_meanwhile(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let another node be luckier, while this one pauses before it asks again."""

    def pause(_seconds: float) -> None:
        cache.Cache(str(lab.cache), 0, 20, print).publish(soak.sha256(PACKED), "1.0", io.BytesIO(PACKED))

    monkeypatch.setattr(fetch, "time", types.SimpleNamespace(sleep=pause))


def test_before_a_source_is_asked_again_the_cache_is(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.server.script[UP] = ["503", "ok"]
    _comes_meanwhile(lab, monkeypatch)
    assert lab.ok(lab.plain(), cache=str(lab.cache))["source"] == "cache"
    assert lab.hits() == {UP: 1}


def test_a_cache_in_which_no_failure_can_be_told_costs_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.server.script[UP] = ["503"]

    def full(_self: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(host_files.Staged, "commit", full)
    assert "HTTP 503 (3 tries)" in lab.fails(lab.plain(), cache=str(lab.cache))
    assert list(lab.cache.rglob("*.failed")) == []


def test_what_will_not_pass_is_told_to_nobody(lab: Lab) -> None:
    lab.server.script[UP] = ["404"]
    assert "HTTP 404" in lab.fails(lab.plain(), cache=str(lab.cache))
    assert list(lab.cache.rglob("*.failed")) == []


def test_a_second_run_on_the_node_waits_for_the_first(lab: Lab) -> None:
    lab.server.script[UP] = ["slow"]
    wanted = model.parse_all([{**lab.plain(), "members": []}])
    with ThreadPoolExecutor(3) as pool:
        results = pool.map(core.ensure_all, [wanted] * 3, [core.Settings(str(lab.state))] * 3)
    assert sorted(one.source for found in results for one in found) == ["installed", "installed", "upstream"]
    assert lab.hits() == {UP: 1}


def test_a_run_that_never_ends_is_not_waited_for_forever(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "LOCK_WAIT", 0.2)
    lab.state.mkdir()
    held = os.open(lab.state, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    assert "another run has held" in lab.fails(lab.members())
    os.close(held)
    lab.ok(lab.members())


def test_what_killed_runs_left_is_swept_but_not_what_a_live_one_needs(lab: Lab) -> None:
    lab.ok(lab.members())
    mine = Path(host_files.temp_name(str(lab.dest / "tool")))
    machine, _pid, _start = host_files.owner().split("-")
    dead = lab.dest / f".tool.pcpb-tmp-{machine}-999999-1-0123abcd"
    elsewhere = lab.dest / ".tool.pcpb-tmp-00000000-1-1-0123abcd"
    forgotten = lab.dest / ".tool.pcpb-tmp-00000000-1-2-0123abcd"
    stranger = lab.dest / ".tool.tmp"
    for path in (mine, dead, elsewhere, forgotten, stranger):
        path.write_text("x")
    os.utime(forgotten, (time.time() - 7200, time.time() - 7200))
    lab.run(lab.members(), check=True)
    assert dead.exists()
    lab.run(lab.members())
    assert [path.exists() for path in (mine, dead, elsewhere, forgotten, stranger)] == [True, False, True, False, True]


# --- processes -----------------------------------------------------------------------------------------------------


def _soak(*options: str) -> str:
    command = [sys.executable, str(SOAK), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 violations" in done.stdout.splitlines()[-1]
    return done.stdout


def test_eight_processes_on_one_cache_download_once() -> None:
    _soak("--rounds", "2", "--only", "herd", "--seed", "1")


def test_kill_at_any_step_leaves_old_or_new_and_the_rerun_completes() -> None:
    said = _soak("--rounds", "15", "--only", "kill", "--seed", "2")
    assert "15 kill" in said.splitlines()[-1]


def test_full_and_read_only_disks() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount small file systems")
    said = _soak("--rounds", "0")
    if "not tried" in said:
        pytest.skip("may not mount here")
    for line in ("plain, disk full: pkg 2: ", "members, disk full: pkg 2: ", "tree, disk full: pkg 2: "):
        assert line in said
    assert said.count("No space left on device") == 4
    assert "cache read-only: error=''" in said
