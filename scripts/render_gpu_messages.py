#!/usr/bin/env python3
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write the classes of XIDs and SXIDs into the reader of the kernel's messages and its copy, and into the runbook.

scripts/render_role_docs.py calls it.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from plugins.plugin_utils._site.components import load

XIDS, SXIDS = "roles/prometheus/files/xids.yml", "roles/node_health/files/sxids.yml"
READER = "plugins/module_utils/_diagnose/gpu_messages.py"
COPY = "roles/node_health/files/node_health/gpu_messages.py"
RUNBOOK = "docs/runbooks/lost-gpu.md"
BEGIN, END = "begin XIDs: written by scripts/render_role_docs.py", "end XIDs"
# What a class asks for, in the runbook.
TODO = {
    "replace": "replace the node",
    "reboot": "reboot the node, or replace it",
    "reset": "reset the GPU once the node is free, or replace the node",
}


def _numbers(groups: Iterable[Mapping[str, Any]], key: str = "xids") -> list[int]:
    return sorted(number for group in groups for number in group[key])


def tables(xids: Mapping[str, Any], sxids: Mapping[str, Any]) -> str:
    """Return the classes as Python, on lines of at most 120 characters."""

    def numbers(found: Iterable[int], before: str, after: str) -> str:
        text = f"{before}({', '.join(map(str, found))},){after}"
        return "\n".join(textwrap.wrap(text, 120, subsequent_indent=" " * 8)) + "\n"

    text = "XIDS = {\n"
    for kind in TODO:
        classed = _numbers(group for group in xids["critical"] if group["class"] == kind)
        text += "    " + numbers(classed, "**dict.fromkeys(", f', "{kind}"),')
    text += "}\n" + numbers(_numbers(xids["none"]), "XIDS_NONE = frozenset(", ")")
    return text + numbers(_numbers(sxids["none"], "sxids"), "SXIDS_NONE = frozenset(", ")")


def rows(xids: Mapping[str, Any]) -> str:
    """Return the runbook's table."""
    text = "\n| XID | means | so |\n|---|---|---|\n"
    for group in [*xids["critical"], *xids["none"]]:
        todo = TODO[group["class"]] if "class" in group else group["todo"]
        text += f"| {', '.join(map(str, sorted(group['xids'])))} | {group['means']} | {todo} |\n"
    return f"{text}\n"


def _between(root: Path, name: str, text: str) -> str:
    lines = (root / name).read_text(encoding="utf-8").splitlines(keepends=True)
    begins = [number for number, line in enumerate(lines) if BEGIN in line]
    ends = [number for number, line in enumerate(lines) if END in line]
    if len(begins) != 1 or len(ends) != 1 or begins > ends:
        raise ValueError(f"{name}: there is no place for the XIDs; needed: lines with {BEGIN!r} and {END!r}")
    return "".join([*lines[: begins[0] + 1], text, *lines[ends[0] :]])


def rendered(root: Path) -> dict[Path, str]:
    """Return what each of the files should say. ValueError says why there is no telling."""
    xids, sxids = load(root / XIDS), load(root / SXIDS)
    reader = _between(root, READER, tables(xids, sxids))
    return {
        root / READER: reader,
        root / COPY: reader,
        root / RUNBOOK: _between(root, RUNBOOK, rows(xids)),
    }
