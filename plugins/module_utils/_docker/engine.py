# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which Docker a node has, what runs in it, and so whether it may be restarted or replaced."""

from __future__ import annotations

import http.client
import os
import socket
import time
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._host import document
from ansible_collections.pcluster.postboot.plugins.module_utils._systemd import files

PROGRAMS = ("/usr/bin/dockerd", "/usr/sbin/dockerd", "/usr/local/bin/dockerd")
PID_FILE = "/run/docker.pid"
SOCKET = "/run/docker.sock"
_INFO = {"ContainersRunning": int, "ContainersPaused": int, "LiveRestoreEnabled": bool, "DockerRootDir": str}


class Running(NamedTuple):
    """A running dockerd. None is unknown."""

    started: float
    containers: int | None = None
    live_restore: bool = False
    root: str | None = None


def program() -> str | None:
    """Return where dockerd is."""
    return next((path for path in PROGRAMS if os.access(path, os.X_OK)), None)


class _Local(http.client.HTTPConnection):
    """HTTP through a socket in the file system."""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(SOCKET)


def _info() -> dict[str, Any] | None:
    connection = _Local("docker", timeout=10)
    try:
        connection.request("GET", "/info")
        answer = connection.getresponse()
        found = document.parse(answer.read()) if answer.status == 200 else None
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return document.fitted(found, _INFO) if isinstance(found, dict) else None


def _start_of(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
        ticks = int(stream.read().rpartition(")")[2].split()[19])
    with open("/proc/uptime", encoding="ascii") as stream:
        uptime = float(stream.read().split()[0])
    return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")


def running() -> Running | None:
    """Return the running dockerd, or None. The socket is asked only if dockerd runs, because systemd would start it."""
    try:
        with open(PID_FILE, encoding="ascii") as stream:
            pid = int(stream.read())
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as stream:
            if stream.read().strip() != "dockerd":
                return None
        started = _start_of(pid)
    except (OSError, ValueError, IndexError):
        return None
    info = _info()
    if info is None:
        return Running(started)
    containers = info.get("ContainersRunning", 0) + info.get("ContainersPaused", 0)
    root = info.get("DockerRootDir", "")
    return Running(started, containers, info.get("LiveRestoreEnabled", False), root if root.isprintable() else None)


def may_restart(policy: str, now: Running | None, live_restore: bool, root: str | None) -> str:
    """Return why Docker may not be restarted; empty when it may.

    `live_restore` and `root` are what daemon.json says, which holds after the restart.
    """
    if now is None or policy == "always":
        return ""
    if policy == "never":
        return "docker_restart is never"
    advice = "; set docker_restart to always, or run again when it idles"
    if now.containers is None:
        return "it does not answer on its socket, so what runs in it is not known" + advice
    if now.containers == 0:
        return ""
    running_now = f"{now.containers} container{'s run' if now.containers > 1 else ' runs'} in it"
    if not (now.live_restore and live_restore):
        return f"{running_now}, which would be stopped{advice}"
    if root and now.root and os.path.realpath(root) != os.path.realpath(now.root):
        return f"{running_now}, with data in {now.root}{advice}"
    return ""


def may_replace(policy: str, now: Running | None) -> str:
    """Return why a running Docker may not be replaced by another version, which restarts it; empty when it may."""
    # Live restore is meant for restarts of one version, so here it counts for nothing.
    return may_restart(policy, now, False, None)


def outdated(now: Running | None, paths: list[str]) -> bool:
    """Tell whether one of the files that dockerd read when it started has changed since."""
    return now is not None and any(files.changed_at(path) > now.started for path in paths)
