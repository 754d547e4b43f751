#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.boot_info."""

from __future__ import annotations

DOCUMENTATION = r"""
module: boot_info
short_description: Find out what a head node knows of nodes that boot
version_added: 0.2.0
description:
  - Asks Slurm for its nodes and queues, and reads clustermgtd's log, the status of the compute fleet, and the small
    files by which nodes tell how far their own run is.
attributes:
  diff_mode:
    support: N/A
extends_documentation_fragment:
  - pcluster.postboot.attributes.looks
  - pcluster.postboot.attributes.internal
  - pcluster.postboot.attributes.slurm
options:
  timeout:
    description: Seconds that each program has to answer.
    type: float
    default: 30
"""

EXAMPLES = r"""
- name: Find out how far the nodes are
  pcluster.postboot.boot_info:
  register: boots
"""

RETURN = r"""
now:
  description: The clock of the head node, in seconds since the epoch.
  type: float
  returned: success
booted:
  description: Whether the user data of the head node has ended.
  type: bool
  returned: success
boot_error:
  description: Why the boot of the head node has failed, as ParallelCluster tells.
  type: str
  returned: success
timeouts:
  description: How many seconds ParallelCluster waits for the boot of a node of each type, where that is configured.
  type: dict
  returned: success
fleet:
  description: Status of the compute fleet.
  type: str
  returned: success
inactive:
  description: Partitions that are taken out of use.
  type: list
  elements: str
  returned: success
failures:
  description: How many boots of each queue have failed in a row.
  type: dict
  returned: success
failures_most:
  description: How many may before the queue is taken out of use.
  type: int
  returned: success
heartbeat:
  description: Seconds since clustermgtd's last sign of life; -1 where there was none.
  type: float
  returned: success
"off":
  description: How many dynamic nodes are powered down, and start when a job asks for one.
  type: int
  returned: success
nodes:
  description:
    - Name, state, and where Slurm knows them, address, instance and reason of all other nodes.
    - Of a node that is powered down and that Slurm never starts again, C(stranded) is true.
  type: list
  elements: dict
  returned: success
records:
  description: What nodes tell of their own runs.
  type: list
  elements: dict
  returned: success
problems:
  description: What could not be read.
  type: list
  elements: str
  returned: success
"""

from ansible_collections.pcluster.postboot.plugins.module_utils._boot.head import Request, look
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import arguments, by, serve


def main() -> None:
    # The run that holds the node is another one.
    serve(arguments(Request, paths=("prefix",)), by(Request, look), alive=False)


if __name__ == "__main__":
    main()
