# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Input that a reader does not expect, made of input that it does: JSON of other shapes, and text with odd words."""

from __future__ import annotations

import contextlib
import json
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st

# JSON as others may write it, each piece as it stands in the file.
ODD_JSON = (
    *("null", "true", "0", "-1", "1.5", '""', '" "', "[]", "{}", "[null]", '["x"]', '{"x": null}', '[["x"]]', "[{}]"),
    *('"²"', '"٣"', '"nan"', '"1e999"', '"\\ud800"', '"\\u0000"', '"a\\nb"', '"\\u001b[2J"', '"../../etc"'),
    *("NaN", "1e999", "-1e999", "1" * 400, "-" + "9" * 400, f'"{"1" * 400}"', "1" * 5000, f'"{"1" * 5000}"'),
    *("[" * 90 + "]" * 90, "[" * 50000 + "]" * 50000, '{"a":' * 700 + "1" + "}" * 700, f'"{"x" * 5000}"'),
)
# Words of text. Python's isdigit() takes ² and ٣, of which int() takes the second alone, and no more than 4300 digits.
ODD_WORDS = (
    *("", "-", "0", "-1", "²", "٣", "1²", "1" * 400, "9" * 5000, "1e999", "nan", "inf", "0x", "(null)", "null", "NONE"),
    *("=", ":", ",", "[", "]", "[1-", "[1-99999999999]", "(", ")", "{", "}", '"', "'", "\\", "\\777", "%", "{}", "%s"),
    *("\0", "\x1b[2J", "\r", "\x0b", "\x85", "\u2028", "\ud800", "\udcff", "ſ", "K", "../..", "x" * 2000, " " * 200),
)
_JUNK = st.text(alphabet="\0\t\n\r \"#%&'()*,-./0123456789:;<=>@[\\]^_`aIxZ{|}~²٣\x85\u2028\ud800", max_size=30)


class Reader(NamedTuple):
    """A reader of foreign input."""

    name: str
    read: Callable[[Path, bytes], object]  # in an empty folder
    sample: Any  # what it reads well: text, or what JSON means
    # What it refuses with. Its caller makes one line of these, and of nothing else.
    refusals: tuple[type[Exception], ...] = ()

    def check(self, folder: Path, content: bytes) -> None:
        """Read the content. An error that is none of the refusals is raised."""
        with contextlib.suppress(*self.refusals):
            self.read(folder, content)


def complaints(reader: Reader, folder: Path, contents: Iterable[bytes]) -> list[str]:
    """Return what the reader raises that it should not, each error once with the first content that leads to it."""
    found: dict[str, bytes] = {}
    for content in contents:
        try:
            reader.check(folder, content)
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(frame.filename).name}:{frame.lineno}"
            found.setdefault(f"{where}: {type(error).__name__}: {str(error)[:100]}", content)
    return [f"{error}: {content[:300]!r}" for error, content in found.items()]


def encoded(text: str) -> bytes:
    """Return text as bytes: what is no character becomes bytes that are no UTF-8."""
    return text.encode("utf-8", "surrogatepass")


# --- JSON --------------------------------------------------------------------------------------------------------


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from _places(one, (*path, key))


def _put(value: Any, path: tuple[Any, ...], odd: str) -> Any:
    """Return a copy with a mark at a place, in whose place the piece of JSON is written."""
    if not path:
        return f"@{odd}@"
    if isinstance(value, dict):
        return {key: _put(one, path[1:], odd) if key == path[0] else one for key, one in value.items()}
    return [_put(one, path[1:], odd) if index == path[0] else one for index, one in enumerate(value)]


def _without(value: Any, path: tuple[Any, ...]) -> Any:
    if isinstance(value, dict):
        return {k: _without(one, path[1:]) if k == path[0] else one for k, one in value.items() if path != (k,)}
    return [_without(one, path[1:]) if i == path[0] else one for i, one in enumerate(value) if path != (i,)]


def _written(value: Any, odd: dict[str, str]) -> bytes:
    text = json.dumps(value, ensure_ascii=False)
    for mark, piece in odd.items():
        text = text.replace(f'"@{mark}@"', piece)
    return encoded(text)


def odd_documents(sample: Any) -> Iterator[bytes]:
    """Yield the sample with each piece of odd JSON at each of its places, and without each of its parts."""
    places = list(_places(sample))
    for path in places:
        marked = _put(sample, path, "0")
        yield from (_written(marked, {"0": piece}) for piece in ODD_JSON)
    yield from (_written(_without(sample, path), {}) for path in places if path)


def documents(sample: Any) -> st.SearchStrategy[bytes]:
    """Return documents like the sample: several odd pieces, cut off, with bytes among them, or a key twice."""
    places = list(_places(sample))
    scalar = st.none() | st.booleans() | st.integers() | st.floats() | _JUNK
    piece = st.sampled_from(ODD_JSON) | st.recursive(
        scalar, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_JUNK, inner, max_size=3), max_leaves=6
    ).map(json.dumps)

    @st.composite
    def mutated(draw: st.DrawFn) -> bytes:
        value, odd = sample, {}
        for number in range(draw(st.integers(1, 3))):
            path = draw(st.sampled_from(places))
            if list(_places(value)).count(path):
                value = _put(value, path, str(number))
                odd[str(number)] = draw(piece)
        return _written(value, odd)

    whole = json.dumps(sample)
    cut = st.integers(0, len(whole)).map(lambda end: whole[:end].encode())
    twice = piece.map(lambda odd: whole.replace("{", f'{{"": {odd}, ', 1).replace("}", f', "": {odd}}}', 1).encode())
    return st.one_of(mutated(), cut, twice, _with_bytes(whole.encode()), st.binary(max_size=40))


# --- text --------------------------------------------------------------------------------------------------------


def _words(sample: str) -> list[str]:
    return re.split(r"([^\w.-])", sample)


def odd_texts(sample: str) -> Iterator[bytes]:
    """Yield the sample with each odd word in the place of, and after, each of its words and signs."""
    words = _words(sample)
    for index in range(len(words)):
        before, after = "".join(words[:index]), "".join(words[index + 1 :])
        for odd in ODD_WORDS:
            yield encoded(before + odd + after)
            yield encoded(before + words[index] + odd + after)


def texts(sample: str) -> st.SearchStrategy[bytes]:
    """Return texts like the sample: several odd words, lines in another order, cut off, or with bytes among them."""
    words, lines = _words(sample), sample.splitlines(keepends=True) or [""]
    odd = st.sampled_from(ODD_WORDS) | _JUNK

    @st.composite
    def mutated(draw: st.DrawFn) -> bytes:
        some = list(words)
        for _number in range(draw(st.integers(1, 4))):
            some[draw(st.integers(0, len(some) - 1))] = draw(odd)
        return encoded("".join(some))

    shuffled = st.lists(st.sampled_from(lines) | _JUNK, max_size=len(lines) + 3).map("".join).map(encoded)
    cut = st.integers(0, len(sample)).map(lambda end: encoded(sample[:end]))
    return st.one_of(mutated(), shuffled, cut, _with_bytes(encoded(sample)), st.binary(max_size=40))


@st.composite
def _with_bytes(draw: st.DrawFn, whole: bytes) -> bytes:
    at = draw(st.integers(0, len(whole)))
    return whole[:at] + draw(st.binary(max_size=6)) + whole[at + draw(st.integers(0, 6)) :]
