# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Finds a Pyxis that loads in the Slurm that is installed, or builds one.

Every one that is used lies in a directory of its own below the shared prefix of Slurm, so that no node depends on what
its own image holds. A directory appears there by a rename, with a manifest that was written last.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._host import document, files
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import run
from ansible_collections.pcluster.postboot.plugins.module_utils._pyxis import load
from ansible_collections.pcluster.postboot.plugins.module_utils._pyxis.plugstack import knows

MANIFEST = "manifest.json"
BUILD_TIMEOUT = 600
PROGRAMS = ("make", "gcc")
_NEW, _OLD, _BUILD = ".new-", ".old-", "postboot-pyxis-"


class Request(NamedTuple):
    """The module's options."""

    prefix: str
    slurm_version: str
    version: str
    build: str = "auto"
    places: tuple[str, ...] = ()
    source: str | None = None
    squashfuse: bool = False
    check: bool = False


class Found(NamedTuple):
    """A Pyxis that loads, or in check mode would."""

    plugin: str
    version: str
    summary: str
    copy_of: str = ""  # what has to be copied to `plugin` first


class Outcome(NamedTuple):
    """The module's result."""

    changed: bool
    due: bool
    why: str
    plugin: str
    version: str
    summary: str
    missing: list[str]
    warnings: list[str]
    diff: list[dict[str, str]]


def manifest_of(folder: str) -> dict[str, Any]:
    """Return the manifest of a published directory; nothing where it is not complete."""
    try:
        found = document.read(os.path.join(folder, MANIFEST))
        whole = isinstance(found, dict) and found.get("sha256") == files.sha256_of(os.path.join(folder, load.PLUGIN))
    except (OSError, ValueError):
        return {}
    return found if whole else {}


def _require_slurm(request: Request) -> None:
    srun = os.path.join(request.prefix, "bin/srun")
    if not os.path.exists(srun):
        raise Problem(f"{srun} is not there; needed is an installed Slurm, whose prefix is {request.prefix}")
    if not re.fullmatch(r"\d+(\.\w+)+", request.slurm_version):
        raise Problem(
            f"the version of the Slurm in {request.prefix} is {request.slurm_version or 'unknown'}; "
            "set slurm.version in common_node_overrides"
        )
    if not re.fullmatch(r"[\w.+~-]+", request.version, re.ASCII) or request.version.startswith("."):
        raise Problem(f"pyxis_version is {request.version!r}; needed is a version such as 0.24.0")


def _home(request: Request, version: str, kind: str = "") -> str:
    return os.path.join(load.store(request.prefix), f"{version or 'unknown'}{kind}-slurm{request.slurm_version}")


def _own(request: Request) -> tuple[Found | None, str]:
    """Return the existing build of the wanted version, or why it cannot be used."""
    folder = _home(request, request.version)
    if not os.path.isdir(folder):
        return None, f"Pyxis {request.version} was not built for Slurm {request.slurm_version} yet"
    if not manifest_of(folder):
        return None, f"the build in {folder} is damaged"
    plugin = os.path.join(folder, load.PLUGIN)
    why = load.refusal(request.prefix, plugin)
    if why:
        return None, f"{plugin} does not load ({why})"
    return _built(request), ""


def _built(request: Request) -> Found:
    plugin = os.path.join(_home(request, request.version), load.PLUGIN)
    return Found(plugin, request.version, f"Pyxis {request.version} built for Slurm {request.slurm_version}")


def _shipped(request: Request) -> tuple[Found | None, list[str]]:
    """Return the image's plugin that loads, and the reasons for those that do not."""
    reasons = []
    for place in request.places:
        if not os.path.isfile(place):
            continue
        why = load.refusal(request.prefix, place)
        if why:
            reasons.append(f"{place} does not load in Slurm {request.slurm_version} ({why})")
            continue
        version = load.version_of(place)
        summary = f"Pyxis{' ' + version if version else ''}, the AMI's own"
        if place.startswith(request.prefix.rstrip("/") + "/"):
            return Found(place, version, summary), reasons
        # Only this node is known to have it there, and a plugin that is required and missing stops every job of a node.
        # Another build of the same version gets a folder of its own: one that may be in use is never replaced.
        folder = _home(request, version, f"-ami-{files.sha256_of(place)[:8]}")
        whole = bool(manifest_of(folder))
        return Found(os.path.join(folder, load.PLUGIN), version, summary, "" if whole else place), reasons
    return None, reasons


def _sweep(request: Request) -> None:
    """Remove the folders of killed runs."""
    left = re.compile(r"\.(?:new|old)-|postboot-pyxis-")
    for top in (load.store(request.prefix), tempfile.gettempdir()):
        for entry, _mark in files.own(top, left.match):
            if entry.is_dir(follow_symlinks=False):
                files.discard(entry.path)


def _publish(request: Request, plugin: str, found: Found, origin: str) -> None:
    """Put a plugin where all nodes see it: complete, with its manifest, and once it has loaded from there."""
    folder = os.path.dirname(found.plugin)
    top, name = os.path.split(folder)
    os.makedirs(top, mode=0o755, exist_ok=True)
    new, old = os.path.join(top, _NEW + name), os.path.join(top, _OLD + name)
    os.mkdir(new, 0o755)
    os.chmod(new, 0o755)
    target = os.path.join(new, load.PLUGIN)
    shutil.copyfile(plugin, target)
    os.chmod(target, 0o644)
    why = load.refusal(request.prefix, target)
    if why:
        shutil.rmtree(new)
        why = why.replace(target, load.PLUGIN)
        raise Problem(
            f"{origin} gave a {load.PLUGIN} that does not load in the Slurm of {request.prefix}: {why}; needed are the "
            f"headers of that Slurm in {request.prefix}/include, and a pyxis_version that supports it"
        )
    says = load.version_of(target)
    if says and says != found.version:
        shutil.rmtree(new)
        raise Problem(
            f"{origin} is Pyxis {says}; set pyxis_version to that, or pyxis_sha256 to that of {found.version}"
        )
    facts = {"pyxis": found.version, "slurm": request.slurm_version, "origin": origin}
    manifest = {**facts, "sha256": files.sha256_of(target)}
    files.write(os.path.join(new, MANIFEST), json.dumps(manifest, indent=2) + "\n")
    for path in (target, new):
        files.sync(path)
    if os.path.isdir(folder):
        os.rename(folder, old)
    os.rename(new, folder)
    if os.path.isdir(old):
        shutil.rmtree(old)


def missing_programs() -> list[str]:
    """Return the programs that a build needs and this node does not have."""
    return [program for program in PROGRAMS if not shutil.which(program)]


def _build(request: Request, source: str, folder: str) -> str:
    """Build the source in a folder of this node's own disk; return the plugin."""
    if missing_programs():
        raise Problem(f"{' and '.join(missing_programs())} not found; a build needs {' and '.join(PROGRAMS)}: install")
    header = os.path.join(request.prefix, "include/slurm/spank.h")
    if not os.path.isfile(header):
        raise Problem(f"{header} is not there; a build needs the headers of the Slurm that is installed")
    if not os.path.isfile(os.path.join(source, "Makefile")):
        raise Problem(f"{source} has no Makefile; needed is the source of Pyxis")
    tree = os.path.join(folder, "pyxis")
    shutil.copytree(source, tree)
    argv = ["make", f"--jobs={min(os.cpu_count() or 1, 4)}"]
    environment = {"HOME": folder, "CPPFLAGS": f"-I{request.prefix}/include"}
    hint = f"it ran in the source of Pyxis {request.version}"
    said = run(argv, BUILD_TIMEOUT, environment=environment, only=True, cwd=tree, merged=True, hint=hint)
    if said.code:
        told = next((line for line in said.lines if "error" in line.lower()), said.first)
        raise Problem(
            f"make ended with {said.code} in the source of Pyxis {request.version}: {told}", log=said.lines[-40:]
        )
    plugin = os.path.join(tree, load.PLUGIN)
    if not os.path.isfile(plugin):
        raise Problem(f"make left no {load.PLUGIN} in the source of Pyxis {request.version}", log=said.lines[-40:])
    return plugin


def _require_mounters() -> None:
    missing = load.missing_mounters()
    if missing:
        raise Problem(
            f"pyxis_options has use_squashfuse, and this node has no {' and no '.join(missing)}, with which images are "
            "mounted; needed: install it (Amazon Linux has no package of squashfuse), or leave the option out"
        )


def _require_mounting(found: Found) -> None:
    if not knows("use_squashfuse", found.version):
        raise Problem(
            f"pyxis_options has use_squashfuse, and there is {found.summary}; needed is Pyxis 0.22 or newer: set "
            "pyxis_build to always, with such a pyxis_version, or leave the option out"
        )


def apply(request: Request) -> Outcome:
    """Find a Pyxis that loads; without one, say so, or build it once its source is there."""
    _require_slurm(request)
    if request.squashfuse:
        _require_mounters()
    warnings = []
    broken = ""
    try:
        broken = load.entry_refusal(request.prefix) if request.check else load.withdraw(request.prefix)
    except load.UndecidedError as error:
        warnings.append(f"whether {load.entry_path(request.prefix)} loads could not be told, and it stays: {error}")
    if broken:
        what = "it would be" if request.check else "it was"
        warnings.append(f"{broken}: {what} withdrawn from Slurm's plugstack until Pyxis loads")
    if not request.check:
        _sweep(request)
    reasons: list[str] = []
    found: Found | None = None
    if request.build != "always":
        found, reasons = _shipped(request)
    if found is None and request.build == "never":
        raise Problem(
            f"pyxis_build is never, and {'; '.join(reasons) or 'there is none in ' + ' or '.join(request.places)}; "
            "needed is a Pyxis that loads: set pyxis_build to auto"
        )
    if found is None:
        found, why = _own(request)
        reasons.append(why)
    if request.squashfuse:
        _require_mounting(found or _built(request))
    if found is not None and not found.copy_of:
        return Outcome(bool(broken), False, "", found.plugin, found.version, found.summary, [], warnings, [])
    why = "; ".join(reasons)
    result = found or _built(request)
    told = (result.plugin, result.version, result.summary)
    if found is None and request.source is None:
        return Outcome(bool(broken), True, why, *told, missing_programs(), warnings, [])
    before = "another, or a damaged one" if os.path.isdir(os.path.dirname(result.plugin)) else "absent"
    diff = [files.diff(result.plugin, f"{before}\n", f"{result.summary}\n")]
    if not request.check:
        if result.copy_of:
            _publish(request, result.copy_of, result, result.copy_of)
        else:
            with files.folder(_BUILD) as folder:
                _publish(
                    request, _build(request, request.source or "", folder), result, f"the source in {request.source}"
                )
    return Outcome(True, False, why, *told, [], warnings, diff)
