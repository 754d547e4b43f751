# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What node_health puts on the head node, and the epilog that every node runs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.pcluster.postboot.roles.node_health.files.node_health_decider.records import Settings
from ansible_collections.pcluster.postboot.tests.programs import REPO
from ansible_collections.pcluster.postboot.tests.unit.roles.node_health_tree import facts

Variables = Callable[..., Callable[[str], Any]]


def test_the_program_gets_every_setting_in_its_type(work_out: Variables) -> None:
    value = work_out("common node_health", {**facts(), "node_type": "head"}, node_health_max_nodes="7")
    settings = Settings(**value("__node_health_decider_settings"))
    assert settings[:6] == ("report", 7, 10.0, 4, 24.0, 900)
    assert [isinstance(one, float) for one in settings[:6]] == [False, False, True, False, True, False]
    assert settings.states == "/opt/slurm/pcluster-postboot/health/nodes"
    assert settings.metrics == "/var/lib/node_exporter/textfile_collector/node_health_decider.prom"


def test_all_modules_of_the_programs_are_installed(work_out: Variables) -> None:
    path = str(REPO / "roles/node_health")
    value = work_out("common node_health", {**facts(), "node_type": "head"}, role_path=path)
    paths = {one["path"] for one in value("__node_health_decider_modules")}
    modules = (REPO / "roles/node_health/files/node_health_decider").glob("*.py")
    assert paths == {f"libexec/pcluster-postboot/node_health_decider/{path.name}" for path in modules}


# Whether the timer is enabled, and what the start of a look ends with
ON, OFF = 0, 1


@pytest.mark.parametrize(
    ("age", "timer", "code", "asked"),
    [
        (60, ON, 0, True),
        (60, ON, 1, True),
        (5, ON, 0, False),
        (None, ON, 0, True),
        # A look would write its metrics anew, which somebody has removed.
        (60, OFF, 0, False),
    ],
)
def test_the_epilog_asks_for_a_look_and_ends_with_0(
    tmp_path: Path, age: int | None, timer: int, code: int, asked: bool
) -> None:
    """Slurm drains a node whose epilog fails."""
    if age is not None:
        state = tmp_path / "state.json"
        state.write_text("{}")
        then = state.stat().st_mtime - age
        os.utime(state, (then, then))
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(
        f'#!/bin/sh\n[ "$*" != "is-enabled --quiet pcluster-node-health.timer" ] || exit {timer}\n'
        f'echo "$@" > {tmp_path}/asked\nexit {code}\n'
    )
    systemctl.chmod(0o755)
    text = (REPO / "roles/node_health/templates/epilog.sh.j2").read_text()
    text = text.replace("{{ __node_health_state_dir }}", str(tmp_path)).replace("PATH=", f"PATH={tmp_path}:")
    assert "{{ ansible_managed }}" in text
    script = tmp_path / "epilog"
    script.write_text(text)
    done = subprocess.run(["/bin/sh", str(script)], capture_output=True, text=True, check=False, env={})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "asked").exists() is asked
    if asked:
        assert (tmp_path / "asked").read_text() == "start --no-block pcluster-node-health.service\n"


def test_the_page_tells_what_is_removed_where_it_is_switched_off(work_out: Variables) -> None:
    """Metrics that nobody writes any more would be told, and alert, for ever."""
    value = work_out("common node_health", {**facts(), "node_type": "head"})
    page = (REPO / "docs/node-health.md").read_text().partition("## Switching it off")[2]
    assert f"{value('__node_health_textfiles')}/node_health.prom" in page
    settings = Settings(**value("__node_health_decider_settings"))
    assert settings.metrics in page
    assert f"{settings.states}/" in page
    component = yaml.safe_load((REPO / "roles/node_health/meta/component.yml").read_text())
    assert all(f"disable --now {unit['name']}" in page for unit in component["units"])
