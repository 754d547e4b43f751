# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
---
name: problems
short_description: What is wrong with variables, one sentence each
version_added: 0.2.0
author: The pcluster.postboot contributors (@pcluster)
description:
  - Returns one sentence for each value that breaks its rule. The sentence names the variable, what was found, what is
    needed, and what could be set instead.
options:
  _input:
    description: The rules. Each has one of O(_input[].pattern) and O(_input[].wrong).
    type: list
    elements: dict
    required: true
    suboptions:
      values:
        description: What was found, by the names of the variables.
        type: dict
        required: true
      pattern:
        description: A regular expression that the whole value has to match; of a list, every element.
        type: str
      wrong:
        description: Whether the values are wrong.
        type: bool
      needed:
        description: What the values have to be.
        type: str
        required: true
      instead:
        description: Which other variable could be set, and to what.
        type: str
"""

EXAMPLES = r"""
- name: Check the variables of a role
  ansible.builtin.assert:
    that: problems | length == 0
    fail_msg: "{{ problems | join('. ') }}"
  vars:
    problems: "{{ rules | pcluster.postboot.problems }}"
    rules:
      - values: {nccl_dir: "{{ nccl_dir }}"}
        pattern: /.+
        needed: an absolute path
      - values: {nccl_cuda: "{{ nccl_cuda }}"}
        wrong: "{{ nccl_method == 'package' and nccl_cuda not in [12, 13] }}"
        needed: 12 or 13
        instead: "nccl_method: source"
"""

RETURN = r"""
_value:
  description: The sentences, in the order of the rules. None where nothing is wrong.
  type: list
  elements: str
  sample: ["nccl_cuda: found 11; needed: 12 or 13, or nccl_method: source"]
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def problems(rules: Iterable[Mapping[str, Any]]) -> list[str]:
    return [
        f"{name}: found {found}; needed: {', or '.join(filter(None, (rule['needed'], rule.get('instead'))))}"
        for rule in rules
        for name, value in rule["values"].items()
        for found in _wrong(rule, value)
    ]


def _wrong(rule: Mapping[str, Any], value: Any) -> list[str]:
    """Return what of a value breaks the rule: the whole of it, or elements of a list."""
    parts = [str(part) for part in value] if isinstance(value, list) else [str(value)]
    if "pattern" in rule:
        return [part for part in parts if not re.fullmatch(rule["pattern"], part)]
    return [", ".join(parts) or "none"] if rule["wrong"] else []


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"problems": problems}
