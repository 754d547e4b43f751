# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Copies a mirror's directory to S3 by the AWS CLI, and of it only the files whose content is not there."""

from __future__ import annotations

import hashlib
import os
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._artifact.fetch import AWS_PLACES, find_aws
from ansible_collections.pcluster.postboot.plugins.module_utils._host import document
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import run

PART = 8 << 20  # bytes of a part as the AWS CLI uploads it (multipart_chunksize), from as many bytes on
AT_ONCE = 4
ASKED, UPLOADED = 300, 6 * 3600  # seconds
_URL = re.compile(r"s3://([^/]+)(?:/(.*))?")


class Request(NamedTuple):
    """What is asked for."""

    src: str
    dest: str
    exclude: tuple[str, ...] = ()
    check: bool = False


class Outcome(NamedTuple):
    """What was copied, or in check mode would be."""

    changed: bool
    copied: list[str]


class Content(NamedTuple):
    """What S3 may tell of a file's content."""

    size: int
    etag: str
    sha256: str


def content_of(path: str) -> Content:
    """Read a file once for its sha256, and for the ETag that S3 gives it: an MD5, or one of the MD5s of its parts."""
    sha256, parts, size = hashlib.sha256(), [], 0
    with open(path, "rb") as stream:
        while part := stream.read(PART):
            sha256.update(part)
            parts.append(hashlib.md5(part, usedforsecurity=False))
            size += len(part)
    if size < PART:
        etag = (parts or [hashlib.md5(usedforsecurity=False)])[0].hexdigest()
    else:
        joined = b"".join(part.digest() for part in parts)
        etag = f"{hashlib.md5(joined, usedforsecurity=False).hexdigest()}-{len(parts)}"
    return Content(size, etag, sha256.hexdigest())


class Bucket:
    """A prefix in S3, as the AWS CLI sees it."""

    def __init__(self, url: str) -> None:
        match = _URL.fullmatch(url)
        if not match:
            raise Problem(f"dest is {url!r}; needed: s3://<bucket>/<prefix>")
        self.name, prefix = match[1], (match[2] or "").rstrip("/")
        self.prefix = f"{prefix}/" if prefix else ""
        program = find_aws()
        if program is None:
            raise Problem(f"{url} needs the AWS CLI, and `aws` is neither in PATH nor at {AWS_PLACES[0]}: install it")
        self.program = program

    def listed(self) -> dict[str, tuple[int, str]]:
        """Return size and ETag of what is there, by the name below the prefix."""
        query = ("--query", "Contents[].[Key,Size,ETag]")
        rows = self._ask("s3api", "list-objects-v2", "--prefix", self.prefix, *query) or []
        return {key[len(self.prefix) :]: (size, etag.strip('"')) for key, size, etag in rows}

    def noted(self, name: str) -> str:
        """Return the sha256 that was noted with an upload; nothing where none was."""
        query = ("--query", "Metadata.sha256")
        return str(self._ask("s3api", "head-object", "--key", f"{self.prefix}{name}", *query) or "")

    def put(self, path: str, name: str, sha256: str) -> None:
        line = [self.program, "s3", "cp", "--only-show-errors", "--metadata", f"sha256={sha256}"]
        run([*line, path, f"s3://{self.name}/{self.prefix}{name}"], UPLOADED).output()

    def _ask(self, *words: str) -> Any:
        line = [self.program, *words, "--bucket", self.name, "--output", "json"]
        return document.parse(run(line, ASKED).output() or "null")


def files(folder: str, exclude: tuple[str, ...]) -> list[str]:
    """Return the files of a folder by their names below it, without folders of it that are excluded."""
    found = []
    for top, folders, names in os.walk(folder):
        if top == folder:
            folders[:] = [name for name in folders if name not in exclude]
        found += [os.path.relpath(os.path.join(top, name), folder) for name in names]
    return sorted(found)


def apply(request: Request) -> Outcome:
    """Copy what is not there with the same content. What a killed run has left undone, the next one does."""
    bucket = Bucket(request.dest)
    there = bucket.listed()

    def copy(name: str) -> bool:
        path = os.path.join(request.src, name)
        size, etag = there.get(name, (-1, ""))
        content = content_of(path)
        # An ETag is no MD5 where S3 encrypts by a key of KMS, or where another program has uploaded.
        if size == content.size and (etag == content.etag or bucket.noted(name) == content.sha256):
            return False
        if not request.check:
            bucket.put(path, name, content.sha256)
        return True

    names = files(request.src, request.exclude)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        copied = [name for name, done in zip(names, pool.map(copy, names)) if done]
    return Outcome(bool(copied), copied)
