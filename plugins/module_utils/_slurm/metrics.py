# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Where the metrics of Slurm come from: slurmctld itself where it can be trusted with that, or else an exporter.

Native metrics are a setting of the cluster's configuration (CustomSlurmSettings), so this only finds out, and tells.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._host import http
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._slurm.ask import scontrol
from ansible_collections.pcluster.postboot.plugins.module_utils._slurm.nodes import gpus_of, nodes

# Before, slurmctld could crash when asked after a partition had been deleted, and said that nothing is ever allocated.
SAFE = (25, 11, 5)
# The first whose own metrics count GPUs (CHANGELOG/slurm-26.05.md of SchedMD/slurm).
WITH_GPUS = (26, 5, 0)
PLUGIN = "metrics/openmetrics"
SETTING = f"CustomSlurmSettings: [{{MetricsType: {PLUGIN}}}]"
PARTS = ("jobs", "nodes", "partitions", "scheduler")
USERS = "jobs-users-accts"
_ANSWER_LIMIT = 64 * 1024
_LOOK_AT = "see 'systemctl status slurmctld munge' and /var/log/slurmctld.log"


class Request(NamedTuple):
    """The module's options."""

    prefix: str = "/opt/slurm"
    source: str = "auto"
    exporter_address: str = "127.0.0.1:9341"
    exporter_needs: str = ""
    address: str = "127.0.0.1"
    interval: str = "60s"
    users: bool = False
    timeout: float = 10.0


class Outcome(NamedTuple):
    """The module's result."""

    source: str
    version: str
    reason: str
    summary: str
    accounting: bool
    targets: list[dict[str, Any]]


def version_of(text: str) -> tuple[int, ...]:
    """Return the numbers of a version such as 25.11.5 or 26.05.0-0rc1; none where there is no telling."""
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(number or 0) for number in match.groups()) if match else ()


def parse_config(text: str) -> dict[str, str]:
    """Return the settings that `scontrol show config` prints. The first of a name counts; (null) is nothing."""
    settings: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = (part.strip() for part in line.partition("="))
        if equals and re.fullmatch(r"[\w\[\]]+", name):
            settings.setdefault(name.lower(), "" if value == "(null)" else value)
    return settings


def read_config(prefix: str, seconds: float) -> dict[str, str]:
    """Ask the controller for its settings."""
    said = scontrol(prefix, "show", "config", seconds=seconds, hint=_LOOK_AT)
    settings = parse_config(said.out)
    if said.code or not version_of(settings.get("slurm_version", "")):
        wrong = f"told no SLURM_VERSION, it ended with {said.code}: {said.first}"
        raise Problem(f"'{said.command}' {wrong}; {_LOOK_AT}")
    return settings


def answers(url: str, seconds: float) -> str:
    """Return why an address gives no metrics of Slurm; empty if it does."""
    try:
        text = http.ask(url, seconds, proxies=False, most=_ANSWER_LIMIT).good_text()
    except Problem as error:
        return f"it says {error}"
    return "" if re.search(r"^slurm_jobs", text, re.MULTILINE) else "its answer has no slurm_jobs"


def _port_of(settings: dict[str, str]) -> str:
    """Return the first of the controller's ports. All of them answer, as of a range such as 6820-6829."""
    match = re.match(r"\d+", settings.get("slurmctldport", ""))
    return match[0] if match else "6817"


def why_not_native(settings: dict[str, str], request: Request) -> str:
    """Return why slurmctld's own metrics are not used; nothing where they are."""
    version = settings["slurm_version"]
    if request.source == "exporter":
        return "slurm_exporter_source is exporter"
    if version_of(version) < SAFE:
        safe = ".".join(map(str, SAFE))
        return f"Slurm {version} is older than {safe} of ParallelCluster 3.16, from which on its own metrics are safe"
    kind = settings.get("metricstype", "")
    if kind != PLUGIN:
        found = f"MetricsType is {kind}" if kind else "MetricsType is not set"
        return f"{found}; Slurm {version} has metrics of its own once the cluster's configuration has {SETTING}"
    url = f"http://{request.address}:{_port_of(settings)}/metrics/jobs"
    said = answers(url, request.timeout)
    return f"{url} should give Slurm's own metrics, but {said}" if said else ""


def _gpus_unknown(version: str, request: Request) -> str:
    """Return that the cluster has GPUs which slurmctld's own metrics do not count; empty if all are counted."""
    if version_of(version) >= WITH_GPUS:
        return ""
    said = scontrol(request.prefix, "-a", "-o", "show", "nodes", seconds=request.timeout, hint=_LOOK_AT)
    if said.code:
        raise Problem(f"'{said.command}' ended with {said.code}: {said.first}; {_LOOK_AT}")
    has = any(gpus_of(fields.get("Gres", "")) for fields in nodes(said.out, "Gres"))
    return f"the metrics of Slurm {version} itself do not count GPUs, which those of 26.05 do" if has else ""


def _target(request: Request, address: str, part: str = "") -> dict[str, Any]:
    """Return a group of targets as Prometheus reads it from a file. Its labels say all that is special about it."""
    labels = {"job": "slurm", "__scrape_interval__": request.interval, "__scrape_timeout__": request.interval}
    if part:
        labels.update({"__metrics_path__": f"/metrics/{part}", "slurm_part": part})
    return {"targets": [address], "labels": labels}


def find(request: Request) -> Outcome:
    """Find out where the metrics come from."""
    settings = read_config(request.prefix, request.timeout)
    version = settings["slurm_version"]
    reason = why_not_native(settings, request)
    unknown = _gpus_unknown(version, request) if request.source == "auto" and not reason else ""
    if unknown and not request.exporter_needs:
        reason = unknown
    if reason and request.source == "native":
        raise Problem(f"slurm_exporter_source is native, and that cannot be: {reason}; auto takes the exporter")
    if reason and request.source == "auto" and request.exporter_needs:
        source, summary = "none", f"no metrics of Slurm: {reason}; or set {request.exporter_needs} for the exporter"
        targets = []
    elif reason:
        source, summary = "exporter", f"exporter ({reason})"
        targets = [_target(request, request.exporter_address)]
    else:
        source, summary = "native", f"slurmctld's own metrics (Slurm {version})"
        if unknown:
            summary += f"; {unknown}: set {request.exporter_needs} for the exporter"
        address = f"{request.address}:{_port_of(settings)}"
        targets = [_target(request, address, part) for part in (*PARTS, *([USERS] if request.users else []))]
    storage = settings.get("accountingstoragetype", "")
    accounting = bool(storage) and not storage.endswith("/none")
    return Outcome(source, version, reason, summary, accounting, targets)
