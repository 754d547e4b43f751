# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Images: as users write them, as their files are called, and the list of them."""

from __future__ import annotations

import hashlib
import os
import re
from typing import NamedTuple

from .errors import ImageError
from .files import peek

LONGEST_NAME = 200


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
