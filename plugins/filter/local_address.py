# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
---
name: local_address
short_description: Where a node itself reaches one of its services
version_added: 0.2.0
author: The pcluster.postboot contributors (@pcluster)
description:
  - Returns the address at which a node reaches a service of its own. A service that listens on every address, such as
    V(:9100), V(0.0.0.0:9100) or V([::]:9100), is reached at V(127.0.0.1:9100); any other address stays as it is.
options:
  _input:
    description: Where the service listens, as C(<host>:<port>).
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Ask node_exporter on its own node
  ansible.builtin.uri:
    url: "http://{{ node_exporter_listen_address | pcluster.postboot.local_address }}/"
"""

RETURN = r"""
_value:
  description: Where the node reaches the service.
  type: str
  sample: 127.0.0.1:9100
"""

import re
from collections.abc import Callable
from typing import Any


def local_address(listen: str) -> str:
    return re.sub(r"^(0\.0\.0\.0|\[::\])?:", "127.0.0.1:", listen)


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"local_address": local_address}
