# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The wheels of a lock file for each Python and architecture, fetched once by pip and believed by their sha256 only."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from typing import NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._host import files
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import NotRun, run

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
ARCHITECTURES = ("x86_64", "aarch64")
# The oldest glibc that a node has is 2.34 (Amazon Linux 2023, RHEL 9); the oldest that wheels are built for is 2.17.
_GLIBC = range(34, 16, -1)
_TIMEOUT = 900


class Target(NamedTuple):
    """What the wheels are for."""

    python: str
    architecture: str

    @property
    def environment(self) -> dict[str, str]:
        """What a lock file's markers may ask. No lock of ours may depend on a patch release."""
        return {
            "extra": "",
            "implementation_name": "cpython",
            "implementation_version": f"{self.python}.0",
            "os_name": "posix",
            "platform_machine": self.architecture,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": f"{self.python}.0",
            "python_version": self.python,
            "sys_platform": "linux",
        }

    @property
    def options(self) -> list[str]:
        """What pip has to be told, because it runs on another machine."""
        platforms = [f"manylinux_2_{minor}_{self.architecture}" for minor in _GLIBC]
        platforms.append(f"manylinux2014_{self.architecture}")
        options = ["--only-binary=:all:", "--implementation", "cp", "--python-version", self.python]
        return [*options, *(word for platform in platforms for word in ("--platform", platform))]


class Pinned(NamedTuple):
    """One line of a lock file."""

    requirement: str  # name==version
    marker: str
    hashes: tuple[str, ...]

    def line(self) -> str:
        """Return the line without its marker, which pip would judge by the machine that pip runs on."""
        return " ".join([self.requirement, *(f"--hash=sha256:{digest}" for digest in self.hashes)])


def read_lock(path: str) -> list[Pinned]:
    """Return the lines of a lock file."""
    with open(path, encoding="utf-8") as stream:
        text = re.sub(r"\\\n", " ", stream.read())
    pinned = []
    for line in text.splitlines():
        line = re.sub(r"(^|\s)#.*", "", line).strip()
        if not line:
            continue
        requirement, _sep, marker = line.split(" --hash", 1)[0].partition(";")
        hashes = tuple(re.findall(r"--hash=sha256:([0-9a-f]{64})\b", line))
        if "==" not in requirement or not hashes:
            raise Problem(f"{path}: {line[:60]!r} is no name==version with --hash=sha256:…, as `make lock` writes")
        pinned.append(Pinned(requirement.replace(" ", ""), marker.strip(), hashes))
    return pinned


def wanted(lock: list[Pinned], target: Target) -> list[Pinned]:
    """Return the lines of a lock that hold for a target."""
    # Not at the top: Ansible has it wherever this runs, but whoever only imports this module may not.
    try:
        from packaging.markers import Marker
    except ImportError as error:
        raise Problem(f"{sys.executable} has no packaging, which ansible-core brings: {error}") from error
    return [pin for pin in lock if not pin.marker or Marker(pin.marker).evaluate(target.environment)]


class Store:
    """A folder that keeps what pip has fetched: one folder for each target and set of lines, which appears whole."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def find(self, pins: list[Pinned], target: Target) -> list[str]:
        """Return the wheels of these lines, or nothing where one is missing or damaged."""
        folder = self._folder_of(pins, target)
        found = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        paths = [os.path.join(folder, name) for name in found]
        known = {digest for pin in pins for digest in pin.hashes}
        if len(paths) != len(pins) or any(files.sha256_of(path) not in known for path in paths):
            return []
        return paths

    def fetch(self, pins: list[Pinned], target: Target) -> list[str]:
        """Have pip download the wheels. pip checks their hashes, and `find` checks them again at each use."""
        folder = self._folder_of(pins, target)
        staging = f"{folder}.part"
        shutil.rmtree(staging, ignore_errors=True)
        os.makedirs(staging)
        lines = f"{staging}.txt"
        with open(lines, "w", encoding="utf-8") as stream:
            stream.write("".join(f"{pin.line()}\n" for pin in pins))
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
        command += ["--no-deps", "--require-hashes", *target.options, "--dest", staging, "--requirement", lines]
        try:
            said = run(command, _TIMEOUT)
        except NotRun as error:
            raise Problem(f"pip has not fetched the wheels of {self._name(target)}: {error}") from error
        finally:
            os.unlink(lines)
        if said.code:
            raise Problem(f"the wheels of {self._name(target)}: {_why(said.err)}")
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(staging, folder)
        paths = self.find(pins, target)
        if not paths:
            brought = ", ".join(os.listdir(folder))
            raise Problem(f"the wheels of {self._name(target)} are not whole: pip brought {brought}")
        return paths

    def _folder_of(self, pins: list[Pinned], target: Target) -> str:
        lines = hashlib.sha256("\n".join(pin.line() for pin in pins).encode()).hexdigest()
        return os.path.join(self.folder, f"{target.python}-{target.architecture}-{lines[:12]}")

    @staticmethod
    def _name(target: Target) -> str:
        return f"Python {target.python} on {target.architecture}"


def _why(stderr: str) -> str:
    """Return what pip says at the end, without what it says on the way."""
    if "No module named pip" in stderr:
        return f"{sys.executable} has no pip to fetch them with; needed: {sys.executable} -m ensurepip"
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line[len("ERROR:") :].strip() for line in lines if line.startswith("ERROR:")]
    mismatch = [line for line in lines if line.startswith(("Expected sha256", "Got "))]
    return " ".join([*(errors or lines)[-1:], *mismatch]) or "pip failed and did not say why"
