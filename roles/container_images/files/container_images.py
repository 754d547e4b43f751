# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Import container images into a shared folder, and tell how far they are.

`run`, on the head node, imports what the settings and the users' list name and the folder does not have, and goes on
watching both lists. `status`, `list` and `download` are for users, on any node. An image appears whole or not at all,
one that fails says why on one line, and the others go on. Whatever a killed run has left, the next one clears away.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import errno
import fcntl
import hashlib
import http.client
import json
import os
import platform
import pwd
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

STATE, LOCK, PARTS, PART = ".images.json", ".images.lock", ".images.part", ".importing"
# What an image needs where, as a multiple of its compressed size: enroot keeps and unpacks its layers in the working
# folder, and its squashfs is hardly compressed.
WORK_FACTOR, IMAGE_FACTOR = 4, 3
SILENT = 180  # seconds without a sign of life after which an importer counts as gone
PATIENCE = 60  # seconds for a program that only looks something up
# Where enroot cannot unpack: no overlay can be laid over them, or they keep no trusted attributes.
NETWORK = ("lustre", "nfs", "nfs4", "efs", "beegfs", "weka", "wekafs")
LARGEST_LOG = 5_000_000
LONGEST_NAME = 200
FOLDERS = ("config", "cache", "temp", "data", "runtime")  # of enroot, in the working folder
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
MANIFESTS = (
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.index.v1+json",
)
Entry = dict[str, Any]


class ImageError(Exception):
    """Why something cannot be done, on one line."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class Trouble(ImageError):
    """Why an import failed, and whether (and when) it is worth another try."""

    def __init__(self, message: str, again: bool = False, after: float = 0) -> None:
        super().__init__(message)
        self.again, self.after = again, after


# Names


class Image(NamedTuple):
    """An image: where it is, and what it is called there."""

    registry: str
    repository: str
    tag: str = ""
    digest: str = ""

    def __str__(self) -> str:
        """Return the name that people use: Docker Hub is where everything is that names no registry."""
        name = f"{self.registry}/{self.repository}"
        if self.registry == "docker.io":
            name = self.repository[len("library/") :] if self.repository.startswith("library/") else self.repository
        return name + (f":{self.tag}" if self.tag else "") + (f"@{self.digest}" if self.digest else "")

    @property
    def host(self) -> str:
        return "registry-1.docker.io" if self.registry == "docker.io" else self.registry

    @property
    def file(self) -> str:
        """Return the name of its file, which no other image has.

        `/` becomes `_`, `:` before the tag becomes `-`. Where that could be read as another image's name, a part of
        the sha256 of the image's name follows.
        """
        text, digest = str(self).partition("@")[::2]
        body, tag = (text[: -len(self.tag) - 1], self.tag) if self.tag else (text, "")
        name = body.replace(":", "+").replace("/", "_") + (f"-{tag}" if tag else "")
        name += f"@{digest.replace(':', '-')}" if digest else ""
        if len(name) > LONGEST_NAME or _read_back(name) != str(self):
            name = f"{name[:LONGEST_NAME]}~{hashlib.sha256(str(self).encode()).hexdigest()[:12]}"
        return f"{name}.sqsh"


def _read_back(name: str) -> str:
    """Return the one image that a file's name stands for: its tag begins at the first `-` before a digit, or else at
    the first `-`; every `_` before it was a `/`."""
    text, digest = name.partition("@")[::2]
    path, slash, last = text.rpartition("_")
    split = re.search(r"-(?=[0-9])", last) or re.search("-", last)
    if split:
        last = f"{last[: split.start()]}:{last[split.end() :]}"
    body = path.replace("_", "/") + ("/" if slash else "")
    return body.replace("+", ":") + last + (f"@{digest.replace('-', ':')}" if digest else "")


def parse(text: str) -> Image:
    """Read an image as users write it: with or without docker://, a user, a registry, a tag, a digest; `#` as enroot
    has it after the registry."""
    rest = text.strip()
    if rest.startswith("docker://"):
        rest = rest[len("docker://") :]
    user = re.match(r"[^@/#]+@(?!sha256:)", rest)  # credentials have their own file
    if user:
        rest = rest[user.end() :]
    rest, _at, digest = rest.partition("@")
    first, separator, more = rest.replace("#", "/", 1).partition("/")
    registry = "docker.io"
    if separator and ("#" in rest or re.search(r"[.:]", first) or first == "localhost"):
        registry, rest = first.lower(), more
    if registry in ("index.docker.io", "registry-1.docker.io"):
        registry = "docker.io"
    repository, _colon, tag = rest.partition(":")
    if registry == "docker.io" and "/" not in repository:
        repository = f"library/{repository}"
    component = "[a-z0-9]+(?:(?:[.]|_{1,2}|-+)[a-z0-9]+)*"
    if (
        not re.fullmatch(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?(?::[0-9]{1,5})?", registry)
        or not re.fullmatch(f"{component}(?:/{component})*", repository)
        or not re.fullmatch(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?", tag)
        or not re.fullmatch(r"(?:sha256:[0-9a-f]{64})?", digest)
        or len(text) > 500
    ):
        raise ImageError(f"{text.strip()[:80]!r} names no image; needed: one such as nvcr.io/nvidia/pytorch:26.09-py3")
    return Image(registry, repository, tag or ("" if digest else "latest"), digest)


def read_list(path: str) -> tuple[dict[str, Image], list[str]]:
    """Return the images of a list by their names, and one line for each of its lines that is none."""
    images, problems = {}, []
    try:
        # What a link of a user leads to is nothing that root should show everybody.
        with open(path, encoding="utf-8", errors="replace", opener=lambda p, f: peek(p, f | os.O_NOFOLLOW)) as stream:
            lines = stream.read(1_000_000).splitlines()
    except FileNotFoundError:
        return {}, []
    except OSError as error:
        return {}, [f"{path} cannot be read: {error.strerror}"]
    for number, line in enumerate(lines, 1):
        text = line.partition(" #")[0].strip()
        if not text or text.startswith("#"):
            continue
        try:
            image = parse(text)
            images[str(image)] = image
        except ImageError as error:
            problems.append(f"{path}, line {number}: {error}")
    return images, problems


# Settings and credentials


class Settings(NamedTuple):
    """What the role has set; its documentation tells what each part means."""

    directory: str
    images: list[str] = []
    file: str = ""
    mount: str = ""
    log: str = ""
    logs: str = ""
    work: str = "/var/cache/pcluster-postboot/container-images"
    credentials: str = ""
    http_registries: list[str] = []
    parallel: int = 2
    retries: int = 5
    retry_wait: float = 30
    retry_interval: float = 3600
    timeout: float = 7200
    environment: dict[str, str] = {}
    user: str = ""


def read_settings(path: str) -> Settings:
    try:
        with open(path, encoding="utf-8") as stream:
            settings = Settings(**json.load(stream))
    except (OSError, ValueError, TypeError) as error:
        raise ImageError(f"{path}: {error}") from error
    for image in settings.images:
        try:
            parse(image)
        except ImageError as error:
            raise ImageError(f"container_images_list: {error}") from error
    for name, value in settings.environment.items():
        if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) or not isinstance(value, str) or "\0" in value:
            raise ImageError(f"container_images_environment: found {name}: {value!r}; needed: a name and a string")
    return settings


class Login(NamedTuple):
    user: str
    password: str


def read_credentials(path: str) -> dict[str, Login]:
    """Return the logins of a file that only root can read: enroot's own format, or nothing but an NGC API key."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise ImageError(f"container_images_credentials_file: {path} cannot be read: {error.strerror}") from error
    with open(descriptor, encoding="utf-8", errors="replace") as stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077 or status.st_uid != os.geteuid():
            raise ImageError(
                f"container_images_credentials_file: {path} has mode {stat.S_IMODE(status.st_mode):04o} and owner "
                f"{status.st_uid}, so it is not used; needed: a file that only root can read (chown root, chmod 600)"
            )
        text = stream.read(65536)
    words = text.split()
    if len(words) == 1 and re.fullmatch(r"[A-Za-z0-9_=+/.-]+", words[0]):
        login = Login("$oauthtoken", words[0])
        return {"nvcr.io": login, "authn.nvidia.com": login}
    logins = {}
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split(maxsplit=5)
        if not fields or fields[0].startswith("#"):
            continue
        if len(fields) < 6 or fields[0::2][:3] != ["machine", "login", "password"]:
            raise ImageError(
                f"container_images_credentials_file: line {number} of {path} is no login; needed: nothing but an NGC "
                "API key, or lines of the form 'machine nvcr.io login NAME password PASSWORD'"
            )
        logins[fields[1]] = Login(fields[3], fields[5])
    return logins


def secret_of(login: Login) -> str:
    """Return a password; enroot's file may name a command instead, as $(aws ecr get-login-password)."""
    if not login.password.startswith("$"):
        return login.password
    return told(["/bin/sh", "-c", f"echo {login.password}"], f"the command for the password of {login.user}")


def told(argv: Sequence[str], what: str, environment: Mapping[str, str] | None = None) -> str:
    """Return what a program says that only looks something up; it, and what it has started, has a minute."""
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            return process.communicate(timeout=PATIENCE)[0].strip()
        except subprocess.TimeoutExpired as error:
            os.killpg(process.pid, signal.SIGKILL)
            raise ImageError(f"{what} did not end within {PATIENCE} s") from error


# The registry


class Manifest(NamedTuple):
    """What a registry says of an image."""

    digest: str
    layers: list[str]
    size: int


class Registry:
    """Asks registries for manifests: what enroot does not tell, and how long they want to be left alone."""

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
                raise Trouble(f"{image.host} sent a list of manifests that is none", again=True)
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
        except (KeyError, TypeError, ValueError) as error:
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
        except ValueError as error:
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
        parts = dict(re.findall(r'([A-Za-z]+)="([^"]*)"', rest))
        if kind.lower() == "basic":
            return self._basic(url)
        if kind.lower() != "bearer" or "realm" not in parts:
            raise ValueError(f"it wants an authentication that enroot does not know ({kind[:20]})")
        realm = parts.pop("realm")
        asked = realm + ("&" if "?" in realm else "?") + urllib.parse.urlencode(parts)
        answer = json.loads(self._get(asked, {}, self._basic(realm)))
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
        return Trouble(said, again=True, after=min(int(after), 3600) if after and after.isdigit() else 0)
    return Trouble(said)


def trouble_in(output: str, code: int, image: Image, known: bool) -> Trouble:
    """Find in what enroot has said why it failed."""
    if "No space left" in output:
        return Trouble("the disk is full: enroot said 'No space left on device'")
    mismatch = re.search(r"Checksum mismatch: (\w+)", output)
    if mismatch:
        return Trouble(f"layer sha256:{mismatch[1][:12]} was cut off or altered on the way", again=True)
    if "curl: (18)" in output:
        return Trouble("a layer was cut off on the way", again=True)
    refusal = re.search(r"returned error(?: code)?: (\d{3})", output)
    if refusal:
        return trouble_of(int(refusal[1]), image, known)
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"\[ERROR\]|curl: \(|rror:|FATAL", line)] or lines
    said = re.sub(r"\x1b\[[0-9;]*m", "", telling[-1])[:300] if telling else "nothing"
    return Trouble(f"enroot ended with {code} and said: {said}", again=True)


# Files


def size(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 999.5 or unit == "GB":
            break
        number /= 1000
    return f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.1f} {unit}"


def when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def put(path: str, text: str) -> None:
    """Put a file that everybody may read in place in one step."""
    temporary = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.new")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    with open(descriptor, "w", encoding="utf-8") as stream:
        os.fchmod(descriptor, 0o644)
        stream.write(text)
        stream.flush()
        os.fsync(descriptor)
    os.rename(temporary, path)


def sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def peek(path: str, flags: int) -> int:
    """Open a file, and nothing else that users may have put there, such as a pipe that never ends."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no file", path)
    return descriptor


def enter(path: str, user: str) -> tuple[int, str]:
    """Open a folder, making what is missing of it, and follow no link but root's own on the way to it.

    With it comes what on the way lets somebody else put something in its place; nothing if there is nothing. The
    cluster's own user may become root anyway.
    """
    uids, gids = {0, os.geteuid()}, {0, os.getegid()}
    with contextlib.suppress(KeyError):
        account = pwd.getpwnam(user)
        uids, gids = {*uids, account.pw_uid}, {*gids, account.pw_gid}
    kind, flaw, links = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, "", 0
    at, rest = os.open("/", kind), path.split("/")
    try:
        while rest:
            name = rest.pop(0) or "."
            try:
                below = os.open(name, kind, dir_fd=at)
            except FileNotFoundError:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=at)
                below = os.open(name, kind, dir_fd=at)
            except OSError as error:
                links += 1
                if error.errno not in (errno.ELOOP, errno.ENOTDIR) or links > 40:
                    raise
                target = target_of(name, at, uids)
                rest = [*target.split("/"), *rest]
                below = os.open("/" if target.startswith("/") else ".", kind, dir_fd=at)
            os.close(at)
            at, status, where = below, os.fstat(below), os.readlink(f"/proc/self/fd/{below}")
            mode = stat.S_IMODE(status.st_mode)
            if status.st_uid not in uids:
                flaw = flaw or f"{where} belongs to user {status.st_uid}; needed: chown root {where}"
            elif (mode & 0o002 or (mode & 0o020 and status.st_gid not in gids)) and not mode & stat.S_ISVTX:
                flaw = flaw or f"{where} has mode {mode:04o}; needed: chmod +t {where}"
    except BaseException:
        os.close(at)
        raise
    return at, flaw


def target_of(name: str, folder: int, uids: set[int]) -> str:
    """Return where a link leads that one of these users has made."""
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        status, where = os.fstat(descriptor), os.readlink(f"/proc/self/fd/{descriptor}")
        if not stat.S_ISLNK(status.st_mode):
            raise ImageError(f"{where} is no folder; remove it")
        if status.st_uid not in uids:
            raise ImageError(f"{where} is a link of user {status.st_uid}, and is not followed; remove it")
        return os.readlink("", dir_fd=descriptor)
    finally:
        os.close(descriptor)


def require_own(descriptor: int, path: str) -> None:
    """Refuse, and close, an open file that somebody else has put in the place of our own."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink != 1:
        os.close(descriptor)
        raise ImageError(f"{path} is not the importer's own file, so nothing is written to it; remove it")


def open_log(path: str, user: str) -> int:
    """Open a log at its end; one that is too large begins anew."""
    folder, name = enter(os.path.dirname(path), user)[0], os.path.basename(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, 0o644, dir_fd=folder)
        require_own(descriptor, path)
        if os.fstat(descriptor).st_size > LARGEST_LOG:
            os.close(descriptor)
            os.rename(name, f"{name}.1", src_dir_fd=folder, dst_dir_fd=folder)
            descriptor = os.open(name, flags | os.O_EXCL, 0o644, dir_fd=folder)
        return descriptor
    except OSError as error:
        raise ImageError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        os.close(folder)


def private(path: str) -> str:
    """Return a folder that nobody else can enter; make it where it is missing."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise ImageError(f"{path} is not a folder that only root can enter, as it must be; remove it, or chmod 700 it")
    return path


def clear(path: str) -> None:
    """Remove what is in a folder."""
    for name in os.listdir(path):
        one = os.path.join(path, name)
        if os.path.isdir(one) and not os.path.islink(one):
            shutil.rmtree(one)
        else:
            os.unlink(one)


def digest_of(path: str) -> str:
    try:
        with open(path, "rb", opener=peek) as stream:
            return hashlib.sha256(stream.read()).hexdigest()
    except OSError:
        return ""


def is_mounted(path: str) -> bool:
    """Say whether a file system is mounted there now. An automount is asked to appear first."""
    with contextlib.suppress(OSError):
        os.stat(os.path.join(path, "."))
    return os.path.normpath(path) in {point for point, kind in mounts() if kind != "autofs"}


def mounts() -> list[tuple[str, str]]:
    """Return the mount points and the types of their file systems, those last that lie over others."""
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as stream:
        return [(fields[1].replace("\\040", " "), fields[2]) for fields in map(str.split, stream)]


def kind_of(path: str) -> str:
    """Return the type of the file system on which a folder is."""
    real = os.path.realpath(path)
    over = [(len(point), kind) for point, kind in mounts() if os.path.commonpath([real, point]) == point]
    return max(reversed(over), key=lambda one: one[0])[1] if over else ""


def flaw_of(path: str) -> str:
    """Say what keeps a file from being a whole squashfs image; nothing if it is one."""
    try:
        with open(path, "rb", opener=peek) as stream:
            head = stream.read(96)
            found = os.fstat(stream.fileno()).st_size
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    if len(head) < 96 or head[:4] != b"hsqs":
        return "it is no squashfs image"
    needed = int.from_bytes(head[40:48], "little")
    return f"it has {found} of {needed} bytes" if found < needed else ""


def read_state(directory: str) -> dict[str, Any]:
    """Return what an importer wrote last; nothing when there is none, or when it is no longer whole."""
    try:
        with open(os.path.join(directory, STATE), encoding="utf-8") as stream:
            state = json.load(stream)
        if isinstance(state["images"], dict):
            return dict(state)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return {"images": {}, "seen": {}, "problems": []}


def is_settled(state: dict[str, Any]) -> bool:
    """Say whether nothing more is done before somebody asks, or much time has passed."""
    return all(entry["state"] in ("present", "failed") for entry in state["images"].values())


def failures_of(state: dict[str, Any]) -> list[str]:
    failed = [f"{name}: {entry['why']}" for name, entry in state["images"].items() if entry["state"] == "failed"]
    return [*state.get("problems", []), *sorted(failed)]


# The importer


class Importer:
    """Imports what is wanted and missing, a few images at a time."""

    def __init__(self, settings_path: str, list_path: str = "") -> None:
        self.settings_path, self.list_path = settings_path, list_path
        self.settings = self._settings()
        self.outside = dict(os.environ)
        self.wanted: dict[str, Image] = {}
        self.entries: dict[str, Entry] = {}
        self.problems: list[str] = []
        self.warnings: list[str] = []
        self.logins: dict[str, Login] = {}
        self.seen: dict[str, Any] = {"asked": 0.0}
        self.stamp: object = None
        self.looked = 0.0
        self.jobs: dict[str, threading.Thread] = {}
        self.reserved: dict[str, int] = {}
        self.guard = threading.RLock()
        self.stop, self.asked = threading.Event(), threading.Event()
        self.lock: int | None = None
        self.told = self.mute = ""
        self.dirty, self.saved = True, 0.0

    def _settings(self) -> Settings:
        settings = read_settings(self.settings_path)
        return settings._replace(images=[], file=self.list_path) if self.list_path else settings

    def run(self, once: bool) -> int:
        """Import until told to stop; with `once`, until there is nothing left to try."""
        try:
            while not self.stop.is_set():
                if self._step() and once:
                    break
                self.stop.wait(0.2 if self.jobs or once else 2)
        finally:
            self.stop.set()
            for job in self.jobs.values():
                job.join()
            if self.lock is not None:
                self._save()
                self._unlock()
        failures = failures_of({"images": self.entries, "problems": self.problems})
        return 1 if failures else 0

    def _step(self) -> bool:
        """Do what is due, and say whether nothing is left to do for now."""
        if self.settings.mount and not is_mounted(self.settings.mount):
            self._tell_once(f"{self.settings.mount} is not mounted: nothing is imported until it is")
            return False
        self._refresh()
        self.jobs = {name: job for name, job in self.jobs.items() if job.is_alive()}
        now = time.time()
        due = [
            name
            for name, entry in self.entries.items()
            if entry["state"] != "present" and name not in self.jobs and entry.get("next_try", 0) <= now
        ]
        settled = not due and is_settled({"images": self.entries})
        # Whoever waits for another try still says now and then that it lives.
        if not due and not self.jobs and not self.dirty and (settled or now - self.saved < 30):
            if settled:
                self._unlock()
            return settled
        if not self._take_lock():
            return False
        for name in due[: max(0, self.settings.parallel - len(self.jobs))]:
            self._begin(name)
        if (self.dirty and now - self.saved > 1) or now - self.saved > 30:
            self._save()
        if not self.jobs and not due:
            self._save()
        return False

    # What is wanted

    def _refresh(self) -> None:
        """Read the lists again where they have changed, where it was asked for, and now and then."""
        asked = self.asked.is_set()
        self.asked.clear()
        read = (self.settings_path, self.settings.file, self.settings.credentials, self._program())
        stamp = [_stamp(path) for path in read]
        if stamp == self.stamp and not asked and time.time() - self.looked < self.settings.retry_interval:
            return
        if asked:
            self.seen["asked"] = time.time()
        first, changed = self.stamp is None, stamp != self.stamp
        self.stamp, self.looked = stamp, time.time()
        try:
            self.settings = self._settings()
        except ImageError as error:
            self._tell_once(f"{error}; the settings from before go on")
        # Proxies, for this program's own requests too.
        environment = {**self.outside, **self.settings.environment}
        for name in set(os.environ) - set(environment):
            del os.environ[name]
        os.environ.update(environment)
        self.seen.update(settings=digest_of(self.settings_path), file=digest_of(self.settings.file))
        listed, self.problems = read_list(self.settings.file)
        self.wanted = {**{str(parse(text)): parse(text) for text in self.settings.images}, **listed}
        self.logins = {}
        if self.settings.credentials:
            try:
                self.logins = read_credentials(self.settings.credentials)
            except ImageError as error:
                self.problems.append(str(error))
        before_warnings, self.warnings = self.warnings, self._warnings()
        new = [line for line in self.warnings if line not in before_warnings]
        for line in [*(self.problems if changed else ()), *new]:
            self.say(line)
        with self.guard:
            before = read_state(self.settings.directory)["images"] if first else self.entries
            self.entries = {
                name: self._entry(image, before.get(name), asked or changed) for name, image in self.wanted.items()
            }
            self.dirty = True

    def _warnings(self) -> list[str]:
        """Say which of the shared folders are not safe from others."""
        warnings, logs = [], self.settings.logs or os.path.dirname(self.settings.log)
        for what, path in (("images", self.settings.directory), *([("logs", logs)] if logs else [])):
            try:
                folder, flaw = enter(path, self.settings.user)
                os.close(folder)
                warnings += [f"others can replace the {what} in {path}: {flaw}"] if flaw else []
            except (OSError, ImageError) as error:
                warnings.append(f"{path}: {error}")
        return warnings

    def _entry(self, image: Image, before: Entry | None, anew: bool) -> Entry:
        """Say how far an image is, from its file and from what was known of it."""
        name, path = str(image), os.path.join(self.settings.directory, image.file)
        old = before or {}
        if name in self.jobs:
            return old
        entry: Entry = {"file": image.file, "state": "queued", "digest": None}
        with contextlib.suppress(OSError):
            status = os.stat(path)
            flaw = flaw_of(path)
            if not flaw:
                # A digest was noted before its file appeared. Another file under this name is somebody else's.
                mine = old.get("state") == "importing" or old.get("inode") == status.st_ino
                found: Entry = {"state": "present", "size": status.st_size, "inode": status.st_ino}
                kept: Entry = {key: old[key] for key in ("digest", "finished") if mine and key in old}
                return {**entry, **found, **kept}
            if time.time() - status.st_mtime < 600:
                return {**entry, "state": "failed", "why": f"{path} is being written by somebody else ({flaw})",
                        "next_try": time.time() + 60}  # fmt: skip
            return {**entry, "state": "failed", "why": f"{path} is not ours and of no use ({flaw}); remove it",
                    "next_try": time.time() + self.settings.retry_interval}  # fmt: skip
        if not anew and old.get("state") in ("failed", "retrying"):
            return old
        return entry

    # One image

    def _begin(self, name: str) -> None:
        # By now somebody may have put a file there, or taken a broken one away.
        entry = self.entries[name] = {**self.entries[name], **self._entry(self.wanted[name], self.entries[name], True)}
        self.dirty = True
        if entry["state"] != "queued":
            return
        entry.update(state="importing", since=time.time(), attempts=entry.get("attempts", 0) + 1)
        self.jobs[name] = threading.Thread(target=self._attempt, args=(self.wanted[name], entry))
        self.jobs[name].start()

    def _attempt(self, image: Image, entry: Entry) -> None:
        """Try to import one image, and note how that went."""
        try:
            self._import(image, entry)
            return
        except Trouble as error:
            trouble = error
        except (OSError, ImageError, subprocess.SubprocessError) as error:
            trouble = Trouble(str(error), again=True)
        except Exception as error:  # such as what nobody has thought a registry would answer
            trouble = Trouble(f"the importer did not expect this: {error!r}", again=True)
        finally:
            with self.guard:
                self.reserved.pop(str(image), None)
                with contextlib.suppress(OSError):
                    os.unlink(self._part(image))
        with self.guard:
            entry.pop("layers", None)
            self.dirty = True
            if self.stop.is_set():
                entry.update(state="queued", attempts=0)
                return
            wait, state = self.settings.retry_interval, "failed"
            if trouble.again and entry["attempts"] < self.settings.retries:
                wait = max(min(self.settings.retry_wait * 2 ** (entry["attempts"] - 1), 900), trouble.after)
                state = "retrying"
            tries = f", tried {entry['attempts']} times" if entry["attempts"] > 1 and state == "failed" else ""
            entry.update(state=state, why=str(trouble) + tries, next_try=time.time() + wait)
            if state == "failed":
                entry["attempts"] = 0
        self.say(f"{image}: {entry['why']}; next try in {wait:.0f} s")

    def _import(self, image: Image, entry: Entry) -> None:
        if not self._program():
            raise Trouble("enroot is not on this node; needed: the component enroot")
        folder, flaw = enter(self.settings.directory, self.settings.user)
        os.close(folder)
        if flaw:  # a link in its place would have enroot, as root, write wherever somebody likes
            raise Trouble(f"{self.settings.directory} is not safe from others, and nothing is imported into it: {flaw}")
        manifest = Registry(self.settings, self.logins).manifest(image)
        with self.guard:
            entry.update(digest=manifest.digest, download=manifest.size, layers=[0, len(manifest.layers)])
            self.dirty = True
        self._require_space(image, manifest)
        self.say(f"{image}: importing {size(manifest.size)} in {len(manifest.layers)} layers, {manifest.digest}")
        begun, part = time.time(), self._part(image)
        private(os.path.dirname(part))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
        output, code = self._enroot(image, manifest, part, entry)
        if self.stop.is_set():
            raise Trouble("stopped")
        if code:
            raise trouble_in(output, code, image, bool(self.logins.get(image.host.partition(":")[0])))
        flaw = flaw_of(part)
        if flaw:
            raise Trouble(f"enroot made a file of no use: {flaw}", again=True)
        os.chmod(part, 0o644)
        sync(part)
        final = os.path.join(self.settings.directory, image.file)
        with self.guard:
            self._save()  # the digest, before the file to which it belongs
            os.rename(part, final)
            sync(self.settings.directory)
            status = os.stat(final)
            for key in ("layers", "download", "why", "next_try", "attempts", "since"):
                entry.pop(key, None)
            entry.update(state="present", size=status.st_size, inode=status.st_ino, finished=time.time())
            self.dirty = True
        self.say(f"{image}: done, {final} has {size(status.st_size)}, after {time.time() - begun:.0f} s")

    def _require_space(self, image: Image, manifest: Manifest) -> None:
        """Wait for the room that other imports take; refuse an image for which there is none without them either."""
        work, told = private(self.settings.work), False
        kind = kind_of(work)
        if kind in NETWORK or kind.startswith("fuse."):
            raise Trouble(
                f"container_images_work_dir: found {work}, which is on {kind}, where enroot cannot unpack an image; "
                "needed: a folder on a disk of this node's own"
            )
        while True:
            with self.guard:
                lack = self._lack(work, manifest)
                if not lack:
                    self.reserved[str(image)] = manifest.size
                    return
                if not self.reserved:
                    raise Trouble(lack)
            if not told:
                self.say(f"{image}: waits until other images are there, because {lack}")
                told = True
            if self.stop.wait(1):
                raise Trouble("stopped")

    def _lack(self, work: str, manifest: Manifest) -> str:
        """Say where an image has no room beside those that are being imported; nothing if it has."""
        others = sum(self.reserved.values())
        for path, factor in ((self.settings.directory, IMAGE_FACTOR), (work, WORK_FACTOR)):
            status = os.statvfs(path)
            free = status.f_bavail * status.f_frsize - others * factor
            if free < manifest.size * factor:
                needed = f"the image needs about {size(manifest.size * factor)}"
                advice = "make room there"
                if path == work:
                    needed += f" there, {factor} times its download"
                    advice += ", or set container_images_work_dir to a folder on a larger disk of this node's own"
                return f"{path} has {size(max(0, free))} free, and {needed}; {advice}"
        return ""

    def _enroot(self, image: Image, manifest: Manifest, part: str, entry: Entry) -> tuple[str, int]:
        """Let enroot import exactly what the manifest names; return what it said and its exit status."""
        work = private(self.settings.work)
        config, cache, *_rest = [private(os.path.join(work, kind)) for kind in FOLDERS]
        credentials = os.path.join(config, ".credentials")
        with self.guard:
            lines = [
                f"machine {host} login {login.user} password {login.password}\n" for host, login in self.logins.items()
            ]
            descriptor = os.open(
                credentials, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
            with open(descriptor, "w", encoding="utf-8") as stream:
                stream.writelines(lines)
        environment = {
            **self._environment(),
            "ENROOT_MAX_PROCESSORS": str(max(1, (os.cpu_count() or 1) // self.settings.parallel)),
            # curl does as a registry says with Retry-After.
            "ENROOT_TRANSFER_RETRIES": "2",
        }
        if image.host in self.settings.http_registries:
            environment["ENROOT_ALLOW_HTTP"] = "y"
        # Before 4.0, enroot knows a digest only in the place of a tag.
        separator = ":" if self._version().startswith("3.") else "@"
        uri = f"docker://{image.host}#{image.repository}{separator}{manifest.digest}"
        secrets = [login.password for login in self.logins.values()]
        told, deadline = time.time(), time.time() + self.settings.timeout
        with (
            open(self._log_of(image), "w", encoding="utf-8") as stream,
            subprocess.Popen(
                ["enroot", "import", "--output", part, uri],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=work,
                start_new_session=True,
            ) as child,
        ):
            said: list[str] = []
            reader = threading.Thread(target=_copy, args=(child.stdout, stream, secrets, said), daemon=True)
            reader.start()
            while child.poll() is None:
                if self.stop.wait(0.2) or time.time() > deadline:
                    _end(child)
                    break
                done = [
                    layer for layer in manifest.layers if os.path.exists(os.path.join(cache, layer.partition(":")[2]))
                ]
                if entry.get("layers") != [len(done), len(manifest.layers)]:
                    entry["layers"], self.dirty = [len(done), len(manifest.layers)], True
                if time.time() - told >= 30:
                    told = time.time()
                    made = f", {size(os.path.getsize(part))} written" if os.path.exists(part) else ""
                    self.say(f"{image}: {len(done)} of {len(manifest.layers)} layers are here{made}")
            code = child.wait()
            reader.join(10)
        if time.time() > deadline:
            raise Trouble(f"not imported within {self.settings.timeout:.0f} s (container_images_timeout)", again=True)
        return "".join(said), code

    def _log_of(self, image: Image) -> int:
        """Open the file for what enroot says of an image. No import fails for it."""
        if self.settings.logs:
            try:
                path = os.path.join(self.settings.logs, f"{image.file[: -len('.sqsh')]}.log")
                descriptor = open_log(path, self.settings.user)
                os.ftruncate(descriptor, 0)
                return descriptor
            except (OSError, ImageError) as error:
                self.say(f"{image}: what enroot says is not kept: {error}")
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)

    def _program(self) -> str:
        return shutil.which("enroot", path=self._environment()["PATH"]) or ""

    def _version(self) -> str:
        return told([self._program(), "version"], "'enroot version'", self._environment())

    def _environment(self) -> dict[str, str]:
        """Return what enroot sees: its own folders, and nothing of a user's."""
        path, work = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", self.settings.work
        folders = {f"ENROOT_{kind.upper()}_PATH": os.path.join(work, kind) for kind in FOLDERS}
        own = {"PATH": path, "HOME": work, "TMPDIR": folders["ENROOT_TEMP_PATH"], "LC_ALL": "C"}
        return {**own, **self.settings.environment, **folders}

    def _part(self, image: Image) -> str:
        """Return where an image is made: beside the others, but where nobody else can put a link in its way."""
        return os.path.join(self.settings.directory, PARTS, f"{image.file}{PART}")

    # One importer at a time

    def _take_lock(self) -> bool:
        """Become the one that imports into this folder. What others have left is cleared away first."""
        if self.lock is not None:
            return True
        os.makedirs(self.settings.directory, mode=0o755, exist_ok=True)
        path = os.path.join(self.settings.directory, LOCK)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        require_own(descriptor, path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 100).decode("utf-8", "replace").strip()
            os.close(descriptor)
            self._tell_once(f"another importer is at work ({holder or 'unknown'}): waiting for it")
            return False
        except OSError:
            os.close(descriptor)
            raise
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{socket.gethostname()}, process {os.getpid()}\n".encode(), 0)
        self.lock, self.told = descriptor, ""
        self._clear()
        return True

    def _unlock(self) -> None:
        if self.lock is not None:
            # Layers are kept for as long as an image that may share them is missing.
            self._clear(cache=all(entry["state"] == "present" for entry in self.entries.values()))
            os.close(self.lock)
            self.lock = None

    def _clear(self, cache: bool = False) -> None:
        """Remove what imports have left, and the layers too once nobody needs them for another try."""
        parts = os.path.join(self.settings.directory, PARTS)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for name in os.listdir(parts):
                if name.endswith(PART):
                    os.unlink(os.path.join(parts, name))
            os.rmdir(parts)
        work = private(self.settings.work)
        for kind in FOLDERS:
            if cache or kind != "cache":
                clear(private(os.path.join(work, kind)))

    # What it tells

    def _save(self) -> None:
        """Write how far everything is; only whoever has the lock does. Other images that are there stay known."""
        with self.guard:
            before, images = read_state(self.settings.directory), dict(self.entries)
            for name, entry in before["images"].items():
                if name not in images and os.path.exists(os.path.join(self.settings.directory, str(entry.get("file")))):
                    images[name] = entry
            state = {
                "images": images,
                "problems": self.problems,
                "warnings": [*self.warnings, *([self.mute] if self.mute else [])],
                # An importer of another list says nothing of what the usual one has read.
                "seen": before["seen"] if self.list_path else self.seen,
                "host": socket.gethostname(),
                "updated": time.time(),
            }
            put(os.path.join(self.settings.directory, STATE), json.dumps(state, indent=1, sort_keys=True) + "\n")
            self.dirty, self.saved = False, time.time()

    def say(self, line: str) -> None:
        """Tell the journal, and the log that users read."""
        line = " ".join(line.split())
        print(line, flush=True)
        if not self.settings.log:
            return
        try:
            with self.guard, open(open_log(self.settings.log, self.settings.user), "a", encoding="utf-8") as stream:
                stream.write(f"{when(time.time())} {line}\n")
            self.mute = ""
        except (OSError, ImageError) as error:
            if str(error) != self.mute:
                self.mute = str(error)
                print(self.mute, flush=True)

    def _tell_once(self, line: str) -> None:
        if line != self.told:
            self.told = line
            self.say(line)


def _stamp(path: str) -> object:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode


def _copy(source: Any, target: Any, secrets: list[str], said: list[str]) -> None:
    """Copy what a program says, without what nobody may read, and keep its end."""
    for raw in source:
        line = raw.decode("utf-8", "replace")
        for secret in secrets:
            line = line.replace(secret, "***") if secret else line
        with contextlib.suppress(OSError):
            target.write(line)
            target.flush()
        said.append(line)
        del said[:-200]


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a program and whatever it has started."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(10)
            return


# What users see


def row_of(name: str, entry: Entry, now: float) -> list[str]:
    state = str(entry["state"])
    if state == "present":
        return [name, "ready", size(entry.get("size", 0)), entry["file"]]
    if state == "importing":
        layers = entry.get("layers") or [0, 0]
        total = size(entry["download"]) if entry.get("download") else ""
        return [name, "importing", total, f"{layers[0]} of {layers[1]} layers, since {when(entry.get('since', now))}"]
    if state == "queued":
        return [name, "waiting", "", ""]
    left = max(0, entry.get("next_try", now) - now)
    return [name, state, "", f"{entry.get('why', '')} (next try in {left:.0f} s)"]


def columns(rows: list[list[str]]) -> Iterator[str]:
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]) - 1)]
    for row in rows:
        yield "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[-1]]).rstrip()


def status(options: argparse.Namespace) -> int:
    """Show how far every image is."""
    state, now = read_state(options.directory), time.time()
    if options.json:
        print(json.dumps(state, indent=1, sort_keys=True))
        return 0
    rows = [row_of(name, entry, now) for name, entry in sorted(state["images"].items())]
    for line in columns([["IMAGE", "STATE", "SIZE", ""], *rows]):
        print(line)
    for line in [*state.get("problems", []), *state.get("warnings", [])]:
        print(line)
    age = now - state.get("updated", 0)
    advice = "on the head node: systemctl status container-images"
    if "updated" not in state:
        print(f"Nothing has been imported into {options.directory} yet; {advice}")
    elif not is_settled(state) and age > SILENT:
        print(f"The importer on {state.get('host')} has said nothing for {age:.0f} s; {advice}")
    return 0


def list_images(options: argparse.Namespace) -> int:
    """Show the images that can be used."""
    known = {entry["file"]: (name, entry) for name, entry in read_state(options.directory)["images"].items()}
    rows = []
    for name in sorted(os.listdir(options.directory)):
        if name.startswith(".") or not name.endswith(".sqsh"):
            continue
        try:
            found = os.stat(os.path.join(options.directory, name))
        except OSError:  # a link that leads nowhere, or what has just been removed
            continue
        image, entry = known.get(name, ("", {}))
        rows.append([name, size(found.st_size), when(found.st_mtime)[:16], image, (entry.get("digest") or "")[:19]])
    if not rows:
        print(f"There is no image in {options.directory} yet")
        return 0
    for line in columns([["FILE", "SIZE", "SINCE", "IMAGE", "DIGEST"], *rows]):
        print(line)
    print(f"\nsrun --container-image={options.directory}/{rows[0][0]} COMMAND")
    return 0


def download(options: argparse.Namespace) -> int:
    """Ask for what is missing, and show how it goes on."""
    if options.status:
        return status(options)
    other = bool(options.list) and os.path.realpath(options.list) != os.path.realpath(options.file)
    if other:
        if not os.path.exists(options.list):
            raise ImageError(f"{options.list} is not there; needed: a list of images, one a line")
        if os.geteuid() != 0 or not os.path.exists(options.settings):
            raise ImageError(
                f"only root on the head node imports another list; add its lines to {options.file} instead"
            )
        return serve(Importer(options.settings, os.path.realpath(options.list)), once=True)
    asked = 0.0
    if os.geteuid() == 0 and os.path.exists(options.settings):
        asked = time.time()
        subprocess.run(["systemctl", "reload-or-restart", "container-images.service"], check=True)
    if options.no_wait:
        return 0
    return follow(options, asked)


def follow(options: argparse.Namespace, asked: float) -> int:
    """Show the log from now on until nothing is left to do."""
    position, silent_since = (os.path.getsize(options.log) if os.path.exists(options.log) else 0), time.time()
    while True:
        state = read_state(options.directory)
        seen = state.get("seen", {})
        with contextlib.suppress(OSError), open(options.log, encoding="utf-8", errors="replace") as stream:
            stream.seek(position)
            text = stream.read()
            position = stream.tell()
            if text:
                silent_since = time.time()
                print(text, end="", flush=True)
        current = seen.get("file", "") == digest_of(options.file) and seen.get("asked", 0) >= asked
        if current and is_settled(state):
            break
        if time.time() - max(silent_since, state.get("updated", 0)) > SILENT:
            raise ImageError("the importer says nothing; on the head node: systemctl status container-images")
        time.sleep(1)
    options.json = False
    status(options)
    return 1 if failures_of(state) else 0


def serve(importer: Importer, once: bool) -> int:
    """Let an importer work until it is told to stop."""
    signal.signal(signal.SIGTERM, lambda *_: importer.stop.set())
    signal.signal(signal.SIGHUP, lambda *_: importer.asked.set())
    return importer.run(once)


def run(options: argparse.Namespace) -> int:
    """Import, in the background of the head node."""
    code = serve(Importer(options.settings), options.once)
    return code if options.once else 0


def check(options: argparse.Namespace) -> int:
    """Say whether settings can be used."""
    read_settings(options.settings)
    return 0


def arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Container images in a shared folder.")
    steps = parser.add_subparsers(required=True, metavar="STEP")
    defaults = "/etc/pcluster-postboot/container-images.json"

    step = steps.add_parser("run", help="on the head node: import what is missing, and go on watching the lists")
    step.add_argument("--settings", default=defaults, help="(default: %(default)s)")
    step.add_argument("--once", action="store_true", help="end when nothing is left to try")
    step.set_defaults(step=run)

    step = steps.add_parser("check", help="check the settings")
    step.add_argument("--settings", default=defaults, help="(default: %(default)s)")
    step.set_defaults(step=check)

    step = steps.add_parser("status", help="show how far every image is")
    step.add_argument("--directory", required=True, help="the folder of the images")
    step.add_argument("--json", action="store_true", help="as JSON")
    step.set_defaults(step=status)

    step = steps.add_parser("list", help="show the images that can be used")
    step.add_argument("--directory", required=True, help="the folder of the images")
    step.set_defaults(step=list_images)

    step = steps.add_parser("download", help="ask for what is missing, and show how it goes on")
    step.add_argument("--directory", required=True, help=argparse.SUPPRESS)
    step.add_argument("--file", required=True, help=argparse.SUPPRESS)
    step.add_argument("--log", required=True, help=argparse.SUPPRESS)
    step.add_argument("--settings", default=defaults, help=argparse.SUPPRESS)
    step.add_argument("--status", action="store_true", help="only show how far every image is")
    step.add_argument("--json", action="store_true", help="with --status: as JSON")
    step.add_argument("--no-wait", action="store_true", help="only ask")
    step.add_argument("list", nargs="?", default="", help="another list of images (root, on the head node)")
    step.set_defaults(step=download)
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    """Take one step."""
    options = arguments(words)
    os.umask(0o022)
    try:
        return int(options.step(options))
    except (OSError, ImageError, subprocess.SubprocessError) as error:
        print(str(error), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
