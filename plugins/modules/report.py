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
  - What M(pcluster.postboot.check_variables) has planned is registered as C(__postboot_run), and when the turn of each
    component came as C(__postboot_starts). What a component changed is read from the results that its tasks registered
    as C(__<component>_...). So no task on the node is needed.
  - The table is printed by a callback plugin beside the playbooks, after Ansible's own last lines. Where that was not
    loaded, as another playbook on the same command line came first, it is printed by V(state=shown) itself.
options:
  state:
    description:
      - V(begun) warns where there are many more nodes than forks. It is to be run once.
      - V(started) notes that the turn of a component has come. It is to be run once, because all nodes take a task at
        the same time.
      - V(failed) notes, in a C(rescue), that a component failed. It fails itself when the component is an essential.
      - V(stopped) notes, in a C(rescue), that nothing more is done on the node.
      - V(shown) makes the table of all nodes, which stands last when the playbook has ended. It is to be run once.
      - V(judged) fails on nodes that stopped.
    type: str
    choices: [begun, started, failed, stopped, shown, judged]
    required: true
  component:
    description: The component. V(started) and V(failed) need it.
    type: str
extends_documentation_fragment:
  - pcluster.postboot.attributes.looks
  - pcluster.postboot.attributes.internal
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
starts:
  description: When the turn of each component came so far, as seconds since the epoch.
  type: dict
  returned: O(state=started)
lines:
  description: What was printed.
  type: list
  elements: str
  returned: O(state=shown)
"""
