# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which pages the site has, where each stands in the navigation, and where a link of one leads.

A page is called by its path in the repository. docs/README.md, the documentation by question, is the navigation: its
sections are the site's, and a page stands in the first section that links to the page.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Union

HOME, QUESTIONS = "README.md", "docs/README.md"
GLOBS = ("*.md", "docs/**/*.md", "roles/*/README.md", "examples/*/README.md", "molecule/cluster/README.md")
PICTURES = ("docs/images/*",)
# What the site lists at one place, with a page that leads to its parts: a playbook's options are its role's.
MODULES, PLAYBOOKS, INVENTORY = "docs/modules.md", "playbooks/README.md", "docs/inventory.md"
PLUGIN = "plugins/inventory/pcluster.md"
COMMON = "roles/common/README.md"  # the variables that all components share
COMPONENTS, REFERENCE = "Components", "Reference"
_MODULE = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")

Entry = Union[str, Mapping[str, Any]]


class PageError(Exception):
    """What is wrong with a page, on one line."""


def written(root: Path) -> list[str]:
    """Return the pages that stand in the repository."""
    return sorted({path.relative_to(root).as_posix() for glob in GLOBS for path in root.glob(glob)})


def pictures(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for glob in PICTURES for path in root.glob(glob))


def public_modules(root: Path) -> list[str]:
    """Return the names of the modules for everybody, as docs/modules.md has them."""
    return _MODULE.findall((root / MODULES).read_text(encoding="utf-8"))


def module_page(name: str) -> str:
    return f"plugins/modules/{name}.md"


def playbooks(root: Path) -> list[str]:
    """Return the names of the playbooks that people run; find_nodes is a part of others."""
    return sorted(path.stem for path in (root / "playbooks").glob("*.yml") if path.stem != "find_nodes")


def address(page: str) -> str:
    """Return where the site has a page: docs/push.md is /push/, roles/nccl/README.md is /roles/nccl/."""
    short = "questions" if page == QUESTIONS else page.removesuffix(".md").removesuffix("README").strip("/")
    for begin, instead in (("docs/", ""), ("plugins/", ""), ("molecule/cluster", "sandbox")):
        short = instead + short.removeprefix(begin) if short.startswith(begin) else short
    return posixpath.join(short.lower(), "index.html")


def title(text: str) -> str:
    """Return a page's title for the navigation: what its heading says before the colon."""
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    return found[1].partition(":")[0].replace("`", "") if found else ""


def links(page: str, text: str) -> Iterator[str]:
    """Yield what a page links to within the repository, by its path there."""
    for target in LINK.findall(text):
        if "://" not in target and not target.startswith(("#", "mailto:")):
            yield posixpath.normpath(posixpath.join(posixpath.dirname(page), target.partition("#")[0]))


def sections(text: str) -> list[tuple[str, str]]:
    """Return the sections of a page with their texts."""
    parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2]))


def is_component(readme: Path) -> bool:
    return readme.with_name("meta").joinpath("component.yml").is_file()


def navigation(root: Path) -> list[dict[str, list[Entry]]]:
    """Return the site's sections with their pages. PageError names what has no place."""
    pages, questions = written(root), (root / QUESTIONS).read_text(encoding="utf-8")
    roles = {page for page in pages if page.startswith("roles/")}
    linked = dict.fromkeys(links(HOME, (root / HOME).read_text(encoding="utf-8")))
    components = [page for page in linked if page in roles and (is_component(root / page) or page == COMMON)]
    placed = {HOME, QUESTIONS, MODULES, INVENTORY, *roles}
    found: list[dict[str, list[Entry]]] = [{"Home": [HOME, QUESTIONS]}]
    for name, text in sections(questions):
        here: list[Entry] = []
        for page in links(QUESTIONS, text):
            if page in pages and page not in placed:
                placed.add(page)
                here.append(page)
        if name == COMPONENTS:
            here += components
        if name == REFERENCE:
            here += [
                {"Playbooks": [PLAYBOOKS, *sorted(roles - set(components))]},
                {"Modules": [MODULES, *(module_page(one) for one in public_modules(root))]},
                {"The inventory": [INVENTORY, PLUGIN]},
            ]
        found.append({name: here})
    missing = [name for name in (COMPONENTS, REFERENCE) if name not in [one for each in found for one in each]]
    if missing:
        raise PageError(f"{QUESTIONS}: there is no section {' and no section '.join(missing)}")
    lost = [page for page in pages if page not in placed]
    if lost:
        raise PageError(f"{QUESTIONS} does not link to {', '.join(lost)}: a page without a place in the navigation")
    return found


def settled(page: str, text: str, site: Sequence[str], root: Path, repository: str) -> str:
    """Let the links of a page lead to pages of the site, and to the repository where the site has no such page."""

    def target(match: re.Match[str]) -> str:
        path, mark, place = match[1].partition("#")
        if "://" in path or not path:
            return match[0]
        there = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
        if (root / there).is_dir() and f"{there}/README.md" in site:
            return f"{path.rstrip('/')}/README.md{mark}{place}"
        if there in site or there.startswith("..") or not (root / there).exists():
            return match[0]  # a page; or a slip, which MkDocs tells
        return f"{repository}/{'tree' if (root / there).is_dir() else 'blob'}/main/{there}{mark}{place}"

    if page == MODULES:
        text = _MODULE.sub(lambda found: f"| [`{found[1]}`](../{module_page(found[1])}) |", text)
    return LINK.sub(target, text)
