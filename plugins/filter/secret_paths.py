# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
---
name: secret_paths
short_description: The files of secrets that a configuration of Prometheus' family names
version_added: 0.2.0
author: The pcluster.postboot contributors (@pcluster)
description:
  - Returns the value of every key that ends with C(_file), such as C(api_url_file) and C(auth_password_file), however
    deep it is. Certificates (C(ca_file), C(cert_file)) are no secrets, and are left out.
options:
  _input:
    description: The configuration, or parts of it.
    type: raw
    required: true
"""

EXAMPLES = r"""
- name: Show which files Alertmanager reads when it sends
  ansible.builtin.debug:
    msg: "{{ alertmanager_receivers | pcluster.postboot.secret_paths }}"
"""

RETURN = r"""
_value:
  description: The paths, sorted, each once.
  type: list
  elements: str
  sample: [/etc/alertmanager/secrets/slack]
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

_PUBLIC = {"ca_file", "cert_file"}


def secret_paths(configuration: Any) -> list[str]:
    return sorted(set(_paths(configuration)))


def _paths(part: Any) -> Iterator[str]:
    if isinstance(part, Mapping):
        for key, value in part.items():
            if str(key).endswith("_file") and key not in _PUBLIC and isinstance(value, str):
                yield value
            else:
                yield from _paths(value)
    elif isinstance(part, (list, tuple)):
        for value in part:
            yield from _paths(value)


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"secret_paths": secret_paths}
