# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What MkDocs calls: pages come from where the repository has them, and their navigation from pages.py."""

from __future__ import annotations

import logging
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import built
import dialect
import pages
import reference
import yaml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import Abort
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))["repository"]
LOG = logging.getLogger("mkdocs.hooks.website")
TEXTS: dict[str, str] = {}  # each page of the site, by its path


def titled(entries: Sequence[pages.Entry]) -> list[Any]:
    """Return a navigation as MkDocs wants it, with a short title for each page."""
    return [
        {pages.title(TEXTS[entry]): entry} if isinstance(entry, str) else {k: titled(v) for k, v in entry.items()}
        for entry in entries
    ]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    try:
        navigation = pages.navigation(ROOT)
    except pages.PageError as error:
        raise Abort(str(error)) from error
    TEXTS.update({page: (ROOT / page).read_text(encoding="utf-8") for page in pages.written(ROOT)})
    TEXTS.update(reference.written(ROOT))
    config.nav = titled(navigation)
    config.extra["social"] = [{"icon": "fontawesome/brands/github", "link": REPOSITORY, "name": "The repository"}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pictures = pages.pictures(ROOT)
    for page, text in TEXTS.items():
        settled = pages.settled(page, text, [*TEXTS, *pictures], ROOT, REPOSITORY)
        file = File.generated(config, page, content=dialect.translated(settled))
        file.dest_uri = pages.address(page)
        files.append(file)
    for picture in pictures:
        files.append(File.generated(config, picture, abs_src_path=str(ROOT / picture)))
    return files


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    for difference in dialect.differences(TEXTS[page.file.src_uri], html):
        LOG.warning("%s: %s", page.file.src_uri, difference)
    shown: str = dialect.labelled(html)
    return shown


def on_post_build(config: MkDocsConfig) -> None:
    for problem in built.problems(Path(config.site_dir), urllib.parse.urlsplit(config.site_url or "").path):
        LOG.warning(problem)
