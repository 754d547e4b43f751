# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The one planner of packages: what has to be done about those of one project, whoever has installed what is there.

What somebody else has installed stays as it is, unless a version is asked for. What this collection has installed is
noted before it begins, so that the next run knows its own, and what a killed run has left.
"""

from __future__ import annotations

import json
import os
import re
from typing import NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._host import document, files, lock
from ansible_collections.pcluster.postboot.plugins.module_utils._packages import records

NOTES = "packages"  # below lock.STATE_DIR


class Request(NamedTuple):
    """The options of the module packages."""

    manager: str
    packages: tuple[str, ...]
    title: str = ""
    optional: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    family: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()
    version: str = ""
    fresh_version: str = ""
    minimum_version: str = ""
    flaw: str = ""
    follow: bool = False
    latest: bool = False
    files: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    program: str = ""
    hold: bool = False
    temporary_repository: str = ""
    lock_timeout: int = 300
    state: str = "present"
    check: bool = False


class Record(NamedTuple):
    """What was last installed by this collection; `done` is false while it is at it, and where it was killed."""

    version: str
    done: bool
    was: str = ""  # which version of its own it replaces


class Plan(NamedTuple):
    """What has to be done, and why."""

    install: bool
    why: str
    version: str
    origin: str  # found: somebody else's; installed: ours
    packages: tuple[str, ...] = ()  # that come in this version
    along: tuple[str, ...] = ()  # that come along, in whichever
    hold: tuple[str, ...] = ()
    leaving: tuple[str, ...] = ()  # that have to be removed before
    interrupted: bool = False  # whether dpkg has to be told to go on
    behind: bool = False  # whether another version is replaced
    stays: bool = False  # whether what is there works, and is only older than the minimum
    enough: bool = False  # whether what is there is what is asked for, whatever else comes
    had: bool = False  # whether that is somebody else's


def _note_path(request: Request) -> str:
    return os.path.join(lock.STATE_DIR, NOTES, f"{request.packages[0]}.json")


def noted(request: Request) -> Record | None:
    """Return the record of what this collection has installed."""
    try:
        data = document.read(_note_path(request))
        return Record(str(data["version"]), bool(data["done"]), str(data.get("was", "")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def note(request: Request, record: Record) -> None:
    """Record the version that is about to be installed, or has been."""
    path = _note_path(request)
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    known = {name: value for name, value in record._asdict().items() if value != ""}
    files.write(path, json.dumps({"version": "", **known}) + "\n")


def is_ours(version: str | None, record: Record | None) -> bool:
    """Tell whether this collection has installed the version that is there."""
    if version is None or record is None:
        return False
    began_any = not record.done and not record.version
    return began_any or any(one and records.matches(version, one) for one in (record.version, record.was))


def at_least(version: str, minimum: str) -> bool:
    """Tell whether a version is as new as another one."""
    have, need = ([int(number) for number in re.findall(r"\d+", text)] for text in (version, minimum))
    return have[: len(need)] >= need


def meets(version: str, wanted: str, minimum: str) -> bool:
    """Tell whether a version is one that is wanted, and as new as a minimum, unless an older one is asked for."""
    if wanted and not records.matches(version, wanted):
        return False
    return at_least(version, minimum) or bool(wanted and not records.matches(minimum, wanted))


def shortcoming(request: Request, version: str) -> str:
    """Say what is wrong with a version; nothing where it is as new as the minimum."""
    if not version or at_least(version, request.minimum_version):
        return ""
    what = f"has {request.flaw}, which {request.minimum_version} mends"
    name = request.title or request.packages[0]
    return f"{name} {version} {what if request.flaw else f'is older than {request.minimum_version}'}"


def plan(request: Request, found: records.Packages, record: Record | None) -> Plan:
    """Decide what has to be done; what leaves, and what is to be held, is left to the caller."""
    there, lead = found.installed, request.packages[0]
    have, ours = there.get(lead), is_ours(there.get(lead), record)
    begun = record is not None and not record.done
    half = [name for name in found.half if name in (*request.packages, *request.apart, *request.family)]
    if have is None and not half:
        other = next((name for name in request.alternatives if name in there), "")
        if other and not request.latest and meets(there[other], request.version, request.minimum_version):
            return _stays(f"{other} {there[other]} is installed", there[other])
        alone = not other and not any(name in there for name in request.packages)
        if alone and not begun and request.program and os.path.exists(request.program):
            return _stays(f"{request.program} is there, and no package brought it; it is left as it is", "")
    flawed = have is not None and not at_least(have, request.minimum_version)
    # What a killed run has begun is finished in that version, unless its files are those of another one.
    fresh = have is None or (ours and (request.follow or (begun and bool(request.files))))
    wanted = request.version or (request.fresh_version if fresh or flawed or request.latest else "")
    target = wanted or have or ""
    # Who has installed it without these, or with others, meant it so.
    left = request.optional if have is not None and not ours and not wanted else ()
    asked = [name for name in request.packages if name not in left]
    off = [name for name in asked if name in there and not meets(there[name], target, request.minimum_version)]
    missing = [name for name in asked if name not in there]
    lacking = [name for name in request.apart if name not in there]
    killed = ours and begun and bool(off or missing)
    kept = request.version or have or ""
    stays = flawed and not (half or missing or killed)
    stays = stays and all(records.matches(there[name], kept) for name in asked)
    enough = have is not None and meets(have, request.version, request.minimum_version)
    # Files are of the version that is asked for, and of no use beside another one that stays.
    useless = bool(request.files) and not wanted
    if useless or not (half or off or missing or lacking):
        return _stays(f"{lead} {have} is installed", have or "", ours)
    whole = bool(off or missing or set(half) & {*request.packages, *request.family})
    return Plan(
        install=True,
        why=_why(request, found, target, stays, half or ((missing or off) if killed else []), off, missing + lacking),
        version=target,
        origin="installed" if whole or ours else "found",
        packages=(*request.packages, *(n for n in request.family if n in there)) if whole else (),
        along=(*(request.apart if have is None or off else lacking), *request.extra),
        interrupted=bool(half),
        behind=bool(off),
        stays=stays,
        enough=enough,
        had=enough and not ours,
    )


def _stays(why: str, version: str, ours: bool = False) -> Plan:
    return Plan(False, why, version, "installed" if ours else "found", enough=True, had=not ours)


def _why(
    request: Request,
    found: records.Packages,
    target: str,
    stays: bool,
    interrupted: list[str],
    off: list[str],
    missing: list[str],
) -> str:
    there, lead = found.installed, request.packages[0]
    other = next((name for name in request.alternatives if name in there), "")
    if interrupted:
        return f"the installation of {', '.join(interrupted)} was interrupted"
    if lead not in there and other:
        old = "" if request.version else shortcoming(request, there[other])
        return old or f"{other} {there[other]} is installed, wanted is {' '.join([lead, target]).strip()}"
    if lead not in there:
        return f"{request.title or lead} is not installed"
    old = shortcoming(request, there[lead]) if stays or lead in off else ""
    if old:
        return old
    if off:
        return f"{', '.join(f'{name} {there[name]}' for name in off)} installed, wanted is {target}"
    return f"missing: {', '.join(missing)}"


def look(request: Request) -> tuple[Plan, records.Packages]:
    """Return what has to be done, by the package manager's records alone, and what they say."""
    names = {*request.packages, *request.apart, *request.family, *request.alternatives, *request.replaces}
    found = records.read(request.manager, names)
    decided = plan(request, found, noted(request))
    if decided.install:
        leaving = tuple(name for name in request.replaces if name in found.installed)
        unfiled = request.manager == "apt" and bool(records.dpkg_unfiled())
        decided = decided._replace(leaving=leaving, interrupted=decided.interrupted or unfiled)
    return decided, found


def is_left(request: Request) -> bool:
    """Tell whether the repository that is there only for an installation is what a killed run has left."""
    return bool(request.temporary_repository) and os.path.exists(
        records.source_path(request.manager, request.temporary_repository)
    )


def summary(request: Request, decided: Plan) -> str:
    """Return in one phrase what the node has or gets, and who installed it."""
    return f"{request.title} {decided.version or 'of unknown version'}{', the node had it' if decided.had else ''}"
