#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.bundle."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: bundle
short_description: Build the archive with which a node runs this collection on itself
version_added: 0.1.0
description:
  - The playbook C(publish) uses it, on the machine where Ansible runs and with Ansible's own Python.
  - The archive C(pcluster-postboot.tar.gz) holds the collection, wheels of ansible-core for several Pythons and
    architectures, the user's variables, and C(bootstrap.sh). It lies in a directory of its own below O(dest), beside
    C(bootstrap.sh) and C(SHA256SUMS). The directory's name is the collection's version and the first twelve digits
    of the archive's sha256. Earlier ones stay.
  - The same inputs make the same bytes. They are compressed by zlib; another zlib may make other bytes of them.
  - Wheels are fetched by pip, with its own configuration, and only what the lock files have a sha256 of. They are kept
    in C(.wheels) below O(dest), so that another run fetches nothing.
options:
  dest:
    description: The directory below which bundles are kept.
    type: path
    required: true
  collection:
    description: The collection, as a clone of its repository or as ansible-galaxy has installed it.
    type: path
    required: true
  bootstrap:
    description: The script that a node starts.
    type: path
    required: true
  requirements:
    description: The lock file of what a node runs the collection with.
    type: path
    required: true
  tools:
    description: The lock file of programs that only lie in the wheelhouse and are the same for every Python.
    type: path
    required: true
  pythons:
    description: The Pythons that nodes may have, from 3.11 to 3.14.
    type: list
    elements: str
    default: ["3.11", "3.12", "3.13", "3.14"]
  architectures:
    description: The machines that nodes may be, V(x86_64) and V(aarch64).
    type: list
    elements: str
    default: [x86_64, aarch64]
  group_vars:
    description:
      - A directory with the user's variables. Empty is none. What ansible-vault has encrypted is an error, because no
        node has the password.
      - By default the C(group_vars) beside one of O(inventories), if there is one.
      - Of it the bundle has what a node reads, which are files for the groups C(all), C(ungrouped), C(pcluster) and
        C(pcluster_*), and for those of the user's own that nodes are in. A warning names the others.
    type: str
  inventories:
    description:
      - The inventories that are in use. If the inventory plugin C(pcluster.postboot.pcluster) has a configuration among
        them, its C(compose), C(groups), C(keyed_groups) and C(tags) go into the node's own inventory, so that these
        groups hold there too. A warning names what asks for something that a node does not know.
    type: list
    elements: str
    default: []
  config:
    description: The configuration of a cluster. A warning names the tags in expressions that it does not have.
    type: path
  node_inventory:
    description: YAML that the node's own inventory has besides. It is worked out of O(inventories).
    type: str
    default: ""
  node_groups:
    description: Regular expressions of the user's own groups that nodes are in. They are worked out of O(inventories).
    type: list
    elements: str
    default: []
  mirror:
    description: A directory with downloads that nodes are to find in the bundle.
    type: path
  mirror_files:
    description: Which files of O(mirror), by their paths below it.
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - pcluster.postboot.attributes
attributes:
  check_mode:
    details: The name of a bundle whose wheels have never been fetched is not known yet.
  diff_mode:
    description: There is nothing to show.
    support: none
requirements:
  - pip, for the Python that runs it
author:
  - The pcluster.postboot contributors (@pcluster)
"""

EXAMPLES = r"""
- name: The bundle is built
  pcluster.postboot.bundle:
    dest: /home/me/postboot-bundles
    collection: /home/me/.ansible/collections/ansible_collections/pcluster/postboot
    bootstrap: /home/me/.ansible/collections/ansible_collections/pcluster/postboot/roles/pull/files/bootstrap.sh
    requirements: /home/me/.ansible/collections/ansible_collections/pcluster/postboot/requirements/node.txt
    tools: /home/me/.ansible/collections/ansible_collections/pcluster/postboot/requirements/uv.txt
    pythons: ["3.12"]
    architectures: [x86_64]
  delegate_to: localhost
"""

RETURN = r"""
id:
  description: The bundle's name; empty in check mode where something would have to be fetched first.
  type: str
  returned: success
  sample: 0.1.0-3f9e2c51ab07
version:
  description: The collection's version.
  type: str
  returned: success
  sample: 0.1.0
sha256:
  description: The archive's hash; empty where RV(id) is.
  type: str
  returned: success
directory:
  description: The bundle's directory; empty where RV(id) is.
  type: str
  returned: success
  sample: /home/me/postboot-bundles/0.1.0-3f9e2c51ab07
bytes:
  description: The archive's size.
  type: int
  returned: success
files:
  description: The files of RV(directory), and their hashes, as M(pcluster.postboot.s3_release) takes them.
  type: list
  elements: dict
  returned: success
fetched:
  description: For which Pythons and architectures wheels were fetched, or would be.
  type: list
  elements: str
  returned: success
  sample: ["3.12 x86_64"]
group_vars:
  description: The directory whose variables are in it; empty without one.
  type: str
  returned: success
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils import _bundle, _bundle_wheels
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem


def main() -> None:
    """Run the module."""
    pythons, architectures = list(_bundle_wheels.PYTHONS), list(_bundle_wheels.ARCHITECTURES)
    path = {"type": "path", "required": True}
    words = {"type": "list", "elements": "str", "default": []}
    module = AnsibleModule(
        argument_spec={
            "dest": path,
            "collection": path,
            "bootstrap": path,
            "requirements": path,
            "tools": path,
            "pythons": {"type": "list", "elements": "str", "default": pythons},
            "architectures": {"type": "list", "elements": "str", "default": architectures},
            "group_vars": {"type": "str"},
            "inventories": words,
            "config": {"type": "path"},
            "node_inventory": {"type": "str", "default": ""},
            "node_groups": words,
            "mirror": {"type": "path"},
            "mirror_files": words,
        },
        supports_check_mode=True,
    )
    given: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in module.params.items()
        if key != "config"
    }
    for name, known in (("pythons", pythons), ("architectures", architectures)):
        if not given[name] or set(given[name]) - set(known):
            found = ", ".join(given[name]) or "empty"
            module.fail_json(msg=f"publish_{name} is {found}; needed: one or more of {', '.join(known)}")
        # Neither the order in which they are named nor a name given twice makes another bundle.
        given[name] = tuple(word for word in known if word in given[name])
    try:
        outcome = _bundle.build(_bundle.Request(check=module.check_mode, **given))
    except Problem as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"the bundle cannot be built: {error}")
    result = outcome._asdict()
    for warning in result.pop("warnings"):
        module.warn(warning)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
