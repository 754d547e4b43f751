# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One archive with all that a node needs to run this collection on itself. The same inputs make the same bytes."""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._bundle import collection, wheels
from ansible_collections.pcluster.postboot.plugins.module_utils._host import files as host_files
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem

FORMAT = 1
ARCHIVE = "pcluster-postboot.tar.gz"
SCRIPT = "bootstrap.sh"
SUMS = "SHA256SUMS"
_NODE_INVENTORY = "inventory/node.pcluster.yml"  # where the variables lie beside
_INVENTORIES = (_NODE_INVENTORY, "inventory/image.yml")
_ENDINGS = ("", ".yml", ".yaml", ".json")  # of the files with variables that Ansible reads
# Of nodes. Two kinds of names: what a node is, and what the cluster's configuration calls its parts.
_KINDS = "_(head|login|compute|monitoring|gpu|efa)|_(cluster|queue|compute_resource|pool)_.+"
_GROUPS = ("all", "ungrouped", f"pcluster({_KINDS})?")
_DIGITS = 12  # of the archive's hash, in the bundle's name
_LEVEL = 1  # nearly all of it is compressed already


class Request(NamedTuple):
    """The module's options."""

    dest: str
    collection: str
    bootstrap: str
    requirements: str
    tools: str
    pythons: tuple[str, ...] = wheels.PYTHONS
    architectures: tuple[str, ...] = wheels.ARCHITECTURES
    group_vars: str | None = None
    inventories: tuple[str, ...] = ()
    node_inventory: str = ""
    node_groups: tuple[str, ...] = ()
    mirror: str | None = None
    mirror_files: tuple[str, ...] = ()
    check: bool = False


class Outcome(NamedTuple):
    """The module's result."""

    changed: bool
    id: str
    version: str
    sha256: str
    directory: str
    bytes: int
    files: list[dict[str, str]]
    fetched: list[str]
    group_vars: str
    warnings: list[str]


class Member(NamedTuple):
    """One file of the archive: its bytes, or where they are."""

    source: bytes | str
    mode: int = 0o644

    def content(self) -> bytes:
        return self.source if isinstance(self.source, bytes) else _read(self.source)


class Variables(NamedTuple):
    """A directory with variables of groups, and what its files hold, by their paths below it."""

    folder: str
    files: dict[str, bytes]


class _Sink(io.RawIOBase):
    """Counts and hashes what is written, and passes it on where there is a file."""

    def __init__(self, stream: IO[bytes] | None) -> None:
        super().__init__()
        self.digest, self.size, self.stream = hashlib.sha256(), 0, stream

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.digest.update(data)
        self.size += len(data)
        if self.stream:
            self.stream.write(data)
        return len(data)


def build(request: Request) -> Outcome:
    """Build the bundle, and put it where it stays."""
    variables, warnings = read_variables(request.group_vars, request.inventories, request.node_groups)
    found = collection.read_collection(request.collection)
    store = wheels.Store(os.path.join(request.dest, ".wheels"))
    with _workplace(request) as folder:
        paths, fetched = _wheels(request, store)
        told = Outcome(True, "", found.version, "", "", 0, [], fetched, variables.folder, warnings)
        missing = [name for name in request.mirror_files if not os.path.exists(_below(request.mirror, name))]
        if request.check and (fetched or missing):
            return told  # what is not here has no hash yet
        if missing:
            raise Problem(f"{request.mirror} has no {missing[0]}, nor {len(missing) - 1} more that are needed")
        members = _members(request, found, variables, paths)
        sink = _archive(members, folder)
        sha256 = sink.digest.hexdigest()
        script = members[SCRIPT].content()
        sums = {ARCHIVE: sha256, SCRIPT: hashlib.sha256(script).hexdigest()}
        name = f"{found.version}-{sha256[:_DIGITS]}"
        path = os.path.join(request.dest, name)
        changed = not whole(path, sums)
        if changed and folder:
            _finish(folder, script, sums)
            shutil.rmtree(path, ignore_errors=True)  # it is damaged
            os.rename(folder, path)
    # The list of hashes comes last: where it is, the others are.
    files = [{"name": name, "sha256": sums[name]} for name in sorted(sums)]
    files.append({"name": SUMS, "sha256": hashlib.sha256(sums_of(sums)).hexdigest()})
    return told._replace(
        changed=changed or bool(fetched), id=name, sha256=sha256, directory=path, bytes=sink.size, files=files
    )


def _archive(members: Mapping[str, Member], folder: str) -> _Sink:
    """Write the archive into a folder. Without one nothing is kept but its hash."""
    if not folder:
        sink = _Sink(None)
        write(members, sink)
        return sink
    with _private(os.path.join(folder, ARCHIVE)) as stream:
        sink = _Sink(stream)
        write(members, sink)
    return sink


def write(members: Mapping[str, Member], sink: io.RawIOBase) -> None:
    """Write an archive that depends on nothing but its members."""
    packed = gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=sink, mtime=0)
    with packed, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(members):
            source, info = members[name].source, tarfile.TarInfo(name)
            info.mode = members[name].mode
            if isinstance(source, bytes):
                info.size = len(source)
                tar.addfile(info, io.BytesIO(source))
            else:
                with open(source, "rb") as stream:
                    info.size = os.fstat(stream.fileno()).st_size
                    tar.addfile(info, stream)


def whole(path: str, sums: Mapping[str, str]) -> bool:
    """Say whether a folder holds these files, and their list."""
    try:
        listed = _read(os.path.join(path, SUMS)) == sums_of(sums)
        return listed and all(host_files.sha256_of(os.path.join(path, name)) == sums[name] for name in sums)
    except FileNotFoundError:
        return False


def sums_of(sums: Mapping[str, str]) -> bytes:
    """Return the hashes as sha256sum --check reads them."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())).encode()


def _members(
    request: Request, found: collection.Collection, variables: Variables, paths: list[str]
) -> dict[str, Member]:
    lock = _read(request.requirements)
    script = _read(request.bootstrap)
    if not script.startswith(b"#!") or b"\r" in script:
        raise Problem(f"{request.bootstrap} is no script; needed: #! at its beginning, and no carriage return")
    origin = {
        "collection": hashlib.sha256(found.files["FILES.json"].content).hexdigest(),
        "requirements": hashlib.sha256(lock).hexdigest(),
    }
    about = {
        "format": FORMAT,
        "version": found.version,
        "created_from": origin,
        "pythons": list(request.pythons),
        "architectures": list(request.architectures),
    }
    members = {
        "bundle.json": Member((json.dumps(about, indent=2) + "\n").encode()),
        SCRIPT: Member(script, 0o755),
        "requirements.txt": Member(lock),
    }
    for name, content in variables.files.items():
        members[f"inventory/group_vars/{name}"] = Member(content, 0o600)
    for name in _INVENTORIES:
        members[name] = Member(found.files[name].content)
    if request.node_inventory:
        members[_NODE_INVENTORY] = Member(found.files[_NODE_INVENTORY].content + request.node_inventory.encode())
    for name, file in found.files.items():
        members[f"ansible_collections/pcluster/postboot/{name}"] = Member(file.content, file.mode)
    for path in paths:
        members[f"wheelhouse/{os.path.basename(path)}"] = Member(path)
    for name in request.mirror_files:
        members[f"mirror/{name}"] = Member(_below(request.mirror, name))
    return members


def read_variables(
    folder: str | None, inventories: Sequence[str], groups: Sequence[str] = ()
) -> tuple[Variables, list[str]]:
    """Return the user's own variables, as they are, and what to know about them.

    Of files there is only what nodes read, who are in the usual groups and in those of these regular expressions.
    """
    warnings: list[str] = []
    if folder is None:
        beside = [_folder_of(source) for source in inventories if "," not in source]
        warnings = [
            f"{path}/host_vars does not come along: on itself each node is localhost, so use group_vars"
            for path in sorted({os.path.realpath(path) for path in beside})
            if os.path.isdir(os.path.join(path, "host_vars"))
        ]
        paths = [os.path.join(path, "group_vars") for path in beside]
        there = sorted({os.path.realpath(path) for path in paths if os.path.isdir(path)})
        if len(there) > 1:
            raise Problem(f"{', '.join(there)} lie each beside an inventory: set publish_group_vars to one of them")
        folder = there[0] if there else ""
    if not folder:
        return Variables("", {}), warnings
    if not os.path.isdir(folder):
        raise Problem(f"publish_group_vars is {folder}, which is no directory; needed: one as beside an inventory")
    read: dict[str, bytes] = {}
    others: set[str] = set()
    for top, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith(".") and not name.endswith("~"):  # Ansible passes over these too
                path = os.path.join(top, name)
                below = os.path.relpath(path, folder)
                if _of_nodes(below, groups):
                    read[below] = _read(path)
                else:
                    others.add(below)
    locked = [f"{folder}/{name}{what}" for name in sorted(read) for what in _encrypted(read[name])]
    if locked:
        raise Problem(
            f"{', '.join(locked)}: encrypted by ansible-vault, whose password no node has; needed: the secret where a "
            "node reads it by itself (AWS Secrets Manager or a file of the node, which the role's variables *_secret "
            "and *_file name), or publish_group_vars without it"
        )
    if others:
        warnings.append(
            f"{folder}: not in the bundle, because a node is in no such group or reads no such file: "
            f"{', '.join(sorted(others))}"
        )
    return Variables(folder, read), warnings


def _of_nodes(name: str, groups: Sequence[str]) -> bool:
    """Say whether a node reads a file: by the group that it is for, and by its ending."""
    first, *more = name.split("/")
    group, ending = (first, "") if more else os.path.splitext(first)
    known = any(re.fullmatch(pattern, group) for pattern in (*_GROUPS, *groups))
    return known and ending in _ENDINGS and os.path.splitext(name)[1] in _ENDINGS


def _encrypted(content: bytes) -> list[str]:
    """Return which variables of a file ansible-vault has encrypted; an empty word is the whole file."""
    if content.startswith(b"$ANSIBLE_VAULT;"):
        return [""]
    if b"$ANSIBLE_VAULT;" not in content:
        return []
    # Not at the top: Ansible has it wherever this runs, but whoever only imports this module may not.
    import yaml

    try:
        return [f" ({name})" for name in _vaulted(yaml.compose(content, Loader=yaml.SafeLoader))]
    except yaml.YAMLError:
        return [""]


def _vaulted(node: Any, name: str = "") -> Iterator[str]:
    """Yield the names of the values with the tag !vault below a node of YAML."""
    if getattr(node, "tag", "") == "!vault":
        yield name
    elif isinstance(getattr(node, "value", None), list):
        for number, part in enumerate(node.value):
            key, value = part if isinstance(part, tuple) else (None, part)
            yield from _vaulted(value, f"{name}.{key.value}".lstrip(".") if key else f"{name}[{number}]")


def _folder_of(source: str) -> str:
    return source if os.path.isdir(source) else os.path.dirname(source)


def _wheels(request: Request, store: wheels.Store) -> tuple[list[str], list[str]]:
    """Return the wheels of all targets, and for which of them some had (or in check mode would have) to be fetched."""
    targets = [wheels.Target(python, machine) for python in request.pythons for machine in request.architectures]
    node, tools = wheels.read_lock(request.requirements), wheels.read_lock(request.tools)
    jobs = [(wheels.wanted(node, target), target) for target in targets]
    # A tool is a program of its own: any Python will do.
    any_python = [wheels.Target(wheels.PYTHONS[0], machine) for machine in request.architectures]
    jobs += [(wheels.wanted(tools, target), target) for target in any_python]
    paths: list[str] = []
    fetched: list[str] = []
    for pins, target in jobs:
        found = store.find(pins, target)
        if not found:
            fetched.append(f"{target.python} {target.architecture}")
            found = [] if request.check else store.fetch(pins, target)
        paths += found
    by_name = {os.path.basename(path): path for path in paths}
    return list(by_name.values()), sorted(set(fetched))


def _finish(folder: str, script: bytes, sums: Mapping[str, str]) -> None:
    with open(os.path.join(folder, SCRIPT), "wb") as stream:
        stream.write(script)
    os.chmod(os.path.join(folder, SCRIPT), 0o755)
    with open(os.path.join(folder, SUMS), "wb") as stream:
        stream.write(sums_of(sums))


def _private(path: str) -> IO[bytes]:
    """Open a new file that only its owner reads: the user's variables are in it."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _read(path: str) -> bytes:
    with open(path, "rb") as stream:
        return stream.read()


def _below(folder: str | None, name: str) -> str:
    return os.path.join(folder or "", name)


@contextlib.contextmanager
def _workplace(request: Request) -> Iterator[str]:
    """Give an empty folder that nobody else has, below where bundles are kept; in check mode nothing."""
    if request.check:
        yield ""
        return
    folder = os.path.join(request.dest, ".building")
    os.makedirs(request.dest, exist_ok=True)
    with open(os.path.join(request.dest, ".lock"), "a", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Problem(f"another run publishes from {request.dest}; needed: that it ends") from error
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
        os.mkdir(folder)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
