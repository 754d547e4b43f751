# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which process and which unit hold the port of an address."""

from __future__ import annotations

import os
import socket
import urllib.parse


def _port(url: str) -> int:
    return urllib.parse.urlsplit(url).port or 80


def answers(address: str) -> bool:
    """Tell whether somebody takes connections at an address such as 127.0.0.1:5555."""
    host, _colon, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1):
            return True
    except OSError:
        return False


def _listening(process: str, port: int) -> set[str]:
    """Return the sockets that listen on a port in a process' network, as its open files name them."""
    found = set()
    for table in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{process}/net/{table}", encoding="ascii") as lines:
                fields = [line.split() for line in lines]
        except FileNotFoundError:  # a kernel without IPv6
            continue
        # local address, state (0A listens) and inode
        found |= {f"socket:[{f[9]}]" for f in fields if f[1].endswith(f":{port:04X}") and f[3] == "0A"}
    return found


def _has_open(process: str, files: set[str]) -> bool:
    folder = f"/proc/{process}/fd"
    try:
        numbers = os.listdir(folder)
    except OSError:
        return False
    for number in numbers:
        try:
            if os.readlink(f"{folder}/{number}") in files:
                return True
        except OSError:  # it was closed in the meantime
            continue
    return False


def listens(process: str, url: str) -> bool:
    """Tell whether a process itself holds the port of an address, so that no other can be the one that answers."""
    try:
        return _has_open(process, _listening(process, _port(url)))
    except (OSError, ValueError):
        return False


def _unit_of(process: str) -> str:
    """Return the unit whose control group a process is in; nothing where that is no unit's."""
    try:
        with open(f"/proc/{process}/cgroup", encoding="utf-8", errors="replace") as lines:
            path = lines.read().rstrip().rpartition(":")[2]
    except OSError:
        return ""
    units = [part for part in path.split("/") if part.endswith((".service", ".scope"))]
    return units[0] if units else ""


def stranger(name: str, url: str | None) -> str:
    """Return which process of no or another unit holds the port of an address, for a message; nothing if none does."""
    try:
        port = _port(url or "")
        listening = _listening("self", port) if url else set()
        holders = [each for each in os.listdir("/proc") if each.isdigit() and listening and _has_open(each, listening)]
        if not holders or any(_unit_of(each) == name for each in holders):
            return ""
        holder = min(holders, key=int)  # a server is older than the processes that share its socket
        with open(f"/proc/{holder}/comm", encoding="utf-8", errors="replace") as stream:
            program = stream.read().strip()
    except (OSError, ValueError):
        return ""
    unit = _unit_of(holder)
    whose = f" of {unit}" if unit.endswith(".service") else ""
    return (
        f"port {port} is held by {program} (pid {holder}{whose}), not by {name}: "
        "stop it, or give the component another address"
    )
