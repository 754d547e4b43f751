# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""apt or dnf doing what is due of packages that belong together.

Nothing is removed but what is named, and that only once everything that takes its place has been downloaded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._host import files
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import Said
from ansible_collections.pcluster.postboot.plugins.module_utils._packages import holds as packages_holds
from ansible_collections.pcluster.postboot.plugins.module_utils._packages import plan as planner
from ansible_collections.pcluster.postboot.plugins.module_utils._packages import records, tool
from ansible_collections.pcluster.postboot.plugins.module_utils._packages.plan import Plan, Record, Request

_NO_MATCH = re.compile(r"(no|unable to find a) match", re.IGNORECASE)
_LACKING = "unable to locate|no installation candidate|not installable|nothing provides|(no|unable to find a) match"
# What apt and dnf say when what they know of their repositories may be too old, or not there.
_STALE = re.compile(f"{_LACKING}|unable to fetch|held broken|not found|404", re.IGNORECASE)


class Outcome(NamedTuple):
    """What was done, or in check mode would be."""

    changed: bool
    plan: Plan
    installed: dict[str, str]
    diff: dict[str, str]


def _holds(request: Request) -> packages_holds.AptHolds | packages_holds.DnfHolds:
    patience = float(request.lock_timeout)
    return packages_holds.AptHolds(patience=patience) if request.manager == "apt" else packages_holds.DnfHolds()


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


def _update(request: Request) -> None:
    """Read apt's lists anew. What is wrong with them, the installation tells."""
    tool.call(["apt-get", "-q", "-o", f"DPkg::Lock::Timeout={request.lock_timeout}", "update"], request.lock_timeout)


def _listed(request: Request, names: Sequence[str], target: str) -> dict[str, str]:
    """Return the wanted version of each package as apt wants it: with its epoch, such as `1:`, and its own revision."""
    versions: dict[str, list[str]] = {}
    listing = tool.call(["apt-cache", "madison", *names], request.lock_timeout).out
    for line in listing.splitlines():
        name, version = (part.strip() for part in [*line.split("|"), ""][:2])
        if not target or records.matches(version.rpartition(":")[2], target):
            versions.setdefault(name, []).append(version)
    # The newest is first, but one that is the wanted one and nothing more is better.
    return {
        name: next((version for version in found if records.upstream(version) == target), found[0])
        for name, found in versions.items()
    }


def _newest(request: Request) -> str:
    """Return the newest version of the first package that is listed, within the one that is asked for."""
    lead, target = request.packages[0], request.version or request.fresh_version
    if request.manager == "apt":
        if not request.check and request.state == "present":
            _update(request)
        return records.upstream(_listed(request, [lead], target).get(lead, ""))
    spec = f"{lead}-{target}.*" if target else lead
    argv = ["dnf", "-q", "repoquery", "--latest-limit=1", "--queryformat=%{version}", spec]
    return "".join(tool.call(argv, request.lock_timeout).out.split()[-1:])


def _specs(request: Request, decided: Plan, longer: bool = False) -> list[str]:
    """Return the packages as apt or dnf wants them written; with `longer`, for versions that have more parts."""
    names, target = decided.packages, decided.version
    if request.files:
        return [*request.files, *decided.along]
    if not target or not names:
        return [*names, *decided.along]
    whole = re.match(r"\d+\.\d+\.\d", target)
    if request.manager == "dnf":
        return [*(f"{name}-{target}{'' if whole and not longer else '.*'}" for name in names), *decided.along]
    # What is not listed is left to apt to tell.
    listed = _listed(request, names, target)
    pattern = target + ("-*" if whole else ".*")
    return [*(f"{name}={listed.get(name, pattern)}" for name in names), *decided.along]


def _commands(request: Request, decided: Plan, leaving: Sequence[str] = (), longer: bool = False) -> list[str]:
    """Return the command line that installs; where packages have to leave, that which downloads what replaces them."""
    specs = _specs(request, decided, longer)
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
    """Release the packages while they are replaced. If this run is killed before it holds them, the next run does."""
    names = [name for name in request.packages if name in installed]
    if not names:
        return
    if request.manager == "dnf":
        packages_holds.DnfHolds().release(request.packages)
        return
    said = tool.call(["apt-mark", "unhold", *names], request.lock_timeout)
    if said.code:
        raise Problem(f"{' '.join(names)} cannot be released from their hold: {_why(said)}")


def _install(request: Request, decided: Plan, found: records.Packages) -> None:
    absent = [path for path in request.files if not os.path.exists(path)]
    if absent:
        raise Problem(f"files: {', '.join(absent)} is not there; download it first")
    if decided.packages:
        have, before = found.installed.get(request.packages[0], ""), planner.noted(request)
        was = have if planner.is_ours(have or None, before) else ""
        planner.note(request, Record(decided.version, False, was))
    if decided.interrupted:
        # Not judged by its exit status: what it cannot finish, the installation that follows replaces or names.
        tool.call(["dpkg", "--force-confdef", "--force-confold", "--configure", "--pending"], request.lock_timeout)
    if request.hold and decided.packages:
        _unhold(request, found.installed)
    if decided.leaving:
        _perform(request, decided, decided.leaving)
        _remove(request, decided.leaving)
    _perform(request, decided)


def _perform(request: Request, decided: Plan, leaving: Sequence[str] = ()) -> None:
    """Install, or only download; once more with fresh lists where old ones may be why it failed."""
    argv = _commands(request, decided, leaving)
    said = tool.call(argv, request.lock_timeout)
    if said.code and _STALE.search(said.out + said.err):
        if request.manager == "apt":
            _update(request)
            argv = _commands(request, decided, leaving)
        else:
            argv.insert(1, "--refresh")
        said = tool.call(argv, request.lock_timeout)
        if said.code and request.manager == "dnf" and _NO_MATCH.search(said.err):
            # To dnf 4.8.4 is not 4.8.4.3955; apt is told what is listed.
            longer = tool.call(_commands(request, decided, leaving, longer=True), request.lock_timeout)
            said = said if longer.code else longer
    if said.code:
        raise Problem(f"{argv[0]} could not install {' '.join(_specs(request, decided))}: {_why(said)}")


def _remove(request: Request, leaving: Sequence[str]) -> None:
    """Remove packages that cannot stay, and nothing else: what depends on them makes it fail."""
    argv = ["dpkg", "--remove"] if request.manager == "apt" else ["rpm", "--erase"]
    said = tool.call([*argv, *leaving], request.lock_timeout)
    if said.code:
        raise Problem(f"{' '.join(leaving)} cannot be removed, so {request.packages[0]} is not installed: {_why(said)}")


def _lines(versions: dict[str, str], names: Sequence[str]) -> str:
    return "".join(f"{name} {versions.get(name, 'absent')}\n" for name in names)


def _verify(request: Request, decided: Plan, after: dict[str, str]) -> None:
    """Refuse a success that is none."""
    along = [name for name in decided.along if name in request.apart]
    off = [
        name
        for name in decided.packages
        if name not in after or (decided.version and not records.matches(after[name], decided.version))
    ]
    wrong = [*off, *(name for name in along if name not in after)]
    if wrong:
        version = f" in version {decided.version}" if off and decided.version else ""
        raise Problem(f"{request.manager} reports success, but {', '.join(wrong)} is not there{version}")


def apply(request: Request) -> Outcome:
    """Look, and with state `present` act."""
    if not request.packages:
        raise Problem("packages: none is named; needed: at least one, the first of which tells the version")
    decided, found = planner.look(request)
    if request.latest and not decided.packages and decided.version:
        newest = _newest(request)
        if newest and not planner.at_least(decided.version, newest):
            decided, found = planner.look(request._replace(version=newest))
    holds = _holds(request)
    unheld = holds.to_hold(request.packages) if request.hold else []
    decided = decided._replace(hold=request.packages if request.hold and decided.packages else tuple(unheld))
    if not decided.install and unheld:
        decided = decided._replace(why=f"{decided.why}, not held: {', '.join(unheld)}")
    names = [*dict.fromkeys((*request.packages, *decided.packages, *request.family, *request.apart))]
    before = {name: found.installed[name] for name in names if name in found.installed}
    if request.state == "planned" or not (decided.install or unheld):
        return Outcome(False, decided, before, {})
    along = [name for name in decided.along if name in request.apart]
    after = {**before, **dict.fromkeys(along, "newest"), **dict.fromkeys(decided.packages, decided.version)}
    if not request.check:
        if decided.install:
            _install(request, decided, found)
            after = records.read(request.manager, names).installed
            _verify(request, decided, after)
            decided = decided._replace(version=after.get(request.packages[0], ""))
            if decided.packages:
                planner.note(request, Record(decided.version, True))
        if request.hold:
            holds.hold(holds.to_hold(request.packages))
    shown = [*request.packages, *(n for n in (*decided.packages, *along) if n not in request.packages)]
    shown += decided.leaving
    diff = files.diff("packages", _lines(found.installed, shown), _lines(after, shown))
    if decided.stays and not request.check and not unheld and diff["before"] == diff["after"]:
        return Outcome(False, decided, after, {})  # the repository has nothing newer
    if diff["before"] == diff["after"]:
        diff = files.diff("packages", "", f"held: {', '.join(unheld)}\n")
    return Outcome(True, decided, after, diff)
