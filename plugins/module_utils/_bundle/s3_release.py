# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Files that go to S3 once and are never written again."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._host import files as host_files
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem

_LIMIT = 5 << 30  # of one upload, in bytes
_BLOCK = 1 << 20
_URL = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])/([^/\s*?]+(?:/[^/\s*?]+)*)/?")
_MISSING = ("404", "NoSuchKey", "NotFound")
_DENIED = ("403", "AccessDenied", "Forbidden")
_THERE = ("412", "PreconditionFailed")
_ON_ITS_WAY = ("409", "ConditionalRequestConflict")
_UNKNOWN = ("501", "NotImplemented")  # an S3 of somebody else, which has no conditions


class Outcome(NamedTuple):
    """What was uploaded, or in check mode would be, and what was there."""

    uploaded: list[str]
    present: list[str]


class Place(NamedTuple):
    """Where in S3."""

    bucket: str
    key: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"

    def __truediv__(self, name: str) -> Place:
        return Place(self.bucket, f"{self.key}/{name}")


def parse(url: str) -> Place:
    """Return what an s3:// URL names."""
    match = _URL.fullmatch(url)
    if not match:
        raise Problem(f"found {url!r}; needed: s3://<bucket>/<prefix>, without blanks, * and ?")
    return Place(match[1], match[2])


class Release:
    """Uploads through a client of boto3, whose errors are told by `code_of`: their code, or nothing for others."""

    def __init__(self, client: Any, code_of: Callable[[Exception], str], *, check: bool = False) -> None:
        self.client, self.code_of, self.check = client, code_of, check

    def upload(self, folder: str, files: Sequence[Mapping[str, str]], to: Place) -> Outcome:
        """Upload the files of a folder, each of which has a name and a hash, one after another."""
        outcome = Outcome([], [])
        for file in files:
            name, digest = file["name"], _digest(file)
            there = self._compare(digest, to / name) or not self._put(os.path.join(folder, name), digest, to / name)
            (outcome.present if there else outcome.uploaded).append(name)
        return outcome

    def _put(self, path: str, digest: bytes, to: Place) -> bool:
        """Upload one file. False: somebody else has done so in the meantime."""
        if self.check:
            return True
        if os.path.getsize(path) > _LIMIT:
            raise Problem(f"{path} has {os.path.getsize(path)} bytes; S3 takes at most {_LIMIT} at once")
        if host_files.sha256_of(path) != digest.hex():
            raise Problem(f"{path} no longer has the sha256 {digest.hex()}: run this again")
        wanted = {"ChecksumAlgorithm": "SHA256", "ChecksumSHA256": base64.b64encode(digest).decode()}
        condition = {"IfNoneMatch": "*"} if "IfNoneMatch" in self._known() else {}
        try:
            self._send(path, to, {**wanted, **condition})
        except Exception as error:  # boto3 makes its classes as it goes
            code = self.code_of(error)
            if code in _UNKNOWN and condition:
                self._send(path, to, wanted)
                return True
            if code in _THERE:  # it has come in the meantime, or it is there and may not be looked at
                if self._compare(digest, to):
                    return False
                why = "s3:GetObject, which compares it with yours, is denied to you"
                raise Problem(f"{to} is there, and {why}") from error
            if code in _ON_ITS_WAY:
                raise Problem(f"{to} is being uploaded by somebody else; run this again later") from error
            raise self._told(error, "s3:PutObject", to) from error
        return True

    def _known(self) -> Any:
        return self.client.meta.service_model.operation_model("PutObject").input_shape.members

    def _send(self, path: str, to: Place, options: Mapping[str, str]) -> None:
        with open(path, "rb") as stream:
            self.client.put_object(Bucket=to.bucket, Key=to.key, Body=stream, **options)

    def _compare(self, digest: bytes, to: Place) -> bool:
        """Say whether the same bytes are there. Others are an error: what was published stays as it is."""
        try:
            head = self.client.head_object(Bucket=to.bucket, Key=to.key, ChecksumMode="ENABLED")
        except Exception as error:
            code = self.code_of(error)
            # Who may not list a bucket is told 403 of what is not there; the upload finds out.
            if code in _DENIED and not self.check:
                return False
            if code not in _MISSING:
                raise self._told(error, "s3:GetObject", to) from error
            if self.check:
                self._find_bucket(to)
            return False
        told = str(head.get("ChecksumSHA256") or "")
        # That of an upload in parts is a hash of hashes, with their number behind it.
        found = base64.b64decode(told) if told and "-" not in told else self._read(to)
        if found != digest:
            raise Problem(f"{to} is there with other bytes, and no published file is replaced; remove it first")
        return True

    def _find_bucket(self, to: Place) -> None:
        """A missing bucket looks like a missing file until something is uploaded."""
        try:
            self.client.head_bucket(Bucket=to.bucket)
        except Exception as error:
            if self.code_of(error) in _MISSING:
                raise Problem(no_bucket(to)) from error
            raise self._told(error, "s3:ListBucket", to) from error

    def _read(self, to: Place) -> bytes:
        """Return the hash of what somebody else has copied there, which has none of its own."""
        digest = hashlib.sha256()
        try:
            body = self.client.get_object(Bucket=to.bucket, Key=to.key)["Body"]
            while block := body.read(_BLOCK):
                digest.update(block)
        except Exception as error:
            raise self._told(error, "s3:GetObject", to) from error
        return digest.digest()

    def _told(self, error: Exception, action: str, to: Place) -> Problem:
        code = self.code_of(error)
        if code == "NoSuchBucket":
            return Problem(no_bucket(to))
        if code in _DENIED:
            return Problem(f"{action} is denied to you on {to} ({error})")
        return Problem(f"{to}: {error}")


def no_bucket(to: Place) -> str:
    return f"there is no bucket {to.bucket}; needed: aws s3 mb s3://{to.bucket}"


def _digest(file: Mapping[str, str]) -> bytes:
    try:
        digest = bytes.fromhex(file["sha256"])
    except ValueError:
        digest = b""
    if len(digest) != hashlib.sha256().digest_size:
        raise Problem(f"{file['name']} has the sha256 {file['sha256']!r}; needed: 64 hexadecimal digits")
    return digest
