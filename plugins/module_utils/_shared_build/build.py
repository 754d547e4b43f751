# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Publishes a release on shared storage: built once for all nodes, there whole or not at all."""

from __future__ import annotations

import os
import re
import time
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._host import files, lock
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import run
from ansible_collections.pcluster.postboot.plugins.module_utils._shared_build import release as releases
from ansible_collections.pcluster.postboot.plugins.module_utils._shared_build import root as roots
from ansible_collections.pcluster.postboot.plugins.module_utils._shared_build import steps as commands

LOGS = "logs"
_RESERVED = re.compile(rf"{LOGS}|{roots.CURRENT}(-.*)?")
# How the key of what was compiled ends.
_SYSTEM = re.compile(r"-glibc([^-]+)$")
BUSY_TIMEOUT = 60
_LOOK = "; look at it, as it is removed when the next release is published"


class Request(NamedTuple):
    """The module's options."""

    name: str
    root: str
    release: str
    inputs: dict[str, Any]
    steps: tuple[tuple[str, ...], ...]
    builder: bool = True
    source: str | None = None
    environment: dict[str, str] = {}
    needs: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()
    proof: tuple[str, ...] = ()
    current: bool = True
    key: str = ""
    cluster: str = ""
    jobs: int = 0
    wait: int = 3600
    silence: int = 0
    keep: int = 0
    busy: tuple[str, ...] = ()
    check: bool = False

    @property
    def what(self) -> str:
        """Name the release in messages."""
        return f"{self.name} {self.release}"

    @property
    def former_key(self) -> str:
        """Return the key as it was before it named the C library; the key itself where it names none."""
        return _SYSTEM.sub("", self.key)

    @property
    def former(self) -> str:
        """Name the release as it was called with that key; nothing where it has no other name."""
        named = self.key != self.former_key and self.release.endswith(f"-{self.key}")
        return self.release[: -len(self.key)] + self.former_key if named else ""


class Outcome(NamedTuple):
    """The module's result."""

    changed: bool
    due: bool
    why: str
    published: bool
    path: str
    current: str
    summary: str
    missing: list[str]
    waited_for: str
    building: str
    pruned: list[str]
    warnings: list[str]
    diff: list[dict[str, str]]


class Plan(NamedTuple):
    """What is published, and what is left to do."""

    survey: releases.Survey
    current: str
    owner: str  # which other cluster `current` belongs to; empty for none
    switch: dict[str, str]  # the links that have to name the release, and what they name now
    older: list[str]

    @property
    def idle(self) -> bool:
        """Say whether nothing is to be done."""
        return self.survey.whole and not self.switch and not self.older


def _validate(request: Request) -> None:
    wrong = ""
    relative = [path for path in request.provides if os.path.isabs(path) or ".." in path.split("/") or not path]
    if not os.path.isabs(request.root) or os.path.normpath(request.root) == "/":
        wrong = f"root is {request.root!r}; needed is the absolute path of a directory on shared storage"
    elif not re.fullmatch(r"\w[\w.+~-]*", request.release, re.ASCII) or _RESERVED.fullmatch(request.release):
        wrong = f"release is {request.release!r}; needed is a name such as 2.32.3-cuda13-x86_64"
    elif not re.fullmatch(r"[\w.+~-]*", request.key, re.ASCII):
        wrong = f"key is {request.key!r}; needed is a word such as cuda13-x86_64, or none"
    elif not request.steps or not all(request.steps):
        wrong = "steps has none, or an empty one; needed is a list of commands, each with its arguments"
    elif relative:
        wrong = f"provides has {relative[0]!r}; needed are paths within the release"
    elif min(request.jobs, request.wait, request.silence, request.keep) < 0:
        wrong = "jobs, wait, silence or keep is below 0; needed is 0 or more"
    elif request.keep and not request.busy:
        wrong = f"keep is {request.keep} without busy; needed is the command that tells whether jobs run"
    if wrong:
        raise Problem(f"{request.name}: {wrong}")


# --- looking ---------------------------------------------------------------------------------------------------------


def _plan(request: Request, warnings: list[str]) -> Plan:
    survey = releases.survey(request.root, request.release, request.inputs, request.what)
    survey = survey if survey.whole else _adopted(request) or survey
    current = roots.pointed_at(request.root)
    owner = "" if current == survey.name else _owner(request, current)
    links = _links(request, owner)
    named = {link: current if link == roots.CURRENT else roots.pointed_at(request.root, link) for link in links}
    switch = {link: before for link, before in named.items() if before != survey.name}
    for link, before in switch.items() if survey.whole else ():
        survey = survey._replace(why=f"{os.path.join(request.root, link)} named {before or 'nothing'}")
    ripe = request.builder and (survey.whole or request.source is not None)
    older = _older(request, survey.name, links, warnings) if ripe else []
    return Plan(survey, current, owner, switch, older)


def _adopted(request: Request) -> releases.Survey | None:
    """Return the whole release under the former key, if it starts on nodes with this one's C library."""
    if not request.former:
        return None
    found = releases.survey(request.root, request.former, request.inputs, request.what)
    if not found.whole:
        return None
    if roots.pointed_at(request.root, f"{roots.CURRENT}-{request.key}") == found.name:
        return found  # it was adopted before
    named = _SYSTEM.search(request.key)
    fits = named and request.builder and releases.starts_with(os.path.join(request.root, found.name), named[1])
    return found if fits else None


def _owner(request: Request, current: str) -> str:
    """Return the other cluster that made what `current` names, for nodes of another kind; nothing if it is free."""
    made = releases.manifest_of(os.path.join(request.root, current)) if current and request.key else {}
    owner = str(made.get("cluster", ""))
    return owner if made.get("key", request.key) != request.key and owner != request.cluster else ""


def _links(request: Request, owner: str) -> list[str]:
    """Return the links that are to name the release. Only one kind of nodes can have `current`."""
    if not request.current:
        return []
    own = [f"{roots.CURRENT}-{request.key}"] if request.key else []
    return own if owner else [*own, roots.CURRENT]


def _older(request: Request, name: str, links: list[str], warnings: list[str]) -> list[str]:
    """Return which releases may and shall be removed."""
    if not request.keep or not os.path.isdir(request.root):
        return []
    # What other links name, other nodes use, or other clusters.
    others = [link for link in roots.links_in(request.root) if link not in links]
    stays = {name, *(os.path.basename(roots.pointed_at(request.root, link)) for link in others)}
    keys = (request.key, request.former_key)
    older = [other for _serial, other in releases.all_in(request.root, keys) if other not in stays]
    older = older[request.keep :]
    why = _in_use(request) if older else ""
    if not why:
        return older
    told = f"{', '.join(older)} in {request.root} {'stays' if len(older) == 1 else 'stay'}: {why}"
    warnings += [told] if told not in warnings else []
    return []


def _in_use(request: Request) -> str:
    """Return why nothing may be removed, also if the command fails; empty if removing is safe."""
    try:
        told = run(request.busy, BUSY_TIMEOUT).output()
    except Problem as error:
        return f"it could not be told whether jobs run ({error})"
    jobs = [line.strip() for line in told.splitlines() if line.strip()]
    more = f" and {len(jobs) - 5} more" if len(jobs) > 5 else ""
    return f"jobs run ({', '.join(jobs[:5])}{more}); a run while none does removes it" if jobs else ""


def _outcome(request: Request, plan: Plan, warnings: list[str], **more: Any) -> Outcome:
    survey = plan.survey
    told = f"{request.name} {survey.name}{f', built by {survey.builder}' if survey.builder else ''}"
    told += f"; {roots.CURRENT} is cluster {plan.owner}'s, {plan.current}" if plan.owner else ""
    given: dict[str, Any] = {
        "changed": False,
        "due": False,
        "why": survey.why,
        "published": survey.whole,
        "path": os.path.join(request.root, survey.name),
        "current": plan.current,
        "summary": told if survey.whole else "" if request.builder else f"no {request.what}",
        "missing": [],
        "waited_for": "",
        "building": "",
        "pruned": [],
        "warnings": warnings,
        "diff": [],
    }
    return Outcome(**{**given, **more})


def _diff(request: Request, plan: Plan) -> list[dict[str, str]]:
    """Show the release and the links, before and after."""
    survey = plan.survey
    state = "whole" if survey.whole else "no release" if survey.taken else "absent"
    before = [f"{survey.name}: {state}", *(f"{link}: {named or 'absent'}" for link, named in plan.switch.items())]
    before += [f"older: {', '.join(plan.older)}"] if plan.older else []
    after = [f"{survey.name}: whole", *(f"{link}: {survey.name}" for link in plan.switch)]
    return [files.diff(request.root, *("".join(f"{line}\n" for line in lines) for lines in (before, after)))]


# --- building --------------------------------------------------------------------------------------------------------


def _build(request: Request, held: roots.Held, name: str) -> None:
    """Make the release in the own directory of the holder, up to its manifest."""
    stage = os.path.join(held.own, name)
    os.mkdir(stage, 0o755)
    logs = [os.path.join(request.root, LOGS), commands.LOG_DIR]
    with commands.scratch() as scratch, commands.Log(request.release, logs) as log:
        places = {
            "source": str(request.source),
            "scratch": scratch,
            "stage": stage,
            "jobs": str(commands.job_count(request.jobs)),
        }
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "HOME": scratch, "TMPDIR": scratch}
        environment.update({key: commands.fill(value, places) for key, value in request.environment.items()})
        for number, step in enumerate(request.steps, 1):
            told = f"step {number} of {len(request.steps)}"
            _command(request, held, log, told, [commands.fill(word, places) for word in step], environment, scratch)
        for path in request.provides:
            there = os.path.join(stage, path)
            if not os.path.isfile(there) or not os.path.getsize(there):
                held.verify()
                raise Problem(
                    f"{request.what} was built without {path}, or that is empty; needed is a file{_see(log)}",
                    log=log.lines()[-commands.TOLD :],
                )
        if request.proof:
            argv = [commands.fill(word, places) for word in request.proof]
            _command(request, held, log, "the proof", argv, environment, scratch)
        found = commands.versions(request.needs, environment)
    held.verify()
    facts = {
        "name": request.name,
        "release": request.release,
        "inputs": request.inputs,
        "serial": 1 + max((serial for serial, _name in releases.all_in(request.root)), default=0),
        "builder": roots.node_name(),
        "cluster": request.cluster,
        "key": request.key,
        "utc": lock.utc(time.time()),
        "tools": found,
    }
    releases.seal(stage, facts)


def _see(log: commands.Log) -> str:
    return f"; its log is {log.path}" if log.path else ""


def _command(
    request: Request,
    held: roots.Held,
    log: commands.Log,
    told: str,
    argv: list[str],
    environment: dict[str, str],
    folder: str,
) -> None:
    held.verify()
    code = commands.run(argv, folder, environment, log)
    if not code:
        return
    held.verify()  # a lock that is lost, or storage that is gone, is the better reason
    lines = log.lines()
    failed = f"{told} of {request.what} ('{commands.shown(argv)}') ended with {code}"
    for number in roots.STORAGE_ERRORS:
        blamed = [line for line in lines if os.strerror(number) in line and request.root in line]
        if blamed:
            why = roots.explain(request.root, OSError(number, os.strerror(number)))
            raise Problem(f"{why} ({failed}: {blamed[0]}{_see(log)})", log=lines[-commands.TOLD :])
    raise Problem(f"{failed}: {commands.blame(lines)}{_see(log)}", log=lines[-commands.TOLD :])


def _require_source(request: Request) -> None:
    missing = commands.missing(request.needs, request.environment)
    if missing:
        raise Problem(f"{request.what} can not be built: {', '.join(missing)} not found; install what has them")
    if not os.path.exists(str(request.source)):
        raise Problem(f"{request.what} can not be built: {request.source} is not there; needed is its source")


def _carry_out(request: Request, held: roots.Held, warnings: list[str]) -> tuple[Plan, list[str]]:
    """Publish, link and remove what is due, under the lock; return the plan, and what else was removed."""
    plan = _plan(request, warnings)
    survey, fresh = plan.survey, set(held.kept)
    if not survey.whole:
        if request.source is None:
            raise Problem(f"{survey.why}, though it was there a moment ago; run again")
        _require_source(request)
        _build(request, held, survey.name)
        if survey.taken:
            aside = held.set_aside(survey.name)
            fresh.add(aside)
            warnings.append(f"{survey.why}: it is now {os.path.join(request.root, aside)}{_LOOK}")
        held.publish(os.path.join(held.own, survey.name), survey.name)
        plan = plan._replace(older=_older(request, survey.name, _links(request, plan.owner), warnings))
    for link in plan.switch:
        held.point(survey.name, link)
    for name in plan.older:
        held.remove(name)
    # There was time to look at it until now.
    gone = [name for name in roots.set_aside_in(request.root) if name not in fresh]
    gone = gone if plan.older or not survey.whole else []
    for name in gone:
        held.remove(name)
    return plan, gone


def apply(request: Request) -> Outcome:
    """Publish the release if its source is given; otherwise say whether it is published."""
    _validate(request)
    request = request._replace(root=os.path.normpath(request.root))
    try:
        return _apply(request)
    except OSError as error:
        raise Problem(f"{request.name}: {roots.explain(request.root, error)}") from error


def _apply(request: Request) -> Outcome:
    warnings: list[str] = []
    gone: list[str] = []
    plan, waited, building = _look(request, warnings)
    if not request.builder:
        if not plan.survey.whole and not request.check:
            lock.heartbeat(request.silence)
        return _outcome(request, plan, warnings, waited_for=waited, building=building)
    if not plan.survey.whole and request.source is None:
        missing = commands.missing(request.needs, request.environment)
        return _outcome(request, plan, warnings, due=True, missing=missing, waited_for=waited)
    if not request.check:
        commands.tidy()
        if plan.idle:
            warnings += _of_no_use(request, roots.tidy(request.root, request.release))
        else:
            roots.prepare(request.root)
            held, told = roots.take(request.root, request.release, request.wait)
            waited = told or waited
            with held:
                warnings += _of_no_use(request, held.kept)
                try:
                    plan, gone = _carry_out(request, held, warnings)
                except OSError:
                    held.verify()  # a lock that is lost is the better reason
                    raise
    if plan.idle:  # also when another has just done it
        return _outcome(request, plan, warnings, waited_for=waited)
    survey = plan.survey if plan.survey.whole else plan.survey._replace(whole=True, builder=roots.node_name())
    after = plan._replace(survey=survey, current=survey.name if roots.CURRENT in plan.switch else plan.current)
    done = {"changed": True, "waited_for": waited, "pruned": plan.older + gone, "diff": _diff(request, plan)}
    return _outcome(request, after, warnings, **done)


def _look(request: Request, warnings: list[str]) -> tuple[Plan, str, str]:
    """Look what there is; where it is not whole and somebody is at work, wait for that and look again.

    Return what there is, whom it was waited for, and who is still at it.
    """
    plan = _plan(request, warnings)
    if plan.survey.whole or request.check or (request.builder and request.source is not None):
        return plan, "", ""
    if request.builder and os.path.isdir(request.root):
        roots.require_flock(request.root)
    try:
        holder, works_on = roots.watch(request.root, request.wait)
    except Problem:
        if request.builder:
            raise
        holder = None  # without locks there is nobody to wait for
    if holder is None:
        return plan, "", ""
    plan = _plan(request, warnings) if request.wait else plan  # without a wait nothing can have changed
    if plan.survey.whole or not works_on:
        return plan, str(holder), ""
    if request.builder:
        raise roots.held_too_long(request.root, holder, request.wait)
    plan = plan._replace(survey=plan.survey._replace(why=f"{plan.survey.why}; {holder} builds it"))
    return plan, str(holder), str(holder)


def _of_no_use(request: Request, names: list[str]) -> list[str]:
    return [f"{os.path.join(request.root, name)} is no release, and was set aside{_LOOK}" for name in names]
