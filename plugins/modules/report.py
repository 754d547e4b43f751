#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Keep the record of a run, print its table, and judge it: the documentation of an action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: report
short_description: Keep the record of a run, print its table, and judge it
version_added: "0.1.0"
description:
  - The playbooks of this collection use it; it is of little use elsewhere.
  - The record of a run is registered as C(__postboot_run) by every task that uses this action. What a component changed
    is read from the results that its tasks registered as C(__<component>_...). So no task on the node is needed.
  - The table is printed by a callback plugin beside the playbooks, after Ansible's own last lines. Where that was not
    loaded, as another playbook on the same command line came first, it is printed by V(state=shown) itself.
options:
  state:
    description:
      - V(begun) warns where there are many more nodes than forks. It is to be run once.
      - V(started) notes that the turn of a component has come, and says whether it is to run.
      - V(missing) fails with O(message), since another node has not published yet what this one needs. Where the run
        is a boot (C(common_phase)), V(failed) then counts the component as deferred, and not as failed.
      - V(failed) notes, in a C(rescue), that a component failed. It fails itself when the component is an essential.
      - V(stopped) notes, in a C(rescue), that nothing more is done on the node.
      - V(shown) makes the table of all nodes, which stands last when the playbook has ended. It is to be run once.
      - V(judged) fails on nodes that stopped.
    type: str
    choices: [begun, started, missing, failed, stopped, shown, judged]
    required: true
  component:
    description: The component. V(started) and V(failed) need it.
    type: str
  message:
    description: What is missing, and what to do. V(missing) needs it.
    type: str
  waits:
    description: Whether it may still come by itself, with O(state=missing). Otherwise it is a failure in any run.
    type: bool
    default: true
extends_documentation_fragment:
  - pcluster.postboot.attributes.looks
attributes:
  check_mode:
    details: The table says what would change.
author:
  - The pcluster.postboot contributors (@pcluster)
"""

EXAMPLES = r"""
- name: Show what became of every node
  pcluster.postboot.report:
    state: shown
  run_once: true
"""

RETURN = r"""
record:
  description: The record of the run on this node so far.
  type: dict
  returned: always
run:
  description: Whether the component is to run.
  type: bool
  returned: O(state=started)
waits_for:
  description: What this node waits for; empty where it will not come by itself.
  type: str
  returned: O(state=missing)
lines:
  description: What was printed.
  type: list
  elements: str
  returned: O(state=shown)
"""
