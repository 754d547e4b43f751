# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Looks at a node's Docker once: refuses what cannot work, writes daemon.json, and says what has to follow."""

from __future__ import annotations

from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils import _docker_config as config
from ansible_collections.pcluster.postboot.plugins.module_utils import _docker_engine as engine
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem


class Request(NamedTuple):
    """What is asked for; the module's documentation tells what each part means."""

    path: str = "/etc/docker/daemon.json"
    settings: dict[str, Any] | None = None
    data_root: str = ""
    scratch: str | None = None
    scratch_dropin: str | None = None
    shared: dict[str, str] | None = None
    package_manager: str = "apt"
    packages: tuple[str, ...] = ()
    versioned: tuple[str, ...] = ()
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
    """Do it."""
    settings = request.settings or {}
    text, there = config.read(request.path)
    root = config.choose_root(request.data_root, settings, there, request.path, request.scratch)
    config.require_local(root, request.scratch, request.shared or {})
    config.require_scratch(root, request.scratch, request.scratch_dropin)
    after = config.with_root(config.merged(there, settings), root)
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
        header = {"before_header": request.path, "after_header": request.path}
        diff = {**header, "before": text, "after": config.text_of(after)}
        if not request.check:
            config.write(request.path, config.text_of(after))
    why_hold = engine.may_restart(request.restart, now, after.get("live-restore") is True, root.path)
    return Outcome(
        changed=changed,
        diff=diff,
        settings=after,
        data_root=root.path or config.DEFAULT_ROOT,
        install=install._asdict(),
        hold=bool(why_hold),
        why_hold=why_hold,
        warnings=[*refusal, *_left(request.path, why_hold if now and (changed or due) else "")],
    )


def _install(request: Request, now: engine.Running | None, program: str | None) -> tuple[engine.Install, list[str]]:
    """Return what has to be installed, and why it is not done although it is asked for."""
    wanted = engine.Wanted(
        request.package_manager,
        request.packages,
        request.versioned,
        request.version,
        request.fresh_version,
        request.upgrade,
        request.conflicts,
    )
    names = {*request.packages, *request.conflicts, *engine.ENGINES}
    found = engine.packages(request.package_manager, names)
    install = engine.plan(wanted, found, program is not None, now is not None)
    if not install.due:
        return install, []
    why = engine.may_replace(request.restart, now) if install.replaces else ""
    if why:
        line = f"Docker was left as it is ({install.why}): {why}"
        return engine.Install(False, line), [line]
    if install.in_the_way and not request.replace:
        raise Problem(
            f"{install.why}; in the way of {request.packages[0]}: {', '.join(install.in_the_way)}; remove them, or set "
            "docker_replace to true, which does"
        )
    return install, []


def _left(path: str, why: str) -> list[str]:
    if not why:
        return []
    return [f"Docker was not restarted, so it does not use what changed in {path} or in its program: {why}"]
