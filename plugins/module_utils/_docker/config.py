# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Docker's daemon.json: what is in it, what it should become, and where Docker keeps its data.

Others write to the same file (its user, nvidia-ctk), so what they put there stays.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._host import document, files
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import NotRun, run
from ansible_collections.pcluster.postboot.plugins.module_utils._node import storage

DEFAULT_ROOT = "/var/lib/docker"
CONTAINERD_ROOT, CONTAINERD_CONFIG = "/var/lib/containerd", "/etc/containerd/config.toml"
STORE = "containerd-snapshotter"  # the feature that keeps images in containerd's folder, the default from Docker 29 on
AUTO = "auto"
TIMEOUT = 60  # seconds for a program that only looks


class Root(NamedTuple):
    """Where Docker's data is to be: `path` is what daemon.json shall say, None if it says nothing."""

    path: str | None
    name: str  # who says so, for messages
    moved: bool  # whether this changes what daemon.json said so far


class Flags(NamedTuple):
    """What a unit gives dockerd beside daemon.json, and the files besides the unit's own from which that comes."""

    words: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


def read(path: str) -> tuple[str, dict[str, Any]]:
    """Return the text of daemon.json and what it means; an absent or empty one means nothing."""
    try:
        with open(path, "rb") as stream:
            text = stream.read().decode("utf-8-sig")
    except FileNotFoundError:
        return "", {}
    except UnicodeDecodeError as error:
        raise Problem(f"{path} is not UTF-8 text ({error.reason}); correct it, or move it away") from error
    if not text.strip():
        return text, {}
    try:
        found = document.parse(text)
        text_of(found).encode()  # which has no lone surrogates
    except ValueError as error:
        where = str(error)
        if isinstance(error, json.JSONDecodeError):
            where = f"line {error.lineno}, column {error.colno}: {error.msg}"
        raise Problem(f"{path} is no valid JSON ({where}); correct it, or move it away") from error
    if not isinstance(found, dict):
        raise Problem(f"{path} holds {json.dumps(found)[:40]}, needed is an object in braces; move it away")
    root = found.get("data-root")
    if root is not None and (not isinstance(root, str) or not root.isprintable()):
        raise Problem(f"{path} has the data-root {json.dumps(root)[:40]}, needed is a path; correct it")
    return text, found


def merged(there: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Put settings over what is there: dictionaries are merged, everything else is replaced, and None removes a key."""
    result = dict(there)
    for key, value in settings.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            before = result.get(key)
            result[key] = merged(before if isinstance(before, dict) else {}, value)
        else:
            result[key] = value
    return result


def _folders(path: str) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(path)]
    except OSError:
        return []


def _graph(root: str) -> bool:
    """Tell whether a data root has images in Docker's own image store."""
    return any(_folders(f"{root}/image/{driver}/layerdb/sha256") for driver in _folders(f"{root}/image"))


def _blobs(containerd: str) -> bool:
    """Tell whether containerd has images in a folder."""
    return bool(_folders(f"{containerd}/io.containerd.content.v1.content/blobs/sha256"))


def holds_data() -> bool:
    """Tell whether containers, images or volumes are in Docker's default data root, or images in containerd's own."""
    if _folders(f"{DEFAULT_ROOT}/containers") or _blobs(CONTAINERD_ROOT) or _graph(DEFAULT_ROOT):
        return True
    return bool(set(_folders(f"{DEFAULT_ROOT}/volumes")) - {"metadata.db", "backingFsBlockDev"})


def choose_root(wanted: str, settings: dict[str, Any], there: dict[str, Any], path: str, scratch: str | None) -> Root:
    """Decide where Docker's data is to be; see the documentation of data_root."""
    found = there.get("data-root")
    if "data-root" in settings:
        value = settings["data-root"]
        if wanted not in ("", AUTO) and value != wanted:
            raise Problem(
                f"docker_data_root is {wanted}, and data-root in docker_daemon_config is {value}; set only one of them"
            )
        wanted, name = value or "", "data-root in docker_daemon_config"
        if not value:
            return Root(None, name, bool(found))
    elif wanted == AUTO:
        if found or not scratch or holds_data():
            return Root(found, f"data-root in {path}", False)
        wanted, name = os.path.join(scratch, "docker"), "docker_data_root"
    elif not wanted:
        return Root(found, f"data-root in {path}", False)
    else:
        name = "docker_data_root"
    if not isinstance(wanted, str) or not os.path.isabs(wanted):
        raise Problem(f"{name} is {wanted!r}; needed is an absolute path, empty, or {AUTO}")
    return Root(wanted, name, wanted != found)


def require_local(root: Root, scratch: str | None, shared: dict[str, str]) -> None:
    """Refuse a data root on a network file system, also where links lead to one."""
    path = os.path.normpath(root.path or DEFAULT_ROOT)
    subject = f"{root.name} is {root.path}" if root.path else f"Docker's data would lie in {DEFAULT_ROOT}"
    # First by name alone: asking a dead file system where a link leads would never end.
    _require_local(path, subject, scratch, shared)
    real = os.path.realpath(path)
    if real != path:
        _require_local(real, f"{subject}, which leads to {real}", scratch, shared)


def _require_local(path: str, subject: str, scratch: str | None, shared: dict[str, str]) -> None:
    point, kind = storage.file_system(path, shared)
    if storage.is_network(kind):
        raise Problem(
            f"{subject}, on {kind} (mounted at {point}), where Docker's storage does not work; needed is a disk of "
            f"this node's own: set docker_data_root, for example to {scratch or '/scratch'}/docker"
        )


def require_scratch(root: Root, scratch: str | None, dropin: str | None) -> None:
    """Refuse a data root whose scratch disk is not mounted, because Docker would start empty below the mount point."""
    if dropin is None or root.path is None or (scratch and storage.lies_on(root.path, scratch)):
        return
    if f"RequiresMountsFor={root.path}" in (files.read(dropin) or "").splitlines():
        raise Problem(
            f"Docker's data is in {root.path}, on a scratch disk that is not mounted now (see 'journalctl -u "
            "setup-ephemeral'); mount it, or set docker_data_root to where the data shall be, such as "
            f"{DEFAULT_ROOT}"
        )


def with_root(config: dict[str, Any], root: Root) -> dict[str, Any]:
    """Put the data root into a configuration.

    The image store of Docker 29 keeps images in containerd's folder, wherever the data root is. That store is switched
    off, unless the configuration decides on it, if the data root is moved, or if no image is stored yet. So images go
    to the data root too, also to one that an AMI or a script has put into the file.
    """
    result = dict(config)
    if root.path is None:
        result.pop("data-root", None)
        return result
    result["data-root"] = root.path
    if _undecided(config) and (root.moved or not _stored(root.path)):
        result["features"] = {STORE: False, **(config.get("features") or {})}
    return result


def _undecided(config: dict[str, Any]) -> bool:
    features = config.get("features")
    return features is None or (isinstance(features, dict) and STORE not in features)


def _containerd_moved() -> bool:
    """Tell whether containerd's configuration names a root folder other than the default."""
    top = (files.read(CONTAINERD_CONFIG) or "").partition("\n[")[0]
    found = re.search(r"""^root[ \t]*=[ \t]*["']([^"'\n]*)["']""", top, re.MULTILINE)
    return bool(found and os.path.normpath(found[1]) != CONTAINERD_ROOT)


def _stored(root: str) -> bool:
    """Tell whether images or containers of this Docker may be stored: in its data root, or by containerd.

    A dockerd without the system's containerd starts one, whose folder is in the data root.
    """
    if _graph(root) or _folders(f"{root}/containers") or _blobs(f"{root}/containerd/daemon"):
        return True
    return _containerd_moved() or _blobs(CONTAINERD_ROOT)


def elsewhere(config: dict[str, Any], root: Root) -> str:
    """Return a warning if images are in containerd's folder, although daemon.json names another disk for Docker."""
    if root.path is None or not _undecided(config) or _graph(root.path) or _containerd_moved():
        return ""
    if not _blobs(CONTAINERD_ROOT):
        return ""
    return (
        f"Docker's data root is {root.path}, but images are in {CONTAINERD_ROOT}, the image store of Docker 29; to "
        f"have them in the data root, set docker_daemon_config: {{features: {{{STORE}: false}}}} and pull them again "
        "(true keeps them there, without this warning)"
    )


def text_of(config: dict[str, Any]) -> str:
    """Return a configuration as it stands in the file, indented as nvidia-ctk does it."""
    return json.dumps(config, indent=4, ensure_ascii=False) + "\n"


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an odd quote
        return text.split()


def _environment(path: str) -> dict[str, str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            lines = [line.strip() for line in stream]
    except (OSError, ValueError):  # a path with a null byte
        return {}
    pairs = [line.split("=", 1) for line in lines if "=" in line and not line.startswith(("#", ";"))]
    return {name.strip(): " ".join(_words(value)) for name, value in pairs}


def unit_flags(unit: str = "docker.service") -> Flags:
    """Return what Docker's unit gives dockerd. Amazon Linux has some of its flags in /etc/sysconfig/docker."""
    argv = ["systemctl", "show", "--property=ExecStart,Environment,EnvironmentFiles", unit]
    try:
        shown = run(argv, TIMEOUT, hint="see what it waits for").out
    except NotRun:
        if shutil.which(argv[0]):
            raise
        return Flags()
    started = re.search(r"^ExecStart=(.*)", shown, re.MULTILINE)
    command, found, _rest = (started[1] if started else "").partition(" argv[]=")[2].partition(" ; ")
    if not found:
        return Flags()
    known: dict[str, str] = {}
    files: list[str] = []
    words: list[str] = []
    for word in _words(" ".join(re.findall(r"^Environment=(.*)", shown, re.MULTILINE))):
        name, _sign, value = word.partition("=")
        known[name] = value
    for path in re.findall(r"^EnvironmentFiles=(.*) \(ignore_errors=", shown, re.MULTILINE):
        there = _environment(path)
        known.update(there)
        if any(value and re.search(rf"\${{?{name}\b", command) for name, value in there.items()):
            files.append(path)
    # As systemd does it: a word that is a variable becomes any number of words.
    for word in _words(command)[1:]:
        if re.fullmatch(r"\$\w+", word):
            words += _words(known.get(word[1:], ""))
        else:
            words.append(re.sub(r"\$\{(\w+)\}", lambda match: known.get(match[1], ""), word))
    return Flags(tuple(words), tuple(files))


def validate(dockerd: str, config: dict[str, Any], path: str) -> None:
    """Have dockerd validate a configuration, with its unit's flags; a dockerd older than 23 cannot."""
    flags = unit_flags()
    with files.folder("postboot-docker-") as folder:
        candidate = os.path.join(folder, os.path.basename(path))
        with open(candidate, "w", encoding="utf-8") as stream:
            stream.write(text_of(config))
        argv = [dockerd, *flags.words, "--validate", "--config-file", candidate]
        said = run(argv, TIMEOUT, merged=True, hint="see what it waits for")
    if said.code == 0 or any("unknown flag: --validate" in line for line in said.lines):
        return
    why = said.reason.replace(candidate, path)
    why = why.replace(f"unable to configure the Docker daemon with file {path}: ", "")
    if "as a flag" in why:
        why += f"; its flags are in {' and '.join(('docker.service', *flags.files))}"
    raise Problem(
        f"dockerd would not take {path} as it is to be: {why}; correct docker_daemon_config, where null takes a key "
        "away"
    )


def write(path: str, text: str) -> None:
    """Put daemon.json in place in one step, with the mode that it had."""
    path = os.path.realpath(path)
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except FileNotFoundError:
        mode = 0o644
    files.write(path, text, mode)
