#!/usr/bin/env python3
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Compare every recorded sha256 (or sha512) with what the publisher says, and record those that are missing.

A role that downloads something has, for a variable <x>_sha256 in its defaults, __<x>_url in its vars/main.yml,
__<x>_checksums where the publisher has a list of checksums, __<x>_checksums_sigstore where Sigstore vouches for that
list, and __<x>_signature where the publisher signs the file.
All are worked out for each architecture of the variable. Of a file of a release, GitHub's API tells the hash too.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jinja2

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import cosign
import github_releases
from github_releases import GitHub, Release

from plugins.plugin_utils._site.components import load

GO = {"x86_64": "amd64", "aarch64": "arm64"}
_DIGEST = re.compile(r"\b(?:[0-9a-fA-F]{128}|[0-9a-fA-F]{64})\b")


class PinError(Exception):
    """There is no telling what the checksum is."""


@dataclass(frozen=True)
class Pin:
    role: str
    variable: str
    architecture: str
    recorded: str

    @property
    def kind(self) -> str:
        """Which hash it is: a sha512 has 128 digits."""
        return "sha512" if len(self.recorded) == 128 else "sha256"

    def __str__(self) -> str:
        return f"{self.variable}['{self.architecture}']"


def work_out(name: str, variables: Mapping[str, Any], architecture: str) -> str:
    """Return the value of a variable of a role for an architecture, as Ansible would on a node of no special type."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)
    node = {"architecture": architecture, "go_architecture": GO.get(architecture, architecture), "instance_type": None}
    facts = {"pcluster": node}
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
    try:
        with urllib.request.urlopen(github_releases.request(url), timeout=timeout) as answer:
            return bytes(answer.read())
    except (OSError, ValueError) as error:
        raise PinError(f"{url}: {error}") from error


def fetch_digest(url: str, kind: str, timeout: float = 30) -> str:
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
    variables = {**load(role / "defaults/main.yml"), **load(role / "vars/main.yml")}
    pins = [
        Pin(role.name, name, str(architecture), str(digest or ""))
        for name, value in variables.items()
        if name.endswith("_sha256") and isinstance(value, dict)
        for architecture, digest in value.items()
        if not isinstance(digest, dict)
    ]
    return pins, variables


def by_signature(pin: Pin, variables: Mapping[str, Any]) -> bool:
    """Tell whether nodes verify the publisher's signature of a file. A recorded hash decides alone, but for some."""
    base = "__" + pin.variable[: -len("_sha256")]
    return f"{base}_signature" in variables and (not pin.recorded or bool(variables.get(f"{base}_signature_always")))


def comes_along(pin: Pin, variables: Mapping[str, Any]) -> bool:
    """Tell whether a file is the signature, or the key, of another one."""
    name = f"__{pin.variable[: -len('_sha256')]}_url"
    if name not in variables:
        return False
    proofs = [value for key, value in variables.items() if key.endswith("_signature") and isinstance(value, dict)]
    url = work_out(name, variables, pin.architecture)
    return any(
        work_out("proof", {**variables, "proof": proof[key]}, pin.architecture) == url
        for proof in proofs
        for key in ("url", "key_url")
    )


def set_version(role: Path, version: str) -> None:
    """Name another version in a role's defaults and in its specification."""
    for file, key in (("defaults/main.yml", f"{role.name}_version:"), ("meta/argument_specs.yml", "default:")):
        lines = (role / file).read_text(encoding="utf-8").splitlines(keepends=True)
        named = [line.strip().startswith(f"{role.name}_version:") for line in lines]
        after = range(named.index(True) if any(named) else len(lines), len(lines))
        at = next((number for number in after if lines[number].strip().startswith(key)), None)
        if at is None:
            raise PinError(f"{role / file} has no line for the default of {role.name}_version")
        lines[at] = re.sub(r"(: *)[^\s#]+", rf"\g<1>{version}", lines[at], count=1)
        (role / file).write_text("".join(lines), encoding="utf-8")


class Pins:
    def __init__(self, update: bool, download: bool, check: bool) -> None:
        self.update, self.download, self.check = update, download, check
        self.wrong = 0
        self.unverified: list[str] = []
        self.github = GitHub()
        self._lists: dict[str, tuple[str, str]] = {}

    def role(self, role: Path) -> None:
        pins, variables = pins_of(role)
        for pin in pins:
            try:
                said, how = self._ask(pin, variables)
            except PinError as error:
                state = "recorded, and not verified" if pin.recorded else "MISSING"
                if by_signature(pin, variables):
                    also = f"; {state}" if pin.recorded else ""
                    print(f"{pin}: nodes verify the publisher's signature{also}")
                elif not pin.recorded and comes_along(pin, variables):
                    print(f"{pin}: not needed: the file vouches for another, by a key whose fingerprint is recorded")
                else:
                    self.unverified.append(str(pin))
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
                self._record(role, pin, said)
                print(f"{pin}: recorded, {how}")

    def _record(self, role: Path, pin: Pin, digest: str) -> None:
        path = role / "defaults/main.yml"
        path.write_text(record(path.read_text(encoding="utf-8"), pin.variable, pin.architecture, digest), "utf-8")

    def _ask(self, pin: Pin, variables: Mapping[str, Any]) -> tuple[str, str]:
        base = "__" + pin.variable[: -len("_sha256")]
        if f"{base}_url" not in variables:
            raise PinError(f"the role has no {base}_url")
        url = work_out(f"{base}_url", variables, pin.architecture)
        place = github_releases.place_of(url)
        if f"{base}_checksums" in variables:
            where = work_out(f"{base}_checksums", variables, pin.architecture)
            if where not in self._lists:
                self._lists[where] = self._list(where, f"{base}_checksums_sigstore", variables, pin.architecture)
            text, vouched = self._lists[where]
            said = published(text, url.rpartition("/")[2], len(pin.recorded) or 64)
            return self._confirmed(said, place), f"what the publisher's list says{vouched}"
        if place and place.file:
            try:
                return self.github.digest(place), "what GitHub computed of the file"
            except github_releases.Unknown as error:
                if not self.download:
                    raise PinError(str(error)) from error
        if not self.download:
            raise PinError("the publisher has no list of checksums; --download computes it from the file itself")
        return fetch_digest(url, pin.kind), "computed from the download, for which no publisher vouches"

    def _list(self, url: str, name: str, variables: Mapping[str, Any], architecture: str) -> tuple[str, str]:
        """Return a publisher's list, and in words who vouches for the list."""
        text, vouched = fetch(url), ""
        if name in variables:
            proof = {
                key: work_out("proof", {**variables, "proof": value}, architecture)
                for key, value in variables[name].items()
            }
            try:
                vouched = f" ({cosign.verify(text, fetch(proof['bundle']), proof)})"
            except cosign.Unvouched as error:
                raise PinError(str(error)) from error
        return text.decode("utf-8", "replace"), vouched

    def _confirmed(self, said: str, place: github_releases.Place | None) -> str:
        """Return what a publisher's list says, unless GitHub has computed something else of the same file."""
        try:
            computed = self.github.digest(place) if place else ""
        except github_releases.Unknown:
            return said  # the list is enough
        if computed and len(computed) == len(said) and computed != said:
            raise PinError(f"the publisher's list says {said}, and GitHub computed {computed} of the file")
        return said

    def propose(self, role: Path, upgrade: bool) -> None:
        """Print which newer releases there are, with the hash for each architecture; write the newest on request."""
        pins, variables = pins_of(role)
        version = str(variables.get(f"{role.name}_version") or "")
        places = [self._place(pin, variables) for pin in pins]
        place = next((one for one in places if one), None)
        if not place or not version or "{{" in version:
            return
        try:
            found = self.github.newer(place, version)
        except github_releases.Unknown as error:
            print(f"{role.name} {version}: no telling which is the newest: {error}")
            return
        for release in found:
            print(f"{role.name} {version}: {release.version} of {release.published} is there: {release.changelog}")
            hashes = self._hashes(pins, {**variables, f"{role.name}_version": release.version})
            for pin, digest in hashes.items():
                print(f"  {pin}: {digest or 'unknown: nobody tells the hash'}")
        patches = [one for one in found if github_releases.branch(one.version) == github_releases.branch(version)]
        if patches and upgrade and not self.check:
            release = patches[0]
            self._upgrade(role, pins, release, {**variables, f"{role.name}_version": release.version})

    def _place(self, pin: Pin, variables: Mapping[str, Any]) -> github_releases.Place | None:
        name = f"__{pin.variable[: -len('_sha256')]}_url"
        return github_releases.place_of(work_out(name, variables, pin.architecture)) if name in variables else None

    def _hashes(self, pins: Sequence[Pin], variables: Mapping[str, Any]) -> dict[Pin, str]:
        found = {}
        for pin in pins:
            try:
                found[pin] = self._ask(replace(pin, recorded=""), variables)[0]
            except PinError:
                found[pin] = ""
        return found

    def _upgrade(self, role: Path, pins: Sequence[Pin], release: Release, variables: Mapping[str, Any]) -> None:
        hashes = self._hashes(pins, variables)
        lacking = [str(pin) for pin, digest in hashes.items() if pin.recorded and not digest]
        if lacking:
            print(f"{role.name}: left as it is: nobody tells {', '.join(lacking)} of {release.version}")
            return
        set_version(role, release.version)
        for pin, digest in hashes.items():
            self._record(role, pin, digest)
        print(f"{role.name}: {release.version} is recorded")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--update", action="store_true", help="record what the publisher says over what is recorded")
    parser.add_argument("--download", action="store_true", help="compute the sha256 where the publisher has no list")
    parser.add_argument("--new", action="store_true", help="print newer releases on GitHub, and nothing else")
    parser.add_argument("--upgrade", action="store_true", help="with --new, record newer patches")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], help="the checkout")
    parser.add_argument("roles", nargs="*", help="the roles to go through; all by default")
    options = parser.parse_args(arguments)
    pins = Pins(options.update, options.download, options.check)
    for role in sorted((options.root / "roles").iterdir()):
        if role.is_dir() and (not options.roles or role.name in options.roles):
            if options.new:
                pins.propose(role, options.upgrade)
            else:
                pins.role(role)
    if pins.unverified:
        print(f"nobody vouches for {len(pins.unverified)}: {', '.join(pins.unverified)}")
    return int(bool(pins.wrong))


if __name__ == "__main__":
    sys.exit(main())
