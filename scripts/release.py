#!/usr/bin/env python3
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Check that a tag is a release: what galaxy.yml, the changelog and the fragments say. Prints what has to be done."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml


def complaints(root: Path, tag: str) -> Iterator[str]:
    """Yield what has to be done before a tag can be a release."""
    version = yaml.safe_load((root / "galaxy.yml").read_text(encoding="utf-8"))["version"]
    if tag != version:
        yield f"TAG is {tag!r}; needed: {version}, the version of galaxy.yml"
    changes = yaml.safe_load((root / "changelogs/changelog.yaml").read_text(encoding="utf-8"))
    if version not in changes["releases"]:
        yield f"changelogs/changelog.yaml has no release {version}; needed: make changelog, and a commit"
    left = sorted(path.name for path in (root / "changelogs/fragments").glob("*.y*ml"))
    if left:
        yield f"changelogs/fragments still has {', '.join(left[:3])}, {len(left)} in all; needed: make changelog"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], help="the checkout")
    parser.add_argument("tag", help="such as 0.2.0")
    options = parser.parse_args(arguments)
    found = list(complaints(options.root, options.tag))
    for line in found:
        print(line)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
