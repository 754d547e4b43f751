#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.group_members."""

from __future__ import annotations

DOCUMENTATION = r"""
module: group_members
short_description: Add users to a group of the node
description: An unknown user is an error, also of a directory service such as LDAP. Nobody is removed from the group.
options:
  group:
    description: The group, which must exist outside of check mode.
    type: str
    required: true
  users:
    description: Names of the users.
    type: list
    elements: str
    required: true
extends_documentation_fragment: [pcluster.postboot.attributes, pcluster.postboot.attributes.internal]
"""

EXAMPLES = r"""
- name: Let some users use Docker, which makes them as powerful as root
  pcluster.postboot.group_members:
    group: docker
    users: [alice, bob]
"""

RETURN = r"""
added:
  description: Users that were added, or in check mode would be.
  type: list
  elements: str
  returned: success
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils import _group_members
from ansible_collections.pcluster.postboot.plugins.module_utils._host import files
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import serve


def work(module: AnsibleModule) -> dict[str, Any]:
    group, users = module.params["group"], module.params["users"]
    due = _group_members.due(group, users, module.check_mode)
    if not module.check_mode:
        _group_members.add(group, due)
    diff = files.diff(group, "", "".join(f"{user}\n" for user in due))
    return {"changed": bool(due), "added": due, "diff": diff if due else {}}


def main() -> None:
    serve(
        {
            "group": {"type": "str", "required": True},
            "users": {"type": "list", "elements": "str", "required": True},
        },
        work,
    )


if __name__ == "__main__":
    main()
