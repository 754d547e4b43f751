# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Text that others wrote, made safe to print."""

from __future__ import annotations


# A copy of visible() of module_utils/_host/text.py, which is not there where this runs; a unit test compares both.
def visible(line: str) -> str:
    """Return one line with each character that a terminal or browser obeys written out, as in \\x1b[2J or \\u202e.

    These are control characters (C0, DEL and C1, so line breaks too), separators of lines and paragraphs, overrides of
    the writing direction and other characters of no width.
    """
    if line.isprintable():
        return line
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in line)
