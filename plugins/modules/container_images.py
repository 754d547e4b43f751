#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.container_images."""

from __future__ import annotations

DOCUMENTATION = r"""
module: container_images
short_description: Tell what became of the container images that are imported in the background
description:
  - Reads the state file of the importer that the role P(pcluster.postboot.container_images#role) runs.
  - A call waits O(timeout) seconds at most; C(until) waits longer. Check mode does not wait.
options:
  path:
    description: Directory of the images.
    type: path
    required: true
  settings:
    description: Settings of the importer. A state file that is older is ignored.
    type: path
    required: true
  wait:
    description: Whether to wait for the images, and to fail if one could not be imported.
    type: bool
    default: false
  timeout:
    description: Seconds that one call waits.
    type: int
    default: 15
attributes:
  diff_mode:
    support: none
  idempotent:
    details: The task is changed when images came while it waited.
extends_documentation_fragment: [pcluster.postboot.attributes, pcluster.postboot.attributes.internal]
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
  description: How many images are ready, in one phrase.
  type: str
  returned: success
settled:
  description: Whether the importer has tried all images.
  type: bool
  returned: success
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils import _container_images as images
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import serve
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem


def work(module: AnsibleModule) -> dict[str, Any]:
    """Return what became of the images, after a wait where that is asked for."""
    params = module.params
    before = outlook = images.look(params["path"], params["settings"])
    if params["wait"] and not module.check_mode:
        outlook = images.wait(params["path"], params["settings"], params["timeout"])
    result: dict[str, Any] = {
        "changed": bool(set(outlook.ready) - set(before.ready)),
        "summary": outlook.summary,
        "settled": outlook.settled,
        "ready": outlook.ready,
        "busy": outlook.busy,
        "failed_images": outlook.failed,
        "problems": outlook.problems,
    }
    if params["wait"] and outlook.settled and outlook.complaint and not module.check_mode:
        raise Problem(outlook.complaint, **result)
    late = "; the import goes on, but container_images_wait_timeout is over"
    return {**result, "msg": outlook.summary + (late if params["wait"] and not outlook.settled else "")}


def main() -> None:
    serve(
        {
            "path": {"type": "path", "required": True},
            "settings": {"type": "path", "required": True},
            "wait": {"type": "bool", "default": False},
            "timeout": {"type": "int", "default": 15},
        },
        work,
    )


if __name__ == "__main__":
    main()
