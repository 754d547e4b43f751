# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which of DCGM's packages a node needs, and how many GPUs DCGM and its exporter see."""

from __future__ import annotations

import glob
import http.client
import json
import os
import re
import shutil
import socket
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils import _docker_engine as engine
from ansible_collections.pcluster.postboot.plugins.module_utils import _packagerepo, _packages, _run, _systemd
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import run

LEGACY = "datacenter-gpu-manager"  # all of DCGM 3 in one package, which excludes those of DCGM 4
CORE = f"{LEGACY}-4-core"
EXPORTER = f"{LEGACY}-exporter"
UNIT = "nvidia-dcgm.service"
PROGRAMS = {"dcgm": "/usr/bin/dcgmi", "exporter": "/usr/bin/dcgm-exporter"}
ADDRESS = ("127.0.0.1", 5555)
ENGINE_LOG = "/var/log/nv-hostengine.log"  # the journal has little more than its start
APT_SOURCES = "/etc/apt"
_CUDAS = ("11", "12", "13")
# The oldest driver of each of CUDA's major versions, as NVIDIA's compatibility tables have them.
_DRIVERS = ((580, "13"), (525, "12"), (0, "11"))
_PARTS = (
    *(f"{kind}{cuda}" for kind in ("cuda", "proprietary-cuda", "multinode-cuda") for cuda in _CUDAS),
    *("config", "cuda-all", "dev", "devel", "multinode", "proprietary"),
)


class Request(NamedTuple):
    """What is asked for; the module's documentation tells what each part means."""

    manager: str
    component: str = "dcgm"
    version: str = ""
    fresh_version: str = ""
    minimum_version: str = ""
    driver: str = ""
    cuda: str = ""
    cuda_major: str = ""
    proprietary: bool = True
    repository: str = ""
    url: str = ""
    mirrors: tuple[str, ...] = ()


class Outcome(NamedTuple):
    """What has to be done, and why."""

    install: bool
    why: str
    version: str
    packages: list[str]
    legacy: bool
    add: bool
    left: bool
    stays: bool
    other: bool
    summary: str


def cuda_major(request: Request) -> str:
    """Return the major version of CUDA for which the driver is made; else that of the toolkit, or the newest one."""
    if request.cuda_major:
        return request.cuda_major
    branch = re.match(r"\d+", request.driver)
    if branch:
        return next(cuda for oldest, cuda in _DRIVERS if int(branch[0]) >= oldest)
    toolkit = request.cuda.split(".")[0]
    return toolkit if toolkit in _CUDAS else _CUDAS[-1]


def wanted(request: Request) -> list[str]:
    """Return the packages that a node gets, the one that tells the version first."""
    if request.component == "exporter":
        return [EXPORTER]
    cuda = cuda_major(request)
    names = [CORE, f"{LEGACY}-4-cuda{cuda}"]
    return [*names, f"{LEGACY}-4-proprietary", f"{LEGACY}-4-proprietary-cuda{cuda}"] if request.proprietary else names


def _noted(lead: str) -> str:
    """Return which version this collection has installed, or begun to; empty for none."""
    try:
        with open(os.path.join(_run.STATE_DIR, _packages.RECORDS, f"{lead}.json"), encoding="utf-8") as stream:
            return str(json.load(stream)["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def provided_by(request: Request) -> str:
    """Return the file by which apt has the repository already. It takes none twice with different keys."""
    if request.manager != "apt":
        return ""
    url = _packagerepo.through_mirror(request.url, request.mirrors).rstrip("/")
    for path in sorted(glob.glob(f"{APT_SOURCES}/sources.list") + glob.glob(f"{APT_SOURCES}/sources.list.d/*")):
        if os.path.basename(path) == f"{request.repository}.sources" or not path.endswith((".list", ".sources")):
            continue
        with open(path, encoding="utf-8", errors="replace") as stream:
            lines = [line for line in stream if not line.lstrip().startswith("#")]
        off = any(re.match(r"enabled:\s*no", line, re.IGNORECASE) for line in lines)
        if not off and any(word.rstrip("/") == url for line in lines for word in line.split()):
            return path
    return ""


def _left(request: Request) -> bool:
    files = (
        f"{APT_SOURCES}/sources.list.d/{request.repository}.sources",
        f"/etc/yum.repos.d/{request.repository}.repo",
    )
    return any(os.path.exists(path) for path in files)


def other_engine() -> bool:
    """Tell whether a host engine answers that is not the service's."""
    if not _systemd.running() or _systemd.status_of(UNIT).get("ActiveState") in ("active", "activating"):
        return False
    try:
        with socket.create_connection(ADDRESS, timeout=1):
            return True
    except OSError:
        return False


def plan(request: Request) -> Outcome:
    """Say what has to be installed. What is there and new enough stays as it is."""
    names = wanted(request)
    lead, name = names[0], {"dcgm": "DCGM", "exporter": "DCGM exporter"}[request.component]
    # What of DCGM is there beside them has to be of the same version, or apt would have to remove it.
    family = {LEGACY, *(f"{LEGACY}-4-{part}" for part in _PARTS)} if lead == CORE else set()
    found = engine.packages(request.manager, {*names, *family})
    have, legacy = found.installed.get(lead), found.installed.get(LEGACY)
    noted = _noted(lead)
    ours = bool(have and noted and engine.matches(have, noted))
    missing = [package for package in names if package not in found.installed]
    enough = bool(have and _packages.meets(have, request.version, request.minimum_version))
    target, why = "", f"{name} {have} is installed"
    if request.version:
        if not enough or missing or found.half:
            target, why = request.version, f"{name} {request.version} is wanted, there is {have or legacy or 'none'}"
    elif have and enough:
        # What we have installed was interrupted. What somebody else has may lack all but what is not open source: an
        # official AMI has none of that, and older GPUs then have no profiling metrics.
        if found.half or (ours and missing):
            target, why = have, f"unfinished: {', '.join(found.half or missing)}"
        elif any("-proprietary" in package for package in missing):
            target, why = have, f"{name} {have} lacks {', '.join(missing)}"
    elif have or legacy:
        target, why = request.fresh_version, f"{name} {have or legacy} is older than {request.minimum_version}"
    elif os.path.exists(PROGRAMS[request.component]) and not noted and not found.half:
        why = f"{PROGRAMS[request.component]} is there, and no package brought it; it is left as it is"
    else:
        target, why = request.fresh_version, f"there is no {name}"
    beside = sorted(package for package in found.installed if package not in (LEGACY, *names))
    version = target or have or ""
    # Then it runs, whatever becomes of the packages that are to come beside it.
    stays = not target or bool(have and enough)
    return Outcome(
        install=bool(target),
        why=why,
        version=version,
        packages=[*names, *beside],
        legacy=bool(legacy),
        add=bool(target) and not provided_by(request),
        left=_left(request),
        stays=stays,
        other=lead == CORE and other_engine(),
        summary=f"{name} {version or 'of unknown version'}{', the node had it' if stays and not ours else ''}",
    )


# What DCGM and its exporter see


class Seen(NamedTuple):
    """What was seen: how many GPUs, and of the exporter which metrics, and whether it shows everybody its profiles."""

    gpus: int
    metrics: list[str]
    profiles: bool = False


def discovered() -> Seen:
    """Ask the host engine for its GPUs."""
    if not shutil.which("dcgmi"):
        raise Problem("the program dcgmi is not there; the component dcgm installs it")
    said = run(["dcgmi", "discovery", "-l"], 60, merged=True)
    found = re.search(r"^(\d+) GPUs? found", said.out, re.MULTILINE)
    if said.code or not found:
        why = " ".join(said.out.split())[-300:] or "it said nothing"
        raise Problem(f"'{said.command}' ended with {said.code}: {why}")
    return Seen(int(found[1]), [])


def _get(url: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=20) as response:
        return str(response.read().decode("utf-8", "replace"))


def scraped(url: str) -> Seen:
    """Ask the exporter for its metrics."""
    try:
        text = _get(url)
    except (OSError, http.client.HTTPException) as error:
        raise Problem(f"{url} gave no metrics: {error}") from error
    samples = re.findall(r'^(DCGM_\w+)\{[^}]*?\bgpu="(\d+)"', text, re.MULTILINE)
    try:
        profiles = bool(_get(urllib.parse.urljoin(url, "/debug/pprof/cmdline")))
    except (OSError, http.client.HTTPException):
        profiles = False
    return Seen(len({gpu for _name, gpu in samples}), sorted({name for name, _gpu in samples}), profiles)


def summary(seen: Seen, counters: list[str]) -> str:
    """Say what was seen in one phrase, and what somebody should know of it."""
    text = f"{seen.gpus} GPU{'' if seen.gpus == 1 else 's'}"
    if counters:
        text += f" with {len(set(counters) & set(seen.metrics))} of {len(counters)} metrics"
    profiling = {name for name in counters if name.startswith("DCGM_FI_PROF_")}
    if profiling and not profiling & set(seen.metrics):
        text += (
            ", none of them of profiling (DCGM_FI_PROF_*): GPUs before Hopper have those with the package "
            f"{LEGACY}-4-proprietary in DCGM's version only, see dcgm_proprietary"
        )
    if seen.profiles:
        text += (
            "; /debug/pprof/ answers everybody who reaches the exporter (CVE-2026-47483, mended in 4.8.2): correct "
            "dcgm_exporter_version, dcgm_exporter_image or dcgm_exporter_flags"
        )
    return text


def see(gpus: int, url: str, wait: float) -> Seen:
    """Return what is seen once it is all of the node's GPUs; raise what is wrong when the time is over."""
    ask: Callable[[], Seen] = (lambda: scraped(url)) if url else discovered
    who = f"the exporter at {url} has metrics of" if url else "DCGM sees"
    unit = "'journalctl -u nvidia-dcgm-exporter'" if url else f"'journalctl -u nvidia-dcgm', {ENGINE_LOG}"
    where = f"{unit} and 'nvidia-smi'"
    deadline = time.monotonic() + wait
    while True:
        try:
            seen = ask()
            if seen.gpus == gpus:
                return seen
            wrong = f"{who} {seen.gpus} GPU{'' if seen.gpus == 1 else 's'}, and this node has {gpus}"
        except Problem as error:
            wrong = str(error)
        if time.monotonic() >= deadline:
            raise Problem(f"{wrong}; see {where}")
        _run.heartbeat()
        time.sleep(1)
