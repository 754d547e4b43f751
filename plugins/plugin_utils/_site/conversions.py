# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which values Ansible would convert into what was meant. Roles read variables as they are, and convert scalars alone.

Values of `-e name=value` and of an inventory in INI form are text. A boolean or a number as text is certain, and roles
convert it where they read it. A list as text is not: a role would go through its letters.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import yaml
from ansible.module_utils.common.validation import check_type_dict

_STRUCTURES: dict[str, type] = {"list": list, "dict": dict}


def is_text_for_more(value: Any, option: Mapping[str, Any]) -> bool:
    return isinstance(value, str) and option.get("type") in _STRUCTURES


def certain(value: Any, option: Mapping[str, Any], booleans: bool = False) -> bool:
    """Say whether a value of another type than the option's means one thing. `booleans` accepts them for a string."""
    kind = str(option.get("type", "str"))
    text = str(value).strip()
    if kind == "list":
        elements = {"type": option.get("elements", "raw")}
        if isinstance(value, (list, tuple)):
            return all(part is not None and certain(part, elements, booleans) for part in value)
        # Ansible splits at each comma, and keeps blanks and brackets (validation.py, check_type_list).
        return not text.startswith("[") and all(part and part == part.strip() for part in str(value).split(","))
    if kind in ("str", "path") and not option.get("choices"):
        # YAML reads 4.10 as 4.1.
        rounded = isinstance(value, float) and bool(re.fullmatch(r"-?\d+\.\d", text))
        return not (rounded or isinstance(value, (list, tuple, Mapping)) or (isinstance(value, bool) and not booleans))
    if kind == "int":
        return not isinstance(value, bool) and bool(re.fullmatch(r"[+-]?\d+", text, re.ASCII))
    if kind == "float":
        return not isinstance(value, bool) and _finite(text)
    return True


def _finite(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def written(name: str, text: str, kind: str) -> str:
    """Return how to write a list or a dictionary that was given as text; a key within a variable has no -e."""
    value: Any = None
    try:
        if text.lstrip().startswith(("[", "{")):
            value = yaml.safe_load(text)
        elif kind == "dict":
            value = check_type_dict(text)
    except (yaml.YAMLError, TypeError, ValueError):
        pass  # then an example has to do
    if not isinstance(value, _STRUCTURES[kind]):
        value = [part.strip() for part in text.split(",") if part.strip()] if kind == "list" else {"key": "value"}
    return f"-e '{json.dumps({name: value})}'" if name.isidentifier() else json.dumps(value)
