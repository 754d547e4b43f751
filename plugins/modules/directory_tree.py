#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Make a tree of directories in one task."""

from __future__ import annotations

DOCUMENTATION = r"""
module: directory_tree
short_description: Make a tree of directories in one task
version_added: "0.1.0"
description:
  - Makes all directories of a list in one task, where a loop would cost one task for each.
  - Directories that are there already keep their owner and mode unless O(enforce) is set. Links to directories are
    always left alone, since somebody has put that part of the tree elsewhere.
  - No link of an ordinary user is followed, so that nobody who owns a directory of the tree leads root elsewhere. Such
    a link, and what would lie below it, is left alone with a warning. So is a directory in which users can replace
    things.
options:
  path:
    description: The top of the tree. It must be there.
    type: path
    required: true
  mount:
    description: A mount point that must be mounted at that moment. Without it nothing is written.
    type: path
  directories:
    description: The directories.
    type: list
    elements: dict
    required: true
    suboptions:
      path:
        description: Where it is, below O(path). The directories above it have to be there or in the list.
        type: str
        required: true
      mode:
        description: Its mode, as an octal number in quotes.
        type: str
        required: true
      owner:
        description: Its owner.
        type: str
        default: root
      group:
        description: Its group.
        type: str
        default: root
      spread:
        description: Whether files beyond their first megabyte lie on all storage targets (C(lfs setstripe)), where the
          directory is on Lustre and is made by this task. One that is there already keeps its layout.
        type: bool
        default: false
  trusted_users:
    description: Users besides root whose links are followed, such as the cluster's own, who may become root.
    type: list
    elements: str
    default: []
  enforce:
    description: Whether directories that are there already get the owner and mode of the list.
    type: bool
    default: false
extends_documentation_fragment:
  - pcluster.postboot.attributes
  - pcluster.postboot.attributes.linux
"""

EXAMPLES = r"""
- name: Make the shared tree
  pcluster.postboot.directory_tree:
    path: /fsx
    mount: /fsx
    directories:
      - {path: datasets, mode: "1777"}
      - {path: logs, mode: "0755"}
      - {path: logs/training, mode: "1777"}
"""

RETURN = r"""
created:
  description: The directories that were made.
  type: list
  elements: str
  returned: success
corrected:
  description: The directories that got another owner or mode.
  type: list
  elements: str
  returned: success
left:
  description: The directories that differ from the list and were left as they are.
  type: list
  elements: dict
  returned: success
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils import _directory_tree as tree
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import serve


def work(module: AnsibleModule) -> dict[str, Any]:
    """Make the tree, and return what was made, corrected and left."""
    params = module.params
    if params["mount"]:
        tree.require_mount(params["mount"])
    names = ("path", "mode", "owner", "group", "spread")
    wanted = [tree.wanted(*(d[name] for name in names)) for d in params["directories"]]
    result = tree.apply(params["path"], wanted, params["enforce"], module.check_mode, params["trusted_users"])
    warnings = [*result.links, *result.narrow]
    if result.open:
        warnings.append(
            f"users can replace what lies in {', '.join(result.open)}; "
            "needed: root as the owner, and mode +t where all may write"
        )
    counts = [(len(result.created), "made"), (len(result.corrected), "corrected"), (len(result.left), "left as found")]
    diff = {"before": "\n".join([*result.before, ""]), "after": "\n".join([*result.after, ""])}
    return {
        "changed": result.changed,
        "created": result.created,
        "corrected": result.corrected,
        "left": result.left,
        "msg": ", ".join(f"{n} {what}" for n, what in counts if n) or "everything is there",
        "diff": diff if result.changed else {},
        "warnings": warnings,
    }


def main() -> None:
    serve(
        {
            "path": {"type": "path", "required": True},
            "mount": {"type": "path"},
            "directories": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "path": {"type": "str", "required": True},
                    "mode": {"type": "str", "required": True},
                    "owner": {"type": "str", "default": "root"},
                    "group": {"type": "str", "default": "root"},
                    "spread": {"type": "bool", "default": False},
                },
            },
            "trusted_users": {"type": "list", "elements": "str", "default": []},
            "enforce": {"type": "bool", "default": False},
        },
        work,
    )


if __name__ == "__main__":
    main()
