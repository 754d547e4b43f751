#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.container_images."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: container_images
short_description: Tell what became of the container images that are imported in the background
version_added: 0.1.0
description:
  - Reads what the importer of the role P(pcluster.postboot.container_images#role) has written. It imports nothing.
  - One call waits a few seconds at most, because not every connection lives long. C(until) waits longer.
options:
  path:
    description: The folder of the images.
    type: path
    required: true
  settings:
    description: The importer's settings. What it wrote before it read these is not counted.
    type: path
    required: true
  wait:
    description: Whether images are waited for, so that it fails if one could not be imported.
    type: bool
    default: false
  timeout:
    description: How many seconds one call waits.
    type: int
    default: 15
extends_documentation_fragment:
  - pcluster.postboot.attributes
  - pcluster.postboot.attributes.linux
attributes:
  check_mode:
    details: Nothing is waited for in check mode.
  diff_mode:
    support: none
  idempotent:
    details: It is changed when images came while it waited.
author:
  - The pcluster.postboot contributors (@pcluster)
"""

EXAMPLES = r"""
- name: Wait for the container images
  pcluster.postboot.container_images:
    path: /fsx/containers
    settings: /etc/pcluster-postboot/container-images.json
    wait: true
  register: state
  until: state.settled
  retries: 400
  delay: 3
"""

RETURN = r"""
summary:
  description: How far the images are, in a short phrase.
  type: str
  returned: success
  sample: 1 of 2 images there; 1 on the way
settled:
  description: Whether the importer has tried everything that its settings name.
  type: bool
  returned: success
ready:
  description: The images that can be used.
  type: list
  elements: str
  returned: success
  sample: ["nvcr.io/nvidia/pytorch:26.09-py3"]
busy:
  description: The images that are waited for.
  type: list
  elements: str
  returned: success
failed_images:
  description: Why an image could not be imported, by its name.
  type: dict
  returned: success
problems:
  description: What is wrong with the lists or the credentials, one line each.
  type: list
  elements: str
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils import _container_images as images
from ansible_collections.pcluster.postboot.plugins.module_utils import _run


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "settings": {"type": "path", "required": True},
            "wait": {"type": "bool", "default": False},
            "timeout": {"type": "int", "default": 15},
        },
        supports_check_mode=True,
    )
    params = module.params
    _run.heartbeat()
    before = outlook = images.look(params["path"], params["settings"])
    if params["wait"] and not module.check_mode:
        try:
            outlook = images.wait(params["path"], params["settings"], params["timeout"])
        except images.WaitError as error:
            module.fail_json(msg=str(error), settled=True)
    result: dict[str, object] = {
        "changed": bool(set(outlook.ready) - set(before.ready)),
        "msg": outlook.summary,
        "summary": outlook.summary,
        "settled": outlook.settled,
        "ready": outlook.ready,
        "busy": outlook.busy,
        "failed_images": outlook.failed,
        "problems": outlook.problems,
    }
    if params["wait"] and outlook.settled and outlook.complaint and not module.check_mode:
        module.fail_json(**{**result, "msg": outlook.complaint})
    if params["wait"] and not outlook.settled:
        result["msg"] = f"{outlook.summary}; the import goes on, but container_images_wait_timeout is over"
    module.exit_json(**result)


if __name__ == "__main__":
    main()
