#!/usr/bin/env python3
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write the table of all alerts, of the rule files of role prometheus, with the page of each.

scripts/render_role_docs.py calls it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

RULES = "roles/prometheus/files/rules"
PAGE = Path("docs/alerts-table.md")
MARK = "<!-- scripts/render_role_docs.py writes what follows -->"
# Where a page of the repository is on the web, as an annotation has to name it: Prometheus has no variable for it.
WEB = "{repository}/blob/main/"
_YamlLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def alerts(root: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the alerts of each file of rules, in the order of the file."""
    found = {}
    for path in sorted((root / RULES).glob("*.yml")):
        groups = yaml.load(path.read_text(encoding="utf-8"), Loader=_YamlLoader)["groups"]
        found[path.stem] = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    return found


def anchors(text: str) -> dict[str, str]:
    """Return the headings of a page by the anchors that GitHub makes of them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-"): one for one in headings}


def plain(summary: str) -> str:
    """Return a summary as people read it: labels by their names, the value as *n*, and … for a condition or a list."""
    text, depth = "", 0
    for piece in re.split(r"({{.*?}})", summary):
        code = piece.strip("{}- ") if piece.startswith("{{") else ""
        word = code.split()[0] if code else ""
        if word in ("with", "if", "range"):
            text += " …" if not depth and word != "with" else ""
            depth += 1
        elif word == "end":
            depth -= 1
        elif not depth:
            name = word.removeprefix("$labels.").removeprefix("pc_") if word.startswith("$labels.") else "n"
            text += piece if not code else "" if ":=" in code else f"*{name}*"
    return " ".join(text.split()).replace("|", "\\|")


def page(rule: dict[str, Any], root: Path, web: str) -> str:
    """Return the link to an alert's page, by the heading to which it leads. ValueError says what is wrong with it."""
    name, url = rule["alert"], str(rule["annotations"].get("runbook_url", ""))
    path, mark, anchor = url.removeprefix(web).partition("#")
    if not url.startswith(f"{web}docs/") or not (root / path).is_file():
        raise ValueError(
            f"{name}: runbook_url is {url!r}; needed: {web}docs/<a page that is there>#<one of its headings>"
        )
    headings = anchors((root / path).read_text(encoding="utf-8"))
    if not mark:  # the whole page
        return f"[{next(iter(headings.values()))}]({Path(path).relative_to('docs')})"
    if anchor not in headings:
        raise ValueError(f"{name}: {path} has no heading for {anchor!r}; needed: one of {', '.join(headings)}")
    return f"[{headings[anchor]}]({Path(path).relative_to('docs')}#{anchor})"


def rendered(root: Path) -> dict[Path, str]:
    """Return what the page of alerts should say. ValueError says why there is no telling."""
    web = WEB.format(repository=yaml.safe_load((root / "galaxy.yml").read_text(encoding="utf-8"))["repository"])
    before, mark, _table = (root / PAGE).read_text(encoding="utf-8").partition(MARK)
    if not mark:
        raise ValueError(f"{PAGE}: there is no place for the table; needed: the line {MARK!r}")
    text = ""
    for name, rules in alerts(root).items():
        text += f"\n## {name}\n\n| alert | severity | when | for | page |\n|---|---|---|---|---|\n"
        for rule in rules:
            cells = (rule["labels"]["severity"], plain(rule["annotations"]["summary"]), rule.get("for", "at once"))
            text += f"| `{rule['alert']}` | {' | '.join(cells)} | {page(rule, root, web)} |\n"
    return {root / PAGE: f"{before}{mark}\n{text}"}
