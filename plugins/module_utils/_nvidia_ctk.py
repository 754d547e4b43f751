# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What containers need to find a node's GPUs: fresh CDI files, the runtime's mode, and Docker's runtimes."""

from __future__ import annotations

import os
import re
import shutil
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._docker import config as docker_config
from ansible_collections.pcluster.postboot.plugins.module_utils._docker import engine
from ansible_collections.pcluster.postboot.plugins.module_utils._host import files
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import Said, run
from ansible_collections.pcluster.postboot.plugins.module_utils._packages import plan
from ansible_collections.pcluster.postboot.plugins.module_utils._systemd import systemctl, unit

PROGRAM = "nvidia-ctk"
SECONDS: float = 120  # within which a program has to end
REFRESH = ("nvidia-cdi-refresh.service", "nvidia-cdi-refresh.path")
# Nothing else makes /dev/nvidia-uvm before the first program that uses CUDA. A CDI file that was made before that lacks
# the device, and CUDA does not start in containers. After v1.20.0 upstream's unit does the same (commit 8269969f).
_MAKE = "/usr/bin/nvidia-ctk system create-device-nodes --control-devices"
DEVICE_NODES = f"""[Service]
ExecStartPre=-/bin/sh -c '{_MAKE} --load-kernel-modules || {_MAKE}'
"""
HOOKS = ("/usr/bin/nvidia-container-runtime-hook", "/usr/bin/nvidia-cdi-hook")
_MODE = re.compile(r'^\s*mode\s*=\s*"([^"]*)"', re.MULTILINE)
# Its warnings, as sirupsen/logrus writes them where no terminal reads them, and those of two files with one device.
_WARNING = re.compile(r'level=(?:warning|error) msg="((?:[^"\\]|\\.)*)"')
_CONFLICT = re.compile(r'conflicting device "([^"]*)" \(specs ([^()]*)\)')
_SECTION = re.compile(r"^\s*\[nvidia-container-runtime\]\s*$(.*?)(?=^\s*\[|\Z)", re.MULTILINE | re.DOTALL)


class Request(NamedTuple):
    """The module's options."""

    docker: bool = True
    daemon_config: str = "/etc/docker/daemon.json"
    daemon_settings: dict[str, Any] = {}
    set_as_default: bool = False
    cdi: bool = True
    restart: str = "auto"
    runtime_config: str = "/etc/nvidia-container-runtime/config.toml"
    mode: str = "auto"
    gpus: int = 0
    minimum_version: str = ""
    flaw: str = ""
    check: bool = False


class Outcome(NamedTuple):
    """What was done, or in check mode would be, and what has to follow."""

    changed: bool
    diff: list[dict[str, str]]
    version: str
    devices: list[str]
    docker: bool
    hold: bool
    why_hold: str
    summary: str
    warnings: list[str]


def _ask(*arguments: str) -> Said:
    said = run([PROGRAM, *arguments], SECONDS)
    if said.code:
        raise Problem(f"'{said.command}' failed: {said.reason}")
    return said


def _ctk(*arguments: str) -> str:
    return _ask(*arguments).out


def version() -> str:
    """Return the toolkit's version."""
    match = re.search(r"version\s+v?(\d[\w.-]*)", _ctk("--version"))
    return match[1] if match else "of unknown version"


def devices() -> tuple[list[str], list[str]]:
    """Return the GPUs that CDI files offer, by their numbers, as each has a UUID too; and the warnings about the files.

    The files of one directory hide each device that two of them name, and nvidia-ctk 1.19.1 ends with 0 all the same.
    """
    said = _ask("cdi", "list")
    names = re.findall(r"^(\S+/gpu=\d+(?::\d+)?)\s*$", said.out, re.MULTILINE)
    names.sort(key=lambda name: [int(part) for part in re.findall(r"\d+", name.rpartition("=")[2])])
    messages = [re.sub(r"\\(.)", r"\1", message) for message in _WARNING.findall(said.err)]
    warnings = [text for text in messages if not text.endswith(":") and not _CONFLICT.search(text)]
    conflicts = [found for message in messages for found in _CONFLICT.findall(message)]
    if conflicts:
        first, *more = sorted({name for name, _specs in conflicts})
        specs = ", ".join(sorted({path for _name, specs in conflicts for path in re.findall(r'"[^"]*"', specs)}))
        also = f" and {len(more)} more" if more else ""
        warnings.insert(0, f'conflicting device "{first}"{also} (specs {specs}); keep one of the files')
    return names, [f"{PROGRAM} warns: {text}" for text in warnings]


def mode_of(text: str) -> str:
    """Return the mode that a config.toml gives nvidia-container-runtime; auto where it gives none."""
    section = _SECTION.search(text)
    found = _MODE.search(section[1]) if section else None
    return found[1] if found else "auto"


def _set_mode(request: Request) -> list[dict[str, str]]:
    path = request.runtime_config
    text = files.read(path) or ""
    if mode_of(text) == request.mode:
        return []
    # nvidia-ctk begins with its defaults if the file is absent.
    after = _ctk("config", f"--config-file={path}", "--set", f"nvidia-container-runtime.mode={request.mode}")
    if mode_of(after) != request.mode:
        raise Problem(f"{PROGRAM} did not take the mode {request.mode!r}; see nvidia_container_toolkit_mode")
    if not request.check:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        files.write(path, after)
    return [files.diff(path, text, after)]


def _configured(request: Request, text: str) -> dict[str, Any]:
    """Have nvidia-ctk edit a copy of daemon.json, and return the copy's content."""
    flags = (["--nvidia-set-as-default"] if request.set_as_default else []) + (["--cdi.enabled"] if request.cdi else [])
    with files.folder("postboot-ctk-") as folder:
        copy = os.path.join(folder, "daemon.json")
        if text.strip():
            with open(copy, "w", encoding="utf-8") as stream:
                stream.write(text)
        _ctk("--quiet", "runtime", "configure", "--runtime=docker", f"--config={copy}", *flags)
        return docker_config.read(copy)[1]


def _set_docker(request: Request, dockerd: str) -> list[dict[str, str]]:
    path = request.daemon_config
    text, there = docker_config.read(path)
    # Merged, because nvidia-ctk replaces `features` as a whole. What the user set explicitly has the last word.
    after = docker_config.merged(there, _configured(request, text))
    after = docker_config.merged(after, request.daemon_settings)
    if after == there:
        return []
    docker_config.validate(dockerd, after, path)
    if not request.check:
        docker_config.write(path, docker_config.text_of(after))
    return [files.diff(path, text, docker_config.text_of(after))]


def _refresh(request: Request) -> tuple[list[dict[str, str]], list[str], bool]:
    """Start the units that make CDI files, now, at each boot and for each driver; say whether the toolkit has them."""
    diff: list[dict[str, str]] = []
    actions: list[str] = []
    for name in REFRESH:
        if systemctl.status_of(name).get("LoadState") in (None, "not-found"):
            return diff, actions, False
        # Without a GPU its condition is never met.
        state = "started" if request.gpus or name.endswith(".path") else "present"
        wanted = unit.Request(name=name, state=state, enabled=True, wait_seconds=120, check=request.check)
        if name.endswith(".service"):
            wanted = wanted._replace(dropins={"10-device-nodes.conf": DEVICE_NODES})
        outcome = unit.apply(wanted)
        diff += outcome.diff
        actions += outcome.actions
    return diff, actions, True


def _run_docker(request: Request, hold: bool) -> tuple[list[dict[str, str]], list[str]]:
    """Have Docker run, restarted if its configuration or NVIDIA's hooks are newer."""
    outcome = unit.apply(
        unit.Request(
            name="docker.service",
            state="present" if hold else "started",
            restart_on=(request.daemon_config, *HOOKS),
            wait_seconds=60,
            check=request.check,
        )
    )
    return outcome.diff, outcome.actions


def _offered(request: Request, renews: bool) -> tuple[list[str], bool, list[str]]:
    """Return the GPUs that CDI files offer, and warnings; files that somebody has removed are made anew."""
    found, warnings = devices()
    if found or not request.gpus or not renews:
        return found, False, warnings
    if not request.check:
        argv, look = ["systemctl", "start", REFRESH[0]], f"see 'nvidia-smi' and 'systemctl status {REFRESH[0]}'"
        run(argv, SECONDS, hint=look)
        found, warnings = devices()
        if not found:
            why = warnings[0] if warnings else look
            raise unit.UnitError(
                f"'{PROGRAM} cdi list' offers no GPU, but this node has {request.gpus}; {why}",
                systemctl.journal_of(REFRESH[0]),
            )
    return found, True, warnings


def apply(request: Request) -> Outcome:
    dockerd = engine.program() if request.docker else None
    if not shutil.which(PROGRAM):
        if request.check:  # a task before this one would have brought it
            return Outcome(True, [], "", [], False, False, "", "", [])
        raise Problem(f"the program {PROGRAM} is not there; install nvidia-container-toolkit first")
    diff, actions, renews = _refresh(request)
    found, renewed, unread = _offered(request, renews)
    diff += _set_mode(request)
    hold, stale = "", False
    if dockerd:
        changes = _set_docker(request, dockerd)
        diff += changes
        settings = docker_config.read(request.daemon_config)[1]
        now = engine.running()
        hold = engine.may_restart(request.restart, now, settings.get("live-restore") is True, settings.get("data-root"))
        stale = bool(changes and now) or engine.outdated(now, [request.daemon_config])
        restarted, done = _run_docker(request, bool(hold))
        diff += restarted
        actions += done
    warnings = (
        [f"Docker was not restarted, so it does not use {request.daemon_config} yet: {hold}"] if hold and stale else []
    )
    warnings += unread
    own = version()
    if not renews:
        warnings.append(
            f"NVIDIA Container Toolkit {own} has no {REFRESH[0]}, which keeps CDI files fresh from 1.18 on; set "
            "nvidia_container_toolkit_version to have a newer one"
        )
    summary = f"NVIDIA Container Toolkit {own}, {len(found)} CDI device{'' if len(found) == 1 else 's'}"
    if own[0].isdigit() and not plan.at_least(own, request.minimum_version):
        summary += (
            f"; it has {request.flaw}, which {request.minimum_version} mends: see nvidia_container_toolkit_version"
        )
    return Outcome(
        changed=bool(diff or actions or renewed),
        diff=diff,
        version=own,
        devices=found,
        docker=bool(dockerd),
        hold=bool(hold),
        why_hold=hold,
        summary=summary,
        warnings=warnings,
    )
