# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How much room the file systems of a node have, and which of them do not answer."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import time
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.pcluster.postboot.plugins.module_utils._node.storage import is_network

# Where a node's own data lie. File systems of a container or of one user are left out.
_LOCAL = ("btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs")
_SKIPPED = ("/var/lib/docker/", "/var/lib/containers/", "/run/", "/sys/", "/proc/", "/dev/", "/snap/")
# In memory: NCCL's and PyTorch's shared memory, and what containers and services need to start.
_MEMORY = ("/dev/shm", "/run/lock")
# Only root's own FUSE mounts belong to the node.
_OF_A_USER = re.compile(r"(?:^|,)user_id=[1-9]")
Room = dict[str, Any]


def points(mounts: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the mount points that are worth a look, and the type of what is seen there."""
    found = {}
    for mount in mounts:
        path, kind = mount["path"], mount["type"]
        if kind.startswith("fuse") and _OF_A_USER.search(mount["options"]):
            continue
        own = kind in _LOCAL and (path in _MEMORY or not path.startswith(_SKIPPED))
        if own or (is_network(kind) and kind != "autofs") or kind.startswith("fuse"):
            found[path] = kind
    return found


def ask(paths: Iterable[str], seconds: float) -> dict[str, Room]:
    """Return the room of each file system; what does not answer in time has no numbers, and `dead` is true.

    Each is asked by a child of its own, because a process that touches a dead file system may never come back, and may
    not even be killable: none is waited for beyond the time given.
    """
    children: dict[int, tuple[int, str]] = {}
    for path in paths:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            _answer(path, writer)
        os.close(writer)
        children[reader] = (child, path)
    found: dict[str, Room] = {path: {"dead": True} for _child, path in children.values()}
    deadline, waiting = time.monotonic() + seconds, set(children)
    while waiting:
        ready = select.select(list(waiting), [], [], max(0.0, deadline - time.monotonic()))[0]
        if not ready:
            break
        for reader in ready:
            # The answer is shorter than a pipe's buffer, so it comes as a whole.
            found[children[reader][1]] = json.loads(os.read(reader, 4096) or b'{"dead": false}')
            waiting.discard(reader)
    for reader, (child, _path) in children.items():
        os.close(reader)
        if reader in waiting:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, os.WNOHANG if reader in waiting else 0)
    return found


def _answer(path: str, writer: int) -> None:
    """Tell a file system's room to the parent, and end."""
    try:
        # A child that outlives this process must not hold its standard output open.
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.closerange(3, writer)
        os.closerange(writer + 1, 256)
        room: Room = {"dead": False}
        try:
            with contextlib.suppress(NotADirectoryError), os.scandir(path) as entries:
                next(entries, None)
            told = os.statvfs(path)
            room.update(
                total=told.f_blocks * told.f_frsize,
                free=told.f_bavail * told.f_frsize,
                files=told.f_files,
                files_free=told.f_favail,
            )
        except OSError as error:
            room["error"] = error.strerror or str(error)  # an answer, too
        os.write(writer, json.dumps(room).encode())
    finally:
        os._exit(0)
