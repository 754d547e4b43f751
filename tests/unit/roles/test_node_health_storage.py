# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What node-health finds of file systems, and that one that hangs hangs neither the look nor ever more processes."""

from __future__ import annotations

import errno
import os
import select
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose import rooms
from ansible_collections.pcluster.postboot.roles.node_health.files.node_health import children, storage
from ansible_collections.pcluster.postboot.roles.node_health.files.node_health.look import Look
from ansible_collections.pcluster.postboot.tests.strangers import FORGED
from ansible_collections.pcluster.postboot.tests.unit.roles.node_health_tree import MOUNTS, NOW, Node


class Files:
    """Looks at the file systems of a node, whose answers a test says."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node = Node(tmp_path)
        self.node.settings.update(disk_full=95, patience=0.3)
        self.memory: dict[str, Any] = {}
        self.now = NOW
        self.hung: set[str] = set()
        self.broken: dict[str, int] = {}
        self.full: dict[str, tuple[int, int, int, int]] = {}  # blocks, free blocks, inodes, free inodes
        self.waits = tmp_path / "waits"  # a file for each child that waits for a file system
        self.waits.mkdir()
        self.children: dict[int, int] = {}  # by the pipes from which their answers come
        monkeypatch.setattr(os, "statvfs", self.statvfs)
        monkeypatch.setattr(children, "select", SimpleNamespace(select=self.select))
        begin = children._begin

        def noted(*words: Any) -> tuple[int, int]:
            child, pipe = begin(*words)
            self.children[pipe] = child
            return child, pipe

        monkeypatch.setattr(children, "_begin", noted)

    def select(self, pipes: list[int], *_others: Any) -> tuple[list[int], list[int], list[int]]:
        """Wait as long as there is hope: a busy machine may need longer for an answer than a mount that hangs."""
        (pipe,) = pipes
        while not (ready := select.select(pipes, [], [], 0.05))[0]:
            if (self.waits / str(self.children[pipe])).exists():
                return select.select(pipes, [], [], 0.05)  # what was told just before
        return ready

    def statvfs(self, path: str) -> os.statvfs_result:
        path = path[len(str(self.node.root)) :]
        if path in self.hung:
            (self.waits / str(os.getpid())).touch()
            time.sleep(3600)
        if path in self.broken:
            raise OSError(self.broken[path], os.strerror(self.broken[path]))
        blocks, free, inodes, some = self.full.get(path, (1000, 900, 1000, 900))
        return os.statvfs_result((4096, 4096, blocks, free, free, inodes, some, some, 0, 255))

    def look(self, later: float = 0) -> dict[tuple[str, str], dict[str, Any]]:
        """Look so many seconds after the last look; return the findings by their names and subjects."""
        self.now += later
        look = Look(self.node.settings, self.memory, str(self.node.root), lambda: self.now)
        storage.check(look)
        look.result()
        return look.findings

    def looks(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Look twice, so far apart that no maintenance lasts so long; return what the second look has found."""
        self.look()
        return self.look(storage.MAINTENANCE)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    return Files(tmp_path, monkeypatch)


def test_file_systems_that_are_well(files: Files) -> None:
    assert files.look() == {}


def test_which_are_looked_at(files: Files) -> None:
    look = Look(files.node.settings, {}, str(files.node.root))
    found = storage.judged(look, storage.mounts(look.text(storage.MOUNTS)))
    assert [mount.path for mount in found] == ["/fsx", "/home", "/opt/slurm", "/", "/run", "/scratch"]


def test_a_disk_that_is_mounted_twice_is_asked_once_and_by_its_shorter_path(files: Files) -> None:
    line = "60 30 259:1 / {} rw,relatime shared:9 - ext4 /dev/nvme1n1 rw\n"
    found = storage.mounts(line.format("/scratch/docker/very/deep") + line.format("/data\\040one"))
    look = Look(files.node.settings, {}, "")
    assert [mount.path for mount in storage.judged(look, found)] == ["/data one"]


def test_buckets_that_fuse_mounts_are_looked_at_too(files: Files) -> None:
    files.node.mounts(*MOUNTS, ("mountpoint-s3", "/data", "fuse.mount-s3", "rw", "rw,allow_other"), ("fusectl",) * 5)
    files.hung = {"/data"}
    assert list(files.looks()) == [("mount_hangs", "/data")]


def test_a_file_system_that_a_user_has_mounted_is_not_the_nodes(files: Files) -> None:
    options = "rw,user_id=1000,group_id=1000"
    files.node.mounts(*MOUNTS, *(("bindfs", f"/tmp/{name}", "fuse.bindfs", "rw", options) for name in ("mnt", *FORGED)))
    files.hung = {f"/tmp/{name}" for name in ("mnt", *FORGED)}
    assert files.looks() == {}


def test_a_mount_that_waits_to_be_asked_for_is_asked_for(files: Files) -> None:
    files.node.mounts(*MOUNTS[:5], ("systemd-1", "/fsx", "autofs", "rw,relatime", "rw,fd=54,direct"))
    files.hung = {"/fsx"}
    assert list(files.looks()) == [("mount_hangs", "/fsx")]


def test_a_file_system_under_maintenance_is_no_finding(files: Files) -> None:
    """AWS takes an FSx file system away for some minutes, and clients try again until it is back."""
    files.hung, files.broken = {"/fsx"}, {"/home": errno.EIO}
    assert files.look() == files.look(30) == files.look(storage.MAINTENANCE - 31) == {}
    assert list(files.look(1)) == [("mount_hangs", "/fsx"), ("mount_hangs", "/home")]
    assert {one["since"] for one in files.look(60).values()} == {NOW}
    files.hung, files.broken = set(), {}
    assert files.look() == {}
    files.hung = {"/fsx"}
    assert files.look() == {}


def test_a_local_disk_that_hangs_or_fails_is_found_at_once(files: Files) -> None:
    files.hung, files.broken = {"/scratch"}, {"/": errno.EIO}
    assert list(files.look()) == [("mount_hangs", "/scratch"), ("mount_hangs", "/")]


def test_a_mount_that_hangs_and_the_others_that_do_not(files: Files) -> None:
    files.hung = {"/home"}
    files.full["/scratch"] = (1000, 10, 1000, 900)
    found = files.looks()
    assert list(found) == [("mount_hangs", "/home"), ("filesystem_full", "/scratch")]
    assert found["mount_hangs", "/home"]["class"] == "reboot"
    assert found["mount_hangs", "/home"]["evidence"] == "/home (nfs4 10.0.0.10:/home): no answer within 0.3 s"
    files.hung = set()
    files.full = {}
    assert files.look() == {}


def test_all_mounts_that_hang_are_named(files: Files) -> None:
    files.hung = {"/home", "/fsx", "/opt/slurm"}
    assert {subject for _finding, subject in files.looks()} == files.hung


def test_a_child_that_cannot_be_ended_is_the_only_one(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that a dead Lustre holds within the kernel."""
    begun: list[int] = []
    fork = os.fork

    def counted() -> int:
        child = fork()
        begun.extend([child] if child else [])
        return child

    monkeypatch.setattr(os, "fork", counted)
    end = children._end
    monkeypatch.setattr(children, "_end", lambda them: them if them == begun[:1] else end(them))
    files.hung = {"/fsx"}
    try:
        assert files.look() == {}
        first, rest = begun[0], begun[1:]
        assert len(rest) == 5  # one for each mount after the one that hangs
        for _look in range(3):
            files.memory = dict(files.memory)
            found = files.look(600)
            said = f"no answer for {files.now - NOW:.0f} s (process {first})"
            assert found["mount_hangs", "/fsx"]["evidence"].endswith(said)
        assert len(begun) == 6 + 3  # each look asks the others, and no look asks the one that hangs
    finally:
        os.kill(begun[0], signal.SIGKILL)
        os.waitpid(begun[0], 0)
    files.hung = set()
    assert files.look() == {}
    assert files.memory["stuck"] == {}


def test_another_process_with_the_number_of_one_that_hung_does_not_count(files: Files) -> None:
    files.memory = {"stuck": {"/fsx": [os.getpid(), "1", NOW - 60]}}
    assert files.look() == {}


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (errno.EIO, True),
        (errno.ESTALE, True),
        (errno.ENOTCONN, True),
        (errno.EACCES, False),  # another user's, such as one of FUSE
        (errno.ENOENT, False),  # unmounted meanwhile
    ],
)
def test_a_file_system_that_answers_with_an_error(files: Files, error: int, found: bool) -> None:
    files.broken = {"/fsx": error}
    evidence = f"/fsx (lustre 10.0.1.20@tcp:/abcdefgh): {os.strerror(error)}"
    assert [one["evidence"] for one in files.looks().values()] == ([evidence] if found else [])


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((1000, 50, 1000, 900), "95.0 % of the space of /scratch (ext4 /dev/mapper/vg.01-lv_ephemeral) are used"),
        ((1000, 900, 1000, 20), "98.0 % of the inodes of /scratch (ext4 /dev/mapper/vg.01-lv_ephemeral) are used"),
        ((1000, 51, 1000, 60), ""),
        ((1000, 900, 0, 0), ""),  # btrfs counts no inodes
    ],
)
def test_a_local_disk_that_is_full(files: Files, numbers: tuple[int, int, int, int], words: str) -> None:
    files.full = {"/scratch": numbers, "/fsx": (1000, 0, 1000, 0)}  # which every node of the cluster would tell
    assert [one["evidence"] for one in files.look().values()] == ([words] if words else [])


# What systemd 255 and Docker mount in memory, and which of these are the node's.
MEMORY = {
    "/dev/shm": True, "/run": True, "/run/lock": True, "/tmp": True, "/run/user/1000": False,
    "/run/credentials/systemd-resolved.service": False, "/sys/fs/cgroup": False,
    "/var/lib/docker/containers/0a/mounts/shm": False,
    "/run/containerd/io.containerd.grpc.v1.cri/sandboxes/0a/shm": False,
}  # fmt: skip


def test_memory_that_is_full_stops_jobs(files: Files) -> None:
    files.node.mounts(*(("tmpfs", path, "tmpfs", "rw,nosuid", "rw,size=1000k") for path in MEMORY))
    files.full = dict.fromkeys(MEMORY, (1000, 0, 1000, 900))
    found = files.look()
    assert {path for _name, path in found} == {path for path, own in MEMORY.items() if own}
    assert found["filesystem_full", "/dev/shm"]["evidence"] == (
        "100.0 % of the space of /dev/shm (tmpfs tmpfs) are used"
    )
    # diagnose looks at the same ones.
    mounts = [{"path": path, "type": "tmpfs", "source": "tmpfs", "options": "rw"} for path in MEMORY]
    assert set(rooms.points(mounts)) == {path for _name, path in found}


@pytest.mark.parametrize("how", ["ro,stripe=16", "rw,stripe=16,emergency_ro"])
def test_a_disk_that_the_kernel_has_made_read_only_after_an_error(files: Files, how: str) -> None:
    """The mount is still to be written, and the file system is not (ext4: errors=remount-ro; Linux 6.18 says how)."""
    broken = ("/dev/nvme1n1", "/scratch", "ext4", "rw,noatime", how)
    wanted = ("/dev/nvme2n1", "/models", "ext4", "ro,noatime", "ro")
    files.node.mounts(*MOUNTS[:-1], broken, wanted)
    found = files.look()
    assert list(found) == [("filesystem_readonly", "/scratch")]
    assert found["filesystem_readonly", "/scratch"]["class"] == "reboot"


def test_mounts_that_cannot_be_read_are_told(files: Files) -> None:
    (files.node.root / "proc/1/mountinfo").unlink()
    look = Look(files.node.settings, {}, str(files.node.root))
    storage.check(look)
    assert look.skipped == {"mounts": "/proc/1/mountinfo cannot be read"}
