# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""GitHub's Markdown, written so that Python-Markdown, which MkDocs uses, reads the same.

Python-Markdown wants four columns for what belongs to an item of a list, an empty line before a list, and no backslash
before a bar within code in a table. A parser of GitHub's Markdown decides what is a list, and counts what a page has.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser

from markdown_it import MarkdownIt
from markdown_it.token import Token

_PARSER = MarkdownIt("commonmark").enable("table")
_MARKER = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+")
_CODE = re.compile(r"`[^`]+`")
_PICTURE = re.compile(r'(<a [^>]*>)?<img [^>]*src="([^"]+)"[^>]*>')
_COUNTED = {
    "list_item_open": "li", "table_open": "table", "th_open": "th", "fence": "pre", "code_block": "pre",
    "code_inline": "code", "strong_open": "strong", "em_open": "em", "image": "img",
}  # fmt: skip


def lists(text: str) -> str:
    """Indent what belongs to items of lists by four columns for each list around it."""
    lines = text.split("\n")
    depth, columns = [0] * len(lines), [0] * len(lines)
    lists_begin, items_begin = set(), set()
    for token in _PARSER.parse(text):
        if token.type in ("bullet_list_open", "ordered_list_open") and token.map:
            lists_begin.add(token.map[0])
        if token.type == "list_item_open" and token.map:
            start, end = token.map
            items_begin.add(start)
            marker = _MARKER.match(lines[start])
            for number in range(start, end):
                depth[number] += 1
                columns[number] = marker.end() if marker else 0
    made: list[str] = []
    for number, line in enumerate(lines):
        inner = line[columns[number] :] if not line[: columns[number]].strip() else line.lstrip()
        if not depth[number] or not line.strip():
            made.append(line)
        elif number not in items_begin:
            made.append("    " * depth[number] + inner)
        else:
            if number in lists_begin and depth[number] == 1 and made and made[-1].strip():
                made.append("")
            made.append("    " * (depth[number] - 1) + line.lstrip())
    return "\n".join(made)


def rows(text: str) -> str:
    """Let bars within code in tables stand for themselves."""
    return "\n".join(
        _CODE.sub(lambda code: code[0].replace("\\|", "|"), line) if line.startswith("|") else line
        for line in text.split("\n")
    )


def translated(text: str) -> str:
    return rows(lists(text))


# Whether both read the same


def _tokens(tokens: Sequence[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from _tokens(token.children or [])


class _Shown(HTMLParser):
    """Counts the elements of a page, without those by which code is coloured."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.block = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] += not self.block
        self.block = self.block or tag == "pre"

    def handle_endtag(self, tag: str) -> None:
        self.block = self.block and tag != "pre"


def differences(text: str, html: str) -> list[str]:
    """Return a line for each element of which a page has more, or less, on the site than on GitHub."""
    wanted: Counter[str] = Counter()
    for token in _tokens(_PARSER.parse(text)):
        wanted[_COUNTED.get(token.type, token.type)] += 1
        if token.type in ("html_block", "html_inline"):
            wanted.update(re.findall(r"<(\w+)", token.content))
    shown = _Shown()
    shown.feed(html)
    return [
        f"{wanted[tag]} <{tag}> on GitHub, {shown.counts[tag]} here"
        for tag in dict.fromkeys(_COUNTED.values())
        if wanted[tag] != shown.counts[tag]
    ]


# What a narrow page needs


def labelled(html: str) -> str:
    """Give each cell of a table of three and more columns the head of its column, which a phone shows beside the cell;
    a picture leads to itself, to be enlarged."""

    def row(found: re.Match[str], heads: Sequence[str]) -> str:
        rest = iter(heads)
        return re.sub(r"<td\b", lambda _cell: f'<td data-head="{next(rest)}"', found[0])

    def table(found: re.Match[str]) -> str:
        heads = [re.sub(r"<[^>]+>", "", head) for head in re.findall(r"<th[^>]*>(.*?)</th>", found[0], re.DOTALL)]
        if len(heads) < 3:
            return found[0]
        return re.sub(r"<tr>.*?</tr>", lambda one: row(one, heads), found[0], flags=re.DOTALL)

    html = re.sub(r"<table>.*?</table>", table, html, flags=re.DOTALL)
    return _PICTURE.sub(lambda found: found[0] if found[1] else f'<a href="{found[2]}">{found[0]}</a>', html)
