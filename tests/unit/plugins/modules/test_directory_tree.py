# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The shared tree: made in one task, and never underneath a missing mount."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils import _directory_tree
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.modules import directory_tree
from ansible_collections.pcluster.postboot.tests.strangers import TWO_USERS, USER, as_user, mount_list
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab
from ansible_collections.pcluster.postboot.tests.unit.plugins.lab import Run

WHO = {"owner": pwd.getpwuid(os.getuid()).pw_name, "group": grp.getgrgid(os.getgid()).gr_name}


def entry(path: str, mode: str = "0755", **more: Any) -> dict[str, Any]:
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


# lfs, as far as lfs_setstripe() of lustre/utils/lfs.c (2.15) reads these options: components one after another up to
# the end of a file, whose ends are multiples of their stripe size, for a directory that is there.
LFS = """#!{python} -SE
import os, sys
if sys.argv[1] != "setstripe" or not os.path.isdir(sys.argv[-1]):
    sys.exit("error: setstripe: missing filename|dirname")
if os.path.exists("{refuses}"):
    sys.exit("error: setstripe: cannot set default layout for '.': Operation not permitted")
units, ends, words = {{"M": 1 << 20}}, [], sys.argv[2:-1]
while words:
    name, value = words.pop(0), words.pop(0)
    number = int(value[:-1]) * units[value[-1]] if value[-1] in units else int(value)
    if name == "-E":
        ends.append(number)
    elif name == "-S" and ends[-1] > 0 and ends[-1] % number:
        sys.exit("error: setstripe: stripe size is no part of the component")
    elif name not in ("-c", "-S"):
        sys.exit(f"setstripe: invalid option -- {{name}}")
if ends[-1] != -1 or ends[:-1] != sorted(ends[:-1]):
    sys.exit("error: setstripe: components do not follow each other")
with open("{log}", "a") as log:
    log.write(f"{{os.getcwd()}} {{' '.join(sys.argv[2:])}}\\n")
"""


@pytest.fixture
def lustre(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that counts as Lustre, with a program lfs that writes down what it was asked beside it."""
    top = tmp_path / "fsx"
    top.mkdir()
    device = top.stat().st_dev
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 0:1 / /home rw,relatime - ext4 /dev/x rw\n"
        f"2 0 {os.major(device)}:{os.minor(device)} / {top} rw,relatime - lustre 10.0.0.1@tcp:/abc rw,flock\n"
    )
    monkeypatch.setattr(_directory_tree, "MOUNTINFO", str(mounts))
    program = tmp_path / "bin/lfs"
    program.parent.mkdir()
    text = LFS.format(python=os.path.realpath(sys.executable), refuses=tmp_path / "refuses", log=tmp_path / "log")
    lab.program(program, text)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return top


def test_large_files_of_a_directory_that_is_made_lie_on_all_storage_targets(run_module: Run, lustre: Path) -> None:
    log = lustre.parent / "log"
    (lustre / "there").mkdir()
    given = [entry("containers", spread=True), entry("there", spread=True), entry("data", "1777")]
    args = {"path": str(lustre), "directories": given}
    assert run_module(directory_tree, args, check=True)["changed"]
    assert not log.exists()
    assert run_module(directory_tree, args)["created"] == ["containers", "data"]
    assert log.read_text() == f"{lustre}/containers -E 1M -c 1 -S 1M -E -1 -c -1 -S 1M .\n"
    assert not run_module(directory_tree, args)["changed"]
    assert len(log.read_text().splitlines()) == 1


def test_no_layout_is_set_elsewhere_than_on_lustre(
    run_module: Run, lustre: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_directory_tree, "MOUNTINFO", "/proc/self/mountinfo")
    run_module(directory_tree, {"path": str(lustre), "directories": [entry("containers", spread=True)]})
    assert (lustre / "containers").is_dir()
    assert not (lustre.parent / "log").exists()


@pytest.mark.parametrize(
    ("prepare", "why"),
    [
        (lambda top: (top / "refuses").touch(), "Operation not permitted"),
        (lambda top: (top / "bin/lfs").unlink(), "the program lfs is not there"),
    ],
)
def test_a_layout_that_cannot_be_set_is_a_warning(
    run_module: Run, lustre: Path, warnings: list[str], prepare: Callable[[Path], None], why: str
) -> None:
    prepare(lustre.parent)
    done = run_module(directory_tree, {"path": str(lustre), "directories": [entry("containers", spread=True)]})
    assert (done["failed"], done["created"]) == (False, ["containers"])
    (said,) = warnings
    assert said.startswith(f"{lustre}/containers was made, and its large files may lie on one storage target")
    assert why in said
    assert said.endswith(f"needed: lfs setstripe -E 1M -c 1 -S 1M -E -1 -c -1 -S 1M {lustre}/containers")


def test_an_unusual_umask_does_not_matter(run_module: Run, tmp_path: Path) -> None:
    with lab.umask(0o077):
        run_module(directory_tree, {"path": str(tmp_path), "directories": [entry("data", "2775")]})
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
    with pytest.raises(Problem, match="/fsx is no mount point"):
        _directory_tree.require_mount("/fsx", str(mounts))
    _directory_tree.require_mount("/with space/", str(mounts))
    mounts.write_text("systemd-1 /fsx autofs rw 0 0\n1.2.3.4@tcp:/x /fsx lustre rw 0 0\n")
    _directory_tree.require_mount("/fsx", str(mounts))
    mounts.write_bytes(mount_list().encode())
    with pytest.raises(Problem, match="/var is no mount point"):
        _directory_tree.require_mount("/var", str(mounts))


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


# --- a directory that somebody else owns -----------------------------------------------------------------------------

class Interloper:
    """Stands for the module `os`; before call number `step` of it, a user does something."""

    def __init__(self, step: int, do: Callable[[], Any]) -> None:
        self.step, self.do, self.calls = step, do, 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(os, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls == self.step:
                as_user(self.do)
            return found(*args, **kwargs)

        return call


@pytest.fixture
def shared() -> Iterator[Path]:
    """A shared tree as it outlives a cluster: everybody may make something in it, and `logs` is a user's."""
    top = Path(tempfile.mkdtemp(prefix="postboot-tree-"))
    for name, mode, user in (("fsx", 0o1777, 0), ("fsx/logs", 0o755, USER), ("victim", 0o700, 0)):
        (top / name).mkdir()
        (top / name).chmod(mode)
        os.chown(top / name, user, user)
    top.chmod(0o755)
    yield top
    shutil.rmtree(top)


def swap(path: Path, target: Path) -> None:
    """Put a link in the place of a directory, or where one is about to be made."""
    with contextlib.suppress(FileNotFoundError):
        path.rename(path.with_name(f"{path.name}-moved"))
    path.symlink_to(target)


@TWO_USERS
@pytest.mark.parametrize("enforce", [False, True])
@pytest.mark.parametrize("swapped", ["logs", "logs/training"])
def test_a_user_who_swaps_a_directory_for_a_link_leads_root_nowhere(
    run_module: Run, shared: Path, monkeypatch: pytest.MonkeyPatch, swapped: str, enforce: bool
) -> None:
    fsx, victim = shared / "fsx", shared / "victim"
    args = {"path": str(fsx), "directories": [entry("logs"), entry("logs/training", "1777")], "enforce": enforce}
    told = set()
    for step in range(1, 200):
        shutil.rmtree(fsx)
        fsx.mkdir()
        fsx.chmod(0o1777)
        (fsx / "logs").mkdir()
        os.chown(fsx / "logs", USER, USER)
        user = Interloper(step, lambda: swap(fsx / swapped, victim))
        with monkeypatch.context() as patch:
            patch.setattr(_directory_tree, "os", user)
            answer = run_module(directory_tree, args)
        status = victim.stat()
        assert (status.st_uid, f"{status.st_mode & 0o7777:04o}") == (0, "0700"), f"at step {step}: {answer}"
        assert not list(victim.iterdir()), f"at step {step}: {answer}"
        told.add(answer["msg"] if answer["failed"] else "done")
        told |= {f"{one['path']} is {one['found']}" for one in answer.get("left", ())}
        if user.calls < step:
            break
    assert step > 10
    assert f"{swapped} is a link of user nobody" in told
    assert "done" in told
    assert all("\n" not in line for line in told)


@TWO_USERS
def test_a_link_is_followed_only_if_root_or_a_trusted_user_has_made_it(
    run_module: Run, shared: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    as_user(lambda: swap(shared / "fsx/logs", shared / "victim"))
    args = {"path": str(shared / "fsx"), "directories": [entry("logs"), entry("logs/training", "1777"), entry("data")]}
    answer = run_module(directory_tree, args)
    assert answer["created"] == ["data"]
    assert [one["path"] for one in answer["left"]] == ["logs", "logs/training"]
    said = capfd.readouterr().err.split()
    link = f"{shared}/fsx/logs is a link of user nobody, and is not followed; remove it, or run: chown -h root "
    assert " ".join(said).count(link) == 1, said
    answer = run_module(directory_tree, {**args, "trusted_users": ["nobody", "nobody-here"]})
    assert answer["created"] == ["logs/training"]
    assert modes(shared / "victim") == {"training": "1777"}
    assert (shared / "victim").stat().st_mode & 0o7777 == 0o700
    (shared / "fsx/logs/training").rmdir()
    os.chown(shared / "fsx/logs", 0, 0, follow_symlinks=False)
    assert run_module(directory_tree, args)["created"] == ["logs/training"]


@TWO_USERS
def test_the_top_is_not_reached_by_a_users_link(run_module: Run, shared: Path) -> None:
    (shared / "fsx/top").symlink_to(shared / "victim")
    os.chown(shared / "fsx/top", USER, USER, follow_symlinks=False)
    answer = run_module(directory_tree, {"path": str(shared / "fsx/top"), "directories": [entry("data")]})
    assert answer["failed"]
    assert answer["msg"].startswith(f"{shared}/fsx/top is a link of user nobody, and is not followed; ")
    assert not list((shared / "victim").iterdir())


@TWO_USERS
def test_directories_in_which_users_can_replace_things_are_told(
    run_module: Run, shared: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (shared / "fsx/data").mkdir()
    (shared / "fsx/data").chmod(0o777)
    (shared / "fsx/scripts").mkdir(mode=0o750)
    directories = [entry("logs"), entry("data", "1777"), entry("scripts"), entry("logs/training", "1777")]
    run_module(directory_tree, {"path": str(shared / "fsx"), "directories": directories})
    said = " ".join(capfd.readouterr().err.split())
    assert (
        f"users can replace what lies in {shared}/fsx/data (0777 root:root), {shared}/fsx/logs (0755 nobody:nogroup); "
        "needed: root as the owner, and mode +t where all may write"
    ) in said
    enforced = {"path": str(shared / "fsx"), "directories": directories, "enforce": True}
    run_module(directory_tree, {**enforced, "trusted_users": ["nobody"]})
    assert "users can replace" not in capfd.readouterr().err
