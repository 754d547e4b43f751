# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which Docker a node has, what runs in it, and so what has to be installed and whether it may be restarted."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import time
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils import _node_software, _systemd
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import NotRun, run

# Packages that bring dockerd, whoever made them.
ENGINES = ("docker-ce", "docker.io", "docker", "moby-engine")
PROGRAMS = ("/usr/bin/dockerd", "/usr/sbin/dockerd", "/usr/local/bin/dockerd")
PID_FILE = "/run/docker.pid"
SOCKET = "/run/docker.sock"
DPKG = "/var/lib/dpkg"
# What dpkg says of a package that it has not finished with.
_HALF = ("half-installed", "unpacked", "half-configured", "triggers-awaited", "triggers-pending")


class Packages(NamedTuple):
    """Installed packages with their versions, and those with which the package manager was interrupted."""

    installed: dict[str, str]
    half: list[str]


class Running(NamedTuple):
    """A running dockerd. What it does not tell is None."""

    started: float
    containers: int | None = None
    live_restore: bool = False
    root: str | None = None


class Wanted(NamedTuple):
    """What shall be installed, as the role's variables say."""

    manager: str = "apt"
    packages: tuple[str, ...] = ()
    versioned: tuple[str, ...] = ()
    version: str = ""
    fresh_version: str = ""
    upgrade: bool = False
    conflicts: tuple[str, ...] = ()


class Install(NamedTuple):
    """What has to be installed, and why. An empty version leaves it to the package manager."""

    due: bool
    why: str
    version: str = ""
    latest: bool = False
    replaces: bool = False  # whether a Docker that works is replaced
    in_the_way: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()  # in one version
    extra: tuple[str, ...] = ()  # along with them, in whichever


def _dpkg_packages(names: set[str]) -> Packages:
    """Read dpkg's records, and over them those that a dpkg which was killed has not filed yet."""
    found: dict[str, tuple[str, str]] = {}
    for path in (f"{DPKG}/status", *(f"{DPKG}/updates/{name}" for name in dpkg_unfiled())):
        try:
            with open(path, "rb") as stream:
                text = b"\n" + stream.read() + b"\n\n"
        except FileNotFoundError:
            continue
        for name in names:
            start = text.find(b"\nPackage: " + name.encode() + b"\n")
            stanza = text[start : text.find(b"\n\n", start + 1) + 1] if start >= 0 else b""
            state = re.search(rb"\nStatus: \S+ \S+ (\S+)\n", stanza)
            version = re.search(rb"\nVersion: *(\S+)", stanza)
            if state:
                found[name] = (state[1].decode(), _node_software.upstream(version[1].decode()) if version else "")
    installed = {name: version for name, (state, version) in found.items() if state == "installed"}
    return Packages(installed, sorted(name for name, (state, _version) in found.items() if state in _HALF))


def _output(argv: list[str]) -> str | None:
    try:
        return run(argv, 60).out
    except NotRun:
        return None


def packages(manager: str, names: set[str]) -> Packages:
    """Return which of some packages are installed, by apt's or dnf's own records."""
    if manager == "apt":
        return _dpkg_packages(names)
    return Packages(_node_software.rpm_versions(names, _output), [])


def dpkg_unfiled() -> list[str]:
    """Return the records that dpkg left when it was killed; apt does nothing until it has been told to go on."""
    try:
        return sorted(name for name in os.listdir(f"{DPKG}/updates") if name.isdigit())
    except OSError:
        return []


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
        found = json.loads(answer.read()) if answer.status == 200 else None
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return found if isinstance(found, dict) else None


def _start_of(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
        ticks = int(stream.read().rpartition(")")[2].split()[19])
    with open("/proc/uptime", encoding="ascii") as stream:
        uptime = float(stream.read().split()[0])
    return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")


def running() -> Running | None:
    """Return what runs, or None. Its socket is asked only when dockerd is there, or systemd would start it."""
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
    containers = int(info.get("ContainersRunning") or 0) + int(info.get("ContainersPaused") or 0)
    return Running(started, containers, bool(info.get("LiveRestoreEnabled")), info.get("DockerRootDir"))


def matches(installed: str, wanted: str) -> bool:
    """Tell whether a version is the wanted one, or begins with it: 29 and 29.7 are both 29.7.2."""
    return re.match(re.escape(wanted) + r"(?![0-9])", installed) is not None


def plan(wanted: Wanted, found: Packages, present: bool, runs: bool) -> Install:
    """Decide what has to be installed. What is there stays as it is, unless something else is asked for."""
    if not wanted.packages:
        return Install(False, "no packages are asked for")
    own = wanted.packages[0]
    engine = next((name for name in dict.fromkeys((own, *ENGINES)) if name in found.installed), None)
    missing = [name for name in wanted.packages if name not in found.installed]
    versioned = tuple(name for name in wanted.packages if name == own or name in wanted.versioned)
    in_the_way = tuple(f"{name} {found.installed[name]}" for name in wanted.conflicts if name in found.installed)
    fresh = wanted.version or wanted.fresh_version
    half = [name for name in found.half if name in wanted.packages]
    if half:
        why = f"the installation of {', '.join(half)} was interrupted"
        due = Install(True, why, wanted.version if engine else fresh)
    elif engine is None and present and (runs or wanted.manager == "apt"):
        # dpkg notes a package before it unpacks it, rpm only afterwards: there, a dockerd that no package owns and that
        # does not run may be what an interrupted installation left.
        return Install(False, "a Docker is there that no package brought; it is left as it is")
    elif engine is None:
        due = Install(True, "Docker is not installed", fresh)
    elif wanted.version and not matches(found.installed[engine], wanted.version):
        why = f"{engine} {found.installed[engine]} is installed, and docker_version is {wanted.version}"
        due = Install(True, why, wanted.version, replaces=True)
    elif wanted.upgrade and engine == own:
        due = Install(True, "docker_upgrade is true", fresh, latest=True, replaces=True)
    elif wanted.upgrade:
        due = Install(True, f"{engine} is installed, and docker_upgrade is true", fresh, replaces=True)
    elif engine == own and missing:
        due = Install(True, f"missing: {', '.join(missing)}")
    else:
        return Install(False, f"{engine} {found.installed[engine]} is installed")
    due = due._replace(in_the_way=in_the_way)
    if not due.replaces and not set(missing) & set(versioned):
        # Docker itself is there, and is not named, so that no other version comes in its place.
        return due._replace(version="", packages=tuple(missing))
    extra = tuple(name for name in wanted.packages if name not in versioned)
    return due._replace(packages=versioned, extra=extra)


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


def outdated(now: Running | None, files: list[str]) -> bool:
    """Tell whether one of the files that dockerd read when it started has changed since."""
    return now is not None and any(_systemd.changed_at(path) > now.started for path in files)
