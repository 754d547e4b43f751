# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Finds the plugin with which NCCL uses EFA on a node: the one of the EFA installer, or the cluster's own."""

from __future__ import annotations

import mmap
import os
import re
import sys
from typing import NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import NotRun, run

LIBRARY = "libnccl-net.so"
TIMEOUT = 60
# The plugin has this log message, with its version, in its file.
_VERSION = re.compile(rb"Initializing aws-ofi-nccl ([0-9][\w.+~-]*)")
_WITHOUT = "aws_ofi_nccl_enabled: false, with which NCCL uses sockets"
_LOAD = "import ctypes, os, sys; ctypes.CDLL(sys.argv[1], mode=os.RTLD_NOW)"


class Request(NamedTuple):
    """The module's options."""

    minimum: str
    published: str
    former: str = ""
    bundled: str = "/opt/amazon/ofi-nccl"
    build: str = "auto"
    builder: bool = False
    buildable: bool = True
    lacks: str = ""
    libraries: tuple[str, ...] = ()


class Outcome(NamedTuple):
    """The module's result."""

    needed: bool
    why: str
    origin: str
    directory: str
    version: str
    summary: str
    warnings: list[str]
    waits_for: str = ""


def library_in(home: str) -> str:
    """Return the path of the plugin below a directory, where deb, rpm or a build puts it; empty for none."""
    for within in ("lib", "lib64", f"lib/{os.uname().machine}-linux-gnu"):
        path = os.path.join(home, within, LIBRARY)
        if os.path.isfile(path):
            return path
    return ""


def version_of(library: str) -> str:
    """Return the version in a plugin's file; empty for none."""
    try:
        with open(library, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            found = _VERSION.search(content)
            return found[1].decode("ascii") if found else ""
    except (OSError, ValueError):  # an empty file can not be mapped
        return ""


def refusal(library: str, libraries: tuple[str, ...] = ()) -> str:
    """Return why a process cannot load a library, with these folders in LD_LIBRARY_PATH; empty if it can."""
    folders = ":".join(folder for folder in (os.environ.get("LD_LIBRARY_PATH", ""), *libraries) if folder)
    try:
        said = run([sys.executable, "-I", "-c", _LOAD, library], TIMEOUT, environment={"LD_LIBRARY_PATH": folders})
    except NotRun:
        return f"not within {TIMEOUT} s"
    return said.reason.replace("OSError: ", "").replace(f"{library}: ", "") if said.code else ""


def older(version: str, minimum: str) -> bool:
    """Say whether a version is older than another. An unknown version is."""

    def numbers(text: str) -> list[int]:
        return [int(number) for number in re.findall(r"\d+", re.split(r"[^\d.]", text)[0])]

    return numbers(version) < numbers(minimum)


def _bundled(request: Request) -> tuple[str, str, str]:
    """Return the directory and version of the EFA installer's plugin, and why it does not fit."""
    library = library_in(request.bundled)
    if not library:
        return "", "", f"there is no {LIBRARY} in {request.bundled}"
    version = version_of(library)
    if older(version, request.minimum):
        told = version or "of an unknown version"
        return "", version, f"{library} is {told}; needed is {request.minimum} (aws_ofi_nccl_minimum)"
    why = refusal(library, request.libraries)
    return os.path.dirname(library), version, f"{library} does not load: {why}" if why else ""


def _kept(request: Request) -> tuple[str, str, str]:
    """Return the directory and a name of the EFA installer's plugin, however old; or why there is none that loads."""
    library = library_in(request.bundled)
    fault = refusal(library, request.libraries) if library else f"there is no {LIBRARY} in {request.bundled}"
    if fault:
        return "", "", f"{library} does not load: {fault}" if library else fault
    return os.path.dirname(library), version_of(library), ""


def _called(version: str) -> str:
    return f"aws-ofi-nccl {version or 'of an unknown version'} of the EFA installer"


def _make_do(request: Request, why: str) -> Outcome:
    """Keep the EFA installer's plugin, however old, where no other is wanted or can be built.

    Without the source's hash a node goes on without any plugin, because that is as somebody has set it.
    """
    directory, version, fault = _kept(request)
    never = request.build == "never"
    setting = f"aws_ofi_nccl_build is {request.build}"
    if request.build == "always" and request.builder:
        instead = _WITHOUT if fault else "aws_ofi_nccl_build: auto"
        raise Problem(f"{setting}, and none can be built. {request.lacks}, or {instead}")
    if fault and (never or request.lacks):
        reason = why if fault in why else f"{why}; {fault}"
        if not never:
            raise Problem(f"{reason}, and none can be built. {request.lacks}, or {_WITHOUT}")
        auto = "" if request.lacks else ", aws_ofi_nccl_build: auto"
        raise Problem(
            f"{setting}, and {reason}; needed: EFA software whose plugin loads (role efa){auto}, or {_WITHOUT}"
        )
    cause = "aws_ofi_nccl_sha256, without which no newer plugin is built, is not set"
    if never:
        cause = setting if request.lacks else f"{setting}: auto builds a newer one"
    elif request.lacks:
        cause = f"none can be built. {request.lacks}"
    kept = "no plugin for NCCL" if fault else _called(version)
    number = re.match(r"[0-9]+(\.[0-9]+)*", version)
    accept = f", or aws_ofi_nccl_minimum: {number[0]}, which accepts it" if number else ""
    return Outcome(
        False,
        why,
        "" if fault else "bundled",
        directory,
        version,
        kept,
        [f"{why}; {kept} is kept, because {cause}{accept}"],
    )


def _wait(request: Request, why: str) -> Outcome:
    """Use the EFA installer's plugin, or sockets, until the node that builds has published one."""
    directory, version, fault = _kept(request)
    until = "sockets" if fault else _called(version)
    warning = (
        f"{why}, and there is none in {request.published} yet: NCCL uses {until} on this node; "
        "run the playbook on the node that builds, with aws_ofi_nccl_enabled and aws_ofi_nccl_build: always"
    )
    kept = "no plugin for NCCL" if fault else _called(version)
    summary = f"{kept} for now: the node that builds has to provide a newer one"
    return Outcome(True, why, "" if fault else "bundled", directory, version, summary, [warning], summary)


def _published(request: Request) -> str:
    """Return the path of the cluster's plugin; until that is there, the one that is called as it used to be."""
    library = library_in(request.published)
    former = "" if library or not request.former else library_in(request.former)
    return library or ("" if former and refusal(former, request.libraries) else former)


def look(request: Request) -> Outcome:
    """Find the plugin of this node, or say that the cluster needs one of its own."""
    if not re.match(r"\d", request.minimum):
        raise Problem(f"aws_ofi_nccl_minimum is {request.minimum!r}; needed is a version such as 1.17.2")
    why = "aws_ofi_nccl_build is always"
    if request.build != "always":
        directory, version, why = _bundled(request)
        if not why:
            return Outcome(False, "", "bundled", directory, version, _called(version), [])
    library = _published(request)
    buildable = request.buildable and not request.lacks
    required = request.build == "always" and request.builder
    if request.build == "never" or (not buildable and (required or not library)):
        return _make_do(request, why)
    if request.builder and buildable:
        return Outcome(True, why, "", "", "", "", [])
    if not library:
        return _wait(request, why)
    fault = refusal(library, request.libraries)
    if fault:
        raise Problem(
            f"{library} does not load on this node: {fault}; needed is the EFA software with which it was built "
            "(role efa), or a build on a node with the same image (common_builder)"
        )
    version = version_of(library)
    summary = f"aws-ofi-nccl {version or 'of an unknown version'} of the cluster"
    return Outcome(False, why, "published", os.path.dirname(library), version, summary, [])
