# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bytes from a mirror or from upstream, over HTTP, from S3 or from a file system; used only if their hash is right."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import datetime
import email.utils
import errno
import glob
import hashlib
import http.client
import os
import re
import select
import shutil
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import IO, Any, cast
from urllib.parse import unquote, urlsplit, urlunsplit

from ansible_collections.pcluster.postboot.plugins.module_utils._artifact.files import CHUNK, Sink
from ansible_collections.pcluster.postboot.plugins.module_utils._artifact.model import (
    Artifact,
    NoSourceError,
    Settings,
    algorithm,
    mirrored,
    public,
)
from ansible_collections.pcluster.postboot.plugins.module_utils._host import document
from ansible_collections.pcluster.postboot.plugins.module_utils._host import files as host_files
from ansible_collections.pcluster.postboot.plugins.module_utils._host import http as host_http

USER_AGENT = "pcluster.postboot (Ansible collection; artifact module)"
AWS_PLACES = (
    "/usr/local/bin/aws",
    "/usr/bin/aws",
    "/snap/bin/aws",
    "/opt/parallelcluster/pyenv/versions/*/envs/*/bin/aws",
    "/opt/parallelcluster/pyenv/versions/*/bin/aws",
)
LONGEST_PAUSE = 60.0

_RETRY_STATUS = (408, 425, 429, 500, 502, 503, 504)
_S3_FINAL = re.compile(r"\((403|404|NoSuchKey|NoSuchBucket|AccessDenied|Forbidden|InvalidAccessKeyId)\)|does not exist")


class SourceError(Exception):
    """Why one source did not deliver, whether asking it again may help, and whether it delivered something else."""

    def __init__(
        self, reason: str, *, again: bool = False, pause: float | None = None, other_bytes: bool = False
    ) -> None:
        super().__init__(reason)
        self.again = again
        self.pause = pause
        self.other_bytes = other_bytes


@dataclasses.dataclass(frozen=True)
class Source:
    """Where an artifact may come from; `label` is what the result calls it."""

    label: str
    url: str

    def __str__(self) -> str:
        return f"{self.label.partition(':')[0]} {public(self.url)}"


def sources(artifact: Artifact, settings: Settings) -> list[Source]:
    """Return every place to ask, in order: the mirrors, then upstream."""
    found = [Source(f"mirror:{public(mirror)}", mirrored(mirror, artifact.url)) for mirror in settings.mirrors]
    if settings.upstream:
        found.append(Source("upstream", artifact.url))
    return found


def download(
    artifact: Artifact,
    settings: Settings,
    sink: Sink,
    cached: Callable[[], int | None] = lambda: None,
    vouch: Callable[[Source], None] = lambda _source: None,
    warn: Callable[[str], None] = lambda _line: None,
) -> tuple[str, int]:
    """Fill `sink` with the artifact's verified bytes; return the source's label and the size.

    Before a source is asked again, `cached` may fill the sink with what another node had by then, and tell its size.
    Where no hash is known, `vouch` refuses what a source has delivered by a SourceError.
    `warn` is told of each source that had other bytes, once another source has the right ones.
    """
    failures, errors, others = [], [], []
    for source in sources(artifact, settings):
        try:
            found = _persist(source, artifact.sha256, settings, sink, cached)
            vouch(source)
        except SourceError as error:
            failures.append(f"{source}: {error}")
            errors.append(error)
            if error.other_bytes:
                others.append(f"{artifact.label}: the file from {source} was passed over: {error}")
        else:
            for line in others:
                warn(line)
            return found
    if not settings.upstream:
        failures.append("upstream: not allowed (upstream is false)")
    needed = f" (pinned by {artifact.sha256_variable})" if artifact.sha256_variable else ""
    wanted = f"{algorithm(artifact.sha256)} {artifact.sha256}{needed}"
    if artifact.signature and not artifact.sha256:
        wanted = f"a file that {' or '.join(artifact.signature.fingerprints)} has signed"
    raise NoSourceError(
        f"no source delivered {wanted}: {'; '.join(failures)}",
        may_pass=any(error.again for error in errors),
        other_bytes=any(error.other_bytes for error in errors),
    )


def _persist(
    source: Source, sha256: str, settings: Settings, sink: Sink, cached: Callable[[], int | None]
) -> tuple[str, int]:
    for attempt in range(settings.retries + 1):
        try:
            return source.label, _pull(source.url, sha256, settings, sink)
        except SourceError as error:
            if not error.again or attempt == settings.retries:
                tries = f" ({attempt + 1} tries)" if attempt else ""
                raise SourceError(f"{error}{tries}", again=error.again, other_bytes=error.other_bytes) from error
            pause = settings.backoff * 2**attempt if error.pause is None else error.pause
            time.sleep(min(pause, LONGEST_PAUSE))
        size = cached()
        if size is not None:
            return "cache", size
    raise AssertionError("unreachable")


def _pull(url: str, sha256: str, settings: Settings, sink: Sink) -> int:
    digest, size = hashlib.new(algorithm(sha256)), 0
    sink.restart()
    with contextlib.closing(content(url, settings)) as chunks:
        for chunk in chunks:
            digest.update(chunk)
            size += len(chunk)
            sink.write(chunk)
    sink.finish()
    if sha256 and digest.hexdigest() != sha256:
        raise SourceError(f"{size} bytes came with {digest.name} {digest.hexdigest()}", other_bytes=True)
    return size


def content(url: str, settings: Settings) -> Any:
    """Yield the bytes of a URL, in chunks; whoever asks closes it."""
    scheme = urlsplit(url).scheme
    if scheme in ("http", "https"):
        return _http(url, settings.timeout)
    if scheme == "s3":
        return _s3(url, settings.timeout)
    return _local(unquote(urlsplit(url).path) if scheme == "file" else url)


def _local(path: str) -> Iterator[bytes]:
    try:
        with host_files.open_regular(path, follow=True) as file:
            while True:
                chunk = file.read(CHUNK)
                if not chunk:
                    return
                yield chunk
    except OSError as error:
        raise SourceError(error.strerror or str(error), again=error.errno == errno.ESTALE) from error


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follow redirects within HTTP and up to HTTPS, never down from it and never to a file."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        old, new = urlsplit(req.full_url).scheme, urlsplit(newurl).scheme
        if old == "https" and new != "https":
            raise SourceError(f"refused its redirect from https to {public(newurl)}")
        # Python before 3.11 knows no 308, which for a GET means what 307 means.
        return super().redirect_request(req, fp, 307 if code == 308 else code, msg, headers, newurl)

    def http_error_308(self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any) -> Any:
        return self.http_error_302(req, fp, code, msg, headers)


def _request(url: str) -> urllib.request.Request:
    parts = urlsplit(url)
    account, _at, host = parts.netloc.rpartition("@")
    bare = urlunsplit((parts.scheme, host, parts.path, parts.query, ""))
    request = urllib.request.Request(bare, headers={"User-Agent": USER_AGENT, "Accept-Encoding": "identity"})
    if account:  # not passed on to where a redirect leads
        basic = base64.b64encode(unquote(account).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {basic}")
    return request


def _http(url: str, timeout: float) -> Iterator[bytes]:
    try:
        with host_http.opener(redirects=_Redirects()).open(_request(url), timeout=timeout) as response:
            announced, size = document.whole(response.headers.get("Content-Length") or "") or 0, 0
            while True:
                chunk = response.read(CHUNK)
                if not chunk:
                    break
                size += len(chunk)
                yield chunk
            if size < announced:
                raise SourceError(f"ended after {size} of {announced} bytes", again=True)
    except urllib.error.HTTPError as error:
        error.close()
        raise _status_error(error) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _connection_error(error, timeout) from error


def _status_error(error: urllib.error.HTTPError) -> SourceError:
    again = error.code in _RETRY_STATUS
    if 300 <= error.code < 400:
        return SourceError(f"HTTP {error.code}: refused its redirect (endless, or not to http or https)")
    return SourceError(f"HTTP {error.code}", again=again, pause=_retry_after(error.headers) if again else None)


def _retry_after(headers: Any) -> float | None:
    """Return the seconds that a server asks for, as a number or as a date."""
    value = (headers.get("Retry-After") or "").strip()
    seconds = document.whole(value)
    if seconds is not None:
        return float(seconds)
    try:
        when = email.utils.parsedate_to_datetime(value)
    except (TypeError, ValueError):
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=datetime.timezone.utc)
    return max(0.0, (when - datetime.datetime.now(datetime.timezone.utc)).total_seconds())


def _connection_error(error: Exception, timeout: float) -> SourceError:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, socket.timeout):
        return SourceError(f"no bytes for {timeout:g} s", again=True)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return SourceError(f"its certificate is not trusted ({reason.verify_message})")
    if isinstance(reason, socket.gaierror):
        return SourceError(f"its name does not resolve ({reason.strerror})", again=reason.errno == socket.EAI_AGAIN)
    if isinstance(reason, http.client.IncompleteRead):
        return SourceError(f"ended in the middle, {len(reason.partial)} bytes into a part", again=True)
    if isinstance(reason, (OSError, http.client.HTTPException)) and not isinstance(reason, http.client.InvalidURL):
        text = (reason.strerror if isinstance(reason, OSError) else None) or str(reason) or type(reason).__name__
        return SourceError(" ".join(text.split()), again=True)
    return SourceError(" ".join(str(reason).split()))


def find_aws() -> str | None:
    """Return the AWS CLI that ParallelCluster's images carry, which may be in no PATH of Ansible's."""
    on_path = shutil.which("aws")
    if on_path:
        return on_path
    found = (path for place in AWS_PLACES for path in sorted(glob.glob(place)))
    return next((path for path in found if os.access(path, os.X_OK)), None)


def _s3(url: str, timeout: float) -> Iterator[bytes]:
    program = find_aws()
    if program is None:
        raise SourceError(f"needs the AWS CLI, and `aws` is neither in PATH nor at {AWS_PLACES[0]}: install it")
    command = [program, "s3", "cp", "--only-show-errors", url, "-"]
    try:
        # Not the ground floor's run(): the bytes are taken as they come, and only a silence is limited.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        raise SourceError(f"{program} does not start ({error.strerror})") from error
    with process:
        pipe = cast(IO[bytes], process.stdout).fileno()
        try:
            while True:
                if not select.select([pipe], [], [], timeout)[0]:
                    raise SourceError(f"no bytes for {timeout:g} s", again=True)
                chunk = os.read(pipe, CHUNK)
                if not chunk:
                    break
                yield chunk
            complaint = process.communicate(timeout=timeout)[1].decode(errors="replace")
            if process.returncode != 0:
                line = " ".join(complaint.split())[:300] or f"`aws s3 cp` ended with status {process.returncode}"
                raise SourceError(line, again=not _S3_FINAL.search(line))
        except subprocess.TimeoutExpired:
            raise SourceError(f"`aws s3 cp` did not end within {timeout:g} s", again=True) from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
