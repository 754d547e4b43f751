#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.verify."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: verify
short_description: Check a cluster by jobs of an ordinary user
version_added: 0.1.0
description:
  - Runs on the head node. Submits small jobs with C(srun), as an ordinary user, to every partition that has a node that
    is up, and says what worked.
  - A check that fails does not fail the task, whose results name it. Nothing on the cluster is changed.
options:
  user:
    description: Who submits. Not root.
    type: str
    required: true
  stages:
    description: What is checked.
    type: list
    elements: str
    choices: [containers]
    default: [containers]
  partitions:
    description: The partitions to check. By default all.
    type: list
    elements: str
    default: []
  nodes:
    description: How many nodes of each partition are asked; V(0) asks all.
    type: int
    default: 2
  power_up:
    description: Whether nodes that are powered down are booted for it. Otherwise only nodes that are up are asked.
    type: bool
    default: false
  time_limit:
    description: How many minutes each job may take.
    type: int
    default: 10
  wait:
    description: How many seconds each job may wait for nodes that are busy. The check is skipped after that.
    type: int
    default: 120
  container_image:
    description:
      - The image for the containers, as C(srun --container-image) takes it. By default the smallest of O(images_dir).
    type: str
    default: ""
  images_dir:
    description: A folder of images, as C(.sqsh) files.
    type: path
    default: /fsx/containers
  slurm:
    description: Where Slurm is installed.
    type: path
    default: /opt/slurm
  output:
    description: The JSON file for the results.
    type: path
    default: /var/lib/pcluster-postboot/verify.json
attributes:
  check_mode:
    description: Can run in check mode and return what would change without changing it.
    support: full
    details: No job is submitted in check mode, and nothing is written.
  diff_mode:
    description: Will return details on what has changed when in diff mode.
    support: none
    details: Nothing is ever changed.
  idempotent:
    description: When run twice in a row, the second run changes nothing.
    support: full
    details: Nothing is ever changed, apart from O(output), which is a result.
  platform:
    description: Target systems.
    support: full
    platforms: linux
author:
  - The pcluster.postboot contributors (@pcluster)
"""

EXAMPLES = r"""
- name: Check that containers run, on two nodes of every partition
  pcluster.postboot.verify:
    user: ubuntu
    container_image: ubuntu:24.04
"""

RETURN = r"""
report:
  description: What was written to O(output); its C(ok) says whether something was checked and nothing failed.
  type: dict
  returned: success
table:
  description: The same for people, a line for each check.
  type: list
  elements: str
  returned: success
complaints:
  description: One line for each check that failed.
  type: list
  elements: str
  returned: success
"""

import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils import _run, _verify, _verify_containers

STAGES = {"containers": _verify_containers.run}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "user": {"type": "str", "required": True},
            "stages": {"type": "list", "elements": "str", "choices": list(STAGES), "default": ["containers"]},
            "partitions": {"type": "list", "elements": "str", "default": []},
            "nodes": {"type": "int", "default": 2},
            "power_up": {"type": "bool", "default": False},
            "time_limit": {"type": "int", "default": 10},
            "wait": {"type": "int", "default": 120},
            "container_image": {"type": "str", "default": ""},
            "images_dir": {"type": "path", "default": "/fsx/containers"},
            "slurm": {"type": "path", "default": "/opt/slurm"},
            "output": {"type": "path", "default": _run.STATE_DIR + "/verify.json"},
        },
        supports_check_mode=True,
    )
    params = module.params
    if module.check_mode:
        module.exit_json(changed=False, report={}, table=[], complaints=[], msg="no job is submitted in check mode")
    options = _verify.Options(
        user=params["user"],
        image=params["container_image"],
        images_dir=params["images_dir"],
        partitions=tuple(params["partitions"]),
        nodes=params["nodes"],
        power_up=params["power_up"],
        time_limit=params["time_limit"],
        wait=params["wait"],
        slurm=params["slurm"],
    )
    begun = time.time()
    try:
        context = _verify.Context(options)
        checks = [(stage, check) for stage in params["stages"] for check in STAGES[stage](context)]
        report = _verify.report(checks, begun, user=params["user"], stages=params["stages"])
        _verify.write(params["output"], report)
    except (OSError, _verify.VerifyError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, report=report, table=_verify.table(checks), complaints=_verify.complaints(checks))


if __name__ == "__main__":
    main()
