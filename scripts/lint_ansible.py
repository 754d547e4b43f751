#!/usr/bin/env python3
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run ansible-lint with the arguments given, and let Ansible check the syntax of everything in one start.

ansible-lint starts ansible-playbook for each playbook and for each role, which is half of its time. Where the one start
finds something, ansible-lint checks each of them by itself, and tells what and where.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import yaml
from ansiblelint.__main__ import main
from ansiblelint.runner import Runner

COLLECT = Runner._collect_syntax_check_files  # the method itself, which to_check replaces


def to_check(runner: Any) -> Any:
    """Return what ansible-lint has to check by itself: nothing where all is well."""
    lintables = COLLECT(runner)
    playbooks = [str(each.path.absolute()) for each in lintables if each.kind == "playbook"]
    roles = [
        {"ansible.builtin.import_role": {"name": str(each.path.absolute())}}
        for each in lintables
        if each.kind == "role"
    ]
    with tempfile.TemporaryDirectory() as folder:
        every = Path(folder) / "roles.yml"
        every.write_text(yaml.safe_dump([{"hosts": "localhost", "tasks": roles}]))
        line = ["ansible-playbook", "--syntax-check", "-i", "localhost,", *playbooks, str(every)]
        done = subprocess.run(line, env=runner.app.runtime.environ, capture_output=True, check=False)
    return lintables if done.returncode else []


if __name__ == "__main__":
    with mock.patch.object(Runner, "_collect_syntax_check_files", to_check):
        sys.exit(main(sys.argv))
