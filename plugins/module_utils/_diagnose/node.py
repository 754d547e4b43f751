# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One node's part of the archive: gathered, cleaned, judged, and packed where the connection's user may fetch it."""

from __future__ import annotations

import glob
import io
import json
import os
import re
import tarfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose import cluster, collect, judge, rooms, sources
from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose.evidence import Evidence, Finding, finding
from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose.limit import Budget, TimeUp
from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose.redact import KNOWN, Redactor
from ansible_collections.pcluster.postboot.plugins.module_utils._host import files, lock
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._node import facts as node_facts
from ansible_collections.pcluster.postboot.plugins.module_utils._node import storage

OPT = "/opt/pcluster-postboot"
ROOT = os.environ.get("PCLUSTER_POSTBOOT_ROOT", "")  # for tests that have no node
# The head node's logs that tell of nodes which are gone.
CONSOLE = "compute_console_output"
ABOUT = ("clustermgtd", "slurmctld", "slurm_resume", CONSOLE, "clustermgtd.events")
# Seconds for each text, or for each finder, and for all of them. Two and 15 are usual for hostile logs.
_CLEANING, _JUDGING = (20.0, 90.0), (10.0, 30.0)
_MOST_ABOUT = 2000  # lines of one log about one node


class Request(NamedTuple):
    name: str = ""  # what the node is called in the inventory
    file_mb: float = 2.0
    node_mb: float = 20.0
    seconds: float = 240.0
    mount_seconds: float = 6.0
    hours: float = 48.0
    units: tuple[str, ...] = ()
    about: tuple[str, ...] = ()
    report_dir: str = ""
    overrides: Mapping[str, Any] = {}
    check: bool = False


class Result(NamedTuple):
    path: str  # of the node's part, on the node; empty in check mode
    bytes: int
    node: dict[str, Any]  # who it is
    findings: list[dict[str, Any]]
    parts: list[str]  # in check mode: what would be gathered
    redacted: dict[str, int]
    left: list[str]


def gather(request: Request, root: str = ROOT) -> Result:
    """Return where the node's part of the archive is, and what was found."""
    begun = time.time()
    facts, wrong = _facts(request, root)
    node_type = str(facts.get("node_type") or "")
    points = rooms.points(storage.mounts())
    told = rooms.ask(list(points), request.mount_seconds)
    space = {path: {**room, "type": points[path], "seconds": request.mount_seconds} for path, room in told.items()}
    limits = collect.Limits(int(request.file_mb * 1e6), int(request.node_mb * 1e6), request.seconds)
    collector = collect.Collector(limits, [path for path in space if space[path].get("dead")], root, request.check)
    _units(collector, request.units)
    collector.files(sources.FILES, node_type)
    collector.outputs(sources.OUTPUTS, node_type)
    if facts.get("node_name") and node_type == "compute":
        line = (f"{collect.SLURM}/bin/scontrol", "show", "node", str(facts["node_name"]))
        collector.output(sources.Output("scontrol-node", line, shared=True))
    collector.pcluster_diag(sources.DIAG)
    if node_type == "head":
        reports = os.path.join(request.report_dir, str(facts.get("cluster") or "unknown")) if request.report_dir else ""
        _about(collector, request.about, reports)
    who = _who(request, facts, root)
    if request.check:
        return Result("", 0, who, [], [part.source for part in collector.parts], {}, collector.left)
    collector.add("facts.json", "node_facts", _json(facts))
    collector.add("mounts.json", "the free space of each file system", _json(space))
    counts = _clean(collector)
    texts = collector.texts
    running = _running()
    evidence = Evidence(who["node"], node_type, texts, facts, space, request.units, running, time.time(), request.hours)
    found = [*wrong, *judge.judge(evidence, budget=Budget(*_JUDGING))]
    listed: dict[str, Any] = {
        "node": who,
        "begun": lock.utc(begun),
        "seconds": round(time.time() - begun, 1),
        "limits": limits._asdict(),
        "files": [part._asdict() for part in collector.parts],
        "left": collector.left,
        "redacted": counts,
        "findings": [one._asdict() for one in found],
    }
    texts["gathered.json"] = _json(listed)
    path, size = _pack(texts)
    return Result(path, size, who, listed["findings"], [], counts, collector.left)


def _facts(request: Request, root: str) -> tuple[dict[str, Any], list[Finding]]:
    try:
        return node_facts.read_node_within(15, root or "/", dict(request.overrides)), []
    except ValueError as error:
        raise Problem(f"common_node_overrides: {error}") from error
    except (RuntimeError, OSError) as error:
        todo = "repair or unmount what the line names"
        wrong = finding("facts", "cause", "the node's facts cannot be read", str(error), "", todo, "hanging-job")
        return {}, [wrong]


def _who(request: Request, facts: Mapping[str, Any], root: str) -> dict[str, Any]:
    try:
        bundle = os.readlink(f"{root}{OPT}/current")
    except OSError:
        bundle = ""
    told = {name: facts.get(name) or "" for name in ("node_type", "cluster", "region", "queue", "instance_id")}
    return {
        "name": request.name,
        "node": str(facts.get("node_name") or os.uname().nodename.split(".")[0]),
        "bundle": os.path.basename(bundle),
        "version": facts.get("version") or "",
        **told,
    }


def _units(collector: collect.Collector, ours: Sequence[str]) -> None:
    names = [f"{name}.service" for name in dict.fromkeys((*ours, *sources.UNITS))]
    show = ("systemctl", "show", "--no-pager", f"--property={','.join(sources.UNIT_PROPERTIES)}", *names)
    collector.output(sources.Output("units", show))
    text = collector.texts.get("commands/units.txt", "")
    loaded = re.findall(r"^Id=(.+)$", "\n\n".join(one for one in text.split("\n\n") if "LoadState=loaded" in one), re.M)
    for unit in loaded:
        line = ("journalctl", "-u", unit, "-b", "--no-pager", "-o", "short-iso", "-n", "500")
        collector.output(sources.Output(f"journal-{unit}", line))


def _about(collector: collect.Collector, names: Sequence[str], reports: str) -> None:
    """Take in the lines about nodes that are gone, and about the instances that they were, and their last reports."""
    logs = {path: text for path, text in collector.texts.items() if _stem(path) in ABOUT}
    for name in names:
        words = {name}
        for text in [text for path, text in logs.items() if _stem(path) in cluster.MANAGERS]:
            words |= {instance for instance, _host in cluster.instances_of(name, text)}
            words |= set(cluster.nodes_of(name, text))
        either = "|".join(rf"{re.escape(word)}(?![\w-])" for word in sorted(words))
        pattern = re.compile(either)
        for path, text in logs.items():
            lines = [line for line in text.split("\n") if pattern.search(line)][-_MOST_ABOUT:]
            if lines:
                told = "\n".join(lines) + "\n"
                # A console's output is one line, whose parts end with a carriage return. Elsewhere users write those.
                told = told.replace("\r", "\n") if _stem(path) == CONSOLE else told
                collector.add(f"gone/{name}/{os.path.basename(path)}", f"{path} about {name}", told)
        for node in sorted(words) if reports else ():
            collector.files([sources.Files((os.path.join(reports, glob.escape(node) + ".json"),))], "")
            path = os.path.join(reports, node + ".json").lstrip("/")
            if path in collector.texts:
                collector.add(f"gone/{name}/report.json", f"/{path}", collector.texts[path])


def _stem(path: str) -> str:
    base = os.path.basename(path)
    return base[: -len(".log")] if base.endswith(".log") else base


def _running() -> bool | None:
    """Say whether a run of this collection goes on here: one by pull, or the holder of the lock; None if unknown."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            # Of other users' processes anything may be the command line, and reading it may block.
            if os.stat(f"/proc/{pid}").st_uid != os.geteuid():
                continue
            with open(f"/proc/{pid}/cmdline", "rb") as stream:
                words = stream.read().split(b"\0")
        except OSError:
            continue
        if any(word.endswith((b"/roles/pull/files/pull.py", b"/bootstrap.sh")) for word in words[:3]):
            return True
    try:
        with open(lock.lock_path(), "rb") as stream:
            return lock.Holder.from_dict(lock.parsed(stream.read())).alive()
    except OSError:
        return None


def _clean(collector: collect.Collector) -> dict[str, int]:
    """Take the secrets out of the texts, and return how many of each kind went.

    Twice, because a value that stands beside its name in one text may stand alone in any other. A text whose secrets
    cannot be found in time is left out.
    """
    redactor, counts, budget = Redactor(), Counter[str](), Budget(*_CLEANING)

    def known(text: str) -> tuple[str, dict[str, int]]:
        text, more = redactor.known(text)
        return text, {KNOWN: more} if more else {}

    for clean in (redactor.clean, known):
        for name in list(collector.texts):
            try:
                with budget.step():
                    collector.texts[name], some = clean(collector.texts[name])
                    counts.update(some)
            except TimeUp as error:
                collector.leave(name, f"left out, because its secrets were not found in time: {error}")
    return dict(counts)


def _pack(texts: Mapping[str, str]) -> tuple[str, int]:
    """Write the node's part for whoever has become root here, and for nobody else.

    /run is memory, so a full disk does not matter; and the connection's user fetches the file without `become`, because
    a connection can then send it as a file, and not as text of a module.
    """
    user = int(os.environ.get("SUDO_UID") or os.geteuid())
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=6) as archive:
        for name, text in sorted(texts.items()):
            data = text.encode("utf-8", "replace")
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.mtime = len(data), 0o600, int(time.time())
            archive.addfile(member, io.BytesIO(data))
    path = os.path.join(lock.RUN_DIR, f"diagnose-{user}.tar.gz")
    os.makedirs(lock.RUN_DIR, mode=0o755, exist_ok=True)
    packed = buffer.getvalue()
    files.write(path, packed, mode=0o600, uid=user)
    return path, len(packed)


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True, default=str) + "\n"
