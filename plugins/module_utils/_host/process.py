# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Processes as they are told from others: by the machine, by the process id, and by when they started."""

from __future__ import annotations

import functools
import os
import socket

from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import NotRun, run


@functools.cache
def machine_id() -> str:
    """Name this boot and this process namespace: process ids mean the same to everyone with the same answer."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as handle:
            boot = handle.read().strip()
    except OSError:
        boot = _output("sysctl", "-n", "kern.boottime")
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


def _output(*command: str) -> str:
    try:
        return run(command, 10).out.strip()
    except NotRun:
        return ""
