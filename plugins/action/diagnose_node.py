# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Gather on a node, and tell a node that is not reached from one that cannot gather, whatever the connection raises."""

from __future__ import annotations

from ansible.plugins.action.normal import ActionModule as Normal

from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.reach import Reaching


class ActionModule(Reaching, Normal):
    """Run the module of this name."""
