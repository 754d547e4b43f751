# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Processes as they are told from others: by the machine, by the process id, and by when they started."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import socket
import time

from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import NotRun, run


def boot_id() -> str:
    """Return the kernel's name for this boot; empty where the kernel is not Linux."""
    return _first_line("/proc/sys/kernel/random/boot_id")


def boot_time() -> float:
    """Return the seconds since this boot, suspended ones too. Nobody can set this clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@functools.cache
def host_id() -> str:
    """Tell this host in all its boots from others; empty where it has no id. machine-id(5) is confidential itself."""
    found = _first_line("/etc/machine-id")
    if not re.fullmatch("[0-9a-f]{32}", found):
        return ""
    return hashlib.sha256(f"pcluster.postboot {found}".encode()).hexdigest()[:16]


@functools.cache
def machine_id() -> str:
    """Name this boot and this process namespace: process ids mean the same to everyone with the same answer."""
    boot = boot_id() or _output("sysctl", "-n", "kern.boottime")
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return f"{socket.gethostname()} {boot} {namespace}".strip()


def process_started(pid: int) -> str:
    """Say when a process started, in the kernel's own words; empty when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as handle:
            # The second field is the command in parentheses, which may itself hold spaces and parentheses.
            rest = handle.read().rpartition(")")[2].split()
        return "" if rest[0] in "ZX" else rest[19]
    except (OSError, IndexError):
        if os.path.exists("/proc/self/stat"):
            return ""
    return _output("ps", "-o", "lstart=", "-p", str(pid))  # not Linux


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as handle:
            return handle.readline().strip()
    except OSError:
        return ""


def _output(*command: str) -> str:
    try:
        return run(command, 10).out.strip()
    except NotRun:
        return ""
