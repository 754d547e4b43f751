# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Reads a node's files under a root folder, and turns what is wrong with them into one-line problems."""

from __future__ import annotations

import errno
import json
import os
import stat
from typing import Any, Callable

from ansible_collections.pcluster.postboot.plugins.module_utils._host import document

_ABSENT = (errno.ENOENT, errno.ENOTDIR)
_LIMIT = 32 * 1024 * 1024


class Tree:
    """The files of one node. A file that cannot be used is None, and its reason stands in `problems`."""

    def __init__(self, root: str = "/", watch: Callable[[str], None] | None = None) -> None:
        self.root = os.path.abspath(root)
        self.live = self.root == "/"
        self.problems: list[str] = []
        self.dead: list[str] = []
        self._watch = watch or (lambda path: None)

    def at(self, path: str) -> str:
        """Return where a node's absolute path lies on this machine."""
        return path if self.live else os.path.join(self.root, path.lstrip("/"))

    def on_dead_mount(self, path: str) -> bool:
        """Tell whether a path lies on a file system that did not answer."""
        return any(path == dead or path.startswith(dead.rstrip("/") + "/") for dead in self.dead)

    def problem(self, text: str) -> None:
        """Note one problem, once, on one line."""
        line = " ".join(text.split())
        if line not in self.problems:
            self.problems.append(line)

    def read_bytes(self, path: str, required: bool = False, quiet: bool = False) -> bytes | None:
        """Return a regular file's bytes. A missing file is a problem only when it is required."""
        if self.on_dead_mount(path):
            return None
        self._watch(path)
        try:
            # Without blocking, because a FIFO in a file's place would wait for its writer for ever.
            descriptor = os.open(self.at(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                kind = os.fstat(descriptor).st_mode
                if not stat.S_ISREG(kind):
                    what = "a folder" if stat.S_ISDIR(kind) else "no regular file"
                    raise OSError(errno.EINVAL, f"it is {what}, a file was expected")
                with open(descriptor, "rb", closefd=False) as stream:
                    return stream.read(_LIMIT)
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno in _ABSENT:
                if required:
                    self.problem(f"{path} is missing")
            elif not quiet:
                hint = " (run as root: become)" if error.errno in (errno.EACCES, errno.EPERM) else ""
                self.problem(f"{path} cannot be read: {error.strerror}{hint}")
            return None

    def read(self, path: str, required: bool = False, quiet: bool = False) -> str | None:
        """Return a text file's content."""
        data = self.read_bytes(path, required, quiet)
        if data is None:
            return None
        if b"\0" in data:
            if not quiet:
                self.problem(f"{path} is not text: it holds binary data")
            return None
        if required and not data.strip():
            self.problem(f"{path} is empty")
            return None
        return data.decode("utf-8", "replace")

    def line(self, path: str) -> str | None:
        """Return the first line of a small file without its blanks; None when there is nothing. Never a problem."""
        text = self.read(path, quiet=True)
        return text.strip().split("\n")[0].strip() or None if text else None

    def mapping(self, path: str, required: bool = False) -> dict[str, Any] | None:
        """Return the JSON object that a file holds."""
        text = self.read(path, required)
        if text is None:
            return None
        try:
            value = document.parse(text)
        except ValueError as error:
            where = f"line {error.lineno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else str(error)
            self.problem(f"{path} is not valid JSON: {where}")
            return None
        if not isinstance(value, dict):
            self.problem(f"{path} holds a JSON {type(value).__name__}, an object was expected")
            return None
        return value

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a folder; an empty list when there is none."""
        if self.on_dead_mount(path):
            return []
        self._watch(path)
        try:
            return sorted(os.listdir(self.at(path)))
        except OSError:
            return []

    def exists(self, path: str) -> bool:
        """Tell whether something is at a path, a dangling link included."""
        if self.on_dead_mount(path):
            return False
        self._watch(path)
        return os.path.lexists(self.at(path))

    def is_dir(self, path: str) -> bool:
        """Tell whether a folder is at a path."""
        if self.on_dead_mount(path):
            return False
        self._watch(path)
        return os.path.isdir(self.at(path))

    def link_name(self, path: str) -> str | None:
        """Return the last part of what a symbolic link points to."""
        try:
            return os.path.basename(os.readlink(self.at(path)))
        except OSError:
            return None
