#!/usr/bin/env python3
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Check that versions agree: the collection's own, what was deprecated, and what is supported.

Prints one line for each that does not. docs/compatibility.md has the rules.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from plugins.plugin_utils._site import deprecations, supported

Version = tuple[int, int, int]
_SECTIONS = {"major_changes", "minor_changes", "breaking_changes", "deprecated_features", "removed_features"}


def version(text: Any) -> Version:
    match = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)", str(text))
    if not match:
        raise ValueError(f"{text} is no version; needed: three numbers, such as 0.2.0")
    return int(match[1]), int(match[2]), int(match[3])


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8")) or {}


def own_problems(root: Path) -> Iterator[str]:
    """Yield where galaxy.yml's version does not follow from the last release and what has changed since."""
    own = version(load(root / "galaxy.yml")["version"])
    last = max(version(one) for one in load(root / "changelogs/changelog.yaml")["releases"])
    sections = {section for path in root.glob("changelogs/fragments/*.yml") for section in load(path)}
    what = f"galaxy.yml: version is {_text(own)}, and CHANGELOG.rst ends with {_text(last)}"
    if not sections and own != last:
        yield f"{what}; needed: a fragment of what is new, or the same version"
    elif sections and own <= last:
        yield f"{what}, with fragments of what is new; needed: a version above {_text(last)}"
    elif sections & _SECTIONS and own[:2] == last[:2]:
        yield f"{what}; needed: another minor version, because the fragments have {', '.join(sections & _SECTIONS)}"


def deprecation_problems(root: Path) -> Iterator[str]:
    """Yield the entries whose time is over, that go too early, or that the code does not keep."""
    own = version(load(root / "galaxy.yml")["version"])
    defaults: dict[str, Any] = {}
    for path in sorted(root.glob("roles/*/defaults/main.yml")):
        defaults.update(load(path))
    for one in deprecations.read(root).every():
        since, ends = version(one.since), version(one.removed_in)
        where = f"{deprecations.FILE}: {one.value or one.name}"
        if ends <= own:
            yield f"{where} was to be removed in {one.removed_in}, and galaxy.yml says {_text(own)}: remove it"
        if since > own:
            yield f"{where} is deprecated since {one.since}, and galaxy.yml says {_text(own)}"
        if ends[0] == since[0] and ends < (since[0], since[1] + 2, 0):
            yield f"{where} goes with {one.removed_in}; needed: {since[0]}.{since[1] + 2}.0, two minor versions later"
        yield from (f"{where} {problem}" for problem in _kept(root, one, defaults))


def _kept(root: Path, one: deprecations.Deprecation, defaults: Mapping[str, Any]) -> Iterator[str]:
    if one.file:
        if not re.search(rf"(?<![\w-]){re.escape(one.name)}(?![\w-])", (root / one.file).read_text(encoding="utf-8")):
            yield f"is not named in {one.file}, which is to tell of it"
    elif one.value:
        if one.name not in defaults or not one.to:
            yield f"is a word of {one.name}; needed: a variable of a role, and the new word as `to`"
    elif one.name in defaults:
        yield "is a variable of a role still: defaults/main.yml has it"
    elif one.to and not re.search(rf"\b{one.name}\b", str(defaults.get(one.to, ""))):
        yield f"is called {one.to} now, whose default does not read it; needed: {{{{ {one.name} | default(…) }}}}"
    elif not one.to and not one.because:
        yield "has no new name; needed: because, which says what to do instead"


def supported_problems(root: Path) -> Iterator[str]:
    """Yield which files say something else than meta/supported.yml."""
    known = supported.read(root)
    pcluster, python, cores = known.parallelcluster, known.python, known.ansible_core["tested"]
    names = " and ".join(one["version"] for one in cores)
    series = [".".join(pcluster[end].split(".")[:2]) for end in ("oldest", "newest")]
    machines = " and ".join(one["name"] for one in known.architectures)
    phrases = {
        "README.md": [
            f"ParallelCluster {series[0]} to {series[1]} on {known.titles()}, {machines}",
            f"Python {python['workstation']} or newer; ansible-core {names} are tested",
        ],
        "meta/runtime.yml": [f'requires_ansible: ">={known.ansible_core["oldest"]}"'],
        "requirements/node.in": [f"ansible-core>={one['version']},<" for one in cores],
        "plugins/module_utils/_bundle/wheels.py": ["PYTHONS = (" + ", ".join(f'"{one}"' for one in python["bundles"])],
        "molecule/cluster/topology.yml": [f"parallelcluster: {one}" for one in pcluster["tested"]],
        "molecule/cluster/README.md": list(pcluster["tested"]),
        "roles/cluster_config/meta/argument_specs.yml": [f"{pcluster['oldest']} is the oldest"],
        "examples/cluster-configs/README.md": [f"ParallelCluster {one} " for one in pcluster["tested"]],
        "Makefile": [f"parallelcluster-{one.rpartition('.')[0]} " for one in pcluster["tested"]],
        "docs/status.md": [f"{one['python']} ({'ansible-core ' * (one is cores[0])}{one['version']})" for one in cores],
    }
    for name, wanted in phrases.items():
        text = (root / name).read_text(encoding="utf-8")
        yield from (
            f"{name}: {phrase!r} is not there, which follows from {supported.FILE}"
            for phrase in wanted
            if phrase not in text
        )
    for name, value in (("publish_pythons", python["bundles"]), ("cluster_config_version", pcluster["tested"][-1])):
        found = load(root / f"roles/{name.rpartition('_')[0]}/defaults/main.yml")[name]
        if found != value:
            yield f"{name} is {found} by default, and {supported.FILE} says {value}"


def page_problems(root: Path) -> Iterator[str]:
    """Yield what of docs/runbooks/upgrade.md no release has: the version that comes, and the one before."""
    text = (root / "docs/runbooks/upgrade.md").read_text(encoding="utf-8")
    own = _text(version(load(root / "galaxy.yml")["version"]))
    releases = {*load(root / "changelogs/changelog.yaml")["releases"], own}
    found = set(re.findall(r"postboot(?:\.git,|/)(\d+\.\d+\.\d+)", text))
    if own not in found:
        yield f"docs/runbooks/upgrade.md: upgrades to {', '.join(sorted(found))}; needed: {own}, as galaxy.yml says"
    yield from (f"docs/runbooks/upgrade.md: {one} is no release" for one in sorted(found - releases))


def _text(found: Version) -> str:
    return ".".join(str(number) for number in found)


def problems(root: Path) -> list[str]:
    checks = (own_problems, deprecation_problems, supported_problems, page_problems)
    return [line for check in checks for line in check(root)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], help="the checkout")
    found = problems(parser.parse_args(arguments).root)
    for line in found:
        print(line)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
