#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.grafana_admin."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: grafana_admin
short_description: Keep the password of Grafana's admin, make Grafana take it, and see that Grafana works
version_added: 0.1.0
description:
  - Keeps the password in a file that only root and Grafana can read, and that Grafana reads when it makes its database.
  - Without O(password) and O(secret) it is made up once, and then stays.
  - A Grafana that runs with another one, such as the default that everybody knows, is told the right one by its own
    command line program.
options:
  path:
    description:
      - The file. It belongs to root and O(group) with mode 0640, and its folder with mode 0750.
    type: path
    default: /var/lib/pcluster-postboot/grafana/admin-password
  group:
    description:
      - Grafana's own group.
    type: str
    default: grafana
  password:
    description:
      - The password. Passwords that everybody knows, and those with less than 8 characters, are refused.
    type: str
    default: ""
  password_file:
    description:
      - The file from which O(password) was read, wherever that was. Without a password in it the task fails.
    type: str
    default: ""
  secret:
    description:
      - Name or ARN of a secret in AWS Secrets Manager, which the node reads with the AWS CLI and its own role. It is
        text, or as the console makes it an object with the key C(password).
    type: str
    default: ""
  region:
    description:
      - The secret's region, unless the AWS CLI knows it.
    type: str
    default: ""
  url:
    description:
      - Where Grafana answers on this node, with the path below which it is served. Without it only the file is made.
      - It is asked on every run.
    type: str
    default: ""
  user:
    description:
      - The admin's name, which is C(admin_user) in Grafana's settings.
    type: str
    default: admin
  datasource:
    description:
      - Identifier of a data source that Grafana has to reach, once it takes the password.
    type: str
    default: ""
extends_documentation_fragment:
  - pcluster.postboot.attributes
  - pcluster.postboot.attributes.linux
attributes:
  diff_mode:
    support: none
    details: A password is not shown.
author:
  - The pcluster.postboot contributors (@pcluster)
"""

EXAMPLES = r"""
- name: A password is there before Grafana starts for the first time
  pcluster.postboot.grafana_admin:

- name: Grafana takes the one of Secrets Manager
  pcluster.postboot.grafana_admin:
    secret: my-cluster/grafana
    region: us-east-2
    url: http://127.0.0.1:3000
    datasource: pcluster-prometheus
"""

RETURN = r"""
actions:
  description: What was done, or in check mode would be, from V(wrote) (the file) and V(reset) (in Grafana).
  type: list
  elements: str
  returned: success
  sample: [wrote]
origin:
  description: Where the password comes from - V(given), V(secret), V(kept) in the file, or V(generated).
  type: str
  returned: success
  sample: kept
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils import _grafana_admin
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import serve


def work(module: AnsibleModule) -> dict[str, Any]:
    """Do what is asked for, and return the result."""
    outcome = _grafana_admin.apply(_grafana_admin.Request(check=module.check_mode, **module.params))
    return {**outcome._asdict(), "changed": bool(outcome.actions)}


def main() -> None:
    """Run the module."""
    serve(
        {
            "path": {"type": "path", "default": "/var/lib/pcluster-postboot/grafana/admin-password"},
            "group": {"type": "str", "default": "grafana"},
            "password": {"type": "str", "default": "", "no_log": True},
            # Names, and not the secret itself.
            "password_file": {"type": "str", "default": "", "no_log": False},
            "secret": {"type": "str", "default": "", "no_log": False},
            "region": {"type": "str", "default": ""},
            "url": {"type": "str", "default": ""},
            "user": {"type": "str", "default": "admin"},
            "datasource": {"type": "str", "default": ""},
        },
        work,
    )


if __name__ == "__main__":
    main()
