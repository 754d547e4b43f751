#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.service_credentials."""

from __future__ import annotations

DOCUMENTATION = r"""
module: service_credentials
short_description: Check that a service will find AWS credentials
description:
  - Looks for AWS credentials as the service's user, in the order of the AWS SDKs, which is the unit's environment, the
    shared files of the user's home, and the instance's role (IMDSv2). Fails if there are none.
  - If C(Imds/Secured) keeps the user from the role, ParallelCluster's C(imds-access.sh) allows it, now and at the next
    boots.
  - With O(write_url), asks Amazon Managed Prometheus whether it takes samples. No answer is a warning, and an error if
    O(unit) runs a Prometheus with samples of its own that an agent would replace.
  - Check mode warns if the user does not exist yet.
options:
  user:
    description: User of the service.
    type: str
    required: true
  unit:
    description: Unit of the service, which need not exist yet.
    type: str
    required: true
  needed_for:
    description: What needs the credentials, for messages.
    type: str
    required: true
  profile:
    description: Profile in the shared files. The default is that of the unit's environment, or C(default).
    type: str
    default: ""
  write_url:
    description: Remote-write URL. Empty asks nobody.
    type: str
    default: ""
  region:
    description: AWS region of O(write_url).
    type: str
    default: ""
  role_arn:
    description: ARN of the role to assume for O(write_url).
    type: str
    default: ""
extends_documentation_fragment: [pcluster.postboot.attributes, pcluster.postboot.attributes.internal]
"""

EXAMPLES = r"""
- name: Check Prometheus' credentials for its workspace
  pcluster.postboot.service_credentials:
    user: prometheus
    unit: prometheus.service
    needed_for: prometheus_amp_workspace
    write_url: https://aps-workspaces.us-east-1.amazonaws.com/workspaces/ws-0123/api/v1/remote_write
    region: us-east-1
"""

RETURN = r"""
actions:
  description: What was done, or in check mode would be, from V(allowed) and V(saved).
  type: list
  elements: str
  returned: success
"""

from ansible_collections.pcluster.postboot.plugins.module_utils._aws.service_credentials import Request, apply
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import arguments, by, serve


def main() -> None:
    serve(arguments(Request), by(Request, apply))


if __name__ == "__main__":
    main()
