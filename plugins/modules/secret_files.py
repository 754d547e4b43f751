#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.secret_files."""

from __future__ import annotations

DOCUMENTATION = r"""
module: secret_files
short_description: Keep the secrets of a service in files that nobody else can read
description:
  - Puts each secret into a file of O(directory) with mode 0640, owned by root and O(group); the folder has mode 0750.
    The folder is the module's own, so files in it that O(secrets) does not name are removed.
  - Nothing is written before every secret could be read and every file of O(named) is found to be as it should be.
options:
  directory:
    description: Folder of the files.
    type: path
    required: true
  group:
    description: Group of the service, which is the name of its user too.
    type: str
    required: true
  secrets:
    description: Where the secrets come from, by the names of their files. A value is the name or ARN of a secret in AWS
      Secrets Manager, as text or as an object with a key of the file's name, which the node reads with the AWS CLI and
      its own role; or C(file:///path), a file on the node that others cannot read.
    type: dict
    required: true
  source:
    description: Name of the variable that O(secrets) is, for messages.
    type: str
    required: true
  region:
    description: AWS region of the secrets; empty for the AWS CLI's own.
    type: str
    default: ""
  named:
    description: Paths of files that the service's configuration names. One in O(directory) has to be in O(secrets); any
      other has to be there, readable by the service, and by nobody else.
    type: list
    elements: str
    default: []
  named_by:
    description: Name of the variable that names these files, for messages.
    type: str
    default: ""
attributes:
  diff_mode:
    support: none
extends_documentation_fragment: [pcluster.postboot.attributes, pcluster.postboot.attributes.internal]
"""

EXAMPLES = r"""
- name: Keep the secrets of Alertmanager
  pcluster.postboot.secret_files:
    directory: /etc/alertmanager/secrets
    group: alertmanager
    secrets: {slack: my-cluster/slack, smtp: file:///root/smtp-password}
    source: alertmanager_secrets
    region: us-east-2
"""

RETURN = r"""
written:
  description: The files that were written, or in check mode would be.
  type: list
  elements: str
  returned: success
removed:
  description: The files that were removed, or in check mode would be.
  type: list
  elements: str
  returned: success
"""

from ansible_collections.pcluster.postboot.plugins.module_utils._aws.secret_files import Request, apply
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import arguments, by, serve


def main() -> None:
    # Names of secrets and of files, and no secret itself.
    names = {"type": "dict", "required": True, "no_log": False}
    serve(arguments(Request, paths=("directory",), secrets=names), by(Request, apply))


if __name__ == "__main__":
    main()
