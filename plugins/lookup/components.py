# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
---
name: components
short_description: What is known of the components of this collection outside their roles
version_added: 0.2.0
author: The pcluster.postboot contributors (@pcluster)
description:
  - Returns what the files C(meta/component.yml) of the roles say, in the order in which C(pcluster.postboot.site) runs
    the components.
  - It is private to this collection, and may change in any release.
options:
  _terms:
    description:
      - V(names) are the components' names, V(services) the services that have to run where they are, V(scrape_jobs) the
        jobs with which Prometheus scrapes what runs on every node or on every node with GPUs or Neuron devices, and
        V(exporters) the units with metrics whose command line tells where they listen.
    type: list
    elements: str
    choices: [names, services, scrape_jobs, exporters]
    required: true
"""

EXAMPLES = r"""
- name: Show which components there are
  ansible.builtin.debug:
    msg: "{{ query('pcluster.postboot.components', 'names') }}"
"""

RETURN = r"""
_raw:
  description: Strings, or dictionaries for V(scrape_jobs) and V(exporters).
  type: list
  elements: raw
  sample: [pull, fsx, docker]
"""

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleLookupError
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.lookup import LookupBase

from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import components


class LookupModule(LookupBase):
    def run(self, terms: list[str], variables: Mapping[str, Any] | None = None, **kwargs: Any) -> list[Any]:
        self.set_options(var_options=variables, direct=kwargs)
        return [found for term in terms for found in self._ask(term, variables or {})]

    def _ask(self, term: str, variables: Mapping[str, Any]) -> list[Any]:
        if term == "names":
            return components.names()
        found = components.read()
        defaults = {name: value for each in found for name, value in each.defaults.items()}

        def value_of(name: str, default: Any) -> Any:
            # A default of a role that this play has had is a variable, too, and says what is so on this node alone.
            told = name in variables and variables[name] != defaults.get(name)
            value = self._templar.template(variables[name]) if told else default
            return boolean(value, strict=False) if isinstance(default, bool) else value

        if term == "services":
            return components.services(found)
        if term == "exporters":
            return components.exporters(found)
        if term == "scrape_jobs":
            return components.scrape_jobs(found, value_of)
        raise AnsibleLookupError(f"found {term}; needed: names, services, scrape_jobs or exporters")
