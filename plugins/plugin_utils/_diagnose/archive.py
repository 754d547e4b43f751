# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The one archive of a run: the page, and the parts of all nodes, without what only this machine knows to be secret."""

from __future__ import annotations

import io
import os
import re
import tarfile
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleError

from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose.evidence import LEVELS, Finding, finding
from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose.redact import KNOWN, Redactor
from ansible_collections.pcluster.postboot.plugins.module_utils._host import document, files
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._diagnose.fleet import LISTED, worth_reading
from ansible_collections.pcluster.postboot.plugins.plugin_utils._diagnose.model import Node

_LISTED = {
    "files": [{**dict.fromkeys(("name", "source", "note"), str), "kept": int, "whole": int}],
    "left": [str],
    "redacted": {document.ANY: int},
    "findings": [dict.fromkeys(Finding._fields, str)],
}
# Variables whose values are looked for in everything.
SECRET = re.compile(r"passw|secret|token|api_?key|access_?key|private_?key|credential|passphrase", re.IGNORECASE)


def secrets(hosts: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the values of the hosts' variables whose names tell that they are secret."""
    found: set[str] = set()
    for variables in hosts:
        for name in [name for name in variables if SECRET.search(name)]:
            try:
                found |= set(_strings(variables[name]))
            except AnsibleError:
                continue  # what cannot be worked out was given to no node
    return found


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield str(value)
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _strings(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _strings(one)


def members(node: Node) -> Iterator[tuple[str, str]]:
    """Yield the files of a node's part, whether it was fetched or gathered here."""
    yield from node.texts.items() if not node.file else ()
    if node.file:
        try:
            with tarfile.open(node.file, "r:gz") as archive:
                for member in archive:
                    stream = archive.extractfile(member)
                    if stream and files.below(member.name):
                        yield member.name, stream.read().decode("utf-8", "replace")
        except (OSError, tarfile.TarError, EOFError, zlib.error, ValueError, OverflowError) as error:
            raise Problem(f"what {node.name} has sent cannot be read: {error}") from error


def read(node: Node) -> None:
    """Take in what of a fetched part is needed here: its list, its findings, and what nodes are compared by."""
    found = dict(members(node))
    node.texts = {name: found[name] for name in worth_reading(found)}
    try:
        listed = document.fitted(document.parse(node.texts.get(LISTED, "{}")), _LISTED)
    except ValueError as error:
        raise Problem(f"what {node.name} has sent cannot be read: {LISTED}: {error}") from error
    node.files, node.left = listed.get("files", []), listed.get("left", [])
    node.redacted = listed.get("redacted", {})
    whole = [one for one in listed.get("findings", []) if len(one) == len(Finding._fields) and one["level"] in LEVELS]
    node.findings = [finding(**one) for one in whole]


def write(path: str, top: str, nodes: Sequence[Node], pages: Mapping[str, str], redactor: Redactor) -> int:
    """Write the archive whole, for its owner alone, and return its size."""
    with files.Staged(path) as staged:
        with tarfile.open(fileobj=staged.file, mode="w:gz", compresslevel=6) as archive:
            for name, text in pages.items():
                _add(archive, f"{top}/{name}", text)
            for node in nodes:
                for name, text in members(node):
                    _add(archive, f"{top}/nodes/{node.name}/{name}", redactor.known(text)[0])
        staged.settle(0o600)
        os.replace(staged.path, path)
    return os.path.getsize(path)


def _add(archive: tarfile.TarFile, name: str, text: str) -> None:
    data = text.encode("utf-8", "replace")
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(data), 0o600, int(time.time())
    archive.addfile(member, io.BytesIO(data))


def clean(nodes: Iterable[Node], redactor: Redactor) -> None:
    """Take from findings, and count in all texts, what only this machine knows to be secret."""
    for node in nodes:
        node.findings = [
            Finding(*[redactor.known(part)[0] if isinstance(part, str) else part for part in one])
            for one in node.findings
        ]
        count = sum(redactor.known(text)[1] for _name, text in members(node)) if redactor.values else 0
        if count:
            node.redacted[KNOWN] = node.redacted.get(KNOWN, 0) + count
