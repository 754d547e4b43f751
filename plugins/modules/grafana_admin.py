#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.grafana_admin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: grafana_admin
short_description: Keep the password of Grafana's admin, and check that Grafana takes it
description:
  - Keeps the password in a file that only root and Grafana can read, and that Grafana reads when it makes its database.
    Without O(password) and O(secret) the password is generated once.
  - If a running Grafana has another password, Grafana's own command line program sets the right one.
options:
  path:
    description: Path of the file, which gets mode 0640 and O(group), in a directory with mode 0750.
    type: path
    default: /var/lib/pcluster-postboot/grafana/admin-password
  group:
    description: Group of Grafana.
    type: str
    default: grafana
  password:
    description: The password. Well-known ones, and those of less than 8 characters, are refused.
    type: str
    default: ""
  password_file:
    description: File from which O(password) was read. The task fails if the password is empty then.
    type: str
    default: ""
  secret:
    description: Name or ARN of a secret in AWS Secrets Manager, as text or as an object with the key C(password). The
      node reads it with the AWS CLI and its own role.
    type: str
    default: ""
  region:
    description: AWS region of O(secret); empty for the AWS CLI's own.
    type: str
    default: ""
  url:
    description: URL of Grafana on this node, asked on every run. Empty makes only the file.
    type: str
    default: ""
  user:
    description: Name of the admin, which is C(admin_user) in Grafana's settings.
    type: str
    default: admin
  datasource:
    description: Identifier of a data source that Grafana has to reach.
    type: str
    default: ""
attributes:
  diff_mode:
    support: none
extends_documentation_fragment: [pcluster.postboot.attributes, pcluster.postboot.attributes.internal]
"""

EXAMPLES = r"""
- name: Set the admin's password
  pcluster.postboot.grafana_admin:
    secret: my-cluster/grafana
    region: us-east-2
    url: http://127.0.0.1:3000
"""

RETURN = r"""
actions:
  description: What was done, or in check mode would be, from V(wrote) (the file) and V(reset) (in Grafana).
  type: list
  elements: str
  returned: success
"""

from ansible_collections.pcluster.postboot.plugins.module_utils._grafana.admin import Request, apply
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import arguments, by, serve


def main() -> None:
    """Run the module."""
    serve(
        arguments(
            Request,
            paths=("path",),
            password={"no_log": True},
            # Names, and not the secret itself.
            password_file={"no_log": False},
            secret={"no_log": False},
        ),
        by(Request, apply),
    )


if __name__ == "__main__":
    main()
