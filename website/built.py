# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is wrong with a built site: a page asks another machine for a file, or the site does not have what it shows."""

from __future__ import annotations

import re
import urllib.parse
from html.parser import HTMLParser
from pathlib import Path

# What a browser fetches by itself, by element; links that people follow may lead anywhere.
FETCHED = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src", "object": "data"}
_CSS = re.compile(r"url\(\s*['\"]?([^'\")]+)")


class Fetches(HTMLParser):
    """Gathers what a page makes a browser fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if tag == "link" and given.get("rel") == "canonical":
            return
        target = given.get(FETCHED.get(tag, ""))
        if target:
            self.targets.append(target)


def fetched(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".css":
        return _CSS.findall(text)
    page = Fetches()
    page.feed(text)
    return page.targets


def problems(site: Path, base: str = "/") -> list[str]:
    """Return a line for each file that a page of the site, published at a path, fetches from elsewhere, or in vain."""
    found = []
    for page in sorted([*site.rglob("*.html"), *site.rglob("*.css")]):
        for target in dict.fromkeys(fetched(page)):
            parts = urllib.parse.urlsplit(target)
            # 404.html is shown at any address, and so begins its paths with a slash.
            there = (
                site / parts.path.removeprefix(base).lstrip("/") if parts.path[:1] == "/" else page.parent / parts.path
            )
            if parts.scheme == "data":
                continue
            if parts.scheme or parts.netloc:
                found.append(f"{page.relative_to(site)} fetches {target}, which is not the site's")
            elif not there.exists():
                found.append(f"{page.relative_to(site)} fetches {target}, which is missing")
    return found
