# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Lets the programs of a node find the NCCL that its cluster shares.

A login shell sources a file, and hands on what that sets. What no login shell has started finds the library through
the cache of the dynamic linker, and its settings through NCCL's own /etc/nccl.conf. A container gets both by a hook.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils import _validated_files as validated
from ansible_collections.pcluster.postboot.plugins.module_utils._host import files as host_files
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import NotRun, run
from ansible_collections.pcluster.postboot.plugins.module_utils._nccl import ofi_plugin

ETC = "/etc"
# The linker takes the first directory that has a library, and these files in their order: before the one with which the
# EFA installer names its own plugin, as another plugin is published only where that one is too old.
LINKER = "ld.so.conf.d/00-pcluster-postboot-nccl.conf"
CONF, PROFILE, HOOK = "nccl.conf", "profile.d/nccl-shared.sh", "enroot/hooks.d/70-nccl-shared.sh"
LIBRARY = "libnccl.so.2"
LONGEST = 1023  # bytes of a name or a value that NCCL reads
TIMEOUT = 60
_BEGIN, _END = "# BEGIN pcluster.postboot", "# END pcluster.postboot"
_KIND = re.compile(r"(?<=/current)-[^/]+")
_HEAD = "# Written by pcluster.postboot.nccl."
_ASK = (
    "import ctypes, sys; found = ctypes.c_int(); "
    "print(ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(found)) or found.value)"
)


class Request(NamedTuple):
    """The module's options."""

    home: str
    profile: str
    version: str = ""
    plugins: tuple[str, ...] = ()
    installed: str = ""
    environment: Mapping[str, Any] = {}
    hook: str = ""
    links: Mapping[str, str] = {}
    check: bool = False


class Outcome(NamedTuple):
    """What was done, or in check mode would be."""

    changed: bool
    diff: list[dict[str, str]]
    library: str
    kept: list[str]


# --- /etc/nccl.conf --------------------------------------------------------------------------------------------------


def _refuse_unreadable(environment: Mapping[str, str]) -> None:
    """Refuse names and values that NCCL would read differently."""
    for name, value in environment.items():
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise Problem(f"nccl_environment has {name!r}; needed is the name of a variable, such as NCCL_DEBUG")
        if "\n" in value or len(value.encode()) > LONGEST:
            told = f"{value[:40]!r}{'…' if len(value) > 40 else ''}"
            raise Problem(f"nccl_environment[{name}] is {told}; needed is one line of {LONGEST} bytes at most")


def settings(text: str, environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return NCCL's configuration with our settings at its end, and the names that it sets already.

    NCCL takes the first line that sets a name. Where a person has set one, ours would only mislead.
    """
    lines, inside = [], False
    for line in text.splitlines(keepends=True):
        inside = inside or line.startswith(_BEGIN)
        if not inside:
            lines.append(line)
        inside = inside and not line.startswith(_END)
    theirs = {line.split("=", 1)[0] for line in lines if "=" in line and not line.startswith("#")}
    ours = [f"{name}={value}\n" for name, value in environment.items() if name not in theirs]
    if ours:
        if lines and not lines[-1].endswith("\n"):
            lines[-1] += "\n"
        lines += [f"{_BEGIN}: nccl_environment\n", *ours, f"{_END}\n"]
    return "".join(lines), [name for name in environment if name in theirs]


# --- the dynamic linker ----------------------------------------------------------------------------------------------


def directories(request: Request) -> list[str]:
    """Return where the linker has to look: NCCL's own directory, and the first of the plugins' that is there.

    One that is not under its usual name may be of a cluster with another C library, and so has to load here.
    A plugin that is not newer than the one that is installed stays behind: the cluster's may be left from older nodes.
    """
    own = ofi_plugin.library_in(request.installed) if request.installed else ""
    least = ofi_plugin.version_of(own) if own else ""
    plugins = [path for path in request.plugins if os.path.isdir(path)]
    plugins = [
        p for p in plugins if p == request.plugins[0] or not ofi_plugin.refusal(os.path.join(p, ofi_plugin.LIBRARY))
    ]
    if least:
        plugins = [
            p for p in plugins if ofi_plugin.older(least, ofi_plugin.version_of(os.path.join(p, ofi_plugin.LIBRARY)))
        ]
    return [os.path.join(request.home, "lib"), *plugins[:1]]


def _libraries(folders: list[str]) -> dict[str, str]:
    """Return the wanted file of each library's name."""
    found: dict[str, str] = {}
    for folder in folders:
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
            if name == LIBRARY or re.fullmatch(r"libnccl-\w+\.so", name):
                found.setdefault(name, os.path.join(folder, name))
    return found


def _ldconfig(argument: str) -> str:
    program = shutil.which("ldconfig", path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]))
    if program is None:
        raise Problem("ldconfig is not in /sbin, /usr/sbin or PATH; needed is the one of the C library")
    folders = os.path.join(ETC, os.path.dirname(LINKER))
    return run(
        [program, argument], TIMEOUT, hint=f"needed: an answer of each file system with a folder that {folders} names"
    ).output()


def _strays(wanted: Mapping[str, str]) -> list[str]:
    """Return the libraries for which the linker's cache has another file first, and NCCL itself where it has none."""
    cached: dict[str, str] = {}
    for line in _ldconfig("-p").splitlines():
        name, arrow, path = line.partition(" => ")
        if arrow:
            cached.setdefault(name.split()[0], path.strip())
    # Under which of its names a plugin is cached depends on how it was built.
    return [
        f"{name} leads to {cached.get(name, 'nothing')}"
        for name, path in wanted.items()
        if cached.get(name, path if name != LIBRARY else "") != path
    ]


def _loaded_version() -> str:
    """Return the version of the NCCL that a program without any settings loads."""
    try:
        # Without LD_LIBRARY_PATH and LD_PRELOAD of this process.
        said = run([sys.executable, "-I", "-c", _ASK, LIBRARY], TIMEOUT, only=True)
    except NotRun as error:
        raise Problem(f"{LIBRARY} did not load within {TIMEOUT} s; look at the shared file system") from error
    if said.code:
        raise Problem(f"{LIBRARY} does not load on this node: {said.reason}")
    number = int(said.out)
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


# --- well-known paths ------------------------------------------------------------------------------------------------


def _missing_links(links: Mapping[str, str]) -> dict[str, str]:
    """Return the links that are to be made. What an image or a person has put at a path stays.

    A link that leads to the same for another CUDA is an earlier one of ours. It stays until its new target is there.
    """
    due = {}
    for path, target in links.items():
        there = os.readlink(path) if os.path.islink(path) else ""
        free = not os.path.lexists(path) or _KIND.sub("", there) == _KIND.sub("", target)
        lost = os.path.exists(path) and not os.path.exists(target)
        if there != target and free and not lost and not _is_file(os.path.dirname(path)):
            due[path] = target
    return due


def _is_file(folder: str) -> bool:
    return os.path.lexists(folder) and not os.path.isdir(folder)


def _make_links(links: Mapping[str, str]) -> None:
    for path, target in links.items():
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        fresh = f"{path}.{os.getpid()}"
        os.symlink(target, fresh)
        os.replace(fresh, path)


# --- all of it -------------------------------------------------------------------------------------------------------


def _files(request: Request) -> tuple[validated.Request, list[str]]:
    conf = host_files.read(os.path.join(ETC, CONF)) or ""
    told, kept = settings(conf, request.environment)
    linker = "".join(f"{path}\n" for path in (_HEAD, *directories(request)))
    files = [validated.Wanted(LINKER, linker), validated.Wanted(PROFILE, request.profile)]
    purge = [HOOK]
    if told:
        files.append(validated.Wanted(CONF, told, source="nccl_environment"))
    elif conf:
        purge.append(CONF)  # nothing but ours was in it
    if request.hook:
        files.append(validated.Wanted(HOOK, request.hook, mode="0755"))
    return validated.Request(ETC, tuple(files), purge=tuple(purge), check=request.check), kept


def _require_library(request: Request) -> None:
    path = os.path.join(request.home, "lib", LIBRARY)
    if not os.path.exists(path):
        raise Problem(f"{path} is not there; needed is the NCCL that the node which builds publishes: run there first")


def _refresh(wanted: Mapping[str, str]) -> None:
    """Rebuild the linker's cache, without links (-X), because the directories belong to the whole cluster."""
    _ldconfig("-X")
    strays = _strays(wanted)
    if strays:
        raise Problem(
            f"after ldconfig, {' and '.join(strays)}; needed is {' and '.join(wanted.values())}: look for what comes "
            f"before {os.path.join(ETC, LINKER)}"
        )


def apply(request: Request) -> Outcome:
    request = request._replace(environment={str(name): str(value) for name, value in request.environment.items()})
    _refuse_unreadable(request.environment)
    if not request.check:
        _require_library(request)
    wanted, kept = _files(request)
    files = validated.apply(wanted)
    libraries = _libraries(directories(request))
    strays = _strays(libraries)
    links = _missing_links(request.links)
    diff = [*files.diff, *({"prepared": f"ld.so.cache: {stray}\n"} for stray in strays)]
    diff += [{"prepared": f"{path} -> {target}\n"} for path, target in links.items()]
    if request.check:
        return Outcome(bool(diff), diff, "", kept)
    if strays or LINKER in files.written:
        _refresh(libraries)
    _make_links(links)
    library = _loaded_version()
    if request.version and library != request.version:
        raise Problem(
            f"programs of this node load NCCL {library} from {request.home}, and nccl_version is {request.version}; "
            "needed is one nccl_version for all nodes of the cluster"
        )
    return Outcome(bool(diff), diff, library, kept)
