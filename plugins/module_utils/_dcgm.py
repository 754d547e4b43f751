# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How many GPUs DCGM and its exporter see."""

from __future__ import annotations

import re
import shutil
import time
import urllib.parse
from collections.abc import Callable
from typing import NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._host import http, lock
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import run

ENGINE_LOG = "/var/log/nv-hostengine.log"  # the journal has little more than its start


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
    return http.ask(url, 20, proxies=False).good_text()


def scraped(url: str) -> Seen:
    """Ask the exporter for its metrics."""
    try:
        text = _get(url)
    except Problem as error:
        raise Problem(f"{url} gave no metrics: {error}") from error
    samples = re.findall(r'^(DCGM_\w+)\{[^}]*?\bgpu="(\d+)"', text, re.MULTILINE)
    try:
        profiles = bool(_get(urllib.parse.urljoin(url, "/debug/pprof/cmdline")))
    except Problem:
        profiles = False
    return Seen(len({gpu for _name, gpu in samples}), sorted({name for name, _gpu in samples}), profiles)


def summary(seen: Seen, counters: list[str]) -> str:
    """Return in one phrase what was seen, and what an admin should know about it."""
    text = f"{seen.gpus} GPU{'' if seen.gpus == 1 else 's'}"
    if counters:
        text += f" with {len(set(counters) & set(seen.metrics))} of {len(counters)} metrics"
    profiling = {name for name in counters if name.startswith("DCGM_FI_PROF_")}
    if profiling and not profiling & set(seen.metrics):
        text += (
            ", none of them of profiling (DCGM_FI_PROF_*): GPUs before Hopper have those with the package "
            "datacenter-gpu-manager-4-proprietary in DCGM's version only, see dcgm_proprietary"
        )
    if seen.profiles:
        text += (
            "; /debug/pprof/ answers everybody who reaches the exporter (CVE-2026-47483, mended in 4.8.2): correct "
            "dcgm_exporter_version, dcgm_exporter_image or dcgm_exporter_flags"
        )
    return text


def see(gpus: int, url: str, wait: float) -> Seen:
    """Wait until all of the node's GPUs are seen; raise the problem when the time is over."""
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
        lock.heartbeat()
        time.sleep(1)
