# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The user's own configuration, to which variables add."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from ansible_collections.pcluster.postboot.plugins.module_utils._host import files
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config.cluster import PREFIX

_SECTIONS = ("Image", "HeadNode", "LoginNodes", "Scheduling", "Monitoring", "DevSettings", "Imds")
_LISTS = {  # by the key that each entry has
    ("LoginNodes", "Pools"): "Name",
    ("Scheduling", "SlurmQueues"): "Name",
    ("SharedStorage",): "Name",
    ("Tags",): "Key",
}

# What a template for envsubst, or one with placeholders, has where a value is missing. Arguments of scripts are left
# alone, because a shell may expand them.
_MISSING = re.compile(r"PLACEHOLDER_[A-Z0-9_]+|\$\{[A-Z][A-Z0-9_]*\}|\$[A-Z][A-Z0-9_]+")


def read(path: str) -> dict[str, Any]:
    """Return a configuration in which at least the sections are what they have to be."""
    where = f"{PREFIX}base: {path}"
    text = files.read(path)
    if text is None:
        raise Problem(f"{where} is not there; needed: a configuration of ParallelCluster")
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise Problem(f"{where} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise Problem(f"{where} has no sections; needed: a configuration of ParallelCluster")
    found = {key: value for key, value in found.items() if value is not None}
    wrong = [key for key in _SECTIONS if not isinstance(found.get(key, {}), dict)]
    wrong += ["/".join(keys) for keys, key in _LISTS.items() if not _is_list(_at(found, *keys), key)]
    if wrong:
        needed = "sections, and lists whose entries have Name or Key"
        raise Problem(f"{where}: {', '.join(wrong)} is not as ParallelCluster has it; needed: {needed}")
    missing = list(dict.fromkeys(name for text in _texts(found) for name in _MISSING.findall(text)))
    if missing:
        raise Problem(f"{where} has {', '.join(missing)}; needed: values, as after envsubst, or no such keys at all")
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


def _at(found: Any, *keys: str) -> Any:
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _is_list(value: Any, key: str) -> bool:
    return value is None or (
        isinstance(value, list) and all(isinstance(each, dict) and isinstance(each.get(key), str) for each in value)
    )
