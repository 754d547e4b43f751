# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""File systems: does each answer, is a local one full or one in memory, has the kernel made one read-only.

A line of mountinfo has the options of the mount in its sixth field and, after a dash, the type, the source and the
options of the file system itself (Linux, Documentation/filesystems/proc.rst, 3.5). A file system that the kernel made
read-only after an error has "ro" at the end and still "rw" in the sixth field; one that was mounted so has both.
"""

from __future__ import annotations

import errno
import os
import re
from typing import NamedTuple

from . import children
from .look import Look

MOUNTS = "/proc/1/mountinfo"
LOCAL = ("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs")
# In memory: NCCL's and PyTorch's shared memory is in /dev/shm, and containers and services need room in /run. Others
# below these folders are of a container or of one user.
MEMORY = "tmpfs"
MEMORY_BELOW = ("/dev/shm", "/run/lock")
MEMORY_SKIPPED = ("/var/lib/docker/", "/var/lib/containers/", "/run/", "/sys/", "/proc/", "/dev/", "/snap/")
# Inside a container, and on images that are laid over one another, the root is no disk itself.
ROOT = (*LOCAL, "overlay")
# AWS takes an FSx file system away for some minutes when it is maintained, and its clients try again until it is back
# (FSx for Lustre User Guide, "Amazon FSx for Lustre maintenance windows"). So many seconds long a file system of the
# network has to be away before that is a fault of the node.
MAINTENANCE = 600.0
# What a file system that does not work answers. Any other error is one of rights, or of a mount that has just gone.
BROKEN = (errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ESHUTDOWN, errno.EHOSTDOWN, errno.ENXIO, errno.ENODEV)


class Mount(NamedTuple):
    path: str
    kind: str
    source: str
    device: str
    broken: bool  # the kernel has made it read-only
    user: str = "0"  # who has mounted it, where it is one of FUSE


def _plain(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field) if "\\" in field else field


def mounts(text: str) -> list[Mount]:
    """Return the mounts of a mountinfo; where several lie on one path, the last of them, which is seen."""
    found: dict[str, Mount] = {}
    # A user may mount by FUSE at any path, and the kernel escapes no other blank and no other end of a line than these.
    for line in text.split("\n"):
        mount, dash, system = line.partition(" - ")
        fields, rest = mount.split(" "), system.split(" ")
        if dash and len(fields) >= 6 and len(rest) >= 3:
            options = rest[2].split(",")
            broken = "rw" in fields[5].split(",") and ("ro" in options or "emergency_ro" in options)
            path = _plain(fields[4])
            found.pop(path, None)
            user = next((word[8:] for word in options if word.startswith("user_id=")), "0")
            found[path] = Mount(path, rest[0], _plain(rest[1]), fields[2], broken, user)
    return list(found.values())


def _memory(mount: Mount) -> bool:
    """Tell whether a mount is a file system in memory that belongs to the node: /dev/shm, /run, or such as /tmp."""
    return mount.kind == MEMORY and (mount.path in MEMORY_BELOW or not mount.path.startswith(MEMORY_SKIPPED))


def judged(look: Look, found: list[Mount]) -> list[Mount]:
    """Return the mounts to look at: of the network, of local disks, and in memory, each file system once."""
    network, wanted = set(look.settings["network_types"]), set(look.settings["mounts"])
    chosen: dict[str, Mount] = {}
    for mount in sorted(found, key=lambda mount: (mount.path not in wanted, len(mount.path))):
        fuse = mount.kind == "fuse" or mount.kind.startswith("fuse.")
        far = mount.kind in network or (fuse and mount.user == "0")
        if far or mount.kind in (ROOT if mount.path == "/" else LOCAL) or _memory(mount):
            chosen.setdefault(mount.device, mount)
    # A file system that is mounted when somebody asks for it has only an autofs there.
    automatic = [mount for mount in found if mount.kind == "autofs" and mount.path in wanted]
    return [*chosen.values(), *automatic]


def check(look: Look) -> None:
    text = look.text(MOUNTS)
    if not text:
        look.skip("mounts", f"{MOUNTS} cannot be read")
        return
    chosen = {mount.path: mount for mount in judged(look, mounts(text))}

    def state(path: str) -> str:
        try:
            seen = os.statvfs(look.root + path)
        except OSError as error:
            return f"error {error.errno} {error.strerror}"
        used, inodes = seen.f_blocks - seen.f_bfree, seen.f_files - seen.f_ffree
        return f"{used} {used + seen.f_bavail} {inodes} {seen.f_files}"

    answers, hangs = children.ask(look, list(chosen), state)
    for path, why in hangs.items():
        _hangs(look, chosen[path], why)
    for path, said in answers.items():
        mount, words = chosen[path], said.split(" ", 2)
        if words[0] == "error":
            if int(words[1]) in BROKEN:
                _hangs(look, mount, words[2])
            continue
        if mount.kind in (*ROOT, MEMORY):
            _local(look, mount, [int(word) for word in said.split()])


def _hangs(look: Look, mount: Mount, why: str) -> None:
    hold = 0 if mount.kind in (*ROOT, MEMORY) else MAINTENANCE
    look.find("mount_hangs", f"{mount.path} ({mount.kind} {mount.source}): {why}", mount.path, hold=hold)


def _local(look: Look, mount: Mount, numbers: list[int]) -> None:
    if mount.broken:
        look.find("filesystem_readonly", f"{mount.path} ({mount.kind} {mount.source}) has become read-only", mount.path)
    for what, (part, whole) in (("space", numbers[:2]), ("inodes", numbers[2:])):
        share = 100 * part / whole if whole else 0
        if share >= look.settings["disk_full"]:
            said = f"{share:.1f} % of the {what} of {mount.path} ({mount.kind} {mount.source}) are used"
            look.find("filesystem_full", said, mount.path)
