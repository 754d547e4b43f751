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
_LOAD = "import ctypes, os, sys; ctypes.CDLL(sys.argv[1], mode=os.RTLD_NOW)"


class Request(NamedTuple):
    """The module's options."""

    minimum: str
    published: str
    bundled: str = "/opt/amazon/ofi-nccl"
    build: str = "auto"
    builder: bool = False
    buildable: bool = True
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
    return said.last.replace("OSError: ", "").replace(f"{library}: ", "") if said.code else ""


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


def _make_do(request: Request, why: str) -> Outcome:
    """Keep the EFA installer's plugin, however old, because none can be built. A node is not stopped for that."""
    library = library_in(request.bundled)
    loads = bool(library) and not refusal(library, request.libraries)
    directory, version = (os.path.dirname(library), version_of(library)) if loads else ("", "")
    kept = f"aws-ofi-nccl {version or 'of an unknown version'} of the EFA installer" if loads else "no plugin for NCCL"
    warning = f"{why}; {kept} is kept, because aws_ofi_nccl_sha256, without which no newer plugin is built, is not set"
    return Outcome(False, why, "bundled" if loads else "", directory, version, kept, [warning])


def look(request: Request) -> Outcome:
    """Find the plugin of this node, or say that the cluster needs one of its own."""
    if not re.match(r"\d", request.minimum):
        raise Problem(f"aws_ofi_nccl_minimum is {request.minimum!r}; needed is a version such as 1.17.2")
    why = "aws_ofi_nccl_build is always"
    if request.build != "always":
        directory, version, why = _bundled(request)
        if not why:
            summary = f"aws-ofi-nccl {version} of the EFA installer"
            return Outcome(False, "", "bundled", directory, version, summary, [])
    if request.build == "never":
        raise Problem(
            f"aws_ofi_nccl_build is never, and {why}; needed is an image whose EFA has one, or aws_ofi_nccl_build: auto"
        )
    library = library_in(request.published)
    if not request.buildable and not library:
        return _make_do(request, why)
    if request.builder:
        return Outcome(True, why, "", "", "", "", [])
    if not library:
        warning = (
            f"{why}, and there is none in {request.published} yet: NCCL uses sockets on this node; "
            "run the playbook on the node that builds, with aws_ofi_nccl_enabled and aws_ofi_nccl_build: always"
        )
        told = "no plugin for NCCL yet: the node that builds has to provide it"
        return Outcome(True, why, "", "", "", told, [warning], told)
    fault = refusal(library, request.libraries)
    if fault:
        raise Problem(
            f"{library} does not load on this node: {fault}; needed is the EFA software with which it was built "
            "(role efa), or a build on a node with the same image (common_builder)"
        )
    version = version_of(library)
    summary = f"aws-ofi-nccl {version or 'of an unknown version'} of the cluster"
    return Outcome(False, why, "published", os.path.dirname(library), version, summary, [])
