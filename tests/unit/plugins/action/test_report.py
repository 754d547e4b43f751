# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The table names what a node was lost by."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.action import report

LOST = {"unreachable": True, "changed": False, "msg": "Task failed: the node's SSM agent\ndoes not run"}


class HostVars(dict[str, Any]):
    """Ansible's own, whose variables are templates until somebody asks for one."""

    def raw_get(self, host: str) -> Any:
        return self[host].known


class Theirs:
    def __init__(self, **known: Any) -> None:
        self.known = known

    def get(self, name: str, default: Any = None) -> Any:
        return self.known.get(name, default)

    def __contains__(self, name: str) -> bool:
        return name in self.known


@pytest.mark.parametrize(
    ("known", "why"),
    [
        ({"__node_exporter_unit": LOST}, "Task failed: the node's SSM agent does not run"),
        ({"__postboot_begin": {"unreachable": True}}, "the connection was lost on the way"),
        ({"__docker_url": "{{ undefined }}"}, "the connection was lost on the way"),
    ],
)
def test_the_task_in_which_a_node_was_lost_says_why(known: dict[str, Any], why: str) -> None:
    action = report.ActionModule.__new__(report.ActionModule)
    action._task = SimpleNamespace(check_mode=False)
    ours = {"__postboot_facts": {"changed": False}, **known}
    variables = {"hostvars": HostVars(gpu=Theirs(**ours)), "ansible_play_hosts_all": ["gpu"]}
    answer = action._shown(report.site_report.Told.by({}), "", variables)
    assert answer["lines"][0] == f"unreachable on gpu: {why}"
