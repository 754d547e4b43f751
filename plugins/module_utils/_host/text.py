# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Text that others wrote, made safe to print: nodes, users and tags choose parts of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def visible(line: str) -> str:
    """Return one line with each character that a terminal or browser obeys written out, as in \\x1b[2J or \\u202e.

    These are control characters (C0, DEL and C1, so line breaks too), separators of lines and paragraphs, overrides of
    the writing direction and other characters of no width.
    """
    if line.isprintable():
        return line
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in line)


def visible_lines(text: str) -> str:
    """Return a text whose line feeds and tabs are meant, with all else that is not printable written out."""
    return "\n".join(map(visible, text.expandtabs().split("\n")))


def all_visible(value: Any) -> Any:
    """Return data as JSON has it, with texts that are safe to print and keep their line feeds."""
    if isinstance(value, str):
        return visible_lines(value)
    if isinstance(value, Mapping):
        return {all_visible(name): all_visible(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [all_visible(one) for one in value]
    return value
