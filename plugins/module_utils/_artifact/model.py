# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The options of an artifact, checked before any change."""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from ansible_collections.pcluster.postboot.plugins.module_utils._host import files
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._packages import openpgp

PLAIN_MODE = 0o644
SHORTEST_SECRET = 4

# Files of this node's bundle (role pull), tried before all mirrors.
BUNDLED = "/opt/pcluster-postboot/current/mirror"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*\Z")
_DIGEST = re.compile(r"(?:[0-9a-f]{64}|[0-9a-f]{128})\Z")
_SCHEMES = ("http", "https", "s3", "file")


class NoSourceError(Problem):
    """Nobody delivered an artifact; whether that may pass, and whether somebody delivered other bytes."""

    def __init__(self, reason: str, *, may_pass: bool, other_bytes: bool = False) -> None:
        super().__init__(reason)
        self.may_pass = may_pass
        self.other_bytes = other_bytes


def algorithm(digest: str) -> str:
    """Return which hash this is. Some publishers tell their sha512 alone, and its length is enough to know it."""
    return "sha512" if len(digest) == 128 else "sha256"


@dataclasses.dataclass(frozen=True)
class Member:
    """Which file of an archive goes where."""

    src: str
    dest: str
    mode: int | None = None


@dataclasses.dataclass(frozen=True)
class Signature:
    """Who vouches for a download where no hash is known, and where a mirror keeps the proof; empty for no mirror."""

    url: str
    key_url: str
    fingerprints: tuple[str, ...]
    dest: str = ""
    key_dest: str = ""

    @property
    def kept(self) -> set[str]:
        """Return where the signature and the key are kept."""
        return {path for path in (self.dest, self.key_dest) if path}


@dataclasses.dataclass(frozen=True)
class Artifact:
    """One download and where it goes: as it is, some members of it, or its whole tree."""

    name: str
    url: str
    sha256: str
    dest: str
    version: str = ""
    sha256_variable: str = ""
    members: tuple[Member, ...] = ()
    unpack: bool = False
    strip_components: int = 0
    mode: int | None = None
    owner: str | None = None
    group: str | None = None
    signature: Signature | None = None

    @property
    def label(self) -> str:
        """Return the name and version for messages."""
        return f"{self.name} {self.version}".rstrip()

    @property
    def plain(self) -> bool:
        """Tell whether the download itself is the file to install."""
        return not self.members and not self.unpack

    @property
    def kept(self) -> set[str]:
        """Return which files come along, to vouch for this one wherever a mirror has it."""
        return self.signature.kept if self.signature else set()

    @property
    def signed(self) -> bool:
        """Tell whether the signature is verified: where there is no hash, and where the signature is kept."""
        return self.signature is not None and bool(not self.sha256 or self.kept)

    @property
    def layout(self) -> dict[str, Any]:
        """Return what decides which files this artifact installs; another layout is another installation."""
        return {
            "dest": self.dest,
            "members": [[member.src, member.dest] for member in self.members],
            "strip_components": self.strip_components,
            "unpack": self.unpack,
        }

    @property
    def directories(self) -> list[str]:
        """Return where temporary files of this artifact may lie."""
        if self.members:
            found = {os.path.dirname(member.dest) for member in self.members}
        else:
            found = {os.path.dirname(self.dest)}
        return sorted(found | {os.path.dirname(path) for path in self.kept})

    def mode_of(self, src: str, packed: int) -> int:
        """Return the mode of an installed file that came from the member `src`, with mode `packed` in its archive."""
        if self.plain:
            return PLAIN_MODE if self.mode is None else self.mode
        asked = next((member.mode for member in self.members if member.src == src), None)
        return next(mode for mode in (asked, self.mode, packed) if mode is not None)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What holds for every artifact of a task."""

    state_dir: str
    mirrors: tuple[str, ...] = ()
    cache: str = ""
    cache_wait: float = 600
    upstream: bool = True
    timeout: float = 30
    retries: int = 3
    check: bool = False
    backoff: float = 1.0  # seconds before the second try, doubled before each further one
    lease_ttl: float = 20.0  # seconds after which a lease that nobody touches is dead

    @classmethod
    def of(cls, params: dict[str, Any], check: bool) -> Settings:
        """Return the settings that the module's arguments mean."""
        for option in ("state_dir", "cache"):
            if params[option] and not params[option].startswith("/"):
                raise Problem(f"{option} {params[option]!r} must be an absolute path")
        for mirror in params["mirrors"]:
            if not mirror.startswith("/") and not _is_url(mirror):
                raise Problem(f"mirror {public(mirror)!r} must be an http, https, s3 or file URL or a path")
        if params["timeout"] <= 0 or params["cache_wait"] < 0 or params["retries"] < 0:
            raise Problem("timeout must be above 0 seconds, and cache_wait and retries not below 0")
        return cls(
            state_dir=params["state_dir"],
            mirrors=(*([BUNDLED] if os.path.isdir(BUNDLED) else []), *params["mirrors"]),
            cache=params["cache"],
            cache_wait=params["cache_wait"],
            upstream=params["upstream"],
            timeout=params["timeout"],
            retries=params["retries"],
            check=check,
        )


def parse_all(raw: list[dict[str, Any]]) -> list[Artifact]:
    """Return the artifacts of the module's argument, each with a name and destinations of its own."""
    artifacts = [parse(one) for one in raw]
    names = [artifact.name for artifact in artifacts]
    places = [member.dest for artifact in artifacts for member in artifact.members if not member.dest.endswith("/")]
    places += [artifact.dest for artifact in artifacts if not artifact.members]
    for what, values in (("name", names), ("destination", places)):
        double = next((value for value in values if values.count(value) > 1), None)
        if double:
            raise Problem(f"{what} {double!r} is given twice: give each artifact its own")
    return artifacts


def parse(raw: dict[str, Any]) -> Artifact:
    """Return one artifact of the module's argument; raise Problem where it cannot mean anything."""
    name = raw["name"]
    if not _NAME.match(name):
        raise Problem(f"artifact name {name!r} cannot name a receipt: use letters, digits and . _ + -")
    sha256 = (raw.get("sha256") or "").strip().lower()
    variable = raw.get("sha256_variable") or ""
    where = f"set {variable}" if variable else "set sha256"
    signature = _signature(name, raw.get("signature"))
    if not sha256 and not signature:
        raise Problem(f"{name}: no sha256 is known for {public(raw['url'])}: {where} to the hash of that file")
    if sha256 and not _DIGEST.match(sha256):
        raise Problem(
            f"{name}: sha256 {sha256!r} is not 64 hexadecimal digits, or 128 of a sha512: {where} to the file's hash"
        )
    dest = raw["dest"]
    if not dest.startswith("/") or os.path.normpath(dest) == "/":
        raise Problem(f"{name}: dest {dest!r} must be an absolute path below /")
    if not _is_url(raw["url"]):
        raise Problem(f"{name}: url {public(raw['url'])!r} must begin with http://, https://, s3:// or file://")
    dest = os.path.normpath(dest)
    members = tuple(_member(name, dest, member) for member in raw.get("members") or ())
    unpack = bool(raw.get("unpack"))
    if unpack and members:
        raise Problem(f"{name}: members and unpack exclude each other: choose some files or the whole tree")
    mode = parse_mode(name, raw.get("mode"))
    if unpack and mode is not None:
        raise Problem(f"{name}: mode is for files: a tree that is unpacked keeps the modes of its archive")
    strip = int(raw.get("strip_components") or 0)
    if strip < 0 or (strip and not members and not unpack):
        raise Problem(f"{name}: strip_components is {strip}: it needs members or unpack, and 0 or more")
    return Artifact(
        name=name,
        version=raw.get("version") or "",
        url=raw["url"],
        sha256=sha256,
        sha256_variable=variable,
        dest=dest,
        members=members,
        unpack=unpack,
        strip_components=strip,
        mode=mode,
        owner=raw.get("owner"),
        group=raw.get("group"),
        signature=signature,
    )


def _signature(name: str, raw: dict[str, Any] | None) -> Signature | None:
    """Return what verifies a download beside a hash; refuse a key that nobody has named."""
    if not raw:
        return None
    for option in ("url", "key_url"):
        if not _is_url(raw[option]):
            raise Problem(f"{name}: signature.{option} {public(raw[option])!r} must be an http, https, s3 or file URL")
    for option in ("dest", "key_dest"):
        if raw.get(option) and not raw[option].startswith("/"):
            raise Problem(f"{name}: signature.{option} {raw[option]!r} must be an absolute path")
    if not raw["fingerprints"]:
        raise Problem(f"{name}: signature.fingerprints is empty; without one any key would be believed")
    try:
        fingerprints = tuple(openpgp.normalized(text) for text in raw["fingerprints"])
    except openpgp.BadKey as error:
        raise Problem(f"{name}: signature.fingerprints: {error}") from error
    return Signature(raw["url"], raw["key_url"], fingerprints, raw.get("dest") or "", raw.get("key_dest") or "")


def _member(name: str, base: str, raw: dict[str, Any]) -> Member:
    src = re.sub(r"\A(\./+)+", "", raw["src"])
    if not src or src.startswith("/") or ".." in src.split("/"):
        raise Problem(f"{name}: member {raw['src']!r} must be a relative path or glob inside the archive")
    dest = raw.get("dest") or os.path.basename(src)
    if not raw.get("dest") and re.search(r"[*?\[]", dest):
        dest = "./"
    directory = dest.endswith("/")
    dest = os.path.normpath(os.path.join(base, dest))
    return Member(src, dest + "/" if directory else dest, parse_mode(name, raw.get("mode")))


def parse_mode(name: str, value: Any) -> int | None:
    """Return permission bits for a number or a string of octal digits."""
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise Problem(f"{name}: mode {value!r} must be octal digits in quotes, such as '0755'")
    if isinstance(value, str):
        if not re.match(r"(0o)?[0-7]{3,5}\Z", value):
            raise Problem(f"{name}: mode {value!r} must be octal digits in quotes, such as '0755'")
        value = int(value, 8)
    if not 0 <= value <= 0o7777:
        raise Problem(f"{name}: mode {value:o} is no permission")
    return int(value)


def owner_ids(artifact: Artifact) -> tuple[int, int]:
    """Return the uid and gid that installed files must have: those asked for, else those of this process."""
    uid = files.user_id(artifact.owner) if artifact.owner else os.geteuid()
    gid = files.group_id(artifact.group) if artifact.group else os.getegid()
    if uid is None:
        raise Problem(f"owner {artifact.owner!r} is no user of this node: create it first")
    if gid is None:
        raise Problem(f"group {artifact.group!r} is no group of this node: create it first")
    return uid, gid


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme == "file" or (parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0)
    except ValueError:
        return False


def public(url: str) -> str:
    """Return a URL without what may be secret: user and password, query and fragment."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "that is none"
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def secrets(url: str) -> set[str]:
    """Return the strings of a URL that no log may show; not those so short that they would black out other words."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return set()
    password = parts.password or ""
    found = {parts.query, parts.netloc.rpartition("@")[0], password, unquote(password)}
    return {secret for secret in found if len(secret) >= SHORTEST_SECRET}


def mirrored(mirror: str, url: str) -> str:
    """Return where a mirror keeps what `url` names: <mirror>/<host>/<path>."""
    parts = urlsplit(url)
    path = parts.path.lstrip("/")
    if urlsplit(mirror).scheme in ("", "s3"):  # names, not URLs
        path = unquote(path)
    return "/".join(piece for piece in (mirror.rstrip("/"), parts.hostname or parts.netloc, path) if piece)
