# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Releases on shared storage: what a manifest says, whether a release is whole, and under which name one belongs.

Releases have a serial number that the holder of the lock gives them, so their order rests on no clock.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import stat
from collections.abc import Collection
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._host import document
from ansible_collections.pcluster.postboot.plugins.module_utils._host import files as host_files
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem

MANIFEST = "manifest.json"
SCHEMA = 1
# The name of a version of the C library, as the linker notes for a symbol of that version.
_GLIBC = re.compile(rb"GLIBC_([0-9]{1,4}(?:\.[0-9]{1,4}){1,3})")


class Survey(NamedTuple):
    """What is known about a release that is asked for."""

    name: str  # the one that is there, or the one that it would get
    whole: bool
    taken: bool = False  # whether something that is no release has this name
    why: str = ""  # why it is not there
    builder: str = ""


def plain(value: Any) -> Any:
    """Return inputs so that they compare: a number and its text mean the same, as variables come as either."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


# --- writing ---------------------------------------------------------------------------------------------------------


def _fail(error: OSError) -> None:
    raise error


def record(tree: str) -> dict[str, dict[str, Any]]:
    """Make a tree survive a power cut, and return what is in it."""
    files: dict[str, dict[str, Any]] = {}
    for top, folders, names in os.walk(tree, topdown=False, onerror=_fail):
        for name in sorted(names + [folder for folder in folders if os.path.islink(os.path.join(top, folder))]):
            path = os.path.join(top, name)
            told = os.path.relpath(path, tree)
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                target = os.readlink(path)
                if f"{target}/".startswith(f"{tree}/"):
                    raise Problem(
                        f"the build made {told} a link to {target}, which gets another name; needed is a relative one"
                    )
                files[told] = {"link": target}
            elif stat.S_ISREG(status.st_mode):
                host_files.sync(path)
                files[told] = {"size": status.st_size, "mode": f"{stat.S_IMODE(status.st_mode):04o}"}
            else:
                raise Problem(f"the build made {told}, which is neither a file nor a link")
        host_files.sync(top)
    files.pop(MANIFEST, None)
    return files


def seal(tree: str, facts: dict[str, Any]) -> None:
    """Write the manifest, after everything else."""
    manifest = {"schema": SCHEMA, **facts, "files": record(tree)}
    text = json.dumps(manifest, indent=2, sort_keys=True) + "\n"
    host_files.write(os.path.join(tree, MANIFEST), text)
    host_files.sync(tree)


# --- reading ---------------------------------------------------------------------------------------------------------


def manifest_of(folder: str) -> dict[str, Any]:
    """Return a release's manifest; nothing where there is no valid one."""
    try:
        found = document.read(os.path.join(folder, MANIFEST))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError):
        return {}
    kinds = {"schema": int, "release": str, "inputs": dict, "files": dict}
    if not isinstance(found, dict) or not all(isinstance(found.get(key), kind) for key, kind in kinds.items()):
        return {}
    return found if all(isinstance(item, dict) for item in found["files"].values()) else {}


def flaw(folder: str, manifest: dict[str, Any]) -> str:
    """Say what is wrong with a release; nothing if it is whole."""
    if not manifest:
        return f"{folder} has no valid {MANIFEST}"
    for name, told in manifest["files"].items():
        try:
            status = os.lstat(os.path.join(folder, name))
            link = os.readlink(os.path.join(folder, name)) if stat.S_ISLNK(status.st_mode) else None
        except (FileNotFoundError, NotADirectoryError):
            return f"{folder} is damaged: {name} is missing"
        if link != told.get("link"):
            return f"{folder} is damaged: {name} is another link"
        if link is None and status.st_size != told.get("size"):
            return f"{folder} is damaged: {name} has {status.st_size} bytes instead of {told.get('size')}"
    return ""


def _names(root: str) -> list[str]:
    try:
        return sorted(os.listdir(root))
    except FileNotFoundError:
        return []


def survey(root: str, release: str, inputs: dict[str, Any], what: str) -> Survey:
    """Look for a release that was made of these inputs; else find the name that a new one gets, and why it is due."""
    wanted = plain(inputs)
    pattern = re.compile(rf"{re.escape(release)}(\.[0-9]+)?")
    numbered = sorted((name for name in _names(root) if pattern.fullmatch(name)), key=lambda name: (len(name), name))
    reasons = []
    for name in numbered:
        folder = os.path.join(root, name)
        manifest = manifest_of(folder)
        if manifest and (manifest["release"] != release or plain(manifest["inputs"]) != wanted):
            continue
        wrong = flaw(folder, manifest)
        if not wrong:
            return Survey(name, True, builder=str(manifest.get("builder", "")))
        reasons.append(wrong)
    number = 1
    while True:
        name = release if number == 1 else f"{release}.{number}"
        folder = os.path.join(root, name)
        if name not in numbered:
            return Survey(name, False, why="; ".join(reasons) or f"{what} is not in {root} yet")
        manifest = manifest_of(folder)
        if not manifest or (manifest["release"] == release and plain(manifest["inputs"]) == wanted):
            return Survey(name, False, True, "; ".join(reasons))
        if manifest["release"] == release:
            reasons.append(f"{folder} was made of other inputs ({_difference(plain(manifest['inputs']), wanted)})")
        number += 1


def _difference(one: dict[str, Any], other: dict[str, Any]) -> str:
    keys = sorted(key for key in {*one, *other} if one.get(key) != other.get(key))
    return ", ".join(f"{key} {one.get(key, 'unset')}, now {other.get(key, 'unset')}" for key in keys)


def starts_with(folder: str, glibc: str) -> bool:
    """Say whether a whole release needs no newer C library than this version, by the symbol versions in its files."""

    def numbers(version: str) -> list[int]:
        return [int(number) for number in version.split(".")]

    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4})+", glibc, re.ASCII):
        return False
    for name, told in manifest_of(folder)["files"].items():
        if told.get("size"):
            with open(os.path.join(folder, name), "rb") as stream:
                if stream.read(4) == b"\x7fELF":
                    with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
                        needed = {match[1].decode() for match in _GLIBC.finditer(content)}
                    if any(numbers(version) > numbers(glibc) for version in needed):
                        return False
    return True


def all_in(root: str, keys: Collection[str] | None = None) -> list[tuple[int, str]]:
    """Return the serial number and the name of each release, or of each with one of the keys, the newest first."""
    found = []
    for name in _names(root):
        folder = os.path.join(root, name)
        manifest = manifest_of(folder) if not name.startswith(".") and not os.path.islink(folder) else {}
        key = manifest.get("key", "")
        if manifest and (keys is None or (isinstance(key, str) and key in keys)):
            serial = manifest.get("serial")
            found.append((serial if isinstance(serial, int) else 0, name))
    return sorted(found, reverse=True)
