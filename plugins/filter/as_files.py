# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
---
name: as_files
short_description: Files for module validated_files, from their contents by name
version_added: 0.2.0
author: The pcluster.postboot contributors (@pcluster)
description:
  - Returns a list of files as M(pcluster.postboot.validated_files) takes them.
positional: path
options:
  _input:
    description: The contents by name. One that is no string is written as YAML.
    type: dict
    required: true
  path:
    description: The path of each file, in which C({}) is its name, without C(.yml) or C(.yaml) where the path
        ends with C(.yml).
    type: str
    default: "{}"
  source:
    description: The variable that a message about a file names. C({}) is the file's name.
    type: str
  mode:
    description: The mode of the files, as octal digits in quotes. Other options of a file are taken in the same way.
    type: str
"""

EXAMPLES = r"""
- name: Write rules of Prometheus
  pcluster.postboot.validated_files:
    path: /etc/prometheus
    files: "{{ prometheus_rules | pcluster.postboot.as_files('rules/{}.yml', source=\"prometheus_rules['{}']\") }}"
"""

RETURN = r"""
_value:
  description: The files.
  type: list
  elements: dict
  sample: [{path: rules/own.yml, content: "groups: []\n", source: "prometheus_rules['own.yml']"}]
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from ansible.plugins.filter.core import to_nice_yaml


def as_files(contents: Mapping[str, Any], path: str = "{}", **options: str) -> list[dict[str, Any]]:
    endings = r"\.ya?ml$" if path.endswith(".yml") else "$"
    return [
        {
            "path": path.replace("{}", re.sub(endings, "", name)),
            "content": content if isinstance(content, str) else to_nice_yaml(content, indent=2, sort_keys=False),
            **{key: option.replace("{}", name) for key, option in options.items()},
        }
        for name, content in contents.items()
    ]


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"as_files": as_files}
