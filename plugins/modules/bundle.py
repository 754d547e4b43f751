#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.bundle."""

from __future__ import annotations

DOCUMENTATION = r"""
module: bundle
short_description: Build the archive with which a node runs this collection on itself
description:
  - The module runs on the controller. It writes C(<dest>/<version>-<12 digits of the archive's sha256>/) with
    C(pcluster-postboot.tar.gz), C(bootstrap.sh) and C(SHA256SUMS). Earlier bundles stay.
  - The same inputs and the same zlib make the same bytes.
  - pip fetches the wheels, only those whose sha256 a lock file has, and keeps them in C(<dest>/.wheels).
options:
  dest:
    description: Directory of the bundles.
    type: path
    required: true
  collection:
    description: Directory of the collection.
    type: path
    required: true
  bootstrap:
    description: The script C(bootstrap.sh).
    type: path
    required: true
  requirements:
    description: Lock file of the Python packages of a node.
    type: path
    required: true
  tools:
    description: Lock file of wheels with programs, which are the same for every Python.
    type: path
    required: true
  pythons:
    description: Pythons of the nodes, from 3.11 to 3.14.
    type: list
    elements: str
    default: ["3.11", "3.12", "3.13", "3.14"]
  architectures:
    description: Architectures of the nodes, V(x86_64) and V(aarch64).
    type: list
    elements: str
    default: [x86_64, aarch64]
  group_vars:
    description: Directory of the user's variables; empty for none. The default is the C(group_vars) beside one of
      O(inventories). The bundle gets the files of groups that nodes are in, and a warning names the others. A file that
      ansible-vault has encrypted is an error.
    type: str
  inventories:
    description: Inventories of the run. The node's inventory takes C(compose), C(groups), C(keyed_groups) and C(tags)
      from the configuration of C(pcluster.postboot.pcluster) among them.
    type: list
    elements: str
    default: []
  config:
    description: Configuration of a cluster. A warning names tags that expressions use and the configuration does not
      have.
    type: path
  node_inventory:
    description: YAML to add to the node's inventory. The action plugin works it out of O(inventories).
    type: str
    default: ""
  node_groups:
    description: Regular expressions of the user's groups that nodes are in. The action plugin works them out of
      O(inventories).
    type: list
    elements: str
    default: []
  mirror:
    description: Directory of downloads.
    type: path
  mirror_files:
    description: Files of O(mirror) for the bundle, relative to O(mirror).
    type: list
    elements: str
    default: []
requirements:
  - pip, for the Python that runs it
attributes:
  diff_mode:
    support: none
extends_documentation_fragment: [pcluster.postboot.attributes, pcluster.postboot.attributes.internal]
"""

EXAMPLES = r"""
- name: Build a bundle
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
  description: Name of the bundle; empty in check mode before its wheels are fetched.
  type: str
  returned: success
version:
  description: Version of the collection.
  type: str
  returned: success
sha256:
  description: Hash of the archive; empty where RV(id) is.
  type: str
  returned: success
directory:
  description: Directory of the bundle; empty where RV(id) is.
  type: str
  returned: success
files:
  description: Files of RV(directory) and their hashes, as M(pcluster.postboot.s3_release) takes them.
  type: list
  elements: dict
  returned: success
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils._bundle import archive, wheels
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import arguments, frozen, serve
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem

CHOICES = {"pythons": wheels.PYTHONS, "architectures": wheels.ARCHITECTURES}


def work(module: AnsibleModule) -> dict[str, Any]:
    """Build the bundle, and return what is in it."""
    given = frozen({name: value for name, value in module.params.items() if name != "config"})
    for name, known in CHOICES.items():
        if not given[name] or set(given[name]) - set(known):
            found = ", ".join(given[name]) or "empty"
            raise Problem(f"publish_{name} is {found}; needed: one or more of {', '.join(known)}")
        # Neither the order in which they are named nor a name given twice makes another bundle.
        given[name] = tuple(word for word in known if word in given[name])
    try:
        return archive.build(archive.Request(check=module.check_mode, **given))._asdict()
    except OSError as error:
        raise Problem(f"the bundle cannot be built: {error}") from error


def main() -> None:
    paths = ("dest", "collection", "bootstrap", "requirements", "tools", "mirror")
    serve(
        {**arguments(archive.Request, paths=paths), "config": {"type": "path"}},
        work,
        alive=False,  # it runs on the controller
    )


if __name__ == "__main__":
    main()
