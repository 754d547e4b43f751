#!/usr/bin/env python3
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write the table of docs/advisories.md, of plugins/plugin_utils/_site/advisories.yml.

scripts/render_role_docs.py calls it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from plugins.plugin_utils._site.advisories import ANSWERS, PAGE, Advisory, read

SOURCE = "plugins/plugin_utils/_site/advisories.yml"
MARK = "<!-- scripts/render_role_docs.py writes what follows -->"
ANSWER = {
    "replaced": "an older version is replaced",
    "pinned": "the role's own version has the fix",
    "told": "the report tells",
    "outside": "not concerned",
}


def _source(url: str) -> str:
    return f"[{urlsplit(url).hostname}]({url})"


def _row(advisory: Advisory) -> str:
    cells = [
        ", ".join(advisory.ids),
        f"`{advisory.component}`",
        advisory.published,
        advisory.what,
        advisory.affected,
        ", ".join(advisory.fixed) or "none known",
        f"{ANSWER[advisory.answer]}. {advisory.here}",
        " ".join(_source(url) for url in advisory.sources),
    ]
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |\n"


def rendered(root: Path) -> dict[Path, str]:
    """Return what the page should say. ValueError says why there is no telling."""
    checked, advisories = read(root / SOURCE)
    strange = [each.answer for each in advisories if each.answer not in ANSWERS]
    if strange:
        raise ValueError(f"answer is {strange[0]!r}; needed: one of {', '.join(ANSWERS)}")
    before, mark, _table = (root / PAGE).read_text(encoding="utf-8").partition(MARK)
    if not mark:
        raise ValueError(f"{PAGE}: there is no place for the table; needed: the line {MARK!r}")
    text = f"\nAll sources were last looked at on {checked}.\n\n"
    text += "| advisory | component | published | what may happen | affected | fixed in | here | sources |\n"
    text += "|---|---|---|---|---|---|---|---|\n"
    return {root / PAGE: f"{before}{mark}\n{text}{''.join(_row(each) for each in advisories)}"}
