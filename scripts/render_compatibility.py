#!/usr/bin/env python3
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write the tables of docs/compatibility.md: what is supported, and what was deprecated.

scripts/render_role_docs.py calls it. The page has a place for each between two marks.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from plugins.plugin_utils._site import deprecations, supported

PAGE = "docs/compatibility.md"


def _rows(*rows: Sequence[str]) -> str:
    head, *body = [f"|{'|'.join(f' {cell} ' for cell in row)}|\n" for row in rows]
    return f"\n{head}{'|---' * len(rows[0])}|\n{''.join(body)}\n"


def versions(known: supported.Supported) -> str:
    pcluster, python, cores = known.parallelcluster, known.python, known.ansible_core
    series = [".".join(pcluster[end].split(".")[:2]) for end in ("oldest", "newest")]
    return _rows(
        ("what", "works with", "tested with"),
        (
            "ParallelCluster",
            f"{series[0]} to {series[1]}; release notes were read up to {pcluster['newest']}",
            f"the code of {' and '.join(pcluster['tested'])}",
        ),
        (
            "ansible-core",
            f"{cores['oldest']} or newer",
            " and ".join(f"{one['version']} (on Python {one['python']})" for one in cores["tested"]),
        ),
        (
            "Python, on your workstation",
            f"{python['workstation']} or newer",
            " and ".join(one["python"] for one in cores["tested"]),
        ),
        (
            "Python, on nodes that you push to",
            f"{python['modules']} or newer",
            f"{' and '.join(one['python'] for one in cores['tested'])}; {python['modules']} by its syntax alone",
        ),
        (
            "Python, on nodes that run a bundle",
            ", ".join(python["bundles"]),
            " and ".join(one["python"] for one in cores["tested"]),
        ),
        *(
            (system.title, f"`{system.name}`{'' if system.image else ', from an image of your own'}", system.tested)
            for system in known.systems
        ),
        *((f"{one['name']}", "yes", one["tested"]) for one in known.architectures),
    )


def table(known: deprecations.Deprecations) -> str:
    rows = []
    for one in known.every():
        new = f"`{one.to}`" if one.to else "none"
        old = f"`{one.value}` in `{one.name}`" if one.value else f"`{one.name}`"
        if one.file:
            old += f" of `{Path(one.file).name}`"
        rows.append((old, new, one.since, one.removed_in))
    return _rows(("old name", "new name", "since", "removed in"), *rows)


def rendered(root: Path) -> dict[Path, str]:
    """Return what the page should say. ValueError says why there is no telling."""
    text = (root / PAGE).read_text(encoding="utf-8")
    for name, body in (
        ("supported", versions(supported.read(root))),
        ("deprecated", table(deprecations.read(root))),
    ):
        begin, end = f"<!-- begin {name}: written by scripts/render_role_docs.py -->\n", f"<!-- end {name} -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"{PAGE}: there is no place for what is {name}; needed: lines with {begin!r} and {end!r}")
        before, rest = text.split(begin)
        text = f"{before}{begin}{body}{end}{rest.split(end)[1]}"
    return {root / PAGE: text}
