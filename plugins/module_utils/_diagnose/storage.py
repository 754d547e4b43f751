# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Finds file systems that hang, are missing or are full, and what the kernel says of them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose.evidence import (
    CAUSE,
    FAULT,
    Evidence,
    Finding,
    finding,
)
from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose.hardware import of_kernel

HANGS, FULL = "hanging-job", "full-fsx"
ROOMS = "mounts.json"  # where the answers of the file systems stand
_TIGHT = 0.95
# The kernel's words, with which a message begins: what of it is wrong, its gravity, what to do, and the page. Each has
# more than 15 letters of the kernel's own, because "%s[%d]: segfault at" begins with a name that a user has chosen.
_WORDS = (
    # linux, net/sunrpc/clnt.c, call_timeout()
    (
        r"nfs: server \S+ not responding",
        "nfs",
        "an NFS server does not answer",
        FAULT,
        "the head node's load, its nfs-server unit, and the security groups (port 2049)",
        HANGS,
    ),
    # lustre 2.15, lustre/ptlrpc/import.c, ptlrpc_connect_interpret() and ptlrpc_import_recovery_state_machine()
    (
        r"Lustre(?:Error)?: (?:[\da-f]+-[\da-f]+: )?\S+: "
        r"(?:This client was evicted by|Connection (?:to|restored to) \S+ (?:(?!Connection ).)*was lost)",
        "lustre",
        "the Lustre client lost its connection",
        FAULT,
        "lustre-imports in commands; the security groups (ports 988, 1018-1023); FSx' own events in its console",
        HANGS,
    ),
    # linux, kernel/hung_task.c, check_hung_task()
    (
        r"INFO: task .{1,40}:\d+ blocked for more than \d+ seconds",
        "hung-task",
        "processes wait for a device that does not answer",
        FAULT,
        "the next lines of the kernel's log name the file system or driver; a reboot ends it",
        HANGS,
    ),
    # linux, mm/oom_kill.c, __oom_kill_process()
    (
        r"(?:Out of memory|Memory cgroup out of memory): Killed process",
        "oom",
        "the kernel killed a process, because there was no memory left",
        FAULT,
        "the line names the process; give the job more memory (--mem), or fewer workers",
        "hanging-job",
    ),
    # linux, fs/ext4/super.c, __ext4_error(); block/blk-core.c, print_req_error(), blk_update_request() before 5.16;
    # fs/xfs/xfs_fsops.c, xfs_do_force_shutdown(), and what fs/xfs has of corruption
    (
        r"EXT4-fs error \(device |(?:blk_update_request: |print_req_error: )?I/O error, dev \S+, sector |"
        r"XFS \(\S+\): (?:Corrupt|Metadata |Log I/O |Internal error |Filesystem has been shut down|log I/O error|"
        r"metadata I/O error|Please un?mount the filesystem|xfs_do_force_shutdown)",
        "disk",
        "a disk of the node fails",
        CAUSE,
        "drain the node, so that ParallelCluster replaces it",
        "logs",
    ),
)


def hung(evidence: Evidence) -> Iterator[Finding]:
    """Find file systems that do not answer. Whatever touches one of them waits for ever."""
    for path, room in evidence.rooms.items():
        if room.get("dead"):
            said = f"{path} ({room.get('type') or 'unknown type'}) did not answer within {room.get('seconds', 0):g} s"
            todo = "look at who serves it (FSx, the head node's nfs-server, security groups); then umount -l, mount -a"
            yield finding(f"hung-mount-{path}", CAUSE, f"the mount {path} hangs", said, ROOMS, todo, HANGS)
        elif room.get("error"):
            said = f"{path} ({room.get('type') or 'unknown type'}): {room['error']}"
            todo = "umount -l, and mount -a"
            yield finding(f"broken-mount-{path}", CAUSE, f"the mount {path} is broken", said, ROOMS, todo, HANGS)


def missing(evidence: Evidence) -> Iterator[Finding]:
    """Find file systems of the cluster's configuration that are not mounted."""
    for path in (evidence.facts.get("mounts") or {}).get("missing") or []:
        if not (evidence.rooms.get(path) or {}).get("dead"):
            wanted = {one["path"]: one for one in evidence.facts["mounts"].get("wanted") or []}.get(path) or {}
            said = f"{path}: wanted {wanted.get('type')} {wanted.get('source') or ''}, not mounted"
            todo = "mount -a on the node, and its message; the security groups of the file system"
            yield finding(f"no-mount-{path}", CAUSE, f"{path} is not mounted", said, "facts.json", todo, HANGS)


def full(evidence: Evidence) -> Iterator[Finding]:
    """Find file systems without room, for bytes or for files."""
    for path, room in evidence.rooms.items():
        for what, all_, left in (("room", "total", "free"), ("inodes", "files", "files_free")):
            total, free = room.get(all_) or 0, room.get(left) or 0
            if total and free / total <= 1 - _TIGHT:
                unit = f"{free / 1e9:.1f} of {total / 1e9:.1f} GB" if what == "room" else f"{free} of {total} inodes"
                level = CAUSE if free / total <= 0.01 else FAULT
                todo, page = _room(path, str(room.get("type") or ""))
                said = f"{unit} are free in {path}"
                yield finding(f"full-{path}", level, f"{path} is full ({what})", said, ROOMS, todo, page)
                break


def _room(path: str, kind: str) -> tuple[str, str]:
    """Return how to make room in a file system, and the page about it."""
    if kind == "tmpfs":
        needs = "NCCL and containers need room there" if path in ("/dev/shm", "/run") else "it takes the node's memory"
        return f"{needs}: remove files of jobs that have ended (du -xa {path}), or reboot the node", HANGS
    if kind in ("ext4", "xfs", "btrfs", "overlay"):
        return "remove what is not needed, or enlarge the volume", "logs"
    return "remove what is not needed, or enlarge the file system", FULL


def kernel(evidence: Evidence) -> Iterator[Finding]:
    """Find what the kernel says of file systems, memory and disks, the last line of each."""
    found: dict[str, tuple[str, str, bool]] = {}
    for name, line, said in evidence.kernel():
        for pattern, kind, *_rest in _WORDS:
            if re.match(pattern, said.message) and (said.sure or not found.get(kind, ("", "", False))[2]):
                found[kind] = (name, line, said.sure)
    for _pattern, kind, what, level, todo, page in _WORDS:
        if kind in found:
            name, line, sure = found[kind]
            yield finding(f"kernel-{kind}", *of_kernel(level, what, sure), line, name, todo, page)


FINDERS = (hung, missing, full, kernel)
