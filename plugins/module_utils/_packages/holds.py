# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Hold packages for the time of a run, and release exactly what was held.

What is about to be held is recorded first. A run that is killed leaves its record, and the end of the next run
releases it. What the owner of the node holds is never recorded, so it is never released.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import time
from collections.abc import Callable, Sequence

from ansible_collections.pcluster.postboot.plugins.module_utils._host import document, files, lock
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.reason import reason
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import NotRun, run

Runner = Callable[[Sequence[str], str], "tuple[int, str, str]"]

SECONDS = 120.0
DNF_CONF = "/etc/dnf/dnf.conf"
_DNF_KEYS = ("excludepkgs", "exclude")
_LOCK_WORDS = ("lock", "another process")


class HoldError(Problem):
    """Packages could not be held or released."""


class BusyError(HoldError):
    """Somebody else works with the packages: trying again later may do."""


def run_command(command: Sequence[str], text: str) -> tuple[int, str, str]:
    """Run a command in the C locale, with text on its standard input."""
    try:
        said = run(command, SECONDS, text=text, hint="see what it waits for")
    except NotRun as error:
        raise HoldError(str(error)) from error
    return said.code, said.out, said.err


def matching(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Return the package names (an architecture suffix aside) that one of the patterns matches."""
    return sorted(n for n in set(names) if any(fnmatch.fnmatchcase(n.split(":", 1)[0], p) for p in patterns))


class AptHolds:
    """Holds as dpkg knows them."""

    def __init__(self, runner: Runner = run_command, patience: float = 10.0) -> None:
        self._run = runner
        self._patience = patience

    def _selections(self) -> dict[str, str]:
        """Return what is wanted of each installed package: install, hold, ..."""
        code, out, err = self._run(["dpkg-query", "-W", "-f=${Status}\t${binary:Package}\n"], "")
        if code:
            raise HoldError(f"dpkg-query cannot list the packages: {reason(err) or 'no message'}")
        wanted = {}
        for line in out.splitlines():
            status, _tab, name = line.partition("\t")
            words = status.split()
            if len(words) == 3 and words[2] == "installed":
                wanted[name] = words[0]
        return wanted

    def to_hold(self, patterns: Sequence[str]) -> list[str]:
        """Return the installed packages that match and that nobody holds."""
        return matching([n for n, want in self._selections().items() if want != "hold"], patterns)

    def hold(self, names: Sequence[str]) -> None:
        """Hold the packages."""
        self._select(names, "hold")

    def original(self) -> str:
        """Return what release() needs to restore: nothing."""
        return ""

    def release(self, names: Sequence[str], original: str = "") -> None:
        """Release those of the packages that are still held."""
        if names:
            now = self._selections()
            self._select([n for n in names if now.get(n) == "hold"], "install")

    def _select(self, names: Sequence[str], want: str) -> None:
        if not names:
            return
        until = time.monotonic() + self._patience
        while True:
            code, _out, err = self._run(["dpkg", "--set-selections"], "".join(f"{n} {want}\n" for n in names))
            if not code:
                return
            if not any(word in err.lower() for word in _LOCK_WORDS):
                raise HoldError(f"dpkg --set-selections failed: {reason(err) or 'no message'}")
            if time.monotonic() >= until:
                raise BusyError(f"dpkg is busy: {reason(err) or 'no message'}")
            time.sleep(0.5)


class DnfHolds:
    """Holds as an excludepkgs line in dnf.conf, for versionlock is a plugin that may be absent."""

    def __init__(self, path: str = DNF_CONF, runner: Runner = run_command) -> None:
        self._path = path
        self._run = runner

    def to_hold(self, patterns: Sequence[str]) -> list[str]:
        """Return the names of the installed packages that match and that the file does not exclude already."""
        code, out, err = self._run(["rpm", "-qa", "--qf", "%{NAME}\n"], "")
        if code:
            raise HoldError(f"rpm cannot list the packages: {reason(err) or 'no message'}")
        return [n for n in matching(out.split(), patterns) if n not in self._excluded()]

    def hold(self, names: Sequence[str]) -> None:
        """Add the names to the exclusions."""
        if names:
            self._edit(add=names)

    def original(self) -> str:
        """Return the lines that hold() will change, as they are written."""
        block = self._block()
        return (
            "".join((files.read(self._path) or "").splitlines(keepends=True)[block.start : block.end]) if block else ""
        )

    def release(self, names: Sequence[str], original: str = "") -> None:
        """Take the names out of the exclusions again; a line that only they filled goes.

        If what is left is what the original lines say, they are put back as they were written.
        """
        if names:
            self._edit(remove=names, original=original)

    def _excluded(self) -> list[str]:
        found: list[str] = []
        for block in _main_options(files.read(self._path) or ""):
            if block.key in _DNF_KEYS:
                found += _words(block.value)
        return found

    def _block(self, names: Sequence[str] = ()) -> _Option | None:
        """Return the last line that has one of the names, else the last one, which wins over those before it."""
        blocks = [block for block in _main_options(files.read(self._path) or "") if block.key in _DNF_KEYS]
        having = [block for block in blocks if set(names) & set(_words(block.value))]
        return next(reversed(having or blocks), None)

    def _edit(self, add: Sequence[str] = (), remove: Sequence[str] = (), original: str = "") -> None:
        text = files.read(self._path) or ""
        lines = text.splitlines(keepends=True)
        if lines and not lines[-1].endswith("\n"):
            lines[-1] += "\n"
        block = self._block(remove)
        if block is None:
            if not add:
                return
            options = _main_options(text)
            at = options[-1].end if options else _main_header(lines)
            lines[at:at] = (["[main]\n"] if at == 0 else []) + [f"excludepkgs={' '.join(add)}\n"]
        else:
            words = _words(block.value)
            kept = [w for w in words if w not in remove]
            kept += [w for w in add if w not in kept]
            if kept == words:
                return
            new = f"{block.key}={' '.join(kept)}\n" if kept else ""
            before = _main_options("[main]\n" + original)
            if before and before[-1].key == block.key and _words(before[-1].value) == kept:
                new = original if original.endswith("\n") else original + "\n"
            lines[block.start : block.end] = [new]
        mode = os.stat(self._path).st_mode & 0o7777 if text else 0o644
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        files.write(os.path.realpath(self._path), "".join(lines), mode)


def _words(value: str) -> list[str]:
    return value.replace(",", " ").split()


class _Option:
    """One option of an ini file's [main] section: its lines from start to before end."""

    def __init__(self, key: str, value: str, start: int) -> None:
        self.key, self.value, self.start, self.end = key, value, start, start + 1


def _main_options(text: str) -> list[_Option]:
    options: list[_Option] = []
    section = ""
    for number, line in enumerate(text.splitlines()):
        stripped = line.strip()
        if stripped.startswith("[") and "]" in stripped:
            section = stripped[1 : stripped.index("]")].strip()
        elif section != "main" or not stripped or stripped[0] in "#;":
            continue
        elif line[0] in " \t" and options:
            options[-1].value += " " + stripped
            options[-1].end = number + 1
        else:
            key, _equals, value = stripped.partition("=")
            options.append(_Option(key.strip(), value.strip(), number))
    return options


def _main_header(lines: Sequence[str]) -> int:
    for number, line in enumerate(lines):
        if line.strip().replace(" ", "") == "[main]":
            return number + 1
    return 0


class Holds:
    """The holds of a run, with their record."""

    def __init__(self, manager: AptHolds | DnfHolds, directory: str = "") -> None:
        self._manager = manager
        self._path = os.path.join(directory or lock.STATE_DIR, "holds.json")

    def begin(self, patterns: Sequence[str]) -> list[str]:
        """Hold what matches; return what is newly held."""
        names = self._manager.to_hold(patterns) if patterns else []
        if not names:
            return []
        held, original = self.recorded()
        record = {"held": sorted({*held, *names}), "original": original if held else self._manager.original()}
        os.makedirs(os.path.dirname(self._path), mode=0o755, exist_ok=True)
        files.write(self._path, json.dumps(record, indent=1) + "\n")
        self._manager.hold(names)
        return names

    def end(self) -> list[str]:
        """Release whatever runs have recorded, a killed one included; return it."""
        names, original = self.recorded()
        if names:
            self._manager.release(names, original)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        return names

    def recorded(self) -> tuple[list[str], str]:
        """Return what our runs hold, and what the lines were before that they changed."""
        try:
            data = document.read(self._path)
            return [str(name) for name in data["held"]], str(data.get("original") or "")
        except FileNotFoundError:
            return [], ""
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise HoldError(
                f"{self._path} is no record of held packages ({error}): release what it names, then remove it"
            ) from error
