# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The one reader of JSON, and of numbers in texts: a reader gets a value that it can work with, or a ValueError."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from ansible_collections.pcluster.postboot.plugins.module_utils._host import files

LARGEST = 64 << 20  # bytes of a file
ANY = "*"  # in a shape: every other key of an object
DEEPEST = 64  # levels of lists and objects, far below the depth at which Python gives up
_NOTHING: Any = object()
_DIGITS = re.compile(r"[0-9]{1,18}")


def parse(text: str | bytes) -> Any:
    """Return what a JSON text means. ValueError says what is wrong with it, on one line.

    json.loads() alone raises RecursionError for deep nesting, and returns numbers that int() and float() refuse later.
    """
    try:
        found = json.loads(text, parse_int=_whole, parse_float=_finite, parse_constant=_refused)
    except RecursionError:
        raise ValueError(f"it has more than {DEEPEST} levels of lists and objects") from None
    level = [found]
    for _depth in range(DEEPEST):
        level = [inner for outer in level for inner in _inner(outer) if isinstance(inner, (dict, list))]
        if not level:
            return found
    raise ValueError(f"it has more than {DEEPEST} levels of lists and objects")


def read(path: str) -> Any:
    """Return what a JSON file means; an OSError or a ValueError where it cannot be read, or is no regular file."""
    with files.open_regular(path, follow=True) as stream:
        text = stream.read(LARGEST + 1)
    if len(text) > LARGEST:
        raise ValueError(f"it is larger than {LARGEST >> 20} MiB")
    return parse(text)


def whole(text: str) -> int | None:
    """Return the number that a text is, if it is one: isdigit() takes `²` too, and int() no more than 4300 digits."""
    return int(text) if _DIGITS.fullmatch(text) else None


def fitted(value: Any, shape: Any) -> Any:
    """Return the part of a value that has the shape: a value of another kind gives an empty object or list, or None.

    A shape is the type of a value (`object` takes all), a list with the shape of the items, or an object with the shape
    of each key, of which the key ANY has that of all others. Keys and items that do not fit are left out.
    """
    found = _fitted(value, shape)
    return found if found is not _NOTHING else type(shape)() if isinstance(shape, (dict, list)) else None


def _fitted(value: Any, shape: Any) -> Any:
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return _NOTHING
        pairs = {key: _fitted(inner, shape.get(key, shape.get(ANY))) for key, inner in value.items()}
        return {key: inner for key, inner in pairs.items() if inner is not _NOTHING}
    if isinstance(shape, list):
        items = [_fitted(inner, shape[0]) for inner in value] if isinstance(value, list) else _NOTHING
        return items if items is _NOTHING else [inner for inner in items if inner is not _NOTHING]
    if isinstance(value, bool) and shape in (int, float):
        return _NOTHING
    kinds = (int, float) if shape is float else shape
    return value if kinds and isinstance(value, kinds) else _NOTHING


def _inner(outer: Any) -> Any:
    return outer.values() if isinstance(outer, dict) else outer if isinstance(outer, list) else ()


def _whole(digits: str) -> int:
    _finite(digits)
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _refused(digits)


def _refused(word: str) -> NoReturn:
    raise ValueError(f"{word[:20]} is no number that can be worked with")
