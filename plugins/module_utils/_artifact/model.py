# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a user asks of an artifact, checked before anything else happens."""

from __future__ import annotations

import dataclasses
import grp
import os
import pwd
import re
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

PLAIN_MODE = 0o644
SHORTEST_SECRET = 4

# What the bundle of this node has brought (role pull). It is asked before all mirrors.
BUNDLED = "/opt/pcluster-postboot/current/mirror"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*\Z")
_DIGEST = re.compile(r"(?:[0-9a-f]{64}|[0-9a-f]{128})\Z")
_SCHEMES = ("http", "https", "s3", "file")


class ArtifactError(Exception):
    """What was found, what was needed and what to do, in one line."""


class NoSourceError(ArtifactError):
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

    @property
    def label(self) -> str:
        """Return the name and version for messages."""
        return f"{self.name} {self.version}".rstrip()

    @property
    def plain(self) -> bool:
        """Tell whether the download itself is the file to install."""
        return not self.members and not self.unpack

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
        return sorted(found)

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
                raise ArtifactError(f"{option} {params[option]!r} must be an absolute path")
        for mirror in params["mirrors"]:
            if not mirror.startswith("/") and not _is_url(mirror):
                raise ArtifactError(f"mirror {public(mirror)!r} must be an http, https, s3 or file URL or a path")
        if params["timeout"] <= 0 or params["cache_wait"] < 0 or params["retries"] < 0:
            raise ArtifactError("timeout must be above 0 seconds, and cache_wait and retries not below 0")
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
            raise ArtifactError(f"{what} {double!r} is given twice: give each artifact its own")
    return artifacts


def parse(raw: dict[str, Any]) -> Artifact:
    """Return one artifact of the module's argument; raise ArtifactError where it cannot mean anything."""
    name = raw["name"]
    if not _NAME.match(name):
        raise ArtifactError(f"artifact name {name!r} cannot name a receipt: use letters, digits and . _ + -")
    sha256 = (raw.get("sha256") or "").strip().lower()
    variable = raw.get("sha256_variable") or ""
    where = f"set {variable}" if variable else "set sha256"
    if not sha256:
        raise ArtifactError(f"{name}: no sha256 is known for {public(raw['url'])}: {where} to the hash of that file")
    if not _DIGEST.match(sha256):
        raise ArtifactError(
            f"{name}: sha256 {sha256!r} is not 64 hexadecimal digits, or 128 of a sha512: {where} to the file's hash"
        )
    dest = raw["dest"]
    if not dest.startswith("/") or os.path.normpath(dest) == "/":
        raise ArtifactError(f"{name}: dest {dest!r} must be an absolute path below /")
    if not _is_url(raw["url"]):
        raise ArtifactError(f"{name}: url {public(raw['url'])!r} must begin with http://, https://, s3:// or file://")
    dest = os.path.normpath(dest)
    members = tuple(_member(name, dest, member) for member in raw.get("members") or ())
    unpack = bool(raw.get("unpack"))
    if unpack and members:
        raise ArtifactError(f"{name}: members and unpack exclude each other: choose some files or the whole tree")
    mode = parse_mode(name, raw.get("mode"))
    if unpack and mode is not None:
        raise ArtifactError(f"{name}: mode is for files: a tree that is unpacked keeps the modes of its archive")
    strip = int(raw.get("strip_components") or 0)
    if strip < 0 or (strip and not members and not unpack):
        raise ArtifactError(f"{name}: strip_components is {strip}: it needs members or unpack, and 0 or more")
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
    )


def _member(name: str, base: str, raw: dict[str, Any]) -> Member:
    src = re.sub(r"\A(\./+)+", "", raw["src"])
    if not src or src.startswith("/") or ".." in src.split("/"):
        raise ArtifactError(f"{name}: member {raw['src']!r} must be a relative path or glob inside the archive")
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
        raise ArtifactError(f"{name}: mode {value!r} must be octal digits in quotes, such as '0755'")
    if isinstance(value, str):
        if not re.match(r"(0o)?[0-7]{3,5}\Z", value):
            raise ArtifactError(f"{name}: mode {value!r} must be octal digits in quotes, such as '0755'")
        value = int(value, 8)
    if not 0 <= value <= 0o7777:
        raise ArtifactError(f"{name}: mode {value:o} is no permission")
    return int(value)


def owner_ids(artifact: Artifact) -> tuple[int, int]:
    """Return the uid and gid that installed files must have: those asked for, else those of this process."""
    uid, gid = os.geteuid(), os.getegid()
    try:
        if artifact.owner:
            uid = int(artifact.owner) if artifact.owner.isdigit() else pwd.getpwnam(artifact.owner).pw_uid
    except KeyError:
        raise ArtifactError(f"owner {artifact.owner!r} is no user of this node: create it first") from None
    try:
        if artifact.group:
            gid = int(artifact.group) if artifact.group.isdigit() else grp.getgrnam(artifact.group).gr_gid
    except KeyError:
        raise ArtifactError(f"group {artifact.group!r} is no group of this node: create it first") from None
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
