# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Looks at a node's Docker once: refuses what cannot work, writes daemon.json, and says what has to follow."""

from __future__ import annotations

from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._docker import config, engine
from ansible_collections.pcluster.postboot.plugins.module_utils._host import files
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._packages import plan


class Request(NamedTuple):
    """The module's options."""

    path: str = "/etc/docker/daemon.json"
    settings: dict[str, Any] = {}
    data_root: str = ""
    scratch: str | None = None
    scratch_dropin: str | None = None
    shared: dict[str, str] = {}
    package_manager: str = "apt"
    packages: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    version: str = ""
    fresh_version: str = ""
    upgrade: bool = False
    replace: bool = False
    restart: str = "auto"
    check: bool = False


class Outcome(NamedTuple):
    """What was done, or in check mode would be, and what has to follow."""

    changed: bool
    diff: dict[str, str]
    settings: dict[str, Any]
    data_root: str
    install: dict[str, Any]
    hold: bool
    why_hold: str
    warnings: list[str]


def apply(request: Request) -> Outcome:
    text, there = config.read(request.path)
    root = config.choose_root(request.data_root, request.settings, there, request.path, request.scratch)
    config.require_local(root, request.scratch, request.shared)
    config.require_scratch(root, request.scratch, request.scratch_dropin)
    after = config.with_root(config.merged(there, request.settings), root)
    changed = after != there

    now = engine.running()
    program = engine.program()
    install, refusal = _install(request, now, program)
    # A dockerd that runs has proven what it has read.
    if program and (changed or now is None):
        config.validate(program, after, request.path)
    due = engine.outdated(now, [request.path, *engine.PROGRAMS])
    diff = {}
    if changed:
        diff = files.diff(request.path, text, config.text_of(after))
        if not request.check:
            config.write(request.path, config.text_of(after))
    why_hold = engine.may_restart(request.restart, now, after.get("live-restore") is True, root.path)
    elsewhere = config.elsewhere(after, root)
    left = _left(request.path, why_hold if now and (changed or due) else "")
    return Outcome(
        changed=changed,
        diff=diff,
        settings=after,
        data_root=root.path or config.DEFAULT_ROOT,
        install=install,
        hold=bool(why_hold),
        why_hold=why_hold,
        warnings=[*refusal, *left, *([elsewhere] if elsewhere else [])],
    )


def _install(request: Request, now: engine.Running | None, program: str | None) -> tuple[dict[str, Any], list[str]]:
    """Return what has to be installed, and a warning if an installation that is due is not allowed."""
    if not request.packages:
        return {"due": False, "why": "docker_packages is empty"}, []
    # dpkg notes a package before it unpacks it, rpm only afterwards: there, a dockerd that no package owns and that
    # does not run may be what an interrupted installation left.
    counts = program is not None and (now is not None or request.package_manager == "apt")
    wanted = plan.Request(
        manager=request.package_manager,
        packages=request.packages,
        title="Docker",
        optional=request.packages[1:],
        apart=request.apart,
        alternatives=request.alternatives,
        version=request.version,
        fresh_version=request.fresh_version,
        latest=request.upgrade,
        replaces=request.conflicts,
        program=program if counts and program else "",
    )
    decided, found = plan.look(wanted)
    there = any(name in found.installed for name in (request.packages[0], *request.alternatives))
    due = decided.install or (request.upgrade and there)
    why = decided.why if decided.install else "docker_upgrade is true"
    told = {"due": due, "why": why, "version": decided.version, "packages": decided.packages, "along": decided.along}
    if not due:
        return {**told, "why": decided.why}, []
    if request.version and not decided.enough:
        why += ", as docker_version says"
    replaces = there and (decided.behind or request.upgrade or not decided.enough)
    refused = engine.may_replace(request.restart, now) if replaces else ""
    if refused:
        line = f"Docker was left as it is ({why}): {refused}"
        return {**told, "due": False, "why": line}, [line]
    if decided.leaving and not request.replace:
        names = ", ".join(f"{name} {found.installed[name]}" for name in decided.leaving)
        raise Problem(
            f"{why}; in the way of {request.packages[0]}: {names}; remove them, or set docker_replace to true, which "
            "removes them"
        )
    return told, []


def _left(path: str, why: str) -> list[str]:
    if not why:
        return []
    return [f"Docker was not restarted, so it does not use what changed in {path} or in its program: {why}"]
