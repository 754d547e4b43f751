# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What nodes need of a collection that ansible-galaxy would install, from a checkout or from where it is installed."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import tarfile
from collections.abc import Mapping
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._host import document
from ansible_collections.pcluster.postboot.plugins.module_utils._host import files as host_files
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import run

SECONDS = 300.0
# What people read, and no node.
_FOR_PEOPLE = ("changelogs/", "docs/", "examples/")


class File(NamedTuple):
    """One file of it."""

    content: bytes
    mode: int


class Collection(NamedTuple):
    """Its version, and its files by their path."""

    version: str
    files: dict[str, File]


def read_collection(path: str) -> Collection:
    """Return a collection. Its manifest is written anew, because ansible-galaxy's is in the order of a directory."""
    path = os.path.realpath(path)
    if os.path.exists(os.path.join(path, "galaxy.yml")):
        manifest, files = _built(path)
    elif os.path.exists(os.path.join(path, "MANIFEST.json")):
        manifest, files = _installed(path)
    else:
        raise Problem(f"{path} has neither galaxy.yml nor MANIFEST.json; needed: the collection, or its clone")
    files = {name: file for name, file in files.items() if not name.startswith(_FOR_PEOPLE)}
    listing = _listing(files)
    manifest["file_manifest_file"]["chksum_sha256"] = hashlib.sha256(listing).hexdigest()
    files["FILES.json"] = File(listing, 0o644)
    files["MANIFEST.json"] = File(_json(manifest), 0o644)
    return Collection(str(manifest["collection_info"]["version"]), files)


def _built(path: str) -> tuple[dict[str, Any], dict[str, File]]:
    """Have ansible-galaxy decide what belongs to a checkout."""
    with host_files.folder("pcluster-postboot-") as folder:
        command = [sys.executable, "-m", "ansible", "galaxy", "collection", "build", "--output-path", folder, path]
        said = run(
            command,
            SECONDS,
            environment={"LC_ALL": "C.UTF-8"},  # Ansible refuses every other encoding
            hint="see whether the disk of the clone answers, and run it by hand",
        )
        built = os.listdir(folder)
        if said.code or len(built) != 1:
            raise Problem(f"ansible-galaxy cannot build {path}: {' '.join(said.lines)}")
        files = {}
        with tarfile.open(os.path.join(folder, built[0])) as tar:
            for member in tar:
                stream = None if member.isdir() else tar.extractfile(member)
                if stream:
                    files[member.name] = File(stream.read(), _mode(member.mode))
    manifest = document.parse(files.pop("MANIFEST.json").content)
    del files["FILES.json"]
    return manifest, files


def _installed(path: str) -> tuple[dict[str, Any], dict[str, File]]:
    """Return what ansible-galaxy has installed, and nothing that came to lie beside it."""
    names = [entry["name"] for entry in _load(path, "FILES.json")["files"] if entry["ftype"] == "file"]
    return _load(path, "MANIFEST.json"), {name: _file(path, name) for name in names}


def _load(path: str, name: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = document.parse(_file(path, name).content)
    except ValueError as error:
        raise Problem(f"{path}/{name} is no JSON: {error}") from error
    return found


def _file(path: str, name: str) -> File:
    try:
        with open(os.path.join(path, name), "rb") as stream:
            return File(stream.read(), _mode(os.fstat(stream.fileno()).st_mode))
    except FileNotFoundError as error:
        raise Problem(f"{path} is not whole, {name} is not there: install the collection again") from error


def _mode(mode: int) -> int:
    return 0o755 if mode & stat.S_IXUSR else 0o644


def _listing(files: Mapping[str, File]) -> bytes:
    folders = {"."} | {parent for name in files for parent in _parents(name)}
    entries: list[dict[str, Any]] = []
    for name in sorted({*files, *folders}):
        digest = hashlib.sha256(files[name].content).hexdigest() if name in files else None
        kind = "file" if name in files else "dir"
        entries.append(
            {
                "name": name,
                "ftype": kind,
                "chksum_type": "sha256" if digest else None,
                "chksum_sha256": digest,
                "format": 1,
            }
        )
    return _json({"files": entries, "format": 1})


def _parents(name: str) -> list[str]:
    parts = name.split("/")[:-1]
    return ["/".join(parts[: length + 1]) for length in range(len(parts))]


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()
