# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What would make every node refuse the variables of a bundle, or read them otherwise, found before it is built."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import variables

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FOREIGN = "common_foreign_variables"
_PLUGINS = "csvfile|env|file|fileglob|first_found|ini|lines|password|pipe|template|unvault|vars_file"
_ELSEWHERE = re.compile(
    rf"\b(?:lookup|query|q)\(\s*['\"](?:ansible\.builtin\.)?({_PLUGINS})['\"]|\b(inventory_dir|inventory_file|playbook_dir)\b"
)


def check(folder: str, files: Mapping[str, bytes], roles: Mapping[str, variables.Role]) -> tuple[list[str], list[str]]:
    """Return a line for each error, and one for each variable that asks the machine on which it is worked out."""
    errors: list[str] = []
    warnings: list[str] = []
    read: dict[str, dict[str, yaml.Node]] = {}
    for name in sorted(files):
        path = os.path.join(folder, name)
        try:
            read[path] = _top(_compose(files[name]))
        except (yaml.YAMLError, ValueError) as error:
            told = " ".join(str(error).replace(' in "<byte string>",', ",").split())
            errors.append(f"{path} is no YAML with variables: {told}")
    foreign = [word for top in read.values() if _FOREIGN in top for word in _strings(top[_FOREIGN])]
    for path, top in read.items():
        errors += [f"{path}: {line}" for line in variables.misspelt(top, roles, foreign)]
        warnings += [f"{path}: {line}" for line in variables.DEPRECATED.renamed(top)]
        for name, node in top.items():
            used = sorted({word for text in _strings(node) for word in _elsewhere(text)})
            if used:
                warnings.append(
                    f"{path}: {name} uses {', '.join(used)}, and is worked out on each node, which has no such file or "
                    "environment: put the value itself"
                )
    return errors, warnings


def _compose(content: bytes) -> Any:
    with contextlib.suppress(ValueError):  # as Ansible does: JSON may have tabs
        content = json.dumps(json.loads(content), ensure_ascii=False).encode()
    return yaml.compose(content, Loader=_Loader)


def _top(node: Any) -> dict[str, yaml.Node]:
    if node is None or node.tag == "tag:yaml.org,2002:null":
        return {}
    if not isinstance(node, yaml.MappingNode):
        raise ValueError("needed: name: value")
    return {str(key.value): value for key, value in node.value}


def _strings(node: Any) -> Iterator[str]:
    """Yield what is written below a node of YAML, but for what is no template."""
    if isinstance(node, yaml.ScalarNode):
        if node.tag != "!unsafe":
            yield node.value
    else:
        for part in node.value:
            for child in part if isinstance(part, tuple) else (part,):
                yield from _strings(child)


def _elsewhere(text: str) -> list[str]:
    if not variables.dynamic(text):
        return []
    return [f"lookup('{plugin}')" if plugin else variable for plugin, variable in _ELSEWHERE.findall(text)]
