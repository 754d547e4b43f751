# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The shared build on real files, with real processes: builders that race, fail, are killed, and lose their lock."""

from __future__ import annotations

import builtins
import ctypes
import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._host import files as host_files
from ansible_collections.pcluster.postboot.plugins.module_utils._host import lock as host_lock
from ansible_collections.pcluster.postboot.plugins.module_utils._host import process
from ansible_collections.pcluster.postboot.plugins.module_utils._shared_build import root
from ansible_collections.pcluster.postboot.plugins.module_utils._shared_build import steps as shared_build_steps
from ansible_collections.pcluster.postboot.plugins.modules import shared_build
from ansible_collections.pcluster.postboot.tests import strangers
from ansible_collections.pcluster.postboot.tests.programs import load
from ansible_collections.pcluster.postboot.tests.waiting import PATIENCE, until

soak = load("tests/soak/shared_build.py")
RELEASE = "2.32-x86_64"


class Lab:
    def __init__(self, base: Path, run: Callable[..., dict[str, Any]], warnings: list[str]) -> None:
        self.base, self._run, self.warnings = base, run, warnings
        self.root = base / "fsx" / "nccl"
        self.source = base / "source"
        for folder in ("fsx", "source", "scratch", "log"):
            (base / folder).mkdir()
        (self.source / "nccl.h").write_text("header\n")
        (self.source / "libnccl.so.2").write_text("library\n")
        self.steps: list[list[Any]] = [
            ["mkdir", "{stage}/include", "{stage}/lib"],
            ["cp", "{source}/nccl.h", "{stage}/include/"],
            ["cp", "{source}/libnccl.so.2", "{stage}/lib/"],
            ["ln", "-s", "libnccl.so.2", "{stage}/lib/libnccl.so"],
        ]

    def look(self, check: bool = False, **more: Any) -> dict[str, Any]:
        self.warnings.clear()
        given = {
            "name": "NCCL",
            "root": str(self.root),
            "release": RELEASE,
            "inputs": {"version": "2.32", "cuda": 13},
            "steps": self.steps,
            "needs": ["cp"],
            "provides": ["include/nccl.h", "lib/libnccl.so.2"],
            **more,
        }
        return self._run(shared_build, given, check=check)

    def build(self, check: bool = False, **more: Any) -> dict[str, Any]:
        return self.look(check, **{"source": str(self.source), **more})

    def publish(self, *releases: str) -> None:
        for release in releases:
            assert not self.build(release=release, inputs={"version": release})["failed"]

    def fails(self, **more: Any) -> str:
        """Build, and see that fail in one line and leave nothing; return the line."""
        result = self.build(**more)
        assert result["failed"], result
        assert "\n" not in result["msg"]
        assert self.left() == []
        return str(result["msg"])

    def step(self, script: str) -> list[list[str]]:
        return [["sh", "-c", script], *self.steps]

    def left(self) -> list[str]:
        stages = [str(path) for path in self.root.glob(".stage-*")] if self.root.exists() else []
        return stages + [str(path) for path in (self.base / "scratch").iterdir()]

    def names(self) -> list[str]:
        return sorted(path.name for path in self.root.iterdir() if path.name[0] != "." and path.name != "logs")

    def current(self) -> str:
        return os.readlink(self.root / "current")

    def manifest(self, name: str = RELEASE) -> dict[str, Any]:
        return json.loads((self.root / name / "manifest.json").read_text())  # type: ignore[no-any-return]

    def snapshot(self) -> dict[str, tuple[int, int, int]]:
        """Return what changes when anything below the root does."""
        stats = {str(path): path.lstat() for path in [self.root, *self.root.rglob("*")]}
        return {path: (status.st_ino, status.st_size, status.st_ctime_ns) for path, status in stats.items()}


@pytest.fixture
def lab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_module: Callable[..., dict[str, Any]], warnings: list[str]
) -> Lab:
    monkeypatch.setattr(shared_build_steps, "SCRATCH_DIR", str(tmp_path / "scratch"))
    monkeypatch.setattr(shared_build_steps, "LOG_DIR", str(tmp_path / "log"))
    monkeypatch.setattr(root, "node_name", lambda: "head")
    monkeypatch.setattr(root, "LONGEST_PAUSE", 0.05)
    monkeypatch.setattr(root, "LONGEST_LOOK", 0.05)
    monkeypatch.setattr(os, "umask", lambda _mode: 0)  # that of pytest stays
    return Lab(tmp_path, run_module, warnings)


@pytest.fixture
def cluster(tmp_path: Path) -> Any:
    """Nodes that are processes of their own."""
    made = soak.Cluster(tmp_path / "cluster")
    made.source(2, "a")
    return made


@pytest.fixture
def holder(lab: Lab) -> Iterator[Callable[[], None]]:
    """The lock of the lab's root, held by another; a call lets it go."""
    lab.root.mkdir()
    told = {"node": "ip-10-0-0-6", "pid": 4711, "token": "theirs", "since": "2026-11-21T10:00:00Z"}
    (lab.root / ".lock").write_text(json.dumps(told))
    descriptor = os.open(lab.root / ".lock", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield lambda: fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


# Publishing


def test_a_release_is_due_then_built_then_left_alone(lab: Lab) -> None:
    found = lab.look(needs=["cp", "no-such-program"])
    assert (found["changed"], found["due"], found["published"], found["missing"]) == (
        False,
        True,
        False,
        ["no-such-program"],
    )
    assert found["why"] == f"NCCL {RELEASE} is not in {lab.root} yet"
    assert not lab.root.exists()

    foretold = lab.build(check=True)
    assert foretold["changed"]
    assert not lab.root.exists()
    done = lab.build()
    for key in ("changed", "published", "path", "current", "diff", "summary"):
        assert done[key] == foretold[key], key
    assert (done["due"], done["path"], done["current"]) == (False, str(lab.root / RELEASE), RELEASE)
    assert done["summary"] == f"NCCL {RELEASE}, built by head"
    assert done["diff"] == [
        {
            "before_header": str(lab.root),
            "after_header": str(lab.root),
            "before": f"{RELEASE}: absent\ncurrent: absent\n",
            "after": f"{RELEASE}: whole\ncurrent: {RELEASE}\n",
        }
    ]
    assert lab.names() == [RELEASE, "current"]
    assert lab.current() == RELEASE
    assert (lab.root / "current/lib/libnccl.so").read_text() == "library\n"
    assert lab.left() == []

    before = lab.snapshot()
    for again in (lab.look(), lab.build(), lab.build(check=True), lab.look(builder=False)):
        assert (again["changed"], again["due"], again["published"], again["diff"]) == (False, False, True, [])
        assert again["summary"] == f"NCCL {RELEASE}, built by head"
    assert lab.snapshot() == before


def test_the_manifest_tells_what_it_is_made_of(lab: Lab) -> None:
    lab.build()
    manifest = lab.manifest()
    assert manifest["files"] == {
        "include/nccl.h": {"size": 7, "mode": "0644"},
        "lib/libnccl.so.2": {"size": 8, "mode": "0644"},
        "lib/libnccl.so": {"link": "libnccl.so.2"},
    }
    assert (manifest["schema"], manifest["name"], manifest["release"]) == (1, "NCCL", RELEASE)
    assert (manifest["inputs"], manifest["builder"]) == ({"version": "2.32", "cuda": 13}, "head")
    assert "coreutils" in manifest["tools"]["cp"]
    assert "nccl.h" in (lab.root / f"logs/{RELEASE}.log").read_text()


def test_steps_see_their_places_and_variables(lab: Lab) -> None:
    script = 'pwd; echo "$HOME $TMPDIR $LC_ALL $EXTRA $0"; cat; exit 1'
    result = lab.build(
        steps=[["sh", "-c", script, "{jobs} {scratch} {other} ${x}"]], jobs=3, environment={"EXTRA": "{source}"}
    )
    scratch = result["log"][0]
    assert scratch.startswith(f"{lab.base}/scratch/postboot-build-")
    assert result["log"][1:] == [f"{scratch} {scratch} C {lab.source} 3 {scratch} {{other}} ${{x}}"]
    assert 1 <= shared_build_steps.job_count(0) <= len(os.sched_getaffinity(0))


def test_current_is_switched_without_a_source(lab: Lab) -> None:
    lab.publish("1", "2")
    wanted = {"release": "1", "inputs": {"version": "1"}}
    assert not lab.look(current=False, **wanted)["changed"]
    foretold = lab.look(check=True, **wanted)
    assert lab.current() == "2"
    done = lab.look(**wanted)
    assert (done["changed"], done["due"], done["current"], lab.current()) == (True, False, "1", "1")
    assert done["why"] == f"{lab.root}/current named 2"
    assert done["diff"] == foretold["diff"]
    assert done["diff"][0]["before"] == "1: whole\ncurrent: 2\n"


def test_other_inputs_get_a_name_of_their_own(lab: Lab) -> None:
    lab.build()
    first = lab.manifest()
    assert not lab.build(inputs={"version": 2.32, "cuda": "13"})["changed"]  # as -e gives them
    found = lab.look(inputs={"version": "2.32", "cuda": 12})
    assert found["due"]
    assert found["why"] == f"{lab.root}/{RELEASE} was made of other inputs (cuda 13, now 12)"
    done = lab.build(inputs={"version": "2.32", "cuda": 12})
    assert done["path"] == f"{lab.root}/{RELEASE}.2"
    assert lab.build(inputs={"version": "2.32", "cuda": 11})["current"] == lab.current() == f"{RELEASE}.3"
    assert lab.manifest() == first
    back = lab.look()
    assert (back["due"], back["current"], lab.current()) == (False, RELEASE, RELEASE)


@pytest.mark.parametrize("harm", ["manifest", "size", "missing", "link", "file"])
def test_what_is_no_release_is_set_aside(lab: Lab, harm: str) -> None:
    lab.build()
    folder = lab.root / RELEASE
    if harm == "manifest":
        (folder / "manifest.json").write_text('{"schema": 1}')
    elif harm == "size":
        (folder / "lib/libnccl.so.2").write_text("")
    elif harm == "missing":
        (folder / "include/nccl.h").unlink()
    elif harm == "link":
        (folder / "lib/libnccl.so").unlink()
        (folder / "lib/libnccl.so").symlink_to("elsewhere")
    else:
        folder.rename(lab.base / "away")
        folder.write_text("I am a file")
    before = lab.snapshot()
    found, seen, foretold = lab.look(), lab.look(builder=False), lab.build(check=True)
    assert (found["due"], seen["due"], seen["published"], foretold["changed"]) == (True, False, False, True)
    assert foretold["diff"][0]["before"].startswith(f"{RELEASE}: no release")
    assert lab.snapshot() == before
    assert lab.build()["changed"]
    (aside,) = lab.root.glob(f".broken-{RELEASE}-*")
    assert any(str(aside) in line and str(folder) in line for line in lab.warnings), lab.warnings
    assert (folder / "lib/libnccl.so.2").read_text() == "library\n"
    assert not lab.build()["changed"]
    assert (lab.left(), lab.warnings) == ([], [])
    # It lies there to be looked at until the next release comes, or an old one goes.
    (lab.root / "current").unlink()
    assert lab.look()["changed"]
    assert aside.exists()
    lab.publish("1")
    assert not list(lab.root.glob(".broken-*"))


# Pruning


def test_old_releases_go_when_no_job_runs(lab: Lab) -> None:
    lab.publish("1", "2", "10", "3")
    (lab.root / "results").mkdir()
    # Published in this order, whatever the clocks of their builders said.
    for name, when in (("1", "2099-01-01"), ("2", "2098-01-01"), ("10", "1970-01-01")):
        text = json.dumps({**lab.manifest(name), "utc": when})
        (lab.root / name / "manifest.json").write_text(text)
    wanted = {"release": "3", "inputs": {"version": "3"}}
    for busy, why in (
        (["echo", "17"], "jobs run (17)"),
        (["sh", "-c", "echo no >&2; exit 1"], "told whether jobs run ('sh -c echo no >&2; exit 1' ended with 1: no)"),
        (["no-such-program"], "told whether jobs run (the program no-such-program is not there)"),
    ):
        refused = lab.look(keep=1, busy=busy, **wanted)
        assert (refused["changed"], refused["pruned"]) == (False, [])
        assert len(lab.warnings) == 1
        assert f"2, 1 in {lab.root} stay: " in lab.warnings[0]
        assert why in lab.warnings[0]
    foretold = lab.look(check=True, keep=1, busy=["true"], **wanted)
    assert foretold["diff"][0]["before"] == "3: whole\nolder: 2, 1\n"
    assert lab.names() == ["1", "10", "2", "3", "current", "results"]
    done = lab.look(keep=1, busy=["true"], **wanted)
    assert (done["changed"], done["pruned"], foretold["pruned"]) == (True, ["2", "1"], ["2", "1"])
    assert lab.names() == ["10", "3", "current", "results"]
    assert lab.left() == []
    # What `current` names stays, wherever it stands in the order.
    lab.look(release="10", inputs={"version": "10"})
    lab.build(release="4", inputs={"version": "4"}, current=False, keep=1, busy=["true"])
    assert lab.names() == ["10", "3", "4", "current", "results"]


def test_a_new_release_is_published_while_old_ones_are_in_use(lab: Lab) -> None:
    lab.publish("1", "2")
    done = lab.build(keep=1, busy=["echo", "17"])
    assert (done["changed"], done["pruned"], lab.current()) == (True, [], RELEASE)
    assert "1 in" in lab.warnings[0]


# Clusters that differ


def of(cluster: str, key: str, version: str = "2.32", **more: Any) -> dict[str, Any]:
    """Return what a cluster asks for, for nodes of a kind."""
    wanted = {"release": f"{version}-{key}", "inputs": {"version": version, "key": key}}
    return {**wanted, "cluster": cluster, "key": key, **more}


def links(lab: Lab) -> dict[str, str]:
    return {path.name: os.readlink(path) for path in sorted(lab.root.glob("current*"))}


def test_clusters_that_differ_do_not_switch_each_others_links(lab: Lab) -> None:
    old, new = of("one", "cuda12"), of("two", "cuda13")
    assert not lab.build(**old)["failed"]
    both = {"current": "2.32-cuda12", "current-cuda12": "2.32-cuda12", "current-cuda13": "2.32-cuda13"}
    foretold = lab.build(check=True, **new)
    done = lab.build(**new)
    assert links(lab) == both
    assert foretold["diff"] == done["diff"]
    assert done["diff"][0]["after"] == "2.32-cuda13: whole\ncurrent-cuda13: 2.32-cuda13\n"
    assert done["current"] == "2.32-cuda12"
    assert done["summary"] == "NCCL 2.32-cuda13, built by head; current is cluster one's, 2.32-cuda12"
    for wanted in (old, new, of("three", "cuda13"), {**old, "cluster": "three"}):
        assert not lab.build(**wanted)["changed"]
    assert links(lab) == both
    # The cluster whose it is goes on with it, to whatever it wants.
    assert not lab.build(**of("one", "cuda12", "2.33"))["failed"]
    assert links(lab) == {**both, "current": "2.33-cuda12", "current-cuda12": "2.33-cuda12"}
    assert not lab.build(**of("one", "cuda14"))["failed"]
    assert links(lab)["current"] == "2.32-cuda14"
    assert "cluster" not in lab.build(**of("one", "cuda14"))["summary"]
    # Clusters of a kind share it.
    assert not lab.build(**of("two", "cuda14", "2.34"))["failed"]
    assert links(lab)["current"] == "2.34-cuda14"
    # Where that cluster is gone, a person lets go of it.
    (lab.root / "current").unlink()
    assert lab.build(**new)["changed"]
    assert links(lab)["current"] == "2.32-cuda13"


def test_a_current_of_nobody_is_free(lab: Lab) -> None:
    lab.publish("1")
    assert lab.build(**of("two", "cuda13"))["current"] == "2.32-cuda13"
    (lab.root / "current").unlink()
    (lab.root / "current").symlink_to("gone")
    assert lab.build(**of("one", "cuda12"))["current"] == "2.32-cuda12"


def test_what_other_nodes_use_is_not_pruned(lab: Lab) -> None:
    for version in ("1", "2", "3", "4"):
        for cluster, key in (("one", "cuda12"), ("two", "cuda13")):
            assert not lab.build(**of(cluster, key, version))["failed"]
    # Another cluster of the same kind is not yet at the newest.
    (lab.root / "current-cuda13-test").symlink_to("2-cuda13")
    done = lab.look(**of("two", "cuda13", "4", keep=1, busy=["true"]))
    assert done["pruned"] == ["1-cuda13"]
    assert {"1-cuda12", "2-cuda12", "3-cuda12", "4-cuda12", "2-cuda13", "3-cuda13"} <= set(lab.names())


# Releases from before the key had the C library's version


# What the linker leaves in a program that was compiled on Ubuntu 22.04, and in one on Ubuntu 24.04: readelf shows it
# by --string-dump=.dynstr.
JAMMY = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\0libc.so.6\0__libc_start_main\0GLIBC_2.34\0GLIBC_2.2.5\0"
NOBLE = JAMMY + b"__isoc23_strtol\0GLIBC_2.38\0"


def after(cluster: str, version: str = "2.32", glibc: str = "2.35", **more: Any) -> dict[str, Any]:
    """Return what a cluster asks for since the key has the system."""
    key = f"cuda13-glibc{glibc}"
    given = of(cluster, "cuda13", version, **more)
    return {**given, "release": f"{version}-{key}", "key": key}


@pytest.fixture
def before(lab: Lab) -> dict[str, Any]:
    """A release under the old key, compiled on Ubuntu 22.04."""
    (lab.source / "libnccl.so.2").write_bytes(JAMMY)
    assert not lab.build(**of("one", "cuda13"))["failed"]
    return links(lab)


@pytest.mark.parametrize("glibc", ["2.34", "2.35", "2.39"])
def test_an_old_release_that_starts_here_is_adopted(lab: Lab, before: dict[str, Any], glibc: str) -> None:
    wanted = after("one", glibc=glibc)
    # A node that does not build takes it once the builder has.
    other = {**wanted, "builder": False, "wait": 0}
    assert not lab.look(**other)["published"]
    foretold = lab.look(check=True, **wanted)
    assert (foretold["due"], foretold["changed"]) == (False, True)
    manifest = lab.manifest("2.32-cuda13")
    done = lab.look(**wanted)
    assert (done["due"], done["changed"], done["published"]) == (False, True, True)
    assert foretold["diff"] == done["diff"]
    assert done["path"] == str(lab.root / "2.32-cuda13")
    assert links(lab) == {**before, f"current-cuda13-glibc{glibc}": "2.32-cuda13"}
    assert lab.manifest("2.32-cuda13") == manifest
    assert lab.names() == sorted(["2.32-cuda13", *links(lab)])  # nothing was built
    assert not lab.look(**wanted)["changed"]
    assert lab.look(**other)["published"]


def test_an_old_release_that_does_not_start_here_stays_for_others(lab: Lab, before: dict[str, Any]) -> None:
    """Rocky 8 has glibc 2.28."""
    wanted = after("two", glibc="2.28")
    assert lab.look(**wanted)["due"]
    done = lab.build(**wanted)
    assert done["path"] == str(lab.root / "2.32-cuda13-glibc2.28")
    assert links(lab) == {**before, "current-cuda13-glibc2.28": "2.32-cuda13-glibc2.28"}
    assert before == {"current": "2.32-cuda13", "current-cuda13": "2.32-cuda13"}
    # The cluster that had made the old one adopts it, and keeps current.
    assert not lab.look(**after("one"))["due"]
    assert links(lab)["current-cuda13-glibc2.35"] == links(lab)["current"] == "2.32-cuda13"
    for again in (wanted, after("one")):
        assert not lab.look(**again)["changed"]


@pytest.mark.parametrize(
    ("content", "glibc", "adopted"),
    [
        (NOBLE, "2.35", False),
        (NOBLE, "2.38", True),
        (JAMMY, "2.4", False),
        (JAMMY, "unknown", False),
        (b"text", "2.28", True),
    ],
)
def test_whether_an_old_release_starts_here(lab: Lab, content: bytes, glibc: str, adopted: bool) -> None:
    (lab.source / "libnccl.so.2").write_bytes(content)
    assert not lab.build(**of("one", "cuda13"))["failed"]
    assert lab.look(**after("one", glibc=glibc))["due"] is not adopted


def test_an_old_release_of_other_inputs_or_damaged_is_not_adopted(lab: Lab, before: dict[str, Any]) -> None:
    assert lab.look(**after("one", inputs={"version": "2.32", "key": "other"}))["due"]
    assert lab.look(**{**after("one"), "release": "2.32"})["due"]
    (lab.root / "2.32-cuda13/lib/libnccl.so.2").write_bytes(b"")
    assert lab.look(**after("one"))["due"]


def test_a_newer_release_after_an_adopted_one(lab: Lab, before: dict[str, Any]) -> None:
    assert lab.look(**after("one"))["changed"]
    assert not lab.build(**after("one", "2.33"))["failed"]
    new = "2.33-cuda13-glibc2.35"
    # Nodes that follow the old link keep what they have.
    assert links(lab) == {"current": new, "current-cuda13": "2.32-cuda13", "current-cuda13-glibc2.35": new}
    # It goes as older ones do, once no link names it.
    assert not lab.look(**after("one", "2.33", keep=1, busy=["true"]))["changed"]
    assert not lab.build(**after("one", "2.34"))["failed"]
    (lab.root / "current-cuda13").unlink()
    assert lab.look(**after("one", "2.34", keep=1, busy=["true"]))["pruned"] == ["2.32-cuda13"]


def test_clusters_of_one_system_adopt_the_same_release(lab: Lab, before: dict[str, Any]) -> None:
    for cluster in ("two", "one"):
        done = lab.look(**after(cluster))
        assert done["summary"] == "NCCL 2.32-cuda13, built by head"
    assert links(lab) == {**before, "current-cuda13-glibc2.35": "2.32-cuda13"}


# The lock


def test_a_node_that_waits_tells_that_it_will_be_silent(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []
    monkeypatch.setattr(host_lock, "heartbeat", lambda silence=0: told.append(silence))
    lab.look(builder=False, silence=7200, check=True)
    lab.look(silence=7200)  # who builds is not silent
    assert max(told) == 0
    lab.look(builder=False, silence=7200)
    assert told[-1] == 7200
    lab.build()
    lab.look(builder=False, silence=7200)
    assert told[-1] == 0


def test_eight_racing_nodes_build_once(cluster: Any) -> None:
    answers = [child.join() for child in [cluster.start(f"node{number}", 2) for number in range(8)]]
    assert [answer["error"] for answer in answers] == [""] * 8
    assert cluster.builds() == 1
    assert sum(answer["changed"] for answer in answers) == 1
    assert all(answer["published"] and answer["current"] == cluster.current() for answer in answers)
    assert cluster.look() == []


def test_others_wait_and_say_for_whom(lab: Lab, cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    go = cluster.base / "go"
    os.mkfifo(go)
    steps = (("sh", "-c", f'read line < "{go}"'), *cluster.request(2).steps)
    builder = cluster.start("head", 2, steps=steps)
    # Who waits shows with each look that the run is alive; the processes below have this from here.
    monkeypatch.setattr(host_lock, "heartbeat", lambda _silence=0: _append(cluster.base / f"beats-{os.getpid()}"))
    with open(go, "w") as word:  # from here on the builder is at it
        look = {"root": str(cluster.root), "release": soak.release_name(2), "inputs": {"version": 2, "flavour": "a"}}
        for who in ({"source": str(lab.source)}, {}):
            result = lab.look(wait=0, **look, **who)
            assert f"{cluster.root}/.lock is held by head (pid {builder.pid}) since 20" in result["msg"]
        told = lab.look(wait=0, builder=False, **look)
        assert told["why"].endswith(f"; head (pid {builder.pid}) builds it")
        assert told["building"] == f"head (pid {builder.pid})"
        assert (told["published"], told["summary"]) == (False, f"no NCCL {soak.release_name(2)}")
        others = [cluster.start(name, 2, builder=name != "compute") for name in ("compute", "second")]
        others.append(cluster.start("third", 2, source=None))
        beats = [cluster.base / f"beats-{other.pid}" for other in others]
        until(lambda: all(path.exists() and path.stat().st_size > 3 for path in beats))
        word.write("go on\n")
    assert builder.join()["changed"]
    for other in others:
        answer = other.join()
        assert (answer["error"], answer["changed"], answer["due"]) == ("", False, False)
        assert answer["published"]
        assert (answer["waited_for"], answer["building"]) == (f"head (pid {builder.pid})", "")
    assert cluster.builds() == 1


@pytest.mark.parametrize("building", [False, True])
@pytest.mark.parametrize("older", [False, True])
def test_a_look_of_a_node_that_waits_asks_the_file_system_four_times(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, building: bool, older: bool
) -> None:
    """What is in the directory, what `current` names, the lock's file, and whether anybody has the lock."""
    if older:
        lab.publish("1")
    else:
        lab.root.mkdir()
        (lab.root / ".lock").touch()
    asked: list[str] = []

    def counting(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(first: Any, *rest: Any, **more: Any) -> Any:
            if name == "flock" or str(first).startswith(str(lab.root)):
                asked.append(name)
            return real(first, *rest, **more)

        return call

    held = os.open(lab.root / ".lock", os.O_RDWR)
    if building:
        fcntl.flock(held, fcntl.LOCK_EX)
    with monkeypatch.context() as patches:
        for place, names in (
            (os, ("open", "stat", "lstat", "listdir", "scandir", "readlink", "mkdir")),
            (builtins, ("open",)),
            (fcntl, ("flock",)),
        ):
            for name in names:
                patches.setattr(place, name, counting(name, getattr(place, name)))
        told = lab.look(builder=False, wait=0)
    os.close(held)
    assert (told["published"], bool(told["building"])) == (False, building)
    assert asked == ["listdir", "readlink", "open", "flock"]


def test_who_waits_for_a_build_looks_seldom_and_at_moments_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(root, "holder_now", lambda _root: root.Holder("head", 1))
    clock = types.SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append)
    monkeypatch.setattr(root, "time", clock)
    assert root.watch("/fsx/nccl", 3600)[1]
    assert len(slept) < 300
    late = slept[30:-1]
    assert 10.5 <= min(late) < 12
    assert 18 < max(late) <= 19.5


def _append(path: Path) -> None:
    with path.open("a") as stream:
        stream.write(".")


@pytest.mark.parametrize("when", ["1970-01-01T00:00:00Z", "2099-01-01T00:00:00Z"])
def test_clocks_decide_nothing(lab: Lab, when: str, holder: Callable[[], None]) -> None:
    (lab.root / ".lock").write_text(json.dumps({"node": "skewed", "pid": 1, "token": "theirs", "since": when}))
    stamp = 0 if when < "2000" else 4_000_000_000
    os.utime(lab.root / ".lock", (stamp, stamp))
    assert f"held by skewed (pid 1) since {when}" in lab.build(wait=0)["msg"]
    holder()
    left = lab.root / ".stage-other-theirs"
    left.mkdir()
    os.utime(left, (stamp, stamp))
    assert lab.build()["changed"]
    assert lab.left() == []
    (lab.root / RELEASE / "manifest.json").write_text(json.dumps({**lab.manifest(), "utc": when}))
    os.utime(lab.root / RELEASE, (stamp, stamp))
    assert not lab.build(keep=1, busy=["true"])["changed"]


def test_the_commands_of_a_killed_builder_die_with_it(cluster: Any) -> None:
    told, gone = cluster.base / "told", cluster.base / "gone"
    os.mkfifo(told)
    os.mkfifo(gone)
    # The grandchild holds a pipe open for as long as it lives, and writes into it if nobody ends it.
    steps = (("sh", "-c", f'(exec 9> "{gone}"; echo > "{told}"; sleep 30; echo alive >&9); true'),)
    builder = cluster.start("head", 2, steps=steps)
    with open(gone) as alive:
        assert told.read_text() == "\n"
        builder.kill()
        assert builder.join() is None
        assert alive.read() == ""
    last = soak.Child(lambda: cluster.run("last", 2)).join()
    assert (last["error"], last["waited_for"], last["changed"]) == ("", "", True)
    assert [name for name in cluster.names(hidden=True) if name.startswith(".stage")] + os.listdir(
        cluster.scratch
    ) == []


def test_what_a_killed_one_left_is_removed_when_nothing_else_is_to_do(lab: Lab) -> None:
    lab.build()
    stage = lab.root / f".stage-{RELEASE}-dead"
    (stage / "old-0-0" / ".broken-1-dead").mkdir(parents=True)
    assert not lab.build()["changed"]
    assert lab.left() == []
    assert (lab.root / ".broken-1-dead").is_dir(), "what was to be set aside is not removed"
    assert lab.warnings == [
        f"{lab.root}/.broken-1-dead is no release, and was set aside; look at it, as it is removed when the next "
        "release is published"
    ]
    assert not lab.build()["changed"]
    assert (lab.root / ".broken-1-dead").is_dir(), "there was no time to look at it"
    # A killed one's, found by the very run that publishes, stays for now as well.
    (stage / "old-0-0" / ".broken-2-dead").mkdir(parents=True)
    done = lab.build(release="3", inputs={"version": "3"})
    assert done["pruned"] == [".broken-1-dead"]
    assert [path.name for path in lab.root.glob(".broken-*")] == [".broken-2-dead"]


def _scratch_name(tag: str) -> str:
    return f"postboot-build-{tag}-abcdefgh"


@strangers.TWO_USERS
def test_directories_of_other_users_beside_builds_are_left_alone(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    with strangers.crowd() as place:
        monkeypatch.setattr(shared_build_steps, "SCRATCH_DIR", str(place))
        deep, link, pipe, own, tree = (place / _scratch_name(f"{host_files.machine()}-99999{n}-1") for n in range(5))
        strangers.deep_tree(deep)
        strangers.as_user(lambda: link.symlink_to(lab.root.parent))
        strangers.as_user(lambda: os.mkfifo(pipe))
        wide = [place / _scratch_name(f"{host_files.machine()}-88{n}-1") for n in range(3000)]
        strangers.as_user(lambda: [path.mkdir() for path in wide])
        (own / "objects").mkdir(parents=True)
        strangers.deep_tree(tree, 0)  # a tree of root's own that is too deep to remove is no failure
        assert not lab.build()["failed"]
        assert strangers.depth(deep) == strangers.DEEP
        assert link.is_symlink()
        assert pipe.exists()
        assert all(path.exists() for path in wide)
        assert not own.exists()


@strangers.TWO_USERS
def test_names_that_come_and_go_beside_builds_do_no_harm(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    with strangers.crowd() as place:
        monkeypatch.setattr(shared_build_steps, "SCRATCH_DIR", str(place))
        name = place / _scratch_name(f"{host_files.machine()}-999999-1")
        with strangers.churn(lambda: (name.mkdir(), name.rmdir())):
            for _again in strangers.until(1):
                shared_build_steps.tidy()


# A builder that lost its lock and does not know


@pytest.mark.parametrize("late", ["publish", "point", "set_aside", "remove"])
def test_a_late_builder_can_not_change_a_name(lab: Lab, monkeypatch: pytest.MonkeyPatch, late: str) -> None:
    lab.publish("1", "2")
    one, _waited = root.take(str(lab.root), "3", 0)
    tree = Path(one.own) / "3"
    tree.mkdir()
    (tree / "manifest.json").write_text("{}")
    os.replace(_copy(lab.root / ".lock"), lab.root / ".lock")
    other, _waited = root.take(str(lab.root), "2", 0)
    before = {path: os.lstat(path).st_ino for path in lab.root.iterdir()}
    acts = {
        "publish": lambda: one.publish(str(tree), "3"),
        "point": lambda: one.point("1", "current-a"),
        "set_aside": lambda: one.set_aside("2"),
        "remove": lambda: one.remove("1"),
    }
    with pytest.raises(root.LostError, match="went to head"):
        acts[late]()
    # Not even one that has looked at the token just before it changed.
    monkeypatch.setattr(one, "verify", lambda: None)
    with pytest.raises(FileNotFoundError):
        acts[late]()
    assert {path: os.lstat(path).st_ino for path in lab.root.iterdir()} == before
    assert lab.current() == "2"
    one.close()
    other.verify()
    other.close()
    assert lab.left() == []


def _copy(path: Path) -> Path:
    other = path.with_name(".copy")
    other.write_bytes(path.read_bytes())
    return other


def test_a_lock_file_that_is_replaced_is_no_lock(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.publish("1")
    lock, flock, calls = lab.root / ".lock", fcntl.flock, []

    def late_flock(descriptor: int, how: int) -> None:
        calls.append(how)
        if len(calls) == 1:
            os.replace(_copy(lock), lock)
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late_flock)
    assert lab.build()["changed"]
    assert len(calls) == 2


def test_a_name_that_is_taken_is_never_replaced(lab: Lab) -> None:
    lab.publish("1")
    before = lab.manifest("1")
    with root.take(str(lab.root), "1", 0)[0] as held:
        tree = Path(held.own) / "1"
        tree.mkdir()
        with pytest.raises(root.LostError, match="is there by now, made by another"):
            held.publish(str(tree), "1")
    assert lab.manifest("1") == before


@pytest.mark.parametrize("place", ["steps", "proof"])
def test_a_token_that_is_replaced_stops_the_build(lab: Lab, place: str) -> None:
    steal = ["sh", "-c", f'echo \'{{"node": "thief", "pid": 7, "token": "x", "since": ""}}\' > {lab.root}/.lock']
    result = lab.build(**({"steps": [*lab.steps, steal]} if place == "steps" else {"proof": steal}))
    assert f"the lock of {lab.root} went to thief (pid 7) while this node worked on {RELEASE}" in result["msg"]
    assert lab.names() == []
    assert lab.left() == []


def test_current_is_whole_wherever_a_builder_is_killed(tmp_path: Path) -> None:
    calls = soak.Soak(tmp_path / "counted", seed=1).calls()
    cluster = soak.Cluster(tmp_path / "cluster")
    for version in (0, 1):
        assert cluster.start("head", version).join()["error"] == ""
    cases = [(phase, at) for phase in ("rename", "current", "prune") for at in range(1, calls[phase] + 1)]
    for version, (phase, at) in enumerate(cases, 2):
        assert cluster.start("head", version, phase, at).join() is None
        assert cluster.look() == []
        assert cluster.current() in [soak.release_name(version - 1), soak.release_name(version)]
        assert cluster.start("head", version).join()["error"] == ""
        assert cluster.current() == soak.release_name(version)
        assert len(cluster.names()) == 2


def test_rounds_of_kills_and_thefts(tmp_path: Path) -> None:
    seed = int(time.time())
    print(f"seed {seed}")
    rounds = soak.Soak(tmp_path, seed)
    for _number in range(2):
        rounds.round()


# Storage


def in_mounts(work: Callable[[], Any]) -> Any:
    """Do something in a mount namespace of its own; skip where this user may not have one."""

    def inside() -> Any:
        if os.geteuid() or ctypes.CDLL(None).unshare(0x00020000):
            return "may not"
        if subprocess.run(["mount", "--make-rprivate", "/"], check=False, capture_output=True).returncode:
            return "may not"
        return work()

    answer = soak.Child(inside).join()
    if answer == "may not":
        pytest.skip("needs root that may mount")
    return answer


def mount(lab: Lab) -> None:
    lab.root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "small", str(lab.root)], check=True)


def test_a_full_file_system_is_named(lab: Lab) -> None:
    (lab.source / "libnccl.so.2").write_bytes(bytes(2 << 20))

    def work() -> Any:
        mount(lab)
        full = lab.fails()
        (lab.source / "libnccl.so.2").write_text("library\n")
        assert lab.build()["changed"]
        # So full that the lock file itself has no room.
        fill = ["sh", "-c", f"rm {lab.root}/.lock; dd if=/dev/zero of={lab.root}/fill bs=4k; touch {lab.root}/.lock"]
        subprocess.run(fill, check=True, capture_output=True)
        return full, lab.fails(release="3"), lab.current()

    full, again, current = in_mounts(work)
    assert full.startswith(f"{lab.root} is full (No space left on device); needed is room for one more release")
    assert f"step 3 of 4 of NCCL {RELEASE}" in full
    assert again.startswith(f"NCCL: {lab.root} is full (No space left on device)")
    assert current == RELEASE


def test_a_read_only_file_system_is_named(lab: Lab) -> None:
    def work() -> Any:
        mount(lab)
        lab.build()
        (lab.root / ".stage-left").mkdir()
        subprocess.run(["mount", "-o", "remount,ro", str(lab.root)], check=True)
        return lab.build(), lab.look(builder=False), lab.build(release="3")["msg"]

    done, seen, failed = in_mounts(work)
    assert (done["failed"], done["changed"], seen["published"]) == (False, False, True)
    assert failed == (
        f"NCCL: {lab.root} is read-only on this node; needed is a file system that the builder may write to"
    )


def test_a_file_system_that_goes_away_is_named(lab: Lab) -> None:
    steps = [*lab.steps, ["umount", "--lazy", str(lab.root)]]

    def work() -> Any:
        mount(lab)
        return lab.fails(steps=steps), lab.names()

    failed, names = in_mounts(work)
    assert failed.startswith(f"NCCL: {lab.root} is not there, or not any more ({lab.root}/")
    assert failed.endswith("No such file or directory); needed is the shared file system: mount it")
    assert names == []


def test_a_root_that_is_moved_away_is_named(lab: Lab) -> None:
    failed = lab.fails(steps=[["mv", str(lab.root), str(lab.base / "away")], *lab.steps])
    assert failed.startswith(f"NCCL: {lab.root} is not there, or not any more (")


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "is full"),
        (errno.EDQUOT, "is full"),
        (errno.EROFS, "is read-only"),
        (errno.EIO, "is not there, or not any more"),
        (errno.ESTALE, "is not there, or not any more"),
        (errno.ESHUTDOWN, "is not there, or not any more"),
    ],
)
def test_what_storage_answers_is_explained(lab: Lab, monkeypatch: pytest.MonkeyPatch, number: int, said: str) -> None:
    def fail(descriptor: int) -> None:
        if "nccl.h" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    assert lab.fails().startswith(f"NCCL: {lab.root} {said} (" if number != errno.EROFS else f"NCCL: {lab.root} {said}")
    assert lab.names() == []


def test_the_place_of_the_root_must_be_there(lab: Lab) -> None:
    (lab.base / "fsx").rmdir()
    assert f"NCCL: {lab.root} is not there" in lab.fails()
    assert not (lab.base / "fsx").exists()
    assert not lab.look(builder=False)["published"]


def test_a_file_system_without_locks_is_named(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.publish("1")

    def flock(_descriptor: int, _how: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    said = f"{lab.root} has no locks between nodes (Function not implemented); needed is the mount option flock"
    assert lab.fails().startswith(said)
    assert lab.look()["msg"].startswith(said)
    assert not lab.look(builder=False)["failed"]
    assert not lab.build(release="1", inputs={"version": "1"})["failed"], "what is there is used"


def test_a_lustre_with_locks_of_one_node_is_refused(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.root.mkdir()
    mounts = lab.base / "mounts"
    monkeypatch.setattr(root, "MOUNTS", str(mounts))
    lines = f"/dev/sda / ext4 rw 0 0\nauto {lab.root.parent} autofs rw 0 0\n1@tcp:/x {lab.root.parent} lustre rw,"
    mounts.write_text(f"{lines}localflock 0 0\n")
    for failed in (lab.fails(), lab.look()["msg"]):
        assert failed.startswith(f"{lab.root.parent} is mounted with localflock")
    forged = strangers.mount_list().replace("/var", str(lab.root.parent))
    mounts.write_bytes(f"{lines}flock 0 0\n{forged}".encode())
    assert lab.build()["changed"]


@pytest.mark.parametrize("local", ["flock", "all"])
def test_nfs_with_locks_of_one_node_is_refused(lab: Lab, monkeypatch: pytest.MonkeyPatch, local: str) -> None:
    """As /proc/self/mounts shows a mount with nolock, or with local_lock (nfs(5))."""
    lab.root.mkdir()
    mounts = lab.base / "mounts"
    monkeypatch.setattr(root, "MOUNTS", str(mounts))
    line = f"10.0.0.5:/home {lab.root.parent} nfs rw,vers=3,hard,proto=tcp,nolock,local_lock="
    mounts.write_text(f"{line}{local},addr=10.0.0.5 0 0\n")
    for failed in (lab.fails(), lab.look()["msg"]):
        assert failed.startswith(f"{lab.root.parent} is mounted with local_lock={local}")
    for other in ("none", "posix"):
        mounts.write_text(f"{line}{other},addr=10.0.0.5 0 0\n")
        assert not lab.build()["failed"]


# A root on a disk of the head node, which exports it by NFS. The server has a POSIX lock for what a client takes by
# flock(2), and programs of the server do not see that lock by flock(2), nor do clients see theirs.

# What nfsd and lockd do for a client: a POSIX lock on the whole file.
CLIENT = """
import fcntl, sys
stream = open(sys.argv[1], "r+")
try:
    fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("held", flush=True)
else:
    print("mine", flush=True)
    sys.stdin.read()
"""


class Client:
    """A node that mounts the root by NFS, and has the lock or not."""

    def __init__(self, lab: Lab) -> None:
        line = [sys.executable, "-c", CLIENT, str(lab.root / ".lock")]
        self.process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        self.said = self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.communicate(timeout=PATIENCE)


@pytest.fixture
def exported(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Lab:
    lab.root.mkdir()
    told = {"node": "ip-10-0-0-6", "pid": 4711, "token": "theirs", "since": "2026-11-21T10:00:00Z"}
    (lab.root / ".lock").write_text(json.dumps(told))
    (lab.base / "mounts").write_text("/dev/nvme0n1p1 / ext4 rw,relatime 0 0\n")
    monkeypatch.setattr(root, "MOUNTS", str(lab.base / "mounts"))
    return lab


def test_the_server_sees_the_lock_of_an_nfs_client(exported: Lab) -> None:
    client = Client(exported)
    assert client.said == "mine"
    assert exported.look(builder=False, wait=0)["building"] == "ip-10-0-0-6 (pid 4711)"
    assert "is held by ip-10-0-0-6 (pid 4711) since 2026-11-21T10:00:00Z" in exported.fails(wait=0)
    client.end()
    assert exported.look(builder=False, wait=0)["building"] == ""
    assert exported.build()["changed"]


def test_an_nfs_client_sees_the_lock_of_the_server(exported: Lab) -> None:
    with root.take(str(exported.root), RELEASE, 0)[0]:
        # Whoever reads the file in between drops nothing: the lock is that of an open file, not of the process.
        root.read_holder(str(exported.root))
        assert root.holder_now(str(exported.root)) is not None
        assert Client(exported).said == "held"
    client = Client(exported)
    assert client.said == "mine"
    client.end()


def test_a_node_that_looks_does_not_keep_an_nfs_client_out(exported: Lab) -> None:
    assert root.holder_now(str(exported.root)) is None
    client = Client(exported)
    assert client.said == "mine"
    client.end()


@pytest.mark.parametrize("kind", ["lustre", "nfs4", "efs"])
def test_on_a_client_flock_is_enough(exported: Lab, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There the lock of the server comes of flock(2) itself."""
    asked: list[Any] = []
    monkeypatch.setattr(fcntl, "fcntl", lambda *words: asked.append(words))
    (exported.base / "mounts").write_text(f"x {exported.base} {kind} rw,local_lock=none 0 0\n")
    assert exported.build()["changed"]
    assert asked == []


# Builds that fail


def test_a_compiler_that_fails_is_quoted(lab: Lab) -> None:
    script = (
        "for n in $(seq 100); do echo line $n; done; echo 'x.cu(3): error: expected a ;'; echo make: stopped; exit 2"
    )
    result = lab.build(steps=lab.step(script))
    path = lab.root / f"logs/{RELEASE}.log"
    assert result["msg"].startswith(f"step 1 of 5 of NCCL {RELEASE} ('sh -c 'for n in ")
    assert result["msg"].endswith(f"ended with 2: x.cu(3): error: expected a ;; its log is {path}")
    assert result["log"][0] == "line 63"
    assert result["log"][-2:] == ["x.cu(3): error: expected a ;", "make: stopped"]
    assert "line 1\n" in path.read_text()
    assert (lab.names(), lab.left()) == ([], [])
    assert lab.build()["changed"]


def test_a_log_that_can_not_be_shared_is_on_the_node(lab: Lab) -> None:
    lab.root.mkdir()
    (lab.root / "logs").write_text("in the way")
    assert lab.fails(steps=[["false"]]).endswith(f"it said nothing; its log is {lab.base}/log/{RELEASE}.log")
    (lab.base / "log").rename(lab.base / "away")
    (lab.base / "log").write_text("in the way")
    assert lab.fails(steps=[["sh", "-c", "echo told; false"]]).endswith("ended with 1: told")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"steps": [["no-such-program"]]}, "ended with 127"),
        ({"steps": [["sh", "-c", "kill -9 $$"]]}, "ended with 137"),
        ({"provides": ["lib/other.so"]}, f"NCCL {RELEASE} was built without lib/other.so, or that is empty"),
        ({"proof": ["grep", "-q", "none", "{stage}/include/nccl.h"]}, f"the proof of NCCL {RELEASE} ('grep -q none"),
        ({"needs": ["cp", "no-such-program"]}, "can not be built: no-such-program not found"),
        ({"source": "/no/such/source"}, "/no/such/source is not there; needed is its source"),
        ({"steps": [["ln", "-s", "{stage}/x", "{stage}/y"]], "provides": []}, "the build made y a link to /"),
        ({"steps": [["mkfifo", "{stage}/y"]], "provides": []}, "y, which is neither a file nor a link"),
        ({"release": "../x"}, "NCCL: release is '../x'; needed is a name such as"),
        ({"release": "current"}, "NCCL: release is 'current'"),
        ({"release": "current-cuda13"}, "NCCL: release is 'current-cuda13'"),
        ({"key": "a/b"}, "NCCL: key is 'a/b'; needed is a word such as cuda13-x86_64, or none"),
        ({"root": "fsx"}, "NCCL: root is 'fsx'; needed is the absolute path"),
        ({"steps": []}, "NCCL: steps has none"),
        ({"provides": ["../x"]}, "NCCL: provides has '../x'"),
        ({"keep": 1}, "NCCL: keep is 1 without busy"),
        ({"wait": -1}, "NCCL: jobs, wait, silence or keep is below 0"),
    ],
)
def test_a_mistake_is_one_line(lab: Lab, more: dict[str, Any], said: str) -> None:
    assert said in lab.fails(**more)
    assert not lab.root.exists() or lab.names() == []


@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_current_that_is_no_link_is_named(lab: Lab, what: str) -> None:
    lab.root.mkdir()
    (lab.root / "current").mkdir() if what == "folder" else (lab.root / "current").write_text("")
    assert "needed is a symbolic link: move it away" in lab.fails()


def test_a_node_that_may_not_build_changes_nothing(lab: Lab) -> None:
    lab.publish("1", "2")
    before = lab.snapshot()
    for more in ({}, {"release": "1", "inputs": {"version": "1"}, "keep": 1, "busy": ["true"]}):
        told = lab.build(builder=False, **more)
        assert (told["changed"], told["due"], told["current"]) == (False, False, "2")
        assert told["published"] == bool(more)
    assert lab.snapshot() == before


def test_output_that_a_daemon_keeps_open_ends_with_the_step(lab: Lab) -> None:
    pid = lab.base / "pid"
    started = time.monotonic()
    assert lab.build(steps=lab.step(f"sleep 600 & echo $! > {pid}"))["changed"]
    assert time.monotonic() - started < PATIENCE
    until(lambda: not process.process_started(int(pid.read_text())))


def test_a_terminated_builder_leaves_what_the_next_one_removes(cluster: Any) -> None:
    told = cluster.base / "told"
    os.mkfifo(told)
    builder = cluster.start("head", 2, steps=(("sh", "-c", f'echo > "{told}"; sleep 60'),))
    assert told.read_text() == "\n"
    os.kill(builder.pid, signal.SIGTERM)
    with pytest.raises(AssertionError, match="status"):
        builder.join()
    assert soak.Child(lambda: cluster.run("last", 2)).join()["changed"]
    assert [name for name in cluster.names(hidden=True) if name.startswith(".stage")] == []
