# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One builder at a time on shared storage, and a fence before one that only believes to be it.

The lock is flock(2) on a file that stays, so a killed holder loses it. A holder can also lose it and live on, such as
one whose Lustre client was evicted. So whoever takes the lock writes a new token into it, makes a directory of its own
(.stage-<release>-<token>), and moves those of all others into it, before it looks at anything. Each change of a name
is a rename out of one's own directory or into it: it either happened before the next holder looked, or it fails,
since one of its ends is gone. No clock and no time-out has a part in this.

A root may be on a disk of the head node, which exports it by NFS. Clients turn flock(2) into a lock on all bytes of the
file at the server, which is a POSIX lock there, and on one machine those do not see flock(2), nor does flock(2) see
them (flock(2), "NFS details"). So a node that has the root on a disk takes both. Its second lock is one of an open file
description (fcntl(2)): that conflicts with POSIX locks, and no other close in this process drops it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import random
import secrets
import shutil
import struct
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._host import document, files, lock
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._node import storage

LOCK, CURRENT = ".lock", "current"
STAGE, BROKEN = ".stage-", ".broken-"
MOUNTS = "/proc/self/mounts"
SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 1.0  # between two tries to take the lock
LONGEST_LOOK, JITTER = 15.0, 0.3  # between two looks whether somebody has it, which a thousand nodes may take
SWEEPS = 10
_NO_FLOCK = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK}
_FULL = {errno.ENOSPC, errno.EDQUOT}
_GONE = {errno.EIO, errno.ESTALE, errno.ENOENT, errno.ENOTCONN, errno.ESHUTDOWN, errno.ENODEV}
STORAGE_ERRORS = (*sorted(_FULL), errno.EROFS, errno.EIO, errno.ESTALE, errno.ESHUTDOWN)


class LostError(Problem):
    """The lock belongs to another by now, or did so in between."""


class Holder(NamedTuple):
    """Who holds a lock, or held it last."""

    node: str = "another node"
    pid: int = 0
    token: str = ""
    since: str = ""

    def __str__(self) -> str:
        return f"{self.node} (pid {self.pid})" if self.pid else self.node


def node_name() -> str:
    """Return the name of this node."""
    return os.uname().nodename


def explain(root: str, error: OSError) -> str:
    """Return the storage's error, and what to do."""
    where, said = str(error.filename or root), os.strerror(error.errno) if error.errno else str(error)
    if not f"{where}/".startswith(root.rstrip("/") + "/"):
        return f"{where}: {said}"
    if error.errno in _FULL:
        return f"{root} is full ({said}); needed is room for one more release: remove what is not used, and run again"
    if error.errno == errno.EROFS:
        return f"{root} is read-only on this node; needed is a file system that the builder may write to"
    if error.errno in _GONE:
        return f"{root} is not there, or not any more ({where}: {said}); needed is the shared file system: mount it"
    return f"{where}: {said}"


def prepare(root: str) -> None:
    """Make the root; what it lies in has to be there, or a mount that is missing would be hidden by it."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(root, 0o755)
    if not os.path.isdir(root):
        raise Problem(f"{root} is not a directory; needed is one: move away what is there")


def pointed_at(root: str, link: str = CURRENT) -> str:
    """Return what a link names; nothing where there is none."""
    path = os.path.join(root, link)
    try:
        return os.readlink(path)
    except FileNotFoundError:
        return ""
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        found = "directory" if os.path.isdir(path) else "file"
        raise Problem(f"{path} is a {found}; needed is a symbolic link: move it away") from error


def links_in(root: str) -> list[str]:
    """Return `current` and what is called like it."""
    found = [name for name in os.listdir(root) if name == CURRENT or name.startswith(f"{CURRENT}-")]
    return [name for name in found if os.path.islink(os.path.join(root, name))]


def set_aside_in(root: str) -> list[str]:
    """Return the directories that were set aside, because they were no whole releases."""
    return sorted(name for name in os.listdir(root) if name.startswith(BROKEN))


# --- the lock --------------------------------------------------------------------------------------------------------


def read_holder(root: str) -> Holder:
    """Return who has written the lock file last; a stranger where it can not be read."""
    with open(os.path.join(root, LOCK), "rb") as stream:
        return _holder(stream.read(4096))


def _holder(text: bytes) -> Holder:
    try:
        told = document.parse(text.decode(errors="replace"))
        return Holder(str(told["node"]), int(told["pid"]), str(told["token"]), str(told["since"]))
    except (ValueError, KeyError, TypeError):
        return Holder()


def _mounted(path: str) -> tuple[str, str, list[str]]:
    """Return the mount point of a real path's file system, its type, and its options."""
    best = {"path": "", "type": "", "options": ""}
    for mount in storage.mounts(MOUNTS):
        if storage.lies_on(path, mount["path"]) and len(mount["path"]) >= len(best["path"]):
            best = mount
    return best["path"], best["type"], best["options"].split(",")


def require_flock(root: str) -> None:
    """Refuse a file system on which a lock would hold on this node alone."""
    where, kind, options = _mounted(os.path.realpath(root))
    alone = f"so that a lock in {root} holds on one node alone; needed is"
    if kind == "lustre" and "localflock" in options:
        raise Problem(
            f"{where} is mounted with localflock, {alone} the mount option flock, with which ParallelCluster mounts "
            "Lustre: mount it anew"
        )
    local = {"local_lock=flock", "local_lock=all"}.intersection(options)
    if kind in ("nfs", "nfs4") and local:
        raise Problem(
            f"{where} is mounted with {local.pop()}, {alone} a mount without local_lock and nolock: mount it anew"
        )


def _seen_by_clients(descriptor: int, how: int) -> bool:
    """Try once to take a lock that NFS clients see, where this node may be their server; False if one holds it."""
    # The kernel tells the path, so that a thousand nodes that look ask the file system for no more than the lock.
    if storage.is_network(_mounted(os.readlink(f"/proc/self/fd/{descriptor}"))[1]):
        return True
    kind = fcntl.F_WRLCK if how == fcntl.LOCK_EX else fcntl.F_RDLCK
    try:
        # struct flock: the type, from where, the first byte, how many (0 is all), no process.
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack("hhqqi", kind, os.SEEK_SET, 0, 0, 0))
    except (BlockingIOError, PermissionError):
        return False
    return True


def _flock(root: str, descriptor: int, how: int) -> bool:
    """Try once; False when another holds it. Closing the descriptor lets go of all of it."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_FLOCK:
            raise
        raise Problem(
            f"{root} has no locks between nodes ({os.strerror(error.errno or 0)}); needed is the mount option flock, "
            "with which ParallelCluster mounts Lustre: mount it anew"
        ) from error
    return _seen_by_clients(descriptor, how)


def holder_now(root: str) -> Holder | None:
    """Return who holds the lock at this moment, without touching it."""
    try:
        descriptor = os.open(os.path.join(root, LOCK), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return None if _flock(root, descriptor, fcntl.LOCK_SH) else _holder(os.pread(descriptor, 4096, 0))
    finally:
        os.close(descriptor)


def pauses(longest: float) -> Iterator[float]:
    """Yield how long to wait before each further look, so that not all nodes look at the same moments."""
    pause = SHORTEST_PAUSE
    while True:
        yield pause * random.uniform(1 - JITTER, 1 + JITTER)
        pause = min(pause * 1.5, longest)


def watch(root: str, seconds: float) -> tuple[Holder | None, bool]:
    """Wait while anybody holds the lock; return who still does, or who did at first, and which of the two it is."""
    until = time.monotonic() + seconds
    pause = pauses(LONGEST_LOOK)
    first: Holder | None = None
    while True:
        holder = holder_now(root)
        if holder is None:
            return first, False
        if time.monotonic() >= until:
            return holder, True
        first = first or holder
        lock.heartbeat()
        time.sleep(min(next(pause), max(until - time.monotonic(), 0)))


def _open_locked(root: str) -> int | None:
    path = os.path.join(root, LOCK)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if _flock(root, descriptor, fcntl.LOCK_EX):
            # A file that was replaced meanwhile is nobody's lock any more.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def take(root: str, release: str, seconds: float) -> tuple[Held, str]:
    """Wait for the lock and take it; return it, and its former holder."""
    require_flock(root)
    until = time.monotonic() + seconds
    waited = ""
    for number, pause in enumerate(pauses(LONGEST_PAUSE)):
        descriptor = _open_locked(root)
        if descriptor is not None:
            return Held(root, release, descriptor), waited
        holder = Holder()
        with contextlib.suppress(FileNotFoundError):
            holder = read_holder(root)
        if number:  # a single refusal may be one that only looked
            waited = waited or str(holder)
        if time.monotonic() >= until:
            break
        lock.heartbeat()
        time.sleep(pause)
    raise held_too_long(root, holder, seconds)


def held_too_long(root: str, holder: Holder, seconds: float) -> Problem:
    """Return the error that names the lock's holder."""
    since = f" since {holder.since}" if holder.since else ""
    return Problem(
        f"{os.path.join(root, LOCK)} is held by {holder}{since}, and this node has waited {seconds:g} s; needed is "
        "that its build ends: look there, or raise wait"
    )


def tidy(root: str, release: str) -> list[str]:
    """Remove what a killed holder has left, unless somebody works here; return what is to be looked at."""
    # Nothing but room is at stake, so no storage that refuses it is worth a failure.
    with contextlib.suppress(OSError, Problem):
        if any(name.startswith(STAGE) for name in os.listdir(root)):
            descriptor = _open_locked(root)
            if descriptor is not None:
                with Held(root, release, descriptor) as held:
                    return held.kept
    return []


# --- what its holder may do ------------------------------------------------------------------------------------------


class Held:
    """A lock that is held, with the directory through which each change of a name goes."""

    def __init__(self, root: str, release: str, descriptor: int) -> None:
        self.root, self._release, self._descriptor = root, release, descriptor
        self.token = secrets.token_hex(8)
        self.own = os.path.join(root, f"{STAGE}{release}-{self.token}")
        self.kept: list[str] = []  # what a killed holder was about to set aside
        try:
            self._write_token()
            self._sweep()
        except BaseException:
            self.close()
            raise

    def _write_token(self) -> None:
        told = {"node": node_name(), "pid": os.getpid(), "token": self.token, "since": lock.utc(time.time())}
        text = (json.dumps(told) + "\n").encode()
        os.pwrite(self._descriptor, text, 0)
        os.ftruncate(self._descriptor, len(text))
        os.fsync(self._descriptor)  # NFS shows it to others only then

    def _sweep(self) -> None:
        """Move the directories of all others here, so that they lose what they are at, and remove them."""
        for attempt in range(SWEEPS):  # one that loses the lock just now may still move this one: then anew
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.own, 0o755)
            self.verify()  # after mkdir: where a later holder did not see this directory, its token is seen here
            found = {name for name in os.listdir(self.root) if name.startswith(STAGE)}
            others = sorted(found - {os.path.basename(self.own)})
            if found and not others:
                break
            for number, name in enumerate(others):
                with contextlib.suppress(FileNotFoundError):  # it ended meanwhile
                    os.rename(os.path.join(self.root, name), os.path.join(self.own, f"old-{attempt}-{number}"))
        for top, folders, _files in os.walk(self.own):
            for name in [folder for folder in folders if folder.startswith(BROKEN)]:
                folders.remove(name)
                os.rename(os.path.join(top, name), os.path.join(self.root, name))
                self.kept.append(name)
        for name in os.listdir(self.own):
            shutil.rmtree(os.path.join(self.own, name), ignore_errors=True)

    def verify(self) -> None:
        """Raise if the lock is another's by now."""
        holder = read_holder(self.root)
        if holder.token != self.token:
            raise LostError(
                f"the lock of {self.root} went to {holder} while this node worked on {self._release}; what is "
                "published was not touched: run again"
            )

    def _rename(self, source: str, target: str) -> None:
        self.verify()
        try:
            os.rename(source, target)
        except FileNotFoundError as error:
            self.verify()
            raise OSError(error.errno, error.strerror, source) from error
        files.sync(self.root)

    def publish(self, tree: str, name: str) -> None:
        """Give a tree of the own directory its final name, which must be free."""
        try:
            self._rename(tree, os.path.join(self.root, name))
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            raise LostError(
                f"{os.path.join(self.root, name)} is there by now, made by another; it was not touched: run again"
            ) from error

    def point(self, name: str, link: str = CURRENT) -> None:
        """Let `current`, or a link like it, name a release."""
        made = os.path.join(self.own, link)
        self.verify()
        os.symlink(name, made)
        self._rename(made, os.path.join(self.root, link))

    def set_aside(self, name: str) -> str:
        """Rename a directory that is no whole release; return its new name."""
        aside = f"{BROKEN}{name}-{self.token}"
        self._rename(os.path.join(self.root, name), os.path.join(self.own, aside))
        self._rename(os.path.join(self.own, aside), os.path.join(self.root, aside))
        return aside

    def remove(self, name: str) -> None:
        """Remove a release, or what was set aside; under its name it is there whole or not at all."""
        here = os.path.join(self.own, f"pruned-{name}")
        self._rename(os.path.join(self.root, name), here)
        shutil.rmtree(here, ignore_errors=True)  # what is left goes with the directory

    def close(self) -> None:
        """Remove the own directory where that is possible, and let the others go on."""
        shutil.rmtree(self.own, ignore_errors=True)
        os.close(self._descriptor)

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_raised: Any) -> None:
        self.close()
