# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
---
name: advisories
short_description: The oldest version of a component without a known flaw
version_added: 0.1.0
author: The pcluster.postboot contributors (@pcluster)
description:
  - Returns from which version on a role leaves what a node has, by the advisories that are known to this collection.
  - It is private to this collection, and may change in any release.
options:
  _terms:
    description: The components.
    type: list
    elements: str
    required: true
  only:
    description: The branch that the role replaces, such as V(13.2), where the role leaves another branch.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Show which version of the exporter may stay
  ansible.builtin.debug:
    msg: "{{ lookup('pcluster.postboot.advisories', 'dcgm_exporter')['minimum'] }}"
"""

RETURN = r"""
_raw:
  description: For each component the oldest version that may stay, and what is wrong with older ones. Both are empty
    where nothing is known.
  type: list
  elements: dict
  sample: [{minimum: 1.19.1, flaw: CVE-2026-24260}]
"""

from collections.abc import Mapping
from typing import Any

from ansible.plugins.lookup import LookupBase

from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import advisories


class LookupModule(LookupBase):
    def run(self, terms: list[str], variables: Mapping[str, Any] | None = None, **kwargs: Any) -> list[dict[str, str]]:
        self.set_options(var_options=variables, direct=kwargs)
        return [advisories.floor(str(component), str(self.get_option("only"))) for component in terms]
