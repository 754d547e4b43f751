# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Packages that belong together, in one version: what has to be done about them, and apt or dnf doing it.

What somebody else has installed stays as it is, unless a version is asked for. What this module has installed is noted
before it begins, so that the next run knows its own, and what a killed run has left. Nothing is removed but what is
named, and that only once everything that takes its place has been downloaded.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils import _docker_engine as engine
from ansible_collections.pcluster.postboot.plugins.module_utils import _node_software, _run, _run_holds
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import Said, run

RECORDS = "packages"  # below _run.STATE_DIR
SECONDS: float = 3600  # within which a program has to end, beside the time for which it waits for others
_BUSY = re.compile(r"could not get lock|unable to acquire|transaction lock|another process|is locked by", re.IGNORECASE)
_NO_MATCH = re.compile(r"(no|unable to find a) match", re.IGNORECASE)
_LACKING = "unable to locate|no installation candidate|not installable|nothing provides|(no|unable to find a) match"
# What apt and dnf say when what they know of their repositories may be too old, or not there.
_STALE = re.compile(f"{_LACKING}|unable to fetch|held broken|not found|404", re.IGNORECASE)


class Request(NamedTuple):
    """What is asked for; the module's documentation tells what each part means."""

    manager: str
    packages: tuple[str, ...]
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
    lock_timeout: int = 300
    state: str = "present"
    check: bool = False


class Record(NamedTuple):
    """What was last installed by this module; `done` is false while it is at it, and where it was killed."""

    version: str
    done: bool


class Plan(NamedTuple):
    """What has to be done, and why."""

    install: bool
    hold: list[str]
    interrupted: bool
    version: str
    origin: str  # found: somebody else's; installed: ours
    why: str
    behind: bool = False  # whether another version is replaced
    stays: bool = False  # whether what is there works, and is only older than the minimum
    leaving: Sequence[str] = ()  # what has to be removed before


class Outcome(NamedTuple):
    """What was done, or in check mode would be."""

    changed: bool
    plan: Plan
    installed: dict[str, str]
    diff: dict[str, str]


def _record_path(request: Request) -> str:
    return os.path.join(_run.STATE_DIR, RECORDS, f"{request.packages[0]}.json")


def _record(request: Request) -> Record | None:
    try:
        with open(_record_path(request), encoding="utf-8") as stream:
            data: Any = json.load(stream)
        return Record(str(data["version"]), bool(data["done"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _note(request: Request, record: Record) -> None:
    path = _record_path(request)
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    _run.write_atomically(path, json.dumps(record._asdict()) + "\n", 0o644)


def _holds(request: Request) -> _run_holds.AptHolds | _run_holds.DnfHolds:
    patience = float(request.lock_timeout)
    return _run_holds.AptHolds(patience=patience) if request.manager == "apt" else _run_holds.DnfHolds()


def at_least(version: str, minimum: str) -> bool:
    """Tell whether a version is as new as another one."""
    have, need = ([int(number) for number in re.findall(r"\d+", text)] for text in (version, minimum))
    return have[: len(need)] >= need


def meets(version: str, wanted: str, minimum: str) -> bool:
    """Tell whether a version is one that is wanted, and as new as a minimum, unless an older one is asked for."""
    if wanted and not engine.matches(version, wanted):
        return False
    return at_least(version, minimum) or bool(wanted and not engine.matches(minimum, wanted))


def shortcoming(request: Request, version: str) -> str:
    """Say what is wrong with a version; nothing where it is as new as the minimum."""
    if not version or at_least(version, request.minimum_version):
        return ""
    what = f"has {request.flaw}, which {request.minimum_version} mends"
    return f"{request.packages[0]} {version} {what if request.flaw else f'is older than {request.minimum_version}'}"


def plan(request: Request, found: engine.Packages, record: Record | None) -> Plan:
    """Decide what has to be done; what is to be held is left to the caller."""
    lead = request.packages[0]
    have = found.installed.get(lead)
    ours = record is not None and (not record.done or (have is not None and engine.matches(have, record.version)))
    fresh = have is None or (ours and (request.follow or not (record and record.done)))
    flawed = have is not None and not at_least(have, request.minimum_version)
    wanted = request.version or (request.fresh_version if fresh or flawed else "")
    if have is None and record is None and not found.half and request.program and os.path.exists(request.program):
        why = f"{request.program} is there, and no package brought it; it is left as it is"
        return Plan(False, [], False, "", "found", why)
    target = wanted or have or ""
    origin = "installed" if ours or have is None else "found"
    packages = request.packages
    there = {name: found.installed[name] for name in packages if name in found.installed}
    off = [name for name, version in there.items() if not meets(version, target, request.minimum_version)]
    missing = [name for name in packages if name not in there]
    half = [name for name in found.half if name in packages]
    killed = ours and record is not None and not record.done and bool(off or missing)
    asked = request.version or have or ""
    stays = flawed and not (half or missing or killed) and all(engine.matches(one, asked) for one in there.values())
    # Files are of the version that is asked for, and of no use beside another one that stays.
    useless = bool(request.files) and not wanted
    if useless or not (half or off or missing):
        return Plan(False, [], False, have or "", origin, f"{lead} {have} is installed")
    if half or killed:
        why = f"the installation of {', '.join(half or missing or off)} was interrupted"
    elif have is None:
        why = f"{lead} is not installed"
    elif stays:
        why = shortcoming(request, have)
    elif off:
        why = f"{', '.join(f'{name} {found.installed[name]}' for name in off)} installed, wanted is {target}"
    else:
        why = f"missing: {', '.join(missing)}"
    return Plan(True, [], bool(half), target, "installed", why, bool(off), stays=stays)


def _run_tool(argv: Sequence[str], request: Request) -> Said:
    """Run apt, dpkg or dnf, again and again while another one is at work."""
    # needrestart would restart services, slurmd among them, under whatever runs in them.
    quiet = {"DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_SUSPEND": "1"}
    stopped = "see with 'ps -ef' which package's script it waited for, and run this again"
    deadline, limit = time.monotonic() + request.lock_timeout, request.lock_timeout + SECONDS
    while True:
        if not shutil.which(argv[0]):
            raise Problem(f"the program {argv[0]} is not there; is manager {request.manager!r} right?")
        said = run(argv, limit, environment=quiet, hint=stopped)
        if not said.code or not _BUSY.search(said.err) or time.monotonic() >= deadline:
            return said
        _run.heartbeat()
        time.sleep(5)


def _why(said: Said) -> str:
    """Return what was wrong, in apt's, dpkg's or dnf's own words."""
    lines = [line.strip() for line in said.err.splitlines() if line.strip() and not re.match(r"W:|warning", line, re.I)]
    # Of packages that cannot be had, apt tells on standard output, in lines that are indented.
    lines = [line.strip() for line in said.out.splitlines() if re.search(r"^ .*(Depends|Conflicts):", line)] + lines
    text = " ".join(lines) or f"it ended with {said.code} and said nothing"
    text = text if len(text) <= 500 else text[:497] + "..."
    if re.search(_LACKING, text, re.IGNORECASE):
        text += "; enable the repository that has it (on RHEL and Rocky some packages are in EPEL only)"
    return text


def _listed(request: Request, target: str) -> dict[str, str]:
    """Return the wanted version of each package as apt wants it: with its epoch, such as `1:`, and its own revision."""
    versions: dict[str, list[str]] = {}
    listing = _run_tool(["apt-cache", "madison", *request.packages], request).out
    for line in listing.splitlines():
        name, version = (part.strip() for part in [*line.split("|"), ""][:2])
        if not target or engine.matches(version.rpartition(":")[2], target):
            versions.setdefault(name, []).append(version)
    # The newest is first, but one that is the wanted one and nothing more is better.
    return {
        name: next((version for version in found if _node_software.upstream(version) == target), found[0])
        for name, found in versions.items()
    }


def _newest(request: Request) -> str:
    """Return the newest version of the first package that is listed, within the one that is asked for."""
    lead, target = request.packages[0], request.version
    if request.manager == "apt":
        if not request.check and request.state == "present":
            _run_tool(["apt-get", "-q", "-o", f"DPkg::Lock::Timeout={request.lock_timeout}", "update"], request)
        return _node_software.upstream(_listed(request, target).get(lead, ""))
    spec = f"{lead}-{target}.*" if target else lead
    argv = ["dnf", "-q", "repoquery", "--latest-limit=1", "--queryformat=%{version}", spec]
    return "".join(_run_tool(argv, request).out.split()[-1:])


def _specs(request: Request, target: str, longer: bool = False) -> list[str]:
    """Return the packages as apt or dnf wants them written; with `longer`, for versions that have more parts."""
    if request.files:
        return list(request.files)
    if not target:
        return list(request.packages)
    whole = re.match(r"\d+\.\d+\.\d", target)
    if request.manager == "dnf":
        return [f"{name}-{target}{'' if whole and not longer else '.*'}" for name in request.packages]
    # What is not listed is left to apt to tell.
    listed = _listed(request, target)
    return [f"{name}={listed.get(name, target + ('-*' if whole else '.*'))}" for name in request.packages]


def _commands(request: Request, decided: Plan, leaving: Sequence[str] = (), longer: bool = False) -> list[str]:
    """Return the command line that installs; where packages have to leave, that which downloads what replaces them."""
    specs = [*_specs(request, decided.version, longer), *request.extra]
    if leaving and request.manager == "dnf":
        flags = ["--setopt=install_weak_deps=False", "--setopt=exit_on_lock=True", "--allowerasing", "--downloadonly"]
        return ["dnf", "-y", "-q", *flags, "install", *specs]
    if request.manager == "dnf":
        return ["dnf", "-y", "-q", "--setopt=install_weak_deps=False", "--setopt=exit_on_lock=True", "install", *specs]
    options = [f"DPkg::Lock::Timeout={request.lock_timeout}", "Dpkg::Options::=--force-confdef"]
    options += ["Dpkg::Options::=--force-confold"]
    # A newer version may have taken away configuration that an older one cannot do without.
    options += ["Dpkg::Options::=--force-confmiss"] if decided.behind else []
    argv = ["apt-get", "-q", "-y", "--no-install-recommends", "--download-only" if leaving else "--no-remove"]
    argv += ["--allow-downgrades"] if decided.behind else []
    argv += [word for option in options for word in ("-o", option)]
    return [*argv, "install", *specs, *(f"{name}-" for name in leaving)]


def _unhold(request: Request, installed: dict[str, str]) -> None:
    """Let the packages be replaced. A run that is killed before they are held again leaves that to the next."""
    names = [name for name in request.packages if name in installed]
    if not names:
        return
    if request.manager == "dnf":
        _run_holds.DnfHolds().release(request.packages)
        return
    said = _run_tool(["apt-mark", "unhold", *names], request)
    if said.code:
        raise Problem(f"{' '.join(names)} cannot be released from their hold: {_why(said)}")


def _install(request: Request, decided: Plan, found: engine.Packages) -> None:
    absent = [path for path in request.files if not os.path.exists(path)]
    if absent:
        raise Problem(f"files: {', '.join(absent)} is not there; download it first")
    _note(request, Record(decided.version, False))
    if decided.interrupted:
        # Not judged by its exit status: what it cannot finish, the installation that follows replaces or names.
        _run_tool(["dpkg", "--force-confdef", "--force-confold", "--configure", "--pending"], request)
    if request.hold:
        _unhold(request, found.installed)
    if decided.leaving:
        _perform(request, decided, decided.leaving)
        _remove(request, decided.leaving)
    _perform(request, decided)


def _perform(request: Request, decided: Plan, leaving: Sequence[str] = ()) -> None:
    """Install, or only download; once more with fresh lists where old ones may be why it failed."""
    argv = _commands(request, decided, leaving)
    said = _run_tool(argv, request)
    if said.code and _STALE.search(said.out + said.err):
        if request.manager == "apt":
            _run_tool(["apt-get", "-q", "-o", f"DPkg::Lock::Timeout={request.lock_timeout}", "update"], request)
            argv = _commands(request, decided, leaving)
        else:
            argv.insert(1, "--refresh")
        said = _run_tool(argv, request)
        if said.code and request.manager == "dnf" and _NO_MATCH.search(said.err):
            # To dnf 4.8.4 is not 4.8.4.3955; apt is told what is listed.
            longer = _run_tool(_commands(request, decided, leaving, longer=True), request)
            said = said if longer.code else longer
    if said.code:
        raise Problem(f"{argv[0]} could not install {' '.join(_specs(request, decided.version))}: {_why(said)}")


def _remove(request: Request, leaving: Sequence[str]) -> None:
    """Remove packages that cannot stay, and nothing else: what depends on them makes it fail."""
    argv = ["dpkg", "--remove"] if request.manager == "apt" else ["rpm", "--erase"]
    said = _run_tool([*argv, *leaving], request)
    if said.code:
        raise Problem(f"{' '.join(leaving)} cannot be removed, so {request.packages[0]} cannot come: {_why(said)}")


def _lines(versions: dict[str, str], names: Sequence[str]) -> str:
    return "".join(f"{name} {versions.get(name, 'absent')}\n" for name in names)


def apply(request: Request) -> Outcome:
    """Look, and with state `present` act."""
    if not request.packages:
        raise Problem("packages: none is named; needed: at least one, the first of which tells the version")
    found = engine.packages(request.manager, {*request.packages, *request.replaces})
    leaving = [name for name in request.replaces if name in found.installed]
    interrupted = request.manager == "apt" and bool(engine.dpkg_unfiled())
    decided = plan(request, found, _record(request))
    if request.latest and not decided.install and decided.version:
        newest = _newest(request)
        if newest and not at_least(decided.version, newest):
            decided = plan(request._replace(version=newest), found, _record(request))
    decided = decided._replace(interrupted=decided.install and (decided.interrupted or interrupted))
    holds = _holds(request)
    unheld = holds.to_hold(request.packages) if request.hold else []
    foretold = list(request.packages) if request.hold and decided.install else unheld
    decided = decided._replace(hold=foretold, leaving=leaving if decided.install else [])
    if not decided.install and unheld:
        decided = decided._replace(why=f"{decided.why}, not held: {', '.join(unheld)}")
    due = decided.install or bool(unheld)
    before = {name: version for name, version in found.installed.items() if name not in leaving}
    if request.state == "planned" or not due:
        return Outcome(False, decided, before, {})
    after = {**before, **(dict.fromkeys(request.packages, decided.version) if decided.install else {})}
    if not request.check:
        if decided.install:
            _install(request, decided, found)
            after = engine.packages(request.manager, set(request.packages)).installed
            target = decided.version
            wrong = [n for n in request.packages if n not in after or (target and not engine.matches(after[n], target))]
            if wrong:
                raise Problem(
                    f"{request.manager} reports success, but {', '.join(wrong)} is not there in version {target}"
                )
            decided = decided._replace(version=after[request.packages[0]])
            _note(request, Record(decided.version, True))
        if request.hold:
            holds.hold(holds.to_hold(request.packages))
    names = [*request.packages, *decided.leaving]
    diff = {"before": _lines(found.installed, names), "after": _lines(after, names)}
    if decided.stays and not request.check and not unheld and diff["before"] == diff["after"]:
        return Outcome(False, decided, after, {})  # the repository has nothing newer
    if diff["before"] == diff["after"]:
        diff = {"before": "", "after": f"held: {', '.join(unheld)}\n"}
    return Outcome(True, decided, after, {**diff, "before_header": "packages", "after_header": "packages"})
