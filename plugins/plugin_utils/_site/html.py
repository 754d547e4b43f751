# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The one way to make a page: what nodes and users wrote is escaped, and shows what a browser would obey."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from ansible_collections.pcluster.postboot.plugins.module_utils._host.text import visible_lines


def engine(folder: Path) -> jinja2.Environment:
    """Return what renders the templates of a folder."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _shown(value: Any) -> Any:
    """Return a value as it may stand on a page. Markup comes from the template, whose own values were shown before."""
    return visible_lines(value) if isinstance(value, str) and not isinstance(value, Markup) else value
