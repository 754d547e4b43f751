#!/usr/bin/env python3
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write what files that cannot read roles/*/meta/component.yml themselves say of the components.

scripts/render_role_docs.py calls it. Each file has a place for it between two marks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from plugins.plugin_utils._site.components import Component, Elsewhere, Unit, read

BEGIN, END = "begin components: written by scripts/render_role_docs.py", "end components"


def _row(*cells: str) -> str:
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|\n"


def _title(component: Component) -> str:
    addresses = [str(component.defaults[unit.address]) for unit in component.units if unit.address]
    return component.title + "".join(f" ({address})" for address in addresses)


def overview(components: Sequence[Component]) -> str:
    """Return README's table of what there is."""
    kinds = ("head", "login", "compute", "monitoring")
    text = _row("component", *kinds, "if it fails", "variables") + "|---|---|---|---|---|---|---|\n"
    for each in components:
        found = [each.nodes.get(kind, "") for kind in kinds]
        cells = ["yes" if what is True else str(what) for what in found]
        fails = "the node's run ends" if each.essential else "the report says so"
        text += _row(f"`{each.name}`: {_title(each)}", *cells, fails, f"[{each.name}](roles/{each.name}/README.md)")
    return f"\n{text}\n"


def classes(components: Sequence[Component]) -> str:
    """Return the two lists of who is essential and who is not."""
    text = ""
    for word, essential in (("Essential", True), ("Non-essential", False)):
        names = sorted(each.name for each in components if each.essential is essential)
        text += f"- {word} are {', '.join(f'`{name}`' for name in names)}.\n"
    return f"\n{text}\n"


def _port(component: Component, unit: Unit) -> str:
    if not unit.address:
        return unit.port or "none"
    return f"{component.port(unit)}{', on the head node' if unit.where == 'head' else ''}"


def metrics(components: Sequence[Component]) -> str:
    """Return the table of what to look at where metrics are missing."""
    text = _row("metrics", "component (`--tags`)", "unit", "port", "journal", "alert") + "|---|---|---|---|---|---|\n"
    for each in components:
        for unit in (unit for unit in each.units if unit.metrics):
            where = f"`{unit.name}`{', on the head node' if unit.where == 'head' else ''}"
            journal = f"`journalctl -u {unit.service}`"
            text += _row(unit.metrics, f"`{each.name}`", where, _port(each, unit), journal, unit.alert or "none")
    return f"\n{text}\n"


def platforms(components: Sequence[Component]) -> str:
    """Return the table of what each component is on HyperPod."""
    text = _row("component", "ParallelCluster", "HyperPod", "what differs there, and why") + "|---|---|---|---|\n"
    for each in components:
        there = each.platforms.get("hyperpod", Elsewhere())
        text += _row(f"`{each.name}`", "yes", "yes" if there.runs else "no", there.why)
    return f"\n{text}\n"


def _tuple(words: Sequence[str]) -> str:
    return f"({', '.join(json.dumps(word) for word in words)}{',' if len(words) == 1 else ''})"


def software(components: Sequence[Component]) -> str:
    """Return, as Python, what says that a node has a component."""
    text = ""
    for each in (each for each in components if each.packages or each.programs):
        packages, programs = _tuple(each.packages), _tuple(each.programs)
        line = f'    "{each.name}": _Component({packages}, {programs}),\n'
        # Ruff takes a line of 120 characters, and then one for each argument.
        split = f'    "{each.name}": _Component(\n        {packages},\n        {programs},\n    ),\n'
        text += line if len(line) <= 121 else split
    return text


def units(components: Sequence[Component]) -> str:
    """Return what the alert ExporterDown says of the unit behind each job, in the language of Prometheus' templates."""
    text, word = "", "if"
    for each in components:
        for unit in each.units:
            if unit.job and "ExporterDown" in unit.alert:
                what = f"`systemctl status {unit.name}` and `journalctl -u {unit.service}`"
                text += f'            {{{{- {word} eq $unit "{unit.job}" }}}}{what}\n'
                word = "else if"
    return text


PLACES: dict[str, Callable[[Sequence[Component]], str]] = {
    "README.md": overview,
    "docs/pull.md": classes,
    "docs/hyperpod.md": platforms,
    "docs/observability.md": metrics,
    "plugins/module_utils/_node/software.py": software,
    "roles/prometheus/files/rules/node.yml": units,
}


def rendered(root: Path) -> dict[Path, str]:
    """Return what each of the files should say. ValueError says why there is no telling."""
    components = read(root)
    texts = {}
    for name, write in PLACES.items():
        text = (root / name).read_text(encoding="utf-8")
        lines = text.splitlines(keepends=True)
        begins = [number for number, line in enumerate(lines) if BEGIN in line]
        ends = [number for number, line in enumerate(lines) if END in line]
        if len(begins) != 1 or len(ends) != 1 or begins > ends:
            raise ValueError(f"{name}: there is no place for the components; needed: lines with {BEGIN!r} and {END!r}")
        texts[root / name] = "".join([*lines[: begins[0] + 1], write(components), *lines[ends[0] :]])
    return texts
