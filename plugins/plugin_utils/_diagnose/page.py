# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The archive's first page, as HTML that needs nothing else and as text: what stands out, where it stands, what to do.

page.html.j2 has the words and the looks.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose.evidence import CAUSE, FAULT, NOTE
from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose.sources import NEVER
from ansible_collections.pcluster.postboot.plugins.module_utils._host.text import visible
from ansible_collections.pcluster.postboot.plugins.module_utils._slurm.names import natural, shown
from ansible_collections.pcluster.postboot.plugins.plugin_utils._diagnose.model import ANSWERED, Group, Node, groups
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import html as site_html

RUNBOOKS = "https://github.com/pcluster/postboot/blob/main/docs/runbooks"
TITLES = {CAUSE: "Why something does not work", FAULT: "What does not work", NOTE: "Worth knowing"}
_MOST_LISTED = 20  # nodes whose files are listed on the page
_WIDTH = 100


class Run(NamedTuple):
    """What the page says of the run itself."""

    cluster: str
    when: str
    limits: str
    notes: Sequence[str] = ()  # of AWS


def html(run: Run, nodes: Sequence[Node]) -> str:
    return site_html.engine(Path(__file__).parent).get_template("page.html.j2").render(_words(run, nodes))


def text(run: Run, nodes: Sequence[Node]) -> str:
    """Return the same without the lists of files."""
    words = _words(run, nodes)
    lines = [f"{run.cluster or 'Nodes'}, {run.when}", words["verdict"], ""]
    number = 0
    for level, found in words["levels"].items():
        lines += [TITLES[level], "-" * len(TITLES[level])]
        for group in found:
            number += 1
            one = group.finding
            head = f"{number}. {_where(group)}: {one.what}"
            lines += textwrap.wrap(head, _WIDTH, subsequent_indent="   ")
            lines += textwrap.wrap(f"evidence: {one.line}", _WIDTH, initial_indent="   ", subsequent_indent="     ")
            lines += [f"   file:     {group.file}"] if group.file else []
            lines += textwrap.wrap(f"to do:    {one.todo}", _WIDTH, initial_indent="   ", subsequent_indent="     ")
            lines += [f"   runbook:  docs/runbooks/{one.page}.md", ""]
    lines += ["Nodes", "-----"]
    lines += [f"{node.slurm}: {node.state}, {_kind(node)}" for node in words["nodes"]]
    lines += ["", "What was redacted", "-----------------", *(words["redacted"] or ["no secret was found"])]
    lines += ["", "What was left out", "-----------------", *words["left"], run.limits, *run.notes]
    return "".join(f"{visible(line)}\n" for line in lines)


def _words(run: Run, nodes: Sequence[Node]) -> dict[str, Any]:
    found = groups(nodes)
    levels = {level: [group for group in found if group.finding.level == level] for level in (CAUSE, FAULT, NOTE)}
    ordered = sorted(nodes, key=lambda node: natural(node.slurm))
    counts = Counter[str]()
    for node in nodes:
        counts.update(node.redacted)
    left = [f"never gathered: {one}" for one in NEVER]
    for node in ordered[:_MOST_LISTED]:
        left += [f"{node.slurm}: {one}" for one in node.left[:10]]
    return {
        "run": run,
        "verdict": _verdict(levels, nodes),
        "levels": {level: group for level, group in levels.items() if group},
        "titles": TITLES,
        "where": _where,
        "kind": _kind,
        "href": lambda path: quote(path, errors="replace"),
        "runbooks": RUNBOOKS,
        "nodes": ordered,
        "listed": [node for node in ordered[:_MOST_LISTED] if node.files],
        "redacted": [f"{kind}: {count}" for kind, count in sorted(counts.items())],
        "left": left,
    }


def _verdict(levels: dict[str, list[Group]], nodes: Sequence[Node]) -> str:
    answered = sum(node.state == ANSWERED for node in nodes)
    said = f"{answered} of {len(nodes)} nodes answered."
    if levels[CAUSE]:
        first = levels[CAUSE][0]
        return f"{said} First look at: {_where(first)}: {first.finding.what}."
    if levels[FAULT]:
        first = levels[FAULT][0]
        return f"{said} No cause was found; look at: {_where(first)}: {first.finding.what}."
    return f"{said} Nothing stands out."


def _where(group: Group) -> str:
    return shown(node.slurm for node in group.nodes)


def _kind(node: Node) -> str:
    told = [node.who.get("node_type"), node.who.get("instance_id"), node.who.get("bundle") and "bundle"]
    return " ".join(str(one) for one in (*told, node.who.get("bundle")) if one) or "nothing is known of it"
