# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
---
name: verify_page
short_description: The results of verify as a page with charts
version_added: 0.2.0
author: The pcluster.postboot contributors (@pcluster)
description:
  - Returns an HTML page that needs no other file and runs no script. The playbook C(verify) makes its page so.
options:
  _input:
    description: The results, as M(pcluster.postboot.verify) writes them.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Make a page of results that were kept
  ansible.builtin.copy:
    content: "{{ lookup('ansible.builtin.file', 'verify.json') | from_json | pcluster.postboot.verify_page }}"
    dest: verify.html
    mode: "0644"
"""

RETURN = r"""
_value:
  description: The page.
  type: str
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.pcluster.postboot.plugins.plugin_utils._verify.page import render


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"verify_page": render}
