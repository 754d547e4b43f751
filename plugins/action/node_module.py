# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The action of each module that has none of its own (meta/runtime.yml): Ansible's own, in this process by a pull."""

from __future__ import annotations

from ansible.plugins.action.normal import ActionModule as Normal

from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.in_process import InProcess


class ActionModule(InProcess, Normal):
    """Run the module that the task names."""
