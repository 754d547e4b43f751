#!/usr/bin/env python3
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write the variable table of each role's README.md from its argument specification and its defaults."""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import render_advisories
import render_alerts
import render_compatibility
import render_components
import render_gpu_messages

from plugins.plugin_utils._site.components import load

MARK = "<!-- scripts/render_role_docs.py writes what follows -->"
_MACRO = re.compile(r"\b(RV|[CVOMRIBPE])\(([^()]*)\)")


def prose(text: Any) -> str:
    """Turn a description, with Ansible's markup, into one line of Markdown."""
    joined = " ".join(str(part) for part in text) if isinstance(text, list) else str(text)
    plain = _MACRO.sub(
        lambda match: f"`{match[2]}`" if match[1] in ("C", "V", "O", "M", "P", "E", "RV") else match[2], joined
    )
    return " ".join(plain.split()).replace("|", "\\|")


def kind(option: Mapping[str, Any]) -> str:
    text = str(option.get("type", "str"))
    return f"{text} of {option['elements']}" if option.get("elements") else text


def default(value: Any) -> str:
    """Write a default; one that is computed or long is only named so."""
    if isinstance(value, str) and ("{{" in value or "{%" in value):
        return "computed"
    text = json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value or '""'
    if len(text) > 60:
        return "see `defaults/main.yml`"
    return "`" + text.replace("|", "\\|") + "`"


def table(options: Mapping[str, Mapping[str, Any]], defaults: Mapping[str, Any]) -> str:
    """Return the table of a role's variables, in the order of its defaults."""
    lines = ["| variable | type | default | what it is |", "|---|---|---|---|"]
    for name in [*defaults, *(name for name in options if name not in defaults)]:
        option = options.get(name, {})
        what = prose(option.get("description", ""))
        if option.get("choices"):
            what += " One of " + ", ".join(f"`{choice}`" for choice in option["choices"]) + "."
        lines.append(f"| `{name}` | {kind(option)} | {default(defaults.get(name))} | {what} |")
        entry = f"{name}[]" if option.get("type") == "list" else name
        for inner, suboption in (option.get("options") or {}).items():
            need = "required" if suboption.get("required") else default(suboption.get("default"))
            lines.append(
                f"| `{entry}.{inner}` | {kind(suboption)} | {need} | {prose(suboption.get('description', ''))} |"
            )
    return "\n".join(lines)


def rendered(role: Path) -> str:
    """Return what the role's README.md should say. ValueError says why there is no telling."""
    readme = role / "README.md"
    text = readme.read_text(encoding="utf-8") if readme.is_file() else f"# {role.name}\n\n{MARK}\n"
    before, mark, _table = text.partition(MARK)
    if not mark:
        raise ValueError(f"{readme}: there is no place for the table; needed: the line {MARK!r}")
    options = load(role / "meta/argument_specs.yml")["argument_specs"]["main"].get("options") or {}
    return f"{before}{mark}\n{table(options, load(role / 'defaults/main.yml'))}\n"


def settle(path: Path, wanted: str, check: bool) -> bool:
    """Write a file that differs from what it should be; in a check, show how, and return whether it differs."""
    found = path.read_text(encoding="utf-8") if path.is_file() else ""
    if found == wanted:
        return False
    if not check:
        path.write_text(wanted, encoding="utf-8")
        print(f"{path} written")
        return False
    print(f"{path} is out of date: run scripts/render_role_docs.py", file=sys.stderr)
    sys.stderr.writelines(difflib.unified_diff(found.splitlines(True), wanted.splitlines(True), n=0))
    return True


def main(arguments: list[str] | None = None) -> int:
    """Write the tables, or say which are not up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, and fail when a table is out of date")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], help="the checkout")
    parser.add_argument("roles", nargs="*", help="the roles to look at; by default all, the components and the alerts")
    options = parser.parse_args(arguments)
    failed = False
    for role in sorted((options.root / "roles").iterdir()):
        if (options.roles and role.name not in options.roles) or not (role / "meta/argument_specs.yml").is_file():
            continue
        try:
            failed |= settle(role / "README.md", rendered(role), options.check)
        except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
            print(f"{role.name}: {error}", file=sys.stderr)
            failed = True
    if not options.roles:
        for source, render in (
            ("meta/component.yml", render_components),
            (render_alerts.RULES, render_alerts),
            (render_advisories.SOURCE, render_advisories),
            (f"{render_gpu_messages.XIDS}, {render_gpu_messages.SXIDS}", render_gpu_messages),
            ("meta/supported.yml, meta/deprecations.yml", render_compatibility),
        ):
            try:
                for path, wanted in render.rendered(options.root).items():
                    failed |= settle(path, wanted, options.check)
            except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
                print(f"{source}: {error}", file=sys.stderr)
                failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
