# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The pages that stand nowhere in the repository: those of modules and plugins, as ansible-doc tells them, and a table
of the playbooks."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pages

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
from render_role_docs import default, kind, prose

COLLECTION = "pcluster.postboot"


def told(kind_of_plugin: str, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return what ansible-doc knows of plugins of this collection, by their short names."""
    full = [f"{COLLECTION}.{name}" for name in names]
    run = subprocess.run(
        ["ansible-doc", "--json", "--type", kind_of_plugin, *full], check=True, capture_output=True, text=True
    )
    return {name.removeprefix(f"{COLLECTION}."): one for name, one in json.loads(run.stdout).items()}


def paragraphs(text: Any) -> str:
    return "\n\n".join(prose(part) for part in ([text] if isinstance(text, str) else text or []))


def option_rows(options: Mapping[str, Mapping[str, Any]], above: str = "") -> Iterator[str]:
    """Yield the rows of a table of options: those that are required first, then by name."""
    for name, option in sorted(options.items(), key=lambda one: (not one[1].get("required"), one[0])):
        what = prose(option.get("description", ""))
        if option.get("choices"):
            what += " One of " + ", ".join(f"`{choice}`" for choice in option["choices"]) + "."
        if option.get("aliases"):
            what += " Also " + ", ".join(f"`{alias}`" for alias in option["aliases"]) + "."
        if option.get("env"):
            what += " Or, in the environment, " + ", ".join(f"`{one['name']}`" for one in option["env"]) + "."
        need = "required" if option.get("required") else default(option["default"]) if "default" in option else ""
        yield f"| `{above}{name}` | {kind(option)} | {need} | {what} |"
        many = "[]." if option.get("type") == "list" else "."
        yield from option_rows(option.get("suboptions") or {}, f"{above}{name}{many}")


def return_rows(values: Mapping[str, Mapping[str, Any]], above: str = "") -> Iterator[str]:
    for name, value in values.items():
        yield (
            f"| `{above}{name}` | {kind(value)} | {prose(value.get('returned', ''))} "
            f"| {prose(value.get('description', ''))} |"
        )
        many = "[]." if value.get("type") == "list" else "."
        yield from return_rows(value.get("contains") or {}, f"{above}{name}{many}")


def table(*heads: str, rows: Iterator[str]) -> str:
    return "\n".join([f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *rows])


def page(name: str, of: Mapping[str, Any], purpose: str) -> str:
    """Return the page of a module or a plugin."""
    doc = of["doc"]
    attributes = (
        f"| `{one}` | {says['support']} | {prose(says.get('description', ''))} {prose(says.get('details', ''))} |"
        for one, says in (doc.get("attributes") or {}).items()
    )
    parts = {
        "": f"# {name}\n\n**{prose(doc['short_description'])}**: {purpose} `{COLLECTION}.{name}`, "
        f"since version {doc.get('version_added', '0.1.0')} of the collection.",
        "What it does": paragraphs(doc["description"]),
        "Options": table("option", "type", "default", "what it is", rows=option_rows(doc.get("options") or {})),
        "Attributes": table("attribute", "support", "what it means", rows=attributes) if "attributes" in doc else "",
        "Notes": "\n".join(f"- {prose(note)}" for note in doc.get("notes") or []),
        "Examples": f"```yaml\n{(of.get('examples') or '').strip()}\n```" if of.get("examples") else "",
        "What it returns": table("key", "type", "returned", "what it is", rows=return_rows(of.get("return") or {}))
        if of.get("return")
        else "",
    }
    return "\n\n".join(f"## {head}\n\n{text}" if head else text for head, text in parts.items() if text) + "\n"


def playbook(path: Path) -> str:
    """Return what a playbook says of itself: the comment at its beginning, but for where its options are."""
    comment = re.match(r"---\n((?:#.*\n)+)", path.read_text(encoding="utf-8"))
    words = " ".join(line.lstrip("# ") for line in (comment[1] if comment else "").splitlines())
    return " ".join(part for part in re.split(r"(?<=\.) ", words) if "README.md" not in part)


def playbooks(root: Path, names: Sequence[str]) -> str:
    """Return the page of the playbooks."""

    def rows() -> Iterator[str]:
        for name in ["site", *(one for one in names if one != "site")]:
            has_role = (root / "roles" / name).is_dir()
            options = (
                f"[{name}](../roles/{name}/README.md)" if has_role else "[the components](../README.md#components)"
            )
            yield f"| [`{name}`]({name}.yml) | {playbook(root / f'playbooks/{name}.yml')} | {options} |"

    return (
        f"# Playbooks\n\nA playbook is run by its full name, such as `ansible-playbook {COLLECTION}.site`.\n\n"
        + table("playbook", "what it does", "options", rows=rows())
        + "\n"
    )


def written(root: Path) -> dict[str, str]:
    """Return the pages that the repository does not have, by their paths."""
    names = pages.public_modules(root)
    modules, inventory = told("module", names), told("inventory", ["pcluster"])
    return {
        pages.PLAYBOOKS: playbooks(root, pages.playbooks(root)),
        pages.PLUGIN: page("pcluster", inventory["pcluster"], "the inventory plugin"),
        **{pages.module_page(name): page(name, modules[name], "the module") for name in names},
    }
