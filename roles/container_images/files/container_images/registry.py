# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Registries: what they say of an image, which enroot does not tell, and how long they want to be left alone."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import platform
import re
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, NamedTuple

from .errors import Trouble
from .names import Image
from .settings import Login, Settings, secret_of

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
MANIFESTS = (
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.index.v1+json",
)


class Manifest(NamedTuple):
    digest: str
    layers: list[str]
    size: int


class Registry:
    def __init__(self, settings: Settings, logins: dict[str, Login]) -> None:
        self.settings, self.logins = settings, logins
        self.opener = urllib.request.build_opener()

    def manifest(self, image: Image) -> Manifest:
        """Return the manifest of the image for this machine's architecture."""
        body, digest = self._fetch(image, image.digest or image.tag)
        if "manifests" in body:
            wanted = ARCHITECTURES.get(platform.machine(), platform.machine())
            index: list[Any] = body["manifests"] if isinstance(body["manifests"], list) else [None]
            if not all(isinstance(one, dict) and isinstance(one.get("platform") or {}, dict) for one in index):
                raise Trouble(f"{image.host} sent no valid list of manifests", again=True)
            found = [one.get("platform") or {} for one in index]
            for one, what in zip(index, found):
                if what.get("architecture") == wanted and what.get("os", "linux") == "linux":
                    body, digest = self._fetch(image, checked(one.get("digest")))
                    break
            else:
                has = ", ".join(sorted({str(what.get("architecture")) for what in found})) or "none"
                raise Trouble(f"it is not built for {wanted}, only for {has}")
        try:
            layers = [checked(layer["digest"]) for layer in body["layers"]]
            size = sum(int(layer["size"]) for layer in body["layers"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise Trouble("its manifest is of a kind that enroot cannot import") from error
        return Manifest(digest, layers, size)

    def _fetch(self, image: Image, reference: str) -> tuple[dict[str, Any], str]:
        scheme = "http" if image.host in self.settings.http_registries else "https"
        url = f"{scheme}://{image.host}/v2/{image.repository}/manifests/{reference}"
        headers = {"Accept": ", ".join(MANIFESTS)}
        try:
            raw = self._get(url, headers)
        except urllib.error.HTTPError as error:
            if error.code != 401:
                raise self._trouble(error.code, image, error.headers.get("Retry-After")) from error
            challenge = error.headers.get("WWW-Authenticate") or ""
            try:
                raw = self._get(url, headers, self._authorization(challenge, url))
            except urllib.error.HTTPError as again:
                raise self._trouble(again.code, image, again.headers.get("Retry-After")) from again
            except (OSError, http.client.HTTPException, ValueError) as again:
                raise Trouble(f"{image.host} does not answer: {again}", again=True) from again
        except (OSError, http.client.HTTPException) as error:
            raise Trouble(f"{image.host} does not answer: {error}", again=True) from error
        digest = f"sha256:{hashlib.sha256(raw).hexdigest()}"
        if reference.startswith("sha256:") and reference != digest:
            raise Trouble(f"{image.host} sent a manifest that is not {reference}", again=True)
        try:
            body = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise Trouble(f"{image.host} sent no manifest, but {raw[:40]!r}", again=True) from error
        if not isinstance(body, dict):
            raise Trouble(f"{image.host} sent no manifest, but {raw[:40]!r}", again=True)
        return body, digest

    def _get(self, url: str, headers: dict[str, str], authorization: str = "") -> bytes:
        request = urllib.request.Request(url, headers=headers)
        if authorization:
            # A redirection to another host does not take it along.
            request.add_unredirected_header("Authorization", authorization)
        with self.opener.open(request, timeout=30) as response:
            return bytes(response.read(8_000_000))

    def _authorization(self, challenge: str, url: str) -> str:
        """Answer a registry that wants to know who asks, as enroot does: by the login for the host that is asked."""
        kind, _space, rest = challenge.partition(" ")
        parts = dict(re.findall(r'(?<![A-Za-z])([A-Za-z]+)="([^"]*)"', rest))
        if kind.lower() == "basic":
            return self._basic(url)
        if kind.lower() != "bearer" or "realm" not in parts:
            raise ValueError(f"it wants an authentication that enroot does not know ({kind[:20]})")
        realm = parts.pop("realm")
        asked = realm + ("&" if "?" in realm else "?") + urllib.parse.urlencode(parts)
        try:
            answer = json.loads(self._get(asked, {}, self._basic(realm)))
        except RecursionError:
            answer = None
        if not isinstance(answer, dict):
            raise ValueError("what it names as its token service sent no token")
        return f"Bearer {answer.get('token') or answer.get('access_token') or ''}"

    def _basic(self, url: str) -> str:
        login = self.logins.get(urllib.parse.urlsplit(url).hostname or "")
        if not login:
            return ""
        return "Basic " + base64.b64encode(f"{login.user}:{secret_of(login)}".encode()).decode()

    def _trouble(self, code: int, image: Image, after: str | None = None) -> Trouble:
        return trouble_of(code, image, bool(self.logins.get(image.host.partition(":")[0])), after)


def checked(digest: object) -> str:
    """Return a digest, which becomes a part of addresses and of paths."""
    if not isinstance(digest, str) or not re.fullmatch("sha(256|512):[0-9a-f]+", digest):
        raise Trouble(f"its manifest names {str(digest)[:40]!r}, which is no digest", again=True)
    return digest


def trouble_of(code: int, image: Image, known: bool, after: str | None = None) -> Trouble:
    """Put a registry's refusal into words."""
    said = f"{image.host} answered {code} {http.client.responses.get(code, '')}".strip()
    if code in (401, 403):
        why = "refused the login for it" if known else "wants a login, and there is none for it"
        return Trouble(f"{said}: it {why}; needed: one in container_images_credentials_file that may read this image")
    if code == 404:
        return Trouble(f"{said}: there is no such image, no such tag of it, or a part of it is missing")
    if code == 429 or code >= 500:
        seconds = int(after) if after and re.fullmatch("[0-9]{1,9}", after) else 0
        return Trouble(said, again=True, after=min(seconds, 3600))
    return Trouble(said)
