#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.service_credentials."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: service_credentials
short_description: See that a service will find AWS credentials
version_added: 0.1.0
description:
  - Looks for AWS credentials as a service's own user, where the AWS SDKs would, in their order - in the environment of
    its unit, in the shared files of its home, and in the role of the instance (IMDSv2). Fails with one line where there
    are none, so that a service that would only crash without them is not started.
  - On a cluster with C(Imds/Secured), only root and the cluster's own users may ask for the role's. Where that is what
    keeps the user away, ParallelCluster's C(imds-access.sh) adds it, and the rules that the next boot restores have it
    too.
  - With O(write_url), asks Amazon Managed Prometheus whether it would take samples, by writing none. Where nothing
    answers, that is a warning, and an error where O(unit) runs a Prometheus that keeps its samples itself, and that an
    agent is about to replace.
options:
  user:
    description: The user of the service.
    type: str
    required: true
  unit:
    description: The unit of the service. It need not be there yet.
    type: str
    required: true
  needed_for:
    description: What needs them, for messages.
    type: str
    required: true
  profile:
    description: The profile in the shared files. By default that of the unit's environment, or C(default).
    type: str
    default: ""
  write_url:
    description: Where samples would be written. Empty asks nobody.
    type: str
    default: ""
  region:
    description: The region of O(write_url).
    type: str
    default: ""
  role_arn:
    description: The role that is assumed for O(write_url).
    type: str
    default: ""
extends_documentation_fragment:
  - pcluster.postboot.attributes
  - pcluster.postboot.attributes.linux
attributes:
  check_mode:
    details: Where the user is not there yet, nothing can be found out, and a warning says so.
notes:
  - No secret is returned, and none is written anywhere.
author:
  - The pcluster.postboot contributors (@pcluster)
"""

EXAMPLES = r"""
- name: Prometheus finds credentials for its workspace
  pcluster.postboot.service_credentials:
    user: prometheus
    unit: prometheus.service
    needed_for: prometheus_amp_workspace
    write_url: https://aps-workspaces.us-east-1.amazonaws.com/workspaces/ws-0123/api/v1/remote_write
    region: us-east-1
"""

RETURN = r"""
source:
  description: Where the credentials come from; empty where that cannot be known yet.
  type: str
  returned: success
  sample: the role parallelcluster-RoleHeadNode of the instance
actions:
  description: What was done, or in check mode would be, from V(allowed) and V(saved).
  type: list
  elements: str
  returned: success
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils import _service_credentials
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import serve


def work(module: AnsibleModule) -> dict[str, Any]:
    """Do what is asked for, and return the result."""
    outcome = _service_credentials.apply(_service_credentials.Request(check=module.check_mode, **module.params))
    return {**outcome._asdict(), "changed": bool(outcome.actions)}


def main() -> None:
    """Run the module."""
    serve(
        {
            "user": {"type": "str", "required": True},
            "unit": {"type": "str", "required": True},
            "needed_for": {"type": "str", "required": True},
            "profile": {"type": "str", "default": ""},
            "write_url": {"type": "str", "default": ""},
            "region": {"type": "str", "default": ""},
            "role_arn": {"type": "str", "default": ""},
        },
        work,
    )


if __name__ == "__main__":
    main()
