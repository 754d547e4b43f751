# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
---
name: template
short_description: ansible.builtin.template's text, without a copy of all variables
version_added: 0.2.0
author: The pcluster.postboot contributors (@pcluster)
description:
  - Returns what the lookup P(ansible.builtin.template#lookup) returns, and takes its options.
  - Ansible's own copies every variable of the host in depth for each template. A run of C(pcluster.postboot.site), in
    which a host has the variables of all roles, spent a seventh of the controller's time on that.
  - It is private to this collection, and may change in any release.
options:
  _terms:
    description: The templates, found as Ansible's own lookup finds them.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Show what the unit of node_exporter would be
  ansible.builtin.debug:
    msg: "{{ lookup('pcluster.postboot.template', 'node_exporter.service.j2') }}"
"""

RETURN = r"""
_raw:
  description: The text of each template.
  type: list
  elements: str
"""

from collections.abc import Mapping
from typing import Any

from ansible.plugins.loader import lookup_loader
from ansible.plugins.lookup import LookupBase


class _Shared(dict[str, Any]):
    """Variables whose copy in depth shares the values. A template reads them, and changes none."""

    def __deepcopy__(self, memo: Any) -> dict[str, Any]:
        return dict(self)


class LookupModule(LookupBase):
    def run(self, terms: list[str], variables: Mapping[str, Any] | None = None, **kwargs: Any) -> list[str]:
        ansible = lookup_loader.get("ansible.builtin.template", loader=self._loader, templar=self._templar)
        found: list[str] = ansible.run(terms, _Shared(variables or {}), **kwargs)
        return found
