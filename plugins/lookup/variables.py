# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
---
name: variables
short_description: What the variables of roles of this collection come to on a host
version_added: 0.2.0
author: The pcluster.postboot contributors (@pcluster)
description:
  - Returns the public variables of roles, worked out with what the user has set and with the facts of the host, whether
    the roles have run or not.
options:
  _terms:
    description: The roles to ask. By default all that run on nodes.
    type: list
    elements: str
    required: false
  pattern:
    description: A regular expression. Only variables in whose names it is found are worked out.
    type: str
    default: ""
  only_set:
    description: Whether only those are returned that somebody has set to something else than the roles' defaults.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Show which versions this host is to have
  ansible.builtin.debug:
    msg: "{{ lookup('pcluster.postboot.variables', pattern='_version$') }}"
"""

RETURN = r"""
_raw:
  description: One dictionary, the values by the names of the variables.
  type: list
  elements: dict
  sample:
    - nccl_version: 2.32.3
      node_exporter_version: 1.12.1
"""

import re
from collections.abc import Mapping
from typing import Any

from ansible.plugins.lookup import LookupBase

from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.roles import for_nodes, load


class LookupModule(LookupBase):
    def run(self, terms: list[str], variables: Mapping[str, Any] | None = None, **kwargs: Any) -> list[Any]:
        self.set_options(var_options=variables, direct=kwargs)
        roles = terms or for_nodes()
        public = {role: load(self._loader, role, "defaults/main.yml") for role in dict.fromkeys(["common", *roles])}
        found: dict[str, Any] = {}
        for role, defaults in public.items():
            found.update(defaults)
            found.update(load(self._loader, role, "vars/main.yml"))
        found.update(variables or {})
        templar = self._templar.copy_with_new_env(available_variables=found)
        names = sorted({name for role in roles for name in public[role]})
        if self.get_option("only_set"):
            names = [name for name in names if not any(found[name] == of.get(name) for of in public.values())]
        wanted = re.compile(self.get_option("pattern"))
        return [{name: templar.template(found[name]) for name in names if wanted.search(name)}]
