# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Has the forks of Ansible's process, each of which runs one task on one host, begin with what they need.

Forks need not look for garbage in what the process held before: that writes to all of it, and what is written to is
copied. Nor need they load plugins: Ansible keeps no bytecode of those of a collection, and loads all filters of one for
each. Measured on seven nodes with nothing to change, this took 15 of 38 s of all forks' time.
"""

from __future__ import annotations

import gc
import os

from ansible.plugins.loader import action_loader, filter_loader, lookup_loader, test_loader

from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import in_process

_NEEDED = {
    action_loader: ["ansible.builtin.normal", "pcluster.postboot.node_module"],
    filter_loader: ["ansible.builtin.dirname", "pcluster.postboot.problems"],
    lookup_loader: ["ansible.builtin.file", "ansible.builtin.template", "pcluster.postboot.template"],
    test_loader: ["ansible.builtin.match"],
}


def prepare() -> None:
    """Load what most tasks use, and have each fork from now on count all that is here as no garbage."""
    for loader, names in _NEEDED.items():
        for name in names:
            loader.get_with_context(name, class_only=True)
    in_process.prepare()
    os.register_at_fork(after_in_child=gc.freeze)
