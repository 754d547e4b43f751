#!/usr/bin/env python3
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What GitHub's API says of releases: the sha256 of each file, which GitHub computes when the file comes, and versions.

scripts/pins.py asks it. GITHUB_TOKEN, if set, is sent to the API alone, which allows more questions an hour then.
"""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# Names that GitHub's own workflows set, also for a server of one's own.
SERVER, API = "GITHUB_SERVER_URL", "GITHUB_API_URL"
_DIGEST = re.compile(r"sha(256:[0-9a-f]{64}|512:[0-9a-f]{128})")
_VERSION = re.compile(r"v?(\d+(?:\.\d+)+(?:-\d+)?)")


class Unknown(Exception):
    """GitHub does not say."""


@dataclass(frozen=True)
class Place:
    """A file of a release, or, without a file's name, the sources of a tag."""

    repository: str
    tag: str
    file: str = ""


@dataclass(frozen=True)
class Release:
    version: str
    published: str
    changelog: str  # its address


def place_of(url: str) -> Place | None:
    """Return which file of GitHub's a URL names, if it is one."""
    server = re.escape(os.environ.get(SERVER, "https://github.com").rstrip("/"))
    match = re.fullmatch(rf"{server}/([^/]+/[^/]+)/releases/download/([^/]+)/([^/]+)", url)
    if match:
        return Place(*match.groups())
    match = re.fullmatch(rf"{server}/([^/]+/[^/]+)/archive/refs/tags/([^/]+)\.(?:tar\.gz|zip)", url)
    return Place(*match.groups()) if match else None


def numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def branch(version: str) -> list[int]:
    """Return what versions have in common that differ by a patch alone."""
    return numbers(version)[:2]


def request(url: str) -> urllib.request.Request:
    """Return how a URL is asked: the API alone with its own headers, and with the token."""
    if not url.startswith(os.environ.get(API, "https://api.github.com").rstrip("/") + "/"):
        return urllib.request.Request(url)
    headers = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
    if os.environ.get("GITHUB_TOKEN"):
        headers["Authorization"] = f"Bearer {os.environ['GITHUB_TOKEN']}"
    return urllib.request.Request(url, headers=headers)


class GitHub:
    def __init__(self) -> None:
        self._said: dict[str, Any] = {}

    def _ask(self, path: str) -> Any:
        url = os.environ.get(API, "https://api.github.com").rstrip("/") + path
        if url not in self._said:
            try:
                with urllib.request.urlopen(request(url), timeout=30) as answer:
                    self._said[url] = json.load(answer)
            except (OSError, ValueError) as error:
                raise Unknown(f"{url}: {error}") from error
        return self._said[url]

    def digest(self, place: Place) -> str:
        """Return the hash of a file, as GitHub has computed it."""
        if not place.file:
            raise Unknown("GitHub has no hash of the sources of a tag")
        release = self._ask(f"/repos/{place.repository}/releases/tags/{place.tag}")
        for asset in release["assets"]:
            if asset["name"] == place.file:
                digest = str(asset.get("digest") or "")
                if not _DIGEST.fullmatch(digest):
                    raise Unknown(f"GitHub has no hash of {place.file}, which is older than such hashes")
                return digest.partition(":")[2]
        raise Unknown(f"release {place.tag} of {place.repository} has no file {place.file}")

    def newer(self, place: Place, version: str) -> Sequence[Release]:
        """Return the newest release of the version's own branch and the newest of all, where they are newer."""
        found = []
        for release in self._ask(f"/repos/{place.repository}/releases?per_page=100"):
            match = _VERSION.fullmatch(release["tag_name"])
            if match and not release["draft"] and not release["prerelease"] and numbers(match[1]) > numbers(version):
                found.append(Release(match[1], str(release["published_at"])[:10], release["html_url"]))
        found.sort(key=lambda one: numbers(one.version))
        same = [one for one in found if branch(one.version) == branch(version)]
        return list(dict.fromkeys([*same[-1:], *found[-1:]]))
