# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The one reader of dpkg's and rpm's records: which packages are installed, and with which dpkg was interrupted."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from typing import NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import NotRun, run

DPKG = "/var/lib/dpkg"
# Where the repositories of a package manager are named, by the repository's own name.
SOURCES = {"apt": "/etc/apt/sources.list.d/{}.sources", "dnf": "/etc/yum.repos.d/{}.repo"}
# What dpkg says of a package that it has not finished with.
_HALF = ("half-installed", "unpacked", "half-configured", "triggers-awaited", "triggers-pending")


class Packages(NamedTuple):
    """Installed packages with their versions, and those with which the package manager was interrupted."""

    installed: dict[str, str]
    half: list[str]


def upstream(version: str) -> str:
    """Return a Debian version without its epoch and revision."""
    version = version.split(":", 1)[-1]
    return version.rsplit("-", 1)[0] if "-" in version else version


def matches(installed: str, wanted: str) -> bool:
    """Tell whether a version is the wanted one, or begins with it: 29 and 29.7 are both 29.7.2."""
    return re.match(re.escape(wanted) + r"(?![0-9])", installed) is not None


def dpkg_packages(texts: Collection[bytes], names: Collection[str]) -> Packages:
    """Read some packages from dpkg's status, and over that from the records that a killed dpkg has not filed yet.

    A package of several architectures has a stanza for each: it is installed where one of them is.
    """
    found: dict[str, tuple[str, str]] = {}
    for text in texts:
        text = b"\n" + text + b"\n\n"
        for name in names:
            mark = b"\nPackage: " + name.encode() + b"\n"
            states = []
            start = text.find(mark)
            while start >= 0:
                stanza = text[start : text.find(b"\n\n", start + 1) + 1]
                state = re.search(rb"\nStatus: \S+ \S+ (\S+)\n", stanza)
                version = re.search(rb"\nVersion: *(\S+)", stanza)
                if state and (version or state[1] != b"installed"):
                    told = upstream(version[1].decode("utf-8", "replace")) if version else ""
                    states.append((state[1].decode("utf-8", "replace"), told))
                start = text.find(mark, start + 1)
            if states:
                found[name] = next((one for one in states if one[0] == "installed"), states[0])
    installed = {name: version for name, (state, version) in found.items() if state == "installed"}
    return Packages(installed, sorted(name for name, (state, _version) in found.items() if state in _HALF))


def rpm_packages(answer: str, names: Collection[str]) -> Packages:
    """Read some packages from what rpm answers to rpm_question()."""
    lines = (line.partition("\t") for line in answer.splitlines())
    return Packages({name: version for name, separator, version in lines if separator and name in names}, [])


def rpm_question(names: Collection[str]) -> list[str]:
    """Return the command that asks rpm for some packages: once for all of them."""
    return ["rpm", "-q", "--queryformat", "%{NAME}\\t%{VERSION}\\n", *sorted(names)]


def source_path(manager: str, repository: str) -> str:
    """Return the file by which a package manager knows of a repository."""
    return SOURCES[manager].format(repository)


def dpkg_unfiled() -> list[str]:
    """Return the records that dpkg left when it was killed; apt does nothing until it has been told to go on."""
    try:
        return sorted(name for name in os.listdir(f"{DPKG}/updates") if name.isdigit())
    except OSError:
        return []


def read(manager: str, names: Collection[str]) -> Packages:
    """Return which of some packages are installed, by apt's or dnf's own records."""
    if manager == "dnf":
        try:
            return rpm_packages(run(rpm_question(names), 60).out, names)
        except NotRun:
            return Packages({}, [])
    texts = []
    for name in ("status", *(f"updates/{name}" for name in dpkg_unfiled())):
        try:
            with open(f"{DPKG}/{name}", "rb") as stream:
                texts.append(stream.read())
        except FileNotFoundError:
            continue
    return dpkg_packages(texts, names)
