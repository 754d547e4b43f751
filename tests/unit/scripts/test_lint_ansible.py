# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""lint_ansible.py: what ansible-lint still checks by itself."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from ansible_collections.pcluster.postboot.tests.programs import load

PLAY = "- hosts: localhost\n  gather_facts: false\n  tasks:\n    - {}: {{msg: x}}\n"


@pytest.mark.parametrize(
    ("role", "playbook", "all_is_well"),
    [("debug", "debug", True), ("nosuch", "debug", False), ("debug", "nosuch", False)],
)
def test_ansible_lint_looks_at_each_by_itself_where_one_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str, playbook: str, all_is_well: bool
) -> None:
    program = load("scripts/lint_ansible.py")
    (tmp_path / "roles/one/tasks").mkdir(parents=True)
    (tmp_path / "roles/one/tasks/main.yml").write_text(f"- {role}: {{msg: x}}\n")
    (tmp_path / "play.yml").write_text(PLAY.format(playbook))
    lintables = [
        SimpleNamespace(kind="role", path=tmp_path / "roles/one"),
        SimpleNamespace(kind="playbook", path=tmp_path / "play.yml"),
    ]
    monkeypatch.setattr(program, "COLLECT", lambda _runner: lintables)
    runner = SimpleNamespace(app=SimpleNamespace(runtime=SimpleNamespace(environ=dict(os.environ))))
    assert program.to_check(runner) == ([] if all_is_well else lintables)
