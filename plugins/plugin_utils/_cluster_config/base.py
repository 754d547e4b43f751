# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The user's own configuration, to which variables add."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config.cluster import PREFIX
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_file import document, rules

_BASE, _FILE = f"{PREFIX}base", f"{PREFIX}file"
# What a template for envsubst, or one with placeholders, has where a value is missing. Arguments of scripts are left
# alone, because a shell may expand them.
_MISSING = re.compile(r"PLACEHOLDER_[A-Z0-9_]+|\$\{[A-Z][A-Z0-9_]*\}|\$[A-Z][A-Z0-9_]+")


def read(path: str) -> dict[str, Any]:
    """Return a configuration in which the parts that variables add to are what they have to be."""
    found = document.load(_BASE, path)
    missing = list(dict.fromkeys(name for text in _texts(found) for name in _MISSING.findall(text)))
    if missing:
        raise Problem(
            f"{_BASE}: {path} has {', '.join(missing)}; needed: values, as after envsubst, or no such keys at all"
        )
    document.check(_BASE, path, found, rules.WHOLE)
    return found


def former(path: str) -> dict[str, Any]:
    """Return the configuration of the cluster that is to be updated, which may have been edited since."""
    found = document.load(_FILE, path)
    document.check(_FILE, path, found, rules.WHOLE)
    return found


def _texts(found: Any) -> Iterator[str]:
    if isinstance(found, Mapping):
        for key, value in found.items():
            yield from () if key == "CustomActions" else _texts(value)
    elif isinstance(found, list):
        for each in found:
            yield from _texts(each)
    elif isinstance(found, str):
        yield found
