#!/usr/bin/env python3
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Compare every recorded sha256 (or sha512) with what the publisher says, and record those that are missing.

A role that downloads something has, for a variable <x>_sha256 in its defaults, __<x>_url in its vars/main.yml, and
__<x>_checksums where the publisher has a list of checksums. Both are worked out for each architecture of the variable.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import yaml

GO = {"x86_64": "amd64", "aarch64": "arm64"}
_DIGEST = re.compile(r"\b(?:[0-9a-fA-F]{128}|[0-9a-fA-F]{64})\b")


class PinError(Exception):
    """There is no telling what the checksum is."""


@dataclass(frozen=True)
class Pin:
    """One recorded checksum."""

    role: str
    variable: str
    architecture: str
    recorded: str

    @property
    def kind(self) -> str:
        """Which hash it is: a sha512 has 128 digits."""
        return "sha512" if len(self.recorded) == 128 else "sha256"

    def __str__(self) -> str:
        """Name it as a user would set it."""
        return f"{self.variable}['{self.architecture}']"


def work_out(name: str, variables: Mapping[str, Any], architecture: str) -> str:
    """Return the value of a variable of a role for an architecture, as Ansible would."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)
    facts = {"pcluster": {"architecture": architecture, "go_architecture": GO.get(architecture, architecture)}}
    value = variables[name]
    for _ in range(10):
        if not isinstance(value, str) or "{{" not in value:
            return str(value)
        try:
            value = environment.from_string(value).render({**variables, "ansible_facts": facts})
        except jinja2.TemplateError as error:
            raise PinError(f"{name} cannot be worked out: {error}") from error
    raise PinError(f"{name} cannot be worked out: it refers to itself")


def fetch(url: str, timeout: float = 30) -> bytes:
    """Get a small file."""
    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer:
            return bytes(answer.read())
    except (OSError, ValueError) as error:
        raise PinError(f"{url}: {error}") from error


def fetch_digest(url: str, kind: str, timeout: float = 30) -> str:
    """Get a file of any size, and return its hash."""
    digest = hashlib.new(kind)
    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer:
            while chunk := answer.read(1 << 20):
                digest.update(chunk)
    except (OSError, ValueError) as error:
        raise PinError(f"{url}: {error}") from error
    return digest.hexdigest()


def lines_of(text: str) -> list[str]:
    """Return the lines of a publisher's list. GitHub's API describes a release by its notes, and its files' hashes."""
    try:
        release = json.loads(text)
    except ValueError:
        release = None
    if not isinstance(release, dict):
        return text.splitlines()
    notes, files = str(release.get("body") or ""), release.get("assets") or []
    return notes.splitlines() + [f"{file['digest']} {file['name']}" for file in files if file.get("digest")]


def published(text: str, file: str, digits: int = 64) -> str:
    """Return the hash that a publisher's list has for a file, of so many digits if it can be.

    A list for one file need not name it.
    """
    found = []
    for line in lines_of(text):
        match = _DIGEST.search(line)
        if match:
            rest = line[: match.start()] + " " + line[match.end() :]
            names = [word.strip("*()=:").rpartition("/")[2] for word in rest.split()]
            found.append((match[0].lower(), [name for name in names if name and name not in ("SHA256", "SHA512")]))
    for digest, names in sorted(found, key=lambda one: len(one[0]) != digits):
        if file in names:
            return digest
    if len(found) == 1 and not found[0][1]:
        return found[0][0]
    raise PinError(f"the publisher's list does not name {file}")


def record(text: str, variable: str, architecture: str, digest: str) -> str:
    """Return the text of a defaults/main.yml with one checksum set, and everything else as it was."""
    lines = text.splitlines(keepends=True)
    inside = False
    for number, line in enumerate(lines):
        if re.match(r"\S", line) and not line.startswith("#"):
            inside = line.startswith(f"{variable}:")
        match = re.match(r"(\s+)(['\"]?)" + re.escape(architecture) + r"\2:(\s*)(\S*)([^\n]*)(\n?)", line)
        if inside and match:
            comment = match[5] if match[5].lstrip().startswith("#") else ""
            lines[number] = f'{match[1]}{match[2]}{architecture}{match[2]}: "{digest}"{comment}{match[6] or ""}'
            return "".join(lines)
    raise PinError(f"defaults/main.yml has no line for {variable}['{architecture}']")


def pins_of(role: Path) -> tuple[list[Pin], dict[str, Any]]:
    """Return the checksums that a role records, and all of its variables."""
    variables: dict[str, Any] = {}
    for name in ("defaults/main.yml", "vars/main.yml"):
        path = role / name
        found = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else None
        variables.update(found or {})
    pins = [
        Pin(role.name, name, str(architecture), str(digest or ""))
        for name, value in variables.items()
        if name.endswith("_sha256") and isinstance(value, dict)
        for architecture, digest in value.items()
        if not isinstance(digest, dict)
    ]
    return pins, variables


class Pins:
    """Goes through all of them."""

    def __init__(self, update: bool, download: bool, check: bool) -> None:
        self.update, self.download, self.check = update, download, check
        self.wrong = 0
        self._lists: dict[str, str] = {}

    def role(self, role: Path) -> None:
        """Go through the checksums of a role."""
        pins, variables = pins_of(role)
        for pin in pins:
            try:
                said, how = self._ask(pin, variables)
            except PinError as error:
                state = "recorded, and not verified" if pin.recorded else "MISSING"
                print(f"{pin}: {state}: {error}")
                continue
            if pin.recorded == said:
                print(f"{pin}: {how}")
            elif pin.recorded and not self.update:
                self.wrong += 1
                print(f"{pin}: WRONG: recorded is {pin.recorded}, {how} is {said}; --update records that")
            elif self.check:
                print(f"{pin}: MISSING: {how} is {said}")
            else:
                path = role / "defaults/main.yml"
                path.write_text(record(path.read_text(encoding="utf-8"), pin.variable, pin.architecture, said), "utf-8")
                print(f"{pin}: recorded, {how}")

    def _ask(self, pin: Pin, variables: Mapping[str, Any]) -> tuple[str, str]:
        base = "__" + pin.variable[: -len("_sha256")]
        if f"{base}_url" not in variables:
            raise PinError(f"the role has no {base}_url")
        url = work_out(f"{base}_url", variables, pin.architecture)
        if f"{base}_checksums" in variables:
            where = work_out(f"{base}_checksums", variables, pin.architecture)
            if where not in self._lists:
                self._lists[where] = fetch(where).decode("utf-8", "replace")
            said = published(self._lists[where], url.rpartition("/")[2], len(pin.recorded) or 64)
            return said, "what the publisher's list says"
        if not self.download:
            raise PinError("the publisher has no list of checksums; --download computes it from the file itself")
        return fetch_digest(url, pin.kind), "computed from the download, for which no publisher vouches"


def main(arguments: list[str] | None = None) -> int:
    """Go through the roles."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--update", action="store_true", help="record what the publisher says over what is recorded")
    parser.add_argument("--download", action="store_true", help="compute the sha256 where the publisher has no list")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], help="the checkout")
    parser.add_argument("roles", nargs="*", help="the roles to go through; all by default")
    options = parser.parse_args(arguments)
    pins = Pins(options.update, options.download, options.check)
    for role in sorted((options.root / "roles").iterdir()):
        if role.is_dir() and (not options.roles or role.name in options.roles):
            pins.role(role)
    return int(bool(pins.wrong))


if __name__ == "__main__":
    sys.exit(main())
